"""The reduced loss, equation (10), and its gradient in closed form.

``grad_m = E sum_l c_l chi*_l^T`` and ``grad_r = E sum_l c_l xi_l^T`` with the derivatives c in the scores (see
`sweeps`); the printed (25) lacks a factor 1/H. All heads, runs, tokens and positions of a block of samples share
one matrix product forth and one back.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attsvm.dynamics.specialization.order import OrderParameters
from attsvm.dynamics.specialization.passes import PlainPass, choose_pass
from attsvm.dynamics.specialization.samples import Samples

__all__ = ["LossEstimate", "ReducedGradient", "reduced_gradient", "reduced_loss", "score_noise"]


@dataclass(frozen=True, eq=False)
class LossEstimate:
    """Loss and the standard error of its Monte-Carlo mean (NaN for quadrature), one per run.

    Attributes
    ----------
    value, error : Tensor, shape () or (B,)
    """

    value: Tensor
    error: Tensor


@dataclass(frozen=True, eq=False)
class ReducedGradient:
    """Loss and gradient at a point; shapes follow the point's.

    Attributes
    ----------
    loss : Tensor, shape () or (B,)
    m, b, v : Tensor
    r : Tensor or None
    """

    loss: Tensor
    m: Tensor
    r: Tensor | None
    b: Tensor
    v: Tensor


def _per_run(point: OrderParameters, tensor: Tensor) -> Tensor:
    return tensor if point.m.ndim == 3 else tensor[0]


def reduced_loss(point: OrderParameters, samples: Samples, activation: str) -> LossEstimate:
    """Reduced loss at a point, or at every point of a batch of runs.

    Parameters
    ----------
    point : OrderParameters
    samples : Samples
        From `draw_samples` or `quadrature`.
    activation : {"softmax", "softmax1", "bayes"}

    Examples
    --------
    Heads that know nothing give every token the same attention; the loss is ``1 - 1/L``:

    >>> import torch
    >>> from attsvm.dynamics.specialization import OrderParameters, draw_samples, flipping_spike, reduced_loss
    >>> samples = draw_samples(flipping_spike(2.0, 2.0), L=5, H=2, n=100, generator=torch.Generator().manual_seed(0))
    >>> round(reduced_loss(OrderParameters(torch.zeros(2, 2).double()), samples, "softmax").value.item(), 12)
    0.8
    """
    sweep = choose_pass(point, samples, activation)
    total, square, count = point.m.new_zeros(sweep.B), point.m.new_zeros(sweep.B), 0
    for i in range(len(sweep.samples.blocks)):
        losses = sweep.run(i, gradient=False).losses
        if samples.weights is not None:
            total += losses @ samples.weights[i]
            continue
        # The positions and the mirror image of one draw are not independent: the error is that of their means.
        if sweep.samples.paired:
            losses = losses.reshape(sweep.B, 2, -1).mean(1)
        if samples.thetas is not None and sweep.samples.thetas is None:
            losses = losses.reshape(sweep.B, samples.L, -1).mean(1)
        total += losses.sum(-1)
        square += losses.square().sum(-1)
        count += losses.shape[-1]
    if samples.weights is not None:
        return LossEstimate(_per_run(point, total), _per_run(point, torch.full_like(total, torch.nan)))
    mean = total / count
    error = ((square / count - mean.square()).clamp_min_(0.0) / count).sqrt()
    return LossEstimate(_per_run(point, mean), _per_run(point, error))


def reduced_gradient(point: OrderParameters, samples: Samples, activation: str) -> ReducedGradient:
    """Loss and its gradient in (m, r, b, v), the right-hand side of equation (12).

    Parameters
    ----------
    point : OrderParameters
    samples : Samples
    activation : {"softmax", "softmax1", "bayes"}

    Examples
    --------
    At zero the gradient in m is ``-(2/H)(L - 1)/L^2`` times the mean of theta, here -0.1875:

    >>> import torch
    >>> from attsvm.dynamics.specialization import DiscretePrior, OrderParameters, draw_samples, reduced_gradient
    >>> prior = DiscretePrior([[1.0]], [1.0])
    >>> samples = draw_samples(prior, L=4, H=0, n=100_000, generator=torch.Generator().manual_seed(0))
    >>> gradient = reduced_gradient(OrderParameters(torch.zeros(2, 1).double()), samples, "softmax").m
    >>> bool((gradient + 0.1875).abs().max() < 1e-12)  # the noise of the positions cancels here
    True
    """
    sweep = choose_pass(point, samples, activation)
    total, slope_v = point.m.new_zeros(sweep.B), point.m.new_zeros(sweep.B)
    product = torch.zeros_like(sweep.P)
    count = 0
    for i in range(len(sweep.samples.blocks)):
        added = sweep.run(i, gradient=True)
        assert added.product is not None
        product += added.product
        if added.slope_v is not None:
            slope_v += added.slope_v
        total += added.losses.sum(-1) if samples.weights is None else added.losses @ samples.weights[i]
        count += added.losses.shape[-1]
    scale = 1.0 if samples.weights is not None else 1.0 / samples.size
    mean = total if samples.weights is not None else total / count
    product = (product * (sweep.factor * scale)).view(sweep.B, sweep.H, -1)
    return _gradient(point, sweep, _per_run(point, mean), product, slope_v * (2.0 * scale))


def _gradient(
    point: OrderParameters, sweep: PlainPass, loss: Tensor, product: Tensor, slope_v: Tensor
) -> ReducedGradient:
    if sweep.softmax:
        slope_b = torch.zeros_like(point.b)
    else:
        sign = -1.0 if sweep.activation == "softmax1" else 1.0
        slope_b, product = (sign * product[..., 0]).reshape(point.b.shape), product[..., 1:]
    return ReducedGradient(
        loss,
        _per_run(point, product[..., : sweep.F]),
        None if point.r is None else product[..., sweep.F :].reshape(point.r.shape),
        slope_b,
        slope_v.reshape(point.v.shape),
    )


def score_noise(point: OrderParameters, samples: Samples, activation: str) -> Tensor:
    """``E sum_l c_l c_l^T``, shape (..., H, H): what a finite learning rate adds to the overlaps of the heads.

    SGD with learning rate gamma and batches of N_b adds ``gamma (D / N_b)`` times this to ``d(r r^T)/d tau``.

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.specialization import OrderParameters, draw_samples, flipping_spike
    >>> from attsvm.dynamics.specialization.reduced import score_noise
    >>> samples = draw_samples(flipping_spike(2.0, 2.0), L=2, H=0, n=100, generator=torch.Generator().manual_seed(0))
    >>> score_noise(OrderParameters(torch.zeros(1, 2).double()), samples, "softmax").item()  # c = -+1/2
    0.5
    """
    if samples.weights is not None:
        raise ValueError("score_noise needs samples without weights")
    sweep = PlainPass(point, samples.relevant_first(), activation)
    total = point.m.new_zeros(sweep.B, sweep.H, sweep.H)
    for block in sweep.samples.blocks:
        flat = sweep.sensitivity(*sweep.attend(sweep.columns(block), block.shape[1])).flatten(2)
        total += flat @ flat.transpose(1, 2)
    return _per_run(point, total * (sweep.factor**2 / samples.size))
