"""Certificates of optimality: planted answers pass with their rank, wrong ones are caught."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attsvm.solvers import MarginProblem, certify, solve
from kkt import random_rows


def planted(rng, n, T, d, r):
    """A nuclear problem whose solution is chosen first.

    Take D = U V^T with r unit singular values and W = U S V^T. Rows a_k = U c_k with b_k = V e_k that satisfy
    c_k^T S e_k = 1 and sum_k lam_k c_k e_k^T = I make (W, lam) satisfy the optimality conditions: with c_k = e_k the
    k-th unit vector, S = I and lam = 1. The norm is then r.
    """
    U = np.linalg.qr(rng.standard_normal((d, r)))[0]
    V = np.linalg.qr(rng.standard_normal((d, r)))[0]
    problem = MarginProblem(U.T, V.T, np.arange(r))
    return problem, U @ V.T, np.ones(r)


def test_planted_nuclear_optimum_is_certified_with_its_rank(rng):
    problem, W, lam = planted(rng, 1, 2, 7, 3)
    certificate = certify(problem, W, lam, "nuclear")
    assert certificate.worst <= 1e-14  # rounding of products of orthonormal vectors
    assert certificate.norm == pytest.approx(3.0, rel=1e-14)
    assert certificate.rank == certificate.rank_certificate.numerical_rank == 3
    assert certificate.rank_certificate.dual_gap == pytest.approx(1.0)


def test_certified_rank_bounds_every_solution_of_a_degenerate_face():
    # W11 >= 1, W22 >= 1: [[1, b], [b, 1]] is optimal for every |b| <= 1, of rank 1 at b = 1 and rank 2 inside.
    problem = MarginProblem(np.eye(2), np.eye(2), [0, 1])
    for b, rank in ((1.0, 1), (0.5, 2), (-1.0, 1)):
        certificate = certify(problem, [[1.0, b], [b, 1.0]], [1.0, 1.0], "nuclear")
        assert certificate.worst <= 1e-15
        assert certificate.rank == 2
        assert certificate.rank_certificate.numerical_rank == rank


@pytest.mark.parametrize("norm", ["frobenius", "nuclear", "l1"])
def test_wrong_answers_are_caught(rng, norm):
    problem = random_rows(rng, 4, 4, 5)
    result = solve(problem, norm, "cvxpy")
    W, lam = result.W, result.multipliers
    assert certify(problem, W, lam, norm).worst <= 1e-7
    assert certify(problem, 1.01 * W, lam, norm).gap == pytest.approx(0.01 / 1.01, rel=1e-4)
    assert certify(problem, 0.99 * W, lam, norm).primal_violation == pytest.approx(0.01, rel=1e-3)
    assert certify(problem, W, 1.5 * lam, norm).dual_violation == pytest.approx(0.5, rel=1e-4)
    assert certify(problem, W, lam[::-1].copy(), norm).gap > 1e-3
    assert certify(problem, W + 0.1 * rng.standard_normal(W.shape), lam, norm).worst > 1e-3
    negative = lam.copy()
    negative[np.argmin(lam)] = -1.0
    assert certify(problem, W, negative, norm).dual_violation >= problem.row_norms[np.argmin(lam)] * (1 - 1e-12)


@given(seed=st.integers(0, 10_000), norm=st.sampled_from(["frobenius", "nuclear", "spectral", "l1", "linf"]))
def test_lower_bound_is_below_every_feasible_norm(seed, norm):
    rng = np.random.default_rng(seed)
    problem = random_rows(rng, 3, 3, 4)
    lam = rng.standard_normal(problem.m)  # any multipliers, some of them negative
    W = rng.standard_normal((4, 4))
    feasible = solve(problem, "frobenius", "cvxpy").W + W - W.mean()
    smallest = problem.margins(feasible).min()
    if smallest <= 0:
        return
    feasible = feasible / smallest  # now every margin is at least 1
    certificate = certify(problem, feasible, lam, norm)
    assert certificate.lower_bound <= certificate.norm * (1 + 1e-12)


def test_a_zero_solution_is_certified_when_it_is_feasible():
    problem = MarginProblem([[1.0], [2.0]], [[1.0]], [0, 0], rhs=[0.0, -1.0], equality=[True, False])
    certificate = certify(problem, [[0.0]], [0.0, 0.0])
    assert certificate.worst == 0.0
    assert certificate.norm == 0.0
