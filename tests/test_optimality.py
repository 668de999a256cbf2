import itertools
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attsvm
from attsvm import AttentionProblem, LinearHead, Status, optimality
from attsvm.enumeration import locally_optimal_selections
from attsvm.exact_tokens import score_order
from attsvm.optimality import Convergence, convergence_of, prove


def almost_supporting(excess):
    """One query at 1: token 1 has margin 1 and scores less, token 2 scores more and has margin 1 + excess."""
    X = np.array([[[0.0, 0.0], [-1.0, 0.0], [-(1.0 + excess), -1.0]]])
    return AttentionProblem(X, [1], [[1.0]], LinearHead([1.0, -5.0]))


def two_readings():
    """Nuclear norm, selection (0, 0): [[1, t], [t, 1]] is a solution for -1 <= t <= 0, and token 2 of the second
    sequence, which scores more, has margin 1 - t / 2: on the margin of one solution, beyond that of the others."""
    X = np.array([[[0.0, 0.0], [-1.0, 0.0], [-5.0, 0.0]], [[0.0, 0.0], [0.0, -1.0], [0.5, -1.0]]])
    return AttentionProblem(X, [1, 1], np.eye(2), LinearHead([3.0, 1.0]))


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
    with pytest.warns(attsvm.ConvergenceWarning):
        assert attsvm.att_svm(problem, **rough).status is Status.INACCURATE
    assert attsvm.is_locally_optimal(problem, **rough)  # small enough for rationals
    with pytest.raises(ValueError, match="solution was computed for another selection"):
        attsvm.is_locally_optimal(problem, [0, 0, 0], solution=attsvm.att_svm(problem, [1, 1, 1]))


@pytest.mark.parametrize("excess", [1e-2, 5e-6, 1e-9, 2.0**-52])
def test_a_token_just_beyond_the_margin_does_not_support(excess):
    problem = almost_supporting(excess)
    assert attsvm.is_locally_optimal(problem, [0])
    found = locally_optimal_selections(problem)
    assert [0] in found
    assert found.complete
    # On the margin exactly, it does.
    assert not attsvm.is_locally_optimal(almost_supporting(0.0), [0])
    assert [0] not in locally_optimal_selections(almost_supporting(0.0))


def test_what_neither_bounds_nor_rationals_settle_is_undecided(monkeypatch):
    monkeypatch.setattr(optimality, "solve_exactly", lambda *arguments: None)
    assert attsvm.is_locally_optimal(almost_supporting(5e-6), [0])  # bounds are enough
    problem = almost_supporting(1e-9)
    with pytest.raises(
        RuntimeError, match=r"undecided: the margin of a token of no lower score is 1\S*, known to within .\S*e-0"
    ):
        attsvm.is_locally_optimal(problem, [0])
    assert convergence_of(attsvm.att_svm(problem, [0])) is Convergence.UNDECIDED
    found = locally_optimal_selections(problem)
    assert not found.complete
    assert [item.selection.indices.tolist() for item in found.undecided] == [[0]]
    assert "too large for exact arithmetic" in found.undecided[0].reason
    assert found.undecided[0].reason in str(found)
    batch = problem.repeat(2)
    with pytest.raises(RuntimeError, match=re.escape("undecided for problems [0, 1]: the margin of a token")):
        attsvm.is_locally_optimal(batch, [[0], [0]])


def test_where_solutions_are_not_unique_both_readings_must_agree():
    problem = two_readings()
    found = locally_optimal_selections(problem, norm="nuclear")
    assert [item.selection.indices.tolist() for item in found.undecided] == [[0, 0]]
    assert not found.complete
    with pytest.raises(RuntimeError, match="the solutions of the nuclear-norm problem differ"):
        attsvm.is_locally_optimal(problem, [0, 0], norm="nuclear")
    for selection in itertools.product(range(3), repeat=2):
        if selection != (0, 0):
            assert attsvm.is_locally_optimal(problem, selection, norm="nuclear") is (list(selection) in found)
    # In the Frobenius norm there is one solution, with t = 0 and the token on its margin.
    assert attsvm.is_locally_optimal(problem, [0, 0]) is False


