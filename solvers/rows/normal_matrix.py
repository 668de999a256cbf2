"""Normal matrices of rank-one rows, of the order of the entries of W.

Rows of one query share their right factor, so ``F' diag(w) F`` is a sum over queries of
``(sum_k w_k a_k a_k') (x) (b b')``: with the upper triangles of both factors as vectors it is one product of two
matrices with a column per query.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.solvers.rows.pairs import PairRows

__all__ = ["CHUNK_NUMBERS", "QueryBlocks", "by_query", "normal_matrix"]

# Numbers of working memory per chunk of queries.
CHUNK_NUMBERS = 1 << 23


class _Triangles(NamedTuple):
    """Upper triangles of symmetric matrices as vectors, and where their entries belong."""

    i: IntArray
    j: IntArray
    place: IntArray


@lru_cache(maxsize=4)
def _triangles(d: int) -> _Triangles:
    i, j = np.triu_indices(d)
    place = np.zeros((d, d), dtype=np.int64)
    place[i, j] = place[j, i] = np.arange(len(i))
    return _Triangles(i, j, place)


class QueryBlocks(NamedTuple):
    """Rows sorted by query, with where each query's rows begin."""

    a: FloatArray
    begin: IntArray
    counts: IntArray
    queries: FloatArray


def by_query(rows: PairRows, scale: FloatArray) -> tuple[QueryBlocks, IntArray]:
    """Unit rows by query, and the order that brought them there."""
    order = np.argsort(rows.owner, kind="stable")
    used, begin, counts = np.unique(rows.owner[order], return_index=True, return_counts=True)
    a = rows.a[order].astype(np.float64, copy=False) * scale[order, None]
    return QueryBlocks(a, begin, counts, rows.queries[used].astype(np.float64, copy=False)), order


def normal_matrix(
    blocks: QueryBlocks, weights: FloatArray, ridge: float = 1.0, look: Callable[[], None] | None = None
) -> FloatArray:
    """``F' diag(w) F`` plus a multiple of I, of the order of W's entries.

    ``look`` is called before every chunk of queries, and may raise.
    Without weights and ridge its error is at most ``gamma(n + 2 q + 8)`` times the sum of squared norms of the rows,
    for up to n rows of each of q queries: so many roundings in sums whose terms are products of four numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import PairRows
    >>> from attsvm.solvers.rows.normal_matrix import by_query, normal_matrix
    >>> blocks, _ = by_query(PairRows([[1.0, 0.0], [1.0, 2.0]], [[2.0]], [0, 0]), np.ones(2))
    >>> normal_matrix(blocks, np.ones(2), ridge=0.0)
    array([[ 8.,  8.],
           [ 8., 16.]])
    """
    dx, dz = blocks.a.shape[1], blocks.queries.shape[1]
    left, right = _triangles(dx), _triangles(dz)
    total = np.zeros((len(left.i), len(right.i)))
    longest = int(blocks.counts.max())
    step = max(1, CHUNK_NUMBERS // (longest * dx + len(left.i) + len(right.i)))
    for start in range(0, len(blocks.counts), step):
        if look is not None:
            look()
        part = slice(start, start + step)
        counts, begin = blocks.counts[part], blocks.begin[part]
        rows = slice(begin[0], begin[-1] + counts[-1])
        padded = np.zeros((len(counts), int(counts.max()), dx))
        inside = np.arange(padded.shape[1]) < counts[:, None]
        padded[inside] = blocks.a[rows] * np.sqrt(weights[rows])[:, None]
        squares = padded.mT @ padded
        b = blocks.queries[part]
        total += squares[:, left.i, left.j].T @ (b[:, right.i] * b[:, right.j])
    whole = total[left.place][:, :, right.place]  # (i, k, j, l)
    H = np.ascontiguousarray(whole.transpose(0, 2, 1, 3)).reshape(dx * dz, dx * dz)
    H.ravel()[:: len(H) + 1] += ridge
    return H
