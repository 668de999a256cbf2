"""The parts of the Frobenius solvers: conjugate gradients, least distances."""

import numpy as np
import pytest

from attsvm.solvers import MarginProblem, solve
from attsvm.solvers.conjugate_gradient import conjugate_gradient
from attsvm.solvers.exact import exact_least_norm, exact_rows
from attsvm.solvers.frobenius.active_set import least_distance, robust_distance
from attsvm.solvers.frobenius.pivoting import solve_small, solve_small_batch
from attsvm.solvers.unit import UnitProblem
from kkt import random_rows


def test_conjugate_gradients_report_a_direction_without_curvature():
    rows = MarginProblem([[1.0], [-1.0]], [[1.0], [1.0]], [0, 1])
    found = conjugate_gradient(lambda x: rows.margins(rows.adjoint(x)), lambda x: x, np.ones(2), 1e-9, 10)
    assert found.ending == "singular"
    np.testing.assert_allclose(rows.adjoint(found.direction), 0.0, atol=1e-12)


def test_what_pivoting_leaves_open_goes_to_newton_steps(rng) -> None:
    """Ten rows per dimension around a planted W: pivoting cycles."""
    W = rng.standard_normal((3, 4))
    a, b, owner = rng.standard_normal((120, 3)), rng.standard_normal((30, 4)), rng.integers(0, 30, 120)
    a *= np.sign(np.einsum("kd,kd->k", a @ W, b[owner]))[:, None]
    problem = MarginProblem(a, b, owner)
    expected = solve(problem, solver="active_set")
    found = solve(problem, solver="working_set")
    assert found.extras.working_rows > 0
    assert found.status == "optimal" and found.certificate.proved <= 1e-8
    np.testing.assert_allclose(found.W, expected.W, atol=1e-8 * expected.norm)
    assert (
        solve(problem, solver="working_set", max_iterations=3).status == "inaccurate"
    )  # what a limit stops is returned


@pytest.mark.parametrize("seed", [19, 51])
def test_equality_rows_that_depend_on_each_other_but_for_rounding(seed) -> None:
    """Five equality rows of one query in three dimensions, where DAQP ends without an answer."""
    rng = np.random.default_rng(seed)
    W, a, b = rng.standard_normal((3, 2)), rng.standard_normal((20, 3)), rng.standard_normal((4, 2))
    owner, equality = np.repeat(np.arange(4), 5), np.arange(20) < 5
    values = np.einsum("kd,kd->k", a @ W, b[owner])
    a *= np.sign(values)[:, None]
    problem = MarginProblem(a, b, owner, np.where(equality, np.abs(values), 1.0), equality)
    found, other = solve(problem), solve(problem, solver="working_set")
    assert found.status == "optimal" and found.solver in ("active_set", "working_set")
    assert np.abs(problem.margins(found.W) - problem.rhs)[equality].max() <= 1e-8
    assert found.norm == pytest.approx(other.norm, rel=1e-9)


def test_dependent_rows_leave_the_pivoting() -> None:
    """Pivoting cannot settle dependent or contradicting rows; least distances do, and tell the two apart."""
    rng = np.random.default_rng(18)
    a = rng.standard_normal((4, 6, 5))
    a[:2, 3:] = a[:2, :3]  # repeated rows
    a[2:, 3] = -a[2:, 0]  # contradicting rows
    unit = UnitProblem(MarginProblem(a, np.ones((4, 1, 2)), np.zeros(6, dtype=int)))
    assert not solve_small_batch(unit.gram, unit.c).settled[2:].any()
    features = unit.problem.features() * unit.inverse[..., None]
    found = least_distance(features, unit.c)
    assert found.settled.tolist() == [True, True, False, False]
    assert found.ray.tolist() == [False, False, True, True]
    assert not found.w[2:].any()
    for i in range(2):
        np.testing.assert_allclose(features[i].T @ found.x[i], found.w[i], atol=1e-12)
        assert (features[i] @ found.w[i] - unit.c[i]).min() >= -1e-12
    left_over = np.einsum("bk,bkd->bd", found.x[2:], features[2:])
    assert np.abs(left_over).max() <= 1e-9 * found.x[2:].max()  # an exact cancellation, up to rounding


