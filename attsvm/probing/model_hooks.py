"""Queries, keys, logits and attention of a layer again, from what its module was called with; on any device.

Hidden states of every attention layer by hooks, and the check that what is recomputed is the model's own.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from attsvm.probing.head_data import LayerData
from attsvm.probing.model_weights import ProbeError, Projections, read_projections
from attsvm.trained_head import TrainedHead, split_heads

Rotation = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class Call:
    """What one call of an attention module worked on.

    Attributes
    ----------
    queries, tokens : Tensor, shapes (B, Tq, d) and (B, Tk, d)
        Hidden states.
    cross : bool
        Whether tokens come from elsewhere than queries.
    bias : Tensor or None
        All that is added to the logits (masks and offsets), broadcast to (B, H, Tq, Tk).
    rotation : callable or None
        Turns queries and keys (RoPE), each (B, heads, T, r).
    """

    queries: Tensor
    tokens: Tensor
    cross: bool
    bias: Tensor | None
    rotation: Rotation | None


@dataclass(frozen=True, eq=False)
class Recomputed:
    """A layer's heads on one batch.

    Attributes
    ----------
    q, k, v : Tensor, shapes (B, H, Tq, r), (B, H, Tk, r) and (B, H, Tk, dv)
        Shared keys are repeated; v is None where the module has no values.
    allowed : Tensor of bool, shape (B, Tq, Tk)
    offset : Tensor or None
        What is added to the logits of allowed tokens, broadcast to (B, H, Tq, Tk).
    logits, attention : Tensor, shape (B, H, Tq, Tk)
        Logits are -inf where masked.
    """

    q: Tensor
    k: Tensor
    v: Tensor | None
    allowed: Tensor
    offset: Tensor | None
    logits: Tensor
    attention: Tensor


def read_call(module: nn.Module, maps: Projections, given: Mapping[str, Any]) -> Call:
    """The inputs of an attention module by what they mean.

    Parameters
    ----------
    module : nn.Module
    maps : Projections
    given : mapping
        Arguments of its ``forward`` by name.
    """
    if isinstance(module, nn.MultiheadAttention):
        return _multihead_call(module, given)
    queries = given.get("hidden_states", given.get("x"))
    if not isinstance(queries, Tensor) or queries.ndim != 3:
        raise ProbeError(f"{type(module).__name__} was called without hidden_states of shape (batch, T, d)")
    other = given.get("key_value_states", given.get("encoder_hidden_states"))
    tokens = queries if other is None else other
    batch, Tq, Tk = len(queries), queries.shape[1], tokens.shape[1]
    parts = [_mask(module, given, other is not None), _position_bias(module, maps, given, (batch, Tq, Tk))]
    biases = [part for part in parts if part is not None]
    bias = None if not biases else biases[0] if len(biases) == 1 else biases[0] + biases[1]
    return Call(queries, tokens, other is not None, bias, _rotation(module, given))


def _as_bias(masked: Tensor, like: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(masked.shape, dtype=like, device=masked.device).masked_fill(masked, -torch.inf)


def _mask(module: nn.Module, given: Mapping[str, Any], cross: bool) -> Tensor | None:
    name = "encoder_attention_mask" if cross and "encoder_attention_mask" in given else "attention_mask"
    mask = given.get(name, given.get("mask"))
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.ndim != 4:
        raise ProbeError(
            f"{type(module).__name__}: a mask of shape {getattr(mask, 'shape', None)} is not read; expected "
            "(batch, 1, Tq, Tk), as eager attention has it"
        )
    if mask.dtype == torch.bool:  # MPT marks what is hidden, everybody else what is seen
        return _as_bias(mask if type(module).__name__.startswith("Mpt") else ~mask)
    return mask


def _position_bias(
    module: Any, maps: Projections, given: Mapping[str, Any], sizes: tuple[int, int, int]
) -> Tensor | None:
    batch, Tq, Tk = sizes
    alibi = given.get("alibi")
    if isinstance(alibi, Tensor):
        return alibi.reshape(batch, maps.heads, -1, Tk)
    bias = given.get("position_bias")
    if bias is None and getattr(module, "has_relative_attention_bias", False):
        made: Tensor = module.compute_bias(Tq, Tk)
        return made.detach()
    if bias is None:
        return None
    if not isinstance(bias, Tensor) or bias.ndim not in (3, 4):
        raise ProbeError(f"{type(module).__name__}: a position_bias of this kind is not read")
    return bias.detach() if bias.ndim == 4 else bias.detach()[None, :, :, -Tk:]


def _rotation(module: nn.Module, given: Mapping[str, Any]) -> Rotation | None:
    turned = given.get("position_embeddings")
    if turned is None:
        return None
    rotate = getattr(sys.modules[type(module).__module__], "apply_rotary_pos_emb", None)
    if rotate is None or len(turned) != 2:
        raise ProbeError(f"{type(module).__name__} turns its queries in a way that is not read")
    cos, sin = turned

    def rotation(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        turned_q, turned_k = rotate(q, k, cos, sin)
        return turned_q, turned_k

    return rotation


def _multihead_call(module: nn.MultiheadAttention, given: Mapping[str, Any]) -> Call:
    queries, tokens = given["query"], given["key"]
    if queries.ndim != 3:
        raise ProbeError("MultiheadAttention was called without a batch: give inputs of shape (batch, T, d)")
    same = queries is tokens
    if not module.batch_first:
        queries, tokens = queries.transpose(0, 1), tokens.transpose(0, 1)
    batch, Tq, Tk = len(queries), queries.shape[1], tokens.shape[1]
    parts = []
    mask, padding = given.get("attn_mask"), given.get("key_padding_mask")
    if mask is not None:
        mask = _as_bias(mask) if mask.dtype == torch.bool else mask
        parts.append(mask.reshape(1, 1, Tq, Tk) if mask.ndim == 2 else mask.reshape(batch, -1, Tq, Tk))
    if padding is not None:
        parts.append((_as_bias(padding) if padding.dtype == torch.bool else padding)[:, None, None, :])
    bias = None if not parts else parts[0] if len(parts) == 1 else parts[0] + parts[1]
    return Call(queries, tokens, not same, bias, None)


def _project(states: Tensor, W: Tensor, b: Tensor | None, heads: int, norm: nn.Module | None) -> Tensor:
    """(B, T, d) to (B, heads, T, r), with the norm over each head or over all of them at once."""
    flat = nn.functional.linear(states.to(W.dtype), W, b)
    apart = (*flat.shape[:-1], heads, -1)
    if norm is None:
        return flat.reshape(apart).transpose(1, 2)
    weight = getattr(norm, "weight", None)
    whole = weight is not None and weight.shape[-1] == flat.shape[-1] and heads > 1
    normed: Tensor = norm(flat).reshape(apart) if whole else norm(flat.reshape(apart))
    return normed.transpose(1, 2)


def recompute(maps: Projections, call: Call) -> Recomputed:
    """Queries, keys, logits and attention of all heads of a layer.

    Examples
    --------
    >>> import torch
    >>> from attsvm.probing.model_weights import read_projections
    >>> module = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    >>> x = torch.randn(3, 5, 8)
    >>> maps = read_projections(module)
    >>> again = recompute(maps, read_call(module, maps, {"query": x, "key": x}))
    >>> torch.allclose(again.attention, module(x, x, x, average_attn_weights=False)[1], atol=1e-6)
    True
    """
    q = _project(call.queries, maps.W_q, maps.b_q, maps.heads, maps.q_norm)
    k = _project(call.tokens, maps.W_k, maps.b_k, maps.groups, maps.k_norm)
    if call.rotation is not None:
        q, k = call.rotation(q, k)
    v = None if maps.W_v is None else _project(call.tokens, maps.W_v, maps.b_v, maps.groups, None)
    if maps.groups != maps.heads:
        k = k.repeat_interleave(maps.heads // maps.groups, dim=1)
        v = None if v is None else v.repeat_interleave(maps.heads // maps.groups, dim=1)
    logits = maps.scale * (q @ k.transpose(-1, -2))
    full = (len(q), q.shape[2], k.shape[2])
    if call.bias is None:
        allowed = torch.ones(full, dtype=torch.bool, device=q.device)
        return Recomputed(q, k, v, allowed, None, logits, logits.softmax(-1))
    hidden = call.bias <= torch.finfo(call.bias.dtype).min / 2
    per_head = hidden.expand(len(q), -1, *full[1:])
    if per_head.shape[1] > 1 and not _same_heads(per_head):
        raise ProbeError("heads with masks of their own are not read: give every head the same mask")
    allowed = per_head.any(dim=1).logical_not()
    offset = call.bias.masked_fill(hidden, 0.0)
    logits = (logits + offset).masked_fill(hidden, -torch.inf)
    return Recomputed(q, k, v, allowed, offset if _any(offset) else None, logits, logits.softmax(-1))


def _same_heads(masked: Tensor) -> bool:
    return bool((masked == masked[:, :1]).all())


def _any(offset: Tensor) -> bool:
    # A tensor without data (shapes alone) cannot say; then the offset is kept.
    return True if type(offset).__name__ == "FakeTensor" or offset.is_meta else bool((offset != 0).any())


TOLERANCE = 1e-5

Batch = Any


def attention_modules(model: nn.Module) -> dict[str, tuple[nn.Module, Projections]]:
    """Attention modules of a model by name, with their maps.

    Raises
    ------
    ProbeError
        If there is none that can be read.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> list(attention_modules(torch.nn.TransformerEncoder(layer, 2)))
    ['layers.0.self_attn', 'layers.1.self_attn']
    """
    if not isinstance(model, nn.Module):
        raise ProbeError(f"model must be a torch module, got {type(model).__name__}")
    found: dict[str, tuple[nn.Module, Projections]] = {}
    for name, module in model.named_modules():
        parent = model.get_submodule(name.rpartition(".")[0]) if name else None
        maps = read_projections(module, parent)
        if maps is not None:
            found[name or type(module).__name__] = (module, maps)
    if not found:
        raise ProbeError(
            f"{type(model).__name__} has no attention that can be read: expected linear maps named q_proj and k_proj, "
            "query and key, q_lin and k_lin, q and k, c_attn, query_key_value or Wqkv, or nn.MultiheadAttention"
        )
    return found


@contextmanager
def eager(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and attention that hands out its weights; both as before afterwards."""
    was_training = {module for module in model.modules() if module.training}
    change = getattr(model, "set_attn_implementation", None)
    config = getattr(model, "config", None)
    before = getattr(config, "_attn_implementation", None)
    fast = torch.backends.mha.get_fastpath_enabled()
    model.eval()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        if callable(change) and before not in (None, "eager"):
            change("eager")
        yield
    finally:
        if callable(change) and before not in (None, "eager"):
            change(before)
        torch.backends.mha.set_fastpath_enabled(fast)
        for module in was_training:
            module.training = True


