"""How polarized a head's attention is: sinks, entropy, sparsity, and what exchanging one token does to its output."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.dynamics.polarization.metrics import sink_score, sparsity_score
from attsvm.probing.data import HeadData
from attsvm.probing.measures.context import Context, per_sequence
from attsvm.softmax import entropy

__all__ = ["flip_rate", "polarization_measures"]

Float64 = npt.NDArray[np.float64]


def polarization_measures(head: HeadData, context: Context, *, seed: int = 0) -> dict[str, Any]:
    """Sink scores, entropy, sparsity and the one-token flip rate, one number per sequence.

    ``sink_share_first`` and ``sink_share_last`` are the shares of attention on the first and last token from queries
    elsewhere; ``sink_share_any`` that of the token with the largest share, whichever it is.
    """
    logs = head.log_attention
    attention = np.exp(logs)
    found: dict[str, Any] = {
        name: np.full(head.n, np.nan) for name in ("sink_share_first", "sink_share_last", "sink_share_any", "sparsity")
    }
    for group in _alike(head, context):
        one = group[0]
        rows, places = np.flatnonzero(head.counts[one]), np.flatnonzero(context.keys[one])
        if len(rows) < 2 or len(places) < 2:
            continue
        # Sequences take the axis of heads, so that each gets a score of its own.
        part = attention[np.ix_(np.array(group), rows, places)][None, :, None]
        found["sink_share_first"][group] = sink_score(part, sink=0, queries=slice(1, None))[0]
        found["sink_share_last"][group] = sink_score(part, sink=len(places) - 1, queries=slice(0, -1))[0]
        received = part[0, :, 0].mean(axis=1)  # every token's share, its own query included
        best = received.argmax(axis=-1)
        found["sink_share_any"][group] = np.take_along_axis(received, best[:, None], axis=-1)[:, 0]
        found["sparsity"][group] = sparsity_score(part)[0]
    found["entropy"] = per_sequence(entropy(log_attention=logs), head, head.seen > 1)
    found["flip_rate"] = flip_rate(head, seed=seed)
    return found


def _alike(head: HeadData, context: Context) -> list[list[int]]:
    """Sequences by their padding."""
    groups: dict[bytes, list[int]] = {}
    for i in range(head.n):
        groups.setdefault(head.counts[i].tobytes() + context.keys[i].tobytes(), []).append(i)
    return list(groups.values())


def flip_rate(head: HeadData, *, queries: int = 8, seed: int = 0) -> Float64:
    """Share of queries whose output goes over to another sequence's when one token is exchanged, shape (n,).

    Two sequences, a query at the same place in both; the token that each query attends to most is exchanged, and the
    query is flipped if its output is then nearer to what the other sequence gave than to what its own gave. It is the
    flip of a label (section 4.6 of the polarization paper) for a head that has no labels.

    Parameters
    ----------
    head : HeadData
        With values; without them outputs are mixtures of hidden states.
    queries : int
        Per pair of sequences.
    seed : int
    """
    rates = np.full(head.n, np.nan)
    if head.n < 2:
        return rates
    rng = np.random.default_rng(seed)
    values = (head.tokens if head.v is None else head.v).astype(np.float64)
    for i in range(head.n):
        j = (i + 1 + int(rng.integers(head.n - 1))) % head.n
        shared = np.flatnonzero(head.counts[i] & head.counts[j] & (head.seen[i] > 1) & (head.seen[j] > 1))
        if not len(shared):
            continue
        places = rng.permutation(shared)[:queries]
        rows = np.arange(len(places))
        mine, theirs = head.selected[i, places], head.selected[j, places]
        own, other = (np.exp(head.log_attention[s, places]) @ values[s] for s in (i, j))
        # Only the logit and the value of one token change.
        logits = head.logits[i, places].copy()
        place_of = np.arange(len(places))
        new = head.scale * np.einsum("qr,qr->q", head.q[i, places], head.k[j, theirs], dtype=np.float64)
        if head.offset is not None:
            new += np.broadcast_to(head.offset, head.logits.shape)[i, places, mine]
        logits[place_of, mine] = new
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        swapped = weights @ values[i] + weights[rows, mine][:, None] * (values[j, theirs] - values[i, mine])
        nearer = np.linalg.norm(swapped - other, axis=-1) < np.linalg.norm(swapped - own, axis=-1)
        rates[i] = nearer.mean()
    return rates
