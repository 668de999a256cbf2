"""Unit rows: what every solver works on, and the way back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attsvm.solvers import MarginProblem
from attsvm.solvers.unit import UnitProblem, span
from kkt import dense_rows, random_rows, seeded_rows
from solver_api import replaced


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


def with_zero_rows(rng) -> MarginProblem:
    problem = random_rows(rng, 4, 4, 5, 6, equalities=3)
    a = problem.rows.a * 10.0 ** rng.uniform(-3, 3, (problem.m, 1))
    a[[2, 7]] = 0.0
    rhs = np.where(np.isin(np.arange(problem.m), [2, 7]), -1.0, rng.standard_normal(problem.m))
    return MarginProblem(a, problem.rows.queries, problem.owner, rhs, problem.equality & (problem.row_norms > 0))


def test_rows_become_unit_and_sides_at_most_one(rng):
    problem = with_zero_rows(rng)
    unit = UnitProblem(problem)
    F = dense_rows(problem)
    sizes = np.linalg.norm(F, axis=1)
    live = sizes > 0
    assert unit.has_zero_rows and not unit.trivial
    np.testing.assert_array_equal(unit.inverse == 0, ~live)
    units = F[live] / sizes[live, None]
    W, x = rng.standard_normal((5, 6)), rng.standard_normal(problem.m)
    np.testing.assert_allclose(unit.margins(W)[live], units @ W.ravel(), atol=1e-13)
    assert not unit.margins(W)[~live].any() and not unit.c[~live].any()
    np.testing.assert_allclose(unit.adjoint(x).ravel(), units.T @ x[live], atol=1e-13)
    assert np.abs(unit.c).max() == 1.0
    np.testing.assert_allclose(unit.c[live] * unit.scale * sizes[live], problem.rhs[live], rtol=1e-14)
    gram = unit.gram
    np.testing.assert_allclose(gram[np.ix_(live, live)], units @ units.T, atol=1e-13)
    assert (np.diag(gram)[~live] == 1.0).all() and not gram[np.ix_(~live, live)].any()


def test_a_batch_is_its_problems(rng):
    problems = [with_zero_rows(rng), random_rows(rng, 3, 3, 5, 6), random_rows(rng, 4, 4, 5, 6, equalities=2)]
    batch = UnitProblem(MarginProblem.stack(problems))
    for i, problem in enumerate(problems):
        one, own = UnitProblem(problem), batch.problem.valid[i]
        np.testing.assert_allclose(batch.inverse[i][own], one.inverse, rtol=1e-14)
        np.testing.assert_allclose(batch.c[i][own], one.c, rtol=1e-13)
        np.testing.assert_allclose(batch.scale[i], one.scale, rtol=1e-14)
        assert bool(batch.trivial[i]) == bool(one.trivial)
        assert not batch.inverse[i][~own].any()  # void rows are zero rows, which constrain nothing
        np.testing.assert_allclose(batch.gram[i][np.ix_(own, own)], one.gram, atol=1e-13)


def test_what_zero_solves_is_trivial(rng):
    problem = random_rows(rng, 2, 3, 4)
    m = problem.m
    for rhs, equality, trivial in (
        (np.zeros(m), np.zeros(m, dtype=bool), True),
        (-np.ones(m), np.zeros(m, dtype=bool), True),
        (-np.ones(m), np.arange(m) == 1, False),  # an equality with a negative side is a constraint
        (np.zeros(m), np.ones(m, dtype=bool), True),
        (np.where(np.arange(m) == 2, 1e-300, -1.0), np.zeros(m, dtype=bool), False),
    ):
        assert bool(UnitProblem(replaced(problem, rhs=rhs, equality=equality)).trivial) == trivial


def test_explicit_rows_leave_out_zero_rows_and_queries_without_rows(rng):
    problem = with_zero_rows(rng)
    rows = UnitProblem(problem).rows
    assert rows.index.tolist() == [k for k in range(problem.m) if k not in (2, 7)]
    np.testing.assert_allclose(np.linalg.norm(rows.a, axis=1), 1.0, rtol=1e-14)
    np.testing.assert_allclose(np.linalg.norm(rows.b, axis=1), 1.0, rtol=1e-14)
    lam = rng.standard_normal(rows.m)
    restored = rows.restore_multipliers(lam)
    assert restored.shape == (problem.m,) and not restored[[2, 7]].any()
    W = rng.standard_normal(rows.shape)
    np.testing.assert_allclose(rows.reduce(rows.lift(W)), W, atol=1e-13)
    # <D, W> from both sides, in the scale of the problem.
    scale = float(rows.unit.scale[0])
    assert np.sum(problem.adjoint(restored) * rows.lift(W)) == pytest.approx(scale * (lam @ rows.values(W)), rel=1e-10)
    part = rows.take(np.array([0, 3]))
    np.testing.assert_array_equal(part.values(W), rows.values(W)[[0, 3]])
    np.testing.assert_array_equal(part.index, rows.index[[0, 3]])
    short = rows.rhs - rows.values(W)
    np.testing.assert_array_equal(rows.missed(W), np.where(rows.equality, np.abs(short), np.maximum(short, 0.0)))
    np.testing.assert_array_equal(rows.clipped(lam), np.where(rows.equality, lam, np.maximum(lam, 0.0)))


@given(seed=st.integers(0, 10_000), factor=st.sampled_from([1e-6, 1.0, 1e6]))
def test_scaling_the_rows_changes_the_scale_only(seed, factor):
    rng = np.random.default_rng(seed)
    problem = random_rows(rng, 3, 3, 4)
    plain, scaled = UnitProblem(problem), UnitProblem(replaced(problem, a=factor * problem.rows.a))
    np.testing.assert_allclose(scaled.c, plain.c, rtol=1e-13)
    np.testing.assert_allclose(scaled.scale * factor, plain.scale, rtol=1e-13)
    np.testing.assert_allclose(scaled.gram, plain.gram, atol=1e-13)


@given(seed=st.integers(0, 10_000), count=st.integers(1, 7), d=st.integers(1, 6), rank=st.integers(1, 6))
def test_a_span_is_an_orthonormal_basis_of_the_rows(seed, count, d, rank):
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((count, min(rank, d))) @ rng.standard_normal((min(rank, d), d))
    basis = span(vectors)
    expected = min(count, d, rank)
    if basis is None:
        assert expected == d
        return
    assert basis.shape == (d, expected)
    np.testing.assert_allclose(basis.T @ basis, np.eye(expected), atol=1e-13)
    np.testing.assert_allclose(vectors @ basis @ basis.T, vectors, atol=1e-12 * np.abs(vectors).max())
