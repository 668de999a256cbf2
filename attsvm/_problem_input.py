"""What tokens, queries, labels and masks of a problem must look like together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm._arrays import BoolArray, FloatArray, bool_array, freeze, own, real_array

__all__ = ["check_shapes", "pad", "read_labels", "read_mask"]


def check_shapes(X: FloatArray, Z: FloatArray) -> int:
    """Number of batch axes, 0 or 1, of tokens and queries that go together."""
    if X.ndim not in (3, 4):
        raise ValueError(f"X must have shape (n, T, dx) or (batch, n, T, dx), got {X.shape}")
    lead = X.ndim - 3
    if 0 in X.shape:
        raise ValueError(f"X must hold at least one sequence and one dimension, got shape {X.shape}")
    if X.shape[-2] < 2:
        raise ValueError("X must hold at least T = 2 tokens per sequence, got T = 1: there is nothing to select from")
    sequences = X.shape[: lead + 1]
    shape = f"{(*sequences, 'dz')} or {(*sequences, 'K', 'dz')}".replace("'", "")
    if Z.ndim not in (lead + 2, lead + 3) or Z.shape[: lead + 1] != sequences or 0 in Z.shape:
        raise ValueError(f"Z must have shape {shape} to go with X of shape {X.shape}, got {Z.shape}")
    return lead


def read_labels(labels: Any, sequences: tuple[int, ...], queries: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Labels +1 or -1 per query, given per query or per sequence; all +1 when omitted."""
    if labels is None:
        return np.asarray(freeze(np.ones(queries)))
    Y = real_array("Y", labels).astype(np.float64, copy=False)
    if Y.shape not in (sequences, queries):
        shapes = " or ".join(str(s) for s in dict.fromkeys((sequences, queries)))
        raise ValueError(f"Y must have shape {shapes}, got {Y.shape}")
    wrong = np.argwhere((Y != 1) & (Y != -1))
    if len(wrong):
        index = tuple(int(i) for i in wrong[0])
        raise ValueError(f"Y must hold labels +1 or -1, but Y[{', '.join(map(str, index))}] is {Y[index]:g}")
    if Y.shape != queries:
        Y = np.broadcast_to(Y[..., None], queries)
    return own(Y)


def read_mask(value: Any, sequences: tuple[int, ...], queries: tuple[int, ...], T: int) -> BoolArray:
    """Where attention is allowed, per query or per sequence; every query keeps a token."""
    mask = bool_array("mask", value)
    shapes = dict.fromkeys(((*sequences, T), (*queries, T)))
    if mask.shape not in shapes:
        raise ValueError(f"mask must have shape {' or '.join(map(str, shapes))}, got {mask.shape}")
    empty = np.argwhere(~mask.any(axis=-1))
    if len(empty):
        raise ValueError(f"mask must leave at least one token to every query, but {empty[0].tolist()} has none")
    return mask


def pad(tokens: Sequence[npt.ArrayLike]) -> tuple[FloatArray, BoolArray]:
    """Sequences of different lengths in one array (n, T, dx), and where it holds tokens (n, T)."""
    rows = [real_array(f"tokens[{i}]", x) for i, x in enumerate(tokens)]
    if not rows:
        raise ValueError("tokens must hold at least one sequence")
    for i, x in enumerate(rows):
        if x.ndim != 2 or x.shape[0] == 0 or x.shape[1] != rows[0].shape[-1]:
            raise ValueError(f"tokens[{i}] must have shape (T_i, {rows[0].shape[-1]}), got {x.shape}")
    lengths = np.array([len(x) for x in rows])
    X = np.zeros((len(rows), int(lengths.max()), rows[0].shape[1]), dtype=np.result_type(*rows))
    for i, x in enumerate(rows):
        X[i, : len(x)] = x
    return X, np.arange(X.shape[1]) < lengths[:, None]
