import json

import numpy as np
import pytest
from scipy.stats import spearmanr

import attsvm
from attsvm.enumeration import solve_every_selection
from attsvm.theory import attraction


@pytest.fixture(scope="module")
def found():
    # A narrow problem with 14 local optima.
    return attraction(attsvm.random_problem(n=5, T=5, d=5, seed=0), starts=150, steps=600, seed=1)


def test_the_tally_sums_up_and_is_sorted(found):
    assert sum(row.count for row in found.rows) == found.starts == 150
    assert sum(found.counts.values()) == 150
    assert [row.count for row in found.rows] == sorted((row.count for row in found.rows), reverse=True)
    assert sum(row.share for row in found.rows) == pytest.approx(1.0)
    for row in found.rows:
        assert row.interval[0] <= row.share <= row.interval[1]
        for b in row.examples:
            assert np.array_equal(found.run.selection.indices[b], row.selection.indices)
    assert len(found.rows) >= 3


def test_each_row_says_what_the_single_functions_say(found):
    best = found.problem.optimal_tokens()
    for row in found.rows:
        solution = attsvm.att_svm(found.problem, row.selection)
        assert row.margin == pytest.approx(solution.margin, rel=1e-6)
        local = attsvm.is_locally_optimal(found.problem, row.selection)
        assert row.kind == ("Global" if row.selection == best else "Local" if local else "Not local")
        picked = found.problem.scores()[np.arange(5), row.selection.indices]
        assert row.score == pytest.approx(picked.mean())


def test_starts_are_those_of_single_runs(found):
    start = np.random.default_rng(1).uniform(-(5**-0.5), 5**-0.5, size=(150, 5, 5))
    run = attsvm.train(found.problem, steps=600, init=start[7], snapshots=2)
    assert np.array_equal(run.selection.indices, found.run.selection.indices[7])


def test_reproducible_by_seed(found):
    again = attraction(found.problem, starts=150, steps=600, seed=1)
    assert again.to_dict() == found.to_dict()
    other = attraction(found.problem, starts=150, steps=600, seed=2)
    assert other.to_dict() != found.to_dict()


def test_an_easy_problem_ends_in_the_list_of_locally_optimal_selections():
    problem = attsvm.random_problem(n=3, T=4, d=8, seed=0)
    found = attraction(problem, starts=60, steps=800)
    table = solve_every_selection(problem)
    listed = {tuple(a) for a in table.indices[table.locally_optimal]}
    assert {tuple(row.selection.indices.tolist()) for row in found.rows} <= listed
    assert found.exceptions == ()
    assert sum(row.unsaturated for row in found.rows) == 0


def test_exceptions_are_listed_with_examples_and_saturation():
    # After one step nothing is saturated, and most selections are where the start left them.
    found = attraction(attsvm.random_problem(n=4, T=4, d=6, seed=0), starts=40, steps=1)
    assert found.counts["Not local"] == sum(row.count for row in found.exceptions) > 0
    assert all(row.unsaturated == row.count and row.examples for row in found.exceptions)
    assert "exception" in str(found)


def test_infeasible_ends_are_not_local():
    X = [[[1.0], [0.0]], [[1.0], [0.0]]]
    problem = attsvm.AttentionProblem(X, [1, 1], [[1.0], [-1.0]], attsvm.LinearHead([1.0]))
    found = attraction(problem, starts=10, steps=5)
    # W > 0 selects (0, 1) and W < 0 selects (1, 0): feasible, and each is beaten by its support token.
    assert set(found.counts) == {"Not local"}
    duplicate = attsvm.AttentionProblem([[[1.0], [1.0], [0.0]]], [1], [[1.0]], attsvm.LinearHead([1.0]))
    row = attraction(duplicate, starts=5, steps=50).rows[0]
    assert (row.kind, row.feasible, row.margin) == ("Not local", False, 0.0)
    assert "infeasible" in str(attraction(duplicate, starts=5, steps=50))


def test_factors_are_judged_by_the_nuclear_norm():
    problem = attsvm.random_problem(n=2, T=3, d=5, seed=0)
    found = attraction(problem, starts=20, steps=400, parameterization="KQ", optimizer="ridge_decay")
    assert found.norm == "nuclear"
    row = found.rows[0]
    assert row.margin == pytest.approx(attsvm.att_svm(problem, row.selection, norm="nuclear").margin, rel=1e-5)
    assert attraction(problem, starts=4, steps=2, parameterization="KQ", norm="frobenius").norm == "frobenius"


