import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attsvm.solvers import MarginProblem, Status, certify, certify_infeasible, find_farkas, solve
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


def test_farkas_needs_cancelling_rows_with_positive_value():
    problem = MarginProblem([[1.0], [-1.0], [2.0]], [[1.0]], [0, 0, 0])
    assert certify_infeasible(problem, [1.0, 1.0, 0.0]).farkas.verified
    assert certify_infeasible(problem, [1.0, 0.9, 0.0]) is None  # does not cancel
    assert certify_infeasible(problem, [-1.0, 0.0, 0.5]) is None  # negative multipliers are dropped first
    assert certify_infeasible(problem, [0.0, 0.0, 0.0]) is None
    assert certify_infeasible(problem, [np.nan, 1.0, 0.0]) is None


def test_farkas_uses_free_multipliers_on_equalities():
    # W = 2 and W = 3 together: multipliers (-1, 1) give 0 = 1.
    problem = MarginProblem([[1.0], [1.0]], [[1.0]], [0, 0], rhs=[2.0, 3.0], equality=[True, True])
    certificate = find_farkas(problem)
    np.testing.assert_allclose(certificate.farkas.multipliers, [-1.0, 1.0], rtol=1e-12)
    assert certificate.gap == certificate.primal_violation == float("inf")


def test_dependent_but_consistent_equalities_are_no_proof():
    # The left null vector of consistent rows cancels on both sides; what rounding leaves of rhs . lam is not a proof.
    for seed in range(50):
        rng = np.random.default_rng(seed)
        a, b, W = rng.standard_normal((6, 2)), rng.standard_normal((6, 2)), rng.standard_normal((2, 2))
        rows = MarginProblem(a, b, np.arange(6))
        problem = MarginProblem(a, b, np.arange(6), rows.margins(W), np.ones(6, dtype=bool))  # W is feasible
        null = np.linalg.svd(problem.features().T)[2][-1]
        for lam in (null, -null):
            assert certify_infeasible(problem, lam) is None


def test_zero_rows_are_an_exact_proof(rng):
    problem = MarginProblem(np.vstack([np.eye(3), np.zeros(3)]), rng.standard_normal((1, 3)), [0] * 4)
    farkas = find_farkas(problem).farkas
    assert farkas.residual == 0.0
    assert farkas.excluded_norm == float("inf")
    assert farkas.rows.tolist() == [3]


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_farkas_is_found_at_any_scale_and_names_only_the_conflict(rng, scale):
    easy = random_rows(rng, 3, 3, 6)
    x = rng.standard_normal(6)
    conflict = np.vstack([x, -2 * x])
    problem = MarginProblem(
        scale * np.vstack([easy.a, conflict]),
        np.vstack([easy.queries, rng.standard_normal(6)]),
        np.append(easy.owner, [3, 3]),
    )
    farkas = find_farkas(problem).farkas
    assert farkas.owners.tolist() == [3]
    assert farkas.rows.tolist() == [6, 7]


def test_a_hard_but_feasible_problem_is_not_called_infeasible():
    # W >= 1 on both of two nearly opposite rows forces |W| of about 1e5.
    problem = MarginProblem([[1.0, 1e-5], [-1.0, 1e-5]], [[1.0]], [0, 0])
    assert find_farkas(problem) is None
    result = solve(problem)
    assert result.status is Status.OPTIMAL
    assert result.norm == pytest.approx(1e5, rel=1e-6)
