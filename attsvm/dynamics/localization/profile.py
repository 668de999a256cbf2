"""The propagation probability as a curve over relative positions: rho(theta; xi, eta), its slope and its limits.

With ``u = theta - 1/2`` and ``D(theta) = 4 u^2 + 1/6`` (twice the variance of the signal over ``eta^2``),

    rho(theta) = erf(u xi / sqrt(D)) / 2 - erf((u xi - 1/eta) / sqrt(D)) / 2,                                  (6)

for ``xi = tr(W) / sqrt(tr(W^2))`` and ``eta = sqrt(tr(W^2)) / temperature``. The printed form has ``D = 4 theta^2 +
7/6``. The curve leaves out the offset 1/T of the signal and so needs ``T eta >> 1``; `signal_propagation` keeps it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm._arrays import finite_array
from attsvm._checks import require_choice
from attsvm.dynamics.localization.moments import require_tokens

__all__ = [
    "finite_window",
    "limit_window",
    "normal_interval",
    "rho",
    "rho_limit",
    "rho_slope",
    "rho_traceless",
    "vanishing_rate",
]

Float64Array = npt.NDArray[np.float64]
FORMS = ("corrected", "printed")


def _theta(theta: Any) -> Float64Array:
    array = finite_array("theta", theta)
    if ((array < 0) | (array > 1)).any():
        raise ValueError("theta must lie in [0, 1]")
    return array


def _eta(eta: float) -> float:
    if not (np.isfinite(eta) and eta > 0):
        raise ValueError(f"eta must be positive and finite, got {eta}")
    return float(eta)


def _doubled_variance(theta: Float64Array, form: str) -> Float64Array:
    """``D(theta)``, twice the variance of the signal over eta^2."""
    require_choice("form", form, *FORMS)
    return 4 * (theta - 0.5) ** 2 + 1 / 6 if form == "corrected" else 4 * theta**2 + 7 / 6


def normal_interval(mean: Any, variance: Any) -> Float64Array:
    """``P(0 <= N <= 1)`` for a normal variable, without cancellation in the tails; a point mass if the variance is 0.

    Examples
    --------
    >>> from attsvm.dynamics.localization import normal_interval
    >>> float(normal_interval(0.5, 0.25).round(4)), float(normal_interval(0.5, 0.0))
    (0.6827, 1.0)
    """
    from scipy.special import ndtr

    mean, variance = np.asarray(mean, dtype=np.float64), np.asarray(variance, dtype=np.float64)
    if (variance < 0).any():
        raise ValueError("variance must be >= 0")
    sd = np.sqrt(variance)
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = -mean / sd, (1.0 - mean) / sd
        flip = low > 0  # both ends in the right tail: take them in the left one, where ndtr is exact
        inside = np.where(flip, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))
    return np.asarray(np.where(sd > 0, inside, ((mean >= 0) & (mean <= 1)).astype(np.float64)))


def rho(theta: Any, xi: float, eta: float, form: str = "corrected") -> Float64Array:
    """Gaussian approximation of the propagation probability in the limit of many tokens (6).

    Parameters
    ----------
    theta : array_like
        Relative positions in [0, 1].
    xi, eta : float
        ``tr(W) / sqrt(tr(W^2))`` and ``sqrt(tr(W^2)) / temperature``.
    form : {"corrected", "printed"}
        With the variance ``2 u^2 + 1/12`` or ``2 theta^2 + 7/12``.

    Examples
    --------
    >>> from attsvm.dynamics.localization import rho
    >>> rho([0.0, 0.5, 0.52, 1.0], xi=50.0, eta=0.5).round(3)
    array([0.   , 0.5  , 0.999, 0.   ])
    >>> rho([0.0, 0.5, 0.52, 1.0], xi=50.0, eta=0.5, form="printed").round(3)
    array([0.   , 0.473, 0.654, 0.   ])
    """
    position = _theta(theta)
    doubled = _doubled_variance(position, form)
    # In units of eta the signal is N(u xi, D / 2) and the interval [0, 1/eta]; multiply both by eta.
    return normal_interval((position - 0.5) * xi * _eta(eta), doubled / 2 * eta**2)


def rho_slope(theta: Any, xi: float, eta: float, form: str = "corrected") -> Float64Array:
    """Derivative of `rho` in theta; ``form="printed"`` is the formula in the proof of Lemma 2, as printed.

    The corrected slope is ``pi^-1/2 D^-3/2 [e^{-(u xi)^2/D} xi/6 - e^{-(u xi - 1/eta)^2/D} (xi/6 + 4 u/eta)]``.

    Examples
    --------
    >>> from attsvm.dynamics.localization import rho_slope
    >>> rho_slope([0.5], xi=3.0, eta=1.0).round(4)
    array([4.1357])
    """
    position = _theta(theta)
    doubled = _doubled_variance(position, form)
    u = position - 0.5
    inverse = 1.0 / _eta(eta)
    lower = np.exp(-((u * xi) ** 2) / doubled)
    upper = np.exp(-((u * xi - inverse) ** 2) / doubled)
    if form == "corrected":
        bracket = lower * xi / 6 - upper * (xi / 6 + 4 * u * inverse)
    else:
        factor = 4 * position**2 - position + 5 / 3
        bracket = (lower * factor - upper * (factor - inverse)) * xi
    return np.asarray(bracket / np.sqrt(np.pi) / doubled**1.5)


def limit_window(r: float) -> tuple[float, float]:
    """The positions that keep a signal as ``eta -> 0``, ``xi eta -> r != 0`` (Lemma 2, parts 1 and 2).

    Late half for ``0 < r <= 2``, ``[1/2, 1/2 + 1/r]`` beyond, and the mirror image for negative r.

    Examples
    --------
    >>> from attsvm.dynamics.localization import limit_window
    >>> limit_window(1.0), limit_window(5.0), limit_window(-4.0)
    ((0.5, 1.0), (0.5, 0.7), (0.25, 0.5))
    """
    if not np.isfinite(r) or r == 0:
        raise ValueError(f"r must be finite and not zero, got {r}")
    far = min(1.0, max(0.0, 0.5 + 1.0 / r))
    return (0.5, far) if r > 0 else (far, 0.5)


def rho_limit(theta: Any, r: float, form: str = "corrected") -> Float64Array:
    """The limit of `rho` as ``|xi| -> infinity``, ``eta -> 0``, ``xi eta -> r`` (Lemma 2, parts 1 and 2).

    One inside `limit_window`, zero outside, and one half (printed: one) at its ends ``1/2`` and ``1/2 + 1/r``. At
    ``|r| = 2`` the second end is the edge of the sequence and the limit there depends on how ``xi eta`` approaches r;
    the value one half belongs to ``xi eta = r`` exactly. The edge itself, for ``|r| < 2``, is no end: the limit is one.

    Examples
    --------
    >>> from attsvm.dynamics.localization import rho_limit
    >>> rho_limit([0.4, 0.5, 0.6, 0.7, 0.8], r=5.0)
    array([0. , 0.5, 1. , 0.5, 0. ])
    """
    position = _theta(theta)
    require_choice("form", form, *FORMS)
    low, high = limit_window(r)
    inside = ((position >= low) & (position <= high)).astype(np.float64)
    if form == "printed":
        return inside
    # Ends computed as 1/2 + 1/r are rounded: positions within 4 ulp of them are meant as ends.
    ends = np.isclose(position, 0.5, rtol=0, atol=1e-15) | np.isclose(position, 0.5 + 1.0 / r, rtol=0, atol=1e-15)
    return np.where(ends, 0.5, inside)


def rho_traceless(theta: Any, eta: float) -> Float64Array:
    """The limit of `rho` as ``xi -> 0`` at fixed eta: ``erf(1 / (eta sqrt(D))) / 2`` (Lemma 2, part 3, corrected).

    Not uniform unless eta is small as well: it has a bump at the middle, up to a factor sqrt(7) above the ends.

    Examples
    --------
    >>> from attsvm.dynamics.localization import rho_traceless
    >>> rho_traceless([0.0, 0.5, 1.0], eta=1.0).round(3)
    array([0.405, 0.5  , 0.405])
    >>> rho_traceless([0.0, 0.5, 1.0], eta=0.2).round(3)
    array([0.5, 0.5, 0.5])
    """
    return rho(theta, 0.0, eta)


def vanishing_rate(theta: Any, xi: float, form: str = "corrected") -> Float64Array:
    """``lim eta rho(theta)`` as ``eta -> infinity`` at fixed xi: the signal vanishes like this over eta (part 4).

    ``exp(-u^2 xi^2 / D) / sqrt(pi D)``; its largest value is ``sqrt(6 / pi)``, at the middle.

    Examples
    --------
    >>> from attsvm.dynamics.localization import vanishing_rate
    >>> vanishing_rate([0.0, 0.5], xi=0.0).round(3)
    array([0.522, 1.382])
    """
    position = _theta(theta)
    doubled = _doubled_variance(position, form)
    return np.asarray(np.exp(-(((position - 0.5) * xi) ** 2) / doubled) / np.sqrt(np.pi * doubled))


def finite_window(T: int, r: float) -> tuple[float, float]:
    """Positions whose mean signal lies in [0, 1] at finite T: what remains as the variance goes to 0 at fixed r.

    ``(T+1)/2 - 1/r <= i <= (T+1)/2 + (T-1)/r`` for positive r, mirrored for negative r, everything for r = 0. The whole
    sequence is inside once ``|r| <= 2/(T-1)``, which the limit of large T cannot show.

    Examples
    --------
    >>> from attsvm.dynamics.localization import finite_window
    >>> finite_window(40, 5.0)
    (20.3, 28.3)
    >>> finite_window(40, 0.0)
    (1.0, 40.0)
    """
    T = require_tokens(T)
    if not np.isfinite(r):
        raise ValueError(f"r must be finite, got {r}")
    if r == 0:
        return 1.0, float(T)
    center = (T + 1) / 2
    ends = sorted((center - 1.0 / r, center + (T - 1) / r))
    return max(1.0, ends[0]), min(float(T), ends[1])
