"""An edit as adapter files in the format of PEFT: ``adapter_model.safetensors`` and ``adapter_config.json``.

A LoRA adapter adds ``B A`` to the weight of a linear layer (``lora_alpha = r``, so that the scaling is 1) and, where
the edit moves the bias, the bias of B. Rows of other heads of the layer are zero in B: they do not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm._lazy import needs
from attsvm.records import atomic_write, write_json

if TYPE_CHECKING:
    from attsvm.editing.smallest import Edit

__all__ = ["write_adapter"]


def write_adapter(
    edit: Edit,
    folder: str | Path,
    *,
    layer: str,
    heads: int,
    head: int = 0,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Write the edit as adapter files that ``peft.PeftModel.from_pretrained(model, folder)`` loads.

    Parameters
    ----------
    edit : Edit
        Of "K" or "Q".
    folder : str or Path
        Made if needed; existing adapter files are refused.
    layer : str
        Name of the linear layer in the base model.
    heads, head : int
        Blocks of d_head rows of that layer, and which of them is edited.
    config : dict, optional
        Entries of ``adapter_config.json`` instead of ours (``base_model_name_or_path``, ``task_type``, ...).

    Returns
    -------
    Path
        The folder.
    """
    with needs("save_adapter"):
        from safetensors.numpy import save

    if edit.of == "W" or edit.before is None:
        raise ValueError("an adapter changes one layer: edit of='K' or of='Q', not of='W'")
    if not 0 <= head < heads:
        raise ValueError(f"head must be in 0..{heads - 1}, got {head}")
    out = Path(folder)
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        if (out / name).exists():
            raise FileExistsError(f"{out / name} exists; write the adapter to a new folder")
    biased, size = edit.before.biased, edit.before.d_head
    # The bias is not behind A: factor what acts on the hidden states alone.
    change = edit.change[:, :-1] if biased else edit.change
    U, s, Vt = np.linalg.svd(change, full_matrices=False)
    r = max(1, int(np.count_nonzero(s > 1e-8 * max(float(s[0]), 1e-300))))
    root = np.sqrt(s[:r])
    B = np.zeros((heads * size, r), dtype=np.float32)
    B[head * size : (head + 1) * size] = U[:, :r] * root
    A = np.ascontiguousarray(Vt[:r] * root[:, None], dtype=np.float32)
    tensors = {f"base_model.model.{layer}.lora_A.weight": A, f"base_model.model.{layer}.lora_B.weight": B}
    moved = biased and bool(edit.change[:, -1].any())
    if moved:
        bias = np.zeros(heads * size, dtype=np.float32)
        bias[head * size : (head + 1) * size] = edit.change[:, -1]
        tensors[f"base_model.model.{layer}.lora_B.bias"] = bias
    settings = {
        "peft_type": "LORA", "r": r, "lora_alpha": r, "lora_dropout": 0.0, "target_modules": [layer], "bias": "none",
        "lora_bias": moved, "fan_in_fan_out": False, "inference_mode": True, "task_type": None,
        "base_model_name_or_path": None, "init_lora_weights": True,
    }  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    with atomic_write(out / "adapter_model.safetensors") as file:
        file.write(save(tensors))
    write_json(out / "adapter_config.json", {**settings, **(config or {})})
    return out
