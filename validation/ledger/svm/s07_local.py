"""Section 5.1 and Appendix D: locally optimal tokens and convergence to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import attsvm
from attsvm import AttentionProblem, LinearHead, attention
from attsvm.enumeration import solve_every_selection
from attsvm.theory.assumptions import check_unique
from attsvm.validation.ledger.record import Check, Measurement, count, each, each_case
from attsvm.validation.ledger.svm._common import (
    LOSS_NAMES,
    Array,
    Rng,
    batch_of,
    cosine,
    make,
    scaled,
    seed_of,
)

__all__ = ["CHECKS"]


def _least_norm(rows: Array) -> Array:
    """Least w with ``rows @ w >= 1`` by Lawson and Hanson's reduction to nonnegative least squares."""
    from scipy.optimize import nnls

    m, size = rows.shape
    E = np.vstack([rows.T, np.ones(m)])
    u, _ = nnls(E, np.append(np.zeros(size), 1.0))
    r = E @ u - np.append(np.zeros(size), 1.0)
    return np.asarray(-r[:-1] / r[-1])


@each(0.5, "differs from the library; support by nonnegative least squares")
def _definition2(formula: Any, rng: Rng, k: int) -> Any:
    """A rule on (scores of support tokens, own score) against the library, with the support from another solver."""
    p = attsvm.random_problem(2, 4, 5, seed=seed_of(rng))
    alpha = rng.integers(4, size=2)
    f = [np.outer(p.X[i, a] - p.X[i, t], p.Z[i]).ravel() for i, a in enumerate(alpha) for t in range(4) if t != a]
    gaps = (np.array(f) @ _least_norm(np.array(f)) - 1).reshape(2, 3)
    scores = p.scores()
    local = True
    for i, a in enumerate(alpha):
        local &= bool(formula(np.delete(scores[i], a)[np.abs(gaps[i]) < 1e-7], scores[i, a]))
    return float(local != attsvm.is_locally_optimal(p, alpha))


@each_case("optimal tokens are locally optimal; half of the data have two best tokens")
def _optimal_is_local(formula: Any, rng: Rng, k: int) -> Any:
    p = attsvm.random_problem(1, 3, 3, seed=seed_of(rng))
    if k % 2:  # a second token of exactly the same score, next to the first
        v = np.array([0.0, 0.0, 1.0])
        X = p.X.copy()
        X[0, 1, 2] = X[0, 0, 2] = 2.0
        p = make(X, [1], p.Z, v)
    return (formula(p), attsvm.is_locally_optimal(p))


@each(0.5, "differs from the library, two queries per sequence; support by nonnegative least squares")
def _definition4(formula: Any, rng: Rng, k: int) -> Any:
    """As `_definition2` for K = 2 queries: a rule on (scores of support tokens, own score), support computed apart."""
    p = attsvm.random_problem(1, 4, 5, seed=seed_of(rng), queries=2)
    table = solve_every_selection(p)
    alpha = table.indices[table.feasible][int(rng.integers(int(table.feasible.sum())))]  # shape (1, 2)
    f = [np.outer(p.X[0, a] - p.X[0, t], p.Z[0, q]).ravel() for q, a in enumerate(alpha[0]) for t in range(4) if t != a]
    gaps = (np.array(f) @ _least_norm(np.array(f)) - 1).reshape(2, 3)
    scores = np.broadcast_to(p.scores(), (1, 2, 4))[0]
    local = True
    for q, a in enumerate(alpha[0]):
        local &= bool(formula(np.delete(scores[q], a)[np.abs(gaps[q]) < 1e-7], scores[q, a]))
    return float(local != attsvm.is_locally_optimal(p, alpha))


@dataclass(frozen=True)
class _Local:
    """A locally optimal selection that is not optimal, with the constants of Lemma 13's proof."""

    problem: AttentionProblem
    alpha: Array
    W: Array
    norm: float
    support: Array
    A: float
    delta: float
    Gamma: float
    gaps: tuple[float, float]
    longest: float

    @property
    def mu(self) -> float:
        return (min(0.5, self.delta) / self.A) ** 2 / 8  # equation (63)

    @property
    def radius(self) -> float:
        log = np.log(64 * self.problem.T * self.Gamma * self.A / self.gaps[0])
        return float(max(2, 1 / self.delta) * self.norm * log)  # equation (71)


