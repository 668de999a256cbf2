"""Soft margins: every combination against cvxpy, against LinearSVC on explicit features, and at both ends of C."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attsvm.solvers import MarginProblem, Penalty, certify, solve

KINDS = [(slack, loss) for slack in ("query", "row") for loss in ("hinge", "squared_hinge")]


def drawn(seed: int, *, equality: bool = False, m: int | None = None) -> MarginProblem:
    rng = np.random.default_rng(seed)
    m = m or int(rng.integers(8, 40))
    q, dx, dz = int(rng.integers(1, 6)), int(rng.integers(1, 6)), int(rng.integers(1, 5))
    return MarginProblem(
        rng.standard_normal((m, dx)),
        rng.standard_normal((q, dz)),
        rng.integers(0, q, m),
        rhs=1.0 + rng.standard_normal(m),
        equality=rng.random(m) < 0.2 if equality else None,
    )


def objective(problem: MarginProblem, W: np.ndarray, norm: str) -> float:
    """The soft margin's value by separate arithmetic."""
    penalty = problem.penalty
    pair = problem.rows.gather(np.arange(problem.m))
    short = problem.rhs - np.array([a @ W @ pair.queries[k] for a, k in zip(pair.a, pair.owner, strict=True)])
    missed = np.where(problem.equality, np.abs(short), np.maximum(short, 0.0))
    if penalty.slack == "query":
        missed = np.array([missed[pair.owner == k].max(initial=0.0) for k in range(pair.q)])
    cost = penalty.C * (missed if penalty.loss == "hinge" else missed**2).sum()
    return cost + (0.5 * (W**2).sum() if norm == "frobenius" else np.linalg.norm(W, "nuc"))


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
@pytest.mark.parametrize(("slack", "loss"), KINDS)
@pytest.mark.parametrize(("seed", "C", "equality"), [(0, 0.03, False), (1, 1.0, True), (2, 20.0, False)])
def test_agrees_with_cvxpy(norm, slack, loss, seed, C, equality):
    soft = drawn(seed, equality=equality).soft(C, slack, loss)
    own, peer = solve(soft, norm), solve(soft, norm, "cvxpy")
    assert own.status == peer.status == "optimal"
    assert own.certificate.gap <= 1e-7
    assert own.certificate.primal_value == pytest.approx(peer.certificate.primal_value, rel=1e-7)
    assert own.certificate.primal_value == pytest.approx(objective(soft, own.W, norm), rel=1e-10)
    assert own.certificate.dual_value <= own.certificate.primal_value
    if norm == "frobenius":  # strictly convex: the same W
        np.testing.assert_allclose(own.W, peer.W, atol=1e-5 * max(1.0, np.abs(peer.W).max()))


@pytest.mark.parametrize(("slack", "loss"), KINDS)
def test_multipliers_are_admissible_and_explain_w(slack, loss):
    soft = drawn(3, m=60).soft(0.7, slack, loss)
    solved = solve(soft)
    lam, penalty = solved.multipliers, soft.penalty
    assert lam.min() >= 0
    np.testing.assert_allclose(soft.adjoint(lam), solved.W, atol=1e-7)
    loads = np.bincount(soft.owner, weights=lam) if slack == "query" else lam
    missed = np.maximum(soft.rhs - soft.margins(solved.W), 0.0)
    slacks = penalty.slacks(missed, soft.owner, soft.q)
    if loss == "hinge":
        assert loads.max() <= 0.7 * (1 + 1e-12)
        np.testing.assert_allclose(loads[slacks > 1e-6], 0.7, rtol=1e-6)
    else:
        np.testing.assert_allclose(loads, 2 * 0.7 * slacks, atol=1e-6)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(KINDS), power=st.floats(-3, 3), equality=st.booleans())
def test_certificate_closes(seed, kind, power, equality):
    solved = solve(drawn(seed, equality=equality).soft(10.0**power, *kind))
    assert solved.status == "optimal"
    assert solved.certificate.proved <= 1e-8


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(KINDS))
def test_any_admissible_pair_bounds_the_optimum(seed, kind):
    """Weak duality as certified: every W costs at least what any multipliers prove."""
    rng = np.random.default_rng(seed)
    soft = drawn(seed, equality=bool(seed % 2)).soft(0.5, *kind)
    best = solve(soft).certificate
    guess = certify(soft, rng.standard_normal(soft.shape), rng.random(soft.m) * rng.choice([0.1, 10.0]))
    assert guess.lower_bound <= best.primal_value * (1 + 1e-12)
    assert guess.primal_value >= best.lower_bound * (1 - 1e-12)


def test_large_c_is_the_hard_margin():
    rng = np.random.default_rng(4)
    rows = MarginProblem(rng.standard_normal((30, 6)), rng.standard_normal((5, 5)), np.repeat(np.arange(5), 6))
    for norm in ("frobenius", "nuclear"):
        hard = solve(rows, norm)
        assert hard.status == "optimal"
        for slack in ("query", "row"):
            assert solve(rows.soft(1e4, slack), norm).norm == pytest.approx(hard.norm, rel=1e-7)
        far, near = (solve(rows.soft(C, "row", "squared_hinge"), norm).norm for C in (1e3, 1e7))
        assert abs(near - hard.norm) < abs(far - hard.norm) and near == pytest.approx(hard.norm, rel=1e-4)


