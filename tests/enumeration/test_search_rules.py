"""The rules behind the search, each checked against the definition."""

import numpy as np
import pytest

import attsvm
from attsvm.enumeration.selection_solves import CompletionBound, full_verdicts, lower_verdicts, partial_norms
from attsvm.enumeration.selection_space import SelectionSpace


@pytest.mark.parametrize(("n", "T", "d"), [(3, 4, 2), (4, 5, 4), (5, 4, 8), (2, 6, 3)])
def test_the_lower_row_rule_is_definition_2(n, T, d, rng):
    for seed in range(3):
        space = SelectionSpace(attsvm.random_problem(n=n, T=T, d=d, seed=seed))
        selections = space.random(rng, 150)
        selections[0] = space.scores.argmin(axis=1)  # no lower-score row at all
        selections[1] = space.scores.argmax(axis=1)  # only lower-score rows
        full = full_verdicts(space, selections, "frobenius")
        lower = lower_verdicts(space, selections)
        assert not full.undecided.any()
        assert not lower.undecided.any()
        np.testing.assert_array_equal(full.locally_optimal, lower.locally_optimal)
        assert not lower.locally_optimal[0]
        local = full.locally_optimal
        # The same W, so the same norm and support; both certified to 1e-8.
        np.testing.assert_allclose(lower.norm[local], full.norm[local], rtol=1e-7)
        np.testing.assert_array_equal(lower.near[local], full.near[local])
        assert (lower.norm <= full.norm * (1 + 1e-7)).all()


def test_definition_2_agrees_with_is_locally_optimal(rng):
    problem = attsvm.random_problem(n=3, T=4, d=3, queries=2, seed=0)
    space = SelectionSpace(problem)
    selections = space.random(rng, 40)
    for norm in ("frobenius", "nuclear"):
        verdicts = full_verdicts(space, selections, norm)
        expected = [attsvm.is_locally_optimal(problem, row.reshape(3, 2), norm=norm) for row in selections]
        assert verdicts.locally_optimal.tolist() == expected


@pytest.mark.parametrize(("n", "T", "d", "seed"), [(4, 4, 4, 0), (4, 4, 4, 3), (3, 5, 6, 1), (4, 3, 4, 2)])
def test_bounds_never_exceed_the_norm_of_a_locally_optimal_completion(n, T, d, seed, rng):
    space = SelectionSpace(attsvm.random_problem(n=n, T=T, d=d, seed=seed))
    everything = space.selections(0, space.size)
    verdicts = full_verdicts(space, everything, "frobenius")
    optima, norms = everything[verdicts.locally_optimal], verdicts.norm[verdicts.locally_optimal]
    assert len(optima)
    for order in (np.arange(n), rng.permutation(n)):
        bound = CompletionBound(space, order)
        assert bound.usable
        before = np.zeros(len(optima))
        for depth in range(1, n + 1):
            partial = optima[:, order[:depth]]
            relaxed, plain = bound(partial), partial_norms(space, partial, order[:depth], "frobenius")
            # Bounds are proved from multipliers: rounding alone can push them over.
            assert (relaxed <= norms * (1 + 1e-9)).all()
            assert (plain <= norms * (1 + 1e-9)).all()
            assert (plain >= before * (1 - 1e-7)).all()
            before = plain
        # With every query assigned the relaxation is the lower-row problem itself.
        np.testing.assert_allclose(relaxed, norms, rtol=1e-6)


def test_the_relaxation_rules_out_most_complete_selections():
    space = SelectionSpace(attsvm.random_problem(n=4, T=4, d=4, seed=0))
    everything = space.selections(0, space.size)
    verdicts = full_verdicts(space, everything, "frobenius")
    relaxed = CompletionBound(space, np.arange(4))(everything)
    others = ~verdicts.locally_optimal
    assert (relaxed[others] > 1.05 * verdicts.norm[others]).mean() > 0.5


def test_bounds_with_masks_and_ties():
    rng = np.random.default_rng(0)
    mask = np.ones((3, 4), dtype=bool)
    mask[0, 2] = mask[1, 0] = mask[1, 3] = False
    X = rng.standard_normal((3, 4, 5))
    head = attsvm.LinearHead([1.0, 0, 0, 0, 0])
    X[2, :, 0] = [1.0, 1.0, 0.0, 2.0]  # two tokens of equal score
    problem = attsvm.AttentionProblem(X, [1, 1, 1], rng.standard_normal((3, 5)), head, mask)
    space = SelectionSpace(problem)
    everything = space.selections(0, space.size)
    verdicts = full_verdicts(space, everything, "frobenius")
    np.testing.assert_array_equal(verdicts.locally_optimal, lower_verdicts(space, everything).locally_optimal)
    bound = CompletionBound(space, np.array([2, 0, 1]))
    assert bound.usable
    for depth in (1, 2, 3):
        values = bound(everything[:, [2, 0, 1][:depth]])
        assert (values <= verdicts.norm * (1 + 1e-9))[verdicts.locally_optimal].all()


