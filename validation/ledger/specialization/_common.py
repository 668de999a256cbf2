"""What the checks of this paper share: losses from data in dimension D, exact losses, and random instances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attsvm._lazy import lazy_module

if TYPE_CHECKING:
    import torch

    import attsvm.dynamics.specialization as sp
else:  # claims are listed without torch
    torch, sp = lazy_module("torch"), lazy_module("attsvm.dynamics.specialization")

__all__ = ["Array", "Rng", "direct_loss", "exact_gradient", "exact_loss", "generator", "point_of", "sp", "torch"]

Array = npt.NDArray[np.float64]
Rng = np.random.Generator


def generator(rng: Rng) -> torch.Generator:
    """A torch generator seeded by the check's own.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.validation.ledger.specialization._common import generator
    >>> generator(np.random.default_rng(0)).initial_seed() == generator(np.random.default_rng(0)).initial_seed()
    True
    """
    return torch.Generator().manual_seed(int(rng.integers(2**62)))


def point_of(m: Any, r: Any = None, b: Any = 0.0, v: float = 1.0) -> sp.OrderParameters:
    """Order parameters from arrays; a number b is shared by the heads.

    Examples
    --------
    >>> from attsvm.validation.ledger.specialization._common import point_of
    >>> point_of([[1.0]], b=2.0).b
    tensor([2.], dtype=torch.float64)
    """
    alignments = torch.tensor(np.asarray(m, dtype=np.float64))
    thresholds = torch.tensor(np.broadcast_to(np.asarray(b, dtype=np.float64), (len(alignments),)).copy())
    orthogonal = None if r is None else torch.tensor(np.asarray(r, dtype=np.float64))
    return sp.OrderParameters(alignments, orthogonal, thresholds, torch.tensor(float(v), dtype=torch.float64))


def exact_gradient(
    prior: sp.Prior, L: int, point: sp.OrderParameters, activation: str, nodes: int = 16
) -> sp.ReducedGradient:
    """Loss and gradient by quadrature.

    Examples
    --------
    >>> import attsvm.dynamics.specialization as sp
    >>> from attsvm.validation.ledger.specialization._common import exact_gradient, point_of
    >>> float(exact_gradient(sp.flipping_spike(1.0, 1.0), 4, point_of([[0.0, 0.0]]), "softmax").loss)
    0.75
    """
    return sp.reduced_gradient(point, sp.quadrature(prior, L, point, nodes=nodes), activation)


def exact_loss(prior: sp.Prior, L: int, point: sp.OrderParameters, activation: str, nodes: int = 16) -> float:
    """Loss by quadrature.

    Examples
    --------
    >>> import attsvm.dynamics.specialization as sp
    >>> from attsvm.validation.ledger.specialization._common import exact_loss, point_of
    >>> exact_loss(sp.flipping_spike(1.0, 1.0), 4, point_of([[0.0, 0.0]]), "softmax")
    0.75
    """
    return float(sp.reduced_loss(point, sp.quadrature(prior, L, point, nodes=nodes), activation).value)


def direct_loss(
    layer: sp.MultiHeadAttention, model: sp.SingleLocation, n: int, seed: torch.Generator
) -> tuple[float, float]:
    """Mean of ``|y - y_hat|^2 / D`` over fresh sequences, and its standard error.

    Examples
    --------
    >>> import torch
    >>> import attsvm.dynamics.specialization as sp
    >>> from attsvm.validation.ledger.specialization._common import direct_loss
    >>> g = torch.Generator().manual_seed(0)
    >>> model = sp.SingleLocation(sp.flipping_spike(1.0, 1.0), sp.draw_spikes(2, 300, generator=g), 4)
    >>> value, error = direct_loss(sp.MultiHeadAttention(torch.zeros(1, 300).double()), model, 200, g)
    >>> abs(value - 0.75) < 0.05
    True
    """
    with torch.no_grad():
        batch = model.sample(n, seed)
        losses = (batch.y - layer(batch.X)).square().sum(-1) / batch.X.shape[-1]
    return float(losses.mean()), float(losses.std()) / n**0.5
