"""Rows of many selections at once, and what rounding took from differences."""

from fractions import Fraction

import numpy as np
import pytest

import attsvm
from attsvm import AttentionProblem, LinearHead
from attsvm.selection_rows import rows_of_selections, selection_rows


@pytest.mark.parametrize("masked", [False, True])
def test_rows_of_many_selections_are_those_of_each(masked, rng):
    mask = rng.random((3, 2, 4)) < 0.7
    mask[..., 0] = mask[0] = True
    X, Z = rng.standard_normal((3, 4, 5)), rng.standard_normal((3, 2, 6))
    problem = AttentionProblem(X, [1, -1, 1], Z, LinearHead(np.ones(5)), mask if masked else None)
    choices = [np.flatnonzero(row) for row in problem.allowed.reshape(-1, 4)]
    selections = np.stack([rng.choice(c, size=7) for c in choices], axis=1)
    together = rows_of_selections(problem, selections)
    for i, chosen in enumerate(selections):
        one, alone = together[i], selection_rows(problem, chosen.reshape(3, 2))
        np.testing.assert_array_equal(one.margin_problem.rows.a, alone.margin_problem.rows.a)
        np.testing.assert_array_equal(one.margin_problem.owner, alone.margin_problem.owner)
        np.testing.assert_array_equal(one.token, alone.token)
        np.testing.assert_array_equal(one.margin_problem.rows.queries, alone.margin_problem.rows.queries)


def test_pick_is_the_inverse_of_scatter(rng):
    problem = attsvm.random_problem(n=3, T=4, d=5, queries=2, seed=0)
    for rows in (selection_rows(problem), rows_of_selections(problem, rng.integers(4, size=(5, 6)))):
        values = rng.standard_normal((*rows.margin_problem.batch, rows.margin_problem.m))
        np.testing.assert_array_equal(rows.pick(rows.scatter(values)), values)


def test_rows_of_a_batch_keep_what_rounding_took():
    # 1 - 2^-60 needs 60 bits: the float difference is 1, the exact one is not.
    X = np.array([[[1.0, 0.0], [2.0**-60, 1.0], [0.0, 0.5]]])
    problem = AttentionProblem(X, [1], [[1.0]], LinearHead([1.0, 1.0]))
    exact = [[Fraction(1) - Fraction(1, 2**60), Fraction(-1)], [Fraction(1), Fraction(-1, 2)]]
    assert selection_rows(problem, [0]).margin_problem.rows.exact_left().tolist() == exact
    many = rows_of_selections(problem, np.array([[2], [0], [0]])).margin_problem
    assert many[1].rows.exact_left().tolist() == exact
    assert many.take(np.array([2, 1]))[0].rows.exact_left().tolist() == exact
    batch = selection_rows(problem.repeat(2), [[0], [0]]).margin_problem
    assert batch[1].rows.exact_left().tolist() == exact
