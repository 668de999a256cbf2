"""Theorem 2, its lemmas, Corollary 1, and what the experiments say about them."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics.conditioning import (
    PromptProblem,
    condition_lower_bound,
    curvature,
    leakage,
    local_rate,
    sampled_leakage,
    structured_teacher,
    student_teacher,
)
from attsvm.validation.ledger.conditioning._common import Array, Rng, realizable
from attsvm.validation.ledger.record import Check, Measurement, count, each

__all__ = ["CHECKS", "instance"]


def _opposed(rng: Rng, N: int) -> tuple[PromptProblem, Array, Array, Array]:
    """Keys (+-1, 0) important and (0, +-1) not, p* = 0: Lemma 7 without its factor N fails here for many examples."""
    signs = rng.choice([-1.0, 1.0], size=(N, 2))
    X = np.zeros((N, 2, 2))
    X[:, 0, 0], X[:, 1, 1] = signs[:, 0], signs[:, 1]
    problem = PromptProblem(X=X, y=np.zeros(N), v=np.array([1.0, 0.3]))
    p = np.zeros(2)
    members = np.broadcast_to([True, False], (N, 2))
    return problem.with_labels(problem.predict(p)), p, members, np.eye(2)[:, 1:]


def _attained(rng: Rng) -> tuple[PromptProblem, Array, Array, Array]:
    """Two important tokens (+-c, 0) of equal attention, the third far behind: Lemma 6 is attained."""
    c = float(rng.uniform(0.5, 2))
    X = np.tile(np.array([[c, 0.0], [-c, 0.0], [0.0, -40.0]]), (3, 1, 1))
    v = np.array([rng.uniform(0.5, 2), 0.0])
    problem, p = PromptProblem(X=X, y=np.zeros(3), v=v), np.array([0.0, 1.0])
    members = np.broadcast_to([True, True, False], (3, 3))
    return problem.with_labels(problem.predict(p)), p, members, np.eye(2)[:, 1:]


def instance(rng: Rng, k: int) -> tuple[PromptProblem, Array, Array, Array]:
    """A problem, its global minimum, the important tokens and a basis of U; four kinds by k.

    Examples
    --------
    >>> problem, p, members, basis = instance(np.random.default_rng(0), 2)
    >>> problem.loss_at(p), members.sum(axis=1).tolist()
    (0.0, [2, 2, 2])
    """
    if k % 4 == 0:
        return _opposed(rng, 400)
    if k % 4 == 1:
        teacher, chosen, basis = structured_teacher(
            30, 8, 5, 3, gap=float(rng.uniform(1, 6)), leakage=float(rng.uniform(0, 0.3)), seed=rng
        )
        return teacher.problem, teacher.p_star, chosen, basis
    if k % 4 == 2:
        return _attained(rng)
    problem, p = realizable(rng, 25, 8, 4)
    scores = problem.keys @ p
    members: Any = scores >= np.sort(scores, axis=1)[:, [-3]]
    return problem, p, members, np.linalg.qr(rng.normal(size=(4, 2)))[0]


def _part(name: str) -> Any:
    """Each part of the bound against the measured spectrum."""

    @each(1e-8, "relative excess over the bound")
    def measure(formula: Any, rng: Rng, k: int) -> Any:
        problem, p, members, basis = instance(rng, k)
        form, factor = formula
        bound = condition_lower_bound(problem, p, members, basis, form=form)
        spectrum = curvature(problem, p)  # of M itself for the squared loss
        if name == "largest":
            return factor * bound.largest_at_least / spectrum.eigenvalues[0] - 1
        if name == "smallest":
            return spectrum.eigenvalues[-1] / max(factor * bound.smallest_at_most, 1e-300) - 1
        return factor * bound.condition_at_least / spectrum.condition_number - 1

    return measure


@each(1e-8, "relative excess over kappa(H_p), 4000 examples")
def _opposed_many(formula: Any, rng: Rng, k: int) -> Any:
    """The combined bound where N is large enough for the lost factor to matter."""
    problem, p, members, basis = _opposed(rng, 4000)
    bound = condition_lower_bound(problem, p, members, basis, form=formula)
    return bound.condition_at_least / curvature(problem, p).condition_number - 1


_GAPS = np.array([12.0, 13.0, 14.0])


def _growth_rates(rng: Rng, s: int) -> tuple[float, float, float]:
    """Slopes in the margin of log kappa(H_p), of the log of Theorem 2's ratio, and of log delta_min.

    Assumption B with rho = 0 holds. Only p* is scaled: tokens, v and W, on which the hidden constant may depend, stay.
    """
    teacher, members, basis = structured_teacher(40, 8, 6, s, gap=1.0, seed=int(rng.integers(2**32)))
    logs = []
    for gap in _GAPS:
        p = gap * teacher.p_star
        problem = teacher.problem.with_labels(teacher.problem.predict(p))
        bound = condition_lower_bound(problem, p, members, basis)
        ratio = bound.a_I**2 / (bound.rho**2 + (8 - s) * bound.a_U**2)
        logs.append(np.log([curvature(problem, p).condition_number, ratio, bound.delta]))
    return tuple(float(np.polyfit(_GAPS, y, 1)[0]) for y in np.array(logs).T)  # type: ignore[return-value]


@each(0.02, "slope in Delta of log kappa(H_p) beside that of the bound, Delta = 12..14, one important token")
def _constant(formula: Any, rng: Rng, k: int) -> Any:
    """The bound ratio * delta_min^power must grow like kappa(H_p): more is false, less is loose."""
    kappa, ratio, delta = _growth_rates(rng, 1)
    return abs(kappa - ratio - formula * delta)


@each(0.02, "slope in Delta of log kappa(H_p) beside 2, Delta = 12..14; s = 1, 2, 3 important tokens")
def _growth(formula: Any, rng: Rng, k: int) -> Any:
    s = (1, 2, 3)[k % 3]
    return abs(_growth_rates(rng, s)[0] - 2.0) if formula(s) else None


@each(1e-4, "difference from the measured factor per step")
def _slowest(formula: Any, rng: Rng, k: int) -> Any:
    problem, p = realizable(rng, 30, 6, 3, key_map=False)
    rate = local_rate(problem, p, size=1e-6)
    lowest = float(curvature(problem, p).eigenvalues[-1])
    return abs(formula(rate.step, lowest, 30) - rate.measured)


@each(1e-9, "relative excess over |e_t|^2 of the linear recursion")
def _error_bound(formula: Any, rng: Rng, k: int) -> Any:
    values = np.exp(np.sort(rng.normal(size=5) * 2))
    e0, t = rng.normal(size=5), int(rng.integers(1, 200))
    left = np.sum(((1 - values / values[-1]) ** t * e0) ** 2)
    cosine = e0[0] ** 2 / np.sum(e0**2)
    return formula(values[-1] / values[0], t) * np.sum(e0**2) * cosine / max(left, 1e-300) - 1


@each(0.05, "relative error against a generalized eigenvalue solver")
def _leakage(formula: Any, rng: Rng, k: int) -> Any:
    """Head of the experiment's size: 16 key dimensions, 12 of them in U; 6 of 24 tokens important."""
    from scipy.linalg import eigh

    problem, _p = realizable(rng, 3, 24, 16)
    members = np.arange(24) < np.full((3, 1), 6)
    basis = np.linalg.qr(rng.normal(size=(16, 12)))[0]
    for i, rho in enumerate(formula(problem, members, basis)):
        inside, outside = problem.keys[i][:6] @ basis, problem.keys[i][6:] @ basis
        exact = np.sqrt(eigh(inside.T @ inside, outside.T @ outside, eigvals_only=True)[-1])
        yield abs(rho / exact - 1)


