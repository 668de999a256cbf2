"""Proofs of infeasibility: what is one, and what must not be taken for one."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.solvers import MarginProblem, Status, certify_infeasible, find_farkas, solve
from kkt import random_rows


def test_farkas_needs_cancelling_rows_with_positive_value():
    problem = MarginProblem([[1.0], [-1.0], [2.0]], [[1.0]], [0, 0, 0])
    assert certify_infeasible(problem, [1.0, 1.0, 0.0]).farkas is not None
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
    conflict = np.vstack([x, -2 * x])  # exact: a power of two
    problem = MarginProblem(
        scale * np.vstack([easy.rows.a, conflict]),
        np.vstack([easy.rows.queries, rng.standard_normal(6)]),
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
