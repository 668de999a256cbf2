import re

import pytest

import attsvm
from attsvm.enumeration import iter_locally_optimal, locally_optimal_selections, selection_search


@pytest.fixture
def problem():
    return attsvm.random_problem(n=4, T=5, d=4, seed=1)


def same(left, right):
    assert [item.tokens for item in left] == [item.tokens for item in right]
    assert left.margins.tolist() == pytest.approx(right.margins.tolist(), rel=1e-9)
    assert (left.complete, left.mode) == (right.complete, right.mode)
    assert left.bound == pytest.approx(right.bound, rel=1e-9)


def test_a_stopped_exhaustive_listing_goes_on(problem, tmp_path, monkeypatch):
    monkeypatch.setattr(selection_search, "_STEP", 100)
    path = tmp_path / "state.npz"
    whole = locally_optimal_selections(problem)
    part = locally_optimal_selections(problem, max_nodes=250, checkpoint=path)
    assert not part.complete
    assert part.counts.solves == 300
    rest = locally_optimal_selections(problem, checkpoint=path)
    same(rest, whole)
    assert rest.counts == whole.counts
    # A finished checkpoint answers without solving.
    same(locally_optimal_selections(problem, checkpoint=path, max_nodes=1), whole)
    assert not list(tmp_path.glob("*.partial"))


def test_infeasible_prefixes_do_not_disturb_resuming(tmp_path, monkeypatch):
    monkeypatch.setattr(selection_search, "_STEP", 50)
    problem = attsvm.random_problem(n=6, T=3, d=2, seed=1)
    path = tmp_path / "state.npz"
    whole = locally_optimal_selections(problem)
    assert whole.counts.infeasible > whole.counts.feasible
    assert whole.counts.feasible + whole.counts.infeasible == 3**6
    assert whole.counts.solves < 3**6
    locally_optimal_selections(problem, max_nodes=whole.counts.nodes // 2, checkpoint=path)
    rest = locally_optimal_selections(problem, checkpoint=path)
    same(rest, whole)
    assert rest.counts == whole.counts


def test_a_stopped_search_goes_on(problem, tmp_path):
    path = tmp_path / "state.npz"
    whole = locally_optimal_selections(problem, top=3, mode="search")
    part = locally_optimal_selections(problem, top=3, mode="search", max_nodes=5, checkpoint=path)
    assert not part.complete
    same(locally_optimal_selections(problem, top=3, mode="search", checkpoint=path), whole)


def test_a_stopped_climb_goes_on(problem, tmp_path):
    path = tmp_path / "state.npz"
    whole = locally_optimal_selections(problem, mode="heuristic")
    locally_optimal_selections(problem, mode="heuristic", max_nodes=1, checkpoint=path)
    same(locally_optimal_selections(problem, mode="heuristic", checkpoint=path), whole)


def test_an_exception_in_the_loop_saves(problem, tmp_path, monkeypatch):
    monkeypatch.setattr(selection_search, "_STEP", 100)
    path = tmp_path / "state.npz"
    seen = set()
    with pytest.raises(KeyboardInterrupt):
        for item in iter_locally_optimal(problem, checkpoint=path):
            seen.add(item.tokens)
            raise KeyboardInterrupt
    assert path.exists()
    whole = locally_optimal_selections(problem)
    resumed = {item.tokens for item in iter_locally_optimal(problem, checkpoint=path)}
    assert seen <= resumed == {item.tokens for item in whole}


def test_an_interruption_inside_a_step_leaves_the_step_before(problem, tmp_path, monkeypatch):
    monkeypatch.setattr(selection_search, "_STEP", 100)
    path = tmp_path / "state.npz"
    solve, calls = selection_search.full_verdicts, []

    def failing(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return solve(*arguments)

    monkeypatch.setattr(selection_search, "full_verdicts", failing)
    with pytest.raises(KeyboardInterrupt):
        locally_optimal_selections(problem, checkpoint=path)
    resumed = locally_optimal_selections(problem, checkpoint=path)
    monkeypatch.setattr(selection_search, "full_verdicts", solve)
    same(resumed, locally_optimal_selections(problem))
    assert resumed.counts.solves == 625


def test_foreign_checkpoints_are_refused(problem, tmp_path):
    path = tmp_path / "state.npz"
    locally_optimal_selections(problem, checkpoint=path)
    other = attsvm.random_problem(n=4, T=5, d=4, seed=2)
    message = f"checkpoint {path} belongs to another problem or other settings"
    with pytest.raises(ValueError, match=re.escape(message)):
        locally_optimal_selections(other, checkpoint=path)
    with pytest.raises(ValueError, match=re.escape(message)):
        locally_optimal_selections(problem, norm="nuclear", checkpoint=path)
    with pytest.raises(ValueError, match=re.escape(message)):
        locally_optimal_selections(problem, mode="heuristic", checkpoint=path)
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match="is not a saved enumeration; remove it to start over"):
        locally_optimal_selections(problem, checkpoint=path)
    assert path.read_bytes() == b"not a checkpoint"


def test_undecided_selections_are_listed_and_spoil_the_proof(problem, monkeypatch):
    solve = selection_search.full_verdicts

    def unsure(space, selections, *rest):
        verdicts = solve(space, selections, *rest)
        verdicts.undecided[7] = True
        verdicts.feasible[7] = verdicts.locally_optimal[7] = False
        return verdicts

    monkeypatch.setattr(selection_search, "full_verdicts", unsure)
    found = locally_optimal_selections(problem)
    assert not found.complete
    assert found.bound == float("inf")
    assert [tuple(u.selection.indices.tolist()) for u in found.undecided] == [(0, 0, 1, 2)]
    assert "1 undecided" in str(found)


def test_progress_bar_runs(problem, capsys):
    found = locally_optimal_selections(problem, top=2, mode="search", progress=True)
    assert found.proved_best
    capsys.readouterr()
