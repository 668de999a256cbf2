"""Exchanges of single rows: optimality by separate arithmetic for every soft margin, and what ends them early."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attsvm.solvers import MarginProblem, PairRows, solve
from attsvm.solvers.compiled import exchanges
from attsvm.solvers.compiled.exchanges import are_few, exchange_rows
from attsvm.solvers.deadline import within
from attsvm.solvers.penalty import Penalty, PenaltyBatch

KINDS = [(slack, loss) for slack in ("query", "row") for loss in ("hinge", "squared_hinge")]
# Rows may be missed by 3e-10 of the largest right-hand side, which multiplies the sum of the multipliers.
GAP = 1e-8


def gap_of(a, queries, owner, rhs, C, slack, loss, lam, W):
    """Relative gap of the primal value of W and the dual value of lam, by the definitions and dense features."""
    features = np.einsum("kd,ke->kde", a, queries[owner]).reshape(len(a), -1)
    short = np.maximum(rhs - features @ W.ravel(), 0.0)
    groups = np.arange(len(a)) if slack == "row" else owner
    worst, load = np.zeros(groups.max() + 1), np.zeros(groups.max() + 1)
    np.maximum.at(worst, groups, short)
    np.add.at(load, groups, lam)
    primal = 0.5 * np.sum(W**2) + C * np.sum(worst if loss == "hinge" else worst**2)
    dual = rhs @ lam - 0.5 * np.sum((lam @ features) ** 2) - (0.0 if loss == "hinge" else np.sum(load**2) / (4 * C))
    assert lam.min() >= 0.0 and (loss != "hinge" or load.max() <= C * (1 + 1e-12))
    return (primal - dual) / max(primal, 1e-300)


def random_rows(seed, m=60, q=8, dx=3, dz=4):
    rng = np.random.default_rng(seed)
    owner = np.sort(rng.integers(q, size=m))
    a, queries, W = rng.standard_normal((m, dx)), rng.standard_normal((q, dz)), rng.standard_normal((dx, dz))
    signs = np.sign(np.einsum("kd,de,ke->k", a, W, queries[owner])) * np.where(rng.random(m) < 0.1, -1.0, 1.0)
    return a * signs[:, None], queries, owner, np.ones(m)  # nine in ten can be met


@pytest.mark.parametrize(("slack", "loss"), KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_every_penalty_is_optimal(slack, loss, seed):
    a, queries, owner, rhs = random_rows(seed)
    C = np.geomspace(1e-3, 1e3, 13)
    done = exchange_rows(PairRows(a, queries, owner), rhs, PenaltyBatch(C, slack, loss))
    assert len(done.W) == len(C)
    for i, one in enumerate(C):
        assert gap_of(a, queries, owner, rhs, one, slack, loss, done.multipliers[i], done.W[i]) <= GAP


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6), m=st.integers(1, 25), q=st.integers(1, 5), shape=st.tuples(*2 * [st.integers(1, 3)]),
    kind=st.sampled_from(KINDS), copies=st.booleans(), zero=st.booleans(), C=st.floats(1e-3, 1e3),
)  # fmt: skip
def test_degenerate_rows_are_solved_or_left_out(seed, m, q, shape, kind, copies, zero, C):
    """Equal rows, rows of zeros, right-hand sides of any sign, small integers that tie: nothing false is returned."""
    rng = np.random.default_rng(seed)
    a, queries = rng.integers(-2, 3, (m, shape[0])).astype(float), rng.integers(-2, 3, (q, shape[1])).astype(float)
    owner, rhs = rng.integers(q, size=m), rng.integers(-1, 3, m).astype(float)
    a, owner = (a[rng.integers(m, size=m)], np.sort(owner)) if copies else (a, owner)
    a[0] *= not zero
    slack, loss = kind
    done = exchange_rows(PairRows(a, queries, owner), rhs, PenaltyBatch(np.array([C, 2 * C]), slack, loss))
    for i, lam in enumerate(done.multipliers):
        assert gap_of(a, queries, owner, rhs, C * 2**i, slack, loss, lam, done.W[i]) <= GAP


@pytest.mark.parametrize(("slack", "loss"), KINDS)
def test_a_start_leads_to_the_same_place(slack, loss):
    a, queries, owner, rhs = random_rows(5)
    rows, C = PairRows(a, queries, owner), np.array([0.3, 0.7])
    known = solve(MarginProblem(a, queries, owner).soft(0.3, slack, loss), solver="primal_dual")
    cold, warm = (exchange_rows(rows, rhs, PenaltyBatch(C, slack, loss), start) for start in (None, known.multipliers))
    np.testing.assert_allclose(cold.W, warm.W, atol=1e-7 * np.abs(cold.W).max())
    np.testing.assert_allclose(warm.W[0], known.W, atol=1e-3 * np.abs(known.W).max())
    assert warm.exchanges[0] < cold.exchanges[0]


def test_rows_in_any_order():
    a, queries, owner, rhs = random_rows(6)
    order = np.random.default_rng(0).permutation(len(a))
    C = PenaltyBatch(np.array([0.1, 1.0]))
    sorted_ones = exchange_rows(PairRows(a, queries, owner), rhs, C)
    mixed = exchange_rows(PairRows(a[order], queries, owner[order]), rhs[order], C)
    np.testing.assert_allclose(mixed.W, sorted_ones.W, atol=1e-7)  # the multipliers are not unique


def test_a_limit_and_a_deadline_leave_the_rest_out(monkeypatch):
    a, queries, owner, rhs = random_rows(7, m=600, q=60, dx=12, dz=12)
    rows, penalty = PairRows(a, queries, owner), PenaltyBatch(np.geomspace(0.01, 10.0, 40))
    assert len(within(1e-9, exchange_rows, rows, rhs, penalty).W) < 40
    monkeypatch.setattr(exchanges, "_EACH", 0)
    assert len(exchange_rows(rows, rhs, penalty).W) == 0


def test_sizes_that_are_taken():
    assert are_few(1800, 200, (16, 16), Penalty(1.0)) and not are_few(3600, 300, (64, 64), Penalty(1.0))
    assert not are_few(1800, 200, (16, 16), Penalty(1.0, "row", "squared_hinge"))
    assert not are_few(200_000, 200, (4, 4), Penalty(1.0))
