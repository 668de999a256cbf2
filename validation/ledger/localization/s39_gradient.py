"""Section 3 and Appendix B: the gradient in W_QK and the orders of its terms."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics.localization import linear_softmax, piecewise_softmax, qk_gradient_terms, random_walks
from attsvm.validation.ledger.localization._common import Array, Rng
from attsvm.validation.ledger.record import Check, Measurement, count, each

__all__ = ["CHECKS"]


def _loss(X: Array, y: Array, W: Array, W_v: Array, W_f: Array, temperature: float) -> float:
    omega = np.einsum("ntd,de,ne->nt", X, W, X[:, -1]) / temperature
    mixed = np.einsum("nt,ntd->nd", piecewise_softmax(omega), X) @ W_v.T + X[:, -1]
    return float(((y - mixed @ W_f.T) ** 2).sum(axis=1).mean() / 2)


def _derivative(formula: Any, rng: Rng, trials: int) -> Measurement:
    """Directional derivatives by central differences; draws with a signal near 0 or 1 are drawn again."""
    errors: list[float] = []
    step = 1e-6
    while len(errors) < trials:
        X = random_walks(4, 6, 3, seed=rng)
        y, (W, W_v, W_f, V) = rng.standard_normal((4, 3)), rng.standard_normal((4, 3, 3))
        signal = linear_softmax(np.einsum("ntd,de,ne->nt", X, W, X[:, -1]) / 1.5)
        if np.minimum(np.abs(signal), np.abs(signal - 1)).min() < 1e-3:
            continue
        ends = [_loss(X, y, W + s * step * V, W_v, W_f, 1.5) for s in (1, -1)]
        exact = (ends[0] - ends[1]) / (2 * step)
        own = float(np.sum(formula(X, y, W, W_v, W_f, 1.5) * V))
        errors.append(abs(own - exact) / (1 + abs(exact)))
    return count(errors, 1e-6, "relative error of directional derivatives")


@each(0.5, "1: (20)/(19) or (21)/(19) falls like a power of T, or not, against the statement")
def _orders(formula: Any, rng: Rng, k: int) -> Any:
    """Whether (20) and (21) fall relative to (19) (exponent of T below -1/2), fitted for T = 20..160.

    About a fifth of the tokens saturate. Fitted exponents are 0.0 and -1.0, with a standard error below 0.1: the
    threshold is five of them away.
    """
    d, lengths = 3, np.array([20, 40, 80, 160])
    W, W_v, W_f = np.diag([1.0, 0.7, 0.4]) * 3, np.eye(d), 1.5 * np.eye(d)  # W_F = I would leave noise of (21)
    sizes = []
    for T in lengths:
        X = random_walks(1500, T, d, seed=rng)
        y = X[:, -1] + rng.standard_normal((1500, d))
        sizes.append([np.linalg.norm(term) for term in qk_gradient_terms(X, y, W, W_v, W_f, np.sqrt(d))])
    logs = np.log(sizes)
    slopes = [np.polyfit(np.log(lengths), logs[:, k] - logs[:, 0], 1)[0] for k in (1, 2)]
    yield from [float((slope < -0.5) != falls) for slope, falls in zip(slopes, formula, strict=True)]


def _four_sums(which: Any, rng: Rng, trials: int) -> Measurement:
    """A choice (i, j, alpha, beta) -> kept of the summands of (4) against the first term of (3), T = 12 and 48."""
    errors, d = [], 2
    for _ in range(trials):
        W = np.diag([1.0, 0.5])
        for T in (12, 48):
            X = random_walks(1, T, d, seed=rng)
            signal = linear_softmax(np.einsum("ntd,de,ne->nt", X, W, X[:, -1]) / np.sqrt(d))[0]
            inside = ((signal >= 0) & (signal <= 1)).astype(float)
            gamma = (np.eye(T) / T - 1 / T**2) * inside[:, None]  # row i: gamma~^i
            x, last = X[0], X[0, -1]
            kept = gamma * (np.eye(T) if which == "diagonal" else 1.0)
            mixed = kept @ x  # sum over alpha of gamma^i_alpha x_alpha
            pulled = kept @ (x @ W @ last)
            weights = (x @ x.T) @ pulled  # sum over j of x_i.x_j pulled_j, with W_V = W_F = I
            own = np.outer(mixed.T @ weights, last) / d
            exact = qk_gradient_terms(X, X[:, -1], W, np.eye(d), np.eye(d), float(np.sqrt(d)))[0]
            errors.append(np.linalg.norm(own - exact) / np.linalg.norm(exact))
    return count(errors, 1e-8, "relative error against the first term of (3), T = 12 and 48")


def _gradient(form: str) -> Any:

    def gradient(X: Array, y: Array, W: Array, W_v: Array, W_f: Array, temperature: float) -> Array:
        return np.asarray(np.sum(qk_gradient_terms(X, y, W, W_v, W_f, temperature, form), axis=0))

    return gradient


CHECKS = {
    "39": Check(_derivative, _gradient("corrected"), trials=20),
    "39b": Check(_derivative, _gradient("printed"), _gradient("corrected"), trials=20),
    "40": Check(_orders, (True, True), (False, True), trials=2),
    "46": Check(_four_sums, "all", trials=6),
    "47": Check(_four_sums, "diagonal", "all", trials=6),
}
