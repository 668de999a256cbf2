"""Roots of the secular equation of diag(a) - a a^T, one by one.

The nonzero eigenvalues are the roots t of ``g(t) = sum_j a_j / (a_j - t)``, one between each two neighbours of the
sorted attention. g does not change when a and t are scaled together, so only log a and log t matter, whatever
underflows. With ``w_j = a_j / (a_j - t)`` it is ``g = sum w``, ``dg / dlog t = sum w^2 - sum w``. A step takes the
root of ``c + q (w_l + w_r)``, the poles at both ends of the interval with the value and the slope of g: a quadratic
whose root never leaves the interval, and convergence is quadratic. Here g is summed pole by pole in logarithms: O(n)
per root, any spread. `attsvm.softmax_spectrum` finds all roots of a vector faster.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["ENTRIES", "ITERATIONS", "TIE", "log_roots_at", "model_root"]

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

TIE = 1e-13  # neighbours this close in the logarithm enclose their root tightly enough
ITERATIONS = 60  # a guard; 4 to 8 are used
ENTRIES = 100_000  # size of the temporaries
_REMAINDER = 1e-13  # of a quadratically convergent step: its square over the distance to the nearer end


def model_root(total: Array, slope: Array, w_left: Array, w_right: Array, shrink: Array) -> Array:
    """Position in the interval, 0 to 1, of the root of c + q (w_l + w_r) that agrees with g and its slope.

    ``shrink`` is l / r. Both ends are given zero values of opposite sign by the quadratic, so that one root is inside.
    """
    width = 1.0 - shrink
    q = slope / (w_left * (w_left - 1.0) + w_right * (w_right - 1.0))
    c = (total - q * (w_left + w_right)) * width
    b = c + q * (1.0 + shrink)
    root = np.sqrt(np.maximum(b * b - 4.0 * c * q * shrink, 0.0))
    return np.asarray(np.where(b > 0, 2.0 * q * shrink / (b + root), (b - root) / (2.0 * c)))


def log_roots_at(x: Array, rank: Indices) -> Array:
    """Log-roots between the sorted log-attentions ``rank - 1`` and ``rank``, evaluated directly.

    Parameters
    ----------
    x : ndarray, shape (k, n)
        Logarithms, ascending and finite.
    rank : ndarray of int, shape (k,)
        From 1 to n - 1: one root of each row.

    Returns
    -------
    ndarray, shape (k,)

    Examples
    --------
    >>> x = np.log([[0.2, 0.2, 0.6]])
    >>> np.exp(log_roots_at(x, np.array([1]))), np.exp(log_roots_at(x, np.array([2])))  # 0.2 is a tie
    (array([0.2]), array([0.36]))
    """
    rows = max(1, ENTRIES // x.shape[1])
    parts = [_direct(x[k : k + rows], rank[k : k + rows]) for k in range(0, len(x), rows)]
    return np.concatenate(parts) if parts else np.empty(0)


def _direct(x: Array, rank: Indices) -> Array:
    left = np.take_along_axis(x, rank[:, None] - 1, axis=1)
    gap = (np.take_along_axis(x, rank[:, None], axis=1) - left)[:, 0]
    # In units of the left pole. A root lies below n of them: there the left poles add up to -1 at most while the
    # right ones add up to 1 at least. So poles beyond e^700 count one, and those below e^-700 nothing.
    poles = np.exp(np.clip(x - left, -700.0, 700.0))
    ratio = np.expm1(np.minimum(gap, 700.0))  # r / l - 1
    y = np.minimum(0.5 * ratio, float(x.shape[1]))  # t / l - 1
    active = np.flatnonzero(gap > TIE)
    for _ in range(ITERATIONS):
        if not active.size:
            break
        now, width = y[active], ratio[active]
        w = poles[active]
        w /= w - (1.0 + now)[:, None]
        total = w.sum(axis=1)
        slope = np.einsum("kj,kj->k", w, w) - total
        with np.errstate(divide="ignore", invalid="ignore"):
            position = model_root(total, slope, -1.0 / now, (1.0 + width) / (width - now), 1.0 / (1.0 + width))
        new = width * position
        y[active] = new
        active = active[(new - now) ** 2 > _REMAINDER * np.minimum(new, width - new) * (1.0 + new)]
    solved = gap > TIE
    return left[:, 0] + np.where(solved, np.log1p(np.where(solved, y, 0.0)), 0.5 * gap)
