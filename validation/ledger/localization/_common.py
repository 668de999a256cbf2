"""What the checks of this paper share: random instances, exact Gaussian expectations, the signal's quadratic form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "Array",
    "Rng",
    "complex_step",
    "covariance",
    "eigenspectrum",
    "gaussian_expectation",
    "rotation",
    "signal_form",
    "symmetric",
]

Array = npt.NDArray[np.float64]
Rng = np.random.Generator


def symmetric(rng: Rng, d: int) -> Array:
    """A random symmetric matrix, shape (d, d)."""
    A = rng.standard_normal((d, d))
    return np.asarray((A + A.T) / 2)


def covariance(rng: Rng, d: int) -> Array:
    """A random definite covariance, shape (d, d)."""
    R = rng.standard_normal((d, d))
    return np.asarray(R.T @ R / d + 0.05 * np.eye(d))


def rotation(rng: Rng, d: int) -> Array:
    """A random orthogonal matrix, shape (d, d)."""
    return np.asarray(np.linalg.qr(rng.standard_normal((d, d)))[0])


def eigenspectrum(rng: Rng, d: int, mean: float, scale: float) -> Array:
    """W_QK with eigenvalues N(mean, scale^2) in a random basis, as in Figure 5."""
    B = rotation(rng, d)
    return np.asarray((B * rng.normal(mean, scale, d)) @ B.T)


def gaussian_expectation(function: Callable[[Array], Any], dimension: int, nodes: int = 3) -> Array:
    """``E f(g)`` for standard normal g by a product rule, exact for degree ``2 nodes - 1`` in each coordinate.

    ``function`` takes points of shape (m, dimension) and returns values of shape (m, ...).

    Examples
    --------
    >>> from attsvm.validation.ledger.localization._common import gaussian_expectation
    >>> gaussian_expectation(lambda g: g[:, 0] ** 4 * g[:, 1] ** 2, 2).round(12).item()
    3.0
    """
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    grid = np.stack(np.meshgrid(*[x] * dimension, indexing="ij"), axis=-1).reshape(-1, dimension)
    weights = np.prod(np.meshgrid(*[w / w.sum()] * dimension, indexing="ij"), axis=0).ravel()
    return np.asarray(np.tensordot(weights, np.asarray(function(grid)), axes=1))


def signal_form(W: Array, S: Array, T: int, i: int) -> Array:
    """Matrix N with ``<gamma^i, omega> = g^T N g`` (temperature 1) in the standard normal increments, shape (Td, Td).

    Written out from the definitions: tokens are partial sums, the signal is linear in the logits. Mean ``tr N``,
    variance ``2 tr N^2``.
    """
    steps = np.tril(np.ones((T, T)))  # x_t = sum of the first t increments
    weights = (np.eye(T)[i - 1] - 1 / T) / T
    factor = np.linalg.cholesky(S)
    N = np.kron(np.outer(weights @ steps, steps[-1]), factor.T @ W @ factor)
    return np.asarray((N + N.T) / 2)


def complex_step(function: Callable[[Any], Any], at: Array) -> Array:
    """Gradient of a real polynomial of a matrix by a complex step: exact to rounding.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.validation.ledger.localization._common import complex_step
    >>> complex_step(lambda x: (x**3).sum(), np.array([[1.0, 2.0]]))
    array([[ 3., 12.]])
    """
    out = np.zeros(at.shape)
    for index in np.ndindex(*at.shape):
        moved = at.astype(np.complex128)
        moved[index] += 1e-30j
        out[index] = function(moved).imag * 1e30
    return out
