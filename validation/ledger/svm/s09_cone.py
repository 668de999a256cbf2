"""Section 5.4 and Appendix E: separating cones, local regularization paths, heads and sequences."""

from __future__ import annotations

from typing import Any

import numpy as np

import attsvm
from attsvm import AttentionProblem, ReluHead, attention
from attsvm.enumeration import solve_every_selection
from attsvm.theory.assumptions import check_support_sets, check_unique
from attsvm.validation.ledger.record import Check, Measurement, count, each, each_case, implication
from attsvm.validation.ledger.svm._common import Array, Rng, make, rotation, seed_of

__all__ = ["CHECKS"]


def _cone_value(formula: Any, rng: Rng, trials: int) -> Measurement:
    """How a formula gathers ``max_low min_high`` over sequences and queries, against the library's cone."""
    errors: list[float] = []
    while len(errors) < trials:
        p = attsvm.random_problem(2, 4, 4, seed=seed_of(rng), queries=3)
        cone = attsvm.separating_cone(p, rng.integers(4, size=(2, 3)))
        if not (cone.high.any(axis=-1) & cone.low.any(axis=-1)).all():
            continue
        W = rng.normal(size=(4, 4))
        h = attention.logits(p, W) / np.linalg.norm(W)
        best = np.where(cone.low, h, -np.inf).max(axis=-1) - np.where(cone.high, h, -np.inf).max(axis=-1)
        errors.append(abs(formula(best) - cone.value(W)))
    return count(errors, 1e-12, "difference from the largest eps of the cone, K = 3 queries")


def _empty_support(rng: Rng) -> tuple[AttentionProblem, Array]:
    """One dimension: the second sequence is selected with margin to spare, against its score."""
    c, e = rng.uniform(0.5, 2, size=2)
    X = [[[c], [0.0]], [[c * rng.uniform(1.5, 4)], [0.0]]]
    return make(X, [1, -1], [[e], [e]], [1.0]), np.array([0, 0])


def _selections(rng: Rng, trials: int) -> list[tuple[AttentionProblem, Any]]:
    """Random selections and the family without support tokens."""
    out = []
    for k in range(trials):
        if k % 6 == 0:
            p, alpha = _empty_support(rng)
        else:
            p = attsvm.random_problem(2, 4, (2, 3, 5)[k % 3], seed=seed_of(rng))
            table = solve_every_selection(p)
            chosen = table.indices[table.locally_optimal if k % 2 else table.feasible]
            if not len(chosen):
                continue
            alpha = chosen[int(rng.integers(len(chosen)))]
        out.append((p, attsvm.att_svm(p, alpha)))
    return out


def _is_local(p: AttentionProblem, s: Any) -> bool:
    return bool(attsvm.is_locally_optimal(p, s.selection, solution=s))


def _supported(p: AttentionProblem, s: Any) -> bool:
    return bool(check_support_sets(p, s.selection, s))


def _lemma5(inside: bool) -> Any:
    def measure(formula: Any, rng: Rng, trials: int) -> Measurement:
        cases = []
        for p, s in _selections(rng, trials):
            value = attsvm.separating_cone(p, s.selection).value(s.W)
            cases.append((formula(p, s), value > 1e-7 if inside else value <= 1e-7))
        return implication(cases, "SVM solutions " + ("inside" if inside else "outside") + " the cone")

    return measure


@each_case("20 random W in the cone of the optimal tokens for eps = 10; half of the data tied")
def _whole_space(formula: Any, rng: Rng, k: int) -> Any:
    p = attsvm.random_problem(2, 4, 3, seed=seed_of(rng))
    if k % 2:  # two best tokens of exactly equal score
        X = p.X.copy()
        X[0, :2, 2] = 3.0
        p = make(X, np.ones(2), p.Z, [0.0, 0.0, 1.0])
    cone = attsvm.separating_cone(p)
    return (formula(p), all(cone.contains(rng.normal(size=(3, 3)), eps=10.0) for _ in range(20)))


