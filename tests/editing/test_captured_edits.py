"""From a model to one head's problem, and its edit back into the model: the model attends as predicted."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from probing.tiny_models import batch_for, make

import attsvm
from attsvm.attention import likeliest, probabilities
from attsvm.probing import ProbeError

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers itself

LAYER, HEAD = 1, 2
NEAR = 1e-6  # some models take their softmax in float32 whatever their weights are


def own_attention(model, batch):
    """The model's attention in its own words, (n, T, T) of one head."""
    if isinstance(model, torch.nn.MultiheadAttention):
        return model(batch, batch, batch, average_attn_weights=False)[1][:, HEAD].detach().numpy()
    model = copy.deepcopy(model).eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return model(**batch, output_attentions=True).attentions[LAYER][:, HEAD].numpy()


def second_choices(head, problem):
    """Two queries of the first sequence should select what they rank second; nothing is asked of the others."""
    order = np.argsort(-attsvm.attention.logits(problem, head.W), axis=-1)
    wanted = np.full(problem.query_shape, -1)
    free = np.flatnonzero(problem.allowed.reshape(-1, problem.T).sum(axis=-1) > 2)[:2]
    wanted.reshape(-1)[free] = order.reshape(-1, problem.T)[free, 1]
    return wanted


@pytest.mark.parametrize("of", ["K", "Q"])
@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "gpt2", "opt", "albert"])
def test_the_edited_model_attends_as_predicted(name, of):
    model, batch = make(name).double(), batch_for(name, "right")
    head, problem = attsvm.capture(model, batch, layer=LAYER, head=HEAD)
    before = own_attention(model, batch)
    real = problem.allowed.sum(axis=-1) > 1  # padded queries see one token
    np.testing.assert_allclose(probabilities(problem, head.W)[real], before[real], atol=NEAR)
    edit = attsvm.edit(head, problem, second_choices(head, problem), of=of, keep=True, margin=0.1)
    if name == "albert":  # the layers share their weights: the certificate is about one of them
        with pytest.raises(ValueError, match="is called 2 times with the same weights"):
            edit.apply_to(model)
        changed = edit.apply_to(model, shared=True)
        fresh, moved = attsvm.capture(changed, batch, layer=LAYER, head=HEAD)
        np.testing.assert_allclose(fresh.W, edit.W, atol=1e-12)
        assert np.abs(moved.X - problem.X).max() > 1e-6
        return
    changed = edit.apply_to(model)
    after = own_attention(changed, batch)
    predicted = probabilities(problem, edit.W)
    assert np.abs(predicted - after)[real].max() < NEAR < np.abs(after - before)[real].max()
    assert (predicted.argmax(-1) == edit.selected(problem)).all()
    np.testing.assert_array_equal(own_attention(model, batch), before)  # a copy was changed
    others = [h for h in range(4) if h != HEAD]
    for one, two in zip(_layer(model, batch, others), _layer(changed, batch, others), strict=True):
        np.testing.assert_array_equal(one, two)
    assert edit.apply_to(model, inplace=True) is model
    np.testing.assert_array_equal(own_attention(model, batch), after)


def _layer(model, batch, heads):
    model = copy.deepcopy(model).eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return [model(**batch, output_attentions=True).attentions[LAYER][:, h].numpy() for h in heads]


