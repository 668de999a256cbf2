"""Checks on polarization: the equations of the flow (signs, factors, Jacobians), its orbit, and other losses and maps.

Theorems 3.2 and 3.3 and Lemma B.1 say order, repulsion, decay and the one-hot limit; margins are read as errors. Square
and KL losses polarize to a finite degree that norms and condition numbers decide; other maps from logits to scores have
invariants, do not cross, and polarize or not. Sinks, tied residuals and small transformers come last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import numpy as np

from attsvm.dynamics import polarization as pol
from attsvm.solvers.arrays import FloatArray
from attsvm.validation import models
from attsvm.validation.figures.polarization.flow_figures import figure_12, figure_13
from attsvm.validation.ledger.claim_record import Check, Measurement, count, each


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


@each(1e-6, "error of V rebuilt from the reduced flow at t = 50")
def _rebuilt_values(formula: Callable[[FloatArray, FloatArray], FloatArray], rng: np.random.Generator, k: int) -> Any:
    beta, a0 = rng.standard_normal(3), 0.5 * rng.standard_normal(5)
    times = [0.0, 1.0, 5.0, 50.0]
    full = pol.full_flow(np.zeros((3, 5)), a0, pol.SquareLoss(beta), times=times)
    reduced = pol.aligned_flow(np.zeros(5), a0, b=float(beta @ beta), loss="square", times=times)
    return np.abs(full.V[-1] - formula(reduced.u[-1], beta)).max()


@each(0.0, "largest overtaking in log s")
def _regression_order(formula: Callable[[np.random.Generator], FloatArray], rng: np.random.Generator, k: int) -> Any:
    """Order of s along the square-loss orbit; the formula draws V(0)^T beta_* (a(0) is ordered, b = 1)."""
    a0, u0 = ordered(rng, 5, 0.5), formula(rng)
    flow = pol.aligned_flow(u0, a0, loss="square", t_end=100.0, points=20)
    log_scores = flow.log_scores
    assert log_scores is not None
    return float(np.diff(log_scores, axis=-1).max())


@each(1e-9, "how far tau_inf lies outside")
def _total(formula: Callable[[int], tuple[float, float]], rng: np.random.Generator, k: int) -> Any:
    p, spread = int(rng.integers(2, 12)), (1e-6, 1.0, 30.0)[k % 3]  # tau_inf = p for a uniform a(0), 1 for a peaked one
    tau = pol.regression_limit(spread * rng.standard_normal(p), b=float(rng.uniform(0.1, 100))).tau
    low, high = formula(p)
    return low - tau, tau - high


def _entropy(formula: Callable[[], float], rng: np.random.Generator, trials: int) -> Measurement:
    found = [pol.regression_limit(0.1 * rng.standard_normal(8)).relative_entropy for _ in range(trials)]
    return count(formula() - np.array(found), 0.0, "shortfall of entropy / log p at |beta_*| = 1")


@each(0.5, "1: the control points the other way")
def _control(formula: Callable[[float, float], float], rng: np.random.Generator, k: int) -> Any:
    """Of two targets from one a(0), the one with the larger control formula(|beta_*|, tau) ends sparser."""
    a0, small = 0.1 * rng.standard_normal(6), float(rng.uniform(1, 10))
    large = small * float(rng.uniform(1.5, 10))
    ends = [pol.regression_limit(a0, b=c * c) for c in (small, large)]
    sparser = ends[1].scores.max() > ends[0].scores.max()
    return float(sparser != (formula(large, ends[1].tau) > formula(small, ends[0].tau)))


@each(1e-12, "how far the rate falls short")
def _contraction(formula: Callable[[int], float], rng: np.random.Generator, k: int) -> Any:
    p = int(rng.integers(2, 9))
    V, a, residual = rng.standard_normal((3, p)), rng.standard_normal(p), rng.standard_normal(3)
    rate = 2 * float(residual @ pol.tangent_kernel(V, a) @ residual) / float(residual @ residual)
    return formula(p) - rate


@lru_cache(maxsize=64)
def conditioned_runs(seed: int, kappas: tuple[float, ...]) -> tuple[tuple[float, float], ...]:
    """Final entropy / log p and steps to 1e-6 of the first loss in the protocol of Figure 12, per condition number.

    Examples
    --------
    >>> entropy, steps = conditioned_runs(123, (1.0,))[0]
    >>> round(entropy, 3), round(steps, -3)
    (1.0, 69000.0)
    """
    found = []
    for kappa in kappas:
        W, a, loss = figure_12(kappa, seed)
        flow = pol.full_flow(W, a, loss, t_end=600.0, points=2000, method="DOP853", rtol=1e-7, atol=1e-10)
        reached = int(np.argmax(flow.loss < 1e-6 * flow.loss[0]))
        steps = float(flow.times[reached]) / 1e-3 if reached else np.inf  # the published step size is 1e-3
        found.append((float(flow.entropy[-1] / np.log(a.size)), steps))
    return tuple(found)


def _seeds(rng: np.random.Generator, trials: int) -> list[int]:
    return [123, *(int(k) for k in rng.integers(2**31, size=trials - 1))]  # the published one first


def _conditioning(formula: Callable[[float, float], bool], rng: np.random.Generator, trials: int) -> Measurement:
    runs = [conditioned_runs(seed, (1.0, 5.0)) for seed in _seeds(rng, trials)]
    wrong = [float(not formula(plain[0], bad[0])) for plain, bad in runs]
    return count(wrong, 0.5, "1: the entropies at condition 1 and 5 contradict it")


CHECKS_REGRESSION = {
    "C26": Check(_rebuilt_values, lambda u, beta: np.outer(beta, u) / (beta @ beta), trials=5),
    "C27": Check(_regression_order, lambda rng: np.zeros(5), trials=10),
    "C28": Check(_total, lambda p: (1.0, float(p)), trials=20),
    "C29": Check(_entropy, lambda: 0.9, trials=25),
    "C30": Check(_control, lambda norm, tau: norm * tau, trials=6),
    "C31": Check(_contraction, lambda p: 1.0 / p),
    "C32": Check(_conditioning, lambda plain, bad: bad < plain, trials=3),
}


def _invariance(formula: Callable[[FloatArray], FloatArray], rng: np.random.Generator, trials: int) -> Measurement:
    errors = []
    for flow in flows(rng, trials):
        value = formula(flow.a)
        errors.append(np.abs(value - value[:, :1]).max(axis=-1))
    return count(np.concatenate(errors), 1e-9, "largest drift")


@each(1e-12, "change of the loss, or sum of its gradient in a, by automatic differentiation")
def _shift(formula: Callable[[FloatArray, float], FloatArray], rng: np.random.Generator, k: int) -> Any:
    """A change of the logits (a, c) -> a' that must leave the loss as it is."""
    import torch

    V, a, beta = (
        torch.tensor(x) for x in (rng.standard_normal((3, 5)), rng.standard_normal(5), rng.standard_normal(3))
    )

    def loss(logits: Any) -> Any:
        return torch.nn.functional.softplus(-(beta @ (V @ torch.softmax(logits, 0))))

    a.requires_grad_()
    torch.autograd.backward(loss(a))
    assert a.grad is not None
    moved = torch.tensor(formula(a.detach().numpy(), float(rng.normal())))
    return max(abs(float((loss(moved) - loss(a)).detach())), abs(float(a.grad.sum())))


