"""Bounds that are proved, tried against rationals and fifty digits: spectra, eigenvalues, the cost of violated rows."""

from fractions import Fraction
from unittest import mock

import mpmath
import numpy as np
import pytest
from flint import fmpq, fmpq_mat
from hypothesis import given
from hypothesis import strategies as st

import attsvm
from attsvm.solvers import MarginProblem, certify, get_norm, solve
from attsvm.solvers.certify import feasible
from attsvm.solvers.certify.feasible import correction_bound, feasibility_cost
from attsvm.solvers.certify.ranks import (
    PROVED_UP_TO,
    rank_certificate,
    rank_certificate_of_batch,
    spectra_of,
    spectra_of_batch,
)
from attsvm.solvers.certify.singular_values import decomposition_error, factor_bound, least_eigenvalue, proved_spectrum
from attsvm.solvers.exact import (
    ExactFarkas,
    exact_least_norm,
    exact_polyhedral,
    exact_rows,
    linear_programs,
    nuclear_enclosure,
    repair,
)
from attsvm.solvers.exact.measures import exact_rows_of, norm_enclosure
from attsvm.solvers.exact.rows import rational, to_float


def fifty_digits(A):
    with mpmath.workdps(50):
        return [mpmath.mpf(x) for x in mpmath.svd_r(mpmath.matrix(A.tolist()), compute_uv=False)]


def some_matrix(rng):
    m, n = int(rng.integers(1, 8)), int(rng.integers(1, 8))
    kind = int(rng.integers(0, 4))
    A = rng.standard_normal((m, n)) * 10.0 ** rng.uniform(-8, 8)
    if kind == 1:
        A = np.outer(rng.standard_normal(m), rng.standard_normal(n))
    elif kind == 2:
        A = A * 10.0 ** rng.uniform(-6, 6, (m, 1))
    elif kind == 3:
        A = rng.integers(-1, 2, (m, n)).astype(float)
    return A


@given(seed=st.integers(0, 10**6))
def test_singular_values_and_nuclear_norms_are_bounded_from_above(seed):
    A = some_matrix(np.random.default_rng(seed))
    truth = fifty_digits(A)
    values, grow, residual = proved_spectrum(A)
    U, s, Vt = np.linalg.svd(A, full_matrices=False)
    other_grow, other_residual = decomposition_error(A, U, s, Vt)
    found = spectra_of(A, A)
    batch = spectra_of_batch(np.stack([A, A]), np.stack([A, A]))
    assumed = spectra_of(A, A, prove=False)
    with mpmath.workdps(50):
        for i, sigma in enumerate(truth):
            assert grow * mpmath.mpf(values[i]) + residual >= sigma
            assert float(other_grow) * mpmath.mpf(s[i]) + float(other_residual) >= sigma
        total = mpmath.fsum(truth)
        for most in (found.norm_most, batch.norm_most[1], assumed.norm_most):
            assert float(most) >= total
            assert float(most) <= total * (1 + mpmath.mpf(1e-12)) + mpmath.mpf(2) ** -480


def test_a_wrong_decomposition_is_not_believed():
    """Nothing is assumed of the routine: lies about U, s or V end in a larger bound, never in a false one."""
    rng = np.random.default_rng(0)
    A = rng.standard_normal((4, 3))
    U, s, Vt = np.linalg.svd(A, full_matrices=False)
    sigma = np.linalg.svd(A, compute_uv=False)
    for lie in ((U, 0.5 * s, Vt), (0.9 * U, s, Vt), (U[:, ::-1], s, Vt), (np.zeros_like(U), s, Vt)):
        grow, residual = decomposition_error(A, lie[0], lie[1], lie[2])
        assert (grow * lie[1] + residual >= sigma * (1 - 1e-12)).all()


def test_large_matrices_assume_and_small_ones_do_not():
    rng = np.random.default_rng(1)
    d = PROVED_UP_TO + 1
    small, large = rng.standard_normal((d, d - 1)), rng.standard_normal((d, d))
    assert spectra_of(small, small).grow > 1.0  # from the defects of the frames
    assert spectra_of(large, large).grow == 1.0
    assert spectra_of(large, large, prove=True).grow > 1.0


