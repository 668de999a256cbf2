"""How the SVM functions are called: bad arguments, warm starts, what one solution and a batch of them offer."""

import re
from dataclasses import replace

import numpy as np
import pytest

import attsvm

NORMS = ["frobenius", "nuclear"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: attsvm.att_svm(p, [0, 4, 0]), "selection[1] = 4 is out of range: tokens are 0..3"),
        (lambda p: attsvm.att_svm(p, [0, -1, 0]), "selection[1] = -1 is out of range: tokens are 0..3"),
        (lambda p: attsvm.att_svm(p, [0, 1]), "selection must have shape (3,), one token per query, got (2,)"),
        (lambda p: attsvm.att_svm(p, [0.0, 1.0, 2.0]), "selection must hold integers, got dtype float64"),
        (
            lambda p: attsvm.att_svm(replace(p, mask=np.arange(4) < [[4], [2], [4]]), [0, 3, 0]),
            "selection[1] = 3 is masked out for that query",
        ),
        (
            lambda p: attsvm.att_svm(replace(p, mask=np.arange(4) < [[1], [1], [1]])),
            "mask leaves no query with two tokens to choose from: there is nothing to separate",
        ),
        (lambda p: attsvm.att_svm(p, rank=0), "rank must be None or an integer >= 1, got 0"),
        (lambda p: attsvm.gen_svm(p, [[0], [], [1]]), "selected_sets[1] is empty: select at least one token per query"),
        (lambda p: attsvm.gen_svm(p, [[0], [7], [1]]), "selected_sets[1] holds 7, but tokens are 0..3"),
        (lambda p: attsvm.gen_svm(p, [[0], [1]]), "selected_sets must have shape (3, 4), got (2, 4)"),
        (lambda p: attsvm.gen_svm(p, [[True], [0], [1]]), "selected_sets[0] must hold token indices, got True"),
        (
            lambda p: attsvm.gen_svm(replace(p, mask=np.arange(4) < [[4], [2], [4]]), [[0], [3], [0]]),
            "selected_sets[1] holds token 3, which is masked out for that query",
        ),
        (
            lambda p: attsvm.finite_part(p, np.ones((3, 3)), [[0, 1]] * 3),
            "probabilities must have shape (3, 4), got (3, 3)",
        ),
        (
            lambda p: attsvm.finite_part(p, np.zeros((3, 4)), [[0, 1]] * 3),
            "probabilities must be positive on the selected sets, but query 0 gives token 0 0",
        ),
        (
            lambda p: attsvm.finite_part(p, np.ones((3, 4)), [[0], [1], [2]]),
            "selected_sets holds one token per query: there is no ratio of probabilities to match",
        ),
        (lambda p: attsvm.verify(p, np.eye(4)), "W must have shape (5, 5), got (4, 4)"),
        (lambda p: attsvm.verify(p, np.full((5, 5), np.nan)), "W must be finite"),
        (
            lambda p: attsvm.verify(p, np.eye(5), [0, 0, 0], selected_sets=[[0]] * 3),
            "give either selection or selected_sets, not both",
        ),
        (
            lambda p: attsvm.verify(p, np.eye(5), multipliers=np.ones(3)),
            "multipliers must have shape (3, 4), got (3,)",
        ),
        (lambda p: attsvm.satt_svm(p, causal=True), "a causal mask needs one query per token"),
        (
            lambda p: attsvm.verify(attsvm.random_problem(n=2, T=3, d=5, batch=2), np.eye(5)),
            "verify takes one problem at a time; index the batch first, e.g. problem[0]",
        ),
    ],
)
def test_bad_calls_are_named(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call(attsvm.random_problem(n=3, T=4, d=5, seed=0))


@pytest.mark.parametrize("norm", NORMS)
def test_warm_start_from_another_selection(norm):
    problem = attsvm.random_problem(n=8, T=12, d=20, seed=0)
    first = attsvm.att_svm(problem, norm=norm)
    swapped = first.selection.indices.copy()
    swapped[0] = (swapped[0] + 1) % 12
    cold = attsvm.att_svm(problem, swapped, norm=norm)
    warm = attsvm.att_svm(problem, swapped, norm=norm, warm_start=first)
    assert warm.norm == pytest.approx(cold.norm, rel=1e-9)
    assert warm.iterations <= cold.iterations
    again = attsvm.att_svm(problem, norm=norm, warm_start=first)
    assert again.iterations <= first.iterations
    with pytest.raises(ValueError, match="warm_start must solve a problem with queries"):
        attsvm.att_svm(attsvm.random_problem(n=3, T=12, d=20), norm=norm, warm_start=first)
    with pytest.raises(ValueError, match=re.escape("warm_start must solve a problem with queries (2, 8) and T = 12")):
        attsvm.att_svm(attsvm.random_problem(n=8, T=12, d=20, batch=2), norm=norm, warm_start=first)
