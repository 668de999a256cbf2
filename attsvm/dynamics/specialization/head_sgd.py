"""Online SGD of the heads, equations (5) and (6): in dimension D, and in law without D-dimensional vectors.

In law only the projections of the tokens on the F + H directions of spikes and heads, their mutual inner products,
and the overlaps of the heads matter. Of a token the rest is D' = D - F - H normal numbers, independent of everything:
it enters a step through the Gram matrix of the L rests (a Wishart matrix) and through the random vectors that it adds
to the heads. These are sums over the batch of vectors of uniformly random direction; they are taken as Gaussian with
their exact covariance given the rest of the step, the one approximation made (batches are large). A step costs O(N_b
L (F + H)) at any D. `greedy_pruning` removes heads one by one (Figure 7).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attsvm.dynamics.specialization.activations import MultiHeadAttention, check_activation, head_weights
from attsvm.dynamics.specialization.head_flow import Trajectory
from attsvm.dynamics.specialization.reduced_loss import OrderParameters, Overlaps, order_parameters, reduced_loss
from attsvm.dynamics.specialization.spiked_data import Prior, Samples, Sequences, SingleLocation, child_rng
from attsvm.training.optimizers import gradient_step
from attsvm.training.tensors import torch_threads
from attsvm.user_input import positive, require_choice, require_count


def batch_loss(layer: MultiHeadAttention, batch: Sequences) -> Tensor:
    """Mean of ``|y - y_hat|^2 / D``, equation (6).

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.specialization import MultiHeadAttention, SingleLocation, draw_spikes, flipping_spike
    >>> from attsvm.dynamics.specialization.head_sgd import batch_loss
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
    require_count("steps", steps)
    require_count("batch", batch)
    positive("lr", lr)
    wanted = {0, steps, *(int(s) for s in snapshots)}
    optimizer = torch.optim.SGD(layer.parameters(), lr=lr)
    times, points, losses = [], [], []
    with torch_threads(layer.k.device, batch * model.L * layer.k.shape[-1]):
        for step in range(steps + 1):
            loss = batch_loss(layer, model.sample(batch, generator))
            if step in wanted:
                overlaps = Overlaps.of(layer.k.detach(), model.spikes)
                points.append(order_parameters(overlaps, layer.b.detach().clone(), layer.v.detach().clone()))
                times.append(lr * step)
                losses.append(loss.detach())
            if step < steps:
                gradient_step(optimizer, loss)
    return Trajectory.of(times, points, losses)


def wishart(dof: int, size: int, count: int, *, generator: torch.Generator) -> Tensor:
    """Wishart matrices ``W W^T`` with W of shape (size, dof) standard normal, shape (count, size, size).

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.specialization.head_sgd import wishart
    >>> mean = wishart(50, 2, 4000, generator=torch.Generator().manual_seed(0)).mean(0) / 50
    >>> bool((mean - torch.eye(2)).abs().max() < 0.02)
    True
    """
    if dof < size:
        raise ValueError(f"dof must be at least the size {size}, got {dof}")
    like: dict[str, Any] = {"dtype": torch.float64, "device": generator.device}
    rows, columns = torch.tril_indices(size, size, -1, device=generator.device)
    factor = torch.zeros(count, size, size, **like)
    factor[:, rows, columns] = torch.randn(count, len(rows), generator=generator, **like)
    halves = 0.5 * (dof - torch.arange(size, **like))
    chi_square = 2.0 * torch._standard_gamma(halves.expand(count, size), generator=generator)
    factor.diagonal(dim1=1, dim2=2).copy_(chi_square.sqrt())  # Bartlett
    gram: Tensor = factor @ factor.transpose(-1, -2)
    return gram


def random_overlaps(H: int, F: int, D: int, eta: float = 1.0, *, generator: torch.Generator) -> Overlaps:
    """Overlaps of fresh heads ``N(0, eta^2 I/D)`` and spikes ``N(0, I/D)``, drawn from their law.

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.specialization import random_overlaps
    >>> random_overlaps(2, 3, 10_000, generator=torch.Generator().manual_seed(0)).m.shape
    torch.Size([2, 3])
    """
    if H < 1 or F < 1 or D < H + F:
        raise ValueError(f"H, F >= 1 and D >= H + F are needed, got H={H}, F={F}, D={D}")
    gram = wishart(D, F + H, 1, generator=generator)[0] / D
    return Overlaps(eta * gram[F:, :F], eta**2 * gram[F:, F:], gram[:F, :F])


