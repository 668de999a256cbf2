"""Trials shared by the figures that classify where gradient descent ends: Global, Local or Not local."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import attsvm
from attsvm.optimality import convergence_of
from attsvm.theory.support_assumptions import check_all_support

if TYPE_CHECKING:
    from attsvm.training.options import Arithmetic

__all__ = ["NORM_OF", "ends_of_descent", "support_assumption"]

NORM_OF = {"W": "frobenius", "KQ": "nuclear"}  # the norm whose support decides local optimality

# (K, Q) as published: both factors by their joint gradient, with a ridge of the size of the machine epsilon.
PUBLISHED_KQ: dict[str, Any] = {
    "optimizer": "normalized_gd",
    "normalization": "factor",
    "log_ridge": float(np.log(2.2e-16)),
}


def ends_of_descent(
    trials: int,
    seed: int,
    *,
    n: int,
    T: int,
    d: int,
    parameterization: str,
    steps: int,
    min_score_gap: float | None = 0.1,
    arithmetic: Arithmetic = "log",
    device: str | None = None,
) -> dict[str, Any]:
    """Draw problems, train them, and say of each whether its tokens are globally or locally optimal.

    Local optimality (Definition 2) is judged by the certified solution in the norm of the parameterization.

    Examples
    --------
    >>> from attsvm.validation.figures.svm.convergence import ends_of_descent
    >>> ends = ends_of_descent(3, 0, n=2, T=3, d=6, parameterization="W", steps=200)
    >>> len(ends["is_global"]), all(ends["is_local"])
    (3, True)
    """
    rng = np.random.default_rng(seed)
    problems = attsvm.random_problem(n=n, T=T, d=d, batch=trials, seed=rng, min_score_gap=min_score_gap)
    options = PUBLISHED_KQ if parameterization == "KQ" else {}
    run = attsvm.train(
        problems, parameterization, steps=steps, lr=0.1, seed=rng, arithmetic=arithmetic, device=device,
        snapshots=[steps], **options,
    )  # fmt: skip
    solutions = attsvm.att_svm(problems, run.selection, norm=NORM_OF[parameterization])
    kinds = convergence_of(solutions)
    return {
        "is_global": kinds == "Global",
        "is_local": np.array([kind.is_local for kind in kinds]),
        "undecided": kinds == "Undecided",
        "saturated": run.history.log_rest[-1] < np.log(1e-6),
        "margin": solutions.margin,
        "empty_support": (solutions.support.sum(axis=-1) == 0).any(axis=-1),
    }


def support_assumption(trials: int, seed: int, *, n: int, T: int, d: int, min_score_gap: float = 0.1) -> dict[str, Any]:
    """Assumption B.1 for the optimal tokens: exactly, and by the published proxy (average margin below 1.1).

    Examples
    --------
    >>> from attsvm.validation.figures.svm.convergence import support_assumption
    >>> found = support_assumption(2, 0, n=2, T=3, d=30)
    >>> sorted(found)
    ['exact', 'feasible', 'proxy']
    """
    problems = attsvm.random_problem(n=n, T=T, d=d, batch=trials, seed=seed, min_score_gap=min_score_gap)
    solutions = attsvm.att_svm(problems)
    checks = [check_all_support(solution) for solution in solutions]
    return {
        "feasible": [status is attsvm.Status.OPTIMAL for status in solutions.status],
        "exact": [exact.verdict == "holds" for exact, _ in checks],
        "proxy": [proxy.verdict == "holds" for _, proxy in checks],
    }
