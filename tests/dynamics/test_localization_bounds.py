"""Entropy, inequalities, the QK gradient and the regularizer."""

import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize
from torch._subclasses.fake_tensor import FakeTensorMode

import attsvm.dynamics.localization as loc
from attsvm.dynamics.localization.entropy_bounds import (
    attention_logits,
    logit_radius,
    spectral_norm,
)
from attsvm.dynamics.localization.regularizer import qk_scale
from attsvm.softmax import softmax


def symmetric(rng, d):
    A = rng.standard_normal((d, d))
    return (A + A.T) / 2


def covariance(rng, d):
    R = rng.standard_normal((d, d))
    return R.T @ R / d + 0.05 * np.eye(d)


def entropy(p):
    return float(-(p * np.log(np.maximum(p, 1e-300))).sum())


def test_entropy_is_that_of_the_softmax_over_keys(rng):
    X, W = rng.standard_normal((5, 3)), rng.standard_normal((3, 3))
    columns = softmax((X @ W @ X.T / 2.0).T)  # row q: softmax over keys k of x_k W x_q
    expected = [entropy(p) for p in columns]
    assert loc.attention_entropy(X, W, 2.0) == pytest.approx(np.mean(expected))
    assert loc.attention_entropy(X, W, 2.0, query="last") == pytest.approx(expected[-1])
    causal = [entropy(softmax((X @ W @ X.T / 2.0).T[q, : q + 1])) for q in range(5)]
    assert loc.attention_entropy(X, W, 2.0, causal=True) == pytest.approx(np.mean(causal))
    W_q, W_k = rng.standard_normal((2, 2, 3))
    assert loc.attention_entropy(X, (W_q, W_k)) == pytest.approx(loc.attention_entropy(X, W_k.T @ W_q, np.sqrt(2)))
    # The last query's logits are those of token_logits.
    np.testing.assert_allclose(attention_logits(X, W)[-1], loc.token_logits(X, W))
    np.testing.assert_allclose(attention_logits(X, (W_q, W_k))[-1], loc.token_logits(X, (W_q, W_k)))


@pytest.mark.parametrize(("T", "nu"), [(2, 1.0), (8, 2.0), (8, 5.0), (20, 3.0)])
def test_the_tight_bound_is_the_least_entropy(T, nu, rng):
    def value(u):
        p = softmax(nu * u / np.linalg.norm(u))
        return entropy(p)

    least = min(optimize.minimize(value, rng.standard_normal(T), method="BFGS").fun for _ in range(12))
    bound = float(loc.entropy_lower_bound(nu, T))
    assert bound <= least + 1e-9
    assert least == pytest.approx(bound, abs=1e-4)  # the optimizer's accuracy
    assert loc.entropy_lower_bound(nu, T, "asymptotic") > bound


def test_the_bound_decreases_and_the_printed_one_exceeds_log_t():
    nu = np.linspace(0, 20, 200)
    tight, printed = loc.entropy_lower_bound(nu, 64), loc.entropy_lower_bound(nu, 64, "printed")
    assert tight[0] == pytest.approx(np.log(64))
    assert (np.diff(tight) < 0).all()
    assert printed.max() > 2 * np.log(64)
    assert 0 < nu[printed.argmax()] < 20
    assert loc.entropy_lower_bound(1e6, 64) == 0.0


def test_attention_never_falls_below_the_tight_bound(rng):
    refuted = 0
    for _ in range(300):
        T, d = rng.integers(2, 12), rng.integers(1, 6)
        X, W = rng.standard_normal((T, d)) / 2, 10 ** rng.uniform(-2, 1) * rng.standard_normal((d, d))
        for query in ("all", "last"):
            assert loc.entropy_bound(X, W, query=query).holds
        refuted += not loc.entropy_bound(X, W, form="printed").holds
    assert refuted > 100


@given(st.integers(0, 10**6), st.integers(1, 7), st.booleans())
def test_guaranteed_inequalities_hold(seed, d, is_symmetric):
    rng = np.random.default_rng(seed)
    W = symmetric(rng, d) if is_symmetric else rng.standard_normal((d, d))
    S = covariance(rng, d)
    X = rng.standard_normal((6, d))
    found = [
        loc.trace_below_norm(W, S),
        loc.trace_below_norm(W, S, norm="frobenius"),
        loc.norm_below_scale(W, S),
        loc.trace_above_norm(W),
        loc.trace_above_norm(W @ W.T),
        loc.entropy_bound(X, W),
    ]
    for inequality in found:
        assert inequality.holds or not inequality.guaranteed, str(inequality)
    assert loc.trace_above_norm(W @ W.T).guaranteed


