import re

import numpy as np
import pytest

from attsvm.solvers import MarginProblem, margin, reduce_dimensions
from kkt import dense_rows, random_rows


@pytest.mark.parametrize("shuffle", [False, True], ids=["blocks", "any order"])
@pytest.mark.parametrize(("d", "dz"), [(4, 4), (5, 3), (2, 7)])
def test_margins_adjoint_and_gram_match_dense_rows(rng, shuffle, d, dz):
    problem = random_rows(rng, 6, 4, d, dz)
    if shuffle:
        problem = problem.subset(rng.permutation(problem.m)[:-1])  # unequal blocks in any order
        assert problem.block == 0
    else:
        assert problem.block == 3
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
    problem = random_rows(rng, 5, 6, 7).subset(np.arange(23))
    W = rng.standard_normal((7, 7))
    whole = problem.margins(W)
    monkeypatch.setattr(margin, "_CHUNK_ELEMENTS", 14)
    np.testing.assert_array_equal(problem.margins(W), whole)


def test_float32_rows_stay_float32_and_results_are_float64(rng):
    problem = random_rows(rng, 3, 3, 4)
    single = MarginProblem(problem.a.astype(np.float32), problem.queries, problem.owner)
    assert single.a.dtype == np.float32
    assert single.margins(np.eye(4)).dtype == np.float64
    assert single.adjoint(np.ones(single.m)).dtype == np.float64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"a": np.ones(3)}, "a must be a non-empty 2-d array (m, dx), got shape (3,)"),
        ({"a": np.ones((0, 2))}, "a must be a non-empty 2-d array (m, dx), got shape (0, 2)"),
        ({"a": [[1.0, 2.0], [np.nan, 0.0]]}, "a must be finite, but row 1 holds NaN or infinity"),
        ({"a": [["x", "y"], ["z", "w"]]}, "a must hold real numbers, got dtype <U1"),
        ({"queries": [[np.inf, 1.0]]}, "queries must be finite, but row 0 holds NaN or infinity"),
        ({"owner": [0]}, "owner must be 2 integers, one per row of a, got shape (1,) and dtype int64"),
        ({"owner": [0.0, 0.0]}, "owner must be 2 integers, one per row of a, got shape (2,) and dtype float64"),
        ({"owner": [0, 1]}, "owner must lie in [0, 1), got 0 to 1"),
        ({"rhs": [1.0]}, "rhs must be 2 finite numbers, one per row of a, got shape (1,)"),
        ({"equality": [0, 1]}, "equality must be 2 booleans, one per row of a, got shape (2,) and dtype int64"),
    ],
)
def test_bad_rows_are_named(changes, message):
    good = {"a": np.eye(2), "queries": [[1.0, 0.0]], "owner": [0, 0]}
    with pytest.raises(ValueError, match=re.escape(message)):
        MarginProblem(**(good | changes))


def test_wrong_shapes_of_arguments_are_named(rng):
    problem = random_rows(rng, 2, 3, 4)
    with pytest.raises(ValueError, match=re.escape("W must have shape (4, 4), got (4, 3)")):
        problem.margins(np.ones((4, 3)))
    with pytest.raises(ValueError, match=re.escape("multipliers must have shape (4,), got (3,)")):
        problem.adjoint(np.ones(3))


@pytest.mark.parametrize(("n", "T", "d", "dz"), [(2, 3, 9, 9), (3, 2, 4, 8), (8, 9, 3, 2)])
def test_reduction_keeps_rows_and_lifts_back(rng, n, T, d, dz):
    problem = random_rows(rng, n, T, d, dz)
    reduction = reduce_dimensions(problem)
    assert reduction.problem.shape == (min(d, n * (T - 1)), min(dz, n))
    W = rng.standard_normal(reduction.problem.shape)
    lifted = reduction.lift(W)
    np.testing.assert_allclose(problem.margins(lifted), reduction.problem.margins(W), atol=1e-13)
    assert np.linalg.norm(lifted) == pytest.approx(np.linalg.norm(W), rel=1e-13)


def test_reduction_ignores_queries_without_rows(rng):
    problem = random_rows(rng, 4, 3, 5).subset([0, 1])
    assert reduce_dimensions(problem).problem.shape == (2, 1)


def test_reduction_of_collinear_rows_finds_the_true_rank(rng):
    direction = rng.standard_normal(6)
    problem = MarginProblem(np.outer([1.0, 2.0, 3.0], direction), rng.standard_normal((1, 6)), [0, 0, 0])
    assert reduce_dimensions(problem).problem.shape == (1, 1)
