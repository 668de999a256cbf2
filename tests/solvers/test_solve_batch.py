"""Batches: against the reference, against their problems solved alone, and on awkward data."""

from __future__ import annotations

import re
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attsvm.solvers import MarginProblem, MarginSolutionBatch, Status, certify, find_farkas, solve, solve_batch
from kkt import assert_infeasible, assert_optimal, sphere_rows
from margin_problems import library
from planted_optima import narrow

NORMS = ("frobenius", "nuclear")
# What batches reach in float64, in both norms.
TOLERANCE = 1e-8
# Where what float64 reaches depends on the way.
UNSTABLE = {"near-infeasible", "scales"}


def gaussian_batch(size: int, m: int, q: int, dx: int, dz: int, seed: int) -> MarginProblem:
    rng = np.random.default_rng(seed)
    owner = rng.integers(0, q, m)
    return MarginProblem(rng.standard_normal((size, m, dx)), rng.standard_normal((size, q, dz)), owner)


def check(solution: MarginSolutionBatch) -> None:
    """Every problem is certified, and `solution[i]` proves it again from the problem alone."""
    for i in range(len(solution)):
        alone = solution[i]
        assert alone.status is solution.status[i]
        assert alone.status.is_certified, (i, alone.status, alone.certificate)
        if alone.status is Status.INFEASIBLE:
            assert alone.certificate.farkas is not None
            assert np.isnan(solution.W[i]).all()
            assert np.isinf(solution.norm[i])
            assert_infeasible(alone.problem, alone.certificate.farkas.multipliers)
        else:
            again = certify(alone.problem, alone.W, alone.multipliers, alone.norm_kind)
            assert max(again.worst, alone.certificate.worst) <= TOLERANCE
            # Sums of a few residuals of the certificate.
            assert_optimal(alone.problem, alone.W, alone.multipliers, alone.norm_kind.name, 10 * TOLERANCE)


@pytest.mark.parametrize("norm", NORMS)
def test_matches_the_reference(norm: str) -> None:
    batch = MarginProblem(*sphere_rows(4, 4, 4, 6, seed=1))
    result = solve(batch, norm)
    check(result)
    assert not result.extras.rescued.any()
    for i in range(4):
        reference = solve(batch[i], norm, "cvxpy")
        # Both gaps are below 1e-7, so the norms agree to about that.
        assert result.norm[i] == pytest.approx(reference.norm, rel=1e-6)
        if norm == "frobenius":  # unique; |W - W*|^2 <= 2 gap |W|^2, so sqrt(1e-7) is the guarantee
            np.testing.assert_allclose(result.W[i], reference.W, atol=1e-3 * reference.norm)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("shape", [(5, 5, 10), (3, 10, 4), (1, 2, 3), (1, 6, 2), (5, 2, 5)])
def test_random_batches_are_certified(norm: str, shape: tuple[int, int, int]) -> None:
    result = solve(MarginProblem(*sphere_rows(40, *shape, seed=2)), norm)
    check(result)
    assert (result.status == "optimal").all()
    if norm == "nuclear":
        ranks = result.certificate.rank_certificate
        np.testing.assert_array_equal(ranks.rank, ranks.numerical_rank)


@pytest.mark.parametrize("norm", NORMS)
def test_ragged_problems_equal_their_own_solutions(norm: str) -> None:
    rng = np.random.default_rng(4)
    problems = []
    for m, q in ((3, 2), (7, 4), (1, 1), (12, 3)):
        a = rng.standard_normal((m, 6))
        problems.append(MarginProblem(a, rng.standard_normal((q, 5)), rng.integers(0, q, m)))
    batch = MarginProblem.stack(problems)
    together = solve(batch, norm)
    check(together)
    assert together.multipliers.shape == (4, 12)
    for i, problem in enumerate(problems):
        np.testing.assert_array_equal(batch[i].rows.a, problem.rows.a)
        alone = solve(MarginProblem.stack([problem]), norm)
        # Two certified gaps below 1e-8.
        assert together.norm[i] == pytest.approx(alone.norm[0], rel=1e-7)
        assert not together.multipliers[i][~batch.valid[i]].any()


def test_rows_that_do_not_exist_may_hold_anything() -> None:
    a, z, owner = sphere_rows(5, 3, 3, 4, seed=5)
    plain = solve(MarginProblem(a[:, :4], z, owner[:4]))
    a[:, 4:] = np.nan
    owner[4:] = -1
    padded = solve(MarginProblem(a, z, owner, valid=np.arange(6) < 4))
    np.testing.assert_allclose(padded.W, plain.W, rtol=1e-9)  # same problem, other summation order


