"""The piecewise-linear softmax, and the gradient in W_QK of the one-layer model that uses it.

The softmax is expanded to first order at zero logits and clipped to [0, 1] token by token. The model predicts ``F =
W_F (W_V X^T S(omega) + x_T)`` with ``omega = X W_QK x_T / temperature`` (tokens as rows of X) and has the loss ``|y -
F|^2 / 2``. With ``Gamma`` the matrix whose column i is ``gamma^i`` if token i propagates and zero if not, its
gradient (3) in W_QK is the mean over sequences of

    X^T Gamma P Gamma^T omega x_T^T / temperature     (19)
    X^T Gamma P gamma_0 x_T^T / temperature           (20)
    X^T Gamma q x_T^T / temperature                   (21)

with ``P = (W_F W_V X^T)^T (W_F W_V X^T)`` and ``q = (W_F W_V X^T)^T (W_F x_T - y)``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.solvers.arrays import FloatArray
from attsvm.user_input import finite_array, positive, require_choice, require_count


def _logits(logits: Any) -> FloatArray:
    array = finite_array("logits", logits)
    if array.ndim == 0:
        raise ValueError("logits must have at least one axis")
    if array.shape[-1] < 2:
        raise ValueError(f"logits must hold T >= 2 tokens, got T = {array.shape[-1]}: one token gets all the attention")
    return array


def softmax_expansion(T: int) -> tuple[FloatArray, float]:
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
    require_count("T", T, least=2)
    return np.eye(T) / T - 1.0 / T**2, 1.0 / T


def linear_softmax(logits: Any) -> FloatArray:
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


def piecewise_softmax(logits: Any) -> FloatArray:
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


def qk_gradient_terms(
    X: Any, y: Any, W_qk: Any, W_v: Any, W_f: Any, temperature: float, form: str = "corrected"
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The three terms of (3), averaged over sequences.

    Parameters
    ----------
    X : array_like, shape (n, T, d)
    y : array_like, shape (n, d)
    W_qk, W_v, W_f : array_like, shape (d, d)
    temperature : float
    form : {"corrected", "printed"}
        The printed form of Appendix B.1 drops P from the first term; (3) itself has it.

    Returns
    -------
    tuple of three ndarray, shape (d, d)
        Their sum is the gradient.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.localization import qk_gradient_terms
    >>> X, I = np.array([[[1.0], [2.0]]]), np.eye(1)
    >>> [term.item() for term in qk_gradient_terms(X, [[0.0]], 0.0 * I, I, I, 1.0)]
    [0.0, 0.75, 1.0]
    """
    require_choice("form", form, "corrected", "printed")
    tokens, target = finite_array("X", X), finite_array("y", y)
    if tokens.ndim != 3 or target.shape != (tokens.shape[0], tokens.shape[2]):
        raise ValueError(f"X and y must have shapes (n, T, d) and (n, d), got {tokens.shape} and {target.shape}")
    n, T, d = tokens.shape
    named = (("W_qk", W_qk), ("W_v", W_v), ("W_f", W_f))
    qk, value, feed = (finite_array(name, matrix, (d, d)) for name, matrix in named)
    positive("temperature", temperature)
    last = tokens[:, -1]
    omega = np.einsum("ntd,de,ne->nt", tokens, qk, last, optimize=True) / temperature
    signal = linear_softmax(omega)
    passes = (signal >= 0) & (signal <= 1)
    gamma, _ = softmax_expansion(T)
    offset = np.where(passes, 1.0 / T, (signal > 1).astype(np.float64))  # tilde gamma_0
    mixed = tokens @ (feed @ value).T  # rows W_F W_V x_i, so that P = mixed mixed^T

    def back(in_attention: FloatArray) -> FloatArray:
        """``X^T Gamma g x_T^T / temperature``, averaged, for a gradient g in the attention, shape (n, T)."""
        in_logits = (passes * in_attention) @ gamma  # gamma is symmetric
        return np.asarray(np.einsum("nt,ntd,ne->de", in_logits, tokens, last, optimize=True) / (temperature * n))

    linear = passes * (omega @ gamma)  # Gamma^T omega
    first = linear if form == "printed" else np.einsum("nte,nse,ns->nt", mixed, mixed, linear, optimize=True)
    second = np.einsum("nte,nse,ns->nt", mixed, mixed, offset, optimize=True)
    third = np.einsum("nte,ne->nt", mixed, last @ feed.T - target, optimize=True)
    return back(first), back(second), back(third)
