"""Entropy of attention, how low the norm of W_QK lets it fall, and inequalities between trace, norm and scale.

Each query's logits ``u = X W_QK x_q / temperature`` have a norm of at most ``nu = |X X^T|_2 |W_QK|_2 / temperature``.
Over all logits of norm at most nu, the entropy is least when one token leads and the others are equal: that minimum
is the tight bound, which decreases from log T at nu = 0. The printed bound (9) has ``exp(-nu/2)`` where ``exp(-nu)``
belongs.

An `Inequality` has both sides. Where its conditions do not hold, ``guaranteed`` is False, and the sides may or may
not be in order. ``form="printed"`` evaluates a printed form that is false under its printed conditions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from attsvm.dynamics.localization.eigenspectrum import Covariance, QKSpectrum, qk_spectrum, read_covariance, read_qk
from attsvm.dynamics.localization.propagation_profile import require_tokens
from attsvm.softmax import entropy, log_softmax
from attsvm.solvers.arrays import FloatArray
from attsvm.user_input import finite_array, require_choice

ENTROPY_FORMS = ("tight", "asymptotic", "printed")


def _tokens(X: Any, d: int) -> FloatArray:
    tokens = finite_array("X", X, ("...", "T", d))
    require_tokens(tokens.shape[-2])
    return tokens


def _read(W: Any, temperature: float | None) -> tuple[FloatArray | tuple[FloatArray, FloatArray], int, float]:
    checked = read_qk(W)
    rows, d = (checked[0] if isinstance(checked, tuple) else checked).shape
    return checked, d, QKSpectrum(np.zeros((0, 0)), d, rows).temperature(temperature)


def attention_logits(X: Any, W: Any, temperature: float | None = None, *, causal: bool = False) -> FloatArray:
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
    >>> from attsvm.dynamics.localization.entropy_bounds import attention_logits
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
) -> FloatArray:
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
    >>> from attsvm.dynamics.localization.entropy_bounds import spectral_norm
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
    >>> from attsvm.dynamics.localization.entropy_bounds import logit_radius
    >>> logit_radius(np.eye(2), np.diag([4.0, 1.0]), temperature=2.0)
    2.0
    """
    checked, d, scale = _read(W, temperature)
    tokens = _tokens(X, d)
    if tokens.ndim != 2:
        raise ValueError(f"X must have shape (T, {d}), got {tokens.shape}")
    return float(np.linalg.norm(tokens, 2)) ** 2 * spectral_norm(checked) / scale


def entropy_lower_bound(nu: Any, T: int, form: Literal["tight", "asymptotic", "printed"] = "tight") -> FloatArray:
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


@dataclass(frozen=True)
class Inequality:
    """``left <= right``, and what it takes.

    Attributes
    ----------
    name : str
    left, right : float
    conditions : tuple of (str, bool)
        What the inequality assumes, and whether it holds for this input.
    """

    name: str
    left: float
    right: float
    conditions: tuple[tuple[str, bool], ...] = ()

    @property
    def margin(self) -> float:
        """``right - left``: negative if violated."""
        return self.right - self.left

    @property
    def holds(self) -> bool:
        """Whether the sides are in order, up to rounding."""
        return self.margin >= -1e-12 * max(abs(self.left), abs(self.right))

    @property
    def guaranteed(self) -> bool:
        """Whether every condition is met, so that `holds` is a theorem and not luck."""
        return all(met for _, met in self.conditions)

    def __str__(self) -> str:
        missing = ", ".join(name for name, met in self.conditions if not met)
        note = "" if self.guaranteed else f"; not guaranteed: needs {missing}"
        return f"{self.name}: {self.left:.6g} <= {self.right:.6g} {'holds' if self.holds else 'is violated'}{note}"


def _form(form: str, names: Sequence[str] = ("corrected", "printed")) -> str:
    if form not in names:
        raise ValueError(f"form must be one of {tuple(names)}, got {form!r}")
    return form


def _all(W: Any, covariance: Any) -> tuple[QKSpectrum, Covariance, float]:
    """Spectrum with and covariance itself, and the Frobenius norm of W_QK."""
    d = (W[0] if isinstance(W, tuple) else W).shape[1]
    sigma = read_covariance(covariance, d)
    return qk_spectrum(W, sigma), sigma, float(np.sqrt(qk_spectrum(W).gram))


