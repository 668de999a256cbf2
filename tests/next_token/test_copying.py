"""Attention that copies a value: gradients, predictions and the conditions under which they hold."""

import numpy as np
import pytest
import torch
from figure_outcomes import check_picture, outcome_of

import attsvm
from attsvm.next_token import graph_svm, match_and_copy, random_corpus, train_copy, two_stage
from attsvm.next_token.copying import _Copying
from attsvm.validation.figures.own import sequence_studies

SEQUENCES, SUCCESSORS = [[0, 1, 2, 1], [1, 3, 0, 0]], [1, 2, 3, 0]


@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
def test_the_gradient_is_that_of_the_loss_as_written(loss):
    """By autograd; with a masked token, repeated tokens as log counts, and any W."""
    rng = np.random.default_rng(0)
    X, Z, values = rng.normal(size=(3, 4, 5)), rng.normal(size=(3, 5)), rng.normal(size=(3, 4, 6))
    log_count = np.log(rng.integers(1, 4, size=(3, 4)).astype(float))
    log_count[0, 3] = -np.inf
    place, label = np.array([1, 0, 2]), np.array([5, 2, 0])
    W = rng.normal(size=(5, 5))
    data = _Copying(X, Z, log_count, values, place, label if loss == "cross-entropy" else None)
    w = torch.tensor(W, requires_grad=True)
    s = torch.softmax(torch.einsum("ntd,de,ne->nt", torch.tensor(X), w, torch.tensor(Z)) + torch.tensor(log_count), 1)
    out = torch.einsum("nt,ntv->nv", s, torch.tensor(values))
    if loss == "squared":
        total = 0.5 * (out - torch.tensor(values)[torch.arange(3), torch.tensor(place)]).square().sum()
    else:
        total = torch.nn.functional.cross_entropy(out, torch.tensor(label), reduction="sum")
    (wanted,) = torch.autograd.grad(total, w)
    found, log_scale = data.gradient(W)
    np.testing.assert_allclose(np.exp(log_scale) * found, wanted.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("error")
def test_a_sequence_of_its_own_token_alone_has_no_gradient():
    """Beside others it changes nothing; alone the gradient is 0."""
    rng = np.random.default_rng(0)
    X, Z, values = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 4)), rng.normal(size=(2, 3, 5))
    log_count = np.array([[0.0, 0.0, 0.0], [-np.inf, 0.0, -np.inf]])
    W, place = rng.normal(size=(4, 4)), np.array([2, 1])
    for label in (None, np.array([0, 3])):
        parts = [(X, Z, log_count, values, place), (X[:1], Z[:1], log_count[:1], values[:1], place[:1])]
        (both, scale), (other, own_scale) = (
            _Copying(*part, None if label is None else label[: len(part[0])]).gradient(W) for part in parts
        )
        np.testing.assert_allclose(np.exp(scale - own_scale) * both, other, rtol=1e-12)
        alone = _Copying(X[1:], Z[1:], log_count[1:], values[1:], place[1:], None if label is None else label[1:])
        assert not alone.gradient(W)[0].any()
    run = two_stage([[0, 1, 2, 1], [3, 3, 3, 0]], np.eye(4), SUCCESSORS, decoder_steps=3, steps=3)
    assert np.isfinite(run.W).all()


def test_the_gradient_survives_where_probabilities_underflow():
    """Leads of thousands of logits: only the direction is left, that of the nearest rival."""
    X = np.array([[[1.0, 0.0], [0.0, 1.0], [0.0, -3.0]]])
    data = _Copying(X, np.array([[1.0, 0.0]]), np.zeros((1, 3)), np.eye(3)[None], np.array([0]), None)
    found, log_scale = data.gradient(np.array([[5000.0, 0.0], [100.0, 0.0]]))
    np.testing.assert_allclose(found / np.linalg.norm(found), np.array([[-1.0, 0.0], [1.0, 0.0]]) / 2**0.5, atol=1e-12)
    assert log_scale == pytest.approx(2 * (100.0 - 5000.0))


def test_priority_graphs_of_selected_tokens_are_the_rows_of_the_second_stage():
    run = two_stage(SEQUENCES, np.eye(4), SUCCESSORS, decoder_steps=300, steps=2000)
    assert {tuple(map(int, pair)) for pair in run.graph.pairs} == {(2, 0, 1), (2, 0, 2), (0, 3, 0), (0, 3, 1)}
    assert run.graph.norm == pytest.approx(graph_svm(SEQUENCES, np.eye(4), selected=[0, 3]).norm, rel=1e-12)
    assert run.decoder_angles[-1] < 1.0 and run.angles[-1] < 1.0 and run.least_slope > 0
    assert run.steps[-1] == 2000 and len(run.angles) == len(run.steps) and "degrees" in repr(run)


