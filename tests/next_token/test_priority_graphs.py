"""Graphs against networkx and against their definition; bad sequences are named."""

import networkx as nx
import numpy as np
import pytest

from attsvm.next_token import (
    decompose,
    graph_svm,
    graph_svms,
    read_sequences,
    soft_composition,
    token_graphs,
    train,
)
from corpora import draw


def by_definition(sequences):
    graphs = {}
    for *context, following in sequences:
        graph = graphs.setdefault(context[-1], nx.DiGraph())
        graph.add_nodes_from(context)
        graph.add_edges_from((following, token) for token in set(context) - {following})
    return graphs


@pytest.mark.parametrize("seed", range(20))
def test_graphs_components_and_order_are_those_of_the_definition(seed):
    rng = np.random.default_rng(seed)
    sequences, _ = draw(rng, int(rng.integers(3, 25)), int(rng.integers(2, 7)), int(rng.integers(3, 8)), 4)
    found, expected = token_graphs(sequences), by_definition(sequences)
    assert sorted(expected) == found.queries.tolist()
    for k, graph in expected.items():
        assert nx.utils.graphs_equal(nx.DiGraph(found.graph(k).edges), nx.DiGraph(graph.edges))
        assert set(found.graph(k)) == set(graph)
        parts = sorted(tuple(sorted(c)) for c in nx.strongly_connected_components(graph))
        assert found.components(k) == parts
        # The order that is kept reaches what the condensed graph reaches.
        condensed = nx.condensation(graph)
        name = {c: found.component[found._nodes(k)[found.token[found._nodes(k)] == min(m)]].item()
                for c, m in condensed.nodes(data="members")}  # fmt: skip
        kept = nx.DiGraph()
        kept.add_nodes_from(name.values())
        own = set(name.values())
        kept.add_edges_from((a, b) for a, b in found.order.tolist() if a in own)
        reach = {(name[a], name[b]) for a, b in nx.transitive_closure(condensed).edges}
        assert set(nx.transitive_closure(kept).edges) == reach
        assert {(name[a], name[b]) for a, b in nx.transitive_reduction(condensed).edges} <= set(kept.edges)
    assert found.is_acyclic == all(nx.is_directed_acyclic_graph(g) for g in expected.values())


@pytest.mark.parametrize("seed", range(20))
def test_few_and_many_tokens_are_read_and_ordered_alike(seed, monkeypatch):
    """Plain numbers for a handful, arrays and sparse matrices for a corpus: the same graphs, entry by entry."""
    rng = np.random.default_rng(seed)
    sequences, _ = draw(rng, int(rng.integers(3, 25)), int(rng.integers(2, 7)), int(rng.integers(3, 12)), 4)
    few = token_graphs(sequences)
    monkeypatch.setattr("attsvm.next_token.sequences._FEW_EDGES", 0)
    monkeypatch.setattr("attsvm.next_token.sequences._FEW", 0)
    many = token_graphs(sequences)
    for name in ("query", "label", "owner", "token", "count", "labelled"):
        first, second = getattr(few.corpus, name), getattr(many.corpus, name)
        assert first.dtype == second.dtype == np.int64
        assert np.array_equal(first, second)
    for name in ("query", "token", "edges", "component", "root", "order"):
        first, second = getattr(few, name), getattr(many, name)
        assert first.dtype == second.dtype == np.int64
        assert np.array_equal(first, second)


def test_ids_that_arrays_cannot_hold_are_left_to_the_general_reader():
    assert read_sequences([[2**40, 1, 1]]).token.tolist() == [1, 2**40]
    with pytest.raises(ValueError, match=r"sequences\[0\] must be a list of token ids"):
        read_sequences([[True, False, True]])


def test_repeated_tokens_are_counted_once_in_the_graph_and_with_their_number_in_the_corpus():
    corpus = read_sequences([[4, 4, 2, 4, 2, 4]])
    assert corpus.token.tolist() == [2, 4] and corpus.count.tolist() == [2, 3]
    assert token_graphs([[4, 4, 2, 4, 2, 4]]).edges.shape == (1, 2)


