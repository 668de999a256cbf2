"""Appendix B and Lemma 9: gradients, Lipschitz constants and the descent lemma."""

from __future__ import annotations

from typing import Any

import numpy as np

import attsvm
from attsvm import AttentionProblem, LinearHead, attention
from attsvm.softmax import softmax
from attsvm.validation.ledger.record import Check, Measurement, count, each
from attsvm.validation.ledger.svm._common import LOSS_NAMES, Array, Rng, autograd, make, seed_of

__all__ = ["CHECKS"]


def _jacobian(s: Array) -> Array:
    return np.asarray(s[..., :, None] * np.eye(s.shape[-1]) - s[..., :, None] * s[..., None, :])


def _terms(p: AttentionProblem, W: Array, loss: str) -> tuple[Array, Array, Array]:
    """``X_i^T S' gamma_i`` (n, d), ``z_i`` (n, d) and ``l'_i`` (n,): the factors of equation (15)."""
    scores = p.scores()
    s = attention.probabilities(p, W)
    pulled = np.einsum("itd,itu,iu->id", p.X, _jacobian(s), scores)
    return pulled, p.Z, attsvm.get_loss(loss).derivative((s * scores).sum(axis=1))


def _outer(left: Array, right: Array, weight: Array) -> Array:
    return np.asarray(np.einsum("i,id,ie->de", weight, left, right) / len(weight))


def _gradient_of(place: int | None) -> Any:
    """Check of a formula for grad_W (None), grad_K (0) or grad_Q (1) against automatic differentiation."""

    @each(1e-8, "relative error against automatic differentiation")
    def measure(formula: Any, rng: Rng, k: int) -> Any:
        loss = LOSS_NAMES[k % 3]
        p = attsvm.random_problem(3, 4, 5, seed=seed_of(rng))
        K, Q = rng.normal(size=(2, 5, 5))
        left, right, slope = _terms(p, K @ Q.T, loss)
        if place is None:
            own, exact = formula(left, right, slope), autograd(p, (K @ Q.T,), loss)[0]
        else:
            own, exact = formula(left, right, slope, K, Q), autograd(p, (K, Q), loss)[place]
        return np.linalg.norm(own - exact) / np.linalg.norm(exact)

    return measure


def _pairs(rng: Rng, trials: int) -> list[tuple[Array, Array]]:
    """Logits and nearby logits, where Lipschitz ratios are largest."""
    out = []
    for _ in range(trials):
        T = int(rng.integers(2, 6))
        h = rng.normal(size=T) * rng.uniform(0.1, 3)
        step = rng.normal(size=T)
        out.append((h, h + 1e-4 * (step - step.mean()) / np.linalg.norm(step)))
    return out


def _jacobian_norm(formula: float, rng: Rng, trials: int) -> Measurement:
    norms = [np.linalg.norm(_jacobian(softmax(h))) for h, _ in _pairs(rng, trials)]
    return count(np.array(norms) - formula, 1e-12, "Frobenius norm of S' minus the bound")


def _lipschitz(function: Any) -> Any:
    def measure(formula: float, rng: Rng, trials: int) -> Measurement:
        ratios = [
            np.linalg.norm(function(softmax(h)) - function(softmax(g))) / np.linalg.norm(h - g)
            for h, g in _pairs(rng, trials)
        ]
        return count(np.array(ratios) - formula, 1e-6, "largest difference quotient minus the constant")

    return measure


def _scaled_problem(rng: Rng) -> AttentionProblem:
    """Two sequences in the plane with tokens, queries and head of very different lengths."""
    p = attsvm.random_problem(2, 3, 2, seed=seed_of(rng))
    assert isinstance(p.head, LinearHead)
    x, z = 10 ** rng.uniform(-1.5, 1.5, size=2)
    v = 10 ** rng.uniform(-0.7, 0.7) / x  # scores stay moderate: the exponential loss must not overflow
    return make(x * p.X, p.Y, z * p.Z, v * p.head.v)


def _gradient(p: AttentionProblem, W: Array, loss: str) -> Array:
    left, right, slope = _terms(p, W, loss)
    return _outer(left, right, slope)


def _curvature(gradient: Any, at: Array) -> float:
    """Norm of the Hessian, by central differences of a gradient along every coordinate."""
    size = 1e-4
    columns = []
    for j in range(at.size):
        step = np.zeros(at.shape)
        step.flat[j] = size
        columns.append((gradient(at + step) - gradient(at - step)).ravel() / (2 * size))
    return float(np.linalg.norm(np.array(columns), 2))


@each(1.0, "curvature over the constant")
def _smoothness(formula: Any, rng: Rng, k: int) -> Any:
    p, loss = _scaled_problem(rng), LOSS_NAMES[k % 3]
    size = np.linalg.norm(p.X[0]) * np.linalg.norm(p.Z[0])
    W = rng.normal(size=(2, 2)) * rng.uniform(0, 4) / size
    # The Hessian is compared in units in which logits move by about 1, for accurate differences.
    scale = 1 / size
    hessian = _curvature(lambda w, p=p, loss=loss, c=scale: c * _gradient(p, c * w, loss), W / scale) / scale**2
    return hessian / formula(p, loss)


