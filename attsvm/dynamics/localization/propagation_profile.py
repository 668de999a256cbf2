"""Moments of the signal under the random walk, and the propagation probability as a curve over relative positions.

The signal is ``y^T W_QK x_T / temperature + 1/T`` with ``y = (x_i - mean of the tokens) / T``. Under the walk (y, x_T)
is Gaussian with covariance ``[[a, b], [b, T]]`` times Sigma, so that (Lemma 1), exactly and for any W_QK,

    mean      b tr(W) / temperature + 1/T
    variance  (a T tr(W_QK Sigma W_QK^T Sigma) + b^2 tr(W^2)) / temperature^2

with ``b = (i - (T+1)/2) / T`` and ``a T = (i^2 - i (T+1) + (T+1)(2T+1)/6) / T^2``. For T to infinity at ``theta =
i/T`` and ``u = theta - 1/2``: ``b = u`` and ``a T = u^2 + 1/12``; a symmetric W_QK then has variance ``(2 u^2 + 1/12)
tr(W^2) / temperature^2``. With ``D(theta) = 4 u^2 + 1/6`` (twice that variance over ``eta^2``),

    rho(theta) = erf(u xi / sqrt(D)) / 2 - erf((u xi - 1/eta) / sqrt(D)) / 2,                                  (6)

for ``xi = tr(W) / sqrt(tr(W^2))`` and ``eta = sqrt(tr(W^2)) / temperature``. Print has ``2 theta^2 + 7/12`` in the
variance and ``D = 4 theta^2 + 7/6``. The curve leaves out the offset 1/T of the signal and so needs ``T eta >> 1``;
`signal_propagation` keeps it. `summarize` says which site keeps a signal, or all, or none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from attsvm.dynamics.localization.eigenspectrum import QKSpectrum, qk_spectrum
from attsvm.solvers.arrays import FloatArray
from attsvm.user_input import finite_array, positive, real_array, require_choice

MomentForm = Literal["exact", "asymptotic", "printed"]

MOMENT_FORMS = ("exact", "asymptotic", "printed")


@dataclass(frozen=True, eq=False)
class SignalMoments:
    """Mean and variance of the signal of every token.

    Attributes
    ----------
    theta : ndarray, shape (T,)
        Relative positions i/T, i = 1..T.
    mean, variance : ndarray, shape (T,)
    form : str
    """

    theta: FloatArray
    mean: FloatArray
    variance: FloatArray
    form: MomentForm


def require_tokens(T: int) -> int:
    """T as an int of at least 2: with one token the attention is 1 whatever W is."""
    if int(T) != T or T < 2:
        raise ValueError(f"T must be an integer >= 2, got {T}: one token gets all the attention")
    return int(T)


def position_coefficients(T: int) -> tuple[FloatArray, FloatArray]:
    """``(a T, b)`` of the module's text at i = 1..T, exactly.

    Returns
    -------
    spread : ndarray, shape (T,)
        ``a T``; at least ``b^2``, strictly.
    drift : ndarray, shape (T,)
        ``b``.

    Examples
    --------
    >>> from attsvm.dynamics.localization.propagation_profile import position_coefficients
    >>> position_coefficients(2)
    (array([0.125, 0.125]), array([-0.25,  0.25]))
    """
    T = require_tokens(T)
    i = np.arange(1, T + 1, dtype=np.float64)
    spread = (i * i - i * (T + 1) + (T + 1) * (2 * T + 1) / 6) / T**2
    return spread, (i - (T + 1) / 2) / T


def read_spectrum(W: Any, covariance: Any = None) -> QKSpectrum:
    """A `QKSpectrum` as it is, or that of a matrix or pair.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.localization.propagation_profile import read_spectrum
    >>> read_spectrum(np.eye(3)).trace
    3.0
    """
    if isinstance(W, QKSpectrum):
        if covariance is not None:
            raise ValueError("covariance goes with a matrix or a pair; a QKSpectrum already contains it")
        return W
    return qk_spectrum(W, covariance)


def signal_moments(
    W: Any, T: int, covariance: Any = None, temperature: float | None = None, form: MomentForm = "exact"
) -> SignalMoments:
    """Mean and variance of the signal of each of T tokens.

    Parameters
    ----------
    W : array_like, pair of array_like, or QKSpectrum
        As for `qk_spectrum`; need not be symmetric.
    T : int
        At least 2.
    covariance : optional
        As for `qk_spectrum`.
    temperature : float, optional
        ``sqrt(head_dim)`` by default.
    form : {"exact", "asymptotic", "printed"}
        Exact at finite T; the limit of large T; Lemma 1 as printed, for a symmetric W_QK only.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.localization import signal_moments
    >>> for form in ("exact", "asymptotic", "printed"):
    ...     print(signal_moments(np.eye(4), T=40, form=form).variance[19].round(3))
    0.084
    0.083
    1.083
    """
    spectrum = read_spectrum(W, covariance)
    T = require_tokens(T)
    scale = spectrum.temperature(temperature)
    theta = np.arange(1, T + 1) / T
    u = theta - 0.5
    if form == "exact":
        spread, drift = position_coefficients(T)
        offset = 1.0 / T
    elif form == "asymptotic":
        spread, drift, offset = u**2 + 1 / 12, u, 0.0
    elif form == "printed":
        if not spectrum.symmetric:
            raise ValueError("form='printed' assumes a symmetric W_QK; pass its symmetrized() spectrum")
        mean = u * spectrum.trace / scale
        return SignalMoments(theta, mean, (2 * theta**2 + 7 / 12) * spectrum.trace_squared / scale**2, form)
    else:
        raise ValueError(f"form must be one of {MOMENT_FORMS}, got {form!r}")
    mean = drift * spectrum.trace / scale + offset
    variance = (spread * spectrum.gram + drift**2 * spectrum.trace_squared) / scale**2
    return SignalMoments(theta, mean, variance, form)


def walk_moment(
    equation: int, i: int, j: int, T: int, trace: float, trace_squared: float, form: str = "corrected"
) -> float:
    """Moments of quadratic forms of the walk, for a symmetric W and ``i <= j <= T`` (Lemma 4 and (22)).

    Parameters
    ----------
    equation : {15, 16, 17, 18, 22}
        ``E[x_i W x_i]``; ``E[(x_i W x_i)^2]``; ``E[(x_i W x_j)^2]``; ``E[x_i W x_j x_j W x_j]``;
        ``E[x_i W x_T x_j W x_T]``.
    i, j, T : int
        Positions, from 1; j is not used by 15 and 16, T by 22 only.
    trace, trace_squared : float
        ``tr(W Sigma)`` and ``tr(W Sigma W Sigma)``.
    form : {"corrected", "printed"}
        The printed ones start the walk at ``x_1 = 0`` in the mean and do not stay consistent with it.

    Examples
    --------
    >>> from attsvm.dynamics.localization import walk_moment
    >>> walk_moment(15, 4, 4, 4, trace=2.0, trace_squared=1.0)
    8.0
    >>> walk_moment(15, 4, 4, 4, trace=2.0, trace_squared=1.0, form="printed")
    6.0
    """
    if not 1 <= i <= j <= T:
        raise ValueError(f"positions must satisfy 1 <= i <= j <= T, got i = {i}, j = {j}, T = {T}")
    s, t2 = trace_squared, trace**2
    corrected = {
        15: lambda: i * trace,
        16: lambda: i * i * (2 * s + t2),
        17: lambda: (i * i + i * j) * s + i * i * t2,
        18: lambda: i * j * (2 * s + t2),
        22: lambda: (T * i + i * j) * s + i * j * t2,
    }
    printed = {
        15: lambda: (i - 1) * trace,
        16: lambda: (i * i - 2 * i + 2) * (2 * s + t2),
        17: lambda: (i * i + i * j - 3 * i - j + 4) * s + (i * i - 2 * i + 2) * t2,
        18: lambda: (i * j - i - j + 2) * (2 * s + t2),
        22: lambda: (i * j + (T - 2) * i - j - (T - 4)) * s + (i * j - i - j + 2) * t2,
    }
    if equation not in corrected:
        raise ValueError(f"equation must be one of {tuple(corrected)}, got {equation}")
    require_choice("form", form, "corrected", "printed")
    return float((corrected if form == "corrected" else printed)[equation]())


FORMS = ("corrected", "printed")


def _theta(theta: Any) -> FloatArray:
    array = finite_array("theta", theta)
    if ((array < 0) | (array > 1)).any():
        raise ValueError("theta must lie in [0, 1]")
    return array


def _doubled_variance(theta: FloatArray, form: str) -> FloatArray:
    """``D(theta)``, twice the variance of the signal over eta^2."""
    require_choice("form", form, *FORMS)
    return 4 * (theta - 0.5) ** 2 + 1 / 6 if form == "corrected" else 4 * theta**2 + 7 / 6


def normal_interval(mean: Any, variance: Any) -> FloatArray:
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


def rho(theta: Any, xi: float, eta: float, form: str = "corrected") -> FloatArray:
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
    return normal_interval((position - 0.5) * xi * positive("eta", eta), doubled / 2 * eta**2)


def rho_slope(theta: Any, xi: float, eta: float, form: str = "corrected") -> FloatArray:
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
    inverse = 1.0 / positive("eta", eta)
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


def rho_limit(theta: Any, r: float, form: str = "corrected") -> FloatArray:
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


Site = Literal["early", "middle", "late", "split", "uniform", "vanishing"]


@dataclass(frozen=True)
class LocalizationSummary:
    """Where the signal propagates.

    Attributes
    ----------
    site : {"early", "middle", "late", "split", "uniform", "vanishing"}
        "vanishing" if no token reaches ``vanishing_below``; "uniform" if the lowest is within ``uniform_within`` of the
        highest; else the site of the window: it touches the first token (early), the last (late), neither (middle) or
        both (split).
    peak : float
        Highest probability.
    peak_theta : float
        Its relative position.
    window : tuple of float
        First and last relative position at or above the level halfway between the lowest and the highest.
    center : float
        Mean relative position, weighted by the probability; nan if all are zero.
    participation : float
        ``(sum rho)^2 / (T sum rho^2)``, from 1/T (one token) to 1 (all alike); nan if all are zero.
    mean : float
    contrast : float
        ``(highest - lowest) / highest``; 0 if all are zero.
    """

    site: Site
    peak: float
    peak_theta: float
    window: tuple[float, float]
    center: float
    participation: float
    mean: float
    contrast: float


def summarize(
    rho: Any, theta: Any = None, *, vanishing_below: float = 0.05, uniform_within: float = 0.1
) -> LocalizationSummary:
    """Summarize a profile of propagation probabilities.

    Parameters
    ----------
    rho : array_like, shape (T,)
        Probabilities, T >= 2.
    theta : array_like, shape (T,), optional
        Increasing relative positions; ``1/T, ..., 1`` by default.
    vanishing_below, uniform_within : float
        Thresholds of the verdict, see `LocalizationSummary`.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.localization import rho, summarize
    >>> theta = np.linspace(0, 1, 101)
    >>> found = summarize(rho(theta, xi=512.0, eta=0.01), theta)
    >>> found.site, found.window[0], round(found.window[1], 3)
    ('middle', 0.5, 0.69)
    >>> [summarize(rho(theta, xi, eta), theta).site for xi, eta in ((50, 0.01), (-50, 0.01), (0, 0.1), (0, 1), (0, 99))]
    ['late', 'early', 'uniform', 'middle', 'vanishing']
    """
    values = finite_array("rho", rho)
    if values.ndim != 1 or len(values) < 2:
        raise ValueError(f"rho must have shape (T,) with T >= 2, got {values.shape}")
    if values.min() < 0 or values.max() > 1:
        raise ValueError(f"rho must hold probabilities, got values in [{values.min():.6g}, {values.max():.6g}]")
    T = len(values)
    positions = np.arange(1, T + 1) / T if theta is None else real_array("theta", theta).astype(np.float64)
    if positions.shape != values.shape:
        raise ValueError(f"theta must have the shape {values.shape} of rho, got {positions.shape}")
    if not (np.diff(positions) > 0).all():
        raise ValueError("theta must increase")
    highest, lowest, total = float(values.max()), float(values.min()), float(values.sum())
    above = np.flatnonzero(values >= (highest + lowest) / 2)
    contrast = (highest - lowest) / highest if highest > 0 else 0.0
    first, last = above[0] == 0, above[-1] == T - 1
    site: Site
    if highest < vanishing_below:
        site = "vanishing"
    elif contrast <= uniform_within:
        site = "uniform"
    elif first and last:
        site = "split"
    else:
        site = "early" if first else "late" if last else "middle"
    return LocalizationSummary(
        site=site,
        peak=highest,
        peak_theta=float(positions[int(np.argmax(values))]),
        window=(float(positions[above[0]]), float(positions[above[-1]])),
        center=float(values @ positions) / total if total > 0 else float("nan"),
        participation=total**2 / (T * float(values @ values)) if total > 0 else float("nan"),
        mean=total / T,
        contrast=contrast,
    )
