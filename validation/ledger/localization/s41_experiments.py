"""Section 5, Figure 5 and Section 7: simulations and language models."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics.localization import attention_entropy, random_walks, signal_propagation, summarize
from attsvm.validation.ledger.localization._common import Rng, eigenspectrum
from attsvm.validation.ledger.record import Check, each

__all__ = ["CHECKS"]

_D, _T = 64, 40


def _participation(rng: Rng, mean: float, scale: float) -> float:
    """Of the profile averaged over 10 draws, as in the figure."""
    draws = [signal_propagation(eigenspectrum(rng, _D, mean, scale), _T, method="gaussian").rho for _ in range(10)]
    return summarize(np.mean(draws, axis=0)).participation


@each(0.0, "wrong sign of the change of the share of tokens that propagate")
def _localizes(formula: Any, rng: Rng, k: int) -> Any:
    """Signs of the change of the participation with the mean (0.1 to 1) and with the scale (0.01 to 1)."""
    by_mean = _participation(rng, 1.0, 0.05) - _participation(rng, 0.1, 0.05)
    by_scale = _participation(rng, 0.5, 1.0) - _participation(rng, 0.5, 0.01)
    return float(np.sign(by_mean) != formula["mean"] or np.sign(by_scale) != formula["scale"])


@each(0.0, "wrong sign of the change of the entropy with the scale")
def _entropy(formula: Any, rng: Rng, k: int) -> Any:
    """Sign of the change of the entropy from scale 0.01 to 1 at mean 0.5, for the queries that the formula names."""
    X = random_walks(40, _T, _D, seed=rng)
    low, high = (
        float(attention_entropy(X, eigenspectrum(rng, _D, 0.5, s), query=formula["query"]).mean()) for s in (0.01, 1.0)
    )
    return float(np.sign(high - low) != formula["sign"])


CHECKS = {
    "41": Check(_localizes, {"mean": -1, "scale": 1}, trials=20),
    "42": Check(_entropy, {"query": "all", "sign": -1}, trials=8),
}
