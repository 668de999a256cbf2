"""Training with the cross-entropy: gradients against autograd and past underflow, ends against the SVMs."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch

import attsvm
from attsvm.multiclass import multiclass_svm, train
from attsvm.multiclass.descent_on_classes import class_gradient
from attsvm.solvers import MarginProblem, solve
from attsvm.validation.figures.own.multiclass_study import NORMS, RULES, ends, nearest_angle


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return rng.standard_normal((6, 8)), np.arange(6) % 3


def test_the_gradient_is_that_of_autograd(data):
    H, y = torch.tensor(data[0]), torch.tensor(data[1])
    W = torch.randn(3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss = torch.nn.functional.cross_entropy(H @ W.T, y)
    (expected,) = torch.autograd.grad(loss, W)
    scaled, log_loss = class_gradient(H[None], y[None, :, None], W.detach()[None])
    torch.testing.assert_close(scaled.direction[0] * scaled.log_scale.exp(), expected, rtol=1e-12, atol=1e-14)
    assert log_loss.item() == pytest.approx(loss.log().item(), rel=1e-12)


def test_the_gradient_past_underflow_is_that_of_500_digits(data):
    H, y = data
    W = 900.0 * multiclass_svm(H, y).W
    scaled, log_loss = class_gradient(torch.tensor(H)[None], torch.tensor(y)[None, :, None], torch.tensor(W)[None])
    with mpmath.workdps(500):
        G, loss = mpmath.zeros(3, 8), mpmath.mpf(0)
        for h, label in zip(H, y, strict=True):
            scores = [mpmath.fdot(row, h) for row in W]
            total = sum(mpmath.exp(s) for s in scores)
            loss -= mpmath.log(mpmath.exp(scores[label]) / total) / len(H)
            for c in range(3):
                p = mpmath.exp(scores[c]) / total - (c == label)
                for j in range(8):
                    G[c, j] += p * h[j] / len(H)
        relative = np.array(
            [[float(G[c, j] / mpmath.exp(scaled.log_scale.item())) for j in range(8)] for c in range(3)]
        )
        assert log_loss.item() == pytest.approx(float(mpmath.log(loss)), rel=1e-12)
    assert scaled.log_scale.item() < -800
    np.testing.assert_allclose(scaled.direction[0].numpy(), relative, rtol=1e-9, atol=1e-10)  # logits near 1e3 round


def test_a_batch_is_its_data_sets_one_by_one(data):
    H, y = np.stack([data[0], -data[0]]), np.stack([data[1], data[1][::-1]])
    for optimizer in ("gd", "muon", "adam"):
        both = train(H, y, optimizer=optimizer, steps=20, snapshots=3)
        for b in range(2):
            one = train(H[b], y[b], optimizer=optimizer, steps=20, snapshots=3)
            np.testing.assert_allclose(both.history[:, b], one.history, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(both.log_loss[:, b], one.log_loss, rtol=1e-9)
            np.testing.assert_allclose(both.margins("linf")[:, b], one.margins("linf"), rtol=1e-9)


def test_margins_and_angles_are_those_of_the_formulas(data):
    H, y = data
    run = train(H, y, steps=30, init="uniform", snapshots=3)
    scores = H @ run.W.T
    smallest = min(scores[i, y[i]] - scores[i, c] for i in range(6) for c in range(3) if c != y[i])
    sol = multiclass_svm(H, y, norm="spectral")
    assert run.margins("spectral")[-1] == pytest.approx(smallest / np.linalg.norm(run.W, 2), rel=1e-12)
    cosine = (run.W * sol.W).sum() / np.linalg.norm(run.W) / np.linalg.norm(sol.W)
    assert run.angles(sol)[-1] == pytest.approx(np.degrees(np.arccos(cosine)), rel=1e-9)
    assert np.isnan(train(H, y, steps=1).margins()[0])


def test_batches_cover_every_sample_once_per_epoch(data):
    """Orthogonal samples: a plain step on one of them moves W on that one alone."""
    H, y = np.eye(5), np.arange(5) % 2
    run = train(H, y, optimizer="gd", lr=1.0, steps=5, batch_size=2, snapshots=[1, 2, 3, 4, 5])
    moved = np.abs(np.diff(run.history, axis=0)).max(axis=1) > 0
    assert moved.sum(axis=1).tolist()[:3] == [2, 2, 1] and moved[:3].sum(axis=0).tolist() == [1] * 5


@pytest.mark.parametrize("name", ["normalized GD", "spectral descent", "Signum, 0.95", "factors"])
def test_methods_go_to_the_margin_of_their_norm(name):
    rule = RULES[name]
    found = ends(
        3, 0, draw=0, data="Gaussian", steps=1500, optimizer=rule.optimizer, pace=rule.pace, norm=rule.norm,
        form=rule.form,
    )  # fmt: skip
    share = found["share"]
    own = NORMS.index(rule.norm)
    assert (share[:, own] > 0.93).all() and (share <= 1 + 1e-6).all()
    assert (share[:, own] >= share.max(axis=1) - 1e-9).all()


def test_the_nearest_solution_is_found_where_there_are_many():
    """Solutions: first entry 1, second in [-1, 1]; of (1, t) with t > 1 the nearest has the direction (1, 1)."""
    solution = solve(MarginProblem([[1.0, 0.0]], [[1.0]], [0]), "linf")
    for t, expected in ((0.3, 0.0), (3.0, np.degrees(np.arctan(3.0)) - 45.0)):
        assert nearest_angle(np.array([[1.0], [t]]), solution) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "polyak"}, "'polyak' and init='separating' are for attention: use attsvm.train"),
        ({"parameterization": "prompt"}, "parameterization must be 'W' or 'KQ', got 'prompt'"),
        ({"batch_size": 7}, "batch_size must be at most the number of samples, 6, got 7"),
        ({"batch_size": 0}, "batch_size must be None or an integer >= 1, got 0"),
        ({"optimizer": "sgd"}, "optimizer must be 'normalized_gd'"),
    ],
)
def test_bad_input_is_named(data, options, message):
    with pytest.raises(ValueError, match=message):
        train(*data, **options)


def test_samples_and_labels_of_a_batch_must_match(data):
    with pytest.raises(ValueError, match=r"y must have shape \(2, 6\), one label per sample, got \(6,\)"):
        attsvm.multiclass.train(np.stack([data[0]] * 2), data[1])
