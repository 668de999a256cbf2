"""LocAteR: a penalty that keeps the trace of W_QK at a target and its scale small.

    k1 (tr(W_QK) - target)^2 + k2 tr(W_QK^T W_QK),      W_QK = W_Q^T W_K.

The printed objective has the two strengths exchanged: k1 = 100 on the scale makes the attention uniform whatever k2
is, and the published curves are those of the roles above. Neither term needs the d x d matrix: the trace is the sum of
``W_Q * W_K``, the scale that of ``(W_Q W_Q^T) * (W_K W_K^T)``, r x r.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attsvm.user_input import require_choice, require_number


def _check(W_q: Tensor, W_k: Tensor) -> None:
    if W_q.ndim < 2 or W_q.shape != W_k.shape:
        raise ValueError(f"W_q and W_k must both have shape (..., r, d), got {tuple(W_q.shape)} and {tuple(W_k.shape)}")


def _check_strengths(k1: float, k2: float) -> None:
    for name, value in (("k1", k1), ("k2", k2)):
        require_number(name, value, "a number >= 0", 0.0, ends="[]")


def qk_trace(W_q: Tensor, W_k: Tensor) -> Tensor:
    """``tr(W_Q^T W_K)`` of each head, shape (...).

    Parameters
    ----------
    W_q, W_k : Tensor, shape (..., r, d)

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.localization import qk_trace
    >>> qk_trace(torch.eye(2, 5), 3 * torch.eye(2, 5)).item()
    6.0
    """
    _check(W_q, W_k)
    return (W_q * W_k).sum(dim=(-2, -1))


def qk_scale(W_q: Tensor, W_k: Tensor) -> Tensor:
    """``tr(W_QK^T W_QK)`` of each head, shape (...), through the smaller of the r x r and d x d products.

    Parameters
    ----------
    W_q, W_k : Tensor, shape (..., r, d)

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.localization.regularizer import qk_scale
    >>> qk_scale(torch.eye(2, 5), 3 * torch.eye(2, 5)).item()
    18.0
    """
    _check(W_q, W_k)
    if W_q.shape[-2] <= W_q.shape[-1]:
        return ((W_q @ W_q.mT) * (W_k @ W_k.mT)).sum(dim=(-2, -1))
    return (W_q.mT @ W_k).square().sum(dim=(-2, -1))


def locater(W_q: Tensor, W_k: Tensor, k1: float, k2: float, *, target: float = 1.0, roles: str = "corrected") -> Tensor:
    """The penalty, summed over heads; differentiable, of the weights' device and dtype.

    Parameters
    ----------
    W_q, W_k : Tensor, shape (..., r, d)
        Leading axes are heads.
    k1, k2 : float
        Strengths on the trace and on the scale (``roles="corrected"``), or the other way round (``"printed"``).
    target : float
        Of the trace. One as in the paper; localization of a random walk needs ``|tr(W_QK Sigma)| > 2 temperature``.
    roles : {"corrected", "printed"}

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.localization import locater
    >>> W_q = torch.eye(2, 5, requires_grad=True)
    >>> penalty = locater(W_q, torch.eye(2, 5), k1=100.0, k2=1.0)
    >>> penalty.item()  # 100 (2 - 1)^2 + 2
    102.0
    >>> penalty.backward()
    >>> W_q.grad[0, 0].item()  # 2 k1 (tr - 1) W_k + 2 k2 W_k W_k^T W_q
    202.0
    """
    _check_strengths(k1, k2)
    require_choice("roles", roles, "corrected", "printed")
    mean, scale = (k1, k2) if roles == "corrected" else (k2, k1)
    return (mean * (qk_trace(W_q, W_k) - target).square() + scale * qk_scale(W_q, W_k)).sum()


@dataclass(frozen=True, eq=False)
class QKWeights:
    """Query and key weights of one attention layer, views of its parameters.

    Attributes
    ----------
    name : str
        Of the layer in its module.
    W_q, W_k : Tensor, shape (H, r, d)
        One head per row of the first axis.
    """

    name: str
    W_q: Tensor
    W_k: Tensor


def _heads(weight: Tensor, heads: int, name: str) -> Tensor:
    if weight.shape[0] % heads:
        raise ValueError(f"{name}: {weight.shape[0]} rows of the query or key weight do not divide into {heads} heads")
    return weight.reshape(heads, weight.shape[0] // heads, weight.shape[1])


def _projection(module: nn.Module, names: Iterable[str]) -> Tensor | None:
    for name in names:
        found = getattr(module, name, None)
        if isinstance(found, nn.Linear):
            return found.weight
        if isinstance(found, Tensor) and found.ndim == 2:
            return found
    return None


_QUERY_NAMES = ("q_proj", "query", "W_q", "to_q", "q_lin", "q")
_KEY_NAMES = ("k_proj", "key", "W_k", "to_k", "k_lin", "k")
_HEAD_NAMES = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads")


def _layer_weights(name: str, module: nn.Module) -> QKWeights | None:
    if isinstance(module, nn.MultiheadAttention):
        if module.in_proj_weight is not None:
            q, k, _ = module.in_proj_weight.chunk(3)
        else:
            q, k = module.q_proj_weight, module.k_proj_weight
        heads = module.num_heads
    else:
        own_q, own_k = _projection(module, _QUERY_NAMES), _projection(module, _KEY_NAMES)
        if own_q is None or own_k is None:
            return None
        q, k = own_q, own_k
        counts = (getattr(module, n, None) for n in _HEAD_NAMES)
        heads = next((n for n in counts if isinstance(n, int)), 1)
    if q.shape[1] != k.shape[1]:
        raise ValueError(f"{name}: queries of width {q.shape[1]} and keys of width {k.shape[1]}: W_QK has no trace")
    W_q = _heads(q, heads, name)
    if k.shape[0] == q.shape[0]:
        return QKWeights(name, W_q, _heads(k, heads, name))
    # Grouped queries: fewer key heads, each shared by consecutive query heads.
    r = W_q.shape[1]
    groups = k.shape[0] // r
    if k.shape[0] % r or heads % groups:
        raise ValueError(f"{name}: {k.shape[0]} rows of the key weight do not fit {heads} query heads of size {r}")
    return QKWeights(name, W_q, _heads(k, groups, name).repeat_interleave(heads // groups, dim=0))


def qk_weights(module: nn.Module) -> Iterator[QKWeights]:
    """Query and key weights of every attention layer inside a module.

    Knows ``nn.MultiheadAttention`` and any layer with a query and a key projection (``q_proj`` and ``k_proj``,
    ``query`` and ``key``, ``W_q`` and ``W_k``, ...; ``nn.Linear`` or 2-D tensors), split by its ``num_heads``; key
    heads may be shared by several query heads.

    Parameters
    ----------
    module : nn.Module

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.localization import qk_weights
    >>> layer = torch.nn.TransformerEncoderLayer(d_model=12, nhead=3, batch_first=True)
    >>> [(found.name, tuple(found.W_q.shape)) for found in qk_weights(layer)]
    [('self_attn', (3, 4, 12))]
    """
    for name, child in module.named_modules():
        found = _layer_weights(name, child)
        if found is not None:
            yield found


def locater_penalty(
    module: nn.Module,
    k1: float,
    k2: float,
    *,
    target: float = 1.0,
    weights: Callable[[nn.Module], Iterable[QKWeights]] = qk_weights,
) -> Tensor:
    """Sum of `locater` over all heads of all attention layers of a module; add it to the loss.

    Parameters
    ----------
    module : nn.Module
    k1, k2, target : float
    weights : callable
        Finds the layers, `qk_weights` by default; pass your own for a layer that keeps its weights otherwise.

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.localization import locater_penalty
    >>> model = torch.nn.MultiheadAttention(8, 2)
    >>> (torch.zeros(()) + locater_penalty(model, k1=100.0, k2=1.0)).backward()
    >>> bool(model.in_proj_weight.grad[:16].abs().sum() > 0), bool(model.in_proj_weight.grad[16:].abs().sum() == 0)
    (True, True)
    """
    terms = [locater(layer.W_q, layer.W_k, k1, k2, target=target) for layer in weights(module)]
    if not terms:
        raise ValueError("module holds no attention layer with query and key weights; pass weights=")
    return torch.stack(terms).sum()
