"""The softmax flow in cancellation-free coordinates, for polarization far beyond any time that a clock can show.

With token 0 the winner, ``g_j = u_0 - u_j``, ``l_j = log(s_j / s_0)``, ``Q = 1 + sum_j e^{l_j}`` and
``w = sum_j e^{l_j} g_j / Q``,

    du_0/dtau = b / Q,   dg_j/dtau = -b expm1(l_j) / Q,   dl_j/dtau = -(e^{l_j} g_j - expm1(l_j) w) / Q,   m = u_0 - w.

No term is the small difference of large ones, while ``u_j - m`` in the coordinates (u, a) loses every digit once tau is
past 1e8 or so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attsvm._checks import require_choice
from attsvm.dynamics.polarization.integrate import Rates, integrate, log_times, read_logits, read_scale

__all__ = ["GapFlow", "gap_flow"]

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class GapFlow:
    """A trajectory in gap coordinates, in the order of the tokens given.

    Attributes
    ----------
    tau : ndarray, shape (k,)
        Polarization.
    log_time : ndarray, shape (k,)
        ``log(1 + t)`` for the logistic loss; NaN where the clock "tau" has no asymptotic value yet.
    u_max : ndarray, shape (k,)
        Projection of the reference token.
    gaps : ndarray, shape (k, p)
        ``u_ref - u_j``, 0 at the reference.
    log_ratios : ndarray, shape (k, p)
        ``log(s_j / s_ref)``, 0 at the reference.
    reference : int
    b : float
    evaluations : int
    """

    tau: Array
    log_time: Array
    u_max: Array
    gaps: Array
    log_ratios: Array
    reference: int
    b: float
    evaluations: int

    @property
    def log_scores(self) -> Array:
        """``log s``, shape (k, p)."""
        others = np.delete(self.log_ratios, self.reference, axis=-1)
        return np.asarray(self.log_ratios - np.log1p(np.exp(others).sum(axis=-1, keepdims=True)))

    @property
    def u(self) -> Array:
        """Projections, shape (k, p)."""
        return np.asarray(self.u_max[:, None] - self.gaps)

    @property
    def m(self) -> Array:
        """``<u, s>``, shape (k,)."""
        return np.asarray(self.u_max - np.sum(np.exp(self.log_scores) * self.gaps, axis=-1))


def gap_flow(
    u0: npt.ArrayLike,
    a0: npt.ArrayLike | None = None,
    *,
    b: float = 1.0,
    reference: int | None = None,
    clock: str = "time",
    times: npt.ArrayLike | None = None,
    end: float | None = None,
    points: int = 200,
    method: str = "LSODA",
    rtol: float = 1e-11,
    atol: float = 1e-13,
) -> GapFlow:
    """Integrate the softmax flow of the logistic loss in gap coordinates.

    Parameters
    ----------
    u0, a0 : array_like, shape (p,)
        ``a0`` is zero by default.
    b : float
        ``|beta_*|^2``.
    reference : int, optional
        The token that wins; argmax of u0 by default, which is right for a0 = 0 (and for a0 ordered like u0).
    clock : {"time", "tau"}
        What the grid counts: t (to 1e300), or the polarization tau (to 1e15), which no t in floating point reaches.
    times : array_like, shape (k,), optional
        Values of the clock, starting at 0.
    end : float, optional
        Last value of the clock when ``times`` is None: 1e12 for time, 1e15 for tau.
    points, method, rtol, atol
        As for `aligned_flow`.

    Examples
    --------
    Every losing score tends to the same constant, ``s_j ~ 2 / (p b tau^2)``:

    >>> import numpy as np
    >>> from attsvm.dynamics.polarization import gap_flow
    >>> flow = gap_flow([1.0, 0.0, -1.0], clock="tau", end=1e15)
    >>> (np.exp(flow.log_scores[-1, 1:]) * flow.tau[-1] ** 2 * 3 / 2).round(4).tolist()
    [1.0, 1.0]
    """
    require_choice("clock", clock, "time", "tau")
    u, a = read_logits(u0, a0)
    if u.ndim != 1:
        raise ValueError(f"u0 must have shape (p,), got {u.shape}: gap coordinates belong to one initialisation")
    scale = read_scale(b)
    winner = int(np.argmax(u)) if reference is None else int(reference)
    if not 0 <= winner < u.size:
        raise ValueError(f"reference must be in 0..{u.size - 1}, got {reference}")
    others = np.delete(np.arange(u.size), winner)
    grid = log_times(times, (1e12 if clock == "time" else 1e15) if end is None else end, points)
    size = others.size
    by_time = clock == "time"

    def rates(_: Array) -> Rates:
        def right_hand_side(x: float, y: Array) -> Array:
            du, dg, dl, m = _orbit(y[0], y[1 : 1 + size], y[1 + size : 1 + 2 * size], scale)
            speed = np.exp(x - np.logaddexp(0.0, m)) if by_time else np.exp(x)
            return np.asarray(speed * np.concatenate([[du], dg, dl, [1.0]]))

        return right_hand_side

    start = np.concatenate([[u[winner]], u[winner] - u[others], a[others] - a[winner], [0.0]])
    path = integrate(rates, start, grid, method=method, rtol=rtol, atol=atol)
    gaps, ratios = np.zeros((grid.size, u.size)), np.zeros((grid.size, u.size))
    gaps[:, others] = path.states[:, 1 : 1 + size]
    ratios[:, others] = path.states[:, 1 + size : 1 + 2 * size]
    tau = path.states[:, -1] if by_time else np.expm1(grid)
    log_time = grid if by_time else _asymptotic_clock(path.states, size, scale)
    return GapFlow(tau, log_time, path.states[:, 0], gaps, ratios, winner, scale, path.evaluations)


def _orbit(u: float, g: Array, ell: Array, b: float) -> tuple[float, Array, Array, float]:
    q, less = np.exp(ell), np.expm1(ell)
    Q = 1.0 + float(q.sum())
    w = float(q @ g) / Q
    return b / Q, -b * less / Q, -(q * g - less * w) / Q, u - w


def _asymptotic_clock(states: Array, size: int, b: float) -> Array:
    """``log t = m - log(dm/dtau)`` from ``dt = (1 + e^m) dtau``, where e^-m and the next term are negligible."""
    log_time = np.full(len(states), np.nan)
    for k, y in enumerate(states):
        du, dg, dl, m = _orbit(y[0], y[1 : 1 + size], y[1 + size : 1 + 2 * size], b)
        q = np.exp(y[1 + size : 1 + 2 * size])
        Q = 1.0 + float(q.sum())
        # w = q.g / Q, so dw = (dq.g + q.dg - w dQ) / Q with dq = q dl.
        dw = float((q * dl) @ y[1 : 1 + size] + q @ dg - (q @ dl) * (y[0] - m)) / Q
        slope = du - dw
        if m > 40.0 and slope > 0:  # e^-40 is below the rounding of log t; the next term is m''/m'^2 = O(tau^-3)
            log_time[k] = m - np.log(slope)
    return log_time
