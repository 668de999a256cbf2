"""Square and KL losses: finite polarization, norms, condition numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from attsvm.dynamics import polarization as pol
from attsvm.validation.figures.polarization._protocols import figure_12
from attsvm.validation.ledger.polarization._instances import Array, ordered
from attsvm.validation.ledger.record import Check, Measurement, count, each

__all__ = ["CHECKS", "conditioned_runs"]


@each(1e-6, "error of V rebuilt from the reduced flow at t = 50")
def _rank_one(formula: Callable[[Array, Array], Array], rng: np.random.Generator, k: int) -> Any:
    beta, a0 = rng.standard_normal(3), 0.5 * rng.standard_normal(5)
    times = [0.0, 1.0, 5.0, 50.0]
    full = pol.full_flow(np.zeros((3, 5)), a0, pol.SquareLoss(beta), times=times)
    reduced = pol.aligned_flow(np.zeros(5), a0, b=float(beta @ beta), loss="square", times=times)
    return np.abs(full.V[-1] - formula(reduced.u[-1], beta)).max()


@each(0.0, "largest overtaking in log s")
def _regression_order(formula: Callable[[np.random.Generator], Array], rng: np.random.Generator, k: int) -> Any:
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
    >>> from attsvm.validation.ledger.polarization.s26_regression import conditioned_runs
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


def _speed(formula: Callable[[Array], bool], rng: np.random.Generator, trials: int) -> Measurement:
    runs = [conditioned_runs(seed, (1.0, 2.0, 3.0, 4.0, 5.0)) for seed in _seeds(rng, trials)]
    wrong = [float(not formula(np.array([steps for _, steps in run]))) for run in runs]
    return count(wrong, 0.5, "1: the steps at condition 1..5 contradict it")


@each(1e-3, "distance of the final loss from the entropy of the target")
def _kl(formula: str, rng: np.random.Generator, k: int) -> Any:
    """Whether the loss fits the target: the loss ends at the entropy of p_*, and the scores keep some spread."""
    target = np.exp(rng.standard_normal(5))
    target /= target.sum()
    V0 = np.abs(0.1 * rng.standard_normal((5, 5))) if formula == "printed" else 0.1 * rng.standard_normal((5, 5))
    loss = pol.KLLoss(target, form=formula)
    flow = pol.full_flow(V0, np.zeros(5), loss, t_end=1e4, points=5, rtol=1e-7, atol=1e-10)
    return abs(float(flow.loss[-1]) - float(-(target @ np.log(target))))


def _increasing(values: Any) -> bool:
    return bool((np.diff(values) > 0).all())


CHECKS = {
    "C26": Check(_rank_one, lambda u, beta: np.outer(beta, u) / (beta @ beta), trials=10),
    "C27": Check(_regression_order, lambda rng: np.zeros(5), trials=20),
    "C28": Check(_total, lambda p: (1.0, float(p)), trials=20),
    "C29": Check(_entropy, lambda: 0.9, trials=50),
    "C30": Check(_control, lambda norm, tau: norm * tau, trials=12),
    "C31": Check(_contraction, lambda p: 1.0 / p),
    "C32": Check(_conditioning, lambda plain, bad: bad < plain, trials=3),
    "C33": Check(_speed, _increasing, lambda times: bool(times[-1] > times[0]), trials=3),
    "C34": Check(_kl, "printed", "corrected", trials=4),
}