def test_pairs_and_matrices_agree(rng):
    W_q, W_k = rng.standard_normal((2, 2, 6))
    A, S = W_k.T @ W_q, covariance(rng, 6)
    for f in (loc.trace_below_norm, loc.norm_below_scale):
        pair, dense = f((W_q, W_k), S), f(A, S)
        assert pair.left == pytest.approx(dense.left)
        assert pair.right == pytest.approx(dense.right)
    assert loc.trace_above_norm((W_q, W_k)).margin == pytest.approx(loc.trace_above_norm(A).margin)
    assert spectral_norm((W_q, W_k)) == pytest.approx(np.linalg.norm(A, 2))


def test_printed_inequalities_fail_under_their_printed_conditions():
    assert not loc.trace_below_norm(np.eye(4), form="printed").holds
    assert loc.trace_below_norm(np.eye(4), form="printed").guaranteed  # the paper requires nothing more
    assert not loc.trace_above_norm(np.diag([1.0, -1.0])).holds


def test_singular_covariance_is_flagged():
    found = loc.norm_below_scale(np.eye(2), [1.0, 0.0])
    assert found.right == np.inf
    assert not found.guaranteed
    assert "needs definite covariance" in str(found)
    with pytest.raises(ValueError, match="covariance must not be zero"):
        loc.trace_below_norm(np.eye(2), 0.0)


def test_qk_gradient_matches_autograd(rng):
    n, T, d, temperature = 6, 7, 4, 1.7
    X = np.cumsum(rng.standard_normal((n, T, d)), axis=1)
    y, W_v, W_f = rng.standard_normal((n, d)), rng.standard_normal((d, d)), rng.standard_normal((d, d))
    W = rng.standard_normal((d, d))
    tokens, qk = torch.tensor(X), torch.tensor(W, requires_grad=True)
    omega = torch.einsum("ntd,de,ne->nt", tokens, qk, tokens[:, -1]) / temperature
    signal = ((omega - omega.mean(-1, keepdim=True) + 1) / T).clamp(0, 1)
    mixed = torch.einsum("nt,ntd->nd", signal, tokens) @ torch.tensor(W_v).T + tokens[:, -1]
    loss = (torch.tensor(y) - mixed @ torch.tensor(W_f).T).square().sum(-1).mean() / 2
    loss.backward()
    terms = loc.qk_gradient_terms(X, y, W, W_v, W_f, temperature)
    np.testing.assert_allclose(sum(terms), qk.grad.numpy(), rtol=1e-10, atol=1e-10)
    printed = loc.qk_gradient_terms(X, y, W, W_v, W_f, temperature, form="printed")
    assert np.linalg.norm(sum(printed) - sum(terms)) > 0.1 * np.linalg.norm(sum(terms))


@pytest.mark.parametrize("shape", [(3, 8), (8, 3), (2, 3, 8)])
def test_the_penalty_is_the_sum_of_its_two_parts(shape):
    torch.manual_seed(0)
    W_q, W_k = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(2))
    value = loc.locater(W_q, W_k, 100.0, 0.3, target=2.0)
    matrix = W_q.mT @ W_k
    trace = matrix.diagonal(dim1=-2, dim2=-1).sum(-1)
    expected = (100.0 * (trace - 2.0) ** 2 + 0.3 * (matrix.mT @ matrix).diagonal(dim1=-2, dim2=-1).sum(-1)).sum()
    torch.testing.assert_close(value, expected)
    for mine, other in zip(*(torch.autograd.grad(f, (W_q, W_k)) for f in (value, expected)), strict=True):
        torch.testing.assert_close(mine, other)
    swapped = loc.locater(W_q, W_k, 0.3, 100.0, target=2.0, roles="printed")
    torch.testing.assert_close(swapped, value)


def test_the_penalty_sums_over_the_layers_of_any_module():
    class Custom(torch.nn.Module):
        def __init__(self, keys=8):
            super().__init__()
            self.num_heads = 2
            self.q_proj, self.k_proj = torch.nn.Linear(8, 8), torch.nn.Linear(8, keys)

    torch.manual_seed(0)
    builtin = torch.nn.MultiheadAttention(8, 2)
    apart = torch.nn.MultiheadAttention(8, 2, kdim=8, vdim=5)  # separate projection weights
    model = torch.nn.Sequential(builtin, torch.nn.ModuleList([Custom(), Custom(keys=4)]), apart)
    found = list(loc.qk_weights(model))
    assert [layer.name for layer in found] == ["0", "1.0", "1.1", "2"]
    assert all(layer.W_q.shape == layer.W_k.shape == (2, 4, 8) for layer in found)
    torch.testing.assert_close(found[2].W_k[0], found[2].W_k[1])  # one key head for two query heads
    expected = sum(loc.locater(layer.W_q[h], layer.W_k[h], 3.0, 0.5) for layer in found for h in range(2))
    torch.testing.assert_close(loc.locater_penalty(model, 3.0, 0.5), expected)
    own = loc.locater_penalty(model, 3.0, 0.5, weights=lambda m: list(loc.qk_weights(m))[:1])
    torch.testing.assert_close(own, loc.locater(found[0].W_q, found[0].W_k, 3.0, 0.5))
    layer = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    loss = layer(torch.randn(2, 3, 8)).square().mean() + loc.locater_penalty(layer, 1.0, 1.0)
    loss.backward()
    assert layer.self_attn.in_proj_weight.grad.abs().sum() > 0


