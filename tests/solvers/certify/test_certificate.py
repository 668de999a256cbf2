"""Certificates of optimality: planted answers pass with their rank, wrong ones are caught."""

from dataclasses import fields
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attsvm.solvers import Certificate, MarginProblem, RankCertificate, certify, solve
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


def test_a_certificate_without_errors_proves_what_it_measures():
    exact = Certificate(1e-9, 2e-9, 3e-9, 0.0, 1.0, 1.0, 0.0, 0.0)
    assert exact.proved == exact.worst == 3e-9


@pytest.mark.parametrize("norm", ["frobenius", "nuclear", "linf"])
def test_the_bound_does_not_depend_on_the_scale_of_the_multipliers(norm):
    problem = MarginProblem([[2.0, 0.0], [0.0, 1.0]], [[1.0]], [0, 0])
    solution = solve(problem, norm)
    for scale in (2.0**-10, 0.25, 4.0):  # powers of two round nothing
        scaled = certify(problem, solution.W, scale * solution.multipliers, norm)
        assert scaled.lower_bound == pytest.approx(solution.certificate.lower_bound, rel=1e-12)


# -- one certificate for one problem and for a batch -------------------------------------------------------------------

NOT_NUMBERS = ("rank_certificate", "farkas", "_source", "soft_objective")
NUMBERS = [f.name for f in fields(Certificate) if f.name not in NOT_NUMBERS]
RANKS = [f.name for f in fields(RankCertificate)]


def random_batch(rng, size=20, m=7, q=4, shape=(3, 5), plain=False):
    valid = rng.random((size, m)) < 0.8
    valid[:, 0] = True
    sides = {} if plain else {"rhs": rng.standard_normal((size, m)) + 0.5, "equality": rng.random((size, m)) < 0.3}
    a, queries = rng.standard_normal((size, m, shape[0])), rng.standard_normal((size, q, shape[1]))
    return MarginProblem(a, queries, rng.integers(0, q, (size, m)), **sides, valid=None if plain else valid)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("norm", ["frobenius", "nuclear", "spectral", "l1", "linf", "l3"])
def test_over_a_leading_axis_every_field_is_that_of_one_problem(rng, norm, plain):
    """Same definitions at points that are far from optimal, feasible or even sign-correct."""
    batch = random_batch(rng, plain=plain)
    valid = np.ones((20, 7), dtype=bool) if batch.valid is None else batch.valid
    W, lam = rng.standard_normal((20, 3, 5)), np.where(valid, rng.standard_normal((20, 7)), 0.0)
    W[0], lam[1], lam[2] = 0.0, 0.0, np.abs(lam[2])
    W[3:5], lam[3:5] = 0.0, 0.0  # nothing at all, and rank one beside a dual matrix of rank zero
    W[4, 0, 0] = 1.0
    found = certify(batch, W, lam, norm)
    for i in range(20):
        one = certify(batch[i], W[i], lam[i][valid[i]], norm)
        for part in (found[i], one):
            assert all(type(getattr(part, name)) is float for name in NUMBERS)
        for name in (*NUMBERS, "worst", "proved"):
            # The same sums in another order: rounding only.
            assert getattr(found[i], name) == pytest.approx(getattr(one, name), rel=1e-9, abs=1e-13), name
            assert getattr(found, name)[i] == getattr(found[i], name)
        assert found[i].rank == one.rank
        if norm != "nuclear":
            assert found.rank is None and found.rank_certificate is None
            continue
        for name in RANKS:
            value, expected = (getattr(c.rank_certificate, name) for c in (found[i], one))
            np.testing.assert_allclose(value, expected, rtol=1e-8, atol=1e-12, err_msg=name)
        assert type(found[i].rank_certificate.rank) is type(one.rank_certificate.rank) is int
    if norm == "nuclear":  # where the cut is given, a dual matrix of 0 is not told by its gap
        cut = certify(batch, W, lam, norm, 1e-6).rank
        assert [int(r) for r in cut] == [certify(batch[i], W[i], lam[i][valid[i]], norm, 1e-6).rank for i in range(20)]


def test_rounding_errors_travel_with_the_numbers(rng):
    """`proved` adds them to `worst`; they grow with the size of what is summed, not with the size of the problem."""
    problem = random_rows(rng, 4, 4, 5)
    solution = solve(problem)
    certificate = solution.certificate
    assert certificate.proved == max(
        certificate.gap + certificate.gap_error,
        certificate.primal_violation + certificate.primal_error,
        certificate.dual_violation,
    )
    assert 0 < certificate.primal_error < 1e-13
    assert 0 < certificate.gap_error < 1e-12
    assert certificate.lower_bound <= certificate.norm
    huge = certify(problem, 1e8 * solution.W, solution.multipliers)
    # In proportion to the rows; such large errors are bounded entry by entry, which is sharper.
    assert 1e7 * certificate.primal_error < huge.primal_error <= 1.1e8 * certificate.primal_error
    # Rows without a multiplier round nothing.
    more = MarginProblem(
        np.vstack([problem.rows.a, rng.standard_normal((500, 5))]), problem.rows.queries,
        np.append(problem.owner, np.zeros(500, dtype=int)), np.append(problem.rhs, np.full(500, -1e6)),
    )  # fmt: skip
    padded = certify(more, solution.W, np.append(solution.multipliers, np.zeros(500)))
    assert padded.gap_error == pytest.approx(certificate.gap_error, rel=1e-9)