def test_the_nuclear_verdict_by_norms_alone(rng):
    verdicts = set()
    for seed in range(4):
        problem = attsvm.random_problem(n=2, T=3, d=3, seed=seed)
        for selection in itertools.product(range(3), repeat=2):
            solution = attsvm.att_svm(problem, selection, norm="nuclear")
            local = attsvm.is_locally_optimal(problem, selection, solution=solution)
            # Random solutions are unique, margins away from 1 by more than the tolerance of the support.
            beaten = solution.support & attsvm.high_score_tokens(problem, selection)
            assert local is not bool(beaten.any())
            verdicts.add(local)
    assert verdicts == {True, False}


def test_a_batch_is_decided_like_its_problems():
    problems = [almost_supporting(excess) for excess in (0.0, 1e-9, 5e-6, 0.5)]
    batch = AttentionProblem(
        np.concatenate([p.X[None] for p in problems]), np.ones((4, 1)), np.ones((4, 1, 1)), LinearHead([1.0, -5.0])
    )
    selection = np.zeros((4, 1), dtype=int)
    together = attsvm.is_locally_optimal(batch, selection)
    assert together.tolist() == [attsvm.is_locally_optimal(p, [0]) for p in problems] == [False, True, True, True]
    solved = attsvm.att_svm(batch, selection)
    np.testing.assert_array_equal(attsvm.is_locally_optimal(batch, selection, solution=solved), together)
    kinds = convergence_of(solved)
    assert kinds.tolist() == ["Not local", "Local", "Local", "Local"]
    assert [kind.is_local for kind in kinds] == together.tolist()
    with pytest.raises(
        ValueError, match="solution= must be a Solution for one problem and a SolutionBatch for a batch"
    ):
        attsvm.is_locally_optimal(batch, selection, solution=solved[0])


def test_convergence_by_hand():
    problem = attsvm.random_problem(n=2, T=3, d=4, seed=0)
    assert convergence_of(attsvm.att_svm(problem)) is Convergence.GLOBAL
    assert [Convergence.of(local=local, undecided=False, optimal=True) for local in (True, False)] == [
        "Global",
        "Not local",
    ]
    assert Convergence.of(local=False, undecided=True, optimal=True) == "Undecided"
    sets = attsvm.gen_svm(problem, [[0, 1], [2]])
    with pytest.raises(ValueError, match="one token per query; this solution selects sets of tokens"):
        prove(sets)


@given(
    st.lists(st.tuples(*[st.sampled_from([0.0, 0.1, 0.2, 0.3, -0.1, 1e-17, 1.0 / 3.0])] * 3), min_size=2, max_size=5),
    st.tuples(*[st.sampled_from([1.0, 0.1, -0.3, 3.0])] * 3),
    st.sampled_from([-1, 1]),
)
def test_the_order_of_scores_is_that_of_fractions(tokens, v, label):
    problem = AttentionProblem([tokens], [label], [[1.0]], LinearHead(v))
    exact = [label * sum(Fraction(x) * Fraction(w) for x, w in zip(token, v, strict=True)) for token in tokens]
    order = score_order(problem)[0]
    for s, t in itertools.product(range(len(tokens)), repeat=2):
        assert (order[s] < order[t]) == (exact[s] < exact[t])


