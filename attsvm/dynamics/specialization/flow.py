"""Gradient flow of the reduced loss, Proposition III.2, and descent to its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from attsvm._checks import positive, require_choice
from attsvm.dynamics.specialization.order import OrderParameters
from attsvm.dynamics.specialization.reduced import reduced_gradient, score_noise
from attsvm.dynamics.specialization.samples import Samples
from attsvm.training.devices import torch_threads

__all__ = ["Trajectory", "descend", "gradient_flow"]

_KICK_DRAWS = 500


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Order parameters along a run; the second axis of every tensor is that of the runs, if there is one.

    Attributes
    ----------
    times : Tensor, shape (T,)
        Effective time ``tau = gamma t``.
    m, G, b, v : Tensor, shapes (T, ..., H, F), (T, ..., H, H), (T, ..., H), (T, ...)
        ``G = r r^T``.
    loss : Tensor, shape (T, ...)
    end : OrderParameters
        The last point, to continue from.
    """

    times: Tensor
    m: Tensor
    G: Tensor
    b: Tensor
    v: Tensor
    loss: Tensor
    end: OrderParameters

    @classmethod
    def of(cls, times: Sequence[float], points: Sequence[OrderParameters], losses: Sequence[Tensor]) -> Trajectory:
        """Stack snapshots."""
        stacked = {name: torch.stack([getattr(p, name) for p in points]) for name in ("m", "G", "b", "v")}
        clock = torch.tensor(list(times), dtype=points[0].m.dtype, device=points[0].m.device)
        return cls(clock, **stacked, loss=torch.stack(list(losses)), end=points[-1])


def _first(samples: Samples, draws: int) -> Samples:
    """The first draws of the samples, every sequence on its own."""
    thetas = None if samples.thetas is None else (samples.thetas[0][:, :draws],)
    few = Samples(samples.features, samples.heads, samples.L, (samples.blocks[0][..., :draws],), thetas)
    return few.relevant_first()


class _Field:
    """Right-hand side of equation (12)."""

    def __init__(self, samples: Samples, activation: str, form: str, noise: float):
        require_choice("form", form, "corrected", "printed")
        self.samples, self.activation, self.form, self.noise = samples, activation, form, noise
        if noise and samples.weights is not None:
            raise ValueError("noise needs samples without weights")
        # The kick is a small correction: a few thousand sequences are enough for it.
        self.few = _first(samples, _KICK_DRAWS) if noise else samples

    def __call__(self, point: OrderParameters) -> tuple[Tensor, dict[str, Tensor]]:
        gradient = reduced_gradient(point, self.samples, self.activation)
        slopes = {name: -getattr(gradient, name) for name in point.tensors()}
        if point.r is not None:
            if self.noise:
                kick = score_noise(point, self.few, self.activation)
                # d(r r^T) = noise * kick for dr = noise / 2 kick r^-T
                inverse = torch.linalg.inv(point.r).transpose(-1, -2)
                slopes["r"] = slopes["r"] + 0.5 * self.noise * kick @ inverse
            if self.form == "printed":  # r in the symmetric matrices
                slopes["r"] = 0.5 * (slopes["r"] + slopes["r"].transpose(-1, -2))
        return gradient.loss, slopes


def _moved(point: OrderParameters, slopes: dict[str, Tensor], step: float) -> OrderParameters:
    return OrderParameters(**{name: tensor + step * slopes[name] for name, tensor in point.tensors().items()})


def _advance(field: _Field, point: OrderParameters, step: float, method: str) -> OrderParameters:
    slopes = field(point)[1]
    if method == "euler":
        return _moved(point, slopes, step)
    second = field(_moved(point, slopes, step / 2))[1]
    third = field(_moved(point, second, step / 2))[1]
    fourth = field(_moved(point, third, step))[1]
    mean = {name: (slopes[name] + 2 * second[name] + 2 * third[name] + fourth[name]) / 6 for name in slopes}
    return _moved(point, mean, step)