@given(seed=st.integers(0, 10**6))
def test_least_eigenvalues_are_bounded_from_below(seed):
    rng = np.random.default_rng(seed)
    p = int(rng.integers(1, 7))
    rows = rng.integers(-3, 4, (p, int(rng.integers(1, 8)))).astype(float)
    gram = rows @ rows.T + (10.0 ** rng.uniform(-14, 0)) * np.eye(p)
    bound = least_eigenvalue(gram)
    with mpmath.workdps(50):
        truth = min(mpmath.eigsy(mpmath.matrix(gram.tolist()), eigvals_only=True))
        assert bound <= max(truth, 0)
        assert bound >= float(truth) - 1e-12 * float(np.abs(gram).sum())
    assert least_eigenvalue(np.full((2, 2), np.inf)) == 0.0


def test_a_batch_has_the_rank_certificates_of_its_problems():
    problem = attsvm.random_problem(n=3, T=4, d=5, seed=0, batch=6)
    solved = attsvm.att_svm(problem, norm="nuclear")
    together = solved.certificate.rank_certificate
    for i in range(6):
        rows = solved.result[i]
        alone = certify(rows.problem, rows.W, rows.multipliers, "nuclear").rank_certificate
        assert (alone.rank, alone.numerical_rank) == (together.rank[i], together.numerical_rank[i])
        assert alone.resolution == pytest.approx(float(together.resolution[i]), rel=1e-3)
    # D = 0 proves nothing but that a 2 x 2 matrix has rank 2 at most.
    nothing = rank_certificate(spectra_of(np.eye(2), np.zeros((2, 2))), 0.0, 1.0, 1.0, None)
    assert (nothing.rank, nothing.resolution) == (2, 0.0)
    dead = spectra_of_batch(np.eye(2)[None], np.zeros((1, 2, 2)))
    many = rank_certificate_of_batch(dead, np.zeros(1), np.ones(1), np.ones(1), None)
    assert (many.rank.tolist(), many.resolution.tolist()) == ([2], [0.0])


# -- the cost of violated rows ----------------------------------------------------------------------


def general_rows(seed):
    """Rows with equalities and right-hand sides of any sign, and an exact solution of them."""
    rng = np.random.default_rng(seed)
    dx, dz, q, m = int(rng.integers(1, 5)), int(rng.integers(1, 5)), int(rng.integers(1, 4)), int(rng.integers(1, 8))
    a, queries = rng.standard_normal((m, dx)), rng.standard_normal((q, dz))
    owner = rng.integers(0, q, m)
    equality = rng.random(m) < 0.4
    rhs = np.where(rng.random(m) < 0.5, 1.0, rng.standard_normal(m) * 10.0 ** rng.uniform(-3, 3, m))
    return rng, MarginProblem(a, queries, owner, rhs, equality)


@given(seed=st.integers(0, 10**6))
def test_the_cost_covers_a_feasible_matrix(seed):
    """The least nuclear norm is at most that of W plus the cost, whatever W violates and by how much."""
    rng, problem = general_rows(seed)
    solved = solve(problem, "nuclear")
    if solved.status != "optimal":
        return
    rows = exact_rows_of(problem)
    W = solved.W + 10.0 ** rng.uniform(-12, -1) * rng.standard_normal(problem.shape)
    slack = problem.margins(W) - problem.rhs
    error = np.maximum(1.0, np.abs(problem.rhs)) * 1e-13
    value = float(np.linalg.svd(W, compute_uv=False).sum())
    cost = feasibility_cost(problem, W, slack, 0.0, 1e-13, value)
    best = nuclear_enclosure(rows, solved.W, solved.multipliers)
    if best is None:
        return
    assert best.lower_bound <= (value + cost) * (1 + 1e-9)
    # The distance itself: nearer than the bound there is a matrix that satisfies every row exactly.
    distance = float(correction_bound(problem, slack, error))
    if np.isfinite(distance):
        moved = [r - v for r, v in zip(rows.rhs, rows.margins(W), strict=True)]
        sides = np.array([to_fraction(x) for x in moved], dtype=object)
        shifted = exact_rows(problem.rows.a, problem.rows.queries, problem.owner, sides, problem.equality)
        nearest = exact_least_norm(shifted)
        assert not isinstance(nearest, ExactFarkas)
        assert nearest.norm_squared <= Fraction(distance) ** 2


def to_fraction(value):
    return Fraction(int(value.p), int(value.q))


