"""Pivoting with products: the solutions of other methods, whatever the rows, and what takes over when it stalls."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attsvm
from attsvm.selection_rows import selection_rows
from attsvm.solvers import MarginProblem, MemoryLimitError, PairRows, SharedRows, memory, solve
from attsvm.solvers.conjugate_gradient import conjugate_gradient
from attsvm.solvers.frobenius import product_pivoting, working_set
from attsvm.solvers.frobenius.product_pivoting import ProductPivoting
from attsvm.solvers.frobenius.proximal_newton import Metric
from attsvm.solvers.frobenius.row_features import FeatureBasis, RowPreconditioner
from attsvm.solvers.memory import MemoryPlan, require_memory, working_memory
from attsvm.solvers.rows import products as chosen_rows
from attsvm.solvers.rows.products import ChosenRows
from kkt import assert_infeasible, assert_optimal, dense_rows, random_rows


@pytest.fixture
def always(monkeypatch):
    """Pivoting for every number of queries, with a metric as well."""
    monkeypatch.setattr(working_set, "MANY_QUERIES", 1)


def structured(n: int, T: int, d: int, seed: int = 0) -> MarginProblem:
    problem, selection = attsvm.structured_problem(n, T, d, seed=seed)
    return selection_rows(problem, selection, shared=True).margin_problem


@pytest.mark.parametrize("matrix", [False, True])
def test_many_queries_give_the_same_norm_with_and_without_the_matrix(matrix):
    rows = structured(16, 16, 30)
    found = solve(rows, solver="working_set", memory_limit=None if matrix else 0.99 * working_memory(rows))
    assert found.status == "optimal" and found.extras.products > 0
    assert (found.extras.factorizations > 0) == matrix
    known = solve(selection_rows(*attsvm.structured_problem(16, 16, 30, seed=0), shared=False).margin_problem)
    assert found.norm == pytest.approx(known.norm, rel=1e-8)
    assert found.certificate.proved <= 1e-8


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), n=st.integers(1, 5), T=st.integers(2, 5), d=st.integers(4, 7), equal=st.booleans())
def test_meets_the_optimality_conditions(seed, n, T, d, equal):
    rows = random_rows(np.random.default_rng(seed), min(n, d), T, d, equalities=int(equal and T > 2))
    before, working_set.MANY_QUERIES = working_set.MANY_QUERIES, 1
    try:
        found = solve(rows, solver="working_set")
    finally:
        working_set.MANY_QUERIES = before
    assert found.status == "optimal"
    assert_optimal(rows, found.W, found.multipliers, "frobenius", 1e-6)


def test_infeasible_rows_are_left_to_the_method_that_proves_it(always):
    problem, selection = attsvm.structured_problem(6, 8, 3, seed=0)
    rows = selection_rows(problem, (selection.indices + 1) % 8, shared=True).margin_problem
    assert_infeasible(rows, solve(rows, solver="working_set").certificate.farkas.multipliers)


def test_warm_start_and_bound(always):
    rows, told = structured(4, 12, 30, 1), []
    cold = solve(rows, solver="working_set", progress=told.append)
    assert [p.round for p in told] == list(range(1, len(told) + 1))
    bounds = [p.bound for p in told]
    assert bounds == sorted(bounds) and max(bounds) <= cold.norm * (1 + 1e-9) and told[-1].violation < 1e-8
    warm = solve(rows, solver="working_set", warm_start=cold)
    assert warm.iterations < cold.iterations and warm.norm == pytest.approx(cold.norm, rel=1e-8)


def test_a_limit_of_time_is_looked_at_after_every_product(monkeypatch):
    monkeypatch.setattr(product_pivoting, "_MOST_BLOCK", 1)  # a poor preconditioner, so that many products are needed
    monkeypatch.setattr(product_pivoting, "_BLOCK", 1)
    rows = structured(4, 12, 30, 2)
    asked = []

    def late() -> bool:
        asked.append(1)
        return len(asked) >= 3

    pivoting = ProductPivoting(rows, features=1, late=late)
    pivoting.begin(None)
    pivoting.advance(1e-12)
    assert len(asked) >= 3 and pivoting.products == 7  # two to begin, three inside, two at the end
    short = conjugate_gradient(lambda x: np.arange(1, 9) * x, lambda x: x, np.ones(8), 1e-12, 100, stop=late)
    assert (short.steps, short.ending) == (1, "limit")


def test_out_of_time_gives_the_best_pair_with_its_bound(always, monkeypatch):
    rows = structured(4, 12, 30, 3)
    best = solve(rows, solver="working_set")
    clock = iter(np.arange(0.0, 1e6))
    monkeypatch.setattr(working_set.time, "perf_counter", lambda: next(clock))
    found = solve(rows, solver="working_set", time_limit=8.0)
    assert found.status == "inaccurate" and found.iterations < best.iterations
    assert 0.0 < found.certificate.lower_bound <= best.norm * (1 + 1e-12)


def test_memory_limit_chooses_the_leaner_way():
    rows = structured(8, 32, 64)
    whole, least = working_memory(rows), working_memory(rows, 32)
    assert least < whole / 2
    assert require_memory(rows, 2 * whole, True) == MemoryPlan(True, None)
    assert require_memory(rows, 0.9 * whole, True).matrix is False
    found = solve(rows, solver="working_set", memory_limit=1.01 * least)
    assert found.status == "optimal" and found.extras.factorizations == 0
    with pytest.raises(MemoryLimitError, match="would take about"):
        solve(rows, solver="working_set", memory_limit=0.9 * least)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(0, 12), block=st.sampled_from([1, 3, 7]), stretched=st.booleans())
def test_preconditioner_is_blocks_plus_features(seed, count, block, stretched):
    rng = np.random.default_rng(seed)
    rows = PairRows(rng.standard_normal((9, 4)), rng.standard_normal((3, 5)), np.repeat(np.arange(3), 3))
    metric = None
    if stretched:
        left, right = rng.standard_normal((4, 4)), rng.standard_normal((5, 5))
        metric = Metric(left @ left.T, right @ right.T)
    index = np.sort(rng.permutation(9)[:7])
    basis = FeatureBasis(rows, index, count, metric) if count else None
    made = RowPreconditioner(rows, index, basis, block, metric)
    a, b = rows.a[index], rows.queries[rows.owner[index]]
    gram = (a @ a.T) * (b @ b.T)
    if metric is not None:
        gram = 0.5 * ((a @ metric.left @ a.T) * (b @ b.T) + (a @ a.T) * (b @ metric.right @ b.T))
    F = (
        np.zeros((7, 0))
        if basis is None
        else basis.features(a.astype(np.float32), b.astype(np.float32)).astype(np.float64)
    )
    assert np.linalg.eigvalsh(gram - F @ F.T)[0] >= -1e-4 * np.abs(gram).max()  # features never exceed the matrix
    cuts = np.linspace(0, 7, -(-7 // block) + 1).astype(int)
    same = np.searchsorted(cuts, np.arange(7), side="right")
    rest = np.where(same[:, None] == same, gram - F @ F.T, 0.0)
    size = np.sqrt(np.diag(gram))
    whole = (rest + F @ F.T) / np.outer(size, size)
    inverse = np.column_stack([made(e) for e in np.eye(7)]) * np.outer(size, size)
    # What it inverts is this matrix but for a ridge, which rounding of float32 may raise a hundredfold; both are at
    # least as definite as the ridge, so the product is the identity where the matrix is well above it.
    values, vectors = np.linalg.eigh(whole)
    good = vectors[:, values > 0.05]
    np.testing.assert_allclose(good.T @ inverse @ whole @ good, np.eye(good.shape[1]), atol=0.05)
    np.testing.assert_allclose(inverse, inverse.T, atol=5e-3 * np.abs(inverse).max())  # float32 over the ridge


def test_generic_rows_have_no_features_and_structured_ones_do():
    rng = np.random.default_rng(0)
    generic = random_rows(rng, 40, 10, 30).rows
    assert FeatureBasis(generic, np.arange(80), 256, least=1.0).count < 20
    assert FeatureBasis(structured(8, 16, 30).rows, np.arange(80), 256, least=1.0).count >= 1


@pytest.mark.parametrize("matrix_rows", [0, 10_000])
def test_copies_of_rows_do_not_stall_it(matrix_rows):
    """Two sequences that are the same: every set of free rows that holds both copies is dependent."""
    problem, selection = attsvm.structured_problem(6, 10, 20, seed=4)
    X = np.concatenate([problem.X, problem.X])
    twice = attsvm.AttentionProblem(X, np.ones(X.shape[:2]), X, head=attsvm.LinearHead(np.ones(X.shape[-1])))
    rows = selection_rows(twice, np.concatenate([selection.indices] * 2), shared=True).margin_problem
    known = solve(selection_rows(problem, selection, shared=False).margin_problem)
    pivoting = ProductPivoting(rows, matrix_rows=matrix_rows)
    pivoting.begin(None)
    for _ in range(80):
        pivoting.advance(1e-9)
        if pivoting.stalled or (not pivoting.changed and pivoting.short <= 1e-9):
            break
    assert not pivoting.stalled and pivoting.short <= 1e-9
    assert pivoting.norm == pytest.approx(known.norm, rel=1e-7)
    assert pivoting.factorizations <= pivoting.rounds


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("widest", [64, 0])
def test_chosen_rows_multiply_as_rows_do(rng, monkeypatch, shuffled, widest):
    monkeypatch.setattr(chosen_rows, "CHUNK_ELEMENTS", 30)  # several chunks
    monkeypatch.setattr(chosen_rows, "_WIDEST", widest)  # all queries at once, or one after another
    problem = random_rows(rng, 7, 9, 12, 10)
    problem = problem.gather(rng.permutation(problem.m)) if shuffled else problem
    for kept in (np.arange(problem.m), np.sort(rng.permutation(problem.m)[:31]), np.arange(5)):
        whole, half = ChosenRows(problem.rows, kept), ChosenRows(problem.rows, kept, np.float32)
        W, lam = rng.standard_normal(problem.shape), rng.standard_normal(len(kept))
        np.testing.assert_allclose(whole.margins(W), problem.margins(W)[kept], atol=1e-11)
        full = np.zeros(problem.m)
        full[kept] = lam
        np.testing.assert_allclose(whole.adjoint(lam), problem.adjoint(full), atol=1e-11)
        np.testing.assert_allclose(whole.gram_product(lam), problem.margins(problem.adjoint(full))[kept], atol=1e-10)
        np.testing.assert_allclose(whole.moments(), (a := problem.rows.gather(kept).a).T @ a, atol=1e-11)
        assert half.queries.dtype == np.float32
        # A few dozen terms with 24 bits each.
        np.testing.assert_allclose(half.margins(W), whole.margins(W), atol=1e-4)
        np.testing.assert_allclose(half.adjoint(lam), whole.adjoint(lam), atol=1e-4)


def test_metric_solves_the_weighted_problem():
    rng = np.random.default_rng(0)
    rows = random_rows(rng, 4, 4, 6)
    left, right = rng.standard_normal((6, 6)), rng.standard_normal((6, 6))
    metric = Metric(left @ left.T + np.eye(6), right @ right.T + np.eye(6))
    pivoting = ProductPivoting(rows, metric)
    pivoting.begin(None)
    for _ in range(40):
        pivoting.advance(1e-10)
    F = dense_rows(rows)
    M = 0.5 * (np.kron(metric.left, np.eye(6)) + np.kron(np.eye(6), metric.right))
    root = np.linalg.cholesky(M)
    plain = MarginProblem(F @ root, [[1.0]], np.zeros(len(F), dtype=int))  # W = M V, so |V| is what is least
    known = solve(plain)
    assert pivoting.norm == pytest.approx(known.norm, rel=1e-7)
    np.testing.assert_allclose(pivoting.W.ravel(), root @ known.W.ravel(), atol=1e-6)


def test_some_rows_in_single_precision():
    rows = structured(3, 8, 12).rows
    assert isinstance(rows, SharedRows)
    index = np.sort(np.random.default_rng(0).permutation(rows.m)[:40])
    pair, exact, narrow = rows.gather(index), rows.select(index), rows.select(index, np.float32)
    rng = np.random.default_rng(1)
    W, lam = rng.standard_normal(rows.shape), rng.standard_normal(40)
    np.testing.assert_allclose(exact.margins(W), pair.margins(W), atol=1e-11)
    np.testing.assert_allclose(exact.adjoint(lam), pair.adjoint(lam), atol=1e-11)
    np.testing.assert_allclose(exact.row_norms, pair.row_norms, rtol=1e-12)
    # Differences of products of size |x| |W| |z| with 24 bits each.
    size = float(rows.error_norms.max()) * float(np.linalg.norm(W)) * 2.0**-22
    np.testing.assert_allclose(narrow.margins(W), pair.margins(W), atol=size)
    np.testing.assert_allclose(narrow.adjoint(lam), pair.adjoint(lam), atol=1e-4 * float(np.abs(pair.a).max()) * 40)


def test_the_memory_that_is_announced_counts_rows_entries_and_features(rng):
    """Rows and entries of W once per vector, features by the rows of the system and by themselves (float32)."""
    small, wide, long = (
        MarginProblem(rng.standard_normal((m, dx)), rng.standard_normal((1, 4)), np.zeros(m, dtype=int))
        for m, dx in ((300, 5), (300, 7), (500, 5))
    )
    free = memory.system_rows(small)
    for features in (16, 64):
        more = memory.working_memory(small, features) - memory.working_memory(small, 0)
        assert more == 4 * features * (free + features)
    asked = MarginProblem(rng.standard_normal((300, 5)), rng.standard_normal((3, 4)), np.arange(300) % 3)
    assert memory.system_rows(asked) > free
    more = memory.working_memory(asked, 0) - memory.working_memory(small, 0)
    assert more == 8 * 6 * (memory.system_rows(asked) - free)
    assert memory.system_rows(long) - free <= 200
    assert memory.working_memory(wide, 0) - memory.working_memory(small, 0) >= 8 * 6 * 2 * 4
    grown = memory.working_memory(long, 0) - memory.working_memory(small, 0)
    assert 8 * 200 <= grown - 8 * 6 * (memory.system_rows(long) - free) <= 8 * 200 * 100
    assert memory.working_memory(small) >= 8 * free * free
