"""Rows whose left factors are differences of shared vectors: the vectors are stored once, rows are implied.

Row k of query j reads ``(x_anchor - x_t)^T W z_j`` with two vectors of the block that the query reads. All margins
are differences of ``x_t^T W z_j``, two matrix products per block, and the adjoint moves the weights to the vectors
first. So memory is that of the vectors, of one number per row, and of one block of products; never one vector per
row.

A margin is the difference of two computed products here, not the product of a difference: errors scale with the sizes
of the vectors, not of their difference (`SharedRows.error_norms`), which is what certificates use.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import CHUNK_ELEMENTS, FloatArray, IntArray
from attsvm.solvers.rows.pairs import PairRows, Remainder

__all__ = ["SharedRows", "lost_in_difference"]


def lost_in_difference(x: npt.NDArray[np.floating[Any]], y: npt.NDArray[np.floating[Any]]) -> FloatArray:
    """What rounding took from ``x - y`` (the error-free difference of Knuth and Moller).

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.rows.shared import lost_in_difference
    >>> lost_in_difference(np.array([1.0]), np.array([2.0**-60])).tolist() == [-(2.0**-60)]
    True
    """
    x, y = x.astype(np.float64), y.astype(np.float64)
    a = x - y
    back = x - a
    return np.asarray((x - (a + back)) + (back - y))


class SharedRows:
    """Rows ``(x_anchor - x_t) z^T`` of vectors that are stored once; one problem.

    Parameters
    ----------
    vectors : ndarray, shape (n, T, dx)
        Blocks of vectors, float32 or float64; used as they are, so that they may be memory-mapped. Products are
        accumulated in float64, block by block.
    queries : ndarray, shape (q, dz)
    block : ndarray of int, shape (q,)
        Which block of vectors each query reads; nondecreasing.
    anchor : ndarray of int, shape (q,)
        The vector of the block that the others are compared with.
    owner, place : ndarray of int, shape (m,)
        Query of each row, nondecreasing, and the vector of the block that it is about.
    chunk : int
        Numbers of a block of products that are formed at once.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.rows.shared import SharedRows
    >>> X = np.array([[[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]])
    >>> rows = SharedRows(X, np.ones((1, 1)), np.array([0]), np.array([0]), np.array([0, 0]), np.array([1, 2]))
    >>> rows.margins([[3.0], [2.0]]), rows.gather([1]).a
    (array([1., 3.]), array([[1., 0.]]))
    """

    def __init__(
        self,
        vectors: npt.NDArray[np.floating[Any]],
        queries: npt.NDArray[np.floating[Any]],
        block: IntArray,
        anchor: IntArray,
        owner: IntArray,
        place: IntArray,
        chunk: int = CHUNK_ELEMENTS,
    ) -> None:
        _check(vectors, queries, block, anchor, owner, place)
        self.vectors, self.queries, self.owner = vectors, queries, owner
        self.group, self.anchor, self.place = block, anchor, place
        self.chunk = chunk
        self.kind: type[np.floating[Any]] = np.float64

    @property
    def batch(self) -> tuple[int, ...]:
        """One problem."""
        return ()

    @property
    def m(self) -> int:
        """Number of rows."""
        return len(self.owner)

    @property
    def q(self) -> int:
        """Number of queries."""
        return len(self.queries)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape ``(dx, dz)`` of W."""
        return int(self.vectors.shape[-1]), int(self.queries.shape[-1])

    @property
    def elements(self) -> int:
        """Entries of the vectors."""
        return int(self.vectors.size)

    def parts(self) -> Iterator[tuple[int, slice, slice]]:
        """Blocks of vectors with some of the queries that read them and their rows, as (block, queries, rows)."""
        starts = self._first_rows
        step = max(1, self.chunk // max(self.vectors.shape[1], self.shape[0]))
        first = np.flatnonzero(np.r_[True, self.group[1:] != self.group[:-1]])
        for begin, end in zip(first, np.r_[first[1:], self.q], strict=True):
            for low in range(int(begin), int(end), step):
                high = min(low + step, int(end))
                if starts[low] < starts[high]:
                    yield int(self.group[low]), slice(low, high), slice(int(starts[low]), int(starts[high]))

    @cached_property
    def _first_rows(self) -> IntArray:
        """First row of each query, and m; shape (q + 1,)."""
        return np.searchsorted(self.owner, np.arange(self.q + 1))

    def _block(self, i: int) -> FloatArray:
        return np.asarray(self.vectors[i], dtype=np.float64)

    def select(self, index: IntArray, kind: type[np.floating[Any]] = np.float64) -> SharedRows:
        """Some of the rows, in their order, with products in float32 or float64; vectors and queries are shared."""
        rows = copy(self)
        for name in ("_first_rows", "row_norms", "error_norms"):
            rows.__dict__.pop(name, None)
        rows.owner, rows.place, rows.kind = self.owner[index], self.place[index], kind
        return rows

    @cached_property
    def _lengths(self) -> tuple[FloatArray, FloatArray]:
        """Norms of the vectors (n, T) and of the queries (q,)."""
        sizes = np.stack([np.sqrt(np.vecdot(x, x)) for x in map(self._block, range(len(self.vectors)))])
        queries = self.queries.astype(np.float64, copy=False)
        return sizes, np.sqrt(np.vecdot(queries, queries))

    @cached_property
    def row_norms(self) -> FloatArray:
        """Frobenius norms ``|x_anchor - x_t| |z|``, shape (m,): from differences, so that equal vectors give 0."""
        out, right = np.empty(self.m), self._lengths[1]
        T, dx = self.vectors.shape[1:]
        for i, queries, rows in self.parts():
            X = self._block(i)
            anchors, which = np.unique(self.anchor[queries], return_inverse=True)
            apart = np.empty((len(anchors), T))
            step = max(1, self.chunk // (T * dx))
            for low in range(0, len(anchors), step):
                difference = X[anchors[low : low + step], None] - X
                apart[low : low + step] = np.sqrt(np.vecdot(difference, difference))
            owner = self.owner[rows]
            out[rows] = apart[which[owner - queries.start], self.place[rows]] * right[owner]
        return out

    @cached_property
    def error_norms(self) -> FloatArray:
        """What errors of margins and adjoint scale with: ``2 (|x_anchor| + |x_t|) |z|``, shape (m,).

        A row's weight goes to two vectors, whose sums have at most twice as many terms as there are rows: hence the 2.
        """
        sizes, right = self._lengths
        group = self.group[self.owner]
        total = sizes[group, self.anchor[self.owner]] + sizes[group, self.place]
        return np.asarray(2.0 * total * right[self.owner])

    def margins(self, W: npt.ArrayLike) -> FloatArray:
        """Values of all rows at W of shape (dx, dz), shape (m,)."""
        W = np.asarray(W, dtype=self.kind)
        if W.shape != self.shape:
            raise ValueError(f"W must have shape {self.shape}, got {W.shape}")
        out = np.empty(self.m)
        for i, queries, rows in self.parts():
            asked = self.queries[queries].astype(self.kind, copy=False)
            logits = (asked @ W.T) @ self.vectors[i].astype(self.kind, copy=False).T  # (queries, T)
            mine = self.owner[rows] - queries.start
            chosen = logits[np.arange(len(logits)), self.anchor[queries]]
            out[rows] = chosen[mine] - logits[mine, self.place[rows]]
        return out

    def adjoint(self, multipliers: npt.ArrayLike) -> FloatArray:
        """``sum_k lam_k (x_anchor - x_t) z^T``, shape (dx, dz)."""
        lam = np.asarray(multipliers, dtype=np.float64)
        if lam.shape != (self.m,):
            raise ValueError(f"multipliers must have shape {(self.m,)}, got {lam.shape}")
        total = np.zeros(self.shape, dtype=self.kind)
        T = self.vectors.shape[1]
        for i, queries, rows in self.parts():
            weight = lam[rows]
            if not weight.any():
                continue
            mine = self.owner[rows] - queries.start
            moved = np.zeros((queries.stop - queries.start, T), dtype=self.kind)
            moved[mine, self.place[rows]] = -weight
            moved[np.arange(len(moved)), self.anchor[queries]] += np.bincount(
                mine, weights=weight, minlength=len(moved)
            )
            block = self.vectors[i].astype(self.kind, copy=False)
            total += (moved @ block).T @ self.queries[queries].astype(self.kind, copy=False)
        return np.asarray(total, dtype=np.float64)

    def gather(self, index: npt.ArrayLike) -> PairRows:
        """The rows of an index or boolean mask as explicit pairs, correctly rounded differences in float64."""
        rows = np.asarray(index)
        if rows.dtype == bool:
            rows = np.flatnonzero(rows)
        owner, place = self.owner[rows], self.place[rows]
        group, anchor = self.group[owner], self.anchor[owner]
        a = np.subtract(self.vectors[group, anchor], self.vectors[group, place], dtype=np.float64)

        def remainder(part: IntArray) -> FloatArray:
            i = group[part]
            return lost_in_difference(self.vectors[i, anchor[part]], self.vectors[i, place[part]])

        def remainder_of(_: int) -> Remainder:
            return remainder

        return PairRows.trusted(a, self.queries, owner, remainder_of)

    def __getitem__(self, problem: int) -> SharedRows:
        raise IndexError("these rows belong to one problem; only a batch of rows can be indexed")

    def take(self, problems: IntArray) -> SharedRows:
        """There is one problem only."""
        raise IndexError("these rows belong to one problem; only a batch of rows can be taken from")


def _check(
    vectors: npt.NDArray[np.floating[Any]],
    queries: npt.NDArray[np.floating[Any]],
    block: IntArray,
    anchor: IntArray,
    owner: IntArray,
    place: IntArray,
) -> None:
    """Refuse arrays that do not fit together, by name."""
    for name, array, axes in (("vectors", vectors, 3), ("queries", queries, 2)):
        if not isinstance(array, np.ndarray) or array.ndim != axes or not array.size:
            raise ValueError(f"{name} must be a non-empty array of {axes} axes, got {np.shape(array)}")
        if array.dtype not in (np.float32, np.float64):
            raise ValueError(f"{name} must be float32 or float64, got {array.dtype}")
    n, T, q = int(vectors.shape[0]), int(vectors.shape[1]), len(queries)
    for name, index, most, size in (
        ("block", block, n, q),
        ("anchor", anchor, T, q),
        ("owner", owner, q, len(owner)),
        ("place", place, T, len(owner)),
    ):
        if index.shape != (size,) or not np.issubdtype(index.dtype, np.integer):
            raise ValueError(f"{name} must be {size} integers, got shape {index.shape} and dtype {index.dtype}")
        if size and (index.min() < 0 or index.max() >= most):
            raise ValueError(f"{name} must lie in [0, {most}), got {index.min()} to {index.max()}")
    if not len(owner):
        raise ValueError("owner must name at least one row")
    for name, index in (("block", block), ("owner", owner)):
        if (np.diff(index) < 0).any():
            raise ValueError(f"{name} must be in nondecreasing order")