def run_model(model: nn.Module, batch: Batch) -> object:
    """Call a model on one batch: a mapping of arguments, a tuple of them, or one tensor."""
    if isinstance(batch, Mapping) or hasattr(batch, "keys"):
        arguments = {str(name): batch[name] for name in batch.keys()}  # noqa: SIM118 - BatchEncoding is no Mapping
        if "use_cache" not in arguments and "use_cache" in inspect.signature(model.forward).parameters:
            arguments["use_cache"] = False
        return model(**arguments)
    if isinstance(model, nn.MultiheadAttention) and isinstance(batch, Tensor):
        return model(batch, batch, batch)
    return model(*batch) if isinstance(batch, tuple) else model(batch)


@dataclass
class _Recorder:
    """What hooks write down while the model runs."""

    tolerance: float
    turns: bool = False
    calls: list[tuple[str, LayerData]] = field(default_factory=list)
    names: Mapping[nn.Module, str] = field(default_factory=dict)
    maps: Mapping[nn.Module, Projections] = field(default_factory=dict)
    under_way: dict[nn.Module, dict[str, Any]] = field(default_factory=dict)

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bound = inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments
        given = {**bound, **bound.pop("kwargs", {})}
        self.under_way[module] = given
        if isinstance(module, nn.MultiheadAttention):  # ask for the weights of every head
            return (), {**given, "need_weights": True, "average_attn_weights": False}
        return None

    def after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        given, maps, name = self.under_way.pop(module), self.maps[module], self.names[module]
        call = read_call(module, maps, given)
        again = recompute(maps, call)
        valid = _valid_queries(call.cross, again, [layer for _, layer in self.calls])
        error = _compare(name, again, _weights_of(name, output), valid, self.tolerance)
        turned = call.rotation is not None or maps.q_norm is not None
        layer = LayerData(
            layer=len(self.calls), module=name, attends="cross" if call.cross else "self",
            space="head" if turned else "tokens", q=_numpy(again.q), k=_numpy(again.k),
            v=None if again.v is None else _numpy(again.v), scale=maps.scale, allowed=_numpy(again.allowed),
            valid=_numpy(valid), offset=None if again.offset is None else _offset(again),
            tokens=_numpy(call.tokens), queries=_numpy(call.queries), weights=None, error=error,
            turns=_turns(call, again) if self.turns else None,
        )  # fmt: skip
        self.calls.append((name, layer))