def test_equalities_that_contradict_each_other_have_no_multipliers() -> None:
    """DAQP ends before it writes any: what stands in its memory must not be read."""
    for side in (0.5, 1e-3, -1.0):
        found = least_distance(np.ones((3, 1)), np.array([1.0, side, 1.0]), np.ones(3, dtype=bool))
        assert not found.settled
        assert found.ray or not found.x.any()


@pytest.mark.parametrize("size", [1, 5, 40])
def test_pivoting_of_one_problem_and_of_stacks(rng, size) -> None:
    """The same complementarity conditions whichever way the rows are found; equality rows have free multipliers."""
    problems = [random_rows(rng, 5, 6, 9, equalities=k % 3) for k in range(size)]
    unit = UnitProblem(MarginProblem.stack(problems))
    many = solve_small_batch(unit.gram, unit.c, unit.equality)
    assert many.settled.all()
    for i in range(size):
        one = solve_small(unit.gram[i], unit.c[i], unit.equality[i], start=many.x[i] != 0)
        np.testing.assert_allclose(one.x, many.x[i], atol=1e-9)
        slack = unit.gram[i] @ many.x[i] - unit.c[i]
        free = unit.equality[i]
        assert np.abs(slack[free]).max(initial=0.0) <= 1e-12
        assert min(many.x[i][~free].min(), slack[~free].min()) >= -1e-12
        assert np.abs(many.x[i] * slack).max() <= 1e-12


def test_features_of_very_different_scales_are_solved_and_proved(rng, monkeypatch) -> None:
    """Two classes as tokens, features from 1e-4 to 1e4, against the optimum over the rationals."""
    sizes, hidden, samples = np.logspace(-4, 4, 8), rng.standard_normal(8), rng.standard_normal((60, 8))
    signs = np.sign(samples @ hidden)
    samples += (0.02 * signs)[:, None] * hidden / (hidden @ hidden)  # a narrow margin
    a, b, owner = signs[:, None] * np.array([1.0, -1.0]), samples * sizes, np.arange(60)
    # What float64 leaves open is not taken up in exact arithmetic.
    monkeypatch.setattr("attsvm.solvers.exact.settle._ENTRIES", 0)
    found = solve(MarginProblem(a, b, owner), solver="active_set")
    assert found.status == "optimal" and found.solver == "active_set" and found.certificate.proved <= 1e-8
    best = exact_least_norm(exact_rows(a, b, owner))
    assert found.norm == pytest.approx(float(best.norm_squared) ** 0.5, rel=1e-8)


def test_robust_distances_where_products_of_rows_have_no_digits_left() -> None:
    """``|w_1| <= e w_2 - 1`` and ``e^2 w_3 >= 1 + w_2``: the smallest w has w_1 = 0, and both with equality."""
    e = 2.0**-10
    found = robust_distance(np.array([[1.0, e, 0.0], [-1.0, e, 0.0], [0.0, -1.0, e * e]]), np.ones(3))
    assert found.settled and (found.x > 0).all()
    np.testing.assert_allclose(found.w, [0.0, 1.0 / e, (1.0 + 1.0 / e) / e**2], rtol=1e-9, atol=1e-9)


def test_robust_distances_end_with_a_ray_where_rows_contradict_each_other() -> None:
    rows = np.array([[1.0, 1e-6], [-1.0, 1e-6], [0.0, -1.0]])
    found = robust_distance(rows, np.ones(3))
    assert found.ray and not found.settled
    np.testing.assert_allclose(rows.T @ found.x, 0.0, atol=1e-12)
    assert found.x @ np.ones(3) == pytest.approx(1.0)
