"""Sections 2 and 3: the piecewise-linear softmax, and moments of Gaussian quadratic forms (Lemma 3)."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics.localization import piecewise_softmax, random_walks, softmax_expansion, token_logits
from attsvm.softmax import softmax
from attsvm.validation.ledger.localization._common import Array, Rng, covariance, gaussian_expectation, symmetric
from attsvm.validation.ledger.record import Claim, Measurement, Verdict, count, each

__all__ = ["CLAIMS"]


def _expansion(formula: Any, rng: Rng, trials: int) -> Measurement:
    """Against central differences of the softmax at zero (error 1e-10 at this step)."""
    errors, step = [], 1e-5
    for _ in range(trials):
        T = int(rng.integers(2, 30))
        gamma, gamma_0 = formula(T)
        numeric = np.stack([(softmax(step * e) - softmax(-step * e)) / (2 * step) for e in np.eye(T)], axis=1)
        errors.append(max(np.abs(gamma - numeric).max(), abs(gamma_0 - softmax(np.zeros(T))[0])))
    return count(errors, 1e-9, "error of the expansion at zero logits")


def _selector(formula: Any, rng: Rng, trials: int) -> Measurement:
    """The linear part for logits of a random walk at T = 400, against differences of the softmax."""
    errors, step, T = [], 1e-6, 400
    for _ in range(trials):
        omega = token_logits(random_walks(1, T, 4, seed=rng)[0], symmetric(rng, 4))
        size = float(np.abs(omega).max())
        numeric = (softmax(step * omega / size) - softmax(-step * omega / size)) / (2 * step) * size
        errors.append(np.linalg.norm(formula(omega) - numeric) / np.linalg.norm(numeric))
    return count(errors, 0.05, "relative error of <gamma^i, omega> at T = 400")


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


CLAIMS = (
    Claim(
        "localization:1",
        "Section 2",
        "The softmax expands at zero as gamma^i = e^i/T - 1/T^2, gamma_0 = 1/T.",
        Verdict.HOLDS,
        _expansion,
        softmax_expansion,
        correction="<gamma^i, omega> = (omega_i - mean omega)/T; the clipped approximation is no probability vector",
        evidence="agrees with differences of the softmax to 1e-10; clipped weights sum to 1.6 - 2.8 for large logits",
        trials=20,
    ),
    Claim(
        "localization:2",
        "Remark 2",
        "For large T, gamma^i = T^-1 e^i + o(1) behaves like a selector of token i.",
        Verdict.IMPRECISE,
        _selector,
        lambda omega: omega / len(omega),
        lambda omega: (omega - omega.mean()) / len(omega),
        correction="true entry by entry; the T entries of size 1/T^2 add up, so <gamma^i, omega> = (omega_i - mean "
        "omega)/T selects the deviation from the mean",
        evidence="relative error of the selector 0.5 - 5 on logits of random walks at T = 400",
        trials=20,
    ),
    Claim(
        "localization:3",
        "(1)",
        "The softmax of X^T W_QK X is taken along each row.",
        Verdict.TYPO,
        _mixing,
        lambda L: softmax(L),
        lambda L: softmax(L.T).T,
        correction="over the keys, that is along each column, since the output is W_V X A (Section 5 says columns)",
        evidence="row-wise, the weights of an output token sum to 0.02 - 3",
        trials=20,
    ),
    Claim(
        "localization:4",
        "Section 3",
        "A token whose signal is outside [0, 1] has the constant weight gamma~_0, which hinders it from contributing.",
        Verdict.IMPRECISE,
        _outside,
        lambda signal: 0.0,
        lambda signal: float(signal > 1),
        correction="below 0 it has weight 0; above 1 it enters (2) with weight 1, and only its gradient is lost",
        evidence="tokens above 1 enter with full weight",
        trials=20,
    ),
    Claim(
        "localization:5",
        "Lemma 3, (11)-(14)",
        "Second to fourth moments of x ~ N(m, Sigma) in quadratic forms.",
        Verdict.HOLDS,
        _lemma3,
        _moments,
        correction="'Fix a, mu' should read 'a, m'",
        evidence="exact to 1e-13 against a Gauss-Hermite rule that integrates them exactly",
        trials=50,
    ),
)
