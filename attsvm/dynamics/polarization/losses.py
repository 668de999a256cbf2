"""Losses of the value-softmax model ``beta = V s``: logistic, square (also through a matrix X), KL.

A loss is *aligned* when ``-grad l(beta) = gamma * beta_*``: then ``u = V^T beta_*`` and a close under the flow, and
every aligned loss follows one and the same orbit; the loss only sets the clock ``dt = dtau / gamma``.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from attsvm._arrays import ArrayT, FloatArray, finite_array, is_tensor, namespace
from attsvm._checks import require_choice
from attsvm.losses import logistic
from attsvm.softmax import log_softmax

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "ALIGNED_LOSSES",
    "KLLoss",
    "LogisticLoss",
    "SquareLoss",
    "TargetLoss",
    "VectorLoss",
    "aligned_loss",
    "aligned_rate",
]

Array = npt.NDArray[np.float64]
ALIGNED_LOSSES = ("logistic", "square")


def _known(loss: str) -> None:
    require_choice("loss", loss, *ALIGNED_LOSSES)


def aligned_rate(loss: str, m: npt.ArrayLike, b: float = 1.0) -> Array:
    """Rate gamma as a function of ``m = <beta_*, beta>``: ``1 / (1 + e^m)`` or ``1 - m / b``, with ``b = |beta_*|^2``.

    Examples
    --------
    >>> from attsvm.dynamics.polarization import aligned_rate
    >>> float(aligned_rate("logistic", 0.0)), float(aligned_rate("square", 1.0, b=4.0))
    (0.5, 0.75)
    """
    _known(loss)
    values = np.asarray(m, dtype=np.float64)
    if loss == "logistic":
        return np.asarray(np.exp(-np.logaddexp(0.0, values)))
    return np.asarray(1.0 - values / b)


def aligned_loss(loss: str, m: npt.ArrayLike, b: float = 1.0) -> Array:
    """The loss as a function of m: ``log(1 + e^-m)``, or ``(b - m)^2 / (2 b)`` where beta is along ``beta_*``.

    Examples
    --------
    >>> from attsvm.dynamics.polarization.losses import aligned_loss
    >>> round(float(aligned_loss("logistic", 30.0)) * 1e13, 3)
    0.936
    """
    _known(loss)
    values = np.asarray(m, dtype=np.float64)
    if loss == "logistic":
        return np.asarray(np.logaddexp(0.0, -values))
    return np.asarray((b - values) ** 2 / (2.0 * b))


class VectorLoss(Protocol):
    """What the full flow asks of a loss of the vector ``beta``, shape (d,)."""

    def value(self, beta: Array) -> npt.ArrayLike:
        """The loss, a number."""

    def descent(self, beta: Array) -> FloatArray:
        """The negative gradient r."""


def _vector(name: str, value: npt.ArrayLike) -> Array:
    array = finite_array(name, value)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} must be a vector, got shape {array.shape}")
    return array


class TargetLoss:
    """A loss of vectors ``beta``, shape (..., d), on arrays or (moved by `on`) on tensors."""

    def on(self, like: Tensor) -> Self:
        """The same loss with its arrays as tensors of this type and device."""
        moved = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):
                object.__setattr__(moved, name, like.new_tensor(value))
        return moved


@dataclass(frozen=True, eq=False)
class LogisticLoss(TargetLoss):
    """``log(1 + exp(-<beta_*, beta>))``, equation 14.

    Examples
    --------
    >>> from attsvm.dynamics.polarization import LogisticLoss
    >>> LogisticLoss([2.0, 0.0]).descent([0.0, 0.0]).tolist()
    [1.0, 0.0]
    """

    target: npt.ArrayLike

    def __post_init__(self) -> None:
        object.__setattr__(self, "target", _vector("target", self.target))

    def value(self, beta: ArrayT) -> ArrayT:
        """The loss, shape (...)."""
        target: Any = self.target
        value: ArrayT = logistic.value(beta @ target)
        return value

    def descent(self, beta: ArrayT) -> ArrayT:
        """Negative gradient ``gamma beta_*``, shape (..., d)."""
        target: Any = self.target
        r: ArrayT = -logistic.derivative(beta @ target)[..., None] * target
        return r


@dataclass(frozen=True, eq=False)
class SquareLoss(TargetLoss):
    """``scale / 2 * |beta_* - X beta|^2``; X is the identity by default (equation 8), ``scale=2`` is equation 20.

    `difficulty` reports ``|X^-1 beta_*|``, the norm that the fit needs: it, and not only the condition number of X,
    decides how far attention polarizes.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.polarization import SquareLoss
    >>> loss = SquareLoss([1.0, 1.0], X=np.diag([1.0, 0.5]))
    >>> loss.descent(np.zeros(2)).tolist(), round(loss.difficulty**2, 9), loss.condition
    ([1.0, 0.5], 5.0, 2.0)
    """

    target: npt.ArrayLike
    X: npt.ArrayLike | None = None
    scale: float = 1.0

    def __post_init__(self) -> None:
        target = _vector("target", self.target)
        object.__setattr__(self, "target", target)
        if self.X is not None:
            object.__setattr__(self, "X", finite_array("X", self.X, (target.size, "d")))
        if not self.scale > 0:
            raise ValueError(f"scale must be positive, got {self.scale}")

    def value(self, beta: ArrayT) -> ArrayT:
        """The loss, shape (...)."""
        residual = self._residual(beta)
        value: ArrayT = 0.5 * self.scale * (residual * residual).sum(-1)
        return value

    def descent(self, beta: ArrayT) -> ArrayT:
        """Negative gradient ``scale * X^T (beta_* - X beta)``, shape (..., d)."""
        X: Any = self.X
        residual = self._residual(beta)
        return self.scale * (residual if X is None else residual @ X)

    def _residual(self, beta: ArrayT) -> ArrayT:
        target: Any = self.target
        X: Any = self.X
        residual: ArrayT = target - (beta if X is None else beta @ X.T)
        return residual

    @property
    def difficulty(self) -> float:
        """Norm of the least-norm fit, ``|X^+ beta_*|``."""
        target = np.asarray(self.target)
        fit = target if self.X is None else np.linalg.lstsq(np.asarray(self.X), target, rcond=None)[0]
        return float(np.linalg.norm(fit))

    @property
    def condition(self) -> float:
        """Condition number of X."""
        return 1.0 if self.X is None else float(np.linalg.cond(np.asarray(self.X)))


@dataclass(frozen=True, eq=False)
class KLLoss(TargetLoss):
    """Cross-entropy to a distribution: ``-<p_*, log softmax(beta)>``.

    The printed form takes ``-<p_*, log beta>`` of ``beta = V s`` itself, which nothing keeps normalized: it is
    unbounded below. It stays available with ``form="printed"``.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.polarization import KLLoss
    >>> KLLoss([0.75, 0.25]).descent(np.zeros(2)).tolist()
    [0.25, -0.25]
    """

    target: npt.ArrayLike
    form: str = "corrected"

    def __post_init__(self) -> None:
        target = _vector("target", self.target)
        if (target < 0).any() or abs(target.sum() - 1.0) > 1e-9:
            raise ValueError(
                f"target must be a distribution (entries >= 0 that sum to 1), got sum {target.sum():.6g} "
                f"and smallest entry {target.min():.3g}"
            )
        require_choice("form", self.form, "corrected", "printed")
        object.__setattr__(self, "target", target)

    def value(self, beta: ArrayT) -> ArrayT:
        """The loss, shape (...); its minimum is the entropy of the target."""
        target: Any = self.target
        logs = namespace(beta).log(beta) if self.form == "printed" else _log_softmax(beta)
        value: ArrayT = -(target * logs).sum(-1)
        return value

    def descent(self, beta: ArrayT) -> ArrayT:
        """Negative gradient: ``p_* - softmax(beta)``, printed ``p_* / beta``; shape (..., d)."""
        target: Any = self.target
        r: ArrayT = target / beta if self.form == "printed" else target - namespace(beta).exp(_log_softmax(beta))
        return r

    def divergence(self, beta: Array) -> float:
        """``KL(p_* | softmax(beta))``, the loss less its minimum (entries of the target that are 0 count 0)."""
        target = np.asarray(self.target)
        inside = target > 0
        return float(target[inside] @ (np.log(target[inside]) - np.asarray(log_softmax(beta))[inside]))


def _log_softmax(beta: Any) -> Any:
    return beta.log_softmax(-1) if is_tensor(beta) else log_softmax(beta)
