"""Online SGD of the heads, equations (5) and (6), in dimension D."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from attsvm.dynamics.specialization.attention import MultiHeadAttention
from attsvm.dynamics.specialization.data import Sequences, SingleLocation
from attsvm.dynamics.specialization.flow import Trajectory
from attsvm.dynamics.specialization.order import Overlaps, order_parameters
from attsvm.training.devices import torch_threads

__all__ = ["batch_loss", "train_sgd"]


def batch_loss(layer: MultiHeadAttention, batch: Sequences) -> Tensor:
    """Mean of ``|y - y_hat|^2 / D``, equation (6).

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.specialization import MultiHeadAttention, SingleLocation, draw_spikes, flipping_spike
    >>> from attsvm.dynamics.specialization.sgd import batch_loss
    >>> g = torch.Generator().manual_seed(0)
    >>> model = SingleLocation(flipping_spike(2.0, 2.0), draw_spikes(2, 400, generator=g), L=5)
    >>> loss = batch_loss(MultiHeadAttention(torch.zeros(2, 400).double()), model.sample(200, g))
    >>> bool((loss - 0.8).abs() < 0.02)  # 1 - 1/L
    True
    """
    loss: Tensor = (batch.y - layer(batch.X)).square().sum(-1).mean() / batch.X.shape[-1]
    return loss


def train_sgd(
    layer: MultiHeadAttention,
    model: SingleLocation,
    *,
    steps: int,
    lr: float,
    batch: int,
    generator: torch.Generator,
    snapshots: Iterable[int] = (),
) -> Trajectory:
    """Plain SGD on fresh batches; the layer is trained in place.

    Parameters
    ----------
    layer : MultiHeadAttention
        One model, heads of shape (H, D).
    model : SingleLocation
    steps, batch : int
    lr : float
        gamma; the literature uses 0.02 with ``batch = D``.
    generator : torch.Generator
    snapshots : iterable of int
        Steps to record besides the first and the last.

    Returns
    -------
    Trajectory
        ``times = gamma * step``; order parameters as of `order_parameters`, loss of the batch that follows.

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.specialization import (
    ...     MultiHeadAttention, SingleLocation, draw_spikes, flipping_spike, initial_heads, train_sgd)
    >>> g = torch.Generator().manual_seed(0)
    >>> model = SingleLocation(flipping_spike(2.0, 2.0), draw_spikes(2, 50, generator=g), L=4)
    >>> layer = MultiHeadAttention(initial_heads(2, 50, generator=g))
    >>> train_sgd(layer, model, steps=5, lr=0.1, batch=50, generator=g).m.shape
    torch.Size([2, 2, 2])
    """
    if layer.k.ndim != 2:
        raise ValueError("train_sgd trains one model: heads of shape (H, D)")
    if steps < 1 or batch < 1 or not lr > 0:
        raise ValueError(f"steps >= 1, batch >= 1 and lr > 0 are needed, got {steps}, {batch}, {lr}")
    wanted = {0, steps, *(int(s) for s in snapshots)}
    optimizer = torch.optim.SGD(layer.parameters(), lr=lr)
    times, points, losses = [], [], []
    with torch_threads(layer.k.device, batch * model.L * layer.k.shape[-1]):
        for step in range(steps + 1):
            optimizer.zero_grad()
            loss = batch_loss(layer, model.sample(batch, generator))
            if step in wanted:
                overlaps = Overlaps.of(layer.k.detach(), model.spikes)
                points.append(order_parameters(overlaps, layer.b.detach().clone(), layer.v.detach().clone()))
                times.append(lr * step)
                losses.append(loss.detach())
            if step < steps:
                torch.autograd.backward(loss)
                optimizer.step()
    return Trajectory.of(times, points, losses)
