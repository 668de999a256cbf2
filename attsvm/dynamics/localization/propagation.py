"""The probability that a token's signal propagates (Definition 1), five ways.

``rho_i = P(0 <= <gamma^i, omega> + 1/T <= 1)`` with ``omega_t = x_t^T W_QK x_T / temperature`` under the random walk:

- "exact": the signal minus 1/T is a quadratic form in Gaussians. With the eigenvalues m of a symmetric M it is ``sum_k
  (m_k / temperature) [(b + sqrt(aT))/2 chi^2 + (b - sqrt(aT))/2 chi'^2]`` in the notation of `propagation_profile`; for
  any W_QK the weights are the eigenvalues of ``[[b S, c M^T / 2], [c M / 2, 0]]`` with S the symmetric part and ``c^2 =
  aT - b^2``.
- "gaussian": the normal law with the exact mean and variance at finite T, offset 1/T included.
- "asymptotic": the same in the limit of many tokens, which is (6) with the corrected variance.
- "printed": (6) as printed.
- "monte_carlo": frequencies over simulated walks, with their standard error.

The law of a quadratic form ``Q = sum_k w_k chi^2_1`` comes from its characteristic function. For x > 0 and 0 < c < 1
/ (2 max w),

    P(Q > x) = 1/(2 pi i) int_{c - i inf}^{c + i inf} exp(K(s) - s x) / s ds,   K(s) = -1/2 sum_k log(1 - 2 w_k s).

On the straight line (Imhof, Davies) the integrand decays too slowly for few degrees of freedom. All singularities lie
on the real axis, so the line may be bent to the right, where ``exp(-s x)`` decays. On a hyperbola through the saddle
point the trapezoidal rule converges geometrically; halving its step measures the error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from attsvm.dynamics.localization.eigenspectrum import QKSpectrum, read_covariance, read_qk
from attsvm.dynamics.localization.piecewise_softmax import linear_softmax
from attsvm.dynamics.localization.propagation_profile import (
    LocalizationSummary,
    MomentForm,
    normal_interval,
    position_coefficients,
    read_spectrum,
    require_tokens,
    signal_moments,
    summarize,
)
from attsvm.solvers.arrays import FloatArray
from attsvm.user_input import finite_array, real_array, require_choice, require_count

# Of the hyperbola's asymptotes with the real axis: below pi/2 to bend, above pi/4 to decay where Q is near Gaussian.
_ANGLE = np.pi / 3

_STEP = 0.1  # first step in the hyperbola's parameter

_NEGLIGIBLE = 45.0  # e^-45 of the largest value: below rounding

_HALVINGS = 7

_ROUNDING = 2e-15  # per weight and unit of the integrand: each adds one rounded logarithm

_CHUNK = 2_000_000  # complex logarithms held at once


def upper_tail(weights: Any, x: Any, tolerance: float = 1e-10) -> tuple[FloatArray, FloatArray]:
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
    >>> from attsvm.dynamics.localization.propagation import upper_tail
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


def interval_probability(weights: Any, low: Any, high: Any, tolerance: float = 1e-10) -> tuple[FloatArray, FloatArray]:
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


def _saddle(w: FloatArray, x: FloatArray, branch: FloatArray) -> tuple[FloatArray, FloatArray, npt.NDArray[np.bool_]]:
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


def _invert(w: FloatArray, x: FloatArray, branch: FloatArray, tolerance: float) -> tuple[FloatArray, FloatArray]:
    c, width, left = _saddle(w, x, branch)
    # s = e + mu cosh(v + i angle) passes through c; its innermost confocal ray starts at e + mu, at most the first
    # singularity to the right: the branch point, or the pole.
    singular = np.where(left, 0.0, branch)
    mu = np.minimum((singular - c) / (1 - np.cos(_ANGLE)), 3 * width / np.sin(_ANGLE))
    e = c - mu * np.cos(_ANGLE)

    def log_integrand(v: FloatArray) -> npt.NDArray[np.complex128]:
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


Method = Literal["exact", "gaussian", "asymptotic", "printed", "monte_carlo"]

METHODS = ("exact", "gaussian", "asymptotic", "printed", "monte_carlo")

_PATHS_AT_ONCE = 4_000_000  # doubles of one batch of walks


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

    theta: FloatArray
    rho: FloatArray
    error: FloatArray
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


def signal_weights(W: Any, T: int, temperature: float | None = None) -> FloatArray:
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


def token_logits(X: Any, W: Any, temperature: float | None = None) -> FloatArray:
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
) -> FloatArray:
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
    size = max(1, _PATHS_AT_ONCE // (T * d))
    for start in range(0, walks, size):
        stop = min(walks, start + size)
        X = np.cumsum(sigma.color(rng.standard_normal((stop - start, T, d))), axis=1)
        out[start:stop] = linear_softmax(token_logits(X, checked, temperature))
    return out
