"""Section 4.1: when all tokens support, and landscapes without stationary points."""

from __future__ import annotations

from typing import Any

import numpy as np

import attsvm
from attsvm import AttentionProblem, LinearHead
from attsvm.rows import selection_rows
from attsvm.solvers import Status
from attsvm.theory.assumptions import check_equal_scores, gradient_at_zero
from attsvm.theory.support_assumptions import PUBLISHED_MARGIN, check_all_support, interpolating_multipliers
from attsvm.validation.ledger.record import Check, Measurement, count, each, each_case, implication
from attsvm.validation.ledger.svm._common import LOSS_NAMES, Array, Rng, batch_of, scaled, seed_of

__all__ = ["CHECKS", "exact_test", "proxy_test"]

_SIGN = 1e-9  # a multiplier above minus this, relative to the largest, counts as nonnegative


def exact_test(p: AttentionProblem) -> bool:
    """B.1 exactly: ``G^-1 1 >= 0``.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.validation.ledger.svm.s04_landscape import exact_test
    >>> exact_test(attsvm.random_problem(n=2, T=3, d=40, seed=0))
    True
    """
    multipliers, residual = interpolating_multipliers(selection_rows(p))
    return bool(residual <= 1e-6 and multipliers.min() >= -_SIGN * np.abs(multipliers).max())


def _checked(p: AttentionProblem) -> bool:
    return bool(check_all_support(attsvm.att_svm(p))[0])


def proxy_test(p: AttentionProblem) -> bool:
    """The published stand-in for B.1: average margin below 1.1.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.validation.ledger.svm.s04_landscape import proxy_test
    >>> proxy_test(attsvm.random_problem(n=5, T=5, d=15, seed=0))
    True
    """
    s = attsvm.att_svm(p)
    if s.status is not Status.OPTIMAL:
        return False
    return bool(s.rows.margin_problem.margins(s.W).mean() < PUBLISHED_MARGIN)


@each(0.5, "test differs from 'every token is a support token', four sizes")
def _all_support(formula: Any, rng: Rng, k: int) -> Any:
    """A test of B.1 against the support of the certified solution."""
    n, T, d = ((2, 3, 6), (2, 3, 20), (3, 3, 12), (4, 4, 12))[k % 4]
    p = attsvm.random_problem(n, T, d, seed=seed_of(rng))
    s = attsvm.att_svm(p)
    truth = s.status is Status.OPTIMAL and int(s.support.sum()) == n * (T - 1)
    return float(bool(formula(p)) != truth)


@each(0.5, "W_mm coincides with the matrix although B.1 fails, or not although it holds")
def _coincides(formula: Any, rng: Rng, k: int) -> Any:
    """W_mm must coincide with a formula's matrix exactly when all tokens support."""
    p = attsvm.random_problem(2, 3, (4, 20)[k % 2], seed=seed_of(rng))
    W = attsvm.att_svm(p).W
    same = np.linalg.norm(W - formula(p)) <= 1e-6 * np.linalg.norm(W)
    return float(same != exact_test(p))


def _interpolator(p: AttentionProblem) -> Array:
    """The minimum-norm matrix whose margins are all 1."""
    rows = selection_rows(p).margin_problem
    return np.asarray((np.linalg.pinv(rows.features()) @ np.ones(rows.m)).reshape(rows.shape))


def _posit(formula: Any, rng: Rng, trials: int) -> Measurement:
    """Cells (n, T): at the dimension of a formula B.1 must hold for at least half of the draws."""
    errors = []
    for n, T in ((5, 5), (8, 8), (10, 10)):
        d = int(np.ceil(formula(n, T)))
        held = sum(exact_test(attsvm.random_problem(n, T, d, seed=seed_of(rng))) for _ in range(trials))
        errors.append(1 - held / trials)
    return count(errors, 0.5, "share of draws without B.1 at that d, n = T = 5, 8, 10")


def _two_level(rng: Rng) -> AttentionProblem:
    """B.2: tokens of equal score but for one, feasible."""
    while True:
        p = attsvm.random_problem(3, 4, 4, seed=seed_of(rng))
        assert isinstance(p.head, LinearHead)
        v, X = p.head.v, p.X.copy()
        low = p.scores().min(axis=1) - 0.1
        best = p.optimal_tokens().indices
        for i in range(3):
            for t in set(range(4)) - {int(best[i])}:
                X[i, t] += (low[i] - p.scores()[i, t]) * p.Y[i] * v / (v @ v)
        q = AttentionProblem(X, p.Y, p.Z, p.head)
        if attsvm.att_svm(q).status is Status.OPTIMAL:
            return q