@given(seed=st.integers(0, 10**6))
def test_a_batch_has_the_costs_of_its_problems(seed):
    """Rows that only other problems hold, and void rows, change nothing but roundings."""
    rng = np.random.default_rng(seed)
    problems, matrices = [], []
    for _ in range(int(rng.integers(2, 5))):
        m = int(rng.integers(1, 7))
        a, owner = rng.standard_normal((m, 3)), rng.integers(0, 2, m)
        rhs = np.where(rng.random(m) < 0.5, 1.0, rng.standard_normal(m))
        problem = MarginProblem(a, rng.standard_normal((2, 4)), owner, rhs, rng.random(m) < 0.3)
        solved = solve(problem, "frobenius")
        W = solved.W if solved.status == "optimal" else rng.standard_normal((3, 4))
        W = W + 10.0 ** rng.uniform(-14, -4) * rng.standard_normal((3, 4))
        problems.append(problem)
        matrices.append(W)
    batch, W = MarginProblem.stack(problems), np.stack(matrices)
    count, error, value = len(problems), np.full(len(problems), 1e-15), np.full(len(problems), 3.0)
    slack = batch.margins(W) - batch.rhs
    together = feasibility_cost(batch, W, slack, np.zeros(count), error, value)
    # The same slacks: rows that nearly depend on each other multiply the roundings of slacks by their condition.
    parts = zip(problems, matrices, slack, strict=True)
    alone = [feasibility_cost(p, w, s[: p.m], 0.0, 1e-15, 3.0) for p, w, s in parts]
    assert together == pytest.approx(np.array(alone), rel=1e-6, abs=1e-13)
    with mock.patch.object(feasible, "_CHUNK_NUMBERS", 1):  # one problem at a time
        assert feasibility_cost(batch, W, slack, np.zeros(count), error, value) == pytest.approx(together, rel=1e-6)


def test_the_cost_of_dependent_rows_is_infinite():
    # W = 1 twice: consistent, but no correction bound follows from a singular Gram matrix.
    rows = MarginProblem([[1.0], [1.0]], [[1.0]], [0, 0], [1.0, 1.0], [True, True])
    assert feasibility_cost(rows, np.array([[1.0]]), np.zeros(2), 0.0, 1e-16, 1.0) == np.inf
    proved = solve(rows, "nuclear").certificate.exact()
    assert proved.status == "optimal" and proved.norm[1] - proved.norm[0] < 1e-7


def test_resolutions_of_gen_svm_hold_for_exact_solutions():
    """Equality rows: the tail of an exactly feasible near-optimal matrix is within the resolution, in proportion."""
    checked = 0
    for seed in range(25):
        rng = np.random.default_rng(seed)
        problem = attsvm.random_problem(n=3, T=4, d=4, seed=seed)
        sets = [sorted(rng.choice(4, size=int(rng.integers(1, 4)), replace=False).tolist()) for _ in range(3)]
        solution = attsvm.gen_svm(problem, sets, norm="nuclear")
        if solution.status != "optimal":
            continue
        claim = solution.certificate.rank_certificate
        assert claim.resolution < 1e-6 * solution.norm
        proved = nuclear_enclosure(exact_rows_of(solution.result.problem), solution.W, solution.result.multipliers)
        assert proved.singular_values[0][claim.rank :].sum() <= claim.resolution * (1 + 1e-9)
        assert proved.tails[claim.rank] <= claim.resolution * (1 + 1e-6)
        checked += 1
    assert checked >= 15


