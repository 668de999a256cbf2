"""Singular values by direct LAPACK calls, and two quantities of unit rows that every nuclear-norm method needs."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.unit import UnitRows

__all__ = ["active_map", "pair_gap", "schur_matrix", "singular_triples", "singular_values", "symmetric", "triangle"]

# Columns of workspace per row and column of a matrix to decompose: enough for blocked code.
_BLOCK = 64


def singular_values(matrix: FloatArray) -> FloatArray:
    """Singular values in descending order; infinite when they cannot be computed (NaN in the matrix).

    For matrices of a few columns NumPy's checks take longer than LAPACK, which is why it is called directly.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.nuclear.spectra import singular_values
    >>> singular_values(np.diag([1.0, 2.0]))
    array([2., 1.])
    """
    from scipy.linalg import lapack

    workspace = 14 * min(matrix.shape) + 8252 + _BLOCK * sum(matrix.shape)  # what LAPACK asks for, and blocks
    _, values, _, failed = lapack.dgesdd(matrix, compute_uv=0, lwork=workspace)
    return np.full(min(matrix.shape), np.inf) if failed else np.asarray(values)


def singular_triples(matrix: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray] | None:
    """``U, sigma, V^T`` of the thin singular value decomposition; None when it cannot be computed.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.nuclear.spectra import singular_triples
    >>> U, sigma, Vt = singular_triples(np.ones((3, 2)))
    >>> bool(np.allclose((U * sigma) @ Vt, 1.0))
    True
    """
    from scipy.linalg import lapack

    k = min(matrix.shape)
    workspace = k * (4 * k + 7) + _BLOCK * sum(matrix.shape)
    U, sigma, Vt, failed = lapack.dgesdd(matrix, full_matrices=0, lwork=workspace)
    return None if failed else (U, sigma, Vt)


def pair_gap(rows: UnitRows, W: FloatArray, lam: FloatArray) -> float:
    """Largest of relative gap, dual excess and missed rows: the certificate's measure in the scale of the unit rows.

    Parameters
    ----------
    rows : UnitRows
    W : ndarray, shape (p, q)
    lam : ndarray, shape (m,)
    """
    value = float(singular_values(W).sum())
    clipped = rows.clipped(lam)
    size = float(singular_values(rows.adjoint(clipped))[0])
    lower = float(rows.rhs @ clipped) / size if size > 0 else 0.0
    if not np.isfinite(value + lower):
        return float("inf")
    negative = float((clipped - lam).max())
    return max(abs(value - lower) / max(value, 1e-300), size - 1.0, negative, float(rows.missed(W).max()))


def schur_matrix(a: FloatArray, b: FloatArray, X: FloatArray, Y: FloatArray) -> FloatArray:
    """Matrix ``M_kl = <A_k, X A_l Y>`` of the rows ``A_k = [[0, a b^T], [b a^T, 0]] / 2``, shape (m, m)."""
    p = a.shape[1]
    a_X, a_Y = a @ X[:p], a @ Y[:p]
    M = a_X[:, :p] @ a.T
    M *= b @ Y[p:, p:] @ b.T
    other = a_Y[:, :p] @ a.T
    other *= b @ X[p:, p:] @ b.T
    M += other
    cross = a_X[:, p:] @ b.T
    cross *= b @ a_Y[:, p:].T
    M += cross
    M += cross.T
    M *= 0.25
    return np.asarray(M)


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
    >>> from attsvm.solvers.nuclear.spectra import active_map
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