def test_bounds_survive_steps_that_are_nearly_dependent():
    # Tokens 1e-4 apart along one direction: the Gram matrix of the steps has a condition number of about 1e8.
    rng = np.random.default_rng(5)
    X = rng.standard_normal((3, 3, 4))
    X[:, 2] = X[:, 1] + 1e-4 * rng.standard_normal((3, 4))
    problem = attsvm.AttentionProblem(X, [1, 1, 1], rng.standard_normal((3, 4)), attsvm.LinearHead([1.0, 0, 0, 0]))
    space = SelectionSpace(problem)
    everything = space.selections(0, space.size)
    verdicts = full_verdicts(space, everything, "frobenius")
    optima, norms = everything[verdicts.locally_optimal], verdicts.norm[verdicts.locally_optimal]
    assert len(optima)
    bound = CompletionBound(space, np.arange(3))
    assert bound.usable
    assert (verdicts.norm <= bound.largest).all()
    for depth in (1, 2, 3):
        assert (bound(optima[:, :depth]) <= norms * (1 + 1e-12)).all()


def test_no_selection_exceeds_the_largest_norm():
    for seed in range(4):
        space = SelectionSpace(attsvm.random_problem(n=3, T=3, d=4, seed=seed))
        verdicts = full_verdicts(space, space.selections(0, space.size), "frobenius")
        assert verdicts.norm.max() <= CompletionBound(space, np.arange(3)).largest
    assert CompletionBound(SelectionSpace(attsvm.random_problem(n=6, T=3, d=2, seed=0)), np.arange(6)).largest == np.inf


def test_tokens_that_no_W_can_select_need_no_solve():
    X = np.array([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 1.0], [-1.0, 0.5]]])
    problem = attsvm.AttentionProblem(X, [1, 1], np.array([[1.0, 0.0], [0.0, 0.0]]), attsvm.LinearHead([1.0, 2.0]))
    space = SelectionSpace(problem)
    assert space.hopeless.tolist() == [[True, True, False], [True, True, True]]
    verdicts = full_verdicts(space, space.selections(0, 9), "frobenius")
    assert verdicts.infeasible.all()
    assert not verdicts.undecided.any()
    assert verdicts.conflict[0].tolist() == [True, True]
    assert verdicts.conflict[8].tolist() == [False, True]
    assert np.isinf(partial_norms(space, np.array([[0], [2]]), np.array([0]), "frobenius")).tolist() == [True, False]


def test_dependent_steps_are_refused():
    space = SelectionSpace(attsvm.random_problem(n=6, T=3, d=2, seed=0))
    bound = CompletionBound(space, np.arange(6))
    assert not bound.usable
    with pytest.raises(ValueError, match="linearly dependent or too many; use partial_norms"):
        bound(np.zeros((1, 1), dtype=int))


def test_nuclear_rule_where_solutions_are_not_unique():
    # Rows W_11 >= 1 and W_22 >= 1: [[1, b], [b, 1]] is optimal for all |b| <= 1. A higher-score token of the first
    # sequence at x_11 = -1/2 (margin 3/2 for b = 0) is outside the margin for some solutions and inside for others.
    X = np.array([[[1.0, 0.0], [0.0, 0.0], [0.5, -0.75]], [[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]])
    mask = np.array([[True, True, True], [True, True, False]])
    scores = {(1.0, 0.0): 1.0, (0.0, 0.0): 0.0, (0.5, -0.75): 2.0, (0.0, 1.0): 1.0}
    problem = attsvm.AttentionProblem(
        X, [1, 1], np.eye(2), lambda x: np.apply_along_axis(lambda v: scores[tuple(v)], -1, x), mask
    )
    full = attsvm.att_svm(problem, [0, 0], norm="nuclear")
    # Row against the higher-score token: W_11 / 2 + 3/4 W_21 >= 1, met by b = 2/3 and by b = 1 (margin 5/4).
    assert full.norm == pytest.approx(2.0, rel=1e-6)
    for b, margin in ((2 / 3, 1.0), (1.0, 1.25)):
        W = np.array([[1.0, b], [b, 1.0]])
        assert np.linalg.norm(W, "nuc") == pytest.approx(2.0)
        assert (X[0, 0] - X[0, 2]) @ W @ problem.Z[0] == pytest.approx(margin)
    # Def. 2 then depends on the solution that is meant, and neither the listing nor the single call picks one.
    space = SelectionSpace(problem)
    verdict = full_verdicts(space, np.array([[0, 0]]), "nuclear")
    assert verdict.norm[0] == pytest.approx(2.0, rel=1e-6)
    assert verdict.undecided[0]
    assert "solutions of the nuclear-norm problem differ" in verdict.reasons[0]
    with pytest.raises(RuntimeError, match="undecided: the solutions of the nuclear-norm problem differ"):
        attsvm.is_locally_optimal(problem, [0, 0], norm="nuclear")
