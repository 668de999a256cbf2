"""Where the square loss ends: its orbit is cut at ``m = b``, after a finite polarization."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attsvm.dynamics.polarization.flow import orbit_rates
from attsvm.dynamics.polarization.integrate import FlowError, read_logits, read_scale
from attsvm.dynamics.polarization.normalizations import Normalization, get_normalization

__all__ = ["RegressionLimit", "regression_limit"]

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RegressionLimit:
    """The state at t = infinity.

    Attributes
    ----------
    tau : float
        Total polarization, the integral of gamma over all times.
    u, a, scores : ndarray, shape (p,)
    evaluations : int
    """

    tau: float
    u: Array
    a: Array
    scores: Array
    evaluations: int

    @property
    def relative_entropy(self) -> float:
        """Entropy of the scores divided by ``log p``; 0 for p = 1."""
        s = self.scores[self.scores > 0]
        return float(-(s @ np.log(s)) / np.log(self.scores.size)) if self.scores.size > 1 else 0.0


def regression_limit(
    a0: npt.ArrayLike,
    u0: npt.ArrayLike | None = None,
    *,
    b: float = 1.0,
    normalization: str | Normalization = "softmax",
    tau_max: float = 1e6,
    rtol: float = 1e-11,
    atol: float = 1e-13,
) -> RegressionLimit:
    """Follow the loss-free orbit to ``m = b``: the exact limit of the square loss, without a stiff clock.

    Parameters
    ----------
    a0 : array_like, shape (p,)
    u0 : array_like, shape (p,), optional
        Zero by default, ``V(0) = 0`` (Assumption 3.4); ``<u0, s(0)>`` must be below b.
    b : float
        ``|beta_*|^2``.
    normalization : str or Normalization
        Any map whose entries do not stop at zero.
    tau_max : float
        Give up past this polarization.

    Examples
    --------
    >>> from attsvm.dynamics.polarization import regression_limit
    >>> limit = regression_limit([0.1, 0.0, -0.1], b=1.0)
    >>> 1 <= limit.tau <= 3, limit.scores.round(3).tolist()
    (True, [0.387, 0.329, 0.285])
    """
    from scipy.integrate import solve_ivp

    kind, scale = get_normalization(normalization), read_scale(b)
    if kind.stops:
        raise ValueError(f"normalization {kind.name!r} stops at zero: use aligned_flow with loss='square'")
    logits = np.asarray(a0, dtype=np.float64)
    u, a = read_logits(np.zeros_like(logits) if u0 is None else u0, logits)
    if u.ndim != 1:
        raise ValueError(f"a0 must have shape (p,), got {a.shape}")
    kind.check(a)
    p = u.size
    if float(u @ kind.parts(a)[0]) >= scale:
        # gamma is negative: the flow runs the orbit backwards and reverses the order of the scores.
        raise ValueError(f"<u0, s(0)> must be below b = {scale:g}: past the target gamma is negative")

    def right_hand_side(_: float, y: Array) -> Array:
        return np.concatenate(orbit_rates(y[:p], y[p:], scale, kind))

    def fitted(_: float, y: Array) -> float:
        return float(y[:p] @ kind.parts(y[p:])[0]) - scale

    fitted.terminal = True  # type: ignore[attr-defined]
    result = solve_ivp(
        right_hand_side, (0.0, tau_max), np.concatenate([u, a]), method="DOP853", rtol=rtol, atol=atol, events=fitted
    )
    if result.status != 1:
        raise FlowError(f"the target was not reached by tau = {tau_max:g}: {result.message}")
    end = result.y_events[0][0]
    return RegressionLimit(float(result.t_events[0][0]), end[:p], end[p:], kind.parts(end[p:])[0], int(result.nfev))