@pytest.mark.parametrize("norm", NORMS)
def test_feasible_and_infeasible_mixed(norm: str) -> None:
    batch = gaussian_batch(60, 8, 2, 2, 2, seed=6)  # 8 rows in 4 dimensions: both kinds occur
    result = solve(batch, norm)
    check(result)
    expected = [find_farkas(batch[i]) is not None for i in range(60)]
    assert 5 < sum(expected) < 55
    np.testing.assert_array_equal(result.status == "infeasible", expected)
    for i in np.flatnonzero(result.status == "infeasible"):
        proof = result[i].certificate.farkas.multipliers
        assert (proof >= 0).all()
        assert proof.sum() == pytest.approx(1.0, rel=1e-12)  # rhs . y = 1 with rhs = 1


@pytest.mark.parametrize("norm", NORMS)
def test_degenerate_rows(norm: str) -> None:
    a, z, owner = sphere_rows(6, 3, 4, 5, seed=7)
    a[0, 1] = a[0, 0]  # duplicate
    a[1, 1] = 3.0 * a[1, 0]  # collinear
    a[2, 1:3] = a[2, :1]
    z[3, 1] = 0.0  # zero query: its rows ask 0 >= 1
    a[4, 2] = -a[4, 1]  # opposite rows of one query
    result = solve(MarginProblem(a, z, owner), norm)
    check(result)
    assert [str(s) for s in result.status] == ["optimal"] * 3 + ["infeasible"] * 2 + ["optimal"]
    assert result[3].certificate.farkas.residual == 0.0
    assert result[3].certificate.farkas.proof == "zero row"
    relaxed = solve(MarginProblem(a[3:4], z[3:4], owner, rhs=np.where(owner == 1, 0.0, 1.0)), norm)
    check(relaxed)
    assert relaxed.status[0] == "optimal"  # the zero rows now ask 0 >= 0


@pytest.mark.parametrize("norm", NORMS)
def test_equality_rows_and_general_rhs(norm: str) -> None:
    rng = np.random.default_rng(8)
    a, z, owner = sphere_rows(8, 3, 4, 5, seed=8)
    rhs, equality = rng.standard_normal((8, 9)), rng.random((8, 9)) < 0.4
    batch = MarginProblem(a, z, owner, rhs=rhs, equality=equality)
    result = solve(batch, norm)
    check(result)
    for i in range(3):
        assert result.norm[i] == pytest.approx(solve(batch[i], norm, "cvxpy").norm, rel=1e-6)
    a[0, 1], rhs[0, :2], equality[0, :2] = a[0, 0], (1.0, 2.0), True  # contradiction
    a[1, 1], rhs[1, :2], equality[1, :2] = a[1, 0], (1.0, 1.0), True  # repetition
    result = solve(MarginProblem(a, z, owner, rhs=rhs, equality=equality), norm)
    check(result)
    assert (result.status[0], result.status[1]) == ("infeasible", "optimal")


@pytest.mark.parametrize("norm", NORMS)
def test_scaling_rows_scales_the_norm(norm: str) -> None:
    a, z, owner = sphere_rows(6, 4, 4, 5, seed=9)
    plain = solve(MarginProblem(a, z, owner), norm)
    for factor in (1e-6, 1e6):
        scaled = solve(MarginProblem(factor * a, z, owner), norm)
        check(scaled)
        np.testing.assert_allclose(scaled.norm * factor, plain.norm, rtol=1e-7)  # two gaps below 1e-8
    uneven = np.logspace(-3, 3, a.shape[1])[:, None]
    check(solve(MarginProblem(a * uneven, z, owner, rhs=uneven[:, 0]), norm))


def test_nearly_infeasible_nuclear_norms_are_those_of_single_solves() -> None:
    """In a batch alone they end at gaps of 1e-9; what is not sharp is finished as a single solve finishes it."""
    problems = [narrow(value, seed=seed).problem for seed in range(4) for value in (300.0, 1e3)]
    batch = solve(MarginProblem.stack(problems), "nuclear")
    assert (batch.status == "optimal").all()
    np.testing.assert_allclose(batch.norm, [solve(one, "nuclear").norm for one in problems], rtol=1e-10)


def test_nearly_infeasible_frobenius() -> None:
    a, z, owner = sphere_rows(20, 5, 5, 10, seed=10)
    a[:, 1] = -a[:, 0] + 1e-4 * np.random.default_rng(10).standard_normal((20, 10))
    result = solve(MarginProblem(a, z, owner))
    check(result)
    assert result.norm.min() > 1e3
    assert not result.extras.rescued.any()


@pytest.mark.parametrize("shape", [(2, 7), (7, 2), (1, 4)])
def test_rectangular_nuclear_is_symmetric(shape: tuple[int, int]) -> None:
    """One row per query: exchanging the two factors transposes the problem."""
    rng = np.random.default_rng(17)
    a, z = rng.standard_normal((6, 3, shape[0])), rng.standard_normal((6, 3, shape[1]))
    tall = solve(MarginProblem(a, z, np.arange(3)), "nuclear")
    wide = solve(MarginProblem(z, a, np.arange(3)), "nuclear")
    check(tall)
    np.testing.assert_array_equal(tall.status, wide.status)
    np.testing.assert_allclose(tall.norm, wide.norm, rtol=1e-7)  # two gaps below 1e-8


