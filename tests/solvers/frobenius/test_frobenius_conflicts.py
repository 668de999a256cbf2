"""Contradictory rows: both Frobenius solvers prove it, and so does the search that needs no solver."""

import numpy as np
import pytest

from attsvm.solvers import InfeasibleError, MarginProblem, Status, solve
from attsvm.solvers.frobenius.conflicts import find_conflict
from attsvm.solvers.unit import UnitProblem
from kkt import assert_infeasible, dense_rows, random_rows
from planted_optima import on_grid
from solver_api import replaced

both = pytest.mark.parametrize("run", ["active_set", "working_set"])


def opposite_rows(rng):
    problem = random_rows(rng, 6, 8, 10)
    a, owner = np.vstack([problem.rows.a, -2.0 * problem.rows.a[5]]), np.append(problem.owner, problem.owner[5])
    return MarginProblem(a, problem.rows.queries, owner)


def too_many_rows(rng):
    return random_rows(rng, 40, 12, 4)


def zero_query(rng):
    problem = random_rows(rng, 6, 8, 10)
    queries = problem.rows.queries.copy()
    queries[2] = 0.0
    return replaced(problem, queries=queries)


def inconsistent_equalities(rng):
    # Differences of vectors on a grid are exact: the three rows of any three vectors cancel, and not up to rounding.
    x, level = on_grid(rng, (4, 6)), on_grid(rng, (4,))
    pairs = np.array([(i, j) for i in range(4) for j in range(i)])
    a, rhs = x[pairs[:, 0]] - x[pairs[:, 1]], level[pairs[:, 0]] - level[pairs[:, 1]]
    rhs[0] += 0.125
    return MarginProblem(a, rng.standard_normal((1, 6)), [0] * 6, rhs, [True] * 6)


def equality_against_inequality(rng):
    problem = random_rows(rng, 4, 4, 6)
    a = np.vstack([problem.rows.a, problem.rows.a[0]])
    equality = np.zeros(len(a), dtype=bool)
    equality[-1] = True
    return MarginProblem(a, problem.rows.queries, np.append(problem.owner, 0), np.append(problem.rhs, 0.5), equality)


@both
@pytest.mark.parametrize(
    "build", [opposite_rows, too_many_rows, zero_query, inconsistent_equalities, equality_against_inequality]
)
@pytest.mark.parametrize("factor", [2.0**-20, 1.0, 2.0**20])  # powers of two keep conflicts exact
def test_infeasible_rows_come_with_a_proof(rng, run, build, factor):
    problem = build(rng)
    problem = replaced(problem, a=factor * problem.rows.a)
    result = solve(problem, solver=run)
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


def test_conflict_search_finds_a_proof_or_a_feasible_matrix(rng):
    hopeless, fine = too_many_rows(rng), random_rows(rng, 10, 6, 12)
    proof, W = find_conflict(UnitProblem(hopeless), np.zeros(hopeless.shape))
    assert W is None and proof.farkas is not None
    proof, W = find_conflict(UnitProblem(fine), np.zeros(fine.shape))
    assert proof is None
    assert fine.margins(W).min() >= 1 - 1e-12  # the search stops at a shortfall of 1e-13 of the largest


@pytest.mark.parametrize("asked", [1e-3, 12.0])
def test_the_feasible_matrix_is_in_the_scale_of_the_problem(asked):
    """One row of norm 2: W is found in unit rows, where it has size 1 whatever is asked."""
    problem = MarginProblem([[2.0, 0.0]], [[1.0]], [0], rhs=[asked])
    proof, W = find_conflict(UnitProblem(problem), np.zeros((2, 1)))
    assert proof is None
    np.testing.assert_allclose(W, [[0.5 * asked], [0.0]], rtol=1e-9)


def contradicted(rng, queries, rows, d, conflicts):
    """Rows on the positive side of a hidden W, some of them once more with the other sign."""
    b, owner = rng.standard_normal((queries, d)), np.repeat(np.arange(queries), rows)
    a = rng.standard_normal((len(owner), d))
    a *= np.sign(np.vecdot(a @ rng.standard_normal((d, d)), b[owner]))[:, None]
    again = rng.choice(len(a), conflicts, replace=False)
    return MarginProblem(np.vstack([a, -a[again]]), b, np.append(owner, owner[again]))


@pytest.mark.parametrize(("queries", "d", "conflicts"), [(60, 40, 1), (60, 40, 6), (6, 40, 1), (60, 8, 1)])
def test_few_contradictions_among_many_rows_are_proved(rng, queries, d, conflicts):
    problem = contradicted(rng, queries, 2400 // queries, d, conflicts)
    found = solve(problem)
    assert found.status is Status.INFEASIBLE
    assert_infeasible(problem, found.certificate.farkas.multipliers)


@pytest.mark.parametrize("ties", [0, 20])
@pytest.mark.parametrize("d", [6, 20])
def test_many_random_rows_are_proved_infeasible_by_few_of_them(rng, d, ties):
    equality = np.zeros(3000, dtype=bool)
    equality[rng.choice(3000, ties, replace=False)] = True
    a, queries = rng.standard_normal((3000, d)), rng.standard_normal((100, d))
    problem = MarginProblem(a, queries, np.repeat(np.arange(100), 30), np.where(equality, 0.0, 1.0), equality)
    found = solve(problem)
    assert found.status is Status.INFEASIBLE
    assert_infeasible(problem, found.certificate.farkas.multipliers)
    assert found.certificate.farkas.proof == "rounding bounds"
    if d == 6:  # far more rows than a proof needs: a few times as many as dimensions
        assert len(found.certificate.farkas.rows) <= 6 * d * d


def test_large_proofs_agree_with_linear_programming(rng):
    # One and a half to two and a half rows per dimension: the first can be satisfied, the last cannot.
    from scipy.optimize import linprog

    verdicts = set()
    for count in (6, 7, 8, 9):
        rows = rng.standard_normal((40 * count, 12))
        problem = MarginProblem(rows, rng.standard_normal((40, 12)), np.repeat(np.arange(40), count))
        proof, W = find_conflict(UnitProblem(problem), np.zeros(problem.shape))
        dense = dense_rows(problem)
        known = linprog(np.zeros(dense.shape[1]), A_ub=-dense, b_ub=-problem.rhs, bounds=(None, None)).status == 0
        assert (W is not None) == known and (proof is not None) == (not known)
        verdicts.add(known)
    assert verdicts == {True, False}
