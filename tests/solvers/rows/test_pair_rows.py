"""Rows: values, adjoint and Gram matrix against dense rows, for one problem and for a batch."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.solvers import MarginProblem, PairRows
from attsvm.solvers.rows import pairs as rows_module
from kkt import dense_rows, random_rows


@pytest.mark.parametrize("shuffle", [False, True], ids=["blocks", "any order"])
@pytest.mark.parametrize(("d", "dz"), [(4, 4), (5, 3), (2, 7)])
def test_margins_adjoint_and_gram_match_dense_rows(rng, shuffle, d, dz):
    problem = random_rows(rng, 6, 4, d, dz)
    if shuffle:
        problem = problem.gather(rng.permutation(problem.m)[:-1])  # unequal blocks in any order
        assert problem.rows.block == 0
    else:
        assert problem.rows.block == 3
    F = dense_rows(problem)
    W, lam = rng.standard_normal((d, dz)), rng.standard_normal(problem.m)
    # Products of a few dozen unit-size terms: rounding is about 1e-15.
    np.testing.assert_allclose(problem.margins(W), F @ W.ravel(), atol=1e-13)
    np.testing.assert_allclose(problem.adjoint(lam), (F.T @ lam).reshape(d, dz), atol=1e-13)
    np.testing.assert_allclose(problem.features(), F, atol=0)
    np.testing.assert_allclose(problem.gram(), F @ F.T, atol=1e-13)
    np.testing.assert_allclose(problem.row_norms, np.linalg.norm(F, axis=1), rtol=1e-13)


def test_margins_and_adjoint_are_adjoint(rng):
    problem = random_rows(rng, 5, 6, 7)
    W, lam = rng.standard_normal((7, 7)), rng.standard_normal(problem.m)
    assert lam @ problem.margins(W) == pytest.approx(np.sum(problem.adjoint(lam) * W), rel=1e-12)


def test_chunks_give_the_same_margins(rng, monkeypatch):
    problem = random_rows(rng, 5, 6, 7).gather(np.arange(23))
    W = rng.standard_normal((7, 7))
    whole = problem.margins(W)
    monkeypatch.setattr(rows_module, "CHUNK_ELEMENTS", 14)
    np.testing.assert_array_equal(problem.margins(W), whole)


def test_float32_rows_stay_float32_and_results_are_float64(rng):
    problem = random_rows(rng, 3, 3, 4)
    single = MarginProblem(problem.rows.a.astype(np.float32), problem.rows.queries, problem.owner)
    assert single.rows.a.dtype == np.float32
    assert single.margins(np.eye(4)).dtype == np.float64
    assert single.adjoint(np.ones(single.m)).dtype == np.float64


@pytest.mark.parametrize("single", [False, True], ids=["float64", "float32"])
@pytest.mark.parametrize("shuffle", [False, True], ids=["blocks", "any order"])
def test_many_rows_go_by_query_and_in_chunks(rng, shuffle, single, monkeypatch):
    """What few rows do with whole matrices, many do query by query, some rows at a time."""
    few = random_rows(rng, 6, 5, 4, 3)
    few = few.gather(rng.permutation(few.m)[:-1]) if shuffle else few
    assert few.rows.is_small
    kind = np.float32 if single else np.float64
    a, queries = few.rows.a.astype(kind), few.rows.queries.astype(kind)
    F = dense_rows(MarginProblem(a.astype(np.float64), queries.astype(np.float64), few.owner))
    W, lam = rng.standard_normal((4, 3)), rng.standard_normal(few.m)
    monkeypatch.setattr(rows_module, "FEW_ROWS", 1)
    for elements, dense in ((1 << 22, 1 << 14), (4, 1 << 14), (20, 1 << 14), (20, 0)):
        monkeypatch.setattr(rows_module, "CHUNK_ELEMENTS", elements)
        monkeypatch.setattr(rows_module, "_DENSE_PICKS", dense)
        many = MarginProblem(a, queries, few.owner)
        assert not many.rows.is_small and many.rows.block == (0 if shuffle else 4)
        np.testing.assert_allclose(many.margins(W), F @ W.ravel(), atol=1e-13)
        np.testing.assert_allclose(many.adjoint(lam), (F.T @ lam).reshape(4, 3), atol=1e-13)
        np.testing.assert_allclose(many.row_norms, np.linalg.norm(F, axis=1), rtol=1e-13)
        np.testing.assert_allclose(many.gram(), F @ F.T, atol=1e-13)
        weights = rng.random(few.m)
        np.testing.assert_allclose(many.rows.weighted_gram(weights), np.outer(weights, weights) * (F @ F.T), atol=1e-13)


def test_one_problem_as_a_batch_shares_its_rows() -> None:
    rng = np.random.default_rng(11)
    rows = PairRows(rng.standard_normal((7, 3)), rng.standard_normal((2, 4)), [0, 0, 0, 1, 1, 1, 1])
    same, W = rows.repeated(5), rng.standard_normal((5, 3, 4))
    assert np.shares_memory(same.a, rows.a) and same.batch == (5,)
    assert np.allclose(same.margins(W), [rows.margins(part) for part in W], rtol=1e-13, atol=1e-13)
    assert np.array_equal(same[3].row_norms, rows.row_norms) and np.array_equal(same.row_norms[4], rows.row_norms)
