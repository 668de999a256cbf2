"""Gradient flow of the reduced loss (Proposition III.2), descent to its end, and what each activation can express.

Where the dimension allows, the loss is integrated by Gauss-Hermite quadrature, exact to rounding. It sees the columns
z only through the scores ``P z`` with ``P = [m r]``, Gaussian of rank rho <= H. A node is therefore the conditional
mean of z given its scores: linear in rho independent normal variables, and exact for the gradient too, which is
linear in z once the scores are fixed. The L - 1 tokens without a spike are exchangeable, so only multisets of nodes
are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement, pairwise
from math import comb, factorial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attsvm.dynamics.specialization.activations import Estimate
from attsvm.dynamics.specialization.reduced_loss import (
    OrderParameters,
    initial_order_parameters,
    reduced_gradient,
    reduced_loss,
    score_noise,
)
from attsvm.dynamics.specialization.spiked_data import DiscretePrior, GaussianPrior, Prior, Samples, draw_samples
from attsvm.solvers.arrays import FloatArray
from attsvm.training.tensors import torch_threads
from attsvm.user_input import positive, require_choice

_BLOCK = 4000

# A direction whose share of the variance of the scores is below this is rounding, not a dimension.
_RANK_TOLERANCE = 1e-13


def _root(P: FloatArray, covariance: FloatArray) -> FloatArray:
    """Columns ``Sigma P^T U lambda^-1/2``, shape (F + H, rho), with ``P Sigma P^T = U lambda U^T``."""
    values, vectors = np.linalg.eigh(P @ covariance @ P.T)
    kept = values > _RANK_TOLERANCE * max(float(values[-1]), np.finfo(float).tiny)
    return np.asarray(covariance @ P.T @ (vectors[:, kept] / np.sqrt(values[kept])))


def _grid(rank: int, nodes: int) -> tuple[FloatArray, FloatArray]:
    """Nodes (Q, rank) and weights (Q,) of a standard normal vector."""
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    w = w / w.sum()
    index = np.indices((nodes,) * rank).reshape(rank, -1) if rank else np.zeros((0, 1), dtype=int)
    return x[index].T.reshape(index.shape[1], rank), np.asarray(w[index].prod(axis=0))


def _matrix(point: OrderParameters) -> FloatArray:
    if point.m.ndim != 2:
        raise ValueError("quadrature belongs to one point; index the batch first, e.g. point[0]")
    m = point.m.detach().cpu().double().numpy()
    r = np.zeros((len(m), 0)) if point.r is None else point.r.detach().cpu().double().numpy()
    return np.hstack([m, r])


def _covariance(prior: Prior, noise: int) -> FloatArray:
    if isinstance(prior, GaussianPrior):
        spread = np.eye(prior.features) + prior.covariance
    elif isinstance(prior, DiscretePrior):
        spread = np.eye(prior.features)
    else:
        raise ValueError(f"quadrature needs a DiscretePrior or a GaussianPrior, got {type(prior).__name__}")
    joint = np.eye(prior.features + noise)
    joint[: prior.features, : prior.features] = spread
    return joint


def quadrature_size(prior: Prior, L: int, point: OrderParameters, nodes: int) -> int:
    """Number of nodes that `quadrature` would produce.

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.specialization import OrderParameters, flipping_spike
    >>> from attsvm.dynamics.specialization.head_flow import quadrature_size
    >>> quadrature_size(flipping_spike(2.0, 2.0), 4, OrderParameters(torch.ones(2, 2).double()), nodes=10)
    4400
    """
    P = _matrix(point)
    rank = _root(P, np.eye(P.shape[1])).shape[1]
    spiked = _root(P, _covariance(prior, P.shape[1] - prior.features)).shape[1]
    atoms = len(prior.weights) if isinstance(prior, DiscretePrior) else 1
    return atoms * int(nodes**spiked) * comb(nodes**rank + L - 2, L - 1)


def quadrature(prior: Prior, L: int, point: OrderParameters, *, nodes: int = 12, max_size: int = 2_000_000) -> Samples:
    """Weighted samples that integrate the reduced loss and its gradient at (and only at) this point.

    Parameters
    ----------
    prior : DiscretePrior or GaussianPrior
    L : int
    point : OrderParameters
        One run.
    nodes : int
        Per dimension; the error falls exponentially with it.
    max_size : int
        More nodes than this raise a ValueError: use `draw_samples` then.

    Examples
    --------
    One head on one spike of strength 4, three tokens:

    >>> import torch
    >>> from attsvm.dynamics.specialization import DiscretePrior, OrderParameters, quadrature, reduced_loss
    >>> prior, point = DiscretePrior([[2.0]], [1.0]), OrderParameters(torch.full((1, 1), 2.0).double())
    >>> [round(reduced_loss(point, quadrature(prior, 3, point, nodes=k), "softmax").value.item(), 6) for k in (20, 40)]
    [0.19413, 0.194124]
    """
    if L < 2 or nodes < 1:
        raise ValueError(f"L >= 2 and nodes >= 1 are needed, got L={L}, nodes={nodes}")
    if point.features != prior.features:
        raise ValueError(f"the point has {point.features} features, the prior {prior.features}")
    size = quadrature_size(prior, L, point, nodes)
    if size > max_size:
        raise ValueError(f"quadrature would need {size} nodes, more than max_size={max_size}; use draw_samples instead")
    P = _matrix(point)
    F, noise = prior.features, P.shape[1] - prior.features
    z_noise, w_noise = _columns(P, np.eye(P.shape[1]), nodes)
    z_spike, w_spike = _columns(P, _covariance(prior, noise), nodes)
    centres, masses = _centres(prior)
    z_spike = (z_spike[None] + np.pad(centres, ((0, 0), (0, noise)))[:, None]).reshape(-1, P.shape[1])
    w_spike = np.outer(masses, w_spike).ravel()

    multisets, multiplicity = _multisets(len(w_noise), L - 1)
    w_rest = multiplicity * w_noise[multisets].prod(axis=1)
    blocks, weights = [], []
    step = max(1, _BLOCK // len(w_spike))
    for start in range(0, len(multisets), step):
        rest = z_noise[multisets[start : start + step]]  # (c, L - 1, K)
        c = len(rest)
        tokens = np.empty((c, len(w_spike), L, 1 + P.shape[1]))
        tokens[..., 0] = 1.0
        tokens[:, :, 0, 1:] = z_spike
        tokens[:, :, 1:, 1:] = rest[:, None]
        block = tokens.reshape(c * len(w_spike), L, -1).transpose(2, 1, 0)
        blocks.append(torch.as_tensor(np.ascontiguousarray(block)).to(point.m))
        weights.append(torch.as_tensor(np.outer(w_rest[start : start + step], w_spike).ravel()).to(point.m))
    return Samples(F, noise, L, tuple(blocks), None, tuple(weights))


def _columns(P: FloatArray, covariance: FloatArray, nodes: int) -> tuple[FloatArray, FloatArray]:
    root = _root(P, covariance)
    grid, weights = _grid(root.shape[1], nodes)
    return grid @ root.T, weights


def _centres(prior: Prior) -> tuple[FloatArray, FloatArray]:
    if isinstance(prior, DiscretePrior):
        return prior.atoms, prior.weights
    return prior.mean[None], np.ones(1)


def _multisets(count: int, size: int) -> tuple[npt.NDArray[np.int64], FloatArray]:
    """Multisets of the given size, shape (C, size), and in how many orders each occurs."""
    sets = np.array(list(combinations_with_replacement(range(count), size)), dtype=np.int64).reshape(-1, size)
    orders = np.full(len(sets), float(factorial(size)))
    run = np.ones(len(sets))
    for position in range(1, size):  # divide by the factorial of every run of equal entries
        run = np.where(sets[:, position] == sets[:, position - 1], run + 1, 1.0)
        orders /= run
    return sets, orders


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
