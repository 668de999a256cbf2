"""Query, key, value and output maps of the attention modules that can be read, by how they store them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


class ProbeError(ValueError):
    """A model, or a part of it, that cannot be probed; the message names it."""


@dataclass(frozen=True, eq=False)
class OutputMap:
    """Where the heads leave: the matrix after them, head h owning one block along ``axis``.

    ``module`` is the layer that is called with the heads side by side; None where torch does that in one function.
    """

    weight: Tensor
    axis: int
    heads: int
    module: nn.Module | None = None

    def block(self, head: int) -> Tensor:
        """The entries that belong to a head; a view."""
        width = self.weight.shape[self.axis] // self.heads
        return self.weight.data.narrow(self.axis, head * width, width)


@dataclass(frozen=True, eq=False)
class Projections:
    """Maps of one attention module.

    Attributes
    ----------
    W_q, W_k, W_v : Tensor, shapes (H r, d), (G r, d) and (G dv, d)
        Applied as ``W h``; W_v is None where the module has none.
    b_q, b_k, b_v : Tensor or None
    heads, groups : int
        H query heads share G key heads.
    scale : float
    q_norm, k_norm : Module or None
        Applied to queries and keys before any rotation.
    output : OutputMap or None
    """

    W_q: Tensor
    W_k: Tensor
    W_v: Tensor | None
    b_q: Tensor | None
    b_k: Tensor | None
    b_v: Tensor | None
    heads: int
    groups: int
    scale: float
    q_norm: nn.Module | None = None
    k_norm: nn.Module | None = None
    output: OutputMap | None = None

    @property
    def head_dim(self) -> int:
        """r, entries of a query."""
        return int(self.W_q.shape[0]) // self.heads


# Names of (query, key, value) maps that are linear layers of their own.
_SEPARATE = (("q_proj", "k_proj", "v_proj"), ("query", "key", "value"), ("q_lin", "k_lin", "v_lin"), ("q", "k", "v"))

_OUTPUT = ("o_proj", "out_proj", "out_lin", "c_proj", "o", "dense")

_HEAD_DIM = ("head_dim", "attention_head_size", "key_value_proj_dim")

_HEADS = ("num_heads", "n_heads", "num_attention_heads", "n_head")

_SCALE = ("scaling", "inv_norm_factor", "softmax_scale", "scale")

# What changes the logits in a way that no matrix and no offset expresses.
_UNREADABLE = {
    "attn_logit_softcapping": "capped logits",
    "sinks": "learned sinks",
    "clip_qkv": "clipped queries and keys",
}


def read_projections(module: nn.Module, parent: nn.Module | None = None) -> Projections | None:
    """The maps of an attention module, or None if it does not look like one.

    Parameters
    ----------
    module : nn.Module
    parent : nn.Module, optional
        The module around it; BERT keeps the output map there.

    Raises
    ------
    ProbeError
        If it is one but cannot be read.

    Examples
    --------
    >>> import torch
    >>> read_projections(torch.nn.MultiheadAttention(8, 2)).head_dim
    4
    >>> read_projections(torch.nn.Linear(2, 2)) is None
    True
    """
    if isinstance(module, nn.MultiheadAttention):
        return _multihead(module)
    children = dict(module.named_children())
    for names in _SEPARATE:
        if names[0] in children and names[1] in children:
            _refuse_unreadable(module)
            return _separate(module, names, parent)
    for name, read in (("c_attn", _gpt2), ("query_key_value", _interleaved), ("Wqkv", _stacked)):
        if name in children:
            _refuse_unreadable(module)
            return read(module)
    return None


def _refuse_unreadable(module: nn.Module) -> None:
    for name, what in _UNREADABLE.items():
        if getattr(module, name, None) is not None:
            raise ProbeError(f"{type(module).__name__} has {what} ({name}): its logits are no function x^T W z")


def _linear(module: nn.Module, name: str) -> tuple[Tensor, Tensor | None]:
    """Weight (out, in) and bias of a linear map, also of the transposed kind that GPT-2 has."""
    inner: Any = getattr(module, name)
    kind = type(inner).__name__
    if kind == "Conv1D":
        return inner.weight.detach().T, inner.bias.detach()
    if not isinstance(inner, nn.Linear) or not torch.is_floating_point(inner.weight):
        raise ProbeError(
            f"{type(module).__name__}.{name} is a {kind}, not a plain linear layer: merge adapters and "
            "dequantize before probing"
        )
    return inner.weight.detach(), None if inner.bias is None else inner.bias.detach()


def _first(module: nn.Module, names: tuple[str, ...]) -> Any:
    for name in names:
        value = getattr(module, name, None)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value
    return None


def _sizes(module: nn.Module, rows_q: int, rows_k: int) -> tuple[int, int]:
    """Query heads and key heads."""
    r, heads = _first(module, _HEAD_DIM), _first(module, _HEADS)
    if r is None and heads is None:
        raise ProbeError(f"{type(module).__name__} says neither its head_dim nor its number of heads")
    r = rows_q // heads if r is None else r
    if rows_q % r or rows_k % r or (rows_q // r) % (rows_k // r):
        raise ProbeError(
            f"{type(module).__name__}: {rows_q} query and {rows_k} key rows do not split into heads of {r}"
        )
    return rows_q // r, rows_k // r


def _scale(module: nn.Module, head_dim: int) -> float:
    found = _first(module, _SCALE)
    return head_dim**-0.5 if found is None else float(found)


def _output(module: nn.Module, heads: int, parent: nn.Module | None) -> OutputMap | None:
    for name in _OUTPUT:
        inner: Any = getattr(module, name, None)
        if isinstance(inner, nn.Linear):
            return OutputMap(inner.weight, 1, heads, inner)
        if type(inner).__name__ == "Conv1D":
            return OutputMap(inner.weight, 0, heads, inner)
    after = getattr(getattr(parent, "output", None), "dense", None)
    return OutputMap(after.weight, 1, heads, after) if isinstance(after, nn.Linear) else None


def _separate(module: nn.Module, names: tuple[str, str, str], parent: nn.Module | None) -> Projections:
    (W_q, b_q), (W_k, b_k) = _linear(module, names[0]), _linear(module, names[1])
    W_v, b_v = _linear(module, names[2]) if hasattr(module, names[2]) else (None, None)
    heads, groups = _sizes(module, len(W_q), len(W_k))
    norms: list[nn.Module | None] = [
        getattr(module, name, None) for name in (("q_norm", "k_norm") if hasattr(module, "q_norm") else ("", ""))
    ]
    return Projections(
        W_q, W_k, W_v, b_q, b_k, b_v, heads, groups, _scale(module, len(W_q) // heads), norms[0], norms[1],
        _output(module, heads, parent),
    )  # fmt: skip


def _split(module: nn.Module, W: Tensor, b: Tensor | None, heads: int) -> Projections:
    W_q, W_k, W_v = W.chunk(3)
    b_q, b_k, b_v = (None,) * 3 if b is None else b.chunk(3)
    scale = _scale(module, len(W_q) // heads)
    return Projections(W_q, W_k, W_v, b_q, b_k, b_v, heads, heads, scale, output=_output(module, heads, None))


def _gpt2(module: nn.Module) -> Projections:
    W, b = _linear(module, "c_attn")
    heads = int(_first(module, _HEADS))
    if hasattr(module, "q_attn"):  # cross-attention: keys and values in one map
        (W_q, b_q), (W_k, W_v), biases = (
            _linear(module, "q_attn"),
            W.chunk(2),
            (None, None) if b is None else b.chunk(2),
        )
        scale = _scale(module, len(W_q) // heads)
        output = _output(module, heads, None)
        return Projections(W_q, W_k, W_v, b_q, biases[0], biases[1], heads, heads, scale, output=output)
    return _split(module, W, b, heads)


def _interleaved(module: nn.Module) -> Projections:
    """Rows (head, query / key / value, r), as BLOOM keeps them."""
    W, b = _linear(module, "query_key_value")
    heads = int(_first(module, _HEADS))
    if len(W) % (3 * heads):
        raise ProbeError(f"{type(module).__name__}: query_key_value shares keys between heads, which is not read here")
    W = W.reshape(heads, 3, -1, W.shape[1]).transpose(0, 1).reshape(W.shape)
    b = None if b is None else b.reshape(heads, 3, -1).transpose(0, 1).reshape(-1)
    return _split(module, W, b, heads)


def _stacked(module: nn.Module) -> Projections:
    W, b = _linear(module, "Wqkv")
    return _split(module, W, b, int(_first(module, _HEADS)))


def _multihead(module: nn.MultiheadAttention) -> Projections:
    if module.bias_k is not None or module.add_zero_attn:
        raise ProbeError(
            "MultiheadAttention with add_bias_kv or add_zero_attn attends to tokens that are not in the input"
        )
    if module.in_proj_weight is not None:
        W_q, W_k, W_v = module.in_proj_weight.detach().chunk(3)
    else:
        W_q, W_k, W_v = (w.detach() for w in (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight))
    b_q, b_k, b_v = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.detach().chunk(3)
    heads, scale = module.num_heads, module.head_dim**-0.5
    output = OutputMap(module.out_proj.weight, 1, heads)
    return Projections(W_q, W_k, W_v, b_q, b_k, b_v, heads, heads, scale, output=output)
