"""The gradient of the one-layer model in W_QK under the piecewise-linear softmax, term by term (3).

The model predicts ``F = W_F (W_V X^T S(omega) + x_T)`` with ``omega = X W_QK x_T / temperature`` (tokens as rows of X)
and has the loss ``|y - F|^2 / 2``. With ``Gamma`` the matrix whose column i is ``gamma^i`` if token i propagates and
zero if not, the gradient in W_QK is the mean over sequences of

    X^T Gamma P Gamma^T omega x_T^T / temperature     (19)
    X^T Gamma P gamma_0 x_T^T / temperature           (20)
    X^T Gamma q x_T^T / temperature                   (21)

with ``P = (W_F W_V X^T)^T (W_F W_V X^T)`` and ``q = (W_F W_V X^T)^T (W_F x_T - y)``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm._arrays import finite_array
from attsvm._checks import require_choice
from attsvm.dynamics.localization.piecewise import linear_softmax, softmax_expansion

__all__ = ["qk_gradient_terms"]

Float64Array = npt.NDArray[np.float64]


def qk_gradient_terms(
    X: Any, y: Any, W_qk: Any, W_v: Any, W_f: Any, temperature: float, form: str = "corrected"
) -> tuple[Float64Array, Float64Array, Float64Array]:
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
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    last = tokens[:, -1]
    omega = np.einsum("ntd,de,ne->nt", tokens, qk, last, optimize=True) / temperature
    signal = linear_softmax(omega)
    passes = (signal >= 0) & (signal <= 1)
    gamma, _ = softmax_expansion(T)
    offset = np.where(passes, 1.0 / T, (signal > 1).astype(np.float64))  # tilde gamma_0
    mixed = tokens @ (feed @ value).T  # rows W_F W_V x_i, so that P = mixed mixed^T

    def back(in_attention: Float64Array) -> Float64Array:
        """``X^T Gamma g x_T^T / temperature``, averaged, for a gradient g in the attention, shape (n, T)."""
        in_logits = (passes * in_attention) @ gamma  # gamma is symmetric
        return np.asarray(np.einsum("nt,ntd,ne->de", in_logits, tokens, last, optimize=True) / (temperature * n))

    linear = passes * (omega @ gamma)  # Gamma^T omega
    first = linear if form == "printed" else np.einsum("nte,nse,ns->nt", mixed, mixed, linear, optimize=True)
    second = np.einsum("nte,nse,ns->nt", mixed, mixed, offset, optimize=True)
    third = np.einsum("nte,ne->nt", mixed, last @ feed.T - target, optimize=True)
    return back(first), back(second), back(third)
