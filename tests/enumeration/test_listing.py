import itertools
import math
import re

import numpy as np
import pytest

import attsvm
from attsvm import AttentionProblem, LinearHead
from attsvm.enumeration import iter_locally_optimal, locally_optimal_selections


def brute_force(problem, norm="frobenius", solver="cvxpy"):
    """Definition 2 on every selection by the reference solver: tokens and margins, largest first."""
    found = []
    choices = [np.flatnonzero(row) for row in problem.allowed.reshape(-1, problem.T)]
    infeasible = 0
    for tokens in itertools.product(*choices):
        selection = np.reshape(tokens, problem.query_shape)
        solution = attsvm.att_svm(problem, selection, norm=norm, solver=solver)
        infeasible += solution.status == "infeasible"
        if attsvm.is_locally_optimal(problem, selection, norm=norm, solution=solution):
            found.append((solution.margin, tuple(int(t) for t in tokens)))
    return sorted(found, reverse=True), infeasible


def assert_same(found, expected):
    assert {item.tokens for item in found} == {tokens for _, tokens in expected}
    # Both margins are certified to 1e-7 or better.
    np.testing.assert_allclose(found.margins, [margin for margin, _ in expected], rtol=1e-6)


@pytest.mark.parametrize("seed", range(4))  # one of each width; test_listing_against_exact has more problems
def test_equals_brute_force_by_the_reference_backend(seed):
    problem = attsvm.random_problem(n=3, T=4, d=(2, 3, 4, 6)[seed % 4], seed=seed)
    expected, infeasible = brute_force(problem)
    found = locally_optimal_selections(problem)
    assert_same(found, expected)
    assert found.complete
    assert found.bound == 0
    assert found.counts.infeasible == infeasible
    assert found.counts.feasible + infeasible == found.counts.selections == 64
    assert (found.gaps < 1e-7).all()
    assert_same(locally_optimal_selections(problem, top=100, mode="search"), expected)


def test_infeasible_selections_occur_in_these_tests():
    counts = locally_optimal_selections(attsvm.random_problem(n=3, T=4, d=2, seed=0)).counts
    assert 0 < counts.infeasible < 64


@pytest.mark.parametrize(
    ("n", "T", "d", "seed"), [(4, 4, 4, 0), (4, 4, 4, 1), (4, 5, 3, 2), (5, 4, 8, 3), (6, 3, 2, 4)]
)
def test_search_agrees_with_the_exhaustive_mode(n, T, d, seed):
    problem = attsvm.random_problem(n=n, T=T, d=d, seed=seed)
    every = locally_optimal_selections(problem, mode="exhaustive")
    for top in (1, 3):
        best = locally_optimal_selections(problem, top=top, mode="search")
        assert best.proved_best
        assert [item.tokens for item in best] == [item.tokens for item in every[:top]]
        # Certificates close to 1e-8; the search solves fewer rows for the same W.
        np.testing.assert_allclose(best.margins, every.margins[:top], rtol=1e-7)
        if len(every) > top:
            assert best.bound >= every.margins[top] * (1 - 1e-7)
        assert best.bound == pytest.approx(best.margins[-1] if len(every) >= top else 0.0)
        cut = locally_optimal_selections(problem, top=top)
        assert cut.mode == "exhaustive"
        assert [item.tokens for item in cut] == [item.tokens for item in best]


def test_search_visits_fewer_nodes_and_proves_the_best():
    problem = attsvm.random_problem(n=5, T=5, d=5, seed=0)
    every = locally_optimal_selections(problem)
    best = locally_optimal_selections(problem, top=3, mode="search")
    assert best.proved_best
    assert [item.tokens for item in best] == [item.tokens for item in every[:3]]
    assert best.counts.nodes < 3125 / 3


def test_search_without_the_relaxation_when_steps_are_dependent():
    # Six queries in two dimensions: partial norms are the only bound.
    problem = attsvm.random_problem(n=6, T=3, d=2, seed=1)
    every = locally_optimal_selections(problem)
    best = locally_optimal_selections(problem, top=2, mode="search")
    assert best.proved_best
    assert [item.tokens for item in best] == [item.tokens for item in every[:2]]


