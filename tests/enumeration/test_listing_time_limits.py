"""Time limits of listings, on a clock that counts solves: a second each."""

import itertools

import numpy as np
import pytest

import attsvm
from attsvm import locally_optimal_selections
from attsvm.enumeration import selection_solves
from attsvm.enumeration.selection_search import BestFirst, Swaps
from attsvm.enumeration.selection_solves import CompletionBound
from attsvm.enumeration.selection_space import SelectionSpace
from attsvm.solvers import deadline


class Clock:
    """Stands still but for solves."""

    def __init__(self):
        self.seconds = self.solves = 0

    def __call__(self):
        return float(self.seconds)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    solve_batch = selection_solves.solve_batch

    def counted(problem, *args, **options):
        clock.solves += 1
        found = solve_batch(problem, *args, **options)
        clock.seconds += 1
        return found

    monkeypatch.setattr(selection_solves, "solve_batch", counted)
    monkeypatch.setattr(deadline, "now", clock)
    return clock


@pytest.mark.parametrize(
    ("options", "norm"),
    [
        ({"top": 3}, "frobenius"),
        ({"top": 3}, "nuclear"),
        ({"mode": "heuristic"}, "frobenius"),
        ({"mode": "heuristic"}, "nuclear"),
        ({"mode": "exhaustive"}, "frobenius"),
    ],
)
def test_a_time_limit_is_kept_to_one_solve(clock, monkeypatch, options, norm):
    monkeypatch.setattr(SelectionSpace, "at_once", 4)  # so that a step has many solves
    problem = attsvm.random_problem(n=6, T=6, d=8, seed=0)
    limit = 7
    found = locally_optimal_selections(problem, norm=norm, time_limit=limit, **options)
    assert clock.solves <= limit + 1
    assert not found.complete and not found.proved_best and found.bound == np.inf
    assert not found.undecided  # the limit decides nothing, and leaves nothing undecided
    for item in found:
        assert attsvm.is_locally_optimal(problem, item.selection, norm=norm)


def test_what_a_step_found_before_the_limit_is_listed(clock, monkeypatch):
    monkeypatch.setattr(SelectionSpace, "at_once", 4)
    problem = attsvm.random_problem(n=6, T=6, d=20, seed=0)
    found = locally_optimal_selections(problem, mode="heuristic", time_limit=3)
    assert problem.optimal_tokens() in found and found.counts.solves > 0


@pytest.mark.parametrize("options", [{}, {"top": 2, "mode": "search"}, {"mode": "heuristic"}])
def test_a_step_that_the_limit_cut_is_taken_again(clock, monkeypatch, tmp_path, options):
    problem = attsvm.random_problem(n=3, T=4, d=4, seed=5)
    whole = locally_optimal_selections(problem, **options)
    monkeypatch.setattr(SelectionSpace, "at_once", 4)
    for limit in itertools.count(1):
        path = tmp_path / "list.npz"
        part = locally_optimal_selections(problem, time_limit=10.0 * limit, checkpoint=path, **options)
        assert limit < 60
        if options.get("mode") == "heuristic":
            if limit > 5:
                break
        elif part.proved_best:
            break
    assert {item.tokens for item in part} == {item.tokens for item in whole}
    assert part.proved_best == whole.proved_best and part.bound == pytest.approx(whole.bound)


def test_orders_share_one_gram_matrix(monkeypatch):
    made = []
    build = CompletionBound.__init__
    monkeypatch.setattr(CompletionBound, "__init__", lambda self, *args: (made.append(1), build(self, *args))[1])
    engine = BestFirst(SelectionSpace(attsvm.random_problem(n=5, T=4, d=8, seed=0)), "frobenius", top=1, seed=0)
    assert not made  # nothing is computed before the clock of the first step runs
    while not engine.done:
        engine.advance()
    assert len(made) == 1 and engine.complete


def test_proofs_of_many_rows_equal_those_of_a_stack(monkeypatch):
    from attsvm import support_proof

    space = SelectionSpace(attsvm.random_problem(n=4, T=5, d=6, seed=3))
    selections = space.random(np.random.default_rng(0), 60)
    stacked = selection_solves.full_verdicts(space, selections, "frobenius", support=True)
    monkeypatch.setattr(support_proof, "_MANY_ROWS", 1)
    alone = selection_solves.full_verdicts(space, selections, "frobenius", support=True)
    assert np.array_equal(stacked.locally_optimal, alone.locally_optimal) and alone.feasible.any()
    assert np.array_equal(stacked.support.tokens, alone.support.tokens)


def test_infeasible_selections_of_other_norms_are_told_by_the_frobenius_norm(monkeypatch):
    space = SelectionSpace(attsvm.random_problem(n=8, T=4, d=3, seed=0))
    selections = space.random(np.random.default_rng(0), 30)
    usual = selection_solves.full_verdicts(space, selections, "nuclear")
    monkeypatch.setattr(selection_solves, "_MANY_ROWS", 1)
    sooner = selection_solves.full_verdicts(space, selections, "nuclear")
    assert usual.infeasible.any() and np.array_equal(usual.infeasible, sooner.infeasible)
    assert np.array_equal(usual.locally_optimal, sooner.locally_optimal)
    assert (sooner.conflict[sooner.infeasible].any(axis=1)).all()


def test_many_queries_start_from_descents_and_move_several_tokens_at_once(monkeypatch):
    pytest.importorskip("torch")
    problem = attsvm.random_problem(n=32, T=3, d=12, seed=0)
    trained, moved = [], []
    descended, move = Swaps._descended, Swaps._move
    monkeypatch.setattr(Swaps, "_descended", lambda self: (trained.append(self.round), descended(self))[1])

    def counted(self, current, *args):
        before = current.copy()
        move(self, current, *args)
        moved.extend((before != current).sum(axis=1).tolist())
        assert (self.space.mean_scores(current) > self.space.mean_scores(before)).all()  # so climbs end

    monkeypatch.setattr(Swaps, "_move", counted)
    found = locally_optimal_selections(problem, mode="heuristic", max_nodes=200)
    assert trained == [0] and problem.optimal_tokens() in found and max(moved) > 1
    engine = Swaps(SelectionSpace(problem), "frobenius", seed=0)
    monkeypatch.setattr("attsvm.enumeration.selection_search.seconds_left", lambda: 1.0)
    engine._first(np.random.default_rng(0))
    assert trained == [0]  # torch may take longer than that to load
