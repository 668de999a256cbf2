"""Uniqueness of nuclear-norm solutions: what is proved about all of them from one."""

from __future__ import annotations

import warnings

import cvxpy as cp
import numpy as np
import pytest

from attsvm.solvers import MarginProblem, Status, certify, solve
from attsvm.solvers.nuclear.uniqueness import _reach, certify_uniqueness
from attsvm.solvers.unit import UnitProblem
from kkt import random_rows, seeded_rows
from solver_api import rows_of

# W11 >= 1 and W22 >= 1: [[1, t], [t, 1]] is optimal for all |t| <= 1.
FREE_OFF_DIAGONAL = MarginProblem(np.eye(2), np.eye(2), [0, 1])


@pytest.mark.parametrize("t", [0.0, 0.5, 1.0, -1.0])
def test_not_unique(t: float) -> None:
    W = np.array([[1.0, t], [t, 1.0]])
    verdict = certify_uniqueness(FREE_OFF_DIAGONAL, W, [1.0, 1.0])
    assert verdict.verdict == "not unique"
    assert verdict.face_dimension == 1
    assert verdict.witness is not None
    assert np.linalg.norm(verdict.witness - W) > 1e-2
    # The witness is as optimal as W: same multipliers, gap at the level of the bisection.
    assert certify(FREE_OFF_DIAGONAL, verdict.witness, [1.0, 1.0], "nuclear").worst <= 1e-9
    ranks = certify(FREE_OFF_DIAGONAL, W, [1.0, 1.0], "nuclear").rank_certificate
    assert ranks is not None
    assert (ranks.numerical_rank == ranks.rank) == (abs(t) < 1)  # strictly complementary only inside the face


