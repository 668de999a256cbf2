"""The nuclear-norm solvers against the reference, against each other, and against planted answers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from attsvm.solvers import MarginProblem, MarginSolution, Norm, Status, certify, certify_infeasible, solve
from attsvm.solvers.nuclear import solve_nuclear, solve_nuclear_interior
from attsvm.solvers.nuclear_conic import solve_nuclear_conic
from attsvm.solvers.nuclear_factored import solve_nuclear_factored
from attsvm.solvers.nuclear_newton import active_map
from attsvm.solvers.nuclear_rows import unit_rows
from attsvm.solvers.uniqueness import certify_uniqueness

NUCLEAR = Norm("nuclear")
Solver = Callable[..., MarginSolution]
SOLVERS: list[Solver] = [solve_nuclear_interior, solve_nuclear_factored, solve_nuclear_conic]
# Newton ends at rounding level, about 1e-15 times condition numbers; 1e-10 is what we promise.
TIGHT = 1e-10


def sphere(rng: np.random.Generator, *shape: int) -> np.ndarray:
    points = rng.standard_normal(shape)
    return points / np.linalg.norm(points, axis=-1, keepdims=True)


def random_rows(n: int, per: int, d: int, seed: int = 0) -> MarginProblem:
    """n queries with per rows each: differences of unit vectors, as in the typical data."""
    rng = np.random.default_rng(seed)
    points = sphere(rng, n, per + 1, d)
    a = (points[:, :1] - points[:, 1:]).reshape(n * per, d)
    return MarginProblem(a, sphere(rng, n, d), np.repeat(np.arange(n), per))


def with_rows(problem: MarginProblem, a: np.ndarray, owner: list[int], rhs: list[float] | None = None) -> MarginProblem:
    """The problem with more inequality rows."""
    return MarginProblem(
        np.vstack([problem.a, a]),
        problem.queries,
        np.r_[problem.owner, owner],
        np.r_[problem.rhs, np.ones(len(owner)) if rhs is None else rhs],
        np.r_[problem.equality, np.zeros(len(owner), dtype=bool)],
    )


def assert_optimal(result: MarginSolution, tolerance: float = TIGHT) -> None:
    certificate = result.certificate
    assert result.status is Status.OPTIMAL
    assert certificate.worst <= tolerance
    assert certificate.rank_certificate is not None
    assert certificate.rank_certificate.rank == certificate.rank_certificate.numerical_rank


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("size", [(6, 7, 10), (4, 3, 12), (8, 5, 6)])
def test_agrees_with_reference(solver: Solver, size: tuple[int, int, int]) -> None:
    problem = random_rows(*size)
    result, reference = solver(problem, NUCLEAR), solve(problem, "nuclear", "cvxpy")
    assert_optimal(result)
    # The reference is accurate to about 1e-9 here.
    assert result.norm == pytest.approx(reference.norm, rel=1e-6)
    assert result.extras["uniqueness"].verdict == "unique"  # type: ignore[attr-defined]
    np.testing.assert_allclose(result.W, reference.W, atol=1e-4)  # unique; the reference's W has error sqrt(gap)


@pytest.mark.parametrize("seed", range(10))
def test_certified_rank_is_numerical_rank(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_rows(int(rng.integers(2, 15)), int(rng.integers(1, 10)), int(rng.integers(8, 25)), seed)
    assert_optimal(solve_nuclear(problem, NUCLEAR))


def test_small_and_large_methods_agree() -> None:
    problem = random_rows(25, 30, 25, seed=3)  # 750 rows: the entry point takes the factored method
    large, small = solve_nuclear(problem, NUCLEAR), solve_nuclear_interior(problem, NUCLEAR)
    assert large.solver == "nuclear_factored"
    assert_optimal(large)
    assert_optimal(small)
    assert large.norm == pytest.approx(small.norm, rel=1e-12)  # both at rounding level
    np.testing.assert_allclose(large.W, small.W, atol=1e-8)


def degenerate() -> dict[str, MarginProblem]:
    base = random_rows(6, 7, 10)
    rng = np.random.default_rng(7)
    equality = np.zeros(base.m, dtype=bool)
    equality[::5] = True
    rhs = np.where(equality, rng.standard_normal(base.m), 1.0)
    known = rng.standard_normal((10, 10))
    return {
        "duplicate rows": with_rows(base, base.a[:9], base.owner[:9].tolist()),
        "collinear rows": with_rows(base, 2.0 * base.a[:9], base.owner[:9].tolist()),
        "void zero rows": with_rows(base, np.zeros((2, 10)), [0, 1], [0.0, -1.0]),
        "no interior": with_rows(base, -base.a[:5], base.owner[:5].tolist(), [-1.0] * 5),
        "one row per query": random_rows(6, 1, 10, 1),
        "one query": random_rows(1, 7, 10, 2),
        "one row": random_rows(1, 1, 5, 3),
        "rectangular": MarginProblem(
            rng.standard_normal((30, 12)), rng.standard_normal((5, 4)), np.repeat(range(5), 6)
        ),
        "unordered owners": MarginProblem(base.a, base.queries, rng.permutation(base.owner)),
        "general rhs": MarginProblem(base.a, base.queries, base.owner, rng.standard_normal(base.m)),
        "equalities": MarginProblem(base.a, base.queries, base.owner, rhs, equality),
        "all equalities": MarginProblem(
            base.a, base.queries, base.owner, base.margins(known), np.ones(base.m, dtype=bool)
        ),
        "dependent equalities": MarginProblem(
            np.vstack([base.a, base.a]),
            base.queries,
            np.r_[base.owner, base.owner],
            np.r_[rhs, rhs],
            np.r_[equality, equality],
        ),
        "uneven rows": MarginProblem(base.a * 10.0 ** rng.uniform(-2, 2, (base.m, 1)), base.queries, base.owner),
        "nearly infeasible": MarginProblem([[1.0, 0.0], [-1.0, 2e-4]], [[1.0, 0.0]], [0, 0]),  # norm 1e4
    }


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", list(degenerate()))
def test_degenerate(solver: Solver, name: str) -> None:
    problem = degenerate()[name]
    # The reference fails on repeated equality rows; the same problem without the repetition has the same solution.
    plain = degenerate()["equalities"] if name == "dependent equalities" else problem
    result, reference = solver(problem, NUCLEAR), solve(plain, "nuclear", "cvxpy")
    assert reference.status is Status.OPTIMAL
    # Violations are absolute where |rhs| <= 1, so rows of norm 100 allow 100 times the rounding of unit rows.
    assert_optimal(result, 1e-9)
    assert result.norm == pytest.approx(reference.norm, rel=1e-6)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("scale", [1e6, 1e-6])
def test_scaling_the_rows_scales_the_solution(solver: Solver, scale: float) -> None:
    base = random_rows(6, 7, 10)
    scaled = solver(MarginProblem(base.a * scale, base.queries, base.owner), NUCLEAR)
    assert_optimal(scaled)
    assert scaled.norm * scale == pytest.approx(solver(base, NUCLEAR).norm, rel=1e-10)


def test_rotation_and_permutation_change_nothing() -> None:
    base = random_rows(6, 7, 10)
    rng = np.random.default_rng(1)
    left, right = (np.linalg.qr(rng.standard_normal((10, 10)))[0] for _ in range(2))
    order = rng.permutation(base.m)
    turned = MarginProblem(base.a[order] @ left, base.queries @ right, base.owner[order])
    here, there = solve_nuclear(base, NUCLEAR), solve_nuclear(turned, NUCLEAR)
    # W is unique and its error is rounding times the conditioning of the face (about 1e1).
    np.testing.assert_allclose(left @ there.W @ right.T, here.W, atol=1e-9)
    np.testing.assert_allclose(there.multipliers, here.multipliers[order], atol=1e-9)


def test_single_precision_rows() -> None:
    base = random_rows(6, 7, 10)
    single = MarginProblem(base.a.astype(np.float32), base.queries.astype(np.float32), base.owner)
    result = solve_nuclear(single, NUCLEAR)
    assert result.status is Status.OPTIMAL
    assert result.W.dtype == np.float64
    double = MarginProblem(single.a.astype(np.float64), single.queries.astype(np.float64), single.owner)
    # Judged in double precision on the very same numbers, nothing of single precision is left.
    assert certify(double, result.W, result.multipliers, "nuclear").worst <= TIGHT


@pytest.mark.parametrize("solver", SOLVERS)
def test_zero_is_optimal_when_it_is_feasible(solver: Solver) -> None:
    base = random_rows(3, 4, 5)
    result = solver(MarginProblem(base.a, base.queries, base.owner, -np.ones(base.m)), NUCLEAR)
    assert result.status is Status.OPTIMAL
    assert result.norm == 0.0
    assert not result.W.any()


def planted(p: int, q: int, r: int, seed: int) -> tuple[MarginProblem, float]:
    """Rows whose optimality conditions hold by construction at W = U1 S V1^T; returns the norm tr(S).

    D = sum_i s_i u_i v_i^T with s_i = 1 for i < r and < 1 after: active rows (u_i, v_i) with multipliers s_i and
    right-hand side u_i^T W v_i; the other rows have slack 0.1 at W.
    """
    rng = np.random.default_rng(seed)
    U = np.linalg.qr(rng.standard_normal((p, p)))[0][:, :q]
    V = np.linalg.qr(rng.standard_normal((q, q)))[0]
    root = rng.standard_normal((r, r)) / 2
    S = np.diag(rng.uniform(1.0, 2.0, r)) + root @ root.T
    W = U[:, :r] @ S @ V[:, :r].T
    extra, extra_b = sphere(rng, 30, p), sphere(rng, 30, q)
    a, b = np.vstack([U.T, extra]), np.vstack([V.T, extra_b])
    values = np.einsum("kd,de,ke->k", a, W, b)
    rhs = values - np.r_[np.zeros(q), np.full(30, 0.1)]
    return MarginProblem(a, b, np.arange(len(a)), rhs), float(np.trace(S))


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("seed", range(3))
def test_planted_optimum(solver: Solver, seed: int) -> None:
    problem, norm = planted(9, 6, 3, seed)
    result = solver(problem, NUCLEAR)
    assert result.status is Status.OPTIMAL
    # Not strictly complementary (the optimum has many multipliers), so only the default accuracy is promised.
    assert result.norm == pytest.approx(norm, rel=1e-7)


def infeasible() -> dict[str, MarginProblem]:
    base = random_rows(6, 7, 10)
    equality = np.r_[np.arange(base.m) == 0, [True]]
    return {
        "opposite rows": with_rows(base, -base.a[:1], [0]),
        "zero row": with_rows(base, np.zeros((1, 10)), [2]),
        "too many rows": random_rows(20, 9, 5),
        "contradicting equalities": MarginProblem(
            np.vstack([base.a, base.a[:1]]), base.queries, np.r_[base.owner, 0], np.r_[base.rhs, 2.0], equality
        ),
    }


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", list(infeasible()))
def test_infeasible_comes_with_a_proof(solver: Solver, name: str) -> None:
    problem = infeasible()[name]
    result = solver(problem, NUCLEAR)
    assert result.status is Status.INFEASIBLE
    farkas = result.certificate.farkas
    assert farkas is not None and farkas.verified
    assert (farkas.multipliers[~problem.equality] >= 0).all()
    # The combination cancels while its right-hand side is 1: checked from the data, not from the solver.
    leftover = np.linalg.norm(problem.adjoint(farkas.multipliers))
    assert leftover <= 1e-8 * (np.abs(farkas.multipliers) @ problem.row_norms)
    assert problem.rhs @ farkas.multipliers == pytest.approx(1.0)


def test_infeasible_with_many_rows() -> None:
    base = random_rows(40, 25, 40)
    result = solve_nuclear(with_rows(base, -base.a[:1], [0]), NUCLEAR)
    assert result.status is Status.INFEASIBLE
    assert result.certificate.farkas is not None
    assert result.certificate.farkas.rows.tolist() == [0, base.m]


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("seed", range(5))
def test_dependent_equalities_are_no_proof_of_infeasibility(solver: Solver, seed: int) -> None:
    # 12 equalities on 4 entries, consistent by construction: their combinations cancel on both sides, and only
    # rounding keeps the right-hand side from being exactly 0.
    rng = np.random.default_rng(seed)
    a, queries, owner = rng.standard_normal((12, 2)), rng.standard_normal((4, 2)), np.repeat(range(4), 3)
    W = rng.standard_normal((2, 2))
    rhs = MarginProblem(a, queries, owner).margins(W)
    problem = MarginProblem(a, queries, owner, rhs, np.ones(12, dtype=bool))
    result = solver(problem, NUCLEAR)
    assert result.status is Status.OPTIMAL
    np.testing.assert_allclose(result.W, W, atol=1e-8)  # W is the only feasible matrix
    combination = np.linalg.svd(problem.features())[0][:, -1]
    assert certify_infeasible(problem, combination) is None
    assert certify_infeasible(problem, -combination) is None


def test_few_iterations_are_reported_as_inaccurate() -> None:
    result = solve_nuclear(random_rows(6, 7, 10), NUCLEAR, max_iterations=2)
    assert result.status is Status.INACCURATE
    assert result.certificate.worst > 1e-3


@pytest.mark.parametrize("solver", SOLVERS)
def test_warm_start(solver: Solver) -> None:
    problem = random_rows(6, 7, 10)
    first = solver(problem, NUCLEAR)
    again = solver(problem, NUCLEAR, warm_start=first)
    assert_optimal(again)
    assert again.iterations == 0
    with pytest.raises(ValueError, match="warm_start must solve a problem with 3 rows"):
        solver(problem.subset([0, 1, 2]), NUCLEAR, warm_start=first)


@pytest.mark.parametrize("solver", [solve_nuclear, *SOLVERS])
def test_other_norms_are_refused(solver: Solver) -> None:
    with pytest.raises(ValueError, match="norm must be 'nuclear'"):
        solver(random_rows(2, 2, 3), Norm("frobenius"))


def test_unit_rows_restore() -> None:
    problem = random_rows(4, 3, 12, 5)
    rows = unit_rows(problem)
    assert not isinstance(rows, type(solve_nuclear(problem, NUCLEAR).certificate))
    rng = np.random.default_rng(0)
    W, lam = rng.standard_normal(rows.shape), rng.random(rows.m)
    lifted, multipliers = rows.restore(W, lam)
    # Values in units of rhs, and the adjoint, survive the change of coordinates (rounding only).
    np.testing.assert_allclose(problem.margins(lifted) / problem.rhs, rows.values(W) / rows.rhs, atol=1e-12)
    D = rows.reduction.left.T @ problem.adjoint(multipliers) @ rows.reduction.right
    np.testing.assert_allclose(D, rows.adjoint(lam), atol=1e-12)


def test_active_map_evaluates_rows() -> None:
    rng = np.random.default_rng(0)
    a, b, left, right = (rng.standard_normal(shape) for shape in [(5, 4), (5, 3), (4, 2), (3, 2)])
    S = np.array([[1.0, 2.0], [2.0, 3.0]])
    packed = np.array([1.0, np.sqrt(2.0) * 2.0, 3.0])
    values = np.einsum("kd,de,ke->k", a, left @ S @ right.T, b)
    np.testing.assert_allclose(active_map(a, b, left, right) @ packed, values, atol=1e-12)


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
    assert verdict.strictly_complementary == (abs(t) < 1)


def test_unique_when_the_face_is_cut_off() -> None:
    # W12 + W21 = 0.5 by an equality on (e1 + e2)(e1 + e2)^T fixes what was free.
    rows = MarginProblem(
        [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [0, 1, 2], [1.0, 1.0, 2.5],
        [False, False, True],
    )  # fmt: skip
    result = solve_nuclear(rows, NUCLEAR)
    assert_optimal(result)
    assert result.norm == pytest.approx(2.0, abs=1e-9)
    verdict = certify_uniqueness(rows, result.W, result.multipliers)
    assert verdict.verdict == "unique"
    np.testing.assert_allclose(result.W, [[1.0, 0.25], [0.25, 1.0]], atol=1e-8)


def test_solver_reports_uniqueness() -> None:
    assert solve_nuclear(FREE_OFF_DIAGONAL, NUCLEAR).extras["uniqueness"].verdict == "not unique"  # type: ignore[attr-defined]
    for seed in range(5):
        found = solve_nuclear(random_rows(5, 6, 9, seed), NUCLEAR).extras["uniqueness"]
        assert found.verdict == "unique" and found.strictly_complementary  # type: ignore[attr-defined]
        assert found.smallest_singular_value > 1e-3  # type: ignore[attr-defined]


def test_inaccurate_pairs_stay_undecided() -> None:
    problem = random_rows(5, 6, 9)
    assert certify_uniqueness(problem, np.ones((9, 9)), np.ones(problem.m)).verdict == "undecided"
