import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attsvm.solvers import InfeasibleError, MarginProblem, Norm, Status, certify_infeasible, margin, solve
from attsvm.solvers.active_set import Scaling, solve_active_set
from attsvm.solvers.conflict import find_conflict
from attsvm.solvers.dual_steps import dual_active_set
from attsvm.solvers.free_rows import FreeRows, conjugate_gradient
from attsvm.solvers.frobenius import solve_frobenius
from attsvm.solvers.projected import _projected_newton, solve_projected
from attsvm.solvers.unit_dual import UnitDual
from kkt import assert_optimal, dense_rows, random_rows

FROBENIUS = Norm("frobenius")
SOLVERS = {"active-set": solve_active_set, "projected": solve_projected}
both = pytest.mark.parametrize("run", SOLVERS.values(), ids=SOLVERS.keys())


def replaced(problem: MarginProblem, **changes) -> MarginProblem:
    fields = {name: getattr(problem, name) for name in ("a", "queries", "owner", "rhs", "equality")}
    return MarginProblem(**(fields | changes))


def nearly_contradictory(rng, angle: float) -> MarginProblem:
    """Random rows and two more that are opposite up to ``angle``: the norm is about 1 / angle."""
    problem = random_rows(rng, 6, 8, 10)
    u, v = np.linalg.qr(rng.standard_normal((10, 2)))[0].T
    return MarginProblem(
        np.vstack([problem.a, u, -u + angle * v]), problem.queries, np.append(problem.owner, [0, 0])
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
    result = run(problem, FROBENIUS)
    assert result.status is Status.OPTIMAL
    assert result.solver in SOLVERS
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
    result = run(problem, FROBENIUS)
    assert result.status is Status.OPTIMAL
    # Multipliers of either sign on equality rows; conditioning of all 42 rows as equalities is about 1e3.
    assert_optimal(problem, result.W, result.multipliers, "frobenius", 1e-8)
    assert result.norm == pytest.approx(solve(problem, "frobenius", "cvxpy").norm, rel=1e-7)


def duplicated(rng):
    problem = random_rows(rng, 6, 8, 10)
    twice = MarginProblem(
        np.vstack([problem.a, problem.a]), problem.queries, np.append(problem.owner, problem.owner)
    )  # fmt: skip
    return twice, problem


def collinear(rng):
    problem = random_rows(rng, 6, 8, 10)
    a = problem.a.copy()
    a[3], a[10] = 2.0 * a[4], 0.5 * a[9]  # row 3 follows from row 4, row 9 from row 10
    return replaced(problem, a=a), replaced(problem, a=a).subset(np.setdiff1d(np.arange(problem.m), [3, 9]))


def zero_rows_that_ask_nothing(rng):
    problem = random_rows(rng, 6, 8, 10)
    queries, rhs = problem.queries.copy(), problem.rhs.copy()
    queries[2], rhs[problem.owner == 2] = 0.0, -0.5
    return replaced(problem, queries=queries, rhs=rhs), problem.subset(problem.owner != 2)


def unused_queries(rng):
    problem = random_rows(rng, 6, 8, 10)
    return replaced(problem, queries=np.vstack([problem.queries, rng.standard_normal((3, 10))])), problem


def redundant_equalities(rng):
    x, level = rng.standard_normal((4, 6)), rng.standard_normal(4)
    pairs = np.array([(i, j) for i in range(4) for j in range(i)])
    z = rng.standard_normal((1, 6))
    a, rhs = x[pairs[:, 0]] - x[pairs[:, 1]], level[pairs[:, 0]] - level[pairs[:, 1]]
    full = MarginProblem(a, z, [0] * 6, rhs, [True] * 6)
    return full, full.subset([0, 1, 3])  # the pairs (1,0), (2,0) and (3,0) imply the others


@both
@pytest.mark.parametrize(
    "pair", [duplicated, collinear, zero_rows_that_ask_nothing, unused_queries, redundant_equalities]
)
def test_degenerate_rows_change_nothing(rng, run, pair):
    degenerate, plain = pair(rng)
    result, expected = run(degenerate, FROBENIUS), run(plain, FROBENIUS)
    assert result.status is expected.status is Status.OPTIMAL
    # Each solution is certified to 1e-8 and W is unique and as stable as the gap's square root times a tiny
    # constant; in fact both are exact to 1e-10.
    np.testing.assert_allclose(result.W, expected.W, atol=1e-8)
    assert_optimal(degenerate, result.W, result.multipliers, "frobenius", 1e-8)


@both
@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_scale_of_the_rows_is_no_matter(rng, run, factor):
    problem = random_rows(rng, 6, 8, 10)
    result = run(replaced(problem, a=factor * problem.a), FROBENIUS)
    assert result.status is Status.OPTIMAL
    # Scaling is exact up to rounding; 1e-9 is the accuracy aimed at.
    assert result.norm * factor == pytest.approx(run(problem, FROBENIUS).norm, rel=1e-9)


@both
def test_rows_of_very_different_sizes(rng, run):
    problem = random_rows(rng, 6, 8, 10)
    sizes = 10.0 ** rng.uniform(-3, 3, problem.m)
    uneven = run(replaced(problem, a=problem.a * sizes[:, None]), FROBENIUS)
    same = run(replaced(problem, rhs=1 / sizes), FROBENIUS)  # the same rows divided by their sizes
    assert uneven.status is Status.OPTIMAL
    assert uneven.certificate.worst <= 1e-8
    assert uneven.norm == pytest.approx(same.norm, rel=1e-8)


@both
@pytest.mark.parametrize("angle", [1e-2, 1e-4, 1e-6])
def test_nearly_contradictory_rows_are_feasible(rng, run, angle):
    problem = nearly_contradictory(rng, angle)
    result = run(problem, FROBENIUS)
    assert result.status is Status.OPTIMAL  # the certificate decides, with a norm of up to 2e6 row norms
    assert result.norm > 0.5 / angle
    # W misses its rows by at most the default tolerance.
    assert problem.margins(result.W).min() >= 1 - 1e-8


@both
def test_a_norm_of_zero(rng, run):
    problem = random_rows(rng, 4, 4, 5, equalities=2)
    rhs = np.where(problem.equality, 0.0, -rng.random(problem.m))
    result = run(replaced(problem, rhs=rhs), FROBENIUS)
    assert result.status is Status.OPTIMAL
    assert result.norm == 0.0 and not result.W.any() and not result.multipliers.any()


def opposite_rows(rng):
    problem = random_rows(rng, 6, 8, 10)
    return MarginProblem(
        np.vstack([problem.a, -2.0 * problem.a[5]]), problem.queries, np.append(problem.owner, problem.owner[5])
    )  # fmt: skip


def too_many_rows(rng):
    return random_rows(rng, 40, 12, 4)


def zero_query(rng):
    problem = random_rows(rng, 6, 8, 10)
    queries = problem.queries.copy()
    queries[2] = 0.0
    return replaced(problem, queries=queries)


def inconsistent_equalities(rng):
    full, _ = redundant_equalities(rng)
    rhs = full.rhs.copy()
    rhs[0] += 0.1
    return replaced(full, rhs=rhs)


def equality_against_inequality(rng):
    problem = random_rows(rng, 4, 4, 6)
    a = np.vstack([problem.a, problem.a[0]])
    equality = np.zeros(len(a), dtype=bool)
    equality[-1] = True
    return MarginProblem(a, problem.queries, np.append(problem.owner, 0), np.append(problem.rhs, 0.5), equality)


@both
@pytest.mark.parametrize(
    "build", [opposite_rows, too_many_rows, zero_query, inconsistent_equalities, equality_against_inequality]
)
@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e6])
def test_infeasible_rows_come_with_a_proof(rng, run, build, factor):
    problem = build(rng)
    problem = replaced(problem, a=factor * problem.a)
    result = run(problem, FROBENIUS)
    assert result.status is Status.INFEASIBLE
    farkas = result.certificate.farkas
    assert (farkas.multipliers[~problem.equality] >= 0).all()
    assert problem.rhs @ farkas.multipliers == pytest.approx(1.0)
    # The acceptance level of certificates, recomputed from dense rows.
    F = dense_rows(problem)
    left_over = np.linalg.norm(F.T @ farkas.multipliers)
    assert left_over <= 1e-9 * (np.abs(farkas.multipliers) @ np.linalg.norm(F, axis=1))
    with pytest.raises(InfeasibleError, match="no W satisfies all rows"):
        _ = result.W


