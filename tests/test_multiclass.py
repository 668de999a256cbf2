"""The multiclass SVM against cvxpy models written constraint by constraint, and LIBLINEAR's Crammer-Singer SVM."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import attsvm
from attsvm.multiclass import multiclass_svm
from attsvm.next_token import linear_svm
from attsvm.solvers import SharedRows
from attsvm.validation.bench.fit_cases import crammer_singer, standardized

svm = pytest.importorskip("sklearn.svm")

TIGHT = dict.fromkeys(("tol_gap_rel", "tol_gap_abs", "tol_feas"), 1e-10)


def check_draw(seed, norm):
    """A draw of random size, hard or soft, against a model with one constraint per sample and wrong class."""
    import cvxpy as cp

    rng = np.random.default_rng(seed)
    k, d, n = (int(rng.integers(*span)) for span in ((2, 6), (3, 8), (5, 13)))
    H, y = rng.standard_normal((n, d)), np.append(np.arange(k), rng.integers(k, size=n))[:n] % min(k, n)
    C = None if seed % 2 else float(10.0 ** rng.uniform(-1.5, 1.0))
    found = multiclass_svm(H, y, norm=norm, C=C)
    k = len(found.classes)
    W, slack = cp.Variable((k, d)), cp.Variable(n, nonneg=True)
    size = {
        "frobenius": lambda: cp.norm(W, "fro"), "nuclear": lambda: cp.normNuc(W), "spectral": lambda: cp.sigma_max(W),
        "linf": lambda: cp.max(cp.abs(W)), "l1": lambda: cp.sum(cp.abs(W)),
        "l3": lambda: cp.pnorm(cp.vec(W, order="C"), 3.0, approx=False),
    }[norm]()  # fmt: skip
    constraints = []
    for i in range(n):
        for c in range(k):
            if c != y[i]:
                constraints.append((W[int(y[i])] - W[c]) @ H[i] >= (1 if C is None else 1 - slack[i]))
    objective = size if C is None else (cp.square(size) / 2 if norm == "frobenius" else size) + C * cp.sum(slack)
    program = cp.Problem(cp.Minimize(objective), constraints)
    with warnings.catch_warnings():  # semidefinite programs stop just short of 1e-10: the value below decides
        warnings.simplefilter("ignore", UserWarning)
        program.solve(solver="CLARABEL", **TIGHT)
    if found.status == "infeasible":
        assert "infeasible" in program.status
        return
    assert found.status == "optimal" and program.status.startswith("optimal")
    assert found.objective == pytest.approx(program.value, rel=1e-7, abs=1e-8)  # what CLARABEL reaches at its tightest
    missed = np.nan_to_num(1.0 - found.margins(), nan=0.0).max(axis=1)
    if C is None:
        assert missed.max() <= 1e-9
    np.testing.assert_allclose(found.slacks if C is not None else 0.0, np.maximum(missed, 0.0), atol=1e-9)


@pytest.mark.parametrize("norm", ["frobenius", "nuclear", "spectral", "linf", "l1", "l3"])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_optimum_is_that_of_a_model_written_constraint_by_constraint(seed, norm):
    check_draw(seed, norm)


@pytest.mark.parametrize("C", [0.01, 1.0, 10.0])
@pytest.mark.parametrize("data", ["iris", "wine"])
def test_the_soft_margin_is_that_of_crammer_and_singer(data, C):
    samples, labels = standardized(data)
    own = multiclass_svm(samples, labels, C=C)
    peer = svm.LinearSVC(
        C=C, multi_class="crammer_singer", fit_intercept=False, tol=1e-8, max_iter=10**6, random_state=0
    ).fit(samples, labels)
    assert own.status == "optimal"
    ours, theirs = crammer_singer(own.W, samples, labels, C), crammer_singer(peer.coef_, samples, labels, C)
    assert ours == pytest.approx(own.objective, rel=1e-9)
    assert ours == pytest.approx(theirs, rel=1e-6)  # LIBLINEAR stops at its tolerance, not at a gap
    assert own.certificate.lower_bound <= theirs * (1 + 1e-12)
    scores = samples @ own.W.T
    ahead = np.diff(np.sort(scores, axis=1)[:, -2:])[:, 0] > 1e-6  # W is unique: only ties may differ
    assert ahead.mean() > 0.99
    np.testing.assert_array_equal(own.predict(samples)[ahead], peer.predict(samples)[ahead])


def test_without_wrong_samples_the_hard_margin_is_that_of_a_large_penalty():
    samples, labels = standardized("wine")  # three cultivars that a linear map separates
    hard, soft = multiclass_svm(samples, labels), multiclass_svm(samples, labels, C=100.0)
    assert hard.status == soft.status == "optimal"
    assert soft.norm == pytest.approx(hard.norm, rel=1e-6)
    # Rows are differences, so the scores of a sample add up to 0.
    assert np.abs(hard.W.sum(axis=0)).max() < 1e-9 * hard.norm
    assert hard.support.sum() == (hard.multipliers > 1e-9 * hard.multipliers.max()).sum()


def test_two_classes_are_the_ordinary_svm():
    """With two classes w_1 = -w_0, so the ordinary SVM's w is their difference, at half the C."""
    samples, labels = standardized("iris")
    samples, labels = samples[50:], labels[50:] - 1
    own = multiclass_svm(samples, labels, C=0.5)
    peer = svm.LinearSVC(C=1.0, loss="hinge", fit_intercept=False, tol=1e-10, max_iter=10**7, random_state=0)
    peer.fit(samples, labels)
    np.testing.assert_allclose(own.W[1] - own.W[0], peer.coef_[0], atol=1e-5 * np.abs(peer.coef_).max())


