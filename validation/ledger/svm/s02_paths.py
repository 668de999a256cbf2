"""Assumption A and Section 3: losses, regularization paths and the nuclear-norm problem."""

from __future__ import annotations

from typing import Any

import numpy as np

import attsvm
from attsvm import AttentionProblem, Loss
from attsvm.solvers import Status
from attsvm.theory.assumptions import gradient_at_zero
from attsvm.theory.loss_check import check_loss
from attsvm.validation.ledger.record import Check, each, each_case
from attsvm.validation.ledger.svm._common import LOSS_NAMES, Array, Rng, make, rotation, seed_of

__all__ = ["CHECKS"]

RADII = (20.0, 320.0)


@each(1e-9, "excess of |l'| over M1 or of its Lipschitz constant over M0")
def _constants(formula: Any, rng: Rng, k: int) -> Any:
    """(M0, M1) of a formula against difference quotients of a loss on random intervals; the loss must decrease."""
    loss = attsvm.get_loss(LOSS_NAMES[k % 3])
    low = rng.uniform(-4, 3)
    u = np.linspace(low, low + rng.uniform(0.1, 4), 200)
    M0, M1 = formula(loss.name, float(u[0]), float(u[-1]))
    value, slope = loss(u), loss.derivative(u)
    quotient = np.abs(np.diff(value) / np.diff(u)).max()
    bend = np.abs(np.diff(slope) / np.diff(u)).max()
    return float(np.diff(value).max() >= 0), bend - M0, quotient - M1


def _known_constants(name: str, low: float, high: float) -> tuple[float, float]:
    if name == "logistic":
        return 0.25, 1 / (1 + np.exp(low))
    return (float(np.exp(-low)), float(np.exp(-low))) if name == "exponential" else (0.0, 1.0)


def _cubic(centre: float, scale: float) -> Loss:
    def value(u: Any) -> Array:
        return np.asarray(-scale * (np.asarray(u) - centre) ** 3)

    def slope(u: Any) -> Array:
        return np.asarray(-3 * scale * (np.asarray(u) - centre) ** 2)

    def second(u: Any) -> Array:
        return np.asarray(-6 * scale * (np.asarray(u) - centre))

    return Loss("cubic", value, slope, second)


@each_case("<grad L(0), W_mm> < 0 with two tokens; half of the losses are shifted -u^3")
def _slope_used(formula: Any, rng: Rng, k: int) -> Any:
    """Hypothesis on the loss; conclusion <grad L(0), W_mm> < 0 (Lemma 10) on two-token problems, for which B holds."""
    p = attsvm.random_problem(1, 2, int(rng.integers(2, 5)), seed=seed_of(rng))
    scores = p.scores()[0]
    flat = _cubic(float(scores.mean()), rng.uniform(0.2, 3))  # the slope is 0 where attention is uniform
    loss = flat if k % 2 else attsvm.get_loss(LOSS_NAMES[k // 2 % 3])
    inner = float((gradient_at_zero(p, loss) * attsvm.att_svm(p).W).sum())
    return (formula(loss, float(scores.min()), float(scores.max())), inner < -1e-12)


def _strictly_decreasing(loss: Loss, low: float, high: float) -> bool:
    return bool((np.diff(loss(np.linspace(low, high, 1001))) < 0).all())


@each(0.05, f"|W_R / R - limit| at R = {RADII[-1]:g}")
def _path(formula: Any, rng: Rng, k: int) -> Any:
    """Distance of W_R / R from a predicted limit at the last radius."""
    p = attsvm.random_problem(2, 3, 3, seed=seed_of(rng), min_score_gap=0.1)
    path = attsvm.regularization_path(p, RADII, loss=LOSS_NAMES[k % 3], starts=2, seed=seed_of(rng))
    return np.linalg.norm(path.W[-1] / RADII[-1] - formula(p))


@each(0.05, f"distance from the limit at R = {RADII[-1]:g}")
def _kq_path(formula: Any, rng: Rng, k: int) -> Any:
    """Distance of a product of (K_R, Q_R), divided by R, from a predicted limit at the last radius."""
    product, limit = formula
    p = attsvm.random_problem(3, 4, 4, seed=seed_of(rng), min_score_gap=0.1)
    path = attsvm.regularization_path(p, RADII, "KQ", loss=LOSS_NAMES[k % 3], starts=4, seed=seed_of(rng))
    assert path.K is not None and path.Q is not None
    return np.linalg.norm(product(path.K[-1], path.Q[-1]) / RADII[-1] - limit(p))


def _frobenius(p: AttentionProblem) -> Array:
    return np.asarray(attsvm.att_svm(p).direction)


def _nuclear(p: AttentionProblem) -> Array:
    return np.asarray(attsvm.att_svm(p, norm="nuclear").direction)


def _wedge(low: float, high: float) -> Array:
    """Two rows r (in degrees) such that {a : a . r > 0 for both} is the wedge between two angles."""
    angles = np.radians([low + 90, high - 90])
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _no_rank_one(rng: Rng) -> AttentionProblem:
    """Feasible, but by no matrix of rank one; rotated and scaled.

    Queries e1, e2, e1 + e2 with labels +, +, - and v = e1. W z must lie in a wedge around +-v: the first two
    are wide, so that W e1 + W e2 can point along -v, but no line meets all three with matching signs.
    """
    U, V, eps = rotation(rng, 2), rotation(rng, 2), rng.uniform(2, 8)
    wedges = (
        _wedge(-eps, rng.uniform(115, 130)),
        _wedge(-rng.uniform(70, 80), eps),
        _wedge(180 - eps, 180 + eps),
    )
    tokens = [np.vstack([np.zeros(2), -rng.uniform(0.5, 2) * rows]) @ U.T for rows in wedges]
    queries = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]) @ V.T
    return make(np.stack(tokens), [1, 1, -1], queries, U[:, 0])


