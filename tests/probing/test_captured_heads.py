"""Recomputed logits and attention are the model's own, for every architecture that is read; the rest is refused."""

import numpy as np
import pytest
import torch
from probing.tiny_models import HEAD_SPACE, MODELS, OFFSETS, batch_for, make

from attsvm.probing import ProbeError, capture_layers
from attsvm.probing.model_hooks import attention_modules, read_call, recompute
from attsvm.probing.model_weights import read_projections
from attsvm.probing.monitor import head_scalars

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers itself


def own_logits(model, batch):
    """The model's logits by its own code: what its attention functions multiply, with masks and biases."""
    found = []
    softmax = torch.nn.functional.softmax

    def spy(values, dim=-1, **options):
        found.append(values.detach().clone())
        return softmax(values, dim, **options)

    torch.nn.functional.softmax = spy
    try:
        with torch.no_grad():
            model.set_attn_implementation("eager")
            model(**batch, **({"use_cache": False} if hasattr(model, "generation_config") else {}))
    finally:
        torch.nn.functional.softmax = softmax
    return [values for values in found if values.ndim == 4]


NEVER_PADDED = ("vit", "whisper", "encoder")


@pytest.mark.parametrize(
    ("name", "padding"),
    [
        (name, side)
        for name in sorted(MODELS)
        for side in ("right", "left")
        if side == "right" or name not in NEVER_PADDED
    ],
)
def test_attention_is_the_models_own(name, padding):
    layers = capture_layers(make(name), [batch_for(name, padding)])
    for layer in layers:
        assert layer.error <= 1e-5
        assert (layer.space == "head") == (name in HEAD_SPACE)
        assert (layer.offset is not None) == (name in OFFSETS and layer.attends == "self")
        head = layer[1]
        again = np.exp(head.log_attention)[head.counts]
        assert np.allclose(again.sum(-1), 1) and again.max() > 0.3  # peaked: the comparison means something
        if head.space == "tokens":  # W on hidden states gives the logits of queries and keys
            tokens, queries = head.points()
            logits = queries.astype(float) @ head.matrix.T @ tokens.astype(float).swapaxes(-1, -2)
            logits = logits if head.offset is None else logits + head.offset
            keep = head.allowed & head.counts[..., None]
            assert np.abs(logits - head.logits)[keep].max() <= 1e-5 * max(1, np.abs(head.logits[keep]).max())
    if name not in ("vit", "whisper", "encoder", "t5"):
        lengths = [9, 6, 4]
        assert layers[0].valid.sum(1).tolist() == lengths


@pytest.mark.parametrize("name", ["bert", "albert", "opt", "llama", "qwen3", "t5", "whisper"])
def test_logits_are_the_models_own(name):
    model, batch = make(name), batch_for(name)
    layers = capture_layers(model, [batch])
    for layer, theirs in zip(layers, own_logits(model, batch), strict=True):
        for head in layer:
            keep = head.allowed & head.counts[..., None]
            difference = head.logits[keep] - theirs[:, head.head].double().numpy()[keep]
            assert np.abs(difference).max() <= 1e-5 * max(1.0, np.abs(head.logits[keep]).max())


def test_grouped_queries_read_the_right_keys():
    model = make("llama")
    layer = capture_layers(model, [batch_for("llama")])[0]
    assert np.array_equal(layer.k[:, 0], layer.k[:, 1]) and np.array_equal(layer.k[:, 2], layer.k[:, 3])
    assert not np.allclose(layer.k[:, 1], layer.k[:, 2])
    k = model.model.layers[0].self_attn.k_proj.weight.detach().double().numpy()
    assert np.allclose(layer.weights[3].key_map, k[8:16])


