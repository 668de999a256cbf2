"""Decreasing losses with their derivatives and the constants of Assumption A.

Assumption A asks, on a bounded interval, for ``|l'| <= M1`` and ``l'`` to be M0-Lipschitz. The theory
uses ``l' < 0`` throughout, which "strictly decreasing" does not give (``-u^3`` is flat at 0); the
three losses here have it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["LOSSES", "Loss", "LossConstants", "correlation", "exponential", "get_loss", "logistic"]

FloatArray = npt.NDArray[np.float64]
_Function = Callable[[FloatArray], FloatArray]


class LossConstants(NamedTuple):
    """Constants of Assumption A on an interval.

    Attributes
    ----------
    M0 : float
        Lipschitz constant of ``l'``, the largest ``|l''|``.
    M1 : float
        Largest ``|l'|``.
    """

    M0: float
    M1: float


@dataclass(frozen=True)
class Loss:
    """A loss ``l(u)`` of the signed prediction ``u = Y h``.

    Attributes
    ----------
    name : str
    value, derivative, second : callable
        ``l``, ``l'`` and ``l''`` elementwise on arrays.
    curvature_peak : float or None
        Where ``l''`` is largest, if inside the real line; ``l''`` decreases away from it.

    Examples
    --------
    >>> from attsvm.losses import logistic
    >>> float(logistic.derivative(0.0)), float(logistic.second(0.0))
    (-0.5, 0.25)
    """

    name: str
    value: _Function
    derivative: _Function
    second: _Function
    curvature_peak: float | None = None

    def __call__(self, u: npt.ArrayLike) -> FloatArray:
        """Evaluate the loss elementwise."""
        return self.value(np.asarray(u, dtype=np.float64))

    def constants(self, low: float, high: float) -> LossConstants:
        """M0 and M1 of Assumption A on ``[low, high]``, exact for the three losses of this module.

        Parameters
        ----------
        low, high : float
            Interval of signed predictions; the scores' range for a linear head, as an attention output
            is a convex mixture of tokens.

        Examples
        --------
        >>> from attsvm.losses import exponential
        >>> exponential.constants(0.0, 5.0)
        LossConstants(M0=1.0, M1=1.0)
        """
        if not (np.isfinite(low) and np.isfinite(high) and low <= high):
            raise ValueError(f"low and high must be finite with low <= high, got {low} and {high}")
        points = [low, high]
        if self.curvature_peak is not None:
            points.append(min(max(self.curvature_peak, low), high))
        at = np.asarray(points, dtype=np.float64)
        return LossConstants(float(np.abs(self.second(at)).max()), float(np.abs(self.derivative(at)).max()))


def _sigmoid(u: npt.ArrayLike) -> FloatArray:
    u = np.asarray(u, dtype=np.float64)
    small = np.exp(-np.abs(u))  # never overflows
    return np.asarray(np.where(u >= 0, 1.0, small) / (1.0 + small))


def _exp_minus(u: npt.ArrayLike) -> FloatArray:
    return np.asarray(np.exp(-np.asarray(u, dtype=np.float64)))


logistic = Loss(
    "logistic",
    value=lambda u: np.asarray(np.logaddexp(0.0, -np.asarray(u, dtype=np.float64))),
    derivative=lambda u: -_sigmoid(-np.asarray(u, dtype=np.float64)),
    second=lambda u: _sigmoid(u) * _sigmoid(-np.asarray(u, dtype=np.float64)),
    curvature_peak=0.0,
)
exponential = Loss("exponential", value=_exp_minus, derivative=lambda u: -_exp_minus(u), second=_exp_minus)
correlation = Loss(
    "correlation",
    value=lambda u: -np.asarray(u, dtype=np.float64),
    derivative=lambda u: -np.ones_like(np.asarray(u, dtype=np.float64)),
    second=lambda u: np.zeros_like(np.asarray(u, dtype=np.float64)),
)

LOSSES = {loss.name: loss for loss in (logistic, exponential, correlation)}


def get_loss(loss: str | Loss) -> Loss:
    """Look a loss up by name.

    Examples
    --------
    >>> from attsvm.losses import get_loss
    >>> get_loss("correlation")([2.0])
    array([-2.])
    """
    if isinstance(loss, Loss):
        return loss
    if loss not in LOSSES:
        raise ValueError(f"loss must be one of {sorted(LOSSES)} or a Loss, got {loss!r}")
    return LOSSES[loss]
