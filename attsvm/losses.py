"""Decreasing losses with their derivatives and the constants of Assumption A.

Assumption A asks, on a bounded interval, for ``|l'| <= M1`` and ``l'`` to be M0-Lipschitz. The theory
uses ``l' < 0`` throughout, which "strictly decreasing" does not give (``-u^3`` is flat at 0); the
losses here have it, and are convex.

A loss is one object: three functions of arrays or tensors. Training, paths, diagnoses and constants all use it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attsvm._callables import ArrayFunction
from attsvm.user_input import AnyFloatArray, ArrayT, is_tensor, namespace

_GRID = 2001
# Gauss-Legendre on [0, 1]: over an interval of length 1 eight nodes integrate the derivative of the logistic loss
# (poles at distance pi from the real line) and of the exponential to the last bit.
UNIT_RULE = tuple(
    (0.5 * (float(x) + 1.0), 0.5 * float(w)) for x, w in zip(*np.polynomial.legendre.leggauss(8), strict=True)
)


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


@dataclass(frozen=True, init=False)
class Loss:
    """A loss ``l(u)`` of the signed prediction ``u = Y h``.

    Parameters
    ----------
    name : str
    value, derivative, second : callable
        ``l``, ``l'`` and ``l''`` elementwise, on NumPy arrays, torch tensors or both: each is called with what it maps.
    curvature_peak : float, optional
        Where ``l''`` is largest, if inside the real line; ``l''`` decreases away from it.
    logs : pair of callables, optional
        ``log l`` (or None for a loss that is not positive) and ``log -l'``, exact where the loss itself underflows: a
        head that grows needs them.

    Examples
    --------
    >>> import attsvm
    >>> float(attsvm.logistic.derivative(0.0)), float(attsvm.logistic.second(0.0))
    (-0.5, 0.25)
    >>> cubic = attsvm.Loss("cubic", lambda u: (1 - u) ** 3, lambda u: -3 * (1 - u) ** 2, lambda u: 6 * (1 - u))
    >>> print(attsvm.train(attsvm.random_problem(n=2, T=3, d=4), steps=10, loss=cubic).status)
    finished
    """

    name: str
    value: ArrayFunction
    derivative: ArrayFunction
    second: ArrayFunction
    curvature_peak: float | None
    logs: tuple[Callable[[Any], Any] | None, Callable[[Any], Any]] | None

    def __init__(
        self,
        name: str,
        value: Callable[[Any], Any],
        derivative: Callable[[Any], Any],
        second: Callable[[Any], Any],
        curvature_peak: float | None = None,
        logs: tuple[Callable[[Any], Any] | None, Callable[[Any], Any]] | None = None,
    ) -> None:
        for field, given in (("value", value), ("derivative", derivative), ("second", second)):
            if not callable(given):
                raise TypeError(f"{field} of loss {name!r} must be callable, got {type(given).__name__}")
            object.__setattr__(self, field, ArrayFunction(given, f"{field} of loss {name!r}"))
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "curvature_peak", curvature_peak)
        object.__setattr__(self, "logs", logs)

    def __call__(self, u: npt.ArrayLike) -> AnyFloatArray:
        """Evaluate the loss elementwise."""
        return self.value(u)

    def __repr__(self) -> str:
        return f"Loss({self.name!r})"

    @property
    def is_standard(self) -> bool:
        """Whether this is a loss of the library: these are convex and satisfy Assumption A everywhere (a test)."""
        return self in LOSSES.values()

    def constants(self, low: float, high: float) -> LossConstants:
        """M0 and M1 of Assumption A on ``[low, high]``: exact for the library's losses, on a grid for any other.

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
        # l' and l'' of the library's losses are largest at an end, or at the peak.
        points = [low, high] if self.is_standard else np.linspace(low, high, _GRID).tolist()
        if self.curvature_peak is not None:
            points.append(min(max(self.curvature_peak, low), high))
        at = np.asarray(points, dtype=np.float64)
        return LossConstants(float(np.abs(self.second(at)).max()), float(np.abs(self.derivative(at)).max()))

    def log_value(self, u: ArrayT) -> ArrayT:
        """``log l(u)`` of a positive loss; for the library's losses it does not underflow.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm.losses import logistic
        >>> float(logistic.log_value(np.array(5000.0)))
        -5000.0
        """
        exact = None if self.logs is None else self.logs[0]
        found: ArrayT = namespace(u).log(self.value(u)) if exact is None else exact(u)
        return found

    def log_slope(self, u: ArrayT) -> ArrayT:
        """``log -l'(u)``; for the library's losses it does not underflow.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm.losses import logistic
        >>> logistic.log_slope(np.array([0.0, 5000.0])).round(4)
        array([-6.931e-01, -5.000e+03])
        """
        found: ArrayT = namespace(u).log(-self.derivative(u)) if self.logs is None else self.logs[1](u)
        return found

    def log_chord(self, u: ArrayT, step: ArrayT) -> ArrayT:
        """``log((l(u - step) - l(u)) / step)``, the logarithm of the average of ``-l'`` in between: nothing cancels.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm.losses import exponential
        >>> float(exponential.log_chord(np.array(900.0), np.array(1e-20)))
        -900.0
        """
        where = namespace(u).where
        near = abs(step) <= 1.0
        short = where(near, step, 0.0)
        reference = self.log_slope(u - short)
        average = sum(w * namespace(u).exp(self.log_slope(u - short * x) - reference) for x, w in UNIT_RULE)
        # A step backwards is one forwards from the other end.
        far = where(near, 2.0, abs(step))
        high = where(step < 0, u + far, u)
        found: ArrayT = where(near, reference + namespace(u).log(average), self._log_far(high, far))
        return found

    def _log_far(self, u: Any, step: Any) -> Any:
        if self.logs is None or self.logs[0] is None:
            return namespace(u).log((self.value(u - step) - self.value(u)) / step)
        low, high = self.log_value(u - step), self.log_value(u)
        with np.errstate(divide="ignore"):  # scores so large that both are equal: the difference is 0
            return low + namespace(u).log1p(-namespace(u).exp(high - low)) - namespace(u).log(step)


