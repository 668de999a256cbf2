"""Checkpoints: of another run, damaged, or altered, they are refused in one line that names the file."""

import hashlib
import io

import numpy as np
import pytest
import torch

import attsvm
from attsvm.training import checkpoint as module
from attsvm.training.checkpoint import CheckpointError


@pytest.fixture
def problem():
    return attsvm.random_problem(n=3, T=4, d=5, seed=0)


@pytest.fixture
def path(tmp_path, problem):
    file = tmp_path / "run.pt"
    attsvm.train(problem, steps=40, snapshots=8, checkpoint=file)
    return file


def resume(problem, path, **settings):
    return attsvm.train(problem, **({"steps": 40, "snapshots": 8} | settings), checkpoint=path, resume=True)


def rewrite(path, change):
    """Alter what a checkpoint holds and sign it again, as a program could."""
    start = len(module._MAGIC) + module._DIGEST_LENGTH + 1
    content = torch.load(io.BytesIO(path.read_bytes()[start:]), weights_only=True)
    content = change(content) or content
    buffer = io.BytesIO()
    torch.save(content, buffer)
    raw = buffer.getvalue()
    path.write_bytes(module._MAGIC + hashlib.sha256(raw).hexdigest().encode() + b"\n" + raw)


def test_a_checkpoint_of_another_head_is_refused(path, problem):
    heads = [
        attsvm.LinearHead(-np.asarray(problem.head.v)),
        attsvm.ConcaveHead(problem.head.v, lam=0.5),
        lambda x: x[..., 0],
    ]
    for head in heads:
        other = attsvm.AttentionProblem(problem.X, problem.Y, problem.Z, head)
        with pytest.raises(CheckpointError, match="belongs to another run"):
            resume(other, path)


def test_callable_heads_are_told_apart_by_what_they_say(tmp_path, problem):
    def with_factor(factor):
        return attsvm.AttentionProblem(problem.X, problem.Y, problem.Z, lambda x: factor * x[..., 0] ** 2)

    file = tmp_path / "run.pt"
    whole = attsvm.train(with_factor(1.0), steps=40, snapshots=8, checkpoint=file)
    np.testing.assert_array_equal(resume(with_factor(1.0), file).W, whole.W)
    with pytest.raises(CheckpointError, match="belongs to another run"):
        resume(with_factor(1.001), file)


def test_a_checkpoint_of_another_key_matrix_loss_or_precision_is_refused(tmp_path, problem):
    prompt = attsvm.AttentionProblem(problem.X, problem.Y, np.ones((3, 1)), problem.head)
    file = tmp_path / "run.pt"
    M = np.random.default_rng(0).standard_normal((5, 5))
    settings = {"parameterization": "prompt", "init": np.ones(5)}
    attsvm.train(prompt, steps=40, snapshots=8, checkpoint=file, key_matrix=M, **settings)
    others = ({"key_matrix": M.T}, {"key_matrix": None}, {"loss": "exponential"}, {"dtype": torch.float32})
    for other in others:
        with pytest.raises(CheckpointError, match="belongs to another run"):
            resume(prompt, file, **({"key_matrix": M} | settings | other))


def test_damaged_and_truncated_checkpoints_are_refused(path, problem):
    raw = path.read_bytes()
    rng = np.random.default_rng(0)
    for trial in range(120):
        changed = bytearray(raw)
        if trial % 3 == 0:
            changed = changed[: int(rng.integers(len(raw)))]
        elif trial % 3 == 1:
            place = int(rng.integers(len(raw)))
            changed[place] ^= 1 << int(rng.integers(8))
        else:
            changed += bytes(rng.integers(0, 256, size=int(rng.integers(1, 50)), dtype=np.uint8))
        path.write_bytes(changed)
        with pytest.raises(CheckpointError) as caught:
            resume(problem, path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def _set(name, value):
    return lambda content: content.__setitem__(name, value(content))


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["parameters"]["W"].fill_(float("nan")),
        lambda c: c["parameters"].__setitem__("W", torch.zeros(1, 5, 4, dtype=torch.float64)),
        lambda c: c["parameters"].__setitem__("W", c["parameters"]["W"].float()),
        lambda c: c["parameters"].__setitem__("more", torch.zeros(1)),
        lambda c: c["history"].append(c["history"][-1]),
        lambda c: c["history"].clear(),
        lambda c: c["history"][2].__setitem__("loss", torch.full((1,), float("nan"), dtype=torch.float64)),
        lambda c: c["history"][1].pop("norm"),
        _set("step", lambda c: 17),
        _set("step", lambda c: None),
        _set("code", lambda c: torch.full_like(c["code"], 99)),
        _set("taken", lambda c: torch.full_like(c["taken"], 41)),
        _set("optimizer", lambda c: {"momentum": torch.zeros(1)}),
        lambda c: [1, 2, 3],
    ],
)
def test_altered_states_are_refused(path, problem, change):
    rewrite(path, lambda content: changed if isinstance(changed := change(content), list) else None)
    with pytest.raises(CheckpointError) as caught:
        resume(problem, path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_folder_and_a_full_disk_name_the_file(tmp_path, problem, monkeypatch):
    with pytest.raises(CheckpointError, match="cannot be read"):
        resume(problem, tmp_path)
    with pytest.raises(CheckpointError, match=r"none/run\.pt cannot be written: No such file"):
        attsvm.train(problem, steps=5, checkpoint=tmp_path / "none" / "run.pt")