@pytest.mark.parametrize("norm", NORMS)
def test_nothing_demanded(norm: str) -> None:
    a, z, owner = sphere_rows(3, 2, 3, 4, seed=11)
    rhs = np.array([-1.0, 0.0, -2.0, 0.0])
    result = solve(MarginProblem(a, z, owner, rhs=rhs), norm)
    check(result)
    np.testing.assert_array_equal(result.W, 0.0)
    np.testing.assert_array_equal(result.certificate.gap, 0.0)
    if norm == "nuclear":
        np.testing.assert_array_equal(result.certificate.rank, 0)


@pytest.mark.parametrize("norm", NORMS)
def test_order_does_not_matter(norm: str) -> None:
    batch = gaussian_batch(30, 6, 2, 3, 2, seed=12)
    whole = solve(batch, norm)
    order = np.random.default_rng(12).permutation(30)
    other = solve(batch.take(order), norm)
    # Problems do not see each other; only blocking of the same sums may differ.
    np.testing.assert_array_equal(other.status, whole.status[order])
    np.testing.assert_allclose(other.norm, whole.norm[order], rtol=1e-8)
    scale = np.nan_to_num(whole.norm[order], posinf=1.0).max()
    np.testing.assert_allclose(other.W, whole.W[order], atol=1e-5 * scale)


def test_all_selections_of_one_problem() -> None:
    """Shared data, every choice of one row index per query: 256 problems from one set of vectors."""
    rng = np.random.default_rng(13)
    x = rng.standard_normal((4, 4, 5))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    choices = np.stack(np.meshgrid(*[np.arange(4)] * 4, indexing="ij"), axis=-1).reshape(-1, 4)
    others = np.array([[t for t in range(4) if t != s] for s in range(4)])
    a = (x[np.arange(4), choices][:, :, None] - x[np.arange(4)[:, None], others[choices]]).reshape(-1, 12, 5)
    queries = np.broadcast_to(rng.standard_normal((4, 5)), (256, 4, 5))
    result = solve(MarginProblem(a, queries, np.repeat(np.arange(4), 3)))
    assert (result.status == "optimal").all()
    assert result.certificate.gap.max() <= TOLERANCE


def test_warm_start() -> None:
    batch = MarginProblem(*sphere_rows(20, 4, 6, 5, seed=16))
    cold = solve(batch)
    warm = solve(batch, warm_start=cold)
    assert warm.iterations.max() <= 2 < cold.iterations.max()
    np.testing.assert_allclose(warm.norm, cold.norm, rtol=1e-8)


def test_a_limit_of_iterations_holds_for_every_problem() -> None:
    batch = MarginProblem(*sphere_rows(20, 4, 6, 5, seed=16))
    stopped = solve(batch, max_iterations=1)
    unfinished = stopped.status == "inaccurate"
    assert unfinished.any()
    assert (stopped.certificate.worst[unfinished] > TOLERANCE).all()
    for i in range(20):
        assert stopped.status[i] is solve(batch[i], max_iterations=1).status
    assert not stopped.extras.rescued.any()
    nuclear = solve(batch, "nuclear", max_iterations=2)
    assert (nuclear.status == "inaccurate").all()
    assert (nuclear.certificate.worst > TOLERANCE).all()
    rescued = solve(batch, "nuclear", max_iterations=2, rescue=True)
    assert rescued.extras.rescued.all()
    check(rescued)


@pytest.mark.parametrize("norm", [*NORMS, "l1"])
def test_empty_batch(norm: str) -> None:
    result = solve(MarginProblem(np.ones((0, 2, 3)), np.ones((0, 1, 3)), [0, 0]), norm)
    assert len(result) == 0
    assert result.W.shape == (0, 3, 3)
    assert result.norm.shape == result.status.shape == result.iterations.shape == (0,)
    assert result.multipliers.shape == (0, 2)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    size=st.integers(1, 5), m=st.integers(1, 7), q=st.integers(1, 3), dx=st.integers(1, 4), dz=st.integers(1, 4),
    seed=st.integers(0, 2**16), norm=st.sampled_from(NORMS), integer=st.booleans(),
)  # fmt: skip
def test_small_random_batches(size: int, m: int, q: int, dx: int, dz: int, seed: int, norm: str, integer: bool) -> None:
    """Integer entries make exact ties, repeated and zero rows common."""
    rng = np.random.default_rng(seed)
    draw = (lambda *s: rng.integers(-1, 2, s).astype(float)) if integer else (lambda *s: rng.standard_normal(s))
    batch = MarginProblem(
        draw(size, m, dx), draw(size, q, dz), rng.integers(0, q, (size, m)),
        rng.choice([1.0, 1.0, 0.0, -1.0], (size, m)), rng.random((size, m)) < 0.2,
    )  # fmt: skip
    result = solve(batch, norm)
    for i in range(size):
        infeasible = find_farkas(batch[i]) is not None
        assert (result.status[i] == "infeasible") == infeasible
        if not infeasible:  # degenerate nuclear problems without strict complementarity reach a little less
            worst = result[i].certificate.worst
            assert worst <= (TOLERANCE if norm == "frobenius" else 1e-6)


