"""Certificates of soft margins: every W is feasible with its slacks, so the values of primal and dual decide.

Fenchel's inequality, ``rhs . lam - h*(lam) <= <W(lam), W> + h(W)``, holds for admissible multipliers (see
`attsvm.solvers.penalty`). With ``<D, W> <= r(W) + r*(D)`` it bounds the objective ``r(W) + h(W)`` of every W from
below by ``rhs . lam - h*(lam) - r*(W(lam))``, whoever computed lam.

Everything works over the leading axes of a batch: one problem is the case without any.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.certify.certificate import Certificate, RankCertificate, Source
from attsvm.solvers.certify.hard import arithmetic, error_bounds, frobenius_of
from attsvm.solvers.certify.ranks import Spectra, rank_certificate, spectra_of
from attsvm.solvers.certify.rounding import SLACK, UNIT_ROUNDOFF, gamma
from attsvm.solvers.norms import Norm
from attsvm.solvers.penalty import Penalty
from attsvm.solvers.problem import MarginProblem

__all__ = ["measure_soft"]


class _Primal(NamedTuple):
    """The value of W, an upper bound that includes rounding, shortfalls and slacks of W; arrays over a batch."""

    norm: Any
    objective: Any
    most: Any
    short: FloatArray
    slacks: FloatArray


class _Dual(NamedTuple):
    """The value of admissible multipliers, what of it is sure, and how far they were from admissible."""

    value: Any
    proved: Any
    violation: Any
    multiple: Any
    error: Any


def _primal(problem: MarginProblem, penalty: Penalty, W: FloatArray, norm: Norm, spectra: Spectra | None) -> _Primal:
    owner, q, rhs = problem.owner, problem.q, problem.rhs
    plain = np.asarray if problem.batch else float
    bounds, size = error_bounds(problem.shape, norm), frobenius_of(W)
    if norm.name == "frobenius":
        value = size
        regular, regular_most = 0.5 * value * value, 0.5 * value * value * (1.0 + 2.5 * bounds.value)
    elif spectra is not None:
        value = plain(np.add.reduce(spectra.values, axis=-1))
        regular, regular_most = value, spectra.norm_most
    else:
        value = plain(norm.values(W))
        regular, regular_most = value, value * (1.0 + bounds.value)
    short = rhs - problem.margins(W)
    violation = np.maximum(short, 0.0) if problem.is_plain else problem.missed(-short)
    error = problem.rows.error_norms * (bounds.margin * (size[..., None] if problem.batch else size))
    error += (2.0 * UNIT_ROUNDOFF) * (1.0 + violation if problem.is_plain else np.abs(rhs) + violation)
    if problem.prior is not None:  # right-hand sides that are themselves rounded
        error += problem.prior.error
    slacks = penalty.slacks(violation, owner, q)
    # A row that holds by more than its error has no slack: a large C multiplies the errors of the others only.
    largest = np.maximum(short + error, 0.0) if problem.is_plain else problem.missed(-short, error)
    objective = regular + penalty.cost(slacks)
    most = regular_most + penalty.cost(penalty.slacks(largest, owner, q))
    return _Primal(value, objective, most * (1.0 + 4.0 * gamma(problem.m + 4)), short, slacks)


def _multiple(gained: Any, curve: Any, room: Any, batch: tuple[int, ...]) -> Any:
    """The best admissible multiple of the multipliers: 1 where that is nearly best, as they are exact then."""
    if not batch:
        best = min(room, gained / curve) if curve > 0.0 else room
        if not (gained > 0.0 and math.isfinite(best)):
            return 0.0
        return 1.0 if abs(best - 1.0) < 1e-3 and room >= 1.0 else best * (1.0 - 4.0 * UNIT_ROUNDOFF)
    best = np.where(curve > 0, np.minimum(room, gained / np.where(curve > 0, curve, 1.0)), room)
    near = (np.abs(best - 1.0) < 1e-3) & (room >= 1.0)
    return np.where((gained > 0) & np.isfinite(best), np.where(near, 1.0, best * (1.0 - 4.0 * UNIT_ROUNDOFF)), 0.0)


def _admissible(problem: MarginProblem, penalty: Penalty, lam: FloatArray) -> tuple[FloatArray, FloatArray, Any]:
    """Multipliers made admissible beyond rounding, their loads, and how far they were from it."""
    owner, q, (_, least, most, larger, *_) = problem.owner, problem.q, arithmetic(problem.batch)
    free = least(lam) if problem.is_plain else least(np.where(problem.equality, 0.0, lam))
    negative: Any = larger(0.0, -free)
    if negative.any() if problem.batch else negative > 0.0:
        negative = most(np.maximum(np.where(problem.equality, 0.0, -lam) * problem.row_norms, 0.0))
        lam = problem.clipped(lam)
    loads = penalty.loads(lam, owner, q)
    if penalty.loss != "hinge":
        return lam, loads, negative
    over = larger(0.0, most(loads) / penalty.C - 1.0)
    if not (over.any() if problem.batch else over > 0.0):
        return lam, loads, negative
    down = np.where(over > 0, 1.0 - 8.0 * problem.m * UNIT_ROUNDOFF, 1.0)
    lam = penalty.admissible(lam, owner, q) * down[..., None]
    return lam, penalty.loads(lam, owner, q), larger(negative, over)


def _dual(
    problem: MarginProblem,
    penalty: Penalty,
    lam: FloatArray,
    loads: FloatArray,
    norm: Norm,
    matrix: FloatArray,
    spectra: Spectra | None,
) -> _Dual:
    """Value and error of admissible multipliers with these loads and ``matrix = W(lam)``."""
    dot, _, most_of, larger, smaller, count, *_ = arithmetic(problem.batch)
    rhs, sizes = problem.rhs, problem.rows.error_norms
    weights = lam if problem.is_plain else np.abs(lam)
    bounds, squared = error_bounds(problem.shape, norm), norm.name == "frobenius"
    plain = np.asarray if problem.batch else float
    terms = count(weights)
    error = bounds.dual * (terms + smaller(terms, problem.q) + 4) * dot(weights, sizes)
    if spectra is not None:
        size = plain(spectra.dual_values[..., 0])
        most = (size * spectra.grow + spectra.residual + error) * SLACK
    else:
        size = frobenius_of(matrix) if squared else plain(norm.dual.values(matrix))
        most = (size + error) * (1.0 + bounds.dual_value)
    gained, lost = dot(rhs, lam), penalty.conjugate(loads)
    room: Any = np.full(len(problem), np.inf) if problem.batch else np.inf
    if penalty.loss == "hinge":
        room = penalty.C / larger(most_of(loads), 1e-300)
    if not squared:
        room = smaller(room, 1.0 / larger(most, 1e-300))
    curve = 2.0 * lost + (most * most if squared else 0.0)
    t = _multiple(gained, curve, room, problem.batch)
    value = t * gained - 0.5 * t * t * curve
    sure = gained if problem.is_plain else dot(np.abs(rhs), weights)
    roundings = bounds.objective * (terms + 4) * (t * sure + t * t * lost)
    if problem.prior is not None:
        roundings = roundings + t * dot(problem.prior.error, weights) * SLACK
    proved = value - roundings - 8.0 * UNIT_ROUNDOFF * abs(value)
    return _Dual(value, proved, 0.0 * size if squared else larger(0.0, size - 1.0), t, error)


def _rank(spectra: Spectra, dual: _Dual, gap: Any, excess: Any, tolerance: float | None) -> RankCertificate:
    """The rank rule for admissible multipliers: ``sum_i (1 - sigma_i(t D)) sigma_i(W) <= excess`` for every optimal W.

    Where no singular value of ``t D`` comes near 1 this alone makes W vanish; otherwise the rule of hard margins, which
    divides by the largest of them, claims less.
    """
    found = rank_certificate(spectra, dual.error, gap, excess, tolerance)
    top = dual.multiple * (spectra.dual_values[..., 0] * spectra.grow + spectra.residual + dual.error) * SLACK
    vanishes = top < 1.0 - found.tolerance
    if not np.any(vanishes):
        return found
    bound = excess / np.where(vanishes, 1.0 - top, 1.0) * SLACK
    changed: dict[str, Any] = {
        "rank": np.where(vanishes, 0, found.rank),
        "resolution": np.where(vanishes, bound, found.resolution),
        "dual_gap": np.where(vanishes, 1.0 - top, found.dual_gap),
    }
    if np.ndim(top) == 0:
        changed = {"rank": 0, "resolution": float(bound), "dual_gap": float(1.0 - top)}
    return replace(found, **changed)


def measure_soft(
    problem: MarginProblem, penalty: Penalty, W: FloatArray, lam: FloatArray, norm: Norm, rank_tolerance: float | None
) -> Certificate:
    """Certificate of a pair for a soft margin, of one problem or a batch; see `attsvm.solvers.certify.entry`."""
    _, _, most, larger, _, _, scale_of, _ = arithmetic(problem.batch)
    lam, loads, violation = _admissible(problem, penalty, lam)
    matrix = problem.adjoint(lam)
    spectra = spectra_of(W, matrix) if norm.name == "nuclear" else None
    primal = _primal(problem, penalty, W, norm, spectra)
    dual = _dual(problem, penalty, lam, loads, norm, matrix, spectra)
    scale = scale_of(primal.objective)
    gap = abs(primal.objective - dual.value) / scale
    excess = larger(0.0, primal.most - dual.proved)
    gap_error = larger(0.0, excess / scale - gap) + 4.0 * UNIT_ROUNDOFF
    short = primal.short if problem.is_plain else np.where(problem.equality, np.abs(primal.short), primal.short)
    beyond = short - penalty.of_rows(primal.slacks, problem.owner)
    complementarity = most(np.abs(lam * beyond)) / scale
    rank = None if spectra is None else _rank(spectra, dual, gap, excess, rank_tolerance)
    zero = 0.0 * scale
    numbers: dict[str, Any] = {
        "primal_violation": zero, "dual_violation": larger(violation, dual.violation), "gap": gap,
        "complementarity": complementarity, "norm": primal.norm, "lower_bound": dual.proved, "primal_error": zero,
        "gap_error": gap_error, "soft_objective": primal.objective,
    }  # fmt: skip
    if not problem.batch:
        numbers = {name: float(number) for name, number in numbers.items()}
    return Certificate(**numbers, rank_certificate=rank, _source=Source(problem, W, lam, norm))
