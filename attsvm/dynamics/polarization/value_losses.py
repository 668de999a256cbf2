"""Maps from logits a to scores s, and losses of the value-softmax model ``beta = V s``.

A map is softmax, another normalization ``f(a_i) / sum_j f(a_j)``, or elementwise. The flow needs its scores ``s`` and
the weights ``w`` of its Jacobian,

    (ds/da)^T v = w * (v - <s, v>)   (normalized, equation 31; w = f'(a) / F)        w * v   (elementwise; w = f'(a)).

A normalized map conserves ``sum_i K(a_i)`` along every gradient flow, an elementwise one conserves
``b K(a_i) - u_i^2 / 2`` for each i along the aligned flows, where ``K' = f / f'``.

A loss (logistic, square, KL) is *aligned* when ``-grad l(beta) = gamma * beta_*``: then ``u = V^T beta_*`` and a
close under the flow. Every aligned loss follows the same orbit; the loss only sets the clock ``dt = dtau / gamma``.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from attsvm.losses import logistic
from attsvm.softmax import log_softmax
from attsvm.solvers.arrays import FloatArray
from attsvm.user_input import AnyFloatArray, ArrayT, finite_array, is_tensor, namespace, positive, require_choice

if TYPE_CHECKING:
    from torch import Tensor

Map = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True)
class Normalization:
    """One map from logits to scores.

    Attributes
    ----------
    name : str
    value, slope : callable
        f and f', elementwise. Softmax is computed without them where ``exp`` would overflow.
    primitive : callable or None
        K with ``K' = f / f'``; None when it is not known, and then there is no invariant to check.
    normalized : bool
        Whether the scores are divided by their sum.
    positive : bool
        Whether the scores are a distribution (entropy is undefined otherwise).
    stops : bool
        f is linear down to zero, which an entry reaches in finite time and never leaves (``relu_norm``, ``l1``).
    """

    name: str
    value: Map
    slope: Map
    primitive: Map | None
    normalized: bool = True
    positive: bool = True
    stops: bool = False

    def parts(self, a: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Scores s and Jacobian weights w, both of the shape of ``a`` (..., p).

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm.dynamics.polarization import get_normalization
        >>> s, w = get_normalization("sum").parts(np.array([3.0, 1.0]))
        >>> s.tolist(), w.tolist()
        ([0.75, 0.25], [0.25, 0.25])
        """
        if self.name == "softmax":
            s = np.exp(a - a.max(axis=-1, keepdims=True))  # inside a solver: no validation here
            s /= s.sum(axis=-1, keepdims=True)
            return s, s
        f, slope = self.value(a), self.slope(a)
        if not self.normalized:
            return f, slope
        total = f.sum(axis=-1, keepdims=True)
        return f / total, slope / total

    def scores(self, a: npt.ArrayLike) -> FloatArray:
        """Scores s(a), shape (..., p).

        Examples
        --------
        >>> from attsvm.dynamics.polarization import get_normalization
        >>> get_normalization("relu_norm").scores([2.0, -1.0, 2.0]).tolist()
        [0.5, 0.0, 0.5]
        """
        array = np.asarray(a, dtype=np.float64)
        self.check(array)
        return self.parts(array)[0]

    def centre(self, s: FloatArray, w: FloatArray, v: FloatArray) -> FloatArray:
        """``w * (v - <s, v>)`` when normalized, ``w * v`` when elementwise."""
        if not self.normalized:
            return w * v
        return np.asarray(w * (v - np.sum(s * v, axis=-1, keepdims=True)))

    def invariant(self, a: npt.ArrayLike) -> FloatArray:
        """``sum_i K(a_i)``, conserved by the gradient flow of any loss (normalized maps), shape (...).

        Examples
        --------
        >>> from attsvm.dynamics.polarization import get_normalization
        >>> float(get_normalization("square").invariant([3.0, 4.0]))
        25.0
        """
        if self.primitive is None:
            raise ValueError(f"normalization {self.name!r} has no primitive K, so no invariant is known")
        if not self.normalized:
            raise ValueError(f"{self.name!r} is elementwise: its invariant is b K(a_i) - u_i^2 / 2, not sum K(a_i)")
        return np.asarray(self.primitive(np.asarray(a, dtype=np.float64)).sum(axis=-1))

    def check(self, a: FloatArray) -> None:
        """Refuse logits where the scores are undefined: NaN, or a sum ``F = sum f(a_j)`` that is not positive."""
        if not np.isfinite(a).all():
            index = tuple(int(j) for j in np.argwhere(~np.isfinite(a))[0])
            raise ValueError(f"a must be finite, but a[{', '.join(map(str, index))}] is {a[index]}")
        if self.name == "softmax" or not self.normalized:
            return
        total = self.value(a).sum(axis=-1)
        if not (total > 0).all():
            # F = 0 leaves the scores undefined, and F < 0 reverses the order of a (Lemma D.4 needs F > 0).
            raise ValueError(
                f"normalization {self.name!r} needs sum_j f(a_j) > 0, got {float(np.min(total)):.3g}; choose another a0"
            )


