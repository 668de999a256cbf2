"""Token-priority graphs: which token the data put before which, given the last token.

For each last token k the graph has an edge from the next token y to every other token of the context (Li, Huang,
Ildiz, Rawat and Oymak, *Mechanics of next token prediction with self-attention*, arXiv 2403.08081). Tokens of one
strongly connected component come in either order; between components the order is strict.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from attsvm.next_token.sequences import Corpus, distinct, read_sequences, together
from attsvm.solvers.arrays import BoolArray, IntArray

if TYPE_CHECKING:
    import networkx as nx

__all__ = [
    "TokenGraphs",
    "graphs_of",
    "token_graphs",
]


# Tokens of contexts up to which plain numbers are quicker than arrays.
_FEW = 1000


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
    if len(corpus.token) <= _FEW:
        return _of_few(corpus)
    size = int(corpus.token.max()) + 1
    pairs = corpus.query[corpus.owner] * size + corpus.token
    keys = distinct(pairs)
    node = np.searchsorted(keys, pairs)
    head = node[corpus.labelled][corpus.owner]
    differs = head != node
    _require(differs.nonzero()[0])
    edges = _distinct(np.column_stack([head, node])[differs], len(keys))
    first = _first_of_component(edges, len(keys))
    root = distinct(first)
    component = np.searchsorted(root, first)
    between = component[edges]
    between = _distinct(between[between[:, 0] != between[:, 1]], len(root))
    query, token = np.divmod(keys, size)
    return TokenGraphs(corpus, query, token, edges, component, root, _without_implied(between, len(root)))


def _require(edges: Sized) -> None:
    """Refuse graphs without edges."""
    if not len(edges):
        raise ValueError(
            "sequences hold no token besides the next one: every graph is empty, there is nothing to order"
        )


def _of_few(corpus: Corpus) -> TokenGraphs:
    """`graphs_of` a few tokens without arrays: sets of nodes are the bits of a number."""
    last, owner, ids = corpus.query.tolist(), corpus.owner.tolist(), corpus.token.tolist()
    pairs = [(last[i], token) for i, token in zip(owner, ids, strict=True)]
    nodes = sorted(set(pairs))
    number = {pair: k for k, pair in enumerate(nodes)}
    heads = [number[pairs[k]] for k in corpus.labelled.tolist()]
    behind = dict.fromkeys(sorted(heads), 0)
    for i, pair in zip(owner, pairs, strict=True):
        behind[heads[i]] |= 1 << number[pair]
    behind = {y: others for y, known in behind.items() if (others := known & ~(1 << y))}
    _require(behind)
    first = _roots(behind, len(nodes))
    root = [k for k, own in enumerate(first) if k == own]
    place = {k: c for c, k in enumerate(root)}
    component = [place[k] for k in first]
    edges = _members(behind)
    if len(root) < len(nodes):  # else every node is its own component
        between: dict[int, int] = {}
        for y, x in zip(edges[::2], edges[1::2], strict=True):
            c, k = component[y], component[x]
            if c != k:
                between[c] = between.get(c, 0) | 1 << k
        behind = {c: between[c] for c in sorted(between)}
    order = _members(_not_implied(behind))
    flat = together([part for pair in nodes for part in pair], edges, component, root, order)
    query, token = flat[0].reshape(-1, 2).T
    return TokenGraphs(corpus, query, token, flat[1].reshape(-1, 2), flat[2], flat[3], flat[4].reshape(-1, 2))


def _not_implied(behind: dict[int, int]) -> dict[int, int]:
    """`_without_implied` by sets."""
    left = dict(behind)
    for c, onward in behind.items():
        for k, further in behind.items():
            if onward >> k & 1:
                left[c] &= ~further
    return left


def _members(sets: dict[int, int]) -> list[int]:
    """Every node and each one of its set, one pair after the other."""
    pairs: list[int] = []
    for y, rest in sets.items():
        while rest:
            lowest = rest & -rest
            pairs += (y, lowest.bit_length() - 1)
            rest ^= lowest
    return pairs


def _roots(behind: dict[int, int], size: int) -> list[int]:
    """`_first_of_component` by sets: only nodes with an edge lead on, and only they can be on a cycle."""
    reach = dict(behind)
    for k, onward in reach.items():  # paths through the first of them, the first two, ...
        bit = 1 << k
        for y, known in reach.items():
            if known & bit:
                reach[y] = known | onward
    first = list(range(size))
    for y, known in reach.items():
        if known >> y & 1:
            first[y] = next(k for k, other in reach.items() if other >> y & 1 and known >> k & 1)
    return first


def _first_of_component(edges: IntArray, size: int) -> IntArray:
    """First node of the strongly connected component of every node, shape (size,)."""
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
    from scipy import sparse

    matrix = sparse.csr_array((np.ones(len(pairs), dtype=np.int32), pairs.T), shape=(size, size))
    implied = matrix @ matrix
    both = sparse.csr_array(matrix.multiply(implied))
    both.eliminate_zeros()
    dropped = both.tocoo()
    keys = np.asarray(dropped.coords[0], dtype=np.int64) * size + dropped.coords[1]
    return pairs[~np.isin(pairs[:, 0] * size + pairs[:, 1], keys)]