def test_selected_tokens_make_local_graphs():
    sequences = [[0, 1, 2, 0], [0, 1, 2, 1]]
    assert not token_graphs(sequences).is_acyclic
    local = token_graphs(sequences, selected=[0, 0])
    assert local.is_acyclic and sorted(local.graph(2).edges) == [(0, 1), (0, 2)]
    svm = graph_svm(sequences, np.eye(3), selected=[0, 0])
    assert svm.status == "optimal" and not svm.equality.any()


@pytest.mark.parametrize(
    ("sequences", "message"),
    [
        ([], "at least one sequence"),
        ([[0, 1, 2]], r"sequences\[0\] does not hold its next token 2 in its context"),
        ([[0, 1, 0], [3, 3]], r"sequences\[1\] must hold a context of at least two tokens and the next token, got 2"),
        ([[0, -1, 0]], r"sequences\[0\] must hold token ids >= 0, got -1"),
        ([[0.5, 1.0, 0.5]], r"sequences\[0\] must be a list of token ids \(integers\)"),
        ([[[0, 1], [1, 0]]], r"sequences\[0\] must be a list of token ids"),
        ([[2, 2, 2]], "every graph is empty"),
    ],
)
def test_bad_sequences_are_named(sequences, message):
    with pytest.raises(ValueError, match=message):
        token_graphs(sequences)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: graph_svm([[0, 3, 0]], np.eye(2)), "token id 3 has no embedding: embeddings has 2 rows"),
        (lambda: graph_svm([[0, 1, 0]], np.ones(2)), r"embeddings must have shape \(vocabulary, d\)"),
        (lambda: graph_svm([[0, 1, 0]], [[np.nan], [1.0]]), "embeddings must be finite"),
        (lambda: token_graphs([[0, 1, 0]], selected=[2]), r"does not hold the selected token 2"),
        (lambda: token_graphs([[0, 1, 0]], selected=[0, 1]), "one token id per sequence"),
        (lambda: token_graphs([[0, 1, 0]]).graph(0), "query must be a last token of some sequence, got 0"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


BAD = [
    ([[0, 1, 2]], r"sequences\[0\] does not hold its next token 2 in its context"),
    ([[0, 0]], r"sequences\[0\] must hold a context of at least two tokens .* nothing to select"),
    ([[1, 1, 1]], "every graph is empty"),
    ([[0, 7, 0]], "token id 7 has no embedding: embeddings has 3 rows"),
]
CALLS = {
    "graph_svm": lambda s: graph_svm(s, np.eye(3)),
    "graph_svms": lambda s: graph_svms([[[0, 1, 0]], s], [np.eye(3), np.eye(3)]),
    "soft_composition": lambda s: soft_composition(s, np.eye(3)),
    "decompose": lambda s: decompose(s, np.eye(3), np.eye(3)),
    "train": lambda s: train(s, np.eye(3), steps=2),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("sequences", "message"), BAD)
def test_every_way_in_names_what_is_wrong(call, sequences, message):
    """A label that is not there, one token, an empty graph, an unknown token."""
    with pytest.raises(ValueError, match=message):
        CALLS[call](sequences)


def test_a_bad_corpus_among_many_is_numbered():
    with pytest.raises(ValueError, match=r"corpora\[1\]: sequences\[0\] does not hold its next token 2"):
        graph_svms([[[0, 1, 0]], [[0, 1, 2]]], [np.eye(3), np.eye(3)])


@pytest.mark.parametrize("ids", [[True, False, True], [0, True, 0], ["a", "b", "a"]])
def test_ids_that_are_not_integers_are_refused_one_by_one_or_taken_as_numbers(ids):
    if ids == [0, True, 0]:  # Python and NumPy take True for 1 beside numbers
        assert token_graphs([ids]).components(1) == [(0,), (1,)]
        return
    with pytest.raises(ValueError, match=r"sequences\[0\] must be a list of token ids \(integers\)"):
        token_graphs([ids])


def test_lists_arrays_and_tuples_read_alike():
    sequences = [[3, 1, 1, 2, 1], [0, 2, 0]]
    first = read_sequences(sequences)
    for other in (read_sequences([np.array(s) for s in sequences]), read_sequences([tuple(s) for s in sequences])):
        for name in ("query", "label", "owner", "token", "count", "labelled"):
            assert getattr(first, name).tolist() == getattr(other, name).tolist()
