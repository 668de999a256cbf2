"""Checks on attention as an SVM: local convergence, and which directions descent finds.

Lemmas 11 and 12 (Appendix C.2) say what the gradient does inside the cone of separating matrices, Section 5.1 and
Appendix D which tokens are locally optimal and when descent converges to them, Sections 5.1 to 5.3 and 9 where it
ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import attsvm
from attsvm import AttentionProblem, LinearHead, attention
from attsvm.enumeration import solve_every_selection
from attsvm.theory.assumptions import check_unique
from attsvm.theory.attraction import SATURATED
from attsvm.theory.support_assumptions import misses_optimal_support
from attsvm.validation.ledger.claim_record import Check, Measurement, count, each, each_case, implication
from attsvm.validation.ledger.svm_gradients import exact_test, proxy_test
from attsvm.validation.ledger.svm_instances import (
    LOSS_NAMES,
    Array,
    Rng,
    autograd,
    batch_of,
    cosine,
    feasible_problem,
    in_cone,
    make,
    margins,
    rotation,
    scaled,
    seed_of,
)


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


CHECKS_LEMMAS = {
    "eq34a": Check(_eq34a, lambda c, C, mu: (c * mu, C), trials=36),
    "eq34b": Check(
        _eq34b,
        lambda c, C, mu, theta, longest: c / C * theta / longest,
        lambda c, C, mu, theta, longest: c * mu / C * theta / longest,
        trials=60,
    ),
    "eq34c": Check(_eq34c, lambda longest, C: longest * C, trials=36),
    "lemma11-interval": Check(
        _interval, lambda p, A: (-A, A), lambda p, A: (float(p.scores().min()), float(p.scores().max())), trials=30
    ),
    "lemma11-rate": Check(_rate, lambda mu: 1 / mu, lambda mu: np.log(1 / mu) / mu, trials=8),
    "lemma12": Check(_lemma12, lambda p: attsvm.att_svm(p).W, trials=12),
    "eq43": Check(_eq43, lambda norm: 1.0, lambda norm: 1.0 / norm, trials=12),
}


def _least_norm(rows: Array) -> Array:
    """Least w with ``rows @ w >= 1`` by Lawson and Hanson's reduction to nonnegative least squares."""
    from scipy.optimize import nnls

    m, size = rows.shape
    E = np.vstack([rows.T, np.ones(m)])
    u, _ = nnls(E, np.append(np.zeros(size), 1.0))
    r = E @ u - np.append(np.zeros(size), 1.0)
    return np.asarray(-r[:-1] / r[-1])


def _definition(n: int, queries: int) -> Any:
    @each(0.5, f"differs from the library, {queries} queries per sequence; support by nonnegative least squares")
    def measure(formula: Any, rng: Rng, k: int) -> Any:
        """A rule on (scores of support tokens, own score) against the library, with the support from another solver."""
        p = attsvm.random_problem(n, 4, 5, seed=seed_of(rng), queries=queries)
        chosen = rng.integers(4, size=(n, queries))
        if not attsvm.att_svm(p, chosen).status.has_solution:
            return None
        Z, scores = p.Z.reshape(n, queries, 5), p.scores().reshape(n, -1, 4)
        places = [(i, q, [t for t in range(4) if t != chosen[i, q]]) for i, q in np.ndindex(n, queries)]
        f = np.array(
            [np.outer(p.X[i, chosen[i, q]] - p.X[i, t], Z[i, q]).ravel() for i, q, rest in places for t in rest]
        )
        gaps = (f @ _least_norm(f) - 1).reshape(-1, 3)
        local = True
        for (i, q, rest), gap in zip(places, gaps, strict=True):
            own = scores[i, min(q, scores.shape[1] - 1)]
            local &= bool(formula(own[rest][np.abs(gap) < 1e-7], own[chosen[i, q]]))
        return float(local != attsvm.is_locally_optimal(p, chosen))

    return measure


