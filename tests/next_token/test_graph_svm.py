"""Graph-SVM against a cvxpy model written constraint by constraint; infeasible ones with their proof."""

import numpy as np
import pytest

import attsvm
from attsvm.next_token import graph_svm, random_corpus
from attsvm.validation.bench.model_cases import all_pairs_model
from corpora import draw
from kkt import assert_infeasible, assert_optimal


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
@pytest.mark.parametrize("seed", range(6))
def test_norms_are_those_of_all_pairs(seed, norm):
    rng = np.random.default_rng(seed)
    sequences, embeddings = draw(rng, int(rng.integers(4, 11)), int(rng.integers(4, 7)), int(rng.integers(6, 9)), 8)
    svm = graph_svm(sequences, embeddings, norm=norm)
    tight = dict.fromkeys(("tol_gap_rel", "tol_gap_abs", "tol_feas"), 1e-10)
    _, value, status = all_pairs_model(sequences, embeddings, norm, solver="CLARABEL", **tight)
    if svm.status == "infeasible":
        assert "infeasible" in status
        return
    assert svm.status == "optimal"
    np.testing.assert_allclose(svm.norm, value, rtol=1e-7, atol=1e-8)  # what CLARABEL reaches at its tightest
    margins = svm.margins()
    assert np.abs(margins[svm.equality]).max(initial=0.0) <= 1e-9 * max(1.0, svm.norm)
    assert margins[~svm.equality].min(initial=1.0) >= 1 - 1e-9


def test_nothing_to_order_gives_zero():
    svm = graph_svm([[0, 1, 0], [0, 1, 1]], np.eye(2))
    assert svm.status == "optimal" and svm.norm == 0 and svm.margin == np.inf and svm.rank == 0


def test_tokens_with_one_embedding_are_a_conflict_that_names_the_last_token():
    svm = graph_svm([[0, 1, 2, 0]], [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert svm.status == "infeasible"
    with pytest.raises(attsvm.InfeasibleError, match="graphs of last tokens 2 in order"):
        _ = svm.W
    assert repr(svm) == "GraphSolution(frobenius, infeasible, 2 rows)"


def test_the_proof_is_exact_although_differences_are_rounded():
    rng = np.random.default_rng(3)
    sequences, embeddings = draw(rng, 4, 4, 6, 8, acyclic=True)
    svm = graph_svm(sequences, embeddings)
    proof = svm.certificate.exact()
    assert proof.gap <= 1e-12


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_large_corpora_that_contradict_themselves_come_with_a_proof(norm):
    sequences, embeddings = random_corpus(900, 10, 120, 16, seed=0)
    svm = graph_svm(sequences, embeddings, norm=norm)
    assert svm.status == "infeasible" and svm.equality.any() and len(svm.pairs) > 5000
    assert_infeasible(svm.result.problem, svm.certificate.farkas.multipliers)


def test_large_corpora_whose_ties_leave_an_order_are_solved():
    # Next tokens that a hidden W prefers, and one context again with another of its tokens next: the two are tied.
    sequences, embeddings = random_corpus(500, 10, 60, 8, labels="realizable", seed=1)
    first = sequences[0]
    other = next(token for token in first[:-1] if token != first[-1])
    svm = graph_svm([*sequences, [*first[:-1], other]], embeddings)
    assert svm.status == "optimal" and svm.equality.any() and len(svm.pairs) > 3000
    # Interior point steps end at a gap of 1e-9: multipliers and slacks are right to about its square root at worst.
    assert_optimal(svm.result.problem, svm.W, svm.result.multipliers, "frobenius", 3e-5)