@pytest.mark.parametrize("of", ["K", "Q"])
@pytest.mark.parametrize("together", [True, False])
def test_multihead_attention_with_one_matrix_or_three(of, together):
    torch.manual_seed(0)
    sizes = {} if together else {"kdim": 24, "vdim": 24}  # maps in in_proj_weight, or in matrices of their own
    module = torch.nn.MultiheadAttention(24 if together else 16, 4, batch_first=True, dtype=torch.float64, **sizes)
    with torch.no_grad():
        module.in_proj_bias.normal_()
    x = torch.randn(2, 6, 24 if together else 16, dtype=torch.float64)
    y = x if together else torch.randn(2, 6, 24, dtype=torch.float64)
    if not together:
        with pytest.raises(ValueError, match="hidden must have shape"):
            attsvm.capture(module, (x, y, y), layer=0, head=HEAD)  # keys and queries of two sizes share no constant
        return
    head, problem = attsvm.capture(module, x, layer=0, head=HEAD)
    edit = attsvm.edit(head, problem, second_choices(head, problem), of=of, margin=0.1)
    changed = edit.apply_to(module)
    np.testing.assert_allclose(own_attention(changed, x), probabilities(problem, edit.W), atol=1e-12)
    rows = slice((of == "K") * 24 + HEAD * 6, (of == "K") * 24 + (HEAD + 1) * 6)
    different = (changed.in_proj_weight != module.in_proj_weight).any(dim=1)
    assert different[rows].any() and not different[: rows.start].any() and not different[rows.stop :].any()
    # The module inside a model, by its place and by its name.
    model = torch.nn.Sequential()
    model.add_module("attention", copy.deepcopy(module))
    by_name = edit.apply_to(model, layer="attention")
    assert torch.equal(by_name.attention.in_proj_weight, changed.in_proj_weight)


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_grouped_queries_with_rotations_are_edited_in_their_query_map(name):
    model, batch = make(name).double(), batch_for(name, "right")
    head, problem = attsvm.capture(model, batch, layer=LAYER, head=HEAD, of="Q")
    n, T = batch["input_ids"].shape
    before = own_attention(model, batch).reshape(n * T, T)
    real = problem.allowed.sum(axis=-1) > 1
    np.testing.assert_allclose(probabilities(problem, head.W)[real], before[real], atol=NEAR)
    assert head.shares_keys == (2, 3) and repr(head).endswith("turned space, keys of heads 2, 3)")
    edit = attsvm.edit(head, problem, second_choices(head, problem), of="Q", keep=True, margin=0.1)
    after = own_attention(edit.apply_to(model), batch).reshape(n * T, T)
    assert np.abs(probabilities(problem, edit.W) - after)[real].max() < NEAR < np.abs(after - before)[real].max()
    with pytest.raises(ValueError, match="edit of=\"Q\", not of='K'"):
        attsvm.edit(head, problem, second_choices(head, problem), of="K", margin=0.1).apply_to(model)
    turned, rotated = attsvm.capture(model, batch, layer=LAYER, head=HEAD)
    np.testing.assert_allclose(
        probabilities(rotated, turned.W).reshape(n * T, T)[real], before[real], atol=NEAR
    )  # the same attention in head space, where W is the scale times the identity
    with pytest.raises(ValueError, match="rotates or normalizes"):
        attsvm.edit(turned, rotated, second_choices(turned, rotated), of="Q", margin=0.1).apply_to(model)


class Grouped(torch.nn.Module):
    """Grouped queries without rotations."""

    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj = (torch.nn.Linear(12, size, dtype=torch.float64) for size in (16, 8))
        self.head_dim = 4

    def forward(self, hidden_states):
        n, T, _ = hidden_states.shape
        q = self.q_proj(hidden_states).view(n, T, 4, 4).transpose(1, 2)
        k = self.k_proj(hidden_states).view(n, T, 2, 4).transpose(1, 2).repeat_interleave(2, dim=1)
        return hidden_states, (q @ k.transpose(-1, -2) / 2.0).softmax(-1)


def test_shared_keys_are_refused_by_name():
    torch.manual_seed(0)
    model, x = Grouped(), torch.randn(2, 5, 12, dtype=torch.float64)
    head, problem = attsvm.capture(model, x, layer=0, head=HEAD)
    edit = attsvm.edit(head, problem, second_choices(head, problem), of="K", margin=0.1)
    with pytest.raises(ValueError, match=r"heads 2 to 3 of Grouped share their keys"):
        edit.apply_to(model)
    attention = edit.apply_to(model, shared=True)(x)[1].detach().numpy()
    np.testing.assert_allclose(attention[:, HEAD], probabilities(problem, edit.W), atol=1e-12)
    assert np.abs(attention[:, 3] - model(x)[1].detach().numpy()[:, 3]).max() > 1e-6  # the other head of the group
    query = attsvm.edit(head, problem, second_choices(head, problem), of="Q", margin=0.1).apply_to(model)
    found = query(x)[1].detach().numpy()
    np.testing.assert_array_equal(found[:, 3], model(x)[1].detach().numpy()[:, 3])


