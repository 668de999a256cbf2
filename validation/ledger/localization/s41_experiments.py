"""Section 5, Figure 5 and Section 7: simulations and language models."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics.localization import attention_entropy, random_walks, signal_propagation, summarize
from attsvm.validation.ledger.localization._common import Rng, eigenspectrum
from attsvm.validation.ledger.record import Claim, Verdict, each

__all__ = ["CLAIMS"]

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


CLAIMS = (
    Claim(
        "localization:41",
        "Figure 5, left",
        "rho localizes for larger means and smaller scales of the eigenvalues.",
        Verdict.HOLDS,
        _localizes,
        {"mean": -1, "scale": 1},
        evidence="participation .22, .22, .25, .35 for scale .01, .1, .5, 1 at mean .5 (d = 128, T = 40)",
        trials=20,
    ),
    Claim(
        "localization:42",
        "Figure 5, right",
        "At a fixed mean, a smaller scale gives a higher attention entropy.",
        Verdict.HOLDS,
        _entropy,
        {"query": "all", "sign": -1},
        correction="on average over queries; for the last query alone the entropy rises with the scale. A larger mean "
        "lowers it. ('fixed mean and scale' is a typo)",
        evidence="mean .5: average 1.45, 1.44, 1.13, .80, last query .12, .12, .18, .21 for scale .01, .1, .5, 1",
        trials=8,
    ),
    Claim(
        "localization:45",
        "Section 7, Figures 6-12",
        "On WikiText-2, LocAteR raises the entropy and improves perplexity.",
        Verdict.OPEN,
        reason="50,000 steps on data that is not shipped; the small model of `attsvm validate localization fig6` shows"
        " the "
        "trends of scale and entropy, and no gain in perplexity",
    ),
)
