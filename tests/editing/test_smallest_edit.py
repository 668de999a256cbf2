"""The smallest change of a head: what it asks, what it keeps, what it says."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import attsvm
from attsvm.trained_head import TrainedHead


def _head(seed=0, d=8, d_head=4, biased=True):
    rng = np.random.default_rng(seed)
    biases = (rng.normal(size=d_head), rng.normal(size=d_head)) if biased else (None, None)
    return TrainedHead.from_weights(rng.normal(size=(d_head, d)), rng.normal(size=(d_head, d)), *biases)


def _problem(head, n=6, T=5, seed=1):
    rng = np.random.default_rng(seed)
    d = head.key_map.shape[1] - head.biased
    return attsvm.AttentionProblem(head.extend(rng.normal(size=(n, T, d))), Z=head.extend(rng.normal(size=(n, d))))


def _wanted(head, problem, count):
    """The second choice of the first queries, nothing of the others."""
    order = np.argsort(-attsvm.attention.logits(problem, head.W), axis=-1)
    wanted = np.full(problem.n, -1)
    wanted[:count] = order[:count, 1]
    return wanted


def _by_cvxpy(head, problem, wanted, of, norm):
    """The same edit, written from the formula alone."""
    K, Q, scale = head.key_map, head.query_map, head.scale
    D = cp.Variable({"W": head.W, "K": K, "Q": Q}[of].shape)
    rows = []
    for i, chosen in enumerate(wanted):
        if chosen < 0:
            continue
        for t in range(problem.T):
            if t != chosen:
                a, z = problem.X[i, chosen] - problem.X[i, t], problem.Z[i]
                value = {
                    "W": lambda a=a, z=z: a @ (head.W + D) @ z,
                    "K": lambda a=a, z=z: scale * ((K + D) @ a) @ (Q @ z),
                    "Q": lambda a=a, z=z: scale * (K @ a) @ ((Q + D) @ z),
                }[of]()
                rows.append(value >= 1)
    size = cp.sum_squares(D) if norm == "frobenius" else cp.normNuc(D)
    found = cp.Problem(cp.Minimize(size), rows)
    found.solve(solver="CLARABEL", tol_gap_abs=1e-10, tol_gap_rel=1e-10)
    return np.sqrt(found.value) if norm == "frobenius" else found.value


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
@pytest.mark.parametrize("of", ["W", "K", "Q"])
def test_the_edit_is_the_smallest_one(of, norm):
    head = _head()
    problem = _problem(head)
    wanted = _wanted(head, problem, 3)
    found = attsvm.edit(head, problem, wanted, of=of, norm=norm)
    assert found.status == "optimal" and found.certificate.gap < 1e-8
    assert found.norm == pytest.approx(_by_cvxpy(head, problem, wanted, of, norm), rel=1e-7)
    np.testing.assert_array_equal(found.selected(problem)[:3], wanted[:3])
    assert found.violation <= 1e-9
    assert found.head.W == pytest.approx(found.W, abs=1e-12)
    B, A = found.factors
    np.testing.assert_allclose(B @ A, found.change, atol=1e-7 * np.abs(found.change).max())
    if norm == "nuclear":
        assert found.rank == found.certificate.rank == B.shape[1]
    base = {"W": head.W, "K": head.key_map, "Q": head.query_map}[of]
    assert found.relative_frobenius == pytest.approx(np.linalg.norm(found.change) / np.linalg.norm(base))
    assert found.relative_norm == pytest.approx(
        found.norm / np.linalg.norm(base, "fro" if norm == "frobenius" else "nuc")
    )
    if of != "W":
        assert found.head.d_head == head.d_head
    if of == "K":  # a constant in all keys moves no selection: the bias stays
        np.testing.assert_array_equal(found.change[:, -1], 0.0)


def test_driving_rows_are_those_with_a_multiplier():
    head = _head()
    problem = _problem(head)
    wanted = _wanted(head, problem, 2)
    found = attsvm.edit(head, problem, wanted)
    assert 0 < len(found.driving) <= 8
    multipliers = [row.multiplier for row in found.driving]
    assert multipliers == sorted(multipliers, reverse=True) and multipliers[-1] > 0
    for row in found.driving:
        assert row.kind == "select" and row.selected == wanted[row.query[0]] and row.other != row.selected
        assert row.margin == pytest.approx(1.0, abs=1e-7)  # met, and not more
    assert str(found.driving[0]).startswith("select token ")
    # Strong duality: the sum of multipliers times what was missing is the norm.
    missing = [1.0 - _margin(problem, head.W, row) for row in found.driving]
    assert sum(p * m for p, m in zip(multipliers, missing, strict=True)) == pytest.approx(found.norm)


def _margin(problem, W, row):
    i = row.query[0]
    return (problem.X[i, row.selected] - problem.X[i, row.other]) @ W @ problem.Z[i]


@pytest.mark.parametrize("of", ["W", "K", "Q"])
def test_keep_holds_what_is_there(of):
    head = _head(d_head=6)
    problem = _problem(head, n=10)
    wanted = _wanted(head, problem, 2)
    before = attsvm.attention.likeliest(problem, head.W)
    kept = attsvm.edit(head, problem, wanted, of=of, keep=True)
    assert kept.status == "optimal"
    np.testing.assert_array_equal(kept.selected(problem)[2:], before[2:])
    assert kept.violation <= 1e-9
    free = attsvm.edit(head, problem, wanted, of=of)
    assert free.norm <= kept.norm * (1 + 1e-9)
    some = np.zeros(10, dtype=bool)
    some[2:4] = True
    assert free.norm - 1e-9 <= attsvm.edit(head, problem, wanted, of=of, keep=some).norm <= kept.norm + 1e-9


def test_keep_another_problem():
    head = _head()
    problem, other = _problem(head), _problem(head, n=4, T=7, seed=9)
    wanted = _wanted(head, problem, 2)
    own = attsvm.attention.likeliest(other, head.W)
    for keep in (other, (other, own)):
        found = attsvm.edit(head, problem, wanted, keep=keep)
        np.testing.assert_array_equal(found.selected(other), own)
        assert {row.kind for row in found.driving} <= {"select", "keep"}
    wrong = np.where(own == 0, 1, 0)
    with pytest.raises(ValueError, match=r"query \(0,\) selects token \d, not \d; request a new token"):
        attsvm.edit(head, problem, wanted, keep=(other, wrong))
    with pytest.raises(ValueError, match="tokens and queries of dimension"):
        attsvm.edit(head, problem, wanted, keep=attsvm.random_problem(n=2, T=3, d=4, seed=0))


def test_nothing_to_do_changes_nothing():
    head = _head()
    problem = _problem(head)
    own = attsvm.attention.likeliest(problem, head.W)
    logits = np.sort(attsvm.attention.logits(problem, head.W), axis=-1)
    least = float((logits[:, -1] - logits[:, -2]).min())
    for of in ("W", "K", "Q"):
        found = attsvm.edit(head, problem, own, of=of, margin=0.9 * least)
        assert found.norm == 0.0 and not found.change.any() and found.driving == [] and found.rank == 0
        assert found.factors[0].shape[1] == 0


def test_a_margin_is_what_tokens_lead_by():
    head = _head()
    problem = _problem(head)
    wanted = _wanted(head, problem, 2)
    found = attsvm.edit(head, problem, wanted, margin=3.0)
    logits = attsvm.attention.logits(problem, found.W)[:2]
    lead = logits[np.arange(2), wanted[:2]][:, None] - logits
    assert np.sort(lead, axis=1)[:, 1].min() == pytest.approx(3.0, abs=1e-8)


def test_contradicting_demands_are_named():
    head = _head()
    problem = _problem(head)
    X, Z = problem.X.copy(), problem.Z.copy()
    X[4], Z[4] = X[1], Z[1]
    twice = attsvm.AttentionProblem(X, Z=Z)
    found = attsvm.edit(head, twice, [-1, 0, -1, -1, 2, -1])
    assert found.status == "infeasible" and not found.status.has_solution
    assert {row.query[0] for row in found.conflicts} == {1, 4}
    with pytest.raises(attsvm.InfeasibleError, match=r"select token 0 over \d for query \(1\)"):
        _ = found.change
    assert "infeasible" in repr(found)


def test_a_rank_limit_and_soft_demands():
    head = _head()
    problem = _problem(head)
    wanted = _wanted(head, problem, 5)
    free = attsvm.edit(head, problem, wanted, norm="nuclear")
    assert free.rank >= 2
    tight = attsvm.edit(head, problem, wanted, norm="nuclear", rank=1)
    if tight.status.has_solution:
        assert np.linalg.matrix_rank(tight.change, tol=1e-6) == 1 and tight.norm >= free.norm * (1 - 1e-9)
    soft = [attsvm.edit(head, problem, wanted, C=C) for C in (1e-3, 1e-1, 1e4)]
    norms = [e.norm for e in soft]
    assert norms == sorted(norms) and norms[0] < 0.1 * norms[-1]
    assert norms[-1] == pytest.approx(attsvm.edit(head, problem, wanted).norm, rel=1e-6)


def test_a_bare_W_and_its_head():
    W0 = np.random.default_rng(0).normal(size=(5, 6))
    rng = np.random.default_rng(1)
    problem = attsvm.AttentionProblem(rng.normal(size=(3, 4, 5)), Z=rng.normal(size=(3, 6)))
    found = attsvm.edit(W0, problem, [1, 2, 3])
    np.testing.assert_allclose(found.head.W, found.W, atol=1e-12)
    with pytest.raises(ValueError, match="of='K' needs a TrainedHead"):
        attsvm.edit(W0, problem, [1, 2, 3], of="K")


def test_bad_input_is_named():
    head = _head()
    problem = _problem(head)
    wanted = _wanted(head, problem, 2)
    cases = [
        ({"of": "V"}, "of must be '"),
        ({"margin": 0.0}, "margin must be a positive number"),
        ({"keep": np.ones(3, dtype=bool)}, "booleans of shape"),
        ({"keep": np.ones(6, dtype=bool)}, r"keep names query \(0,\), for which selection requests"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            attsvm.edit(head, problem, wanted, **options)
    for selection, message in [
        ([0, 1], "selection must have shape"),
        ([-2, 0, 0, 0, 0, 0], "-1 where nothing is asked"),
        ([-1] * 6, "requests no token"),
        ([9, 0, 0, 0, 0, 0], "9"),
    ]:
        with pytest.raises(ValueError, match=message):
            attsvm.edit(head, problem, selection)
    rng = np.random.default_rng(0)
    short = attsvm.AttentionProblem(rng.normal(size=(6, 5, 8)), Z=rng.normal(size=(6, 8)))
    with pytest.raises(ValueError, match=r"appends the constant 1 of the biases"):
        attsvm.edit(head, short, wanted)
