"""A few features that carry the large eigenvalues of a Gram matrix of rank-one rows: a preconditioner.

Tokens have a few directions along which they are long. In bases of such directions, u_i on the left and v_j on the
right, the products ``(a_k . u_i)(b_k . v_j)`` of the pairs (i, j) with the largest expected squares are features F of
the rows with ``F F^T <= G``; what is left of G is replaced by its diagonal. ``(D + F F^T)^-1`` costs one matrix of
features, in float32, and conjugate gradients then take a few dozen products where they would take hundreds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.solvers.frobenius.face_system import Metric
from attsvm.solvers.rows.protocol import Rows

__all__ = ["FeatureBasis", "FeaturePreconditioner"]

# Rows that are written out at once, and rows that the directions are estimated from.
_CHUNK, _SAMPLE = 256, 2048
# What is left of a diagonal is taken to be at least this share of it.
_LEAST = 1e-3


class FeatureBasis:
    """Directions on both sides, and the pairs of them that matter most.

    Parameters
    ----------
    rows : Rows
    index : ndarray of int
        Rows that it is meant for; up to 2,048 of them are looked at.
    count : int
        Features.
    metric : Metric, optional
        Of the space that the rows act on.

    Attributes
    ----------
    left, right : ndarray of float32, shapes (dx, r) and (dz, s)
    pairs : tuple of ndarray of int
        Columns of both that make each feature.
    weights : ndarray of float32, shape (count,), or None
        By which the metric stretches each feature.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import PairRows
    >>> from attsvm.solvers.frobenius.row_features import FeatureBasis
    >>> rows = PairRows([[3.0, 0.0], [0.0, 1.0]], [[1.0]], [0, 0])
    >>> np.abs(FeatureBasis(rows, np.arange(2), 1).left.ravel())
    array([1., 0.], dtype=float32)
    """

    def __init__(self, rows: Rows, index: IntArray, count: int, metric: Metric | None = None) -> None:
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
        count = min(count, sizes.size)
        i, j = np.unravel_index(np.argpartition(-sizes.ravel(), count - 1)[:count], sizes.shape)
        used_i, at_i = np.unique(i, return_inverse=True)
        used_j, at_j = np.unique(j, return_inverse=True)
        self.left, self.right = np.ascontiguousarray(U[:, used_i]), np.ascontiguousarray(V[:, used_j])
        self.pairs = (at_i, at_j)
        self.weights: npt.NDArray[np.float32] | None = None
        if metric is not None:
            self.weights = np.sqrt(0.5 * (l_stretch[i] + r_stretch[j])).astype(np.float32)


def _directions(
    moments: FloatArray, metric: FloatArray | None
) -> tuple[FloatArray, FloatArray, npt.NDArray[np.float32]]:
    """Mean squares along directions, by how much the metric stretches those, and the directions as columns."""
    values, vectors = np.linalg.eigh(moments if metric is None else metric)
    values = np.maximum(values, 0.0)
    if metric is None:
        return values, np.ones(len(values)), vectors.astype(np.float32)
    return np.maximum(np.einsum("di,di->i", vectors, moments @ vectors), 0.0), values, vectors.astype(np.float32)


class FeaturePreconditioner:
    """``(D + F F^T)^-1`` for the Gram matrix of some rows, in float32.

    Parameters
    ----------
    basis : FeatureBasis
    rows : Rows
    index : ndarray of int, shape (s,)
    metric : Metric, optional

    Attributes
    ----------
    root : ndarray of float32, shape (s,)
        ``D^-1/2``.
    features : ndarray of float32, shape (s, count)
        ``D^-1/2 F``.
    factor : ndarray of float32, shape (count, count)
        Lower Cholesky factor of ``I + F^T D^-1 F``.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import PairRows
    >>> from attsvm.solvers.frobenius.row_features import FeatureBasis, FeaturePreconditioner
    >>> rows = PairRows(np.eye(3), [[2.0]], [0, 0, 0])
    >>> index = np.arange(2)
    >>> FeaturePreconditioner(FeatureBasis(rows, index, 1), rows, index)(np.array([4.0, 8.0])).round(2)
    array([1., 2.])
    """

    def __init__(self, basis: FeatureBasis, rows: Rows, index: IntArray, metric: Metric | None = None) -> None:
        from scipy.linalg import lapack

        size, count = len(index), len(basis.pairs[0])
        self.features: npt.NDArray[np.float32] = np.empty((size, count), dtype=np.float32)
        diagonal = np.empty(size)
        i, j = basis.pairs
        for low in range(0, size, _CHUNK):
            part = slice(low, min(low + _CHUNK, size))
            a, b = _factors(rows, index[part])
            block = self.features[part]
            np.multiply((a.astype(np.float32) @ basis.left)[:, i], (b.astype(np.float32) @ basis.right)[:, j], block)
            if basis.weights is not None:
                block *= basis.weights
            diagonal[part] = _squares(a, b, metric)
        rest = diagonal - np.vecdot(self.features, self.features)
        largest = float(diagonal.max(initial=0.0)) or 1.0
        self.root = (1.0 / np.sqrt(np.maximum(rest, np.maximum(_LEAST * diagonal, 1e-12 * largest)))).astype(np.float32)
        self.features *= self.root[:, None]
        inner = self.features.T @ self.features
        inner.ravel()[:: count + 1] += 1.0
        self.factor: npt.NDArray[np.float32]
        self.factor, fault = lapack.spotrf(inner, lower=1, overwrite_a=1, clean=1)
        if fault:  # features that rounding of float32 makes too large: the diagonal alone then
            self.features, self.factor = self.features[:, :0], np.zeros((0, 0), dtype=np.float32)

    def __call__(self, y: FloatArray) -> FloatArray:
        """``(D + F F^T)^-1 y``, shape (s,)."""
        from scipy.linalg import lapack

        scaled = self.root * y.astype(np.float32)
        if len(self.factor):
            inner, _ = lapack.spotrs(self.factor, scaled @ self.features, lower=1)
            scaled -= self.features @ inner
        return np.asarray(self.root * scaled, dtype=np.float64)


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
