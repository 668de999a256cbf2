"""Digits read by one attention layer: the smallest transformer with a task."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attsvm._lazy import needs

__all__ = ["DigitReader", "load_digits"]


class DigitReader(nn.Module):
    """Digits of 8 x 8 pixels as 16 patches behind a token of their own, one attention layer, a linear answer."""

    def __init__(self, d: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.patches, self.answer = nn.Linear(4, d), nn.Linear(d, 10)
        self.places = nn.Parameter(torch.randn(17, d))
        self.attention = nn.MultiheadAttention(d, heads, batch_first=True)

    def forward(self, images: Tensor) -> Tensor:
        """Class logits of images (n, 8, 8) from what the first token collects."""
        cut = images.unfold(1, 2, 2).unfold(2, 2, 2).reshape(len(images), 16, 4)
        tokens = torch.cat([torch.zeros_like(self.patches(cut)[:, :1]), self.patches(cut)], dim=1) + self.places
        out: Tensor = self.answer(self.attention(tokens, tokens, tokens)[0][:, 0])
        return out


def load_digits(count: int) -> tuple[Tensor, Tensor]:
    """Images (n, 8, 8) in [0, 1] and labels of scikit-learn's digits."""
    with needs("this study, which reads the digits of scikit-learn,"):
        from sklearn.datasets import load_digits as read
    data = read()
    return torch.tensor(data.images[:count] / 16.0, dtype=torch.float32), torch.tensor(data.target[:count])
