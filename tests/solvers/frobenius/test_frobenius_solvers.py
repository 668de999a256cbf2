"""Both Frobenius solvers: against the reference, on degenerate rows, under changes that must not matter."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attsvm.solvers import MarginProblem, Status, certify_infeasible, solve
from attsvm.solvers.rows import pairs as rows_module
from kkt import assert_optimal, random_rows
from solver_api import replaced

SOLVERS = ("active_set", "working_set")
both = pytest.mark.parametrize("run", SOLVERS)


def nearly_contradictory(rng, angle: float) -> MarginProblem:
    """Random rows and two more that are opposite up to ``angle``: the norm is about 1 / angle."""
    problem = random_rows(rng, 6, 8, 10)
    u, v = np.linalg.qr(rng.standard_normal((10, 2)))[0].T
    return MarginProblem(
        np.vstack([problem.rows.a, u, -u + angle * v]), problem.rows.queries, np.append(problem.owner, [0, 0])
    )  # fmt: skip


@both
@pytest.mark.parametrize(
    ("n", "T", "d", "dz"),
    [
        (6, 8, 10, 10),
        (20, 20, 50, 50),
        (6, 8, 10, 4),
        (6, 8, 3, 20),
        (10, 2, 5, 5),
        (1, 9, 10, 3),
        (1, 2, 4, 4),
        (30, 6, 8, 8),
    ],
)
def test_agrees_with_the_reference(rng, run, n, T, d, dz):
    problem = random_rows(rng, n, T, d, dz)
    result = solve(problem, solver=run)
    assert result.status is Status.OPTIMAL
    assert result.solver == run
    # Both solvers aim at 1e-10 and the default tolerance is 1e-8; the optimality conditions add up a few of them.
    assert result.certificate.worst <= 1e-9
    assert_optimal(problem, result.W, result.multipliers, "frobenius", 1e-8)
    if n * T < 400:  # the reference takes seconds on the largest one
        # CLARABEL's gap is below 1e-7.
        assert result.norm == pytest.approx(solve(problem, "frobenius", "cvxpy").norm, rel=1e-7)


@both
@pytest.mark.parametrize("equalities", [1, 5, 42])
def test_equality_rows_and_general_right_hand_sides(rng, run, equalities):
    problem = random_rows(rng, 6, 8, 10, equalities=equalities)
    problem = replaced(problem, rhs=rng.standard_normal(problem.m))
    result = solve(problem, solver=run)
    assert result.status is Status.OPTIMAL
    # Multipliers of either sign on equality rows; conditioning of all 42 rows as equalities is about 1e3.
    assert_optimal(problem, result.W, result.multipliers, "frobenius", 1e-8)
    assert result.norm == pytest.approx(solve(problem, "frobenius", "cvxpy").norm, rel=1e-7)


def duplicated(rng):
    problem = random_rows(rng, 6, 8, 10)
    twice = MarginProblem(
        np.vstack([problem.rows.a, problem.rows.a]), problem.rows.queries, np.append(problem.owner, problem.owner)
    )  # fmt: skip
    return twice, problem


def collinear(rng):
    problem = random_rows(rng, 6, 8, 10)
    a = problem.rows.a.copy()
    a[3], a[10] = 2.0 * a[4], 0.5 * a[9]  # row 3 follows from row 4, row 9 from row 10
    return replaced(problem, a=a), replaced(problem, a=a).gather(np.setdiff1d(np.arange(problem.m), [3, 9]))


def zero_rows_that_ask_nothing(rng):
    problem = random_rows(rng, 6, 8, 10)
    queries, rhs = problem.rows.queries.copy(), problem.rhs.copy()
    queries[2], rhs[problem.owner == 2] = 0.0, -0.5
    return replaced(problem, queries=queries, rhs=rhs), problem.gather(problem.owner != 2)


def unused_queries(rng):
    problem = random_rows(rng, 6, 8, 10)
    return replaced(problem, queries=np.vstack([problem.rows.queries, rng.standard_normal((3, 10))])), problem


def redundant_equalities(rng):
    x, level = rng.standard_normal((4, 6)), rng.standard_normal(4)
    pairs = np.array([(i, j) for i in range(4) for j in range(i)])
    z = rng.standard_normal((1, 6))
    a, rhs = x[pairs[:, 0]] - x[pairs[:, 1]], level[pairs[:, 0]] - level[pairs[:, 1]]
    full = MarginProblem(a, z, [0] * 6, rhs, [True] * 6)
    return full, full.gather([0, 1, 3])  # the pairs (1,0), (2,0) and (3,0) imply the others


@both
@pytest.mark.parametrize(
    "pair", [duplicated, collinear, zero_rows_that_ask_nothing, unused_queries, redundant_equalities]
)
def test_degenerate_rows_change_nothing(rng, run, pair):
    degenerate, plain = pair(rng)
    result, expected = solve(degenerate, solver=run), solve(plain, solver=run)
    assert result.status is expected.status is Status.OPTIMAL
    # Each solution is certified to 1e-8 and W is unique and as stable as the gap's square root times a tiny
    # constant; in fact both are exact to 1e-10.
    np.testing.assert_allclose(result.W, expected.W, atol=1e-8)
    assert_optimal(degenerate, result.W, result.multipliers, "frobenius", 1e-8)


@both
@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_scale_of_the_rows_is_no_matter(rng, run, factor):
    problem = random_rows(rng, 6, 8, 10)
    result = solve(replaced(problem, a=factor * problem.rows.a), solver=run)
    assert result.status is Status.OPTIMAL
    # Scaling is exact up to rounding; 1e-9 is the accuracy aimed at.
    assert result.norm * factor == pytest.approx(solve(problem, solver=run).norm, rel=1e-9)


@both
def test_rows_of_very_different_sizes(rng, run):
    problem = random_rows(rng, 6, 8, 10)
    sizes = 10.0 ** rng.uniform(-3, 3, problem.m)
    uneven = solve(replaced(problem, a=problem.rows.a * sizes[:, None]), solver=run)
    same = solve(replaced(problem, rhs=1 / sizes), solver=run)  # the same rows divided by their sizes
    assert uneven.status is Status.OPTIMAL
    assert uneven.certificate.worst <= 1e-8
    assert uneven.norm == pytest.approx(same.norm, rel=1e-8)


@both
@pytest.mark.parametrize("angle", [1e-2, 1e-4, 1e-6])
def test_nearly_contradictory_rows_are_feasible(rng, run, angle):
    problem = nearly_contradictory(rng, angle)
    result = solve(problem, solver=run)
    assert result.status is Status.OPTIMAL  # the certificate decides, with a norm of up to 2e6 row norms
    assert result.norm > 0.5 / angle
    # W misses its rows by at most the default tolerance.
    assert problem.margins(result.W).min() >= 1 - 1e-8


@both
def test_a_norm_of_zero(rng, run):
    problem = random_rows(rng, 4, 4, 5, equalities=2)
    rhs = np.where(problem.equality, 0.0, -rng.random(problem.m))
    result = solve(replaced(problem, rhs=rhs), solver=run)
    assert result.status is Status.OPTIMAL
    assert result.norm == 0.0 and not result.W.any() and not result.multipliers.any()


def test_small_and_large_solvers_agree_where_pivoting_is_not_enough(rng):
    # 1140 rows for 400 dimensions: the first rounds of pivoting fail and the fallbacks of both solvers run.
    problem = random_rows(rng, 60, 20, 20)
    small, large = solve(problem, solver="active_set"), solve(problem, solver="working_set")
    assert small.status is large.status is Status.OPTIMAL
    # Both certificates are below 1e-9, so norms agree to that and W to its square root at worst.
    np.testing.assert_allclose(large.W, small.W, atol=1e-7 * small.norm)
    assert large.norm == pytest.approx(small.norm, rel=1e-9)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_large_problem_with_ragged_rows_in_any_order(rng, dtype):
    problem = random_rows(rng, 80, 30, 40)
    shuffled = problem.gather(rng.permutation(problem.m)[:-7])
    shuffled = replaced(shuffled, a=shuffled.rows.a.astype(dtype), queries=shuffled.rows.queries.astype(dtype))
    assert shuffled.rows.block == 0
    result = solve(shuffled)
    assert (result.solver, result.status) == ("working_set", Status.OPTIMAL)
    # Residuals are float64 whatever the rows are: single precision costs no accuracy in the certificate.
    assert result.certificate.worst <= 1e-9
    exact = solve(shuffled, solver="active_set")
    assert result.norm == pytest.approx(exact.norm, rel=1e-9)


@pytest.mark.parametrize("ragged", [False, True])
def test_single_precision_rows_are_widened_by_chunks(rng, monkeypatch, ragged):
    problem = random_rows(rng, 9, 5, 7)
    problem = problem.gather(np.arange(31)) if ragged else problem
    single = replaced(problem, a=problem.rows.a.astype(np.float32))
    double = replaced(single, a=single.rows.a.astype(np.float64))
    monkeypatch.setattr(rows_module, "CHUNK_ELEMENTS", 60)  # two blocks of four rows, or eight rows, at a time
    W, lam = rng.standard_normal(problem.shape), rng.standard_normal(problem.m)
    # The same float64 products, in chunks: only the order of additions may differ.
    np.testing.assert_allclose(single.margins(W), double.margins(W), atol=1e-14)
    np.testing.assert_allclose(single.adjoint(lam), double.adjoint(lam), atol=1e-13)
    np.testing.assert_allclose(single.row_norms, double.row_norms, rtol=1e-14)


def test_choice_by_size(rng):
    assert solve(random_rows(rng, 6, 8, 10)).solver == "active_set"
    assert solve(random_rows(rng, 60, 30, 40)).solver == "working_set"


@both
def test_warm_start_from_a_similar_problem(rng, run):
    problem = random_rows(rng, 30, 10, 25)
    similar = replaced(problem, a=problem.rows.a + 1e-3 * rng.standard_normal(problem.rows.a.shape))
    neighbour, cold = solve(similar, solver=run), solve(problem, solver=run)
    for start in (neighbour, neighbour.multipliers):
        warm = solve(problem, solver=run, warm_start=start)
        assert warm.iterations <= cold.iterations
        # The same unique W, each certified to 1e-10 or better.
        np.testing.assert_allclose(warm.W, cold.W, atol=1e-8 * cold.norm)
    assert solve(problem, solver=run, warm_start=cold).iterations <= 2


@both
def test_useless_warm_starts_are_harmless(rng, run):
    problem = random_rows(rng, 6, 8, 10)
    expected = solve(problem, solver=run).norm
    other = random_rows(rng, 6, 8, 10)
    a = np.vstack([other.rows.a[1:], -2.0 * other.rows.a[5]])
    contradiction = MarginProblem(a, other.rows.queries, np.append(other.owner[1:], other.owner[5]))
    hopeless = solve(contradiction, solver=run)
    assert hopeless.status is Status.INFEASIBLE
    starts = [np.zeros(problem.m), -np.ones(problem.m), 1e9 * rng.random(problem.m), hopeless]
    for start in starts:
        assert solve(problem, solver=run, warm_start=start).norm == pytest.approx(expected, rel=1e-9)


@both
def test_bad_warm_starts_are_refused(rng, run):
    problem = random_rows(rng, 2, 3, 4)
    message = "warm_start must hold multipliers of shape (4,), one per row, got (3,)"
    with pytest.raises(ValueError, match=re.escape(message)):
        solve(problem, solver=run, warm_start=np.ones(3))
    with pytest.raises(ValueError, match="warm_start must be finite"):
        solve(problem, solver=run, warm_start=np.full(4, np.nan))


@pytest.mark.parametrize(("run", "rounds"), [("active_set", 1), ("working_set", 1), ("working_set", 2)])
def test_an_early_stop_is_reported_with_its_gap(rng, run, rounds):
    problem = random_rows(rng, 30, 10, 25)
    result = solve(problem, solver=run, max_iterations=rounds)
    assert result.status is Status.INACCURATE
    assert result.iterations == rounds
    best = solve(problem, solver=run).norm
    certificate = result.certificate
    assert np.isfinite(certificate.worst) and certificate.worst > 1e-8
    assert certificate.lower_bound <= best * (1 + 1e-9)  # what was proved stays true
    assert certificate.gap == pytest.approx(abs(result.norm - certificate.lower_bound) / result.norm)


def test_tolerance_decides_the_status(rng):
    problem = random_rows(rng, 30, 10, 25)
    early = solve(problem, solver="working_set", max_iterations=3)
    assert early.status is Status.INACCURATE
    generous = solve(problem, solver="working_set", max_iterations=3, tolerance=2 * early.certificate.worst)
    assert generous.status is Status.OPTIMAL


@both
@given(seed=st.integers(0, 10_000), n=st.integers(1, 6), T=st.integers(2, 6), d=st.integers(3, 8), dz=st.integers(3, 8))
def test_scaling_rotation_permutation_and_duality(run, seed, n, T, d, dz):
    rng = np.random.default_rng(seed)
    problem = random_rows(rng, n, T, d, dz)
    result = solve(problem, solver=run)
    if result.status is Status.INFEASIBLE:
        assert certify_infeasible(problem, result.certificate.farkas.multipliers) is not None
        return
    assert result.status is Status.OPTIMAL
    lam, norm = result.multipliers, result.norm
    # Duality: rhs . lam = |W|, and W(lam) = W / |W|. The certificate is below 1e-8; W errs by its root at worst,
    # by about 1e-9 in fact.
    assert problem.rhs @ lam == pytest.approx(norm, rel=1e-8)
    np.testing.assert_allclose(problem.adjoint(lam) * norm, result.W, atol=1e-7 * norm)

    left = np.linalg.qr(rng.standard_normal((d, d)))[0]
    right = np.linalg.qr(rng.standard_normal((dz, dz)))[0]
    turned = solve(replaced(problem, a=problem.rows.a @ left.T, queries=problem.rows.queries @ right.T), solver=run)
    np.testing.assert_allclose(turned.W, left @ result.W @ right.T, atol=1e-7 * norm)

    order = rng.permutation(problem.m)
    np.testing.assert_allclose(solve(problem.gather(order), solver=run).W, result.W, atol=1e-7 * norm)

    scaled = solve(replaced(problem, rhs=3.0 * problem.rhs, queries=2.0 * problem.rows.queries), solver=run)
    np.testing.assert_allclose(scaled.W, 1.5 * result.W, atol=1e-7 * norm)


def test_dependent_rows_are_pivoted_from_a_guess(monkeypatch):
    from attsvm.solvers.frobenius import active_set

    rng = np.random.default_rng(0)
    a, queries = rng.normal(size=(180, 10)), rng.normal(size=(20, 12))  # 180 rows in 120 dimensions
    owner = np.repeat(np.arange(20), 9)
    a *= np.sign(np.einsum("kd,de,ke->k", a, rng.normal(size=(10, 12)), queries[owner]))[:, None]  # some W separates
    problem = MarginProblem(a, queries, owner)
    reference = solve(problem, solver="working_set")

    def refuse(*_):
        raise AssertionError("DAQP is not needed")

    monkeypatch.setattr(active_set, "by_distance", refuse)
    found = solve(problem)
    assert found.solver == "active_set" and found.status == "optimal"
    assert found.norm == pytest.approx(reference.norm, rel=1e-7)  # what both certificates prove
