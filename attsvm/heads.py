"""Prediction heads h: what a composed token is worth before the label's sign.

A head is any callable that maps vectors ``(..., d)`` to numbers ``(...)``; the classes below carry a
name, their parameters and the dimension that they expect, so that mistakes are found early.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from attsvm._arrays import FloatArray, freeze, real_array, require_finite

__all__ = ["ConcaveHead", "Head", "LinearHead", "ReluHead"]

Head = Callable[[Any], Any]


def _parameter(name: str, value: npt.ArrayLike, minimum_ndim: int, shape: str) -> FloatArray:
    array = real_array(name, value)
    if array.ndim not in (minimum_ndim, minimum_ndim + 1) or 0 in array.shape:
        raise ValueError(f"{name} must have shape {shape}, optionally with a leading batch axis, got {array.shape}")
    require_finite(name, array)
    return freeze(array)


class _Parametric:
    """A head with one array of parameters, alone or with a leading batch axis."""

    _parameter: ClassVar[str]
    _axes: ClassVar[int]  # of the parameter, without the batch axis; the first has the tokens' dimension

    @property
    def dim(self) -> int:
        """Dimension of the tokens."""
        return int(getattr(self, self._parameter).shape[-self._axes])

    @property
    def batch(self) -> int | None:
        """Number of heads, None for a single one."""
        array = getattr(self, self._parameter)
        return int(array.shape[0]) if array.ndim > self._axes else None

    def __getitem__(self, index: int) -> Self:
        if self.batch is None:
            return self
        return replace(self, **{self._parameter: getattr(self, self._parameter)[index]})  # type: ignore[type-var]


@dataclass(frozen=True, eq=False)
class LinearHead(_Parametric):
    """``h(x) = v . x``.

    Parameters
    ----------
    v : array_like, shape (d,) or (batch, d)

    Examples
    --------
    >>> from attsvm import LinearHead
    >>> LinearHead([1.0, -1.0])([[3.0, 1.0], [0.0, 1.0]])
    array([ 2., -1.])
    """

    _parameter: ClassVar[str] = "v"
    _axes: ClassVar[int] = 1
    v: FloatArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "v", _parameter("v", self.v, 1, "(d,)"))

    def __call__(self, tokens: npt.ArrayLike) -> FloatArray:
        """Evaluate the head on vectors (..., d)."""
        x = np.asarray(tokens)
        if self.batch is None:
            return np.asarray(x @ self.v)
        return np.asarray(np.einsum("b...d,bd->b...", x, self.v))


@dataclass(frozen=True, eq=False)
class ReluHead(_Parametric):
    """``h(x) = 1 . relu(V^T x)``: one hidden layer with unit output weights.

    ``V = I`` is the head that the text of the Gen-SVM experiments states; a Gaussian V is what their
    code uses.

    Parameters
    ----------
    V : array_like, shape (d, width) or (batch, d, width)

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import ReluHead
    >>> ReluHead(np.eye(2))([[3.0, -1.0], [2.0, 1.0]])
    array([3., 3.])
    """

    _parameter: ClassVar[str] = "V"
    _axes: ClassVar[int] = 2
    V: FloatArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "V", _parameter("V", self.V, 2, "(d, width)"))

    def __call__(self, tokens: npt.ArrayLike) -> FloatArray:
        """Evaluate the head on vectors (..., d)."""
        x = np.asarray(tokens)
        hidden = x @ self.V if self.batch is None else np.einsum("b...d,bdw->b...w", x, self.V)
        return np.asarray(np.maximum(hidden, 0).sum(axis=-1))


@dataclass(frozen=True, eq=False)
class ConcaveHead(_Parametric):
    """``h(x) = v . x - lam |x|^2``: concave, so that mixing tokens can beat every single token (Lemma 6).

    Parameters
    ----------
    v : array_like, shape (d,) or (batch, d)
    lam : float
        Nonnegative strength of the concave term.

    Examples
    --------
    >>> from attsvm import ConcaveHead
    >>> ConcaveHead([1.0, 0.0], lam=0.5)([[1.0, 0.0], [0.5, 0.5]])
    array([0.5 , 0.25])
    """

    _parameter: ClassVar[str] = "v"
    _axes: ClassVar[int] = 1
    v: FloatArray
    lam: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "v", _parameter("v", self.v, 1, "(d,)"))
        lam = float(self.lam)
        if not (np.isfinite(lam) and lam >= 0):
            raise ValueError(f"lam must be a finite number >= 0, got {self.lam}")
        object.__setattr__(self, "lam", lam)

    def __call__(self, tokens: npt.ArrayLike) -> FloatArray:
        """Evaluate the head on vectors (..., d)."""
        x = np.asarray(tokens)
        return np.asarray(LinearHead(self.v)(x) - self.lam * np.square(x).sum(axis=-1))
