"""Heads as the measures see them: queries, keys, masks and offsets in NumPy, wherever they came from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from attsvm._arrays import BoolArray, IntArray
from attsvm.softmax import log_softmax
from attsvm.trained_head import TrainedHead

__all__ = ["HeadData", "LayerData", "Space"]

Float = npt.NDArray[np.floating]
Float64 = npt.NDArray[np.float64]
Space = Literal["tokens", "head"]
"""Where W lives: on hidden states with a constant coordinate, or (RoPE, QK-norm) on rotated keys and queries, W = I."""


@dataclass(frozen=True, eq=False)
class _Attended:
    """What one head and all heads of a layer have in common; arrays of a layer have an axis of heads."""

    layer: int
    attends: Literal["self", "cross"]
    space: Space
    q: Float
    k: Float
    v: Float | None
    scale: float
    allowed: BoolArray
    valid: BoolArray
    offset: Float | None
    tokens: Float
    queries: Float


@dataclass(frozen=True, eq=False)
class HeadData(_Attended):
    """One head on n sequences.

    Attributes
    ----------
    layer, head : int
        Place in the model; layers count calls of attention, in their order.
    name : str
        Module and head, ``encoder.layer.3.attention.self[5]``.
    attends : {"self", "cross"}
    space : {"tokens", "head"}
    q, k : ndarray, shapes (n, Tq, r) and (n, Tk, r)
        Queries and keys as they meet in the logits ``scale q.k + offset``.
    v : ndarray, shape (n, Tk, dv), or None
    scale : float
    allowed : ndarray of bool, shape (n, Tq, Tk)
    valid : ndarray of bool, shape (n, Tq)
        Queries that count (padding is dropped).
    offset : ndarray, broadcast to (n, Tq, Tk), or None
        Added to the logits (ALiBi, relative biases).
    tokens, queries : ndarray, shapes (n, Tk, d) and (n, Tq, d)
        Hidden states that keys and queries are made from.
    weights : TrainedHead or None
        The W of the head on hidden states. In head space it is the W of a token with itself (no rotation between
        them), or None where keys and queries are normalized.
    """

    head: int
    name: str
    weights: TrainedHead | None

    @property
    def n(self) -> int:
        """Number of sequences."""
        return len(self.q)

    @cached_property
    def logits(self) -> Float64:
        """``scale q.k + offset``, -inf where masked, shape (n, Tq, Tk)."""
        values = self.scale * (self.q.astype(np.float64) @ self.k.astype(np.float64).swapaxes(-1, -2))
        if self.offset is not None:
            values = values + self.offset
        return np.where(self.allowed, values, -np.inf)

    @cached_property
    def log_attention(self) -> Float64:
        """Logarithm of the attention, shape (n, Tq, Tk); rows of queries that do not count are uniform."""
        logits = self.logits
        if not self.counts.all():  # a padded query may see nothing at all
            logits = np.where(self.counts[..., None], logits, 0.0)
        return log_softmax(logits)

    @cached_property
    def counts(self) -> BoolArray:
        """Queries that count and see at least one token, shape (n, Tq)."""
        return np.asarray(self.valid & self.allowed.any(axis=-1))

    @cached_property
    def seen(self) -> IntArray:
        """Tokens that each query may see, shape (n, Tq)."""
        return np.asarray(self.allowed.sum(axis=-1))

    @cached_property
    def selected(self) -> IntArray:
        """The token of highest logit of each query, shape (n, Tq)."""
        return np.asarray(self.logits.argmax(axis=-1))

    @property
    def matrix(self) -> Float64:
        """W in the space of the head: (d + 1, d + 1) with the constant coordinate, or ``scale`` times I."""
        if self.space == "head":
            return self.scale * np.eye(self.q.shape[-1])
        assert self.weights is not None
        return np.asarray(self.weights.W)

    @cached_property
    def singular_values(self) -> Float64:
        """Singular values of `matrix` that can differ from zero, decreasing."""
        if self.space == "head":
            return np.full(self.q.shape[-1], abs(self.scale))
        assert self.weights is not None
        return factor_values(self.weights.query_map, self.weights.key_map) * abs(self.weights.scale)

    def points(self) -> tuple[Float, Float]:
        """Tokens and queries on which `matrix` acts, shapes (n, Tk, dx) and (n, Tq, dz)."""
        if self.space == "head":
            return self.k, self.q
        assert self.weights is not None
        return self.weights.extend(self.tokens), self.weights.extend(self.queries)

    def take(self, sequences: npt.ArrayLike) -> HeadData:
        """The same head on some of its sequences."""
        s = np.asarray(sequences)
        offset = self.offset
        if offset is not None and len(offset) > 1:
            offset = offset[s]
        return replace(
            self, q=self.q[s], k=self.k[s], v=None if self.v is None else self.v[s], allowed=self.allowed[s],
            valid=self.valid[s], offset=offset, tokens=self.tokens[s], queries=self.queries[s],
        )  # fmt: skip


def factor_values(W_q: Float, W_k: Float) -> Float64:
    """Singular values of ``W_k^T W_q`` from matrices of the size of the head.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.probing.data import factor_values
    >>> factor_values(2 * np.eye(2, 50), 3 * np.eye(2, 50)).round(9)
    array([6., 6.])
    """
    R_q, R_k = (np.asarray(np.linalg.qr(np.asarray(F, dtype=np.float64).T, mode="r")) for F in (W_q, W_k))
    return np.asarray(np.linalg.svd(R_k @ R_q.T, compute_uv=False), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class LayerData(_Attended):
    """All heads of one call of attention.

    Attributes
    ----------
    q, k : ndarray, shapes (n, H, Tq, r) and (n, H, Tk, r)
        Grouped keys are repeated.
    v : ndarray, shape (n, H, Tk, dv), or None
    offset : ndarray, shape (1 or n, H, 1 or Tq, Tk), or None
    weights : tuple of TrainedHead, or None
        One per head.
    error : float
        Largest difference between the recomputed attention and the model's own; nan if there is no model.
    """

    module: str
    weights: tuple[TrainedHead, ...] | None
    error: float = float("nan")

    @property
    def heads(self) -> int:
        """Number of heads."""
        return int(self.q.shape[1])

    def __getitem__(self, head: int) -> HeadData:
        if not 0 <= head < self.heads:
            raise IndexError(f"head {head} is out of range: {self.module} has {self.heads}")
        return HeadData(
            self.layer, self.attends, self.space, self.q[:, head], self.k[:, head],
            None if self.v is None else self.v[:, head], self.scale, self.allowed, self.valid,
            None if self.offset is None else self.offset[:, head], self.tokens, self.queries,
            head, f"{self.module}[{head}]", None if self.weights is None else self.weights[head],
        )  # fmt: skip

    def __iter__(self) -> Iterator[HeadData]:
        return (self[h] for h in range(self.heads))