def _turns(call: Call, again: Recomputed) -> npt.NDArray[Any] | None:
    """Matrices R with rotated queries ``R q``, one per position, shape (B, T, r, r)."""
    if call.rotation is None:
        return None
    batch, r = len(again.q), again.q.shape[-1]
    unit = torch.eye(r, dtype=again.q.dtype, device=again.q.device)[None, :, None]  # one "head" per direction
    columns, _ = call.rotation(unit.expand(batch, -1, again.q.shape[2], -1), again.k)
    return _numpy(columns.permute(0, 2, 3, 1))


def _numpy(tensor: Tensor) -> npt.NDArray[Any]:
    tensor = tensor.detach().to("cpu")
    if tensor.is_floating_point() and tensor.dtype not in (torch.float32, torch.float64):
        tensor = tensor.float()  # NumPy has no bfloat16
    array: npt.NDArray[Any] = tensor.numpy()
    return array


def _offset(again: Recomputed) -> npt.NDArray[Any]:
    assert again.offset is not None
    return _numpy(again.offset.expand(-1, again.q.shape[1], -1, -1))


def _weights_of(name: str, output: Any) -> Tensor:
    """The attention weights among what a module returns: the last tensor with four axes."""
    parts = output if isinstance(output, (tuple, list)) else [output]
    found = [part for part in parts if isinstance(part, Tensor) and part.ndim == 4]
    if not found:
        raise ProbeError(
            f"{name} returns no attention weights to compare with; load the model with attn_implementation='eager'"
        )
    return found[-1]


