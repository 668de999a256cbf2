"""Entropy of attention, and how low the norm of W_QK lets it fall.

Each query's logits ``u = X W_QK x_q / temperature`` have a norm of at most ``nu = |X X^T|_2 |W_QK|_2 / temperature``.
Over all logits of norm at most nu, the entropy is least when one token leads and the others are equal: that minimum is
the tight bound below. It decreases from log T at nu = 0. The printed bound (9) has ``exp(-nu/2)`` where ``exp(-nu)``
belongs, exceeds log T, and owes its maximum at a positive nu to that.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from attsvm._arrays import finite_array
from attsvm._checks import require_choice
from attsvm.dynamics.localization.moments import require_tokens
from attsvm.dynamics.localization.spectrum import QKSpectrum, read_qk
from attsvm.softmax import entropy, log_softmax

__all__ = [
    "ENTROPY_FORMS",
    "attention_entropy",
    "attention_logits",
    "entropy_lower_bound",
    "logit_radius",
    "spectral_norm",
]

Float64Array = npt.NDArray[np.float64]
ENTROPY_FORMS = ("tight", "asymptotic", "printed")


def _tokens(X: Any, d: int) -> Float64Array:
    tokens = finite_array("X", X, ("...", "T", d))
    require_tokens(tokens.shape[-2])
    return tokens


def _read(W: Any, temperature: float | None) -> tuple[Float64Array | tuple[Float64Array, Float64Array], int, float]:
    checked = read_qk(W)
    rows, d = (checked[0] if isinstance(checked, tuple) else checked).shape
    return checked, d, QKSpectrum(np.zeros((0, 0)), d, rows).temperature(temperature)


def attention_logits(X: Any, W: Any, temperature: float | None = None, *, causal: bool = False) -> Float64Array:
    """Logits ``x_k^T W_QK x_q / temperature`` of every query q (row) and key k (column), -inf where masked.

    The softmax goes over the keys, that is over each row here (over each column of ``X^T W_QK X`` with tokens as
    columns, (1) as meant).

    Parameters
    ----------
    X : array_like, shape (..., T, d)
    W : array_like of shape (d, d), or pair (W_q, W_k) of shape (r, d)
    temperature : float, optional
        ``sqrt(d)``, or ``sqrt(r)`` for a pair, by default.
    causal : bool
        Query q sees the keys up to q.

    Returns
    -------
    ndarray, shape (..., T, T)

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.localization.entropy import attention_logits
    >>> attention_logits([[1.0], [2.0]], [[3.0]], causal=True)
    array([[  3., -inf],
           [  6.,  12.]])
    """
    checked, d, scale = _read(W, temperature)
    tokens = _tokens(X, d)
    if isinstance(checked, tuple):
        queries, keys = tokens @ checked[0].T, tokens @ checked[1].T
    else:
        queries, keys = tokens @ checked.T, tokens
    logits = np.asarray(queries @ np.swapaxes(keys, -1, -2) / scale)
    if causal:
        logits[..., np.triu(np.ones(logits.shape[-2:], dtype=bool), 1)] = -np.inf
    return logits


def attention_entropy(
    X: Any, W: Any, temperature: float | None = None, *, causal: bool = False, query: Literal["all", "last"] = "all"
) -> Float64Array:
    """Shannon entropy (nats) of the attention, averaged over the queries or of the last query.

    Parameters
    ----------
    X, W, temperature, causal
        As for `attention_logits`.
    query : {"all", "last"}

    Returns
    -------
    ndarray, shape (...)
        One value per sequence.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.localization import attention_entropy
    >>> attention_entropy(np.ones((4, 3)), np.zeros((3, 3))).item(), float(np.log(4))  # no logits: uniform
    (1.3862943611198906, 1.3862943611198906)
    """
    require_choice("query", query, "all", "last")
    logits = attention_logits(X, W, temperature, causal=causal)
    log_attention = log_softmax(logits[..., -1:, :] if query == "last" else logits)
    return np.asarray(entropy(log_attention=log_attention).mean(axis=-1))


def spectral_norm(W: Any) -> float:
    """``|W_QK|_2`` of a matrix or a pair; for a pair of rank r from a matrix of size r.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.localization.entropy import spectral_norm
    >>> round(spectral_norm((2 * np.eye(2, 50), 3 * np.eye(2, 50))), 12)
    6.0
    """
    checked = read_qk(W)
    if isinstance(checked, tuple):
        R_q, R_k = (np.asarray(np.linalg.qr(factor.T, mode="r")) for factor in checked)
        return float(np.linalg.norm(R_q @ R_k.T, 2))
    return float(np.linalg.norm(checked, 2))


def logit_radius(X: Any, W: Any, temperature: float | None = None) -> float:
    """``nu = |X X^T|_2 |W_QK|_2 / temperature``, which bounds the norm of every query's logits.

    Parameters
    ----------
    X : array_like, shape (T, d)
    W, temperature
        As for `attention_logits`.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.localization.entropy import logit_radius
    >>> logit_radius(np.eye(2), np.diag([4.0, 1.0]), temperature=2.0)
    2.0
    """
    checked, d, scale = _read(W, temperature)
    tokens = _tokens(X, d)
    if tokens.ndim != 2:
        raise ValueError(f"X must have shape (T, {d}), got {tokens.shape}")
    return float(np.linalg.norm(tokens, 2)) ** 2 * spectral_norm(checked) / scale


def entropy_lower_bound(nu: Any, T: int, form: Literal["tight", "asymptotic", "printed"] = "tight") -> Float64Array:
    """Least entropy of a softmax over T tokens whose logits have norm at most nu.

    Parameters
    ----------
    nu : array_like
        Nonnegative.
    T : int
    form : {"tight", "asymptotic", "printed"}
        The minimum itself, ``log(1 + (T-1) b) + nu sqrt(T (T-1)) b / (1 + (T-1) b)`` with ``b = exp(-nu sqrt(T /
        (T-1)))``; its form for large T, ``log(1 + T e^-nu) + nu e^-nu / (1/T + e^-nu)``, which lies above it and is no
        bound at finite T; (9) as printed, no bound either.

    Examples
    --------
    >>> from attsvm.dynamics.localization import entropy_lower_bound
    >>> for form in ("tight", "asymptotic", "printed"):  # log 64 = 4.16
    ...     print(form, entropy_lower_bound([0.0, 4.0], 64, form).round(3))
    tight [4.159 2.879]
    asymptotic [4.174 2.934]
    printed [ 4.174 16.725]
    """
    T = require_tokens(T)
    radius = finite_array("nu", nu)
    if (radius < 0).any():
        raise ValueError(f"nu must be >= 0, got {radius.min():.6g}")
    if form == "tight":
        b = np.exp(-radius * np.sqrt(T / (T - 1)))
        rest = (T - 1) * b
        return np.asarray(np.log1p(rest) + radius * np.sqrt(T * (T - 1)) * b / (1 + rest))
    require_choice("form", form, *ENTROPY_FORMS)
    power = np.exp(-radius) if form == "asymptotic" else np.exp(-radius / 2)
    return np.asarray(np.log1p(T * np.exp(-radius)) + radius * power / (1 / T + np.exp(-radius)))
