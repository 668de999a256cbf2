"""Which heads repeat each other: affinity of their attention, query by query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attsvm.probing.head_data import LayerData
from attsvm.solvers.arrays import FloatArray


@dataclass(frozen=True, eq=False)
class Redundancy:
    """Affinities ``sum_t sqrt(a_t b_t)`` of the attention of two heads, averaged over queries: 1 if they agree.

    Attributes
    ----------
    names : tuple of (layer, head)
    affinity : ndarray, shape (H, H)
        Over all heads with comparable maps; nan between others.
    shuffled : ndarray, shape (H, H)
        The same between different queries of a sequence: what sinks and other fixed habits have in common.
    """

    names: tuple[tuple[int, int], ...]
    affinity: FloatArray
    shuffled: FloatArray

    def nearest(self, index: int) -> tuple[float, float, tuple[int, int] | None]:
        """The largest affinity with another head, its baseline, and that head."""
        row = self.affinity[index].copy()
        row[index] = np.nan
        if not np.isfinite(row).any():
            return float("nan"), float("nan"), None
        best = int(np.nanargmax(row))
        return float(row[best]), float(self.shuffled[index, best]), self.names[best]


def redundancy(layers: Sequence[LayerData], *, queries: int = 64, seed: int = 0) -> Redundancy:
    """Affinities between all heads whose queries and tokens are the same.

    Parameters
    ----------
    layers : sequence of LayerData
    queries : int
        Drawn from all sequences.
    seed : int

    Examples
    --------
    Two copies of a head are one:

    >>> import numpy as np
    >>> from attsvm.probing import heads_from_arrays
    >>> from attsvm.trained_head import TrainedHead
    >>> rng = np.random.default_rng(0)
    >>> a, b = (TrainedHead.from_weights(rng.normal(size=(3, 6)), rng.normal(size=(3, 6))) for _ in range(2))
    >>> found = redundancy([heads_from_arrays(rng.normal(size=(4, 5, 6)), [a, b, a])])
    >>> round(found.nearest(0)[0], 6), found.nearest(0)[2]
    (1.0, (0, 2))
    """
    names = tuple((layer.layer, h) for layer in layers for h in range(layer.heads))
    affinity = np.full((len(names), len(names)), np.nan)
    shuffled = affinity.copy()
    start = np.cumsum([0, *(layer.heads for layer in layers)])
    groups: dict[tuple[object, ...], list[int]] = {}
    for place, layer in enumerate(layers):
        groups.setdefault((layer.attends, layer.allowed.shape, layer.valid.tobytes()), []).append(place)
    for members in groups.values():
        first = layers[members[0]]
        rows, mixed = _draw(first, queries, seed)
        if not len(rows[0]):
            continue
        parts, others = [], []
        for place in members:
            for head in layers[place]:
                logs = head.log_attention
                parts.append(np.exp(logs[rows] / 2).ravel())
                others.append(np.exp(logs[mixed] / 2).ravel())
        index = np.concatenate([np.arange(start[place], start[place + 1]) for place in members])
        F, G = np.array(parts), np.array(others)
        affinity[np.ix_(index, index)] = F @ F.T / len(rows[0])
        crossed = F @ G.T / len(rows[0])
        shuffled[np.ix_(index, index)] = (crossed + crossed.T) / 2
    return Redundancy(names, affinity, shuffled)


def _draw(
    layer: LayerData, queries: int, seed: int
) -> tuple[tuple[npt.NDArray[np.int64], ...], tuple[npt.NDArray[np.int64], ...]]:
    """Queries, and for each another one of the same sequence."""
    rng = np.random.default_rng(seed)
    able = layer.valid & (layer.allowed.sum(axis=-1) > 1)
    places = rng.permutation(np.argwhere(able))[:queries]
    partners = []
    for i, q in places:
        choices = np.flatnonzero(able[i])
        choices = choices[choices != q] if len(choices) > 1 else choices
        partners.append((i, rng.choice(choices)))
    if not len(places):
        return (np.zeros(0, np.int64),) * 2, (np.zeros(0, np.int64),) * 2
    mixed = np.array(partners)
    return (places[:, 0], places[:, 1]), (mixed[:, 0], mixed[:, 1])
