"""Measures against arithmetic written out, and the cost of heads against a model without them."""

import numpy as np
import pytest

from attsvm.probing import heads_from_arrays
from attsvm.probing.cheap_measures import (
    Context,
    conditioning_measures,
    head_gaps,
    localization_measures,
    log_rest,
    polarization_measures,
    random_spectrum,
    selection_measures,
    shuffled_tokens,
    softmax_one_factors,
)
from attsvm.probing.svm_measures import SvmBudget, draw_sample, scaled_objective
from attsvm.trained_head import TrainedHead


def layer_of(seed=0, n=5, T=7, d=6, r=3, heads=2, mask=None, causal=True, **options):
    rng = np.random.default_rng(seed)
    known = [TrainedHead.from_weights(*rng.normal(size=(2, r, d)), *rng.normal(size=(2, r))) for _ in range(heads)]
    return heads_from_arrays(rng.normal(size=(n, T, d)), known, mask=mask, causal=causal, **options)


def padded_mask(n=5, T=7):
    mask = np.ones((n, T), dtype=bool)
    mask[1, 4:] = False
    mask[3, 2:] = False
    return mask


@pytest.mark.parametrize("causal", [True, False])
def test_scores_by_loops(causal):
    layer = layer_of(mask=padded_mask(), causal=causal)
    head, context = layer[1], Context(layer)
    found = {**selection_measures(head, context), **polarization_measures(head, context)}
    found |= localization_measures(head, context)
    for i in range(head.n):
        length = int(padded_mask()[i].sum())
        A = np.zeros((length, length))
        logits = head.scale * head.q[i, :length] @ head.k[i, :length].T
        for q in range(length):
            seen = q + 1 if causal else length
            A[q, :seen] = np.exp(logits[q, :seen]) / np.exp(logits[q, :seen]).sum()
        rows = [q for q in range(length) if (q + 1 if causal else length) > 1]
        assert found["sink_share_first"][i] == pytest.approx(A[1:, 0].mean())
        assert found["sparsity"][i] == pytest.approx(A.max(axis=1).mean())
        entropy = [-(a[a > 0] * np.log(a[a > 0])).sum() for a in A[rows]]
        assert found["entropy"][i] == pytest.approx(np.mean(entropy))
        assert found["selects_previous"][i] == pytest.approx(np.mean([A[q].argmax() == q - 1 for q in rows]))
        assert found["entropy_bound"][i] <= found["entropy"][i] + 1e-12
        gaps = [np.diff(np.sort(logits[q, : q + 1 if causal else length])[-2:])[0] for q in rows]
        assert np.nanmin(head_gaps(head)[i]) == pytest.approx(min(gaps))
        norm = np.linalg.norm(head.matrix)
        assert found["margin_min_frobenius"][i] == pytest.approx(min(gaps) / norm)
        nuclear = np.linalg.norm(head.matrix, "nuc")
        assert found["margin_median_nuclear"][i] == pytest.approx(np.median(gaps) / nuclear)


def test_gradients_are_lost_where_arithmetic_loses_them():
    rng = np.random.default_rng(1)
    wide = TrainedHead.from_weights(60 * np.eye(4), np.eye(4), scale=1.0)
    head = heads_from_arrays(rng.normal(size=(6, 8, 4)), [wide])[0]
    found = conditioning_measures(head)
    s = np.exp(head.log_attention)
    rounded = s.astype(np.float32)
    assert found["noise_float32"].mean() == pytest.approx((rounded.max(axis=-1) == 1.0).mean(), abs=0.05)
    rest, second = log_rest(head)
    assert np.all(second <= rest + 1e-12)
    tiny = (np.exp(np.float32(1) * second.astype(np.float32)) == 0).mean()
    assert found["underflow_float32"].mean() == pytest.approx(tiny, abs=0.05)
    assert (found["noise_bfloat16"] >= found["noise_float32"]).all()


def test_baselines_keep_what_they_should():
    head = layer_of()[0]
    drawn = random_spectrum(head, 3)
    tokens, queries = drawn.points()
    logits = queries @ drawn.matrix.T @ tokens.swapaxes(-1, -2)
    assert np.allclose(np.where(head.allowed, logits, -np.inf), drawn.logits)
    assert np.allclose(np.linalg.svd(drawn.matrix)[1], np.linalg.svd(head.matrix)[1])
    assert np.array_equal(random_spectrum(head, 3).q, drawn.q) and not np.allclose(random_spectrum(head, 4).q, drawn.q)
    dealt = shuffled_tokens(layer_of(mask=padded_mask())[0], 0)
    assert np.array_equal(dealt.k[1, 4:], layer_of(mask=padded_mask())[0].k[1, 4:])  # padding stays where it was


