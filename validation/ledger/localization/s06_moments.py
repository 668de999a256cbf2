"""Lemma 1, Lemma 4 and their proofs: moments of the walk and of the signal."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics.localization import linear_softmax, qk_spectrum, signal_moments, walk_moment
from attsvm.validation.ledger.localization._common import (
    Array,
    Rng,
    covariance,
    gaussian_expectation,
    signal_form,
    symmetric,
)
from attsvm.validation.ledger.record import Check, each

__all__ = ["CHECKS"]


def _walk(equation: int) -> Any:
    """Check a moment of x_i, x_j, x_T in the plane against a product rule that integrates it exactly."""

    @each(1e-8, "relative error against exact quadrature")
    def measure(formula: Any, rng: Rng, k: int) -> Any:
        i, j, T = np.sort(rng.integers(1, 12, size=3))
        W, S = symmetric(rng, 2), covariance(rng, 2)
        factor: Array = np.asarray(np.linalg.cholesky(S), dtype=np.float64)

        def values(g: Array, i: int = i, j: int = j, T: int = T, W: Array = W, factor: Array = factor) -> Array:
            steps = np.sqrt([i, j - i, T - j])[:, None] * g.reshape(-1, 3, 2) @ factor.T
            x_i, x_j, x_T = np.moveaxis(np.cumsum(steps, axis=1), 1, 0)

            def form(a: Array, b: Array) -> Array:
                return np.asarray(np.einsum("nd,de,ne->n", a, W, b))

            if equation == 15:
                return form(x_i, x_i)
            if equation == 16:
                return form(x_i, x_i) ** 2
            if equation == 17:
                return form(x_i, x_j) ** 2
            if equation == 18:
                return form(x_i, x_j) * form(x_j, x_j)
            return form(x_i, x_T) * form(x_j, x_T)

        exact = float(gaussian_expectation(values, 6))
        own = formula(int(i), int(j), int(T), np.trace(W @ S), np.trace(W @ S @ W @ S))
        return abs(own - exact) / (abs(exact) + 1e-3)

    return measure


@each(1.000001, "T times the error over |r|/2 + 1, T = 50, 400, 3200")
def _mean(formula: Any, rng: Rng, k: int) -> Any:
    """T times the error of the mean stays below |r|/2 + 1: first order in 1/T."""
    r = float(rng.uniform(-10, 10))
    for T in (50, 400, 3200):
        exact = linear_softmax(r * np.arange(1, T + 1))  # E omega_t = t tr(W) / temperature; the signal is linear
        yield T * np.abs(formula(T, r) - exact).max() / (abs(r) / 2 + 1)


@each(0.04, "relative error of the variance at T = 200")
def _variance(formula: Any, rng: Rng, k: int) -> Any:
    """Relative error at theta = 0.05, 0.25, 0.5, 0.75, 1 and T = 200; corrections of order 1/T are below 4 percent."""
    T = 200
    W, S = symmetric(rng, 1), covariance(rng, 1)
    for theta in (0.05, 0.25, 0.5, 0.75, 1.0):
        exact = 2 * float(np.sum(signal_form(W, S, T, round(theta * T)) ** 2))
        own = formula(theta) * float((W @ S).item() ** 2)
        yield abs(own - exact) / exact


@each(2e-3, "error of the term (B2) over T^3 at T = 4000")
def _b2(formula: Any, rng: Rng, k: int) -> Any:
    """Coefficients of tr(W^2) and tr(W)^2 in 2 sum_{j>i} E[x_i W x_T x_j W x_T], over T^3, at T = 4000."""
    T = 4000
    i = int(rng.integers(1, T))
    j = np.arange(i + 1, T + 1, dtype=np.float64)
    exact = 2 * (T * i + i * j).sum() / T**3, 2 * (i * j).sum() / T**3
    own = formula(i, T)
    return max(abs(own[k] / T**3 - exact[k]) for k in range(2))


@each(1e-9, "relative error of the variance under the symmetrized matrix, T = 12")
def _asymmetric(formula: Any, rng: Rng, k: int) -> Any:
    T = 12
    A, S = rng.standard_normal((3, 3)), covariance(rng, 3)
    exact = [2 * float(np.sum(signal_form((A + A.T) / 2, S, T, i) ** 2)) for i in range(1, T + 1)]
    return np.abs(formula(A, S, T) / exact - 1).max()


@each(1e-9, "excess of |tr W| over the bound, symmetric W_QK")
def _trace_bound(formula: Any, rng: Rng, k: int) -> Any:
    d = int(rng.integers(1, 8))
    W = np.eye(d) if rng.random() < 0.1 else symmetric(rng, d) + rng.normal() * np.eye(d)
    product = W @ covariance(rng, d) if rng.random() < 0.5 else W
    right = formula(d, float(np.trace(product @ product)))
    return (abs(np.trace(product)) - right) / right


def _equation(number: int) -> Check:
    def form(name: str) -> Any:
        return lambda i, j, T, trace, square: walk_moment(number, i, j, T, trace, square, form=name)

    return Check(_walk(number), form("printed"), form("corrected"), trials=20)


CHECKS = {
    "6": _equation(15),
    "7": _equation(16),
    "8": _equation(17),
    "9": _equation(18),
    "10": _equation(22),
    "11": Check(_mean, lambda T, r: (np.arange(1, T + 1) / T - 0.5) * r, trials=20),
    "12": Check(
        _variance, lambda theta: 2 * theta**2 + 7 / 12, lambda theta: 2 * (theta - 0.5) ** 2 + 1 / 12, trials=3
    ),
    "13": Check(
        _b2,
        lambda i, T: (T * T * i - 2 * T * i * i - i**3, T * T * i - i**3),
        lambda i, T: (3 * T * T * i - 2 * T * i * i - i**3, T * T * i - i**3),
        trials=50,
    ),
    "14": Check(
        _asymmetric,
        lambda A, S, T: signal_moments(qk_spectrum(A, S).symmetrized(), T, temperature=1.0).variance,
        trials=20,
    ),
    "15": Check(_trace_bound, lambda d, square: np.sqrt(d * square), trials=2000),
}
