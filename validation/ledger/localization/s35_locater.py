"""Sections 6 and 8: the regularizer, its gradients, its strengths and its target."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics.localization import attention_entropy, random_walks, signal_propagation
from attsvm.validation.ledger.localization._common import Array, Rng, complex_step, eigenspectrum
from attsvm.validation.ledger.record import Check, each

__all__ = ["CHECKS"]


def _gradient(objective: Any) -> Any:
    """Check gradients in W_Q and W_K of a function of W_QK = W_Q^T W_K against complex steps."""

    @each(1e-9, "relative error of the gradients in W_Q and W_K")
    def measure(formula: Any, rng: Rng, k: int) -> Any:
        r, d = rng.integers(1, 5, size=2)
        Q, K = rng.standard_normal((2, r, d))

        def of_q(q: Array, K: Array = K) -> Any:
            return objective(q.T @ K)

        def of_k(k: Array, Q: Array = Q) -> Any:
            return objective(Q.T @ k)

        exact = complex_step(of_q, Q), complex_step(of_k, K)
        own = formula(Q, K)
        size = max(np.abs(exact[0]).max(), np.abs(exact[1]).max(), 1e-3)
        return max(np.abs(own[n] - exact[n]).max() for n in range(2)) / size

    return measure


def _printed_trace_gradient(Q: Array, K: Array) -> tuple[Array, Array]:
    t = float((Q * K).sum())
    return (t - 1) * t * K, (t - 1) * t * Q


def _trace_gradient(Q: Array, K: Array) -> tuple[Array, Array]:
    t = float((Q * K).sum())
    return 2 * (t - 1) * K, 2 * (t - 1) * Q


def _minimizer(d: int, mean: float, scale: float) -> Array:
    """Of ``mean (tr W - 1)^2 + scale |W|^2``: solve the linear system of its gradient."""
    one = np.eye(d).ravel()
    return np.asarray(np.linalg.solve(mean * np.outer(one, one) + scale * np.eye(d * d), mean * one).reshape(d, d))


@each(0.0, "growth of the scale with k2, or drift of the trace beyond 10 %")
def _roles(formula: Any, rng: Rng, k: int) -> Any:
    """With k1 = 100, a stronger k2 must shrink the scale (Figure 6 B) and keep the trace within 10 percent of 1."""
    d = int(rng.integers(3, 9))
    k2 = np.array([1e-3, 1e-2, 1e-1, 1.0]) * rng.uniform(0.5, 1)
    found = [_minimizer(d, **formula(100.0, k)) for k in k2]
    scales = np.array([np.sum(W**2) for W in found])
    return max(float(np.diff(scales).max()), max(abs(np.trace(W) - 1) - 0.1 for W in found))


@each(0.0, "participation above one half, or no window in the middle")
def _target(formula: Any, rng: Rng, k: int) -> Any:
    """W = (target/d) I, Sigma = I, lambda = sqrt(d), T = 2000: a window in the middle must keep the signal."""
    d = int(rng.integers(64, 257))
    W = formula(d) / d * np.eye(d)
    found = signal_propagation(W, 2000, method="gaussian").summary()
    return found.participation - 0.5 if found.site == "middle" else 1.0


@each(0.0, "wrong sign of the change of the entropy with the scale")
def _scale_sign(formula: Any, rng: Rng, k: int) -> Any:
    """Sign of the change of the entropy with the scale, at a fixed mean of the eigenvalues."""
    X = random_walks(20, 20, 24, seed=rng)
    low, high = (float(attention_entropy(X, eigenspectrum(rng, 24, 0.2, s)).mean()) for s in (0.01, 1.0))
    return float(np.sign(high - low) != formula)


CHECKS = {
    "35": Check(_gradient(lambda W: (W * W).sum()), lambda Q, K: (2 * K @ K.T @ Q, 2 * Q @ Q.T @ K), trials=50),
    "36": Check(_gradient(lambda W: (np.trace(W) - 1) ** 2), _printed_trace_gradient, _trace_gradient, trials=50),
    "37": Check(_roles, lambda k1, k2: {"mean": k2, "scale": k1}, lambda k1, k2: {"mean": k1, "scale": k2}, trials=10),
    "38": Check(_target, lambda d: 1.0, lambda d: 6.0 * np.sqrt(d), trials=5),
    "44": Check(_scale_sign, 1, -1, trials=10),
}