def test_the_problems_equal_cvxpy_constraint_by_constraint():
    found = sequence_studies.differences(2, 100)
    assert max(max(column) for column in found.values()) < 1e-7


def test_a_negative_slope_is_told():
    """A decoder under which another token is better: the draw of the study that ends elsewhere."""
    sequences, E, successors = sequence_studies.successor_corpus(3, "orthonormal")
    assert two_stage(sequences, E, successors, decoder_steps=200, steps=10).least_slope > 0.1
    lines, E = random_corpus(6, 5, 7, 8, labels="realizable", seed=2)
    other = np.random.default_rng(2).permutation(7)
    run = two_stage([[*line[:-1], int(other[line[-1]])] for line in lines], E, other, decoder_steps=500, steps=500)
    assert run.least_slope < 0 and run.angles[-1] > 5


def test_matched_keys_are_copied_where_values_are_not_opposed():
    task = match_and_copy(4, 4, 8, value_dim=32, noise=0.1, seed=1)
    assert task.least_cosine > 0
    run = train_copy(task, steps=2000, seed=1)
    assert run.angles[-1] < 1.0 and len(run.angles) == len(run.steps)
    assert (attsvm.attention.likeliest(task.problem, run.W) == task.selection).all() and "Att-SVM" in repr(run)


def test_opposed_values_tie_their_tokens():
    """The draw of the study with 8 values that ends 15 degrees away: at the problem with ties."""
    task = match_and_copy(6, 5, 8, value_dim=8, seed=6)
    run = train_copy(task, steps=3000, seed=6)
    assert task.least_cosine < -0.5 and run.angles[-1] > 10 > 1.0 > sequence_studies.tied_angle(task, run)


def test_plain_steps_fade():
    task = match_and_copy(4, 4, 8, value_dim=32, seed=1)
    plain, normalized = (train_copy(task, steps=500, lr=0.02, normalized=way) for way in (False, True))
    assert np.linalg.norm(plain.W) < 0.5 * np.linalg.norm(normalized.W) and plain.angles[-1] > normalized.angles[-1]


def test_the_study_has_a_row_per_setting_and_refutes_what_is_not_reached():
    outcome = outcome_of(sequence_studies.FIGURE_COPYING, trials=1, problems=1, steps=20, decoder_steps=20)
    problems, angles = outcome.tables
    assert [row[0] for row in problems.rows] == ["decoder", "attention after it", "match and copy"]
    assert len(angles.rows) == 6 and any("ends within 1 degree" in line for line in outcome.refuted)
    check_picture(sequence_studies.FIGURE_COPYING, outcome, 1)


def test_what_is_wrong_is_named():
    for call, message in (
        (lambda: two_stage([[0, 1, 2, 0]], np.eye(4), SUCCESSORS), r"exactly one token whose successor is 0, got \[\]"),
        (lambda: two_stage([[0, 1, 2, 1]], np.eye(4), [1, 1, 3, 0]), r"token whose successor is 1, got \[0, 1\]"),
        (lambda: two_stage([[0, 1, 9, 1]], np.eye(4), SUCCESSORS), "all below 4"),
        (lambda: two_stage([[0, 1]], np.eye(4), SUCCESSORS), "at least two tokens"),
        (lambda: two_stage(SEQUENCES, np.eye(4), [1, 2, 3]), "all below 3|successors must hold"),
        (lambda: two_stage(SEQUENCES, np.eye(4), [1, 2, 3, 0, 0]), "successors must hold one token id below 4"),
        (lambda: two_stage([[0, 1, 2, 1], [1, 0, 2, 2]], np.eye(4), SUCCESSORS), "got tokens 0 and 1 in both"),
        (lambda: two_stage(SEQUENCES, np.eye(4), SUCCESSORS, steps=0), "steps"),
        (lambda: match_and_copy(1, 1, 2), "T must be"),
        (lambda: match_and_copy(1, 2, 2, noise=-1.0), "noise must be a number >= 0"),
        (lambda: train_copy(match_and_copy(1, 2, 2), lr=0.0), "lr must be a positive number"),
        (lambda: train_copy(match_and_copy(1, 2, 2), normalized=1), "normalized"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            call()