def test_what_cannot_be_written_is_refused_by_name():
    model, batch = make("bert").double(), batch_for("bert", "right")
    head, problem = attsvm.capture(model, batch, layer=LAYER, head=HEAD)
    wanted = second_choices(head, problem)
    whole = attsvm.edit(head, problem, wanted, margin=0.1)
    edit = attsvm.edit(head, problem, wanted, of="Q", margin=0.1)
    plain = attsvm.edit(
        attsvm.TrainedHead(head.key_map, head.query_map, head.scale, True), problem, wanted, of="Q", margin=0.1
    )
    rope = make("llama")
    for call, error, message in [
        (lambda: whole.apply_to(model), ValueError, "an edit of W has no place in a layer"),
        (lambda: edit.apply_to(model, layer="encoder.layer.0.attention.self"), ValueError, "another layer, head or"),
        (lambda: edit.apply_to(model, head=3), ValueError, "does not hold the weights"),
        (lambda: edit.apply_to(model, layer="encoder.layer.0.intermediate"), ValueError, "is a BertIntermediate"),
        (lambda: edit.apply_to(model, layer="encoder.layers"), KeyError, "is not in the module"),
        (lambda: edit.apply_to(model.state_dict()), ValueError, "layer must name the linear layer"),
        (lambda: plain.apply_to(rope, layer="model.layers.1.self_attn"), ValueError, "rotates its queries and keys"),
        (lambda: plain.apply_to(make("qwen3"), layer="model.layers.1.self_attn"), ValueError, "QK-norm"),
        (lambda: plain.apply_to(make("bloom"), layer="transformer.h.1.self_attention"), ValueError, "interleaves"),
        (lambda: plain.apply_to(make("gpt2"), layer="transformer.h.1.attn.c_attn"), ValueError, "is a Conv1D"),
        (lambda: attsvm.capture(model, batch, layer=9, head=0), ValueError, "layer must be one of the 2 calls"),
        (lambda: attsvm.capture(model, batch, layer=0, head=4), ValueError, "head must be one of the 4 heads"),
        (lambda: attsvm.capture(model, batch, layer=-1, head=0), ValueError, "layer must be an integer >= 0"),
        (lambda: attsvm.capture(model, batch, layer=0, head=0, of="K"), ValueError, "of must be"),
        (lambda: attsvm.capture(model, "a text", layer=0, head=0), ValueError, "give tokenizer="),
        (lambda: attsvm.capture(3, batch, layer=0, head=0), ProbeError, "model must be a torch module"),
        (lambda: attsvm.capture(make("bloom"), batch_for("bloom", "right"), layer=0, head=0), ProbeError, "ALiBi"),
        (
            lambda: attsvm.capture(make("qwen3"), batch_for("qwen3", "right"), layer=0, head=0, of="Q"),
            ProbeError, "normalizes its queries",
        ),
        (lambda: problem.find("it", "cat"), ValueError, "the problem has no words"),
    ]:  # fmt: skip
        with pytest.raises(error, match=message):
            call()


class Words:
    """A tokenizer of whole words, with padding on a side."""

    pad_token = "[pad]"

    def __init__(self, side):
        self.side, self.known = side, ["[pad]", "the", "cat", "it", "Ġmat", "was", "##ly"]

    def __call__(self, texts, **_):
        ids = [[self.known.index(word) for word in text.split()] for text in texts]
        T = max(map(len, ids))
        pads = [[0] * (T - len(row)) for row in ids]
        ahead = self.side == "left"
        rows = [(p + r) if ahead else (r + p) for p, r in zip(pads, ids, strict=True)]
        mask = [
            ([0] * len(p) + [1] * len(r)) if ahead else ([1] * len(r) + [0] * len(p))
            for p, r in zip(pads, ids, strict=True)
        ]
        return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(mask)}

    def convert_ids_to_tokens(self, ids):
        return [self.known[k] for k in ids]


@pytest.mark.parametrize("side", ["left", "right"])
def test_words_name_queries_and_tokens(side):
    model = make("bert").double()
    texts = ["the cat was the Ġmat it was", "the it was", "Ġmat was it ##ly"]
    _, problem = attsvm.capture(model, texts, Words(side), layer=0, head=0)
    shift = 0 if side == "right" else 4  # where the second text begins
    assert problem.find("it", "cat") == ((0, 5), 1)
    assert problem.find("mat", "cat") == ((0, 4), 1)  # without the mark of a new word
    assert problem.find("IT", "the", sequence=1) == ((1, 1 + shift), shift)
    assert problem.find(0, "it", sequence=0) == ((0, 0), 5)
    wanted = problem.select(("it", "cat"), ("mat", "cat"))
    assert (wanted >= 0).sum() == 2 and wanted[0, 5] == wanted[0, 4] == 1
    padded = problem.allowed.sum(axis=-1)[1]  # padded queries see one token: nothing is asked of them
    np.testing.assert_array_equal(np.flatnonzero(padded > 1), np.arange(3) + shift)
    for call, message in [
        (lambda: problem.find("it", "dog"), "no sequence holds the query 'it' and the token 'dog'"),
        (lambda: problem.find("it", "was"), "is not one pair: sequence 0: 5 to 2"),
        (lambda: problem.find("it", "cat", sequence=7), "sequence must be one of the 3"),
        (lambda: problem.find("it", -1), "token must be a word or a position"),
        (lambda: problem.select(("cat", "it"), ("cat", "mat")), "cannot select both"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
    _, causal = attsvm.capture(make("gpt2"), ["the cat was it"], Words(side), layer=0, head=0)
    with pytest.raises(ValueError, match=r"may not see token 'it' \(position 3\)"):
        causal.find("cat", "it")


def test_a_turned_problem_names_words_too():
    model = make("llama").double()
    head, problem = attsvm.capture(model, ["the cat was it", "it was"], Words("right"), layer=1, head=0, of="Q")
    place, token = problem.find("it", "cat")
    assert (place, token) == ((3,), 1)
    edit = attsvm.edit(head, problem, problem.select(("it", "cat")), of="Q", margin=0.1)
    assert likeliest(problem, edit.W)[3] == 1
