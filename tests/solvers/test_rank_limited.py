"""Rank-limited margin problems: global where the convex rank allows it, honest below."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from attsvm.solvers import MarginProblem, Norm, Status
from attsvm.solvers.nuclear import solve_nuclear
from attsvm.solvers.rank_limited import solve_rank_limited

NUCLEAR = Norm("nuclear")
# W11 >= 1, -W21 >= 1, W12 >= 1, W22 >= 1: det W >= 2, so no W of rank 1.
FULL_RANK_ONLY = MarginProblem([[1.0, 0.0], [0.0, -1.0], [1.0, 0.0], [0.0, 1.0]], np.eye(2), [0, 0, 1, 1])


def random_rows(n: int, per: int, d: int, seed: int = 0) -> MarginProblem:
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((n, per + 1, d))
    points /= np.linalg.norm(points, axis=2, keepdims=True)
    queries = rng.standard_normal((n, d))
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    return MarginProblem((points[:, :1] - points[:, 1:]).reshape(-1, d), queries, np.repeat(np.arange(n), per))


def rank(W: np.ndarray) -> int:
    singular = np.linalg.svd(W, compute_uv=False)
    return int(np.count_nonzero(singular > 1e-10 * singular[0]))  # a product of factors: rounding only


@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("seed", range(3))
def test_global_from_the_certified_rank_on(extra: int, seed: int) -> None:
    problem = random_rows(6, 7, 10, seed)
    convex = solve_nuclear(problem, NUCLEAR)
    assert convex.certificate.rank is not None
    result = solve_rank_limited(problem, convex.certificate.rank + extra)
    assert result.status is Status.OPTIMAL
    assert result.extras["global"] is True
    assert result.norm == pytest.approx(convex.norm, rel=1e-9)  # the same point up to truncation of rounding
    assert result.certificate.worst <= 1e-9


@pytest.mark.parametrize("limit", [1, 2])
def test_below_the_certified_rank(limit: int) -> None:
    problem = random_rows(6, 7, 10, 0)
    convex = solve_nuclear(problem, NUCLEAR)
    assert convex.certificate.rank == 3
    result = solve_rank_limited(problem, limit, starts=4)
    assert result.status is Status.INACCURATE
    assert result.extras["global"] is False
    assert rank(result.W) <= limit
    assert result.norm > convex.norm * (1 + 1e-4)
    assert result.certificate.primal_violation <= 1e-9
    assert result.extras["convex_bound"] == pytest.approx(convex.norm, rel=1e-9)
    assert result.extras["kkt_residual"] < 1e-9  # type: ignore[operator]
    statistics = result.extras["starts"]
    assert statistics["count"] == 4 and min(statistics["norms"]) == pytest.approx(result.norm)  # type: ignore[index]
    assert "KKT point" in str(result.extras["message"])


def test_larger_limits_give_smaller_norms() -> None:
    problem = random_rows(6, 7, 10, 0)  # certified rank 3: from there on the norm stays
    norms = [solve_rank_limited(problem, limit, starts=4).norm for limit in (1, 2, 3)]
    assert all(after < before for before, after in pairwise(norms))


def test_same_seed_same_answer() -> None:
    problem = random_rows(4, 5, 8, 1)
    first, second = (solve_rank_limited(problem, 1, starts=3, seed=5) for _ in range(2))
    np.testing.assert_array_equal(first.W, second.W)


def test_global_although_the_convex_solver_returned_a_higher_rank() -> None:
    # W11, W22 >= 1 has solutions [[1, t], [t, 1]] of norm 2; the interior one has rank 2, t = 1 rank 1.
    result = solve_rank_limited(MarginProblem(np.eye(2), np.eye(2), [0, 1]), 1)
    assert result.status is Status.OPTIMAL
    assert result.extras["global"] is True
    assert rank(result.W) == 1
    assert result.norm == pytest.approx(2.0, rel=1e-7)  # status optimal promises 1e-7


def test_no_solution_of_the_allowed_rank() -> None:
    assert solve_nuclear(FULL_RANK_ONLY, NUCLEAR).status is Status.OPTIMAL
    result = solve_rank_limited(FULL_RANK_ONLY, 1)
    assert result.status is Status.FAILED
    assert result.certificate.farkas is None
    assert result.extras["global"] is False
    assert solve_rank_limited(FULL_RANK_ONLY, 2).status is Status.OPTIMAL


def test_infeasible_whatever_the_rank() -> None:
    result = solve_rank_limited(MarginProblem([[1.0, 0.0], [-1.0, 0.0]], [[1.0, 0.0]], [0, 0]), 1)
    assert result.status is Status.INFEASIBLE
    assert result.certificate.farkas is not None and result.certificate.farkas.verified


def test_equality_rows() -> None:
    base = random_rows(3, 3, 6, 2)
    equality = np.arange(base.m) % 4 == 0
    result = solve_rank_limited(MarginProblem(base.a, base.queries, base.owner, base.rhs, equality), 2, starts=3)
    assert result.status.has_solution
    np.testing.assert_allclose(base.margins(result.W)[equality], 1.0, atol=1e-8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"rank": 0}, "rank must be at least 1, got 0"), ({"rank": 1, "starts": 0}, "starts must be at least 1, got 0"),
     ({"rank": 1, "norm": Norm("frobenius")}, "norm must be 'nuclear'")],
)  # fmt: skip
def test_bad_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        solve_rank_limited(FULL_RANK_ONLY, **arguments)  # type: ignore[arg-type]