def projected_sgd(
    start: Overlaps,
    prior: Prior,
    activation: str,
    *,
    L: int,
    D: int,
    steps: int,
    lr: float,
    batch: int,
    generator: torch.Generator,
    snapshots: Iterable[int] = (),
    reduced: bool = False,
) -> Trajectory:
    """SGD in dimension D, simulated on its overlaps.

    Parameters
    ----------
    start : Overlaps
        From `random_overlaps` or ``Overlaps.of(k, spikes)``.
    prior, activation, L, D, steps, lr, batch, snapshots
        As for `train_sgd`.
    generator : torch.Generator
    reduced : bool
        Record ``sum_l (delta_l - A_l)^2`` as the loss, which is what the reduced loss is the mean of; the loss of
        `train_sgd` also weighs tokens by their norms, a difference of the order ``|spike|^2 / D``. The steps are the
        same.

    Returns
    -------
    Trajectory
        As of `train_sgd`.

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.specialization import flipping_spike, projected_sgd, random_overlaps
    >>> g = torch.Generator().manual_seed(0)
    >>> path = projected_sgd(random_overlaps(2, 2, 10_000, generator=g), flipping_spike(2.0, 2.0), "softmax",
    ...                      L=5, D=10_000, steps=10, lr=0.1, batch=1000, generator=g)
    >>> path.m.shape
    torch.Size([2, 2, 2])
    """
    check_activation(activation)
    H, F = start.m.shape
    if L < 2 or F + H + max(L, H) > D or steps < 1 or batch < 1 or not lr > 0:
        raise ValueError(
            f"L >= 2, D >= F + H + max(L, H), steps >= 1, batch >= 1 and lr > 0 are needed, "
            f"got L={L}, D={D}, steps={steps}, batch={batch}, lr={lr}"
        )
    _, mixing = start.whitened()
    point = order_parameters(start)
    wanted = {0, steps, *(int(s) for s in snapshots)}
    times, points, losses = [], [], []
    with torch_threads(point.m.device):
        for step in range(steps + 1):
            loss, plain, moved = _step(point, prior, activation, mixing, L, D, lr, batch, generator)
            if step in wanted:
                times.append(lr * step)
                points.append(point)
                losses.append(plain if reduced else loss)
            point = moved
    return Trajectory.of(times, points, losses)


def _step(
    point: OrderParameters,
    prior: Prior,
    activation: str,
    mixing: Tensor,
    L: int,
    D: int,
    lr: float,
    batch: int,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, OrderParameters]:
    """Loss of one batch, the same with tokens of norm 1, and the point after its step."""
    assert point.r is not None
    H, F = point.m.shape
    rest = D - F - H
    theta = torch.as_tensor(prior.sample(batch, child_rng(generator))).to(point.m)
    Y = torch.randn(batch, L, F + H, generator=generator, dtype=point.m.dtype, device=point.m.device)
    Y[:, 0, :F] += theta @ mixing.T  # the position of the relevant token does not matter
    gram_rest = wishart(rest, L, batch, generator=generator).to(point.m)
    gram = (Y @ Y.transpose(1, 2) + gram_rest) / D  # X X^T / D
    heads = torch.cat([point.m, point.r], dim=1)

    scores = (Y @ heads.T).transpose(1, 2)  # (N_b, H, L)
    sigma = head_weights(scores, point.b, point.v, activation)
    e = sigma.mean(1)
    e[:, 0] -= 1.0
    pushed = (gram @ e.unsqueeze(-1)).squeeze(-1)  # half the derivative of e^T gram e in e
    loss = (e * pushed).sum(1).mean()
    c, slope_b, slope_v = _score_slopes(sigma, pushed, point.v, activation)

    in_span = torch.einsum("nhl,nld->hd", c, Y) / batch
    spread = torch.einsum("nhl,nlk,ngk->hg", c, gram_rest, c) * (lr / batch) ** 2 / rest
    moved = heads - lr * in_span
    # The vectors added outside of the span: their overlaps have the law of spread^1/2 Wishart(rest) spread^1/2.
    values, vectors = torch.linalg.eigh(spread)
    root = vectors * values.clamp_min(0.0).sqrt()
    outside = root @ wishart(rest, H, 1, generator=generator)[0].to(root) @ root.T
    r = moved[:, F:]
    values, vectors = torch.linalg.eigh(r @ r.T + outside)
    new_r = (vectors * values.clamp_min(0.0).sqrt()) @ vectors.T
    plain = e.square().sum(1).mean()
    return loss, plain, OrderParameters(moved[:, :F], new_r, point.b - lr * slope_b, point.v - lr * slope_v)


def _score_slopes(sigma: Tensor, pushed: Tensor, v: Tensor, activation: str) -> tuple[Tensor, Tensor, Tensor]:
    """Derivatives of the loss of each sequence in the scores (N_b, H, L); of the batch in b (H,) and v ()."""
    H = sigma.shape[1]
    zero_v = torch.zeros_like(v)
    if activation == "bayes":
        share = (sigma.mean(1) * pushed).sum(1)
        c = (2.0 / H) * sigma * (pushed - share.unsqueeze(1)).unsqueeze(1)
        return c, c.sum(2).mean(0), zero_v
    s = sigma / v if activation == "softmax1" else sigma
    pull = (s * pushed.unsqueeze(1)).sum(2, keepdim=True)
    c = (2.0 / H) * sigma * (pushed.unsqueeze(1) - pull)
    if activation == "softmax":
        return c, torch.zeros_like(c[0, :, 0]), zero_v
    return c, -c.sum(2).mean(0), 2.0 * (s.mean(1) * pushed).sum(1).mean()


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