def test_small_and_large_solvers_agree_where_pivoting_is_not_enough(rng):
    # 1140 rows for 400 dimensions: the first rounds of pivoting fail and the fallbacks of both solvers run.
    problem = random_rows(rng, 60, 20, 20)
    small, large = solve_active_set(problem, FROBENIUS), solve_projected(problem, FROBENIUS)
    assert small.status is large.status is Status.OPTIMAL
    # Both certificates are below 1e-9, so norms agree to that and W to its square root at worst.
    np.testing.assert_allclose(large.W, small.W, atol=1e-7 * small.norm)
    assert large.norm == pytest.approx(small.norm, rel=1e-9)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_large_problem_with_ragged_rows_in_any_order(rng, dtype):
    problem = random_rows(rng, 80, 30, 40)
    shuffled = problem.subset(rng.permutation(problem.m)[:-7])
    shuffled = replaced(shuffled, a=shuffled.a.astype(dtype), queries=shuffled.queries.astype(dtype))
    assert shuffled.block == 0
    result = solve_frobenius(shuffled, FROBENIUS)
    assert (result.solver, result.status) == ("projected", Status.OPTIMAL)
    # Residuals are float64 whatever the rows are: single precision costs no accuracy in the certificate.
    assert result.certificate.worst <= 1e-9
    exact = solve_active_set(shuffled, FROBENIUS)
    assert result.norm == pytest.approx(exact.norm, rel=1e-9)


