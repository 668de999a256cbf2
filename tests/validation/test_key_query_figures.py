"""The study of (K, Q) under each optimizer: its problems, its bounds and its tables."""

import numpy as np
import pytest

import attsvm
from attsvm.validation.figures.figure import Context, Options
from attsvm.validation.figures.own import key_query_studies as studies


def outcome_of(figure, **settings):
    return figure.run(Context({**figure.full, **figure.quick, **settings}, Options(quick=True)))


def test_the_problems_of_factors_equal_semidefinite_programs():
    found = outcome_of(studies.FIGURE_PROGRAMS, trials=3)
    assert not found.refuted and max(found.curves.values()) < 1e-7


def test_a_wrong_value_is_refuted(monkeypatch):
    wrong = studies.PROGRAMS["muon"]._replace(ours=lambda problem, chosen: 1.0)
    monkeypatch.setattr(studies, "PROGRAMS", {"muon": wrong})
    assert "muon differs from its model" in outcome_of(studies.FIGURE_PROGRAMS, trials=1).refuted[0]


def test_bounds_of_entries_are_ordered_and_the_linear_program_closes():
    found = {name: np.array(values) for name, values in studies.entry_bounds(2, 0, draw=0, starts=2).items()}
    assert (found["linf"] < found["gamma_2"]).all() and (found["gamma_2"] < found["projective"]).all()
    assert (found["projective"] < found["found"]).all()
    assert (found["projective"] < 1.79 * found["gamma_2"]).all()  # Grothendieck's inequality
    assert np.abs(found["gap"]).max() < 1e-9


def test_one_row_has_a_projective_norm_by_hand():
    """The margin of one row (a, b) over atoms x y^T is at most |a|_1 |b|_1."""
    a, b = np.array([1.0, -2.0, 0.5]), np.array([3.0, 1.0, -1.0])
    assert studies._least_projective(np.outer(a, b)[None]) == pytest.approx((1 / 17.5, 1 / 17.5))


def test_factors_of_the_singular_values_attain_the_least_spectral_norm():
    problem = attsvm.random_problem(n=4, T=5, d=6, seed=0)
    sol = attsvm.att_svm(problem, norm="spectral")
    U, S, Vt = np.linalg.svd(sol.W)
    K, Q = U * np.sqrt(S), Vt.T * np.sqrt(S)
    np.testing.assert_allclose(K @ Q.T, sol.W, atol=1e-12)
    assert studies._size("spectral", K, Q) == pytest.approx(sol.norm, rel=1e-9)
    assert studies._nearest(studies.token_rows(problem, problem.optimal_tokens().indices), sol.W, sol.norm) < 0.1


def test_ridge_descent_is_nearest_the_nuclear_problem():
    found = studies.ends_of_way(2, 0, draw=0, way="ridge e^-200", steps=600)
    assert (found["angle"].argmin(axis=1) == studies.NORMS.index("nuclear")).all()
    assert (found["own"] <= 1 + 1e-9).all() and (found["share"] <= 1 + 1e-6).all()


def test_compositional_muon_is_measured_by_its_product():
    found = studies.ends_of_way(2, 0, draw=0, way="compositional Muon, half-split", steps=300)
    np.testing.assert_allclose(found["own"], found["share"][:, studies.NORMS.index("spectral")], rtol=1e-9)
    assert (found["nearest"] < found["angle"][:, studies.NORMS.index("spectral")] + 0.1).all()


def test_tables_have_a_row_per_way_and_experiment(monkeypatch):
    names = ("normalized descent", "compositional Muon, half-split", "sign descent on K and Q")
    monkeypatch.setattr(studies, "WAYS", {
        **{name: studies.WAYS[name] for name in names},
        "Muon on K and Q, no momentum": studies.WAYS["Muon on K and Q, no momentum"],
    })  # fmt: skip
    found = outcome_of(studies.FIGURE_FACTORS, trials=1, few=1, steps=20)
    angles, shares, own, columns, decays, entries = found.tables
    assert len(angles.rows) == len(shares.rows) == len(own.rows) == 4
    assert [len(table.rows) for table in (columns, decays, entries)] == [1, 1, 3]