# Arrays and tensors alike.


def _sigmoid(u: Any) -> Any:
    if is_tensor(u):
        return u.sigmoid()
    small = np.exp(-np.abs(u))  # never overflows
    return np.asarray(np.where(u >= 0, 1.0, small) / (1.0 + small))


def _softplus(u: Any) -> Any:
    if is_tensor(u):
        return namespace(u).logaddexp(u, namespace(u).zeros_like(u))  # torch's own softplus overflows beyond 709
    return np.asarray(np.logaddexp(0.0, u))


def _logistic(u: Any) -> Any:
    return _softplus(-u)


def _logistic_slope(u: Any) -> Any:
    return -_sigmoid(-u)


def _logistic_second(u: Any) -> Any:
    return _sigmoid(u) * _sigmoid(-u)


def _exponential(u: Any) -> Any:
    return namespace(u).exp(-u)


def _exponential_slope(u: Any) -> Any:
    return -namespace(u).exp(-u)


def _minus(u: Any) -> Any:
    return -u


def _minus_one(u: Any) -> Any:
    return -namespace(u).ones_like(u)


def _nothing(u: Any) -> Any:
    return namespace(u).zeros_like(u)


def _log_logistic(u: Any) -> Any:
    # log(log(1 + e^-u)) is -u up to e^-u / 2: beyond 36 in every digit.
    here = namespace(u).where(u > 36.0, 0.0, u)
    return namespace(u).where(u > 36.0, -u, namespace(u).log(_softplus(-here)))


def _log_logistic_slope(u: Any) -> Any:
    return -_softplus(u)


logistic = Loss(
    "logistic", _logistic, _logistic_slope, _logistic_second, 0.0, logs=(_log_logistic, _log_logistic_slope)
)
exponential = Loss("exponential", _exponential, _exponential_slope, _exponential, logs=(_minus, _minus))
correlation_loss = Loss("correlation", _minus, _minus_one, _nothing, logs=(None, _nothing))

LOSSES = {loss.name: loss for loss in (logistic, exponential, correlation_loss)}


def get_loss(loss: str | Loss) -> Loss:
    """Look a loss up by name; a `Loss` is returned as it is.

    Examples
    --------
    >>> from attsvm.losses import get_loss
    >>> get_loss("correlation")([2.0])
    array([-2.])
    """
    if isinstance(loss, Loss):
        return loss
    if not isinstance(loss, str):
        raise TypeError(f"loss must be one of {sorted(LOSSES)} or a Loss, got {type(loss).__name__}")
    if loss not in LOSSES:
        raise ValueError(f"loss must be one of {sorted(LOSSES)} or a Loss, got {loss!r}")
    return LOSSES[loss]
