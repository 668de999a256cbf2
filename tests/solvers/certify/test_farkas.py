"""Proofs of infeasibility: what is one, and what must not be taken for one."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attsvm
from attsvm.solvers import SOLVERS, MarginProblem, Status, certify_infeasible, find_farkas, solve
from attsvm.solvers.certify import farkas
from attsvm.solvers.certify.farkas import zero_row_proof
from attsvm.solvers.deadline import OutOfTime
from attsvm.solvers.exact import exact_feasibility, exact_rows
from kkt import assert_infeasible, random_rows
from margin_problems import conflict, hidden_conflict
from planted_optima import cancelling, on_grid
from solver_api import norms_of, replaced, rows_of


def test_farkas_needs_cancelling_rows_with_positive_value():
    problem = MarginProblem([[1.0], [-1.0], [2.0]], [[1.0]], [0, 0, 0])
    assert certify_infeasible(problem, [1.0, 1.0, 0.0]).farkas is not None
    assert certify_infeasible(problem, [1.0, 0.9, 0.0]) is None  # does not cancel
    assert certify_infeasible(problem, [-1.0, 0.0, 0.5]) is None  # negative multipliers are dropped first
    assert certify_infeasible(problem, [0.0, 0.0, 0.0]) is None
    assert certify_infeasible(problem, [np.nan, 1.0, 0.0]) is None


def test_farkas_uses_free_multipliers_on_equalities():
    # W = 2 and W = 3 together: multipliers (-1, 1) give 0 = 1.
    problem = MarginProblem([[1.0], [1.0]], [[1.0]], [0, 0], rhs=[2.0, 3.0], equality=[True, True])
    certificate = find_farkas(problem)
    np.testing.assert_allclose(certificate.farkas.multipliers, [-1.0, 1.0], rtol=1e-12)
    assert certificate.gap == certificate.primal_violation == float("inf")


def test_dependent_but_consistent_equalities_are_no_proof():
    # The left null vector of consistent rows cancels on both sides; what rounding leaves of rhs . lam is not a proof.
    for seed in range(50):
        rng = np.random.default_rng(seed)
        a, b, W = rng.standard_normal((6, 2)), rng.standard_normal((6, 2)), rng.standard_normal((2, 2))
        rows = MarginProblem(a, b, np.arange(6))
        problem = MarginProblem(a, b, np.arange(6), rows.margins(W), np.ones(6, dtype=bool))  # W is feasible
        null = np.linalg.svd(problem.features().T)[2][-1]
        for lam in (null, -null):
            assert certify_infeasible(problem, lam) is None


def test_zero_rows_are_an_exact_proof(rng):
    problem = MarginProblem(np.vstack([np.eye(3), np.zeros(3)]), rng.standard_normal((1, 3)), [0] * 4)
    farkas = find_farkas(problem).farkas
    assert farkas.residual == 0.0
    assert farkas.excluded_norm == float("inf")
    assert farkas.rows.tolist() == [3]


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_farkas_is_found_at_any_scale_and_names_only_the_conflict(rng, scale):
    easy = random_rows(rng, 3, 3, 6)
    x = rng.standard_normal(6)
    conflict = np.vstack([x, -2 * x])  # exact: a power of two
    problem = MarginProblem(
        scale * np.vstack([easy.rows.a, conflict]),
        np.vstack([easy.rows.queries, rng.standard_normal(6)]),
        np.append(easy.owner, [3, 3]),
    )
    farkas = find_farkas(problem).farkas
    assert farkas.owners.tolist() == [3]
    assert farkas.rows.tolist() == [6, 7]


def test_a_hard_but_feasible_problem_is_not_called_infeasible():
    # W >= 1 on both of two nearly opposite rows forces |W| of about 1e5.
    problem = MarginProblem([[1.0, 1e-5], [-1.0, 1e-5]], [[1.0]], [0, 0])
    assert find_farkas(problem) is None
    result = solve(problem)
    assert result.status is Status.OPTIMAL
    assert result.norm == pytest.approx(1e5, rel=1e-6)


# -- the three proofs --------------------------------------------------------------------------------------------------


def test_a_zero_row_is_a_proof_only_if_it_asks_for_something():
    rows = MarginProblem([[0.0], [0.0], [1.0]], [[1.0]], [0, 0, 0], rhs=[-1.0, 0.0, 1.0])
    assert zero_row_proof(rows) is None
    assert solve(rows).status is Status.OPTIMAL
    for rhs, equal in ((1e-300, False), (-2.0, True), (2.0, True)):
        proof = zero_row_proof(replaced(rows, rhs=[rhs, 0.0, 1.0], equality=[equal, False, False])).farkas
        assert proof.proof == "zero row"
        assert proof.excluded_norm == np.inf
        np.testing.assert_allclose(proof.multipliers, [1 / rhs, 0.0, 0.0], rtol=1e-15)
    assert zero_row_proof(replaced(rows, rhs=[-2.0, 0.0, 1.0])) is None
    # A norm that underflows is no zero row.
    tiny = MarginProblem([[1e-200], [-1e-200]], [[1e-200]], [0, 0])
    assert zero_row_proof(tiny) is None


def test_more_rows_than_dimensions_are_proved_by_rounding_bounds(rng):
    problem = random_rows(rng, 40, 12, 4)
    proof = find_farkas(problem).farkas
    assert proof.proof == "rounding bounds"
    assert_infeasible(problem, proof.multipliers)
    assert len(proof.rows) > 16
    assert proof.residual < 1e-15
    assert proof.excluded_norm > 1e6  # what the float multipliers alone say


@pytest.mark.parametrize("entry", [conflict("opposite rows"), hidden_conflict(), cancelling()], ids=lambda e: e.name)
def test_few_rows_are_proved_by_rationals(entry):
    proof = certify_infeasible(entry.problem, entry.multipliers * (1 + 1e-9)).farkas
    assert proof.proof == "rationals"
    assert_infeasible(entry.problem, proof.multipliers)
    assert set(proof.rows) <= set(np.flatnonzero(entry.multipliers))
    # A candidate that is only near a proof is improved; one that is far from any is refused.
    assert certify_infeasible(entry.problem, entry.multipliers + 1e-8 * (entry.multipliers > 0)) is not None
    assert certify_infeasible(entry.problem, entry.multipliers * np.linspace(1, 2, entry.problem.m)) is None


def conflicting(seed: int, kind: str) -> MarginProblem:
    """Rows of each query that cancel on a grid; then scaled, exactly or not, or moved by one unit in the last place."""
    rng = np.random.default_rng(seed)
    q, per, d, dz = (int(n) for n in rng.integers((1, 2, 1, 1), (4, 5, 4, 4)))
    a, weights = on_grid(rng, (q, per, d)), rng.integers(1, 4, (q, per - 1)).astype(float)
    a[:, -1] = -np.einsum("qk,qkd->qd", weights, a[:, :-1])
    a, b = a.reshape(-1, d), on_grid(rng, (q, dz)) if rng.random() < 0.5 else rng.standard_normal((q, dz))
    if kind == "scaled":
        a = a * 2.0 ** rng.integers(-3, 4, (len(a), 1))
    elif kind == "rounded":
        a = a * rng.standard_normal((len(a), 1)) ** 2
    elif kind == "moved":
        row, column = rng.integers(len(a)), rng.integers(d)
        a[row, column] = np.nextafter(a[row, column], rng.choice([-np.inf, np.inf]))
    return MarginProblem(a, b, np.repeat(np.arange(q), per))


@given(seed=st.integers(0, 10**6), kind=st.sampled_from(["exact", "scaled", "rounded", "moved"]))
def test_infeasible_is_what_exact_arithmetic_says(seed, kind):
    """Conflicts that hold only up to rounding are feasible, with a huge W, and are never called infeasible."""
    problem = conflicting(seed, kind)
    a, b, owner, _, _ = rows_of(problem)
    feasible = exact_feasibility(exact_rows(a, b, owner)).feasible
    found = [solve(problem, norm) for norm in ("frobenius", "nuclear")]
    found += [solve(MarginProblem.stack([problem, problem]), norm)[1] for norm in ("frobenius", "nuclear")]
    for one in found:
        assert (one.status is Status.INFEASIBLE) == (not feasible)
        if not feasible:
            assert one.certificate.farkas.proof in ("zero row", "rounding bounds", "rationals")
            assert_infeasible(problem, one.certificate.farkas.multipliers)
    assert not (feasible and kind in ("exact", "scaled"))


# -- conflicts up to rounding are not conflicts ----------------------------------------------------------------------

EVERY = [(name, norm) for name in SOLVERS for norm in norms_of(name, ("spectral", "l1", "linf", "nuclear"))]


def nearly_opposite(d: float) -> MarginProblem:
    return MarginProblem([[1.0, d], [-1.0, d]], [[1.0]], [0, 0])


def long_tokens(S: float) -> MarginProblem:
    return MarginProblem([[S, 0.0], [-S, 1.0]], [[1.0]], [0, 0])  # W = (1/S, 2) has both margins 1


@pytest.mark.parametrize("build", [nearly_opposite, long_tokens])
@pytest.mark.parametrize(("solver", "norm"), EVERY)
def test_every_solver_refuses_near_conflicts(solver, norm, build):
    limit = {"rank": 1, "starts": 1} if SOLVERS[solver].ranks else {}
    sizes = (1e-6, 1e-9, 1e-12)
    problems = [build(size if build is nearly_opposite else 1 / size) for size in sizes]
    batch = solve(MarginProblem.stack(problems), norm, solver, **limit)
    for size, problem, of_batch in zip(sizes, problems, batch, strict=True):
        W = np.array([[0.0], [1 / size]]) if build is nearly_opposite else np.array([[size], [2.0]])
        np.testing.assert_allclose(problem.margins(W), 1.0, rtol=1e-15)
        for one in (solve(problem, norm, solver, **limit), of_batch):
            assert one.status is not Status.INFEASIBLE
            assert one.certificate.farkas is None
            if one.status is Status.OPTIMAL:  # and then it is: the answer of the limit is known
                assert one.norm == pytest.approx(attsvm.solvers.get_norm(norm)(W), rel=1e-6)
        for lam in ([1.0, 1.0], [1.0, 1.0 + 1e-15], [1.0, 1.0 - 1e-15]):
            assert certify_infeasible(problem, lam) is None


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_rounded_differences_prove_nothing_about_tokens(norm):
    # Tokens (0, e), (-1, 1), (1, -1): the differences round to (1, -1) and (-1, 1), which conflict. Exactly they are
    # (1, -1 + e) and (-1, 1 + e), and W = (1, 1) / e is feasible.
    e = 2.0**-60
    X = np.array([[[0.0, e], [-1.0, 1.0], [1.0, -1.0]]])
    rounded = MarginProblem(X[0, 0] - X[0, 1:], [[1.0]], [0, 0])
    assert solve(rounded, norm).status is Status.INFEASIBLE
    problem = attsvm.AttentionProblem(X, [1], [[1.0]], attsvm.LinearHead([0.0, 1.0]))
    with pytest.warns(attsvm.ConvergenceWarning, match="rows are missed"):
        assert attsvm.att_svm(problem, [0], norm=norm).status is not Status.INFEASIBLE
    batch = attsvm.AttentionProblem(np.stack([X] * 2), [[1]] * 2, [[[1.0]]] * 2, attsvm.LinearHead([0.0, 1.0]))
    with pytest.warns(attsvm.ConvergenceWarning, match="2 of 2 problems"):
        assert not (attsvm.att_svm(batch, [[0], [0]], norm=norm).status == "infeasible").any()


def test_rounding_bounds_prove_only_what_they_bound():
    """Both conditions of the proof are needed: multipliers beyond their possible change, and a positive value."""
    rows = np.arange(3)
    problem = MarginProblem([[1.0], [-1.0], [1.0]], [[1.0]], [0, 0, 0])
    assert farkas._by_rounding_bounds(problem, rows, np.array([1.0, 2.0, 1.0])) is not None
    # The third multiplier is smaller than what rounding may have moved it by: its sign is not known.
    assert farkas._by_rounding_bounds(problem, rows, np.array([1.0, 1.0, 1e-17])) is None
    # The rows cancel, but what they ask for is not positive for sure.
    for total in (0.0, 1e-17):
        level = replaced(problem, rhs=[1.0, -1.0 + total, 1.0 + total])
        assert farkas._by_rounding_bounds(level, rows, np.array([1.0, 2.0, 1.0])) is None


def test_equality_rows_may_have_multipliers_of_either_sign_in_a_proof_by_rounding_bounds():
    problem = MarginProblem([[1.0], [1.0], [2.0]], [[1.0]], [0, 0, 0], rhs=[1.0, 2.0, 1.0], equality=[True] * 3)
    proof = farkas._by_rounding_bounds(problem, np.arange(3), np.array([-1.0, 1.0, 0.0]))
    assert proof is not None and proof.farkas is not None
    assert proof.farkas.multipliers[0] < 0 < proof.farkas.multipliers[1]
    assert_infeasible(problem, proof.farkas.multipliers)


def test_traces_of_multipliers_are_no_part_of_a_proof():
    problem = MarginProblem([[1.0], [-1.0], [2.0]], [[1.0]], [0, 0, 0])
    found = certify_infeasible(problem, [1.0, 1.0, 1e-14])
    assert found is not None and found.farkas is not None
    assert found.farkas.proof == "rounding bounds"
    assert found.farkas.rows.tolist() == [0, 1]
    assert found.farkas.multipliers.tolist() == [0.5, 0.5, 0.0]


@pytest.mark.parametrize("seed", range(12))
def test_an_error_of_multipliers_counts_as_often_as_the_right_hand_sides_are_large(seed: int) -> None:
    """Rows that cancel exactly, nearly dependent, met with equality by a large W: feasible, whatever rounding says.

    Everything lies on a grid, so that the rows add up to 0 and the right-hand sides are margins without any rounding.
    The smallest singular value is about 1e-6: multipliers are computed to 1e-10, times right-hand sides of size 1e3.
    """
    rng = np.random.default_rng(seed)
    grid = 2.0**-20
    first, second = np.rint(rng.standard_normal((2, 3)) * 2**10) * 2.0**-10
    third = first + second + grid * rng.integers(-2, 3, 3)
    a = np.array([first, second, third, -(first + second + third)])
    W = np.rint(np.linalg.svd(a)[2][-1] * 2**30)[:, None]
    rhs = (a @ W)[:, 0]
    assert [sum(map(Fraction, column)) for column in a.T] == [0, 0, 0]
    exact = [sum(Fraction(x) * Fraction(w) for x, w in zip(row, W[:, 0], strict=True)) for row in a]
    assert exact == [Fraction(r) for r in rhs]
    problem = MarginProblem(a, [[1.0]], np.zeros(4, dtype=int), rhs)
    for _ in range(5):
        assert certify_infeasible(problem, 1.0 + 1e-9 * rng.standard_normal(4)) is None


def test_a_proof_that_takes_too_many_exchanges_or_too_long_is_none(monkeypatch) -> None:
    """A search inside a method goes on without it; neither error reaches the caller."""
    from attsvm.solvers import exact

    asked = []

    def refuse(error):
        def exact_farkas(rows, multipliers, max_pivots):
            asked.append(max_pivots)
            raise error

        return exact_farkas

    problem = MarginProblem([[0.1, 0.3], [-0.1, -0.3]], [[1.0, 0.7]], [0, 0])
    monkeypatch.setattr(farkas, "_by_rounding_bounds", lambda *arguments: None)
    for error in (RuntimeError("no answer after 50 exact exchanges"), OutOfTime("the time limit was reached")):
        monkeypatch.setattr(exact, "exact_farkas", refuse(error))
        assert certify_infeasible(problem, [1.0, 1.0]) is None
    assert asked == [50] * len(asked) and len(asked) >= 2


def test_exact_exchanges_can_be_limited(rng, monkeypatch) -> None:
    order = list(range(40))
    monkeypatch.setattr("attsvm.solvers.exact.feasibility.guess_by_floats", lambda *rows: (None, order))  # a poor one
    rows = exact_rows(rng.standard_normal((40, 16)), [[1.0]], np.zeros(40, dtype=int))
    assert not exact_feasibility(rows).feasible
    with pytest.raises(RuntimeError, match="no answer after 1 exact exchanges"):
        exact_feasibility(rows, max_pivots=1)