def trace_below_norm(W: Any, covariance: Any = None, norm: str = "spectral", form: str = "corrected") -> Inequality:
    """``|tr(W)| / (d |Sigma|_2) <= |W_QK|_2``, or ``|tr(W)| / (sqrt(d) |Sigma|_2) <= |W_QK|_F`` (7).

    Holds for any W_QK. The printed form divides by sqrt(d) for the spectral norm too, and fails for W_QK = Sigma = I.

    Parameters
    ----------
    W, covariance
        As for `qk_spectrum`.
    norm : {"spectral", "frobenius"}
    form : {"corrected", "printed"}

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.localization import trace_below_norm
    >>> print(trace_below_norm(np.eye(4)))
    trace below spectral norm: 1 <= 1 holds
    >>> print(trace_below_norm(np.eye(4), form="printed"))
    trace below spectral norm (printed): 2 <= 1 is violated
    """
    checked = read_qk(W)
    spectrum, sigma, frobenius = _all(checked, covariance)
    require_choice("norm", norm, "spectral", "frobenius")
    printed = _form(form) == "printed"
    power = 0.5 if printed or norm == "frobenius" else 1.0
    if sigma.norm == 0:
        raise ValueError("covariance must not be zero")
    left = abs(spectrum.trace) / (spectrum.d**power * sigma.norm)
    right = frobenius if norm == "frobenius" else spectral_norm(checked)
    return Inequality(f"trace below {norm} norm" + (" (printed)" if printed else ""), left, right)


def trace_above_norm(W: Any) -> Inequality:
    """``|W_QK|_2 <= |tr(W_QK)|``, for a semidefinite W_QK only (10, right).

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.localization import trace_above_norm
    >>> print(trace_above_norm(np.diag([1.0, -1.0])))
    spectral norm below trace: 1 <= 0 is violated; not guaranteed: needs semidefinite W_QK
    """
    checked = read_qk(W)
    spectrum = qk_spectrum(checked)  # the core has the eigenvalues of a symmetric W_QK that are not zero
    eigenvalues = np.linalg.eigvalsh(spectrum.symmetrized().core)
    rounding = 1e-12 * float(np.abs(eigenvalues).max())
    definite = bool(eigenvalues[0] >= -rounding or eigenvalues[-1] <= rounding)
    met = (("symmetric W_QK", spectrum.symmetric), ("semidefinite W_QK", definite))
    return Inequality("spectral norm below trace", spectral_norm(checked), abs(spectrum.trace), met)


def norm_below_scale(W: Any, covariance: Any = None) -> Inequality:
    """``|W_QK|_2 <= |W_QK|_F <= |Sigma^-1|_2 sqrt(tr(W_QK Sigma W_QK^T Sigma))``, for a definite Sigma.

    What (10) is used for: a small scale keeps the norm small, and with it the entropy high. Any W_QK; for a symmetric
    one the scale is ``tr(W^2)``. The sides are those of the second inequality.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.localization import norm_below_scale
    >>> print(norm_below_scale(np.diag([1.0, -1.0]), [0.5, 2.0]))
    Frobenius norm below scale: 1.41421 <= 4.12311 holds
    """
    checked = read_qk(W)
    spectrum, sigma, frobenius = _all(checked, covariance)
    met = (("definite covariance", sigma.is_definite),)
    right = float(np.sqrt(spectrum.gram)) / sigma.smallest if sigma.is_definite else float("inf")
    return Inequality("Frobenius norm below scale", frobenius, right, met)


def entropy_bound(
    X: Any,
    W: Any,
    temperature: float | None = None,
    form: Literal["tight", "asymptotic", "printed"] = "tight",
    *,
    query: Literal["all", "last"] = "all",
) -> Inequality:
    """The entropy of the attention (not causal) is at least `entropy_lower_bound` at `logit_radius`.

    Parameters
    ----------
    X, W, temperature, query
        As for `attention_entropy`; X of shape (T, d).
    form : {"tight", "asymptotic", "printed"}
        As for `entropy_lower_bound`.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.localization import entropy_bound
    >>> X = np.random.default_rng(0).standard_normal((8, 3)) / 3
    >>> entropy_bound(X, np.eye(3)).holds, entropy_bound(X, np.eye(3), form="printed").holds
    (True, False)
    """
    nu = logit_radius(X, W, temperature)
    left = float(entropy_lower_bound(nu, len(np.asarray(X)), form=form))
    return Inequality(f"entropy bound ({form})", left, float(attention_entropy(X, W, temperature, query=query)))
