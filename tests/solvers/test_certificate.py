import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attsvm.solvers import MarginProblem, Status, certify, certify_infeasible, find_farkas, solve
from attsvm.solvers.library import diagonal, library, zero_solution
from attsvm.solvers.planted import narrow, planted_frobenius, planted_nuclear
from kkt import dense_rows, norm_and_dual, random_rows
from solver_api import certify_as_batch, farkas_as_batch, rows_of


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


# -- every field by its definition, from dense rows --------------------------------------------------------------


def fields_by_definition(problem, W, lam, norm, tolerance=None):
    """What `Certificate` and `RankCertificate` document, computed the long way."""
    _, _, _, rhs, equality = rows_of(problem)
    primal, dual = norm_and_dual(norm)
    F = dense_rows(problem)
    values = F @ W.ravel()
    missed = [abs(v - c) if e else max(c - v, 0.0) for v, c, e in zip(values, rhs, equality, strict=True)]
    clipped = np.array([x if e or x > 0 else 0.0 for x, e in zip(lam, equality, strict=True)])
    D = (F.T @ clipped).reshape(W.shape)
    value, size, objective = float(primal(W)), float(dual(D)), float(sum(rhs * clipped))
    lower = objective / size if objective > 0 and size > 0 else 0.0
    scale = value or 1.0
    found = {
        "primal_violation": max(x / max(1.0, abs(c)) for x, c in zip(missed, rhs, strict=True)),
        "dual_violation": max(size - 1.0, 0.0, *((clipped - lam) * np.linalg.norm(F, axis=1))),
        "gap": abs(value - lower) / scale,
        "complementarity": max(abs(x * (v - c)) for x, v, c in zip(clipped, values, rhs, strict=True)) / scale,
        "norm": value,
        "lower_bound": lower,
    }
    found["worst"] = max(found["gap"], found["primal_violation"], found["dual_violation"])
    if norm != "nuclear":
        return found
    cut = max(1e-8, found["gap"] ** 0.5) if tolerance is None else tolerance
    sigma, delta = (np.linalg.svd(matrix, compute_uv=False) for matrix in (W, D))
    delta = delta / max(1.0, delta[0])
    rank, numerical = sum(delta >= 1 - cut), sum(sigma > cut * sigma[0])
    after, before = (*sigma, 0.0)[numerical], sigma[max(numerical - 1, 0)]
    dual_gap = 1 - (*delta, 0.0)[rank]
    return found | {
        "rank": rank, "numerical_rank": numerical, "rank_tolerance": cut, "dual_gap": dual_gap,
        "singular_gap": before / after if numerical and after > 0 else np.inf,
        "outside_mass": found["gap"] / dual_gap,
    }  # fmt: skip


def fields_of(certificate):
    names = ("primal_violation", "dual_violation", "gap", "complementarity", "norm", "lower_bound", "worst")
    found = {name: getattr(certificate, name) for name in names}
    rank = certificate.rank_certificate
    if rank is None:
        assert certificate.rank is None
        return found
    assert certificate.rank == rank.rank
    names = ("rank", "numerical_rank", "dual_gap", "singular_gap", "outside_mass")
    return found | {name: getattr(rank, name) for name in names} | {"rank_tolerance": rank.tolerance}


