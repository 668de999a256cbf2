"""Losses of the residual: m-strongly convex and L-smooth, least at zero."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["ScalarLoss", "curved_loss", "squared_loss"]

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ScalarLoss:
    """A loss l(f - y) with its first two derivatives.

    Attributes
    ----------
    value, slope, curvature : callable
        Elementwise functions of the residual.
    m, L : float
        Bounds of the curvature from below and above.
    """

    value: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    curvature: Callable[[Array], Array]
    m: float
    L: float


def squared_loss() -> ScalarLoss:
    """Half the square, m = L = 1.

    Examples
    --------
    >>> float(squared_loss().value(np.array(3.0)))
    4.5
    """
    return ScalarLoss(lambda r: 0.5 * r * r, lambda r: r, np.ones_like, 1.0, 1.0)


def curved_loss(extra: float) -> ScalarLoss:
    """``r^2 / 2 + extra * log cosh r``: m = 1 and L = 1 + extra differ.

    Examples
    --------
    >>> curved_loss(2.0).L, float(curved_loss(2.0).curvature(np.array(0.0)))
    (3.0, 3.0)
    """
    if not extra >= 0:
        raise ValueError(f"extra must be nonnegative, got {extra}")

    def value(r: Array) -> Array:
        size = np.abs(r)
        return np.asarray(0.5 * r * r + extra * (size + np.log1p(np.exp(-2.0 * size)) - np.log(2.0)))

    def curvature(r: Array) -> Array:
        return np.asarray(1.0 + extra * (1.0 - np.tanh(r) ** 2))

    return ScalarLoss(value, lambda r: np.asarray(r + extra * np.tanh(r)), curvature, 1.0, 1.0 + extra)