def test_the_penalty_stays_on_its_device():
    # Without gradients: autograd of fake tensors needs a CUDA build of torch.
    with FakeTensorMode(), torch.no_grad():
        W_q, W_k = (torch.empty(4, 3, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        found = loc.locater(W_q, W_k, 100.0, 1.0)
        assert (found.device.type, found.dtype) == ("cuda", torch.bfloat16)
        tall = torch.empty(64, 3, device="cuda")
        assert qk_scale(tall, tall).device.type == "cuda"
        model = torch.nn.Module()  # initial weights cannot be drawn on a fake device
        model.W_q, model.W_k, model.num_heads = torch.empty(8, 64, device="cuda"), torch.empty(4, 64, device="cuda"), 4
        assert loc.locater_penalty(model, 1.0, 1.0).device.type == "cuda"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: loc.locater(torch.ones(2, 3), torch.ones(3, 2), 1.0, 1.0), "(..., r, d), got (2, 3) and (3, 2)"),
        (lambda: loc.locater(torch.ones(2, 3), torch.ones(2, 3), -1.0, 1.0), "k1 must be a number >= 0, got -1.0"),
        (lambda: loc.locater(torch.ones(2, 3), torch.ones(2, 3), 1.0, np.nan), "k2 must be a number >= 0, got nan"),
        (lambda: loc.locater(torch.ones(2, 3), torch.ones(2, 3), 1.0, 1.0, roles="x"), "roles must be 'corrected' or"),
        (lambda: loc.locater_penalty(torch.nn.Linear(2, 2), 1.0, 1.0), "module holds no attention layer"),
        (
            lambda: loc.locater_penalty(torch.nn.MultiheadAttention(4, 2, kdim=6), 1.0, 1.0),
            "queries of width 4 and keys of width 6: W_QK has no trace",
        ),
        (lambda: loc.entropy_lower_bound(-1.0, 4), "nu must be >= 0, got -1"),
        (lambda: loc.entropy_lower_bound(1.0, 1), "T must be an integer >= 2, got 1"),
        (
            lambda: loc.entropy_lower_bound(1.0, 4, "best"),
            "form must be 'tight', 'asymptotic' or 'printed', got",
        ),
        (lambda: loc.attention_entropy(np.ones((1, 2)), np.eye(2)), "T must be an integer >= 2, got 1"),
        (lambda: loc.attention_entropy(np.ones((3, 3)), np.eye(2)), "X must have shape (..., T, 2), got (3, 3)"),
        (lambda: loc.attention_entropy([[1.0], [np.nan]], [[1.0]]), "X must be finite, but X[1, 0] is nan"),
        (lambda: loc.attention_entropy(np.ones((2, 2)), np.eye(2), query="first"), "query must be 'all' or 'last'"),
        (lambda: logit_radius(np.ones((2, 2, 2)), np.eye(2)), "X must have shape (T, 2), got (2, 2, 2)"),
        (lambda: loc.trace_below_norm(np.eye(2), norm="max"), "norm must be 'spectral' or 'frobenius', got 'max'"),
        (lambda: loc.trace_below_norm(np.eye(2), form="best"), "form must be one of ('corrected', 'printed'), got"),
        (lambda: loc.qk_gradient_terms(np.ones((2, 3)), [1.0], 1, 1, 1, 1.0), "X and y must have shapes (n, T, d)"),
        (
            lambda: loc.qk_gradient_terms(np.ones((2, 3, 1)), np.ones((2, 1)), np.eye(2), [[1.0]], [[1.0]], 1.0),
            "W_qk must have shape (1, 1), got (2, 2)",
        ),
        (
            lambda: loc.qk_gradient_terms(np.ones((2, 3, 1)), np.ones((2, 1)), [[1.0]], [[1.0]], [[1.0]], 0.0),
            "temperature must be positive and finite, got 0.0",
        ),
        (
            lambda: loc.qk_gradient_terms(np.ones((2, 3, 1)), np.ones((2, 1)), [[1.0]], [[1.0]], [[1.0]], 1.0, "x"),
            "form must be 'corrected' or 'printed', got 'x'",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_torch_and_scipy_are_loaded_late():
    code = (
        "import sys, attsvm.dynamics.localization as loc; assert 'torch' not in sys.modules; "
        "assert 'scipy' not in sys.modules; assert 'locater' in dir(loc)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    with pytest.raises(AttributeError, match="has no attribute 'lokater'"):
        _ = loc.lokater
    assert set(loc.__all__) <= set(dir(loc))
    assert all(getattr(loc, name) is not None for name in loc.__all__)