def test_linear_svc_on_explicit_features():
    svm = pytest.importorskip("sklearn.svm")
    rng = np.random.default_rng(5)
    rows = MarginProblem(rng.standard_normal((400, 6)), rng.standard_normal((40, 5)), rng.integers(0, 40, 400))
    own = solve(rows.soft(0.3, "row", "squared_hinge"))
    features = rows.features()
    both = np.concatenate([features, -features])  # LinearSVC wants two classes: every row twice, half the penalty
    peer = svm.LinearSVC(C=0.15, loss="squared_hinge", fit_intercept=False, dual=False, tol=1e-12, max_iter=10_000)
    peer.fit(both, np.r_[np.ones(400), -np.ones(400)])
    np.testing.assert_allclose(own.W.ravel(), peer.coef_.ravel(), atol=1e-6 * np.abs(own.W).max())


def test_a_zero_row_costs_what_it_asks():
    rows = MarginProblem([[0.0], [1.0]], [[1.0]], [0, 0], rhs=[2.0, 1.0])
    assert solve(rows).status == "infeasible"
    solved = solve(rows.soft(3.0, "row"))
    assert solved.certificate.primal_value == pytest.approx(6.5)


def test_small_c_gives_zero_in_the_nuclear_norm():
    rows = drawn(6, m=30)
    solved = solve(rows.soft(1e-3), "nuclear")
    assert solved.status == "optimal" and np.abs(solved.W).max() == 0.0
    assert solved.certificate.rank == 0


@pytest.mark.parametrize("C", [0, -1.0, np.inf, np.nan, "1", True])
def test_bad_penalty(C):
    with pytest.raises(ValueError, match="C must be None"):
        drawn(0).soft(C)


def test_bad_words():
    with pytest.raises(ValueError, match="slack must be one of"):
        drawn(0).soft(1.0, "token")
    with pytest.raises(ValueError, match="loss must be one of"):
        drawn(0).soft(1.0, "row", "huber")
    with pytest.raises(ValueError, match="does not support norm 'frobenius' with a soft margin"):
        solve(drawn(0).soft(1.0), solver="working_set")
    with pytest.raises(ValueError, match="soft margin"):
        solve(drawn(0).soft(1.0), "nuclear", rank=1)
    with pytest.raises(ValueError, match="hard margins"):
        solve(drawn(0).soft(1.0)).certificate.exact()


def test_penalty_is_kept_by_parts_of_a_problem():
    rows = drawn(0).soft(2.0, "row")
    assert rows.gather([0, 1]).penalty == Penalty(2.0, "row")
    assert rows.soft(None).penalty is None


@pytest.mark.parametrize("norm", ["spectral", "l1", "linf", "l1.5", "l3"])
@pytest.mark.parametrize("slack", ["query", "row"])
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_a_small_penalty_ends_at_zero_before_the_first_step(norm, slack, loss):
    solved = solve(drawn(6, m=30).soft(1e-4, slack, loss), norm)
    assert solved.status == "optimal" and not solved.W.any() and solved.iterations == 0


@pytest.mark.parametrize("norm", ["spectral", "l1", "linf", "l1.5", "l3"])
def test_zero_is_claimed_only_where_it_is_best(norm):
    rows = drawn(6, m=30)
    found = [solve(rows.soft(C), norm) for C in np.geomspace(1e-3, 1.0, 12)]
    assert all(one.status == "optimal" for one in found)
    zero = [not one.W.any() for one in found]
    assert zero == sorted(zero, reverse=True) and zero[0] and not zero[-1]


@pytest.mark.parametrize("norm", ["frobenius", "nuclear", "l1", "l1.5"])
@pytest.mark.parametrize("slack", ["query", "row"])
@pytest.mark.parametrize("C", [1e4, 1e6])
def test_large_penalties_of_large_rows_are_proved(norm, slack, C):
    rng = np.random.default_rng(5)
    rows = MarginProblem(30.0 * rng.normal(size=(20, 8)), rng.normal(size=(5, 8)), np.repeat(np.arange(5), 4))
    solved = solve(rows.soft(C, slack), norm)
    assert solved.status == "optimal"
    # The exact objective, in fractions, is no larger than what the certificate claims.
    exact = sum((Fraction(x) ** 2 for x in solved.W.ravel().tolist()), Fraction(0)) / 2
    if norm == "frobenius":
        missed = _exact_slacks(rows, solved.W, slack)
        claimed = Fraction(solved.certificate.lower_bound) * (1 + Fraction(solved.certificate.proved) * 2)
        assert exact + Fraction(C) * sum(missed, Fraction(0)) <= claimed


def test_a_penalty_that_no_multiplier_reaches_is_the_hard_margin_where_interior_point_steps_stall():
    """100 rows of norm 30 in the l_1.5 norm, C = 1e6: the method in C and cvxpy end at gaps of 1e-4 to 1e-3."""
    rng = np.random.default_rng(0)
    X, Z = rng.normal(size=(10, 11, 10)), rng.normal(size=(10, 10))
    a = (X[:, :1] - X[:, 1:]).reshape(100, 10)
    rows = MarginProblem(30.0 * a, Z, np.repeat(np.arange(10), 10))
    hard, soft = solve(rows, "l1.5"), solve(rows.soft(1e6, "row"), "l1.5")
    assert hard.status == soft.status == "optimal" and soft.multipliers.max() < 1e6
    assert soft.certificate.primal_value == pytest.approx(hard.norm, rel=3e-7)


def _exact_slacks(rows: MarginProblem, W: np.ndarray, slack: str) -> list[Fraction]:
    pair, matrix = rows.pairs(), [[Fraction(x) for x in row] for row in W.tolist()]
    worst: dict[int, Fraction] = {}
    for k, j in enumerate(pair.owner.tolist()):
        a, b = pair.a[k].tolist(), pair.queries[j].tolist()
        value = sum(Fraction(x) * matrix[r][c] * Fraction(y) for r, x in enumerate(a) for c, y in enumerate(b))
        place = j if slack == "query" else k
        worst[place] = max(worst.get(place, Fraction(0)), 1 - value)
    return list(worst.values())
