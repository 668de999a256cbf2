"""The reduced flow of an aligned loss: projections ``u = V^T beta_*``, logits a, and the polarization tau.

    du/dtau = b s,    da/dtau = (ds/da)^T u,    dtau/dt = gamma(m),    m = <u, s>      (equations 6-7 with + signs)

Integrated in ``x = log(1 + t)``, where the logistic flow is not stiff: ``dtau/dx = exp(x + log gamma)`` neither
overflows nor underflows, and m relaxes to x at rate 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm._checks import require_choice
from attsvm.dynamics.polarization.integrate import (
    LogTimeFlow,
    Rates,
    integrate,
    log_times,
    read_logits,
    read_scale,
    score_entropy,
)
from attsvm.dynamics.polarization.losses import _known, aligned_loss, aligned_rate
from attsvm.dynamics.polarization.normalizations import Normalization, get_normalization
from attsvm.softmax import log_softmax

__all__ = ["Flow", "aligned_flow", "orbit_rates"]

Array = npt.NDArray[np.float64]
_SOFTMAX = get_normalization("softmax")


def orbit_rates(u: Array, a: Array, b: float, normalization: str | Normalization = "softmax") -> tuple[Array, Array]:
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

    u: Array
    a: Array
    log_scores: Array | None
    scores: Array
    tau: Array
    b: float
    loss_name: str
    normalization: Normalization
    evaluations: int

    @property
    def p(self) -> int:
        """Number of tokens."""
        return int(self.u.shape[-1])

    @property
    def m(self) -> Array:
        """``<beta_*, beta> = <u, s>``, shape (..., k)."""
        return np.asarray(np.sum(self.u * self.scores, axis=-1))

    @property
    def gamma(self) -> Array:
        """Speed of the clock, shape (..., k)."""
        return aligned_rate(self.loss_name, self.m, self.b)

    @property
    def loss(self) -> Array:
        """The loss, shape (..., k)."""
        return aligned_loss(self.loss_name, self.m, self.b)

    @property
    def entropy(self) -> Array:
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
    u: Array,
    a: Array,
    method: str,
    rtol: float,
    atol: float,
    *,
    loss: str,
    kind: Normalization,
    b: float,
    frozen: Any,
    grid: Array,
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

    def rates(signs: Array) -> Rates:
        stretch = _stretch(kind, signs)

        def right_hand_side(x: float, y: Array) -> Array:
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


def _stretch(kind: Normalization, signs: Array) -> Normalization:
    """The map between two stops: linear with fixed signs, so that a step may overshoot zero without a kink."""
    if not kind.stops:
        return kind
    live = np.where(kind.slope(signs) != 0, signs, 0.0)  # a negative entry of relu_norm is dead from the start
    return Normalization(kind.name, lambda x: live * x, lambda x: live + 0.0 * x, None, stops=True)


def _both_scores(kind: Normalization, a: Array) -> tuple[Array | None, Array]:
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