@each_case("optimal tokens are locally optimal; half of the data have two best tokens")
def _optimal_is_local(formula: Any, rng: Rng, k: int) -> Any:
    p = attsvm.random_problem(1, 3, 3, seed=seed_of(rng))
    if k % 2:  # a second token of exactly the same score, next to the first
        v = np.array([0.0, 0.0, 1.0])
        X = p.X.copy()
        X[0, 1, 2] = X[0, 0, 2] = 2.0
        p = make(X, [1], p.Z, v)
    return (formula(p), attsvm.is_locally_optimal(p))


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
    @each(1 + 1e-9, "bound over value in C_mu, mu of (63), R of (71)")
    def measure(formula: Any, rng: Rng, k: int) -> Any:
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
            return lower * mean / inner, inner / (upper * mean)
        if which == "b":
            return size / (formula(q.longest, high) * mean)
        return formula(low, high, 1 / q.norm, q.longest) * size * q.norm / inner

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


CHECKS_LOCAL = {
    "def2": Check(_definition(2, 1), lambda support, own: (support < own).all(), trials=90),
    "def4": Check(_definition(1, 2), lambda support, own: (support < own).all(), trials=40),
    "def2-opt": Check(_optimal_is_local, lambda p: True, lambda p: bool(check_unique(p)), trials=20),
    "lemma13-a": Check(_lemma13("a"), lambda c, C: (c, C), trials=12),
    "lemma13-b": Check(_lemma13("b"), lambda longest, C: longest * C, trials=12),
    "lemma13-c": Check(_lemma13("c"), lambda c, C, theta, longest: c / C * theta / longest, trials=12),
    "thm5-width": Check(_cone_width, lambda delta, A: (min(0.5, delta) / A) ** 2 / 8, trials=12),
    "thm5-limit": Check(_thm5, lambda p, alpha: attsvm.att_svm(p, alpha).W, trials=6),
    "eq66b": Check(
        _non_support,
        lambda T, R, delta, supports, own: T * np.exp(-R * delta) * supports.sum(),
        lambda T, R, delta, supports, own: (
            T * np.exp(-R * delta) * (supports.sum() if len(supports) else np.exp(-R) * own)
        ),
        trials=12,
    ),
    "lemma14": Check(_lemma14, lambda p, alpha: attsvm.att_svm(p, alpha).W, trials=12),
}


