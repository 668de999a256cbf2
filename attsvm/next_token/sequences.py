"""Sequences over a vocabulary, read once: the context, its last token (the query) and the token that comes next.

Random vocabularies and sequences, as the papers draw them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, cast, get_args

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.user_input import real_array, require_choice, require_count, require_finite

__all__ = [
    "Corpus",
    "distinct",
    "random_corpus",
    "read_embeddings",
    "read_sequences",
    "together",
]


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
