"""Running error bounds in float64: how far computed margins, sums, norms and singular values may be from exact ones.

The arithmetic is IEEE double precision rounded to nearest, ``fl(x op y) = (x op y)(1 + d)`` with ``|d| <= u = 2^-53``,
and every bound below holds for any order of summation, with or without fused multiply-add.

Lemma 1 (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1). A product of k factors
``(1 + d)^(+-1)`` is ``1 + t`` with ``|t| <= gamma(k) = k u / (1 - k u)``. So a computed inner product of n terms has
error at most ``gamma(n) |x|'|y|``, and one that is fed computed terms adds their counts of roundings.

Lemma 2. A row ``a = fl(x - y)`` misses ``x - y`` by at most ``u |a|`` in every entry (half a unit in the last place).
One more rounding in the count therefore covers rows that are correctly rounded differences; every bound includes it.

Lemma 3 (underflow). A product or sum that underflows, also one flushed to zero, errs by less than 2^-1022. Products of
k such errors with norms are added, so the bounds hold for data of any size. An overflow makes a bound infinite.

Lemma 4 (norm-wise). ``|a|' |W| |b| <= |a|_2 |W|_F |b|_2``, as the Frobenius norm of ``|W|`` is that of W.

The bounds are themselves computed in float64 and rounded up by more than the roundings of their own evaluation. All
functions take leading batch axes; sizes and norms may come from `norm_bounds` once and serve many calls.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray, IntArray

__all__ = [
    "SLACK",
    "TINY",
    "UNIT_ROUNDOFF",
    "dot_error",
    "down",
    "dual_bound",
    "gamma",
    "margin_error",
    "margin_error_by_entries",
    "norm_bounds",
    "settle",
    "up",
]

UNIT_ROUNDOFF = 2.0**-53
TINY = 2.0**-1022  # below it results lose relative accuracy
SLACK = 1.0 + 2.0**-49  # 16 u: covers up to 14 roundings in the evaluation of a bound
# Sums of squares in this range neither overflowed nor lost more than a part in 2^100 to underflow.
_SAFE_SQUARES = (2.0**-900, 2.0**900)


def gamma(roundings: int) -> float:
    """``k u / (1 - k u)``, rounded up: bound on the relative effect of k roundings (lemma 1).

    Examples
    --------
    >>> from attsvm.solvers.certify.rounding import gamma
    >>> f"{gamma(10):.3e}"
    '1.110e-15'
    """
    share = roundings * UNIT_ROUNDOFF
    if not 0 <= share < 0.5:
        raise ValueError(f"roundings must lie in [0, 2^52), got {roundings}")
    return share / (1.0 - share) * SLACK


def up(x: npt.ArrayLike) -> FloatArray:
    """The next float64 above: an upper bound of the real number whose rounding to nearest is x.

    Examples
    --------
    >>> from fractions import Fraction
    >>> from attsvm.solvers.certify.rounding import down, up
    >>> third = 1.0 / 3.0
    >>> Fraction(float(down(third))) < Fraction(1, 3) < Fraction(float(up(third)))
    True
    """
    return np.asarray(np.nextafter(np.asarray(x, dtype=np.float64), np.inf))


def down(x: npt.ArrayLike) -> FloatArray:
    """The next float64 below: a lower bound of the real number whose rounding to nearest is x.

    Examples
    --------
    >>> from attsvm.solvers.certify.rounding import down
    >>> float(down(1.0)) == 1 - 2.0**-53
    True
    """
    return np.asarray(np.nextafter(np.asarray(x, dtype=np.float64), -np.inf))


def settle(bound: npt.ArrayLike) -> FloatArray:
    """A bound raised by more than the roundings of its evaluation; infinite where it is not a number.

    Examples
    --------
    >>> from attsvm.solvers.certify.rounding import settle
    >>> float(settle(float("nan")))
    inf
    """
    value = np.asarray(bound, dtype=np.float64) * SLACK
    return np.asarray(np.where(np.isnan(value), np.inf, value))


def _scaled_norm(x: FloatArray) -> FloatArray:
    """Euclidean norms over the last axis where squares would leave the range: scaled by a power of two first."""
    peak = np.abs(x).max(axis=-1, initial=0.0)
    exponent = np.where(np.isfinite(peak), np.frexp(peak)[1], 0)
    small = np.ldexp(x, -exponent[..., None])
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(np.ldexp(np.sqrt(np.einsum("...d,...d->...", small, small)), exponent))


def norm_bounds(x: npt.ArrayLike, axes: int = 1) -> tuple[FloatArray, FloatArray]:
    """Lower and upper bounds of Euclidean (``axes=1``) or Frobenius (``axes=2``) norms.

    The computed square root of n squares has relative error at most ``gamma(n + 2)`` (lemma 1: a square and n - 1
    sums inside the root, the root itself), whatever the scale: squares that leave the range are scaled first.

    Parameters
    ----------
    x : array_like, shape (..., d) or (..., d, e)
    axes : int
        How many last axes the norm runs over.

    Returns
    -------
    lower, upper : ndarray, shape (...)

    Examples
    --------
    >>> from attsvm.solvers.certify.rounding import norm_bounds
    >>> lower, upper = norm_bounds([3e-200, 4e-200])
    >>> bool(lower <= 5e-200 <= upper), f"{float(upper / lower - 1):.0e}"
    (True, '3e-15')
    """
    values = np.asarray(x, dtype=np.float64)
    flat = values.reshape(*values.shape[: values.ndim - axes], -1)
    with np.errstate(over="ignore", under="ignore"):
        squares = np.asarray(np.einsum("...d,...d->...", flat, flat))
    norm = np.sqrt(squares)
    unsafe = ~((squares > _SAFE_SQUARES[0]) & (squares < _SAFE_SQUARES[1]))
    if unsafe.any():
        norm = np.where(unsafe, _scaled_norm(flat), norm)
    spread = gamma(flat.shape[-1] + 3)
    step = np.where(norm > 0, TINY * 2.0**-52, 0.0)  # a norm scaled back into the subnormal range
    return np.asarray(np.maximum(norm * (1.0 - spread) - step, 0.0)), np.asarray(settle(norm * (1.0 + spread) + step))


def margin_error(
    a_norms: npt.ArrayLike, W_norm: npt.ArrayLike, b_norms: npt.ArrayLike, shape: tuple[int, int]
) -> FloatArray:
    """Bound on ``|fl(a_k' W b_k) - (x - y)' W b_k|``, computed as ``a'(W b)`` or ``(a' W) b``.

    ``gamma(dx + dz + 2) |a| |W|_F |b|``: dx + dz roundings of the two products (lemma 1), one of the difference
    (lemma 2), one in hand; plus ``2^-1020 (dx + dz)^2 (1 + |a| + |b|)`` for underflow (lemma 3).

    Parameters
    ----------
    a_norms, b_norms : array_like, shape (..., m)
        Upper bounds of ``|a_k|`` and ``|b_k|``, the second taken at the row's owner.
    W_norm : array_like, shape (...)
        Upper bound of ``|W|_F``.
    shape : (dx, dz)

    Returns
    -------
    ndarray, shape (..., m)

    Examples
    --------
    >>> from attsvm.solvers.certify.rounding import margin_error
    >>> f"{float(margin_error([1.0], 1.0, [1.0], (3, 2))[0]):.1e}"
    '7.8e-16'
    """
    a, b = np.asarray(a_norms, dtype=np.float64), np.asarray(b_norms, dtype=np.float64)
    size = np.asarray(W_norm, dtype=np.float64)[..., None]
    dx, dz = shape
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        # The large factor may not meet the small one first: a product that underflows is covered by the last term.
        error = gamma(dx + dz + 2) * ((a * b) * size) + 4.0 * TINY * (dx + dz) ** 2 * (1.0 + a + b + size)
    return settle(error)


def margin_error_by_entries(a: npt.ArrayLike, W: npt.ArrayLike, queries: npt.ArrayLike, owner: IntArray) -> FloatArray:
    """The bound of `margin_error` with ``|a|' |W| |b|`` in place of the norms: a second pass, sharp at mixed scales.

    Parameters
    ----------
    a : array_like, shape (..., m, dx)
    W : array_like, shape (..., dx, dz)
    queries : array_like, shape (..., q, dz)
    owner : ndarray of int, shape (m,)

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.certify.rounding import margin_error_by_entries
    >>> W = np.diag([1e-8, 1e8])
    >>> error = margin_error_by_entries(np.diag([1e8, 1e-8]), W, np.ones((1, 2)), np.array([0, 0]))
    >>> bool(error.max() < 1e-15)  # norm-wise it would be 1e1
    True
    """
    left, matrix, right = (np.abs(np.asarray(x, dtype=np.float64)) for x in (a, W, queries))
    dx, dz = matrix.shape[-2:]
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        keys = right @ np.swapaxes(matrix, -1, -2)
        total = np.einsum("...kd,...kd->...k", left, np.take(keys, owner, axis=-2))
        sizes = left.sum(axis=-1) + np.take(right.sum(axis=-1), owner, axis=-1)
        error = gamma(dx + dz + 2) * total * (1.0 + gamma(dx + dz + 2)) + 4.0 * TINY * (dx + dz) ** 2 * (1.0 + sizes)
    return settle(error)


def dot_error(x: npt.ArrayLike, y: npt.ArrayLike) -> FloatArray:
    """Bound on ``|fl(x . y) - x . y|`` over the last axis: ``gamma(n + 1) |x|'|y|`` plus underflow (lemmas 1, 3).

    Examples
    --------
    >>> from attsvm.solvers.certify.rounding import dot_error
    >>> f"{float(dot_error([1.0, 1.0], [1.0, -1.0])):.1e}"
    '6.7e-16'
    """
    left, right = np.abs(np.asarray(x, dtype=np.float64)), np.abs(np.asarray(y, dtype=np.float64))
    n = max(left.shape[-1], right.shape[-1])
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        total = (left * right).sum(axis=-1) * (1.0 + gamma(n + 1))
        return settle(gamma(n + 1) * total + 4.0 * TINY * n)


def dual_bound(
    objective: npt.ArrayLike, objective_error: npt.ArrayLike, dual_norm: npt.ArrayLike, dual_error: npt.ArrayLike
) -> FloatArray:
    """Lower bound, rounded down, on the norm N of every W that satisfies the rows: ``rhs . lam / N*(D)``.

    Weak duality: ``rhs . lam <= <D, W> <= N*(D) N(W)`` for lam >= 0 on inequality rows. The numerator is lowered and
    the denominator raised by their errors first. In the Frobenius norm the same number is what a proof of
    infeasibility whose rows cancel up to rounding excludes: every W with a smaller norm.

    Parameters
    ----------
    objective, objective_error : array_like, shape (...)
        Computed ``rhs . lam`` and the bound of `dot_error`.
    dual_norm, dual_error : array_like, shape (...)
        Computed ``N*(fl(D))`` and a bound on its distance from ``N*(D)``: the error of the norm itself plus
        ``c`` times a bound on ``||fl(D) - D||_F``, where ``N* <= c ||.||_F`` (c = 1 for Frobenius, nuclear and l1,
        whose duals are Frobenius, spectral and linf; sqrt(min(dx, dz)) for spectral; sqrt(dx dz) for linf).

    Returns
    -------
    ndarray, shape (...)
        0 where nothing is proved; infinite only where D is exactly zero.

    Examples
    --------
    >>> from attsvm.solvers.certify.rounding import dual_bound
    >>> float(dual_bound(1.0, 0.0, 2.0, 0.5)) <= 0.4
    True
    >>> float(dual_bound(1e-17, 1e-16, 0.0, 1e-16))  # the objective may be negative
    0.0
    """
    least = down(np.asarray(objective, dtype=np.float64) - np.asarray(objective_error, dtype=np.float64))
    total = np.asarray(dual_norm, dtype=np.float64) + np.asarray(dual_error, dtype=np.float64)
    most = np.where(total > 0, up(total), 0.0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        bound = np.where(least > 0, np.maximum(down(least / most), 0.0), 0.0)
    # A quotient that overflows says no more than the largest number; only D = 0 excludes everything.
    largest = float(np.finfo(np.float64).max)
    bound = np.where((most > 0) & (least > 0), np.minimum(bound, largest), bound)
    return np.asarray(np.where((least > 0) & (most == 0), np.inf, bound))
