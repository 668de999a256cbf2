"""Rows that share a factor: the spectral and nuclear norms of W are the Frobenius norm of a vector."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.solvers import MarginProblem, Status, get_norm, solve
from attsvm.solvers.norms import vector_problem
from kkt import assert_infeasible, assert_optimal
from solver_api import proof_of

NORMS = ("spectral", "nuclear")
CASES = {"one entry per query": (10, 1), "one query": (10, 10), "one left factor": (1, 8), "multiples": (6, 6)}


def rows(case: str, n: int = 30, each: int = 9) -> MarginProblem:
    """Rows that a hidden vector satisfies; 270 of them, as rows beyond the entries of W were the slow case."""
    rng = np.random.default_rng(len(case))
    dx, dz = CASES[case]
    a, queries, owner = rng.normal(size=(n * each, dx)), rng.normal(size=(n, dz)), np.repeat(np.arange(n), each)
    if case == "one query":
        queries = np.repeat(queries[:1], n, axis=0)
    if case == "multiples":
        queries = np.outer(rng.uniform(-2.0, 2.0, n), queries[0])
    signs = np.sign(np.vecdot(a @ rng.normal(size=(dx, dz)), queries[owner]))
    if case == "one left factor":
        owner, queries = np.arange(n * each), rng.normal(size=(n * each, dz))
        signs = np.sign(a[:, 0] * (queries @ rng.normal(size=dz)))
    return MarginProblem(a * signs[:, None], queries, owner)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("case", CASES)
def test_the_least_norm_is_that_of_the_vector_in_as_many_steps(case: str, norm: str) -> None:
    problem = rows(case)
    found, vectors = solve(problem, norm), vector_problem(problem, get_norm(norm))
    assert vectors is not None
    vector = solve(vectors.problem, solver="active_set")
    assert found.status is vector.status is Status.OPTIMAL
    assert found.iterations == vector.iterations
    assert np.linalg.matrix_rank(found.W) == 1
    assert found.norm == pytest.approx(vector.norm, rel=1e-12)  # rounding of one product
    assert_optimal(problem, found.W, found.multipliers, norm, 1e-9)


@pytest.mark.parametrize("norm", NORMS)
def test_contradictions_of_the_vector_are_those_of_the_rows(norm: str) -> None:
    rng = np.random.default_rng(0)
    problem = MarginProblem(rng.normal(size=(60, 3)), np.tile(rng.normal(size=4), (12, 1)), np.repeat(np.arange(12), 5))
    found = solve(problem, norm)
    assert found.status is Status.INFEASIBLE
    assert_infeasible(problem, proof_of(found))


def test_other_right_hand_sides_and_equality_rows() -> None:
    rng = np.random.default_rng(1)
    a, query, w = rng.normal(size=(12, 4)), rng.normal(size=(1, 3)), rng.normal(size=4)
    equal = np.arange(12) < 2
    rhs = (a @ w) - np.where(equal, 0.0, rng.uniform(0.0, 1.0, 12))
    problem = MarginProblem(a, query, np.zeros(12, dtype=int), rhs, equal)
    for norm in NORMS:
        found = solve(problem, norm)
        assert found.status is Status.OPTIMAL
        assert_optimal(problem, found.W, found.multipliers, norm, 1e-9)


def test_only_rows_that_share_a_factor_to_rounding() -> None:
    problem = rows("one query")
    pair = problem.pairs()
    queries = pair.queries.copy()
    queries[-1, 0] += 1e-9
    apart = MarginProblem(pair.a, queries, pair.owner)
    assert vector_problem(apart, get_norm("spectral")) is None
    assert vector_problem(problem, get_norm("l1")) is None
    assert vector_problem(problem.soft(1.0), get_norm("spectral")) is None
