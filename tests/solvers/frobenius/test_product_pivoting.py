"""Pivoting with products: the solutions of other methods, whatever the rows, and what takes over when it stalls."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attsvm
from attsvm.rows import selection_rows
from attsvm.solvers import MarginProblem, MemoryLimitError, PairRows, SharedRows, solve
from attsvm.solvers.conjugate_gradient import conjugate_gradient
from attsvm.solvers.frobenius import working_set
from attsvm.solvers.frobenius.face_system import Metric
from attsvm.solvers.frobenius.product_pivoting import ProductPivoting
from attsvm.solvers.frobenius.row_features import FeatureBasis, FeaturePreconditioner
from attsvm.solvers.memory import MemoryPlan, require_memory, working_memory
from kkt import assert_infeasible, assert_optimal, dense_rows, random_rows


@pytest.fixture
def always(monkeypatch):
    """Pivoting for every number of queries."""
    monkeypatch.setattr(working_set, "MANY_QUERIES", 1)


def structured(n: int, T: int, d: int, seed: int = 0) -> MarginProblem:
    problem, selection = attsvm.structured_problem(n, T, d, seed=seed)
    return selection_rows(problem, selection, shared=True).margin_problem


def test_many_queries_need_no_matrix_and_give_the_same_norm():
    rows = structured(16, 16, 30)
    found = solve(rows, solver="working_set")
    assert found.status == "optimal" and found.extras.factorizations == 0 < found.extras.products
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


def test_a_limit_of_time_is_looked_at_after_every_product():
    rows = structured(4, 12, 30, 2)
    asked = []

    def late() -> bool:
        asked.append(1)
        return len(asked) >= 3

    pivoting = ProductPivoting(rows, features=1, late=late)
    pivoting.begin(None)
    pivoting.advance(1e-12)
    assert len(asked) == 3 and pivoting.products <= 5
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
@given(seed=st.integers(0, 10_000), count=st.integers(1, 12), stretched=st.booleans())
def test_preconditioner_is_diagonal_plus_features(seed, count, stretched):
    rng = np.random.default_rng(seed)
    rows = PairRows(rng.standard_normal((9, 4)), rng.standard_normal((3, 5)), np.repeat(np.arange(3), 3))
    metric = None
    if stretched:
        left, right = rng.standard_normal((4, 4)), rng.standard_normal((5, 5))
        metric = Metric(left @ left.T, right @ right.T)
    index = np.sort(rng.permutation(9)[:7])
    basis = FeatureBasis(rows, index, count, metric)
    made = FeaturePreconditioner(basis, rows, index, metric)
    a, b = rows.a[index], rows.queries[rows.owner[index]]
    i, j = basis.pairs
    F = (a @ basis.left)[:, i] * (b @ basis.right)[:, j]
    gram = (a @ a.T) * (b @ b.T)
    if metric is not None:
        F = F * basis.weights
        gram = 0.5 * ((a @ metric.left @ a.T) * (b @ b.T) + (a @ a.T) * (b @ metric.right @ b.T))
    assert np.linalg.eigvalsh(gram - F @ F.T)[0] >= -1e-4 * np.abs(gram).max()  # features never exceed the matrix
    rest = np.maximum(np.diag(gram - F @ F.T), 1e-3 * np.diag(gram))
    y = rng.standard_normal(7)
    expected = np.linalg.solve(np.diag(rest) + F @ F.T, y)
    # float32 of a matrix whose condition is at most 1e3 times the share of its features
    np.testing.assert_allclose(made(y), expected, rtol=0.02, atol=0.02 * np.abs(expected).max())


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