def _factor_smoothness(place: int) -> Any:
    @each(1.0, "curvature in one factor over the constant")
    def measure(formula: Any, rng: Rng, k: int) -> Any:
        p, loss = attsvm.random_problem(2, 3, 2, seed=seed_of(rng)), LOSS_NAMES[k % 3]
        other = rng.normal(size=(2, 2)) * 10 ** rng.uniform(-1, 2.5)
        own = rng.normal(size=(2, 2)) / np.linalg.norm(other)
        scale = 1 / float(np.linalg.norm(other))

        def gradient(A: Array, p: Any = p, loss: str = loss, other: Array = other, c: float = scale) -> Array:
            if place == 0:
                return np.asarray(c * _gradient(p, c * A @ other.T, loss) @ other)
            return np.asarray(c * _gradient(p, c * other @ A.T, loss).T @ other)

        hessian = _curvature(gradient, own / scale) / scale**2
        return hessian / formula(np.linalg.norm(other, 2), attsvm.smoothness_constant(p, loss))

    return measure


def _printed_smoothness(p: AttentionProblem, loss: str) -> float:
    M0, M1 = p.loss_constants(loss)
    assert isinstance(p.head, LinearHead)
    v, z = np.linalg.norm(p.head.v), np.linalg.norm(p.Z, axis=1)
    X = np.linalg.norm(p.X, 2, axis=(1, 2))
    return float((v * z**2 * X**3 * (M0 * v * X + 3 * M1)).mean())


@each(1 + 1e-9, "error over the bound")
def _lemma8(formula: Any, rng: Rng, k: int) -> Any:
    """Error of dropping the square, over the bound; every other instance is extreme (a, gamma at their bounds)."""
    T = int(rng.integers(2, 6))
    a, g = rng.normal(size=(2, T))
    if k % 2:
        a, g = np.full(T, -1.0), np.zeros(T)
        a[0], g[0] = 1.0, 1.0
    s = softmax(rng.normal(size=T) * rng.uniform(0.1, 5))
    error = abs(a @ _jacobian(s) @ g - ((a[0] - a) * s * (g[0] - g)).sum())
    # 1e-14: rounding, which matters once s_1 is close to 1
    return (error - 1e-14) / formula(np.ptp(g), np.abs(a).max(), s[0])


@each(1e-15, "loss change minus the bound")
def _descent(formula: Any, rng: Rng, k: int) -> Any:
    loss = LOSS_NAMES[k % 3]
    p = attsvm.random_problem(3, 4, 4, seed=seed_of(rng))
    eta = rng.uniform(0.1, 1) / float(np.asarray(attsvm.smoothness_constant(p, loss)))
    W = rng.normal(size=(4, 4)) * rng.uniform(0, 3)
    for _ in range(10):
        g = _gradient(p, W, loss)
        new = W - eta * g
        change = float(attention.risk(p, new, loss) - attention.risk(p, W, loss))
        yield change - formula(eta, float((g * g).sum()))
        W = new


@each(1e-9, "relative excess over the bound on the sum of squared gradients, or the smallest of them over its bound")
def _summable(formula: Any, rng: Rng, k: int) -> Any:
    """Plain descent for 300 steps at eta = 1/L_W: sum |grad|^2 against a bound of (eta, L(0) - L*)."""
    loss = LOSS_NAMES[k % 3]
    p = attsvm.random_problem(2, 3, 3, seed=seed_of(rng))
    eta = 1 / float(np.asarray(attsvm.smoothness_constant(p, loss)))
    W, squares = rng.normal(size=(3, 3)) * rng.uniform(0, 2), []
    first = float(attention.risk(p, W, loss))
    for _ in range(300):
        g = _gradient(p, W, loss)
        squares.append(float((g * g).sum()))
        W = W - eta * g
    bound = formula(eta, first - float(attention.risk(p, W, loss)))
    return max(sum(squares), 300 * min(squares)) / bound - 1


CHECKS = {
    "eq15": Check(_gradient_of(None), _outer, trials=90),
    "eq19": Check(_gradient_of(None), lambda left, right, slope: _outer(right, left, slope), _outer, trials=60),
    "eq20a": Check(
        _gradient_of(0),
        lambda left, right, slope, K, Q: _outer(right, left, slope) @ Q,
        lambda left, right, slope, K, Q: _outer(left, right, slope) @ Q,
        trials=60,
    ),
    "eq20b": Check(
        _gradient_of(1),
        lambda left, right, slope, K, Q: _outer(left, right, slope) @ K,
        lambda left, right, slope, K, Q: _outer(right, left, slope) @ K,
        trials=60,
    ),
    "eq17": Check(_jacobian_norm, 1.0, trials=1000),
    "eq18a": Check(_lipschitz(lambda s: s), 1.0, trials=1000),
    "eq18b": Check(_lipschitz(_jacobian), 3.0, trials=1000),
    "eq3-LW": Check(_smoothness, _printed_smoothness, trials=300),
    "eq3-LK": Check(_factor_smoothness(0), lambda other, L: other * L, lambda other, L: other**2 * L, trials=200),
    "eq3-LQ": Check(_factor_smoothness(1), lambda other, L: other * L, lambda other, L: other**2 * L, trials=200),
    "lemma8": Check(_lemma8, lambda Gamma, A, s1: 2 * Gamma * A * (1 - s1) ** 2, trials=1000),
    "lemma9": Check(_descent, lambda eta, g2: -eta / 2 * g2, trials=90),
    "lemma9-sum": Check(_summable, lambda eta, fall: 2 / eta * fall, trials=30),
}
