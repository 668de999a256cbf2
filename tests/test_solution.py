"""What a solution says in the language of tokens, against its own W."""

import numpy as np
import pytest

import attsvm
from attsvm import AttentionProblem, InfeasibleError


def by_hand(T=4):
    """One sequence in one dimension, W = 1: token 0 at 3 leads by 1, 1.25 and 2."""
    return AttentionProblem(np.array([[[3.0], [2.0], [1.75], [1.0]]])[:, :T], [1], [[1.0]])


def test_margins_and_support_by_hand():
    sol = attsvm.att_svm(by_hand(), [0])
    np.testing.assert_allclose(sol.token_margins(), [[np.nan, 1.0, 1.25, 2.0]])
    assert sol.support.tolist() == [[False, True, False, False]]
    assert [i.tolist() for i in attsvm.support_indices(sol)] == [[1]]
    np.testing.assert_allclose(sol.multipliers, [[0.0, 1.0, 0.0, 0.0]], atol=1e-12)
    assert (sol.norm, sol.margin, sol.rank) == (pytest.approx(1.0), pytest.approx(1.0), 1)


@pytest.mark.parametrize(("tolerance", "support"), [(0.0, [1]), (0.24, [1]), (0.25, [1, 2]), (1.0, [1, 2, 3])])
def test_a_distance_equal_to_the_tolerance_belongs_to_the_support(tolerance, support):
    sol = attsvm.att_svm(by_hand(), [0])
    assert sol.W.item() == 1.0  # exact in binary, so that the distances are
    assert [i.tolist() for i in attsvm.support_indices(sol, tolerance=tolerance)] == [support]
    asked = attsvm.att_svm(by_hand(), [0], support_tolerance=tolerance)
    assert np.flatnonzero(asked.support[0]).tolist() == support


def test_tokens_of_a_selected_set_are_never_support():
    problem = attsvm.random_problem(n=2, T=5, d=8, seed=0)
    sol = attsvm.gen_svm(problem, [[0, 2], [1]], support_tolerance=2.0)  # wide enough for the 0 of an equality
    assert sol.support[:, [0, 2]][0].tolist() == [False, False]
    assert sol.support[0, [1, 3, 4]].any()
    for indices in (attsvm.support_indices(sol), attsvm.support_indices(sol, tolerance=2.0)):
        assert not {0, 2} & set(indices[0].tolist())
        assert 1 not in indices[1]


def test_masked_tokens_have_no_margin():
    full = by_hand()
    problem = AttentionProblem(full.X, full.Y, full.Z, mask=[[True, False, True, True]])
    sol = attsvm.att_svm(problem, [0])
    np.testing.assert_allclose(sol.token_margins(), [[np.nan, np.nan, 1.0, 1.6]])
    assert sol.support.tolist() == [[False, False, True, False]]
    assert [i.tolist() for i in attsvm.support_indices(sol, tolerance=10.0)] == [[2, 3]]


@pytest.mark.parametrize("norm", ["frobenius", "nuclear", "spectral"])
def test_direction_and_margin_are_those_of_the_norm(norm):
    sol = attsvm.att_svm(attsvm.random_problem(n=4, T=4, d=6, seed=1), norm=norm)
    singular = np.linalg.svd(sol.W, compute_uv=False)
    value = {"frobenius": np.sqrt((singular**2).sum()), "nuclear": singular.sum(), "spectral": singular[0]}[norm]
    assert sol.norm == pytest.approx(value, rel=1e-12)
    assert sol.margin == pytest.approx(1 / value, rel=1e-12)
    np.testing.assert_allclose(sol.direction, sol.W / value, rtol=1e-12)
    assert sol.norm_name == norm


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_a_zero_solution_has_rank_zero_and_no_direction(norm):
    problem = attsvm.random_problem(n=2, T=3, d=4, seed=0)
    sol = attsvm.finite_part(problem, np.full((2, 3), 1 / 3), [[0, 1], [2, 1]], norm=norm)
    assert (sol.norm, sol.margin, sol.rank) == (0.0, np.inf, 0)
    with pytest.raises(ValueError, match="direction is undefined: W = 0 satisfies every row"):
        _ = sol.direction


def test_frobenius_rank_counts_what_is_not_rounding():
    for n in (1, 2, 3):
        sol = attsvm.att_svm(attsvm.random_problem(n=n, T=3, d=6, seed=n))
        singular = np.linalg.svd(sol.W, compute_uv=False)
        assert sol.rank == n == np.count_nonzero(singular > 1e-6 * singular[0])
    # Two orthogonal blocks of very different size: 1e-5 is far above rounding and counts.
    X = np.array([[[1.0, 0.0], [0.0, 0.0]], [[0.0, 1e5], [0.0, 0.0]]])
    small = attsvm.att_svm(AttentionProblem(X, [1, 1], np.eye(2)), [0, 0])
    np.testing.assert_allclose(small.W, np.diag([1.0, 1e-5]), atol=1e-12)
    assert small.rank == 2


def test_conflicts_are_named_by_sequence_or_by_query():
    X = np.array([[[1.0], [0.0]], [[0.0], [1.0]], [[1.0], [0.0]]])
    one = attsvm.att_svm(AttentionProblem(X, [1, 1, 1], np.ones((3, 1))), [0, 0, 0])  # W >= 1, W <= -1, W >= 1
    assert one.margin == 0.0
    assert one.norm == np.inf
    conflict = one.conflicting_queries.tolist()
    assert 1 in conflict
    assert set(conflict) <= {0, 1, 2}
    with pytest.raises(InfeasibleError, match=f"the rows of sequences {', '.join(map(str, conflict))} together"):
        _ = one.W
    many = AttentionProblem(X[:1], [[1, 1]], np.array([[[1.0], [-1.0]]]))
    with pytest.raises(InfeasibleError, match=r"the rows of \(sequence, query\) \(0, 0\), \(0, 1\) together"):
        _ = attsvm.att_svm(many, [[0, 0]]).W
    alone = attsvm.att_svm(AttentionProblem(X[:1], [1], np.zeros((1, 1))), [0])
    with pytest.raises(InfeasibleError, match=r"Z\[0\] is zero, so all tokens of sequence 0 score the same"):
        _ = alone.W
    feasible = attsvm.att_svm(by_hand(), [0])
    assert feasible.conflicting_queries.tolist() == []