def _some_B(rng: Rng, k: int) -> AttentionProblem:
    if k % 3 == 0:
        return _two_level(rng)
    return attsvm.random_problem(3, 4, (4, 60)[k % 3 - 1], seed=seed_of(rng))  # B.1 hardly ever, B.1 mostly


def _has_B(p: AttentionProblem) -> bool:
    optimal = p.optimal_tokens()
    return exact_test(p) or bool(check_equal_scores(p, optimal))


def _feasible_B(p: AttentionProblem) -> bool:
    return _has_B(p) and attsvm.att_svm(p).status is Status.OPTIMAL


@each_case("<grad L(W), W_mm> < 0 at 40 random W; feasible data, losses with l' < 0")
def _lemma10(formula: Any, rng: Rng, k: int) -> Any:
    """Hypothesis on the problem; conclusion <grad L(W), W_mm> < 0 at 40 random W."""
    p, loss = _some_B(rng, k), LOSS_NAMES[k % 3]
    s = attsvm.att_svm(p)
    if s.status is not Status.OPTIMAL:
        return None
    W = rng.normal(size=(40, p.dx, p.dx)) * rng.uniform(0.1, 10, size=(40, 1, 1))
    gradient, _ = scaled(p.repeat(40), W, loss, np.tile(p.optimal_tokens().indices, (40, 1)))
    return (formula(p), ((gradient * s.W).sum(axis=(1, 2)) < 0).all())


@each(1e-12, "bound minus h^T S' gamma")
def _eq28(formula: Any, rng: Rng, k: int) -> Any:
    T = int(rng.integers(2, 6))
    h, g = rng.normal(size=(2, T))
    (h if k % 2 else g)[1:] = 0.0  # B.1: equal margins; B.2: equal scores
    h[0], g[0] = h[1:].max() + rng.uniform(0.1, 2), g[1:].max() + rng.uniform(0.1, 2)
    s = np.exp(rng.normal(size=T) * 3)
    s /= s.sum()
    bound = formula(g[0] - g[1:].max(), h[0] - h[1:].max(), s[0])
    return bound - (h @ (s * g) - (h @ s) * (g @ s))


def _opposed(rng: Rng, d: int) -> AttentionProblem:
    """Two copies of one sequence with opposite queries: no W selects the optimal token of both."""
    p = attsvm.random_problem(1, 2, d, seed=seed_of(rng))
    assert isinstance(p.head, LinearHead)
    scale = rng.uniform(0.5, 2)
    return AttentionProblem(np.tile(scale * p.X, (2, 1, 1)), np.tile(p.Y, 2), np.vstack([p.Z, -p.Z]), p.head)


def _thm3(formula: Any, rng: Rng, trials: int) -> Measurement:
    """Hypothesis on the problem; conclusions: grad L(0) is not 0, and |W| of plain descent still grows late."""
    problems = [_opposed(rng, 4) if k % 2 else attsvm.random_problem(2, 2, 4, seed=seed_of(rng)) for k in range(trials)]
    run = attsvm.train(
        batch_of(problems), steps=1500, optimizer="gd", seed=seed_of(rng), snapshots=[1000], loss="exponential"
    )
    growth = run.history.norm[-1] - run.history.norm[-2]
    cases = []
    for p, grown in zip(problems, growth, strict=True):
        size = np.linalg.norm(gradient_at_zero(p, attsvm.exponential))
        cases.append((formula(p), size > 1e-12 and grown > 1e-4))
    return implication(cases, "grad L(0) != 0 and |W(1500)| > |W(1000)| at eta = 1/L_W; half the data infeasible")


CHECKS = {
    "assB1": Check(_all_support, exact_test, trials=120),
    "sec41-wording": Check(_coincides, lambda p: attsvm.att_svm(p).W, _interpolator, trials=80),
    "sec41-posit": Check(
        _posit, lambda n, T: 4 * (T + n) * np.log(T + n), lambda n, T: 2 * T**2 * np.log(n * T), trials=12
    ),
    "fig5-proxy": Check(_all_support, proxy_test, _checked, trials=120),
    "lemma10": Check(_lemma10, _has_B, trials=60),
    "eq28": Check(_eq28, lambda g, h, s: g * h * s * (1 - s), trials=2000),
    "thm3": Check(_thm3, _has_B, _feasible_B, trials=20),
}
