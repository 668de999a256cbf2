"""The nuclear-norm solvers against the reference, against each other, and against planted answers."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.solvers import MarginProblem, MarginSolution, Status, certify, solve
from attsvm.solvers.nuclear.spectra import active_map
from kkt import seeded_rows
from solver_api import with_rows

# Newton ends at rounding level, about 1e-15 times condition numbers; 1e-10 is what we promise.
TIGHT = 1e-10
# The method for batches has no Newton steps: it stops where its linear systems run out of digits.
SOLVERS = {"interior": TIGHT, "factored": TIGHT, "nuclear_batch": 1e-8}


def sphere(rng: np.random.Generator, *shape: int) -> np.ndarray:
    points = rng.standard_normal(shape)
    return points / np.linalg.norm(points, axis=-1, keepdims=True)


def assert_optimal(result: MarginSolution, tolerance: float = TIGHT) -> None:
    certificate = result.certificate
    assert result.status is Status.OPTIMAL
    assert certificate.worst <= tolerance
    assert certificate.rank_certificate is not None
    assert certificate.rank_certificate.rank == certificate.rank_certificate.numerical_rank


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("size", [(6, 7, 10), (4, 3, 12), (8, 5, 6)])
def test_agrees_with_reference(solver: str, size: tuple[int, int, int]) -> None:
    problem = seeded_rows(*size)
    result, reference = solve(problem, "nuclear", solver), solve(problem, "nuclear", "cvxpy")
    assert_optimal(result, SOLVERS[solver])
    # The reference is accurate to about 1e-9 here.
    assert result.norm == pytest.approx(reference.norm, rel=1e-6)
    # A gap of 1e-9 leaves a radius of its square root times the size of the problem: too much to say so at times.
    assert result.uniqueness.verdict == "unique" or (
        solver == "nuclear_batch" and result.uniqueness.verdict == "undecided"
    )
    np.testing.assert_allclose(result.W, reference.W, atol=1e-4)  # unique; the reference's W has error sqrt(gap)


@pytest.mark.parametrize("seed", range(10))
def test_certified_rank_is_numerical_rank(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = seeded_rows(int(rng.integers(2, 15)), int(rng.integers(1, 10)), int(rng.integers(8, 25)), seed)
    assert_optimal(solve(problem, "nuclear"))


def test_small_and_large_methods_agree() -> None:
    problem = seeded_rows(25, 30, 25, seed=3)  # 750 rows: the entry point takes the factored method
    large, small = solve(problem, "nuclear"), solve(problem, "nuclear", "interior")
    assert large.solver == "factored"
    assert_optimal(large)
    assert_optimal(small)
    assert large.norm == pytest.approx(small.norm, rel=1e-12)  # both at rounding level
    np.testing.assert_allclose(large.W, small.W, atol=1e-8)


def degenerate() -> dict[str, MarginProblem]:
    base = seeded_rows(6, 7, 10)
    rng = np.random.default_rng(7)
    equality = np.zeros(base.m, dtype=bool)
    equality[::5] = True
    rhs = np.where(equality, rng.standard_normal(base.m), 1.0)
    known = rng.standard_normal((10, 10))
    return {
        "duplicate rows": with_rows(base, base.rows.a[:9], base.owner[:9].tolist()),
        "collinear rows": with_rows(base, 2.0 * base.rows.a[:9], base.owner[:9].tolist()),
        "void zero rows": with_rows(base, np.zeros((2, 10)), [0, 1], [0.0, -1.0]),
        "no interior": with_rows(base, -base.rows.a[:5], base.owner[:5].tolist(), [-1.0] * 5),
        "one row per query": seeded_rows(6, 1, 10, 1),
        "one query": seeded_rows(1, 7, 10, 2),
        "one row": seeded_rows(1, 1, 5, 3),
        "rectangular": MarginProblem(
            rng.standard_normal((30, 12)), rng.standard_normal((5, 4)), np.repeat(range(5), 6)
        ),
        "unordered owners": MarginProblem(base.rows.a, base.rows.queries, rng.permutation(base.owner)),
        "general rhs": MarginProblem(base.rows.a, base.rows.queries, base.owner, rng.standard_normal(base.m)),
        "equalities": MarginProblem(base.rows.a, base.rows.queries, base.owner, rhs, equality),
        "all equalities": MarginProblem(
            base.rows.a, base.rows.queries, base.owner, base.margins(known), np.ones(base.m, dtype=bool)
        ),
        "dependent equalities": MarginProblem(
            np.vstack([base.rows.a, base.rows.a]),
            base.rows.queries,
            np.r_[base.owner, base.owner],
            np.r_[rhs, rhs],
            np.r_[equality, equality],
        ),
        "uneven rows": MarginProblem(
            base.rows.a * 10.0 ** rng.uniform(-2, 2, (base.m, 1)), base.rows.queries, base.owner
        ),
        "nearly infeasible": MarginProblem([[1.0, 0.0], [-1.0, 2e-4]], [[1.0, 0.0]], [0, 0]),  # norm 1e4
    }


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", list(degenerate()))
def test_degenerate(solver: str, name: str) -> None:
    problem = degenerate()[name]
    # The reference fails on repeated equality rows; the same problem without the repetition has the same solution.
    plain = degenerate()["equalities"] if name == "dependent equalities" else problem
    result, reference = solve(problem, "nuclear", solver), solve(plain, "nuclear", "cvxpy")
    assert reference.status is Status.OPTIMAL
    # Violations are absolute where |rhs| <= 1, so rows of norm 100 allow 100 times the rounding of unit rows.
    assert_optimal(result, max(1e-9, SOLVERS[solver]))
    assert result.norm == pytest.approx(reference.norm, rel=1e-6)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("scale", [1e6, 1e-6])
def test_scaling_the_rows_scales_the_solution(solver: str, scale: float) -> None:
    base = seeded_rows(6, 7, 10)
    scaled = solve(MarginProblem(base.rows.a * scale, base.rows.queries, base.owner), "nuclear", solver)
    assert_optimal(scaled, SOLVERS[solver])
    assert scaled.norm * scale == pytest.approx(solve(base, "nuclear", solver).norm, rel=SOLVERS[solver])


def test_rotation_and_permutation_change_nothing() -> None:
    base = seeded_rows(6, 7, 10)
    rng = np.random.default_rng(1)
    left, right = (np.linalg.qr(rng.standard_normal((10, 10)))[0] for _ in range(2))
    order = rng.permutation(base.m)
    turned = MarginProblem(base.rows.a[order] @ left, base.rows.queries @ right, base.owner[order])
    here, there = solve(base, "nuclear"), solve(turned, "nuclear")
    # W is unique and its error is rounding times the conditioning of the face (about 1e1).
    np.testing.assert_allclose(left @ there.W @ right.T, here.W, atol=1e-9)
    np.testing.assert_allclose(there.multipliers, here.multipliers[order], atol=1e-9)


def test_single_precision_rows() -> None:
    base = seeded_rows(6, 7, 10)
    single = MarginProblem(base.rows.a.astype(np.float32), base.rows.queries.astype(np.float32), base.owner)
    result = solve(single, "nuclear")
    assert result.status is Status.OPTIMAL
    assert result.W.dtype == np.float64
    double = MarginProblem(single.rows.a.astype(np.float64), single.rows.queries.astype(np.float64), single.owner)
    # Judged in double precision on the very same numbers, nothing of single precision is left.
    assert certify(double, result.W, result.multipliers, "nuclear").worst <= TIGHT


@pytest.mark.parametrize("solver", SOLVERS)
def test_zero_is_optimal_when_it_is_feasible(solver: str) -> None:
    base = seeded_rows(3, 4, 5)
    result = solve(MarginProblem(base.rows.a, base.rows.queries, base.owner, -np.ones(base.m)), "nuclear", solver)
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
def test_planted_optimum(solver: str, seed: int) -> None:
    problem, norm = planted(9, 6, 3, seed)
    result = solve(problem, "nuclear", solver)
    assert result.status is Status.OPTIMAL
    # Not strictly complementary (the optimum has many multipliers), so only the default accuracy is promised.
    assert result.norm == pytest.approx(norm, rel=1e-7)


def test_few_iterations_are_reported_as_inaccurate() -> None:
    result = solve(seeded_rows(6, 7, 10), "nuclear", max_iterations=2)
    assert result.status is Status.INACCURATE
    assert result.certificate.worst > 1e-3


@pytest.mark.parametrize("solver", ["interior", "factored"])
def test_warm_start(solver: str) -> None:
    problem = seeded_rows(6, 7, 10)
    first = solve(problem, "nuclear", solver)
    again = solve(problem, "nuclear", solver, warm_start=first)
    assert_optimal(again)
    assert again.iterations == 0
    with pytest.raises(ValueError, match="warm_start must solve a problem with 3 rows"):
        solve(problem.gather([0, 1, 2]), "nuclear", solver, warm_start=first)


@pytest.mark.parametrize("solver", SOLVERS)
def test_other_norms_are_refused(solver: str) -> None:
    with pytest.raises(ValueError, match=f"solver '{solver}' does not support norm 'frobenius'"):
        solve(seeded_rows(2, 2, 3), "frobenius", solver)


def test_active_map_evaluates_rows() -> None:
    rng = np.random.default_rng(0)
    a, b, left, right = (rng.standard_normal(shape) for shape in [(5, 4), (5, 3), (4, 2), (3, 2)])
    S = np.array([[1.0, 2.0], [2.0, 3.0]])
    packed = np.array([1.0, np.sqrt(2.0) * 2.0, 3.0])
    values = np.einsum("kd,de,ke->k", a, left @ S @ right.T, b)
    np.testing.assert_allclose(active_map(a, b, left, right) @ packed, values, atol=1e-12)