def _separable_by_rank_one(p: AttentionProblem) -> bool:
    """D = 2: some a b^T on a grid of directions separates the optimal tokens."""
    angles = np.arange(0, np.pi, np.pi / 720)
    a = np.stack([np.cos(angles), np.sin(angles)])
    b = np.hstack([a, -a])
    best = p.optimal_tokens().indices
    least = np.full((a.shape[1], b.shape[1]), np.inf)
    for x, z, t in zip(p.X, p.Z, best, strict=True):
        left, right = (x[t] - np.delete(x, t, axis=0)) @ a, z @ b
        least = np.minimum(least, np.where(right > 0, left.min(axis=0)[:, None], -left.max(axis=0)[:, None]))
    return bool((least > 0).any())


@each_case("d = 2, T = 3, n = 2 or 3, m = 1 or 2; half of the data have no separating matrix of rank 1")
def _rank_hypothesis(formula: Any, rng: Rng, k: int) -> Any:
    """Hypothesis on (problem, m); conclusion: some K Q^T with m columns separates the optimal tokens."""
    p = _no_rank_one(rng) if k % 2 else attsvm.random_problem(2 + k // 2 % 2, 3, 2, seed=seed_of(rng))
    m = 1 + int(k % 8 >= 4)
    separable = _separable_by_rank_one(p) if m == 1 else _is_feasible(p)
    return (formula(p, m), separable)


def _is_feasible(p: AttentionProblem) -> bool:
    return bool(attsvm.att_svm(p).status is Status.OPTIMAL)


@each(1e-6, "relative excess of C* over C_cvx")
def _lemma3(formula: Any, rng: Rng, k: int) -> Any:
    """Where a formula says that the limit m does not matter, the limited problem must have the convex value."""
    p = attsvm.random_problem(4, 4, 5, seed=seed_of(rng))
    convex = attsvm.att_svm(p, norm="nuclear")
    for m in range(1, 5):
        if formula(convex.rank, m):
            limited = attsvm.att_svm(p, norm="nuclear", rank=m)
            yield limited.norm / convex.norm - 1 if limited.status.has_solution else np.inf


@each(2e-6, "missing margin, or distance of |W|_* from the convex value, relative")
def _lemma3_set(formula: Any, rng: Rng, k: int) -> Any:
    """Rank-limited solutions whose value is the convex one: margins and nuclear norm, computed from W itself."""
    p = attsvm.random_problem(3, 4, 4, seed=seed_of(rng))
    convex = attsvm.att_svm(p, norm="nuclear")
    for m in (2, 3):
        limited = attsvm.att_svm(p, norm="nuclear", rank=m)
        if limited.status.has_solution and limited.norm <= convex.norm * (1 + 1e-6):
            best = p.optimal_tokens().indices
            margins = [(x[b] - np.delete(x, b, axis=0)) @ limited.W @ z for x, z, b in zip(p.X, p.Z, best, strict=True)]
            size = float(np.linalg.norm(limited.W, "nuc"))
            yield max(1 - float(np.min(margins)), abs(size / formula(convex.norm) - 1))


@each(1e-4, "relative difference from the least (|K|^2 + |Q|^2) / 2 found by SLSQP")
def _kq_svm(formula: Any, rng: Rng, k: int) -> Any:
    """Least (|K|^2 + |Q|^2) / 2 by a general solver from random starts against a formula in the problem."""
    from scipy.optimize import minimize

    n, d = 2, 3
    p = attsvm.random_problem(n, 3, d, seed=seed_of(rng))
    best = p.optimal_tokens().indices
    a = np.concatenate([x[b] - np.delete(x, b, axis=0) for x, b in zip(p.X, best, strict=True)])
    z = np.repeat(p.Z, 2, axis=0)

    def margins(theta: Array, a: Array = a, z: Array = z, d: int = d) -> Array:
        K, Q = theta.reshape(2, d, d)
        return np.asarray(((a @ K) * (z @ Q)).sum(axis=1) - 1)

    found = [
        minimize(
            lambda t: 0.5 * t @ t,
            rng.normal(size=2 * d * d),
            jac=lambda t: t,
            constraints={"type": "ineq", "fun": margins},
            options={"maxiter": 300},
        )
        for _ in range(3)
    ]
    least = min((f.fun for f in found if f.success), default=np.inf)
    return abs(least / formula(p) - 1)


@each(0.5, "certified unique or not, undecided ones left out; every fourth problem is degenerate")
def _generic(formula: Any, rng: Rng, k: int) -> Any:
    """Verdicts of the certificate of uniqueness against a predicted one: random data, and the degenerate example."""
    degenerate = k % 4 == 0
    if degenerate:
        X = np.stack([[rng.uniform(0.5, 2) * e, 0 * e] for e in np.eye(2)])
        p = make(X, [1, 1], np.eye(2), [1.0, 1.0])
    else:
        p = attsvm.random_problem(3, 3, 4, seed=seed_of(rng))
    found = attsvm.att_svm(p, norm="nuclear").result.uniqueness
    if found.verdict != "undecided":
        yield float((found.verdict == "unique") != formula(degenerate))


CHECKS = {
    "assA": Check(_constants, _known_constants, trials=300),
    "assA-slope": Check(
        _slope_used,
        _strictly_decreasing,
        lambda loss, low, high: check_loss(loss, low, high).verdict == "holds",
        trials=60,
    ),
    "thm2-W": Check(_path, _frobenius, trials=6),
    "cor1": Check(lambda formula, rng, trials: _path(lambda p: _frobenius(p) + formula, rng, trials), 0.0, trials=3),
    "thm2-KQ": Check(_kq_path, (lambda K, Q: K @ Q.T, _nuclear), trials=4),
    "cor2-order": Check(_kq_path, (lambda K, Q: Q @ K.T, _nuclear), (lambda K, Q: K @ Q.T, _nuclear), trials=2),
    "thm2-rank": Check(
        _rank_hypothesis,
        lambda p, m: _is_feasible(p),
        lambda p, m: _is_feasible(p) and (m >= min(p.n, p.dx) or np.linalg.matrix_rank(p.Z) == p.n),
        trials=40,
    ),
    "lemma3": Check(_lemma3, lambda rank, m: rank <= m, trials=12),
    "lemma3-set": Check(_lemma3_set, lambda value: value, trials=8),
    "kq-svm": Check(_kq_svm, lambda p: attsvm.att_svm(p, norm="nuclear").norm, trials=8),
    "star-generic": Check(_generic, lambda degenerate: not degenerate, trials=60),
}
