"""A trained head has no labels and a scale of its own: diagnose, reports and verify take it as it is."""

import numpy as np
import pytest

import attsvm
from attsvm.attention import likeliest
from attsvm.reports import build_content


@pytest.fixture(scope="module")
def case():
    rng = np.random.default_rng(0)
    head = attsvm.TrainedHead.from_weights(*rng.normal(size=(2, 3, 6)), *rng.normal(size=(2, 3)))
    problem = head.problem(rng.normal(size=(3, 4, 6)))
    return head, problem, likeliest(problem, head.W)


def test_diagnose_says_what_needs_no_scores(case):
    _, problem, chosen = case
    found = attsvm.diagnose(problem, chosen)
    assert found["feasible"].verdict == "holds" and found.theorems == () and found.applies == ()
    assert "Without labels" in found.prediction["W"] and "Theorems" not in str(found)
    with pytest.raises(ValueError, match=r"selection is missing: .* attsvm\.attention\.likeliest\(problem, head\.W\)"):
        attsvm.diagnose(problem)


def test_a_report_has_the_diagnosis(case):
    _, problem, chosen = case
    content = build_content(problem, selection=chosen, steps=0)
    assert content["diagnosis"]["checks"] and content["diagnosis"]["theorems"] == []


def test_verify_without_scale(case):
    head, problem, chosen = case
    best = attsvm.att_svm(problem, chosen)
    for scale in (1e-3, 1.0, 1e4):
        assert attsvm.verify(problem, scale * best.W, chosen, scale_free=True).gap < 1e-7
    gaps = [attsvm.verify(problem, scale * head.W, chosen, scale_free=True).gap for scale in (0.1, 10.0)]
    assert gaps[0] == pytest.approx(gaps[1], rel=1e-6) and gaps[0] > 0.1
    with pytest.raises(ValueError, match="scale_free goes with hard margins"):
        attsvm.verify(problem, head.W, chosen, scale_free=True, C=1.0)
