"""A trained head as one matrix: against the layer's own arithmetic, grouped queries, torch's module, bad input."""

import numpy as np
import pytest

from attsvm import attention
from attsvm.trained_head import TrainedHead, split_heads


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.mark.parametrize("which", ["both", "query", "key", "none"])
def test_logits_are_those_of_the_layer(rng, which):
    W_q, W_k, h = rng.normal(size=(3, 5)), rng.normal(size=(3, 5)), rng.normal(size=(2, 4, 5))
    b_q = rng.normal(size=3) if which in ("both", "query") else None
    b_k = rng.normal(size=3) if which in ("both", "key") else None
    head = TrainedHead.from_weights(W_q, W_k, b_q, b_k)
    q = np.einsum("hd,ntd->nth", W_q, h) + (0 if b_q is None else b_q)
    k = np.einsum("hd,ntd->nth", W_k, h) + (0 if b_k is None else b_k)
    expected = np.einsum("nkh,nth->nkt", q, k) / np.sqrt(3)
    found = attention.logits(head.problem(h), head.W)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    assert np.linalg.matrix_rank(head.W) <= head.d_head


def test_heads_of_a_torch_layer(rng):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(8, 4, batch_first=True, dtype=torch.float64)
    torch.nn.init.normal_(layer.in_proj_bias)
    h = torch.randn(2, 5, 8, dtype=torch.float64)
    _, expected = layer(h, h, h, average_attn_weights=False)
    W_q, W_k, _ = layer.in_proj_weight.chunk(3)
    b_q, b_k, _ = layer.in_proj_bias.chunk(3)
    for i, head in enumerate(split_heads(W_q, W_k, b_q, b_k, heads=4)):
        found = attention.probabilities(head.problem(h), head.W)
        np.testing.assert_allclose(found, expected[:, i].detach().numpy(), rtol=1e-10)


def test_grouped_queries_share_their_key_head(rng):
    W_q, W_k = rng.normal(size=(12, 7)), rng.normal(size=(4, 7))
    heads = split_heads(W_q, W_k, heads=6, kv_heads=2)
    for i, head in enumerate(heads):
        keys = W_k[2 * (i // 3) : 2 * (i // 3) + 2]
        np.testing.assert_allclose(head.W, keys.T @ W_q[2 * i : 2 * i + 2] / np.sqrt(2))


def test_float32_states_stay_float32_and_maps_are_frozen(rng):
    W = rng.normal(size=(2, 3))
    head = TrainedHead.from_weights(W, W, np.ones(2))
    assert head.extend(np.ones((4, 3), dtype=np.float32)).dtype == np.float32
    with pytest.raises(ValueError, match="read-only"):
        head.key_map[0, 0] = 1.0
    W[:] = 0.0
    assert head.W.any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TrainedHead.from_weights(np.ones((2, 3)), np.ones((3, 3))), r"W_q and W_k must have as many rows"),
        (lambda: TrainedHead.from_weights(np.ones(3), np.ones((1, 3))), r"W_q must have shape \(d_head, d\)"),
        (lambda: TrainedHead.from_weights(np.ones((1, 3)), np.full((1, 3), np.nan)), r"W_k must be finite"),
        (lambda: TrainedHead.from_weights(np.ones((2, 3)), np.ones((2, 3)), np.ones(3)), r"b_q must have shape \(2,\)"),
        (lambda: TrainedHead(np.ones((2, 3)), np.ones((1, 3)), 1.0), r"key_map and query_map must have as many rows"),
        (lambda: TrainedHead.from_weights([[1.0]], [[1.0]], scale=np.inf), r"scale must be a finite number, got inf"),
        (lambda: TrainedHead.from_weights([[1.0]], [[1.0]]).extend(np.ones((2, 2))), r"hidden must have shape"),
        (lambda: split_heads(np.ones((4, 3)), np.ones((4, 3)), heads=3), r"W_q must have 3 and W_k 3 blocks"),
        (lambda: split_heads(np.ones((4, 3)), np.ones((4, 3)), heads=4, kv_heads=3), r"multiple of kv_heads"),
        (lambda: split_heads(np.eye(4), np.eye(4), np.ones(3), heads=2), r"b_q must have shape \(4,\)"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
