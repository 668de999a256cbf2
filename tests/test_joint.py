"""Head and attention together: their SVMs, their gradients, their runs, and their path."""

from dataclasses import replace

import cvxpy as cp
import mpmath
import numpy as np
import pytest
import torch

import attsvm
from attsvm.comparison import misalignment
from attsvm.joint import compare_joint, consistent_selection, joint_path, joint_svm, label_svm
from attsvm.training.checkpoint import CheckpointError
from attsvm.training.log_gradient import head_gradient, scaled_gradient
from attsvm.training.tensors import tensor_problem, with_linear_head


@pytest.fixture
def problem():
    return attsvm.random_problem(n=6, T=5, d=6, seed=3)


def model(problem, selection, demanded):
    """Both problems as a user would write them."""
    v, W = cp.Variable(problem.dx), cp.Variable((problem.dx, problem.dz))
    labels = [problem.Y[i] * (problem.X[i, a] @ v) >= 1 for i, a in enumerate(selection)]
    rows = [
        (problem.X[i, a] - problem.X[i, t]) @ W @ problem.Z[i] >= demanded[i]
        for i, a in enumerate(selection)
        for t in range(problem.T)
        if t != a
    ]
    for size, held in ((v, labels), (W, rows)):
        cp.Problem(cp.Minimize(cp.sum_squares(size)), held).solve(solver="CLARABEL", tol_gap_abs=1e-11, tol_feas=1e-11)
    return v.value, W.value


@pytest.mark.parametrize("ratio", [0.0, 0.3, 2.0, np.inf])
def test_both_svms_equal_cvxpy(problem, ratio):
    found = joint_svm(problem, ratio=ratio)
    v, W = model(problem, found.selection.indices, found.demanded)
    np.testing.assert_allclose(found.v, v, atol=1e-6)  # cvxpy's accuracy, after a square root
    np.testing.assert_allclose(found.W, W, atol=1e-5)
    assert found.head.certificate.gap < 1e-8 > found.attention.certificate.gap
    margins = problem.Y * np.einsum("nd,d->n", problem.X[np.arange(6), found.selection.indices], found.v)
    np.testing.assert_allclose(found.excess, (margins - 1) / np.linalg.norm(found.v), atol=1e-9)
    assert not found.support.all() and found.support.any()  # else the ratios would all be the same


def test_the_ratio_is_what_was_asked_for_and_the_limits_are_the_named_problems(problem):
    found = joint_svm(problem, ratio=0.7)
    assert found.weight / found.attention.norm == pytest.approx(0.7, rel=1e-9)
    np.testing.assert_allclose(found.demanded, np.maximum(0, 1 - found.weight * found.excess), atol=1e-9)
    plain, relaxed = joint_svm(problem), joint_svm(problem, ratio=np.inf)
    np.testing.assert_allclose(plain.W, attsvm.att_svm(problem, plain.selection).W, atol=1e-12)
    np.testing.assert_array_equal(relaxed.demanded, np.where(relaxed.support, 1.0, 0.0))
    norms = [joint_svm(problem, ratio=r).attention.norm for r in (0.0, 0.1, 1.0, 10.0, np.inf)]
    assert (np.diff(norms) <= 1e-9).all()


def test_the_lowered_rows_are_optimal_by_direct_search(problem):
    """Of unit W, none has a larger least exponent ``ratio excess + row`` than the SVM's, says cvxpy."""
    ratio = 0.4
    found = joint_svm(problem, ratio=ratio)
    assert (found.demanded > 0).all()  # no clipping: the two problems are the same
    W, level = cp.Variable((6, 6)), cp.Variable()
    rows = [
        ratio * found.excess[i] + (problem.X[i, a] - problem.X[i, t]) @ W @ problem.Z[i] >= level
        for i, a in enumerate(found.selection.indices)
        for t in range(problem.T)
        if t != a
    ]
    cp.Problem(cp.Maximize(level), [*rows, cp.norm(W, "fro") <= 1]).solve(solver="CLARABEL")
    assert misalignment(W.value, found.W) < 1e-8


def test_a_consistent_selection_takes_the_best_tokens_of_its_own_head():
    for seed in range(20):
        problem = attsvm.random_problem(n=5, T=4, d=4, seed=seed)
        start = problem.optimal_tokens()
        chosen = consistent_selection(problem)
        before, after = (label_svm(problem, s) for s in (start, chosen))
        assert after.norm <= before.norm * (1 + 1e-9)
        assert joint_svm(problem, chosen).is_consistent


