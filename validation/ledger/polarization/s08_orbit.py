"""Theorems 3.2 and 3.3 and Lemma B.1: order, repulsion, decay, the one-hot limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attsvm.dynamics import polarization as pol
from attsvm.validation.ledger.polarization._instances import Array, excess, flows, ordered
from attsvm.validation.ledger.record import Claim, Measurement, Verdict, count, each

__all__ = ["CLAIMS"]

Margin = Callable[[pol.Flow], Any]


def _margin(detail: str, **options: Any) -> Callable[[Margin, np.random.Generator, int], Measurement]:
    def measure(formula: Margin, rng: np.random.Generator, trials: int) -> Measurement:
        return excess(formula, flows(rng, trials, **options), detail)

    return measure


def _order(flow: pol.Flow) -> Any:
    return np.minimum(pol.order_margin(flow), pol.order_margin(flow, of="scores"))


def _potential(formula: Callable[[Array, Array, float], Array], rng: np.random.Generator, trials: int) -> Measurement:
    errors, h = [], 1e-6
    for _ in range(trials):
        u, a, b = rng.standard_normal(5), rng.standard_normal(5), float(rng.uniform(0.1, 4))
        du, da = pol.orbit_rates(u, a, b)
        numeric = (pol.potential(u + h * du, a + h * da) - pol.potential(u - h * du, a - h * da)) / (2 * h)
        errors.append(np.max(np.abs(formula(u, a, b) - numeric)) / (1 + np.max(np.abs(numeric))))
    return count(errors, 1e-7, "relative error of dPhi/dtau")


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


def _who_polarizes(formula: dict[str, bool], rng: np.random.Generator, trials: int) -> Measurement:
    wrong = []
    for _ in range(trials):
        u0 = ordered(rng, 5)
        for trained, expected in formula.items():
            frozen = {"both": None, "a only": "u", "V only": "a"}[trained]
            # Training a alone polarizes like 1 / t: 1e5 is enough, and later the flow is stiff in log-time.
            flow = pol.aligned_flow(u0, frozen=frozen, t_end=1e5 if frozen == "u" else 1e12, points=3)
            wrong.append(float((flow.scores[-1].max() > 0.95) != expected))
    return count(wrong, 0.5, "1: polarized, or not, against the statement")


def _unit(index: int, p: int) -> Array:
    return np.asarray(np.eye(p)[index])


CLAIMS = (
    Claim(
        "polarization:C08",
        "Theorem 3.2(a)",
        "the order of u and s is preserved",
        Verdict.HOLDS,
        _margin("least gap"),
        _order,
        correction="any b; also for a(0) ordered like u(0)",
        evidence="no violation",
    ),
    Claim(
        "polarization:C09",
        "Theorem 3.2(b)",
        "u_i - u_j grows for any i != j",
        Verdict.TYPO,
        _margin("least rate of growth"),
        lambda f: pol.repulsion_margin(f, form="printed"),
        pol.repulsion_margin,
        "for i < j",
        "with u(0) = (1, 0, -1), u_1 - u_0 falls from -1 without bound",
    ),
    Claim(
        "polarization:C10",
        "end of the proof of Theorem 3.2",
        "gaps of a and s grow for all pairs",
        Verdict.FAILS,
        _margin("least rate of growth"),
        lambda f: pol.logit_gap_margin(f, form="printed"),
        pol.logit_gap_margin,
        "for the pairs (0, j) only; losing scores equalize",
        "gaps among losers rise, then fall, in most runs",
    ),
    Claim(
        "polarization:C11",
        "proof of Theorem 3.2",
        "dPhi_ij = (gamma / A)((u_i - u_j)^2 + b (e^a_i - e^a_j)^2 / e^(a_i + a_j))",
        Verdict.HOLDS,
        _potential,
        lambda u, a, b: pol.potential_rate(u, a, b),
        correction="two tokens: (u_0 - u_1)^2 - 4 b sinh^2((a_0 - a_1) / 2) is conserved",
        evidence="agrees with differences",
    ),
    Claim(
        "polarization:C12",
        "Theorem 3.3(a)",
        "the loss tends to 0",
        Verdict.HOLDS,
        _vanishing,
        lambda b, t: 0.0,
        correction="loss = (1 + o(1)) / (b t); m + e^m >= m_0 + e^{m_0} + b t / p",
        evidence="loss b t = 1 to 4 digits at 1e12",
        trials=30,
    ),
    Claim(
        "polarization:C13",
        "proof of Theorem 3.3(a)",
        "m >= u_0 / p",
        Verdict.FAILS,
        _margin("least slack"),
        lambda f: pol.mean_margin(f, form="printed"),
        pol.mean_margin,
        "m >= u_0 / p - max(0, -u_{p-1}(0)) for u_0 >= 0",
        "u = (0.1, -10) has m = -4.95",
    ),
    Claim(
        "polarization:C14",
        "Theorem 3.3(b)",
        "s_j / s_0 <= 1 / (1 + delta tau / p)",
        Verdict.HOLDS,
        _margin("least slack in logs"),
        lambda f: pol.ratio_margin(f),
        correction="also with delta = u_0 - u_1 at 0; loose by a factor of 1e3",
        evidence="no violation",
    ),
    Claim(
        "polarization:C15",
        "equation 17",
        "u_0 >= log(t / (2 p) - c_0)",
        Verdict.TYPO,
        _margin("least slack", scales=(1.0, 1.0, 1.0)),
        lambda f: pol.projection_margin(f, form="printed"),
        pol.projection_margin,
        "c_0 / 2 in place of c_0; b t in place of t",
        "violated in nearly every run",
    ),
    Claim(
        "polarization:C16",
        "equation 18",
        "the integral of gamma is at least u_0 - u_0(0)",
        Verdict.HOLDS,
        _margin("least slack", scales=(1.0, 1.0, 1.0)),
        lambda f: pol.polarization_margin(f, form="printed"),
        correction="for |beta_*| = 1, as supposed there; in general u_0 - u_0(0) <= b tau <= p (u_0 - u_0(0))",
        evidence="no violation at b = 1; violated at b = 4",
    ),
    Claim(
        "polarization:C17",
        "Theorem 3.3(c)",
        "the integral of gamma is Theta(log t)",
        Verdict.HOLDS,
        _clock,
        lambda b: 1 / b,
        correction="b tau = log(b t) + C, C = sum_{j>0} u_j(inf) - sum u(0); only the lower half is proved",
        evidence="within 1e-4",
        trials=10,
    ),
    Claim(
        "polarization:C18",
        "Theorem 3.3(c)",
        "s tends to the one-hot vector of argmax u(0)",
        Verdict.HOLDS,
        _winner,
        lambda u: int(np.argmax(u)),
        correction="needs a(0) = 0 and no tie at the top",
        evidence="every run",
    ),
    Claim(
        "polarization:C19",
        "Lemma B.1(a)",
        "u_i stays bounded for i > 0",
        Verdict.HOLDS,
        _bounded,
        lambda p, tau: 4 / (p * tau),
        correction="u_i(inf) - u_i(tau) ~ 2 / (p tau)",
        evidence="growth within twice the asymptotic",
        trials=10,
    ),
    Claim(
        "polarization:C20",
        "Lemma B.1(b)",
        "s_i = O(1 / log^2 t)",
        Verdict.HOLDS,
        _decay,
        lambda p, b, log_t: 2 * b / (p * log_t**2),
        correction="sharp: s_j ~ 2 b / (p log^2 t), every j > 0 with the same constant",
        evidence="within 1e-3 at tau = 1e15",
        trials=10,
    ),
    Claim(
        "polarization:C21",
        "proof of Lemma B.1(b)",
        "q' >= -c q^2 log t / t implies q <= 1 / (1 + c log^2 t / 2)",
        Verdict.FAILS,
        _comparison,
        lambda rng: float(rng.uniform(0, 1)),
        lambda rng: float(rng.uniform(1, 5)),
        (
            "q' <= -(...) is needed, and true: 1 / q_j >= 1 + w + (b / "
            "p^2)(tau^2 / 2 - (p / d)^2 ((1 + w) log(1 + w) - w))"
        ),
        "the printed direction proves a lower bound",
        trials=50,
    ),
    Claim(
        "polarization:C22",
        "consequence of Lemma B.1",
        "the losing scores equalize",
        Verdict.HOLDS,
        _equalize,
        lambda: 1.0,
        correction="s_j = 2 / (p b tau^2) (1 + O(tau^(-2/p)))",
        evidence="ratio 1 to 2 % at tau = 1e15 for p <= 5",
        trials=8,
    ),
    Claim(
        "polarization:C23",
        "section 3.1, Lemma B.1",
        "V becomes rank one with top right singular vector e_0",
        Verdict.HOLDS,
        _rank_one,
        lambda u: _unit(int(np.argmax(u)), u.size),
        correction="slowly: errors of order 1 / log t",
        evidence="within 1 % at t = 1e300",
        trials=10,
    ),
    Claim(
        "polarization:C24",
        "section 3.1",
        "a linear network aligns with a generic direction instead",
        Verdict.HOLDS,
        _linear_direction,
        lambda: False,
        evidence="never one-hot",
        trials=15,
    ),
    Claim(
        "polarization:C25",
        "section 3.1",
        "polarization is caused by the joint training of a and V, not by softmax in isolation",
        Verdict.IMPRECISE,
        _who_polarizes,
        {"both": True, "a only": False, "V only": False},
        {"both": True, "a only": True, "V only": False},
        "joint training suffices; it is not needed: with V fixed, training a alone polarizes too, 1 - s_0 ~ 1 / t. "
        "Training V alone does not",
        "every run",
        trials=8,
    ),
)
