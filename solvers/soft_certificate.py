"""Certificates of soft margins: every W is feasible at its price, so the values of primal and dual decide.

Fenchel's inequality, ``rhs . lam - h*(lam) <= <W(lam), W> + h(W)``, holds for admissible multipliers (see
`attsvm.solvers.penalty`). With ``<D, W> <= r(W) + r*(D)`` it bounds the objective ``r(W) + h(W)`` of every W from
below by ``rhs . lam - h*(lam) - r*(W(lam))``, whoever computed lam.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.certificate import Certificate, Source
from attsvm.solvers.certify import error_bounds, frobenius_of, rank_certificate_of, singular_values_of
from attsvm.solvers.norms import Norm
from attsvm.solvers.penalty import Penalty
from attsvm.solvers.problem import MarginProblem
from attsvm.solvers.rounding import UNIT_ROUNDOFF, gamma

__all__ = ["measure_soft"]


class _Primal(NamedTuple):
    """The value of W, an upper bound that includes rounding, and what W misses."""

    norm: float
    objective: float
    most: float
    missed: FloatArray
    short: FloatArray
    singular: FloatArray | None


class _Dual(NamedTuple):
    """The value of admissible multipliers, what of it is sure, and how far they were from admissible."""

    multipliers: FloatArray
    value: float
    proved: float
    violation: float
    singular: FloatArray | None
    error: float


def _primal(problem: MarginProblem, penalty: Penalty, W: FloatArray, norm: Norm) -> _Primal:
    owner, q, rhs = problem.owner, problem.q, problem.rhs
    bounds, size = error_bounds(problem.shape, norm), frobenius_of(W)
    singular = singular_values_of(W) if norm.name == "nuclear" else None
    squared = norm.name == "frobenius"
    value = size if squared else float(norm.values(W)) if singular is None else float(singular.sum())
    regular, roundings = (0.5 * value * value, 2.5) if squared else (value, 1.0)
    short = rhs - problem.margins(W)
    missed = problem.missed(-short)
    blur = bounds.margin * size * problem.row_norms + 2.0 * UNIT_ROUNDOFF * (np.abs(rhs) + missed)
    objective = regular + penalty.cost(penalty.slacks(missed, owner, q))
    most = regular * (1.0 + roundings * bounds.value) + penalty.cost(penalty.slacks(missed + blur, owner, q))
    return _Primal(value, objective, most * (1.0 + 4.0 * gamma(problem.m + 4)), missed, short, singular)


def _multiple(gained: float, curve: float, room: float) -> float:
    """The best admissible multiple of the multipliers: 1 where that is nearly best, as they are exact then."""
    if not gained > 0:
        return 0.0
    best = min(room, gained / curve) if curve > 0 else room
    if not np.isfinite(best):
        return 0.0
    return 1.0 if abs(best - 1.0) < 1e-3 and room >= 1.0 else best * (1.0 - 4.0 * UNIT_ROUNDOFF)


def _dual(problem: MarginProblem, penalty: Penalty, lam: FloatArray, norm: Norm) -> _Dual:
    owner, q, rhs, row_norms = problem.owner, problem.q, problem.rhs, problem.row_norms
    bounds, squared, hinge = error_bounds(problem.shape, norm), norm.name == "frobenius", penalty.loss == "hinge"
    negative = float(np.maximum(np.where(problem.equality, 0.0, -lam) * row_norms, 0.0).max())
    lam = problem.clipped(lam)
    over = max(0.0, float(penalty.loads(lam, owner, q).max()) / penalty.C - 1.0) if hinge else 0.0
    lam = penalty.admissible(lam, owner, q) * (1.0 - 8.0 * problem.m * UNIT_ROUNDOFF if over else 1.0)
    loads, matrix = penalty.loads(lam, owner, q), problem.adjoint(lam)
    singular = singular_values_of(matrix) if norm.name == "nuclear" else None
    size = frobenius_of(matrix) if squared else float(norm.dual.values(matrix) if singular is None else singular[0])
    weights = np.abs(lam)
    terms = int(np.count_nonzero(weights))
    error = bounds.dual * (terms + min(terms, q) + 4) * float(weights @ row_norms)
    most = (size + error) * (1.0 + bounds.dual_value)
    gained, lost = float(rhs @ lam), penalty.conjugate(loads)
    room = penalty.C / max(float(loads.max()), 1e-300) if hinge else np.inf
    room = room if squared else min(room, 1.0 / most if most > 0 else np.inf)
    curve = 2.0 * lost + (most * most if squared else 0.0)
    t = _multiple(gained, curve, room)
    value = t * gained - 0.5 * t * t * curve
    roundings = bounds.objective * (terms + 4) * (t * float(np.abs(rhs) @ weights) + t * t * lost)
    violation = max(negative, over, 0.0 if squared else size - 1.0)
    scaled = None if singular is None else t * singular
    return _Dual(lam, value, value - roundings - 8.0 * UNIT_ROUNDOFF * abs(value), violation, scaled, t * error)


def measure_soft(
    problem: MarginProblem, penalty: Penalty, W: FloatArray, lam: FloatArray, norm: Norm, rank_tolerance: float | None
) -> Certificate:
    """Certificate of a pair for the soft margin of one problem; see `attsvm.solvers.certify`."""
    if problem.batch:
        raise ValueError("the certificate of a soft margin is of one problem; index the batch first")
    primal, dual = _primal(problem, penalty, W, norm), _dual(problem, penalty, lam, norm)
    scale = primal.objective if primal.objective > 0 else 1.0
    gap = abs(primal.objective - dual.value) / scale
    excess = max(0.0, primal.most - dual.proved)
    gap_error = max(0.0, excess / scale - gap) + 4.0 * UNIT_ROUNDOFF
    slacks = penalty.slacks(primal.missed, problem.owner, problem.q)
    paid = slacks if penalty.slack == "row" else slacks[problem.owner]
    unpaid = np.where(problem.equality, np.abs(primal.short), primal.short) - paid
    rank = None
    if primal.singular is not None and dual.singular is not None:
        blur = 2.0 * (dual.error + error_bounds(problem.shape, norm).dual_value)
        rank = rank_certificate_of(
            primal.singular, dual.singular, gap, excess, rank_tolerance, blur, lambda x: x.item(), soft=True
        )
    return Certificate(
        0.0, dual.violation, gap, float((np.abs(dual.multipliers) * np.abs(unpaid)).max()) / scale, primal.norm,
        dual.proved, 0.0, gap_error, rank, None, Source(problem, W, dual.multipliers, norm), primal.objective,
    )  # fmt: skip
