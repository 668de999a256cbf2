"""The way in without torch: hidden states and the weights of heads as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from attsvm._arrays import bool_array, real_array, require_finite
from attsvm.probing.data import LayerData
from attsvm.trained_head import TrainedHead

__all__ = ["heads_from_arrays"]


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
