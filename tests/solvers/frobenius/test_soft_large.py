"""Soft margins of many rows: optimality by separate arithmetic for all four kinds, starts, limits and options."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import attsvm
from attsvm.selection_rows import selection_rows
from attsvm.solvers import MarginProblem, PairRows, Penalty, solve
from attsvm.solvers.compiled.descent import DualDescent
from attsvm.solvers.frobenius import soft_large
from attsvm.solvers.frobenius.entries import soft_interior
from attsvm.solvers.frobenius.soft_large import SoftMemory
from attsvm.solvers.memory import MemoryLimitError
from kkt import dense_rows

KINDS = list(itertools.product(("query", "row"), ("hinge", "squared_hinge")))
# Gap that every solve below must prove, and what optimality conditions may then miss: violations enter the gap to first
# order, distances of W to second.
GOAL, CONDITIONS = 1e-9, 1e-4


def value(solution):
    return solution.certificate.primal_value


def noisy_rows(n=30, T=6, d=4, dz=5, seed=0):
    """Rows that no W satisfies: a planted W chose the first vector, except where it did not."""
    rng = np.random.default_rng(seed)
    X, Z, W = rng.standard_normal((n, T, d)), rng.standard_normal((n, dz)), rng.standard_normal((d, dz))
    best = np.einsum("ntd,de,ne->nt", X, W, Z).argmax(axis=1)
    chosen = np.where(rng.random(n) < 0.2, rng.integers(0, T, n), best)
    a = [X[i, chosen[i]] - X[i, t] for i in range(n) for t in range(T) if t != chosen[i]]
    return np.array(a), Z, np.repeat(np.arange(n), T - 1)


def families():
    """Problems by name: the usual rows, and what is unusual about rows."""
    a, Z, owner = noisy_rows()
    rng = np.random.default_rng(1)
    m = len(a)
    yield "usual", MarginProblem(a, Z, owner)
    yield "duplicates", MarginProblem(np.repeat(a, 2, axis=0), Z, np.repeat(owner, 2))
    zero = a.copy()
    zero[::7] = 0.0
    yield "zero rows", MarginProblem(zero, Z, owner)
    whole = np.round(a)  # ties: many rows have equal values
    yield "ties", MarginProblem(whole, np.round(Z), owner)
    equality = rng.random(m) < 0.3
    yield "equalities", MarginProblem(a, Z, owner, np.where(equality, rng.standard_normal(m), 1.0), equality)
    shuffled = rng.permutation(m)
    yield "any order", MarginProblem(a[shuffled], Z, owner[shuffled], rng.standard_normal(m))
    yield "prior", MarginProblem(a, Z, owner).around(rng.standard_normal((a.shape[1], Z.shape[1])))
    lone = np.r_[owner, 30]  # a query without rows stands between
    yield "empty query", MarginProblem(np.r_[a, a[:1]], np.r_[Z, Z[:1], Z[:1]], np.where(lone == 30, 31, lone))


FAMILIES = dict(families())


def assert_soft_optimal(problem, W, lam, tolerance=CONDITIONS):
    """Stationarity, admissible multipliers and complementarity of a soft margin, from dense rows."""
    penalty, rhs, equality = problem.penalty, problem.rhs, problem.equality
    F = dense_rows(problem)
    size = max(1.0, float(np.abs(lam).max()))
    np.testing.assert_allclose(W.ravel(), F.T @ lam, atol=tolerance * max(1.0, float(np.abs(W).max())))
    assert (lam[~equality] >= 0.0).all()
    short = rhs - F @ W.ravel()
    missed = np.where(equality, np.abs(short), np.maximum(short, 0.0))
    signed = np.where(equality, np.sign(lam) * short, short)  # what the row's multiplier pulls at
    for query in np.unique(problem.owner):
        mine = np.flatnonzero(problem.owner == query)
        for group in [mine] if penalty.slack == "query" else mine[:, None]:
            xi, load = float(missed[group].max()), float(np.abs(lam[group]).sum())
            if penalty.loss == "hinge":
                assert load <= penalty.C * (1.0 + 1e-9)
                assert (penalty.C - load) * xi <= tolerance * penalty.C
            else:
                assert abs(load - 2.0 * penalty.C * xi) <= tolerance * max(1.0, penalty.C)
            assert (np.abs(lam[group]) * np.abs(signed[group] - xi)).max() <= tolerance * size


@pytest.mark.parametrize(("slack", "loss"), KINDS)
@pytest.mark.parametrize("name", sorted(FAMILIES))
@pytest.mark.parametrize("C", [0.05, 20.0])
def test_is_optimal(name, slack, loss, C):
    problem = FAMILIES[name].soft(C, slack, loss)
    found = solve(problem, solver="soft_large", tolerance=GOAL)
    assert found.status == "optimal"
    assert found.certificate.proved <= GOAL
    assert_soft_optimal(problem, found.W, found.multipliers)


@pytest.mark.parametrize(("slack", "loss"), KINDS)
def test_agrees_with_cvxpy(slack, loss):
    for name in ("equalities", "any order"):
        problem = FAMILIES[name].soft(0.7, slack, loss)
        own, reference = solve(problem, solver="soft_large"), solve(problem, solver="cvxpy")
        # CLARABEL's own accuracy
        assert value(own) == pytest.approx(value(reference), rel=1e-6)


def test_forty_two_rows_that_tie_at_every_bound():
    problem = attsvm.random_problem(n=6, T=8, d=10, seed=3)
    found = attsvm.att_svm(problem, C=0.1, solver="soft_large")
    assert found.status == "optimal"


@pytest.mark.parametrize(("slack", "loss"), KINDS)
def test_each_method_alone_is_optimal(monkeypatch, slack, loss):
    """What estimated costs choose between after the first sweeps, one at a time."""
    a, Z, owner = noisy_rows(n=60, seed=2)
    problem = MarginProblem(a, Z, owner).soft(5.0, slack, loss)
    known = value(solve(problem, solver="soft_large", tolerance=GOAL))
    costs = ("_newton_cost", "_interior_cost")
    for kept in costs:
        with monkeypatch.context() as patch:
            for name in costs:
                patch.setattr(soft_large._SoftSolve, name, lambda self, e=0.0 if name == kept else np.inf: e)
            found = solve(problem, solver="soft_large", tolerance=GOAL)
        assert found.extras.factorizations > 0
        assert found.certificate.proved <= GOAL
        assert value(found) == pytest.approx(known, rel=2 * GOAL)


@pytest.mark.parametrize(("slack", "loss"), KINDS)
def test_interior_point_on_entries(slack, loss):
    a, Z, owner = noisy_rows(n=80, seed=3)
    problem = MarginProblem(a, Z, owner).soft(2.0, slack, loss)
    lam, W, steps = soft_interior(PairRows(a, Z, owner), problem.rhs, problem.penalty, 1e-10, 60)
    assert steps < 60
    assert_soft_optimal(problem, W, lam)


@pytest.mark.parametrize(("slack", "loss"), KINDS)
def test_sweeps_never_lower_the_dual(slack, loss):
    a, Z, owner = noisy_rows(seed=4)
    penalty = Penalty(3.0, slack, loss)
    descent = DualDescent(PairRows(a, Z, owner), np.ones(len(a)), penalty, np.zeros(len(a)))
    values = [0.0]
    for _ in range(20):
        descent.sweep(1)
        lam = descent.lam
        W = sum(x * np.outer(p, Z[j]) for x, p, j in zip(lam, a, owner, strict=True))
        np.testing.assert_allclose(descent.W, W, atol=1e-12 * max(1.0, float(np.abs(W).max())))
        loads = np.bincount(owner, lam) if slack == "query" else lam
        assert (lam >= 0).all()
        assert loss != "hinge" or (loads <= 3.0 * (1 + 1e-12)).all()
        values.append(lam.sum() - 0.5 * (W**2).sum() - (0.0 if loss == "hinge" else (loads**2).sum() / 12.0))
    assert (np.diff(values) >= -1e-12 * abs(values[-1])).all()
    assert values[-1] > values[1]


def sweeps_to(rows, rhs, penalty, gap, combined):
    """Sweeps until the relative gap, measured on dense rows, is at most ``gap``."""
    descent = DualDescent(rows, rhs, penalty, np.zeros(rows.m))
    features = dense_rows(MarginProblem.from_rows(rows))
    groups = rows.owner if penalty.slack == "query" else np.arange(rows.m)
    for sweeps in range(1, 400):
        if not combined:
            descent._kept[:] = 0  # forgets the iterates that a combined step is made of
        descent.sweep(1)
        lam = descent.lam  # the rows are sorted by query, so in the same order
        W, short = lam @ features, np.zeros(groups.max() + 1)
        np.maximum.at(short, groups, rhs - features @ W)
        load, hinge = np.bincount(groups, lam), penalty.loss == "hinge"
        primal = 0.5 * W @ W + penalty.C * (short if hinge else short**2).sum()
        dual = rhs @ lam - 0.5 * W @ W - (0.0 if hinge else (load**2).sum() / (4 * penalty.C))
        if primal - dual <= gap * primal:
            return sweeps
    return 400


@pytest.mark.parametrize(("slack", "loss"), KINDS)
def test_combined_steps_save_sweeps_and_reach_every_gap(slack, loss):
    a, Z, owner = noisy_rows(n=40, T=6, d=12, dz=12, seed=2)
    rows, rhs, penalty = PairRows(a, Z, owner), np.ones(len(a)), Penalty(2.0, slack, loss)
    combined, plain = (sweeps_to(rows, rhs, penalty, 1e-9, combined) for combined in (True, False))
    assert combined < plain < 400, (combined, plain)
    assert sweeps_to(rows, rhs, penalty, 1e-12, True) < 400  # rounding of combinations does not stop the descent


@pytest.mark.parametrize(("slack", "loss"), KINDS)
def test_a_warm_start_saves_sweeps(slack, loss):
    problem = FAMILIES["usual"].soft(1.0, slack, loss)
    cold = solve(problem, solver="soft_large", tolerance=GOAL)
    again = solve(problem, solver="soft_large", tolerance=GOAL, warm_start=cold)
    assert again.iterations == 0
    assert again.certificate.proved <= GOAL
    near = FAMILIES["usual"].soft(1.1, slack, loss)
    warm = solve(near, solver="soft_large", tolerance=GOAL, warm_start=cold.multipliers)
    assert value(warm) == pytest.approx(value(solve(near, solver="soft_large", tolerance=GOAL)), rel=2 * GOAL)
    # Multipliers beyond the new bounds are cut first.
    less = solve(FAMILIES["usual"].soft(0.1, slack, loss), solver="soft_large", tolerance=GOAL, warm_start=cold)
    assert less.certificate.proved <= GOAL


@pytest.mark.parametrize(("slack", "loss"), KINDS)
@pytest.mark.parametrize("name", ["usual", "equalities"])
def test_a_working_set_where_rows_do_not_fit(monkeypatch, name, slack, loss):
    problem = FAMILIES[name].soft(1.0, slack, loss)
    known = solve(problem, solver="soft_large", tolerance=GOAL)
    monkeypatch.setattr(soft_large, "_FIRST_ROWS", 1)
    monkeypatch.setattr(soft_large, "plan_memory", lambda problem, limit: SoftMemory(problem.m - 5, 1e7))
    found = solve(problem, solver="soft_large", tolerance=GOAL)
    assert found.certificate.proved <= GOAL
    assert found.extras.working_rows < len(found.multipliers) + np.count_nonzero(problem.equality)
    assert value(found) == pytest.approx(value(known), rel=2 * GOAL)


@pytest.mark.parametrize(("slack", "loss"), KINDS)
def test_shared_rows(slack, loss):
    problem = _multi_query()
    shared = selection_rows(problem, shared=True).margin_problem.soft(0.5, slack, loss)
    written = selection_rows(problem, shared=False).margin_problem.soft(0.5, slack, loss)
    one, other = (solve(rows, solver="soft_large", tolerance=GOAL) for rows in (shared, written))
    assert one.certificate.proved <= GOAL
    assert value(one) == pytest.approx(value(other), rel=2 * GOAL)


def _multi_query():
    rng = np.random.default_rng(5)
    X = rng.standard_normal((4, 7, 4))
    Z = rng.standard_normal((4, 5, 3))
    return attsvm.AttentionProblem(X, np.ones((4, 5)), Z, head=attsvm.LinearHead(np.ones(4)))


def test_limits_are_kept():
    problem = FAMILIES["usual"].soft(100.0)
    short = solve(problem, solver="soft_large", max_iterations=3)
    assert short.iterations <= 3
    assert short.status == "inaccurate"
    assert np.isfinite(short.certificate.gap)
    timed = solve(problem, solver="soft_large", time_limit=1e-6)
    assert timed.status == "inaccurate"
    assert timed.iterations == 0
    with pytest.raises(MemoryLimitError, match="memory_limit"):
        solve(problem, solver="soft_large", memory_limit=100.0)


def test_progress_is_told_after_every_look():
    told = []
    found = solve(FAMILIES["usual"].soft(1.0), solver="soft_large", progress=told.append)
    assert [entry.round for entry in told] == list(range(1, len(told) + 1))
    assert told[-1].rows == FAMILIES["usual"].m
    assert told[-1].norm == pytest.approx(found.norm, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"time_limit": -1.0}, ValueError),
        ({"time_limit": "long"}, ValueError),
        ({"memory_limit": 0}, ValueError),
        ({"sweeps": 3}, TypeError),
        ({"warm_start": np.ones(3)}, ValueError),
    ],
)
def test_bad_options_are_refused(options, error):
    with pytest.raises(error, match=next(iter(options))):
        solve(FAMILIES["usual"].soft(1.0), solver="soft_large", **options)


def test_crammer_singer_equals_liblinear():
    datasets, svm = pytest.importorskip("sklearn.datasets"), pytest.importorskip("sklearn.svm")
    X, y = datasets.load_digits(n_class=4, return_X_y=True)
    X = X[:200] / 16.0
    y = y[:200]
    tokens = np.broadcast_to(np.eye(4), (200, 4, 4)).copy()
    problem = attsvm.AttentionProblem(tokens, np.ones(200), X, head=attsvm.LinearHead(np.ones(4)))
    found = attsvm.att_svm(problem, selection=y, C=1.0, solver="soft_large")
    known = svm.LinearSVC(multi_class="crammer_singer", fit_intercept=False, C=1.0, tol=1e-10, max_iter=10**6).fit(X, y)
    assert found.status == "optimal"
    np.testing.assert_allclose(found.W, known.coef_, atol=1e-4)  # of the size 1; LIBLINEAR stops by violations
