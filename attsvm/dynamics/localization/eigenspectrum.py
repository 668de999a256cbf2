"""Random walks of tokens, and the eigenspectrum of ``W = W_QK Sigma`` that decides how their signals propagate.

Sigma is the covariance of the steps of the walk (Assumption 1). The law of the signal needs only ``M = F^T W_QK F``
with ``F F^T = Sigma``: its eigenvalues are those of W, ``tr(M) = tr(W)``, ``tr(M^2) = tr(W^2)``, and ``tr(M^T M) =
tr(W_QK Sigma W_QK^T Sigma)``. For a pair (W_Q, W_K) of rank r a QR decomposition of ``F^T [W_K^T, W_Q^T]`` leaves a
core of size 2r, and no d x d matrix is formed unless the covariance is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray
from attsvm.user_input import finite_array, positive, require_count

# Relative to the largest entry (symmetry) or eigenvalue (semidefiniteness): rounding of a product R^T R stays far
# below.
_SYMMETRY_TOLERANCE = 1e-8

_NEGATIVE_TOLERANCE = 1e-10


@dataclass(frozen=True, eq=False)
class Covariance:
    """Covariance of one step of the walk, kept as a number, a diagonal or a matrix.

    Attributes
    ----------
    d : int
        Dimension of the tokens.
    value : ndarray, shape (), (d,) or (d, d)
        ``value * I``, ``diag(value)`` or the matrix itself; use `read_covariance` to validate one.
    """

    d: int
    value: FloatArray

    @cached_property
    def _eigh(self) -> tuple[FloatArray, FloatArray]:
        eigenvalues, vectors = np.linalg.eigh(self.value)
        return np.maximum(eigenvalues, 0.0), vectors

    @cached_property
    def eigenvalues(self) -> FloatArray:
        """All d eigenvalues, ascending, shape (d,)."""
        if self.value.ndim == 2:
            return self._eigh[0]
        return np.sort(np.broadcast_to(self.value, (self.d,)))

    @property
    def norm(self) -> float:
        """Largest eigenvalue."""
        return float(self.eigenvalues[-1])

    @property
    def smallest(self) -> float:
        """Smallest eigenvalue: positive iff the covariance is invertible."""
        return float(self.eigenvalues[0])

    @property
    def is_definite(self) -> bool:
        """Whether the covariance is safely invertible (smallest eigenvalue above 1e-12 of the largest)."""
        return self.smallest > 1e-12 * self.norm

    def color(self, normal: FloatArray) -> FloatArray:
        """Turn white rows ``g`` of shape (..., d) into rows ``F g`` with ``F F^T`` the covariance."""
        if self.value.ndim < 2:
            return normal * np.sqrt(self.value)
        eigenvalues, vectors = self._eigh
        return np.asarray((normal * np.sqrt(eigenvalues)) @ vectors.T)

    def whiten(self, columns: FloatArray) -> FloatArray:
        """``F^T B`` for columns B of shape (d, r), with the same F as `color`."""
        if self.value.ndim < 2:
            return np.asarray(np.sqrt(np.broadcast_to(self.value, (self.d,)))[:, None] * columns)
        eigenvalues, vectors = self._eigh
        return np.asarray(np.sqrt(eigenvalues)[:, None] * (vectors.T @ columns))

    def matrix(self) -> FloatArray:
        """The (d, d) matrix."""
        return self.value if self.value.ndim == 2 else np.diag(np.broadcast_to(self.value, (self.d,)))


def read_covariance(covariance: Any, d: int) -> Covariance:
    """Validate a covariance given as None (identity), a number, a diagonal or a matrix.

    Parameters
    ----------
    covariance : None, float, array_like of shape (d,) or (d, d), or Covariance
    d : int

    Examples
    --------
    >>> from attsvm.dynamics.localization.eigenspectrum import read_covariance
    >>> read_covariance([1.0, 4.0], 2).norm
    4.0
    >>> read_covariance([[1.0, 2.0], [2.0, 1.0]], 2)
    Traceback (most recent call last):
        ...
    ValueError: covariance must be positive semidefinite, but its smallest eigenvalue is -1
    """
    if isinstance(covariance, Covariance):
        if covariance.d != d:
            raise ValueError(f"covariance must be of dimension {d}, got {covariance.d}")
        return covariance
    if covariance is None:
        return Covariance(d, np.asarray(1.0))
    value = finite_array("covariance", covariance)
    if value.shape not in ((), (d,), (d, d)):
        raise ValueError(f"covariance must be a number or have shape ({d},) or ({d}, {d}), got {value.shape}")
    if value.ndim == 2:
        size = float(np.abs(value).max(initial=0.0))
        if np.abs(value - value.T).max(initial=0.0) > _SYMMETRY_TOLERANCE * size:
            raise ValueError("covariance must be symmetric")
        value = (value + value.T) / 2
        eigenvalues = np.linalg.eigvalsh(value)
        least, most = float(eigenvalues[0]), float(np.abs(eigenvalues).max())
    else:
        least, most = float(value.min()), float(np.abs(value).max())
    if least < -_NEGATIVE_TOLERANCE * most:
        raise ValueError(f"covariance must be positive semidefinite, but its smallest eigenvalue is {least:.6g}")
    return Covariance(d, value if value.ndim == 2 else np.maximum(value, 0.0))


def random_walks(
    count: int, T: int, d: int, covariance: Any = None, seed: int | np.random.Generator | None = 0
) -> FloatArray:
    """Token sequences ``x_1 ~ N(0, Sigma)``, ``x_{t+1} ~ N(x_t, Sigma)``.

    Parameters
    ----------
    count, T, d : int
        Walks, tokens per walk, dimension of a token.
    covariance : None, float, array_like of shape (d,) or (d, d), or Covariance
    seed : int or numpy.random.Generator

    Returns
    -------
    ndarray, shape (count, T, d)

    Examples
    --------
    >>> from attsvm.dynamics.localization import random_walks
    >>> X = random_walks(20_000, T=9, d=2, covariance=[1.0, 4.0])
    >>> (X[:, -1] ** 2).mean(axis=0).round(0)  # 9 steps of variance 1 and 4
    array([ 9., 36.])
    """
    for name, number in (("count", count), ("T", T), ("d", d)):
        require_count(name, number)
    rng = np.random.default_rng(seed)
    steps = read_covariance(covariance, d).color(rng.standard_normal((count, T, d)))
    return np.cumsum(steps, axis=1, out=steps)


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

    core: FloatArray
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
    def singular_values(self) -> FloatArray:
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
        return positive("temperature", temperature)

    def symmetrized(self) -> QKSpectrum:
        """The spectrum of ``(W_QK + W_QK^T) / 2``, which has the same trace but not the same signal."""
        return QKSpectrum((self.core + self.core.T) / 2, self.d, self.head_dim)

    def _need_symmetric(self, name: str) -> None:
        if not self.symmetric:
            raise ValueError(
                f"{name} is defined for a symmetric W_QK; this one is not. Use signal_moments or "
                "signal_propagation, which take any W_QK, or symmetrized() for the symmetric part"
            )


def read_qk(W: Any) -> FloatArray | tuple[FloatArray, FloatArray]:
    """Validate a (d, d) matrix W_QK or a pair (W_Q, W_K) of (r, d) matrices.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.localization.eigenspectrum import read_qk
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


def _pair_core(W_q: FloatArray, W_k: FloatArray, sigma: Covariance) -> FloatArray:
    r, d = W_q.shape
    keys, queries = sigma.whiten(W_k.T), sigma.whiten(W_q.T)  # M = keys @ queries.T
    if 2 * r >= d:
        return np.asarray(keys @ queries.T)
    # M = B R_k (B R_q)^T with orthonormal B, so the core is R_k R_q^T.
    R: FloatArray = np.asarray(np.linalg.qr(np.hstack([keys, queries]), mode="r"))
    return np.asarray(R[:, :r] @ R[:, r:].T)
