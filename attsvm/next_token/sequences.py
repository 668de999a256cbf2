"""Sequences over a vocabulary, read once: the context, its last token (the query) and the token that comes next.

For each last token k the token-priority graph has an edge from the next token y to every other token of the context
(Li, Huang, Ildiz, Rawat and Oymak, *Mechanics of next token prediction with self-attention*, arXiv 2403.08081): which
token the data put before which. Tokens of one strongly connected component come in either order; between components
the order is strict. Random vocabularies and sequences are drawn as the papers do.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Literal, cast, get_args

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.user_input import real_array, require_choice, require_count, require_finite

if TYPE_CHECKING:
    import networkx as nx

# Sequences, and tokens of each, that are read without arrays; and the largest id that arrays may hold.
_FEW, _LARGEST = 32, 2**31


@dataclass(frozen=True, eq=False, repr=False)
class Corpus:
    """Sequences as flat arrays, the distinct tokens of each context counted.

    Attributes
    ----------
    n : int
        Number of sequences.
    query, label : ndarray of int, shape (n,)
        Last token of each context, and the token that comes next (or the one that a local graph takes for it).
    owner, token, count : ndarray of int, shape (N,)
        Sequence, token id and number of occurrences of every distinct token of every context, sorted by the first two.
    labelled : ndarray of int, shape (n,)
        Where the label of each sequence stands among these.
    """

    query: IntArray
    label: IntArray
    owner: IntArray
    token: IntArray
    count: IntArray
    labelled: IntArray

    @property
    def n(self) -> int:
        """Number of sequences."""
        return len(self.query)

    def __repr__(self) -> str:
        return f"Corpus({self.n} sequences, {len(self.token)} distinct tokens of contexts)"


def read_sequences(sequences: Sequence[npt.ArrayLike], selected: npt.ArrayLike | None = None) -> Corpus:
    """Token ids as a `Corpus`.

    Parameters
    ----------
    sequences : sequence of array_like of int
        Each is a context of at least two tokens and the next token: ``[..., query, next]``.
    selected : array_like of int, shape (n,), optional
        Tokens of the contexts that take the place of the next tokens.

    Examples
    --------
    >>> from attsvm.next_token import read_sequences
    >>> corpus = read_sequences([[3, 1, 1, 2, 1]])
    >>> corpus.query, corpus.label, corpus.token, corpus.count
    (array([2]), array([1]), array([1, 2, 3]), array([2, 1, 1]))
    """
    if not len(sequences):
        raise ValueError("sequences must hold at least one sequence of token ids, got none")
    few = None if selected is not None or len(sequences) > _FEW else _read_few(sequences)
    if few is not None:
        return few
    whole, sizes = _read(sequences)
    n, lengths = len(sizes), sizes - 1
    short = np.flatnonzero(lengths < 2)
    if len(short):
        raise ValueError(
            f"sequences[{short[0]}] must hold a context of at least two tokens and the next token, got "
            f"{lengths[short[0]] + 1} ids: with one token there is nothing to select"
        )
    last = np.cumsum(sizes) - 1
    label = whole[last]
    inside = np.ones(len(whole), dtype=bool)
    inside[last] = False
    flat = whole[inside]
    what = "its next token"
    if selected is not None:
        label, what = _ids("selected", selected), "the selected token"
        if label.shape != (n,):
            raise ValueError(f"selected must hold one token id per sequence, shape ({n},), got {label.shape}")
    query = flat[np.cumsum(lengths) - 1]
    size = int(max(flat.max(), label.max())) + 1
    ordered = np.sort(np.repeat(np.arange(n), lengths) * size + flat)
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    keys, count = ordered[starts], np.diff(starts, append=len(ordered))
    wanted = np.arange(n) * size + label
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    missing = np.flatnonzero(keys[place] != wanted)
    if len(missing):
        i = int(missing[0])
        raise ValueError(
            f"sequences[{i}] does not hold {what} {label[i]} in its context, where attention could select it"
        )
    return Corpus(query, label, keys // size, keys % size, count, place)


def _read_few(sequences: Sequence[npt.ArrayLike]) -> Corpus | None:
    """A handful of lists of plain numbers without arrays, in a third of the time; None for anything else, or wrong."""
    query, label, labelled = [], [], []
    owner: list[int] = []
    token: list[int] = []
    count: list[int] = []
    for i, ids in enumerate(sequences):
        if not isinstance(ids, list) or not 3 <= len(ids) <= _FEW or set(map(type, ids)) != {int} or min(ids) < 0:
            return None
        *context, following = ids
        held = sorted(set(context))
        if following not in held or held[-1] > _LARGEST:
            return None
        query.append(context[-1])
        label.append(following)
        labelled.append(len(token) + held.index(following))
        owner += [i] * len(held)
        token += held
        count += [1] * len(held) if len(held) == len(context) else map(context.count, held)
    return Corpus(*together(query, label, owner, token, count, labelled))


def together(*lists: list[int]) -> list[IntArray]:
    """One array per list, by one conversion for all: most of the time of a short one is the call.

    Examples
    --------
    >>> from attsvm.next_token.sequences import together
    >>> together([1, 2], [3])
    [array([1, 2]), array([3])]
    """
    whole, begin, parts = np.array(list(chain(*lists)), dtype=np.int64), 0, []
    for some in lists:
        end = begin + len(some)
        parts.append(whole[begin:end])
        begin = end
    return parts


def distinct(keys: IntArray) -> IntArray:
    """Distinct numbers, sorted: for a handful of them several times as fast as ``np.unique``.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.next_token.sequences import distinct
    >>> distinct(np.array([3, 1, 3]))
    array([1, 3])
    """
    ordered = keys.copy()
    ordered.sort()
    if not len(ordered):
        return ordered
    first = np.empty(len(ordered), dtype=bool)
    first[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return np.asarray(ordered[first])


def _read(sequences: Sequence[npt.ArrayLike]) -> tuple[IntArray, IntArray]:
    """All token ids one after the other, and the length of each sequence."""
    if all(isinstance(ids, list) for ids in sequences):
        flat = list(chain.from_iterable(cast("Sequence[list[object]]", sequences)))
        if set(map(type, flat)) == {int}:  # plain numbers: one array at once
            array = np.array(flat)
            if array.dtype.kind == "i" and array.min() >= 0:
                return array, np.array([len(ids) for ids in cast("Sequence[list[int]]", sequences)])
    parts = [_ids(i, ids) for i, ids in enumerate(sequences)]
    return np.concatenate(parts), np.array([len(ids) for ids in parts])


def _ids(place: int | str, ids: npt.ArrayLike) -> IntArray:
    name = place if isinstance(place, str) else f"sequences[{place}]"
    array = np.asarray(ids)
    if array.ndim != 1 or (array.dtype.kind not in "iu"):
        raise ValueError(f"{name} must be a list of token ids (integers), got shape {array.shape}, dtype {array.dtype}")
    if array.size and array.min() < 0:
        raise ValueError(f"{name} must hold token ids >= 0, got {array.min()}")
    return array.astype(np.int64, copy=False)


def read_embeddings(embeddings: npt.ArrayLike, corpus: Corpus) -> FloatArray:
    """Embeddings in float64, shape (vocabulary, d), large enough for every token id of the corpus.

    Examples
    --------
    >>> from attsvm.next_token import read_embeddings, read_sequences
    >>> read_embeddings([[1.0], [2.0]], read_sequences([[0, 3, 0]]))
    Traceback (most recent call last):
        ...
    ValueError: token id 3 has no embedding: embeddings has 2 rows
    """
    table = real_array("embeddings", embeddings).astype(np.float64)
    if table.ndim != 2 or 0 in table.shape:
        raise ValueError(f"embeddings must have shape (vocabulary, d), got {table.shape}")
    require_finite("embeddings", table)
    largest = corpus.token.item(corpus.token.argmax())
    if largest >= len(table):
        raise ValueError(f"token id {largest} has no embedding: embeddings has {len(table)} rows")
    return table


Kind = Literal["sphere", "orthonormal", "equicorrelated"]

Labels = Literal["realizable", "random"]

_MAX_REDRAWS = 1000


def random_corpus(
    n: int,
    T: int,
    vocabulary: int,
    d: int,
    *,
    embeddings: Kind = "sphere",
    labels: Labels = "random",
    seed: int | np.random.Generator = 0,
) -> tuple[list[list[int]], FloatArray]:
    """Sequences ``[..., query, next]`` with contexts of T tokens, and embeddings.

    Parameters
    ----------
    n, T, vocabulary, d : int
    embeddings : {"sphere", "orthonormal", "equicorrelated"}
        Uniform on the unit sphere; orthonormal; unit vectors with all inner products 1/2. The last two need
        ``vocabulary <= d``.
    labels : {"realizable", "random"}
        The next token is the one that a hidden W prefers (graphs are then acyclic), or a random one of the context.
    seed : int or Generator

    Returns
    -------
    list of lists of int, and ndarray of shape (vocabulary, d)

    Examples
    --------
    >>> from attsvm.next_token import random_corpus, token_graphs
    >>> sequences, table = random_corpus(4, 5, vocabulary=7, d=8, labels="realizable", seed=0)
    >>> len(sequences[0]), table.shape, token_graphs(sequences).is_acyclic
    (6, (7, 8), True)
    """
    for name, value, least in (("n", n, 1), ("T", T, 2), ("vocabulary", vocabulary, 2), ("d", d, 1)):
        require_count(name, value, least)
    require_choice("labels", labels, *get_args(Labels))
    rng = np.random.default_rng(seed)
    table = _table(rng, vocabulary, d, embeddings)
    hidden = rng.normal(size=(d, d))
    for _ in range(_MAX_REDRAWS):
        contexts = rng.integers(0, vocabulary, size=(n, T))
        if (contexts != contexts[:, :1]).any():  # else every graph is empty
            break
    if labels == "random":
        following = np.take_along_axis(contexts, rng.integers(0, T, size=(n, 1)), axis=1)
    else:
        scores = np.einsum("ntd,nd->nt", table[contexts], table[contexts[:, -1]] @ hidden.T)
        following = np.take_along_axis(contexts, scores.argmax(axis=1)[:, None], axis=1)
    return np.concatenate([contexts, following], axis=1).tolist(), table


def _table(rng: np.random.Generator, vocabulary: int, d: int, kind: str) -> FloatArray:
    require_choice("embeddings", kind, *get_args(Kind))
    if kind == "sphere":
        table = rng.normal(size=(vocabulary, d))
        return np.asarray(table / np.linalg.norm(table, axis=1, keepdims=True))
    if vocabulary > d:
        raise ValueError(f"embeddings={kind!r} needs vocabulary <= d, got {vocabulary} and {d}")
    basis = np.linalg.qr(rng.normal(size=(d, d)))[0][:vocabulary]
    if kind == "orthonormal":
        return np.asarray(basis)
    gram = 0.5 * (np.eye(vocabulary) + 1.0)
    return np.asarray(np.linalg.cholesky(gram) @ basis)


# Tokens of contexts up to which plain numbers are quicker than arrays.
_FEW_EDGES = 1000


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
    if len(corpus.token) <= _FEW_EDGES:
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