def test_labels_that_cannot_be_separated_have_a_proof():
    problem = attsvm.AttentionProblem(
        [[[1.0], [2.0]], [[1.0], [3.0]]], [1, -1], [[1.0], [1.0]], attsvm.LinearHead([1.0])
    )
    found = joint_svm(problem, [0, 0])
    assert found.status is attsvm.Status.INFEASIBLE and found.head.certificate.farkas is not None
    assert "cannot be separated" in repr(found)
    with pytest.raises(attsvm.InfeasibleError):
        _ = found.W


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: joint_svm(p, ratio=-1.0), r"ratio must be a number in \[0, inf\]"),
        (lambda p: joint_svm(p, ratio=np.nan), r"ratio must be a number in \[0, inf\]"),
        (lambda p: joint_svm(p.repeat(2)), "index the batch first"),
        (lambda p: joint_svm(p, [9] * 6), "out of range"),
        (lambda p: joint_path(p.repeat(2), [1.0]), "index the batch first"),
        (lambda p: joint_path(p, [2.0, 1.0]), "radii must be positive and increasing"),
        (lambda p: joint_path(p, [1.0], loss="correlation"), "loss must be positive"),
        (lambda p: joint_path(p, [1.0], ratio=0.0), "ratio must be a positive number"),
        (lambda p: attsvm.train(p, head_lr=0.1), "are for train_head=True"),
        (lambda p: attsvm.train(p, train_head=1), "train_head must be True or False"),
        (lambda p: attsvm.train(p, train_head=True, head_init="one"), "head_init must be 'given', 'zero' or an array"),
        (lambda p: attsvm.train(p, train_head=True, head_init=[1.0]), "head_init must have shape"),
        (lambda p: attsvm.train(p, train_head=True, arithmetic="naive"), "needs arithmetic='log'"),
        (lambda p: attsvm.train(p, train_head=True, optimizer="polyak"), "its infimum moves with the head"),
        (lambda p: attsvm.train(p, train_head=True, optimizer="gd"), "give lr"),
        (lambda p: attsvm.train(replace(p, head=attsvm.ReluHead(np.eye(6))), train_head=True), "trains a LinearHead"),
        (lambda p: attsvm.train(replace(p, head=attsvm.ReluHead(np.eye(6))), optimizer="polyak"), "needs a LinearHead"),
        (lambda p: compare_joint(attsvm.train(p, steps=1)), "needs a run that trained its head"),
        (lambda p: compare_joint(attsvm.train(p.repeat(2), steps=1, train_head=True)), "index the batch first"),
        (lambda p: attsvm.train(p, steps=1).v, "did not train its head"),
    ],
)
def test_bad_input_is_named(problem, call, message):
    with pytest.raises((ValueError, AttributeError), match=message):
        call(problem)


@pytest.mark.parametrize("loss", ["logistic", "exponential"])
@pytest.mark.parametrize("kind", ["one query", "K queries", "causal"])
def test_gradients_equal_autograd(rng, loss, kind):
    options = {"K queries": {"queries": 3}, "causal": {"kind": "sequence", "causal": True}}.get(kind, {})
    data = tensor_problem(attsvm.random_problem(n=3, T=4, d=5, seed=rng, batch=2, **options))
    W, v = (torch.tensor(rng.standard_normal(s)).requires_grad_() for s in ((2, 5, 5), (2, 5)))
    s = torch.softmax(
        (data.X[:, :, None] @ (W[:, None, None] @ data.Z[..., None]))[..., 0].masked_fill(~data.allowed, -torch.inf), -1
    )
    value = data.Y * ((s @ data.X) @ v[:, None, :, None])[..., 0]
    total = attsvm.get_loss(loss).value(value).sum() / 3
    in_W, in_v = torch.autograd.grad(total, (W, v))
    seen = with_linear_head(data, v.detach())
    for reference, found in (
        (in_W, scaled_gradient(seen, W.detach(), loss)),
        (in_v, head_gradient(seen, W.detach(), loss)),
    ):
        scale = found.log_scale.exp().reshape(-1, *[1] * (reference.ndim - 1))
        torch.testing.assert_close(found.direction * scale, reference, rtol=1e-11, atol=1e-13)