def test_a_margin_that_float64_gets_wrong_is_not_proved():
    # Tokens over twelve decades: the float margins of this W say 0 violation, the exact ones are off by tens.
    r = np.random.default_rng(107)
    X = r.normal(size=(3, 2, 2)) * 10.0 ** r.uniform(-6, 6, (3, 2, 1))
    a, queries = X[:, 0] - X[:, 1], X[:, 0]
    problem = MarginProblem(a, queries, np.arange(3))
    for norm in ("frobenius", "nuclear"):
        found = solve(problem, norm)
        exact = [
            sum(
                Fraction(a[k, i]) * Fraction(found.W[i, j]) * Fraction(queries[k, j])
                for i in range(2)
                for j in range(2)
            )
            for k in range(3)
        ]
        missed = max(1 - margin for margin in exact)
        assert found.certificate.primal_violation + found.certificate.primal_error >= missed
        if found.status == "optimal":
            assert missed <= found.tolerance


# -- the rank, at a stated resolution ----------------------------------------------------------------------------------


def test_a_dual_matrix_is_judged_by_its_largest_singular_value():
    # Multipliers 0.9 have the same direction as 1: the gap is 0 and so is nothing else about the rank.
    certificate = certify(MarginProblem(np.eye(2), np.eye(2), [0, 1]), np.eye(2), [0.9, 0.9], "nuclear")
    assert certificate.gap <= 1e-15
    assert certificate.rank == certificate.rank_certificate.numerical_rank == 2
    assert certificate.rank_certificate.dual_singular_values.max() == 1.0


def singular(W):
    return np.linalg.svd(W, compute_uv=False)


@pytest.mark.parametrize("solver", ["interior", "factored", "nuclear_batch", "cvxpy"])
def test_certified_rank_holds_for_every_solution_at_its_resolution(solver):
    # W11 >= 1 and 1e7 W22 >= 1: every [[1, t], [t, 1e-7]] with t^2 <= 1e-7 is optimal, of rank 1 or 2.
    problem = MarginProblem([[1.0, 0.0], [0.0, 1e7]], np.eye(2), [0, 1])
    found = solve(problem, "nuclear", solver)
    ranks = found.certificate.rank_certificate
    for t in np.linspace(-1, 1, 21) * np.sqrt(1e-7):
        rest = singular(np.array([[1.0, t], [t, 1e-7]]))[ranks.rank :]
        assert rest.sum() <= ranks.resolution
    exact = certify(problem, np.diag([1.0, 1e-7]), [1.0, 1e-7], "nuclear")
    assert (exact.rank, exact.rank_certificate.resolution) == (2, 0.0)


@given(seed=st.integers(0, 10_000), push=st.floats(0, 0.3))
def test_resolution_bounds_what_lies_beyond_the_rank(seed, push):
    """For any multipliers and any feasible W no larger than the one certified, as the theorem says."""
    rng = np.random.default_rng(seed)
    problem = random_rows(rng, 3, 3, 4)
    best = solve(problem, "nuclear")
    lam = best.multipliers * (1 + push * rng.standard_normal(problem.m))
    W = best.W * (1 + push)
    ranks = certify(problem, W, lam, "nuclear").rank_certificate
    other = best.W + 0.1 * push * rng.standard_normal((4, 4))
    other = other / min(1.0, problem.margins(other).min())
    if problem.margins(other).min() <= 0 or singular(other).sum() > singular(W).sum():
        other = best.W
    assert singular(other)[ranks.rank :].sum() <= ranks.resolution * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("C", [0.05, 1.0, 10.0])
def test_certified_rank_of_a_soft_margin_is_0_only_where_w_vanishes(C: float):
    rng = np.random.default_rng(0)
    problem = MarginProblem(rng.standard_normal((8, 5)), rng.standard_normal((3, 4)), rng.integers(0, 3, 8)).soft(C)
    solution = solve(problem, "nuclear")
    singular = np.linalg.svd(solution.W, compute_uv=False)
    found = solution.certificate.rank_certificate
    assert found.rank == int((singular > found.resolution).sum())  # counted anew, at the resolution that is claimed
    assert found.resolution < 1e-6 and (found.rank == 0) == (singular[0] < 1e-9) == (C == 0.05)
