"""A small pre-norm transformer with any attention of Table 1, for the induction and classification tasks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attsvm.dynamics.polarization.attention import AttentionKind, attention_weights

__all__ = ["SmallTransformer", "TransformerSpec"]

SOFTMAX = AttentionKind("softmax")
POSITIONS = ("add", "concat", "none")


@dataclass(frozen=True)
class TransformerSpec:
    """The shape of a model.

    Attributes
    ----------
    vocabulary, length, outputs : int
        Number of input tokens, longest input, number of output classes per position.
    kind : AttentionKind
    layers, heads, dim, feedforward : int
    causal, layer_norm, mlp : bool
    positions : {"add", "concat", "none"}
        "concat" gives half of the dimensions to the position.
    embedding_scale : float
        Standard deviation of the initial embeddings; 1 is torch's default. It decides what attention can tell apart at
        the start, and with it whether it polarizes before the loss is fitted.
    """

    vocabulary: int
    length: int
    outputs: int
    kind: AttentionKind = SOFTMAX
    layers: int = 2
    heads: int = 1
    dim: int = 64
    feedforward: int = 256
    causal: bool = True
    layer_norm: bool = True
    mlp: bool = True
    positions: str = "add"
    embedding_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.dim % self.heads:
            raise ValueError(f"dim must be a multiple of heads, got {self.dim} and {self.heads}")
        if self.positions not in POSITIONS:
            raise ValueError(f"positions must be one of {list(POSITIONS)}, got {self.positions!r}")
        if not self.embedding_scale > 0:
            raise ValueError(f"embedding_scale must be positive, got {self.embedding_scale}")
        if min(self.vocabulary, self.length, self.outputs, self.layers, self.heads) < 1:
            raise ValueError("vocabulary, length, outputs, layers and heads must be at least 1")


class _Block(nn.Module):
    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.spec = spec
        dim, width = spec.dim, spec.dim // spec.heads
        self.norm1 = nn.LayerNorm(dim) if spec.layer_norm else nn.Identity()
        self.norm2 = nn.LayerNorm(dim) if spec.layer_norm and spec.mlp else nn.Identity()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.features = (
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            if spec.kind.name == "mlp"
            else None
        )
        self.mlp = (
            nn.Sequential(nn.Linear(dim, spec.feedforward), nn.GELU(), nn.Linear(spec.feedforward, dim))
            if spec.mlp
            else None
        )

    def forward(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        B, T, dim = x.shape
        heads = self.spec.heads
        qkv = self.qkv(self.norm1(x)).view(B, T, 3, heads, dim // heads).permute(2, 0, 3, 1, 4)
        weights = attention_weights(self.spec.kind, qkv[0], qkv[1], mask=mask, features=self.features)
        mixed = (weights @ qkv[2]).transpose(1, 2).reshape(B, T, dim)
        x = x + self.out(mixed)
        if self.mlp is not None:
            x = x + self.mlp(self.norm2(x))
        return x, weights


class SmallTransformer(nn.Module):
    """Embedding, blocks, and a linear read-out at every position.

    Parameters
    ----------
    spec : TransformerSpec
    seed : int
        Of the initial weights, which are drawn without touching the global generator.

    Examples
    --------
    >>> import torch
    >>> from attsvm.validation.models import SmallTransformer, TransformerSpec
    >>> model = SmallTransformer(TransformerSpec(vocabulary=10, length=5, outputs=3, heads=2), seed=0)
    >>> logits, attention = model(torch.zeros(4, 5, dtype=torch.long), attention=True)
    >>> tuple(logits.shape), tuple(attention.shape)  # attention is (layer, head, sample, query, key)
    ((4, 5, 3), (2, 2, 4, 5, 5))
    """

    def __init__(self, spec: TransformerSpec, seed: int = 0) -> None:
        super().__init__()
        self.spec = spec
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            half = spec.dim // 2 if spec.positions == "concat" else spec.dim
            self.embedding = nn.Embedding(spec.vocabulary, half)
            nn.init.normal_(self.embedding.weight, std=spec.embedding_scale)
            place = spec.dim - half if spec.positions == "concat" else spec.dim
            self.position = (
                nn.Parameter(spec.embedding_scale * torch.randn(spec.length, place))
                if spec.positions != "none"
                else None
            )
            self.blocks = nn.ModuleList([_Block(spec) for _ in range(spec.layers)])
            self.norm = nn.LayerNorm(spec.dim) if spec.layer_norm else nn.Identity()
            self.readout = nn.Linear(spec.dim, spec.outputs)

    def forward(self, tokens: Tensor, attention: bool = False) -> tuple[Tensor, Tensor | None]:
        """Logits (sample, query, output) and, if asked for, attention (layer, head, sample, query, key).

        Parameters
        ----------
        tokens : Tensor of int, shape (sample, length)
        attention : bool
        """
        T = tokens.shape[1]
        if self.spec.length < T:
            raise ValueError(f"tokens must have at most {self.spec.length} columns, got {T}")
        x = self.embedding(tokens)
        if self.position is not None:
            place = self.position[:T]
            x = x + place if self.spec.positions == "add" else torch.cat([x, place.expand(len(x), -1, -1)], -1)
        mask = torch.ones(T, T, dtype=torch.bool, device=tokens.device).tril() if self.spec.causal else None
        kept = []
        for block in self.blocks:
            x, weights = block(x, mask)
            kept.append(weights.transpose(0, 1))
        logits: Tensor = self.readout(self.norm(x))
        return logits, torch.stack(kept) if attention else None
