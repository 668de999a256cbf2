"""Multi-head attention whose heads share one query: softmax, softmax-1 and Bayes-softmax, equations (3) and (4)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attsvm._checks import require_choice

__all__ = ["ACTIVATIONS", "MultiHeadAttention", "head_weights", "initial_heads"]

ACTIVATIONS = ("softmax", "softmax1", "bayes")


def check_activation(activation: str) -> None:
    """Raise unless the name is known."""
    require_choice("activation", activation, *ACTIVATIONS)


def head_weights(scores: Tensor, b: Tensor, v: Tensor, activation: str) -> Tensor:
    """Attention ``sigma(chi, b, v; h)_l`` of every head; the model averages it over heads.

    Parameters
    ----------
    scores : Tensor, shape (..., H, L)
        chi.
    b : Tensor, shape (..., H)
        Thresholds of softmax-1, biases of Bayes-softmax; softmax does not use them.
    v : Tensor, shape (...)
        Amplitude of softmax-1.
    activation : {"softmax", "softmax1", "bayes"}

    Returns
    -------
    Tensor, shape (..., H, L)
        Each head of softmax sums to one; the mean over heads of Bayes-softmax does; softmax-1 sums to at most v.

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.specialization import head_weights
    >>> zero = torch.zeros(2, 3, dtype=torch.float64)
    >>> head_weights(zero, zero[:, 0], torch.tensor(1.0), "softmax1")
    tensor([[0.2500, 0.2500, 0.2500],
            [0.2500, 0.2500, 0.2500]], dtype=torch.float64)
    """
    check_activation(activation)
    if activation == "softmax":
        return torch.softmax(scores, dim=-1)
    if activation == "softmax1":
        with_sink = torch.cat([scores, b.unsqueeze(-1).expand(*scores.shape[:-1], 1)], dim=-1)
        return v[..., None, None] * torch.softmax(with_sink, dim=-1)[..., :-1]
    shifted = scores + b.unsqueeze(-1)  # (4): one normalizer for all heads
    return scores.shape[-2] * torch.softmax(shifted.flatten(-2), dim=-1).reshape(scores.shape)


def initial_heads(H: int, D: int, eta: float = 1.0, *, generator: torch.Generator, **factory: Any) -> Tensor:
    """Random heads ``k_h ~ N(0, eta^2 I / D)``, shape (H, D).

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.specialization import initial_heads
    >>> initial_heads(2, 5, generator=torch.Generator().manual_seed(0)).shape
    torch.Size([2, 5])
    """
    if H < 1 or D < 1:
        raise ValueError(f"H and D must be at least 1, got H={H}, D={D}")
    options: dict[str, Any] = {"dtype": torch.float64, "device": generator.device} | factory
    heads: Tensor = eta / D**0.5 * torch.randn(H, D, generator=generator, **options)
    return heads


class MultiHeadAttention(nn.Module):
    """The estimator of equation (3): the mean over heads of attention-weighted tokens.

    Parameters
    ----------
    k : Tensor, shape (..., H, D)
        One key per head; leading axes hold independent models.
    activation : {"softmax", "softmax1", "bayes"}
    b : Tensor, shape (..., H), optional
        Zero by default.
    v : Tensor, shape (...), optional
        One by default.

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.specialization import MultiHeadAttention
    >>> layer = MultiHeadAttention(torch.zeros(4, 6, dtype=torch.float64), "bayes")
    >>> X = torch.ones(10, 3, 6, dtype=torch.float64)
    >>> torch.allclose(layer(X), X[:, 0])
    True
    """

    def __init__(self, k: Tensor, activation: str = "softmax", b: Tensor | None = None, v: Tensor | None = None):
        super().__init__()
        check_activation(activation)
        if k.ndim < 2 or k.shape[-2] == 0 or k.shape[-1] == 0:
            raise ValueError(f"k must have shape (..., H, D) with H, D >= 1, got {tuple(k.shape)}")
        if not torch.isfinite(k).all():
            raise ValueError("k must be finite")
        self.activation = activation
        self.k = nn.Parameter(k.detach().clone())
        self.b = nn.Parameter(k.new_zeros(k.shape[:-1]) if b is None else b.detach().clone())
        self.v = nn.Parameter(k.new_ones(k.shape[:-2]) if v is None else v.detach().clone())
        if self.b.shape != k.shape[:-1] or self.v.shape != k.shape[:-2]:
            raise ValueError(
                f"b must have shape {tuple(k.shape[:-1])} and v {tuple(k.shape[:-2])}, "
                f"got {tuple(self.b.shape)} and {tuple(self.v.shape)}"
            )

    def scores(self, X: Tensor) -> Tensor:
        """Scores ``chi_h = X k_h``, shape (..., N, H, L), of tokens of shape (..., N, L, D)."""
        if X.shape[-1] != self.k.shape[-1]:
            raise ValueError(f"tokens have dimension {X.shape[-1]}, the heads {self.k.shape[-1]}")
        return (X @ self.k.unsqueeze(-3).transpose(-1, -2)).transpose(-1, -2)

    def attention(self, X: Tensor) -> Tensor:
        """Weights of every head on every token, shape (..., N, H, L)."""
        return head_weights(self.scores(X), self.b.unsqueeze(-2), self.v.unsqueeze(-1), self.activation)

    def forward(self, X: Tensor) -> Tensor:
        """Estimate of the relevant token, shape (..., N, D)."""
        combined = self.attention(X).mean(dim=-2)
        return (combined.unsqueeze(-2) @ X).squeeze(-2)
