"""Rows that share their vectors are the rows written out, in every product and through every solve."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attsvm
from attsvm.selection_rows import selection_rows
from attsvm.solvers import MarginProblem, MemoryLimitError, SharedRows, solve
from kkt import assert_infeasible


def both(seed: int, *, kind: str = "plain", dtype=np.float64) -> tuple[MarginProblem, MarginProblem]:
    rng = np.random.default_rng(seed)
    n, T, d, dz = (int(rng.integers(1, 4)), int(rng.integers(3, 7)), int(rng.integers(3, 8)), int(rng.integers(3, 8)))
    K = T if kind == "causal" else int(rng.integers(2, 5))
    X, Z = rng.standard_normal((n, T, d)).astype(dtype), rng.standard_normal((n, K, dz)).astype(dtype)
    mask = None
    if kind == "masked":
        mask = rng.random((n, K, T)) < 0.7
        mask[..., :2] = True
    problem = attsvm.AttentionProblem(X + 2.0 * (kind == "mean"), Z=Z, mask=mask)
    problem = problem.with_causal_mask() if kind == "causal" else problem
    logits = np.where(problem.allowed, rng.standard_normal((n, K, T)), -np.inf)
    offset = rng.standard_normal((n, K, T)) if seed % 2 else None
    pair, shared = (
        selection_rows(problem, logits.argmax(-1), offset=offset, shared=s).margin_problem for s in (False, True)
    )
    assert isinstance(shared.rows, SharedRows) and not isinstance(pair.rows, SharedRows)
    return pair, shared


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    kind=st.sampled_from(["plain", "masked", "causal", "mean"]),
    dtype=st.sampled_from([np.float64, np.float32]),
    chunk=st.sampled_from([1, 7, 1 << 20]),
)
def test_same_rows(seed, kind, dtype, chunk):
    pair, shared = both(seed, kind=kind, dtype=dtype)
    shared.rows.chunk = chunk
    rng = np.random.default_rng(seed)
    assert (shared.m, shared.q, shared.shape) == (pair.m, pair.q, pair.shape)
    np.testing.assert_array_equal(shared.owner, pair.owner)
    np.testing.assert_array_equal(shared.rhs, pair.rhs)
    W, lam = rng.standard_normal(pair.shape), rng.standard_normal(pair.m)
    np.testing.assert_allclose(shared.margins(W), pair.margins(W), atol=1e-11)
    np.testing.assert_allclose(shared.adjoint(lam), pair.adjoint(lam), atol=1e-11)
    np.testing.assert_allclose(shared.row_norms, pair.row_norms, rtol=1e-13)
    assert (shared.rows.error_norms >= shared.row_norms * (1 - 1e-12)).all()
    some = rng.permutation(pair.m)[: max(1, pair.m // 2)]
    np.testing.assert_array_equal(shared.rows.gather(some).a, pair.rows.gather(some).a)
    np.testing.assert_array_equal(shared.rows.gather(some).exact_left(), pair.rows.gather(some).exact_left())


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(["plain", "masked", "causal", "mean"]))
def test_same_solution(seed, kind):
    pair, shared = both(seed, kind=kind)
    known, found = solve(pair), solve(shared, solver="working_set")
    assert found.status == known.status
    if known.status == "optimal":
        assert found.norm == pytest.approx(known.norm, rel=1e-8)
        np.testing.assert_allclose(found.W, known.W, atol=1e-6 * max(1.0, known.norm))
    else:
        assert_infeasible(shared, found.certificate.farkas.multipliers)


def test_errors_stay_within_what_certificates_assume():
    """Tokens far from 0 that differ little: the rounding of margins is that of the tokens, not of their differences."""
    from fractions import Fraction

    rng = np.random.default_rng(1)
    X, Z = 1e3 + 1e-3 * rng.standard_normal((1, 4, 3)), rng.standard_normal((1, 2, 2))
    problem = attsvm.AttentionProblem(X, Z=Z)
    rows = selection_rows(problem, [[0, 1]], shared=True).margin_problem
    W = rng.standard_normal((3, 2))
    exact_W = [[Fraction(x) for x in row] for row in W.tolist()]
    computed = rows.margins(W)
    bound = np.finfo(float).eps / 2 * 8 * np.linalg.norm(W) * rows.rows.error_norms
    for k in range(rows.m):
        j, t = int(rows.owner[k]), int(rows.rows.place[k])
        a = [Fraction(x) - Fraction(y) for x, y in zip(X[0, j].tolist(), X[0, t].tolist(), strict=True)]
        z = [Fraction(x) for x in Z[0, j].tolist()]
        true = sum(a[i] * exact_W[i][e] * z[e] for i in range(3) for e in range(2))
        assert abs(float(Fraction(float(computed[k])) - true)) <= bound[k]


def test_equal_tokens_are_a_proof():
    X = np.random.default_rng(0).standard_normal((1, 4, 3))
    X[0, 2] = X[0, 0]
    rows = selection_rows(attsvm.AttentionProblem(X, Z=X), np.zeros((1, 4), dtype=int), shared=True).margin_problem
    assert solve(rows).certificate.farkas.proof == "zero row"


def test_order_of_sequences_does_not_matter():
    problem, selection = attsvm.structured_problem(4, 8, 24, seed=3)
    turned = np.array([2, 0, 3, 1])
    one = attsvm.satt_svm(problem, selection, solver="working_set")
    other = attsvm.satt_svm(
        attsvm.AttentionProblem.sequences(problem.X[turned]), selection.indices[turned], solver="working_set"
    )
    np.testing.assert_allclose(other.W, one.W, atol=1e-7)


def test_infeasible_ends_with_a_proof():
    problem, selection = attsvm.structured_problem(6, 8, 3, seed=0)
    wrong = (selection.indices + 1) % 8
    rows = selection_rows(problem, wrong, shared=True).margin_problem
    assert_infeasible(rows, solve(rows, solver="working_set").certificate.farkas.multipliers)
    assert_infeasible(rows, solve(rows, "nuclear", "reweighted").certificate.farkas.multipliers)


def test_chosen_by_size_and_by_hand(tmp_path):
    problem, selection = attsvm.structured_problem(4, 40, 384, dtype=np.float32)
    rows = selection_rows(problem, selection).margin_problem.rows
    assert isinstance(rows, SharedRows) and rows.elements == problem.X.size
    assert not isinstance(selection_rows(*attsvm.structured_problem(2, 6, 8)).margin_problem.rows, SharedRows)
    np.save(tmp_path / "tokens.npy", problem.X)
    mapped = np.load(tmp_path / "tokens.npy", mmap_mode="r")
    again = selection_rows(attsvm.AttentionProblem(mapped, Z=mapped), selection).margin_problem.rows
    assert np.shares_memory(again.vectors, mapped)


def test_warm_start_progress_and_early_stop():
    problem, selection = attsvm.structured_problem(6, 12, 40, seed=1)
    told = []
    cold = attsvm.satt_svm(problem, selection, solver="working_set", progress=told.append)
    assert [p.round for p in told] == list(range(1, len(told) + 1)) and told[-1].violation < 1e-3
    warm = attsvm.satt_svm(problem, selection, solver="working_set", warm_start=cold)
    assert warm.result.iterations < cold.result.iterations and warm.norm == pytest.approx(cold.norm, rel=1e-9)
    with pytest.warns(attsvm.ConvergenceWarning):
        short = attsvm.satt_svm(problem, selection, solver="working_set", max_iterations=2)
    assert short.status == "inaccurate" and short.certificate.lower_bound <= cold.norm
    with pytest.warns(attsvm.ConvergenceWarning):
        early = attsvm.satt_svm(problem, selection, solver="working_set", time_limit=1e-9)
    assert early.result.iterations <= 1


def test_memory_is_refused_before_the_start():
    problem, selection = attsvm.structured_problem(4, 16, 32)
    with pytest.raises(MemoryLimitError, match="raise memory_limit, solve fewer sequences"):
        attsvm.satt_svm(problem, selection, solver="working_set", memory_limit=1e4)
    for bad in (0, -1.0, "2 GB", True):
        with pytest.raises(ValueError, match="memory_limit must be"):
            attsvm.satt_svm(problem, selection, solver="working_set", memory_limit=bad)
    with pytest.raises(ValueError, match="time_limit must be"):
        attsvm.satt_svm(problem, selection, solver="working_set", time_limit=-1)
    with pytest.raises(ValueError, match="progress must be None or a function"):
        attsvm.satt_svm(problem, selection, solver="working_set", progress="yes")


def test_bad_arrays():
    X, z, zero = np.ones((1, 3, 2)), np.ones((2, 2)), np.array([0, 0])
    with pytest.raises(ValueError, match="owner must be in nondecreasing order"):
        SharedRows(X, z, zero, zero, np.array([1, 0]), np.array([1, 2]))
    with pytest.raises(ValueError, match=r"place must lie in \[0, 3\)"):
        SharedRows(X, z, zero, zero, np.array([0, 1]), np.array([1, 3]))
    with pytest.raises(ValueError, match="vectors must be float32 or float64"):
        SharedRows(X.astype(int), z, zero, zero, np.array([0, 1]), np.array([1, 2]))
    with pytest.raises(ValueError, match="offset must be one number per query and token"):
        attsvm.att_svm(attsvm.random_problem(2, 3, 4), offset=np.ones((2, 2)))
    with pytest.raises(ValueError, match="offset must be finite"):
        attsvm.att_svm(attsvm.random_problem(2, 3, 4), offset=np.full((2, 3), -np.inf))


def test_offsets_are_logits():
    """An offset that already separates leaves nothing to do; any other moves the right-hand side."""
    problem = attsvm.random_problem(n=3, T=4, d=6, seed=0)
    chosen = problem.optimal_tokens().indices
    gift = np.zeros((3, 4))
    gift[np.arange(3), chosen] = 2.0
    assert np.abs(attsvm.att_svm(problem, offset=gift).W).max() == 0.0
    rng = np.random.default_rng(0)
    offset = rng.standard_normal((3, 4))
    W = attsvm.att_svm(problem, offset=offset).W
    logits = np.einsum("itd,de,ie->it", problem.X, W, problem.Z) + offset
    lead = logits[np.arange(3), chosen][:, None] - logits
    lead[np.arange(3), chosen] = np.inf
    assert lead.min() == pytest.approx(1.0, abs=1e-7)
