"""Mistakes that a careful reader could make with the formulas of this paper: each must be rejected by its check.

A list holds several for one claim. `attsvm.validation.ledger.mutate` adds constants off by ten per cent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm._lazy import lazy_module
from attsvm.validation.ledger.specialization import s1_reduction, s2_unspecialized, s3_dynamics

if TYPE_CHECKING:
    import torch

    import attsvm.dynamics.specialization as sp
else:  # claims are listed without torch
    torch, sp = lazy_module("torch"), lazy_module("attsvm.dynamics.specialization")

__all__ = ["SLIPS"]


def _printed(place: str) -> Any:
    return (s1_reduction.CHECKS | s2_unspecialized.CHECKS | s3_dynamics.CHECKS)[place].printed


def from_q(overlaps: Any) -> Any:
    values, vectors = torch.linalg.eigh(overlaps.q)
    return overlaps.m, (vectors * values.clamp_min(0).sqrt()) @ vectors.T


def doubled(activation: Any, L: Any, H: Any, b: Any) -> Any:
    c = sp.quadratic_constants(activation, L, H, b=b)
    return 2 * c.c3, c.c4


def no_threshold(B: Any, F: Any) -> Any:
    point = sp.opposite_heads(B, F)
    return sp.OrderParameters(point.m, None, 0 * point.b, point.v)


def lopsided(m: Any, r1: Any, r2: Any, b: Any, v: Any) -> Any:
    point = _printed("8")(m, r1, r2, b, v)
    return sp.OrderParameters(point.m * torch.tensor([[1.0], [2.0], [1.0]]), point.r, point.b, point.v)


def slow(start: Any, samples: Any, activation: Any, times: Any) -> Any:
    return sp.gradient_flow(start, samples, activation, [t / 2 + 1e-9 * k for k, t in enumerate(times)], step=0.5)


SLIPS: dict[str, Any] = {
    "1": from_q,
    "2": lambda rng, n, H, L: np.zeros((n, H, L)),
    "3": lambda start, samples, times: slow(start, samples, "softmax", times),
    "4": slow,
    "5": lambda lr, batch, D: True,
    "6": lambda scores, b, v: _printed("6")(scores, -b, v),
    "7": lambda scores, b: np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True),
    "8": lopsided,
    "9": lambda prior: prior.covariance[0, 1] == 0 or prior.weights[0] == 0.8,
    "10": lambda activation, L, H: 0.5 * sp.initial_gradient(activation, L, H),
    "11": (-1.0, 1.0, 1.0, 1.0),
    "12": lambda prior: prior.weights[0] == 0.8,
    "13": lambda r: 2 * r,
    "14": lambda H: 1,
    "15": lambda L, H, b, v: (0.0, 0.0),
    "16": lambda activation, L, H, variance, b: -sp.unspecialized_hessian(activation, L, H, [[variance]], b=b),
    "17": lambda activation, L, H, variance, b: np.zeros((H, H)),
    "18": doubled,
    "19": lambda prior: 3.0,
    "20": lambda activation, L, H, b, v: 2 * _printed("20")(activation, L, H, b, v),
    "21": lambda c1, r: c1 * float((r.sum(axis=1) ** 2).sum()),
    "22": lambda L, H, variance, other: (1e-9, 0.0, 1e-9),
    "23": lambda L, H, variance: -sp.unspecialized_hessian("softmax", L, H, [[variance]]),
    "24": lambda activation, L, H, variance: _printed("24")(activation, L, H, variance)[::-1],
    "25": lambda D: D**0.25,
    "26": lambda rate: rate > 0.2,
    "27": [(10.0, 12.0), (0.3, 10.0)],
    "28": lambda prior, chi: sp.position_posterior(sp.DiscretePrior(prior.atoms, np.full(3, 1 / 3)), chi),
    "29": lambda squares, D: float(squares.mean()) / D**0.5,
    "30": lambda prior: sp.OrderParameters(torch.tensor(prior.atoms)),
    "31": lambda prior, L: 0.25,
    "32": no_threshold,
    "33": lambda spikes: (spikes - 1,),
    "34": (8, 4, 2),
    "35": lambda nu: 0.0 if nu < 10 else 0.1,
    "36": (40.0, 2.0),
    "37": [(2, 0), (4, 1)],
    "40": (1.0, 1.0),
    "41": lambda H, F, most: most > H - F + 1,
    "42": lambda H, F, most: most >= H - F,
    "43": [("bayes", "softmax"), ("softmax1", "softmax")],
    "44": lambda n: 0.01 * n**0,
    "45": lambda time, batch, lr: time * batch * lr,
    "47": lambda L, b: sp.balanced_amplitude(L + 1, b),
}