def test_the_order_of_scores_with_masks_queries_and_batches():
    X = np.array([[[0.1, 0.2], [0.3, 0.0], [9.0, 9.0]], [[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]], dtype=np.float32)
    mask = np.array([[[True, True, False]] * 2, [[True, True, True]] * 2])
    problem = AttentionProblem(X, [[1, -1], [1, 1]], np.ones((2, 2, 2)), LinearHead([1.0, 1.0]), mask)
    order = score_order(problem)
    # In float32 0.1 + 0.2 is less than 0.3; the labels of the first sequence differ.
    exact = [sum(Fraction(float(x)) for x in row) for row in X[0, :2]]
    assert exact[0] < exact[1]
    assert order[0, 0, 0] < order[0, 0, 1]
    assert order[0, 1, 0] > order[0, 1, 1]
    assert len(set(order[1, 0].tolist())) == 1  # exact ties
    assert attsvm.high_score_tokens(problem, [[0, 0], [0, 0]])[0].tolist() == [
        [False, True, False],
        [False, False, False],
    ]
    batch = problem.repeat(3)
    np.testing.assert_array_equal(score_order(batch), np.stack([order] * 3))
    other = AttentionProblem(X, [1, 1], np.ones((2, 2)), lambda x: np.sign(x[..., 0] - 0.2))
    assert score_order(other)[0].tolist() == [0, 1, 1]


def test_support_tolerance_is_stated_and_matters():
    solution = attsvm.att_svm(attsvm.random_problem(n=3, T=6, d=5, seed=0))
    strict = attsvm.support_indices(solution)
    loose = attsvm.support_indices(solution, tolerance=10.0)
    assert sum(map(len, strict)) < sum(map(len, loose)) == 15
    np.testing.assert_array_equal([t in strict[i] for i in range(3) for t in range(6)], solution.support.ravel())
    with pytest.raises(ValueError, match="tolerance must be None or a number >= 0, got -1"):
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


def test_membership_in_the_cone_is_closed_and_starts_at_zero():
    # d = 1, z = 1: selected token 1 at x = 1, low token 0 at x, high token 2 at 0; W = 1 gives the value x.
    for x, inside in ((0.5, True), (0.0, True), (-0.5, False)):
        X = np.array([[[x], [1.0], [0.0]]])
        problem = AttentionProblem(X, [1], [[1.0]], head=lambda t: np.array([0.0, 1.0, 2.0]) + 0 * t[..., 0])
        cone = attsvm.separating_cone(problem, [1])
        assert cone.value([[2.0]]) == pytest.approx(x)
        assert cone.contains([[2.0]]) is inside
        assert cone.contains([[2.0]], eps=x)
        assert not cone.contains([[2.0]], eps=x + 0.25)
        assert cone.contains([[2.0]], eps=x, rank=1)


def test_the_cone_asks_for_the_rank_it_is_told():
    problem = attsvm.random_problem(n=2, T=3, d=4, seed=0)
    cone = attsvm.separating_cone(problem)  # the optimal tokens: the whole space
    W = np.diag([1.0, 1.0, 0.0, 0.0])
    assert [cone.contains(W, rank=r) for r in (1, 2, 3, None)] == [False, True, True, True]


def test_cone_of_many_queries_is_the_worst_of_them(rng):
    problem = attsvm.random_problem(n=2, T=4, d=3, dz=5, queries=3, seed=2)
    selection = rng.integers(4, size=(2, 3))
    cone = attsvm.separating_cone(problem, selection)
    W = rng.standard_normal((3, 5))
    scores, values = problem.scores(), []
    for i, k in np.ndindex(2, 3):
        logits = problem.X[i] @ W @ problem.Z[i, k] / np.linalg.norm(W)
        own = scores[i, k, selection[i, k]]
        low = [logits[t] for t in range(4) if scores[i, k, t] < own]
        high = [logits[t] for t in range(4) if scores[i, k, t] >= own and t != selection[i, k]]
        if high:
            values.append(max(low, default=-np.inf) - max(high))
    assert cone.value(W) == pytest.approx(min(values))


def test_bad_matrices_and_batches_are_named():
    problem = attsvm.random_problem(n=2, T=3, d=4, dz=5, seed=0)
    cone = attsvm.separating_cone(problem)
    with pytest.raises(ValueError, match=re.escape("W must have shape (4, 5), got (5, 4)")):
        cone.value(np.ones((5, 4)))
    with pytest.raises(ValueError, match="W must not be zero: its direction is undefined"):
        cone.value(np.zeros((4, 5)))
    batch = attsvm.random_problem(n=2, T=3, d=4, batch=3, seed=0)
    with pytest.raises(ValueError, match="the cone belongs to one problem; index the batch first"):
        attsvm.separating_cone(batch)
    with pytest.raises(ValueError, match="and a SolutionBatch for a batch, got Solution; index the batch first"):
        attsvm.is_locally_optimal(batch, solution=attsvm.att_svm(batch[0]))


def test_local_optimality_of_a_batch_is_that_of_its_problems(rng):
    batch = attsvm.random_problem(n=3, T=4, d=2, batch=40, seed=3)  # some infeasible, some not locally optimal
    selection = rng.integers(4, size=(40, 3))
    together = attsvm.is_locally_optimal(batch, selection)
    alone = [attsvm.is_locally_optimal(batch[b], selection[b]) for b in range(40)]
    assert together.tolist() == alone
    assert set(alone) == {True, False}
    rough = {"solver": "cvxpy:SCS", "max_iterations": 20, "tolerance": 1e-14}  # settled in exact arithmetic instead
    few = attsvm.random_problem(n=3, T=4, d=5, batch=7, seed=0)
    assert attsvm.is_locally_optimal(few, **rough).tolist() == attsvm.is_locally_optimal(few).tolist()
