"""Checks on polarization: the equations of the flow (signs, factors, Jacobians) and what its orbit does.

Theorems 3.2 and 3.3 and Lemma B.1 say order, repulsion, decay and the one-hot limit; margins are read as errors. Random
instances that the other checks of this paper use are here too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import numpy as np

from attsvm.dynamics import polarization as pol
from attsvm.solvers.arrays import FloatArray
from attsvm.validation.ledger.claim_record import Check, Measurement, count, each

__all__ = [
    "CHECKS_EQUATIONS",
    "CHECKS_ORBIT",
    "excess",
    "flows",
    "ordered",
    "simplex",
    "state",
]


def ordered(rng: np.random.Generator, size: tuple[int, ...] | int, scale: float = 1.0) -> FloatArray:
    """Normal projections, largest first (Assumption 3.1)."""
    return -np.sort(-scale * rng.standard_normal(size), axis=-1)


def simplex(rng: np.random.Generator, p: int) -> FloatArray:
    """Softmax of normal logits."""
    weights = np.exp(rng.standard_normal(p))
    return np.asarray(weights / weights.sum())


def state(rng: np.random.Generator) -> tuple[FloatArray, FloatArray, FloatArray]:
    """V (4, 6), a (6,), beta_* (4,)."""
    return rng.standard_normal((4, 6)), rng.standard_normal(6), rng.standard_normal(4)


@lru_cache(maxsize=32)
def _flows(seed: int, trials: int, scales: tuple[float, ...], t_end: float) -> tuple[pol.Flow, ...]:
    rng = np.random.default_rng(seed)
    found = []
    for p, b in zip((3, 6, 9), scales, strict=True):
        many = max(2, -(-trials // 3))
        found.append(pol.aligned_flow(ordered(rng, (many, p)), b=b, t_end=t_end, points=30))
    return tuple(found)


def flows(
    rng: np.random.Generator, trials: int, scales: tuple[float, ...] = (0.04, 1.0, 9.0), t_end: float = 1e8
) -> Iterable[pol.Flow]:
    """Batches of logistic flows from a(0) = 0 with 3, 6, 9 tokens and the given b; both forms of a claim share them."""
    return _flows(int(rng.integers(2**31)), trials, scales, t_end)


def excess(
    margin: Callable[[pol.Flow], Any], batches: Iterable[pol.Flow], detail: str, tolerance: float = 0.0
) -> Measurement:
    """A margin as an error: what is not positive violates the statement."""
    return count(np.concatenate([np.atleast_1d(-np.asarray(margin(batch))) for batch in batches]), tolerance, detail)


def _gap(found: Any, expected: Any) -> float:
    return float(np.max(np.abs(np.asarray(found) - np.asarray(expected))) / (1 + np.max(np.abs(np.asarray(expected)))))


@each(1e-12, "relative error against autograd")
def _full_gradient(formula: Callable[..., tuple[FloatArray, FloatArray]], rng: np.random.Generator, k: int) -> Any:
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
    def measure(formula: Callable[..., tuple[FloatArray, FloatArray]], rng: np.random.Generator, k: int) -> Any:
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


def _pull(s: FloatArray, u: FloatArray) -> FloatArray:
    return np.asarray(s * (u - s @ u))


@each(1e-12, "relative error against gamma J u")
def _logit_rate(formula: Callable[..., FloatArray], rng: np.random.Generator, k: int) -> Any:
    u, a = rng.standard_normal(5), rng.standard_normal(5)
    s = np.exp(a) / np.exp(a).sum()
    gamma = float(pol.aligned_rate("logistic", u @ s))
    return _gap(formula(u, s, gamma), gamma * (np.diag(s) - np.outer(s, s)) @ u)


@each(1e-8, "relative error against central differences")
def _score_rate(formula: Callable[..., FloatArray], rng: np.random.Generator, k: int) -> Any:
    u, a, h = rng.standard_normal(5), rng.standard_normal(5), 1e-6
    s = pol.get_normalization("softmax").scores
    da = pol.orbit_rates(u, a, 1.0)[1]
    return _gap(formula(u, s(a)), (s(a + h * da) - s(a - h * da)) / (2 * h))


@each(1e-7, "relative error of the descent direction")
def _square_loss(formula: Callable[[FloatArray, FloatArray], float], rng: np.random.Generator, k: int) -> Any:
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
def _kernel(formula: Callable[..., FloatArray], rng: np.random.Generator, k: int) -> Any:
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


@each(1e-12, "infinite: the shapes do not fit")
def _shapes(formula: Callable[[FloatArray, FloatArray], FloatArray], rng: np.random.Generator, k: int) -> Any:
    """Projections of row-wise attention, V (T, d): each must be the score of its own row."""
    V, beta = rng.standard_normal((5, 3)), rng.standard_normal(3)
    try:
        found = np.asarray(formula(V, beta))
    except ValueError:
        return np.inf
    return _gap(found, [row @ beta for row in V]) if found.shape == (5,) else np.inf


CHECKS_EQUATIONS = {
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


Margin = Callable[[pol.Flow], Any]


def _margin(detail: str, **options: Any) -> Callable[[Margin, np.random.Generator, int], Measurement]:
    def measure(formula: Margin, rng: np.random.Generator, trials: int) -> Measurement:
        return excess(formula, flows(rng, trials, **options), detail)

    return measure


def _order(flow: pol.Flow) -> Any:
    return np.minimum(pol.order_margin(flow), pol.order_margin(flow, of="scores"))


@each(1e-7, "relative error of dPhi/dtau")
def _potential(formula: Callable[[FloatArray, FloatArray, float], FloatArray], rng: np.random.Generator, k: int) -> Any:
    h = 1e-6
    u, a, b = rng.standard_normal(5), rng.standard_normal(5), float(rng.uniform(0.1, 4))
    du, da = pol.orbit_rates(u, a, b)
    numeric = (pol.potential(u + h * du, a + h * da) - pol.potential(u - h * du, a - h * da)) / (2 * h)
    return np.max(np.abs(formula(u, a, b) - numeric)) / (1 + np.max(np.abs(numeric)))


def _vanishing(formula: Callable[[float, float], float], rng: np.random.Generator, trials: int) -> Measurement:
    """The loss at t = 1e12 beside formula(b, t), and the rate that Lemma D.2 implies."""
    errors = []
    for flow in flows(rng, trials, t_end=1e12):
        expected = formula(flow.b, 1e12)
        errors.append(np.abs(flow.loss[:, -1] - expected) / 1e-9)
        errors.append(np.where(np.asarray(pol.loss_decay_margin(flow)) > 0, 0.0, np.inf))
    return count(np.concatenate(errors), 1.0, "distance from the limit in units of 1e-9; infinite: the rate fails")


@each(1e-3, "relative error of tau / log t at tau = 1e6")
def _clock(formula: Callable[[float], float], rng: np.random.Generator, k: int) -> Any:
    b = float(rng.uniform(0.3, 3))
    flow = pol.gap_flow(ordered(rng, 4), b=b, clock="tau", times=[0.0, 1e3, 1e6])
    return abs(flow.tau[-1] / flow.log_time[-1] / formula(b) - 1)


def _winner(formula: Callable[[FloatArray], int], rng: np.random.Generator, trials: int) -> Measurement:
    u0 = rng.standard_normal((trials, 6))
    flow = pol.aligned_flow(u0, t_end=1e12, points=3)
    wrong = [formula(u) != s.argmax() or s.max() < 0.9 for u, s in zip(u0, flow.scores[:, -1], strict=True)]
    return count(np.array(wrong, dtype=float), 0.5, "1: another token, or none, holds 0.9 of the weight at t = 1e12")


@each(1.0, "growth over its bound")
def _bounded(formula: Callable[[int, float], float], rng: np.random.Generator, k: int) -> Any:
    """Growth of the losing projections from tau = 1e4 to 1e12 against a bound formula(p, tau)."""
    p = int(rng.integers(2, 6))
    flow = pol.gap_flow(ordered(rng, p), b=float(rng.uniform(0.5, 2)), clock="tau", times=[0.0, 1e4, 1e6])
    # u_j = u_0 - g_j has 16 digits of u_0: 1e6 leaves an error of 1e-9, far below the bound.
    return float((flow.u[2, 1:] - flow.u[1, 1:]).max()) / formula(p, 1e4)


@each(0.01, "relative error of s_j at tau = 1e15")
def _decay(formula: Callable[[int, float, float], float], rng: np.random.Generator, k: int) -> Any:
    p, b = int(rng.integers(2, 5)), float(rng.uniform(0.5, 2))
    flow = pol.gap_flow(ordered(rng, p), b=b, clock="tau", times=[0.0, 1e6, 1e15])
    return np.abs(flow.log_scores[-1, 1:] - np.log(formula(p, b, flow.log_time[-1]))).max()


def _comparison(formula: Callable[[np.random.Generator], float], rng: np.random.Generator, trials: int) -> Measurement:
    """Whether a premise on q' gives q <= 1 / (1 + int k): q' = -c k q^2 with c from the premise, k = log(t) / t."""
    errors = []
    for _ in range(trials):
        c, half_square = formula(rng), float(rng.uniform(1, 50))
        errors.append((1 / (1 + c * half_square)) / (1 / (1 + half_square)) - 1)
    measured = count(errors, 1e-12, "relative excess over the conclusion")
    explicit = excess(pol.explicit_ratio_margin, flows(rng, trials), "")
    return Measurement(
        measured.violations + explicit.violations,
        measured.trials + explicit.trials,
        measured.worst,
        measured.detail + "; with the explicit bound on flows",
    )


@each(0.01, "largest of 1 - |cosine| and sigma_2 / sigma_1")
def _rank_one(formula: Callable[[FloatArray], FloatArray], rng: np.random.Generator, k: int) -> Any:
    """Top right singular vector of V at t = 1e300, by the reduced flow: V = V(0) + beta_* (u - u(0))^T / b."""
    V0, beta = 0.1 * rng.standard_normal((5, 5)), rng.standard_normal(5)
    beta /= np.linalg.norm(beta)
    flow = pol.aligned_flow(V0.T @ beta, t_end=1e300, points=3)
    V = V0 + np.outer(beta, flow.u[-1] - flow.u[0])
    _, sigma, right = np.linalg.svd(V)
    return max(1 - abs(right[0] @ formula(V0.T @ beta)), sigma[1] / sigma[0])


@each(0.5, "1: the direction is one-hot, or not, against the statement")
def _linear_direction(formula: Callable[[], bool], rng: np.random.Generator, k: int) -> Any:
    flow = pol.aligned_flow(
        0.5 * rng.standard_normal(6), rng.standard_normal(6), normalization="linear", t_end=1e80, points=3
    )
    direction = np.abs(flow.a[-1]) / np.linalg.norm(flow.a[-1])
    return float((direction.max() > 0.99) != formula())


def _unit(index: int, p: int) -> FloatArray:
    return np.asarray(np.eye(p)[index])


CHECKS_ORBIT = {
    "C08": Check(_margin("least gap"), _order),
    "C09": Check(
        _margin("least rate of growth"), lambda f: pol.repulsion_margin(f, form="printed"), pol.repulsion_margin
    ),
    "C10": Check(
        _margin("least rate of growth"), lambda f: pol.logit_gap_margin(f, form="printed"), pol.logit_gap_margin
    ),
    "C11": Check(_potential, lambda u, a, b: pol.potential_rate(u, a, b)),
    "C12": Check(_vanishing, lambda b, t: 0.0, trials=30),
    "C13": Check(_margin("least slack"), lambda f: pol.mean_margin(f, form="printed"), pol.mean_margin),
    "C14": Check(_margin("least slack in logs"), lambda f: pol.ratio_margin(f)),
    "C15": Check(
        _margin("least slack", scales=(1.0, 1.0, 1.0)),
        lambda f: pol.projection_margin(f, form="printed"),
        pol.projection_margin,
    ),
    "C16": Check(_margin("least slack", scales=(1.0, 1.0, 1.0)), lambda f: pol.polarization_margin(f, form="printed")),
    "C17": Check(_clock, lambda b: 1 / b, trials=6),
    "C18": Check(_winner, lambda u: int(np.argmax(u))),
    "C19": Check(_bounded, lambda p, tau: 4 / (p * tau), trials=6),
    "C20": Check(_decay, lambda p, b, log_t: 2 * b / (p * log_t**2), trials=6),
    "C21": Check(_comparison, lambda rng: float(rng.uniform(0, 1)), lambda rng: float(rng.uniform(1, 5)), trials=50),
    "C23": Check(_rank_one, lambda u: _unit(int(np.argmax(u)), u.size), trials=5),
    "C24": Check(_linear_direction, lambda: False, trials=8),
}
