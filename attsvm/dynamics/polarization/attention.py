"""The six attention functions of Table 1, normalized or not, in torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import elu

from attsvm._checks import require_choice

__all__ = ["ATTENTION_KINDS", "AttentionKind", "attention_weights"]


@dataclass(frozen=True)
class AttentionKind:
    """One row of Table 1.

    Attributes
    ----------
    name : str
        "softmax", "sigmoid", "elu", "elu_elu", "mlp" or "linear".
    normalized : bool
        Whether each row is divided by its sum (softmax always is).
    """

    name: str
    normalized: bool = True

    def __post_init__(self) -> None:
        require_choice("kind", self.name, *_NAMES)
        if self.name == "softmax" and not self.normalized:
            raise ValueError("softmax is normalized by definition")

    @property
    def positive(self) -> bool:
        """Whether weights cannot be negative."""
        return self.name not in ("mlp", "linear")

    def __str__(self) -> str:
        if self.name == "softmax":
            return "softmax"
        return f"{self.name}_{'norm' if self.normalized else 'unnorm'}"


_NAMES = ("softmax", "sigmoid", "elu", "elu_elu", "mlp", "linear")
ATTENTION_KINDS: tuple[AttentionKind, ...] = (
    AttentionKind("softmax"),
    *(AttentionKind(name, flag) for name in _NAMES[1:] for flag in (True, False)),
)
_EPSILON = 1e-9  # added to sums of positive weights, as published


def attention_weights(
    kind: AttentionKind,
    q: Tensor,
    k: Tensor,
    *,
    mask: Tensor | None = None,
    features: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Attention weights of Table 1.

    Parameters
    ----------
    kind : AttentionKind
    q, k : Tensor, shape (..., T, d_h)
    mask : Tensor of bool, shape (T, T), optional
        True where attention is allowed; hidden keys get weight 0 and leave the sums.
    features : callable, optional
        The map of "mlp", from (..., T, d_h) to (..., T, d_h).

    Returns
    -------
    Tensor, shape (..., T, T)

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.polarization import AttentionKind
    >>> from attsvm.dynamics.polarization.attention import attention_weights
    >>> q = torch.zeros(1, 4, 2)
    >>> attention_weights(AttentionKind("sigmoid", normalized=False), q, q)[0, 0].tolist()
    [0.5, 0.5, 0.5, 0.5]
    """
    if kind.name == "elu_elu":
        q, k = elu(q) + 1, elu(k) + 1
    elif kind.name == "mlp":
        if features is None:
            raise ValueError('kind "mlp" needs features=, the map applied to queries and keys')
        q, k = features(q), features(k)
    logits = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if kind.name == "softmax":
        if mask is not None:
            logits = logits.masked_fill(~mask, -torch.inf)
        return torch.softmax(logits, -1)
    if kind.name == "sigmoid":
        logits = torch.sigmoid(logits)
    elif kind.name == "elu":
        logits = elu(logits) + 1
    weights = logits if mask is None else logits.masked_fill(~mask, 0.0)
    if not kind.normalized:
        return weights
    total = weights.sum(-1, keepdim=True)
    # Signed weights may sum to nothing: Table 1 divides them by max(|sum|, 1).
    return weights / (total + _EPSILON if kind.positive else total.abs().clamp_min(1.0))
