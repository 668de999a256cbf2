"""The eigenspectrum of ``W = W_QK Sigma``, from a matrix or from a low-rank pair (W_Q, W_K).

Everything that the signal's law needs is in ``M = F^T W_QK F`` with ``F F^T = Sigma``: its eigenvalues are those of W,
``tr(M) = tr(W)``, ``tr(M^2) = tr(W^2)``, and ``tr(M^T M) = tr(W_QK Sigma W_QK^T Sigma)``. For a pair of rank r, M acts
on the span of at most 2r whitened directions, so that a QR decomposition of ``F^T [W_K^T, W_Q^T]`` leaves a core of
size 2r, and no d x d matrix is formed unless the covariance is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm._arrays import finite_array
from attsvm.dynamics.localization.walks import Covariance, read_covariance

__all__ = ["QKSpectrum", "qk_spectrum", "read_qk"]

Float64Array = npt.NDArray[np.float64]

# Relative asymmetry below which a matrix counts as symmetric: products of factors round at 1e-15.
SYMMETRY_TOLERANCE = 1e-10


@dataclass(frozen=True, eq=False)
class QKSpectrum:
    """What the eigenspectrum of ``W = W_QK Sigma`` says.

    Attributes
    ----------
    core : ndarray, shape (k, k)
        ``M = F^T W_QK F`` up to an isometry; k = d, or at most 2r for a pair of rank r.
    d : int
        Dimension of the tokens.
    head_dim : int
        Rows of W_Q and W_K, d for a matrix. The temperature is ``sqrt(head_dim)`` unless given.
    """

    core: Float64Array
    d: int
    head_dim: int

    @cached_property
    def trace(self) -> float:
        """``tr(W)``, the sum of the eigenvalues ("mean" of the eigenspectrum, up to 1/d)."""
        return float(np.trace(self.core))

    @cached_property
    def trace_squared(self) -> float:
        """``tr(W^2)``, the sum of the squared eigenvalues ("scale"); may be negative if W_QK is asymmetric."""
        return float(np.sum(self.core * self.core.T))

    @cached_property
    def gram(self) -> float:
        """``tr(W_QK Sigma W_QK^T Sigma)``; equal to `trace_squared` iff W_QK is symmetric (on the range of Sigma)."""
        return float(np.sum(self.core**2))

    @cached_property
    def symmetric(self) -> bool:
        """Whether ``F^T W_QK F`` is symmetric, up to rounding."""
        size = float(np.linalg.norm(self.core))
        return float(np.linalg.norm(self.core - self.core.T)) <= SYMMETRY_TOLERANCE * size

    @cached_property
    def eigenvalues(self) -> npt.NDArray[Any]:
        """Eigenvalues of W in the core, shape (k,), by decreasing modulus; the other d - k are zero.

        Real if W_QK is symmetric, else complex.
        """
        if self.symmetric:
            values: npt.NDArray[Any] = np.linalg.eigvalsh((self.core + self.core.T) / 2)
        else:
            values = np.linalg.eigvals(self.core)
        return values[np.argsort(-np.abs(values), kind="stable")]

    @cached_property
    def singular_values(self) -> Float64Array:
        """Singular values of ``F^T W_QK F`` in the core, decreasing, shape (k,)."""
        return np.asarray(np.linalg.svd(self.core, compute_uv=False), dtype=np.float64)

    @property
    def variance(self) -> float:
        """Variance of the d eigenvalues, ``tr(W^2)/d - (tr(W)/d)^2`` (8)."""
        return self.trace_squared / self.d - (self.trace / self.d) ** 2

    @cached_property
    def effective_rank(self) -> float:
        """Participation ``(sum m^2)^2 / sum m^4`` of the squared singular values m^2 (eigenvalues, if symmetric).

        The Gaussian approximation of the signal is good to about 1 / effective_rank; trust it above 30.
        """
        squares = self.singular_values**2
        total = float(np.sum(squares**2))
        return float(np.sum(squares)) ** 2 / total if total > 0 else 0.0

    @property
    def xi(self) -> float:
        """``tr(W) / sqrt(tr(W^2))``; in [-sqrt(d), sqrt(d)] (5). Needs a symmetric W_QK that is not zero."""
        self._need_symmetric("xi")
        if self.trace_squared == 0:
            raise ValueError("xi is undefined: W is zero")
        return self.trace / float(np.sqrt(self.trace_squared))

    def eta(self, temperature: float | None = None) -> float:
        """``sqrt(tr(W^2)) / temperature``. Needs a symmetric W_QK."""
        self._need_symmetric("eta")
        return float(np.sqrt(self.trace_squared)) / self.temperature(temperature)

    def strength(self, temperature: float | None = None) -> float:
        """``r = xi eta = tr(W) / temperature``: localization to a window needs ``|r| > 2`` and a small eta."""
        return self.trace / self.temperature(temperature)

    def temperature(self, temperature: float | None = None) -> float:
        """The given temperature if valid, ``sqrt(head_dim)`` if None."""
        if temperature is None:
            return float(np.sqrt(self.head_dim))
        if not (np.isfinite(temperature) and temperature > 0):
            raise ValueError(f"temperature must be positive and finite, got {temperature}")
        return float(temperature)

    def symmetrized(self) -> QKSpectrum:
        """The spectrum of ``(W_QK + W_QK^T) / 2``, which has the same trace but not the same signal."""
        return QKSpectrum((self.core + self.core.T) / 2, self.d, self.head_dim)

    def _need_symmetric(self, name: str) -> None:
        if not self.symmetric:
            raise ValueError(
                f"{name} is defined for a symmetric W_QK; this one is not. Use signal_moments or "
                "signal_propagation, which take any W_QK, or symmetrized() for the symmetric part"
            )


def read_qk(W: Any) -> Float64Array | tuple[Float64Array, Float64Array]:
    """Validate a (d, d) matrix W_QK or a pair (W_Q, W_K) of (r, d) matrices.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.localization.spectrum import read_qk
    >>> read_qk((np.ones((2, 5)), np.ones((2, 5))))[0].shape
    (2, 5)
    """
    if isinstance(W, tuple):
        if len(W) != 2:
            raise ValueError(f"W must be a matrix or a pair (W_q, W_k), got a tuple of {len(W)}")
        W_q, W_k = finite_array("W_q", W[0]), finite_array("W_k", W[1])
        if W_q.ndim != 2 or W_q.shape != W_k.shape or 0 in W_q.shape:
            raise ValueError(f"W_q and W_k must both have shape (r, d), got {W_q.shape} and {W_k.shape}")
        return W_q, W_k
    matrix = finite_array("W", W)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.size == 0:
        raise ValueError(f"W must be a square matrix or a pair (W_q, W_k), got shape {matrix.shape}")
    return matrix


def qk_spectrum(W: Any, covariance: Any = None) -> QKSpectrum:
    """Eigenspectrum of ``W_QK Sigma``.

    Parameters
    ----------
    W : array_like of shape (d, d), or tuple of two array_like of shape (r, d)
        W_QK with logits ``x_t^T W_QK x_T``; or (W_q, W_k) with logits ``(W_k x_t) . (W_q x_T)``, which are the weights
        of two linear layers as torch keeps them.
    covariance : None, float, array_like of shape (d,) or (d, d), or Covariance
        Sigma; the identity by default.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.localization import qk_spectrum
    >>> spectrum = qk_spectrum(np.diag([3.0, 1.0]), covariance=[1.0, 4.0])
    >>> spectrum.trace, spectrum.trace_squared, spectrum.eigenvalues
    (7.0, 25.0, array([4., 3.]))

    A head of rank 4 in dimension 10,000 needs matrices of size 8:

    >>> rng = np.random.default_rng(0)
    >>> head = qk_spectrum((rng.standard_normal((4, 10_000)), rng.standard_normal((4, 10_000))))
    >>> head.core.shape
    (8, 8)
    """
    checked = read_qk(W)
    if isinstance(checked, tuple):
        W_q, W_k = checked
        r, d = W_q.shape
        sigma = read_covariance(covariance, d)
        return QKSpectrum(_pair_core(W_q, W_k, sigma), d, r)
    d = len(checked)
    sigma = read_covariance(covariance, d)
    half = sigma.whiten(checked)  # F^T W_QK
    return QKSpectrum(sigma.whiten(half.T).T, d, d)


def _pair_core(W_q: Float64Array, W_k: Float64Array, sigma: Covariance) -> Float64Array:
    r, d = W_q.shape
    keys, queries = sigma.whiten(W_k.T), sigma.whiten(W_q.T)  # M = keys @ queries.T
    if 2 * r >= d:
        return np.asarray(keys @ queries.T)
    # M = B R_k (B R_q)^T with orthonormal B, so the core is R_k R_q^T.
    R: Float64Array = np.asarray(np.linalg.qr(np.hstack([keys, queries]), mode="r"))
    return np.asarray(R[:, :r] @ R[:, r:].T)
