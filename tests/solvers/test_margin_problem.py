"""The margin problem: what it accepts, how it is cut and stacked."""

from __future__ import annotations

import re

import numpy as np
import pytest

from attsvm.solvers import MarginProblem, PairRows
from kkt import random_rows


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"a": np.ones(3)}, "a must be a non-empty array (m, dx), or one with a leading batch axis, got shape (3,)"),
        (
            {"a": np.ones((0, 2))},
            "a must be a non-empty array (m, dx), or one with a leading batch axis, got shape (0, 2)",
        ),
        ({"a": [[1.0, 2.0], [np.nan, 0.0]]}, "a must be finite, but row 1 holds NaN or infinity"),
        ({"a": [["x", "y"], ["z", "w"]]}, "a must hold real numbers, got dtype <U1"),
        ({"queries": [[np.inf, 1.0]]}, "queries must be finite, but row 0 holds NaN or infinity"),
        ({"owner": [0]}, "owner must be 2 integers, one per row of a, got shape (1,) and dtype int64"),
        ({"owner": [0.0, 0.0]}, "owner must be 2 integers, one per row of a, got shape (2,) and dtype float64"),
        ({"owner": [0, 1]}, "owner must lie in [0, 1), got 0 to 1"),
        ({"rhs": [1.0]}, "rhs must be 2 finite numbers, one per row of a, got shape (1,)"),
        ({"equality": [0, 1]}, "equality must be 2 booleans, one per row of a, got dtype int64"),
    ],
)
def test_bad_rows_are_named(changes, message):
    good = {"a": np.eye(2), "queries": [[1.0, 0.0]], "owner": [0, 0]}
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        MarginProblem(**(good | changes))


def test_wrong_shapes_of_arguments_are_named(rng):
    problem = random_rows(rng, 2, 3, 4)
    with pytest.raises(ValueError, match=re.escape("W must have shape (4, 4), got (4, 3)")):
        problem.margins(np.ones((4, 3)))
    with pytest.raises(ValueError, match=re.escape("multipliers must have shape (4,), got (3,)")):
        problem.adjoint(np.ones(3))


BAD_BATCHES = {
    "a must be a non-empty array (m, dx), or one with a leading batch axis, got shape (2, 3, 1, 1)": {
        "a": np.ones((2, 3, 1, 1))
    },
    "a must hold real numbers": {"a": np.full((2, 3, 1), "x")},
    "queries must be a non-empty array (q, dz), or one with a leading batch axis, got shape (2, 0, 1)": {
        "queries": np.ones((2, 0, 1))
    },
    "a and queries must agree in their batch axis, got shapes (2, 3, 1) and (3, 1, 1)": {"queries": np.ones((3, 1, 1))},
    "a and queries must agree in their batch axis, got shapes (2, 3, 1) and (1, 1)": {"queries": np.ones((1, 1))},
    "owner must be 3 integers, one per row of a, got shape (2,)": {"owner": [0, 0]},
    "owner must be 3 integers, one per row of a, got shape (3,) and dtype float64": {"owner": [0.0, 0.0, 0.0]},
    "owner must lie in [0, 1), got 0 to 4": {"owner": [0, 4, 0]},
    "valid must be 3 booleans, one per row of a, got shape (2, 2)": {"valid": np.ones((2, 2), dtype=bool)},
    "valid must be booleans, got dtype float64": {"valid": np.ones(3)},
    "valid must leave at least one row in every problem, but problem 1 has none": {"valid": [[True] * 3, [False] * 3]},
    "rhs must be 3 finite numbers, one per row of a, got shape (4,)": {"rhs": np.ones(4)},
    "rhs must be 3 finite numbers, one per row of a, got dtype <U1": {"rhs": np.array(["x", "y", "z"])},
    "rhs must be 3 finite numbers, one per row of a, got NaN or infinity": {"rhs": [np.inf, 1.0, 1.0]},
    "equality must be 3 booleans, one per row of a, got dtype float64": {"equality": np.zeros(3)},
    "a must be finite, but row 0 of problem 1 holds NaN or infinity": {
        "a": np.stack([np.ones((3, 1)), np.full((3, 1), np.nan)])
    },
}


@pytest.mark.parametrize("message", BAD_BATCHES)
def test_bad_batches_are_named(message: str) -> None:
    good = {"a": np.ones((2, 3, 1)), "queries": np.ones((2, 1, 1)), "owner": [0, 0, 0]}
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        MarginProblem(**(good | BAD_BATCHES[message]))


# -- batches: an axis, void rows, parts ------------------------------------------------------------------------------


def ragged(rng, sizes=((3, 2), (7, 4), (1, 1))):
    """Problems with different numbers of rows and queries, some of them equalities."""
    return [
        MarginProblem(
            rng.standard_normal((m, 4)), rng.standard_normal((q, 3)), rng.integers(0, q, m),
            rng.standard_normal(m), rng.random(m) < 0.3,
        )
        for m, q in sizes
    ]  # fmt: skip


def test_a_stack_gives_its_problems_back(rng):
    problems = ragged(rng)
    batch = MarginProblem.stack(problems)
    assert (batch.batch, len(batch), batch.m, batch.q, batch.shape) == ((3,), 3, 7, 4, (4, 3))
    assert batch.valid.sum(axis=1).tolist() == [3, 7, 1]
    for i, problem in enumerate(problems):
        for one in (batch[i], batch[i - 3]):
            assert one.m == problem.m and not one.batch
            for name in ("rhs", "equality", "owner", "row_norms"):
                np.testing.assert_array_equal(getattr(one, name), getattr(problem, name))
            np.testing.assert_array_equal(one.features(), problem.features())
    assert repr(batch) == "MarginProblem(3 problems, 7 rows, 4 queries, W 4 x 3)"
    assert repr(batch[2]) == "MarginProblem(1 rows, 4 queries, W 4 x 3)"


