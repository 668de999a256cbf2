"""Sequences in which one token carries a spike, equations (1) and (2), laws of its strength, and samples.

A prior is the law of the feature weights theta: which spikes a sequence carries, and how strongly. Samples are common
random numbers: one draw of the projections, reused at every point. A token is a column ``z_l = (1, chi*_l, xi_l)``
with ``chi*_l ~ N(delta_{l,eps} theta, I_F)`` and ``xi_l ~ N(0, I_H)``: equation (11) with the token index that its
noise lacks in print. The constant row lets one matrix product produce the scores with their biases, and one more all
gradients.

The expectation over the position eps of the relevant token is taken exactly: one draw of the L columns of noise and
of theta serves L sequences, theta being added to each column in turn. They share L + 1 exponentials per head
instead of L^2, and so do the matrix products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attsvm.solvers.arrays import FloatArray
from attsvm.user_input import finite_array, freeze, positive, require_count
from attsvm.user_input import generator as seeded

# Weights given with this relative accuracy sum to one; a typing error does not hide below it.
_SUM_TOLERANCE = 1e-8


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
    def mean(self) -> FloatArray:
        """Mean, shape (F,)."""

    @property
    def covariance(self) -> FloatArray:
        """Covariance, shape (F, F)."""

    @property
    def reflection(self) -> FloatArray | None:
        """Signs, shape (F,), that leave the law unchanged, or None."""

    def sample(self, n: int, seed: int | np.random.Generator) -> FloatArray:
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

    atoms: FloatArray
    weights: FloatArray

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
    def mean(self) -> FloatArray:
        """Mean, shape (F,)."""
        return np.asarray(self.weights @ self.atoms)

    @property
    def covariance(self) -> FloatArray:
        """Covariance, shape (F, F)."""
        centred = self.atoms - self.mean
        return np.asarray((centred.T * self.weights) @ centred)

    @property
    def reflection(self) -> FloatArray | None:
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

    def sample(self, n: int, seed: int | np.random.Generator) -> FloatArray:
        """Draws, shape (n, F)."""
        return np.asarray(self.atoms[seeded(seed).choice(len(self.weights), size=n, p=self.weights)])


def _sorted_rows(atoms: FloatArray, weights: FloatArray) -> FloatArray:
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

    covariance: FloatArray
    mean: FloatArray

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
    def reflection(self) -> FloatArray | None:
        """All minus ones if centred, else None."""
        return None if self.mean.any() else -np.ones(self.features)

    def sample(self, n: int, seed: int | np.random.Generator) -> FloatArray:
        """Draws, shape (n, F)."""
        values, vectors = np.linalg.eigh(self.covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        return np.asarray(self.mean + seeded(seed).standard_normal((n, self.features)) @ root.T)


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
    mean: FloatArray
    covariance: FloatArray
    reflection: FloatArray | None

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

    def sample(self, n: int, seed: int | np.random.Generator) -> FloatArray:
        """Draws, shape (n, F)."""
        drawn = finite_array("sampler(n, rng)", self.sampler(n, seeded(seed)))
        if drawn.shape != (n, self.features):
            raise ValueError(f"sampler(n, rng) must return shape {(n, self.features)}, got {drawn.shape}")
        return drawn


def flipping_spike(nu1: float, nu2: float) -> DiscretePrior:
    """A constant direction of strength nu1 and one of strength nu2 whose sign alternates (F = 2).

    Examples
    --------
    >>> from attsvm.dynamics.specialization import flipping_spike
    >>> flipping_spike(4.0, 1.0).atoms
    array([[ 2.,  1.],
           [ 2., -1.]])
    """
    a, b = np.sqrt(positive("nu1", nu1)), np.sqrt(positive("nu2", nu2))
    return DiscretePrior(np.array([[a, b], [a, -b]]), np.array([0.5, 0.5]))


def one_hot_spikes(F: int, nu: float) -> DiscretePrior:
    """One of F orthogonal spikes of strength nu, each as likely (the flipping spike for F > 2).

    Examples
    --------
    >>> from attsvm.dynamics.specialization import one_hot_spikes
    >>> one_hot_spikes(3, 4.0).mean.round(3)
    array([0.667, 0.667, 0.667])
    """
    require_count("F", F)
    return DiscretePrior(np.sqrt(positive("nu", nu)) * np.eye(F), np.full(F, 1.0 / F))


def gaussian_spikes(F: int, nu1: float, nu2: float | None = None) -> GaussianPrior:
    """Independent Gaussian weights, variances spaced linearly from nu1 to nu2 (isotropic without nu2).

    Examples
    --------
    >>> from attsvm.dynamics.specialization import gaussian_spikes
    >>> gaussian_spikes(3, 20.0, 1.0).covariance.diagonal()
    array([20. , 10.5,  1. ])
    """
    require_count("F", F)
    first = positive("nu1", nu1)
    return GaussianPrior(np.linspace(first, first if nu2 is None else positive("nu2", nu2), F))


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


def child_rng(generator: torch.Generator) -> np.random.Generator:
    """A NumPy generator seeded by the next number of a torch generator: priors sample with NumPy.

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.specialization.spiked_data import child_rng
    >>> child_rng(torch.Generator().manual_seed(0)).random() == child_rng(torch.Generator().manual_seed(0)).random()
    True
    """
    seed = torch.randint(2**62, (1,), generator=generator, device=generator.device)
    return np.random.default_rng(int(seed.item()))


def draw_spikes(F: int, D: int, *, generator: torch.Generator, **factory: Any) -> Tensor:
    """Hidden spikes ``k*_f ~ N(0, I / D)``, shape (F, D), equation (1).

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.specialization import draw_spikes
    >>> draw_spikes(2, 5, generator=torch.Generator().manual_seed(0)).shape
    torch.Size([2, 5])
    """
    require_count("F", F)
    require_count("D", D)
    options: dict[str, Any] = {"dtype": torch.float64, "device": generator.device} | factory
    spikes: Tensor = torch.randn(F, D, generator=generator, **options) / D**0.5
    return spikes


@dataclass(frozen=True, eq=False)
class Sequences:
    """A batch of sequences.

    Attributes
    ----------
    X : Tensor, shape (N, L, D)
    index : Tensor of int, shape (N,)
        Position of the relevant token.
    theta : Tensor, shape (N, F)
        Feature weights of its spike.
    """

    X: Tensor
    index: Tensor
    theta: Tensor

    @property
    def y(self) -> Tensor:
        """The relevant token, shape (N, D)."""
        return self.X[torch.arange(len(self.X), device=self.X.device), self.index]


@dataclass(frozen=True, eq=False)
class SingleLocation:
    """The single-location model.

    Attributes
    ----------
    prior : Prior
        Law of the feature weights.
    spikes : Tensor, shape (F, D)
    L : int
        Tokens per sequence.

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.specialization import SingleLocation, draw_spikes, flipping_spike
    >>> generator = torch.Generator().manual_seed(0)
    >>> model = SingleLocation(flipping_spike(2.0, 2.0), draw_spikes(2, 50, generator=generator), L=4)
    >>> model.sample(8, generator).X.shape
    torch.Size([8, 4, 50])
    """

    prior: Prior
    spikes: Tensor
    L: int

    def __post_init__(self) -> None:
        if self.L < 2:
            raise ValueError(f"L must be at least 2: one relevant token and one other, got {self.L}")
        if self.spikes.ndim != 2 or self.spikes.shape[0] != self.prior.features:
            raise ValueError(
                f"spikes must have shape (F, D) with F = {self.prior.features}, got {tuple(self.spikes.shape)}"
            )
        if not torch.isfinite(self.spikes).all():
            raise ValueError("spikes must be finite")

    def sample(self, n: int, generator: torch.Generator) -> Sequences:
        """Draw n sequences on the device of the generator, which must be that of the spikes."""
        like: dict[str, Any] = {"dtype": self.spikes.dtype, "device": self.spikes.device}
        theta = torch.as_tensor(self.prior.sample(n, child_rng(generator)), **like)
        index = torch.randint(self.L, (n,), generator=generator, device=generator.device)
        X = torch.randn(n, self.L, self.spikes.shape[1], generator=generator, **like)
        X[torch.arange(n, device=X.device), index] += theta @ self.spikes
        return Sequences(X, index, theta)


# Draws per block: the scores of eight heads and five tokens then take 640 kB, the size of a second-level cache.
_BLOCK = 2000


@dataclass(frozen=True, eq=False)
class Samples:
    """Projections of sequences, in blocks that fit a cache.

    Attributes
    ----------
    features, heads, L : int
        F, H (rows of xi: the most columns that r may have) and tokens.
    blocks : tuple of Tensor, shape (1 + F + H, L, n)
        Columns z without theta, or, if ``thetas`` is None, with theta in the first token.
    thetas : tuple of Tensor, shape (F, n), or None
        Given: the samples are the n L sequences in which theta stands at each of the L positions.
    weights : tuple of Tensor, shape (n,), or None
        None: every sample counts the same.
    paired : bool
        The second half of each block mirrors the first.
    """

    features: int
    heads: int
    L: int
    blocks: tuple[Tensor, ...]
    thetas: tuple[Tensor, ...] | None = None
    weights: tuple[Tensor, ...] | None = None
    paired: bool = False

    @property
    def size(self) -> int:
        """Number of sequences."""
        return sum(block.shape[-1] for block in self.blocks) * (1 if self.thetas is None else self.L)

    @cached_property
    def reach(self) -> float:
        """Largest norm of a column plus its theta: bounds every score by the norm of the parameters."""
        largest = max(float(block.square().sum(0).max().sqrt()) for block in self.blocks)
        if self.thetas is not None:
            largest += max(float(theta.square().sum(0).max().sqrt()) for theta in self.thetas)
        return largest

    def relevant_first(self) -> Samples:
        """The same samples without sharing: every sequence on its own, its relevant token first.

        Examples
        --------
        >>> import torch
        >>> from attsvm.dynamics.specialization import draw_samples, one_hot_spikes
        >>> samples = draw_samples(one_hot_spikes(3, 2.0), L=4, H=2, n=8, generator=torch.Generator().manual_seed(0))
        >>> samples.blocks[0].shape, samples.relevant_first().blocks[0].shape
        (torch.Size([6, 4, 2]), torch.Size([6, 4, 8]))
        """
        if self.thetas is None:
            return self
        blocks = []
        for block, theta in zip(self.blocks, self.thetas, strict=True):
            n = block.shape[-1]
            turned = torch.stack([block.roll(-j, dims=1) for j in range(self.L)], dim=2)  # (K, L, positions, n)
            turned[1 : 1 + self.features, 0] += theta.unsqueeze(1)
            if self.paired:  # keep the mirrored half behind
                turned = turned.reshape(*turned.shape[:-1], 2, n // 2).transpose(2, 3)
            blocks.append(turned.reshape(len(block), self.L, self.L * n).contiguous())
        return Samples(self.features, self.heads, self.L, tuple(blocks), None, self.weights, self.paired)


def draw_samples(
    prior: Prior,
    L: int,
    H: int,
    n: int,
    *,
    generator: torch.Generator,
    mirrored: bool | None = None,
    dtype: torch.dtype = torch.float64,
) -> Samples:
    """Draw sequences on the device of the generator.

    Parameters
    ----------
    prior : Prior
    L, H : int
        Tokens, and rows of noise (0 for points with r = None).
    n : int
        Sequences, rounded up to a multiple of L (of 2 L for mirrored pairs).
    mirrored : bool, optional
        Draw pairs ``(chi*, xi)``, ``(sign * chi*, xi)`` with the prior's ``reflection``; by default where it has one.

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.specialization import draw_samples, gaussian_spikes
    >>> samples = draw_samples(gaussian_spikes(2, 4.0), L=5, H=3, n=100, generator=torch.Generator().manual_seed(0))
    >>> samples.blocks[0].shape, samples.size, samples.paired
    (torch.Size([6, 5, 20]), 100, True)
    """
    if L < 2 or H < 0 or n < 1:
        raise ValueError(f"L >= 2, H >= 0 and n >= 1 are needed, got L={L}, H={H}, n={n}")
    reflection = prior.reflection
    if mirrored is None:
        mirrored = reflection is not None
    if mirrored and reflection is None:
        raise ValueError("mirrored samples need a prior with a reflection")
    F, copies = prior.features, 2 if mirrored else 1
    rng = child_rng(generator)
    like: dict[str, Any] = {"dtype": dtype, "device": generator.device}
    signs = torch.as_tensor(reflection, **like)[:, None] if mirrored else None
    blocks, thetas = [], []
    remaining = -(-n // (L * copies))
    while remaining > 0:
        drawn = min(_BLOCK // copies, remaining)
        remaining -= drawn
        theta = torch.as_tensor(prior.sample(drawn, rng), **like).T.contiguous()
        z = torch.randn(1 + F + H, L, drawn, generator=generator, **like)
        z[0] = 1.0
        if signs is not None:
            mirror = z.clone()
            mirror[1 : 1 + F] *= signs.unsqueeze(1)
            z, theta = torch.cat([z, mirror], dim=-1), torch.cat([theta, signs * theta], dim=-1)
        blocks.append(z)
        thetas.append(theta)
    return Samples(F, H, L, tuple(blocks), tuple(thetas), None, mirrored)
