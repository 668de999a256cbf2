"""Token-priority graphs: which token the data put before which, given the last token.

For each last token k the graph has an edge from the next token y to every other token of the context (Li, Huang,
Ildiz, Rawat and Oymak, *Mechanics of next token prediction with self-attention*, arXiv 2403.08081). Tokens of one
strongly connected component come in either order; between components the order is strict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from attsvm._arrays import BoolArray, IntArray
from attsvm.next_token.sequences import Corpus, distinct, read_sequences

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["TokenGraphs", "graphs_of", "token_graphs"]

# Nodes up to which dense matrices are quicker than sparse ones.
_DENSE = 200


@dataclass(frozen=True, eq=False, repr=False)
class TokenGraphs:
    """The graphs of all last tokens, as one graph on pairs (last token, token).

    Attributes
    ----------
    corpus : Corpus
    query, token : ndarray of int, shape (nodes,)
        Last token and token of each node, sorted.
    edges : ndarray of int, shape (edges, 2)
        Nodes ``(y, x)``: some sequence has y next although x was in its context.
    component : ndarray of int, shape (nodes,)
        Strongly connected component of each node.
    root : ndarray of int, shape (components,)
        First node of each component.
    order : ndarray of int, shape (priorities, 2)
        Components ``(A, B)`` with an edge from A to B, without those that follow from two others.

    Examples
    --------
    >>> from attsvm.next_token import token_graphs
    >>> graphs = token_graphs([[0, 1, 2, 0], [0, 1, 2, 1], [3, 0, 2, 0]])
    >>> graphs
    TokenGraphs(1 last token, 4 nodes, 5 edges, 3 components, 1 cyclic)
    >>> graphs.components(2)
    [(0, 1), (2,), (3,)]
    >>> graphs.is_acyclic
    False
    """

    corpus: Corpus
    query: IntArray
    token: IntArray
    edges: IntArray
    component: IntArray
    root: IntArray
    order: IntArray

    @property
    def sizes(self) -> IntArray:
        """Tokens per component, shape (components,)."""
        return np.bincount(self.component, minlength=len(self.root))

    @property
    def is_acyclic(self) -> bool:
        """True when every component is one token: the data never contradict themselves."""
        return len(self.root) == len(self.token)

    @property
    def queries(self) -> IntArray:
        """Last tokens that have a graph, sorted."""
        return distinct(self.query)

    def _nodes(self, query: int) -> IntArray:
        nodes = np.flatnonzero(self.query == query)
        if not len(nodes):
            raise ValueError(f"query must be a last token of some sequence, got {query}")
        return nodes

    def components(self, query: int) -> list[tuple[int, ...]]:
        """Components of the graph of one last token, as tuples of token ids, first token first."""
        nodes = self._nodes(query)
        parts = [nodes[self.component[nodes] == c] for c in np.unique(self.component[nodes])]
        return sorted(tuple(int(t) for t in self.token[part]) for part in parts)

    def graph(self, query: int) -> nx.DiGraph[int]:
        """The graph of one last token over token ids, each node with its ``component``.

        Examples
        --------
        >>> from attsvm.next_token import token_graphs
        >>> sorted(token_graphs([[0, 1, 2, 0], [0, 1, 2, 1]]).graph(2).edges)
        [(0, 1), (0, 2), (1, 0), (1, 2)]
        """
        import networkx as nx

        nodes = self._nodes(query)
        graph: nx.DiGraph[int] = nx.DiGraph()
        for node in nodes:
            graph.add_node(int(self.token[node]), component=int(self.component[node]))
        own = self.edges[self.query[self.edges[:, 0]] == query]
        graph.add_edges_from((int(self.token[y]), int(self.token[x])) for y, x in own)
        return graph

    @cached_property
    def node_of_token(self) -> IntArray:
        """Node of every distinct token of every context, shape (N,)."""
        size = int(self.token.max()) + 1
        keys = self.query * size + self.token  # sorted, as the nodes are
        return np.searchsorted(keys, self.corpus.query[self.corpus.owner] * size + self.corpus.token)

    @cached_property
    def of_label(self) -> BoolArray:
        """For every distinct token of every context, whether it shares the component of the label; shape (N,)."""
        component = self.component[self.node_of_token]
        return np.asarray(component == component[self.corpus.labelled][self.corpus.owner])

    def __repr__(self) -> str:
        last = len(self.queries)
        cyclic = int((self.sizes > 1).sum())
        return (
            f"TokenGraphs({last} last token{'s' if last > 1 else ''}, {len(self.token)} nodes, "
            f"{len(self.edges)} edges, {len(self.root)} components, {cyclic} cyclic)"
        )


def token_graphs(sequences: Sequence[npt.ArrayLike], selected: npt.ArrayLike | None = None) -> TokenGraphs:
    """The token-priority graph of every last token.

    Parameters
    ----------
    sequences : sequence of array_like of int
        Each ``[..., query, next]``: a context of at least two token ids and the next token, which must be in it.
    selected : array_like of int, shape (n,), optional
        Local graphs: these tokens of the contexts are put first instead of the next tokens.

    Examples
    --------
    >>> from attsvm.next_token import token_graphs
    >>> token_graphs([[0, 1, 0], [1, 2, 1]]).is_acyclic
    True
    >>> token_graphs([[5, 5, 5]])
    Traceback (most recent call last):
        ...
    ValueError: sequences hold no token besides the next one: every graph is empty, there is nothing to order
    """
    return graphs_of(read_sequences(sequences, selected))


def graphs_of(corpus: Corpus) -> TokenGraphs:
    """`token_graphs` of sequences that were read."""
    size = int(corpus.token.max()) + 1
    pairs = corpus.query[corpus.owner] * size + corpus.token
    keys = distinct(pairs)
    node = np.searchsorted(keys, pairs)
    head = node[corpus.labelled][corpus.owner]
    differs = head != node
    if not differs.any():
        raise ValueError(
            "sequences hold no token besides the next one: every graph is empty, there is nothing to order"
        )
    edges = _distinct(np.column_stack([head, node])[differs], len(keys))
    first = _first_of_component(edges, len(keys))
    root = distinct(first)
    component = np.searchsorted(root, first)
    between = component[edges]
    between = _distinct(between[between[:, 0] != between[:, 1]], len(root))
    return TokenGraphs(corpus, keys // size, keys % size, edges, component, root, _without_implied(between, len(root)))


def _first_of_component(edges: IntArray, size: int) -> IntArray:
    """First node of the strongly connected component of every node, shape (size,)."""
    if size <= _DENSE:
        reach = np.eye(size, dtype=np.float32)
        reach[edges[:, 0], edges[:, 1]] = 1.0
        steps = 1
        while steps < size:  # paths of twice the length each time
            reach = np.minimum(reach @ reach, 1.0)
            steps *= 2
        return np.asarray((reach * reach.T).argmax(axis=1))
    from scipy import sparse
    from scipy.sparse.csgraph import connected_components

    joined = sparse.coo_array((np.ones(len(edges), dtype=np.int8), edges.T), shape=(size, size))
    _, found = connected_components(joined, directed=True, connection="strong")
    _, root, component = np.unique(found, return_index=True, return_inverse=True)
    return np.asarray(root[component])


def _distinct(pairs: IntArray, size: int) -> IntArray:
    """Distinct rows of pairs of numbers below ``size``, sorted."""
    keys = distinct(pairs[:, 0] * size + pairs[:, 1])
    return np.column_stack([keys // size, keys % size])


def _without_implied(pairs: IntArray, size: int) -> IntArray:
    """Edges of an acyclic graph without those that a path of two others makes superfluous.

    A margin of 1 along each of the two gives 2 along the edge, so dropping it changes no feasible set; what is left has
    the same reachability, since the longest path between two nodes is never dropped.
    """
    if size <= _DENSE:
        edge = np.zeros((size, size), dtype=np.float32)
        edge[pairs[:, 0], pairs[:, 1]] = 1.0
        return np.asarray(pairs[(edge @ edge)[pairs[:, 0], pairs[:, 1]] == 0.0])
    from scipy import sparse

    matrix = sparse.csr_array((np.ones(len(pairs), dtype=np.int32), pairs.T), shape=(size, size))
    implied = matrix @ matrix
    both = sparse.csr_array(matrix.multiply(implied))
    both.eliminate_zeros()
    dropped = both.tocoo()
    keys = np.asarray(dropped.coords[0], dtype=np.int64) * size + dropped.coords[1]
    return pairs[~np.isin(pairs[:, 0] * size + pairs[:, 1], keys)]