def _rival_selection(rng: Rng, queries: int, local: bool) -> tuple[AttentionProblem, Any]:
    """A feasible selection that is not optimal: locally optimal, or not."""
    while True:
        p = attsvm.random_problem(3 - queries, 4, 2 + queries, seed=seed_of(rng), queries=queries, min_score_gap=0.02)
        table = solve_every_selection(p)
        other = (table.indices != p.optimal_tokens().indices).reshape(len(table), -1).any(axis=1)
        found = table.indices[table.feasible & other & (table.locally_optimal == local)]
        if len(found):
            return p, found[int(rng.integers(len(found)))]


def _local_path(queries: int) -> Any:
    @each_case("|W_R/R - direction| < 0.1 at R = 200 |W_mm| on the local path")
    def measure(formula: Any, rng: Rng, k: int) -> Any:
        """Hypothesis on (problem, solution); conclusion: the local path nears the SVM solution."""
        if k % 4 == 0:
            p, alpha = _empty_support(rng)
        else:
            p, alpha = _rival_selection(rng, queries, local=k % 4 < 3)
        s = attsvm.att_svm(p, alpha)
        if not formula(p, s):
            return None
        path = attsvm.regularization_path(p, [20 * s.norm, 200 * s.norm], selection=alpha, solution=s)
        near = np.linalg.norm(path.W[-1] / (200 * s.norm) - s.direction)
        return (True, bool(near < 0.1))

    return measure


@each(1e-12, "score of a mixture over the bound; linear heads, and convex ones with Y = +1")
def _top_score(formula: Any, rng: Rng, k: int) -> Any:
    """Mixtures of lower-score tokens: Y h(x(s)) <= gamma_alpha - c (1 - s_alpha) with c from a formula."""
    p = attsvm.random_problem(1, 5, 4, seed=seed_of(rng))
    if k % 2:  # convex head, labels +1
        p = AttentionProblem(p.X, np.ones(1), p.Z, ReluHead(rng.normal(size=(4, 6))))
    scores = p.scores()[0]
    alpha = int(rng.integers(5))
    low = np.flatnonzero(scores < scores[alpha])
    if not len(low):
        return None
    members = np.append(low, alpha)
    s = rng.dirichlet(np.full(len(members), 0.5), size=50)
    mixed = np.array([p.Y[0] * float(p.head(w @ p.X[0][members])) for w in s])  # type: ignore[misc]
    bound = scores[alpha] - formula(scores[alpha], scores[low]) * (1 - s[:, -1])
    return float((mixed - bound).max())


@each(1e-9, "|K Q^T|_* above the budget, or budget of balanced factors off |W|_*")
def _factors(formula: Any, rng: Rng, k: int) -> Any:
    """A budget of (K, Q) must bound |K Q^T|_* and be attained by balanced factors of the same product."""
    d, m = int(rng.integers(2, 6)), int(rng.integers(1, 4))
    K, Q = rng.normal(size=(2, d, m)) * rng.uniform(0.2, 3, size=(2, 1, 1))
    W = K @ Q.T
    nuclear = np.linalg.norm(W, "nuc")
    U, sigma, Vt = np.linalg.svd(W)
    r = min(m, d)
    balanced = formula(U[:, :r] * np.sqrt(sigma[:r]), Vt[:r].T * np.sqrt(sigma[:r]))
    return max(nuclear - formula(K, Q), abs(balanced - nuclear)) / nuclear


@each(0.5, "relation of the budget used to R; half of the data have their minimum inside the ball")
def _budget_used(formula: Any, rng: Rng, k: int) -> Any:
    """The relation to R of the budget of a minimizer: the balanced factors of the product on the path."""
    c, e = rng.uniform(0.5, 2, size=2)
    X, Z = [[[c], [0.0]]], [[e]]
    if k % 2:  # two copies with opposite queries: the risk has its only minimum at W = 0
        X, Z = 2 * X, [[e], [-e]]
    p = make(X, np.ones(len(X)), Z, [1.0])
    R = float(rng.uniform(2, 20))
    path = attsvm.regularization_path(p, [R], "KQ", starts=2, seed=seed_of(rng))
    return float(not formula(np.linalg.norm(path.W[0], "nuc"), R))


