"""Batched solvers: against the reference, against the single-problem certificate, and on awkward data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attsvm.solvers import MarginProblem, Status, certify, find_farkas, get_norm, solve
from attsvm.solvers.batch import BatchSolution, MarginBatch
from attsvm.solvers.batch_solve import solve_batch

torch = pytest.importorskip("torch")

NORMS = ("frobenius", "nuclear")
# Largest gap and violation called optimal by solve_batch in float64.
TOLERANCE = 1e-8


def sphere_rows(size: int, n: int, T: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Differences of unit vectors, n queries with T - 1 rows each: always feasible for n <= d."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((size, n, T, d))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    z = rng.standard_normal((size, n, d))
    z /= np.linalg.norm(z, axis=-1, keepdims=True)
    return (x[:, :, :1] - x[:, :, 1:]).reshape(size, n * (T - 1), d), z, np.repeat(np.arange(n), T - 1)


def gaussian_batch(size: int, m: int, q: int, dx: int, dz: int, seed: int) -> MarginBatch:
    rng = np.random.default_rng(seed)
    owner = rng.integers(0, q, m)
    return MarginBatch(rng.standard_normal((size, m, dx)), rng.standard_normal((size, q, dz)), owner)


def check(solution: BatchSolution) -> None:
    """Every problem is certified, and `solution(i)` proves it again from the problem alone."""
    for i in range(len(solution)):
        alone = solution.solution(i)
        assert alone.status is solution.status[i]
        assert alone.status.is_certified, (i, alone.status, alone.certificate)
        if alone.status is Status.INFEASIBLE:
            assert alone.certificate.farkas is not None
            assert np.isnan(solution.W[i]).all()
            assert np.isinf(solution.norm[i])
        else:
            assert alone.certificate.worst <= TOLERANCE


@pytest.mark.parametrize("norm", NORMS)
def test_matches_the_reference(norm: str) -> None:
    batch = MarginBatch(*sphere_rows(4, 4, 4, 6, seed=1))
    result = solve_batch(batch, norm)
    check(result)
    assert not result.rescued.any()
    for i in range(4):
        reference = solve(batch.problem(i), norm, "cvxpy")
        # Both gaps are below 1e-7, so the norms agree to about that.
        assert result.norm[i] == pytest.approx(reference.norm, rel=1e-6)
        if norm == "frobenius":  # unique; |W - W*|^2 <= 2 gap |W|^2, so sqrt(1e-7) is the guarantee
            np.testing.assert_allclose(result.W[i], reference.W, atol=1e-3 * reference.norm)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("shape", [(5, 5, 10), (3, 10, 4), (1, 2, 3), (1, 6, 2), (5, 2, 5)])
def test_random_batches_are_certified(norm: str, shape: tuple[int, int, int]) -> None:
    result = solve_batch(MarginBatch(*sphere_rows(40, *shape, seed=2)), norm)
    check(result)
    assert (result.status == "optimal").all()
    if norm == "nuclear":
        np.testing.assert_array_equal(result.rank, result.numerical_rank)


@pytest.mark.parametrize("norm", NORMS)
def test_certificate_is_that_of_one_problem(norm: str) -> None:
    """Same definitions at points that are far from optimal, feasible or even sign-correct."""
    from attsvm.solvers.batch_certificate import certify_rows

    rng = np.random.default_rng(3)
    valid = rng.random((20, 7)) < 0.8
    valid[:, 0] = True
    batch = MarginBatch(
        rng.standard_normal((20, 7, 3)), rng.standard_normal((20, 4, 5)), rng.integers(0, 4, (20, 7)), valid,
        rng.standard_normal((20, 7)) + 0.5, rng.random((20, 7)) < 0.3,
    )  # fmt: skip
    W, lam = rng.standard_normal((20, 3, 5)), np.where(valid, rng.standard_normal((20, 7)), 0.0)
    W[0], lam[1] = 0.0, 0.0
    rows = batch.rows(slice(None), torch.device("cpu"), torch.float64)
    found = certify_rows(rows, torch.tensor(W), torch.tensor(lam), get_norm(norm))
    for i in range(20):
        one = certify(batch.problem(i), W[i], lam[i][valid[i]], norm)
        for name in ("primal_violation", "dual_violation", "gap", "complementarity", "norm", "lower_bound"):
            # The same sums in another order: rounding only.
            assert getattr(found, name)[i].item() == pytest.approx(getattr(one, name), rel=1e-12, abs=1e-14), name
        if norm == "nuclear":
            ranks = one.rank_certificate
            assert (found.rank[i].item(), found.numerical_rank[i].item()) == (ranks.rank, ranks.numerical_rank)
            for name in ("dual_gap", "singular_gap", "outside_mass"):
                assert getattr(found, name)[i].item() == pytest.approx(getattr(ranks, name), rel=1e-9), name
            assert found.rank_tolerance[i].item() == pytest.approx(ranks.tolerance, rel=1e-9)


@pytest.mark.parametrize("norm", NORMS)
def test_ragged_problems_equal_their_own_solutions(norm: str) -> None:
    rng = np.random.default_rng(4)
    problems = []
    for m, q in ((3, 2), (7, 4), (1, 1), (12, 3)):
        a = rng.standard_normal((m, 6))
        problems.append(MarginProblem(a, rng.standard_normal((q, 5)), rng.integers(0, q, m)))
    batch = MarginBatch.from_problems(problems)
    together = solve_batch(batch, norm)
    check(together)
    assert together.multipliers.shape == (4, 12)
    for i, problem in enumerate(problems):
        np.testing.assert_array_equal(batch.problem(i).a, problem.a)
        alone = solve_batch(MarginBatch.from_problems([problem]), norm)
        # Two certified gaps below 1e-8.
        assert together.norm[i] == pytest.approx(alone.norm[0], rel=1e-7)
        assert not together.multipliers[i][~batch.valid[i]].any()


def test_rows_that_do_not_exist_may_hold_anything() -> None:
    a, z, owner = sphere_rows(5, 3, 3, 4, seed=5)
    plain = solve_batch(MarginBatch(a[:, :4], z, owner[:4]))
    a[:, 4:] = np.nan
    owner[4:] = -1
    padded = solve_batch(MarginBatch(a, z, owner, valid=np.arange(6) < 4))
    np.testing.assert_allclose(padded.W, plain.W, rtol=1e-9)  # same problem, other summation order


@pytest.mark.parametrize("norm", NORMS)
def test_feasible_and_infeasible_mixed(norm: str) -> None:
    batch = gaussian_batch(60, 8, 2, 2, 2, seed=6)  # 8 rows in 4 dimensions: both kinds occur
    result = solve_batch(batch, norm)
    check(result)
    expected = [find_farkas(batch.problem(i)) is not None for i in range(60)]
    assert 5 < sum(expected) < 55
    np.testing.assert_array_equal(result.status == "infeasible", expected)
    proofs = result.farkas[result.status == "infeasible"]
    assert (proofs >= 0).all()
    np.testing.assert_allclose(proofs.sum(axis=1), 1.0, rtol=1e-12)  # rhs . y = 1 with rhs = 1


@pytest.mark.parametrize("norm", NORMS)
def test_degenerate_rows(norm: str) -> None:
    a, z, owner = sphere_rows(6, 3, 4, 5, seed=7)
    a[0, 1] = a[0, 0]  # duplicate
    a[1, 1] = 3.0 * a[1, 0]  # collinear
    a[2, 1:3] = a[2, :1]
    z[3, 1] = 0.0  # zero query: its rows ask 0 >= 1
    a[4, 2] = -a[4, 1]  # opposite rows of one query
    result = solve_batch(MarginBatch(a, z, owner), norm)
    check(result)
    assert [str(s) for s in result.status] == ["optimal"] * 3 + ["infeasible"] * 2 + ["optimal"]
    assert result.farkas_residual[3] == 0.0
    relaxed = solve_batch(MarginBatch(a[3:4], z[3:4], owner, rhs=np.where(owner == 1, 0.0, 1.0)), norm)
    check(relaxed)
    assert relaxed.status[0] == "optimal"  # the zero rows now ask 0 >= 0


@pytest.mark.parametrize("norm", NORMS)
def test_equality_rows_and_general_rhs(norm: str) -> None:
    rng = np.random.default_rng(8)
    a, z, owner = sphere_rows(8, 3, 4, 5, seed=8)
    rhs, equality = rng.standard_normal((8, 9)), rng.random((8, 9)) < 0.4
    batch = MarginBatch(a, z, owner, rhs=rhs, equality=equality)
    result = solve_batch(batch, norm)
    check(result)
    for i in range(3):
        assert result.norm[i] == pytest.approx(solve(batch.problem(i), norm, "cvxpy").norm, rel=1e-6)
    a[0, 1], rhs[0, :2], equality[0, :2] = a[0, 0], (1.0, 2.0), True  # contradiction
    a[1, 1], rhs[1, :2], equality[1, :2] = a[1, 0], (1.0, 1.0), True  # repetition
    result = solve_batch(MarginBatch(a, z, owner, rhs=rhs, equality=equality), norm)
    check(result)
    assert (result.status[0], result.status[1]) == ("infeasible", "optimal")


@pytest.mark.parametrize("norm", NORMS)
def test_scaling_rows_scales_the_norm(norm: str) -> None:
    a, z, owner = sphere_rows(6, 4, 4, 5, seed=9)
    plain = solve_batch(MarginBatch(a, z, owner), norm)
    for factor in (1e-6, 1e6):
        scaled = solve_batch(MarginBatch(factor * a, z, owner), norm)
        check(scaled)
        np.testing.assert_allclose(scaled.norm * factor, plain.norm, rtol=1e-7)  # two gaps below 1e-8
    uneven = np.logspace(-3, 3, a.shape[1])[:, None]
    check(solve_batch(MarginBatch(a * uneven, z, owner, rhs=uneven[:, 0]), norm))


def test_nearly_infeasible_frobenius() -> None:
    a, z, owner = sphere_rows(20, 5, 5, 10, seed=10)
    a[:, 1] = -a[:, 0] + 1e-4 * np.random.default_rng(10).standard_normal((20, 10))
    result = solve_batch(MarginBatch(a, z, owner))
    check(result)
    assert result.norm.min() > 1e3
    assert not result.rescued.any()


@pytest.mark.parametrize("shape", [(2, 7), (7, 2), (1, 4)])
def test_rectangular_nuclear_is_symmetric(shape: tuple[int, int]) -> None:
    """One row per query: exchanging the two factors transposes the problem."""
    rng = np.random.default_rng(17)
    a, z = rng.standard_normal((6, 3, shape[0])), rng.standard_normal((6, 3, shape[1]))
    tall = solve_batch(MarginBatch(a, z, np.arange(3)), "nuclear")
    wide = solve_batch(MarginBatch(z, a, np.arange(3)), "nuclear")
    check(tall)
    np.testing.assert_array_equal(tall.status, wide.status)
    np.testing.assert_allclose(tall.norm, wide.norm, rtol=1e-7)  # two gaps below 1e-8


def test_dependent_rows_leave_the_plain_exchanges() -> None:
    """Plain exchanges cannot settle dependent or contradicting rows; the safeguarded iteration does."""
    from attsvm.solvers.batch_frobenius import exchange, solve_frobenius_rows, start

    rng = np.random.default_rng(18)
    a = rng.standard_normal((4, 6, 5))
    a[:2, 3:] = a[:2, :3]  # repeated rows
    a[2:, 3] = -a[2:, 0]  # contradicting rows
    rows = MarginBatch(a, np.ones((4, 1, 2)), np.zeros(6, dtype=int)).rows(
        slice(None), torch.device("cpu"), torch.float64
    )
    state = exchange(start(rows, rows.rhs > 0))
    assert not state.outcome[2:].any()
    found = solve_frobenius_rows(rows)
    assert found.solved.tolist() == [True, True, False, False]
    assert found.farkas_residual[2:].max() < 1e-9  # an exact cancellation, up to rounding


@pytest.mark.parametrize("norm", NORMS)
def test_nothing_demanded(norm: str) -> None:
    a, z, owner = sphere_rows(3, 2, 3, 4, seed=11)
    rhs = np.array([-1.0, 0.0, -2.0, 0.0])
    result = solve_batch(MarginBatch(a, z, owner, rhs=rhs), norm)
    check(result)
    np.testing.assert_array_equal(result.W, 0.0)
    np.testing.assert_array_equal(result.gap, 0.0)
    if norm == "nuclear":
        np.testing.assert_array_equal(result.rank, 0)


@pytest.mark.parametrize("norm", NORMS)
def test_order_and_chunks_do_not_matter(norm: str) -> None:
    batch = gaussian_batch(30, 6, 2, 3, 2, seed=12)
    whole = solve_batch(batch, norm)
    order = np.random.default_rng(12).permutation(30)
    permuted = solve_batch(MarginBatch(batch.a[order], batch.queries[order], batch.owner), norm)
    pieces = solve_batch(batch, norm, chunk=7)
    # Problems do not see each other; only blocking of the same sums may differ.
    for other, index in ((permuted, order), (pieces, np.arange(30))):
        np.testing.assert_array_equal(other.status, whole.status[index])
        np.testing.assert_allclose(other.norm, whole.norm[index], rtol=1e-8)
        scale = np.nan_to_num(whole.norm[index], posinf=1.0).max()
        np.testing.assert_allclose(other.W, whole.W[index], atol=1e-5 * scale)


def test_all_selections_of_one_problem() -> None:
    """Shared data, every choice of one row index per query: 256 problems from one set of vectors."""
    rng = np.random.default_rng(13)
    x = rng.standard_normal((4, 4, 5))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    choices = np.stack(np.meshgrid(*[np.arange(4)] * 4, indexing="ij"), axis=-1).reshape(-1, 4)
    others = np.array([[t for t in range(4) if t != s] for s in range(4)])
    a = (x[np.arange(4), choices][:, :, None] - x[np.arange(4)[:, None], others[choices]]).reshape(-1, 12, 5)
    queries = np.broadcast_to(rng.standard_normal((4, 5)), (256, 4, 5))
    result = solve_batch(MarginBatch(a, queries, np.repeat(np.arange(4), 3)))
    assert (result.status == "optimal").all()
    assert result.gap.max() <= TOLERANCE


@pytest.mark.parametrize("norm", NORMS)
def test_float32_is_honest(norm: str) -> None:
    batch = MarginBatch(*sphere_rows(10, 4, 4, 8, seed=14))
    single = solve_batch(batch, norm, dtype="float32")
    double = solve_batch(batch, norm)
    assert (single.status == "optimal").all()  # at its own tolerance of 1e-3
    assert double.gap.max() < single.gap.max() < 1e-3
    for i in range(10):
        assert single.gap[i] == pytest.approx(single.solution(i).certificate.gap, rel=1e-6, abs=1e-14)
    np.testing.assert_allclose(single.norm, double.norm, rtol=1e-3)
    kept = MarginBatch(batch.a.astype(np.float32), batch.queries.astype(np.float32), batch.owner)
    assert kept.a.dtype == np.float32
    check(solve_batch(kept, norm))  # float32 data, float64 iterations


def test_tensors_in_tensors_kept() -> None:
    a, z, owner = sphere_rows(4, 3, 3, 5, seed=15)
    arrays = MarginBatch(a, z, owner)
    tensors = MarginBatch(torch.tensor(a, requires_grad=True), torch.tensor(z), torch.tensor(owner))
    np.testing.assert_allclose(solve_batch(tensors).W, solve_batch(arrays).W, rtol=1e-12)
    rng = np.random.default_rng(15)
    W, lam = rng.standard_normal((4, 5, 5)), rng.standard_normal((4, 6))
    for name, argument in (("margins", W), ("adjoint", lam)):
        plain = getattr(arrays, name)(argument)
        assert isinstance(plain, np.ndarray)
        assert isinstance(getattr(tensors, name)(argument), torch.Tensor)
        np.testing.assert_allclose(getattr(tensors, name)(argument).detach().numpy(), plain, rtol=1e-12, atol=1e-14)
        for i in range(4):
            np.testing.assert_allclose(plain[i], getattr(arrays.problem(i), name)(argument[i]), rtol=1e-12, atol=1e-14)
    for i in range(4):
        np.testing.assert_allclose(arrays.gram()[i], arrays.problem(i).gram(), rtol=1e-12, atol=1e-14)
    own = MarginBatch(a, z, np.tile(owner, (4, 1)))
    np.testing.assert_allclose(own.gram(), arrays.gram(), rtol=1e-12)


def test_warm_start_and_iteration_limit() -> None:
    batch = MarginBatch(*sphere_rows(20, 4, 6, 5, seed=16))
    cold = solve_batch(batch)
    warm = solve_batch(batch, warm_start=cold)
    assert warm.iterations.max() <= 2 < cold.iterations.max()
    np.testing.assert_allclose(warm.norm, cold.norm, rtol=1e-8)
    stopped = solve_batch(batch, max_iterations=1, rescue=False)
    unfinished = stopped.status == "inaccurate"
    assert unfinished.any()
    assert (np.maximum(stopped.gap, stopped.primal_violation)[unfinished] > TOLERANCE).all()
    rescued = solve_batch(batch, max_iterations=1, tolerance=1e-6)  # what the reference solver reaches
    assert rescued.rescued.any()
    assert (rescued.status == "optimal").all()


def test_empty_batch() -> None:
    result = solve_batch(MarginBatch(np.ones((0, 2, 3)), np.ones((0, 1, 3)), [0, 0]), "nuclear")
    assert len(result) == 0
    assert result.W.shape == (0, 3, 3)


def basic_index(tensor: torch.Tensor, key: object) -> torch.Tensor:
    """``tensor[key]`` for slices, None, integers and an ellipsis, by operators that fake tensors support.

    Plain indexing switches to the tensor's device before it dispatches, which a build without CUDA cannot.
    """
    parts = list(key) if isinstance(key, tuple) else [key]
    taken = sum(part is not None and part is not ... for part in parts)
    if ... in parts:
        where = parts.index(...)
        parts[where : where + 1] = [slice(None)] * (tensor.dim() - taken)
    axis = 0
    for part in parts:
        if part is None:
            tensor = tensor.unsqueeze(axis)
        elif isinstance(part, int):
            tensor = tensor.select(axis, part)
            continue
        else:
            assert isinstance(part, slice)  # a tensor as index would be data-dependent
            first, last, _ = part.indices(tensor.shape[axis])
            tensor = tensor.narrow(axis, first, last - first)
        axis += 1
    return tensor


@pytest.mark.parametrize("norm", NORMS)
def test_steps_run_on_another_device(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No transfer, no data-dependent branch: the steps run on fake CUDA tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from attsvm.solvers import batch_frobenius, batch_nuclear
    from attsvm.solvers.batch_certificate import BatchRows, certify_rows, farkas_residual

    monkeypatch.setattr(torch.Tensor, "__getitem__", basic_index)
    with FakeTensorMode():
        make = {"dtype": torch.float64, "device": "cuda"}
        a, b = torch.randn(3, 6, 4, **make), torch.randn(3, 6, 2, **make)
        rhs = torch.ones(3, 6, **make)
        rows = BatchRows(a, b, rhs, rhs < 0)
        if norm == "frobenius":
            state = batch_frobenius.step(batch_frobenius.exchange(batch_frobenius.start(rows, rhs > 0)))
        else:
            state = batch_nuclear.step(batch_nuclear.start(rows, torch.randn(3, 4, 2, **make), rhs))
        certificate = certify_rows(rows, torch.randn(3, 4, 2, **make), rhs, get_norm(norm))
        tensors = [*state, *farkas_residual(rows, rhs), *(part for part in certificate if part is not None)]
        assert {tensor.device.type for tensor in tensors} == {"cuda"}


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    size=st.integers(1, 5), m=st.integers(1, 7), q=st.integers(1, 3), dx=st.integers(1, 4), dz=st.integers(1, 4),
    seed=st.integers(0, 2**16), norm=st.sampled_from(NORMS), integer=st.booleans(),
)  # fmt: skip
def test_small_random_batches(size: int, m: int, q: int, dx: int, dz: int, seed: int, norm: str, integer: bool) -> None:
    """Integer entries make exact ties, repeated and zero rows common."""
    rng = np.random.default_rng(seed)
    draw = (lambda *s: rng.integers(-1, 2, s).astype(float)) if integer else (lambda *s: rng.standard_normal(s))
    batch = MarginBatch(
        draw(size, m, dx), draw(size, q, dz), rng.integers(0, q, (size, m)), None,
        rng.choice([1.0, 1.0, 0.0, -1.0], (size, m)), rng.random((size, m)) < 0.2,
    )  # fmt: skip
    result = solve_batch(batch, norm)
    for i in range(size):
        infeasible = find_farkas(batch.problem(i)) is not None
        assert (result.status[i] == "infeasible") == infeasible
        if not infeasible:  # degenerate nuclear problems without strict complementarity reach a little less
            worst = result.solution(i).certificate.worst
            assert worst <= (TOLERANCE if norm == "frobenius" else 1e-6)


BAD = {
    "a must be a 3-d array": {"a": np.ones((2, 3))},
    "a must hold real numbers": {"a": np.full((2, 3, 1), "x")},
    "queries must be a 3-d array": {"queries": np.ones((2, 0, 1))},
    "queries must hold one set per problem: a has 2 problems, queries 3": {"queries": np.ones((3, 1, 1))},
    "both tensors": {"queries": torch.ones(2, 1, 1)},
    "owner must be integers of shape": {"owner": [0, 0]},
    "owner must be integers, got dtype": {"owner": [0.0, 0.0, 0.0]},
    r"owner must lie in \[0, 1\), got 0 to 4": {"owner": [0, 4, 0]},
    "valid must be booleans of shape": {"valid": np.ones((2, 2), dtype=bool)},
    "valid must be booleans, got": {"valid": np.ones(3)},
    "valid must leave at least one row in every problem, but problem 1": {"valid": [[True] * 3, [False] * 3]},
    "rhs must be numbers of shape": {"rhs": np.ones(4)},
    "rhs must hold real numbers": {"rhs": np.array(["x", "y", "z"])},
    "rhs must be finite, but problem 0": {"rhs": [np.inf, 1.0, 1.0]},
    "equality must be booleans, got": {"equality": np.zeros(3)},
    "a must be finite, but problem 1": {"a": np.stack([np.ones((3, 1)), np.full((3, 1), np.nan)])},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_data_is_named(message: str) -> None:
    good = {"a": np.ones((2, 3, 1)), "queries": np.ones((2, 1, 1)), "owner": [0, 0, 0]}
    with pytest.raises(ValueError, match=message):
        MarginBatch(**(good | BAD[message]))


def test_bad_arguments_are_named() -> None:
    batch = MarginBatch(np.ones((2, 3, 1)), np.ones((2, 1, 1)), [0, 0, 0])
    for message, options in (
        ("norm must be 'frobenius' or 'nuclear'", {"norm": "l1"}),
        ("dtype must be", {"dtype": "float16"}),
        ("tolerance must be positive", {"tolerance": 0.0}),
        ("max_iterations must be at least 1", {"max_iterations": 0}),
        ("chunk must be at least 1", {"chunk": 0}),
        ("warm_start must hold multipliers", {"warm_start": np.ones(3)}),
    ):
        with pytest.raises(ValueError, match=message):
            solve_batch(batch, **options)
    with pytest.raises(ValueError, match="W must have shape"):
        batch.margins(np.ones((2, 2, 1)))
    with pytest.raises(ValueError, match="multipliers must have shape"):
        batch.adjoint(np.ones(3))
    with pytest.raises(ValueError, match="problems must hold at least one"):
        MarginBatch.from_problems([])
    with pytest.raises(ValueError, match="problem 1"):
        MarginBatch.from_problems([batch.problem(0), MarginProblem(np.ones((1, 2)), np.ones((1, 1)), [0])])


def test_dependent_but_consistent_equalities_are_not_called_infeasible():
    problems = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        a, b, W = rng.standard_normal((6, 2)), rng.standard_normal((6, 2)), rng.standard_normal((2, 2))
        rhs = MarginProblem(a, b, np.arange(6)).margins(W)  # six equations for four entries, all met by W
        problems.append(MarginProblem(a, b, np.arange(6), rhs, np.ones(6, dtype=bool)))
    for norm in ("frobenius", "nuclear"):
        found = solve_batch(MarginBatch.from_problems(problems), norm)
        assert "infeasible" not in {str(status) for status in found.status}
        for i, problem in enumerate(problems):
            if found.status[i] == "optimal":  # the only solution there is
                assert np.abs(problem.margins(found.W[i]) - problem.rhs).max() <= 1e-6
