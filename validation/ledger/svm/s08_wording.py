"""Sections 5.1 to 5.3 and 9: which directions descent finds."""

from __future__ import annotations

from typing import Any

import numpy as np

import attsvm
from attsvm import AttentionProblem
from attsvm.enumeration import solve_every_selection
from attsvm.theory.assumptions import check_unique
from attsvm.theory.attraction import SATURATED
from attsvm.theory.support_assumptions import misses_optimal_support
from attsvm.validation.ledger.record import Check, Measurement, count, each_case, implication
from attsvm.validation.ledger.svm._common import Rng, batch_of, cosine, seed_of
from attsvm.validation.ledger.svm.s04_landscape import exact_test, proxy_test

__all__ = ["CHECKS"]


def _rival(rng: Rng) -> tuple[AttentionProblem, Any]:
    """A problem with feasible optimal tokens, and a locally optimal selection that is not optimal."""
    while True:
        p = attsvm.random_problem(3, 4, 4, seed=seed_of(rng), min_score_gap=0.05)
        table = solve_every_selection(p)
        other = (table.indices != p.optimal_tokens().indices).any(axis=1)
        if (table.locally_optimal & other).any() and table.feasible[~other].all():
            return p, table.indices[table.locally_optimal & other][0]


def _from_rivals(rng: Rng, trials: int, starts: int, steps: int) -> tuple[Any, Any]:
    """Runs from random starts and, for each problem, one far out along a rival locally optimal direction."""
    rivals = [_rival(rng) for _ in range(trials)]
    W = rng.uniform(-0.5, 0.5, size=(trials, starts, 4, 4))
    W[:, 0] = [1e5 * attsvm.att_svm(p, alpha).W for p, alpha in rivals]
    problems = batch_of([p for p, _ in rivals for _ in range(starts)])
    return problems, attsvm.train(problems, steps=steps, init=W.reshape(-1, 4, 4), lr=0.3, snapshots=2)


def _quantifier(formula: Any, rng: Rng, trials: int) -> Measurement:
    """Starts: seven random ones and one far out along the rival direction. A rule on how many reach the optimum."""
    problems, run = _from_rivals(rng, trials, 8, 800)
    reached = (run.selection.indices == problems.optimal_tokens().indices).all(axis=1).reshape(trials, 8)
    return implication(
        [(True, formula(row)) for row in reached], "what 8 starts reach where a rival locally optimal direction exists"
    )