def some_pairs(norm, seed):
    """Problems of one size with pairs of every quality: slightly off (well above rounding), and anything at all."""
    rng = np.random.default_rng(seed)
    make = planted_nuclear if norm == "nuclear" else planted_frobenius
    for error in (1e-7, 1e-5, 1e-3, 1.0, 10.0):
        entry = make(5, 4, equalities=2, value=float(rng.uniform(0.5, 5)), seed=int(rng.integers(1000)))
        W = entry.W + error * rng.standard_normal(entry.W.shape)
        lam = entry.multipliers + error * rng.standard_normal(entry.problem.m)
        yield entry.problem, W, lam
        a, queries, owner, rhs, equality = rows_of(entry.problem)
        yield MarginProblem(a, queries, owner, 10 * rhs, equality), W, -lam  # large right-hand sides, wrong signs


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("norm", ["frobenius", "nuclear", "spectral", "l1", "linf"])
def test_every_field_is_what_its_definition_says(norm, seed):
    for problem, W, lam in some_pairs(norm, seed):
        expected = fields_by_definition(problem, W, lam, norm)
        found = fields_of(certify(problem, W, lam, norm))
        assert found.keys() == expected.keys()
        for name, value in expected.items():  # rounding of sums of about 50 terms of size 10
            assert found[name] == pytest.approx(value, rel=1e-6, abs=1e-12), name


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_a_batch_of_certificates_has_the_same_fields(norm, seed):
    problems, W, lam = zip(*some_pairs(norm, seed), strict=True)
    together = certify_as_batch(problems, np.array(W), np.array(lam), norm)
    for problem, matrix, multipliers, found in zip(problems, W, lam, together, strict=True):
        expected = fields_by_definition(problem, matrix, multipliers, norm)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name] == pytest.approx(value, rel=1e-6, abs=1e-12), name


@pytest.mark.parametrize("cut", [1e-12, 0.05, 0.3, 0.6, 0.95])
def test_ranks_are_cut_where_asked(cut):
    for seed in range(5):
        entry = planted_nuclear(6, 5, rank=2, seed=seed)  # dual singular values 1, 1 and some in (0.2, 0.8)
        W = entry.W + 0.01 * np.random.default_rng(seed).standard_normal(entry.W.shape)
        expected = fields_by_definition(entry.problem, W, entry.multipliers, "nuclear", cut)
        found = fields_of(certify(entry.problem, W, entry.multipliers, "nuclear", rank_tolerance=cut))
        for name, value in expected.items():
            assert found[name] == pytest.approx(value, rel=1e-6, abs=1e-12), name


def test_nothing_has_rank_zero():
    problem = zero_solution().problem
    none = np.zeros(problem.shape), np.zeros(problem.m)
    alone = fields_of(certify(problem, *none, "nuclear"))
    together = certify_as_batch([problem], none[0][None], none[1][None], "nuclear")[0]
    for found in (alone, together):
        assert (found["rank"], found["numerical_rank"]) == (0, 0)
        assert (found["gap"], found["norm"], found["dual_gap"], found["outside_mass"]) == (0.0, 0.0, 1.0, 0.0)
        assert found["singular_gap"] == np.inf


def test_full_rank_leaves_nothing_behind():
    problem = diagonal("nuclear").problem
    W, lam = np.diag([3.0, 1.0, 2.0]), np.ones(3)
    alone = fields_of(certify(problem, W, lam, "nuclear"))
    for found in (alone, certify_as_batch([problem], W[None], lam[None], "nuclear")[0]):
        assert (found["rank"], found["numerical_rank"], found["dual_gap"]) == (3, 3, 1.0)
        assert (found["gap"], found["rank_tolerance"]) == (0.0, 1e-8)
        assert found["singular_gap"] == np.inf


def test_multipliers_that_prove_nothing_give_no_bound():
    problem = MarginProblem([[1.0], [2.0]], [[1.0]], [0, 0], rhs=[1.0, -3.0])
    for lam in ([0.0, 0.0], [0.0, 1.0], [-1.0, 0.0]):  # nothing, a negative right-hand side, a wrong sign
        for found in (
            fields_of(certify(problem, [[1.0]], lam)),
            certify_as_batch([problem], np.ones((1, 1, 1)), np.array([lam]), "frobenius")[0],
        ):
            assert (found["lower_bound"], found["gap"]) == (0.0, 1.0)


