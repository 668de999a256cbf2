"""Bounds on computed singular values and nuclear norms: one assumed of LAPACK, one proved from the decomposition.

Notation and lemmas are those of `attsvm.solvers.rounding`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.rounding import SLACK, TINY, UNIT_ROUNDOFF, down, gamma, settle

__all__ = ["nuclear_bounds", "singular_value_bounds", "singular_value_error"]


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
    >>> from attsvm.solvers.spectral_bounds import singular_value_error
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
    return np.asarray(np.sqrt(np.einsum("...d,...d->...", flat, flat)) * (1.0 + gamma(n + 4)) + n * 2.0**-510)


def _identity_defect(frame: FloatArray) -> FloatArray:
    """Upper bound of ``||Q'Q - I||_F`` for frames Q of shape (..., d, r)."""
    d, r = frame.shape[-2:]
    product = np.swapaxes(frame, -1, -2) @ frame
    product[..., np.arange(r), np.arange(r)] -= 1.0
    # The terms of an entry are at most |q_i| |q_j|, those of all entries ||Q||_F^2 <= r + sqrt(r) ||Q'Q - I||_F.
    computed = _size(product)
    share = gamma(d + 4) * 2.0
    if share * r >= 0.5:
        return np.full_like(computed, np.inf)
    return settle((computed + share * r) / (1.0 - share * r))


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
    >>> from attsvm.solvers.spectral_bounds import singular_value_bounds
    >>> lower, upper, _ = singular_value_bounds(np.array([[3.0, 0.0], [4.0, 0.0]]))
    >>> bool(lower[0] <= 5 <= upper[0] <= lower[0] + 1e-13), lower[1]
    (True, np.float64(0.0))
    """
    A = np.asarray(matrix, dtype=np.float64)
    parts = np.linalg.svd(A, full_matrices=False) if svd is None else svd
    U, s, Vt = (np.asarray(part, dtype=np.float64) for part in parts)
    exponent = np.frexp(s[..., 0])[1]  # scaled by a power of two, so that squares stay in range
    p, q = _identity_defect(U), _identity_defect(np.swapaxes(Vt, -1, -2))
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        small, values = np.ldexp(A, -exponent[..., None, None]), np.ldexp(s, -exponent[..., None])
        r, entries = s.shape[-1], A.shape[-2] * A.shape[-1]
        grow = np.where(np.maximum(p, q) < 1.0, np.sqrt((1.0 + p) * (1.0 + q)) * SLACK, np.inf)
        shrink = np.sqrt(np.maximum(1.0 - p, 0.0) * np.maximum(1.0 - q, 0.0)) / SLACK
        error = _size(small - (U * values[..., None, :]) @ Vt)
        # Terms of the product sum to at most sum_i s_i |u_i| |v_i|; the size of A is met in the last subtraction.
        terms = values.sum(axis=-1) * grow * (1.0 + gamma(r))
        residual = settle(error + gamma(r + 4) * (_size(small) + terms) + entries * 2.0**-900)[..., None]
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
    >>> from attsvm.solvers.spectral_bounds import nuclear_bounds
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
