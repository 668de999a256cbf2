import re

import numpy as np
import pytest
import torch

from attsvm.dynamics import polarization as pol
from attsvm.dynamics.polarization.attention_metrics import sink_heads
from attsvm.dynamics.polarization.value_descent import attention_weights


def random_attention(rng, causal=True):
    logits = rng.standard_normal((2, 3, 4, 6, 6))
    weights = np.exp(logits) * (np.tri(6) if causal else 1.0)
    return weights / weights.sum(-1, keepdims=True)


def test_metrics_agree_between_numpy_and_torch_and_with_loops(rng):
    A = random_attention(rng)
    T = torch.tensor(A)
    for metric in (pol.sink_score, pol.sparsity_score):
        np.testing.assert_allclose(metric(A), metric(T).numpy(), atol=1e-12)
    by_hand = np.mean([[A[1, 2, n, q, 0] for q in range(1, 4)] for n in range(4)])
    assert pol.sink_score(A)[1, 2] == pytest.approx(by_hand)
    peak = np.mean([[A[0, 1, n, q].max() for q in range(6)] for n in range(4)])
    assert pol.sparsity_score(A)[0, 1] == pytest.approx(peak)


def test_both_definitions_of_the_sink_score(rng):
    A = random_attention(rng)
    # Rows that sum to one: identical (C56). Unnormalized rows: not.
    np.testing.assert_allclose(pol.sink_score(A), pol.sink_score(A, how="ratio_of_sums"), atol=1e-12)
    raw = A * rng.uniform(0.1, 10.0, size=(2, 3, 4, 6, 1))
    np.testing.assert_allclose(pol.sink_score(raw), pol.sink_score(A), atol=1e-12)
    assert np.abs(pol.sink_score(raw) - pol.sink_score(raw, how="ratio_of_sums")).max() > 1e-3


def test_signed_attention_above_one_is_no_sink_and_empty_rows_attend_to_nothing():
    A = np.zeros((1, 2, 1, 4, 4))
    A[0, 0, 0, :, 0], A[0, 0, 0, :, 1] = 2.0, -1.0  # share 2 of the total
    assert pol.sink_score(A)[0].tolist() == [2.0, 0.0]
    assert pol.sink_score(A, clip=True)[0].tolist() == [1.0, 0.0]
    assert sink_heads(A)[0].tolist() == [False, False]


def test_sparsity_baseline_and_padding():
    T = 8
    uniform = (np.tri(T) / np.tri(T).sum(-1, keepdims=True))[None, None, None]
    assert pol.sparsity_score(uniform).item() == pytest.approx((1 / np.arange(1, T + 1)).mean())
    valid = np.zeros((1, T), dtype=bool)
    valid[0, 3] = True
    assert pol.sparsity_score(uniform, valid=valid).item() == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: pol.sink_score(np.zeros((2, 2))),
            "attention must have axes (layer, head, sample, query, key), got shape",
        ),
        (lambda: pol.sink_score(np.full((1, 1, 1, 4, 4), np.nan)), "attention must not hold NaN"),
        (lambda: pol.sink_score(np.ones((1, 1, 1, 2, 2))), "selects no query of 2"),
        (
            lambda: pol.sink_score(np.ones((1, 1, 1, 5, 5)), how="max"),
            'how must be "mean_of_ratios" or "ratio_of_sums"',
        ),
        (lambda: pol.sparsity_score(np.ones((1, 1, 2, 5, 5)), valid=np.ones((2, 4))), "valid must have shape (2, 5)"),
        (lambda: pol.AttentionKind("cosine"), "kind must be 'softmax', "),
        (lambda: pol.AttentionKind("softmax", normalized=False), "softmax is normalized by definition"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


@pytest.mark.parametrize("kind", pol.ATTENTION_KINDS, ids=str)
def test_kinds_of_table_1(kind):
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, 3, 5, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    features = torch.tanh if kind.name == "mlp" else None
    A = attention_weights(kind, q, k, mask=mask, features=features)
    assert (A[..., ~mask] == 0).all()
    i, j = 3, 1
    qi, kj = q[0, 0, i], k[0, 0]
    similarity = {
        "softmax": lambda x, y: torch.exp(x @ y / 2),
        "sigmoid": lambda x, y: torch.sigmoid(x @ y / 2),
        "elu": lambda x, y: torch.nn.functional.elu(x @ y / 2) + 1,
        "elu_elu": lambda x, y: (torch.nn.functional.elu(x) + 1) @ (torch.nn.functional.elu(y) + 1) / 2,
        "mlp": lambda x, y: torch.tanh(x) @ torch.tanh(y) / 2,
        "linear": lambda x, y: x @ y / 2,
    }[kind.name]
    row = torch.stack([similarity(qi, kj[c]) for c in range(i + 1)])
    scale = 1.0
    if kind.normalized:
        scale = row.sum() if kind.positive else row.sum().abs().clamp_min(1.0)
    # 1e-9 is added to the sums of positive weights, as published.
    assert A[0, 0, i, j].item() == pytest.approx((row[j] / scale).item(), abs=1e-8)
    if kind.positive:
        assert (A >= 0).all()
