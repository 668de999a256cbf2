"""Section IV: the Bayes risk and what each activation can express."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm._lazy import lazy_module
from attsvm.validation.ledger.record import Check, each
from attsvm.validation.ledger.specialization._common import Array, Rng, generator, point_of

if TYPE_CHECKING:
    import torch

    import attsvm.dynamics.specialization as sp
else:  # claims are listed without torch
    torch, sp = lazy_module("torch"), lazy_module("attsvm.dynamics.specialization")

__all__ = ["CHECKS"]


def _random_prior(rng: Rng, K: int = 3, F: int = 2) -> sp.DiscretePrior:
    return sp.DiscretePrior(1.5 * rng.standard_normal((K, F)), rng.dirichlet(np.ones(K)))


@each(1e-12, "difference to the ratio of densities")
def _posterior(formula: Any, rng: Rng, k: int) -> Any:
    """A posterior (prior, chi) -> (L,) against the ratio of densities in dimension 5, spikes orthonormal."""
    prior, D, L = _random_prior(rng), 5, 3
    spikes = np.linalg.qr(rng.standard_normal((D, 2)))[0].T
    X = rng.standard_normal((L, D))
    X[1] += prior.atoms[0] @ spikes
    joint = np.zeros(L)
    for place in range(L):
        for atom, weight in zip(prior.atoms, prior.weights, strict=True):
            means = np.zeros((L, D))
            means[place] = atom @ spikes
            joint[place] += weight * np.exp(-0.5 * ((X - means) ** 2).sum())
    return np.abs(formula(prior, X @ spikes.T) - joint / joint.sum()).max()


@each(0.08, "difference to the risk of the reduced model")
def _risk(formula: Any, rng: Rng, k: int) -> Any:
    """A risk (squared distances, D) -> number against E(1 - sum P^2)."""
    D = 400
    prior = sp.flipping_spike(2.0, 2.0)
    g = generator(rng)
    model = sp.SingleLocation(prior, sp.draw_spikes(2, D, generator=g), 4)
    batch = model.sample(2000, g)
    estimate = sp.bayes_estimate(prior, batch.X.numpy(), model.spikes.numpy())
    squares = ((batch.y.numpy() - estimate) ** 2).sum(axis=1)
    return abs(formula(squares, D) - sp.bayes_risk(prior, 4, 20_000, rng).value)


@each(1e-6, "excess over the Bayes risk on the same sequences, relative")
def _optimum(formula: Any, rng: Rng, trial: int) -> Any:
    """Heads prior -> point of a Bayes-softmax that should reach the Bayes risk."""
    prior = (
        sp.DiscretePrior([[1.0], [3.0]], [0.9, 0.1]),
        sp.DiscretePrior([[2.0, 0.0], [0.0, 2.0]], [0.95, 0.05]),
        _random_prior(rng),
    )[trial % 3]
    chi = rng.standard_normal((4000, 5, prior.features))
    chi[:, 0] += prior.sample(4000, rng)
    point = formula(prior)
    scores = (torch.tensor(chi) @ point.m.T).transpose(1, 2)
    A = sp.head_weights(scores, point.b, point.v, "bayes").mean(1).numpy()
    own = (A**2).sum(axis=1) - 2 * A[:, 0] + 1
    best = 1 - (sp.position_posterior(prior, chi) ** 2).sum(axis=1)
    A = sp.position_posterior(prior, chi)
    same = (A**2).sum(axis=1) - 2 * A[:, 0] + 1  # paired: the noise of the data cancels
    return float((own - same).mean() / best.mean())


@each(0.0, "bound minus the least loss found")
def _floor(formula: Any, rng: Rng, trial: int) -> Any:
    """A lower bound (prior, L) -> number of the softmax loss, tried on heads along the mean and at random."""
    priors = (
        sp.flipping_spike(200.0, 200.0),
        sp.DiscretePrior([[3.0, 1.0], [-3.0, -1.0]], [0.5, 0.5]),
        sp.DiscretePrior([[2.0, 0.0], [-2.0, 0.0], [0.0, 3.0]], [0.4, 0.2, 0.4]),
    )
    prior = priors[trial % 3]
    samples = sp.draw_samples(prior, 5, 0, 2000, generator=generator(rng))
    points = [point_of(s * rng.standard_normal((2, 2))) for s in (0.5, 2.0)]
    if prior.mean.any():
        points.append(point_of(np.tile(20 * prior.mean / np.linalg.norm(prior.mean), (2, 1))))
    least = min(float(sp.reduced_loss(p, samples, "softmax").value) for p in points)
    return formula(prior, 5) - least


def _printed_floor(prior: sp.DiscretePrior, L: int) -> float:
    """The gloss read literally: positive as soon as the two sides of a coordinate plane, S and -S, have mass."""
    sides = [(prior.atoms[:, f] > 0).any() and (prior.atoms[:, f] < 0).any() for f in range(prior.features)]
    return 1e-3 if any(sides) else 0.0


@each(0.12, "exponent of the loss in B = |theta| beside -1/2, B = 30 to 3000 (isotropic, F = 2; standard error .025)")
def _vanishing(formula: Any, rng: Rng, k: int) -> Any:
    """Heads (B, F) -> point of a softmax-1 whose loss should vanish as B grows, |theta| = B."""
    losses, scales = [], (30.0, 300.0, 3000.0)
    for B in scales:
        angles = 2 * np.pi * (np.arange(4000) + rng.random()) / 4000  # evenly spread: few decide the loss
        prior = sp.DiscretePrior(B * np.column_stack([np.cos(angles), np.sin(angles)]), np.full(4000, 1 / 4000))
        samples = sp.draw_samples(prior, 5, 0, 40_000, generator=generator(rng), mirrored=False)
        losses.append(float(sp.reduced_loss(formula(B, 2), samples, "softmax1").value))
    return abs(np.polyfit(np.log(scales), np.log(losses), 1)[0] + 0.5)


@each(0.02, "excess of the trained loss over the Bayes risk (.127), one-hot spikes, F = 3; standard error .004")
def _enough_heads(formula: Any, rng: Rng, k: int) -> Any:
    """Numbers of heads (spikes -> H) with which a trained Bayes-softmax should reach the Bayes risk."""
    prior = sp.one_hot_spikes(3, 10.0)
    risk = sp.bayes_risk(prior, 5, 40_000, rng).value
    return [_train(rng, prior, "bayes", H, steps=300) - risk for H in formula(3)]


def _train(rng: Rng, prior: sp.Prior, activation: str, H: int, steps: int = 250, samples: int = 3000) -> float:
    heads = sp.train_heads(
        prior, activation, L=5, H=H, runs=2, samples=samples, test_samples=20_000, steps=steps, generator=generator(rng)
    )
    return min(loss.value for loss in heads.losses)


@each(0.5, "orders that are not those of the losses, by .03 or more each")
def _more_heads(formula: Any, rng: Rng, k: int) -> Any:
    """Numbers of heads in the order of decreasing loss, Bayes-softmax on an isotropic Gaussian."""
    prior = sp.gaussian_spikes(4, 10.0)
    losses = [_train(rng, prior, "bayes", H) for H in formula]
    risk = sp.bayes_risk(prior, 5, 20_000, rng).value
    return float(not (losses[0] > losses[1] + 0.03 > losses[2] + 0.06 and losses[2] > risk))


@each(0.0, "advantage beyond the stated one")
def _flip_gap(formula: Any, rng: Rng, trial: int) -> Any:
    """Largest relative advantage nu -> number of softmax-1 over softmax, flipping spike, H = 4."""
    nu = (4.0, 10.0)[trial % 2]
    soft, sink = (
        _train(rng, sp.flipping_spike(nu, nu), a, 4, steps=400, samples=3000) for a in ("softmax", "softmax1")
    )
    return (soft - sink) / soft - formula(nu)


@each(0.5, "orders that are not those of the gaps")
def _gap_grows(formula: Any, rng: Rng, k: int) -> Any:
    """Signals in the order of growing gap between softmax and softmax-1, isotropic Gaussian."""
    pairs = [[_train(rng, sp.gaussian_spikes(2, nu), a, 4) for a in ("softmax", "softmax1")] for nu in formula]
    gaps = [a - b for a, b in pairs]
    return float(not (gaps[1] > gaps[0] + 0.03 and min(pair[0] for pair in pairs) > sp.softmax_floor(5)))


def _printed_risk(squares: Array, D: int) -> float:
    return float(squares.mean())


def _scaled_risk(squares: Array, D: int) -> float:
    return float(squares.mean()) / D


CHECKS = {
    "28": Check(_posterior, sp.position_posterior, trials=10),
    "29": Check(_risk, _printed_risk, _scaled_risk, trials=2),
    "30": Check(
        _optimum,
        lambda prior: sp.bayes_softmax_parameters(prior, form="printed"),
        sp.bayes_softmax_parameters,
        trials=3,
    ),
    "31": Check(_floor, _printed_floor, lambda prior, L: sp.softmax_floor(L, sp.antipodal_share(prior)), trials=3),
    "32": Check(_vanishing, sp.opposite_heads, trials=2),
    "33": Check(_enough_heads, lambda spikes: (spikes, spikes + 2), trials=1),
    "34": Check(_more_heads, (2, 4, 8), trials=1),
    "35": Check(_flip_gap, lambda nu: 0.1, lambda nu: 0.15 if nu >= 10 else 0.3, trials=2),
    "36": Check(_gap_grows, (2.0, 40.0), trials=1),
}
