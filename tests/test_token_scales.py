"""Answers at scales whose squares have no double: what does not depend on the scale of tokens and queries must not."""

import warnings

import numpy as np
import pytest

import attsvm
from attsvm.comparison import misalignment
from attsvm.solution import unit_matrices

SCALES = [(1e150, 1.0), (1e-150, 1.0), (1e150, 1e150), (1e-150, 1e-150)]


def scaled(tokens: float, queries: float) -> attsvm.AttentionProblem:
    rng = np.random.default_rng(0)
    X, Z, v = rng.normal(size=(3, 4, 5)), rng.normal(size=(3, 5)), rng.normal(size=5)
    return attsvm.AttentionProblem(X * tokens, [1, -1, 1], Z * queries, attsvm.LinearHead(v / tokens))


@pytest.mark.parametrize("tokens, queries", SCALES)
def test_a_diagnosis_says_the_same_at_every_scale_without_a_warning(tokens, queries):
    usual = {check.name: check.verdict for check in attsvm.diagnose(scaled(1.0, 1.0)).checks}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = attsvm.diagnose(scaled(tokens, queries))
    assert {check.name: check.verdict for check in found.checks} == usual
    assert usual["C"] == "holds"  # its iota is a product of four factors: 1e600 at the largest of these scales


@pytest.mark.parametrize("tokens, queries", SCALES)
def test_a_path_at_any_scale_ends_with_a_status_and_a_correlation(tokens, queries):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path = attsvm.regularization_path(scaled(tokens, queries), [5.0, 20.0])
        smoothness = attsvm.smoothness_constant(scaled(tokens, queries))
    assert np.isfinite(path.correlation).all() and not np.isnan(smoothness)
    if tokens < 1:  # logits of 1e-150 times a radius: the loss is the same for every W
        assert {str(status) for status in path.status} == {"flat"}


@pytest.mark.parametrize("tokens, queries", SCALES)
def test_the_angle_to_a_solution_does_not_depend_on_its_length(tokens, queries):
    usual, other = attsvm.att_svm(scaled(1.0, 1.0)), attsvm.att_svm(scaled(tokens, queries))
    assert misalignment(usual.W, other.W) < 1e-14
    W = np.random.default_rng(1).normal(size=(5, 5))
    assert misalignment(W, other.W) == pytest.approx(float(misalignment(W, usual.W)), rel=1e-12)
    assert np.linalg.norm(unit_matrices(other.W)) == pytest.approx(1.0)
    assert np.isnan(unit_matrices(np.zeros((2, 2)))).all()


def test_tokens_may_come_from_torch_pandas_and_half_precision_with_one_answer():
    torch, pandas = pytest.importorskip("torch"), pytest.importorskip("pandas")
    rng = np.random.default_rng(3)
    X, Z = rng.integers(-3, 4, size=(3, 4, 5)), rng.integers(-3, 4, size=(3, 5))
    usual = attsvm.att_svm(attsvm.AttentionProblem(X, Z=Z), [0, 1, 2])
    frame = pandas.DataFrame(Z)
    for tokens, queries, chosen in (
        (torch.tensor(X, dtype=torch.float32, requires_grad=True), torch.tensor(Z), torch.tensor([0, 1, 2])),
        (X.astype(np.float16), frame, pandas.Series([0, 1, 2])),
        (X.tolist(), Z.tolist(), (0, 1, 2)),
        (np.asfortranarray(X), np.broadcast_to(Z, Z.shape), np.array([0, 1, 2], dtype=np.uint8)),
    ):
        found = attsvm.att_svm(attsvm.AttentionProblem(tokens, Z=queries), chosen)
        assert found.status is usual.status and found.norm == pytest.approx(usual.norm, rel=1e-9)


@pytest.mark.parametrize("norm", ["frobenius", "nuclear", "l1"])
@pytest.mark.parametrize("power", [-500, 500])
def test_a_soft_margin_at_extreme_scales_is_that_of_a_scaled_C_or_none(norm, power):
    """W of tokens times s is W / s of the tokens with C / s^2 (Frobenius) or C / s: C is scaled back here."""
    rng = np.random.default_rng(0)
    X, Z, tokens = rng.standard_normal((6, 5, 10)), rng.standard_normal((6, 10)), rng.integers(5, size=6)
    C = 2.0 ** (2 * power if norm == "frobenius" else power)
    weight = 0.02 if norm == "frobenius" else 0.25  # too little for some of the rows
    plain = attsvm.att_svm(attsvm.AttentionProblem(X, Z=Z), tokens, norm=norm, C=weight)
    problem = attsvm.AttentionProblem(np.ldexp(X, power), Z=Z)
    scaled = attsvm.att_svm(problem, tokens, norm=norm, C=weight / C)
    assert scaled.status == plain.status == "optimal" and np.sum(plain.slacks) > 0.1
    np.testing.assert_allclose(np.ldexp(scaled.W, power), plain.W, atol=1e-6 * np.abs(plain.W).max())
    # With the same C nothing is left of one of the two parts of the objective.
    other = attsvm.att_svm(problem, tokens, norm=norm, C=1.0)
    assert other.status == "failed" and "no room for C" in other.reason


def test_edits_of_huge_tokens_are_refused_or_end_without_a_false_claim():
    rng = np.random.default_rng(0)
    head = attsvm.TrainedHead.from_weights(rng.normal(size=(4, 10)), rng.normal(size=(4, 10)))
    X, Z, wanted = rng.normal(size=(6, 5, 10)), rng.normal(size=(6, 10)), np.array([2, 0, -1, -1, -1, -1])
    for options in ({}, {"C": 1.0}, {"of": "K", "keep": True, "norm": "nuclear"}):
        with pytest.raises(ValueError, match="prior gives rows values beyond the range of float64"):
            attsvm.edit(head, attsvm.AttentionProblem(1e200 * X, Z=Z), wanted, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", attsvm.ConvergenceWarning)
        found = attsvm.edit(head, attsvm.AttentionProblem(1e150 * X, Z=Z), wanted)
        rough = attsvm.edit(head, attsvm.AttentionProblem(1e100 * X, Z=Z), wanted, of="K", keep=True, norm="nuclear")
    # Margins of 1 are below the rounding of logits of 1e150: whatever W is returned, it is not proved.
    assert found.status == "inaccurate" and "which is rounding" in found.result.reason
    assert rough.status in ("inaccurate", "optimal")
