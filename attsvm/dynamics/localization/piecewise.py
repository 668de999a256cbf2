"""The piecewise-linear softmax: the first-order expansion at zero logits, clipped to [0, 1] token by token."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm._arrays import BoolArray, finite_array

__all__ = ["linear_softmax", "piecewise_softmax", "propagates", "softmax_expansion"]

Float64Array = npt.NDArray[np.float64]


def _logits(logits: Any) -> Float64Array:
    array = finite_array("logits", logits)
    if array.ndim == 0:
        raise ValueError("logits must have at least one axis")
    if array.shape[-1] < 2:
        raise ValueError(f"logits must hold T >= 2 tokens, got T = {array.shape[-1]}: one token gets all the attention")
    return array


def softmax_expansion(T: int) -> tuple[Float64Array, float]:
    """Coefficients of the expansion at zero: ``S(omega)_i = <gamma^i, omega> + 1/T``.

    Returns
    -------
    gamma : ndarray, shape (T, T)
        Row i is ``gamma^i = e^i / T - 1 / T^2``, so that ``<gamma^i, omega> = (omega_i - mean(omega)) / T``: the
        ``1/T^2`` entries are small one by one and not in the sum, and cannot be dropped.
    gamma_0 : float
        ``1 / T``.

    Examples
    --------
    >>> from attsvm.dynamics.localization import softmax_expansion
    >>> softmax_expansion(2)
    (array([[ 0.25, -0.25],
           [-0.25,  0.25]]), 0.5)
    """
    if T < 2:
        raise ValueError(f"T must be >= 2, got {T}")
    return np.eye(T) / T - 1.0 / T**2, 1.0 / T


def linear_softmax(logits: Any) -> Float64Array:
    """The signal ``<gamma^i, omega> + 1/T`` of every token, before clipping; sums to 1 over the tokens.

    Parameters
    ----------
    logits : array_like, shape (..., T)

    Returns
    -------
    ndarray, shape (..., T)

    Examples
    --------
    >>> from attsvm.dynamics.localization import linear_softmax
    >>> linear_softmax([4.0, 0.0])
    array([ 1.5, -0.5])
    """
    omega = _logits(logits)
    return np.asarray((omega - omega.mean(axis=-1, keepdims=True) + 1.0) / omega.shape[-1])


def piecewise_softmax(logits: Any) -> Float64Array:
    """The clipped expansion ``min(1, max(0, <gamma^i, omega> + 1/T))``.

    Not a probability vector: the linear part sums to 1, what remains after clipping does not.

    Parameters
    ----------
    logits : array_like, shape (..., T)

    Examples
    --------
    >>> from attsvm.dynamics.localization import piecewise_softmax
    >>> piecewise_softmax([0.2, 0.0])
    array([0.55, 0.45])
    >>> piecewise_softmax([9.0, 9.0, -9.0])  # two tokens saturate: the sum is 2
    array([1., 1., 0.])
    """
    return np.clip(linear_softmax(logits), 0.0, 1.0)


def propagates(logits: Any) -> BoolArray:
    """Whether the gradient passes through token i: its signal lies in [0, 1] (Definition 1).

    A token above 1 is used with full weight; what it does not do is pass a gradient to the logits.

    Parameters
    ----------
    logits : array_like, shape (..., T)

    Examples
    --------
    >>> from attsvm.dynamics.localization import propagates
    >>> propagates([9.0, 0.0, -9.0])
    array([False,  True, False])
    """
    signal = linear_softmax(logits)
    return np.asarray((signal >= 0.0) & (signal <= 1.0))
