"""Greedy removal of heads (Figure 7)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attsvm._checks import require_choice
from attsvm.dynamics.specialization.order import OrderParameters
from attsvm.dynamics.specialization.reduced import reduced_loss
from attsvm.dynamics.specialization.samples import Samples

__all__ = ["PruningPath", "greedy_pruning"]


@dataclass(frozen=True, eq=False)
class PruningPath:
    """Heads in the order of their removal.

    Attributes
    ----------
    removed : tuple of int
        Indices of the heads of the start, H - 1 of them.
    losses : tuple of float
        Loss with 0, 1, ..., H - 1 heads removed, measured on the second set of samples if one was given.
    """

    removed: tuple[int, ...]
    losses: tuple[float, ...]


def greedy_pruning(
    point: OrderParameters, samples: Samples, activation: str, *, test: Samples | None = None, rescale: str = "mean"
) -> PruningPath:
    """Remove, one after the other, the head whose removal hurts least.

    Parameters
    ----------
    point : OrderParameters
        One run.
    samples : Samples
        Decide which head goes.
    activation : {"softmax", "softmax1", "bayes"}
    test : Samples, optional
        Measure the losses (default: the same samples).
    rescale : {"mean", "mass"}
        "mean" averages over the kept heads. "mass" also scales the amplitude of softmax-1 so that the best remaining
        loss is reached: ``v`` solves a quadratic problem, exactly. Softmax and Bayes-softmax need neither.

    Examples
    --------
    A head that copies another one goes first and costs nothing in a Bayes-softmax with its bias shared out:

    >>> import torch
    >>> from attsvm.dynamics.specialization import OrderParameters, draw_samples, greedy_pruning, one_hot_spikes
    >>> samples = draw_samples(one_hot_spikes(2, 9.0), L=4, H=0, n=4000, generator=torch.Generator().manual_seed(0))
    >>> point = OrderParameters(torch.tensor([[3.0, 0.0], [0.0, 3.0], [0.0, -9.0]]).double())
    >>> greedy_pruning(point, samples, "bayes").removed[0]
    2
    """
    if point.m.ndim != 2:
        raise ValueError("pruning belongs to one point; index the batch first, e.g. point[0]")
    require_choice("rescale", rescale, "mean", "mass")
    scaled = rescale == "mass" and activation == "softmax1"
    test = samples if test is None else test
    kept = list(range(point.heads))
    removed: list[int] = []
    losses = [_measure(point, samples, test, activation, scaled)]
    while len(kept) > 1:
        choices = [[h for h in kept if h != gone] for gone in kept]
        candidates = _stack([point.keep(choice) for choice in choices])
        if scaled:
            candidates = _best_amplitude(candidates, samples)
        best = int(reduced_loss(candidates, samples, activation).value.argmin())
        removed.append(kept[best])
        kept = choices[best]
        losses.append(_measure(point.keep(kept), samples, test, activation, scaled))
    return PruningPath(tuple(removed), tuple(losses))


def _measure(point: OrderParameters, samples: Samples, test: Samples, activation: str, scaled: bool) -> float:
    if scaled:
        point = _best_amplitude(_stack([point]), samples)[0]
    return float(reduced_loss(point, test, activation).value)


def _stack(points: list[OrderParameters]) -> OrderParameters:
    return OrderParameters(**{name: torch.stack([getattr(p, name) for p in points]) for name in points[0].tensors()})


def _best_amplitude(points: OrderParameters, samples: Samples) -> OrderParameters:
    """The loss is ``1 - 2 alpha v + beta v^2`` in v: three evaluations give its minimum."""
    values = []
    for v in (1.0, 2.0):
        tried = OrderParameters(points.m, points.r, points.b, torch.full_like(points.v, v))
        values.append(reduced_loss(tried, samples, "softmax1").value - 1.0)
    beta = 0.5 * (values[1] - 2 * values[0])
    alpha = 0.5 * (beta - values[0])
    return OrderParameters(points.m, points.r, points.b, alpha / beta)
