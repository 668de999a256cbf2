import re

import numpy as np
import pytest
import torch

from attsvm.dynamics import polarization as pol

SOFTMAX = pol.AttentionKind("softmax")


def random_attention(rng, causal=True):
    logits = rng.standard_normal((2, 3, 4, 6, 6))
    weights = np.exp(logits) * (np.tri(6) if causal else 1.0)
    return weights / weights.sum(-1, keepdims=True)


def test_metrics_agree_between_numpy_and_torch_and_with_loops(rng):
    A = random_attention(rng)
    T = torch.tensor(A)
    for metric in (pol.sink_score, pol.sparsity_score, pol.attention_entropy):
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
    assert pol.sink_heads(A)[0].tolist() == [False, False]


def test_sparsity_baseline_and_padding():
    T = 8
    uniform = (np.tri(T) / np.tri(T).sum(-1, keepdims=True))[None, None, None]
    assert pol.sparsity_score(uniform).item() == pytest.approx(pol.uniform_sparsity(T))
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
        (lambda: pol.attention_entropy(np.ones((1, 1, 1, 5, 5))), "attention must hold distributions over keys"),
        (lambda: pol.sparsity_score(np.ones((1, 1, 2, 5, 5)), valid=np.ones((2, 4))), "valid must have shape (2, 5)"),
        (lambda: pol.AttentionKind("cosine"), "kind must be one of ['softmax'"),
        (lambda: pol.AttentionKind("softmax", normalized=False), "softmax is normalized by definition"),
        (lambda: pol.InductionTask(symbols=5, length=6), "length must be in 2..symbols = 5, got 6"),
        (lambda: pol.SetTask(vocabulary=42), "vocabulary must be 1 + a multiple of labels = 4, got 42"),
        (lambda: pol.SetTask(vocabulary=41, length=11), "length must be in 1..10, the size of a group, got 11"),
        (lambda: pol.TransformerSpec(4, 4, 4, dim=10, heads=3), "dim must be a multiple of heads, got 10 and 3"),
        (lambda: pol.TransformerSpec(4, 4, 4, positions="rope"), "positions must be one of ['add', 'concat', 'none']"),
        (lambda: pol.train_induction(SOFTMAX, steps=0), "steps and batch must be at least 1, got 0 and 128"),
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
    A = pol.attention_weights(kind, q, k, mask=mask, features=features)
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


def test_induction_samples():
    task = pol.InductionTask(symbols=12, length=5)
    tokens, following = task.sample(500, torch.Generator().manual_seed(3))
    assert (tokens[:, 0] == 0).all()
    for row, then in zip(tokens.tolist(), following.tolist(), strict=True):
        middle, cue = row[1:-1], row[-1]
        assert len(set(middle)) == 5  # without replacement
        place = middle.index(cue - 12)
        assert then == (middle[place + 1] if place < 4 else cue)  # the last token is followed by t' itself
    same = pol.InductionTask(symbols=12, length=5, shifted=False)
    tokens, _ = same.sample(10, torch.Generator().manual_seed(3))
    assert all(row[-1] in row[1:-1] for row in tokens.tolist())


def test_set_samples_and_the_degenerate_vocabulary():
    generator = torch.Generator().manual_seed(0)
    sets = {frozenset(row[:-1]) for row in pol.SetTask(41).sample(300, generator)[0].tolist()}
    assert len(sets) == 4  # ten of ten tokens: one set per label
    assert len({frozenset(row[:-1]) for row in pol.SetTask(81).sample(300, generator)[0].tolist()}) == 300


@pytest.mark.parametrize("positions", ["add", "concat", "none"])
def test_transformer_shapes_causality_and_seeds(positions):
    spec = pol.TransformerSpec(20, 6, 7, heads=2, dim=8, feedforward=16, positions=positions)
    model = pol.SmallTransformer(spec, seed=1)
    tokens = torch.randint(20, (3, 6), generator=torch.Generator().manual_seed(0))
    logits, attention = model(tokens, attention=True)
    assert attention.shape == (2, 2, 3, 6, 6)
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 20
    torch.testing.assert_close(model(changed)[0][:, :-1], logits[:, :-1])  # the future is hidden
    torch.testing.assert_close(pol.SmallTransformer(spec, seed=1)(tokens)[0], logits)
    before = torch.random.get_rng_state()
    pol.SmallTransformer(spec, seed=2)
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_set_classifier_does_not_see_the_order():
    task = pol.SetTask(41)
    model = pol.train_classifier(SOFTMAX, task=task, dim=16, steps=2)
    tokens, _ = task.sample(5, torch.Generator().manual_seed(0))
    shuffled = torch.cat([tokens[:, :-1].flip(1), tokens[:, -1:]], 1)
    torch.testing.assert_close(model(tokens)[0][:, -1], model(shuffled)[0][:, -1], atol=1e-5, rtol=1e-4)


def test_flip_rate_of_attention_known_by_construction():
    """A head that looks only at the smallest token: its swap always flips, and a classifier by majority never does."""

    class Peaked(torch.nn.Module):
        def __init__(self, peaked):
            super().__init__()
            self.peaked, self.dummy = peaked, torch.nn.Parameter(torch.zeros(1))

        def forward(self, tokens, attention=False):
            group = tokens[:, :-1] // 20
            place = (tokens[:, :-1] % 20).argmin(1)  # the token the head attends to
            one_hot = torch.nn.functional.one_hot(group, 4).double()
            picked = one_hot[torch.arange(len(tokens)), place] if self.peaked else one_hot.mean(1)
            A = torch.zeros(1, 1, len(tokens), 11, 11, dtype=torch.float64)
            A[0, 0, torch.arange(len(tokens)), -1, place] = 1.0
            return picked[:, None].expand(-1, 11, -1), A if attention else None

    rates = pol.flip_rates(Peaked(True), pol.SetTask(81), pairs=200)
    assert rates.accuracy == 1.0
    # The swapped-in token is its donor's smallest; it decides unless the receiver's second smallest is smaller or
    # equal.
    assert rates.worst > 0.5
    assert rates.worst > 4 * rates.control
    majority = pol.flip_rates(Peaked(False), pol.SetTask(81), pairs=200)
    assert majority.worst == 0.0


def test_softmax_flips_and_sigmoid_does_not():
    # The contrast of Figure 6 at 1/4 of the width; vocabulary 41 trains on its four sets.
    task = pol.SetTask(41)
    options = {"task": task, "dim": 32, "layer_norm": False, "mlp": False, "lr": 1e-3, "steps": 300}
    softmax = pol.flip_rates(pol.train_classifier(SOFTMAX, **options), task, pairs=100)
    sigmoid = pol.flip_rates(pol.train_classifier(pol.AttentionKind("sigmoid", False), **options), task, pairs=100)
    assert softmax.accuracy == sigmoid.accuracy == 1.0
    assert softmax.worst > 0.5 > 0.2 > sigmoid.worst
    assert softmax.control < 0.3
    assert not softmax.top.requires_grad


def test_induction_training_runs_for_every_kind_and_reports():
    task = pol.InductionTask(symbols=6, length=3)
    for kind in pol.ATTENTION_KINDS:
        model = pol.train_induction(kind, task=task, heads=2, dim=8, batch=8, steps=2)
        report = pol.induction_report(model, task, samples=40)
        assert report.scores.shape == (2,)
        assert 0 <= report.sink_share <= 1
        assert 0 <= report.accuracy <= 1
        if kind.normalized and kind.positive:
            torch.testing.assert_close(report.scores, report.pooled_scores)
