"""Listings against exact arithmetic: nothing listed that is not locally optimal, nothing missing where complete."""

import numpy as np
import pytest
from exact_judge import FAMILIES, exact_selections

import attsvm
from attsvm.enumeration import locally_optimal_selections, solve_every_selection

PROBLEMS = 6  # of each of ten families


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_listings_agree_with_exact_arithmetic(family):
    open_selections = 0
    for seed in range(PROBLEMS):
        problem = family(np.random.default_rng([seed, 7]))
        truth = exact_selections(problem)
        expected = {tokens for tokens, (_, local, _, _) in truth.items() if local}
        infeasible = sum(not feasible for feasible, *_ in truth.values())
        for mode in ("exhaustive", "search"):
            found = locally_optimal_selections(problem, top=len(truth), mode=mode)
            listed = {item.tokens for item in found}
            unsure = {tuple(item.selection.indices.ravel().tolist()) for item in found.undecided}
            assert listed <= expected, (family.__name__, seed, mode)
            assert expected <= listed | unsure, (family.__name__, seed, mode)
            assert found.complete == (not unsure)
            open_selections += len(unsure)
            if mode == "exhaustive":
                assert found.counts.infeasible == infeasible
            for item in found:
                assert item.norm == pytest.approx(float(truth[item.tokens][2]) ** 0.5, rel=1e-7)
    assert open_selections == 0  # all are small enough for rationals


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_tables_and_single_calls_agree_with_exact_arithmetic(family):
    for seed in range(PROBLEMS, PROBLEMS + 4):
        problem = family(np.random.default_rng([seed, 7]))
        truth = exact_selections(problem)
        table = solve_every_selection(problem)
        assert table.decided.all()
        assert not table.doubtful.any()
        everyone = problem.allowed & (np.arange(problem.T) != table.indices[..., None])
        for row, (tokens, (feasible, local, _, all_on)) in enumerate(truth.items()):
            assert tuple(table.indices[row].ravel().tolist()) == tokens
            assert (table.feasible[row], table.locally_optimal[row]) == (feasible, local)
            assert bool((table.support[row] == everyone[row]).all()) == all_on
            assert attsvm.is_locally_optimal(problem, np.reshape(tokens, problem.query_shape)) is local
