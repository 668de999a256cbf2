"""Unit rows: what every solver works on, and the way back."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.solvers import MarginProblem
from attsvm.solvers.unit import UnitProblem
from kkt import random_rows, seeded_rows


def test_unit_rows_restore() -> None:
    problem = seeded_rows(4, 3, 12, 5)
    rows = UnitProblem(problem).rows
    rng = np.random.default_rng(0)
    W, lam = rng.standard_normal(rows.shape), rng.random(rows.m)
    lifted, multipliers = rows.lift(W), rows.restore_multipliers(lam)
    # Values in units of rhs, and the adjoint, survive the change of coordinates (rounding only).
    np.testing.assert_allclose(problem.margins(lifted) / problem.rhs, rows.values(W) / rows.rhs, atol=1e-12)
    left, right = (np.eye(12) if basis is None else basis for basis in (rows.left, rows.right))
    D = left.T @ problem.adjoint(multipliers) @ right
    np.testing.assert_allclose(D, rows.adjoint(lam), atol=1e-12)


@pytest.mark.parametrize(("n", "T", "d", "dz"), [(2, 3, 9, 9), (3, 2, 4, 8), (8, 9, 3, 2)])
def test_reduction_keeps_rows_and_lifts_back(rng, n, T, d, dz):
    problem = random_rows(rng, n, T, d, dz)
    rows = UnitProblem(problem).rows
    assert rows.shape == (min(d, n * (T - 1)), min(dz, n))
    W = rng.standard_normal(rows.shape)
    lifted = rows.lift(W)
    scale = float(rows.unit.scale[0])
    np.testing.assert_allclose(problem.margins(lifted), scale * problem.row_norms * rows.values(W), atol=1e-12 * scale)
    assert np.linalg.norm(lifted) == pytest.approx(scale * np.linalg.norm(W), rel=1e-13)
    np.testing.assert_allclose(rows.reduce(lifted), W, atol=1e-13)


def test_reduction_ignores_queries_without_rows(rng):
    problem = random_rows(rng, 4, 3, 5).gather([0, 1])
    assert UnitProblem(problem).rows.shape == (2, 1)


def test_reduction_of_collinear_rows_finds_the_true_rank(rng):
    direction = rng.standard_normal(6)
    problem = MarginProblem(np.outer([1.0, 2.0, 3.0], direction), rng.standard_normal((1, 6)), [0, 0, 0])
    assert UnitProblem(problem).rows.shape == (1, 1)
