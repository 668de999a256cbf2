"""Descent ends at direction plus finite part; gradients by autograd where they fit; the linear decoder."""

import numpy as np
import pytest
import torch

import attsvm
from attsvm.next_token import (
    CyclicSubspace,
    attention_shares,
    decompose,
    graph_svm,
    linear_finite_part,
    linear_problem,
    linear_svm,
    soft_composition,
    token_graphs,
    train,
)
from attsvm.next_token.descent_on_sequences import _gradients, _tensors
from corpora import draw


@pytest.mark.parametrize("loss", ["cross_entropy", "squared", "correlation"])
@pytest.mark.parametrize("acyclic", [True, False])
def test_both_parts_together_are_the_gradient(loss, acyclic):
    rng = np.random.default_rng(5)
    sequences, embeddings = draw(rng, 8, 4, 5, 6, acyclic=acyclic)
    data = _tensors([sequences], embeddings, False, None)
    start = rng.normal(size=(1, 6, 6))
    W = torch.tensor(start, requires_grad=True)
    total = torch.zeros((), dtype=torch.float64)
    table = torch.tensor(embeddings)
    for *context, following in sequences:  # one sequence at a time, from the definition
        s = torch.softmax(table[context] @ W[0] @ table[context[-1]], dim=0)
        u = s[torch.tensor(context) == following].sum()
        total = total + {"cross_entropy": -u.log(), "squared": 0.5 * (1 - u) ** 2, "correlation": -u}[loss]
    (expected,) = torch.autograd.grad(total / len(sequences), W)
    finite, outer, log_scale = _gradients(data, torch.tensor(start), loss)
    found = finite + outer * log_scale.exp()[:, None, None]
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)
    space = CyclicSubspace(token_graphs(sequences), embeddings)
    assert np.abs(space.project(outer[0].numpy())).max() <= 1e-12
    np.testing.assert_allclose(space.project(finite[0].numpy()), finite[0].numpy(), atol=1e-13)


@pytest.mark.parametrize("acyclic", [True, False])
def test_descent_reaches_direction_and_finite_part(acyclic):
    rng = np.random.default_rng(11)
    corpora, tables = [], []
    while len(corpora) < 8:
        sequences, embeddings = draw(rng, 5, 4, 6, 8, acyclic=acyclic)
        svm = graph_svm(sequences, embeddings)
        if svm.status == "optimal" and svm.norm > 0:
            corpora.append(sequences)
            tables.append(embeddings)
    run = train(corpora, np.stack(tables), steps=3000, batch=True)
    parts = [decompose(s, e, W) for s, e, W in zip(corpora, tables, run.W, strict=True)]
    assert np.median([p.misalignment for p in parts]) < 1e-3  # falls as 1 / steps: 3e-6 after 20,000
    assert max(p.share_error for p in parts) < 1e-3
    assert all(p.recovered for p in parts)
    assert run.log_gradient.max() < -100  # far past where 1 - u is rounded off
    alone = train(corpora[0], tables[0], steps=50, seed=1)
    assert alone.W.shape == (8, 8) and alone.history.shape == (len(alone.steps), 8, 8)


def test_factors_turn_towards_the_nuclear_norm_solution():
    rng = np.random.default_rng(2)
    sequences, embeddings = draw(rng, 3, 3, 5, 8, acyclic=True)
    run = train(sequences, embeddings, "KQ", steps=3000, lr=0.05, init_scale=0.1)
    to_nuclear = decompose(sequences, embeddings, run.W, norm="nuclear")
    assert to_nuclear.misalignment < 0.03 and to_nuclear.recovered  # (K, Q) floors near 1e-2, as for one query


def test_finite_part_is_where_the_gradient_vanishes():
    rng = np.random.default_rng(4)
    sequences, embeddings = draw(rng, 12, 4, 5, 8, acyclic=False)
    soft = soft_composition(sequences, embeddings)
    assert soft.gradient_norm < 1e-13 and soft.curvature > 0
    graphs = token_graphs(sequences)
    np.testing.assert_allclose(np.bincount(graphs.corpus.owner, soft.probabilities), 1.0)
    # Beside a large multiple of the SVM direction the whole gradient vanishes there, and nowhere else.
    data = _tensors([sequences], embeddings, False, None)
    far = 200 * graph_svm(sequences, embeddings).W
    for W, bound in ((far + soft.W, 1e-12), (far + 1.1 * soft.W, None)):
        finite, _, _ = _gradients(data, torch.tensor(W[None]), "cross_entropy")
        size = float(finite.norm())
        assert size < bound if bound else size > 1e-3


