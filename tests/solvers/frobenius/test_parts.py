"""The parts of the Frobenius solvers: Gram products, conjugate gradients, projected Newton, dual steps."""

import numpy as np
import pytest

from attsvm.solvers import MarginProblem, solve
from attsvm.solvers.driver import Driver
from attsvm.solvers.frobenius.dual import Dual
from attsvm.solvers.frobenius.dual_steps import dual_active_set
from attsvm.solvers.frobenius.free_rows import FreeRows, conjugate_gradient
from attsvm.solvers.frobenius.projected import _projected_newton
from attsvm.solvers.unit import UnitProblem
from kkt import dense_rows, random_rows


def test_gram_products_and_preconditioned_conjugate_gradients(rng):
    problem = random_rows(rng, 7, 9, 12, 10)
    for kept in (np.arange(problem.m), rng.permutation(problem.m)[:31], rng.permutation(problem.m)[:5]):
        rows = FreeRows(UnitProblem(problem), kept, ridge=0.1)
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
    direction, _, ending = conjugate_gradient(FreeRows(UnitProblem(rows), np.arange(2)), np.ones(2), 1e-9, 10)
    assert ending == "singular"
    np.testing.assert_allclose(rows.adjoint(direction), 0.0, atol=1e-12)


def test_projected_newton_converges_from_anywhere(rng):
    problem = random_rows(rng, 12, 8, 9)
    expected = solve(problem, solver="active_set")
    dual = Dual(UnitProblem(problem))
    for start in (np.zeros(problem.m), 100.0 * rng.random(problem.m)):
        point = _projected_newton(dual, start, 1e-10, Driver(200))
        assert point.error <= 1e-10
        np.testing.assert_allclose(point.W * dual.unit.scale, expected.W, atol=1e-8 * expected.norm)


@pytest.mark.parametrize("start", [[], [0, 1, 2], np.arange(35)])
def test_dual_steps_from_any_start(rng, start):
    problem = random_rows(rng, 7, 6, 9)
    rows = UnitProblem(problem).rows
    outcome = dual_active_set(rows, np.array(start, dtype=np.int64), 1000)
    assert outcome.finished and not outcome.conflict
    expected = solve(problem, solver="active_set")
    # Orthonormal bases keep this exact to a few hundred roundings.
    np.testing.assert_allclose(rows.lift(outcome.W), expected.W, atol=1e-11 * expected.norm)
    np.testing.assert_array_equal(rows.index, np.arange(problem.m))


def test_dual_steps_stop_at_their_limit(rng):
    problem = random_rows(rng, 7, 6, 9)
    outcome = dual_active_set(UnitProblem(problem).rows, np.array([], dtype=np.int64), 2)
    assert not outcome.finished and outcome.steps == 2
