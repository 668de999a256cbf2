"""Maps from logits a to scores s: softmax, any normalization ``f(a_i) / sum_j f(a_j)``, elementwise maps.

Two arrays are all that the flow needs of such a map: the scores ``s`` and the weights ``w`` of its Jacobian,

    (ds/da)^T v = w * (v - <s, v>)   (normalized, equation 31; w = f'(a) / F)        w * v   (elementwise; w = f'(a)).

A normalized map conserves ``sum_i K(a_i)`` along every gradient flow, an elementwise one conserves
``b K(a_i) - u_i^2 / 2`` for each i along the aligned flows, where ``K' = f / f'``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["NORMALIZATIONS", "Normalization", "get_normalization"]

Array = npt.NDArray[np.float64]
Map = Callable[[Array], Array]


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

    def parts(self, a: Array) -> tuple[Array, Array]:
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

    def scores(self, a: npt.ArrayLike) -> Array:
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

    def pullback(self, a: npt.ArrayLike, v: npt.ArrayLike) -> Array:
        """Transposed Jacobian times v, ``(ds/da)^T v``, without forming the matrix.

        Examples
        --------
        >>> from attsvm.dynamics.polarization import get_normalization
        >>> get_normalization("softmax").pullback([0.0, 0.0], [1.0, -1.0]).tolist()
        [0.5, -0.5]
        """
        s, w = self.parts(np.asarray(a, dtype=np.float64))
        return self.centre(s, w, np.asarray(v, dtype=np.float64))

    def centre(self, s: Array, w: Array, v: Array) -> Array:
        """``w * (v - <s, v>)`` when normalized, ``w * v`` when elementwise."""
        if not self.normalized:
            return w * v
        return np.asarray(w * (v - np.sum(s * v, axis=-1, keepdims=True)))

    def invariant(self, a: npt.ArrayLike) -> Array:
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

    def check(self, a: Array) -> None:
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


def _sigmoid(x: Array) -> Array:
    return np.asarray(np.exp(-np.logaddexp(0.0, -x)))


def _sigmoid_slope(x: Array) -> Array:
    return np.asarray(np.exp(-np.logaddexp(0.0, -x) - np.logaddexp(0.0, x)))


def _elu_plus_one(x: Array) -> Array:
    return np.where(x > 0, x + 1.0, np.exp(np.minimum(x, 0.0)))


def _elu_slope(x: Array) -> Array:
    return np.exp(np.minimum(x, 0.0))


def _elu_primitive(x: Array) -> Array:
    positive = np.maximum(x, 0.0)
    return x + 0.5 * positive**2  # f / f' = 1 below zero and x + 1 above


def _square(x: Array) -> Array:
    return x * x


def _relu(x: Array) -> Array:
    return np.maximum(x, 0.0)


def _step(x: Array) -> Array:
    return (x > 0).astype(np.float64)


def _relu_primitive(x: Array) -> Array:
    return _square(_relu(x))


def _sigmoid_primitive(x: Array) -> Array:
    return np.asarray(x + np.exp(x))


def _identity(x: Array) -> Array:
    return x


def _double(x: Array) -> Array:
    return 2.0 * x


def _half_square(x: Array) -> Array:
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
