"""An edit in the weights of a layer: torch modules, state dicts and checkpoint files.

The edited block of rows is computed in float64 and rounded once to the dtype of the layer. A checkpoint is read and a
new file written beside it; the original is never touched.

An edit as adapter files in the format of PEFT: ``adapter_model.safetensors`` and ``adapter_config.json``.

A LoRA adapter adds ``B A`` to the weight of a linear layer (``lora_alpha = r``, so that the scaling is 1) and, where
the edit moves the bias, the bias of B. Rows of other heads of the layer are zero in B: they do not change.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from attsvm._lazy import needs
from attsvm.export import balanced_factors
from attsvm.probing.captured_head import CapturedHead
from attsvm.records import atomic_write, write_json
from attsvm.solvers.arrays import FloatArray

if TYPE_CHECKING:
    import torch

    from attsvm.editing.smallest_edit import Edit
    from attsvm.probing.model_weights import Projections

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


def apply_to(
    edit: Edit,
    target: torch.nn.Module | Mapping[str, torch.Tensor],
    *,
    layer: str | None = None,
    head: int | None = None,
    check: bool = True,
    inplace: bool = False,
    shared: bool = False,
) -> torch.nn.Module | dict[str, torch.Tensor]:
    """The edit in a module or a state dict (see `Edit.apply_to`)."""
    with needs("apply_to"):
        import torch

    place = edit.before if isinstance(edit.before, CapturedHead) else None
    if place is not None:
        _check_place(edit, place, shared)
        head = place.number if head is None else head
    if isinstance(target, torch.nn.Module):
        layer = place.module if layer is None and place is not None else layer
        module = target if inplace else copy.deepcopy(target)
        _write(edit, _named(module, layer), 0 if head is None else head, check, shared)
        return module
    if not isinstance(target, Mapping):
        raise TypeError(f"target must be a torch module or a state dict, got {type(target).__name__}")
    if layer is None:
        raise ValueError("layer must name the linear layer of the keys or queries in a state dict")
    name = f"{layer}.weight"
    if name not in target:
        raise KeyError(f"{name!r} is not in the state dict; it has {_near(name, target)}")
    new, moved = _changed(edit, target[name], target.get(f"{layer}.bias"), layer, 0 if head is None else head, check)
    state: Any = target if inplace else dict(target)
    state[name] = new
    if moved is not None:
        state[f"{layer}.bias"] = moved
    changed: dict[str, torch.Tensor] = state
    return changed


def _check_place(edit: Edit, place: CapturedHead, shared: bool) -> None:
    """Refuse what no weights of the model can hold, or what other heads and layers would share."""
    if place.space == "head":
        raise ValueError(
            f"{place.module} rotates or normalizes its queries and keys (RoPE, QK-norm), and the edit is one of their "
            'products: capture(..., of="Q") gives the problem of the query map, whose edit can be written'
        )
    if place.space == "turned" and edit.of != "Q":
        raise ValueError(f'the problem is that of the query map of {place.module}: edit of="Q", not of={edit.of!r}')
    if place.calls > 1 and not shared:
        raise ValueError(
            f"{place.module} is called {place.calls} times with the same weights: an edit for layer {place.layer} "
            "changes all of these layers, and its certificate is about one; shared=True writes it nevertheless"
        )


def _named(model: torch.nn.Module, layer: str | None) -> tuple[str, torch.nn.Module]:
    """The module of a name; of no name, or of that of an attention module that was given itself, the model."""
    whole = type(model).__name__
    if layer is None or layer in ("", whole):
        return whole, model
    try:
        return layer, model.get_submodule(layer)
    except AttributeError:
        if _maps(model) is not None:  # the attention module alone, without the model around it
            return whole, model
        known = _near(layer, dict(model.named_modules()))
        raise KeyError(f"layer {layer!r} is not in the module; it has {known}") from None


def _maps(module: torch.nn.Module) -> Projections | None:
    """The maps of an attention module; None for any other."""
    from attsvm.probing.model_weights import read_projections  # imports torch

    return read_projections(module)


def _write(edit: Edit, place: tuple[str, torch.nn.Module], head: int, check: bool, shared: bool) -> None:
    """Put an edit into a linear layer, or into the maps of an attention module, whichever the name is of."""
    import torch

    name, module = place
    maps = _maps(module)
    weight: Any
    bias: Any
    if maps is not None:
        weight, bias, block = _block(edit, name, module, maps, head, shared)
    elif isinstance(module, torch.nn.Linear):
        weight, bias, block = module.weight, module.bias, head
    else:
        raise ValueError(
            f"{name} is a {type(module).__name__}: layer must name an attention module (nn.MultiheadAttention, GPT-2's "
            "attn, BERT's attention.self, ...) or the linear layer of its keys or queries"
        )
    new, moved = _changed(edit, weight, bias, name, block, check)
    with torch.no_grad():
        weight.copy_(new)
        if moved is not None:
            bias.copy_(moved)


def _block(
    edit: Edit, name: str, module: torch.nn.Module, maps: Projections, head: int, shared: bool
) -> tuple[torch.Tensor, torch.Tensor | None, int]:
    """Views of the parameters of an attention module that hold the edited map, and the block of rows of the head."""
    _parts(edit)  # an edit of W is refused first
    if maps.q_norm is not None:
        raise ValueError(f"{name} normalizes its queries and keys (QK-norm): its logits are not linear in their maps")
    turned = isinstance(edit.before, CapturedHead) and edit.before.space == "turned"
    if "position_embeddings" in inspect.signature(module.forward).parameters and not turned:
        raise ValueError(
            f'{name} rotates its queries and keys (RoPE): no one W stands for a head; capture(..., of="Q") gives the '
            "problem of its query map"
        )
    weight, bias, block = maps.W_q, maps.b_q, head
    if edit.of == "K":
        weight, bias, group = maps.W_k, maps.b_k, maps.heads // maps.groups
        block = head // group
        if group > 1 and not shared:
            others = f"{block * group} to {(block + 1) * group - 1}"
            raise ValueError(
                f"heads {others} of {name} share their keys (grouped queries): an edit of K changes all of them, and "
                'its certificate is about one; edit of="Q", or shared=True writes it nevertheless'
            )
    stored = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    if weight.untyped_storage().data_ptr() not in stored:
        raise ValueError(f"{name} interleaves the rows of queries and keys, which is read but not written")
    return weight, bias, block


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
