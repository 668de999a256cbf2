"""Parameters of a batch of problems as named tensors, and arithmetic on all of them at once."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Parameters", "like", "scale_each", "squared_norms", "where"]

Parameters = dict[str, Tensor]


def squared_norms(tensors: Parameters) -> dict[str, Tensor]:
    """Squared Frobenius norm of each parameter, shape (B,)."""
    return {name: torch.linalg.vector_norm(t.flatten(1), dim=1).square_() for name, t in tensors.items()}


def like(value: Tensor, tensor: Tensor) -> Tensor:
    """One number per problem, shaped to multiply a parameter."""
    return value.reshape(-1, *([1] * (tensor.ndim - 1)))


def scale_each(tensors: Parameters, factor: Tensor) -> Parameters:
    """Multiply every parameter of problem b by ``factor[b]``."""
    return {name: t * like(factor, t) for name, t in tensors.items()}


def where(condition: Tensor, yes: Parameters, no: Parameters) -> Parameters:
    """Problem by problem choice between two sets of tensors."""
    return {name: torch.where(like(condition, t), t, no[name]) for name, t in yes.items()}