@each(1e-12, "largest error")
def _map_flow(formula: Callable[..., tuple[FloatArray, FloatArray]], rng: np.random.Generator, k: int) -> Any:
    """Equations 30-31 against autograd of the loss, for several f."""
    import torch

    from attsvm.dynamics.polarization.value_descent import torch_parts

    name = ("sum", "square", "sigmoid_norm", "elu_norm")[k % 4]
    u, a, b = rng.standard_normal(5), 1 + 0.3 * rng.standard_normal(5), float(rng.uniform(0.2, 3))
    at, ut = torch.tensor(a, requires_grad=True), torch.tensor(u)
    s = torch_parts(name)(at)[0]
    torch.autograd.backward(torch.nn.functional.softplus(-(ut @ s)))
    gamma = float(torch.sigmoid(-(ut @ s.detach())))
    du, da = formula(u, a, b, gamma, name)
    assert at.grad is not None
    return max(float(np.abs(da + at.grad.numpy()).max()), float(np.abs(du - gamma * b * s.detach().numpy()).max()))


def _map_rates(u: FloatArray, a: FloatArray, b: float, gamma: float, name: str) -> tuple[FloatArray, FloatArray]:
    du, da = pol.orbit_rates(u, a, b, name)
    return gamma * du, gamma * da


@each(0.0, "largest overtaking in a")
def _no_crossing(formula: Callable[[FloatArray, FloatArray], bool], rng: np.random.Generator, k: int) -> Any:
    """Order of a after a short flow from a(0) = 0, for increasing f (Assumption 3.1), where a rule on (f, f') holds.

    ``f(x) = x + c`` with c of either sign, the exponential, and ``x + x^3 + c``.
    """
    c = float(rng.choice([-1.0, 1.0])) * float(rng.uniform(0.5, 2))
    value, slope = (
        (lambda x: x + c, np.ones_like), (np.exp, np.exp), (lambda x: x + x**3 + c, lambda x: 1 + 3 * x**2)
    )[k % 3]  # fmt: skip
    a, u = np.zeros(4), ordered(rng, 4)
    if not formula(value(a), slope(a)):
        return None
    for _ in range(20):  # tau = 0.02: the order shows at once or not at all
        F = value(a).sum()
        s = value(a) / F
        u, a = u + 1e-3 * s, a + 1e-3 * slope(a) / F * (u - u @ s)
    return float(np.diff(a).max())


def _final_share(name: str, rng: np.random.Generator, t_end: float, p: int = 6) -> float:
    """Largest share of |s| at the end of a logistic flow from a(0) = 1 + 0.1 noise."""
    flow = pol.aligned_flow(
        0.3 * rng.standard_normal(p), 1 + 0.1 * rng.standard_normal(p), normalization=name, t_end=t_end, points=3
    )
    s = np.abs(flow.scores[-1])
    return float(s.max() / s.sum())


