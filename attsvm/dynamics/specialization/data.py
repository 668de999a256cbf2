"""Sequences in which one token carries a spike, equations (1) and (2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attsvm.dynamics.specialization.priors import Prior

__all__ = ["Sequences", "SingleLocation", "child_rng", "draw_spikes"]


def child_rng(generator: torch.Generator) -> np.random.Generator:
    """A NumPy generator seeded by the next number of a torch generator: priors sample with NumPy.

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.specialization.data import child_rng
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
    if F < 1 or D < 1:
        raise ValueError(f"F and D must be at least 1, got F={F}, D={D}")
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
