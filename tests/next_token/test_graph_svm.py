"""Graph-SVM against a cvxpy model written constraint by constraint; infeasible ones with their proof."""

import numpy as np
import pytest

import attsvm
from attsvm.next_token import graph_svm
from attsvm.validation.bench.graphs import all_pairs_model
from corpora import draw


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