def test_a_decoder_with_one_next_token_per_context_is_this_svm():
    samples, labels = standardized("wine")
    decoder = linear_svm(samples, np.eye(3)[labels])
    np.testing.assert_allclose(multiclass_svm(samples, labels).W, decoder.W, atol=1e-9)


def test_labels_may_be_strings_in_any_order():
    samples, labels = standardized("wine")
    names = np.array(["zinfandel", "merlot", "arneis"])
    plain, named = multiclass_svm(samples, labels), multiclass_svm(samples, names[labels])
    assert named.classes.tolist() == ["arneis", "merlot", "zinfandel"]
    np.testing.assert_allclose(named.W, plain.W[::-1], atol=1e-9)
    np.testing.assert_array_equal(named.predict(samples), names[labels])
    assert multiclass_svm(samples, names[labels].astype(object)).norm == named.norm


def test_one_hot_tokens_are_stored_once():
    """A row per sample and wrong class, written out, would take 40 MB of vectors of 100 entries."""
    rng = np.random.default_rng(0)
    H, y = rng.standard_normal((500, 600)), np.arange(500) % 100
    with pytest.warns(attsvm.ConvergenceWarning):
        found = multiclass_svm(H, y, max_iterations=1)
    problem = found.attention.problem
    assert problem.X.shape == (1, 100, 100) and problem.Z.base is not None
    assert isinstance(found.result.problem.rows, SharedRows)


def test_classes_that_overlap_have_a_proof_that_names_samples():
    same = multiclass_svm([[1.0], [1.0]], ["a", "b"])
    assert same.status == "infeasible"
    assert same.conflicting_samples.tolist() == [0, 1] and same.margin == 0
    with pytest.raises(attsvm.InfeasibleError, match="margins of samples 0, 1 together; give C for a soft margin"):
        _ = same.W


@pytest.mark.parametrize(
    ("H", "y", "message"),
    [
        ([1.0, 2.0], [0, 1], r"H must have shape \(n, d\), got \(2,\)"),
        ([[1.0], [np.nan]], [0, 1], r"H must be finite, but H\[1, 0\] is nan"),
        ([[1.0], [2.0]], [0, 1, 1], r"y must have shape \(2,\), one label per sample, got \(3,\)"),
        ([[1.0], [2.0]], [0.0, 1.0], "y must hold integers or strings, got dtype float64"),
        ([[1.0], [2.0]], ["a", "a"], "y must hold at least two classes, got 1"),
    ],
)
def test_bad_input_is_named(H, y, message):
    with pytest.raises(ValueError, match=message):
        multiclass_svm(H, y)


def test_an_unknown_keyword_is_refused():
    with pytest.raises(TypeError, match="multiclass_svm takes no option 'nrom'; did you mean 'norm'"):
        multiclass_svm([[1.0], [-1.0]], [0, 1], nrom="nuclear")
