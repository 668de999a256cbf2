"""Common random numbers of the reduced loss: one draw of the projections, reused at every point.

A token is a column ``z_l = (1, chi*_l, xi_l)`` with ``chi*_l ~ N(delta_{l,eps} theta, I_F)`` and
``xi_l ~ N(0, I_H)``: equation (11) with the token index that its noise lacks in print. The constant row lets one
matrix product produce the scores with their biases, and one more all gradients.

The expectation over the position eps of the relevant token is taken exactly: one draw of the L columns of noise and
of theta serves L sequences, theta being added to each column in turn. They share L + 1 exponentials per head
instead of L^2, and so do the matrix products.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from attsvm.dynamics.specialization.data import child_rng
from attsvm.dynamics.specialization.priors import Prior

__all__ = ["Samples", "draw_samples"]

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