@each_case("no other selection is locally optimal; every selection solved")
def _assumption_D(formula: Any, rng: Rng, k: int) -> Any:
    """A rule on all solved selections; conclusion: none but the optimal one is locally optimal."""
    n, d = 2 + k % 2, (3, 5, 10, 20)[k // 2 % 4]
    p = attsvm.random_problem(n, 3, d, seed=seed_of(rng))
    table, best = solve_every_selection(p), p.optimal_tokens()
    other = (table.indices != best.indices).any(axis=1)
    return (formula(table, best), not (table.locally_optimal & other).any())


def _misses_some_support(table: Any, best: Any) -> bool:
    return not bool(misses_optimal_support(table, best).any())


def _conjecture(formula: Any, rng: Rng, trials: int) -> Measurement:
    """A rule on the problem; conclusion: random and adversarial starts converge to W_mm in direction."""
    errors: list[float] = []
    for d in (4, 12):  # the hypotheses are rare at d = 4, and common at d = 12
        problems, starts = [], []
        for p in attsvm.random_problem(2, 3, d, batch=trials, seed=seed_of(rng), min_score_gap=0.1):
            if not formula(p):
                continue
            others = solve_every_selection(p)
            rivals = others.feasible & (others.indices != p.optimal_tokens().indices).any(axis=1)
            order = np.argsort(~others.locally_optimal[rivals], kind="stable")  # the most tempting ones first
            for alpha in others.indices[rivals][order[:3]]:
                problems.append(p)
                starts.append(10 * attsvm.att_svm(p, alpha).W)
            problems.append(p)
            starts.append(rng.normal(size=(d, d)))
        if problems:
            # Some starts stay near the other selection for a thousand steps.
            run = attsvm.train(batch_of(problems), steps=3000, init=np.stack(starts), lr=0.5, snapshots=2)
            errors += [1 - float(cosine(W, attsvm.att_svm(p).W)) for W, p in zip(run.W, problems, strict=True)]
    if not errors:
        raise ValueError("no problem met the hypotheses; more trials are needed")
    return count(errors, 0.05, "1 - corr(W, W_mm) after 3,000 normalized steps of 0.5, adversarial and random starts")


def _hypotheses(p: AttentionProblem) -> bool:
    table = solve_every_selection(p)
    return bool(check_unique(p)) and exact_test(p) and _misses_some_support(table, p.optimal_tokens())


def _diverges(formula: Any, rng: Rng, trials: int) -> Measurement:
    """A series along plain descent that is said to diverge must grow between two late snapshots."""
    batch = attsvm.random_problem(2, 3, 20, batch=trials, seed=seed_of(rng))
    run = attsvm.train(batch, steps=200, optimizer="gd", snapshots=[80], seed=seed_of(rng))
    series = formula(run.history)
    return count(series[-2] / series[-1], 1 - 1e-4, "late value over last value, eta = 1/L_W, d = 20")


def _less_often(formula: Any, rng: Rng, trials: int) -> Measurement:
    """Figure 5 (n = T = 5): a test of B.1 must accept no more problems than descent solves globally.

    The difference of two shares of the same problems, less four standard errors of the pairs (error probability 3e-5).
    """
    errors = []
    for d in (3, 5, 8):
        p = attsvm.random_problem(5, 5, d, batch=trials, seed=seed_of(rng))
        run = attsvm.train(p, steps=300, lr=0.4, seed=seed_of(rng), snapshots=2)
        reached = (run.selection.indices == p.optimal_tokens().indices).all(axis=1)
        pairs = np.array([float(formula(q)) for q in p]) - reached
        errors.append(pairs.mean() - 4 * pairs.std() / trials**0.5)
    return count(errors, 0.0, "share with B.1 minus share of global convergence, less 4 standard errors; d = 3, 5, 8")


def _larger_margin(formula: Any, rng: Rng, trials: int) -> Measurement:
    """Share of the runs that end at another selection for which a relation of the margins holds."""
    p = attsvm.random_problem(8, 5, 5, batch=trials, seed=seed_of(rng))
    run = attsvm.train(p, steps=600, lr=0.3, seed=seed_of(rng), snapshots=2)
    local = (run.selection.indices != p.optimal_tokens().indices).any(axis=1)
    own, best = attsvm.att_svm(p, run.selection).margin, attsvm.att_svm(p).margin
    share = np.mean([formula(a, b) for a, b, other in zip(own, best, local, strict=True) if other])
    return count([1 - share], 0.25, "share of locally convergent runs without the relation; n = 8, T = d = 5")


def _grows_with_d(formula: Any, rng: Rng, trials: int) -> Measurement:
    shares = []
    for d in (3, 8, 20):
        p = attsvm.random_problem(5, 5, d, batch=trials, seed=seed_of(rng), min_score_gap=0.1)
        run = attsvm.train(p, steps=200, lr=0.5, seed=seed_of(rng), snapshots=2)
        shares.append((run.selection.indices == p.optimal_tokens().indices).all(axis=1).mean())
    return implication(
        [(True, formula(np.array(shares)))], f"global shares {np.round(shares, 2).tolist()} at d = 3, 8, 20"
    )


def _starts(formula: Any, rng: Rng, trials: int) -> Measurement:
    """Selections reached from many starts must be in a rule's list of the selections."""
    draws = attsvm.random_problem(3, 4, 5, batch=trials, seed=seed_of(rng), min_score_gap=0.1)
    run = attsvm.train(
        batch_of([p for p in draws for _ in range(8)]), steps=500, lr=0.5, seed=seed_of(rng), snapshots=2
    )
    saturated = run.history.log_rest[-1] < np.log(SATURATED)
    bad = []
    for k, p in enumerate(draws):
        table = solve_every_selection(p)
        listed = {tuple(row) for row in table.indices[formula(table)].tolist()}
        ends = run.selection.indices[8 * k : 8 * k + 8][saturated[8 * k : 8 * k + 8]]
        bad += [float(tuple(row) not in listed) for row in ends.tolist()]
    return count(bad, 0.5, "saturated ends of 8 starts per problem that are outside the list")


CHECKS_WORDING = {
    "assD": Check(_assumption_D, _misses_some_support, trials=48),
    "conjecture": Check(_conjecture, _hypotheses, trials=10),
    "sec52-norm": Check(
        _diverges, lambda history: np.exp(history.log_gradient), lambda history: history.norm, trials=8
    ),
    "sec52-often": Check(_less_often, proxy_test, trials=40),
    "fig7-list": Check(_starts, lambda table: table.locally_optimal, trials=8),
    "sec53-margin": Check(_larger_margin, lambda own, best: own > best, trials=40),
    "fig6-d": Check(_grows_with_d, lambda shares: bool((np.diff(shares) >= 0).all() and shares[-1] >= 0.9), trials=24),
}
