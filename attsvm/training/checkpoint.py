"""Saving and loading the state of a run, so that a stopped run goes on bit for bit.

A file is one line that names the format, the SHA-256 of what follows, and a torch archive of tensors. A damaged file
shows by its digest before torch reads it; a whole one of another run shows by its fingerprint; and what is inside must
look like a state of this run.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attsvm.losses import get_loss
from attsvm.records import atomic_write, digest
from attsvm.training.options import TrainOptions
from attsvm.training.run_result import RunStatus, snapshot_names
from attsvm.training.tensors import Parameters, TensorProblem

if TYPE_CHECKING:
    from attsvm.training.loop import TrainingState

_MAGIC = b"attsvm checkpoint 3 "
_DIGEST_LENGTH = 64
# A loss is told from another of the same name by its values and slopes here.
_PROBES = np.linspace(-8.0, 8.0, 65)
# And a head by its values and slopes at so many mixtures of the tokens of every query.
_MIXTURES = 8


class CheckpointError(ValueError):
    """A checkpoint that this run cannot go on from; the message is one line and names the file."""


def fingerprint(
    options: TrainOptions, data: TensorProblem, parameters: Parameters, key_matrix: Tensor | None = None
) -> str:
    """Digest of the options, the data, the head, the loss, the key matrix and the starting point."""
    settings = json.dumps(options.to_dict(), sort_keys=True, default=str)
    loss = get_loss(options.loss)
    tensors = (data.X, data.Z, data.Y, data.allowed, *parameters.values(), *_head_values(data))
    given = () if key_matrix is None else (key_matrix,)
    return digest(settings, loss.value(_PROBES), loss.derivative(_PROBES), *tensors, *given)


def _head_values(data: TensorProblem) -> Iterable[Tensor]:
    """What a head says of mixtures of its tokens: a head is code, and code has no digest."""
    rng = np.random.default_rng(0)
    for _ in range(_MIXTURES):
        draw = data.X.new_tensor(rng.exponential(size=tuple(data.allowed.shape))) * data.allowed
        weights = draw / draw.sum(-1, keepdim=True)
        value, slopes = data.head(weights @ data.X)
        yield value
        yield slopes


def save_checkpoint(path: Path, print_: str, state: TrainingState, history: list[dict[str, Tensor]], step: int) -> None:
    """Write the whole file or nothing: a kill leaves the old or the new one."""
    content = {
        "fingerprint": print_,
        "step": step,
        "parameters": state.parameters,
        "optimizer": state.optimizer,
        "code": state.code,
        "taken": state.taken,
        "history": history,
    }
    buffer = io.BytesIO()
    torch.save(content, buffer)
    raw = buffer.getvalue()
    try:
        with atomic_write(path) as file:
            file.write(_MAGIC + digest(raw).encode() + b"\n" + raw)
    except OSError as error:
        raise CheckpointError(f"checkpoint {path} cannot be written: {error.strerror or error}") from error


def load_checkpoint(
    path: Path, print_: str, device: torch.device, like: TrainingState, steps: list[int]
) -> dict[str, Any]:
    """Read a checkpoint of this very run (tensors only: no code is executed).

    Parameters
    ----------
    path : Path
    print_ : str
        From `fingerprint`.
    device : torch.device
    like : TrainingState
        The start of the run, whose shapes the stored state must have.
    steps : list of int
        Steps at which the run takes snapshots.

    Raises
    ------
    CheckpointError
        Damaged, truncated, of another run, or not a state of this one.
    """
    content = _read(path, device)
    if content.get("fingerprint") != print_:
        raise CheckpointError(
            f"checkpoint {path} belongs to another run (other data, start or settings); remove it to start over"
        )
    reason = _why_not(content, like, steps)
    if reason is not None:
        raise CheckpointError(f"checkpoint {path} is not a state of this run: {reason}; remove it to start over")
    return content


def _read(path: Path, device: torch.device) -> dict[str, Any]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error.strerror or error}") from error
    start = len(_MAGIC) + _DIGEST_LENGTH + 1
    if not raw.startswith(_MAGIC) or len(raw) < start:
        raise CheckpointError(
            f"checkpoint {path} is not one of this version's checkpoints, or is truncated; remove it to start over"
        )
    if raw[len(_MAGIC) : start] != digest(raw[start:]).encode() + b"\n":
        raise CheckpointError(f"checkpoint {path} is damaged or truncated; remove it to start over")
    try:
        content = torch.load(io.BytesIO(raw[start:]), map_location=device, weights_only=True)
    except Exception as error:  # a whole file that torch cannot read, or that holds more than tensors
        raise CheckpointError(f"checkpoint {path} holds something else than a run's state") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"checkpoint {path} holds something else than a run's state")
    return content


def _why_not(content: dict[str, Any], like: TrainingState, steps: list[int]) -> str | None:
    """What in a stored state cannot come from this run, or None."""
    step, history, code, taken = (content.get(name) for name in ("step", "history", "code", "taken"))
    if not isinstance(history, list) or not 1 <= len(history) <= len(steps) or step != steps[len(history) - 1]:
        return f"step {step} does not go with its snapshots"
    stored = (
        ("parameters", like.parameters, content.get("parameters")),
        ("optimizer", like.optimizer, content.get("optimizer")),
        ("status", {"code": like.code, "taken": like.taken}, {"code": code, "taken": taken}),
    )
    for name, expected, given in stored:
        if reason := _differs(name, expected, given):
            return reason
    if int(code.min()) < -1 or int(code.max()) >= len(RunStatus) or int(taken.min()) < 0 or int(taken.max()) > step:  # type: ignore[union-attr]
        return "its status is not one of a run's"
    for snapshot in history:
        if reason := _differs("history", history[0], snapshot):
            return reason
    if set(history[0]) != set(snapshot_names("head.v" in like.parameters)) or len(history[0]["W"]) != len(like.code):
        return "its snapshots are not those of this run"
    return None


def _differs(name: str, expected: Any, given: Any) -> str | None:
    """Whether named tensors have other names, shapes or types than expected, or hold NaN."""
    if not isinstance(given, dict) or set(given) != set(expected):
        return f"its {name} has other entries"
    for key, tensor in given.items():
        if not isinstance(tensor, Tensor) or tensor.shape != expected[key].shape or tensor.dtype != expected[key].dtype:
            return f"{name} {key!r} has another shape or type"
        if bool(torch.isnan(tensor).any()):  # infinity may be: the logarithm of a gradient that is zero
            return f"{name} {key!r} holds NaN"
    return None