def test_unique_when_the_face_is_cut_off() -> None:
    # W12 + W21 = 0.5 by an equality on (e1 + e2)(e1 + e2)^T fixes what was free.
    rows = MarginProblem(
        [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [0, 1, 2], [1.0, 1.0, 2.5],
        [False, False, True],
    )  # fmt: skip
    result = solve(rows, "nuclear")
    assert result.status is Status.OPTIMAL
    assert result.certificate.worst <= 1e-10
    assert result.norm == pytest.approx(2.0, abs=1e-9)
    verdict = certify_uniqueness(rows, result.W, result.multipliers)
    assert verdict.verdict == "unique"
    np.testing.assert_allclose(result.W, [[1.0, 0.25], [0.25, 1.0]], atol=1e-8)


def test_solver_reports_uniqueness() -> None:
    assert solve(FREE_OFF_DIAGONAL, "nuclear").uniqueness.verdict == "not unique"
    for seed in range(5):
        result = solve(seeded_rows(5, 6, 9, seed), "nuclear")
        found, ranks = result.uniqueness, result.certificate.rank_certificate
        assert found.verdict == "unique"
        assert ranks is not None and ranks.rank == ranks.numerical_rank == found.rank
        assert found.smallest_singular_value > 1e-3


def test_inaccurate_pairs_stay_undecided() -> None:
    problem = seeded_rows(5, 6, 9)
    assert certify_uniqueness(problem, np.ones((9, 9)), np.ones(problem.m)).verdict == "undecided"


def farthest(problem: MarginProblem, bound: float, along: np.ndarray) -> np.ndarray | None:
    """Of the feasible matrices of nuclear norm at most ``bound`` the one farthest along a direction, by cvxpy."""
    a, queries, owner, rhs, equality = rows_of(problem)
    W = cp.Variable(problem.shape)
    values = cp.sum(cp.multiply(a @ W, queries[owner]), axis=1)
    rows = [values[~equality] >= rhs[~equality]] if (~equality).any() else []
    rows += [values[equality] == rhs[equality]] if equality.any() else []
    program = cp.Problem(cp.Maximize(cp.sum(cp.multiply(along, W))), [cp.normNuc(W) <= bound, *rows])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program.solve(solver="CLARABEL")
        except cp.SolverError:
            return None
    return W.value if program.status == "optimal" else None


@pytest.mark.parametrize("seed", range(6))
def test_every_matrix_of_no_larger_norm_lies_within_the_radius(seed: int) -> None:
    """The radius of a pair bounds all feasible matrices of at most its norm; here W is enlarged to leave them room."""
    rng = np.random.default_rng(seed)
    problem = random_rows(rng, 1 + seed % 3, 3, 3, 4, equalities=seed % 2)
    best = solve(problem, "nuclear")
    assert best.status is Status.OPTIMAL
    checked = 0
    for share in (1e-2, 1e-3):
        W = best.W * (1 + share)  # feasible: equality rows have right-hand side 0
        radius = certify_uniqueness(problem, W, best.multipliers).radius
        if not np.isfinite(radius):
            continue
        for _ in range(2):
            other = farthest(problem, best.norm * (1 + share), rng.standard_normal(W.shape))
            if other is not None:
                checked += 1
                assert np.linalg.norm(other - W) <= radius
    assert checked


@pytest.mark.parametrize("seed", range(4))
def test_independent_solutions_differ_by_less_than_their_radii(seed: int) -> None:
    problem = seeded_rows(4, 4, 6, seed)
    found = [solve(problem, "nuclear", solver) for solver in ("interior", "factored", "nuclear_batch", "cvxpy")]
    assert found[0].uniqueness.verdict == "unique"
    assert found[0].uniqueness.radius <= 1e-3 * found[0].norm
    for one in found[1:]:
        # The exact solution lies within both radii.
        assert one.uniqueness.verdict != "not unique"
        assert np.linalg.norm(one.W - found[0].W) <= one.uniqueness.radius + found[0].uniqueness.radius


def test_a_narrow_face_is_not_called_unique() -> None:
    # W11 >= 1 and 1e7 W22 >= 1: [[1, t], [t, 1e-7]] is optimal for t^2 <= 1e-7, all within 5e-4 of each other.
    problem = MarginProblem([[1.0, 0.0], [0.0, 1e7]], np.eye(2), [0, 1])
    t = np.sqrt(1e-7)
    exact = certify_uniqueness(problem, np.diag([1.0, 1e-7]), [1.0, 1e-7])
    assert (exact.verdict, exact.rank) == ("not unique", 2)
    assert exact.witness is not None
    assert 0.5 * t < np.linalg.norm(exact.witness - np.diag([1.0, 1e-7])) <= np.sqrt(2) * t
    for solver in ("interior", "factored", "nuclear_batch", "cvxpy"):
        found = solve(problem, "nuclear", solver)
        far = max(np.linalg.norm(found.W - np.array([[1.0, s], [s, 1e-7]])) for s in (-t, t))
        assert found.uniqueness.verdict != "unique"
        assert found.uniqueness.radius >= far


def test_only_rows_that_bind_can_prove_uniqueness() -> None:
    # The same free off-diagonal with a row that limits it without being active: still not unique.
    loose = MarginProblem(np.vstack([np.eye(2), [[-1.0, 0.0]]]), np.eye(2), [0, 1, 1], [1.0, 1.0, -0.5])
    verdict = certify_uniqueness(loose, np.eye(2), [1.0, 1.0, 0.0])
    assert verdict.verdict == "not unique"
    assert verdict.witness is not None
    assert (loose.margins(verdict.witness) >= loose.rhs - 1e-12).all()
    assert certify(loose, verdict.witness, [1.0, 1.0, 0.0], "nuclear").worst <= 1e-12


def test_norm_zero_is_unique() -> None:
    problem = MarginProblem(np.eye(2), np.eye(2), [0, 1], rhs=[-1.0, 0.0])
    verdict = certify_uniqueness(problem, np.zeros((2, 2)), [0.0, 0.0])
    assert (verdict.verdict, verdict.radius) == ("unique", 0.0)
    assert (verdict.smallest_singular_value, verdict.face_dimension, verdict.rank) == (np.inf, 0, 0)


def test_zero_is_no_solution_of_rows_that_ask_for_something() -> None:
    problem = MarginProblem(np.eye(2), np.eye(2), [0, 1], rhs=[1.0, 0.0])
    verdict = certify_uniqueness(problem, np.zeros((2, 2)), [0.0, 0.0])
    assert (verdict.verdict, verdict.radius) == ("undecided", np.inf)


def test_multipliers_of_zero_decide_nothing() -> None:
    problem = MarginProblem(np.eye(2), np.eye(2), [0, 1])
    found = certify_uniqueness(problem, np.eye(2), [0.0, 0.0])
    assert (found.verdict, found.radius, found.witness) == ("undecided", np.inf, None)
    # D = 0 tells no singular value from another: all count, no row has a multiplier, nothing is determined.
    assert (found.smallest_singular_value, found.face_dimension, found.rank, found.distance) == (0.0, 3, 2, 0.0)


def test_the_distance_of_the_other_solution_is_relative() -> None:
    problem = MarginProblem(np.eye(2), np.eye(2), [0, 1], rhs=[30.0, 30.0])
    W = 30.0 * np.eye(2)
    found = certify_uniqueness(problem, W, [1.0, 1.0])
    assert found.verdict == "not unique" and found.witness is not None
    assert found.distance == pytest.approx(np.linalg.norm(found.witness - W) / np.linalg.norm(W), rel=1e-12)
    assert 1e-3 < found.distance < 2.0


def test_the_radius_is_no_larger_than_its_formula() -> None:
    """One row: nothing but rounding is in the radius, through its square root."""
    problem = MarginProblem([[3.0, 4.0]], [[1.0]], [0])
    found = certify_uniqueness(problem, [[0.12], [0.16]], [0.2])
    assert found.verdict == "unique"
    assert 0.0 < found.radius < 300.0 * np.sqrt(np.finfo(float).eps) * 0.2


def test_the_way_to_another_solution_ends_where_a_row_or_the_cone_does() -> None:
    """``W = I`` under ``W_11 >= 1/2`` and ``W_22 >= 1``: stopped by the first row, the second, the cone, nothing."""
    rows = UnitProblem(MarginProblem(np.eye(2), np.eye(2), [0, 1], rhs=[0.5, 1.0])).rows
    eye = np.eye(2)
    assert _reach(rows, eye, eye, eye, eye, np.diag([-1.0, 1.0])) == pytest.approx(0.999 * 0.5)
    assert _reach(rows, eye, eye, eye, eye, np.diag([0.0, -1.0])) == pytest.approx(0.0, abs=1e-12)
    assert _reach(rows, eye, eye, eye, eye, np.array([[0.0, 2.0], [2.0, 0.0]])) == pytest.approx(
        0.999 * 0.5
    )  # the cone
    assert _reach(rows, eye, eye, eye, eye, np.diag([0.0, 1.0])) == pytest.approx(0.999 * 4.0 * np.sqrt(2.0))
