"""Embeddings with ids: arrays, memory-mapped files, or texts with the model that embeds them.

An index may be larger than the memory: vectors are read in blocks, and rows are copied only where they are needed.
A scan says which documents violate promised answers, or proves that none does. Scores of all documents are computed
block by block in float32. A document whose float32 score stays below that of the promised answer by the margin and a
bound on the rounding is proved to; the few others are compared again in float64, through the difference of the two
documents, with a bound of its own. What float64 leaves open is decided in integers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray, did_you_mean
from attsvm.solvers.certify.rounding import gamma
from attsvm.user_input import AnyFloatArray, is_tensor, real_array

if TYPE_CHECKING:
    from attsvm.patching.promises import Promise

Encoder: TypeAlias = Callable[[Sequence[str]], npt.ArrayLike] | Any
"""A function from texts to vectors, or a model with ``encode`` (sentence-transformers)."""
EmbeddingsLike: TypeAlias = npt.ArrayLike | str | Path | Sequence[str]
"""An array of shape (n, d), the path of a ``.npy`` file, or texts."""

# Numbers of a block of vectors that is looked at on its own.
_BLOCK_NUMBERS = 4_000_000
# Ids among which a similar one is looked for.
_SIMILAR_AMONG = 20_000


@dataclass(frozen=True, eq=False)
class VectorIndex:
    """Vectors of one kind with their ids.

    Attributes
    ----------
    name : {"query", "document"}
        What one vector stands for.
    vectors : ndarray, shape (n, d)
        float16, float32 or float64; may be memory-mapped.
    ids : tuple or None
        One per vector; None where they are called by their row.
    longest : float
        Largest Euclidean norm of a vector.
    """

    name: str
    vectors: AnyFloatArray
    ids: tuple[Hashable, ...] | None
    longest: float

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def d(self) -> int:
        """Dimension of the vectors."""
        return int(self.vectors.shape[1])

    def rows(self, index: npt.ArrayLike) -> FloatArray:
        """Some of the vectors in float64, shape (k, d)."""
        return np.asarray(self.vectors[np.asarray(index)], dtype=np.float64)

    def label(self, row: int) -> Hashable:
        """The id of a vector, its row without ids."""
        return row if self.ids is None else self.ids[row]

    @cached_property
    def _places(self) -> dict[Hashable, int]:
        return {} if self.ids is None else {name: row for row, name in enumerate(self.ids)}

    def place(self, given: object, where: str) -> int:
        """The row of an id, or a row that is checked; ``where`` begins the error."""
        name = given.item() if isinstance(given, np.generic) else given
        if self.ids is not None:
            if isinstance(name, Hashable) and name in self._places:
                return self._places[name]
            near = did_you_mean(str(name), [str(known) for known in self.ids[:_SIMILAR_AMONG]])
            raise ValueError(f"{where}: no {self.name} has the id {name!r}{near}")
        if isinstance(name, bool) or not isinstance(name, int):
            raise ValueError(
                f"{where}: a {self.name} is called by its row, 0 to {len(self) - 1}, unless {self.name}_ids are given; "
                f"got {name!r}"
            )
        if not 0 <= name < len(self):
            raise ValueError(f"{where}: {self.name} {name} does not exist; there are {len(self)}, 0 to {len(self) - 1}")
        return name

    def blocks(self, size: int) -> Iterator[tuple[int, AnyFloatArray]]:
        """The vectors in blocks of so many rows, each with its first row."""
        for low in range(0, len(self), size):
            yield low, self.vectors[low : low + size]


def read_index(
    name: str, given: EmbeddingsLike, ids: Iterable[Hashable] | None = None, encoder: Encoder | None = None
) -> VectorIndex:
    """Read embeddings; what is missing, not finite or zero is refused with the id of its vector.

    Parameters
    ----------
    name : {"query", "document"}
    given : array_like, shape (n, d), path of a ``.npy`` file, or sequence of str
    ids : iterable, optional
        One id per vector, all different.
    encoder : callable or model with ``encode``, optional
        Embeds texts.

    Examples
    --------
    >>> import numpy as np
    >>> index = read_index("document", np.eye(3, dtype=np.float32), ["a", "b", "c"])
    >>> index.place("b", "golden[0]"), index.longest
    (1, 1.0)
    >>> read_index("query", [[1.0], [0.0]])
    Traceback (most recent call last):
    ...
    ValueError: queries: query 1 is a zero vector; leave out what was not embedded
    """
    argument = {"query": "queries", "document": "documents"}[name]
    vectors = _vectors(argument, name, given, encoder)
    if vectors.ndim != 2 or not vectors.size:
        raise ValueError(f"{argument} must have shape (n, d) with n and d at least 1, got {vectors.shape}")
    names = _names(name, ids, len(vectors))
    longest = _checked_norm(argument, name, vectors, names)
    return VectorIndex(name, vectors, names, longest)


def _vectors(argument: str, name: str, given: Any, encoder: Any) -> AnyFloatArray:
    if isinstance(given, str | Path):
        path = Path(given)
        if path.suffix != ".npy":
            raise ValueError(f"{argument} must be an array, a .npy file or a sequence of texts, got {str(given)!r}")
        given = np.load(path, mmap_mode="r", allow_pickle=False)
    if isinstance(given, np.ndarray) and given.dtype in (np.float16, np.float32, np.float64):
        return given  # as it is: it may be mapped, and nothing is written to it
    if not isinstance(given, np.ndarray) and not is_tensor(given) and _are_texts(given):
        return _encoded(argument, name, list(given), encoder)
    return real_array(argument, given)


def _are_texts(given: Any) -> bool:
    return isinstance(given, Sequence) and len(given) > 0 and all(isinstance(text, str) for text in given)


def _encoded(argument: str, name: str, texts: list[str], encoder: Any) -> AnyFloatArray:
    """Vectors of texts: by ``encode_query`` or ``encode_document`` where the model tells them apart."""
    if encoder is None:
        raise ValueError(f"{argument} holds texts: pass encoder=, a function or a model with encode, that embeds them")
    embed = getattr(encoder, f"encode_{name}", None) or getattr(encoder, "encode", None) or encoder
    if not callable(embed):
        raise TypeError(f"encoder must be a function or have a method encode, got {type(encoder).__name__}")
    found = real_array(argument, embed(texts))
    if found.ndim != 2 or len(found) != len(texts):
        raise ValueError(f"encoder must give one vector per text, {len(texts)} for {argument}, got shape {found.shape}")
    return found


def _names(name: str, ids: Iterable[Hashable] | None, count: int) -> tuple[Hashable, ...] | None:
    if ids is None:
        return None
    names = tuple(one.item() if isinstance(one, np.generic) else one for one in ids)
    if len(names) != count:
        raise ValueError(f"{name}_ids must name each of the {count} vectors, got {len(names)} ids")
    seen: dict[Hashable, int] = {}
    for row, one in enumerate(names):
        if not isinstance(one, str | int):
            raise ValueError(f"{name}_ids must be texts or integers, got {one!r} at {row}")
        if one in seen:
            raise ValueError(f"{name}_ids must be different: {one!r} names the vectors {seen[one]} and {row}")
        seen[one] = row
    return names


def _checked_norm(argument: str, name: str, vectors: AnyFloatArray, names: tuple[Hashable, ...] | None) -> float:
    """The largest norm; refuses vectors that are not finite or zero."""
    longest, step = 0.0, max(1, _BLOCK_NUMBERS // vectors.shape[1])
    for low in range(0, len(vectors), step):
        block = np.asarray(vectors[low : low + step], dtype=np.float64)
        largest = np.abs(block).max(axis=1)  # NaN where an entry is
        for wrong, what in (
            (~np.isfinite(largest), "holds NaN or infinity; embed it again or leave it out"),
            (largest == 0.0, "is a zero vector; leave out what was not embedded"),
        ):
            if wrong.any():
                row = low + int(wrong.argmax())
                told = row if names is None else repr(names[row])
                raise ValueError(f"{argument}: {name} {told} {what}")
        scale = float(largest.max())
        sizes: FloatArray = np.sqrt(np.vecdot(block / scale, block / scale)) * scale
        longest = max(longest, float(sizes.max()))
    return longest


_SINGLE = 2.0**-24
# Sizes of scores outside this range are computed in float64: products of float32 could overflow or vanish.
_RANGE = (1e-15, 1e15)
# Scores of a block, and pairs that are compared in float64 at once.
_SCORES, _PAIRS = 24_000_000, 16_384
# Violating documents of one promise that one block may name, until nothing else is violated.
_PER_BLOCK = 64
# Undecided pairs that are decided in integers: half a second each.
_EXACT = 40


def float32_error(d: int) -> float:
    """Bound on the rounding of a float32 score of d terms, relative to the product of the two norms.

    Covers a sum in any order, both factors rounded to float32, and the comparison with a rounded threshold.

    Examples
    --------
    >>> 2e-5 < float32_error(384) < 3e-5
    True
    """
    return 1.01 * (d + 8) * _SINGLE


@dataclass(frozen=True, eq=False)
class Wanted:
    """Promises as arrays, with the mapped queries that a scan needs.

    Attributes
    ----------
    promises : tuple of Promise
    query, document, round : ndarray of int, shape (p,)
    margin : ndarray, shape (p,)
    repair, open : ndarray of bool, shape (p,)
        Failures; promises about all documents of the index.
    queries : ndarray, shape (p, d_queries)
        Their vectors in float64.
    present : ndarray, shape (p, d_documents)
        ``W z`` under the map that was in force when the promise was made.
    anchors : ndarray, shape (p, d_documents)
        The promised documents.
    """

    promises: tuple[Promise, ...]
    query: IntArray
    document: IntArray
    round: IntArray
    margin: FloatArray
    repair: BoolArray
    open: BoolArray
    queries: FloatArray
    present: FloatArray
    anchors: FloatArray

    @classmethod
    def of(
        cls, promises: Sequence[Promise], queries: VectorIndex, documents: VectorIndex, maps: Sequence[FloatArray]
    ) -> Wanted:
        """The promises under the maps of their rounds."""
        query = np.array([one.query for one in promises], dtype=np.int64)
        document = np.array([one.document for one in promises], dtype=np.int64)
        rounds = np.array([one.round for one in promises], dtype=np.int64)
        vectors = queries.rows(query)
        present = np.empty((len(promises), documents.d))
        for k in np.unique(rounds):
            present[rounds == k] = vectors[rounds == k] @ maps[k].T
        return cls(
            tuple(promises), query, document, rounds, np.array([one.margin for one in promises]),
            np.array([one.kind == "repair" for one in promises]), np.array([one.rivals is None for one in promises]),
            vectors, present, documents.rows(document),
        )  # fmt: skip

    def without(self, dropped: BoolArray) -> Wanted:
        """The promises that are not dropped."""
        keep = ~dropped
        return Wanted(
            tuple(one for one, stays in zip(self.promises, keep, strict=True) if stays), self.query[keep],
            self.document[keep], self.round[keep], self.margin[keep], self.repair[keep], self.open[keep],
            self.queries[keep], self.present[keep], self.anchors[keep],
        )  # fmt: skip

    def listed(self) -> tuple[IntArray, IntArray]:
        """Promises and rivals of those that list them."""
        pairs = [(k, rival) for k, one in enumerate(self.promises) for rival in one.rivals or ()]
        found = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        return found[:, 0], found[:, 1]


@dataclass(frozen=True, eq=False)
class Leads:
    """Pairs of a promise and a rival, compared in float64; arrays of shape (k,).

    Attributes
    ----------
    promise, rival : ndarray of int
    lead : ndarray
        ``(x_promised - x_rival)^T W z``.
    error : ndarray
        Bound on its rounding.
    asked : ndarray
        What is promised: the margin, for a golden answer at most its lead when the promise was made, and minus infinity
        where the rival led then.
    scale : ndarray
        ``|x_promised - x_rival| |W z|``: what violations are relative to.
    strict : ndarray of bool
        The promised document must come first: failures, and golden answers that led before.
    """

    promise: IntArray
    rival: IntArray
    lead: FloatArray
    error: FloatArray
    asked: FloatArray
    scale: FloatArray
    strict: BoolArray

    def where(self, chosen: npt.NDArray[np.integer[Any] | np.bool_]) -> Leads:
        """Some of the pairs."""
        return Leads(*(getattr(self, name)[chosen] for name in _FIELDS))

    @staticmethod
    def joined(parts: Sequence[Leads]) -> Leads:
        """The pairs of several blocks."""
        return Leads(*(np.concatenate([getattr(part, name) for part in parts]) for name in _FIELDS))

    @property
    def violation(self) -> FloatArray:
        """By how much each promise is missed; negative where it holds."""
        return np.asarray(self.asked - self.lead)


_FIELDS = ("promise", "rival", "lead", "error", "asked", "scale", "strict")


def leads(
    wanted: Wanted, mapped: FloatArray, W: FloatArray, documents: VectorIndex, promise: IntArray, rival: IntArray
) -> Leads:
    """Pairs compared in float64, with rounding bounds.

    Parameters
    ----------
    wanted : Wanted
    mapped : ndarray, shape (p, d_documents)
        ``W z`` of the promises.
    W : ndarray, shape (d_documents, d_queries)
    documents : VectorIndex
    promise, rival : ndarray of int, shape (k,)
    """
    d, dz = W.shape
    size = np.linalg.norm(W)
    parts = []
    for low in range(0, max(len(promise), 1), _PAIRS):
        p, r = promise[low : low + _PAIRS], rival[low : low + _PAIRS]
        a = wanted.anchors[p] - documents.rows(r)
        y, before = mapped[p], wanted.present[p]
        lead, lead_before = np.vecdot(a, y), np.vecdot(a, before)
        length, reach = np.sqrt(np.vecdot(a, a)), np.sqrt(np.vecdot(y, y))
        # One rounding in a, d + 1 in the product; W z is off by gamma |W| |z| at most.
        off = gamma(dz + 1) * float(size) * np.sqrt(np.vecdot(wanted.queries[p], wanted.queries[p]))
        error = 1.01 * length * (gamma(d + 2) * reach + off) + np.finfo(np.float64).tiny
        repair = wanted.repair[p]
        kept = np.where(lead_before < 0.0, -np.inf, np.minimum(wanted.margin[p], lead_before))
        asked = np.where(repair, wanted.margin[p], kept)
        parts.append(Leads(p, r, lead, error, asked, length * reach, repair | (lead_before > 0.0)))
    return Leads.joined(parts)


@dataclass(frozen=True, eq=False)
class Found:
    """What a scan of the whole index found.

    Attributes
    ----------
    violated : Leads
        Promises that are missed by more than the tolerance, the worst rivals of each.
    undecided : Leads
        Pairs whose order float64 does not prove; decided in integers afterwards.
    violation : float
        Largest amount by which a promise is missed, rounding included.
    best : ndarray of int, shape (p,)
        The strongest rival of each promise; -1 without one.
    lead : ndarray, shape (p,)
        Lead over it, in float64.
    complete : bool
        No document was left out: what is not named here holds.
    compared : int
        Pairs that were compared in float64.
    """

    violated: Leads
    undecided: Leads
    violation: float
    best: IntArray
    lead: FloatArray
    complete: bool
    compared: int


def block_size(promises: int, d: int, memory: float | None) -> int:
    """Documents whose scores are formed at once: as many as a quarter of the memory allows, about 100 MB by default."""
    numbers = _SCORES if memory is None else min(_SCORES, int(memory / 16))
    return max(1, numbers // max(promises + d, 1))


def _single_precision(mapped: FloatArray, documents: VectorIndex) -> bool:
    reach = np.sqrt(np.vecdot(mapped, mapped))
    sizes = (documents.longest, float(reach.max(initial=1.0)), documents.longest * float(reach.max(initial=1.0)))
    return all(_RANGE[0] < size < _RANGE[1] for size in sizes)


def scan(
    wanted: Wanted,
    W: FloatArray,
    documents: VectorIndex,
    *,
    tolerance: float = 1e-9,
    whole: bool = True,
    memory: float | None = None,
) -> Found:
    """Compare every document of the index with the promised ones.

    Parameters
    ----------
    wanted : Wanted
    W : ndarray, shape (d_documents, d_queries)
    documents : VectorIndex
    tolerance : float
        Share of `Leads.scale` by which a promise may be missed.
    whole : bool
        Name every violation; otherwise at most 64 per failure and block, which is enough to begin with.
    memory : float, optional
        Bytes that blocks of scores may take.
    """
    mapped = wanted.queries @ W.T
    kind: type[np.floating[Any]] = np.float32 if _single_precision(mapped, documents) else np.float64
    unit = float32_error(documents.d) if kind is np.float32 else 1.01 * gamma(documents.d + 8)
    near = np.flatnonzero(wanted.open)
    margin, right = wanted.margin[near], np.vecdot(wanted.anchors, mapped)[near]
    reach = np.sqrt(np.vecdot(mapped, mapped))[near]
    least = (right - margin - 2.0 * unit * documents.longest * reach).astype(kind)
    asked = mapped[near].astype(kind)
    best, highest = np.full(len(near), -1), np.full(len(near), -np.inf, dtype=kind)
    outside = _besides(wanted, near)
    parts = [leads(wanted, mapped, W, documents, *wanted.listed())]
    complete, compared = True, len(parts[0].promise)
    everything = np.arange(len(near))
    for low, block in documents.blocks(block_size(len(near), documents.d, memory)):
        scores = asked @ block.astype(kind, copy=False).T
        inside = (outside[1] >= low) & (outside[1] < low + len(block))
        scores[outside[0][inside], outside[1][inside] - low] = -np.inf
        strongest = scores.argmax(axis=1)
        values = scores[everything, strongest]
        better = values > highest
        best[better], highest[better] = strongest[better] + low, values[better]
        groups, places, cut = _candidates(scores, least, None if whole else wanted.repair[near])
        complete &= not cut
        for start in range(0, len(groups), 16 * _PAIRS):
            p, r = near[groups[start : start + 16 * _PAIRS]], places[start : start + 16 * _PAIRS] + low
            found = leads(wanted, mapped, W, documents, p, r)
            compared += len(p)
            open_ones = (found.violation > tolerance * found.scale) | (found.strict & (found.lead <= found.error))
            worst = found.violation + found.error
            worst[~np.isfinite(found.asked)] = -np.inf
            open_ones[int(worst.argmax())] = True  # the largest violation is told even where it is within the tolerance
            parts.append(found.where(open_ones))
    chosen, lead = np.full(len(wanted.promises), -1), np.full(len(wanted.promises), np.inf)
    chosen[near] = best
    known = np.flatnonzero(chosen >= 0)
    lead[known] = leads(wanted, mapped, W, documents, known, chosen[known]).lead
    for one in (parts[0],):
        weakest = np.lexsort((one.lead, one.promise))
        first = weakest[np.unique(one.promise[weakest], return_index=True)[1]] if len(weakest) else weakest
        chosen[one.promise[first]], lead[one.promise[first]] = one.rival[first], one.lead[first]
    return _summary(Leads.joined(parts), tolerance, chosen, lead, complete, compared)


def _summary(
    every: Leads, tolerance: float, chosen: IntArray, lead: FloatArray, complete: bool, compared: int
) -> Found:
    violated = every.violation > tolerance * every.scale
    undecided = ~violated & every.strict & (every.lead <= every.error)
    amounts = np.where(np.isfinite(every.asked), every.violation + every.error, -np.inf)
    largest = float(amounts.max(initial=0.0))
    return Found(every.where(violated), every.where(undecided), largest, chosen, lead, complete, compared)


def _besides(wanted: Wanted, near: IntArray) -> tuple[IntArray, IntArray]:
    """Pairs (place in ``near``, document) that are not compared: a document with itself or with those above it."""
    pairs = [(k, wanted.promises[p].document) for k, p in enumerate(near)]
    pairs += [(k, one) for k, p in enumerate(near) for one in wanted.promises[p].besides]
    found = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _candidates(
    scores: AnyFloatArray, least: AnyFloatArray, capped: BoolArray | None
) -> tuple[IntArray, IntArray, bool]:
    """Pairs whose score is not proved to stay below; of failures the highest alone, if ``capped`` marks them."""
    high = scores > least[:, None]
    if capped is None:
        rows, columns = np.nonzero(high)
        return rows, columns, False
    many = np.flatnonzero(capped & (np.count_nonzero(high, axis=1) > _PER_BLOCK))
    if len(many):
        top = np.argpartition(-scores[many], _PER_BLOCK, axis=1)[:, :_PER_BLOCK]
        high[many] = False
        high[many[:, None], top] = True
    rows, columns = np.nonzero(high)
    return rows, columns, bool(len(many))


def decided(undecided: Leads, wanted: Wanted, W: FloatArray, documents: VectorIndex) -> Leads:
    """The undecided pairs whose promised document does not come first in exact arithmetic, or which are too many."""
    if len(undecided.promise) > _EXACT:
        return undecided
    wrong = [
        exact_lead(
            documents.vectors[wanted.document[p]], documents.vectors[r], W, wanted.queries[p]
        ) <= 0
        for p, r in zip(undecided.promise, undecided.rival, strict=True)
    ]  # fmt: skip
    return undecided.where(np.array(wrong, dtype=bool))


def _integers(values: npt.ArrayLike) -> tuple[npt.NDArray[Any], int]:
    """Finite floats as integers times one power of two, which is returned as its exponent."""
    array = np.asarray(values, dtype=np.float64)
    mantissa, exponent = np.frexp(array)
    whole = np.ldexp(mantissa, 53).astype(np.int64)
    exponent = np.where(whole == 0, 0, exponent - 53)
    lowest = int(exponent[whole != 0].min()) if (whole != 0).any() else 0
    shifts = np.where(whole == 0, 0, exponent - lowest)
    made = np.array([int(w) << int(s) for w, s in zip(whole.ravel(), shifts.ravel(), strict=True)], dtype=object)
    return made.reshape(array.shape), lowest


def exact_lead(promised: npt.ArrayLike, rival: npt.ArrayLike, W: npt.ArrayLike, query: npt.ArrayLike) -> int:
    """The lead ``(promised - rival)^T W query`` in integers: its sign and, up to a power of two, its size.

    Examples
    --------
    >>> exact_lead([1.0], [1.0 - 2.0**-53], [[1.0]], [1.0]) > 0, exact_lead([0.5], [0.5], [[1.0]], [3.0])
    (True, 0)
    """
    both, _ = _integers(np.stack([np.asarray(promised, np.float64), np.asarray(rival, np.float64)]))
    matrix, _ = _integers(W)
    vector, _ = _integers(query)
    return int((both[0] - both[1]) @ (matrix @ vector))


def top_documents(
    mapped: FloatArray, documents: VectorIndex, memory: float | None = None
) -> tuple[IntArray, FloatArray]:
    """The document of the highest score for each mapped query, and that score in float64; shapes (q,)."""
    kind: type[np.floating[Any]] = np.float32 if _single_precision(mapped, documents) else np.float64
    asked = mapped.astype(kind)
    best, highest = np.zeros(len(mapped), dtype=np.int64), np.full(len(mapped), -np.inf, dtype=kind)
    rows = np.arange(len(mapped))
    for low, block in documents.blocks(block_size(len(mapped), documents.d, memory)):
        scores = asked @ block.astype(kind, copy=False).T
        strongest = scores.argmax(axis=1)
        better = scores[rows, strongest] > highest
        best[better], highest[better] = strongest[better] + low, scores[rows, strongest][better]
    return best, np.vecdot(documents.rows(best), mapped)
