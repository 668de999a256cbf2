"""Random instances that the checks of this paper share, and margins read as errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.dynamics import polarization as pol
from attsvm.validation.ledger.record import Measurement, count

__all__ = ["excess", "flows", "ordered", "simplex", "state"]

Array = npt.NDArray[np.float64]


def ordered(rng: np.random.Generator, size: tuple[int, ...] | int, scale: float = 1.0) -> Array:
    """Normal projections, largest first (Assumption 3.1)."""
    return -np.sort(-scale * rng.standard_normal(size), axis=-1)


def simplex(rng: np.random.Generator, p: int) -> Array:
    """Softmax of normal logits."""
    weights = np.exp(rng.standard_normal(p))
    return np.asarray(weights / weights.sum())


def state(rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """V (4, 6), a (6,), beta_* (4,)."""
    return rng.standard_normal((4, 6)), rng.standard_normal(6), rng.standard_normal(4)


@lru_cache(maxsize=32)
def _flows(seed: int, trials: int, scales: tuple[float, ...], t_end: float) -> tuple[pol.Flow, ...]:
    rng = np.random.default_rng(seed)
    found = []
    for p, b in zip((3, 6, 9), scales, strict=True):
        many = max(2, -(-trials // 3))
        found.append(pol.aligned_flow(ordered(rng, (many, p)), b=b, t_end=t_end, points=30))
    return tuple(found)


def flows(
    rng: np.random.Generator, trials: int, scales: tuple[float, ...] = (0.04, 1.0, 9.0), t_end: float = 1e8
) -> Iterable[pol.Flow]:
    """Batches of logistic flows from a(0) = 0 with 3, 6, 9 tokens and the given b; both forms of a claim share them."""
    return _flows(int(rng.integers(2**31)), trials, scales, t_end)


def excess(
    margin: Callable[[pol.Flow], Any], batches: Iterable[pol.Flow], detail: str, tolerance: float = 0.0
) -> Measurement:
    """A margin as an error: what is not positive violates the statement."""
    return count(np.concatenate([np.atleast_1d(-np.asarray(margin(batch))) for batch in batches]), tolerance, detail)
