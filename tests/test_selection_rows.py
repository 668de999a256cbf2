"""Rows against loops that read the definitions token by token."""

import re

import numpy as np
import pytest

import attsvm
from attsvm import AttentionProblem
from attsvm.selection_rows import finite_part_rows, gen_svm_rows, selection_rows
from solver_api import rows_of


def with_mask(rng, problem):
    """Each query keeps at least its first two tokens."""
    mask = rng.random((*problem.query_shape, problem.T)) < 0.6
    mask[..., :2] = True
    return AttentionProblem(problem.X, problem.Y, problem.Z, problem.head, mask)


def problems(rng):
    one = attsvm.random_problem(n=3, T=5, d=4, dz=6, seed=1)
    many = attsvm.random_problem(n=3, T=4, d=5, dz=3, queries=2, seed=2)
    every = attsvm.random_problem(n=2, T=4, d=6, kind="sequence", seed=3)
    return [one, many, every, with_mask(rng, one), with_mask(rng, many)]


def queries_in_order(problem):
    """Per query in C order: its position, its sequence's tokens, its vector and its allowed tokens."""
    for place in np.ndindex(*problem.query_shape):
        yield place, problem.X[place[0]], problem.Z[place], problem.allowed[place]


def check(rows, problem, expected):
    """``expected`` lists (position of the query, token, difference, rhs, is an equality) in order."""
    a, queries, owner, rhs, equality = rows_of(rows.margin_problem)
    assert len(a) == len(expected)
    for k, (place, token, difference, value, equal) in enumerate(expected):
        np.testing.assert_allclose(a[k], difference, rtol=0, atol=1e-15)
        np.testing.assert_array_equal(queries[owner[k]], problem.Z[place])
        assert rows.query_index(int(owner[k])) == place
        assert (rows.token[k], bool(equality[k])) == (token, equal)
        assert rhs[k] == pytest.approx(value, rel=1e-14, abs=1e-15)
    assert (rows.query_shape, rows.T) == (problem.query_shape, problem.T)


def test_selection_rows_are_all_allowed_differences_in_order(rng):
    for problem in problems(rng):
        chosen = np.array([rng.choice(np.flatnonzero(row)) for row in problem.allowed.reshape(-1, problem.T)])
        chosen = chosen.reshape(problem.query_shape)
        expected = [
            (place, t, X[chosen[place]] - X[t], 1.0, False)
            for place, X, _, allowed in queries_in_order(problem)
            for t in np.flatnonzero(allowed)
            if t != chosen[place]
        ]
        check(selection_rows(problem, chosen), problem, expected)


def some_sets(rng, problem):
    """One to all but one of the allowed tokens of each query."""
    members = np.zeros((*problem.query_shape, problem.T), dtype=bool)
    for place, _, _, allowed in queries_in_order(problem):
        tokens = rng.permutation(np.flatnonzero(allowed))
        members[place][tokens[: rng.integers(1, max(2, len(tokens)))]] = True
    members.reshape(-1, problem.T)[0] = False
    members.reshape(-1, problem.T)[0, :2] = True  # at least one set of two
    return members


def test_gen_svm_rows_tie_a_set_to_its_first_member_and_separate_the_rest(rng):
    for problem in problems(rng):
        members = some_sets(rng, problem)
        expected = []
        for place, X, _, allowed in queries_in_order(problem):
            first = int(np.flatnonzero(members[place])[0])
            for t in np.flatnonzero(allowed):
                if t != first:
                    inside = bool(members[place][t])
                    expected.append((place, t, X[first] - X[t], 0.0 if inside else 1.0, inside))
        check(gen_svm_rows(problem, members), problem, expected)


def test_finite_part_rows_are_logarithms_of_ratios_inside_a_set(rng):
    for problem in problems(rng):
        members = some_sets(rng, problem)
        s = rng.uniform(0.1, 1.0, members.shape)
        expected = []
        for place, X, _, _ in queries_in_order(problem):
            first, *others = np.flatnonzero(members[place])
            for t in others:
                expected.append((place, t, X[first] - X[t], np.log(s[place][first] / s[place][t]), True))
        check(finite_part_rows(problem, np.where(members, s, 0.0), members), problem, expected)


@pytest.mark.parametrize("elements", [1, 7, 40, 1 << 22])
def test_rows_do_not_depend_on_how_many_are_formed_at_once(rng, elements, monkeypatch):
    whole = [rows_of(selection_rows(problem).margin_problem)[0] for problem in problems(rng)]
    monkeypatch.setattr("attsvm.selection_rows._CHUNK_ELEMENTS", elements)
    for a, problem in zip(whole, problems(np.random.default_rng(20240607)), strict=True):
        np.testing.assert_array_equal(rows_of(selection_rows(problem).margin_problem)[0], a)


def test_values_are_laid_out_per_query_and_token(rng):
    problem = with_mask(rng, attsvm.random_problem(n=3, T=4, d=5, queries=2, seed=4))
    rows = selection_rows(problem)
    values = np.arange(1.0, 1.0 + len(rows.token))
    grid = rows.scatter(values)
    assert grid.shape == (3, 2, 4)
    left = list(values)
    for place, _, _, allowed in queries_in_order(problem):
        for t in range(4):
            if allowed[t] and t != problem.optimal_tokens().indices[place]:
                assert grid[place][t] == left.pop(0)
            else:
                assert np.isnan(grid[place][t])
    assert not left
    assert (rows.scatter(values, fill=0.0)[np.isnan(grid)] == 0).all()


def test_the_first_bad_probability_is_named(rng):
    problem = attsvm.random_problem(n=3, T=4, d=5, seed=0)
    members = np.ones((3, 4), dtype=bool)
    for bad in (0.0, -0.25, np.inf):
        s = np.full((3, 4), 0.25)
        s[1, 2] = s[2, 0] = bad
        message = f"probabilities must be positive on the selected sets, but query 1 gives token 2 {bad:g}"
        with pytest.raises(ValueError, match=re.escape(message)):
            finite_part_rows(problem, s, members)
    s = np.full((3, 4), 0.25)
    s[1, 3] = 0.0
    assert finite_part_rows(problem, s, np.arange(4) < [[2], [3], [2]]).margin_problem.m == 4  # not in the set: unread


@pytest.mark.parametrize(
    "build",
    [
        lambda p, b: selection_rows(p),
        lambda p, b: gen_svm_rows(p, np.arange(3) < 2 + np.zeros((*b, 2, 1), dtype=int)),
        lambda p, b: finite_part_rows(p, np.full((*b, 2, 3), 1 / 3), np.ones((*b, 2, 3), dtype=bool)),
    ],
)
def test_rows_of_a_batch_are_those_of_its_problems(build):
    batch = attsvm.random_problem(n=2, T=3, d=4, batch=3, seed=0)
    together = build(batch, (3,))
    for b in range(3):
        alone, one = build(batch[b], ()), together[b]
        for part in ("a", "queries", "owner"):
            np.testing.assert_array_equal(
                getattr(one.margin_problem.rows, part), getattr(alone.margin_problem.rows, part)
            )
        np.testing.assert_array_equal(one.margin_problem.rhs, alone.margin_problem.rhs)
        np.testing.assert_array_equal(one.margin_problem.equality, alone.margin_problem.equality)
        np.testing.assert_array_equal(one.token, alone.token)


def test_sets_that_are_not_arrays_of_sets_are_refused():
    batch = attsvm.random_problem(n=2, T=3, d=4, batch=2, seed=0)
    with pytest.raises(ValueError, match=r"members must have shape \(n, T\) or \(n, K, T\)"):
        gen_svm_rows(batch, np.bool_(True))
