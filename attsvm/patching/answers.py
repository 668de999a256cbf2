"""What a patch does to queries without a promise: first answers that change, and metrics of held-out queries."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attsvm.patching.embedding_index import VectorIndex, block_size, float32_error, top_documents
from attsvm.records import Interval, Table, share
from attsvm.solvers.arrays import FloatArray, IntArray

# Draws of the bootstrap, and queries whose scores are formed at once.
_DRAWS, _QUERIES = 2000, 4096


class AnswerChange(NamedTuple):
    """A query without a promise whose first answer is another one after the patch.

    Attributes
    ----------
    query, before, after : str or int
        The query and its first documents.
    lead_before : float
        By how much the first document led the new one before.
    lead : float
        By how much the new one leads now.
    """

    query: Hashable
    before: Hashable
    after: Hashable
    lead_before: float
    lead: float


def answer_changes(
    index: IntArray,
    prior: FloatArray,
    W: FloatArray,
    queries: VectorIndex,
    documents: VectorIndex,
    memory: float | None,
) -> tuple[AnswerChange, ...]:
    """First answers of these queries that differ under the two maps, those with the largest new lead first."""
    found = []
    for low in range(0, len(index), _QUERIES):
        part = index[low : low + _QUERIES]
        vectors = queries.rows(part)
        old, new = vectors @ prior.T, vectors @ W.T
        before, _ = top_documents(old, documents, memory)
        after, _ = top_documents(new, documents, memory)
        moved = np.flatnonzero(before != after)
        apart = documents.rows(after[moved]) - documents.rows(before[moved])
        led, lead = -np.vecdot(apart, old[moved]), np.vecdot(apart, new[moved])
        real = (lead > 0) & (led >= 0)  # float32 may order ties either way
        found += [
            AnswerChange(
                queries.label(int(part[k])), documents.label(int(before[k])), documents.label(int(after[k])),
                float(a), float(b),
            )
            for k, a, b in zip(moved[real], led[real], lead[real], strict=True)
        ]  # fmt: skip
    return tuple(sorted(found, key=lambda one: -one.lead))


def ranks_of(
    pairs: Sequence[tuple[int, int]], W: FloatArray, queries: VectorIndex, documents: VectorIndex, memory: float | None
) -> IntArray:
    """Rank of the right document of each pair, 1 for the first; ties within float32 rounding count for it."""
    rank = np.ones(len(pairs), dtype=np.int64)
    given = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    for low in range(0, len(pairs), _QUERIES):
        part = slice(low, low + _QUERIES)
        mapped = queries.rows(given[part, 0]) @ W.T
        right = np.vecdot(documents.rows(given[part, 1]), mapped)
        reach = np.sqrt(np.vecdot(mapped, mapped))
        least = right + float32_error(documents.d) * documents.longest * reach
        asked = mapped.astype(np.float32)
        for _, block in documents.blocks(block_size(len(mapped), documents.d, memory)):
            scores = asked @ block.astype(np.float32, copy=False).T
            rank[part] += np.count_nonzero(scores > least.astype(np.float32)[:, None], axis=1)
    return rank


@dataclass(frozen=True)
class HeldOut:
    """Metrics of held-out queries before and after a patch.

    Attributes
    ----------
    count : int
    before, after : dict of str to Interval
        recall@1 and recall@10 with Wilson's intervals, MRR with a bootstrap interval.
    difference : dict of str to Interval
        After minus before, with paired bootstrap intervals.
    """

    count: int
    before: dict[str, Interval]
    after: dict[str, Interval]
    difference: dict[str, Interval]

    @property
    def table(self) -> Table:
        """One line per metric."""
        rows = [(name, self.before[name], self.after[name], self.difference[name]) for name in self.before]
        return Table(f"{self.count:,} held-out queries, 95 % intervals", ("", "before", "after", "difference"), rows)


def held_out(
    pairs: Sequence[tuple[int, int]], prior: FloatArray, W: FloatArray, queries: VectorIndex, documents: VectorIndex,
    memory: float | None, seed: int = 0,
) -> HeldOut | None:  # fmt: skip
    """Metrics before and after; None without pairs."""
    if not pairs:
        return None
    old, new = (ranks_of(pairs, matrix, queries, documents, memory) for matrix in (prior, W))
    draws = np.random.default_rng(seed).integers(len(pairs), size=(_DRAWS, len(pairs)))
    values = {
        "recall@1": tuple((rank <= 1).astype(np.float64) for rank in (old, new)),
        "recall@10": tuple((rank <= 10).astype(np.float64) for rank in (old, new)),
        "MRR": tuple(1.0 / rank for rank in (old, new)),
    }

    def level(name: str, scores: FloatArray) -> Interval:
        return share(int(scores.sum()), len(scores)) if name != "MRR" else _bootstrap(scores, draws)

    return HeldOut(
        len(pairs),
        {name: level(name, before) for name, (before, _) in values.items()},
        {name: level(name, after) for name, (_, after) in values.items()},
        {name: _bootstrap(after - before, draws) for name, (before, after) in values.items()},
    )


def _bootstrap(values: FloatArray, draws: IntArray) -> Interval:
    means = values[draws].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(values.mean()), float(low), float(high), skewed=True)
