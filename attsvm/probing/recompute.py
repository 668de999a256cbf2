"""Queries, keys, logits and attention of a layer again, from what its module was called with; on any device."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attsvm.probing.projections import ProbeError, Projections

__all__ = ["Call", "Recomputed", "read_call", "recompute"]

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
    >>> from attsvm.probing.projections import read_projections
    >>> from attsvm.probing.recompute import read_call, recompute
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
