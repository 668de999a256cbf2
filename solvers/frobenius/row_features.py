"""Preconditioners for the Gram matrix of some rank-one rows: a few features, and blocks of what these leave.

Tokens have a few directions along which they are long. In bases of such directions, u_i on the left and v_j on the
right, the products ``(a_k . u_i)(b_k . v_j)`` of the pairs (i, j) with the largest expected squares are features F of
the rows with ``F F^T <= G``. What is left of G is replaced by its diagonal blocks, D: rows of one query, and of its
neighbours, have most in common. ``(D + F F^T)^-1`` takes one matrix of features and the blocks, in float32. Without
features and with one block it is the inverse of G but for rounding.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.solvers.frobenius.proximal_newton import Metric
from attsvm.solvers.rows.protocol import Rows

__all__ = ["FeatureBasis", "QueryPreconditioner", "RowPreconditioner"]

SingleArray = npt.NDArray[np.float32]

# Rows that are written out at once, and rows that the directions are estimated from.
_CHUNK, _SAMPLE = 512, 2048
# Added to the unit diagonal of the blocks, and once more, ten times as large, where rounding of float32 leaves them
# indefinite.
_RIDGE, _LARGEST_RIDGE = 1e-6, 1e-2
# The ridge where features are subtracted: what they leave of a row may be rounding alone.
_FEATURE_RIDGE = 1e-4


class FeatureBasis:
    """Directions on both sides, and the pairs of them that matter most.

    Parameters
    ----------
    rows : Rows
    index : ndarray of int
        Rows that it is meant for; up to 2,048 of them are looked at.
    count : int
        Features at most.
    metric : Metric, optional
        Of the space that the rows act on.
    least : float
        Features whose expected square is below this multiple of the mean squared row norm, summed over all rows of the
        index, are left out: generic rows have none.

    Attributes
    ----------
    left, right : ndarray of float32, shapes (dx, r) and (dz, s)
    pairs : tuple of ndarray of int
        Columns of both that make each feature.
    weights : ndarray of float32, shape (count,), or None
        By which the metric stretches each feature.
    largest : float
        Expected square of the largest feature as a share of that of the rows.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import PairRows
    >>> from attsvm.solvers.frobenius.row_features import FeatureBasis
    >>> rows = PairRows([[3.0, 0.0], [0.0, 1.0]], [[1.0]], [0, 0])
    >>> np.abs(FeatureBasis(rows, np.arange(2), 1).left.ravel())
    array([1., 0.], dtype=float32)
    """

    def __init__(
        self, rows: Rows, index: IntArray, count: int, metric: Metric | None = None, least: float = 0.0
    ) -> None:
        dx, dz = rows.shape
        take = index[:: max(1, len(index) // _SAMPLE)]
        left, right = np.zeros((dx, dx)), np.zeros((dz, dz))
        for low in range(0, len(take), _CHUNK):
            a, b = _factors(rows, take[low : low + _CHUNK])
            left += a.T @ a
            right += b.T @ b
        l_sizes, l_stretch, U = _directions(left, None if metric is None else metric.left)
        r_sizes, r_stretch, V = _directions(right, None if metric is None else metric.right)
        sizes = np.outer(l_sizes, r_sizes)
        sizes *= 0.5 * (l_stretch[:, None] + r_stretch)
        total = float(sizes.sum()) or 1.0
        self.largest = float(sizes.max()) / total
        count = min(count, int(np.count_nonzero(len(index) * sizes > least * total)) if least else sizes.size)
        i, j = np.unravel_index(np.argpartition(-sizes.ravel(), max(count - 1, 0))[:count], sizes.shape)
        used_i, at_i = np.unique(i, return_inverse=True)
        used_j, at_j = np.unique(j, return_inverse=True)
        self.left, self.right = np.ascontiguousarray(U[:, used_i]), np.ascontiguousarray(V[:, used_j])
        self.pairs = (at_i, at_j)
        self.weights: SingleArray | None = None
        if metric is not None:
            self.weights = np.sqrt(0.5 * (l_stretch[i] + r_stretch[j])).astype(np.float32)

    @property
    def count(self) -> int:
        """Number of features."""
        return len(self.pairs[0])

    def features(self, a: SingleArray, b: SingleArray) -> SingleArray:
        """Features of rows that are written out, shape (p, count)."""
        i, j = self.pairs
        found = (a @ self.left)[:, i] * (b @ self.right)[:, j]
        return np.asarray(found if self.weights is None else found * self.weights, dtype=np.float32)


def _directions(moments: FloatArray, metric: FloatArray | None) -> tuple[FloatArray, FloatArray, SingleArray]:
    """Mean squares along directions, by how much the metric stretches those, and the directions as columns."""
    values, vectors = np.linalg.eigh(moments if metric is None else metric)
    values = np.maximum(values, 0.0)
    if metric is None:
        return values, np.ones(len(values)), vectors.astype(np.float32)
    return np.maximum(np.einsum("di,di->i", vectors, moments @ vectors), 0.0), values, vectors.astype(np.float32)


class QueryPreconditioner:
    """Inverses of the Gram matrices of the rows of each query, in float32: what generic rows need, for little.

    Parameters
    ----------
    rows : Rows
    index : ndarray of int, shape (p,)

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import PairRows
    >>> from attsvm.solvers.frobenius.row_features import QueryPreconditioner
    >>> rows = PairRows([[1.0, 0.0], [1.0, 1.0]], [[2.0]], [0, 0])
    >>> QueryPreconditioner(rows, np.arange(2))(np.array([4.0, 8.0])).round(2)  # of [[4, 4], [4, 8]]
    array([0., 1.])
    """

    def __init__(self, rows: Rows, index: IntArray) -> None:
        pair = rows.gather(index)
        used, segment, counts = np.unique(pair.owner, return_inverse=True, return_counts=True)
        widest, order = int(counts.max()), np.argsort(segment, kind="stable")
        self._place = np.empty(len(index), dtype=np.int64)
        self._place[order] = np.arange(len(index)) + np.repeat(
            np.arange(len(used)) * widest - np.cumsum(counts) + counts, counts
        )
        norms = rows.row_norms[index]
        self._scale = 1.0 / np.where(norms > 0, norms, 1.0)
        lengths = np.sqrt(np.vecdot(pair.queries, pair.queries))[pair.owner]
        padded = np.zeros((len(used) * widest, rows.shape[0]), dtype=np.float32)
        padded[self._place] = pair.a * (lengths * self._scale)[:, None]
        unit = padded.reshape(len(used), widest, -1)
        blocks = unit @ unit.mT
        corner = np.arange(widest)
        blocks[:, corner, corner] = 1.0 + _FEATURE_RIDGE
        self._inverse = np.linalg.inv(blocks)

    def __call__(self, y: FloatArray) -> FloatArray:
        """The inverses applied to y, shape (p,)."""
        padded = np.zeros(self._inverse.shape[0] * self._inverse.shape[1], dtype=np.float32)
        padded[self._place] = self._scale * y
        solved = np.matmul(self._inverse, padded.reshape(len(self._inverse), -1, 1)).reshape(-1)
        return np.asarray(self._scale * solved[self._place], dtype=np.float64)


class RowPreconditioner:
    """``(D + F F^T)^-1`` for the Gram matrix of some rows, in float32.

    Parameters
    ----------
    rows : Rows
    index : ndarray of int, shape (p,)
    basis : FeatureBasis or None
        No features where it is None.
    block : int
        Consecutive rows of a block of D, at most.
    metric : Metric, optional

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import PairRows
    >>> from attsvm.solvers.frobenius.row_features import RowPreconditioner
    >>> rows = PairRows([[1.0, 0.0], [1.0, 1.0]], [[2.0]], [0, 0])
    >>> RowPreconditioner(rows, np.arange(2), None, 2)(np.array([4.0, 8.0])).round(3)  # of [[4, 4], [4, 8]]
    array([0., 1.])
    """

    def __init__(
        self, rows: Rows, index: IntArray, basis: FeatureBasis | None, block: int, metric: Metric | None = None
    ) -> None:
        from scipy.linalg import lapack

        size = len(index)
        cuts = np.linspace(0, size, max(1, -(-size // max(block, 1))) + 1).astype(np.int64).tolist()
        self._pieces = [slice(low, high) for low, high in pairwise(cuts)]
        self._scale = np.ones(size)
        self._features: SingleArray = np.zeros((size, 0 if basis is None else basis.count), dtype=np.float32)
        self._factors: list[SingleArray] = []
        for part in self._pieces:
            a, b = self._unit_rows(rows, index, part, metric)
            if basis is not None:
                self._features[part] = basis.features(a, b)
            self._factors.append(_block_factor(a, b, self._features[part], metric))
            if self._features.shape[1]:
                solved, _ = lapack.strtrs(self._factors[-1], self._features[part], lower=1)
                self._features[part] = solved
        count = self._features.shape[1]
        inner = self._features.T @ self._features
        inner.ravel()[:: count + 1] += 1.0
        self._inner: SingleArray = inner
        if count:
            self._inner, fault = lapack.spotrf(inner, lower=1, overwrite_a=1)
            if fault:  # features that rounding of float32 makes too large: the blocks alone then
                self._features = self._features[:, :0]

    def _unit_rows(
        self, rows: Rows, index: IntArray, part: slice, metric: Metric | None
    ) -> tuple[SingleArray, SingleArray]:
        """Both factors of the rows of a block, of norm 1; only a few are ever written out in float64."""
        size, (dx, dz) = part.stop - part.start, rows.shape
        left, right = np.empty((size, dx), dtype=np.float32), np.empty((size, dz), dtype=np.float32)
        for low in range(0, size, _CHUNK):
            high = min(low + _CHUNK, size)
            some = slice(part.start + low, part.start + high)
            a, b = _factors(rows, index[some])
            squares = _squares(a, b, metric)
            self._scale[some] = 1.0 / np.sqrt(np.where(squares > 0, squares, 1.0))
            left[low:high], right[low:high] = a * self._scale[some, None], b
        return left, right

    def __call__(self, y: FloatArray) -> FloatArray:
        """``(D + F F^T)^-1 y``, shape (p,)."""
        from scipy.linalg import lapack

        out = (self._scale * y).astype(np.float32)
        for part, factor in zip(self._pieces, self._factors, strict=True):
            out[part] = lapack.strtrs(factor, out[part], lower=1)[0]
        if self._features.shape[1]:
            inner, _ = lapack.spotrs(self._inner, out @ self._features, lower=1)
            out -= self._features @ inner
        for part, factor in zip(self._pieces, self._factors, strict=True):
            out[part] = lapack.strtrs(factor, out[part], lower=1, trans=1)[0]
        return np.asarray(self._scale * out, dtype=np.float64)


def _block_factor(a: SingleArray, b: SingleArray, features: SingleArray, metric: Metric | None) -> SingleArray:
    """Lower Cholesky factor of the Gram matrix of unit rows less that of their features."""
    from scipy.linalg import lapack

    ridge, size = _RIDGE if not features.shape[1] else _FEATURE_RIDGE, len(a)
    while True:
        gram = _gram(a, b, metric)
        if features.shape[1]:
            gram -= features @ features.T
        gram.ravel()[:: size + 1] += np.float32(ridge)
        factor, fault = lapack.spotrf(gram.T, lower=1, overwrite_a=1, clean=0)
        if not fault:
            return np.asarray(factor)
        if ridge > _LARGEST_RIDGE:
            return np.asfortranarray(np.eye(size, dtype=np.float32))
        ridge *= 10.0


def _gram(left: SingleArray, right: SingleArray, metric: Metric | None) -> SingleArray:
    """Half of the Gram matrix of rows that are written out, formed by parts."""
    size = len(left)
    gram = np.zeros((size, size), dtype=np.float32)  # pages of the other half are never touched
    l_metric = None if metric is None else left @ metric.left.astype(np.float32)
    r_metric = None if metric is None else right @ metric.right.astype(np.float32)
    for low in range(0, size, _CHUNK):
        rows, before = slice(low, min(low + _CHUNK, size)), slice(low, size)  # the upper half of rows: lower of columns
        part = gram[rows, before]
        if l_metric is None or r_metric is None:
            np.matmul(left[rows], left[before].T, out=part)
            part *= right[rows] @ right[before].T
        else:
            np.matmul(l_metric[rows], left[before].T, out=part)
            part *= right[rows] @ right[before].T
            part += (left[rows] @ left[before].T) * (r_metric[rows] @ right[before].T)
            part *= np.float32(0.5)
    return gram


def _factors(rows: Rows, index: IntArray) -> tuple[FloatArray, FloatArray]:
    """Both factors of some rows, written out."""
    pair = rows.gather(index)
    return pair.a.astype(np.float64, copy=False), pair.queries[pair.owner].astype(np.float64, copy=False)


def _squares(a: FloatArray, b: FloatArray, metric: Metric | None) -> FloatArray:
    """Squared norms of rows in the metric, shape (s,)."""
    if metric is None:
        return np.asarray(np.vecdot(a, a) * np.vecdot(b, b))
    left, right = np.vecdot(a @ metric.left, a), np.vecdot(b @ metric.right, b)
    return np.asarray(0.5 * (left * np.vecdot(b, b) + np.vecdot(a, a) * right))
