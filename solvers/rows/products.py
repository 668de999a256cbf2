"""Products with some of the rows, and normal matrices of the order of the entries of W."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import CHUNK_ELEMENTS, FloatArray, IntArray
from attsvm.solvers.rows.pairs import PairRows
from attsvm.solvers.rows.protocol import Rows
from attsvm.solvers.rows.shared import SharedRows

__all__ = ["CHUNK_NUMBERS", "ChosenRows", "QueryBlocks", "RowProducts", "by_query", "chosen", "normal_matrix"]

# Rows of a query up to which one batched product for all queries beats one product per query, and how many times the
# memory of the rows it may take.
_WIDEST, _PADDING = 64, 2.5


class RowProducts(Protocol):
    """Margins of some rows and their combinations."""

    def margins(self, W: npt.ArrayLike) -> FloatArray:
        """Values of the rows at W of shape (dx, dz), shape (p,)."""
        ...

    def adjoint(self, multipliers: npt.ArrayLike) -> FloatArray:
        """Combination of the rows, shape (dx, dz)."""
        ...


class ChosenRows:
    """Some rows written out once, by query.

    Queries of about as many rows each, and not too many, stand in one array with zeros behind the rows of the shorter
    ones: one batched product for all. Otherwise there is one product per query.

    Parameters
    ----------
    rows : Rows
        One problem.
    index : ndarray of int, shape (p,)
    kind : type
        float32 halves memory and traffic; products are then right to about 1e-6.
    weights : ndarray, shape (p,), optional
        What each row is multiplied by.

    Attributes
    ----------
    queries : ndarray, shape (used, dz)
        The queries that own one of the rows.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import PairRows
    >>> from attsvm.solvers.rows.products import ChosenRows
    >>> rows = ChosenRows(PairRows(2 * np.eye(3), [[1.0], [4.0]], [1, 0, 0]), np.array([0, 2]))
    >>> rows.margins(np.ones((3, 1))), rows.adjoint([1.0, 3.0]).ravel(), rows.gram_product(np.array([1.0, 3.0]))
    (array([8., 2.]), array([8., 0., 6.]), array([64., 12.]))
    """

    def __init__(
        self,
        rows: Rows,
        index: IntArray,
        kind: type[np.floating[Any]] = np.float64,
        weights: FloatArray | None = None,
    ) -> None:
        owner = rows.owner[index]
        order = None
        if (owner[1:] < owner[:-1]).any():
            order = np.argsort(owner, kind="stable")
            index, owner = index[order], owner[order]
            weights = None if weights is None else weights[order]
        self.shape, self.kind = rows.shape, kind
        used, starts, counts = np.unique(owner, return_index=True, return_counts=True)
        widest = int(counts.max(initial=0))
        self._together = widest <= _WIDEST and len(used) * widest <= _PADDING * len(index)
        place = np.arange(len(index))
        ends = np.cumsum(counts)
        if self._together:  # where the sorted rows stand among zeros
            segment = np.repeat(np.arange(len(used)), counts)
            place = segment * widest + place - starts[segment]
            starts = np.arange(len(used)) * widest
            ends = starts + widest
        self._a: npt.NDArray[np.floating[Any]] = np.zeros((int(ends[-1]) if len(ends) else 0, rows.shape[0]), kind)
        step = max(1, CHUNK_ELEMENTS // rows.shape[0])
        for low in range(0, max(len(index), 1), step):  # only a part is ever held twice
            part = slice(low, low + step)
            pair = rows.gather(index[part])
            a = pair.a if weights is None else pair.a * weights[part, None]
            self._a[place[part]] = a
        self.queries = pair.queries[used].astype(kind, copy=False)
        self._place = place  # of the rows as they were given
        if order is not None:
            self._place = np.empty_like(place)
            self._place[order] = place
        self._blocks = self._a.reshape(len(used), -1, rows.shape[0]) if self._together else None
        self._pieces = [] if self._together else list(map(slice, starts.tolist(), ends.tolist()))
        q, dz = self.queries.shape
        self._kernel = self.queries @ self.queries.T if self._together and q <= 2 * dz else None

    def moments(self) -> FloatArray:
        """``sum_k a_k a_k'``, shape (dx, dx)."""
        return np.asarray(self._a.T @ self._a, dtype=np.float64)

    def _scores(self, keys: npt.NDArray[Any]) -> FloatArray:
        """``a_k . keys[query of k]``, shape (p,)."""
        if self._blocks is not None:
            out = np.matmul(self._blocks, keys[:, :, None]).reshape(-1)
        else:
            out = np.empty(len(self._a), dtype=self.kind)
            for i, rows in enumerate(self._pieces):
                np.dot(self._a[rows], keys[i], out=out[rows])
        return np.asarray(out[self._place], dtype=np.float64)

    def _combined(self, multipliers: npt.ArrayLike) -> npt.NDArray[Any]:
        """``sum_k lam_k a_k`` over the rows of each query, shape (used, dx)."""
        lam = np.zeros(len(self._a), dtype=self.kind)
        lam[self._place] = multipliers
        if self._blocks is not None:
            return np.asarray(np.matmul(lam.reshape(len(self._blocks), 1, -1), self._blocks)[:, 0])
        combined = np.zeros((len(self.queries), self.shape[0]), dtype=self.kind)
        for i, rows in enumerate(self._pieces):
            np.dot(lam[rows], self._a[rows], out=combined[i])
        return combined

    def margins(self, W: npt.ArrayLike) -> FloatArray:
        """Values of the rows at W of shape (dx, dz), shape (p,)."""
        return self._scores(self.queries @ np.asarray(W, dtype=self.kind).T)

    def adjoint(self, multipliers: npt.ArrayLike) -> FloatArray:
        """``sum_k lam_k a_k b_k^T``, shape (dx, dz)."""
        return np.asarray(self._combined(multipliers).T @ self.queries, dtype=np.float64)

    def gram_product(self, multipliers: npt.ArrayLike) -> FloatArray:
        """Values of the rows at their combination, shape (p,); by the products of queries where that is cheaper."""
        combined = self._combined(multipliers)
        if self._kernel is not None:
            return self._scores(self._kernel @ combined)
        return self._scores(self.queries @ (self.queries.T @ combined))


def chosen(rows: Rows, index: IntArray, kind: type[np.floating[Any]]) -> RowProducts:
    """Products with some rows: shared vectors stay shared, other rows are written out once.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import PairRows
    >>> from attsvm.solvers.rows.products import chosen
    >>> chosen(PairRows(np.eye(2), [[1.0]], [0, 0]), np.array([1]), np.float32).margins([[2.0], [3.0]])
    array([3.])
    """
    return rows.select(index, kind) if isinstance(rows, SharedRows) else ChosenRows(rows, index, kind)


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
    >>> from attsvm.solvers.rows.products import by_query, normal_matrix
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
