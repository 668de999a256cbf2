"""Section 5: inequalities between trace, norms and entropy."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics.localization import entropy_lower_bound
from attsvm.softmax import softmax
from attsvm.validation.ledger.localization._common import Array, Rng, covariance, rotation, symmetric
from attsvm.validation.ledger.record import Check, each

__all__ = ["CHECKS"]


@each(1e-9, "relative excess of the left side, symmetric W_QK")
def _below(formula: Any, rng: Rng, k: int) -> Any:
    """``left <= right`` on symmetric W_QK (indefinite, near the identity, low rank) and definite Sigma."""
    d = int(rng.integers(2, 8))
    W = symmetric(rng, d)
    if k % 12 == 0:  # one entry: the norms of (7) coincide
        W = np.zeros((d, d))
        W[0, 0] = rng.normal()
    elif k % 12 == 6:  # a multiple of the identity
        W = rng.normal() * np.eye(d)
    elif k % 3 == 1:
        W = np.eye(d) + 0.1 * W
    elif k % 3 == 2:
        v = rng.standard_normal((d, 1))
        W = v @ v.T
    left, right = formula(W, covariance(rng, d) if k % 2 else np.eye(d))
    return (left - right) / right


@each(1e-9, "relative error of d^2 V[w]")
def _variance(formula: Any, rng: Rng, k: int) -> Any:
    d = int(rng.integers(2, 9))
    W = symmetric(rng, d) @ covariance(rng, d)
    w = np.linalg.eigvals(W).real
    exact = d**2 * ((w**2).mean() - w.mean() ** 2)
    return abs(formula(d, np.trace(W), np.trace(W @ W)) - exact) / exact


def _entropy(p: Array) -> float:
    return float(-(p * np.log(np.maximum(p, 1e-300))).sum())


def _extremal(T: int, nu: float) -> Array:
    """Logits of norm nu with one leader and T - 1 equal followers: the least entropy."""
    u = np.full(T, -1 / np.sqrt(T * (T - 1)))
    u[0] = np.sqrt((T - 1) / T)
    return nu * u


@each(1e-9, "bound above an entropy, or off the least one")
def _bound(formula: Any, rng: Rng, k: int) -> Any:
    """No logits of norm nu may fall below the bound, and the extremal ones must meet it (tightness)."""
    T, nu = int(rng.integers(2, 80)), float(rng.uniform(0, 10))
    bound = float(formula(nu, T))
    u = rng.standard_normal(T) ** rng.choice([1, 3])
    yield bound - _entropy(softmax(nu * u / np.linalg.norm(u)))
    yield abs(bound - _entropy(softmax(_extremal(T, nu))))


@each(0.06, "distance of the claimed maximum of the least entropy from its place")
def _peak(formula: Any, rng: Rng, k: int) -> Any:
    grid = np.linspace(0, 12, 241)
    T = int(rng.integers(3, 200))
    least = [_entropy(softmax(_extremal(T, nu))) for nu in grid]
    return abs(formula(T) - grid[int(np.argmax(least))])


def _printed_peak(T: int) -> float:
    grid = np.linspace(0, 12, 241)
    return float(grid[int(np.argmax(entropy_lower_bound(grid, T, form="printed")))])


def _spectral(W: Array) -> float:
    return float(np.linalg.norm(W, 2))


def _scale(W: Array, S: Array) -> float:
    return float(np.sqrt(np.trace(W @ S @ W @ S)))


@each(0.0, "wrong sign of the change of entropy or of the spread after one layer")
def _joint(formula: Any, rng: Rng, k: int) -> Any:
    """Signs of what happens to entropy and to the tokens' spread when the variance falls at a fixed trace."""
    d, T, draws = 32, 40, 12
    entropy, spread = {}, {}
    for scale in (0.01, 1.0):
        e, s = [], []
        for _ in range(draws):
            B = rotation(rng, d)
            w = rng.normal(0, scale, d)
            W = (B * (w - w.mean() + 0.1)) @ B.T  # trace 3.2 whatever the scale
            X = np.cumsum(rng.standard_normal((T, d)), axis=0) / np.sqrt(T)
            A = softmax(X @ W @ X.T / np.sqrt(d))
            e.append(np.mean([_entropy(row) for row in A]))
            s.append(np.linalg.norm(A @ X - (A @ X).mean(axis=0)) / np.linalg.norm(X - X.mean(axis=0)))
        entropy[scale], spread[scale] = np.mean(e), np.mean(s)
    yield float(np.sign(entropy[0.01] - entropy[1.0]) != formula["entropy"])
    yield float(np.sign(spread[0.01] - spread[1.0]) != formula["spread"])


CHECKS = {
    "28": Check(
        _below,
        lambda W, S: (abs(np.trace(W @ S)) / (np.sqrt(len(W)) * _spectral(S)), _spectral(W)),
        lambda W, S: (abs(np.trace(W @ S)) / (len(W) * _spectral(S)), _spectral(W)),
        trials=600,
    ),
    "29": Check(
        _below,
        lambda W, S: (np.linalg.norm(W), np.linalg.norm(W, 1)),
        lambda W, S: (np.linalg.norm(W), np.abs(W).sum()),
        trials=600,
    ),
    "30": Check(_variance, lambda d, trace, square: d * square - trace**2, trials=200),
    "31": Check(_bound, lambda nu, T: entropy_lower_bound(nu, T, form="printed"), entropy_lower_bound, trials=200),
    "32": Check(_peak, _printed_peak, lambda T: 0.0, trials=20),
    "33": Check(_below, lambda W, S: (abs(np.trace(W)), np.linalg.norm(np.linalg.inv(S)) * _scale(W, S)), trials=600),
    "34": Check(
        _below,
        lambda W, S: (_spectral(W), max(abs(np.trace(W)), 1e-300)),
        lambda W, S: (np.linalg.norm(W), _spectral(np.linalg.inv(S)) * _scale(W, S)),
        trials=600,
    ),
    "43": Check(_joint, {"entropy": 1, "spread": 1}, {"entropy": 1, "spread": -1}, trials=5),
}