@each_case("best Frobenius-norm matrices of rank <= m from 10 starts coincide; m = 1 and 2")
def _rank_limited_unique(formula: Any, rng: Rng, k: int) -> Any:
    """Hypothesis on (m, n, d); conclusion: all best rank-m matrices found from many starts are one matrix."""
    from scipy.optimize import minimize

    m = 1 + k % 2
    U, V, size = rotation(rng, 2), rotation(rng, 2), rng.uniform(0.5, 2, size=2)
    a, z = U.T * size[:, None], V.T  # W11 >= 1/size1 and W22 >= 1/size2, rotated

    def margins(theta: Array, a: Array = a, z: Array = z, m: int = m) -> Array:
        K, Q = theta.reshape(2, 2, m)
        return np.asarray(((a @ K) * (z @ Q)).sum(axis=1) - 1)

    def squared(theta: Array, m: int = m) -> float:
        K, Q = theta.reshape(2, 2, m)
        return float(np.square(K @ Q.T).sum())

    tries = [minimize(squared, rng.normal(size=4 * m), constraints={"type": "ineq", "fun": margins}) for _ in range(10)]
    done = [t for t in tries if t.success and margins(t.x).min() > -1e-6]
    least = min(t.fun for t in done)
    best = [t.x.reshape(2, 2, m) for t in done if t.fun < least * (1 + 1e-5)]
    matrices = [K @ Q.T for K, Q in best]
    spread = max(np.linalg.norm(A - matrices[0]) for A in matrices)
    return (formula(m, 2, 2), spread < 0.05 * np.linalg.norm(matrices[0]))


@each(1e-12, "difference of D exp(a) from the softmax")
def _inverse(formula: Any, rng: Rng, k: int) -> Any:
    """D_ik exp(a_t) must be the softmax."""
    a = rng.normal(size=5) * 3
    exact = np.exp(a - np.logaddexp.reduce(a))
    return np.abs(formula(a) * np.exp(a) - exact).max()


@each(1e-12, "difference from the risk (SERM-W) of the product, K = 3 queries")
def _sum_over_queries(formula: Any, rng: Rng, k: int) -> Any:
    """The risk of (K, Q) must be that of W = K Q^T."""
    p = attsvm.random_problem(2, 3, 4, seed=seed_of(rng), queries=3)
    W = rng.normal(size=(4, 4))
    losses = attsvm.logistic((attention.probabilities(p, W) * p.scores()).sum(axis=-1))
    return abs(formula(losses) - float(attention.risk(p, W)))


CHECKS = {
    "eq93": Check(_cone_value, lambda best: best[:, 0].min(), lambda best: best.min(), trials=30),
    "lemma5-inside": Check(_lemma5(True), _is_local, lambda p, s: _is_local(p, s) and _supported(p, s), trials=120),
    "lemma5-outside": Check(_lemma5(False), lambda p, s: not _is_local(p, s), trials=120),
    "lemma5-whole": Check(_whole_space, lambda p: bool(check_unique(p)), trials=60),
    "thm7": Check(_local_path(1), _is_local, lambda p, s: _is_local(p, s) and _supported(p, s), trials=12),
    "thm9": Check(_local_path(2), _is_local, lambda p, s: _is_local(p, s) and _supported(p, s), trials=8),
    "assE": Check(_top_score, lambda own, low: own - low.max(), trials=200),
    "lemma15": Check(_factors, lambda K, Q: 0.5 * (np.square(K).sum() + np.square(Q).sum()), trials=300),
    "lemma15-budget": Check(
        _budget_used, lambda used, R: abs(used - R) <= 1e-6 * R, lambda used, R: used <= R * (1 + 1e-6), trials=10
    ),
    "cor2-unique": Check(_rank_limited_unique, lambda m, n, d: True, lambda m, n, d: m >= min(n, d), trials=12),
    "appE-denominator": Check(_inverse, lambda a: np.exp(a).sum(), lambda a: 1 / np.exp(a).sum(), trials=50),
    "serm-KQ": Check(
        _sum_over_queries, lambda losses: losses[:, 0].mean(), lambda losses: losses.sum(axis=1).mean(), trials=30
    ),
}
