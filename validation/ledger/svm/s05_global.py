"""Section 4.2 and Appendix C.2: global convergence from a good first step."""

from __future__ import annotations

from typing import Any

import numpy as np

import attsvm
from attsvm import AttentionProblem, attention
from attsvm.theory.assumptions import check_first_step, check_unique
from attsvm.validation.ledger.record import Check, Measurement, count, each, each_case, implication
from attsvm.validation.ledger.svm._common import LOSS_NAMES, Rng, autograd, batch_of, cosine, make, seed_of
from attsvm.validation.ledger.svm._cones import feasible_problem, in_cone, margins

__all__ = ["CHECKS"]


@each(0.5, "W in one of the two cones only")
def _change(formula: Any, rng: Rng, k: int) -> Any:
    """Membership in (4) with mu and in (33) with the changed mu."""
    p, s = feasible_problem(rng)
    W = s.W / s.norm + 0.3 * rng.normal(size=s.W.shape)
    mu = rng.uniform(0.02, 0.5) / s.norm
    least = margins(p, W).min() / np.linalg.norm(W)
    return float((least >= mu) != (least >= formula(mu, s.norm) / s.norm))


@each(0.5, "C differs from 'the first step ranks every optimal token first'")
def _first_step(formula: Any, rng: Rng, k: int) -> Any:
    """Assumption C by a formula against the tokens selected after one step from 0 (automatic differentiation)."""
    loss = LOSS_NAMES[k % 3]
    p = attsvm.random_problem(3, 4, 12, seed=seed_of(rng))
    step = -autograd(p, (np.zeros((12, 12)),), loss)[0]
    selected = attention.likeliest(p, step)
    return float(formula(p, loss) != np.array_equal(selected, p.optimal_tokens().indices))


def _assumption_C(p: AttentionProblem, loss: str) -> bool:
    return bool(check_first_step(p, p.optimal_tokens(), attsvm.get_loss(loss)))


def _thm4(formula: Any, rng: Rng, trials: int) -> Measurement:
    """Directions reached from the first step of Theorem 4, where C holds and the path stays in the cone."""
    draws = attsvm.random_problem(3, 4, 16, batch=2 * trials, seed=seed_of(rng), min_score_gap=0.1)
    kept = [p for p in draws if _assumption_C(p, "logistic")][:trials]
    run = attsvm.train(batch_of(kept), steps=800, init="separating", radius=5.0, lr=0.5, snapshots=15)
    errors = []
    for b, p in enumerate(kept):
        mu = check_first_step(p, p.optimal_tokens(), attsvm.logistic).values["mu"]
        path = run.history.W[1:, b]
        if all(margins(p, W).min() >= 0.99 * mu * np.linalg.norm(W) for W in path):
            errors.append(1 - float(cosine(run.W[b], formula(p))))
    return count(errors, 1e-3, "1 - corr with the limit after 800 normalized steps that stay in the cone")


def _tied(rng: Rng) -> AttentionProblem:
    """Two optimal tokens of exactly equal score; the second is no support token of the first's competitor."""
    a, b, c, e = rng.uniform(0.7, 1.6, size=4)
    X = [[[2 * a, b], [0.0, b], [0.0, 0.0]]]
    return make(X, [1], [[e, 0.0]], [0.0, c])


def _thm4_hypothesis(formula: Any, rng: Rng, trials: int) -> Measurement:
    problems = [
        _tied(rng) if k % 2 else attsvm.random_problem(1, 3, 2, seed=seed_of(rng), min_score_gap=0.2)
        for k in range(trials)
    ]
    run = attsvm.train(batch_of(problems), steps=600, init="separating", radius=5.0, lr=0.5, snapshots=2)
    reached = [float(cosine(W, attsvm.att_svm(p).W)) for W, p in zip(run.W, problems, strict=True)]
    cases = [(formula(p), corr > 0.99) for p, corr in zip(problems, reached, strict=True)]
    return implication(cases, "corr(W, W_mm) > 0.99 after 600 normalized steps; half of the data have ties")


@each(1e-9, "difference from the smallest margin over sequences and tokens")
def _smallest(formula: Any, rng: Rng, k: int) -> Any:
    """A functional of the margins against the threshold that membership in the cone depends on."""
    p, s = feasible_problem(rng)
    W = s.W + rng.normal(size=s.W.shape)
    gaps = margins(p, W)
    others = gaps[np.isfinite(gaps)].reshape(p.n, -1)
    logits = [x @ W @ z for x, z in zip(p.X, p.Z, strict=True)]  # not by the library: this is the reference
    best = p.optimal_tokens().indices
    exact = min(h[b] - h[t] for h, b in zip(logits, best, strict=True) for t in range(p.T) if t != b)
    return abs(formula(others) - exact)


@each_case("W - eta grad L(W) stays in the cone (33) where (50) holds at W; |W| of 2 to 12 times |W_mm|")
def _stays(formula: Any, rng: Rng, k: int) -> Any:
    """A step condition (margins now and then, the pull along W_mm, mu, eta, |W_mm|) at W near the cone's boundary."""
    p, s = feasible_problem(rng)
    loss, mu = LOSS_NAMES[k % 3], float(rng.uniform(0.05, 0.9))
    W = in_cone(rng, p, s.W, mu) * s.norm * rng.uniform(2, 12)
    gradient = autograd(p, (W,), loss)[0]
    eta = 1 / float(np.asarray(attsvm.smoothness_constant(p, loss)))
    then = W - eta * gradient
    pull = -float((gradient * s.W).sum())
    needed = formula(mu, eta, s.norm) * pull
    inside = margins(p, then).min() >= mu / s.norm * np.linalg.norm(then) * (1 - 1e-12)
    return (margins(p, then).min() >= margins(p, W).min() + needed and pull > 0, inside)


CHECKS = {
    "eq33": Check(_change, lambda mu, norm: norm * mu, trials=200),
    "assC": Check(_first_step, _assumption_C, trials=150),
    "thm4-limit": Check(_thm4, lambda p: attsvm.att_svm(p).W, trials=6),
    "thm4-unique": Check(
        _thm4_hypothesis,
        lambda p: _assumption_C(p, "logistic"),
        lambda p: _assumption_C(p, "logistic") and bool(check_unique(p)),
        trials=16,
    ),
    "eq50": Check(_smallest, lambda others: others[:, 0].min(), lambda others: others.min(), trials=150),
    "thm8-L3": Check(_stays, lambda mu, eta, norm: 2 * eta * mu / norm**2, trials=150),
}
