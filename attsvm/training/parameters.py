"""Parameters of a batch of problems as named tensors, and arithmetic on all of them at once."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Parameters", "like", "of_block", "scale_each", "squared_norms", "where"]

Parameters = dict[str, Tensor]


def of_block(tensors: Parameters, prefix: str = "") -> Parameters:
    """Tensors of attention, or with the prefix "head." those of a trained head, by their names without it.

    Examples
    --------
    >>> import torch
    >>> from attsvm.training.parameters import of_block
    >>> tensors = {"W": torch.zeros(1), "head.v": torch.ones(1)}
    >>> list(of_block(tensors)), list(of_block(tensors, "head."))
    (['W'], ['v'])
    """
    if not prefix:
        return {name: t for name, t in tensors.items() if not name.startswith("head.")}
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


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