def _sigmoid(x: FloatArray) -> FloatArray:
    return np.asarray(np.exp(-np.logaddexp(0.0, -x)))


def _sigmoid_slope(x: FloatArray) -> FloatArray:
    return np.asarray(np.exp(-np.logaddexp(0.0, -x) - np.logaddexp(0.0, x)))


def _elu_plus_one(x: FloatArray) -> FloatArray:
    return np.where(x > 0, x + 1.0, np.exp(np.minimum(x, 0.0)))


def _elu_slope(x: FloatArray) -> FloatArray:
    return np.exp(np.minimum(x, 0.0))


def _elu_primitive(x: FloatArray) -> FloatArray:
    positive = np.maximum(x, 0.0)
    return x + 0.5 * positive**2  # f / f' = 1 below zero and x + 1 above


def _square(x: FloatArray) -> FloatArray:
    return x * x


def _relu(x: FloatArray) -> FloatArray:
    return np.maximum(x, 0.0)


def _step(x: FloatArray) -> FloatArray:
    return (x > 0).astype(np.float64)


def _relu_primitive(x: FloatArray) -> FloatArray:
    return _square(_relu(x))


def _sigmoid_primitive(x: FloatArray) -> FloatArray:
    return np.asarray(x + np.exp(x))


def _identity(x: FloatArray) -> FloatArray:
    return x


def _double(x: FloatArray) -> FloatArray:
    return 2.0 * x


def _half_square(x: FloatArray) -> FloatArray:
    return 0.5 * x * x


_KINDS = (
    Normalization("softmax", np.exp, np.exp, _identity),
    Normalization("sum", _identity, np.ones_like, _square, positive=False),
    Normalization("square", _square, _double, _square),
    Normalization("sigmoid_norm", _sigmoid, _sigmoid_slope, _sigmoid_primitive),
    Normalization("elu_norm", _elu_plus_one, _elu_slope, _elu_primitive),
    Normalization("relu_norm", _relu, _step, _relu_primitive, stops=True),
    Normalization("l1", np.abs, np.sign, _square, stops=True),
    Normalization("sigmoid", _sigmoid, _sigmoid_slope, _sigmoid_primitive, normalized=False, positive=False),
    Normalization("relu", _relu, _step, lambda x: 0.5 * _relu_primitive(x), normalized=False, positive=False),
    Normalization("linear", _identity, np.ones_like, _half_square, normalized=False, positive=False),
)

NORMALIZATIONS: dict[str, Normalization] = {kind.name: kind for kind in _KINDS}

_ALIASES = {"x": "sum", "x^2": "square", "l2": "square"}  # Figure 13 calls a_i^2 / |a|^2 "L2"


def get_normalization(normalization: str | Normalization) -> Normalization:
    """Look a map up by name; a `Normalization` of one's own passes through.

    Parameters
    ----------
    normalization : str or Normalization
        "softmax", "sum" (or "x"), "square" ("x^2", "l2"), "sigmoid_norm", "elu_norm", "relu_norm", "l1", and the
        elementwise "sigmoid", "relu", "linear".

    Examples
    --------
    >>> from attsvm.dynamics.polarization import get_normalization
    >>> get_normalization("l2").name
    'square'
    """
    if isinstance(normalization, Normalization):
        return normalization
    name = _ALIASES.get(normalization, normalization)
    if name not in NORMALIZATIONS:
        known = sorted([*NORMALIZATIONS, *_ALIASES])
        raise ValueError(f"normalization must be a Normalization or one of {known}, got {normalization!r}")
    return NORMALIZATIONS[name]


ALIGNED_LOSSES = ("logistic", "square")


def _known(loss: str) -> None:
    require_choice("loss", loss, *ALIGNED_LOSSES)


def aligned_rate(loss: str, m: npt.ArrayLike, b: float = 1.0) -> AnyFloatArray:
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


def aligned_loss(loss: str, m: npt.ArrayLike, b: float = 1.0) -> AnyFloatArray:
    """The loss as a function of m: ``log(1 + e^-m)``, or ``(b - m)^2 / (2 b)`` where beta is along ``beta_*``.

    Examples
    --------
    >>> from attsvm.dynamics.polarization.value_losses import aligned_loss
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

    def value(self, beta: AnyFloatArray) -> npt.ArrayLike:
        """The loss, a number."""

    def descent(self, beta: AnyFloatArray) -> AnyFloatArray:
        """The negative gradient r."""


def _vector(name: str, value: npt.ArrayLike) -> AnyFloatArray:
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
        positive("scale", self.scale)

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

    def divergence(self, beta: AnyFloatArray) -> float:
        """``KL(p_* | softmax(beta))``, the loss less its minimum (entries of the target that are 0 count 0)."""
        target = np.asarray(self.target)
        inside = target > 0
        return float(target[inside] @ (np.log(target[inside]) - np.asarray(log_softmax(beta))[inside]))


def _log_softmax(beta: Any) -> Any:
    return beta.log_softmax(-1) if is_tensor(beta) else log_softmax(beta)
