import itertools
import re

import numpy as np
import pytest

import attsvm
from attsvm import AttentionProblem, LinearHead, Status


def random_selections(rng, problem, count):
    return [rng.integers(problem.T, size=problem.n) for _ in range(count)]


def test_low_and_high_score_tokens_partition_the_others(rng):
    problem = attsvm.random_problem(n=3, T=5, d=4, queries=2, seed=0)
    selection = rng.integers(5, size=(3, 2))
    low, high = attsvm.low_score_tokens(problem, selection), attsvm.high_score_tokens(problem, selection)
    own = np.arange(5) == selection[..., None]
    np.testing.assert_array_equal(low.astype(int) + high + own, 1)
    scores = problem.scores()
    chosen = np.take_along_axis(scores, selection[..., None], axis=-1)
    assert (scores[low] < np.broadcast_to(chosen, scores.shape)[low]).all()
    assert (scores[high] >= np.broadcast_to(chosen, scores.shape)[high]).all()


def test_masked_tokens_are_neither_low_nor_high():
    mask = np.array([[True, True, False]])
    problem = AttentionProblem(np.eye(3)[None], [1], np.ones((1, 3)), LinearHead([1.0, 2.0, 3.0]), mask)
    assert attsvm.low_score_tokens(problem).tolist() == [[True, False, False]]
    assert not attsvm.high_score_tokens(problem).any()


def test_optimal_tokens_are_locally_optimal_when_unique():
    for seed in range(10):
        problem = attsvm.random_problem(n=3, T=4, d=4, seed=seed)
        for norm in ("frobenius", "nuclear"):
            assert attsvm.is_locally_optimal(problem, norm=norm)


def test_definition_2_by_hand(rng):
    problem = attsvm.random_problem(n=2, T=4, d=4, seed=1)
    scores = problem.scores()
    verdicts = set()
    for selection in itertools.product(range(4), repeat=2):
        solution = attsvm.att_svm(problem, list(selection))
        supports = attsvm.support_indices(solution)
        by_hand = all(scores[i, a] > scores[i, t] for i, a in enumerate(selection) for t in supports[i])
        assert attsvm.is_locally_optimal(problem, list(selection)) is by_hand
        assert attsvm.is_locally_optimal(problem, list(selection), solution=solution) is by_hand
        verdicts.add(by_hand)
    assert verdicts == {True, False}


def test_a_tie_with_a_support_token_is_not_locally_optimal():
    problem = AttentionProblem([[[1.0], [0.0]]], [1], [[1.0]], head=lambda x: 0 * x[..., 0])
    assert not problem.optimal_tokens().is_unique
    assert not attsvm.is_locally_optimal(problem)


def test_infeasible_selections_are_not_locally_optimal():
    problem = attsvm.random_problem(n=6, T=6, d=2, seed=0)
    assert attsvm.att_svm(problem).status is Status.INFEASIBLE
    assert attsvm.is_locally_optimal(problem) is False


def test_undecided_and_mismatched_solutions_are_refused():
    problem = attsvm.random_problem(n=3, T=4, d=5, seed=0)
    rough = {"solver": "cvxpy:SCS", "max_iterations": 20, "tolerance": 1e-14}
    with pytest.raises(RuntimeError, match="local optimality is undecided: the solve ended inaccurate with gap"):
        attsvm.is_locally_optimal(problem, norm="nuclear", **rough)
    assert attsvm.att_svm(problem, **rough).status is Status.INACCURATE
    assert attsvm.is_locally_optimal(problem, **rough)  # small enough for rationals
    with pytest.raises(ValueError, match="solution was computed for another selection"):
        attsvm.is_locally_optimal(problem, [0, 0, 0], solution=attsvm.att_svm(problem, [1, 1, 1]))


