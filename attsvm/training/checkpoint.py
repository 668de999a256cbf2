"""Saving and loading the state of a run, so that a stopped run goes on bit for bit."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attsvm.losses import get_loss
from attsvm.training.options import TrainOptions
from attsvm.training.parameters import Parameters
from attsvm.training.tensors import TensorProblem

if TYPE_CHECKING:
    from attsvm.training.step import TrainingState

__all__ = ["fingerprint", "load_checkpoint", "save_checkpoint"]


# A loss is told from another of the same name by its slopes here.
_PROBES = np.linspace(-8.0, 8.0, 65)


def fingerprint(options: TrainOptions, data: TensorProblem, parameters: Parameters) -> str:
    """Digest of the options, the data and the starting point: a checkpoint of another run is refused."""
    digest = hashlib.sha256(json.dumps(options.to_dict(), sort_keys=True, default=str).encode())
    digest.update(get_loss(options.loss).derivative(_PROBES).astype(np.float64).tobytes())
    for tensor in (data.X, data.Z, data.Y, data.allowed, *parameters.values()):
        digest.update(tensor.detach().to("cpu").contiguous().numpy().tobytes())
    if options.key_matrix is not None:
        digest.update(np.asarray(options.key_matrix, dtype=np.float64).tobytes())
    return digest.hexdigest()


def save_checkpoint(path: Path, print_: str, state: TrainingState, history: list[dict[str, Tensor]], step: int) -> None:
    """Write to a temporary file in the same folder, then rename: a kill leaves the old or the new file."""
    content = {
        "fingerprint": print_,
        "step": step,
        "parameters": state.parameters,
        "optimizer": state.optimizer,
        "code": state.code,
        "taken": state.taken,
        "history": history,
    }
    temporary = path.with_name(path.name + ".partial")
    with temporary.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def load_checkpoint(path: Path, print_: str, device: torch.device) -> dict[str, Any]:
    """Read a checkpoint of this very run (tensors only: no code is executed)."""
    content: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    if content.get("fingerprint") != print_:
        raise ValueError(
            f"checkpoint {path} belongs to another run (other data, start or settings); remove it to start over"
        )
    return content
