"""Figures 3, 4, 6, 7, 8 and 11: patterns, pruning and numerical choices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm._lazy import lazy_module
from attsvm.validation.ledger.record import Check, Measurement, count, each
from attsvm.validation.ledger.specialization._common import Array, Rng, generator

if TYPE_CHECKING:
    import torch

    import attsvm.dynamics.specialization as sp
else:  # claims are listed without torch
    torch, sp = lazy_module("torch"), lazy_module("attsvm.dynamics.specialization")

__all__ = ["CHECKS"]


def _patterns(formula: Any, rng: Rng, trials: int) -> Measurement:
    """(number of sign patterns, feature learnt first) of four softmax heads, Gaussian features of variance 8 and 4.

    All of the runs are counted: no run of the 24 first tried ended with fewer patterns.
    """
    bad, times = [], np.arange(0.0, 241.0, 10.0)
    g = generator(rng)
    start = sp.initial_order_parameters(4, 2, noise=0.01, runs=trials, generator=g)
    samples = sp.draw_samples(sp.gaussian_spikes(2, 8.0, 4.0), 4, 4, 2500, generator=g)
    m = sp.gradient_flow(start, samples, "softmax", times.tolist(), step=1.25).m.numpy()
    for run in range(trials):
        learnt = [sp.crossing_time(times, np.abs(m[:, run, :, f]).max(axis=1), 0.3) for f in (0, 1)]
        signs = {tuple(row) for row in np.sign(m[-1, run]).astype(int).tolist()}
        bad.append(float((len(signs), int(np.argmin(learnt))) != formula))
    return count([float(np.mean(bad))], 0.5, f"share of {trials} runs with other patterns or order, softmax, H = L = 4")


@each(0.5, "directions of change that differ, L = 4, tau = 120")
def _cosine(formula: Any, rng: Rng, k: int) -> Any:
    """Signs (by nu1, by nu2) of the change of specialization, 1 - cosine of the two heads."""
    seed = int(rng.integers(2**40))
    spread = {}
    for nu in ((0.5, 0.5), (0.5, 8.0), (2.0, 8.0)):
        g = torch.Generator().manual_seed(seed)
        start = sp.initial_order_parameters(2, 2, noise=0.01, generator=g)
        samples = sp.draw_samples(sp.flipping_spike(*nu), 4, 2, 1200, generator=g)
        m = sp.gradient_flow(start, samples, "softmax", [0.0, 120.0], step=1.5).m[-1].numpy()
        spread[nu] = 1 - m[0] @ m[1] / np.linalg.norm(m[0]) / np.linalg.norm(m[1])
    by_nu1 = np.sign(spread[2.0, 8.0] - spread[0.5, 8.0])
    by_nu2 = np.sign(spread[0.5, 8.0] - spread[0.5, 0.5])
    yield from [float(by_nu1 != formula[0]), float(by_nu2 != formula[1])]


def _pruned(rng: Rng, prior: sp.Prior, activation: str) -> Array:
    """Losses with 5, 4, ..., 1 heads left, L = 4."""
    g = generator(rng)
    heads = sp.train_heads(prior, activation, L=4, H=5, samples=3000, test_samples=400, steps=300, generator=g)
    samples = sp.draw_samples(prior, 4, 0, 6000, generator=g)
    return np.array(sp.greedy_pruning(heads.point[0], samples, activation).losses)


def _removal(prior: sp.Prior, activations: tuple[str, ...]) -> Any:
    @each(0.5, "heads (H, F) -> number that can go for less than half more loss, beside the stated one; H = 5, F = 3")
    def measure(formula: Any, rng: Rng, k: int) -> Any:
        errors = []
        for activation in activations:
            losses = _pruned(rng, prior, activation)
            most = int((losses < 1.5 * losses[0]).sum()) - 1
            errors.append(float(not formula(5, 3, most)))
        return errors

    return measure


@each(0.5, "orders of damage that differ, one of 5 heads left")
def _degrades(formula: Any, rng: Rng, k: int) -> Any:
    """Activations, the first of which must suffer least when one head is left."""
    damage = [np.ptp(_pruned(rng, sp.one_hot_spikes(3, 12.0), activation)[[0, -1]]) for activation in formula]
    return [float(damage[0] > other) for other in damage[1:]]


def _same_samples(formula: Any, rng: Rng, trials: int) -> Measurement:
    """Standard deviation between choices of N fixed samples of m_11 at tau = 15, as N -> number."""
    prior, g = sp.flipping_spike(2.0, 2.0), generator(rng)
    start = sp.initial_order_parameters(2, 2, noise=0.01, generator=g)
    found = []
    for size in (500, 4000):
        ends = [
            float(
                sp.gradient_flow(
                    start, sp.draw_samples(prior, 8, 2, size, generator=g), "softmax", [0.0, 15.0], step=1.5
                ).m[-1, 0, 0]
            )
            for _ in range(trials)
        ]
        found.append(np.std(ends, ddof=1) / formula(size))
    # The logarithm of a standard deviation of 8 draws has standard error 0.27: 1.2 is four of them.
    return count(np.abs(np.log(found)), 1.2, "log of the standard deviation of m_11 (value 1.2) over the stated one")


@each(1e-9, "relative difference")
def _budget(formula: Any, rng: Rng, k: int) -> Any:
    """Samples (tau, N_b, gamma) -> N that a run of SGD has drawn at the time tau that it reports."""
    batch, lr, steps = int(rng.integers(1, 20)), float(rng.uniform(0.01, 1)), int(rng.integers(1, 12))
    g = generator(rng)
    start = sp.random_overlaps(2, 1, 30, generator=g)
    run = sp.projected_sgd(
        start, sp.gaussian_spikes(1, 2.0), "softmax", L=3, D=30, steps=steps, lr=lr, batch=batch, generator=g
    )
    return abs(formula(float(run.times[-1]), batch, lr) - steps * batch) / (steps * batch)


CHECKS = {
    "37": Check(_patterns, (4, 0), trials=4),
    "40": Check(_cosine, (1.0, -1.0), (-1.0, 1.0), trials=1),
    "41": Check(
        _removal(sp.one_hot_spikes(3, 12.0), ("softmax", "softmax1", "bayes")),
        lambda H, F, most: most >= H - F,
        trials=1,
    ),
    "42": Check(
        _removal(sp.gaussian_spikes(3, 12.0), ("bayes",)),
        lambda H, F, most: most >= H - F,
        lambda H, F, most: most < H - F,
        trials=1,
    ),
    "43": Check(_degrades, ("softmax", "softmax1", "bayes"), trials=1),
    "44": Check(_same_samples, lambda n: 2.2 * n**-0.5, trials=8),
    "45": Check(_budget, lambda time, batch, lr: time * batch / lr, trials=10),
}
