"""From an interior point of the l_inf norm to the vertex that it tends to.

At a vertex the rows A with a multiplier hold with equality, all entries of W but those in J are ``+-r``, and
``|A| = |J| + 1``: A and J are read off an interior point long before its gap is small. With ``V = W / r`` and
``t = 1 / r``, one matrix then gives both sides,

    [F_AJ  -c_A] (V_J, t) = -F_A sign,        [F_AJ  -c_A]' lam_A = (0, ..., 0, -1),

and what comes out is optimal if no bound, row or sign is missed: that is checked, not assumed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attsvm.solvers.arrays import FloatArray, IntArray

__all__ = ["InteriorPair", "linf_vertices", "vertex_at"]

# What a bound, a row and the relative gap of a vertex may miss by rounding.
_ROUNDING = 1e-11
# Gap above which A and J are not worth a look.
_LARGEST_GAP = 0.1


class InteriorPair(NamedTuple):
    """Interior points of a batch.

    Attributes
    ----------
    W : ndarray, shape (B, N)
    room : ndarray, shape (B, 2 N)
        ``r - W`` and ``r + W``.
    price : ndarray, shape (B, 2 N)
        Their multipliers.
    """

    W: FloatArray
    room: FloatArray
    price: FloatArray


def linf_vertices(
    F: FloatArray, c: FloatArray, lam: FloatArray, slack: FloatArray, gap: FloatArray, pair: InteriorPair
) -> tuple[IntArray, FloatArray, FloatArray]:
    """The problems of a batch whose vertex is found, with its W and multipliers.

    Parameters
    ----------
    F : ndarray, shape (B, m, N)
    c, lam, slack : ndarray, shape (B, m)
    gap : ndarray, shape (B,)
    pair : InteriorPair

    Returns
    -------
    index : ndarray of int, shape (k,)
    W : ndarray, shape (k, N)
    multipliers : ndarray, shape (k, m)
    """
    N = F.shape[-1]
    # Complementary numbers, each relative to the largest of its kind: what is larger is not 0.
    rows = lam / lam.max(axis=-1, keepdims=True) > slack / slack.max(axis=-1, keepdims=True)
    price = np.maximum(pair.price[:, :N], pair.price[:, N:]) / pair.price.max(axis=-1, keepdims=True)
    room = np.minimum(pair.room[:, :N], pair.room[:, N:]) / pair.room.max(axis=-1, keepdims=True)
    inner = price < room
    square = (np.count_nonzero(rows, axis=-1) == np.count_nonzero(inner, axis=-1) + 1) & (gap < _LARGEST_GAP)
    found = []
    for i in square.nonzero()[0].tolist():
        vertex = vertex_at(F[i], c[i], rows[i].nonzero()[0], inner[i].nonzero()[0], np.sign(pair.W[i]))
        if vertex is not None:
            found.append((i, *vertex))
    if not found:
        return np.zeros(0, dtype=np.int64), np.zeros((0, N)), np.zeros((0, F.shape[-2]))
    index, W, multipliers = zip(*found, strict=True)
    return np.array(index), np.stack(W), np.stack(multipliers)


def vertex_at(
    F: FloatArray, c: FloatArray, rows: IntArray, inner: IntArray, signs: FloatArray
) -> tuple[FloatArray, FloatArray] | None:
    """W and multipliers of the vertex with these rows and inner entries; None unless it is optimal to rounding.

    Examples
    --------
    ``W_1 + 2 W_2 >= 3`` and ``|W|_inf`` least: both entries 1, and no inner one.

    >>> import numpy as np
    >>> from attsvm.solvers.other_norms.crossover import vertex_at
    >>> none = np.zeros(0, dtype=np.int64)
    >>> vertex_at(np.array([[1.0, 2.0]]), np.array([3.0]), np.array([0]), none, np.ones(2))
    (array([1., 1.]), array([0.33333333]))
    >>> vertex_at(np.array([[1.0, 2.0]]), np.array([3.0]), np.array([0]), none, np.array([-1.0, 1.0])) is None
    True
    """
    from scipy.linalg import lapack

    part, count = F[rows], len(rows)
    matrix = np.empty((count, count), order="F")
    matrix[:, :-1], matrix[:, -1] = part[:, inner], -c[rows]
    V = signs.copy()
    V[inner] = 0.0
    factor, pivots, failed = lapack.dgetrf(matrix, overwrite_a=1)
    if failed:
        return None
    solved = lapack.dgetrs(factor, pivots, -(part @ V))[0]
    last = np.zeros(count)
    last[-1] = -1.0
    own = lapack.dgetrs(factor, pivots, last, trans=1)[0]
    V[inner], t = solved[:-1], float(solved[-1])
    D = own @ part
    missed = max(float(np.abs(V).max()) - 1.0, float(-own.min()), float((t * c - F @ V).max()))
    # c . lam is 1: what is left of t is the gap.
    if not (t > 0.0 and missed <= _ROUNDING and float(np.abs(D).sum()) <= t * (1.0 + _ROUNDING)):
        return None
    multipliers = np.zeros(len(c))
    multipliers[rows] = np.maximum(own, 0.0)
    return V / t, multipliers
