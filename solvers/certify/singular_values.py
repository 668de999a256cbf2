"""Bounds on computed singular values and nuclear norms: one assumed of LAPACK, others proved from the decomposition.

Notation and lemmas are those of `attsvm.solvers.certify.rounding`.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.certify.rounding import SLACK, TINY, UNIT_ROUNDOFF, down, gamma, settle

__all__ = [
    "decomposition_error",
    "factor_bound",
    "frame_defects",
    "least_eigenvalue",
    "nuclear_bounds",
    "proved_spectrum",
    "singular_value_bounds",
    "singular_value_error",
]


# Covers the roundings of a Frobenius norm of up to 2^30 entries.
_ABOVE = 1.0 + 2.0**-22


def singular_value_error(shape: tuple[int, int], largest: npt.ArrayLike) -> FloatArray:
    """ASSUMED bound on ``|fl(sigma_i) - sigma_i|`` for LAPACK's values: ``8 (m + n + 8) u sigma_1``.

    The LAPACK Users' Guide (3rd ed., section 4.9.1) states ``p(m, n) eps sigma_1`` with "p a modestly growing function"
    and uses p = 1 in its own error estimates; no constant is proved there. ``8 (m + n + 8)`` is this module's choice,
    more than four times the worst error met in its tests. Where a proof is wanted use `singular_value_bounds`.

    Parameters
    ----------
    shape : (m, n)
    largest : array_like
        Computed largest singular values.

    Examples
    --------
    >>> from attsvm.solvers.certify.singular_values import singular_value_error
    >>> f"{float(singular_value_error((10, 10), 1.0)):.1e}"
    '2.5e-14'
    """
    with np.errstate(over="ignore"):
        size = np.asarray(largest, dtype=np.float64)
        return settle(8.0 * (shape[0] + shape[1] + 8) * UNIT_ROUNDOFF * size + TINY)


def _size(x: FloatArray) -> FloatArray:
    """Upper bound of Frobenius norms; squares below 2^-1022 are covered by the last term, too large where all are."""
    flat = x.reshape(*x.shape[:-2], -1)
    n = flat.shape[-1]
    norm: FloatArray = np.sqrt(np.vecdot(flat, flat))
    norm *= 1.0 + gamma(n + 4)
    norm += n * 2.0**-510
    return norm


@lru_cache(maxsize=64)
def _identity(r: int) -> FloatArray:
    return np.eye(r)


def _identity_defect(gram: FloatArray, d: int) -> FloatArray:
    """Upper bound of ``||Q'Q - I||_F`` from computed products ``Q'Q`` of frames with d rows, which are overwritten."""
    r = gram.shape[-1]
    gram -= _identity(r)
    # The terms of an entry are at most |q_i| |q_j|, those of all entries ||Q||_F^2 <= r + sqrt(r) ||Q'Q - I||_F.
    share = gamma(d + 4) * 2.0 * r
    if share >= 0.5:
        return np.full(gram.shape[:-2], np.inf)
    return np.asarray((_size(gram) + share) * (SLACK / (1.0 - share)))


def decomposition_error(A: FloatArray, U: FloatArray, s: FloatArray, Vt: FloatArray) -> tuple[FloatArray, FloatArray]:
    """``grow`` and ``residual`` with ``sigma_i(A) <= grow s_i + residual``: PROVED, whatever routine found U, s, V.

    With ``A = U S V' + E``, ``||U'U - I|| <= p`` and ``||V'V - I|| <= q``: ``sigma_i(U S V') <= ||U|| s_i ||V||`` and
    ``||U||^2 <= 1 + p``, so ``grow = sqrt((1 + p)(1 + q))``; Weyl adds ``||E||_op <= ||E||_F <= residual``. Nuclear
    norms: ``||A||_* <= grow sum_i s_i + sqrt(r) residual``. Matrices whose squares stay in range.

    Parameters
    ----------
    A : ndarray, shape (..., m, n)
    U, s, Vt : ndarray, shapes (..., m, r), (..., r) and (..., r, n)
        s nonnegative and falling.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.certify.singular_values import decomposition_error
    >>> A = np.array([[3.0, 1.0], [1.0, 2.0]])
    >>> grow, residual = decomposition_error(A, *np.linalg.svd(A))
    >>> bool(1.0 <= grow < 1.0 + 1e-13), bool(residual < 1e-13)
    (True, True)
    """
    return _decomposition_error(A, U, s, Vt, *frame_defects(U, Vt))


def frame_defects(U: FloatArray, Vt: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Upper bounds of ``||U'U - I||_F`` and ``||V'V - I||_F``, and so of the distances from the polar factors.

    Parameters
    ----------
    U, Vt : ndarray, shapes (..., m, r) and (..., r, n)

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.certify.singular_values import frame_defects
    >>> p, q = frame_defects(np.eye(3, 2), 1.1 * np.eye(2, 3))
    >>> bool(p < 1e-14), bool(abs(q - 0.21 * np.sqrt(2)) < 1e-14)
    (True, True)
    """
    return (
        _identity_defect(U.mT @ U, U.shape[-2]),
        _identity_defect(Vt @ Vt.mT, Vt.shape[-1]),
    )