@pytest.mark.parametrize("name", [entry.name for entry in library(tag="infeasible")])
def test_every_field_of_a_proof_is_what_its_definition_says(name):
    entry = next(entry for entry in library(tag="infeasible") if entry.name == name)
    _, _, owner, rhs, equality = rows_of(entry.problem)
    y = entry.multipliers
    given = np.where((y == 0) & ~equality, -2.0, 7.0 * y)  # any scale, and nonsense that must be set to 0
    farkas = certify_infeasible(entry.problem, given).farkas
    np.testing.assert_allclose(farkas.multipliers, y, rtol=1e-12, atol=1e-15)
    F = dense_rows(entry.problem)
    left, weight = np.linalg.norm(F.T @ y), np.abs(y) @ np.linalg.norm(F, axis=1)
    assert farkas.residual == pytest.approx(left / weight if weight else 0.0, abs=1e-15)
    assert farkas.cancellation == pytest.approx(np.abs(rhs) @ np.abs(y), rel=1e-12)
    assert farkas.excluded_norm >= 1e9  # rounding only: no W of ordinary size is left
    assert farkas.rows.tolist() == np.flatnonzero(y).tolist()
    assert farkas.owners.tolist() == sorted(set(owner[y != 0]))
    scaled, residual = farkas_as_batch([entry.problem], given[None])[0]
    np.testing.assert_allclose(scaled, y, rtol=1e-12, atol=1e-15)
    assert residual == pytest.approx(farkas.residual, abs=1e-15)


def test_what_is_almost_a_proof_excludes_small_norms_and_proves_nothing():
    for value in (1e3, 1e6):  # the rows cancel up to 1 / value
        entry = narrow(value)
        assert certify_infeasible(entry.problem, entry.multipliers) is None
        assert farkas_as_batch([entry.problem], entry.multipliers[None])[0][1] > 1e-9
    entry = narrow(1e12)  # too close to tell in this arithmetic, and the certificate says up to where
    assert certify_infeasible(entry.problem, entry.multipliers).farkas.excluded_norm == pytest.approx(1e12, rel=0.01)


def test_consistent_equalities_prove_nothing_in_a_batch_either():
    problems, candidates = [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        a, b, W = rng.standard_normal((6, 2)), rng.standard_normal((6, 2)), rng.standard_normal((2, 2))
        rhs = np.einsum("kd,de,ke->k", a, W, b)
        problem = MarginProblem(a, b, np.arange(6), rhs, np.ones(6, dtype=bool))
        null = np.linalg.svd(dense_rows(problem).T)[2][-1]  # cancels on both sides
        problems += [problem, problem]
        candidates += [null, -null]
    assert all(residual == np.inf for _, residual in farkas_as_batch(problems, np.array(candidates)))


def test_candidates_that_cannot_prove_anything_in_a_batch():
    rows = MarginProblem([[1.0], [-1.0]], [[1.0]], [0, 0])
    candidates = np.array([[0.0, 0.0], [-1.0, -1.0], [np.nan, 1.0], [1.0, 0.5], [3.0, 3.0]])
    found = [residual for _, residual in farkas_as_batch([rows] * 5, candidates)]
    assert found[:3] == [np.inf] * 3
    assert found[3] == pytest.approx(1 / 3)  # (1 - 0.5) / (1 + 0.5): a residual, but no proof
    assert found[4] == 0.0


def test_multipliers_of_either_sign_weigh_by_their_size():
    # W = 2 and W = 3; (-3, 2.5) combines to -0.5 W = 1.5, which W = -3 satisfies: no proof, residual 0.5 / 5.5.
    rows = MarginProblem([[1.0], [1.0]], [[1.0]], [0, 0], rhs=[2.0, 3.0], equality=[True, True])
    assert certify_infeasible(rows, [-3.0, 2.5]) is None
    scaled, residual = farkas_as_batch([rows], np.array([[-3.0, 2.5]]))[0]
    np.testing.assert_allclose(scaled, [-2.0, 5 / 3], rtol=1e-14)
    assert residual == pytest.approx(0.5 / 5.5, rel=1e-12)
