"""Softmax and its Jacobian diag(a) - a a^T: products, spectrum, condition number, entropy, without forming the matrix.

Attention vectors stand on the last axis; every leading axis is a batch. Where an entry may underflow, give
``log_attention`` (as `log_softmax` returns it) instead of ``attention``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.softmax_spectrum import log_roots, log_roots_at
from attsvm.solvers.arrays import FloatArray
from attsvm.user_input import real_array

__all__ = [
    "condition_bounds",
    "condition_number",
    "entropy",
    "jacobian_spectrum",
    "log_softmax",
    "peakedness",
    "read_log_attention",
    "softmax",
]

# Attention is accepted when it sums to one this closely: float32 softmax over 1e5 tokens does.
_SUM_TOLERANCE = 1e-4


def _shifted(logits: npt.ArrayLike) -> FloatArray:
    x = np.asarray(real_array("logits", logits), dtype=np.float64)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"logits must have at least one token on the last axis, got shape {x.shape}")
    if np.isnan(x).any() or np.isposinf(x).any():
        index = tuple(int(k) for k in np.argwhere(np.isnan(x) | np.isposinf(x))[0])
        raise ValueError(f"logits must be finite (or -inf for a masked token), but logits[{_at(index)}] is {x[index]}")
    top = x.max(axis=-1, keepdims=True)
    if np.isneginf(top).any():
        index = tuple(int(k) for k in np.argwhere(np.isneginf(top[..., 0]))[0])
        raise ValueError(f"logits[{_at((*index, ':'))}] masks every token")
    return np.asarray(x - top)


def _at(index: tuple[Any, ...]) -> str:
    return ", ".join(map(str, index))


def softmax(logits: npt.ArrayLike) -> FloatArray:
    """Softmax over the last axis.

    Parameters
    ----------
    logits : array_like, shape (..., n)
        Finite, or -inf for a masked token.

    Returns
    -------
    ndarray, shape (..., n)

    Examples
    --------
    >>> softmax([1000.0, 1000.0, -float("inf")])
    array([0.5, 0.5, 0. ])
    """
    weights = np.exp(_shifted(logits))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def log_softmax(logits: npt.ArrayLike) -> FloatArray:
    """Logarithm of `softmax` of the same logits, also where the softmax itself underflows; shape (..., n).

    Examples
    --------
    >>> log_softmax([0.0, -2000.0])
    array([    0., -2000.])
    """
    shifted = _shifted(logits)
    # log(1 + rest): the top token's own log-probability would round to 0 below 1 - 1e-16 otherwise.
    rest = np.exp(shifted)
    np.put_along_axis(rest, shifted.argmax(axis=-1)[..., None], 0.0, axis=-1)
    return np.asarray(shifted - np.log1p(rest.sum(axis=-1, keepdims=True)))


def read_log_attention(
    attention: npt.ArrayLike | None = None, log_attention: npt.ArrayLike | None = None
) -> FloatArray:
    """Normalized log-attention from either argument; zero attention becomes -inf.

    Parameters
    ----------
    attention : array_like, shape (..., n), optional
        Distributions: nonnegative, each summing to one to 1e-4 (they are normalized again).
    log_attention : array_like, shape (..., n), optional
        Their logarithms, in place of ``attention``.

    Returns
    -------
    ndarray, shape (..., n)

    Examples
    --------
    >>> read_log_attention([1.0, 0.0])
    array([  0., -inf])
    """
    if (attention is None) == (log_attention is None):
        raise ValueError("give exactly one of attention and log_attention")
    name = "attention" if log_attention is None else "log_attention"
    given = np.asarray(real_array(name, attention if log_attention is None else log_attention), dtype=np.float64)
    if given.ndim == 0 or given.shape[-1] == 0:
        raise ValueError(f"{name} must have at least one token on the last axis, got shape {given.shape}")
    bad = np.isnan(given) | (np.isposinf(given) if name == "log_attention" else ~(np.isfinite(given) & (given >= 0)))
    if bad.any():
        index = tuple(int(k) for k in np.argwhere(bad)[0])
        expected = "be at most 0" if name == "log_attention" else "be nonnegative and finite"
        raise ValueError(f"{name} must {expected}, but {name}[{_at(index)}] is {given[index]}")
    if name == "attention":
        with np.errstate(divide="ignore"):
            given = np.log(given)
    top = given.max(axis=-1)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        log_sum = top + np.log(np.exp(given - top[..., None]).sum(axis=-1))
    wrong = ~(np.abs(log_sum) <= _SUM_TOLERANCE)
    if wrong.any():
        index = tuple(int(k) for k in np.argwhere(wrong)[0])
        raise ValueError(
            f"{name}[{_at((*index, ':'))}] must be a distribution, but sums to {np.exp(log_sum[index]):.6g}"
        )
    return log_softmax(given)


def entropy(attention: npt.ArrayLike | None = None, *, log_attention: npt.ArrayLike | None = None) -> FloatArray:
    """Shannon entropy in nats, ``-sum a log a``.

    Parameters
    ----------
    attention, log_attention : array_like, shape (..., n)
        One of the two.

    Returns
    -------
    ndarray, shape (...)

    Examples
    --------
    >>> float(entropy([0.25, 0.25, 0.25, 0.25]) / np.log(4))
    1.0
    """
    x = read_log_attention(attention, log_attention)
    return np.asarray(-np.sum(np.exp(x) * np.where(np.isneginf(x), 0.0, x), axis=-1))


def peakedness(
    attention: npt.ArrayLike | None = None, *, log_attention: npt.ArrayLike | None = None, log: bool = False
) -> FloatArray:
    """Largest over smallest attention R, the sparsity ratio; 1 when uniform, infinite with a zero entry.

    Parameters
    ----------
    attention, log_attention : array_like, shape (..., n)
        One of the two.
    log : bool
        Return log R, which overflows never.

    Returns
    -------
    ndarray, shape (...)

    Examples
    --------
    >>> float(peakedness([0.5, 0.25, 0.25]))
    2.0
    >>> float(peakedness(log_attention=log_softmax([0.0, -2000.0]), log=True))
    2000.0
    """
    x = read_log_attention(attention, log_attention)
    ratio = x.max(axis=-1) - x.min(axis=-1)
    with np.errstate(over="ignore"):
        return np.asarray(ratio if log else np.exp(ratio))


def jacobian_spectrum(
    attention: npt.ArrayLike | None = None, *, log_attention: npt.ArrayLike | None = None, log: bool = False
) -> FloatArray:
    """Eigenvalues of diag(a) - a a^T, ascending, from the secular equation sum_j a_j / (a_j - t) = 0.

    Parameters
    ----------
    attention, log_attention : array_like, shape (..., n)
        One of the two.
    log : bool
        Return the logarithms (-inf for zero), which hold their accuracy where the eigenvalues underflow.

    Returns
    -------
    ndarray, shape (..., n)
        The first is 0; then one eigenvalue between each two neighbours of the sorted attention, to a relative error of
        1e-10 however small. Each zero entry of the attention adds a zero.

    Examples
    --------
    >>> jacobian_spectrum([0.2, 0.2, 0.6])
    array([0.  , 0.2 , 0.36])
    >>> sparse = log_softmax([0.0, -1000.0, -2000.0])
    >>> jacobian_spectrum(log_attention=sparse, log=True)  # -2000 + log(3/2) and -1000 + log 2
    array([          -inf, -1999.59453489,  -999.30685282])
    """
    x = np.sort(read_log_attention(attention, log_attention), axis=-1)
    n = x.shape[-1]
    flat = x.reshape(-1, n)
    out = np.full(flat.shape, -np.inf)
    zeros = np.isneginf(flat).sum(axis=1)
    for count in np.unique(zeros):  # tokens without attention drop out of the equation
        rows = np.flatnonzero(zeros == count)
        if n - count > 1:
            out[rows, count + 1 :] = log_roots(flat[rows, count:])
    logs = out.reshape(x.shape)
    return logs if log else np.exp(logs)


def condition_number(
    attention: npt.ArrayLike | None = None, *, log_attention: npt.ArrayLike | None = None, log: bool = False
) -> FloatArray:
    """Condition number of diag(a) - a a^T on the tangent space: largest over smallest nonzero eigenvalue.

    Only these two roots of the secular equation are computed, O(n) each.

    Parameters
    ----------
    attention, log_attention : array_like, shape (..., n)
        One of the two; at least two tokens.
    log : bool
        Return the logarithm.

    Returns
    -------
    ndarray, shape (...)
        Infinite where an entry is zero.

    Examples
    --------
    >>> float(condition_number([0.9, 0.1]))  # the tangent space is a line
    1.0
    >>> eps = 1e-9  # one dominant token among n = 8: 8 (1 - eps), although max/min is 7e9
    >>> round(float(condition_number([1 - eps] + 7 * [eps / 7])), 6)
    8.0
    """
    x = _tangent(read_log_attention(attention, log_attention))
    flat = x.reshape(-1, x.shape[-1])
    out = np.full(len(flat), np.inf)
    rows = np.flatnonzero(np.isfinite(flat[:, 0]))
    last = np.full(rows.size, flat.shape[1] - 1)
    out[rows] = log_roots_at(flat[rows], last) - log_roots_at(flat[rows], np.ones_like(last))
    if x.shape[-1] == 2:
        out[:] = 0.0  # a line, also in the limit of one-hot attention
    return _from_log(out.reshape(x.shape[:-1]), log)


def condition_bounds(
    attention: npt.ArrayLike | None = None, *, log_attention: npt.ArrayLike | None = None, log: bool = False
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Closed-form bounds on `condition_number`, and the printed proxy.

    With ``khat = max_k a_k (1 - a_k) / (a_min (1 - a_min))`` it is ``khat <= kappa <= 2 (1 - a_min) khat`` (corrected
    Proposition 1). The proxy is R = max / min: its square is printed as a lower bound on the condition number of the
    squared Jacobian, but R bounds kappa from above.

    Parameters
    ----------
    attention, log_attention : array_like, shape (..., n)
        One of the two; at least two tokens.
    log : bool
        Return logarithms.

    Returns
    -------
    lower, upper, proxy : ndarray, shape (...)

    Examples
    --------
    >>> eps = 1e-9
    >>> lower, upper, proxy = condition_bounds([1 - eps] + 7 * [eps / 7])
    >>> round(float(lower), 6), round(float(upper), 6), float(f"{proxy:.3g}")  # kappa is 8
    (7.0, 14.0, 7000000000.0)
    """
    x = _tangent(read_log_attention(attention, log_attention))
    with np.errstate(divide="ignore", invalid="ignore"):
        log_rest = np.log1p(-np.exp(x))
        # 1 - a_max as the sum of the others, in logarithms: neither cancellation nor underflow
        second = np.where(np.isneginf(x[..., -2]), 0.0, x[..., -2])
        others = second + np.log(np.exp(x[..., :-1] - second[..., None]).sum(axis=-1))
        log_rest[..., -1] = np.where(others < -0.7, others, log_rest[..., -1])
        lower = (x + log_rest).max(axis=-1) - x[..., 0] - log_rest[..., 0]
    if x.shape[-1] == 2:
        lower = np.zeros_like(lower)  # a line, also in the limit of one-hot attention
    upper = lower + np.log(2.0) + log_rest[..., 0]
    return _from_log(lower, log), _from_log(upper, log), _from_log(x[..., -1] - x[..., 0], log)


def _tangent(x: FloatArray) -> FloatArray:
    if x.shape[-1] < 2:
        raise ValueError("attention over one token has no tangent space: at least 2 tokens are needed")
    return np.sort(x, axis=-1)


def _from_log(values: FloatArray, log: bool) -> FloatArray:
    with np.errstate(over="ignore"):
        return np.asarray(values if log else np.exp(values))
