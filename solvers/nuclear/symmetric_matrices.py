"""Symmetric matrices packed as vectors (svec), and rows as functions of them.

``svec`` lists the upper triangle row by row, with off-diagonal entries times sqrt(2), so that it keeps inner products.
Newton's method, rank limits and the uniqueness certificate share it; it depends on none of them.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray

__all__ = ["active_map", "symmetric", "triangle"]


@lru_cache(maxsize=64)
def triangle(r: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], FloatArray, FloatArray]:
    """Upper-triangle indices of an r x r matrix, the factor of each entry in svec^{-1} and in `active_map`."""
    row, column = np.triu_indices(r)
    weight = np.where(row == column, 1.0, np.sqrt(0.5))
    return row, column, weight, np.where(row == column, 0.5, weight)


def active_map(a: FloatArray, b: FloatArray, left: FloatArray, right: FloatArray) -> FloatArray:
    """Rows as functions of a symmetric S: ``<a_k b_k^T, left S right^T> = out[k] . svec(S)``.

    Parameters
    ----------
    a, b : ndarray, shape (m, p) and (m, q)
    left, right : ndarray, shape (p, r) and (q, r)

    Returns
    -------
    ndarray, shape (m, r(r+1)/2)
        svec lists the upper triangle row by row, off-diagonal entries times sqrt(2) (an isometry).

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.nuclear.symmetric_matrices import active_map
    >>> active_map(np.eye(2), np.eye(2), np.eye(2), np.eye(2))
    array([[1., 0., 0.],
           [0., 0., 1.]])
    """
    row, column, _, weight = triangle(left.shape[1])
    u, v = a @ left, b @ right
    mapped = u.take(row, 1)
    mapped *= v.take(column, 1)
    mirrored = u.take(column, 1)
    mirrored *= v.take(row, 1)
    mapped += mirrored
    mapped *= weight
    return mapped


def symmetric(packed: FloatArray, r: int) -> FloatArray:
    """Inverse of svec: the symmetric r x r matrix of a packed vector."""
    row, column, weight, _ = triangle(r)
    S = np.empty((r, r))
    S[row, column] = S[column, row] = packed * weight
    return S
