"""The condition number of the softmax Jacobian beside the (max / min)^2 proxy, and where the proxy is wrong."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attsvm.dynamics.conditioning.model import Array
from attsvm.softmax import condition_bounds, condition_number, log_softmax

__all__ = ["KappaReport", "dominant_token", "kappa_report"]


@dataclass(frozen=True, eq=False)
class KappaReport:
    """Logarithms for the squared Jacobian J^2 on the tangent space, the operator of the decoupled dynamics (12).

    Attributes
    ----------
    exact : ndarray, shape (...)
        log kappa(J^2), from two roots of the secular equation.
    lower, upper : ndarray, shape (...)
        ``2 log khat`` and ``2 log (2 (1 - a_min) khat)``.
    proxy : ndarray, shape (...)
        ``2 log (max a / min a)``, printed as a lower bound; it is an upper bound.
    """

    exact: Array
    lower: Array
    upper: Array
    proxy: Array

    @property
    def overestimate(self) -> Array:
        """Log of proxy over exact: zero where the proxy is right."""
        return self.proxy - self.exact


def kappa_report(attention: npt.ArrayLike | None = None, *, log_attention: npt.ArrayLike | None = None) -> KappaReport:
    """Condition numbers of J^2, their bounds and the proxy for attention of shape (..., n).

    Examples
    --------
    >>> report = kappa_report(log_attention=dominant_token(8, 1e-9))
    >>> round(float(np.exp(report.exact)), 3), round(float(report.proxy / np.log(10)), 1)  # n^2 beside 10^19.7
    (64.0, 19.7)
    """
    lower, upper, proxy = condition_bounds(attention, log_attention=log_attention, log=True)
    exact = condition_number(attention, log_attention=log_attention, log=True)
    return KappaReport(2 * exact, 2 * lower, 2 * upper, 2 * proxy)


def dominant_token(n: int, eps: npt.ArrayLike) -> Array:
    """Log-attention ``(1 - eps, eps / (n - 1), ...)``: kappa(J) = n (1 - eps) for n >= 3, while max / min ~ n / eps.

    Parameters
    ----------
    n : int
        Tokens, at least 2.
    eps : array_like, shape (...)
        Attention off the first token, in (0, 1).

    Returns
    -------
    ndarray, shape (..., n)

    Examples
    --------
    >>> np.exp(dominant_token(3, 0.5))
    array([0.5 , 0.25, 0.25])
    """
    small = np.asarray(eps, dtype=np.float64)
    if n < 2:
        raise ValueError(f"n must be at least 2, got {n}")
    if not ((small > 0) & (small < 1)).all():
        raise ValueError("eps must lie strictly between 0 and 1")
    others = np.log(small / (n - 1)) - np.log1p(-small)
    return log_softmax(np.concatenate([np.zeros((*small.shape, 1)), np.repeat(others[..., None], n - 1, axis=-1)], -1))
