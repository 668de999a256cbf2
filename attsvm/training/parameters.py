"""Parameterizations of the attention weights: W itself, factors (K, Q), or a prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Parameterization", "Parameters", "get_parameterization"]

Parameters = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Parameterization:
    """How parameters make W, and how a gradient in W is pulled back to them.

    Attributes
    ----------
    name : str
    compose : callable
        Parameters to W, shape (B, dx, dz).
    pull_back : callable
        ``(parameters, gradient in W)`` to gradients of the parameters.
    norm : str
        Norm whose SVM theory predicts for normalized gradient descent.
    """

    name: str
    compose: Callable[[Parameters], Tensor]
    pull_back: Callable[[Parameters, Tensor], Parameters]
    norm: str


def _factors(parameters: Parameters, G: Tensor) -> Parameters:
    # (20a) and (20b) are printed with the transposes exchanged; with W = K Q^T the chain rule gives these.
    return {"K": G @ parameters["Q"], "Q": G.transpose(1, 2) @ parameters["K"]}


def _prompt(key_matrix: Tensor | None) -> Parameterization:
    """One trained vector p, logits ``x^T M p``: W is the column ``M p`` and every query is 1."""

    def compose(parameters: Parameters) -> Tensor:
        p = parameters["p"].unsqueeze(-1)
        return p if key_matrix is None else key_matrix @ p

    def pull_back(parameters: Parameters, G: Tensor) -> Parameters:
        pulled = G if key_matrix is None else key_matrix.transpose(-1, -2) @ G
        return {"p": pulled.squeeze(-1)}

    return Parameterization("prompt", compose, pull_back, "frobenius")


def get_parameterization(name: str, key_matrix: Tensor | None = None) -> Parameterization:
    """Look a parameterization up: "W", "KQ" or "prompt".

    Parameters
    ----------
    name : str
    key_matrix : Tensor, shape (dx, r), optional
        For "prompt": the fixed key matrix M of ``softmax(X M p)``; the identity by default.

    Examples
    --------
    >>> import torch
    >>> from attsvm.training.parameters import get_parameterization
    >>> KQ = get_parameterization("KQ")
    >>> KQ.compose({"K": torch.ones(1, 2, 3), "Q": torch.ones(1, 2, 3)}).shape
    torch.Size([1, 2, 2])
    """
    if name == "W":
        return Parameterization("W", lambda p: p["W"], lambda p, G: {"W": G}, "frobenius")
    if name == "KQ":
        return Parameterization("KQ", lambda p: p["K"] @ p["Q"].transpose(1, 2), _factors, "nuclear")
    if name == "prompt":
        return _prompt(key_matrix)
    raise ValueError(f"parameterization must be 'W', 'KQ' or 'prompt', got {name!r}")


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