def _decomposition_error(
    A: FloatArray, U: FloatArray, s: FloatArray, Vt: FloatArray, p: FloatArray, q: FloatArray
) -> tuple[FloatArray, FloatArray]:
    r, entries = s.shape[-1], A.shape[-2] * A.shape[-1]
    grow = np.sqrt((1.0 + p) * (1.0 + q)) * SLACK
    # Terms of the product sum to at most sum_i s_i |u_i| |v_i|; the subtraction errs by u times its result.
    spread = 2.0 * gamma(r + 4)
    error = _size(A - (U * s[..., None, :]) @ Vt) * (1.0 + spread) + spread * np.add.reduce(s, axis=-1) * grow
    return grow, (error + entries * 2.0**-900) * SLACK


def least_eigenvalue(A: FloatArray) -> FloatArray:
    """PROVED lower bound on the least eigenvalue of symmetric matrices; 0 where none above it is proved.

    With ``A = Q L Q' + E`` from any routine and ``||Q'Q - I|| <= p < 1``: where ``L >= l > 0``,
    ``Q L Q' >= l (1 - p)``, and E takes at most ``||E||_F``.

    Parameters
    ----------
    A : ndarray, shape (..., p, p)
        Symmetric.

    Returns
    -------
    ndarray, shape (...,)

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.certify.singular_values import least_eigenvalue
    >>> print(least_eigenvalue(np.array([np.diag([1.0, 2.0]), np.zeros((2, 2))])).round(12))
    [1. 0.]
    """
    finite = np.asarray(np.isfinite(A).all(axis=(-2, -1)))
    values, Q = np.linalg.eigh(np.where(finite[..., None, None], A, 0.0))
    p = np.maximum(*frame_defects(Q, Q.mT))
    sound = finite & (values[..., 0] > 0) & (p < 1)
    with np.errstate(all="ignore"):  # what is not sound counts for nothing
        _, residual = _decomposition_error(A, Q, values, Q.mT, p, p)
        bound = values[..., 0] * (1.0 - p) / SLACK - residual
    return np.where(sound, np.maximum(bound, 0.0), 0.0)


def factor_bound(A: FloatArray, shift: float) -> float:
    """PROVED lower bound on the least eigenvalue of one symmetric matrix near ``shift``; 0 where it is not proved.

    If Cholesky's method in floating point runs to its end on B of order n, ``R'R = B + E`` with
    ``||E|| <= sum_j gamma(j + 1) / (1 - gamma(j + 1)) B_jj`` (S. M. Rump, "Verification of positive definiteness", BIT
    46, 2006), in whatever order sums are taken, so no eigenvalue of B is below minus that. Here B is A less the shift
    on the diagonal. A factor costs a tenth of the eigenvalues of `least_eigenvalue`.

    Parameters
    ----------
    A : ndarray, shape (n, n)
    shift : float
        Positive, somewhat below the least eigenvalue.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.certify.singular_values import factor_bound
    >>> A = np.array([[2.0, 1.0], [1.0, 2.0]])
    >>> 0.999 < factor_bound(A, 0.9999) < 0.9999, factor_bound(A, 1.5)
    (True, 0.0)
    """
    from scipy.linalg.lapack import dpotrf

    n = len(A)
    shifted = A.copy()
    shifted.ravel()[:: n + 1] -= shift
    diagonal = shifted.diagonal().copy()
    if not (np.isfinite(A).all() and (diagonal > 0).all()) or dpotrf(shifted.T, overwrite_a=1)[1]:
        return 0.0
    # Some libraries multiply by reciprocals of pivots: two roundings for one. The rounding of the diagonal above, and
    # sums that underflow, come on top of the errors of the factor.
    error = gamma(n + 8) * (1.0 + 2.0 * gamma(n + 8)) * float(diagonal.sum())
    error += UNIT_ROUNDOFF * (float(diagonal.max()) + shift) + n * n * 2.0**-1000
    return max(shift - error * SLACK * _ABOVE, 0.0)


@lru_cache(maxsize=256)
def _constants(d: int, e: int) -> tuple[float, float, float, float]:
    """For frames of a d x e matrix: what is added to both defects, the rounding of a product, and its underflow."""
    r = min(d, e)
    return gamma(d + 4) * 2.0 * r, gamma(e + 4) * 2.0 * r, 2.0 * gamma(r + 4), d * e * 2.0**-500