def _local_selection(rng: Rng, empty: bool = False) -> _Local:
    """Drawn until there is one (with some empty support set, if asked for)."""
    while True:
        p = attsvm.random_problem(3, 4, 4, seed=seed_of(rng))
        table = solve_every_selection(p)
        best = p.optimal_tokens().indices
        full = np.all(table.support.any(axis=-1), axis=1) != empty
        found = table.indices[table.locally_optimal & (table.indices != best).any(axis=1) & full]
        if not len(found):
            continue
        alpha = found[int(rng.integers(len(found)))]
        s = attsvm.att_svm(p, alpha)
        support, margins = s.support, s.token_margins()
        other = ~support & (np.arange(p.T) != alpha[:, None])
        slack = np.where(other, margins - 1, np.inf).min()
        z = np.linalg.norm(p.Z, axis=1)
        own = np.take_along_axis(p.scores(), alpha[:, None], axis=1)
        gap = np.where(support, own - p.scores(), np.nan)
        differences = np.linalg.norm(p.X[:, :, None] - p.X[:, None], axis=-1).max(axis=(1, 2))
        return _Local(
            p, alpha, s.W, s.norm, support,
            float((np.linalg.norm(p.X, axis=-1).max(axis=1) * z).max() * s.norm),
            float(slack / 2) if np.isfinite(slack) else 0.5,
            float(np.ptp(p.scores(), axis=1).max()),
            (float(np.nanmin(gap)), float(np.nanmax(gap))),
            float((differences * z).max()),
        )  # fmt: skip


def _lemma13(which: str) -> Any:
    def measure(formula: Any, rng: Rng, trials: int) -> Measurement:
        errors = []
        for k in range(trials):
            q, loss = _local_selection(rng), LOSS_NAMES[k % 3]
            p = q.problem
            slopes = -attsvm.get_loss(loss).derivative(np.linspace(p.scores().min(), p.scores().max(), 300))
            low, high = slopes.min() * q.gaps[0] / 8, 2 * slopes.max() * q.gaps[1]
            W = attsvm.cone_init(q.W, q.radius * rng.uniform(1, 3), 1 - q.mu * rng.uniform(0, 1), rng)
            V = attsvm.cone_init(q.W, q.norm, 1 - q.mu * rng.uniform(0, 1), rng)
            gradient, rest = scaled(p.repeat(1), W[None], loss, q.alpha[None])
            inner, size, mean = -float((gradient[0] * V).sum()), float(np.linalg.norm(gradient)), float(rest.mean())
            if which == "a":
                lower, upper = formula(low, high)
                errors += [lower * mean / inner, inner / (upper * mean)]
            elif which == "b":
                errors.append(size / (formula(q.longest, high) * mean))
            else:
                errors.append(formula(low, high, 1 / q.norm, q.longest) * size * q.norm / inner)
        return count(errors, 1 + 1e-9, "bound over value in C_mu, mu of (63), R of (71)")

    return measure


@each(1e-6, "what is missing in (64) at the worst W with corr = 1 - mu")
def _cone_width(formula: Any, rng: Rng, k: int) -> Any:
    """(64) for the worst W at the correlation 1 - mu: towards each row, the margin must keep half of its slack."""
    q = _local_selection(rng)
    mu = min(formula(q.delta, q.A), 1.0)
    p = q.problem
    for i, a in enumerate(q.alpha):
        others = [t for t in range(p.T) if t != a]
        supports = [t for t in others if q.support[i, t]]
        for t in others:
            if t in supports:
                rows = [(p.X[i, a] - p.X[i, t], 0.5)]
            else:
                rows = [(p.X[i, s] - p.X[i, t], q.delta) for s in supports]
            for x, needed in rows:
                F = np.outer(x, p.Z[i])
                side = -F + (F * q.W).sum() * q.W / q.norm**2
                side *= q.norm / np.linalg.norm(side)
                W = (1 - mu) * q.W + np.sqrt(max(1 - (1 - mu) ** 2, 0)) * side
                yield needed - (F * W).sum()


_MU = 3e-4  # cones of Theorem 5 are at least this wide in the check of its limit