def _independent(formula: Any, rng: Rng, trials: int) -> Measurement:
    """Pairs of starts of one problem that a rule says must share their direction; one start is along a rival."""
    _, run = _from_rivals(rng, trials, 5, 1200)
    ends, saturated = run.selection.indices, run.history.log_rest[-1] < np.log(1e-6)
    errors = []
    for i in range(len(ends)):
        for j in range(5 * (i // 5), i):  # starts of the same problem
            if saturated[i] and saturated[j] and formula(ends[i], ends[j]):
                errors.append(1 - float(cosine(run.W[i], run.W[j])))
    return count(errors, 0.02, "1 - corr between the ends of two starts of one problem, 1200 normalized steps")


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
            run = attsvm.train(batch_of(problems), steps=3000, init=np.stack(starts), lr=0.5, snapshots=2)
            errors += [1 - float(cosine(W, attsvm.att_svm(p).W)) for W, p in zip(run.W, problems, strict=True)]
    if not errors:
        raise ValueError("no problem met the hypotheses; more trials are needed")
    return count(errors, 0.05, "1 - corr(W, W_mm) after 3000 normalized steps of 0.5, adversarial and random starts")


def _hypotheses(p: AttentionProblem) -> bool:
    table = solve_every_selection(p)
    return bool(check_unique(p)) and exact_test(p) and _misses_some_support(table, p.optimal_tokens())


def _diverges(formula: Any, rng: Rng, trials: int) -> Measurement:
    """A series along plain descent that is said to diverge must grow between two late snapshots."""
    batch = attsvm.random_problem(2, 3, 20, batch=trials, seed=seed_of(rng))
    run = attsvm.train(batch, steps=500, optimizer="gd", snapshots=[150], seed=seed_of(rng))
    series = formula(run.history)
    return count(series[-2] / series[-1], 1 - 1e-4, "late value over last value, eta = 1/L_W, d = 20")


def _less_often(formula: Any, rng: Rng, trials: int) -> Measurement:
    """Figure 5 (n = T = 5): a test of B.1 must accept no more problems than descent solves globally.

    The difference of two shares of the same problems, less four standard errors of the pairs (error probability 3e-5).
    """
    errors = []
    for d in (3, 5, 8):
        p = attsvm.random_problem(5, 5, d, batch=trials, seed=seed_of(rng))
        run = attsvm.train(p, steps=600, lr=0.3, seed=seed_of(rng), snapshots=2)
        reached = (run.selection.indices == p.optimal_tokens().indices).all(axis=1)
        pairs = np.array([float(formula(q)) for q in p]) - reached
        errors.append(pairs.mean() - 4 * pairs.std() / trials**0.5)
    return count(errors, 0.0, "share with B.1 minus share of global convergence, less 4 standard errors; d = 3, 5, 8")


def _captures(formula: Any, rng: Rng, trials: int) -> Measurement:
    """A rule on the size; conclusion: the tokens selected at the end are locally optimal."""
    cases = []
    for d in (2, 5):
        if not formula(5, 5, d):
            continue
        p = attsvm.random_problem(5, 5, d, batch=trials, seed=seed_of(rng), min_score_gap=0.1)
        run = attsvm.train(p, steps=1200, lr=0.2, seed=seed_of(rng), snapshots=2)
        local = attsvm.is_locally_optimal(p, run.selection)
        cases += [(True, bool(ok)) for ok in local]
    return implication(cases, "tokens selected after 1200 normalized steps are locally optimal; n = T = 5, d = 2 and 5")


def _larger_margin(formula: Any, rng: Rng, trials: int) -> Measurement:
    """Share of the runs that end at another selection for which a relation of the margins holds."""
    p = attsvm.random_problem(8, 5, 5, batch=trials, seed=seed_of(rng))
    run = attsvm.train(p, steps=1000, lr=0.2, seed=seed_of(rng), snapshots=2)
    local = (run.selection.indices != p.optimal_tokens().indices).any(axis=1)
    own, best = attsvm.att_svm(p, run.selection).margin, attsvm.att_svm(p).margin
    share = np.mean([formula(a, b) for a, b, other in zip(own, best, local, strict=True) if other])
    return count([1 - share], 0.25, "share of locally convergent runs without the relation; n = 8, T = d = 5")


def _grows_with_d(formula: Any, rng: Rng, trials: int) -> Measurement:
    shares = []
    for d in (3, 8, 20):
        p = attsvm.random_problem(5, 5, d, batch=trials, seed=seed_of(rng), min_score_gap=0.1)
        run = attsvm.train(p, steps=500, lr=0.3, seed=seed_of(rng), snapshots=2)
        shares.append((run.selection.indices == p.optimal_tokens().indices).all(axis=1).mean())
    return implication(
        [(True, formula(np.array(shares)))], f"global shares {np.round(shares, 2).tolist()} at d = 3, 8, 20"
    )


def _starts(formula: Any, rng: Rng, trials: int) -> Measurement:
    """Selections reached from many starts must be in a rule's list of the selections."""
    draws = attsvm.random_problem(3, 4, 5, batch=trials, seed=seed_of(rng), min_score_gap=0.1)
    run = attsvm.train(
        batch_of([p for p in draws for _ in range(8)]), steps=1000, lr=0.3, seed=seed_of(rng), snapshots=2
    )
    saturated = run.history.log_rest[-1] < np.log(SATURATED)
    bad = []
    for k, p in enumerate(draws):
        table = solve_every_selection(p)
        listed = {tuple(row) for row in table.indices[formula(table)].tolist()}
        ends = run.selection.indices[8 * k : 8 * k + 8][saturated[8 * k : 8 * k + 8]]
        bad += [float(tuple(row) not in listed) for row in ends.tolist()]
    return count(bad, 0.5, "saturated ends of 8 starts per problem that are outside the list")


CHECKS = {
    "sec51-start": Check(_quantifier, lambda reached: not reached.any(), lambda reached: not reached.all(), trials=6),
    "sec9-start": Check(_independent, lambda a, b: True, lambda a, b: bool((a == b).all()), trials=8),
    "assD": Check(_assumption_D, _misses_some_support, trials=120),
    "conjecture": Check(_conjecture, _hypotheses, trials=10),
    "sec52-norm": Check(
        _diverges, lambda history: np.exp(history.log_gradient), lambda history: history.norm, trials=20
    ),
    "sec52-often": Check(_less_often, proxy_test, trials=40),
    "sec52-captures": Check(_captures, lambda n, T, d: True, lambda n, T, d: d >= max(T - 1, n), trials=40),
    "fig7-list": Check(_starts, lambda table: table.locally_optimal, trials=12),
    "sec53-margin": Check(_larger_margin, lambda own, best: own > best, trials=60),
    "fig6-d": Check(_grows_with_d, lambda shares: bool((np.diff(shares) >= 0).all() and shares[-1] >= 0.9), trials=40),
}
