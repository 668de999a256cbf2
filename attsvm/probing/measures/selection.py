"""Which tokens a head selects, and by what margin: the part of the SVM measures that needs no solve."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.probing.data import HeadData
from attsvm.probing.measures.context import Context, per_sequence
from attsvm.softmax import entropy

__all__ = ["head_gaps", "head_kind", "selection_measures"]

Float64 = npt.NDArray[np.float64]
_UNIFORM = 0.98  # share of the largest entropy from which a head counts as uniform


def head_gaps(head: HeadData) -> Float64:
    """Lead of the selected token over the next in logits, shape (n, Tq); nan for queries that see one token."""
    logits = head.logits
    if logits.shape[-1] < 2:
        return np.full(logits.shape[:-1], np.nan)
    top = np.partition(logits, -2, axis=-1)[..., -2:]
    with np.errstate(invalid="ignore"):
        gaps = top[..., 1] - top[..., 0]
    return np.where(head.counts & (head.seen > 1), gaps, np.nan)


def selection_measures(head: HeadData, context: Context) -> dict[str, Any]:
    """Places of the selected tokens, and the head's margins over the norms of its W.

    Returns
    -------
    dict
        Arrays of one number per sequence, and ``kind``.
    """
    chosen, queries = head.selected, np.arange(head.q.shape[1])[None]
    found: dict[str, Any] = {
        "selects_first": per_sequence(chosen == context.first[:, None], head, head.seen > 1),
        "selects_last": per_sequence(chosen == context.last[:, None], head, head.seen > 1),
    }
    if head.attends == "self":
        several = head.seen > 1
        for name, shift in (("selects_self", 0), ("selects_previous", -1), ("selects_next", 1)):
            found[name] = per_sequence(chosen == queries + shift, head, several)
        found["distance"] = per_sequence(np.abs(chosen - queries), head, several)
        found["selects_same"] = _same(head, context)
    gaps = head_gaps(head)
    values = head.singular_values
    norms = {"frobenius": float(np.linalg.norm(values)), "nuclear": float(values.sum())}
    some = np.isfinite(gaps)
    inside = [row[keep] for row, keep in zip(gaps, some, strict=True)]
    for norm, size in norms.items():
        for label, q in (("min", 0.0), ("q10", 0.1), ("median", 0.5)):
            cut = np.array([np.quantile(row, q) if len(row) else np.nan for row in inside])
            found[f"margin_{label}_{norm}"] = cut / size if size > 0 else np.full(head.n, np.nan)
    share = entropy(log_attention=head.log_attention) / np.log(np.maximum(head.seen, 2))
    found["entropy_share"] = per_sequence(share, head, head.seen > 1)
    found["kind"] = head_kind({name: np.nanmean(value) for name, value in found.items() if np.isfinite(value).any()})
    return found


def _same(head: HeadData, context: Context) -> Float64:
    """Queries whose token occurs elsewhere and that select one of those places."""
    if context.ids is None or context.ids.shape[1] != head.q.shape[1]:
        return np.full(head.n, np.nan)
    ids = context.ids
    twins = (ids[:, :, None] == ids[:, None, :]) & head.allowed & ~np.eye(ids.shape[1], dtype=bool)
    hit = np.take_along_axis(twins, head.selected[..., None], axis=-1)[..., 0]
    return per_sequence(hit, head, twins.any(axis=-1))


def head_kind(means: dict[str, Any]) -> str:
    """What a head selects for most of its queries: where their highest logits are, not how much attention is there.

    The share of attention that a token gets is its sink share, ``sink_share_first`` and the like.

    Examples
    --------
    >>> from attsvm.probing.measures.selection import head_kind
    >>> head_kind({"entropy_share": 0.3, "selects_first": 0.9}), head_kind({"entropy_share": 0.99})
    ('first token', 'uniform')
    """
    if means.get("entropy_share", 0.0) >= _UNIFORM:
        return "uniform"
    words = {
        "selects_previous": "previous token",
        "selects_next": "next token",
        "selects_self": "own token",
        "selects_same": "same token",
        "selects_first": "first token",
        "selects_last": "last token",
    }
    best = max(words, key=lambda name: means.get(name, 0.0))
    return words[best] if means.get(best, 0.0) > 0.5 else "mixed"
