"""An edit in the weights of a layer: torch modules, state dicts and checkpoint files.

The edited block of rows is computed in float64 and rounded once to the dtype of the layer. A checkpoint is read and a
new file written beside it; the original is never touched.

An edit as adapter files in the format of PEFT: ``adapter_model.safetensors`` and ``adapter_config.json``.

A LoRA adapter adds ``B A`` to the weight of a linear layer (``lora_alpha = r``, so that the scaling is 1) and, where
the edit moves the bias, the bias of B. Rows of other heads of the layer are zero in B: they do not change.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from attsvm._lazy import needs
from attsvm.export import balanced_factors
from attsvm.records import atomic_write, write_json
from attsvm.solvers.arrays import FloatArray

if TYPE_CHECKING:
    import torch

    from attsvm.editing.smallest_edit import Edit

__all__ = [
    "apply_to",
    "edit_file",
    "write_adapter",
]


ModuleT = TypeVar("ModuleT", bound="torch.nn.Module")


# Weights that agree with those of the edited head to this share of the largest are the same up to their dtype.
_SAME = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}


def _parts(edit: Edit) -> tuple[FloatArray, FloatArray]:
    """The edited map before and after, shape (d_head, d + biased)."""
    if edit.of == "W" or edit.before is None:
        raise ValueError(
            "an edit of W has no place in a layer, whose keys and queries share d_head dimensions: edit of='K' or "
            "of='Q', or use edit.head, which is wider"
        )
    old = edit.before.key_map if edit.of == "K" else edit.before.query_map
    return old, old + edit.change


def _check_tensor(name: str, tensor: Any, shape: tuple[int | None, ...]) -> torch.Tensor:
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} must be a torch tensor, got {type(tensor).__name__}")
    expected = tuple("*" if s is None else s for s in shape)
    if tensor.ndim != len(shape) or any(s is not None and s != t for s, t in zip(shape, tensor.shape, strict=True)):
        raise ValueError(f"{name} must have shape {expected}, got {tuple(tensor.shape)}")
    if not tensor.is_floating_point():
        raise ValueError(f"{name} must hold floating-point numbers, got {tensor.dtype}")
    return tensor


def _changed(
    edit: Edit, weight: Any, bias: Any, layer: str, head: int, check: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """New weight and bias of the layer, with the rows of one head replaced."""
    import torch

    before, after = _parts(edit)
    assert edit.before is not None
    size, biased = len(before), edit.before.biased
    columns = before.shape[1] - biased
    tensor = _check_tensor(f"{layer}.weight", weight, (None, columns))
    heads, rest = divmod(tensor.shape[0], size)
    if rest or not isinstance(head, (int, np.integer)) or isinstance(head, bool) or not 0 <= head < heads:
        raise ValueError(f"head must be one of the {heads} blocks of {size} rows of {layer}.weight, got {head!r}")
    rows = slice(head * size, (head + 1) * size)
    column = None if bias is None else _check_tensor(f"{layer}.bias", bias, (tensor.shape[0],))
    shifted = biased and bool((after[:, -1] != before[:, -1]).any())
    if shifted and column is None:
        raise ValueError(f"{layer} has no bias, but the edit changes it")
    if check:
        _compare(f"{layer}.weight", tensor[rows], before[:, :columns])
        if biased and column is not None:
            _compare(f"{layer}.bias", column[rows], before[:, -1])
    new = tensor.detach().clone()
    new[rows] = torch.tensor(after[:, :columns], dtype=tensor.dtype, device=tensor.device)
    if not shifted or column is None:
        return new, None
    moved = column.detach().clone()
    moved[rows] = torch.tensor(after[:, -1], dtype=column.dtype, device=column.device)
    return new, moved


def _compare(name: str, stored: torch.Tensor, expected: FloatArray) -> None:
    there = stored.detach().cpu().double().numpy()
    tolerance = _SAME.get(str(stored.dtype).removeprefix("torch."), 1e-5)
    if np.abs(there - expected).max(initial=0.0) > tolerance * max(np.abs(expected).max(initial=0.0), 1e-300):
        raise ValueError(
            f"{name} does not hold the weights that the edit was computed for: another layer, head or model"
        )


@overload
def apply_to(
    edit: Edit, target: ModuleT, *, layer: str, head: int = ..., check: bool = ..., inplace: bool = ...
) -> ModuleT: ...


@overload
def apply_to(
    edit: Edit,
    target: Mapping[str, torch.Tensor],
    *,
    layer: str,
    head: int = ...,
    check: bool = ...,
    inplace: bool = ...,
) -> dict[str, torch.Tensor]: ...


def apply_to(
    edit: Edit,
    target: torch.nn.Module | Mapping[str, torch.Tensor],
    *,
    layer: str,
    head: int = 0,
    check: bool = True,
    inplace: bool = False,
) -> torch.nn.Module | dict[str, torch.Tensor]:
    """The edit in a module or a state dict (see `Edit.apply_to`)."""
    with needs("apply_to"):
        import torch

    if isinstance(target, torch.nn.Module):
        module = target if inplace else copy.deepcopy(target)
        try:
            linear: Any = module.get_submodule(layer)
        except AttributeError:
            known = _near(layer, dict(module.named_modules()))
            raise KeyError(f"layer {layer!r} is not in the module; it has {known}") from None
        new, moved = _changed(edit, linear.weight, getattr(linear, "bias", None), layer, head, check)
        with torch.no_grad():
            linear.weight.copy_(new)
            if moved is not None:
                linear.bias.copy_(moved)
        return module
    if not isinstance(target, Mapping):
        raise TypeError(f"target must be a torch module or a state dict, got {type(target).__name__}")
    name = f"{layer}.weight"
    if name not in target:
        raise KeyError(f"{name!r} is not in the state dict; it has {_near(name, target)}")
    new, moved = _changed(edit, target[name], target.get(f"{layer}.bias"), layer, head, check)
    state: Any = target if inplace else dict(target)
    state[name] = new
    if moved is not None:
        state[f"{layer}.bias"] = moved
    changed: dict[str, torch.Tensor] = state
    return changed


def _near(name: str, known: Mapping[str, Any]) -> str:
    """A few names that end alike, for an error."""
    from difflib import get_close_matches

    return ", ".join(get_close_matches(name, list(known), n=3, cutoff=0.0)) or "none"


def edit_file(
    edit: Edit,
    source: str | Path,
    destination: str | Path,
    *,
    layer: str,
    head: int = 0,
    check: bool = True,
    overwrite: bool = False,
) -> Path:
    """A copy of a checkpoint with the edit in it, written atomically; the original stays as it is.

    Parameters
    ----------
    edit : Edit
        Of "K" or "Q".
    source : str or Path
        ``.safetensors``, or a torch file that ``weights_only=True`` reads.
    destination : str or Path
        A new file with the same ending; an existing one is refused unless ``overwrite``, the source always.
    layer, head, check
        As for `Edit.apply_to`.

    Returns
    -------
    Path
        The new file.
    """
    origin, target = Path(source), Path(destination)
    if not origin.is_file():
        raise FileNotFoundError(f"source {origin} is not a file")
    if target.exists() and target.samefile(origin):
        raise ValueError(f"destination must be another file than the source {origin}, which is never overwritten")
    if target.exists() and not overwrite:
        raise FileExistsError(f"destination {target} exists; pass overwrite=True to replace it")
    if origin.suffix != target.suffix:
        raise ValueError(f"destination must end in {origin.suffix!r} as the source does, got {target.name!r}")
    if origin.suffix == ".safetensors":
        with needs("edit_file"):
            from safetensors import safe_open
            from safetensors.torch import load_file, save

        with safe_open(origin, framework="pt") as file:
            metadata = file.metadata()
        state = edit.apply_to(load_file(origin), layer=layer, head=head, check=check)
        content = save({name: tensor.contiguous() for name, tensor in state.items()}, metadata)
        with atomic_write(target) as out:
            out.write(content)
        return target
    with needs("edit_file"):
        import torch

    state = torch.load(origin, map_location="cpu", weights_only=True)
    if not isinstance(state, Mapping):
        raise ValueError(f"source {origin} must hold a state dict, got {type(state).__name__}")
    changed = edit.apply_to(state, layer=layer, head=head, check=check)
    with atomic_write(target) as out:
        torch.save(dict(changed), out)
    return target


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
    left, right = balanced_factors(change, least=1)
    r = len(right)
    B = np.zeros((heads * size, r), dtype=np.float32)
    B[head * size : (head + 1) * size] = left
    A = np.ascontiguousarray(right, dtype=np.float32)
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
