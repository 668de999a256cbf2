"""The compiled methods called directly: optimal by dense arithmetic, whatever the start, the threads, the company."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest

from attsvm.solvers import MarginProblem, Status, get_norm, solve
from attsvm.solvers.compiled import kernels
from attsvm.solvers.compiled.kernels import NuclearSteps, Sense, minimize
from kkt import assert_optimal, norm_and_dual, random_rows, sphere_rows

Array = npt.NDArray[np.float64]
NORMS = ("spectral", "l1", "linf", "l3", "l1.5")


def unit_rows(seed: int, count: int, m: int, p: int, q: int) -> tuple[Array, Array, Array, Sense]:
    """Random unit rows that a random matrix satisfies, with right-hand sides of both signs."""
    rng = np.random.default_rng(seed)
    left, right = rng.normal(size=(count, m, p)), rng.normal(size=(count, m, q))
    left /= np.linalg.norm(left, axis=-1, keepdims=True)
    right /= np.linalg.norm(right, axis=-1, keepdims=True)
    inside = rng.normal(size=(count, p, q))
    c = np.einsum("bij,bki,bkj->bk", inside, left, right) - rng.random((count, m))
    c /= np.abs(c).max(axis=-1, keepdims=True)
    return left, right, c, np.ones((count, m), dtype=np.int8)


def start_of(left: Array, right: Array, c: Array, equality: npt.NDArray[np.bool_] | None = None) -> Array:
    """Multipliers of the least Frobenius norm of each problem, by the library's other solver."""
    rows = MarginProblem(left, right, np.arange(left.shape[1]), rhs=c, equality=equality)
    return np.asarray(solve(rows).multipliers)


def gap_of(name: str, W: Array, lam: Array, left: Array, right: Array, c: Array) -> float:
    """Relative distance of the objectives, each by its definition."""
    norm, dual = norm_and_dual(name)
    D = np.einsum("k,ki,kj->ij", lam, left, right)
    return abs(norm(W) - float(c @ lam) / dual(D)) / norm(W)


@pytest.mark.parametrize("norm", NORMS)
def test_objectives_meet_and_rows_hold(norm: str) -> None:
    left, right, c, sense = unit_rows(0, 20, 15, 5, 6)
    W, lam, steps = minimize(get_norm(norm), left, right, c, sense, start_of(left, right, c), 80, 1e-9)
    margins = np.einsum("bij,bki,bkj->bk", W, left, right)
    assert (margins - c).min() > -1e-8
    assert lam.min() >= 0.0
    assert steps.min() >= 1
    for i in range(20):
        assert gap_of(norm, W[i], lam[i], left[i], right[i], c[i]) < 1e-7


@pytest.mark.parametrize("norm", NORMS)
def test_equalities_and_rows_that_do_not_exist(norm: str) -> None:
    left, right, c, sense = unit_rows(1, 6, 9, 4, 5)
    sense[:, :2] = 0
    sense[:, 6:] = -1
    left[:, 6:] = c[:, 6:] = 0.0
    first = start_of(left[:, :6], right[:, :6], c[:, :6], sense[:, :6] == 0)
    padded = np.concatenate([first, np.zeros((6, 3))], axis=-1)
    W, lam, _ = minimize(get_norm(norm), left, right, c, sense, padded, 80, 1e-9)
    short, short_lam, _ = minimize(
        get_norm(norm), left[:, :6], right[:, :6], c[:, :6], np.ascontiguousarray(sense[:, :6]), first, 80, 1e-9
    )
    margins = np.einsum("bij,bki,bkj->bk", W, left, right)
    np.testing.assert_allclose(margins[:, :2], c[:, :2], atol=1e-8)
    assert not lam[:, 6:].any()
    for i in range(6):
        assert gap_of(norm, W[i], lam[i], left[i], right[i], c[i]) < 1e-7
        assert norm_and_dual(norm)[0](W[i]) == pytest.approx(norm_and_dual(norm)[0](short[i]), rel=1e-7)
    assert short_lam.shape == (6, 6)