@pytest.mark.parametrize("seed", range(8))
def test_the_globally_optimal_selection_is_listed_when_it_is_feasible(seed):
    problem = attsvm.random_problem(n=4, T=4, d=(3, 5)[seed % 2], seed=seed)
    optimal = problem.optimal_tokens()
    assert optimal.is_unique
    assert (optimal in locally_optimal_selections(problem)) is (attsvm.att_svm(problem).status == "optimal")


def test_stopped_searches_report_what_is_proved():
    problem = attsvm.random_problem(n=5, T=5, d=5, seed=1)
    every = locally_optimal_selections(problem)
    part = locally_optimal_selections(problem, top=5, mode="search", max_nodes=40)
    assert not part.complete
    unlisted = [item.margin for item in every if item not in part]
    assert part.bound >= max(unlisted) * (1 - 1e-7)
    assert part.bound < math.inf
    assert part.proved == sum(item.margin >= part.bound for item in part)
    assert every.proved == len(every)
    assert part.counts.nodes < 1000
    timed = locally_optimal_selections(problem, top=5, mode="search", time_limit=1e-6)
    assert not timed.complete
    assert timed.bound == math.inf
    assert len(timed) == 0


def test_limit_stops_a_listing():
    problem = attsvm.random_problem(n=3, T=4, d=4, seed=5)
    some = locally_optimal_selections(problem, limit=2, mode="heuristic")
    assert len(some) == 2
    assert not some.complete
    all_of_them = locally_optimal_selections(problem)
    two = locally_optimal_selections(problem, limit=2)  # the exhaustive mode finds all four at once
    assert len(two) == 2 and not two.complete and two.bound == all_of_them[2].margin
    best = locally_optimal_selections(problem, top=2)
    assert best.proved_best and not best.complete and best.proved == 2
    assert all_of_them.complete and all_of_them.proved_best


def test_heuristic_starts_from_descents_too(monkeypatch):
    from attsvm.enumeration.selection_search import Swaps

    calls = []
    original = Swaps._descended

    def spy(self):
        ends = original(self)
        calls.append(ends)
        return ends

    monkeypatch.setattr(Swaps, "_descended", spy)
    problem = attsvm.random_problem(n=4, T=4, d=5, seed=0)
    found = locally_optimal_selections(problem, mode="heuristic")
    (ends,) = calls
    assert ends.shape[1] == 4
    assert not found.complete
    # Descent from random weights ends on locally optimal selections, and the climb keeps them.
    listed = {item.tokens for item in locally_optimal_selections(problem)}
    reached = [tuple(int(t) for t in row) for row in ends]
    assert sum(r in listed for r in reached) > len(reached) // 2
    calls.clear()
    plain = attsvm.AttentionProblem(problem.X, problem.Y, problem.Z, head=lambda x: np.asarray(x) @ problem.head.v)
    assert len(locally_optimal_selections(plain, mode="heuristic")) >= 1
    assert not calls  # a head that torch cannot differentiate


def test_heuristic_finds_only_true_ones_and_says_that_it_is_incomplete():
    problem = attsvm.random_problem(n=5, T=5, d=5, seed=1)
    every = {item.tokens: item.norm for item in locally_optimal_selections(problem)}
    climbed = locally_optimal_selections(problem, mode="heuristic", seed=3)
    assert not climbed.complete
    assert climbed.bound == math.inf
    assert len(climbed) >= len(every) / 2
    for item in climbed:
        assert every[item.tokens] == pytest.approx(item.norm, rel=1e-7)
    again = locally_optimal_selections(problem, mode="heuristic", seed=3)
    assert [item.tokens for item in again] == [item.tokens for item in climbed]