def _share(t_end: float) -> Callable[[str, np.random.Generator, int], Measurement]:
    """A map that does not polarize: no share above 0.6."""

    def measure(formula: str, rng: np.random.Generator, trials: int) -> Measurement:
        shares = np.array([_final_share(formula, rng, t_end) for _ in range(trials)])
        return count(shares - 0.6, 0.0, f"largest share against 0.6 at t = {t_end:.0e}")

    return measure


@each(0.05, "relative error of log(s_j / s_0) / tau^2 at t = 1e300")
def _square_rate(formula: Callable[[float, FloatArray], float], rng: np.random.Generator, k: int) -> Any:
    b, a0 = float(rng.uniform(0.5, 2)), 1 + 0.1 * rng.standard_normal(5)
    flow = pol.aligned_flow(0.1 * ordered(rng, 5), a0, b=b, normalization="square", t_end=1e300, points=3)
    assert flow.log_scores is not None
    ratio = np.delete(flow.log_scores[-1] - flow.log_scores[-1].max(), flow.log_scores[-1].argmax())
    return float(np.abs(ratio / flow.tau[-1] ** 2 / formula(b, a0) - 1).max())


def _square_loss_shares(formula: float, rng: np.random.Generator, trials: int) -> Measurement:
    """Largest scores of the published protocol under the square loss (t = 500) against a bound."""
    V, a, beta = figure_13()
    errors = []
    for name in ("l1", "sum", "square", "softmax", "relu_norm"):
        flow = pol.full_flow(
            V, a, pol.SquareLoss(beta), normalization=name, times=[0.0, 1.0, 500.0], rtol=1e-7, atol=1e-10
        )
        errors.append(float(np.abs(flow.scores[-1]).max()) - formula)
    return count(errors, 0.0, "largest score over the bound, five normalizations")


CHECKS_MAPS = {
    "C35": Check(_invariance, lambda a: a.sum(axis=-1)),
    "C58": Check(_shift, lambda a, c: a + c, trials=40),
    "C38": Check(_map_flow, _map_rates, trials=40),
    "C39": Check(_no_crossing, lambda f, slope: True, lambda f, slope: bool(f.sum() > 0), trials=60),
    "C40": Check(_share(1e12), "sum", trials=5),
    "C41": Check(_square_rate, lambda b, a0: -2 * b / float(a0 @ a0), trials=5),
    "C42": Check(_share(1e80), "sigmoid", trials=5),
    "C43": Check(_share(1e12), "relu", trials=5),
    "C44": Check(_square_loss_shares, 0.5, trials=1),
}


def _sink(formula: Callable[[FloatArray], int], rng: np.random.Generator, trials: int) -> Measurement:
    wrong = []
    for _ in range(trials):
        u0 = 0.3 * rng.standard_normal(5)
        flow = pol.row_flow(u0, np.zeros((5, 5)), t_end=1e12, points=3)
        wrong.append(float((flow.selected_tokens != formula(u0)).any()))
    return count(wrong, 0.5, "1: some row sinks elsewhere")


@each(0.5, "1: another column, or no polarization")
def _tied(formula: Callable[[FloatArray, FloatArray], int], rng: np.random.Generator, k: int) -> Any:
    """The column of R whose norm grows, against the token that the formula names from (a, s) at the end."""
    target = rng.standard_normal(8)
    flow = pol.tied_flow(
        np.eye(8) + rng.standard_normal((8, 8)), rng.standard_normal(8), target / np.linalg.norm(target),
        t_end=1e5, points=3, rtol=1e-6,
    )  # fmt: skip
    growing = int((flow.norms[-1] - flow.norms[0]).argmax())
    return float(growing != formula(flow.a[-1], flow.scores[-1]) or flow.scores[-1].max() < 0.9)


def _flips(drop: float) -> Any:
    @each(-drop, f"second rate less the first; it must be lower by {drop}")
    def measure(formula: tuple[tuple[str, int], tuple[str, int]], rng: np.random.Generator, k: int) -> Any:
        """Flip rates with two (kind of attention, heads): vocabulary 41, no MLP, no LayerNorm, reduced width."""
        kinds = {str(kind): kind for kind in pol.ATTENTION_KINDS}
        task, seed = models.SetTask(41), int(rng.integers(2**31))
        rates = []
        for name, heads in formula:
            model = models.train_classifier(
                kinds[name], task=task, heads=heads, dim=32, layer_norm=False, mlp=False, steps=250, seed=seed
            )
            rates.append(models.flip_rates(model, task, pairs=100).worst)
        return rates[1] - rates[0]

    return measure


CHECKS_ATTENTION = {
    "C46": Check(_sink, lambda u: int(np.argmax(u)), trials=5),
    "C49": Check(_tied, lambda a, s: int(np.argmax(a)), lambda a, s: int(np.argmax(s)), trials=8),
    "C50": Check(_flips(0.2), (("softmax", 1), ("sigmoid_unnorm", 1)), trials=1),
    "C51": Check(_flips(0.05), (("softmax", 1), ("softmax", 4)), trials=1),
}
