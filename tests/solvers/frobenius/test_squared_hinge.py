"""Soft margins with one squared slack per row: Newton's method against cvxpy, and its own certificate."""

import numpy as np
import pytest

from attsvm.solvers import MarginProblem, solve


@pytest.mark.parametrize("C", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("kind", ["plain", "equalities", "prior"])
def test_equals_cvxpy(C, kind):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((30, 4)), rng.standard_normal((10, 5))
    owner = np.repeat(np.arange(10), 3)
    equal = (np.arange(30) % 5 == 0) if kind == "equalities" else np.zeros(30, dtype=bool)
    rows = MarginProblem(a, b, owner, np.where(equal, 0.3, 1.0), equal)
    if kind == "prior":
        rows = rows.around(rng.standard_normal((4, 5)))
    soft = rows.soft(C, slack="row", loss="squared_hinge")
    found, reference = solve(soft, solver="working_set"), solve(soft, solver="cvxpy:CLARABEL")
    assert found.status == "optimal" and found.certificate.gap < 1e-10
    assert found.certificate.primal_value == pytest.approx(reference.certificate.primal_value, rel=1e-6)
    short = rows.rhs - rows.margins(found.W)
    residual = found.W - 2 * C * rows.adjoint(np.where(equal | (short > 0), short, 0.0))
    assert np.abs(residual).max() < 1e-8 * max(1.0, C)  # the gradient, by hand


def test_nothing_missed_is_nothing():
    rows = MarginProblem(np.eye(2), np.eye(2), [0, 1], rhs=[-1.0, -2.0])
    assert not solve(rows.soft(1.0, slack="row", loss="squared_hinge")).W.any()


def test_a_warm_start_gives_the_same():
    rng = np.random.default_rng(1)
    rows = MarginProblem(rng.standard_normal((40, 6)), rng.standard_normal((8, 6)), np.repeat(np.arange(8), 5))
    soft = rows.soft(1.0, slack="row", loss="squared_hinge")
    cold = solve(soft, solver="working_set")
    warm = solve(soft, solver="working_set", warm_start=cold.multipliers)
    np.testing.assert_allclose(warm.W, cold.W, atol=1e-9)
    assert warm.iterations <= cold.iterations
