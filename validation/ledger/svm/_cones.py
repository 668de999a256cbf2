"""Matrices that separate the optimal tokens with a given margin: the cones (4) and (33)."""

from __future__ import annotations

from typing import Any

import numpy as np

import attsvm
from attsvm import AttentionProblem, attention
from attsvm.validation.ledger.svm._common import Array, Rng, seed_of

__all__ = ["feasible_problem", "in_cone", "margins"]


def margins(p: AttentionProblem, W: Array) -> Array:
    """``(x_opt - x_t)^T W z``, infinite at the optimal token, shape (n, T).

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.validation.ledger.svm._cones import margins
    >>> p = attsvm.random_problem(3, 4, 5, seed=0)
    >>> round(float(margins(p, attsvm.att_svm(p).W).min()), 6)
    1.0
    """
    logits = attention.logits(p, W)
    best = p.optimal_tokens().indices[:, None]
    gaps = np.take_along_axis(logits, best, axis=1) - logits
    np.put_along_axis(gaps, best, np.inf, axis=1)
    return np.asarray(gaps)


def feasible_problem(rng: Rng, d: int = 5) -> tuple[AttentionProblem, Any]:
    """A random problem (n = 3, T = 4) whose optimal tokens are separable, and its solution.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.validation.ledger.svm._cones import feasible_problem
    >>> print(feasible_problem(np.random.default_rng(0))[1].status)
    optimal
    """
    while True:
        p = attsvm.random_problem(3, 4, d, seed=seed_of(rng), min_score_gap=0.05)
        s = attsvm.att_svm(p)
        if s.status.has_solution:
            return p, s


def in_cone(rng: Rng, p: AttentionProblem, W: Array, mu: float) -> Array:
    """A unit matrix of (33a) near its boundary: margins over |W| at least mu / |W_mm|.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.validation.ledger.svm._cones import feasible_problem, in_cone, margins
    >>> rng = np.random.default_rng(0)
    >>> p, s = feasible_problem(rng)
    >>> bool(margins(p, in_cone(rng, p, s.W, 0.5)).min() * s.norm >= 0.5)
    True
    """
    from scipy.optimize import brentq

    size, noise = np.linalg.norm(W), rng.normal(size=W.shape)
    noise /= np.linalg.norm(noise)

    def mixed(share: float) -> Array:
        return np.asarray((1 - share) * W / size + share * noise)

    def slack(share: float) -> float:
        V = mixed(share)
        return float(margins(p, V).min() / np.linalg.norm(V) - mu / size)

    # The cone is convex: along the segment it is left once, if at all. A step of 1e-8 back is inside.
    share = 1.0 if slack(1.0) >= 0 else max(0.0, brentq(slack, 0.0, 1.0, xtol=1e-9) - 1e-8)
    V = mixed(share)
    return np.asarray(V / np.linalg.norm(V))
