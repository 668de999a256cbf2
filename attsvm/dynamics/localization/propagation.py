"""The signal propagation probability of every token (Definition 1), five ways.

``rho_i = P(0 <= <gamma^i, omega> + 1/T <= 1)`` with ``omega_t = x_t^T W_QK x_T / temperature`` under the random walk:

- "exact": the signal minus 1/T is a quadratic form in Gaussians. With the notation of `moments` and the eigenvalues m
  of a symmetric M, it is ``sum_k (m_k / temperature) [(b + sqrt(aT))/2 chi^2 + (b - sqrt(aT))/2 chi'^2]``; for any
  W_QK the weights are the eigenvalues of ``[[b S, c M^T / 2], [c M / 2, 0]]`` with S the symmetric part and ``c^2 = aT
  - b^2``. Its law comes from `interval_probability`.
- "gaussian": the normal law with the exact mean and variance at finite T, offset 1/T included.
- "asymptotic": the same in the limit of many tokens, which is (6) with the corrected variance.
- "printed": (6) as printed.
- "monte_carlo": frequencies over simulated walks, with their standard error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from attsvm._checks import require_choice, require_count
from attsvm.dynamics.localization.law import interval_probability
from attsvm.dynamics.localization.moments import (
    MomentForm,
    position_coefficients,
    read_spectrum,
    require_tokens,
    signal_moments,
)
from attsvm.dynamics.localization.piecewise import linear_softmax
from attsvm.dynamics.localization.profile import normal_interval
from attsvm.dynamics.localization.spectrum import QKSpectrum, read_qk
from attsvm.dynamics.localization.summary import LocalizationSummary, summarize
from attsvm.dynamics.localization.walks import read_covariance

__all__ = ["METHODS", "Propagation", "signal_propagation", "signal_weights", "simulate_signals", "token_logits"]

Float64Array = npt.NDArray[np.float64]
Method = Literal["exact", "gaussian", "asymptotic", "printed", "monte_carlo"]
METHODS = ("exact", "gaussian", "asymptotic", "printed", "monte_carlo")
_CHUNK = 4_000_000  # doubles of one batch of walks


@dataclass(frozen=True, eq=False)
class Propagation:
    """Propagation probabilities of T tokens.

    Attributes
    ----------
    theta : ndarray, shape (T,)
        Relative positions i/T.
    rho : ndarray, shape (T,)
    error : ndarray, shape (T,)
        Standard error ("monte_carlo"), estimated error of the inversion ("exact"); nan for the Gaussian approximations,
        whose error depends on the effective rank and is not estimated.
    method : str
    """

    theta: Float64Array
    rho: Float64Array
    error: Float64Array
    method: Method

    def summary(self, **thresholds: float) -> LocalizationSummary:
        """Which site keeps a signal; see `summarize`."""
        return summarize(self.rho, self.theta, **thresholds)


def signal_propagation(
    W: Any,
    T: int,
    covariance: Any = None,
    temperature: float | None = None,
    method: Method = "exact",
    *,
    walks: int = 10_000,
    seed: int | np.random.Generator | None = 0,
    tolerance: float = 1e-10,
) -> Propagation:
    """Propagation probability of each of T tokens of a random walk.

    Parameters
    ----------
    W : array_like of shape (d, d), pair of array_like of shape (r, d), or QKSpectrum
        As for `qk_spectrum`, of any symmetry; Monte Carlo needs the matrix or the pair.
    T : int
        At least 2.
    covariance : optional
        Of one step, as for `qk_spectrum`.
    temperature : float, optional
        ``sqrt(d)``, or ``sqrt(r)`` for a pair, by default.
    method : {"exact", "gaussian", "asymptotic", "printed", "monte_carlo"}
    walks : int
        Number of simulated walks.
    seed : int or numpy.random.Generator
    tolerance : float
        Of the exact inversion.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.localization import signal_propagation
    >>> W = 0.5 * np.eye(32)
    >>> exact = signal_propagation(W, T=10)
    >>> exact.rho.round(3)
    array([0.   , 0.   , 0.   , 0.022, 0.398, 0.954, 0.991, 0.809, 0.405,
           0.137])
    >>> sampled = signal_propagation(W, T=10, method="monte_carlo", walks=4000)
    >>> bool((abs(sampled.rho - exact.rho) < 4 * sampled.error).all())
    True
    """
    T = require_tokens(T)
    theta = np.arange(1, T + 1) / T
    if method == "monte_carlo":
        if isinstance(W, QKSpectrum):
            raise ValueError("method='monte_carlo' simulates tokens: pass the matrix or the pair, not a QKSpectrum")
        signal = simulate_signals(W, T, walks, covariance, temperature, seed)
        mean = ((signal >= 0) & (signal <= 1)).mean(axis=0)
        # One count is added on each side: a frequency of exactly 0 or 1 is not known without error.
        smooth = (mean * walks + 1) / (walks + 2)
        return Propagation(theta, mean, np.sqrt(smooth * (1 - smooth) / walks), method)
    spectrum = read_spectrum(W, covariance)
    if method == "exact":
        low = np.full(T, -1.0 / T)
        weights = signal_weights(spectrum, T, temperature)
        value, error = interval_probability(weights, low, 1.0 + low, tolerance)
        return Propagation(theta, value, error, method)
    require_choice("method", method, *METHODS)
    form: MomentForm = "exact" if method == "gaussian" else method
    moments = signal_moments(spectrum, T, temperature=temperature, form=form)
    return Propagation(theta, normal_interval(moments.mean, moments.variance), np.full(T, np.nan), method)


def signal_weights(W: Any, T: int, temperature: float | None = None) -> Float64Array:
    """Weights of the chi-square variables that make up the signal minus 1/T, shape (T, 2k).

    Parameters
    ----------
    W : array_like, pair of array_like, or QKSpectrum
    T : int
    temperature : float, optional

    Examples
    --------
    The sum of the weights is the mean, twice the sum of their squares is the variance:

    >>> import numpy as np
    >>> from attsvm.dynamics.localization import signal_moments, signal_weights
    >>> W = np.array([[1.0, 2.0], [0.0, 3.0]])
    >>> weights, moments = signal_weights(W, T=5), signal_moments(W, T=5)
    >>> bool(np.allclose(weights.sum(axis=1) + 1 / 5, moments.mean))
    True
    >>> bool(np.allclose(2 * (weights**2).sum(axis=1), moments.variance))
    True
    """
    spectrum = read_spectrum(W)
    scale = spectrum.temperature(temperature)
    spread, drift = position_coefficients(T)
    if spectrum.symmetric:
        sides = np.stack([drift + np.sqrt(spread), drift - np.sqrt(spread)], axis=1) / 2
        return np.asarray((sides[:, :, None] * spectrum.eigenvalues).reshape(T, -1) / scale)
    k = len(spectrum.core)
    joint = np.zeros((T, 2 * k, 2 * k))
    cross = np.sqrt(spread - drift**2)[:, None, None] * spectrum.core / 2
    joint[:, :k, :k] = drift[:, None, None] * (spectrum.core + spectrum.core.T) / 2
    joint[:, k:, :k] = cross
    joint[:, :k, k:] = np.swapaxes(cross, 1, 2)
    return np.asarray(np.linalg.eigvalsh(joint) / scale)


def token_logits(X: Any, W: Any, temperature: float | None = None) -> Float64Array:
    """Logits ``x_t^T W_QK x_T / temperature`` of the last token's query, shape (..., T).

    Parameters
    ----------
    X : array_like, shape (..., T, d)
    W : array_like of shape (d, d), or pair (W_q, W_k) of shape (r, d)
    temperature : float, optional

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.localization import token_logits
    >>> token_logits([[1.0, 0.0], [2.0, 4.0]], np.eye(2), temperature=2.0)
    array([ 1., 10.])
    """
    tokens = np.asarray(X, dtype=np.float64)
    checked = read_qk(W)
    pair = isinstance(checked, tuple)
    d, head_dim = (checked[0].shape[1], checked[0].shape[0]) if pair else (len(checked), len(checked))
    if tokens.ndim < 2 or tokens.shape[-1] != d:
        raise ValueError(f"X must have shape (..., T, {d}), got {tokens.shape}")
    scale = QKSpectrum(np.zeros((0, 0)), d, head_dim).temperature(temperature)
    last = tokens[..., -1, :]
    query = (last @ checked[0].T) @ checked[1] if isinstance(checked, tuple) else last @ checked.T
    return np.asarray(np.matmul(tokens, query[..., None])[..., 0] / scale)


def simulate_signals(
    W: Any,
    T: int,
    walks: int,
    covariance: Any = None,
    temperature: float | None = None,
    seed: int | np.random.Generator | None = 0,
) -> Float64Array:
    """Signals ``<gamma^i, omega> + 1/T`` of simulated walks, from the tokens themselves, shape (walks, T).

    Parameters
    ----------
    W, T, covariance, temperature, seed
        As for `signal_propagation`.
    walks : int

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.localization import simulate_signals
    >>> signal = simulate_signals(np.eye(3), T=4, walks=1000)
    >>> signal.shape, bool(np.allclose(signal.sum(axis=1), 1.0))
    ((1000, 4), True)
    """
    T = require_tokens(T)
    require_count("walks", walks)
    checked = read_qk(W)
    d = (checked[0] if isinstance(checked, tuple) else checked).shape[1]
    sigma = read_covariance(covariance, d)
    rng = np.random.default_rng(seed)
    out = np.empty((walks, T))
    size = max(1, _CHUNK // (T * d))
    for start in range(0, walks, size):
        stop = min(walks, start + size)
        X = np.cumsum(sigma.color(rng.standard_normal((stop - start, T, d))), axis=1)
        out[start:stop] = linear_softmax(token_logits(X, checked, temperature))
    return out
