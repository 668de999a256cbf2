"""Integration in ``x = log(1 + t)``: grids of times, SciPy's solvers, and maps whose entries stop at zero."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attsvm._arrays import finite_array
from attsvm._checks import require_choice

__all__ = [
    "FlowError",
    "LogTimeFlow",
    "Path",
    "integrate",
    "log_times",
    "read_logits",
    "read_scale",
    "score_entropy",
]

Array = npt.NDArray[np.float64]
Rates = Callable[[float, Array], Array]
METHODS = ("LSODA", "DOP853", "RK45", "BDF", "Radau")


class FlowError(RuntimeError):
    """The solver gave up: the message says where and why."""


@dataclass(frozen=True, eq=False)
class LogTimeFlow:
    """A trajectory along ``x = log(1 + t)``, shape (k,)."""

    x: Array

    @property
    def times(self) -> Array:
        """t, shape (k,)."""
        return np.expm1(self.x)


def score_entropy(scores: Array, log_scores: Array | None, name: str) -> Array:
    """Entropy over the last axis; refused where a normalization gives no distribution.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.polarization.integrate import score_entropy
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

    states: Array
    evaluations: int


def log_times(times: npt.ArrayLike | None, t_end: float, points: int) -> Array:
    """Grid in ``x = log(1 + t)``: the given times, or ``points`` of them, equally spaced in x, from 0 to ``t_end``.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.polarization.integrate import log_times
    >>> np.expm1(log_times(None, t_end=99.0, points=3)).round(6).tolist()
    [0.0, 9.0, 99.0]
    """
    if times is None:
        if not (np.isfinite(t_end) and t_end > 0):
            raise ValueError(f"t_end must be positive and finite, got {t_end}")
        if points < 2:
            raise ValueError(f"points must be at least 2, got {points}")
        return np.linspace(0.0, np.log1p(t_end), points)
    grid = finite_array("times", times)
    if grid.ndim != 1 or grid.size < 2:
        raise ValueError(f"times must be a vector of at least two times, got shape {grid.shape}")
    if grid[0] != 0 or (np.diff(grid) <= 0).any():
        raise ValueError("times must start at 0 and increase strictly")
    return np.log1p(grid)


def read_logits(u0: npt.ArrayLike, a0: npt.ArrayLike | None) -> tuple[Array, Array]:
    """Initial projections and logits, both (p,) or (B, p); ``a0=None`` is zero (Assumption 3.1)."""
    u = finite_array("u0", u0, ("p",), ("B", "p"))
    return u, np.zeros_like(u) if a0 is None else finite_array("a0", a0, u.shape)


def read_scale(b: float) -> float:
    """``b = |beta_*|^2``, positive."""
    if not (np.isfinite(b) and b > 0):
        raise ValueError(f"b = |beta_*|^2 must be positive and finite, got {b}")
    return float(b)


def integrate(
    rates: Callable[[Array], Rates],
    start: Array,
    grid: Array,
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
    >>> from attsvm.dynamics.polarization.integrate import integrate
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


def _crossing(index: int) -> Callable[[float, Array], float]:
    def event(_: float, y: Array) -> float:
        return float(y[index])

    event.terminal = True  # type: ignore[attr-defined]
    return event
