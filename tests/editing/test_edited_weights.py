"""Edits in modules, state dicts, files and adapters."""

from __future__ import annotations

import json

import numpy as np
import pytest

import attsvm
from attsvm.editing import edit_file
from attsvm.trained_head import split_heads

torch = pytest.importorskip("torch")

D, HEADS = 8, 2


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (torch.nn.Linear(D, D) for _ in range(3))

    def forward(self, h):
        q, k, v = (f(h).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        logits = q @ k.transpose(-1, -2) / (D // HEADS) ** 0.5
        return (torch.softmax(logits, -1) @ v).transpose(1, 2).flatten(2), logits


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList([Attention(), Attention()])

    def forward(self, h):
        logits = []
        for layer in self.layers:
            out, logit = layer(h)
            logits.append(logit)
            h = h + out
        return h, logits


def _edit(of, model=None):
    """An edit of head 1 of layer 1 that lets two queries select their second choice."""
    model = model or Model()
    torch.manual_seed(1)
    h = torch.randn(3, 5, D)
    with torch.no_grad():
        out, _ = model.layers[0](h)
        inside = (h + out).double().numpy()
    layer = model.layers[1]
    weights = [
        t.detach().double().numpy() for t in (layer.query.weight, layer.key.weight, layer.query.bias, layer.key.bias)
    ]
    head = split_heads(*weights, heads=HEADS)[1]
    problem = head.problem(inside)
    order = np.argsort(-attsvm.attention.logits(problem, head.W), axis=-1)
    wanted = np.full((3, 5), -1)
    wanted[0, 1], wanted[2, 3] = order[0, 1, 1], order[2, 3, 1]
    return model, h, attsvm.edit(head, problem, wanted, of=of, keep=True), wanted, order


NAMES = {"K": "layers.1.key", "Q": "layers.1.query"}


@pytest.mark.parametrize("of", ["K", "Q"])
def test_the_edited_module_selects_what_was_asked(of):
    model, h, edit, wanted, order = _edit(of)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    changed = edit.apply_to(model, layer=NAMES[of], head=1)
    for name, tensor in model.state_dict().items():  # the original is as it was
        assert torch.equal(tensor, before[name])
    with torch.no_grad():
        logits = changed(h)[1][1][:, 1]
        other = changed(h)[1][1][:, 0] - model(h)[1][1][:, 0]
    chosen = logits.argmax(-1).numpy()
    expected = np.where(wanted >= 0, wanted, order[..., 0])
    np.testing.assert_array_equal(chosen, expected)
    assert other.abs().max() == 0  # the other head is untouched
    in_place = edit.apply_to(model, layer=NAMES[of], head=1, inplace=True)
    assert in_place is model and torch.equal(model.layers[1].key.weight, changed.layers[1].key.weight)


@pytest.mark.parametrize("of", ["K", "Q"])
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_a_model_edited_on_disk_gives_the_same_logits(of, suffix, tmp_path):
    from safetensors.torch import load_file, save_file

    model, h, edit, *_ = _edit(of)
    source, target = tmp_path / f"model{suffix}", tmp_path / f"edited{suffix}"
    state = model.state_dict()
    save_file(state, source, {"format": "pt"}) if suffix == ".safetensors" else torch.save(state, source)
    content = source.read_bytes()
    assert edit_file(edit, source, target, layer=NAMES[of], head=1) == target
    assert source.read_bytes() == content
    assert {p.name for p in tmp_path.iterdir()} == {source.name, target.name}
    read = load_file(target) if suffix == ".safetensors" else torch.load(target, weights_only=True)
    fresh = Model()
    fresh.load_state_dict(read)
    memory = edit.apply_to(model, layer=NAMES[of], head=1)
    with torch.no_grad():
        assert torch.equal(fresh(h)[0], memory(h)[0])
        assert not torch.equal(fresh(h)[0], model(h)[0])
    with pytest.raises(ValueError, match="never overwritten"):
        edit_file(edit, source, source, layer=NAMES[of], head=1, overwrite=True)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        edit_file(edit, source, target, layer=NAMES[of], head=1)
    assert edit_file(edit, source, target, layer=NAMES[of], head=1, overwrite=True) == target
    with pytest.raises(ValueError, match="must end in"):
        edit_file(edit, source, tmp_path / "x.bin", layer=NAMES[of], head=1)
    with pytest.raises(FileNotFoundError, match="is not a file"):
        edit_file(edit, tmp_path / "none.pt", tmp_path / "y.pt", layer=NAMES[of], head=1)


def test_a_failure_leaves_no_file(tmp_path):
    model, _, edit, *_ = _edit("K")
    torch.save(model.state_dict(), tmp_path / "a.pt")
    with pytest.raises(KeyError):
        edit_file(edit, tmp_path / "a.pt", tmp_path / "b.pt", layer="layers.7.key", head=1)
    assert [p.name for p in tmp_path.iterdir()] == ["a.pt"]


def test_one_clear_error_for_each_mistake():
    model, _, edit, *_ = _edit("K")
    state = model.state_dict()
    with pytest.raises(KeyError, match=r"'layers.1.keys.weight' is not in the state dict; it has layers.1.key.weight"):
        edit.apply_to(state, layer="layers.1.keys")
    with pytest.raises(KeyError, match=r"layer 'layers.1.keys' is not in the module"):
        edit.apply_to(model, layer="layers.1.keys")
    with pytest.raises(ValueError, match="does not hold the weights that the edit was computed for"):
        edit.apply_to(state, layer="layers.1.key", head=0)
    with pytest.raises(ValueError, match=r"layers.1.key.weight must have shape \('\*', 8\), got \(8, 7\)"):
        edit.apply_to({**state, "layers.1.key.weight": torch.zeros(8, 7)}, layer="layers.1.key", head=1)
    with pytest.raises(ValueError, match=r"must hold floating-point numbers, got torch.int64"):
        edit.apply_to(
            {**state, "layers.1.key.weight": torch.zeros(8, 8, dtype=torch.long)}, layer="layers.1.key", head=1
        )
    with pytest.raises(TypeError, match="must be a torch tensor, got ndarray"):
        edit.apply_to({**state, "layers.1.key.weight": np.zeros((8, 8))}, layer="layers.1.key", head=1)
    with pytest.raises(ValueError, match="head must be one of the 2 blocks of 4 rows"):
        edit.apply_to(state, layer="layers.1.key", head=2)
    with pytest.raises(TypeError, match="must be a torch module or a state dict, got list"):
        edit.apply_to([], layer="layers.1.key")
    whole = _edit("W")[2]
    with pytest.raises(ValueError, match="an edit of W has no place in a layer"):
        whole.apply_to(state, layer="layers.1.key", head=1)
    query = _edit("Q")[2]
    without = {k: v for k, v in state.items() if k != "layers.1.query.bias"}
    with pytest.raises(ValueError, match=r"layers.1.query has no bias, but the edit changes it"):
        query.apply_to(without, layer="layers.1.query", head=1)


@pytest.mark.parametrize("of", ["K", "Q"])
def test_peft_loads_the_adapter(of, tmp_path):
    peft = pytest.importorskip("peft")
    model, h, edit, *_ = _edit(of)
    folder = edit.write_adapter(tmp_path / "adapter", layer=NAMES[of], heads=HEADS, head=1)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA" and config["lora_alpha"] == config["r"]
    memory = edit.apply_to(model, layer=NAMES[of], head=1)
    loaded = peft.PeftModel.from_pretrained(Model(), str(folder))
    with torch.no_grad():
        torch.testing.assert_close(loaded(h)[0], memory(h)[0], atol=2e-6, rtol=1e-5)
        assert (loaded(h)[0] - model(h)[0]).abs().max() > 1e-3
        merged = loaded.merge_and_unload()
        torch.testing.assert_close(merged(h)[0], memory(h)[0], atol=2e-6, rtol=1e-5)
    with pytest.raises(FileExistsError, match="new folder"):
        edit.write_adapter(folder, layer=NAMES[of], heads=HEADS, head=1)
