"""Vertices of the l_inf norm: told from interior points, and refused where they are not optimal."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.solvers import MarginProblem, solve
from attsvm.solvers.other_norms.crossover import vertex_at
from kkt import assert_optimal, random_rows, sphere_rows


def test_batches_end_at_vertices_to_the_last_digits() -> None:
    a, queries, owner = sphere_rows(60, 6, 8, 10, seed=3)
    batch = solve(MarginProblem(a, queries, owner), "linf")
    assert batch.solver == batch[0].solver == "primal_dual"
    assert float(np.max(batch.certificate.proved)) < 1e-11
    for i in range(0, 60, 7):
        one = batch[i]
        size = np.abs(one.W)
        inner = np.count_nonzero(size < one.norm * (1 - 1e-9))
        assert np.count_nonzero(one.multipliers > 1e-9) == inner + 1
        alone = solve(one.problem, "linf")
        assert alone.solver == "vertex"
        assert alone.norm == pytest.approx(one.norm, rel=1e-9)
        assert_optimal(one.problem, one.W, one.multipliers, "linf", 1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_the_sets_of_a_solution_give_it_back_and_others_give_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_rows(rng, 6, 8, 10)
    known = solve(problem, "linf")
    F, W = problem.features(), known.W.ravel()
    rows = np.flatnonzero(known.multipliers > 1e-9)
    inner = np.flatnonzero(np.abs(W) < known.norm * (1 - 1e-9))
    assert len(rows) == len(inner) + 1
    found = vertex_at(F, problem.rhs, rows, inner, np.sign(W))
    assert found is not None
    np.testing.assert_allclose(found[0], W, atol=1e-9 * known.norm)
    # Another entry inside, another sign at a bound, another row: each misses something.
    outer = np.flatnonzero(np.abs(W) >= known.norm * (1 - 1e-9))
    signs = np.sign(W)
    signs[outer[0]] *= -1.0
    assert vertex_at(F, problem.rhs, rows, inner, signs) is None
    if len(inner):
        other = np.sort(np.append(inner[1:], outer[0]))
        assert vertex_at(F, problem.rhs, rows, other, np.sign(W)) is None
    spare = np.setdiff1d(np.arange(problem.m), rows)
    if len(spare):
        assert vertex_at(F, problem.rhs, np.append(rows[1:], spare[0]), inner, np.sign(W)) is None