def test_shares_are_softmax_probabilities():
    rng = np.random.default_rng(8)
    sequences, embeddings = draw(rng, 3, 5, 4, 4)
    W = rng.normal(size=(4, 4))
    found = attention_shares(token_graphs(sequences), embeddings, W)
    expected = []
    for *context, _ in sequences:
        s = np.exp(embeddings[context] @ W @ embeddings[context[-1]])
        expected += [s[np.array(context) == token].sum() / s.sum() for token in sorted(set(context))]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_linear_decoder_trained_by_gradient_descent_follows_its_svm(norm):
    """The derivation of docs/next_token.md, measured: W ~ finite part + growing multiple of the SVM."""
    rng = np.random.default_rng(0)
    contexts = rng.normal(size=(4, 6))
    counts = np.array([[3, 1, 0, 0, 0], [0, 2, 2, 1, 0], [0, 0, 0, 1, 4], [1, 0, 0, 0, 0]])
    svm, finite = linear_svm(contexts, counts, norm=norm), linear_finite_part(contexts, counts)
    problem, p = linear_problem(contexts, counts)
    W = finite.W + 60 * svm.W
    logits = contexts @ W.T
    s = np.exp(logits - logits.max(axis=1, keepdims=True))
    np.testing.assert_allclose(s / s.sum(axis=1, keepdims=True), p, atol=1e-12)
    margins = svm.token_margins()
    inside = p > 0
    assert np.nanmax(np.abs(margins[inside])) < 1e-8 and margins[~inside].min() > 1 - 1e-8
    if norm == "frobenius":  # plain descent: the direction outside the span of the equalities turns to the SVM
        V = np.zeros((5, 6))
        for _ in range(20000):
            h = contexts @ V.T
            q = np.exp(h - h.max(axis=1, keepdims=True))
            V -= 0.3 * (q / q.sum(axis=1, keepdims=True) - p).T @ contexts / 4
        angle = (V * svm.W).sum() / (np.linalg.norm(V - finite.W) * svm.norm)
        assert angle > 0.98  # the finite part is still part of V: logarithmic convergence
    assert problem.n == 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: train([[0, 1, 0]], np.eye(2), "V"), "parameterization must be 'W' or 'KQ'"),
        (lambda: train([[0, 1, 0]], np.eye(2), loss="hinge"), "loss must be '"),
        (lambda: train([[0, 1, 0]], np.eye(2), steps=0), "steps must be an integer >= 1"),
        (lambda: train([[0, 1, 0]], np.eye(2), lr=float("nan")), "lr must be a positive number"),
        (lambda: train([[[0, 1, 0]]], np.eye(2), batch=True), r"embeddings must have shape \(1, vocabulary, d\)"),
        (lambda: train([[[0, 1, 0]], [[0, 1, 0]] * 2], np.ones((2, 2, 2)), batch=True), "as many sequences each"),
        (lambda: decompose([[0, 1, 0]], np.eye(2), np.eye(3)), r"W must have shape \(2, 2\)"),
        (lambda: linear_svm(np.eye(2), [[1, 1], [1, 1]]), "nothing is left to separate"),
        (lambda: linear_svm(np.eye(2), [[1, 0], [0, 0]]), r"distributions\[1\] must hold numbers >= 0"),
        (lambda: linear_svm(np.eye(2), [[1, 0]]), r"contexts must have shape \(m, d\)"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_public_names():
    assert attsvm.next_token.train is train


def test_distributions_of_one_token_each_have_no_odds_to_match():
    with pytest.raises(ValueError, match="distributions give every context one token only"):
        linear_finite_part(np.eye(2), [[1, 0, 0], [0, 0, 2]])
