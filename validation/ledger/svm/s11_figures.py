"""What the figures are said to show: ranks, the end of descent, inner dimensions; and what cannot be checked."""

from __future__ import annotations

from typing import Any

import numpy as np

import attsvm
from attsvm.validation.figures.svm.ranks_published import published_rank
from attsvm.validation.ledger.record import Check, Measurement, count, each
from attsvm.validation.ledger.svm._common import Rng, cosine, seed_of

__all__ = ["CHECKS"]


_PUBLISHED_KQ: dict[str, Any] = {
    "optimizer": "normalized_gd",
    "log_ridge": float(np.log(2.22e-16)),
    "normalization": "factor",
}


@each(0.0, "difference from the certified rank; n = T = 5, d = 10")
def _ranks(formula: Any, rng: Rng, k: int) -> Any:
    """A way to read the rank of the nuclear-norm solution against the rank that its dual certificate proves."""
    p = attsvm.random_problem(5, 5, 10, seed=seed_of(rng))
    certified = attsvm.att_svm(p, norm="nuclear").certificate.rank
    return abs(formula(p) - certified)


def _level(parameterization: str, norm: str, steps: int, published: dict[str, Any]) -> Any:
    def measure(formula: float, rng: Rng, trials: int) -> Measurement:
        """Median 1 - corr of published training with the SVM of the selected tokens: n = 6, T = 8, d = 10.

        Medians lie between 2.2e-3 and 3.2e-3 at ten seeds, for W and for (K, Q), far from the levels 1e-3 and 1e-2.
        """
        p = attsvm.random_problem(6, 8, 10, batch=trials, seed=seed_of(rng))
        run = attsvm.train(p, parameterization, steps=steps, snapshots=2, seed=seed_of(rng), **published)
        solved = attsvm.att_svm(p, run.selection, norm=norm)
        distance = float(np.nanmedian(1 - cosine(run.W, solved.W)))
        return count(
            [distance / formula], 1.0, f"median 1 - corr after {steps} steps over the level, {trials} problems"
        )

    return measure


def _saturation(formula: Any, rng: Rng, trials: int) -> Measurement:
    p = attsvm.random_problem(6, 8, 10, batch=trials, seed=seed_of(rng))
    run = attsvm.train(p, steps=600, lr=0.3, seed=seed_of(rng), snapshots=2)
    return count(
        abs(run.history.max_probability[-1] - formula), 0.01, "largest probability after 600 steps of 0.3, mean"
    )


def _inner_dimension(formula: Any, rng: Rng, trials: int) -> Measurement:
    """(K, Q) with m columns where a rule on (m, n) promises the direction of the nuclear-norm solution."""
    p = attsvm.random_problem(5, 5, 20, batch=trials, seed=seed_of(rng))
    errors = []
    for m in (1, 5):
        if not formula(m, 5):
            continue
        run = attsvm.train(p, "KQ", steps=1500, m=m, seed=seed_of(rng), snapshots=2, **_PUBLISHED_KQ)
        solved = attsvm.att_svm(p, run.selection, norm="nuclear")
        errors.append(float((1 - cosine(run.W, solved.W)).mean()))
    return count(errors, 0.05, "mean 1 - corr with the nuclear-norm solution, n = T = 5, d = 20")


CHECKS = {
    "fig4-ranks": Check(
        _ranks, lambda p: published_rank(p, "SCS"), lambda p: attsvm.att_svm(p, norm="nuclear").rank, trials=4
    ),
    "fig7-W": Check(_level("W", "frobenius", 3000, {"arithmetic": "naive"}), 1e-3, 1e-2, trials=10),
    "fig7-KQ": Check(_level("KQ", "nuclear", 4000, _PUBLISHED_KQ), 1e-3, 1e-2, trials=8),
    "fig7-softmax": Check(_saturation, 1.0, trials=16),
    "fig11-m": Check(_inner_dimension, lambda m, n: m >= n, trials=10),
}
