"""prior=W0 in the four SVM functions: least distance instead of least norm."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import attsvm


def _reference(problem, rows, W0, norm):
    """Least distance by cvxpy, from the tokens alone."""
    W = cp.Variable(W0.shape)
    a, b = rows.margin_problem.rows.a, rows.margin_problem.rows.right
    values = cp.sum(cp.multiply(a @ W, b), axis=1)
    equal, sides = rows.margin_problem.equality, rows.margin_problem.rhs
    constraints = [values[~equal] >= sides[~equal]] if (~equal).any() else []
    constraints += [values[equal] == sides[equal]] if equal.any() else []
    size = cp.sum_squares(W - W0) if norm == "frobenius" else cp.normNuc(W - W0)
    found = cp.Problem(cp.Minimize(size), constraints)
    found.solve(solver="CLARABEL", tol_gap_abs=1e-10, tol_gap_rel=1e-10)
    return (np.sqrt(found.value) if norm == "frobenius" else found.value), W.value


def _calls(seed):
    sets, probabilities = [[0, 2], [1], [3]], np.full((3, 4), 0.25)
    problem = attsvm.random_problem(n=3, T=4, d=6, seed=seed)
    sequences = attsvm.random_problem(n=2, T=3, d=7, kind="sequence", seed=seed)
    return {
        "att_svm": (problem, lambda **o: attsvm.att_svm(problem, **o)),
        "satt_svm": (sequences, lambda **o: attsvm.satt_svm(sequences, **o)),
        "gen_svm": (problem, lambda **o: attsvm.gen_svm(problem, sets, **o)),
        "finite_part": (problem, lambda **o: attsvm.finite_part(problem, probabilities, sets, **o)),
    }


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
@pytest.mark.parametrize("name", ["att_svm", "satt_svm", "gen_svm", "finite_part"])
def test_every_function_finds_the_least_distance(name, norm):
    problem, call = _calls(1)[name]
    W0 = np.random.default_rng(0).standard_normal((problem.dx, problem.dz))
    sol = call(norm=norm, prior=W0)
    value, W = _reference(problem, sol.rows, W0, norm)
    assert sol.status == "optimal"
    assert sol.norm == pytest.approx(value, rel=1e-7)
    if norm == "frobenius":  # unique
        np.testing.assert_allclose(sol.W, W, atol=1e-5)
    np.testing.assert_allclose(sol.W - W0, sol.change, atol=1e-15 * np.abs(W0).max() * 4)
    np.testing.assert_array_equal(sol.prior, W0)
    rows = sol.rows.margin_problem
    assert rows.missed(rows.margins(sol.W) - rows.rhs).max() <= 1e-9


def test_what_is_read_of_a_solution_with_a_prior():
    problem = attsvm.random_problem(n=4, T=5, d=6, seed=0)
    W0 = 0.3 * np.random.default_rng(1).standard_normal((6, 6))
    sol = attsvm.att_svm(problem, prior=W0, norm="nuclear")
    assert sol.norm == pytest.approx(np.linalg.norm(sol.W - W0, "nuc"))
    assert sol.rank == sol.certificate.rank == np.linalg.matrix_rank(sol.change, tol=1e-6)
    np.testing.assert_allclose(sol.direction * sol.norm, sol.change)
    margins = sol.token_margins()  # of the whole W
    chosen = sol.selection.indices
    by_hand = np.einsum("nd,de,ne->n", problem.X[np.arange(4), chosen], sol.W, problem.Z)[:, None] - np.einsum(
        "ntd,de,ne->nt", problem.X, sol.W, problem.Z
    )
    np.testing.assert_allclose(margins[~np.isnan(margins)], by_hand[~np.isnan(margins)], atol=1e-12)
    assert (np.abs(margins[sol.support] - 1) < 1e-5).all() and sol.support.any()
    assert "distance=" in repr(sol)
    assert attsvm.att_svm(problem).prior is None


def test_a_prior_that_separates_is_returned_as_it_is():
    problem = attsvm.random_problem(n=4, T=5, d=6, seed=0)
    W0 = 3.0 * attsvm.att_svm(problem).W
    for norm in ("frobenius", "nuclear", "spectral", "l1", "linf", "l3"):
        sol = attsvm.att_svm(problem, prior=W0, norm=norm)
        assert sol.norm == 0.0 and not sol.change.any() and sol.status == "optimal"
        np.testing.assert_array_equal(sol.W, W0)
    with pytest.raises(ValueError, match="the prior satisfies every row"):
        _ = sol.direction


def test_prior_zero_is_no_prior():
    problem = attsvm.random_problem(n=4, T=5, d=6, seed=2)
    for norm in ("frobenius", "nuclear"):
        near, plain = attsvm.att_svm(problem, prior=np.zeros((6, 6)), norm=norm), attsvm.att_svm(problem, norm=norm)
        np.testing.assert_allclose(near.W, plain.W, atol=1e-7)


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_batches(norm):
    problems = attsvm.random_problem(n=3, T=4, d=5, batch=4, seed=0)
    W0 = np.random.default_rng(0).standard_normal((4, 5, 5))
    together = attsvm.att_svm(problems, prior=W0, norm=norm)
    for i in range(4):
        alone = attsvm.att_svm(problems[i], prior=W0[i], norm=norm)
        assert together.norm[i] == pytest.approx(alone.norm, rel=1e-7)
        np.testing.assert_array_equal(together[i].prior, W0[i])
        np.testing.assert_allclose(together[i].W, together.W[i])
    shared = attsvm.att_svm(problems, prior=W0[0], norm=norm)  # one prior for all
    assert shared.norm[0] == pytest.approx(together.norm[0], rel=1e-7)
    assert shared.prior.shape == (4, 5, 5)
    np.testing.assert_array_equal(together.rank, [together[i].rank for i in range(4)])


def test_an_impossible_demand_is_proved_and_named():
    rng = np.random.default_rng(0)
    X, Z = rng.standard_normal((3, 3, 4)), rng.standard_normal((3, 4))
    X[2], Z[2] = X[0], Z[0]  # the same sequence twice, with two demands
    problem = attsvm.AttentionProblem(X, Z=Z)
    for norm in ("frobenius", "nuclear"):
        sol = attsvm.att_svm(problem, [0, 1, 1], prior=rng.standard_normal((4, 4)), norm=norm)
        assert sol.status == "infeasible" and sol.conflicting_queries.tolist() == [0, 2]
        with pytest.raises(attsvm.InfeasibleError, match="sequences 0, 2 together"):
            _ = sol.W


def test_rank_limits_the_change():
    problem = attsvm.random_problem(n=6, T=4, d=6, seed=3)
    W0 = np.eye(6)
    free = attsvm.att_svm(problem, prior=W0, norm="nuclear")
    assert free.rank > 1
    tight = attsvm.att_svm(problem, prior=W0, norm="nuclear", rank=free.rank - 1)
    if tight.status.has_solution:
        assert np.linalg.matrix_rank(tight.change, tol=1e-6) <= free.rank - 1
        assert tight.norm >= free.norm * (1 - 1e-9)


def test_bad_priors():
    problem = attsvm.random_problem(n=2, T=3, d=4, seed=0)
    with pytest.raises(ValueError, match=r"prior must have shape \(4, 4\), got \(3, 3\)"):
        attsvm.att_svm(problem, prior=np.eye(3))
    with pytest.raises(ValueError, match="prior must be finite"):
        attsvm.gen_svm(problem, [[0], [1]], prior=np.full((4, 4), np.inf))
    with pytest.raises(ValueError, match="prior"):
        attsvm.att_svm(problem, prior="W0")
