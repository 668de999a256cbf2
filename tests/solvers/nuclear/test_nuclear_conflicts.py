"""Contradictory rows in the nuclear norm, and rows that only look contradictory."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.solvers import MarginProblem, Status, certify_infeasible, solve
from attsvm.solvers.frobenius.conflicts import purify_farkas
from attsvm.solvers.nuclear import interior
from attsvm.solvers.unit import UnitProblem
from kkt import assert_infeasible, seeded_rows
from solver_api import replaced, with_rows

SOLVERS = ("interior", "factored", "nuclear_batch")


def infeasible() -> dict[str, MarginProblem]:
    base = seeded_rows(6, 7, 10)
    twice = with_rows(base, base.rows.a[:1], [0], [2.0])
    return {
        "opposite rows": with_rows(base, -base.rows.a[:1], [0]),
        "zero row": with_rows(base, np.zeros((1, 10)), [2]),
        "too many rows": seeded_rows(20, 9, 5),
        "contradicting equalities": replaced(twice, equality=np.isin(np.arange(twice.m), [0, base.m])),
    }


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", list(infeasible()))
def test_infeasible_comes_with_a_proof(solver: str, name: str) -> None:
    problem = infeasible()[name]
    result = solve(problem, "nuclear", solver)
    assert result.status is Status.INFEASIBLE
    farkas = result.certificate.farkas
    assert farkas is not None
    assert (farkas.multipliers[~problem.equality] >= 0).all()
    # The combination cancels while its right-hand side is 1: checked from the data, not from the solver.
    leftover = np.linalg.norm(problem.adjoint(farkas.multipliers))
    assert leftover <= 1e-8 * (np.abs(farkas.multipliers) @ problem.row_norms)
    assert problem.rhs @ farkas.multipliers == pytest.approx(1.0)
    assert_infeasible(problem, farkas.multipliers)


def test_infeasible_with_many_rows() -> None:
    base = seeded_rows(40, 25, 40)
    result = solve(with_rows(base, -base.rows.a[:1], [0]), "nuclear")
    assert result.status is Status.INFEASIBLE
    assert result.certificate.farkas is not None
    assert result.certificate.farkas.rows.tolist() == [0, base.m]


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("seed", range(5))
def test_dependent_equalities_are_no_proof_of_infeasibility(solver: str, seed: int) -> None:
    # 12 equalities on 4 entries, consistent by construction: their combinations cancel on both sides, and only
    # rounding keeps the right-hand side from being exactly 0.
    rng = np.random.default_rng(seed)
    a, queries, owner = rng.standard_normal((12, 2)), rng.standard_normal((4, 2)), np.repeat(range(4), 3)
    W = rng.standard_normal((2, 2))
    rhs = MarginProblem(a, queries, owner).margins(W)
    problem = MarginProblem(a, queries, owner, rhs, np.ones(12, dtype=bool))
    result = solve(problem, "nuclear", solver)
    assert result.status is Status.OPTIMAL
    np.testing.assert_allclose(result.W, W, atol=1e-8)  # W is the only feasible matrix
    combination = np.linalg.svd(problem.features())[0][:, -1]
    assert certify_infeasible(problem, combination) is None
    assert certify_infeasible(problem, -combination) is None


def test_multipliers_become_a_proof_whatever_their_scale_and_zero_ones_do_not() -> None:
    """Also where the largest is exactly 1, as after a division by it."""
    rows = UnitProblem(infeasible()["opposite rows"]).rows
    lam = np.zeros(rows.m)
    assert purify_farkas(rows, lam) is None
    assert purify_farkas(rows, np.full(rows.m, np.inf)) is None
    lam[[0, -1]] = 1.0, 0.9  # nearly the two rows that cancel
    for scale in (1.0, 1e-3, 1e5):
        proof = purify_farkas(rows, scale * lam)
        assert proof is not None and proof.farkas is not None
        assert proof.farkas.rows.tolist() == [0, rows.m - 1]


def test_many_contradicting_rows_of_few_entries_are_proved_by_the_search_in_the_entries(monkeypatch):
    """Diverging multipliers of 468 rows took a hundred times as long to make exact."""
    monkeypatch.setattr(interior, "purify_farkas", lambda rows, lam: pytest.fail("multipliers were made exact"))
    rng = np.random.default_rng(0)
    problem = MarginProblem(rng.normal(size=(468, 6)), rng.normal(size=(468, 6)), np.arange(468))
    result = solve(problem, "nuclear", "interior")
    assert_infeasible(problem, result.certificate.farkas.multipliers)
