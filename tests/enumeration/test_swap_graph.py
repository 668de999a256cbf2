import networkx as nx
import numpy as np
import pytest

import attsvm
from attsvm import AttentionProblem, LinearHead
from attsvm.enumeration import basins, draw_selection_graph, locally_optimal_selections, selection_graph, write_graphml


@pytest.mark.parametrize(
    ("n", "T", "d", "norm"), [(3, 4, 4, "frobenius"), (3, 4, 2, "frobenius"), (2, 4, 3, "nuclear")]
)
def test_sinks_are_the_locally_optimal_selections(n, T, d, norm):
    for seed in range(3):
        problem = attsvm.random_problem(n=n, T=T, d=d, seed=seed)
        graph = selection_graph(problem, norm=norm)
        assert graph.number_of_nodes() == T**n
        sinks = {v for v, data in graph.nodes(data=True) if data["feasible"] and graph.out_degree(v) == 0}
        found = locally_optimal_selections(problem, norm=norm)
        assert sinks == {item.tokens for item in found}
        assert sinks == {v for v, data in graph.nodes(data=True) if data["locally_optimal"]}
        assert nx.is_directed_acyclic_graph(graph)
        for item in found:
            assert graph.nodes[item.tokens]["margin"] == pytest.approx(item.margin, rel=1e-9)


def test_edges_by_hand():
    problem = attsvm.random_problem(n=2, T=4, d=3, seed=1)
    graph, scores = selection_graph(problem), problem.scores()
    for node in graph:
        solution = attsvm.att_svm(problem, list(node))
        expected = set()
        for i, support in enumerate(attsvm.support_indices(solution)):
            for t in support:
                if scores[i, t] > scores[i, node[i]]:
                    expected.add((*node[:i], int(t), *node[i + 1 :]))
        assert set(graph.successors(node)) == expected
        data = graph.nodes[node]
        assert data["score"] == pytest.approx(np.mean([scores[i, t] for i, t in enumerate(node)]))
        assert data["margin"] == pytest.approx(solution.margin, rel=1e-7)
    for source, target, data in graph.edges(data=True):
        assert data["gain"] > 0
        assert target[data["query"]] == data["token"] != source[data["query"]]
        rise = graph.nodes[target]["score"] - graph.nodes[source]["score"]
        assert rise == pytest.approx(data["gain"] / 2)
    best = [v for v, data in graph.nodes(data=True) if data["globally_optimal"]]
    assert best == [tuple(problem.optimal_tokens().indices.tolist())]


def test_infeasible_selections_are_dead_ends_not_sinks():
    problem = attsvm.random_problem(n=3, T=4, d=2, seed=0)
    graph = selection_graph(problem)
    infeasible = [v for v, data in graph.nodes(data=True) if not data["feasible"]]
    assert infeasible
    found = basins(graph)
    for node in infeasible:
        assert graph.out_degree(node) == 0
        assert graph.nodes[node]["margin"] == 0
        assert not graph.nodes[node]["locally_optimal"]
        assert found.reach[node] == frozenset()
        assert found.dead_end[node]


def test_basins_by_search():
    for d in (2, 4):
        graph = selection_graph(attsvm.random_problem(n=3, T=4, d=d, seed=0))
        found = basins(graph)
        sinks = {v for v, data in graph.nodes(data=True) if data["locally_optimal"]}
        reach = {v: (nx.descendants(graph, v) | {v}) for v in graph}
        infeasible = {v for v, data in graph.nodes(data=True) if not data["feasible"]}
        assert {v: frozenset(r & sinks) for v, r in reach.items()} == found.reach
        assert {v: bool(r & infeasible) for v, r in reach.items()} == found.dead_end
        for sink in sinks:
            assert found.reaching[sink] == sum(sink in r for r in reach.values())
            assert found.only[sink] == sum(r & (sinks | infeasible) == {sink} for r in reach.values())


def test_ties_make_cycles_but_no_wrong_sinks():
    # Tokens at 1, 0, -1 on a line with scores 1, 1, 0: selecting an end token, its neighbour is the support token.
    problem = AttentionProblem([[[1.0], [0.0], [-1.0]]], [1], [[1.0]], head=lambda x: (x[..., 0] > -0.5) * 1.0)
    graph = selection_graph(problem)
    # Token 0 has support token 1 (a tie); token 1 lies between the others and is infeasible.
    assert graph.nodes[(1,)]["feasible"] is False
    assert list(graph.successors((0,))) == [(1,)]
    assert not graph.nodes[(0,)]["locally_optimal"]
    assert graph.edges[(0,), (1,)]["gain"] == 0
    square = np.array([[[1.0, 0.0], [0.0, 1.0]]])
    tied = selection_graph(AttentionProblem(square, [1], [[1.0, 0.0]], LinearHead([1.0, 1.0])))
    assert sorted(tied.edges) == [((0,), (1,)), ((1,), (0,))]
    assert basins(tied).reach == {(0,): frozenset(), (1,): frozenset()}
    assert [data["globally_optimal"] for _, data in tied.nodes(data=True)] == [True, True]


def test_two_queries_have_flat_names():
    graph = selection_graph(attsvm.random_problem(n=1, T=3, d=4, queries=2, seed=0))
    assert sorted(graph) == [(i, j) for i in range(3) for j in range(3)]


def test_graphml_round_trip(tmp_path):
    graph = selection_graph(attsvm.random_problem(n=3, T=3, d=2, seed=0))
    path = tmp_path / "graph.graphml"
    write_graphml(graph, path)
    back = nx.read_graphml(path)
    assert set(back) == {"-".join(map(str, node)) for node in graph}
    assert back.number_of_edges() == graph.number_of_edges()
    for node, data in graph.nodes(data=True):
        assert back.nodes["-".join(map(str, node))] == data


def test_drawing(monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    for d in (2, 4):
        graph = selection_graph(attsvm.random_problem(n=2, T=4, d=d, seed=0))
        figure, axis = plt.subplots()
        assert draw_selection_graph(graph, axis) is axis
        assert sum(len(c.get_offsets()) for c in axis.collections) == graph.number_of_nodes()
        plt.close(figure)
    plt.close(draw_selection_graph(graph, labels=False).figure)


def test_bad_arguments():
    problem = attsvm.random_problem(n=3, T=4, d=4, seed=0)
    with pytest.raises(ValueError, match="the graph would have 64 nodes, more than limit = 63; raise limit"):
        selection_graph(problem, limit=63)
    with pytest.raises(ValueError, match="limit must be an integer >= 1, got 0"):
        selection_graph(problem, limit=0)
    with pytest.raises(ValueError, match="norm must be 'frobenius' or 'nuclear', got 'l1'"):
        selection_graph(problem, norm="l1")
    with pytest.raises(ValueError, match="index the batch first"):
        selection_graph(attsvm.random_problem(n=2, T=3, d=4, batch=2))
