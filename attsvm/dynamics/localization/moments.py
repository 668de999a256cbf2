"""Mean and variance of the signal ``<gamma^i, omega> + 1/T`` under the random walk (Lemma 1).

The signal is ``y^T W_QK x_T / temperature + 1/T`` with ``y = (x_i - mean of the tokens) / T``. Under the walk (y, x_T)
is Gaussian with covariance ``[[a, b], [b, T]]`` times Sigma, so that, exactly and for any W_QK,

    mean      b tr(W) / temperature + 1/T
    variance  (a T tr(W_QK Sigma W_QK^T Sigma) + b^2 tr(W^2)) / temperature^2

with ``b = (i - (T+1)/2) / T`` and ``a T = (i^2 - i (T+1) + (T+1)(2T+1)/6) / T^2``. For T to infinity at ``theta =
i/T`` and ``u = theta - 1/2``: ``b = u`` and ``a T = u^2 + 1/12``; a symmetric W_QK then has variance ``(2 u^2 + 1/12)
tr(W^2) / temperature^2``. The printed Lemma 1 has ``2 theta^2 + 7/12`` in its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from attsvm._checks import require_choice
from attsvm.dynamics.localization.spectrum import QKSpectrum, qk_spectrum

__all__ = [
    "MOMENT_FORMS",
    "MomentForm",
    "SignalMoments",
    "position_coefficients",
    "read_spectrum",
    "signal_moments",
    "walk_moment",
]

Float64Array = npt.NDArray[np.float64]
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

    theta: Float64Array
    mean: Float64Array
    variance: Float64Array
    form: MomentForm


def require_tokens(T: int) -> int:
    """T as an int of at least 2: with one token the attention is 1 whatever W is."""
    if int(T) != T or T < 2:
        raise ValueError(f"T must be an integer >= 2, got {T}: one token gets all the attention")
    return int(T)


def position_coefficients(T: int) -> tuple[Float64Array, Float64Array]:
    """``(a T, b)`` of the module's text at i = 1..T, exactly.

    Returns
    -------
    spread : ndarray, shape (T,)
        ``a T``; at least ``b^2``, strictly.
    drift : ndarray, shape (T,)
        ``b``.

    Examples
    --------
    >>> from attsvm.dynamics.localization.moments import position_coefficients
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
    >>> from attsvm.dynamics.localization.moments import read_spectrum
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