# -- the exact linear program ----------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["l1", "linf"])
def test_the_exact_program_agrees_with_highs(norm):
    from scipy.optimize import linprog

    infeasible = 0
    for seed in range(40):
        _, problem = general_rows(seed)
        rows = exact_rows_of(problem)
        answer = exact_polyhedral(rows, norm)
        features = problem.rows.gather(np.arange(problem.m)).features()
        N = features.shape[1]
        extra = 1 if norm == "linf" else N
        bound = np.ones((N, 1)) if norm == "linf" else np.eye(N)
        padded = np.hstack([features, np.zeros((problem.m, extra))])
        upper = np.vstack([-padded[~problem.equality], np.hstack([np.eye(N), -bound]), np.hstack([-np.eye(N), -bound])])
        sides = np.concatenate([-problem.rhs[~problem.equality], np.zeros(2 * N)])
        equal = padded[problem.equality]
        found = linprog(
            np.r_[np.zeros(N), np.ones(extra)], upper, sides, equal if len(equal) else None,
            problem.rhs[problem.equality] if len(equal) else None, bounds=(None, None),
        )  # fmt: skip
        assert isinstance(answer, ExactFarkas) == (found.status == 2), seed
        if isinstance(answer, ExactFarkas):
            infeasible += 1
            continue
        assert to_float(answer.value) == pytest.approx(found.fun, rel=1e-7, abs=1e-9)
        assert rows.violation(answer.matrix) == 0
        ball = norm_enclosure(answer.matrix, get_norm(norm))
        assert float(ball) == pytest.approx(to_float(answer.value), rel=1e-15)
    assert infeasible >= 2
    with pytest.raises(ValueError, match="norm must be 'l1' or 'linf'"):
        exact_polyhedral(rows, "nuclear")
    with pytest.raises(RuntimeError, match="max_pivots = 0"):
        exact_polyhedral(exact_rows([[1.0]], [[1.0]], [0]), "l1", max_pivots=0)


@pytest.mark.parametrize(
    ("W", "multipliers"),
    [
        ([[1, 1], [0, 0]], [1, 1, 0]),  # violates the second row
        ([[1, 0], [0, 1]], [2, 0, 0]),  # outside the dual ball
        ([[1, 0], [0, 1]], [1, 0, 0]),  # leaves a gap of 1
        ([[1, 0], [0, 1]], [2, 1, -1]),  # a negative multiplier
    ],
)
def test_an_exact_answer_is_checked_before_it_is_given(W: list[list[int]], multipliers: list[int]) -> None:
    rows = exact_rows([[1, 0], [0, 1], [1, 0]], np.eye(2), [0, 1, 0])  # W_11 >= 1 and W_22 >= 1, the first one twice
    right = linear_programs._proved(rows, "l1", fmpq_mat([[1, 0], [0, 1]]), [fmpq(1), fmpq(1), fmpq(0)], 0)
    assert right.value == 2
    with pytest.raises(ArithmeticError, match="the optimality conditions do not hold"):
        linear_programs._proved(rows, "l1", fmpq_mat(W), [fmpq(y) for y in multipliers], 0)


@pytest.mark.parametrize("norm", ["frobenius", "nuclear", "spectral", "l1", "linf", "l3", "l1.5"])
def test_norm_enclosures_contain_the_norm(norm):
    rng = np.random.default_rng(2)
    W = rng.standard_normal((3, 4))
    rows = exact_rows(np.eye(3), np.eye(4), [0, 1, 2])
    matrix = repair(rows, W + 10.0)  # any rational matrix
    floats = np.array([to_float(x) for x in matrix.entries()]).reshape(3, 4)
    assert float(norm_enclosure(matrix, get_norm(norm))) == pytest.approx(get_norm(norm)(floats), rel=1e-12)
    assert rational(0.5) == rational(Fraction(1, 2))


@pytest.mark.parametrize("seed", range(5))
def test_factors_bound_least_eigenvalues_from_below(seed):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((60, 20))
    gram = rows.T @ rows
    least = float(np.linalg.eigvalsh(gram)[0])
    bound = factor_bound(gram, 0.9 * least)
    assert 0.89 * least < bound <= 0.9 * least
    assert factor_bound(gram, 1.1 * least) == 0.0
    assert factor_bound(rows[:10].T @ rows[:10], 1e-20) == 0.0  # of rank 10: rounding alone may let it pass
    assert factor_bound(np.full((2, 2), np.nan), 1e-3) == 0.0


@pytest.mark.parametrize("scale", [0.25, 4.0])
def test_a_row_is_missed_by_a_share_of_its_right_hand_side(scale):
    """Dependent rows, so that only scaling proves: W = 0.9 of the least feasible w costs the tenth that is missing."""
    problem = MarginProblem([[1.0], [2.0]], [[1.0]], [0, 0], scale * np.array([1.0, 2.0]))
    W = np.array([[0.9 * scale]])
    cost = feasibility_cost(problem, W, problem.margins(W) - problem.rhs, 0.0, 1e-15, 0.9 * scale)
    assert cost == pytest.approx(0.1 * scale, rel=1e-5)  # of which 1e-6 covers roundings
