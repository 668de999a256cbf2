"""Selections and selected sets: reading, indexing, comparing, and what bad ones are told."""

import re

import numpy as np
import pytest

import attsvm
from attsvm import AttentionProblem, SelectedSets, Selection
from attsvm.selection import read_selected_sets, read_selection


@pytest.fixture
def problem():
    return attsvm.random_problem(n=3, T=4, d=5, seed=0)


@pytest.fixture
def masked(problem):
    mask = np.array([[True, True, True, True], [True, True, False, True], [True, False, True, True]])
    return AttentionProblem(problem.X, problem.Y, problem.Z, problem.head, mask)


def test_ties_travel_with_the_selection_they_belong_to():
    tied = np.array([[[True, True, False], [False, True, False]], [[True, False, False], [False, True, True]]])
    batch = Selection([[0, 1], [0, 1]], tied)  # two problems with two queries each
    assert not batch.is_unique
    assert batch.ties == {(0, 0): (0, 1), (1, 1): (1, 2)}
    assert batch[0].ties == {(0,): (0, 1)}
    assert batch[1].ties == {(1,): (1, 2)}
    assert batch[1].indices.tolist() == [0, 1]
    assert len(batch) == 2
    only = Selection([0, 1], np.array([[True, False], [False, True]]))
    assert only.is_unique
    assert only.ties == {}
    assert Selection([0, 0], np.array([[True, False], [True, False]])).is_unique  # the same token twice is no tie


def test_without_ties_every_query_has_one_token():
    plain = Selection([[0, 1], [2, 0]])
    assert plain.is_unique
    assert plain.ties == {}
    assert plain[1].tied is None
    assert plain[1].indices.tolist() == [2, 0]


def test_equal_selections_are_equal_and_hash_alike():
    one, two = Selection([1, 2]), Selection(np.array([1, 2], dtype=np.int32))
    assert one == two
    assert hash(one) == hash(two)
    assert one != Selection([2, 1])
    assert one != Selection([[1, 2]])
    assert one != [1, 2]
    assert len({one, two, Selection([2, 1])}) == 2
    assert np.asarray(one).tolist() == [1, 2]


def test_reading_a_selection_checks_every_entry(problem, masked):
    for good in ([0, 0, 0], [3, 3, 3]):  # both ends of the range
        assert read_selection(problem, good).indices.tolist() == good
    assert read_selection(problem, None) == problem.optimal_tokens()
    given = Selection([0, 1, 2])
    assert read_selection(problem, given) is given
    assert read_selection(masked, [2, 1, 3]).indices.tolist() == [2, 1, 3]
    for bad, message in (
        ([0, 4, 5], "selection[1] = 4 is out of range: tokens are 0..3"),
        ([-1, 4, 0], "selection[0] = -1 is out of range: tokens are 0..3"),
        ([[0, 1, 2]], "selection must have shape (3,), one token per query, got (1, 3)"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            read_selection(problem, bad)
    with pytest.raises(ValueError, match=re.escape("selection[1] = 2 is masked out for that query")):
        read_selection(masked, [0, 2, 1])


def test_places_in_several_axes_are_named():
    many = attsvm.random_problem(n=2, T=3, d=4, queries=2, seed=0)
    with pytest.raises(ValueError, match=re.escape("selection[1, 0] = 3 is out of range: tokens are 0..2")):
        read_selection(many, [[0, 1], [3, 0]])
    members = np.ones((2, 2, 3), dtype=bool)
    members[0, 1] = False
    with pytest.raises(ValueError, match=re.escape("selected_sets[0, 1] is empty: select at least one token")):
        read_selected_sets(many, members)


def test_sets_are_read_from_everything_that_names_tokens(problem, masked):
    expected = np.array([[True, False, True, False], [False, True, False, False], [False, False, False, True]])
    lists = [[0, 2], [1], [3]]
    for given in (lists, expected, SelectedSets(expected), SelectedSets.from_indices(lists, 4), map(iter, lists)):
        np.testing.assert_array_equal(read_selected_sets(problem, given).members, expected)
    chosen = Selection([0, 3, 2])
    np.testing.assert_array_equal(read_selected_sets(problem, chosen).members, np.arange(4) == [[0], [3], [2]])
    assert SelectedSets(expected)[1].members.tolist() == [False, True, False, False]
    assert SelectedSets.from_indices([[0], [3]], 4).members.sum() == 2  # both ends of the range
    with pytest.raises(ValueError, match=re.escape("selected_sets[1] holds token 2, which is masked out")):
        read_selected_sets(masked, [[0], [1, 2], [0]])
    for bad, message in (
        ([[0], [4], [0]], "selected_sets[1] holds 4, but tokens are 0..3"),
        ([[0], [-1], [0]], "selected_sets[1] holds -1, but tokens are 0..3"),
        ([[0], [1.0], [0]], "selected_sets[1] must hold token indices, got 1.0; pass masks as arrays"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            read_selected_sets(problem, bad)


def test_sets_of_many_queries_and_of_batches_are_boolean_arrays():
    many = attsvm.random_problem(n=2, T=3, d=4, queries=2, seed=0)
    nested = [[[True, False, False], [False, True, True]], [[True, True, False], [False, False, True]]]
    np.testing.assert_array_equal(read_selected_sets(many, nested).members, nested)
    batch = attsvm.random_problem(n=2, T=3, d=4, batch=2, seed=0)
    np.testing.assert_array_equal(read_selected_sets(batch, nested).members, nested)
    with pytest.raises(ValueError, match=re.escape("selected_sets must have shape (2, 2, 3), got (2, 2)")):
        read_selected_sets(many, [[True, False], [True, False]])


def test_sets_tell_their_smallest_and_largest_size():
    members = [[True, False, False], [True, True, False], [True, True, True]]
    assert repr(attsvm.SelectedSets(members)) == "SelectedSets(3 x 3, 1 to 3 tokens each)"
    assert repr(attsvm.SelectedSets(members[1:2])) == "SelectedSets(1 x 3, 2 tokens each)"