@pytest.mark.parametrize("ragged", [False, True])
def test_single_precision_rows_are_widened_by_chunks(rng, monkeypatch, ragged):
    problem = random_rows(rng, 9, 5, 7)
    problem = problem.subset(np.arange(31)) if ragged else problem
    single = replaced(problem, a=problem.a.astype(np.float32))
    double = replaced(single, a=single.a.astype(np.float64))
    monkeypatch.setattr(margin, "_CHUNK_ELEMENTS", 60)  # two blocks of four rows, or eight rows, at a time
    W, lam = rng.standard_normal(problem.shape), rng.standard_normal(problem.m)
    # The same float64 products, in chunks: only the order of additions may differ.
    np.testing.assert_allclose(single.margins(W), double.margins(W), atol=1e-14)
    np.testing.assert_allclose(single.adjoint(lam), double.adjoint(lam), atol=1e-13)
    np.testing.assert_allclose(single.row_norms, double.row_norms, rtol=1e-14)


def test_choice_by_size(rng):
    assert solve_frobenius(random_rows(rng, 6, 8, 10), FROBENIUS).solver == "active-set"
    assert solve_frobenius(random_rows(rng, 60, 30, 40), FROBENIUS).solver == "projected"


@both
def test_warm_start_from_a_similar_problem(rng, run):
    problem = random_rows(rng, 30, 10, 25)
    similar = replaced(problem, a=problem.a + 1e-3 * rng.standard_normal(problem.a.shape))
    neighbour, cold = run(similar, FROBENIUS), run(problem, FROBENIUS)
    for start in (neighbour, neighbour.multipliers):
        warm = run(problem, FROBENIUS, warm_start=start)
        assert warm.iterations <= cold.iterations
        # The same unique W, each certified to 1e-10 or better.
        np.testing.assert_allclose(warm.W, cold.W, atol=1e-8 * cold.norm)
    assert run(problem, FROBENIUS, warm_start=cold).iterations <= 2


@both
def test_useless_warm_starts_are_harmless(rng, run):
    problem = random_rows(rng, 6, 8, 10)
    expected = run(problem, FROBENIUS).norm
    contradiction = opposite_rows(rng).subset(np.arange(1, problem.m + 1))
    hopeless = run(contradiction, FROBENIUS)
    assert hopeless.status is Status.INFEASIBLE
    starts = [np.zeros(problem.m), -np.ones(problem.m), 1e9 * rng.random(problem.m), hopeless]
    for start in starts:
        assert run(problem, FROBENIUS, warm_start=start).norm == pytest.approx(expected, rel=1e-9)


@both
def test_bad_warm_starts_are_refused(rng, run):
    problem = random_rows(rng, 2, 3, 4)
    with pytest.raises(ValueError, match=r"warm_start must hold 4 multipliers, one per row, got shape \(3,\)"):
        run(problem, FROBENIUS, warm_start=np.ones(3))
    with pytest.raises(ValueError, match="warm_start must be finite"):
        run(problem, FROBENIUS, warm_start=np.full(4, np.nan))


@pytest.mark.parametrize(("run", "rounds"), [(solve_active_set, 1), (solve_projected, 1), (solve_projected, 2)])
def test_an_early_stop_is_reported_with_its_gap(rng, run, rounds):
    problem = random_rows(rng, 30, 10, 25)
    result = run(problem, FROBENIUS, max_iterations=rounds)
    assert result.status is Status.INACCURATE
    assert result.iterations == rounds
    best = run(problem, FROBENIUS).norm
    certificate = result.certificate
    assert np.isfinite(certificate.worst) and certificate.worst > 1e-8
    assert certificate.lower_bound <= best * (1 + 1e-9)  # what was proved stays true
    assert certificate.gap == pytest.approx(abs(result.norm - certificate.lower_bound) / result.norm)


def test_tolerance_decides_the_status(rng):
    problem = random_rows(rng, 30, 10, 25)
    early = solve_projected(problem, FROBENIUS, max_iterations=3)
    assert early.status is Status.INACCURATE
    generous = solve_projected(problem, FROBENIUS, max_iterations=3, tolerance=2 * early.certificate.worst)
    assert generous.status is Status.OPTIMAL