def test_softmax_one_leaves_less():
    head = layer_of()[0]
    factors = softmax_one_factors(head)
    logits = head.logits[2, 3, :4]
    assert factors[2, 3] == pytest.approx(np.exp(logits).sum() / (1 + np.exp(logits).sum()))


@pytest.mark.parametrize("squared", [True, False])
def test_the_best_multiple_by_search(squared):
    rng = np.random.default_rng(0)
    for _ in range(20):
        m, size, C = rng.normal(0.5, 1.0, size=6), float(rng.uniform(0.3, 3)), float(rng.uniform(0.05, 5))
        s = np.linspace(0, 60, 200_001)
        values = 0.5 * (s * size) ** 2 if squared else s * size
        values = values + C * (np.maximum(0, 1 - s[:, None] * m) ** 2).sum(axis=1)
        assert scaled_objective(m, size, C, squared=squared) == pytest.approx(values.min(), rel=1e-4)


def test_samples_are_drawn_alike_for_all_heads_and_never_from_padding():
    layer = layer_of(mask=padded_mask(), causal=False)
    budget = SvmBudget(sequences=3, held_out=2, queries=2)
    (one, test), (two, _) = (draw_sample(layer[h], budget, 7) for h in (0, 1))
    assert np.array_equal(one.places, two.places) and len(one.X) == 3 and test is not None and len(test.X) == 2
    assert all(padded_mask()[i, q] for i, q in one.places.reshape(-1, 2))
    margins = one.margins(one.W)
    assert (margins >= 0).all()  # it separates its own selections
    with pytest.raises(ValueError, match="sequences must be an integer >= 1, got 0"):
        SvmBudget(sequences=0)


def test_removal_is_the_model_without_the_head():
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from probing.tiny_models import batch_for, make

    from attsvm.probing.head_removal import HeadRemover
    from attsvm.probing.model_hooks import capture_layers

    model, batch = make("bert"), batch_for("bert")
    remover = HeadRemover(model, [batch], capture_layers(model, [batch]))
    with torch.no_grad():
        before = model(**batch).last_hidden_state
        weight = model.encoder.layer[1].attention.output.dense.weight
        saved = weight[:, 8:16].clone()
        weight[:, 8:16] = 0.0
        after = model(**batch).last_hidden_state
        weight[:, 8:16] = saved
    mask = batch["attention_mask"][..., None].double()
    by_hand = ((after - before) * mask).flatten(1).norm(dim=1) / (before * mask).flatten(1).norm(dim=1)
    assert np.allclose(remover.change([(1, 1)]), by_hand.numpy(), rtol=1e-4)
    assert (remover.change([]) == 0).all()
    order, path = remover.pruning_path({(0, h): float(remover.change([(0, h)]).mean()) for h in range(4)})
    assert len(order) == 3 and path.losses[1] == pytest.approx(min(
        float(remover.change([(0, h)]).mean()) for h in range(4)
    ))  # fmt: skip


def test_softmax_one_in_the_model():
    torch = pytest.importorskip("torch")
    from attsvm.probing.head_removal import HeadRemover
    from attsvm.probing.model_hooks import capture_layers

    torch.manual_seed(0)
    module, x = torch.nn.MultiheadAttention(8, 2, batch_first=True).double(), torch.randn(3, 5, 8).double()
    layers = capture_layers(module, [x])
    found = HeadRemover(module, [x], layers).softmax_one((0, 1))
    W_v, b_v = module.in_proj_weight[16:], module.in_proj_bias[16:]
    with torch.no_grad():
        full = module(x, x, x)[0]
        v = (x @ W_v.T + b_v)[..., 4:]
        logits = torch.tensor(layers[0][1].logits)
        kept = torch.exp(logits) / (1 + torch.exp(logits).sum(-1, keepdim=True))
        shift = (kept - logits.softmax(-1)) @ v @ module.out_proj.weight[:, 4:].T
    assert np.allclose(found, (shift.flatten(1).norm(dim=1) / full.flatten(1).norm(dim=1)).numpy())


def test_intervals_hold_no_value_that_a_measure_cannot_take():
    from attsvm.probing.cheap_measures import add_interval
    from attsvm.probing.measure_catalog import MEASURES

    skewed, record = [0.0, 0.0, 0.0, 1.0], {}
    for name in MEASURES:
        add_interval(record, name, skewed)
        assert record[name] == 0.25 and record[f"{name}_high"] > 0.25
        bounded = MEASURES[name].size or MEASURES[name].share
        assert (record[f"{name}_low"] >= 0.0) == bounded
    assert MEASURES["entropy_bound"].size and not MEASURES["max_logit"].size
    add_interval(record, "entropy", [0.5])  # one sequence: no interval
    assert np.isnan(record["entropy_low"])