def test_gradients_of_a_large_head_have_the_right_direction(problem):
    """|v| = 3,000: the loss is about e^-900. Against 700 digits."""
    mpmath.mp.dps = 700
    rng = np.random.default_rng(0)
    v = 3000.0 * joint_svm(problem).v / np.linalg.norm(joint_svm(problem).v)
    W = 2.0 * rng.standard_normal((6, 6))
    mp = mpmath.mpf
    G, g = mpmath.zeros(6, 6), mpmath.zeros(6, 1)
    for i in range(6):
        X = mpmath.matrix(problem.X[i].tolist())
        z = mpmath.matrix(problem.Z[i].tolist())
        h = X * mpmath.matrix(W.tolist()) * z
        e = [mpmath.exp(x) for x in h]
        s = [x / sum(e) for x in e]
        y = mp(int(problem.Y[i]))
        scores = [y * x for x in X * mpmath.matrix(v.tolist())]
        mean = sum(a * b for a, b in zip(s, scores, strict=True))
        slope = -1 / (1 + mpmath.exp(mean))
        inner = mpmath.matrix([slope * s[t] * (scores[t] - mean) for t in range(5)])
        G += X.T * inner * z.T
        g += slope * y * X.T * mpmath.matrix(s)
    seen = with_linear_head(tensor_problem(problem), torch.tensor(v)[None])
    at = torch.tensor(W)[None]
    for exact, found in ((G, scaled_gradient(seen, at, "logistic")), (g, head_gradient(seen, at, "logistic"))):
        unit = np.array((exact / mpmath.norm(exact)).tolist(), dtype=float).ravel()
        direction = found.direction.numpy().ravel()
        np.testing.assert_allclose(direction / np.linalg.norm(direction), unit, atol=1e-11)
        size = float(mpmath.log(mpmath.norm(exact) / 6))
        assert float(found.log_scale) + np.log(np.linalg.norm(direction)) == pytest.approx(size, rel=1e-12)


def test_training_follows_the_coupled_svms_past_underflow(problem):
    run = attsvm.train(problem, steps=1200, lr=0.3, train_head=True, snapshots=2)
    assert run.history.log_rest[-1] < -60 and np.linalg.norm(run.v) > 300
    ratio = np.linalg.norm(run.v) / np.linalg.norm(run.W)
    exact, plain = (joint_svm(problem, run.selection, ratio=r) for r in (ratio, 0.0))
    assert misalignment(run.v[None], exact.v[None]) < 1e-3
    assert 4 * misalignment(run.W, exact.W) < 2e-3 < misalignment(run.W, plain.W)
    np.testing.assert_array_equal(run.history.v[-1], run.v)
    assert run.head.v is not None and run.trained_problem.optimal_tokens() == run.selection
    assert str(attsvm.compare(run).convergence) == "Global"
    found = compare_joint(run)
    assert found.attention[-1] == misalignment(run.W, exact.W) and found.plain[-1] == misalignment(run.W, plain.W)
    assert found.head[-1] == misalignment(run.v[None], exact.v[None]) and found.ratio[-1] == pytest.approx(ratio)
    assert "JointComparison" in repr(found) and "W: at this ratio" in str(found)
    assert "trained" in run._repr_html_()


def test_a_batch_is_its_members_and_a_checkpoint_goes_on_bit_for_bit(tmp_path):
    batch = attsvm.random_problem(n=3, T=4, d=5, batch=3, seed=0)
    file = tmp_path / "run.pt"
    for optimizer in ("normalized_gd", "adam"):
        settings = {"train_head": True, "head_lr": 0.05, "optimizer": optimizer, "init": "zero", "snapshots": [20, 40]}
        whole = attsvm.train(batch, steps=60, **settings)
        alone = attsvm.train(batch[1], steps=60, **settings)
        np.testing.assert_allclose(whole[1].v, alone.v, rtol=1e-9)
        attsvm.train(batch, steps=60, checkpoint=file, **settings)
        again = attsvm.train(batch, steps=60, checkpoint=file, resume=True, **settings)
        np.testing.assert_array_equal(again.v, whole.v)
        np.testing.assert_array_equal(again.history.v, whole.history.v)
        with pytest.raises(CheckpointError, match="belongs to another run"):
            attsvm.train(batch, steps=60, checkpoint=file, resume=True, **{**settings, "head_lr": 0.1})


def test_a_head_from_zero_and_a_pair_of_factors(problem):
    run = attsvm.train(problem, "KQ", steps=300, train_head=True, head_init="zero")
    assert str(run.status) == "finished" and np.linalg.norm(run.v) > 1 and set(run.parameters) == {"K", "Q", "v"}
    assert not attsvm.train(problem, steps=0, train_head=True, head_init="zero").v.any()


def test_the_path_of_the_pair_goes_to_the_coupled_svms(problem):
    path = joint_path(problem, [20.0, 320.0], ratio=0.5, starts=2)
    assert path.settled.all() and len(path) == 2 and "JointPath" in repr(path)
    np.testing.assert_allclose(np.linalg.norm(path.v, axis=1), [10.0, 160.0])
    np.testing.assert_allclose(np.linalg.norm(path.W, axis=(1, 2)), [20.0, 320.0])
    assert path.head_distance[1] < path.head_distance[0] and path.attention_distance[1] < 2e-3
    plain = joint_svm(problem, path.selection[-1])
    assert path.attention_distance[-1] < misalignment(path.W[-1], plain.W)
