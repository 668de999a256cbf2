"""Bounds on margins and multipliers at the exact solution, against the exact solution itself."""

from fractions import Fraction

import numpy as np
import pytest
from exact_judge import FAMILIES, fractions

import attsvm
from attsvm.solvers import MarginProblem, solve, solve_batch
from attsvm.solvers.exact import ExactFarkas, ExactLeastNorm
from attsvm.support_proof import carries_weight_outside, margin_bounds, on_margin, solve_exactly, upper_norm


def solved_selections(family, problems, rng):
    """Some selections of problems of a family with certified solution and exact solution."""
    for seed in range(problems):
        problem = family(np.random.default_rng([seed, 3]))
        allowed = problem.allowed.reshape(-1, problem.T)
        for _ in range(3):
            chosen = np.array([rng.choice(np.flatnonzero(row)) for row in allowed]).reshape(problem.query_shape)
            solution = attsvm.att_svm(problem, chosen)
            exact = solve_exactly(solution.rows.margin_problem)
            assert isinstance(exact, ExactFarkas) == (solution.status == "infeasible")
            if solution.status == "optimal":
                yield solution, exact


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_bounds_hold_at_the_exact_solution(family, rng):
    proved = 0
    for solution, exact in solved_selections(family, 12, rng):
        rows = solution.rows.margin_problem
        bounds = margin_bounds(rows, solution.W, solution.certificate)
        difference = fractions(solution.W) - exact.W
        squared = sum(x * x for x in difference.ravel())
        assert squared <= Fraction(float(bounds.radius)) ** 2
        assert exact.norm_squared <= Fraction(float(bounds.size)) ** 2
        assert exact.norm_squared >= Fraction(solution.certificate.lower_bound) ** 2
        a, queries = fractions(rows.rows.a), fractions(rows.rows.queries)
        if (rows.rows.exact_left() == rows.rows.a).all():  # differences of these tokens are floats
            margins = [(exact.W * np.outer(a[k], queries[j])).sum() for k, j in enumerate(rows.owner)]
            for k, margin in enumerate(margins):
                assert abs(margin - Fraction(float(bounds.margins[k]))) <= Fraction(float(bounds.error[k]))
        on = on_margin(rows, bounds)
        assert not (on & ~exact.support).any()
        assert not (bounds.beyond & exact.support).any()
        base = rng.random(rows.m) < 0.5
        if carries_weight_outside(rows, bounds, solution.result.multipliers, base):
            proved += 1
            # Some row outside the base is needed: without them the norm is less.
            if base.any():
                less = solve_exactly(rows.gather(base))
                assert isinstance(less, ExactLeastNorm)
                assert less.norm_squared < exact.norm_squared
    assert proved > 0


def test_a_batch_is_judged_like_its_problems():
    rng = np.random.default_rng(0)
    batch = MarginProblem(
        rng.standard_normal((5, 6, 3)), rng.standard_normal((5, 2, 3)), [0, 0, 0, 1, 1, 1],
        valid=rng.random((5, 6)) < 0.8,
    )  # fmt: skip
    found = solve_batch(batch)
    bounds = margin_bounds(batch, found.W, found.certificate)
    together = on_margin(batch, bounds)
    base = rng.random((5, 6)) < 0.5
    outside = carries_weight_outside(batch, bounds, found.multipliers, base & batch.valid)
    for i in range(5):
        one, own = found[i], batch.valid[i]
        if one.status != "optimal":
            continue
        alone = margin_bounds(batch[i], one.W, one.certificate)
        np.testing.assert_allclose(alone.margins, bounds.margins[i, own], rtol=1e-12)
        np.testing.assert_array_equal(on_margin(batch[i], alone), together[i, own])
        assert carries_weight_outside(batch[i], alone, one.multipliers, base[i, own]) == outside[i]
        assert not together[i, ~own].any()


def test_dependent_rows_prove_nothing_row_by_row_but_together():
    # Two equal rows: each alone can be spared, both together cannot.
    rows = MarginProblem([[1.0, 0.0], [1.0, 0.0]], [[1.0]], [0, 0])
    found = solve(rows)
    bounds = margin_bounds(rows, found.W, found.certificate)
    assert not on_margin(rows, bounds).any()
    assert not carries_weight_outside(rows, bounds, found.multipliers, np.array([True, False]))
    assert carries_weight_outside(rows, bounds, found.multipliers, np.array([False, False]))
    assert solve_exactly(rows).support.all()


def test_without_a_solution_nothing_is_proved():
    batch = MarginProblem(np.array([[[1.0], [-1.0]], [[1.0], [2.0]]]), np.ones((2, 1, 1)), [0, 0])
    found = solve_batch(batch)
    assert found.status.tolist() == ["infeasible", "optimal"]
    bounds = margin_bounds(batch, found.W, found.certificate)
    assert np.isinf(bounds.radius[0])
    assert not bounds.beyond[0].any()
    assert not bounds.inside[0].any()
    assert not on_margin(batch, bounds)[0].any()
    assert on_margin(batch, bounds)[1].tolist() == [True, False]
    assert upper_norm(found.certificate).tolist()[0] == np.inf


def test_large_problems_are_left_to_bounds():
    rng = np.random.default_rng(0)
    assert solve_exactly(MarginProblem(rng.standard_normal((300, 3)), np.ones((1, 1)), np.zeros(300, int))) is None
    assert solve_exactly(MarginProblem(np.eye(200), np.ones((1, 200)), np.zeros(200, int))) is None