def test_masks():
    rng = np.random.default_rng(3)
    X, Z = rng.standard_normal((3, 4, 4)), rng.standard_normal((3, 4))
    mask = np.array([[True, True, False, True], [False, True, True, False], [True, True, True, True]])
    problem = AttentionProblem(X, [1, -1, 1], Z, LinearHead(rng.standard_normal(4)), mask)
    expected, _ = brute_force(problem)
    found = locally_optimal_selections(problem)
    assert found.counts.selections == 3 * 2 * 4
    assert_same(found, expected)
    assert_same(locally_optimal_selections(problem, top=50, mode="search"), expected)
    # A query with one token has no rows and nothing to choose.
    mask = np.array([[True, True, False, True], [False, True, False, False], [True, True, True, True]])
    problem = AttentionProblem(X, [1, -1, 1], Z, LinearHead(rng.standard_normal(4)), mask)
    expected, _ = brute_force(problem)
    assert_same(locally_optimal_selections(problem), expected)
    assert_same(locally_optimal_selections(problem, top=50, mode="search"), expected)


def test_two_queries_per_sequence():
    problem = attsvm.random_problem(n=2, T=3, d=4, queries=2, seed=2)
    expected, _ = brute_force(problem)
    found = locally_optimal_selections(problem)
    assert_same(found, expected)
    assert found.selections.shape == (len(expected), 2, 2)
    assert_same(locally_optimal_selections(problem, top=81, mode="search"), expected)


def test_causal_sequences():
    problem = attsvm.random_problem(n=1, T=4, d=5, kind="sequence", causal=True, seed=1)
    expected, _ = brute_force(problem)
    found = locally_optimal_selections(problem)
    assert found.counts.selections == 24
    assert_same(found, expected)


def test_nuclear_norm():
    for seed in (0, 1):
        problem = attsvm.random_problem(n=2, T=4, d=3, seed=seed)
        expected, _ = brute_force(problem, "nuclear", solver="auto")
        found = locally_optimal_selections(problem, norm="nuclear")
        assert_same(found, expected)
        best = locally_optimal_selections(problem, norm="nuclear", top=2, mode="search")
        assert best.proved_best
        assert [item.tokens for item in best] == [item.tokens for item in found[:2]]


def test_duplicate_and_tied_tokens():
    X = np.array([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 1.0], [-1.0, 0.5]]])
    problem = AttentionProblem(X, [1, 1], np.eye(2), LinearHead([1.0, 2.0]))
    found = locally_optimal_selections(problem)
    # Tokens 0 and 1 of the first sequence cannot be told apart: 6 of the 9 selections are infeasible.
    assert (found.counts.infeasible, found.complete) == (6, True)
    assert {item.tokens for item in found} <= {(2, 0), (2, 1), (2, 2)}
    search = locally_optimal_selections(problem, top=9, mode="search")
    assert [item.tokens for item in search] == [item.tokens for item in found]
    # A head that cannot tell any token apart: every selection has a support token of equal score.
    flat = AttentionProblem(
        np.random.default_rng(0).standard_normal((2, 3, 4)), [1, 1], np.eye(2), lambda x: 0 * x[..., 0]
    )
    assert len(locally_optimal_selections(flat)) == 0
    assert len(locally_optimal_selections(flat, top=3, mode="search")) == 0


@pytest.mark.parametrize("mode", ["exhaustive", "search"])
def test_a_zero_query_makes_everything_infeasible(mode):
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((3, 2))
    Z[0] = 0.0
    problem = AttentionProblem(rng.standard_normal((3, 3, 2)), [1, 1, 1], Z, LinearHead([1.0, 2.0]))
    for norm in ("frobenius", "nuclear"):
        found = locally_optimal_selections(problem, norm=norm, mode=mode, top=5)
        assert len(found) == 0
        assert found.complete
        assert found.undecided == ()
    assert locally_optimal_selections(problem).counts.infeasible == 27


def test_margins_at_the_edge_are_counted_exactly():
    # Token 2 of the first sequence scores more and has margin 1 + e, for e on both sides of what floats can tell.
    for e, expected in ((0.0, False), (1e-15, True), (1e-9, True), (4e-6, True)):
        X = np.array([[[0.0, 0.0], [-1.0, 0.0], [-(1.0 + e), -1.0]], [[1.0, 1.0], [0.0, 1.0], [0.0, 3.0]]])
        problem = AttentionProblem(X, [1, 1], np.eye(2), LinearHead([1.0, -5.0]))
        for mode in ("exhaustive", "search"):
            found = locally_optimal_selections(problem, top=9, mode=mode)
            assert found.complete
            assert any(item.tokens[0] == 0 for item in found) is expected


