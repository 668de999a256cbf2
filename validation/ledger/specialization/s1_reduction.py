"""Propositions III.1 and III.2: the reduced loss, its flow, and the activations."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np

from attsvm.validation.ledger.record import Check, each
from attsvm.validation.ledger.specialization._common import Array, Rng, direct_loss, generator, sp, torch

__all__ = ["CHECKS"]

_D, _N, _L, _H = 300, 3000, 4, 2


def _aligned_heads(g: torch.Generator, activation: str) -> tuple[sp.MultiHeadAttention, sp.SingleLocation]:
    prior = sp.flipping_spike(2.0, 2.0)
    model = sp.SingleLocation(prior, sp.draw_spikes(2, _D, generator=g), _L)
    mix = torch.tensor([[1.2, 0.8], [1.0, -0.9]], dtype=torch.float64)
    k = mix @ model.spikes + sp.initial_heads(_H, _D, 1.5, generator=g)
    return sp.MultiHeadAttention(k, activation), model


@each(1.0, "difference to sequences at D = 300 in units of the allowed one")
def _reparameterized(formula: Any, rng: Rng, trial: int) -> Any:
    """A formula for (m, r) from the overlaps, against sequences in dimension 300."""
    g = generator(rng)
    activation = sp.ACTIVATIONS[trial % 3]
    layer, model = _aligned_heads(g, activation)
    direct, error = direct_loss(layer, model, _N, g)
    m, r = formula(sp.Overlaps.of(layer.k.detach(), model.spikes))
    samples = sp.draw_samples(model.prior, _L, _H, 20_000, generator=g)
    found = sp.reduced_loss(sp.OrderParameters(m, r), samples, activation)
    # Five standard errors, and the bias of order 1/D from p and the norms of the tokens.
    return abs(direct - float(found.value)) / (5 * (error + float(found.error)) + 6 / _D)


def _root(G: torch.Tensor) -> torch.Tensor:
    values, vectors = torch.linalg.eigh(G)
    return torch.as_tensor((vectors * values.clamp_min(0).sqrt()) @ vectors.T)


def _printed_r(overlaps: sp.Overlaps) -> tuple[torch.Tensor, torch.Tensor]:
    return overlaps.m, _root(overlaps.q - overlaps.m @ torch.linalg.solve(overlaps.p, overlaps.m.T))


@each(1.0, "difference to sequences at D = 300 in units of the allowed one")
def _noise_index(formula: Any, rng: Rng, k: int) -> Any:
    """A sampler of the noise xi (N, H, L) in the scores (11), against sequences in dimension 300."""
    g = generator(rng)
    layer, model = _aligned_heads(g, "softmax")
    direct, error = direct_loss(layer, model, _N, g)
    point = sp.order_parameters(sp.Overlaps.of(layer.k.detach(), model.spikes))
    chi = rng.standard_normal((20_000, 2, _L))
    chi[:, :, 0] += model.prior.sample(20_000, rng)
    assert point.r is not None
    scores = point.m.numpy() @ chi + point.r.numpy() @ formula(rng, 20_000, _H, _L)
    A = torch.softmax(torch.tensor(scores), dim=-1).mean(1)
    A[:, 0] -= 1
    losses = A.square().sum(1)
    return abs(direct - float(losses.mean())) / (5 * (error + float(losses.std()) / 141) + 6 / _D)


def _sgd_start() -> tuple[sp.Overlaps, sp.OrderParameters]:
    r = torch.tensor([[1.2, 0.7], [0.7, 0.6]], dtype=torch.float64)
    zero = torch.zeros(2, 2, dtype=torch.float64)
    overlaps = sp.Overlaps(zero, r @ r, torch.eye(2, dtype=torch.float64))
    return overlaps, sp.order_parameters(overlaps)


@each(0.07, "largest difference of r r^T at tau = 10 (values about 0.5)")
def _flow_of_r(formula: Any, rng: Rng, k: int) -> Any:
    """A flow (start, samples, times) -> path, against SGD at D = 1000, on the overlaps of the orthogonal parts.

    Over ten seeds the free flow misses by 0.023 to 0.040, one kept symmetric by 0.14 to 0.17; most of the spread is
    that of the samples which stand for the flow's expectations.
    """
    prior = sp.flipping_spike(2.0, 2.0)
    overlaps, start = _sgd_start()
    g = generator(rng)
    samples = sp.draw_samples(prior, 5, 2, 40_000, generator=g)
    path = formula(start, samples, [0.0, 10.0])
    runs = [
        sp.projected_sgd(overlaps, prior, "softmax", L=5, D=1000, steps=40, lr=0.25, batch=1500, generator=g)
        for _ in range(2)
    ]
    G = torch.stack([run.G[-1] for run in runs]).mean(0)
    return float((path.G[-1] - G).abs().max())


@each(0.15, "largest difference of m at tau = 5 (values about 0.8)")
def _follows(formula: Any, rng: Rng, trial: int) -> Any:
    """A flow (start, samples, activation, times) -> path, against SGD at D = 500 on m."""
    g = generator(rng)
    activation, prior = sp.ACTIVATIONS[trial % 3], sp.flipping_spike(2.0, 2.0)
    start = sp.random_overlaps(2, 2, 500, generator=g)
    samples = sp.draw_samples(prior, 5, 2, 10_000, generator=g)
    path = formula(sp.order_parameters(start), samples, activation, [0.0, 5.0])
    run = sp.projected_sgd(start, prior, activation, L=5, D=500, steps=50, lr=0.1, batch=1000, generator=g)
    return float((path.m[-1] - run.m[-1]).abs().max())


def _flow(start: Any, samples: Any, activation: str, times: Any) -> Any:
    return sp.gradient_flow(start, samples, activation, times, step=0.5)


@each(0.12, "largest difference of r r^T at tau = 6 where the condition holds")
def _small_steps(formula: Any, rng: Rng, trial: int) -> Any:
    """A condition (gamma, N_b, D) under which SGD is said to follow the flow."""
    D, prior = 200, sp.flipping_spike(2.0, 2.0)
    lr, batch = ((0.1, 4000), (0.4, 40))[trial % 2]
    if not formula(lr, batch, D):
        return None
    g = generator(rng)
    start = sp.random_overlaps(2, 2, D, generator=g)
    samples = sp.draw_samples(sp.transformed(prior, start.whitened()[1].numpy()), 4, 2, 6000, generator=g)
    path = sp.gradient_flow(sp.order_parameters(start), samples, "softmax", [0.0, 6.0], step=0.5)
    run = sp.projected_sgd(start, prior, "softmax", L=4, D=D, steps=round(6 / lr), lr=lr, batch=batch, generator=g)
    return float((path.G[-1] - run.G[-1]).abs().max())


@each(1e-13, "difference to softmax-1 with thresholds")
def _sink(formula: Any, rng: Rng, k: int) -> Any:
    scores, b, v = rng.standard_normal((3, 4)), rng.standard_normal(3), float(rng.uniform(0.5, 2))
    exact = v * np.exp(scores) / (np.exp(b)[:, None] + np.exp(scores).sum(1, keepdims=True))
    return np.abs(formula(scores, b, v) - exact).max()


def _sink_printed(scores: Array, b: Array, v: float) -> Array:
    shifted = np.exp(scores - b[:, None])
    return np.asarray(v * shifted / (1 + shifted.sum(axis=1, keepdims=True)))


@each(1e-12, "difference of the mean over heads to (17), of its sum to 1, and under a common bias")
def _joint(formula: Any, rng: Rng, k: int) -> Any:
    scores, b = rng.standard_normal((3, 4)), rng.standard_normal(3)
    raised = np.exp(scores + b[:, None])
    exact = raised.sum(axis=0) / raised.sum()  # (17): the posterior of a mixture
    A = formula(scores, b).mean(axis=0)
    return np.abs(A - exact).max() + abs(A.sum() - 1) + np.abs(formula(scores, b + 2).mean(axis=0) - A).max()


def _bayes_printed(scores: Array, b: Array) -> Array:
    raised = np.exp(scores + b[:, None])
    return np.asarray(raised / (raised.sum() / len(scores)))


@each(1e-12, "asymmetry of the gradient between heads")
def _invariant(formula: Any, rng: Rng, trial: int) -> Any:
    """A family of points whose gradient should have the symmetry of unspecialized heads."""
    g, activation = generator(rng), sp.ACTIVATIONS[trial % 3]
    drawn = sp.draw_samples(sp.flipping_spike(2.0, 1.0), 3, 3, 90, generator=g).relevant_first()
    blocks = []
    for order in permutations(range(3)):  # make the samples exactly symmetric under permutations of the heads
        rows = [0, 1, 2, *(3 + h for h in order)]
        blocks += [block[rows] for block in drawn.blocks]
    samples = sp.Samples(2, 3, 3, tuple(blocks))
    r1, r2, b, v = rng.uniform(0.2, 1, size=4)
    point = formula(rng.standard_normal(2), r1, r2, b, 1 + v)
    slope = sp.reduced_gradient(point, samples, activation)
    assert slope.r is not None
    diagonal = slope.r.diagonal()
    rest = slope.r[~torch.eye(3, dtype=torch.bool)]
    spread = [float(x.max() - x.min()) for x in (diagonal, rest, slope.b)]
    return max(*spread, float((slope.m - slope.m[0]).abs().max()))


def _unspecialized(m: Array, r1: float, r2: float, b: float, v: float) -> sp.OrderParameters:
    r = r1 * torch.eye(3, dtype=torch.float64) + r2 * torch.ones(3, 3, dtype=torch.float64)
    row = torch.tensor(m, dtype=torch.float64)
    thresholds = torch.full((3,), b, dtype=torch.float64)
    return sp.OrderParameters(row.expand(3, 2).clone(), r, thresholds, torch.tensor(v, dtype=torch.float64))


CHECKS = {
    "1": Check(_reparameterized, _printed_r, trials=3),
    "2": Check(
        _noise_index,
        lambda rng, n, H, L: np.repeat(rng.standard_normal((n, H, 1)), L, axis=2),
        lambda rng, n, H, L: rng.standard_normal((n, H, L)),
        trials=2,
    ),
    "3": Check(
        _flow_of_r,
        lambda start, samples, times: sp.gradient_flow(start, samples, "softmax", times, step=0.5, form="printed"),
        lambda start, samples, times: sp.gradient_flow(start, samples, "softmax", times, step=0.5),
        trials=1,
    ),
    "4": Check(_follows, _flow, trials=3),
    "5": Check(_small_steps, lambda lr, batch, D: lr / batch < 0.1 / D, trials=2),
    "6": Check(_sink, _sink_printed),
    "7": Check(_joint, _bayes_printed),
    "8": Check(_invariant, _unspecialized, trials=3),
}
