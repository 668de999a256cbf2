"""Every document of an index against promised answers: who violates, and a proof over all documents when none does.

Scores of all documents are computed block by block in float32. A document whose float32 score stays below that of the
promised answer by the margin and a bound on the rounding is proved to; the few others are compared again in float64,
through the difference of the two documents, with a bound of its own. What float64 leaves open is decided in integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.patching.embedding_index import VectorIndex
from attsvm.patching.promises import Promise
from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.certify.rounding import gamma
from attsvm.user_input import AnyFloatArray

__all__ = ["Found", "Leads", "Wanted", "block_size", "exact_lead", "float32_error", "leads", "scan", "top_documents"]

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
    >>> from attsvm.patching.index_scan import float32_error
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
    >>> from attsvm.patching.index_scan import exact_lead
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
