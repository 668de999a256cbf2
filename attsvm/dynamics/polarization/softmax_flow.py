"""The reduced flow of an aligned loss: projections ``u = V^T beta_*``, logits a, and the polarization tau.

    du/dtau = b s,    da/dtau = (ds/da)^T u,    dtau/dt = gamma(m),    m = <u, s>      (equations 6-7 with + signs)

Integrated in ``x = log(1 + t)``, where the logistic flow is not stiff: ``dtau/dx = exp(x + log gamma)`` neither
overflows nor underflows, and m relaxes to x at rate 1.

`gap_flow` goes on where u_j - m loses every digit, past tau = 1e8 or so. With token 0 the winner, ``g_j = u_0 - u_j``,
``l_j = log(s_j / s_0)``, ``Q = 1 + sum_j e^{l_j}`` and ``w = sum_j e^{l_j} g_j / Q``,

    du_0/dtau = b / Q,   dg_j/dtau = -b expm1(l_j) / Q,   dl_j/dtau = -(e^{l_j} g_j - expm1(l_j) w) / Q,   m = u_0 - w,

and no term is the small difference of large ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.dynamics.polarization.value_losses import (
    Normalization,
    _known,
    aligned_loss,
    aligned_rate,
    get_normalization,
)
from attsvm.softmax import log_softmax
from attsvm.solvers.arrays import FloatArray
from attsvm.user_input import finite_array, positive, require_choice, require_count

Rates = Callable[[float, FloatArray], FloatArray]

METHODS = ("LSODA", "DOP853", "RK45", "BDF", "Radau")


class FlowError(RuntimeError):
    """The solver gave up: the message says where and why."""


@dataclass(frozen=True, eq=False)
class LogTimeFlow:
    """A trajectory along ``x = log(1 + t)``, shape (k,)."""

    x: FloatArray

    @property
    def times(self) -> FloatArray:
        """t, shape (k,)."""
        return np.expm1(self.x)


def score_entropy(scores: FloatArray, log_scores: FloatArray | None, name: str) -> FloatArray:
    """Entropy over the last axis; refused where a normalization gives no distribution.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.polarization.softmax_flow import score_entropy
    >>> score_entropy(np.array([1.0, 0.0]), np.array([0.0, -np.inf]), "softmax") == 0
    np.True_
    """
    if log_scores is None:
        raise ValueError(f"the scores of {name!r} are not a distribution: entropy is undefined")
    return np.asarray(-np.sum(scores * np.where(scores > 0, log_scores, 0.0), axis=-1))


@dataclass(frozen=True, eq=False)
class Path:
    """States along a grid.

    Attributes
    ----------
    states : ndarray, shape (k, size)
    evaluations : int
        Of the right-hand side.
    """

    states: FloatArray
    evaluations: int


def log_times(times: npt.ArrayLike | None, t_end: float, points: int) -> FloatArray:
    """Grid in ``x = log(1 + t)``: the given times, or ``points`` of them, equally spaced in x, from 0 to ``t_end``.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.polarization.softmax_flow import log_times
    >>> np.expm1(log_times(None, t_end=99.0, points=3)).round(6).tolist()
    [0.0, 9.0, 99.0]
    """
    if times is None:
        positive("t_end", t_end)
        require_count("points", points, least=2)
        return np.linspace(0.0, np.log1p(t_end), points)
    grid = finite_array("times", times)
    if grid.ndim != 1 or grid.size < 2:
        raise ValueError(f"times must be a vector of at least two times, got shape {grid.shape}")
    if grid[0] != 0 or (np.diff(grid) <= 0).any():
        raise ValueError("times must start at 0 and increase strictly")
    return np.log1p(grid)


def read_logits(u0: npt.ArrayLike, a0: npt.ArrayLike | None) -> tuple[FloatArray, FloatArray]:
    """Initial projections and logits, both (p,) or (B, p); ``a0=None`` is zero (Assumption 3.1)."""
    u = finite_array("u0", u0, ("p",), ("B", "p"))
    return u, np.zeros_like(u) if a0 is None else finite_array("a0", a0, u.shape)


def read_scale(b: float) -> float:
    """``b = |beta_*|^2``, positive."""
    return positive("b = |beta_*|^2", b)


def integrate(
    rates: Callable[[FloatArray], Rates],
    start: FloatArray,
    grid: FloatArray,
    *,
    method: str = "LSODA",
    rtol: float = 1e-10,
    atol: float = 1e-12,
    stopping: slice | None = None,
) -> Path:
    """Integrate ``dy/dx`` along the grid.

    Parameters
    ----------
    rates : callable
        Takes the signs of the stopping entries of this stretch (an empty array without any) and returns ``f(x, y)``.
    start : ndarray, shape (size,)
    grid : ndarray, shape (k,)
        Increasing; the first state returned is ``start``.
    stopping : slice, optional
        Entries that never leave zero once they have reached it. The solver is stopped at the crossing, so that it never
        steps over the kink: the right-hand side is smooth on every stretch.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.polarization.softmax_flow import integrate
    >>> path = integrate(lambda signs: lambda x, y: -y, np.array([1.0]), np.linspace(0, 1, 3))
    >>> bool(abs(path.states[-1, 0] - np.exp(-1)) < 1e-9)
    True
    """
    from scipy.integrate import solve_ivp

    require_choice("method", method, *METHODS)
    state, x, done, evaluations = start.astype(np.float64), float(grid[0]), 1, 0
    states = np.empty((grid.size, start.size))
    states[0] = start
    stops = np.arange(start.size)[slice(0) if stopping is None else stopping]
    while done < grid.size:
        signs = np.sign(state[stops])
        alive = stops[signs != 0]
        events = [_crossing(int(i)) for i in alive] if alive.size > 1 else None
        result = solve_ivp(
            rates(signs),
            (x, float(grid[-1])),
            state,
            method=method,
            t_eval=grid[done:],
            rtol=rtol,
            atol=atol,
            events=events,
        )
        evaluations += int(result.nfev)
        count = len(result.t)  # an empty list when an entry stops before the next point of the grid
        if result.status == -1 or (count and not np.isfinite(result.y).all()):
            reached = float(result.t[-1]) if count else x
            raise FlowError(f"{method} stopped at x = log(1 + t) = {reached:.4g} of {grid[-1]:.4g}: {result.message}")
        if count:
            states[done : done + count] = result.y.T
        done += count
        if result.status == 0:
            break
        hit = [k for k, when in enumerate(result.t_events) if len(when)]
        x = float(result.t_events[hit[0]][0])
        state = np.array(result.y_events[hit[0]][0])
        state[alive[hit]] = 0.0  # exactly: from here on it does not move
    return Path(states, evaluations)


def _crossing(index: int) -> Callable[[float, FloatArray], float]:
    def event(_: float, y: FloatArray) -> float:
        return float(y[index])

    event.terminal = True  # type: ignore[attr-defined]
    return event


_SOFTMAX = get_normalization("softmax")


def orbit_rates(
    u: FloatArray, a: FloatArray, b: float, normalization: str | Normalization = "softmax"
) -> tuple[FloatArray, FloatArray]:
    """``du/dtau = b s`` and ``da/dtau = (ds/da)^T u``: the orbit that every aligned loss follows, shapes (..., p).

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.polarization import orbit_rates
    >>> du, da = orbit_rates(np.array([1.0, 0.0]), np.zeros(2), b=4.0)
    >>> du.tolist(), da.tolist()
    ([2.0, 2.0], [0.25, -0.25])
    """
    kind = get_normalization(normalization)
    s, w = kind.parts(a)
    return b * s, kind.centre(s, w, u)


@dataclass(frozen=True, eq=False)
class Flow(LogTimeFlow):
    """A trajectory of the reduced flow.

    Attributes
    ----------
    x : ndarray, shape (k,)
        ``log(1 + t)``.
    u, a : ndarray, shape (..., k, p)
        One leading axis for a batch of initialisations.
    log_scores : ndarray, shape (..., k, p), or None
        Log of s where the scores are a distribution (-inf for an entry that is exactly 0).
    scores : ndarray, shape (..., k, p)
    tau : ndarray, shape (..., k)
        Polarization, the integral of gamma.
    b : float
        ``|beta_*|^2``.
    loss_name : str
    normalization : Normalization
    evaluations : int
        Of the right-hand side.
    """

    u: FloatArray
    a: FloatArray
    log_scores: FloatArray | None
    scores: FloatArray
    tau: FloatArray
    b: float
    loss_name: str
    normalization: Normalization
    evaluations: int

    @property
    def p(self) -> int:
        """Number of tokens."""
        return int(self.u.shape[-1])

    @property
    def m(self) -> FloatArray:
        """``<beta_*, beta> = <u, s>``, shape (..., k)."""
        return np.asarray(np.sum(self.u * self.scores, axis=-1))

    @property
    def gamma(self) -> FloatArray:
        """Speed of the clock, shape (..., k)."""
        return np.asarray(aligned_rate(self.loss_name, self.m, self.b), dtype=np.float64)

    @property
    def loss(self) -> FloatArray:
        """The loss, shape (..., k)."""
        return np.asarray(aligned_loss(self.loss_name, self.m, self.b), dtype=np.float64)

    @property
    def entropy(self) -> FloatArray:
        """Entropy of the scores, shape (..., k); refused where they are not a distribution."""
        return score_entropy(self.scores, self.log_scores, self.normalization.name)

    def __getitem__(self, index: int) -> Flow:
        """One trajectory of a batch."""
        if self.u.ndim == 2:
            raise TypeError("this flow is not a batch")
        log_scores = None if self.log_scores is None else self.log_scores[index]
        return Flow(
            self.x,
            self.u[index],
            self.a[index],
            log_scores,
            self.scores[index],
            self.tau[index],
            self.b,
            self.loss_name,
            self.normalization,
            self.evaluations,
        )


def aligned_flow(
    u0: npt.ArrayLike,
    a0: npt.ArrayLike | None = None,
    *,
    b: float = 1.0,
    loss: str = "logistic",
    normalization: str | Normalization = "softmax",
    times: npt.ArrayLike | None = None,
    t_end: float = 1e12,
    points: int = 200,
    frozen: str | None = None,
    method: str | None = None,
    rtol: float = 1e-10,
    atol: float = 1e-12,
) -> Flow:
    """Integrate the reduced flow of the logistic or square loss.

    Parameters
    ----------
    u0 : array_like, shape (p,) or (B, p)
        ``V(0)^T beta_*``; a batch of initialisations is integrated together, with the tolerances divided by sqrt(B)
        so that each keeps its own.
    a0 : array_like, same shape, optional
        Zero by default (Assumption 3.1).
    b : float
        ``|beta_*|^2``.
    loss : {"logistic", "square"}
        For "square" the target must hold the columns of V(0) (Assumption 3.4), e.g. V(0) = 0.
    normalization : str or Normalization
        See `get_normalization`.
    times : array_like, shape (k,), optional
        Starting at 0; by default ``points`` times up to ``t_end``, equally spaced in ``log(1 + t)``.
    frozen : {"u", "a"}, optional
        Train only the other one.
    method : str, optional
        LSODA for one initialisation, DOP853 for a batch; LSODA is needed for the square loss, which is stiff in
        log-time.
    rtol, atol : float

    Examples
    --------
    >>> from attsvm.dynamics.polarization import aligned_flow
    >>> flow = aligned_flow([0.2, 0.1, 0.0, -0.1], t_end=1e12)
    >>> flow.scores[-1].round(3).tolist()
    [0.998, 0.001, 0.001, 0.001]
    """
    _known(loss)
    kind, scale = get_normalization(normalization), read_scale(b)
    u, a = read_logits(u0, a0)
    kind.check(a)
    require_choice("frozen", frozen, None, "u", "a")
    grid = log_times(times, t_end, points)
    options: dict[str, Any] = {"loss": loss, "kind": kind, "b": scale, "frozen": frozen, "grid": grid}
    if u.ndim == 1:
        return _single(u, a, method or "LSODA", rtol, atol, **options)
    if kind.stops or loss == "square" or len(u) == 1:
        return _stack([_single(u[i], a[i], method or "LSODA", rtol, atol, **options) for i in range(len(u))])
    tighten = np.sqrt(len(u))
    return _single(u, a, method or "DOP853", max(rtol / tighten, 3e-14), atol / tighten, **options)


def _single(
    u: FloatArray,
    a: FloatArray,
    method: str,
    rtol: float,
    atol: float,
    *,
    loss: str,
    kind: Normalization,
    b: float,
    frozen: Any,
    grid: FloatArray,
) -> Flow:
    """One integration, of one initialisation or of a batch as one long state (u, c, tau)."""
    shape, size = u.shape, u.size
    log_chart = kind.name == "square"
    if log_chart and (a == 0).any():
        raise ValueError(
            "a0 must have no zero entry for normalization 'square': f'(0) = 0 leaves it there; drop the token"
        )
    # f = x^2 lives on log a^2, where the flow is the replicator equation: its scores fall like exp(-tau^2).
    coordinates = np.log(a * a) if log_chart else a
    total = np.sum(a * a, axis=-1, keepdims=True)  # F, conserved for f = x^2

    def rates(signs: FloatArray) -> Rates:
        stretch = _stretch(kind, signs)

        def right_hand_side(x: float, y: FloatArray) -> FloatArray:
            u, c = y[:size].reshape(shape), y[size : 2 * size].reshape(shape)
            if log_chart:
                s = _SOFTMAX.parts(c)[0]
                dc = 4.0 / total * (u - np.sum(u * s, axis=-1, keepdims=True))
            else:
                s, w = stretch.parts(c)
                dc = stretch.centre(s, w, u)
            m = np.sum(u * s, axis=-1)
            # e^x gamma, which for the logistic loss neither overflows nor underflows.
            speed = np.exp(x - np.logaddexp(0.0, m)) if loss == "logistic" else np.exp(x) * aligned_rate(loss, m, b)
            du = np.zeros_like(u) if frozen == "u" else speed[..., None] * b * s
            dc = np.zeros_like(u) if frozen == "a" else speed[..., None] * dc
            return np.concatenate([du.ravel(), dc.ravel(), np.ravel(speed)])

        return right_hand_side

    start = np.concatenate([u.ravel(), coordinates.ravel(), np.zeros(size // shape[-1])])
    stopping = slice(size, 2 * size) if kind.stops else None
    path = integrate(rates, start, grid, method=method, rtol=rtol, atol=atol, stopping=stopping)
    k = grid.size
    us = path.states[:, :size].reshape(k, *shape)
    cs = path.states[:, size : 2 * size].reshape(k, *shape)
    taus = path.states[:, 2 * size :].reshape(k, *shape[:-1])
    if len(shape) == 2:  # the batch axis goes first
        us, cs, taus = us.swapaxes(0, 1), cs.swapaxes(0, 1), taus.swapaxes(0, 1)
    if log_chart:
        log_scores = np.asarray(log_softmax(cs))
        a_path = np.sign(a)[..., None, :] * np.exp(0.5 * cs)
        return Flow(grid, us, a_path, log_scores, np.exp(log_scores), taus, b, loss, kind, path.evaluations)
    return Flow(grid, us, cs, *_both_scores(kind, cs), taus, b, loss, kind, path.evaluations)


def _stretch(kind: Normalization, signs: FloatArray) -> Normalization:
    """The map between two stops: linear with fixed signs, so that a step may overshoot zero without a kink."""
    if not kind.stops:
        return kind
    live = np.where(kind.slope(signs) != 0, signs, 0.0)  # a negative entry of relu_norm is dead from the start
    return Normalization(kind.name, lambda x: live * x, lambda x: live + 0.0 * x, None, stops=True)


def _both_scores(kind: Normalization, a: FloatArray) -> tuple[FloatArray | None, FloatArray]:
    if kind.name == "softmax":
        log_scores = np.asarray(log_softmax(a))
        return log_scores, np.exp(log_scores)
    s = kind.parts(a)[0]
    if not kind.positive:
        return None, s
    with np.errstate(divide="ignore"):
        return np.log(s), s


def _stack(flows: list[Flow]) -> Flow:
    first = flows[0]
    log_scores = (
        None if first.log_scores is None else np.stack([f.log_scores for f in flows if f.log_scores is not None])
    )
    return Flow(
        first.x,
        np.stack([f.u for f in flows]),
        np.stack([f.a for f in flows]),
        log_scores,
        np.stack([f.scores for f in flows]),
        np.stack([f.tau for f in flows]),
        first.b,
        first.loss_name,
        first.normalization,
        sum(f.evaluations for f in flows),
    )


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

    tau: FloatArray
    log_time: FloatArray
    u_max: FloatArray
    gaps: FloatArray
    log_ratios: FloatArray
    reference: int
    b: float
    evaluations: int

    @property
    def log_scores(self) -> FloatArray:
        """``log s``, shape (k, p)."""
        others = np.delete(self.log_ratios, self.reference, axis=-1)
        return np.asarray(self.log_ratios - np.log1p(np.exp(others).sum(axis=-1, keepdims=True)))

    @property
    def u(self) -> FloatArray:
        """Projections, shape (k, p)."""
        return np.asarray(self.u_max[:, None] - self.gaps)

    @property
    def m(self) -> FloatArray:
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

    def rates(_: FloatArray) -> Rates:
        def right_hand_side(x: float, y: FloatArray) -> FloatArray:
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


def _orbit(u: float, g: FloatArray, ell: FloatArray, b: float) -> tuple[float, FloatArray, FloatArray, float]:
    q, less = np.exp(ell), np.expm1(ell)
    Q = 1.0 + float(q.sum())
    w = float(q @ g) / Q
    return b / Q, -b * less / Q, -(q * g - less * w) / Q, u - w


def _asymptotic_clock(states: FloatArray, size: int, b: float) -> FloatArray:
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