def test_queries_and_masks():
    problem = attsvm.random_problem(n=1, T=3, d=8, kind="sequence", causal=True, seed=0)
    found = attraction(problem, starts=10, steps=300)
    assert found.rows[0].selection.indices.shape == (1, 3)
    assert all(row.selection.indices[0, 0] == 0 for row in found.rows)  # the first query sees the first token only


def test_rank_correlation_with_the_margin(found):
    rows = [row for row in found.rows if row.feasible]
    expected = spearmanr([row.count for row in rows], [row.margin for row in rows]).statistic
    assert found.spearman == pytest.approx(expected)
    easy = attraction(attsvm.random_problem(n=2, T=3, d=30, seed=0), starts=5, steps=100)
    assert np.isnan(easy.spearman)  # one selection has no ranks
    assert "Spearman" not in str(easy)
    assert json.loads(json.dumps(easy.to_dict(), allow_nan=False))["spearman"] is None


def test_counts_join_the_selection_graph():
    problem = attsvm.random_problem(n=4, T=4, d=4, seed=2)
    found = attraction(problem, starts=60, steps=400, graph=True)
    graph = found.graph
    assert graph.number_of_nodes() == 256
    assert sum(data["reached"] for _, data in graph.nodes(data=True)) == 60
    for row in found.rows:
        data = graph.nodes[tuple(row.selection.indices.tolist())]
        assert data["reached"] == row.count
        assert data["share"] == pytest.approx(row.share)
        assert data["margin"] == pytest.approx(row.margin, rel=1e-6)
        assert data["locally_optimal"] == (row.kind in ("Global", "Local"))
    sinks = [data for _, data in graph.nodes(data=True) if data["locally_optimal"]]
    expected = spearmanr([data["reached"] for data in sinks], [data["margin"] for data in sinks]).statistic
    assert found.spearman == pytest.approx(expected)  # local optima that no start reached count as 0


def test_other_optimizers_are_judged_by_the_norm_they_follow():
    problem = attsvm.random_problem(n=2, T=3, d=4, seed=0)
    found = attraction(problem, starts=6, steps=200, optimizer="sign", lr=0.02)
    assert found.norm == "linf"
    row = found.rows[0]
    assert row.margin == pytest.approx(attsvm.att_svm(problem, row.selection, norm="linf").margin, rel=1e-5)


def test_bad_arguments():
    problem = attsvm.random_problem(n=2, T=3, d=4)
    with pytest.raises(ValueError, match="one problem"):
        attraction(attsvm.random_problem(n=2, T=3, d=4, batch=2))
    for starts in (0, -3, 2.5, True):
        with pytest.raises(ValueError, match="starts must be an integer"):
            attraction(problem, starts=starts)
    with pytest.raises(ValueError, match="norm"):
        attraction(problem, norm="euclid")
    with pytest.raises(ValueError, match="lists all 1679616 selections"):
        attraction(attsvm.random_problem(n=8, T=6, d=4), starts=2, graph=True)
    with pytest.raises(ValueError, match="parameterization must be 'W' or 'KQ'"):
        attraction(problem, parameterization="prompt")
    with pytest.raises(ValueError, match="prediction head"):
        attraction(attsvm.AttentionProblem(problem.X, problem.Y, problem.Z), starts=2)
    with pytest.raises(ValueError, match="steps must be"):
        attraction(problem, starts=2, steps=-1)


def test_starts_that_still_move_are_counted_in_words():
    problem = attsvm.random_problem(n=6, T=6, d=5, seed=0)
    early, late = (str(attraction(problem, starts=4, steps=steps, lr=lr)) for steps, lr in ((5, 0.1), (400, 5.0)))
    assert "4 of 4 starts are not saturated: their selections may still change" in early
    assert "not saturated" not in late


def test_both_parts_of_the_work_show_a_bar(capsys):
    attraction(attsvm.random_problem(n=2, T=3, d=6, seed=0), starts=4, steps=20, progress=True)
    shown = capsys.readouterr()
    assert not shown.out  # which holds what a script prints
    lines = [line.partition(": ")[2] for line in shown.err.splitlines()]  # in a file: one for each tenth
    assert lines[:3] == ["training: 0 of 20", "training: 2 of 20", "training: 4 of 20"]
    assert lines[-1].startswith("solving selections: ") and len(lines) == 12
