"""Rank-limited margin problems: global where the convex rank allows it, honest below."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import attsvm
from attsvm.selection_rows import selection_rows
from attsvm.solvers import MarginProblem, MarginSolution, RankLimit, Status, solve
from kkt import seeded_rows
from solver_api import replaced

# W11 >= 1, -W21 >= 1, W12 >= 1, W22 >= 1: det W >= 2, so no W of rank 1.
FULL_RANK_ONLY = MarginProblem([[1.0, 0.0], [0.0, -1.0], [1.0, 0.0], [0.0, 1.0]], np.eye(2), [0, 0, 1, 1])


def limited(problem: MarginProblem, limit: int, **options: int) -> tuple[MarginSolution, RankLimit]:
    result = solve(problem, "nuclear", rank=limit, **options)
    assert result.solver == "rank_limited"
    assert result.extras.rank_limit is not None
    return result, result.extras.rank_limit


def rank(W: np.ndarray) -> int:
    singular = np.linalg.svd(W, compute_uv=False)
    return int(np.count_nonzero(singular > 1e-10 * singular[0]))  # a product of factors: rounding only


@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("seed", range(3))
def test_global_from_the_certified_rank_on(extra: int, seed: int) -> None:
    problem = seeded_rows(6, 7, 10, seed)
    convex = solve(problem, "nuclear")
    assert convex.certificate.rank is not None
    result, found = limited(problem, convex.certificate.rank + extra)
    assert result.status is Status.OPTIMAL
    assert found.is_global is True
    assert result.norm == pytest.approx(convex.norm, rel=1e-9)  # the same point up to truncation of rounding
    assert result.certificate.worst <= 1e-9


@pytest.mark.parametrize("limit", [1, 2])
def test_below_the_certified_rank(limit: int) -> None:
    problem = seeded_rows(6, 7, 10, 0)
    convex = solve(problem, "nuclear")
    assert convex.certificate.rank == 3
    result, found = limited(problem, limit, starts=4)
    assert result.status is Status.LOCAL
    assert found.is_global is False
    assert rank(result.W) <= limit
    assert result.norm > convex.norm * (1 + 1e-4)
    assert result.certificate.primal_violation <= 1e-9
    assert found.convex_bound == pytest.approx(convex.norm, rel=1e-9)
    assert found.kkt_residual < 1e-9
    assert found.starts == 4
    assert 1 <= found.feasible == len(found.norms) <= 4
    assert found.norms[0] == min(found.norms) == pytest.approx(result.norm)
    assert "KKT point" in found.message
    assert "not proved global" in result.status.advice


def test_larger_limits_give_smaller_norms() -> None:
    problem = seeded_rows(6, 7, 10, 0)  # certified rank 3: from there on the norm stays
    norms = [limited(problem, limit, starts=4)[0].norm for limit in (1, 2, 3)]
    assert all(after < before for before, after in pairwise(norms))


def test_same_seed_same_answer() -> None:
    problem = seeded_rows(4, 5, 8, 1)
    first, second = (limited(problem, 1, starts=3, seed=5)[0] for _ in range(2))
    np.testing.assert_array_equal(first.W, second.W)


def test_global_although_the_convex_solver_returned_a_higher_rank() -> None:
    # W11, W22 >= 1 has solutions [[1, t], [t, 1]] of norm 2; the interior one has rank 2, t = 1 rank 1.
    result, found = limited(MarginProblem(np.eye(2), np.eye(2), [0, 1]), 1)
    assert result.status is Status.OPTIMAL
    assert found.is_global is True
    assert rank(result.W) == 1
    assert result.norm == pytest.approx(2.0, rel=1e-7)  # status optimal promises 1e-7


def test_no_solution_of_the_allowed_rank() -> None:
    assert solve(FULL_RANK_ONLY, "nuclear").status is Status.OPTIMAL
    result, found = limited(FULL_RANK_ONLY, 1)
    assert result.status is Status.FAILED
    assert result.certificate.farkas is None
    assert found.is_global is False
    assert limited(FULL_RANK_ONLY, 2)[0].status is Status.OPTIMAL


def test_infeasible_whatever_the_rank() -> None:
    result = solve(MarginProblem([[1.0, 0.0], [-1.0, 0.0]], [[1.0, 0.0]], [0, 0]), "nuclear", rank=1)
    assert result.status is Status.INFEASIBLE
    assert result.certificate.farkas is not None


def test_equality_rows() -> None:
    base = seeded_rows(3, 3, 6, 2)
    equality = np.arange(base.m) % 4 == 0
    result, _ = limited(replaced(base, equality=equality), 2, starts=3)
    assert result.status.has_solution
    np.testing.assert_allclose(base.margins(result.W)[equality], 1.0, atol=1e-8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 0}, "rank must be None or an integer >= 1, got 0"),
        ({"rank": True}, "rank must be None or an integer >= 1, got True"),
        ({"rank": 1.0}, "rank must be None or an integer >= 1, got 1.0"),
        ({"rank": 1, "starts": 0}, "starts must be an integer >= 1, got 0"),
        ({"rank": 1, "starts": "8"}, "starts must be an integer >= 1, got '8'"),
        ({"rank": 1, "norm": "frobenius"}, "rank=1 limits the nuclear-norm problem; use norm='nuclear', got"),
        (
            {"rank": 1, "solver": "interior"},
            "solver 'interior' does not support norm 'nuclear' with rank=1; use one of",
        ),
    ],
)
def test_bad_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        solve(FULL_RANK_ONLY, **({"norm": "nuclear"} | arguments))  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1e3, 1e7])
def test_a_solution_of_lower_rank_on_the_face_is_found(size: float) -> None:
    # W11 >= 1 and size W22 >= 1: rank 1 is reached at [[1, t], [t, 1 / size]] with t^2 = 1 / size, at the same norm.
    problem = MarginProblem([[1.0, 0.0], [0.0, size]], np.eye(2), [0, 1])
    result, found = limited(problem, 1)
    assert result.status is Status.OPTIMAL
    assert found.is_global
    assert rank(result.W) == 1
    assert result.norm == pytest.approx(1 + 1 / size, rel=1e-7)
    assert problem.margins(result.W).min() >= 1 - 1e-7
    assert abs(result.W[0, 1] * result.W[1, 0]) == pytest.approx(1 / size, rel=1e-3)


def test_small_right_hand_sides_count_in_full() -> None:
    # W11 >= 1, W22 >= 5e-9, W12 = 0: det W >= 5e-9, so nothing of rank 1, however small the second side.
    problem = MarginProblem(
        [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], np.eye(2), [0, 1, 1], [1.0, 5e-9, 0.0], [False, False, True]
    )
    result, found = limited(problem, 1, starts=2)
    assert result.status is Status.FAILED
    assert not found.is_global
    assert found.convex_bound <= 1 + 5e-9
    assert limited(problem, 2)[0].status is Status.OPTIMAL


@pytest.mark.parametrize("seed", range(4))
def test_no_answer_misses_rows_or_exceeds_the_rank(seed: int) -> None:
    """Whatever the status says, a W that is handed out satisfies the rows, has the rank, and beats no proved bound."""
    rng = np.random.default_rng(seed)
    base = seeded_rows(3, 3, 4, seed)
    rhs = np.where(rng.random(base.m) < 0.5, 1.0, 10.0 ** rng.uniform(-9, 0, base.m))
    problem = replaced(base, rhs=rhs)
    result, found = limited(problem, 1, starts=3)
    if not result.status.has_solution:
        return
    assert rank(result.W) <= 1
    slack = problem.margins(result.W) - problem.rhs
    assert (slack >= -1e-6 * problem.rhs).all()
    assert result.norm >= found.convex_bound * (1 - 1e-9)
    assert (result.status is Status.OPTIMAL) == found.is_global


def test_many_iterations_end_where_rounding_is_what_is_left() -> None:
    """The inner gradient stays above the tolerance: rounds went on until the limit, here for hours."""
    rng = np.random.default_rng(4)
    X, Z, W = rng.standard_normal((12, 5, 4)), rng.standard_normal((12, 4)), rng.standard_normal((4, 4))
    right = np.einsum("ntd,de,ne->nt", X, W, Z).argmax(axis=1)
    problem = attsvm.AttentionProblem(X, None, Z)
    rows = selection_rows(problem, right).margin_problem.around(rng.standard_normal((4, 4)))
    usual, long = limited(rows, 2)[0], limited(rows, 2, max_iterations=1_000_000)[0]
    assert long.iterations < 40_000  # gradients: 200,000 for two thousand rounds before
    assert long.norm == pytest.approx(usual.norm, rel=1e-7)
