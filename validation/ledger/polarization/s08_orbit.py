"""Theorems 3.2 and 3.3 and Lemma B.1: order, repulsion, decay, the one-hot limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attsvm.dynamics import polarization as pol
from attsvm.validation.ledger.polarization._instances import Array, excess, flows, ordered
from attsvm.validation.ledger.record import Check, Measurement, count, each

__all__ = ["CHECKS"]

Margin = Callable[[pol.Flow], Any]


def _margin(detail: str, **options: Any) -> Callable[[Margin, np.random.Generator, int], Measurement]:
    def measure(formula: Margin, rng: np.random.Generator, trials: int) -> Measurement:
        return excess(formula, flows(rng, trials, **options), detail)

    return measure


def _order(flow: pol.Flow) -> Any:
    return np.minimum(pol.order_margin(flow), pol.order_margin(flow, of="scores"))


@each(1e-7, "relative error of dPhi/dtau")
def _potential(formula: Callable[[Array, Array, float], Array], rng: np.random.Generator, k: int) -> Any:
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


def _winner(formula: Callable[[Array], int], rng: np.random.Generator, trials: int) -> Measurement:
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


@each(0.02, "distance of s_1 / s_last from its limit at tau = 1e15")
def _equalize(formula: Callable[[], float], rng: np.random.Generator, k: int) -> Any:
    p = int(rng.integers(3, 6))
    flow = pol.gap_flow(ordered(rng, p), clock="tau", times=[0.0, 1e6, 1e15])
    return abs(np.exp(flow.log_scores[-1, 1] - flow.log_scores[-1, -1]) - formula())


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
def _rank_one(formula: Callable[[Array], Array], rng: np.random.Generator, k: int) -> Any:
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


@each(0.5, "1: polarized, or not, against the statement")
def _who_polarizes(formula: dict[str, bool], rng: np.random.Generator, k: int) -> Any:
    u0 = ordered(rng, 5)
    for trained, expected in formula.items():
        frozen = {"both": None, "a only": "u", "V only": "a"}[trained]
        # Training a alone polarizes like 1 / t: 1e5 is enough, and later the flow is stiff in log-time.
        flow = pol.aligned_flow(u0, frozen=frozen, t_end=1e5 if frozen == "u" else 1e12, points=3)
        yield float((flow.scores[-1].max() > 0.95) != expected)


def _unit(index: int, p: int) -> Array:
    return np.asarray(np.eye(p)[index])


CHECKS = {
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
    "C17": Check(_clock, lambda b: 1 / b, trials=10),
    "C18": Check(_winner, lambda u: int(np.argmax(u))),
    "C19": Check(_bounded, lambda p, tau: 4 / (p * tau), trials=10),
    "C20": Check(_decay, lambda p, b, log_t: 2 * b / (p * log_t**2), trials=10),
    "C21": Check(_comparison, lambda rng: float(rng.uniform(0, 1)), lambda rng: float(rng.uniform(1, 5)), trials=50),
    "C22": Check(_equalize, lambda: 1.0, trials=8),
    "C23": Check(_rank_one, lambda u: _unit(int(np.argmax(u)), u.size), trials=10),
    "C24": Check(_linear_direction, lambda: False, trials=15),
    "C25": Check(
        _who_polarizes,
        {"both": True, "a only": False, "V only": False},
        {"both": True, "a only": True, "V only": False},
        trials=8,
    ),
}
