"""Exact rows, scores and local optimality of attention problems."""

from fractions import Fraction

import numpy as np
import pytest

import attsvm
from attsvm.exact_tokens import every_support_scores_less, exact_scores, exact_selection_rows
from attsvm.selection_rows import selection_rows
from attsvm.solvers.exact import exact_feasibility, exact_least_norm, exact_rows


def test_rows_are_differences_without_rounding(rng):
    X = (rng.standard_normal((2, 4, 3)) * 10.0 ** rng.uniform(-9, 9, (2, 4, 1))).astype(np.float32)
    problem = attsvm.AttentionProblem(X, None, rng.standard_normal((2, 2, 5)))
    selection = [[0, 3], [2, 1]]
    rows, token = exact_selection_rows(problem, selection)
    floats = selection_rows(problem, selection)
    assert token.tolist() == floats.token.tolist()
    assert rows.owner.tolist() == floats.margin_problem.owner.tolist()
    W = rng.standard_normal((3, 5))
    for k, value in enumerate(rows.margins(W)):
        i, q = divmod(int(rows.owner[k]), 2)
        x = [
            Fraction(float(u)) - Fraction(float(v)) for u, v in zip(X[i, selection[i][q]], X[i, token[k]], strict=True)
        ]
        z = [Fraction(float(v)) for v in problem.Z[i, q]]
        truth = sum(x[r] * Fraction(float(W[r, c])) * z[c] for r in range(3) for c in range(5))
        assert Fraction(int(value.p), int(value.q)) == truth


def test_equal_tokens_are_infeasible():
    problem = attsvm.AttentionProblem([[[1.0, 2.0], [1.0, 2.0], [0.0, 0.0]]], None, [[1.0]])
    rows, token = exact_selection_rows(problem, [0])
    answer = exact_feasibility(rows)
    assert not answer.feasible
    assert token[answer.proof.rows].tolist() == [1]


def test_scores_are_exact():
    # 0.1 + 0.2 and 0.3 tie in decimal, not in binary; float64 rounds their sum up, too.
    problem = attsvm.AttentionProblem(
        [[[0.1, 0.2], [0.3, 0.0], [0.0, 0.0]]], [1.0], [[1.0]], attsvm.LinearHead([1.0, 1.0])
    )
    scores = exact_scores(problem)
    assert scores[0, 0] == Fraction(0.1) + Fraction(0.2) != Fraction(0.1 + 0.2)
    several = attsvm.AttentionProblem(problem.X, [[1.0, -1.0]], [[[1.0], [2.0]]], problem.head)
    assert exact_scores(several).shape == (1, 2, 3)
    assert exact_scores(several)[0, 1, 1] == -Fraction(0.3)
    relu = attsvm.AttentionProblem(problem.X, None, [[1.0]], attsvm.ReluHead([[1.0], [-1.0]]))
    assert exact_scores(relu)[0, 1] == Fraction(0.3)
    with pytest.raises(ValueError, match="scores need a prediction head"):
        exact_scores(attsvm.AttentionProblem(problem.X, None, [[1.0]]))
    with pytest.raises(ValueError, match="one problem at a time"):
        exact_scores(attsvm.random_problem(n=2, T=3, d=2, batch=2))


def test_local_optimality_at_a_margin_just_above_one():
    # The higher-score token has margin 1 + 5e-6: not a support token, so the selection is locally optimal.
    X = [[[0.0, 0.0], [-1.0, 0.0], [-(1 + 5e-6), -1.0]]]
    problem = attsvm.AttentionProblem(X, None, [[1.0]], attsvm.LinearHead([1.0, -5.0]))
    rows, token = exact_selection_rows(problem, [0])
    best = exact_least_norm(rows)
    assert token[best.support].tolist() == [1]
    support = np.zeros((1, 3), dtype=bool)
    support[0, token[best.support]] = True
    assert every_support_scores_less(support, exact_scores(problem), [0])
    support[0, 2] = True
    assert not every_support_scores_less(support, exact_scores(problem), [0])
    with pytest.raises(ValueError, match="support must have the shape"):
        every_support_scores_less(support[0], exact_scores(problem), [0])


def test_nothing_to_separate_is_said():
    problem = attsvm.AttentionProblem(np.ones((1, 2, 1)), None, [[1.0]], mask=[[True, False]])
    with pytest.raises(ValueError, match="nothing to separate"):
        exact_selection_rows(problem, [0])


@pytest.mark.parametrize("S", [1e9, 1e12, 1e15])
def test_large_tokens_are_feasible(S):
    problem = attsvm.AttentionProblem([[[0.0, 0.0], [-S, 0.0], [S, -1.0]]], None, [[1.0]])
    assert exact_feasibility(exact_selection_rows(problem, [0])[0]).feasible


def test_rounding_of_a_difference_can_decide():
    # The differences (1, t - 1) and (-1, t + 1) round to opposite rows: infeasible as floats, feasible as tokens.
    t = 2.0**-60
    problem = attsvm.AttentionProblem([[[0.0, t], [-1.0, 1.0], [1.0, -1.0]]], None, [[1.0]])
    floats = selection_rows(problem, [0]).margin_problem
    assert not exact_feasibility(exact_rows(floats.rows.a, floats.rows.queries, floats.owner)).feasible
    answer = exact_feasibility(exact_selection_rows(problem, [0])[0])
    assert answer.feasible
    assert max(answer.W.ravel()) >= 2**60