def gradient_flow(
    start: OrderParameters,
    samples: Samples,
    activation: str,
    times: Sequence[float],
    *,
    method: str = "rk4",
    step: float = 0.25,
    noise: float = 0.0,
    form: str = "corrected",
) -> Trajectory:
    """Integrate ``d(m, r, b, v)/d tau = -gradient`` and record it at the given times.

    Parameters
    ----------
    start : OrderParameters
        r is moved as a free H x H matrix: its gradient is not symmetric, and keeping r symmetric is not the dynamics
        of SGD.
    samples : Samples
    activation : {"softmax", "softmax1", "bayes"}
    times : sequence of float
        Increasing, from 0 on.
    method : {"rk4", "euler"}
        The classical Runge-Kutta method, or the Euler steps of the literature (with step 0.02).
    step : float
        Largest step.
    noise : float
        ``gamma D / N_b`` of an SGD whose learning rate is not negligible: adds its kick to ``r r^T``.
    form : {"corrected", "printed"}
        "printed" projects the motion of r on symmetric matrices.

    Examples
    --------
    The heads move to the mean of theta first:

    >>> import torch
    >>> from attsvm.dynamics.specialization import draw_samples, flipping_spike, gradient_flow, initial_order_parameters
    >>> g = torch.Generator().manual_seed(0)
    >>> samples = draw_samples(flipping_spike(2.0, 2.0), L=5, H=2, n=2000, generator=g)
    >>> path = gradient_flow(initial_order_parameters(2, 2, generator=g), samples, "softmax", [0.0, 10.0])
    >>> bool((path.m[-1][:, 0] > 0.9).all()), bool((path.m[-1][:, 1].abs() < 0.1).all())
    (True, True)
    """
    clock = [float(t) for t in times]
    if not clock or clock[0] < 0 or any(a >= b for a, b in pairwise(clock)):
        raise ValueError("times must be increasing and start at 0 or later")
    require_choice("method", method, "rk4", "euler")
    positive("step", step)
    field = _Field(samples, activation, form, noise)
    point, now = start, 0.0
    points, losses = [], []
    with torch_threads(start.m.device):
        for time in clock:
            count = -(-(time - now) // step) if time > now else 0
            for _ in range(int(count)):
                point = _advance(field, point, (time - now) / count, method)
            now = time
            points.append(point)
            losses.append(reduced_gradient(point, samples, activation).loss)
    return Trajectory.of(clock, points, losses)


def descend(
    start: OrderParameters,
    samples: Samples,
    activation: str,
    *,
    steps: int = 600,
    lr: float = 1.0,
    momentum: float = 0.9,
    tolerance: float = 0.0,
    record: int = 0,
) -> Trajectory:
    """Gradient descent with heavy-ball momentum: the end of the flow, ``lr / (1 - momentum)`` times faster.

    Parameters
    ----------
    start, samples, activation
        As for `gradient_flow`.
    steps : int
    lr, momentum : float
    tolerance : float
        Stop once every entry of the gradient is below it.
    record : int
        Snapshots every so many steps; 0 records the first and the last.

    Returns
    -------
    Trajectory
        ``times`` counts effective time, ``step * lr / (1 - momentum)``.

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.specialization import DiscretePrior, OrderParameters, descend, draw_samples
    >>> prior = DiscretePrior([[2.0]], [1.0])
    >>> samples = draw_samples(prior, L=3, H=0, n=6000, generator=torch.Generator().manual_seed(0))
    >>> path = descend(OrderParameters(torch.zeros(1, 1).double()), samples, "softmax", momentum=0.5, steps=100)
    >>> round(path.m[-1].item(), 1)  # one spike: the best head is the spike itself
    2.0
    """
    if steps < 1 or not lr > 0 or not 0 <= momentum < 1:
        raise ValueError(f"steps >= 1, lr > 0 and 0 <= momentum < 1 are needed, got {steps}, {lr}, {momentum}")
    point, pace = start, lr / (1 - momentum)
    velocity = {name: torch.zeros_like(tensor) for name, tensor in start.tensors().items()}
    times, points, losses = [], [], []
    with torch_threads(start.m.device):
        for step in range(steps + 1):
            gradient = reduced_gradient(point, samples, activation)
            last = step == steps or (
                tolerance > 0 and max(float(getattr(gradient, n).abs().max()) for n in velocity) < tolerance
            )
            if last or step == 0 or (record and step % record == 0):
                times.append(step * pace)
                points.append(point)
                losses.append(gradient.loss)
            if last:
                break
            velocity = {n: momentum * v - lr * getattr(gradient, n) for n, v in velocity.items()}
            point = _moved(point, velocity, 1.0)
    return Trajectory.of(times, points, losses)
