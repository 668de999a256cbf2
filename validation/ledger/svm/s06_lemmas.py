"""Appendix C.2: what the gradient does inside the cone of separating matrices (Lemmas 11 and 12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import attsvm
from attsvm import AttentionProblem, attention
from attsvm.validation.ledger.record import Check, Measurement, count, each
from attsvm.validation.ledger.svm._common import LOSS_NAMES, Rng, autograd, make, rotation, scaled, seed_of
from attsvm.validation.ledger.svm._cones import feasible_problem, in_cone, margins

__all__ = ["CHECKS"]


@dataclass(frozen=True)
class _Sample:
    """One evaluation for Lemma 11: everything divided by one factor."""

    mu: float
    theta: float
    longest: float
    C: float
    c: float
    correlation: float
    inner: float
    size: float
    rest: float


def _constants(p: AttentionProblem, norm: float, loss: str, interval: Any = None) -> dict[str, float]:
    """Constants of Lemma 11's proof; slopes of the loss over an interval (default: that of the scores)."""
    scores, best = p.scores(), p.optimal_tokens().indices[:, None]
    gaps = np.take_along_axis(scores, best, axis=1) - scores
    others = np.arange(p.T) != best
    z = np.linalg.norm(p.Z, axis=1)
    differences = np.linalg.norm(p.X[:, :, None] - p.X[:, None], axis=-1).max(axis=(1, 2))
    lengths = np.linalg.norm(p.X, axis=-1).max(axis=1)
    A = float((np.maximum(lengths, differences) * z).max() * norm)
    low, high = (float(scores.min()), float(scores.max())) if interval is None else interval(p, A)
    slopes = -attsvm.get_loss(loss).derivative(np.linspace(low, high, 400))
    smallest = float(gaps[others].min())
    return {
        "A": A,
        "longest": float((differences * z).max()),
        "C": 2 * A * float(slopes.max()) * float(gaps.max()),
        "c": 0.5 * float(slopes.min()) * smallest,
        "ratio": float(np.ptp(scores, axis=1).max()) * A / smallest,
    }


def _radius(p: AttentionProblem, norm: float, constants: dict[str, float], mu: float) -> float:
    return norm / mu * max(float(np.log(4 * p.T * constants["ratio"] / mu)), 1.0)  # equation (41)


def _samples(rng: Rng, trials: int, interval: Any = None, simple: bool = False, widest: float = 0.9) -> list[_Sample]:
    """Pairs V, W of the cone (33) with mu up to the widest, the latter at 1 to 3 times the radius (41)."""
    out = []
    for k in range(trials):
        loss = LOSS_NAMES[k % 3]
        if simple:
            p, loss = _one_row(rng), ("correlation", "exponential")[k % 2]
            s = attsvm.att_svm(p)
        else:
            p, s = feasible_problem(rng)
        mu = float(rng.uniform(0.03, widest))
        constants = _constants(p, s.norm, loss, interval)
        V, W = in_cone(rng, p, s.W, mu), in_cone(rng, p, s.W, mu)
        W = W * _radius(p, s.norm, constants, mu) * rng.uniform(1, 3)
        gradient, rest = scaled(p.repeat(1), W[None], loss, p.optimal_tokens().indices[None])
        inner, size = -float((gradient[0] * V).sum()), float(np.linalg.norm(gradient))
        out.append(
            _Sample(mu, 1 / s.norm, constants["longest"], constants["C"], constants["c"],
                    inner / size, inner * s.norm, size, float(rest.mean()))
        )  # fmt: skip
    return out


def _one_row(rng: Rng) -> AttentionProblem:
    """Two tokens of one sequence, the other one 0, with a head of any length."""
    U = rotation(rng, 3)
    v = rng.uniform(1, 12)
    return make([[rng.uniform(0.7, 1.3) * U[0], 0 * U[0]]], [1], [U[1]], v * U[0])


def _eq34a(formula: Any, rng: Rng, trials: int) -> Measurement:
    errors = []
    for s in _samples(rng, trials):
        low, high = formula(s.c, s.C, s.mu)
        errors += [low * s.rest / s.inner, s.inner / (high * s.rest)]
    return count(errors, 1 + 1e-9, "lower bound over value, or value over upper bound")