def test_dependent_but_consistent_equalities_are_not_called_infeasible():
    problems = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        a, b, W = rng.standard_normal((6, 2)), rng.standard_normal((6, 2)), rng.standard_normal((2, 2))
        rhs = MarginProblem(a, b, np.arange(6)).margins(W)  # six equations for four entries, all met by W
        problems.append(MarginProblem(a, b, np.arange(6), rhs, np.ones(6, dtype=bool)))
    for norm in ("frobenius", "nuclear"):
        found = solve(MarginProblem.stack(problems), norm)
        assert "infeasible" not in {str(status) for status in found.status}
        for i, problem in enumerate(problems):
            if found.status[i] == "optimal":  # the only solution there is
                assert np.abs(problem.margins(found.W[i]) - problem.rhs).max() <= 1e-6


@pytest.mark.parametrize("norm", NORMS)
def test_float32_rows_are_solved_in_float64(norm: str) -> None:
    a, z, owner = sphere_rows(10, 4, 4, 8, seed=14)
    kept = MarginProblem(a.astype(np.float32), z.astype(np.float32), owner)
    assert kept.rows.a.dtype == np.float32
    check(solve(kept, norm))


def test_bad_arguments_are_named() -> None:
    batch = MarginProblem(np.ones((2, 3, 1)), np.ones((2, 1, 1)), [0, 0, 0])
    for message, options in (
        ("tolerance must be None or a positive number", {"tolerance": 0.0}),
        ("max_iterations must be None or an integer >= 1", {"max_iterations": 0}),
        (
            re.escape("warm_start must hold multipliers of shape (2, 3), one per row, got (3,)"),
            {"warm_start": np.ones(3)},
        ),
    ):
        with pytest.raises(ValueError, match=message):
            solve(batch, **options)
    with pytest.raises(ValueError, match="solve_batch takes a batch of problems; use solve for one"):
        solve_batch(batch[0])
    with pytest.raises(TypeError, match="solver 'active_set' takes no option 'starts'"):
        solve(batch, starts=3)


@pytest.mark.parametrize("norm", NORMS)
def test_every_field_of_a_batch_is_that_of_the_problem_alone(norm: str) -> None:
    """Optimal, trivial, infeasible and ragged problems: what is taken from a batch is what the single call returns."""
    entries = [e.problem for e in library() if norm in e.norms and e.problem.shape == (6, 4) and not e.tags & UNSTABLE]
    some = gaussian_batch(6, 9, 4, 6, 4, seed=0)
    problems = [some[i] for i in range(6)] + entries
    batch = solve(MarginProblem.stack(problems), norm)
    seen = set()
    for i, problem in enumerate(problems):
        one, alone = batch[i], solve(problem, norm)
        seen.add(alone.status)
        assert one.status is alone.status, i
        for mine, theirs in ((one, alone), (one.certificate, alone.certificate), (one.extras, alone.extras)):
            for part in fields(theirs):
                assert type(getattr(mine, part.name)) is type(getattr(theirs, part.name)), part.name
        assert (one.norm_kind, one.tolerance) == (alone.norm_kind, alone.tolerance)
        assert one.solver == alone.solver or norm == "nuclear"  # "auto" is another method for batches
        assert one.multipliers.shape == alone.multipliers.shape
        np.testing.assert_array_equal(one.problem.pairs().a, problem.pairs().a)
        np.testing.assert_array_equal(one.problem.rhs, problem.rhs)
        if alone.certificate.farkas is not None:
            assert one.certificate.farkas is not None
            assert set(one.certificate.farkas.owners) <= set(range(problem.q))
            assert np.isinf(one.certificate.lower_bound)
        else:
            assert one.norm == pytest.approx(alone.norm, rel=1e-10)
            assert one.certificate.lower_bound == pytest.approx(alone.certificate.lower_bound, rel=1e-9)
            assert one.certificate.rank == alone.certificate.rank
            assert problem.rhs @ one.multipliers == pytest.approx(problem.rhs @ alone.multipliers, rel=1e-8)
    assert {Status.OPTIMAL, Status.INFEASIBLE} <= seen