def test_scaled_data_give_the_same_list():
    problem = attsvm.random_problem(n=3, T=4, d=4, seed=0)
    expected = locally_optimal_selections(problem)
    for factor in (1e-4, 1e4):
        scaled = AttentionProblem(problem.X * factor, problem.Y, problem.Z, problem.head)
        for mode in ("exhaustive", "search"):
            found = locally_optimal_selections(scaled, top=20, mode=mode)
            assert [item.tokens for item in found] == [item.tokens for item in expected]
            np.testing.assert_allclose(found.margins, expected.margins * factor, rtol=1e-7)


def test_result_reads_like_a_sequence():
    problem = attsvm.random_problem(n=3, T=4, d=4, seed=5)
    found = locally_optimal_selections(problem)
    assert next(iter(found)) is found[0]
    assert [item.tokens for item in found[1:3]] == [tuple(row) for row in found.selections[1:3].tolist()]
    assert (np.diff(found.margins) <= 0).all()
    solution = found.solution(1)
    assert solution.margin == pytest.approx(found[1].margin, rel=1e-8)
    assert found.W(1).shape == (4, 4)
    assert attsvm.is_locally_optimal(problem, found[1].selection, solution=solution)
    assert found[1].selection in found
    assert [0, 0, 0] not in found
    assert "4 found, complete" in str(found)


def test_streaming():
    problem = attsvm.random_problem(n=5, T=5, d=5, seed=1)
    every = locally_optimal_selections(problem)
    assert {item.tokens for item in iter_locally_optimal(problem)} == {item.tokens for item in every}
    first = next(iter_locally_optimal(problem, mode="heuristic"))
    assert first in every


def test_huge_requests_are_refused_with_advice():
    problem = attsvm.random_problem(n=12, T=8, d=16, seed=0)
    with pytest.raises(ValueError, match=r"6\.87e\+10 selections.*pass top=k.*time_limit=.*mode='heuristic'"):
        locally_optimal_selections(problem)
    with pytest.raises(ValueError, match="too many to solve one by one"):
        iter_locally_optimal(problem, mode="exhaustive")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"top": 0}, "top must be None or an integer >= 1, got 0"),
        ({"top": 1.5}, "top must be None or an integer >= 1, got 1.5"),
        ({"limit": -1}, "limit must be None or an integer >= 1, got -1"),
        ({"max_nodes": True}, "max_nodes must be None or an integer >= 1, got True"),
        ({"time_limit": 0}, "time_limit must be None or a positive number of seconds, got 0"),
        ({"norm": "spectral"}, "norm must be 'frobenius' or 'nuclear', got 'spectral'"),
        ({"mode": "fast"}, "mode must be 'auto', 'exhaustive', 'search' or 'heuristic', got 'fast'"),
        ({"mode": "search"}, "mode='search' looks for the best few: pass top=k"),
        ({"seed": -1}, "seed must be an integer >= 0, got -1"),
    ],
)
def test_bad_arguments(arguments, message):
    problem = attsvm.random_problem(n=2, T=3, d=4, seed=0)
    with pytest.raises(ValueError, match=re.escape(message)):
        locally_optimal_selections(problem, **arguments)
    with pytest.raises(ValueError, match=re.escape(message)):
        iter_locally_optimal(problem, **arguments)


def test_batches_and_headless_problems_are_refused():
    with pytest.raises(ValueError, match="one problem at a time; index the batch first"):
        locally_optimal_selections(attsvm.random_problem(n=2, T=3, d=4, batch=2, seed=0))
    with pytest.raises(ValueError, match="scores need a prediction head"):
        locally_optimal_selections(AttentionProblem(np.eye(3)[None], [1], np.ones((1, 3))))
    with pytest.raises(ValueError, match="there is nothing to select"):
        mask = np.array([[True, False, False]])
        locally_optimal_selections(
            AttentionProblem(np.eye(3)[None], [1], np.ones((1, 3)), LinearHead(np.ones(3)), mask)
        )