@both
@given(seed=st.integers(0, 10_000), n=st.integers(1, 6), T=st.integers(2, 6), d=st.integers(3, 8), dz=st.integers(3, 8))
def test_scaling_rotation_permutation_and_duality(run, seed, n, T, d, dz):
    rng = np.random.default_rng(seed)
    problem = random_rows(rng, n, T, d, dz)
    result = run(problem, FROBENIUS)
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
    turned = run(replaced(problem, a=problem.a @ left.T, queries=problem.queries @ right.T), FROBENIUS)
    np.testing.assert_allclose(turned.W, left @ result.W @ right.T, atol=1e-7 * norm)

    order = rng.permutation(problem.m)
    np.testing.assert_allclose(run(problem.subset(order), FROBENIUS).W, result.W, atol=1e-7 * norm)

    scaled = run(replaced(problem, rhs=3.0 * problem.rhs, queries=2.0 * problem.queries), FROBENIUS)
    np.testing.assert_allclose(scaled.W, 1.5 * result.W, atol=1e-7 * norm)


def test_gram_products_and_preconditioned_conjugate_gradients(rng):
    problem = random_rows(rng, 7, 9, 12, 10)
    for kept in (np.arange(problem.m), rng.permutation(problem.m)[:31], rng.permutation(problem.m)[:5]):
        rows = FreeRows(problem, 1 / problem.row_norms, kept, ridge=0.1)
        F = dense_rows(problem)[kept] / problem.row_norms[kept, None]
        system = F @ F.T + 0.1 * np.eye(len(kept))
        x = rng.standard_normal(len(kept))
        np.testing.assert_allclose(rows.gram_product(x), system @ x, atol=1e-12)  # a few dozen terms of size 1
        np.testing.assert_allclose(rows.dense_solve(x), np.linalg.solve(system, x), atol=1e-10)
        found, steps, ending = conjugate_gradient(rows, x, 1e-12, 200)
        assert ending == "solved" and steps <= len(kept)
        np.testing.assert_allclose(found, np.linalg.solve(system, x), atol=1e-9)


def test_conjugate_gradients_report_a_direction_without_curvature():
    rows = MarginProblem([[1.0], [-1.0]], [[1.0], [1.0]], [0, 1])
    direction, _, ending = conjugate_gradient(FreeRows(rows, np.ones(2), np.arange(2)), np.ones(2), 1e-9, 10)
    assert ending == "singular"
    np.testing.assert_allclose(rows.adjoint(direction), 0.0, atol=1e-12)


def test_projected_newton_converges_from_anywhere(rng):
    problem = random_rows(rng, 12, 8, 9)
    expected = solve_active_set(problem, FROBENIUS)
    dual = UnitDual(problem)
    for start in (np.zeros(problem.m), 100.0 * rng.random(problem.m)):
        point, _ = _projected_newton(dual, start, 1e-10, 200)
        assert point.error <= 1e-10
        np.testing.assert_allclose(point.W * dual.scaling.scale, expected.W, atol=1e-8 * expected.norm)


def test_conflict_search_finds_a_proof_or_a_feasible_matrix(rng):
    hopeless, fine = too_many_rows(rng), random_rows(rng, 10, 6, 12)
    proof, W = find_conflict(hopeless, 1 / hopeless.row_norms, np.zeros(hopeless.shape))
    assert W is None and proof.farkas.verified
    proof, W = find_conflict(fine, 1 / fine.row_norms, np.zeros(fine.shape))
    assert proof is None
    assert fine.margins(W).min() >= 1 - 1e-12  # the search stops at a shortfall of 1e-13 of the largest


@pytest.mark.parametrize("start", [[], [0, 1, 2], np.arange(35)])
def test_dual_steps_from_any_start(rng, start):
    problem = random_rows(rng, 7, 6, 9)
    scaling = Scaling(problem)
    reduction, index = scaling.unit_rows()
    outcome = dual_active_set(reduction.problem, np.array(start, dtype=np.int64), 1000)
    assert outcome.finished and not outcome.conflict
    expected = solve_active_set(problem, FROBENIUS)
    # Orthonormal bases keep this exact to a few hundred roundings.
    np.testing.assert_allclose(scaling.scale * reduction.lift(outcome.W), expected.W, atol=1e-11 * expected.norm)
    np.testing.assert_array_equal(index, np.arange(problem.m))


def test_dual_steps_stop_at_their_limit(rng):
    problem = random_rows(rng, 7, 6, 9)
    reduction, _ = Scaling(problem).unit_rows()
    outcome = dual_active_set(reduction.problem, np.array([], dtype=np.int64), 2)
    assert not outcome.finished and outcome.steps == 2
