from dataclasses import replace

import numpy as np
import pytest

import attsvm
from attsvm import Status
from attsvm.solvers import certify
from kkt import assert_infeasible


def batch_of(kind, rng):
    options = {"causal": {"kind": "sequence", "causal": True, "T": 3}, "queries": {"queries": 2}, "tight": {"d": 2}}
    problem = attsvm.random_problem(**({"n": 3, "T": 4, "d": 6, "batch": 12, "seed": 5} | options.get(kind, {})))
    if kind == "masked":
        problem = replace(problem, mask=np.arange(4) < rng.integers(2, 5, size=(12, 3, 1)))
    return problem


# The batched nuclear method stops at a gap of 1e-9, one problem alone at rounding level.
SAME = {"frobenius": 1e-10, "nuclear": 1e-8}


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
@pytest.mark.parametrize("kind", ["cross", "masked", "causal", "queries", "tight"])
def test_a_batch_gives_what_its_problems_give_alone(norm, kind, rng):
    problem = batch_of(kind, rng)
    together = attsvm.att_svm(problem, norm=norm)
    alone = [attsvm.att_svm(problem[b], norm=norm) for b in range(12)]
    assert together.solver == {"frobenius": "active_set", "nuclear": "nuclear_batch"}[norm]
    np.testing.assert_array_equal(together.status, [s.status for s in alone])
    ok = together.status == "optimal"
    assert ok.any()
    assert ok.all() == (kind != "tight")
    assert together.gap[ok].max() <= 1e-8
    for b, single in enumerate(alone):
        one = together[b]
        assert one.status is together.status[b] is single.status
        assert one.rows.query_shape == single.rows.query_shape
        assert one.formulation == single.formulation
        np.testing.assert_array_equal(one.selection.indices, single.selection.indices)
        np.testing.assert_array_equal(one.rows.token, single.rows.token)
        np.testing.assert_array_equal(one.rows.margin_problem.rows.a, single.rows.margin_problem.rows.a)
        if not ok[b]:
            for solution in (one, single):
                assert_infeasible(solution.rows.margin_problem, solution.certificate.farkas.multipliers)
            assert together.rank[b] == -1
            continue
        assert one.norm == pytest.approx(single.norm, rel=SAME[norm])
        np.testing.assert_array_equal(one.support, single.support)
        np.testing.assert_array_equal(one.support, together.support[b])
        assert one.rank == single.rank == together.rank[b]
        assert one.certificate.rank == single.certificate.rank
        assert one.multipliers.shape == single.multipliers.shape
        # Multipliers sum to the norm whichever solver found them.
        assert one.multipliers.sum() == pytest.approx(one.norm, rel=1e-6)
        assert_same_certificate(one, single, 10 * SAME[norm])


def assert_same_certificate(one, single, tolerance):
    """Fields of two certificates of the same problem, each also recomputed from the single problem and its W."""
    again = certify(one.rows.margin_problem, one.W, one.result.multipliers, one.norm_name)
    for name in ("primal_violation", "dual_violation", "gap", "complementarity", "norm", "lower_bound"):
        value = getattr(one.certificate, name)
        assert isinstance(value, float)
        # Other orders of summation: a violation moves by as much as its error bound says.
        room = again.primal_error if name == "primal_violation" else 0.0
        assert value == pytest.approx(getattr(again, name), rel=1e-9, abs=1e-13 + room), name
        assert value == pytest.approx(getattr(single.certificate, name), rel=tolerance, abs=tolerance), name
    assert one.certificate.worst <= 1e-8


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
    np.testing.assert_array_equal(solutions[-1].W, solutions[2].W)
    assert solutions[-1].status is solutions[2].status
    with pytest.raises(IndexError, match="solution 3 is out of range for a batch of 3"):
        solutions[3]


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
        limit = less.result.extras.rank_limit
        assert less.status is Status.LOCAL
        assert not limit.is_global
        assert limit.convex_bound == pytest.approx(convex.norm, rel=1e-7)
    with pytest.raises(ValueError, match="limits the nuclear-norm problem"):
        attsvm.att_svm(problem, norm="frobenius", rank=1)
    with pytest.raises(ValueError, match="solver 'cvxpy' does not support norm 'nuclear' with rank=1; use one of"):
        attsvm.att_svm(problem, norm="nuclear", rank=1, solver="cvxpy")
