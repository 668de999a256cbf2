"""Gaussian random walks of tokens, and the covariance of their steps (Assumption 1)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm._arrays import finite_array

__all__ = ["Covariance", "random_walks", "read_covariance"]

Float64Array = npt.NDArray[np.float64]

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
    value: Float64Array

    @cached_property
    def _eigh(self) -> tuple[Float64Array, Float64Array]:
        eigenvalues, vectors = np.linalg.eigh(self.value)
        return np.maximum(eigenvalues, 0.0), vectors

    @cached_property
    def eigenvalues(self) -> Float64Array:
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

    def color(self, normal: Float64Array) -> Float64Array:
        """Turn white rows ``g`` of shape (..., d) into rows ``F g`` with ``F F^T`` the covariance."""
        if self.value.ndim < 2:
            return normal * np.sqrt(self.value)
        eigenvalues, vectors = self._eigh
        return np.asarray((normal * np.sqrt(eigenvalues)) @ vectors.T)

    def whiten(self, columns: Float64Array) -> Float64Array:
        """``F^T B`` for columns B of shape (d, r), with the same F as `color`."""
        if self.value.ndim < 2:
            return np.asarray(np.sqrt(np.broadcast_to(self.value, (self.d,)))[:, None] * columns)
        eigenvalues, vectors = self._eigh
        return np.asarray(np.sqrt(eigenvalues)[:, None] * (vectors.T @ columns))

    def matrix(self) -> Float64Array:
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
    >>> from attsvm.dynamics.localization.walks import read_covariance
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
) -> Float64Array:
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
        if number < 1:
            raise ValueError(f"{name} must be >= 1, got {number}")
    rng = np.random.default_rng(seed)
    steps = read_covariance(covariance, d).color(rng.standard_normal((count, T, d)))
    return np.cumsum(steps, axis=1, out=steps)
