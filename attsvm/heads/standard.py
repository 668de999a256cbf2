"""The heads of the papers: linear, one hidden ReLU layer, and concave."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from attsvm._arrays import ArrayT, BoolArray, FloatArray, is_tensor, namespace
from attsvm.heads.base import Bend, Head

__all__ = ["ConcaveHead", "LinearHead", "ReluHead"]


@dataclass(frozen=True, eq=False, init=False)
class LinearHead(Head):
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

    kind: ClassVar[str] = "linear"
    parameters: ClassVar[Mapping[str, tuple[str, ...]]] = {"v": ("d",)}
    bend: ClassVar[Bend] = "linear"
    v: FloatArray

    def __init__(self, v: npt.ArrayLike) -> None:
        self._store(v=v)

    def value(self, x: ArrayT) -> ArrayT:
        """``v . x``."""
        return self.project("v", x)

    def gradient(self, x: ArrayT) -> ArrayT:
        """``v`` at every point."""
        gradient: ArrayT = self.lift("v", _ones(x))
        return gradient

    def along(self, tokens: ArrayT) -> Callable[[ArrayT], tuple[ArrayT, ArrayT]]:
        """As for `Head`: the slopes are the same at all points."""
        slopes = self.project("v", tokens)[..., None, :]
        return lambda points: (self.project("v", points), slopes)


@dataclass(frozen=True, eq=False, init=False)
class ReluHead(Head):
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

    kind: ClassVar[str] = "relu"
    parameters: ClassVar[Mapping[str, tuple[str, ...]]] = {"V": ("d", "width")}
    bend: ClassVar[Bend] = "convex"
    V: FloatArray

    def __init__(self, V: npt.ArrayLike) -> None:
        self._store(V=V)

    def value(self, x: ArrayT) -> ArrayT:
        """The sum of the hidden units that are on."""
        total: ArrayT = self.project("V", x).clip(0.0).sum(-1)
        return total

    def gradient(self, x: ArrayT) -> ArrayT:
        """The sum of the columns of V whose units are on; that of the side where they are off at a kink."""
        gradient: ArrayT = self.lift("V", _active(self.project("V", x)))
        return gradient

    def along(self, tokens: ArrayT) -> Callable[[ArrayT], tuple[ArrayT, ArrayT]]:
        """As for `Head`, with the hidden units of the tokens kept."""
        V = self.parameter("V", tokens)
        hidden_tokens = (tokens @ V).swapaxes(-1, -2)

        def evaluate(points: ArrayT) -> tuple[ArrayT, ArrayT]:
            hidden = points @ V
            active = _active(hidden)
            return (hidden * active).sum(-1), active @ hidden_tokens

        return evaluate

    def kinks(self, points: FloatArray) -> BoolArray:
        """Where a hidden unit is exactly 0."""
        return np.asarray((self.project("V", points) == 0).any(axis=-1))


def _ones(x: Any) -> Any:
    """1 per vector."""
    return namespace(x).ones_like(x[..., 0])


def _active(hidden: Any) -> Any:
    """1 where a unit is on, else 0."""
    on = hidden > 0
    return on.to(hidden.dtype) if is_tensor(hidden) else on.astype(hidden.dtype)


@dataclass(frozen=True, eq=False, init=False)
class ConcaveHead(Head):
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

    kind: ClassVar[str] = "concave"
    parameters: ClassVar[Mapping[str, tuple[str, ...]]] = {"v": ("d",), "lam": ()}
    bend: ClassVar[Bend] = "concave"
    v: FloatArray
    lam: float

    def __init__(self, v: npt.ArrayLike, lam: float) -> None:
        self._store(v=v, lam=lam)
        if self.lam < 0:
            raise ValueError(f"lam must be a finite number >= 0, got {self.lam:g}")

    @property
    def is_linear(self) -> bool:
        """Without its concave term only."""
        return self.lam == 0

    def value(self, x: ArrayT) -> ArrayT:
        """``v . x - lam |x|^2``."""
        value: ArrayT = self.project("v", x) - self.lam * (x * x).sum(-1)
        return value

    def gradient(self, x: ArrayT) -> ArrayT:
        """``v - 2 lam x``."""
        gradient: ArrayT = self.lift("v", _ones(x)) - 2 * self.lam * x
        return gradient

    def along(self, tokens: ArrayT) -> Callable[[ArrayT], tuple[ArrayT, ArrayT]]:
        """As for `Head`, with the linear part of the slopes kept."""
        linear = self.project("v", tokens)[..., None, :]
        turned = tokens.swapaxes(-1, -2)
        return lambda points: (self.value(points), linear - 2 * self.lam * (points @ turned))