@pytest.mark.parametrize("norm", NORMS)
def test_the_start_and_its_scale_do_not_matter(norm: str) -> None:
    left, right, _, sense = unit_rows(2, 8, 10, 4, 5)
    c = np.ones((8, 10))
    least = start_of(left, right, c)
    found = [minimize(get_norm(norm), left, right, c, sense, x, 80, 1e-10)[0] for x in (least, 1e5 * least, c)]
    sizes = [[norm_and_dual(norm)[0](W) for W in part] for part in found]
    np.testing.assert_allclose(sizes[1], sizes[0], rtol=1e-8)
    np.testing.assert_allclose(sizes[2], sizes[0], rtol=1e-8)


@pytest.mark.parametrize("norm", NORMS)
def test_problems_of_a_batch_do_not_see_each_other(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    left, right, c, sense = unit_rows(3, 30, 12, 4, 5)
    c = np.abs(c)
    c[7] = np.nan  # one that cannot be solved
    arrays = (left, right, c, sense, np.ones_like(c))
    together = minimize(get_norm(norm), *arrays, 60, 1e-10)
    monkeypatch.setattr(kernels, "_SHARED", 0)
    shared = minimize(get_norm(norm), *arrays, 60, 1e-10)
    for part, other in zip(together, shared, strict=True):
        np.testing.assert_array_equal(part, other)
    for i in (6, 8):
        alone = minimize(get_norm(norm), *(x[i : i + 1] for x in arrays), 60, 1e-10)
        for part, other in zip(together, alone, strict=True):
            np.testing.assert_array_equal(part[i], other[0])
    assert not np.isfinite(together[0][7]).any()


def test_callers_of_several_threads_get_their_own_answers() -> None:
    problems = [random_rows(np.random.default_rng(seed), 4, 5, 6) for seed in range(12)]
    one_by_one = [solve(problem, "linf").W for problem in problems]
    with ThreadPoolExecutor(4) as pool:
        for known, found in zip(one_by_one, pool.map(lambda p: solve(p, "linf").W, problems), strict=True):
            np.testing.assert_array_equal(known, found)


@pytest.mark.parametrize("norm", ["l1", "linf"])
def test_polyhedral_norms_end_at_vertices_to_the_last_digits(norm: str) -> None:
    a, queries, owner = sphere_rows(60, 6, 8, 10, seed=3)
    batch = solve(MarginProblem(a, queries, owner), norm)
    assert batch.solver == batch[0].solver == "primal_dual"
    # Problem 15 of the l1 norm is nearly degenerate: an entry of W and its dual both nearly vanish at the vertex.
    assert float(np.max(batch.certificate.proved)) < 1e-11
    assert int(np.max(batch.iterations)) <= 12  # it was left after 14 steps before entries could change sides
    for i in range(0, 60, 7):
        one = batch[i]
        size, active = np.abs(one.W), np.count_nonzero(one.multipliers > 1e-9)
        if norm == "linf":  # as many rows as entries inside their bounds, and one for the bound
            assert active == np.count_nonzero(size < one.norm * (1 - 1e-9)) + 1
        else:
            assert active == np.count_nonzero(size > 1e-9 * one.norm)
        assert solve(one.problem, norm).norm == pytest.approx(one.norm, rel=1e-9)
        assert_optimal(one.problem, one.W, one.multipliers, norm, 1e-9)


@pytest.mark.parametrize("norm", ["l1", "linf"])
def test_where_no_vertex_is_read_off_the_steps_go_on(norm: str) -> None:
    """Solutions that are not unique have no sets that fit: the interior of the face is found all the same."""
    problem = MarginProblem(np.ones((1, 3)), np.ones((1, 2)), [0])  # every W of sum 1 and no sign, or only one W
    found = solve(problem, norm)
    assert found.status is Status.OPTIMAL
    assert found.norm == pytest.approx(1.0 if norm == "l1" else 1.0 / 6.0, rel=1e-8)


@pytest.mark.parametrize("norm", NORMS)
def test_larger_problems(norm: str) -> None:
    """Sizes at which matrices are factored by blocks, and more rows than a core's cache holds."""
    a, queries, owner = sphere_rows(1, 20, 11, 24, seed=5)
    found = solve(MarginProblem(a[0], queries[0], owner), norm)
    assert found.solver == "primal_dual"
    assert found.status is Status.OPTIMAL
    assert_optimal(found.problem, found.W, found.multipliers, norm, 1e-7)


def test_importing_the_package_loads_no_library() -> None:
    import subprocess

    code = "import sys, attsvm.solvers; from attsvm.solvers.compiled import kernels; print('scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# As in nuclear_step.c.
LENGTHS = (
    1.12, 1.05, 1.01, 0.97, 0.92, 0.87, 0.8, 0.72, 0.63, 0.54, 0.45, 0.35, 0.26, 0.18, 0.11, 0.06, 0.03, 0.01, 1e-3,
)  # fmt: skip


def step_by_definition(
    rows: tuple[Array, Array, Array], ordered: npt.NDArray[np.bool_], X: Array, lam: Array, slack: Array
) -> tuple[Array, Array, Array]:
    """The HKM predictor-corrector step of the nuclear norm with rows written out as matrices, in plain NumPy."""
    a, b, rhs = rows
    p, n = a.shape[1], sum(x.shape[1] for x in (a, b))
    A = np.zeros((len(a), n, n))
    A[:, :p, p:] = a[:, :, None] * b[:, None, :] / 2
    A += A.mT
    Z = np.eye(n) / 2 - np.einsum("k,kij->ij", lam, A)
    Y = np.linalg.inv(Z)
    inverse = np.where(ordered, 1.0 / np.where(ordered, lam, 1.0), 0.0)
    M = np.einsum("kij,jl,mlo,oi->km", A, X, A, Y) + np.diag(slack * inverse)
    weights = n + np.count_nonzero(ordered)
    mu = (np.sum(X * Z) + slack @ lam) / weights

    def direction(h: Array, complement: Array, target: Array) -> tuple[Array, Array, Array, Array]:
        dlam = np.linalg.solve(M, h)
        dZ = -np.einsum("k,kij->ij", dlam, A)
        half = X @ dZ @ Y
        return dlam, dZ, target - (half + half.T) / 2, (complement - slack * dlam) * inverse - slack

    def longest(point: Array, change: Array, matrix: Array, way: Array) -> float:
        definite = next(t for t in LENGTHS if np.linalg.eigvalsh(matrix + t * way)[0] > 0)
        low = float(np.min(change[ordered] / point[ordered]))
        return definite if low >= 0 else min(definite, -1.0 / low)

    dlam, dZ, dX, dslack = direction(rhs, np.zeros(len(rhs)), -X)
    primal, dual = min(1.0, longest(slack, dslack, X, dX)), min(1.0, longest(lam, dlam, Z, dZ))
    ahead = np.sum((X + primal * dX) * (Z + dual * dZ)) + (slack + primal * dslack) @ (lam + dual * dlam)
    share = min(1.0, ahead / weights / mu)
    aim = max(share**2 if min(primal, dual) > 0.1 else 0.5, 1e-6) * mu
    second = dX @ dZ @ Y
    target, complement = aim * Y - (second + second.T) / 2, aim - dslack * dlam
    h = rhs - np.einsum("kij,ij->k", A, target) + complement * inverse
    dlam, dZ, dX, dslack = direction(h, complement, target - X)
    primal, dual = longest(slack, dslack, X, dX), longest(lam, dlam, Z, dZ)
    damping = 0.9 + 0.09 * min(1.0, primal, dual)
    primal, dual = min(1.0, damping * primal), min(1.0, damping * dual)
    return X + primal * dX, lam + dual * dlam, slack + primal * dslack


@pytest.mark.parametrize("equal", [0, 2])
@pytest.mark.parametrize(
    ("m", "shape"), [(7, (4, 5)), (7, (5, 2)), (7, (1, 3)), (7, (18, 9)), (40, (2, 3)), (99, (3, 3))]
)
def test_a_nuclear_step_is_the_one_of_the_definition(m: int, shape: tuple[int, int], equal: int) -> None:
    """Also with many more rows than entries, where the system is another one."""
    left, right, c, sense = unit_rows(4, 1, m, *shape)
    rows, n = (left[0], right[0], c[0]), sum(shape)
    sense[0, :equal] = 0
    ordered = sense[0] == 1
    X, lam, slack = np.sqrt(n) * np.eye(n), np.where(ordered, 0.05, 0.0), np.where(ordered, np.sqrt(n), 0.0)
    steps = NuclearSteps(*rows, sense[0], X, lam, slack)
    for _ in range(4):
        expected = step_by_definition(rows, ordered, X, lam, slack)
        assert steps.advance() and steps.measures.mu > 0.0
        for found, known in zip((X, lam, slack), expected, strict=True):
            # The system has a condition of 1e4 at the fourth step.
            np.testing.assert_allclose(found, known, rtol=1e-8, atol=1e-9 * np.abs(known).max())
        W, primal = X[: shape[0], shape[0] :], np.trace(X) / 2
        told = steps.measures
        assert told.objective == pytest.approx(c[0] @ lam, rel=1e-12)
        assert told.gap == pytest.approx(abs(primal - c[0] @ lam) / primal, rel=1e-9)
        residual = c[0] + slack - np.einsum("ki,ij,kj->k", left[0], W, right[0])
        assert told.missed == pytest.approx(np.abs(residual).max(), rel=1e-9, abs=1e-12)


def test_a_nuclear_step_that_is_not_possible_moves_nothing() -> None:
    left, right, c, sense = unit_rows(5, 1, 4, 3, 3)
    for X, lam in ((-np.eye(6), np.full(4, 0.05)), (np.eye(6), np.full(4, 50.0)), (np.eye(6), np.full(4, np.nan))):
        slack, before = np.ones(4), (X.copy(), lam.copy())
        assert not NuclearSteps(left[0], right[0], c[0], sense[0], X, lam, slack).advance()
        np.testing.assert_array_equal(X, before[0])
        np.testing.assert_array_equal(lam, before[1])
        assert slack.tolist() == [1.0] * 4


def test_rows_of_any_order_and_states_in_c_order() -> None:
    left, right, c, sense = unit_rows(6, 1, 4, 3, 3)
    found = []
    for a in (left[0], np.asfortranarray(left[0])):
        X, lam, slack = 2.0 * np.eye(6), np.full(4, 0.05), np.ones(4)
        assert NuclearSteps(a, right[0], c[0], sense[0], X, lam, slack).advance()
        found.append(X)
    np.testing.assert_array_equal(found[0], found[1])
    with pytest.raises(ValueError, match="X, lam and slack are moved in place: they must be in C order"):
        NuclearSteps(left[0], right[0], c[0], sense[0], np.asfortranarray(np.arange(36.0).reshape(6, 6)), lam, slack)


def test_nuclear_steps_go_on_where_equality_rows_repeat() -> None:
    """The matrix of a step is singular then; its diagonal is raised, and refinement undoes that."""
    left, right, c, sense = unit_rows(7, 1, 66, 4, 4)
    left[0, 1:60], right[0, 1:60], c[0, 1:60] = left[0, 0], right[0, 0], c[0, 0]
    sense[0, :60] = 0
    ordered = sense[0] == 1
    X, lam, slack = np.sqrt(8) * np.eye(8), np.where(ordered, 0.05, 0.0), np.where(ordered, np.sqrt(8), 0.0)
    steps = NuclearSteps(left[0], right[0], c[0], sense[0], X, lam, slack)
    assert all(steps.advance() for _ in range(9))
    assert steps.measures.gap < 1e-6 and steps.measures.missed < 1e-9