def test_the_model_is_left_as_it_was():
    model = make("bert").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    kind = model.config._attn_implementation
    capture_layers(model, [batch_for("bert")])
    assert model.training and model.config._attn_implementation == kind == "sdpa"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_batches_of_different_length_are_padded():
    model = make("bert")
    long = {"input_ids": torch.randint(5, 50, (2, 12)), "attention_mask": torch.ones(2, 12, dtype=torch.long)}
    both = capture_layers(model, [batch_for("bert"), long])[0]
    alone = capture_layers(model, [long])[0]
    assert both.q.shape[:3] == (5, 4, 12)
    assert np.allclose(both[2].log_attention[3:], alone[2].log_attention, atol=1e-6)


def test_torch_attention_with_masks_time_first():
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(16, 4)
    x, padding = torch.randn(7, 3, 16), torch.zeros(3, 7, dtype=torch.bool)
    padding[1, 5:] = True

    class Masked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, x):
            causal = torch.ones(7, 7, dtype=torch.bool).triu(1)
            return self.inner(x, x, x, key_padding_mask=padding, attn_mask=causal)[0]

    layer = capture_layers(Masked(), [x])[0]
    assert layer.error <= 1e-6 and layer.allowed[1, 6].sum() == 5 and layer.valid.sum(1).tolist() == [7, 5, 7]


def test_what_cannot_be_read_is_refused_by_name():
    from probing.tiny_models import GROUPED
    from transformers import Gemma2Config, Gemma2ForCausalLM

    with pytest.raises(ProbeError, match="Gemma2Attention has capped logits"):
        capture_layers(Gemma2ForCausalLM(Gemma2Config(head_dim=8, **GROUPED)), [batch_for("llama")])
    with pytest.raises(ProbeError, match="Linear has no attention that can be read"):
        attention_modules(torch.nn.Linear(2, 2))
    with pytest.raises(ProbeError, match="model must be a torch module, got str"):
        attention_modules("model")
    with pytest.raises(ProbeError, match="add_bias_kv"):
        read_projections(torch.nn.MultiheadAttention(8, 2, add_bias_kv=True))
    with pytest.raises(ProbeError, match="without a batch"):
        capture_layers(torch.nn.MultiheadAttention(8, 2), [torch.randn(5, 8)])


def test_attention_that_is_not_the_models_stops_the_probe():
    model = make("bert")
    model.encoder.layer[1].attention.self.scaling *= 1.01
    first = model.encoder.layer[1].attention.self
    maps = read_projections(first)
    first.scaling /= 1.01
    assert maps.scale != read_projections(first).scale

    def warmer(module, args, kwargs, output):  # a model that does something of its own to its attention
        return output[0], (0.9 * output[1] + 0.1 / output[1].shape[-1])

    first.register_forward_hook(warmer, with_kwargs=True)
    with pytest.raises(ProbeError, match=r"encoder\.layer\.1\.attention\.self: recomputed attention differs .* by"):
        capture_layers(model, [batch_for("bert")])


def test_half_precision_is_compared_in_its_own_units():
    layers = capture_layers(make("bert").to(torch.bfloat16), [batch_for("bert")])
    assert all(layer.error <= 2**-6 for layer in layers) and layers[0].q.dtype == np.float32


def test_any_device_by_shapes_alone():
    from torch._subclasses.fake_tensor import FakeTensorMode

    from attsvm.probing.model_weights import Projections

    module = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    with FakeTensorMode():
        W_q, W_k, W_v = (torch.empty(16, 16, device="cuda") for _ in range(3))
        x, hidden = torch.empty(3, 7, 16, device="cuda"), torch.empty(7, 7, device="cuda")
        maps = Projections(W_q, W_k, W_v, None, None, None, 4, 4, 0.5)
        found = recompute(maps, read_call(module, maps, {"query": x, "key": x, "attn_mask": hidden}))
        scalars = head_scalars(found)
    assert found.attention.shape == (3, 4, 7, 7) and found.attention.device.type == "cuda"
    assert all(value.shape == (4,) and value.device.type == "cuda" for value in scalars.values())
