"""Sections 2 and 3: the piecewise-linear softmax, and moments of Gaussian quadratic forms (Lemma 3)."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics.localization import piecewise_softmax, random_walks, softmax_expansion, token_logits
from attsvm.softmax import softmax
from attsvm.validation.ledger.localization._common import Array, Rng, covariance, gaussian_expectation, symmetric
from attsvm.validation.ledger.record import Check, each

__all__ = ["CHECKS"]


@each(1e-9, "error of the expansion at zero logits")
def _expansion(formula: Any, rng: Rng, k: int) -> Any:
    """Against central differences of the softmax at zero (error 1e-10 at this step)."""
    step = 1e-5
    T = int(rng.integers(2, 30))
    gamma, gamma_0 = formula(T)
    numeric = np.stack([(softmax(step * e) - softmax(-step * e)) / (2 * step) for e in np.eye(T)], axis=1)
    return max(np.abs(gamma - numeric).max(), abs(gamma_0 - softmax(np.zeros(T))[0]))


@each(0.05, "relative error of <gamma^i, omega> at T = 400")
def _selector(formula: Any, rng: Rng, k: int) -> Any:
    """The linear part for logits of a random walk at T = 400, against differences of the softmax."""
    step, T = 1e-6, 400
    omega = token_logits(random_walks(1, T, 4, seed=rng)[0], symmetric(rng, 4))
    size = float(np.abs(omega).max())
    numeric = (softmax(step * omega / size) - softmax(-step * omega / size)) / (2 * step) * size
    return np.linalg.norm(formula(omega) - numeric) / np.linalg.norm(numeric)


@each(1e-12, "deviation of the mixing weights' sum from 1")
def _mixing(formula: Any, rng: Rng, k: int) -> Any:
    X = rng.standard_normal((3, 7))  # tokens are columns
    A = formula(X.T @ rng.standard_normal((3, 3)) @ X)
    return np.abs(A.sum(axis=0) - 1).max()


@each(1e-12, "weight of a token whose signal is outside [0, 1]")
def _outside(formula: Any, rng: Rng, k: int) -> Any:
    omega = 40 * rng.standard_normal(8)
    signal = (omega - omega.mean() + 1) / 8
    outside = (signal < 0) | (signal > 1)
    used = np.array([formula(s) for s in signal[outside]])
    return np.abs(used - piecewise_softmax(omega)[outside]).max(initial=0.0)


@each(1e-10, "relative error against exact quadrature")
def _lemma3(formula: Any, rng: Rng, k: int) -> Any:
    W, S, a, m = symmetric(rng, 2), covariance(rng, 2), rng.standard_normal(2), rng.standard_normal(2)
    factor: Array = np.asarray(np.linalg.cholesky(S), dtype=np.float64)

    def values(g: Array, W: Array = W, a: Array = a, m: Array = m, factor: Array = factor) -> Array:
        x = g @ factor.T + m
        form = np.einsum("nd,de,ne->n", x, W, x)
        return np.stack([form, x[:, 0] * x[:, 1], (x @ W @ a) * form, form**2], axis=1)

    exact = gaussian_expectation(values, 2)
    return np.abs((np.array(formula(W, S, a, m)) - exact) / (1 + np.abs(exact))).max()


def _moments(W: Array, S: Array, a: Array, m: Array) -> tuple[Any, ...]:
    """Equations (11), one entry of (12), (13) and (14)."""
    WS, form = W @ S, m @ W @ m
    t = np.trace(WS)
    third = 2 * a @ W @ S @ W @ m + (a @ W @ m) * (t + form)
    fourth = 2 * np.trace(WS @ WS) + t**2 + 4 * m @ W @ S @ W @ m + 2 * t * form + form**2
    return t + form, (S + np.outer(m, m))[0, 1], third, fourth


CHECKS = {
    "1": Check(_expansion, softmax_expansion, trials=20),
    "2": Check(
        _selector, lambda omega: omega / len(omega), lambda omega: (omega - omega.mean()) / len(omega), trials=20
    ),
    "3": Check(_mixing, lambda L: softmax(L), lambda L: softmax(L.T).T, trials=20),
    "4": Check(_outside, lambda signal: 0.0, lambda signal: float(signal > 1), trials=20),
    "5": Check(_lemma3, _moments, trials=50),
}
