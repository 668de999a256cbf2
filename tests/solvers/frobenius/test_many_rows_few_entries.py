"""Many more rows than entries of W: against pivoting, by dense optimality conditions, and chosen where it should be."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.solvers import MarginProblem, Status, solve
from attsvm.solvers.ladder import rungs
from attsvm.solvers.norms import get_norm
from kkt import assert_infeasible, assert_optimal
from solver_api import proof_of


def separable(m: int, q: int, d: int, seed: int) -> MarginProblem:
    """Random rows turned to the positive side of a hidden W."""
    rng = np.random.default_rng(seed)
    a, queries, owner = rng.normal(size=(m, d)), rng.normal(size=(q, d)), np.sort(rng.integers(0, q, size=m))
    a *= np.sign(np.vecdot(a @ rng.normal(size=(d, d)), queries[owner]))[:, None]
    return MarginProblem(a, queries, owner)


@pytest.mark.parametrize("seed", range(3))
def test_agrees_with_pivoting_and_meets_the_conditions(seed: int) -> None:
    problem = separable(600, 40, 5, seed)
    found, known = solve(problem, solver="entries"), solve(problem, solver="active_set")
    assert found.status is known.status is Status.OPTIMAL
    assert found.norm == pytest.approx(known.norm, rel=2e-8)  # twice what either certificate proves
    # |W - W*|^2 <= |W|^2 - |W*|^2 for every feasible W.
    assert np.linalg.norm(found.W - known.W) <= 2e-4 * known.norm
    assert_optimal(problem, found.W, found.multipliers, "frobenius", 1e-8)
    assert found.extras.working_rows < problem.m  # the rest never joined


def test_auto_takes_it_for_many_more_rows_than_entries() -> None:
    many, few = separable(2000, 50, 5, 0), separable(2000, 50, 25, 0)
    norm = get_norm("frobenius")
    assert rungs(many, norm)[0][0].name == "entries"
    assert rungs(few, norm)[0][0].name != "entries"
    assert solve(many).status is Status.OPTIMAL


def test_rows_that_contradict_each_other_are_proved_to() -> None:
    problem = separable(600, 40, 5, 1)
    pair = problem.pairs()
    rows = MarginProblem(np.vstack([pair.a, -pair.a[:1]]), pair.queries, np.append(pair.owner, pair.owner[0]))
    found = solve(rows, solver="entries")
    assert found.status is Status.INFEASIBLE
    assert_infeasible(rows, proof_of(found))


def test_few_steps_are_told() -> None:
    problem = separable(600, 40, 5, 2)
    found = solve(problem, solver="entries", max_iterations=3)
    assert found.status is Status.INACCURATE
    assert found.certificate.lower_bound <= solve(problem).norm * (1 + 1e-9)


def test_other_right_hand_sides_and_a_given_matrix() -> None:
    problem = separable(600, 40, 5, 3)
    W0 = solve(problem).W * 0.7
    change = solve(problem.around(W0), solver="entries")
    assert change.norm == pytest.approx(solve(problem.around(W0), solver="active_set").norm, rel=2e-8)


def test_a_soft_margin_is_refused():
    problem = MarginProblem(np.ones((40, 2)), np.ones((1, 2)), np.zeros(40, dtype=int)).soft(C=1.0)
    with pytest.raises(ValueError, match="'entries' does not support norm 'frobenius' with a soft margin"):
        solve(problem, solver="entries")


@pytest.mark.parametrize("seed", range(3))
def test_equality_rows_take_part_also_where_they_depend_on_each_other(seed: int) -> None:
    rng = np.random.default_rng(seed)
    hidden, queries = rng.normal(size=(6, 6)), rng.normal(size=(40, 6))
    owner = np.repeat(np.arange(40), 15)
    a, keys = rng.normal(size=(600, 6)), queries[owner] @ hidden.T
    a *= np.sign(np.vecdot(a, keys))[:, None]
    tied = np.arange(0, 600, 60)
    a[tied] -= (np.vecdot(a[tied], keys[tied]) / np.vecdot(keys[tied], keys[tied]))[:, None] * keys[tied]
    # Multiples of two equality rows: they follow from these.
    a, owner = np.vstack([a, 2.0 * a[0], -a[60]]), np.append(owner, [owner[0], owner[60]])
    equality = np.isin(np.arange(602), [*tied, 600, 601])
    problem = MarginProblem(a, queries, owner, np.where(equality, 0.0, 1.0), equality)
    found, known = solve(problem, solver="entries"), solve(problem, solver="active_set")
    assert found.status is known.status is Status.OPTIMAL
    assert found.solver == "entries"
    assert_optimal(problem, found.W, found.multipliers, "frobenius", 1e-7)
    assert found.norm == pytest.approx(known.norm, rel=2e-8)  # twice what either certificate proves
