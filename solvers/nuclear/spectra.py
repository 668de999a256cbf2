"""Singular values by direct LAPACK calls, and two quantities of unit rows that every nuclear-norm method needs."""

from __future__ import annotations

import numpy as np

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.unit import UnitRows

__all__ = ["pair_gap", "schur_matrix", "singular_triples", "singular_values"]

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
