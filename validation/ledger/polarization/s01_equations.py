"""The equations of the flow: signs, factors, Jacobians."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attsvm.dynamics import polarization as pol
from attsvm.validation.ledger.polarization._instances import Array, simplex, state
from attsvm.validation.ledger.record import Check, Measurement, count, each

__all__ = ["CHECKS"]


def _gap(found: Any, expected: Any) -> float:
    return float(np.max(np.abs(np.asarray(found) - np.asarray(expected))) / (1 + np.max(np.abs(np.asarray(expected)))))


@each(1e-12, "relative error against autograd")
def _full_gradient(formula: Callable[..., tuple[Array, Array]], rng: np.random.Generator, k: int) -> Any:
    """Rates against autograd of the loss itself."""
    import torch

    V, a, beta = state(rng)
    Vt, at = torch.tensor(V, requires_grad=True), torch.tensor(a, requires_grad=True)
    m = torch.tensor(beta) @ (Vt @ torch.softmax(at, 0))
    torch.autograd.backward(torch.nn.functional.softplus(-m))
    dV, da = formula(V, a, pol.LogisticLoss(beta).descent(V @ np.exp(a) / np.exp(a).sum()))
    assert Vt.grad is not None and at.grad is not None
    return max(_gap(dV, -Vt.grad.numpy()), _gap(da, -at.grad.numpy()))


def _reduced(loss: str) -> Callable[[Any, np.random.Generator, int], Measurement]:
    @each(1e-12, "relative error against the full gradient")
    def measure(formula: Callable[..., tuple[Array, Array]], rng: np.random.Generator, k: int) -> Any:
        V, a, beta = state(rng)
        b = float(beta @ beta)
        if loss == "square":
            V = np.outer(beta, rng.standard_normal(6)) / b  # Lemma 3.5: V is along beta_*
        s = np.exp(a) / np.exp(a).sum()
        kind: Any = pol.LogisticLoss(beta) if loss == "logistic" else pol.SquareLoss(beta)
        dV, da = pol.full_rates(V, a, kind.descent(V @ s))
        u = V.T @ beta
        found = formula(u, s, b, float(pol.aligned_rate(loss, u @ s, b)))
        return max(_gap(found[0], dV.T @ beta), _gap(found[1], da))

    return measure


def _pull(s: Array, u: Array) -> Array:
    return np.asarray(s * (u - s @ u))


@each(1e-12, "relative error against gamma J u")
def _logit_rate(formula: Callable[..., Array], rng: np.random.Generator, k: int) -> Any:
    u, a = rng.standard_normal(5), rng.standard_normal(5)
    s = np.exp(a) / np.exp(a).sum()
    gamma = float(pol.aligned_rate("logistic", u @ s))
    return _gap(formula(u, s, gamma), gamma * (np.diag(s) - np.outer(s, s)) @ u)


@each(1e-8, "relative error against central differences")
def _score_rate(formula: Callable[..., Array], rng: np.random.Generator, k: int) -> Any:
    u, a, h = rng.standard_normal(5), rng.standard_normal(5), 1e-6
    s = pol.get_normalization("softmax").scores
    da = pol.orbit_rates(u, a, 1.0)[1]
    return _gap(formula(u, s(a)), (s(a + h * da) - s(a - h * da)) / (2 * h))


@each(1e-7, "relative error of the descent direction")
def _square_loss(formula: Callable[[Array, Array], float], rng: np.random.Generator, k: int) -> Any:
    """Whether the loss has the flow (21)-(22), driven by ``beta_* - beta``."""
    beta, target, h = rng.standard_normal(4), rng.standard_normal(4), 1e-6
    slope = [-(formula(beta + e, target) - formula(beta - e, target)) / (2 * h) for e in h * np.eye(4)]
    return _gap(slope, target - beta)


@each(0.0, "fall of log(s_i / s_j) for a pair on the two sides of the average")
def _amplified(formula: Callable[..., float], rng: np.random.Generator, k: int) -> Any:
    """Every pair of coordinates above and below a threshold formula(u, s): the ratio of their scores must grow."""
    s, u = simplex(rng, 8), rng.standard_normal(8)
    if k % 2:  # a heavy last token: the weighted average is far from the plain one
        s = s * 0.1
        s[-1] += 0.9
    rate = _pull(s, _pull(s, u)) / s  # d log s / d tau
    above = u > formula(u, s)
    if above.all() or not above.any():
        return None
    return float(rate[~above].max() - rate[above].min())


@each(1e-7, "relative error of d beta / dt")
def _kernel(formula: Callable[..., Array], rng: np.random.Generator, k: int) -> Any:
    h, scores = 1e-6, pol.get_normalization("softmax").scores
    V, a, g = state(rng)
    dV, da = pol.full_rates(V, a, -g)
    numeric = ((V + h * dV) @ scores(a + h * da) - (V - h * dV) @ scores(a - h * da)) / (2 * h)
    return _gap(-formula(V, a) @ g, numeric)


@each(1e-12, "how far the rate falls short")
def _decrease(formula: Callable[[int, int], float], rng: np.random.Generator, k: int) -> Any:
    """``-dl/dt >= share |grad l|^2`` for square V; formula(p, d) is the share."""
    p = int(rng.integers(2, 9))
    V, a, g = 0.1 * rng.standard_normal((p, p)), 0.3 * rng.standard_normal(p), rng.standard_normal(p)
    return formula(p, p) - float(g @ pol.tangent_kernel(V, a) @ g) / float(g @ g)


def _shapes(formula: Callable[[Array, Array], Array], rng: np.random.Generator, trials: int) -> Measurement:
    """Projections of row-wise attention, V (T, d): each must be the score of its own row."""
    errors = []
    for _ in range(trials):
        V, beta = rng.standard_normal((5, 3)), rng.standard_normal(3)
        try:
            found = np.asarray(formula(V, beta))
            errors.append(_gap(found, [row @ beta for row in V]) if found.shape == (5,) else np.inf)
        except ValueError:
            errors.append(np.inf)
    return count(errors, 1e-12, "infinite: the shapes do not fit")


CHECKS = {
    "C01": Check(_full_gradient, pol.full_rates),
    "C02": Check(
        _reduced("logistic"),
        lambda u, s, b, gamma: (-gamma * b * s, -gamma * _pull(s, u)),
        lambda u, s, b, gamma: (gamma * b * s, gamma * _pull(s, u)),
    ),
    "C03": Check(
        _reduced("square"),
        lambda u, s, b, gamma: (-gamma * b * s, -gamma * _pull(s, u)),
        lambda u, s, b, gamma: (gamma * b * s, gamma * _pull(s, u)),
    ),
    "C04": Check(
        _logit_rate, lambda u, s, gamma: gamma * s * (u - gamma * (s @ u)), lambda u, s, gamma: gamma * s * (u - s @ u)
    ),
    "C05": Check(_score_rate, lambda u, s: _pull(s, _pull(s, u))),
    "C06": Check(
        _square_loss,
        lambda beta, target: float((beta - target) @ (beta - target)),
        lambda beta, target: float((beta - target) @ (beta - target)) / 2,
    ),
    "C07": Check(_amplified, lambda u, s: float(s @ u), trials=400),
    "C36": Check(_decrease, lambda p, d: 1.0 / d),
    "C37": Check(_kernel, lambda V, a: pol.tangent_kernel(V, a, form="printed"), pol.tangent_kernel),
    "C48": Check(_shapes, lambda V, beta: V.T @ beta, lambda V, beta: V @ beta),
}