def _teacher_ratio(formula: Any, rng: Rng, trials: int) -> Measurement:
    """Widths at which sigma_p = 0.1 and 1 are said to give R of about 10 and 1e25.

    One teacher of width 150 gives 27.8 +- 1.6 orders (as its norm varies by 1 / sqrt(2 d)), the mean over six
    28 +- 0.7: more than four of these from 31, where the verdict would change. Width 20 gives 0.70 +- 0.05.
    """
    seeds, errors = rng.integers(2**32, size=trials), []
    for width, sigma, wanted, unit in zip(formula, (0.1, 1.0), (1.0, 25.0), (0.5, 6.0), strict=True):
        drawn = [student_teacher(100, width, width, sigma_p=sigma, seed=int(seed)).log_ratios() for seed in seeds]
        orders = float(np.mean([np.median(logs) for logs in drawn])) / np.log(10)
        errors.append(abs(orders - wanted) / unit)
    return count(errors, 1.0, "orders of magnitude beside 10 (in units of 0.5) and 1e25 (of 6), teachers' mean")


def _orders(formula: Any, rng: Rng, trials: int) -> Measurement:
    return count([abs(formula - np.log10(1e8 / 1.0))], 1e-9, "orders of magnitude between the caption's own ends")


CHECKS = {
    "L6": Check(_part("largest"), ("printed", 1.0), trials=40),
    "L7": Check(_part("smallest"), ("printed", 1.0), ("corrected", 1.0), trials=40),
    "T2-ex": Check(_opposed_many, "printed", "corrected", trials=1),
    "T2-tight": Check(_part("condition"), ("tight", 1.0), trials=40),
    "T2": Check(_constant, 0.0, 2.0, trials=6),
    "Rk7": Check(_growth, lambda s: True, lambda s: s >= 2, trials=15),
    "C1-step": Check(_slowest, lambda eta, low, N: 1 - eta * low, lambda eta, low, N: 1 - eta * low / N, trials=10),
    "C1-16": Check(_error_bound, lambda kappa, t: (1 - 1 / kappa) ** (2 * t)),
    "J3-rho": Check(_leakage, lambda p, m, b: sampled_leakage(p, m, b, directions=200, seed=0), leakage, trials=10),
    "Abs": Check(_growth, lambda s: True, lambda s: s >= 2, trials=15),
    "X1": Check(_teacher_ratio, (20, 20), (20, 150), trials=6),
    "X7": Check(_orders, 5.0, 8.0, trials=1),
}
