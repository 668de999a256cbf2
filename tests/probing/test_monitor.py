"""Watching training: what is written, when alarms ring, and inside the loops of others."""

import json
import sqlite3

import numpy as np
import pytest
import torch

import attsvm
from attsvm.probing.cheap_measures import Context, polarization_measures
from attsvm.probing.model_hooks import capture_layers
from attsvm.probing.monitor import AlarmRules


def small(seed=0):
    torch.manual_seed(seed)
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def test_scalars_are_those_of_the_probe():
    model, x = small(), torch.randn(3, 6, 16)
    layers = capture_layers(model, [x])
    with attsvm.Monitor(model, sequences=3) as monitor:
        model.eval()(x)
        found = monitor.step()
    for layer in layers:
        for head in layer:
            mine, theirs = found[layer.layer, head.head], polarization_measures(head, Context(layer))
            for name in ("entropy", "sparsity", "sink_share_first"):
                assert mine[name] == pytest.approx(np.nanmean(theirs[name]), abs=1e-5), name
            assert mine["max_logit"] == pytest.approx(head.logits.max(), abs=1e-4)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_files_and_rhythm(tmp_path):
    model = small()
    monitor = attsvm.Monitor(
        model, every=3, jsonl=tmp_path / "a.jsonl", sqlite=tmp_path / "a.sqlite", tensorboard=tmp_path / "board"
    )
    for _ in range(7):
        model(torch.randn(2, 5, 16))
        monitor.step()
    monitor.close()
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 3, 6] and len(lines[0]["heads"]) == 8
    rows = (
        sqlite3.connect(tmp_path / "a.sqlite").execute("SELECT COUNT(*), COUNT(DISTINCT step) FROM scalars").fetchone()
    )
    assert rows == (3 * 8 * 6, 3)
    assert any((tmp_path / "board").iterdir())


@pytest.mark.parametrize(
    ("factor", "kind"), [(80.0, "exploding logit"), (80.0, "saturation"), (80.0, "entropy collapse")]
)
def test_alarms_ring_once(factor, kind):
    model, rung = small(), []
    with attsvm.Monitor(model, every=1, on_alarm=rung.append, rules=AlarmRules(max_logit=50.0)) as monitor:
        x = torch.randn(2, 6, 16)
        model(x)
        monitor.step()
        assert not rung
        with torch.no_grad():
            model.layers[0].self_attn.in_proj_weight[:32] *= factor**0.5 * 3
        for _ in range(2):
            model(x)
            monitor.step()
    heads = [alarm for alarm in rung if alarm.kind == kind]
    assert heads and all(alarm.layer == 0 and alarm.step == 1 for alarm in heads)
    assert len({(alarm.layer, alarm.head) for alarm in heads}) == len(heads) and "layer 0" in str(heads[0])


def test_a_new_sink_is_told():
    rules = AlarmRules()
    told = list(rules.crossings(4, 1, 2, {"sink_share_first": 0.2}, {"sink_share_first": 0.7}))
    assert [alarm.kind for alarm in told] == ["new sink"]


def test_accumulation_checkpointing_and_bad_arguments():
    model = small()
    with attsvm.Monitor(model, every=1) as monitor:
        for _ in range(2):  # two passes in one step
            model(torch.randn(2, 5, 16))
        assert len(monitor.step()) == 8
        monitor.step()  # a step without any pass measures nothing
        assert len(monitor.history) == 1
    with pytest.raises(ValueError, match="every must be an integer >= 1, got 0"):
        attsvm.Monitor(model, every=0)
    with pytest.raises(ValueError, match="no attention that can be read"):
        attsvm.Monitor(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("name", ["gpt2", "llama", "bloom"])
def test_causal_models_under_fused_kernels(name):
    pytest.importorskip("transformers")
    from probing.tiny_models import make

    model = make(name).train()
    ids = torch.randint(5, 50, (2, 8))
    with attsvm.Monitor(model, sequences=2) as monitor:
        model(input_ids=ids, labels=ids).loss.backward()
        found = monitor.step()
    layers = capture_layers(model, [{"input_ids": ids}])
    if name != "gpt2":  # dropout in training changes what later layers see
        for layer in layers:
            for head in layer:
                entropy = np.nanmean(polarization_measures(head, Context(layer))["entropy"])
                assert found[layer.layer, head.head]["entropy"] == pytest.approx(entropy, abs=1e-4)
    assert set(found) == {(layer.layer, h) for layer in layers for h in range(4)}


@pytest.mark.filterwarnings("ignore")
def test_in_the_trainer_of_transformers(tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from probing.tiny_models import make
    from transformers import Trainer, TrainingArguments

    model = make("gpt2")
    data = [{"input_ids": torch.randint(5, 50, (8,)), "labels": torch.randint(5, 50, (8,))} for _ in range(8)]
    arguments = TrainingArguments(
        str(tmp_path), max_steps=4, per_device_train_batch_size=2, report_to=[], disable_tqdm=True, use_cpu=True,
        save_strategy="no", logging_strategy="no",
    )  # fmt: skip
    monitor = attsvm.Monitor(model, every=2)
    Trainer(model=model, args=arguments, train_dataset=data, callbacks=[monitor.trainer_callback()]).train()
    assert [step for step, _ in monitor.history] == [0, 2]


@pytest.mark.filterwarnings("ignore")
def test_in_lightning(tmp_path):
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.inner = small()

        def training_step(self, batch, index):
            return self.inner(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Module()
    monitor = attsvm.Monitor(module.inner, every=2)
    trainer = lightning.Trainer(
        max_steps=3, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu",
        enable_model_summary=False, default_root_dir=tmp_path, callbacks=[monitor.lightning_callback()],
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(torch.randn(8, 5, 16), batch_size=2))
    assert [step for step, _ in monitor.history] == [0, 2]