def _valid_queries(cross: bool, again: Recomputed, before: Sequence[LayerData]) -> Tensor:
    """Queries that are no padding: in self-attention a padded token is one that nobody may see."""
    if not cross:
        return again.allowed.any(dim=1)
    sizes = tuple(again.allowed.shape[:2])
    for layer in reversed(before):  # the self-attention of the same decoder knows
        if layer.attends == "self" and layer.valid.shape == sizes:
            return torch.as_tensor(layer.valid, device=again.q.device)
    return torch.ones(sizes, dtype=torch.bool, device=again.q.device)


def _compare(name: str, again: Recomputed, model: Tensor, valid: Tensor, tolerance: float) -> float:
    """Largest difference between recomputed and the model's own attention, refused above the tolerance."""
    if model.shape != again.attention.shape:
        raise ProbeError(
            f"{name} attends over {tuple(model.shape)} where its inputs give {tuple(again.attention.shape)} (batch, "
            "heads, queries, keys): cached keys or windows are not read"
        )
    keep = (valid & again.allowed.any(-1))[:, None, :, None]
    difference = torch.where(keep, again.attention.double() - model.double(), 0.0).abs()
    error = float(difference.max())
    coarse = model.dtype not in (torch.float32, torch.float64)
    if not error <= (max(tolerance, 2 * torch.finfo(model.dtype).eps) if coarse else tolerance):
        hint = f"; it computes in {model.dtype}, call .float()" if coarse else ""
        raise ProbeError(
            f"{name}: recomputed attention differs from the model's own by {error:.1e}, more than {tolerance:.0e}{hint}"
            ". It is computed in a way that this version does not read"
        )
    return error