def test_support_tolerance_is_stated_and_matters():
    solution = attsvm.att_svm(attsvm.random_problem(n=3, T=6, d=5, seed=0))
    strict = attsvm.support_indices(solution)
    loose = attsvm.support_indices(solution, tolerance=10.0)
    assert sum(map(len, strict)) < sum(map(len, loose)) == 15
    np.testing.assert_array_equal([t in strict[i] for i in range(3) for t in range(6)], solution.support.ravel())
    with pytest.raises(ValueError, match="tolerance must be >= 0, got -1"):
        attsvm.support_indices(solution, tolerance=-1)


def test_cone_value_by_hand():
    # One sequence, d = 1, z = 1: tokens 0, 1, 2, 3 at x = 3, 1, 0, 2 with scores 1, 0, 2, 3; token 0 is selected.
    X = np.array([[[3.0], [1.0], [0.0], [2.0]]])
    scores = {3.0: 1.0, 1.0: 0.0, 0.0: 2.0, 2.0: 3.0}
    problem = AttentionProblem(X, [1], [[1.0]], head=lambda x: np.vectorize(scores.get)(x[..., 0]))
    cone = attsvm.separating_cone(problem, [0])
    assert cone.low.tolist() == [[False, True, False, False]]
    assert cone.high.tolist() == [[False, False, True, True]]
    # W = 1: best low 1, best high 2, so -1; W = -1: best low -1, best high 0, so -1 as well.
    assert cone.value([[1.0]]) == pytest.approx(-1.0)
    assert cone.value([[-5.0]]) == pytest.approx(-1.0)
    assert not cone.contains([[1.0]])
    assert cone.contains([[1.0]], eps=-1.5)


def test_lemma_5_locally_optimal_solutions_lie_in_the_cone(rng):
    inside = outside = 0
    for seed in range(30):
        problem = attsvm.random_problem(n=2, T=4, d=3, seed=seed)
        for selection in random_selections(rng, problem, 6):
            solution = attsvm.att_svm(problem, selection)
            cone = attsvm.separating_cone(problem, selection)
            if attsvm.is_locally_optimal(problem, selection, solution=solution):
                # The corrected hypothesis: every query with high-score tokens has a support token.
                if (solution.support.any(axis=-1) | ~cone.high.any(axis=-1)).all():
                    assert cone.value(solution.W) > 1e-6
                    inside += 1
            else:
                assert cone.value(solution.W) <= 1e-6
                outside += 1
    assert inside >= 5
    assert outside >= 5


def test_lemma_5_fails_as_printed_where_a_support_set_is_empty():
    # d = 1: X_1 = (1, 0), X_2 = (3, 0), z = v = 1, labels (1, -1), both select token 0. W = 1, margins 1 and 3:
    # sequence 2 has no support token, so the selection is locally optimal, yet W is outside every cone.
    problem = AttentionProblem([[[1.0], [0.0]], [[3.0], [0.0]]], [1, -1], [[1.0], [1.0]], LinearHead([1.0]))
    solution = attsvm.att_svm(problem, [0, 0])
    assert solution.W.item() == pytest.approx(1.0, rel=1e-7)
    assert attsvm.is_locally_optimal(problem, [0, 0])
    assert attsvm.separating_cone(problem, [0, 0]).value(solution.W) == -np.inf


def test_cone_of_unique_optimal_tokens_is_everything(rng):
    problem = attsvm.random_problem(n=3, T=4, d=4, seed=0)
    cone = attsvm.separating_cone(problem)
    W = rng.standard_normal((4, 4))
    assert cone.value(W) == np.inf
    assert cone.contains(W, eps=1e6, rank=4)
    assert not cone.contains(W, eps=0.0, rank=3)


def test_cone_refuses_what_has_no_direction():
    problem = attsvm.random_problem(n=2, T=3, d=4, seed=0)
    cone = attsvm.separating_cone(problem, [0, 0])
    with pytest.raises(ValueError, match="W must not be zero"):
        cone.value(np.zeros((4, 4)))
    with pytest.raises(ValueError, match=re.escape("W must have shape (4, 4), got (4,)")):
        cone.value(np.ones(4))
    with pytest.raises(ValueError, match="the cone belongs to one problem"):
        attsvm.separating_cone(attsvm.random_problem(n=2, T=3, d=4, batch=2))
