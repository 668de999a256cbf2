"""Laws of the feature weights theta: which spikes a sequence carries, and how strongly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from attsvm._arrays import finite_array, freeze

__all__ = [
    "DiscretePrior",
    "GaussianPrior",
    "Prior",
    "SamplerPrior",
    "flipping_spike",
    "gaussian_spikes",
    "one_hot_spikes",
    "random_generator",
    "transformed",
]

Array = npt.NDArray[np.float64]
# Weights given with this relative accuracy sum to one; a typing error does not hide below it.
_SUM_TOLERANCE = 1e-8


def random_generator(seed: int | np.random.Generator) -> np.random.Generator:
    """The generator itself, or a new one from a seed.

    Examples
    --------
    >>> from attsvm.dynamics.specialization.priors import random_generator
    >>> random_generator(0).random() == random_generator(0).random()
    True
    """
    return seed if isinstance(seed, np.random.Generator) else np.random.default_rng(seed)


@runtime_checkable
class Prior(Protocol):
    """What the single-location model asks of a law of theta in R^F.

    ``reflection`` is a vector of F signs under which the law does not change (theta and sign * theta have the same
    law), or None; samples are then drawn in mirrored pairs, which makes symmetric points of the loss exactly so.
    """

    @property
    def features(self) -> int:
        """Dimension F."""

    @property
    def mean(self) -> Array:
        """Mean, shape (F,)."""

    @property
    def covariance(self) -> Array:
        """Covariance, shape (F, F)."""

    @property
    def reflection(self) -> Array | None:
        """Signs, shape (F,), that leave the law unchanged, or None."""

    def sample(self, n: int, seed: int | np.random.Generator) -> Array:
        """Draws, shape (n, F)."""


@dataclass(frozen=True, eq=False, init=False)
class DiscretePrior:
    """Finitely many spikes.

    Attributes
    ----------
    atoms : ndarray, shape (K, F)
    weights : ndarray, shape (K,)
        Positive, with sum 1.

    Examples
    --------
    >>> from attsvm.dynamics.specialization import DiscretePrior
    >>> DiscretePrior([[1.0, 0.0], [0.0, 3.0]], [0.5, 0.5]).mean
    array([0.5, 1.5])
    """

    atoms: Array
    weights: Array

    def __init__(self, atoms: npt.ArrayLike, weights: npt.ArrayLike) -> None:
        points = finite_array("atoms", atoms, ("K", "F"))
        masses = finite_array("weights", weights, (len(points),))  # one per atom
        if (masses <= 0).any():
            k = int(np.argmax(masses <= 0))
            raise ValueError(f"weights must be positive, but weights[{k}] is {masses[k]}")
        if abs(masses.sum() - 1) > _SUM_TOLERANCE:
            raise ValueError(f"weights must sum to 1, got {masses.sum():.10g}")
        object.__setattr__(self, "atoms", freeze(points))
        object.__setattr__(self, "weights", freeze(masses / masses.sum()))

    @property
    def features(self) -> int:
        """Dimension F."""
        return int(self.atoms.shape[1])

    @property
    def mean(self) -> Array:
        """Mean, shape (F,)."""
        return np.asarray(self.weights @ self.atoms)

    @property
    def covariance(self) -> Array:
        """Covariance, shape (F, F)."""
        centred = self.atoms - self.mean
        return np.asarray((centred.T * self.weights) @ centred)

    @property
    def reflection(self) -> Array | None:
        """The signs with the most minus ones under which atoms and weights map to themselves, or None."""
        F = self.features
        if F > 12:  # 2^F candidates
            return None
        rows = _sorted_rows(self.atoms, self.weights)
        candidates = 1.0 - 2.0 * ((np.arange(1, 2**F)[:, None] >> np.arange(F)) & 1)
        for signs in sorted(candidates, key=lambda s: s.sum()):
            if np.allclose(_sorted_rows(self.atoms * signs, self.weights), rows, atol=1e-12):
                return np.asarray(signs)
        return None

    def sample(self, n: int, seed: int | np.random.Generator) -> Array:
        """Draws, shape (n, F)."""
        return np.asarray(self.atoms[random_generator(seed).choice(len(self.weights), size=n, p=self.weights)])


def _sorted_rows(atoms: Array, weights: Array) -> Array:
    rows = np.column_stack([np.round(atoms, 12) + 0.0, weights])  # + 0.0 turns -0 into 0
    return np.asarray(rows[np.lexsort(rows.T)])


@dataclass(frozen=True, eq=False, init=False)
class GaussianPrior:
    """A Gaussian law.

    Attributes
    ----------
    covariance : ndarray, shape (F, F) or (F,)
        A vector is read as the diagonal.
    mean : ndarray, shape (F,), optional
        Zero by default.

    Examples
    --------
    >>> from attsvm.dynamics.specialization import GaussianPrior
    >>> GaussianPrior([8.0, 2.0]).covariance
    array([[8., 0.],
           [0., 2.]])
    """

    covariance: Array
    mean: Array

    def __init__(self, covariance: npt.ArrayLike, mean: npt.ArrayLike | None = None) -> None:
        cov = finite_array("covariance", covariance)
        cov = np.diag(cov) if cov.ndim == 1 else cov
        if cov.ndim != 2 or cov.shape[0] != cov.shape[1] or cov.shape[0] == 0:
            raise ValueError(f"covariance must have shape (F, F) or (F,) with F >= 1, got {cov.shape}")
        if not np.allclose(cov, cov.T, rtol=1e-10, atol=1e-12):
            raise ValueError("covariance must be symmetric")
        if np.linalg.eigvalsh(cov)[0] < -1e-10 * max(1.0, float(np.trace(cov))):
            raise ValueError("covariance must be positive semidefinite")
        centre = np.zeros(len(cov)) if mean is None else finite_array("mean", mean, (len(cov),))
        object.__setattr__(self, "covariance", freeze(cov))
        object.__setattr__(self, "mean", freeze(centre))

    @property
    def features(self) -> int:
        """Dimension F."""
        return len(self.mean)

    @property
    def reflection(self) -> Array | None:
        """All minus ones if centred, else None."""
        return None if self.mean.any() else -np.ones(self.features)

    def sample(self, n: int, seed: int | np.random.Generator) -> Array:
        """Draws, shape (n, F)."""
        values, vectors = np.linalg.eigh(self.covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        return np.asarray(self.mean + random_generator(seed).standard_normal((n, self.features)) @ root.T)


@dataclass(frozen=True, eq=False, init=False)
class SamplerPrior:
    """Any law that can be sampled.

    Attributes
    ----------
    sampler : callable
        ``sampler(n, rng) -> array (n, F)``.
    mean : ndarray, shape (F,)
    covariance : ndarray, shape (F, F)
    reflection : ndarray, shape (F,), optional

    Examples
    --------
    >>> from attsvm.dynamics.specialization import SamplerPrior
    >>> prior = SamplerPrior(lambda n, rng: rng.laplace(size=(n, 2)), mean=[0, 0], covariance=[[2, 0], [0, 2]])
    >>> prior.sample(5, seed=0).shape
    (5, 2)
    """

    sampler: Callable[[int, np.random.Generator], Any]
    mean: Array
    covariance: Array
    reflection: Array | None

    def __init__(
        self,
        sampler: Callable[[int, np.random.Generator], Any],
        mean: npt.ArrayLike,
        covariance: npt.ArrayLike,
        reflection: npt.ArrayLike | None = None,
    ) -> None:
        checked = GaussianPrior(covariance, mean)  # same conditions on the two moments
        object.__setattr__(self, "sampler", sampler)
        object.__setattr__(self, "mean", checked.mean)
        object.__setattr__(self, "covariance", checked.covariance)
        object.__setattr__(self, "reflection", None)
        if reflection is not None:
            signs = finite_array("reflection", reflection)
            if signs.shape != checked.mean.shape or not np.isin(signs, (-1.0, 1.0)).all():
                raise ValueError(f"reflection must hold {len(checked.mean)} signs, -1 or 1")
            object.__setattr__(self, "reflection", freeze(signs))

    @property
    def features(self) -> int:
        """Dimension F."""
        return len(self.mean)

    def sample(self, n: int, seed: int | np.random.Generator) -> Array:
        """Draws, shape (n, F)."""
        drawn = finite_array("sampler(n, rng)", self.sampler(n, random_generator(seed)))
        if drawn.shape != (n, self.features):
            raise ValueError(f"sampler(n, rng) must return shape {(n, self.features)}, got {drawn.shape}")
        return drawn


def _strength(name: str, value: float) -> float:
    if not (np.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be positive and finite, got {value}")
    return float(value)


def flipping_spike(nu1: float, nu2: float) -> DiscretePrior:
    """A constant direction of strength nu1 and one of strength nu2 whose sign alternates (F = 2).

    Examples
    --------
    >>> from attsvm.dynamics.specialization import flipping_spike
    >>> flipping_spike(4.0, 1.0).atoms
    array([[ 2.,  1.],
           [ 2., -1.]])
    """
    a, b = np.sqrt(_strength("nu1", nu1)), np.sqrt(_strength("nu2", nu2))
    return DiscretePrior(np.array([[a, b], [a, -b]]), np.array([0.5, 0.5]))


def one_hot_spikes(F: int, nu: float) -> DiscretePrior:
    """One of F orthogonal spikes of strength nu, each as likely (the flipping spike for F > 2).

    Examples
    --------
    >>> from attsvm.dynamics.specialization import one_hot_spikes
    >>> one_hot_spikes(3, 4.0).mean.round(3)
    array([0.667, 0.667, 0.667])
    """
    if F < 1:
        raise ValueError(f"F must be at least 1, got {F}")
    return DiscretePrior(np.sqrt(_strength("nu", nu)) * np.eye(F), np.full(F, 1.0 / F))


def gaussian_spikes(F: int, nu1: float, nu2: float | None = None) -> GaussianPrior:
    """Independent Gaussian weights, variances spaced linearly from nu1 to nu2 (isotropic without nu2).

    Examples
    --------
    >>> from attsvm.dynamics.specialization import gaussian_spikes
    >>> gaussian_spikes(3, 20.0, 1.0).covariance.diagonal()
    array([20. , 10.5,  1. ])
    """
    if F < 1:
        raise ValueError(f"F must be at least 1, got {F}")
    first = _strength("nu1", nu1)
    return GaussianPrior(np.linspace(first, first if nu2 is None else _strength("nu2", nu2), F))


def transformed(prior: Prior, mixing: npt.ArrayLike) -> Prior:
    """Law of ``mixing @ theta``: with ``p^1/2`` for mixing, the law that heads in finite dimension see.

    Examples
    --------
    >>> from attsvm.dynamics.specialization import flipping_spike, transformed
    >>> transformed(flipping_spike(1.0, 1.0), [[2.0, 0.0], [0.0, 1.0]]).atoms
    array([[ 2.,  1.],
           [ 2., -1.]])
    """
    matrix = finite_array("mixing", mixing)
    if matrix.ndim != 2 or matrix.shape[1] != prior.features:
        raise ValueError(f"mixing must have {prior.features} columns, got shape {matrix.shape}")
    if isinstance(prior, DiscretePrior):
        return DiscretePrior(prior.atoms @ matrix.T, prior.weights)
    mean, covariance = matrix @ prior.mean, matrix @ prior.covariance @ matrix.T
    if isinstance(prior, GaussianPrior):
        return GaussianPrior(0.5 * (covariance + covariance.T), mean)
    return SamplerPrior(lambda n, rng: prior.sample(n, rng) @ matrix.T, mean, 0.5 * (covariance + covariance.T))