def capture_layers(
    model: nn.Module,
    batches: Sequence[Batch],
    *,
    tolerance: float = TOLERANCE,
    progress: Callable[[int, int], object] | None = None,
    turns: bool = False,
) -> list[LayerData]:
    """Run a model and return its attention layers, in the order in which they are called.

    Parameters
    ----------
    model : nn.Module
        Its mode and its attention implementation are as before afterwards.
    batches : sequence
        What the model is called with, one after the other; see `run_model`.
    tolerance : float
        Largest difference allowed between recomputed attention and the model's own; two units in the last place where
        the model computes in half precision.
    progress : callable, optional
        Called with the batches done and their number.
    turns : bool
        Keep the rotations of RoPE.

    Raises
    ------
    ProbeError
        For what cannot be read, and where recomputed attention is not the model's.

    Examples
    --------
    >>> import torch
    >>> layers = capture_layers(torch.nn.MultiheadAttention(8, 2, batch_first=True), [torch.randn(3, 5, 8)])
    >>> layers[0].q.shape, layers[0].error < 1e-6
    ((3, 2, 5, 4), True)
    """
    if not batches:
        raise ValueError("inputs must hold at least one batch")
    found = attention_modules(model)
    parts: list[list[tuple[str, LayerData]]] = []
    with torch.no_grad(), eager(model):
        for done, batch in enumerate(batches):
            recorder = _Recorder(
                tolerance, turns, names={module: name for name, (module, _) in found.items()},
                maps={module: maps for module, maps in found.values()},
            )  # fmt: skip
            with ExitStack() as stack:
                for module, _ in found.values():
                    hook = module.register_forward_pre_hook(recorder.before, with_kwargs=True)
                    stack.callback(hook.remove)
                    stack.callback(module.register_forward_hook(recorder.after, with_kwargs=True).remove)
                run_model(model, batch)
            parts.append(recorder.calls)
            if progress is not None:
                progress(done + 1, len(batches))
    if not parts[0]:
        raise ProbeError(f"{type(model).__name__} called none of its attention modules on these inputs")
    if len({tuple(name for name, _ in calls) for calls in parts}) > 1:
        raise ProbeError("the batches went through different attention modules")
    return [_joined([calls[k][1] for calls in parts], found[parts[0][k][0]][1]) for k in range(len(parts[0]))]


def _joined(layers: list[LayerData], maps: Projections) -> LayerData:
    """One layer from its batches, padded to the longest, with the weights of its heads."""
    first, weights = layers[0], _weights(maps)
    error = max(layer.error for layer in layers)
    if len(layers) == 1:
        return replace(first, weights=weights, error=error)
    padded: dict[str, Any] = {
        name: _pad([getattr(layer, name) for layer in layers])
        for name in ("q", "k", "allowed", "valid", "tokens", "queries")
    }
    v = None if first.v is None else _pad([layer.v for layer in layers if layer.v is not None])
    turns = None if first.turns is None else _pad([layer.turns for layer in layers if layer.turns is not None])
    return replace(first, **padded, v=v, offset=_offsets(layers), weights=weights, error=error, turns=turns)


def _weights(maps: Projections) -> tuple[TrainedHead, ...] | None:
    """The heads of a layer; None under QK-norm, where no matrix stands for one."""
    if maps.q_norm is not None:
        return None
    arrays = [None if t is None else _numpy(t.double()) for t in (maps.W_q, maps.W_k, maps.b_q, maps.b_k)]
    W_q, W_k, b_q, b_k = arrays
    assert W_q is not None and W_k is not None
    return tuple(split_heads(W_q, W_k, b_q, b_k, heads=maps.heads, kv_heads=maps.groups, scale=maps.scale))


def _offsets(layers: list[LayerData]) -> npt.NDArray[Any] | None:
    """Offsets of all batches, 0 where one has none; None where none has any."""
    if all(layer.offset is None for layer in layers):
        return None
    none = np.zeros((1, 1, 1, 1), dtype=np.float32)
    return _pad(
        [
            np.broadcast_to(
                none if layer.offset is None else layer.offset, (len(layer.q), layer.heads, *layer.allowed.shape[1:])
            )
            for layer in layers
        ]
    )


def _pad(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Along the first axis, shorter arrays padded with zeros (False) behind."""
    shape = tuple(max(array.shape[axis] for array in arrays) for axis in range(1, arrays[0].ndim))
    out = np.zeros((sum(len(array) for array in arrays), *shape), dtype=arrays[0].dtype)
    start = 0
    for array in arrays:
        out[(slice(start, start + len(array)), *(slice(size) for size in array.shape[1:]))] = array
        start += len(array)
    return out
