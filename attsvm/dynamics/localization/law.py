"""Tail probabilities of ``Q = sum_k w_k chi^2_1``, by inverting its characteristic function on a bent contour.

For x > 0 and 0 < c < 1 / (2 max w),

    P(Q > x) = 1/(2 pi i) int_{c - i inf}^{c + i inf} exp(K(s) - s x) / s ds,   K(s) = -1/2 sum_k log(1 - 2 w_k s).

On the straight line (Imhof, Davies) the integrand decays only as ``prod (1 + 4 w^2 t^2)^{-1/4}``: too slowly for few
degrees of freedom. All singularities lie on the real axis, so the line may be bent around the branch cut to the right,
where ``exp(-s x)`` decays. On a hyperbola through the saddle point the integrand is analytic in a strip and decays
double exponentially, and the trapezoidal rule converges geometrically; halving its step measures the error.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm._arrays import finite_array, real_array

__all__ = ["interval_probability", "upper_tail"]

Float64Array = npt.NDArray[np.float64]

# Of the hyperbola's asymptotes with the real axis: below pi/2 to bend, above pi/4 to decay where Q is near Gaussian.
_ANGLE = np.pi / 3
_STEP = 0.1  # first step in the hyperbola's parameter
_NEGLIGIBLE = 45.0  # e^-45 of the largest value: below rounding
_HALVINGS = 7
_ROUNDING = 2e-15  # per weight and unit of the integrand: each adds one rounded logarithm
_CHUNK = 2_000_000  # complex logarithms held at once


def upper_tail(weights: Any, x: Any, tolerance: float = 1e-10) -> tuple[Float64Array, Float64Array]:
    """``P(Q > x)`` for x > 0 and ``Q = sum_k w_k chi^2_1``, weights of any sign.

    Parameters
    ----------
    weights : array_like, shape (B, n)
        One row per variable.
    x : array_like, shape (B,)
        Positive thresholds.
    tolerance : float
        Halve the step until two values differ by less.

    Returns
    -------
    probability, error : ndarray, shape (B,)
        The error is the change at the last halving, which overestimates that of the value returned.

    Examples
    --------
    Two equal weights make an exponential variable; ``chi^2_1 - chi^2_1`` is symmetric:

    >>> import numpy as np
    >>> from attsvm.dynamics.localization.law import upper_tail
    >>> upper_tail([[1.0, 1.0]], [3.0])[0] - np.exp(-1.5) < 1e-12
    array([ True])
    >>> upper_tail([[1.0, -1.0]], [1e-9])[0].round(6)
    array([0.5])
    """
    w, thresholds = np.atleast_2d(finite_array("weights", weights)), np.atleast_1d(finite_array("x", x))
    if w.ndim != 2 or thresholds.shape != (len(w),):
        raise ValueError(f"weights and x must have shapes (B, n) and (B,), got {w.shape} and {thresholds.shape}")
    if (thresholds <= 0).any():
        raise ValueError("x must be positive: negate the weights for a lower tail")
    probability, error = np.zeros(len(w)), np.zeros(len(w))
    largest = w.max(axis=1, initial=0.0) + 0.0  # no negative zero
    # P(Q > x) <= 2^(n/2) e^(-x / (4 max w)) by Chernoff's bound at half the branch point: where that is below the
    # smallest double, and without positive weights, the answer is 0.
    with np.errstate(divide="ignore", over="ignore"):
        rows = np.flatnonzero(thresholds / (4 * largest) - 0.35 * w.shape[1] < 745)
    size = max(1, _CHUNK // (400 * max(1, w.shape[1])))
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        probability[part], error[part] = _invert(w[part], thresholds[part], 0.5 / largest[part], tolerance)
    return np.clip(probability, 0.0, 1.0), error


def interval_probability(
    weights: Any, low: Any, high: Any, tolerance: float = 1e-10
) -> tuple[Float64Array, Float64Array]:
    """``P(low <= Q <= high)`` for low < 0 < high, as one minus two tails.

    Parameters
    ----------
    weights : array_like, shape (B, n)
    low, high : array_like, shape (B,)

    Returns
    -------
    probability, error : ndarray, shape (B,)

    Examples
    --------
    >>> from attsvm.dynamics.localization import interval_probability
    >>> value, error = interval_probability([[1.0, -1.0]], [-1.0], [1.0])
    >>> value.round(6), error < 1e-10
    (array([0.590212]), array([ True]))
    """
    w = real_array("weights", weights).astype(np.float64)
    above, error_above = upper_tail(w, high, tolerance)
    below, error_below = upper_tail(-w, -real_array("low", low).astype(np.float64), tolerance)
    return np.clip(1.0 - above - below, 0.0, 1.0), error_above + error_below


def _saddle(
    w: Float64Array, x: Float64Array, branch: Float64Array
) -> tuple[Float64Array, Float64Array, npt.NDArray[np.bool_]]:
    """Saddle point of ``exp(K(s) - s x) / s``, its width, and whether it lies left of the pole at 0.

    Right of the pole, on (0, branch), the integral is the upper tail. If x is below the mean that saddle hides behind
    the pole and the integrand grows beyond it; left of the pole there is a good one, for the complement.
    """
    left = w.sum(axis=1) > x
    least = np.minimum(w.min(axis=1), -1e-300)
    # On the left the slope is negative at -(n/2 + 1) / x: each positive weight contributes at most 1 / (2 |s|).
    bound = np.maximum(0.5 / least, -(w.shape[1] / 2 + 1) / x)
    edge = np.where(left, bound, branch)
    near, far = np.zeros(len(w)), np.ones(len(w))  # in units of the edge, from the pole
    for _ in range(80):
        middle = (near + far) / 2
        s = middle * edge
        slope = (w / (1 - 2 * w * s[:, None])).sum(axis=1) - x - 1 / s
        outward = (slope < 0) != left
        near, far = np.where(outward, middle, near), np.where(outward, far, middle)
    s = (near + far) / 2 * edge
    curvature = (2 * (w / (1 - 2 * w * s[:, None])) ** 2).sum(axis=1) + 1 / s**2
    return s, 1 / np.sqrt(curvature), left


def _invert(
    w: Float64Array, x: Float64Array, branch: Float64Array, tolerance: float
) -> tuple[Float64Array, Float64Array]:
    c, width, left = _saddle(w, x, branch)
    # s = e + mu cosh(v + i angle) passes through c; its innermost confocal ray starts at e + mu, at most the first
    # singularity to the right: the branch point, or the pole.
    singular = np.where(left, 0.0, branch)
    mu = np.minimum((singular - c) / (1 - np.cos(_ANGLE)), 3 * width / np.sin(_ANGLE))
    e = c - mu * np.cos(_ANGLE)

    def log_integrand(v: Float64Array) -> npt.NDArray[np.complex128]:
        """Of ``exp(K(s) - s x) / s * ds/dv`` at parameters v, shapes (B, m) -> (B, m)."""
        turned = v + 1j * _ANGLE
        s = e[:, None] + mu[:, None] * np.cosh(turned)
        velocity = mu[:, None] * np.sinh(turned)
        total = np.zeros(s.shape, dtype=np.complex128)
        for k in range(w.shape[1]):  # a loop over weights keeps memory at (B, m)
            total += np.log(1 - 2 * w[:, k, None] * s)
        return np.asarray(-0.5 * total - s * x[:, None] - np.log(s) + np.log(velocity))

    # Far enough that exp(-s x) alone is negligible; then cut where the integrand already is.
    end = np.arccosh(2 + 2 * _NEGLIGIBLE / (x * mu * np.cos(_ANGLE)))
    probe = np.linspace(0, 1, 65) * end[:, None]
    size = log_integrand(probe).real
    alive = size > size.max(axis=1, keepdims=True) - _NEGLIGIBLE
    last = 64 - np.argmax(alive[:, ::-1], axis=1)
    end = np.take_along_axis(probe, np.minimum(last + 1, 64)[:, None], axis=1)[:, 0]

    nodes = int(np.ceil(end.max() / _STEP))
    step = end / nodes
    grid = np.arange(nodes + 1) * step[:, None]
    values = np.exp(log_integrand(grid)).imag
    total = values.sum(axis=1) - values[:, 0] / 2  # the integrand is even in v
    mass = np.abs(values).sum(axis=1) * step / np.pi
    estimate = total * step / np.pi
    change = np.full(len(w), np.inf)
    for _ in range(_HALVINGS):
        middles = (np.arange(nodes) + 0.5) * step[:, None]
        total = total + np.exp(log_integrand(middles)).imag.sum(axis=1)
        step, nodes = step / 2, nodes * 2
        refined = total * step / np.pi
        change, estimate = np.abs(refined - estimate), refined
        if (change <= tolerance).all():
            break
    # Around the pole the residue there, 1, has been left out.
    return np.where(left, 1.0 + estimate, estimate), change + _ROUNDING * (w.shape[1] + 4) * np.maximum(1.0, mass)