def _thm5(formula: Any, rng: Rng, trials: int) -> Measurement:
    """Descent from the boundary of C_mu far out, until |W| is four times as long.

    Queries are scaled so that every start has length 1; a step is a 12th of the cone's width.
    """
    found: list[_Local] = []
    while len(found) < trials:
        q = _local_selection(rng)
        if q.mu >= _MU:
            found.append(q)
    problems = []
    for q in found:
        assert isinstance(q.problem.head, LinearHead)
        problems.append(AttentionProblem(q.problem.X, q.problem.Y, 30 * q.radius * q.problem.Z, q.problem.head))
    starts = np.stack([attsvm.cone_init(q.W, 1.0, 1 - _MU, rng) for q in found])
    run = attsvm.train(batch_of(problems), steps=1500, init=starts, lr=2e-3, snapshots=20)
    errors = []
    for b, q in enumerate(found):
        stays = (1 - cosine(run.history.W[:, b], q.W)).max() <= 1.01 * _MU
        end = 1 - float(cosine(run.W[b], formula(q.problem, q.alpha)))
        errors.append(end / _MU if stays else np.inf)
    return count(errors, 0.5, "1 - corr with the limit, end over start; infinite if C_mu is left")


@each(1e-9, "relative excess of non-support tokens over the bound; half the data with an empty T_i")
def _non_support(formula: Any, rng: Rng, k: int) -> Any:
    """Probability of non-support tokens against a bound in C_mu, also where a support set is empty."""
    q = _local_selection(rng, empty=k % 2 == 1)
    p, R = q.problem, q.radius
    W = attsvm.cone_init(q.W, R, 1 - q.mu * rng.uniform(0, 1), rng)
    s = attention.probabilities(p, W)
    for i, a in enumerate(q.alpha):
        other = ~q.support[i] & (np.arange(p.T) != a)
        if other.any():
            bound = formula(p.T, R / q.norm, q.delta, s[i][q.support[i]], s[i, a])
            yield s[i][other].sum() / max(bound, 1e-300) - 1


@each(1e-4, "pi needed at 30 times the radius (71)")
def _lemma14(formula: Any, rng: Rng, k: int) -> Any:
    q = _local_selection(rng)
    D = formula(q.problem, q.alpha)
    W = np.stack([attsvm.cone_init(q.W, 30 * q.radius, 1 - c * q.mu, rng) for c in (0.0, 0.1, 1.0)])
    gradient, _ = scaled(q.problem.repeat(3), W, LOSS_NAMES[k % 3], np.tile(q.alpha, (3, 1)))
    along = -(gradient * D).sum(axis=(1, 2)) / np.linalg.norm(D)
    own = -(gradient * W).sum(axis=(1, 2)) / np.linalg.norm(W, axis=(1, 2))
    return float((own / along - 1).max()) if (along > 0).all() else np.inf


CHECKS = {
    "def2": Check(_definition2, lambda support, own: (support < own).all(), trials=300),
    "def4": Check(_definition4, lambda support, own: (support < own).all(), trials=80),
    "def2-opt": Check(_optimal_is_local, lambda p: True, lambda p: bool(check_unique(p)), trials=100),
    "lemma13-a": Check(_lemma13("a"), lambda c, C: (c, C), trials=60),
    "lemma13-b": Check(_lemma13("b"), lambda longest, C: longest * C, trials=60),
    "lemma13-c": Check(_lemma13("c"), lambda c, C, theta, longest: c / C * theta / longest, trials=60),
    "thm5-width": Check(_cone_width, lambda delta, A: (min(0.5, delta) / A) ** 2 / 8, trials=40),
    "thm5-limit": Check(_thm5, lambda p, alpha: attsvm.att_svm(p, alpha).W, trials=12),
    "eq66b": Check(
        _non_support,
        lambda T, R, delta, supports, own: T * np.exp(-R * delta) * supports.sum(),
        lambda T, R, delta, supports, own: (
            T * np.exp(-R * delta) * (supports.sum() if len(supports) else np.exp(-R) * own)
        ),
        trials=12,
    ),
    "lemma14": Check(_lemma14, lambda p, alpha: attsvm.att_svm(p, alpha).W, trials=40),
}