def _eq34b(formula: Any, rng: Rng, trials: int) -> Measurement:
    # Every second narrow cone around one row contradicts a bound without mu: none of 30 does with probability 1e-9.
    samples = _samples(rng, trials // 2) + _samples(rng, trials - trials // 2, simple=True, widest=0.1)
    errors = [formula(s.c, s.C, s.mu, s.theta, s.longest) / s.correlation for s in samples]
    return count(errors, 1 + 1e-9, "bound over -corr(V, grad L(W))")


def _eq34c(formula: Any, rng: Rng, trials: int) -> Measurement:
    errors = [s.size / (formula(s.longest, s.C) * s.rest) for s in _samples(rng, trials)]
    return count(errors, 1 + 1e-9, "|grad L| over the bound")


def _interval(formula: Any, rng: Rng, trials: int) -> Measurement:
    samples = _samples(rng, trials, interval=formula, simple=True)
    errors = [max(s.c * s.mu * s.rest / s.inner, s.inner / (s.C * s.rest)) for s in samples]
    return count(errors, 1 + 1e-9, "(34a) with slopes over an interval: bound over value, or value over bound")


@each(1.05, "R(mu)/rate(mu) at mu = 1e-8 over the same at 1e-4: bounded for O(rate)")
def _rate(formula: Any, rng: Rng, k: int) -> Any:
    """Growth of (41) relative to a rate as mu falls from 1e-4 to 1e-8."""
    p, s = feasible_problem(rng)
    constants = _constants(p, s.norm, "logistic")
    ratios = [_radius(p, s.norm, constants, mu) / formula(mu) for mu in (1e-4, 1e-8)]
    return ratios[1] / ratios[0]


@each(0.02, "pi needed at |W| = 300 |W_mm|, mu = 0.3")
def _lemma12(formula: Any, rng: Rng, k: int) -> Any:
    """<-grad, W/|W|> over <-grad, D/|D|> minus 1 far out, near W_mm and near the cone's boundary."""
    p, s = feasible_problem(rng)
    D, size = formula(p), 300 * s.norm
    near = [attsvm.cone_init(s.W, size, 1 - c, seed_of(rng)) for c in (1e-6, 1e-4, 1e-2)]
    inside = [W for W in near if margins(p, W).min() >= 0.3 * np.linalg.norm(W) / s.norm]
    W = np.stack([size * in_cone(rng, p, s.W, 0.3), *inside])
    best = np.tile(p.optimal_tokens().indices, (len(W), 1))
    gradient, _ = scaled(p.repeat(len(W)), W, LOSS_NAMES[k % 3], best)
    along = -(gradient * D).sum(axis=(1, 2)) / np.linalg.norm(D)
    own = -(gradient * W).sum(axis=(1, 2)) / np.linalg.norm(W, axis=(1, 2))
    return float((own / along - 1).max())


@each(1e-8, "relative error of the displayed equality")
def _eq43(formula: Any, rng: Rng, k: int) -> Any:
    """<-grad L, W/|W|> against a factor times -(1/n) sum l' h^T S' gamma with h = X W_bar z."""
    p, s = feasible_problem(rng)
    loss = LOSS_NAMES[k % 3]
    W = rng.normal(size=s.W.shape)
    gradient = autograd(p, (W,), loss)[0]
    left = -(gradient * W).sum() / np.linalg.norm(W)
    h = attention.logits(p, s.norm * W / np.linalg.norm(W))
    a = attention.probabilities(p, W)
    g = p.scores()
    slope = attsvm.get_loss(loss).derivative((a * g).sum(axis=1))
    right = -(slope * ((h * a * g).sum(axis=1) - (h * a).sum(axis=1) * (a * g).sum(axis=1))).mean()
    return abs(formula(s.norm) * right / left - 1)


CHECKS = {
    "eq34a": Check(_eq34a, lambda c, C, mu: (c * mu, C), trials=150),
    "eq34b": Check(
        _eq34b,
        lambda c, C, mu, theta, longest: c / C * theta / longest,
        lambda c, C, mu, theta, longest: c * mu / C * theta / longest,
        trials=60,
    ),
    "eq34c": Check(_eq34c, lambda longest, C: longest * C, trials=150),
    "lemma11-interval": Check(
        _interval, lambda p, A: (-A, A), lambda p, A: (float(p.scores().min()), float(p.scores().max())), trials=120
    ),
    "lemma11-rate": Check(_rate, lambda mu: 1 / mu, lambda mu: np.log(1 / mu) / mu, trials=40),
    "lemma12": Check(_lemma12, lambda p: attsvm.att_svm(p).W, trials=40),
    "eq43": Check(_eq43, lambda norm: 1.0, lambda norm: 1.0 / norm, trials=60),
}
