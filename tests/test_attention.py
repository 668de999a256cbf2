import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import attsvm
from attsvm.attention import likeliest, log_attention, logits, predictions, probabilities, risk, token_logits
from attsvm.training.tensors import tensor_problem

KINDS = {
    "one query": {},
    "K queries": {"queries": 3, "dz": 6},
    "causal": {"kind": "sequence", "causal": True},
    "batch": {"batch": 2},
    "batch, K queries": {"batch": 2, "queries": 3},
}


def make(kind, **options):
    return attsvm.random_problem(**({"n": 3, "T": 4, "d": 5, "seed": 1} | KINDS[kind] | options))


def by_hand(problem, W):
    """One product per token, in loops over everything."""
    Z = problem.Z if problem.multi_query else problem.Z[..., None, :]
    X = problem.X if problem.batch is not None else problem.X[None]
    Z = Z if problem.batch is not None else Z[None]
    W = W if problem.batch is not None else W[None]
    out = np.empty((*Z.shape[:-1], problem.T))
    for b, i, k, t in np.ndindex(out.shape):
        out[b, i, k, t] = sum(X[b, i, t, d] * W[b, d, e] * Z[b, i, k, e] for d, e in np.ndindex(W.shape[1:]))
    return np.where(problem.allowed, out.reshape(*problem.query_shape, problem.T), -np.inf)


def softmax_by_hand(h):
    e = np.exp(h)
    return e / e.sum(axis=-1, keepdims=True)


def weights(problem, rng, *lead):
    batch = () if problem.batch is None else (problem.batch,)
    return rng.standard_normal((*lead, *batch, problem.dx, problem.dz))


@pytest.mark.parametrize("kind", KINDS)
def test_everything_follows_from_the_definition(rng, kind):
    problem = make(kind)
    W = weights(problem, rng)
    h = by_hand(problem, W)
    s = softmax_by_hand(h)
    # Sums of about 25 products of numbers of size 1.
    np.testing.assert_allclose(logits(problem, W), h, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(probabilities(problem, W), s, rtol=1e-12, atol=1e-15)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(log_attention(problem, W), np.log(s), rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(likeliest(problem, W), h.argmax(-1))
    u = (s * np.where(problem.allowed, problem.scores(), 0.0)).sum(-1)  # h(X^T s) = s . gamma for a linear head
    np.testing.assert_allclose(predictions(problem, W), u, rtol=1e-11, atol=1e-13)
    for name, loss in (("logistic", lambda a: np.log1p(np.exp(-a))), ("correlation", lambda a: -a)):
        axes = tuple(range(0 if problem.batch is None else 1, u.ndim))
        np.testing.assert_allclose(risk(problem, W, name), loss(u).sum(axes) / 3, rtol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_leading_axes_of_w_come_first(rng, kind):
    problem = make(kind)
    W = weights(problem, rng, 4, 2)
    for function in (logits, probabilities, log_attention, likeliest, predictions, risk):
        many = function(problem, W)
        for a, b in np.ndindex(4, 2):
            np.testing.assert_allclose(many[a, b], function(problem, W[a, b]), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head", ["linear", "relu", "callable"])
def test_tensors_give_the_same_and_are_differentiable(rng, kind, head):
    problem = make(kind)
    if head != "linear":
        problem = replace(
            problem, head=attsvm.ReluHead(rng.standard_normal((5, 3))) if head == "relu" else lambda x: x[..., 0] ** 2
        )
    W = weights(problem, rng)
    tensor = torch.tensor(W, requires_grad=True)
    for function in (logits, probabilities, log_attention, likeliest, predictions, risk):
        found = function(problem, tensor)
        assert isinstance(found, torch.Tensor)
        np.testing.assert_allclose(found.detach().numpy(), function(problem, W), rtol=1e-11, atol=1e-13)
    value = risk(problem, tensor).sum()
    (gradient,) = torch.autograd.grad(value, tensor)
    step = rng.standard_normal(W.shape)
    difference = (risk(problem, W + 1e-6 * step) - risk(problem, W - 1e-6 * step)).sum() / 2e-6
    assert float((gradient * torch.tensor(step)).sum()) == pytest.approx(float(difference), rel=1e-5, abs=1e-8)


def test_a_tensor_problem_always_has_axes_for_batch_and_queries(rng):
    problem = make("one query")
    W = weights(problem, rng)
    data = tensor_problem(problem)
    assert logits(data, torch.tensor(W)[None]).shape == (1, 3, 1, 4)
    assert risk(data, torch.tensor(W)[None]).item() == pytest.approx(float(risk(problem, W)), rel=1e-12)


def test_batches_of_heads_meet_their_own_problem_whatever_the_axes(rng):
    problem = make("batch")
    assert problem.head.batch == 2
    W = rng.standard_normal((2, 5, 5))  # as many snapshots as problems: a wrong axis would go unnoticed by shapes
    many = predictions(problem, np.stack([W, 2 * W]))
    for b in range(2):
        np.testing.assert_allclose(many[1, b], predictions(problem[b], 2 * W[b]), rtol=1e-12)


def test_one_w_serves_a_whole_batch(rng):
    problem, W = make("batch"), rng.standard_normal((5, 5))
    np.testing.assert_allclose(logits(problem, W)[1], logits(problem[1], W), rtol=1e-13)


def test_the_history_of_a_run_is_attended_at_once():
    run = attsvm.train(make("one query"), steps=50, snapshots=5)
    np.testing.assert_allclose(risk(run.problem, run.history.W), run.history.loss, rtol=1e-12)
    np.testing.assert_array_equal(likeliest(run.problem, run.history.W), run.history.selection)


def test_float32_tokens_are_attended_in_double_precision(rng):
    problem = make("one query")
    narrow = replace(problem, X=problem.X.astype(np.float32), Z=problem.Z.astype(np.float32))
    W = weights(problem, rng)
    assert logits(narrow, W).dtype == np.float64
    np.testing.assert_allclose(logits(narrow, W), by_hand(narrow, W), rtol=1e-12, atol=1e-13)


def test_log_attention_survives_saturation():
    problem = attsvm.AttentionProblem([[[1.0], [0.0]]], Z=[[1.0]])
    np.testing.assert_allclose(log_attention(problem, [[800.0]]), [[0.0, -800.0]])
    assert token_logits(np.ones((1, 2, 1)), np.ones((1, 1)), np.ones((1, 1, 1))).shape == (1, 1, 2)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p: logits(p, np.ones((5, 4))), ValueError, "W must have shape (..., 5, 5), got (5, 4)"),
        (lambda p: logits(p.repeat(2), np.ones((3, 5, 5))), ValueError, "W must have shape (..., 2, 5, 5), got (3"),
        (lambda p: risk(p.X, np.ones((5, 5))), TypeError, "problem must be an AttentionProblem, got ndarray"),
        (lambda p: risk(replace(p, head=None), np.ones((5, 5))), ValueError, "predictions need a prediction head"),
        (lambda p: risk(p, np.ones((5, 5)), "hinge"), ValueError, "loss must be one of"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=re.escape(message)):
        call(make("one query"))
