"""Lemma A.6 and the two time scales."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm._lazy import lazy_module
from attsvm.validation.ledger.record import Check, Measurement, count, each
from attsvm.validation.ledger.specialization._common import (
    Array,
    Rng,
    exact_gradient,
    exact_loss,
    generator,
    point_of,
)

if TYPE_CHECKING:
    import torch

    import attsvm.dynamics.specialization as sp
else:  # claims are listed without torch
    torch, sp = lazy_module("torch"), lazy_module("attsvm.dynamics.specialization")

__all__ = ["CHECKS"]


@each(0.02, "error of the change of curvature over |mbar|^2 (values about .1), or a sign")
def _near(formula: Any, rng: Rng, k: int) -> Any:
    """Constants (L, H, V, V_learnt) -> (c1, c2, c3) of the change of the Hessian next to a learnt feature."""
    L, H, step, s = 3, 3, 0.005, 0.2
    variance, other = rng.uniform(0.5, 2, size=2)
    prior = sp.GaussianPrior([other, variance])
    mbar, w = (x - x.mean() for x in rng.standard_normal((2, H)))
    mbar, w = mbar / np.linalg.norm(mbar), w / np.linalg.norm(w)
    curvatures = []
    for size in (s, 0.0):
        losses = [
            exact_loss(prior, L, point_of(np.column_stack([size * mbar, k * step * w])), "softmax", nodes=6)
            for k in (1, 0)
        ]
        curvatures.append(2 * (losses[0] - losses[1]) / step**2)
    c1, c2, c3 = formula(L, H, variance, other)
    predicted = s**2 * (c1 + c2 * (mbar**2 * w**2).sum() + c3 * (mbar @ w) ** 2)
    wrong_sign = not (c1 > 0 and c3 > 0)
    return abs(curvatures[0] - curvatures[1] - predicted) / s**2 + wrong_sign


def _hierarchy(L: int, H: int, variance: float, other: float) -> tuple[float, float, float]:
    k = sp.hierarchy_constants(L, H, variance, other)
    return k.c1, k.c2, k.c3


@each(2e-3, "difference to the curvature of the exact loss")
def _base(formula: Any, rng: Rng, k: int) -> Any:
    """A Hessian (L, H, V) -> (H, H) of one feature of a softmax at zero."""
    step = 0.01
    L, H, variance = int(rng.integers(3, 5)), int(rng.integers(2, 4)), float(rng.uniform(1, 3))
    prior = sp.GaussianPrior([variance])
    zero = 1 - 1 / L
    for w in (np.ones(H) / H**0.5, np.eye(H)[0]):
        moved = exact_loss(prior, L, point_of(step * w[:, None]), "softmax", nodes=8)
        yield abs(2 * (moved - zero) / step**2 - w @ formula(L, H, variance) @ w)


def _swapped(L: int, H: int, variance: float) -> Array:
    return sp.hessian_near(L, H, variance, [], form="printed")


def _restored(L: int, H: int, variance: float) -> Array:
    return sp.unspecialized_hessian("softmax", L, H, [[variance]])


@each(1e-3, "difference of rates (values about .4)")
def _rates(formula: Any, rng: Rng, trial: int) -> Any:
    """Rates (activation, L, H, V) -> (of differences, of the sum) of heads near m = 0."""
    activation, L, H, variance = sp.ACTIVATIONS[trial % 3], int(rng.integers(3, 6)), 2, float(rng.uniform(1, 5))
    v = sp.balanced_amplitude(L) if activation == "softmax1" else 1.0
    prior = sp.GaussianPrior([variance])
    for heads, rate in zip(([1.0, -1.0], [1.0, 1.0]), formula(activation, L, H, variance), strict=True):
        point = point_of(1e-3 * np.array(heads)[:, None], v=v)
        slope = exact_gradient(prior, L, point, activation, nodes=8).m[:, 0].numpy()
        yield float(np.abs(-slope / (1e-3 * np.array(heads)) - rate).max())


def _predicted_rates(activation: str, L: int, H: int, variance: float) -> tuple[float, float]:
    mode = sp.escape_modes(sp.GaussianPrior([variance]), activation, L, H)[0]
    return mode.rate, mode.rate_together


@each(0.05, "distance of the time at D = 1e5 from the line through 1e3 and 1e7, relative")
def _log_law(formula: Any, rng: Rng, k: int) -> Any:
    """A law D -> g(D) in which the specialization time is said to be linear."""
    D = np.array([1e3, 1e5, 1e7])
    g = generator(rng)
    samples = sp.draw_samples(sp.gaussian_spikes(1, 8.0), 5, 0, 3000, generator=g)
    # Heads that differ from the start: from equal ones the split has no finite time.
    shape = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    shape = shape + 0.3 * torch.randn(2, 1, generator=g, dtype=torch.float64)
    start = sp.OrderParameters(torch.tensor(D**-0.5)[:, None, None] * shape)
    times = np.arange(0, 16, 0.5)
    path = sp.gradient_flow(start, samples, "softmax", times.tolist(), step=0.5)
    split = sp.head_split(path).numpy()
    found = [sp.crossing_time(times, split[:, k], 0.5) for k in range(3)]
    x = np.array([formula(d) for d in D])
    predicted = found[0] + (x[1] - x[0]) / (x[2] - x[0]) * (found[2] - found[0])
    return abs(found[1] - predicted) / (found[2] - found[0])


_SETTINGS = (  # of the figures: flipping spikes (nu1, nu2) and L; Figures 1, 2, 11-14
    ((2.0, 2.0), 10), ((2.0, 2.0), 4), ((0.5, 8.0), 4), ((2.0, 8.0), 4), ((4.0, 8.0), 4),
)  # fmt: skip


@each(0.5, "settings without such a rate: flipping spikes of Figures 1, 2 and 11-14, three activations")
def _descent(formula: Any, rng: Rng, trial: int) -> Any:
    """A predicate of the largest escape rate at the unspecialized point."""
    (nu, L), activation = _SETTINGS[trial % 5], sp.ACTIVATIONS[trial // 5 % 3]
    prior = sp.flipping_spike(*nu)
    samples = sp.draw_samples(prior, L, 0, 3000, generator=generator(rng))
    point = sp.unspecialized_point(prior, samples, activation, 2, steps=300, tolerance=1e-5)
    return float(not formula(sp.measured_escape(point, samples, activation)))


def _onsets(formula: Any, rng: Rng, trials: int) -> Measurement:
    """Figure 1 (L = 10, noise of D = 1e4): when m_1, m_2 and the split of the heads leave 0.

    m_1 has left it by tau_u and not before a tenth of that; up to tau_s m_2 and the split stay below 0.15;
    by 12 tau_s half of the runs have split. Of order one is m = 1.4.
    """
    wrong = []
    early, late = formula
    prior, g = sp.flipping_spike(2.0, 2.0), generator(rng)
    start = sp.initial_order_parameters(2, 2, noise=0.01, runs=trials, generator=g)
    samples = sp.draw_samples(prior, 10, 2, 2000, generator=g)
    m = sp.gradient_flow(start, samples, "softmax", [0.0, early / 10, early, late, 12 * late], step=1.0).m.numpy()
    late_splits: list[float] = []
    for run in range(trials):
        along, across = m[:, run, :, 0], m[:, run, :, 1]
        split = np.abs(across[:, 0] - across[:, 1])
        wrong.append(float(not (along[2].min() > 0.07 and np.abs(along[1]).max() < 0.07)))
        wrong.append(float(not (np.abs(across[3]).max() < 0.15 and split[3] < 0.15)))
        late_splits.append(split[4])
    wrong.append(float(np.mean(np.array(late_splits) > 0.15) < 0.5))  # how long the plateau lasts differs between runs
    return count(wrong, 0.5, "1: the direction of the mean has not begun, or the other has, or never does")


CHECKS = {
    "22": Check(_near, _hierarchy, trials=3),
    "23": Check(_base, _swapped, _restored, trials=4),
    "24": Check(_rates, _predicted_rates, trials=6),
    "25": Check(_log_law, np.log, trials=2),
    "26": Check(_descent, lambda rate: rate > 0, trials=15),
    "27": Check(_onsets, (1.0, 10.0), trials=4),
}