def test_void_rows_ask_for_nothing(rng):
    problems = ragged(rng)
    batch = MarginProblem.stack(problems)
    W, lam = rng.standard_normal((3, 4, 3)), rng.standard_normal((3, 7))
    assert not batch.margins(W)[~batch.valid].any()
    assert not batch.rhs[~batch.valid].any() and not batch.equality[~batch.valid].any()
    assert not batch.row_norms[~batch.valid].any()
    for i, problem in enumerate(problems):
        own = batch.valid[i]
        # The same sums in another order.
        np.testing.assert_allclose(batch.margins(W)[i, own], problem.margins(W[i]), atol=1e-14)
        np.testing.assert_allclose(batch.adjoint(lam)[i], problem.adjoint(lam[i, own]), atol=1e-14)
        np.testing.assert_allclose(batch.gram()[i][np.ix_(own, own)], problem.gram(), atol=1e-14)
        np.testing.assert_allclose(batch.features()[i, own], problem.features(), atol=0)


def test_rows_that_are_not_valid_may_hold_anything(rng):
    a, queries = rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 2, 3))
    valid = np.array([[True, True, False], [True, False, True]])
    a[~valid], rhs = np.nan, np.where(valid, 2.0, np.inf)
    owner = np.where(valid, 1, -7)
    batch = MarginProblem(a, queries, owner, rhs, ~valid, valid=valid)
    assert np.isfinite(batch.rows.a).all() and np.isfinite(batch.rhs).all()
    assert not batch.equality.any()
    assert [batch[i].m for i in range(2)] == [2, 2]
    np.testing.assert_array_equal(batch[1].rows.a, a[1, [0, 2]])
    np.testing.assert_array_equal(batch[1].rhs, [2.0, 2.0])


def test_parts_of_a_batch(rng):
    batch = MarginProblem.stack(ragged(rng))
    W = rng.standard_normal((3, 4, 3))
    for index in ([2, 0], np.array([2, 0]), np.array([True, False, True])):
        part = batch.take(index)
        np.testing.assert_array_equal(part.margins(W[index]), batch.margins(W)[index])
        np.testing.assert_array_equal(part.valid, batch.valid[index])
        assert [part[i].m for i in range(2)] == ([1, 3] if index is not None and index[0] == 2 else [3, 1])
    rows = batch.gather([0, 2, 5])
    assert rows.m == 3
    np.testing.assert_array_equal(rows.margins(W), batch.margins(W)[:, [0, 2, 5]])
    np.testing.assert_array_equal(rows.valid, batch.valid[:, [0, 2, 5]])
    mask = np.arange(7) % 2 == 0
    np.testing.assert_array_equal(batch.gather(mask).rhs, batch.rhs[:, mask])
    one = batch[1]
    np.testing.assert_array_equal(one.gather(mask).margins(W[1]), one.margins(W[1])[mask])


def test_rows_of_any_kind_make_a_problem(rng):
    rows = PairRows(rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 2, 5)), [0, 1, 1])
    problem = MarginProblem.from_rows(rows, rhs=[1.0, 2.0, 3.0], equality=[True, False, False])
    assert problem.rows is rows
    np.testing.assert_array_equal(problem.rhs, [[1.0, 2.0, 3.0]] * 2)
    np.testing.assert_array_equal(problem.equality, [[True, False, False]] * 2)
    with pytest.raises(ValueError, match=re.escape("rhs must be 3 finite numbers, one per row of a, got shape (2,)")):
        MarginProblem.from_rows(rows, rhs=[1.0, 2.0])


def test_one_problem_is_no_batch(rng):
    one = random_rows(rng, 2, 3, 4)
    with pytest.raises(TypeError, match="one margin problem has no length; a batch has"):
        len(one)
    with pytest.raises(TypeError, match="one margin problem cannot be indexed; a batch can"):
        one[0]
    with pytest.raises(IndexError, match="these rows belong to one problem"):
        one.rows[0]
    batch = MarginProblem.stack([one, one])
    for index in (2, -3):
        with pytest.raises(IndexError, match=f"problem {index} is out of range for a batch of 2"):
            batch[index]
    with pytest.raises(ValueError, match="problems must hold at least one MarginProblem"):
        MarginProblem.stack([])
    other = MarginProblem(np.ones((1, 2)), np.ones((1, 1)), [0])
    message = "problems must be single problems with one shape of W: problem 0 has (4, 4), problem 1 (2, 1)"
    with pytest.raises(ValueError, match=re.escape(message)):
        MarginProblem.stack([one, other])
    with pytest.raises(ValueError, match=re.escape("problem 1 (2, 4, 4)")):
        MarginProblem.stack([one, batch])


def test_the_senses_of_rows(rng):
    batch = MarginProblem.stack(ragged(rng))
    slack = rng.standard_normal((3, 7))
    expected = np.where(batch.equality, np.abs(slack), -np.minimum(slack, 0.0))
    np.testing.assert_array_equal(batch.missed(slack), expected)
    lam = rng.standard_normal((3, 7))
    np.testing.assert_array_equal(batch.clipped(lam), np.where(batch.equality | (lam > 0), lam, 0.0))
