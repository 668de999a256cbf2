"""Heads as the measures see them: queries, keys, masks and offsets in NumPy, wherever they came from.

The way in without torch: hidden states and the weights of heads as arrays.

What a model is probed on: texts, encodings, tensors; as batches, with token numbers and token texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from attsvm.softmax import log_softmax
from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.trained_head import TrainedHead
from attsvm.user_input import bool_array, real_array, require_finite

Float = npt.NDArray[np.floating]

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
    def logits(self) -> FloatArray:
        """``scale q.k + offset``, -inf where masked, shape (n, Tq, Tk)."""
        values = self.scale * (self.q.astype(np.float64) @ self.k.astype(np.float64).swapaxes(-1, -2))
        if self.offset is not None:
            values = values + self.offset
        return np.where(self.allowed, values, -np.inf)

    @cached_property
    def log_attention(self) -> FloatArray:
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
    def matrix(self) -> FloatArray:
        """W in the space of the head: (d + 1, d + 1) with the constant coordinate, or ``scale`` times I."""
        if self.space == "head":
            return self.scale * np.eye(self.q.shape[-1])
        assert self.weights is not None
        return np.asarray(self.weights.W)

    @cached_property
    def singular_values(self) -> FloatArray:
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


def factor_values(W_q: Float, W_k: Float) -> FloatArray:
    """Singular values of ``W_k^T W_q`` from matrices of the size of the head.

    Examples
    --------
    >>> import numpy as np
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
    turns : ndarray, shape (n, T, r, r), or None
        The rotation of queries and keys at each position (RoPE), where it was asked for.
    """

    module: str
    weights: tuple[TrainedHead, ...] | None
    error: float = float("nan")
    turns: Float | None = None

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


def _check_heads(heads: Sequence[TrainedHead]) -> None:
    if not heads or not all(isinstance(head, TrainedHead) for head in heads):
        raise ValueError("heads must hold at least one TrainedHead: see TrainedHead.from_weights")
    if len({head.scale for head in heads}) > 1:
        raise ValueError("heads of one layer must share their scale; probe them as layers of their own")


def heads_from_arrays(
    hidden: npt.ArrayLike,
    heads: Sequence[TrainedHead],
    *,
    mask: npt.ArrayLike | None = None,
    causal: bool = False,
    queries: npt.ArrayLike | None = None,
    values: npt.ArrayLike | None = None,
    offset: npt.ArrayLike | None = None,
    layer: int = 0,
    name: str = "layer",
) -> LayerData:
    """A layer from arrays: what `attsvm.probe` takes in place of a model.

    Parameters
    ----------
    hidden : array_like, shape (n, T, d)
        What the layer's key (and query) maps were applied to.
    heads : sequence of TrainedHead
        From `TrainedHead.from_weights`, one per head.
    mask : array_like of bool, shape (n, T) or (n, Tq, T), optional
        True where attention is allowed; of shape (n, T) it marks the real tokens.
    causal : bool
        Query k sees tokens 0..k.
    queries : array_like, shape (n, Tq, d), optional
        Hidden states of the queries, for cross-attention.
    values : array_like, shape (n, H, T, dv), optional
        For the flip rate.
    offset : array_like, broadcast to (n, H, Tq, T), optional
        Added to the logits.
    layer : int
    name : str

    Examples
    --------
    >>> import numpy as np
    >>> import attsvm
    >>> from attsvm.probing import heads_from_arrays
    >>> rng = np.random.default_rng(0)
    >>> head = attsvm.TrainedHead.from_weights(rng.normal(size=(2, 6)), rng.normal(size=(2, 6)))
    >>> layer = heads_from_arrays(rng.normal(size=(4, 5, 6)), [head], causal=True)
    >>> layer[0].selected.shape, layer[0].selected[0, 0]
    ((4, 5), np.int64(0))
    """
    tokens = real_array("hidden", hidden)
    if tokens.ndim != 3 or 0 in tokens.shape:
        raise ValueError(f"hidden must have shape (n, T, d), got {tokens.shape}")
    asked = tokens if queries is None else real_array("queries", queries)
    if asked.ndim != 3 or len(asked) != len(tokens):
        raise ValueError(f"queries must have shape ({len(tokens)}, Tq, d), got {asked.shape}")
    _check_heads(heads)
    n, Tq, Tk = len(tokens), asked.shape[1], tokens.shape[1]
    allowed, valid = _masks(mask, n, Tq, Tk, causal, cross=queries is not None)
    real = np.asarray(allowed.any(axis=1))[..., None]
    require_finite("hidden", tokens, where=np.broadcast_to(real, tokens.shape))
    added = None
    if offset is not None:
        added = np.broadcast_to(real_array("offset", offset), (n, len(heads), Tq, Tk))
    v = None
    if values is not None:
        v = real_array("values", values)
        if v.ndim != 4 or v.shape[:3] != (n, len(heads), Tk):
            raise ValueError(f"values must have shape ({n}, {len(heads)}, {Tk}, dv), got {v.shape}")
    attends: Literal["self", "cross"] = "self" if queries is None else "cross"
    return LayerData(
        layer, attends, "tokens",
        _projected(asked, [(head, head.query_map) for head in heads]),
        _projected(tokens, [(head, head.key_map) for head in heads]),
        v, float(heads[0].scale), allowed, valid, added, tokens, asked, name, tuple(heads),
    )  # fmt: skip


def _projected(
    states: npt.NDArray[np.floating], maps: list[tuple[TrainedHead, npt.NDArray[np.float64]]]
) -> npt.NDArray[np.float64]:
    """Queries or keys of all heads, (n, H, T, r); smaller heads are filled with zeros, which changes no logit."""
    r = max(len(matrix) for _, matrix in maps)
    out = np.zeros((len(states), len(maps), states.shape[1], r))
    for h, (head, matrix) in enumerate(maps):
        out[:, h, :, : len(matrix)] = head.extend(states) @ matrix.T
    return out


def _masks(
    mask: npt.ArrayLike | None, n: int, Tq: int, Tk: int, causal: bool, cross: bool
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    allowed = np.ones((n, Tq, Tk), dtype=bool)
    valid = np.ones((n, Tq), dtype=bool)
    if mask is not None:
        given = bool_array("mask", mask)
        if given.shape == (n, Tk):
            allowed &= given[:, None, :]
            valid = valid if cross else given.copy()
        elif given.shape == (n, Tq, Tk):
            allowed &= given
            valid = np.asarray(given.any(axis=-1))
        else:
            raise ValueError(f"mask must have shape {(n, Tk)} or {(n, Tq, Tk)}, got {given.shape}")
    if causal:
        if Tq != Tk:
            raise ValueError(f"causal attention needs as many queries as tokens, got {Tq} and {Tk}")
        allowed &= np.tril(np.ones((Tq, Tk), dtype=bool))
    return allowed, valid


@dataclass(frozen=True, eq=False)
class Inputs:
    """Batches for a model.

    Attributes
    ----------
    batches : list
        Each what the model is called with.
    ids : ndarray of int, shape (n, T), or None
        Token numbers, -1 behind the end.
    tokens : list of list of str, or None
        Their texts.
    """

    batches: list[Any]
    ids: npt.NDArray[np.int64] | None
    tokens: list[list[str]] | None

    def first(self, sequences: int) -> list[Any]:
        """Batches that hold about the first so many sequences; at least one batch."""
        taken: list[Any] = []
        count = 0
        for batch in self.batches:
            if taken and count >= sequences:
                break
            size = _size(batch)
            part = batch if size is None or count + size <= sequences else _cut(batch, sequences - count)
            taken.append(part)
            count += size or 0
        return taken


def _size(batch: Any) -> int | None:
    if hasattr(batch, "keys"):
        sizes = {len(batch[name]) for name in batch.keys() if hasattr(batch[name], "shape") and batch[name].ndim}  # noqa: SIM118
        return sizes.pop() if len(sizes) == 1 else None
    return None


def _cut(batch: Any, size: int) -> Any:
    return {name: batch[name][:size] if hasattr(batch[name], "shape") else batch[name] for name in batch.keys()}  # noqa: SIM118


def read_inputs(
    inputs: Any, tokenizer: Any = None, *, batch_size: int = 8, max_length: int = 128, device: Any = None
) -> Inputs:
    """Inputs of `attsvm.probe` in one form.

    Parameters
    ----------
    inputs : str, list of str, mapping of tensors, tensor, tuple, or list of those
        Texts need a tokenizer. A list holds batches, unless it holds texts.
    tokenizer : callable, optional
        Of transformers.
    batch_size, max_length : int
        How texts are cut; padding goes behind.
    device : optional
        Where texts go.

    Examples
    --------
    >>> import torch
    >>> read_inputs({"input_ids": torch.tensor([[5, 6, 7]])}).ids
    array([[5, 6, 7]])
    """
    if isinstance(inputs, str):
        inputs = [inputs]
    if isinstance(inputs, (list, tuple)) and inputs and all(isinstance(text, str) for text in inputs):
        if tokenizer is None:
            raise ValueError("inputs are texts: give tokenizer=, or encode them first")
        batches = _encoded([text for text in inputs if text.strip()], tokenizer, batch_size, max_length, device)
    elif isinstance(inputs, list):
        batches = inputs
    else:
        batches = [inputs]
    if not batches:
        raise ValueError("inputs must hold at least one sequence")
    ids = _ids(batches)
    return Inputs(batches, ids, None if ids is None or tokenizer is None else _texts(ids, tokenizer))


def _encoded(texts: Sequence[str], tokenizer: Any, batch_size: int, max_length: int, device: Any) -> list[Any]:
    if not texts:
        raise ValueError("inputs must hold at least one text that is not empty")
    if getattr(tokenizer, "pad_token", "") is None:  # decoders often have none; the mask hides it
        tokenizer.pad_token = tokenizer.eos_token
    batches = []
    for start in range(0, len(texts), batch_size):
        found = tokenizer(
            list(texts[start : start + batch_size]), return_tensors="pt", padding=True, truncation=True,
            max_length=max_length,
        )  # fmt: skip
        batches.append({name: value.to(device) for name, value in found.items()})
    return batches


def _ids(batches: Sequence[Any]) -> npt.NDArray[np.int64] | None:
    parts = []
    for batch in batches:
        if not (isinstance(batch, Mapping) or hasattr(batch, "keys")) or "input_ids" not in batch:
            return None
        ids = np.asarray(batch["input_ids"].cpu().numpy(), dtype=np.int64)
        if "attention_mask" in batch:
            ids = np.where(batch["attention_mask"].cpu().numpy().astype(bool), ids, -1)
        parts.append(ids)
    out = np.full((sum(map(len, parts)), max(part.shape[1] for part in parts)), -1, dtype=np.int64)
    start = 0
    for part in parts:
        out[start : start + len(part), : part.shape[1]] = part
        start += len(part)
    return out


def _texts(ids: npt.NDArray[np.int64], tokenizer: Any) -> list[list[str]]:
    return [[str(t) for t in tokenizer.convert_ids_to_tokens([int(k) for k in row if k >= 0])] for row in ids]