def proved_spectrum(A: FloatArray) -> tuple[FloatArray, float, float]:
    """Singular values of one small matrix, ``grow`` and ``residual``: `decomposition_error` without its overheads.

    Parameters
    ----------
    A : ndarray, shape (m, n)
        Squares stay in range, and ``max(m, n)`` is far below 2^50.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.certify.singular_values import proved_spectrum
    >>> values, grow, residual = proved_spectrum(np.diag([3.0, 4.0]))
    >>> bool(grow * values[0] + residual >= 4.0), residual < 1e-13
    (True, True)
    """
    from scipy.linalg.lapack import dgesdd  # the wrapper of numpy costs as much as a small decomposition

    U, s, Vt, failed = dgesdd(A, full_matrices=0)
    if failed:
        U, s, Vt = np.linalg.svd(A, full_matrices=False)
    share_u, share_v, spread, lost = _constants(*A.shape)
    one = _identity(len(s))
    left, right, rest = U.T.dot(U) - one, Vt.dot(Vt.T) - one, A - (U * s).dot(Vt)
    # Frobenius norms of n entries are right to gamma(n + 2), far below the last factors.
    norms = [math.sqrt(x.dot(x)) for x in (left.ravel(), right.ravel(), rest.ravel())]
    p, q = (
        (norm * _ABOVE + lost + share) / (1.0 - share)
        for norm, share in zip(norms[:2], (share_u, share_v), strict=True)
    )
    grow = math.sqrt((1.0 + p) * (1.0 + q)) * SLACK
    return s, grow, (norms[2] * _ABOVE + spread * math.fsum(s.tolist()) * grow + lost) * _ABOVE


def singular_value_bounds(
    matrix: npt.ArrayLike, svd: tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike] | None = None
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """PROVED bounds on all singular values from an approximate decomposition, wherever it comes from.

    With ``A = U S V' + E``, ``||U'U - I|| <= p < 1`` and ``||V'V - I|| <= q < 1``: polar factors of U and V give
    ``sqrt((1-p)(1-q)) s_i <= sigma_i(U S V') <= sqrt((1+p)(1+q)) s_i`` (Ostrowski: multiplying by a matrix changes
    sorted singular values by factors between its smallest and largest one), and Weyl adds ``||E||_op``. The norms of
    E, ``U'U - I`` and ``V'V - I`` are computed with the errors of their own products (lemma 1), so nothing is assumed
    about the routine that found U, S, V.

    Parameters
    ----------
    matrix : array_like, shape (..., m, n)
    svd : (U, s, Vt), optional
        Reduced decomposition, s sorted downwards; computed when not given.

    Returns
    -------
    lower, upper : ndarray, shape (..., min(m, n))
    residual : ndarray, shape (...)
        Upper bound of ``||E||_F``.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.certify.singular_values import singular_value_bounds
    >>> lower, upper, _ = singular_value_bounds(np.array([[3.0, 0.0], [4.0, 0.0]]))
    >>> bool(lower[0] <= 5 <= upper[0] <= lower[0] + 1e-13), lower[1]
    (True, np.float64(0.0))
    """
    A = np.asarray(matrix, dtype=np.float64)
    parts = np.linalg.svd(A, full_matrices=False) if svd is None else svd
    U, s, Vt = (np.asarray(part, dtype=np.float64) for part in parts)
    exponent = np.frexp(s[..., 0])[1]  # scaled by a power of two, so that squares stay in range
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        small, values = np.ldexp(A, -exponent[..., None, None]), np.ldexp(s, -exponent[..., None])
        p, q = frame_defects(U, Vt)
        grow, residual = _decomposition_error(small, U, values, Vt, p, q)
        grow = np.where(np.maximum(p, q) < 1.0, grow, np.inf)
        shrink = np.sqrt(np.maximum(1.0 - p, 0.0) * np.maximum(1.0 - q, 0.0)) / SLACK
        residual = settle(residual)[..., None]
        lower = down(down(values * shrink[..., None]) - residual)
        upper = settle(settle(values * grow[..., None]) + residual)
        lower, upper, residual = (np.ldexp(x, exponent[..., None]) for x in (lower, upper, residual))
    # Scaling back rounds only below the normal range.
    return np.where(lower > TINY, lower, 0.0), settle(upper + TINY), settle(residual + TINY)[..., 0]


def nuclear_bounds(
    matrix: npt.ArrayLike, svd: tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike] | None = None
) -> tuple[FloatArray, FloatArray]:
    """PROVED lower and upper bounds of nuclear norms.

    As in `singular_value_bounds`, with ``| ||A||_* - ||U S V'||_* | <= ||E||_* <= sqrt(r) ||E||_F``: sharper than the
    sum of the bounds on single values.

    Parameters
    ----------
    matrix : array_like, shape (..., m, n)
    svd : (U, s, Vt), optional

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.certify.singular_values import nuclear_bounds
    >>> lower, upper = nuclear_bounds(np.diag([3.0, 4.0]))
    >>> bool(lower <= 7 <= upper <= lower + 1e-12)
    True
    """
    lower, upper, residual = singular_value_bounds(matrix, svd)
    r = lower.shape[-1]
    saved = (r - np.sqrt(float(r))) * residual / SLACK  # r residuals were added, sqrt(r) are enough
    spread = gamma(r + 4)
    floor = np.maximum(lower.sum(axis=-1), 0.0) * (1.0 - spread)
    return np.asarray(floor), settle(np.maximum(upper.sum(axis=-1) * (1.0 + spread) - saved, 0.0))
