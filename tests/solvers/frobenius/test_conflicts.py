"""Contradictory rows: both Frobenius solvers prove it, and so does the search that needs no solver."""

import numpy as np
import pytest

from attsvm.solvers import InfeasibleError, MarginProblem, Status, solve
from attsvm.solvers.frobenius.conflicts import find_conflict
from attsvm.solvers.unit import UnitProblem
from kkt import dense_rows, random_rows
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
