"""What each activation can express: Bayes-softmax reaches the Bayes risk, softmax cannot, softmax-1 slowly can."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from attsvm.dynamics.specialization.bayes import Estimate
from attsvm.dynamics.specialization.flow import descend
from attsvm.dynamics.specialization.order import OrderParameters, initial_order_parameters
from attsvm.dynamics.specialization.priors import DiscretePrior, Prior
from attsvm.dynamics.specialization.reduced import reduced_loss
from attsvm.dynamics.specialization.samples import draw_samples

__all__ = [
    "TrainedHeads",
    "antipodal_share",
    "bayes_softmax_parameters",
    "opposite_heads",
    "softmax_floor",
    "train_heads",
]


def bayes_softmax_parameters(prior: DiscretePrior, *, form: str = "corrected") -> OrderParameters:
    """Heads with which Bayes-softmax is the Bayes estimator: one per atom (Proposition IV.2).

    ``m_h = theta_h`` and ``b_h = -|theta_h|^2 / 2 + log P(theta_h)``; "printed" has ``-|theta_h|^2 log P / 2``.

    Examples
    --------
    >>> from attsvm.dynamics.specialization import DiscretePrior, bayes_softmax_parameters
    >>> bayes_softmax_parameters(DiscretePrior([[1.0], [3.0]], [0.9, 0.1])).b.round(decimals=3)
    tensor([-0.6050, -6.8030], dtype=torch.float64)
    """
    if not isinstance(prior, DiscretePrior):
        raise ValueError(f"one head per atom needs a DiscretePrior, got {type(prior).__name__}")
    half = 0.5 * (prior.atoms**2).sum(axis=1)
    if form == "corrected":
        b = -half + np.log(prior.weights)
    elif form == "printed":
        b = -half * np.log(prior.weights)
    else:
        raise ValueError(f"form must be 'corrected' or 'printed', got {form!r}")
    return OrderParameters(torch.tensor(prior.atoms), None, torch.tensor(b))


def antipodal_share(prior: DiscretePrior) -> float:
    """Mass c that the prior shares with its reflection: ``sum_theta min(P(theta), P(-theta))``.

    Examples
    --------
    >>> from attsvm.dynamics.specialization import DiscretePrior, antipodal_share, flipping_spike
    >>> antipodal_share(DiscretePrior([[1.0], [-1.0]], [0.7, 0.3])), antipodal_share(flipping_spike(2.0, 2.0))
    (0.6, 0.0)
    """
    opposite = np.abs(prior.atoms[:, None] + prior.atoms[None]).max(axis=-1) < 1e-12
    return float(np.minimum(prior.weights[:, None], prior.weights[None])[opposite].sum())


def softmax_floor(L: int, share: float = 1.0) -> float:
    """Lower bound ``c (L - 1) / (4 L)`` of the softmax loss, any heads, for a prior with antipodal share c.

    At theta and -theta the attention of one head to the relevant token sums to at most one on average over
    positions, which is what the printed Proposition IV.3(a) meant; opposite half-spaces alone do not suffice.

    Examples
    --------
    >>> from attsvm.dynamics.specialization import softmax_floor
    >>> softmax_floor(5)
    0.2
    """
    if L < 2 or not 0 <= share <= 1:
        raise ValueError(f"L >= 2 and a share in [0, 1] are needed, got L={L}, share={share}")
    return share * (L - 1) / (4 * L)


def opposite_heads(scale: float, features: int) -> OrderParameters:
    """Two opposite heads of softmax-1, ``m = +-B e_1``, ``b = B^1.5``, ``v = 2``: loss to 0 as B grows (IV.3(b)).

    Examples
    --------
    >>> from attsvm.dynamics.specialization import opposite_heads
    >>> opposite_heads(4.0, 2).b
    tensor([8., 8.], dtype=torch.float64)
    """
    if not scale > 0 or features < 1:
        raise ValueError(f"scale > 0 and features >= 1 are needed, got {scale}, {features}")
    m = torch.zeros(2, features, dtype=torch.float64)
    m[0, 0], m[1, 0] = scale, -scale
    two = torch.tensor(2.0, dtype=torch.float64)
    return OrderParameters(m, None, torch.full((2,), scale**1.5, dtype=torch.float64), two)


@dataclass(frozen=True, eq=False)
class TrainedHeads:
    """Heads after training from several starts.

    Attributes
    ----------
    point : OrderParameters
        With a leading axis of runs.
    losses : tuple of Estimate
        Per run, on samples that training did not see.
    """

    point: OrderParameters
    losses: tuple[Estimate, ...]

    @property
    def best(self) -> int:
        """Run with the smallest loss."""
        return int(np.argmin([loss.value for loss in self.losses]))


def train_heads(
    prior: Prior,
    activation: str,
    *,
    L: int,
    H: int,
    runs: int = 1,
    samples: int = 20_000,
    test_samples: int = 100_000,
    steps: int = 600,
    lr: float = 1.0,
    eta: float = 1.0,
    orthogonal: bool = False,
    generator: torch.Generator,
) -> TrainedHeads:
    """Train heads to the end of the flow and measure their loss on fresh samples.

    Parameters
    ----------
    prior, activation, L, H, runs
    samples, test_samples : int
    steps, lr
        As for `descend`.
    eta : float
        Initial size of the heads.
    orthogonal : bool
        Keep the parts of the heads orthogonal to the spikes (they decay); False drops them and starts from m of
        size eta / 10 instead.
    generator : torch.Generator

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.specialization import one_hot_spikes, train_heads
    >>> heads = train_heads(one_hot_spikes(2, 8.0), "bayes", L=3, H=2, samples=3000, test_samples=3000, steps=150,
    ...                     generator=torch.Generator().manual_seed(0))
    >>> heads.losses[0].value < 0.3
    True
    """
    start = initial_order_parameters(
        H, prior.features, eta=eta, noise=0.01 if orthogonal else 0.1 * eta, runs=runs, generator=generator
    )
    if not orthogonal:
        start = replace(start, r=None)
    noise = H if orthogonal else 0
    train = draw_samples(prior, L, noise, samples, generator=generator)
    test = draw_samples(prior, L, noise, test_samples, generator=generator)
    end = descend(start, train, activation, steps=steps, lr=lr).end
    found = reduced_loss(end, test, activation)
    losses = zip(found.value.tolist(), found.error.tolist(), strict=True)
    return TrainedHeads(end, tuple(Estimate(value, error) for value, error in losses))
