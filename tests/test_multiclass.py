"""Multiclass classification is attention with one-hot tokens: LIBLINEAR's Crammer-Singer SVM on real data."""

from __future__ import annotations

import numpy as np
import pytest

import attsvm
from attsvm.validation.bench.fit_cases import classes_as_tokens, crammer_singer, standardized

svm = pytest.importorskip("sklearn.svm")


@pytest.mark.parametrize("C", [0.01, 1.0, 10.0])
@pytest.mark.parametrize("data", ["iris", "wine"])
def test_the_soft_margin_is_that_of_crammer_and_singer(data, C):
    samples, labels = standardized(data)
    own = attsvm.att_svm(classes_as_tokens(samples, 3), labels, C=C)
    peer = svm.LinearSVC(
        C=C, multi_class="crammer_singer", fit_intercept=False, tol=1e-8, max_iter=10**6, random_state=0
    ).fit(samples, labels)
    assert own.status == "optimal"
    ours, theirs = crammer_singer(own.W, samples, labels, C), crammer_singer(peer.coef_, samples, labels, C)
    assert ours == pytest.approx(theirs, rel=1e-6)  # LIBLINEAR stops at its tolerance, not at a gap
    assert own.certificate.lower_bound <= theirs * (1 + 1e-12)
    scores = samples @ own.W.T
    ahead = np.diff(np.sort(scores, axis=1)[:, -2:])[:, 0] > 1e-6  # W is unique: only ties may differ
    assert ahead.mean() > 0.99
    np.testing.assert_array_equal(scores.argmax(axis=1)[ahead], peer.predict(samples)[ahead])


def test_without_wrong_samples_the_hard_margin_is_that_of_a_large_penalty():
    samples, labels = standardized("wine")  # three cultivars that a linear map separates
    problem = classes_as_tokens(samples, 3)
    hard, soft = attsvm.att_svm(problem, labels), attsvm.att_svm(problem, labels, C=100.0)
    assert hard.status == soft.status == "optimal"
    assert soft.norm == pytest.approx(hard.norm, rel=1e-6)
    assert (
        np.abs(hard.W.sum(axis=0)).max() < 1e-9 * hard.norm
    )  # rows of differences: the scores of a sample add up to 0


def test_two_classes_are_the_ordinary_svm():
    """With two classes w_1 = -w_0, so the ordinary SVM's w is their difference, at half the C."""
    samples, labels = standardized("iris")
    samples, labels = samples[50:], labels[50:] - 1
    own = attsvm.att_svm(classes_as_tokens(samples, 2), labels, C=0.5)
    peer = svm.LinearSVC(C=1.0, loss="hinge", fit_intercept=False, tol=1e-10, max_iter=10**7, random_state=0)
    peer.fit(samples, labels)
    np.testing.assert_allclose(own.W[1] - own.W[0], peer.coef_[0], atol=1e-5 * np.abs(peer.coef_).max())
