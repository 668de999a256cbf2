import re
from dataclasses import replace

import numpy as np
import pytest

import attsvm
from attsvm import Status
from attsvm import solution_batch as batch_module


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
@pytest.mark.parametrize("kind", ["cross", "masked", "causal", "queries", "tight"])
def test_lockstep_equals_one_by_one(norm, kind, rng, monkeypatch):
    options = {"causal": {"kind": "sequence", "causal": True, "T": 3}, "queries": {"queries": 2}, "tight": {"d": 3}}
    sizes = {"n": 3, "T": 4, "d": 6, "batch": 12, "seed": 5} | options.get(kind, {})
    problem = attsvm.random_problem(**sizes)
    if kind == "masked":
        problem = replace(problem, mask=np.arange(4) < rng.integers(2, 5, size=(12, 3, 1)))
    together = attsvm.att_svm(problem, norm=norm)
    monkeypatch.setattr(batch_module, "BATCHED_ROWS", {})
    alone = attsvm.att_svm(problem, norm=norm)
    assert together[0].solver == "batch" != alone[0].solver
    assert together.status == alone.status
    ok = np.array([s is Status.OPTIMAL for s in alone.status])
    assert ok.any()
    np.testing.assert_allclose(together.norm[ok], alone.norm[ok], rtol=1e-7)
    np.testing.assert_array_equal(together.support[ok], alone.support[ok])
    np.testing.assert_array_equal(together.rank, alone.rank)
    assert together.gap[ok].max() <= 1e-8
    for b in range(12):
        one = together[b]
        assert one.status is together.status[b]
        assert one.rows.query_shape == alone[b].rows.query_shape
        if ok[b]:
            np.testing.assert_array_equal(one.support, together.support[b])
            assert one.certificate.worst <= 1e-8
            assert one.multipliers.shape == alone[b].multipliers.shape
            # Multipliers sum to the norm whichever solver found them.
            assert one.multipliers.sum() == pytest.approx(one.norm, rel=1e-6)
        else:
            assert one.certificate.farkas.verified


def test_infeasible_problems_do_not_disturb_their_neighbours():
    problem = attsvm.random_problem(n=5, T=5, d=2, batch=40, seed=0)
    solutions = attsvm.att_svm(problem)
    feasible = [b for b, status in enumerate(solutions.status) if status is Status.OPTIMAL]
    assert 0 < len(feasible) < 40
    for b in range(40):
        alone = attsvm.att_svm(problem[b])
        assert solutions.status[b] is alone.status
        assert solutions.margin[b] == pytest.approx(alone.margin, rel=1e-6)
        assert np.isnan(solutions.W[b]).all() == (b not in feasible)
    assert (solutions.rank[feasible] > 0).all()


def test_batched_local_optimality_equals_one_by_one():
    problem = attsvm.random_problem(n=3, T=4, d=3, batch=30, seed=2)
    selection = np.random.default_rng(0).integers(4, size=(30, 3))
    together = attsvm.is_locally_optimal(problem, selection)
    assert together.tolist() == [attsvm.is_locally_optimal(problem[b], selection[b]) for b in range(30)]
    assert 0 < together.sum() < 30


def test_batches_are_sequences():
    solutions = attsvm.att_svm(attsvm.random_problem(n=2, T=3, d=4, batch=3, seed=0))
    np.testing.assert_allclose([s.norm for s in solutions], solutions.norm, rtol=1e-14)
    assert solutions[-1] is solutions[2]
    with pytest.raises(IndexError, match="solution 3 is out of range for a batch of 3"):
        solutions[3]


def test_duplicate_tokens_in_a_batch_are_named():
    problem = attsvm.random_problem(n=2, T=3, d=4, batch=2, seed=0)
    X = problem.X.copy()
    X[1, 0, 2] = X[1, 0, 1]
    message = "X[1, 0] holds the same vector as tokens 1 and 2, so no W can select token 1 over token 2"
    with pytest.raises(ValueError, match=re.escape(message)):
        attsvm.att_svm(replace(problem, X=X), [[0, 0], [1, 0]])


def pairs_of_tokens(problem):
    members = np.zeros((2, 2, 4), dtype=bool)
    members[..., 0] = members[..., 2] = True
    return attsvm.gen_svm(problem, members)


@pytest.mark.parametrize(
    "call",
    [pairs_of_tokens, lambda p: attsvm.att_svm(p, norm="l1"), lambda p: attsvm.att_svm(p, solver="cvxpy")],
    ids=["Gen-SVM", "l1", "cvxpy"],
)
def test_everything_else_is_solved_one_by_one(call):
    solutions = call(attsvm.random_problem(n=2, T=4, d=6, batch=2, seed=0))
    assert len(solutions) == 2
    assert all(s is Status.OPTIMAL for s in solutions.status)


def test_rank_limits_through_the_public_api():
    problem = attsvm.random_problem(n=5, T=4, d=6, seed=0)
    convex = attsvm.att_svm(problem, norm="nuclear")
    r = convex.certificate.rank
    assert r >= 2
    same = attsvm.att_svm(problem, norm="nuclear", rank=r)
    assert same.status is Status.OPTIMAL
    assert same.norm == pytest.approx(convex.norm, rel=1e-7)
    less = attsvm.att_svm(problem, norm="nuclear", rank=r - 1)
    if less.status.has_solution:
        assert np.linalg.matrix_rank(less.W, tol=1e-8) <= r - 1
        assert less.norm > convex.norm * (1 + 1e-9)
        assert not less.result.extras["global"]
        assert less.result.extras["convex_bound"] == pytest.approx(convex.norm, rel=1e-7)
    with pytest.raises(ValueError, match="limits the nuclear-norm problem"):
        attsvm.att_svm(problem, norm="frobenius", rank=1)
    with pytest.raises(ValueError, match="limits the nuclear-norm problem"):
        attsvm.att_svm(problem, norm="nuclear", rank=1, solver="cvxpy")
