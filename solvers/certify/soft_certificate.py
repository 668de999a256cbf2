"""Certificates of soft margins: every W is feasible with its slacks, so the values of primal and dual decide.

Fenchel's inequality, ``rhs . lam - h*(lam) <= <W(lam), W> + h(W)``, holds for admissible multipliers (see
`attsvm.solvers.penalty`). With ``<D, W> <= r(W) + r*(D)`` it bounds the objective ``r(W) + h(W)`` of every W from
below by ``rhs . lam - h*(lam) - r*(W(lam))``, whoever computed lam.

Everything works over the leading axes of a batch: one problem is the case without any.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Generic, NamedTuple

import numpy as np

from attsvm.solvers.arrays import Count, FloatArray, Number
from attsvm.solvers.certify.certificate import Certificate, RankCertificate, Source
from attsvm.solvers.certify.hard_certificate import Arithmetic, error_bounds
from attsvm.solvers.certify.ranks import Spectra
from attsvm.solvers.certify.rounding import SLACK, UNIT_ROUNDOFF, gamma
from attsvm.solvers.margin_problem import EitherProblem
from attsvm.solvers.norms import Norm
from attsvm.solvers.penalty import EitherPenalty

__all__ = [
    "measure_soft",
]


class _Primal(NamedTuple, Generic[Number]):
    """The value of W, an upper bound that includes rounding, and the shortfalls and slacks of W."""

    norm: Number
    objective: Number
    most: Number
    short: FloatArray
    slacks: FloatArray


class _Dual(NamedTuple, Generic[Number]):
    """The value of admissible multipliers, what of it is sure, and how far they were from admissible."""

    value: Number
    proved: Number
    violation: Number
    multiple: Number
    error: Number


def _primal(
    arithmetic: Arithmetic[Number, Count],
    problem: EitherProblem,
    penalty: EitherPenalty,
    W: FloatArray,
    norm: Norm,
    spectra: Spectra[Number] | None,
) -> _Primal[Number]:
    """Value and error of W."""
    owner, q, rhs, plain = problem.owner, problem.q, problem.rhs, arithmetic.plain
    bounds, size = error_bounds(problem.shape, norm), arithmetic.frobenius(W)
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
    error = problem.rows.error_norms * (bounds.margin * (size if isinstance(size, float) else size[..., None]))
    error += (2.0 * UNIT_ROUNDOFF) * (1.0 + violation if problem.is_plain else np.abs(rhs) + violation)
    if problem.prior is not None:  # right-hand sides that are themselves rounded
        error += problem.prior.error
    slacks = penalty.slacks(violation, owner, q)
    # A row that holds by more than its error has no slack: a large C multiplies the errors of the others only.
    largest = np.maximum(short + error, 0.0) if problem.is_plain else problem.missed(-short, error)
    objective = regular + plain(penalty.costs(slacks))
    most = regular_most + plain(penalty.costs(penalty.slacks(largest, owner, q)))
    return _Primal(value, objective, most * (1.0 + 4.0 * gamma(problem.m + 4)), short, slacks)


def _multiple(gained: Number, curve: Number, room: Number) -> Number:
    """The best admissible multiple of the multipliers: 1 where that is nearly best, as they are exact then."""
    if isinstance(gained, float) and isinstance(curve, float) and isinstance(room, float):
        best = min(room, gained / curve) if curve > 0.0 else room
        if not (gained > 0.0 and math.isfinite(best)):
            return 0.0
        return 1.0 if abs(best - 1.0) < 1e-3 and room >= 1.0 else best * (1.0 - 4.0 * UNIT_ROUNDOFF)
    bests = np.where(curve > 0, np.minimum(room, gained / np.where(curve > 0, curve, 1.0)), room)
    near = (np.abs(bests - 1.0) < 1e-3) & (room >= 1.0)
    return np.where((gained > 0) & np.isfinite(bests), np.where(near, 1.0, bests * (1.0 - 4.0 * UNIT_ROUNDOFF)), 0.0)


def _admissible(
    arithmetic: Arithmetic[Number, Count], problem: EitherProblem, penalty: EitherPenalty, lam: FloatArray
) -> tuple[FloatArray, FloatArray, Number]:
    """Multipliers made admissible beyond rounding, their loads, and how far they were from it."""
    owner, q, least, most, larger = problem.owner, problem.q, arithmetic.least, arithmetic.most, arithmetic.larger
    negative = larger(0.0, -least(lam if problem.is_plain else np.where(problem.equality, 0.0, lam)))
    if arithmetic.positive(negative):
        negative = most(np.maximum(np.where(problem.equality, 0.0, -lam) * problem.row_norms, 0.0))
        lam = problem.clipped(lam)
    loads = penalty.loads(lam, owner, q)
    if penalty.loss != "hinge":
        return lam, loads, negative
    over = larger(0.0, most(loads) / arithmetic.plain(np.asarray(penalty.C)) - 1.0)
    if not arithmetic.positive(over):
        return lam, loads, negative
    down = np.where(over > 0, 1.0 - 8.0 * problem.m * UNIT_ROUNDOFF, 1.0)
    lam = penalty.admissible(lam, owner, q) * down[..., None]
    return lam, penalty.loads(lam, owner, q), larger(negative, over)


def _dual(
    arithmetic: Arithmetic[Number, Count],
    problem: EitherProblem,
    penalty: EitherPenalty,
    lam: FloatArray,
    loads: FloatArray,
    norm: Norm,
    matrix: FloatArray,
    spectra: Spectra[Number] | None,
) -> _Dual[Number]:
    """Value and error of admissible multipliers with these loads and ``matrix = W(lam)``."""
    dot, larger, smaller, plain = arithmetic.dot, arithmetic.larger, arithmetic.smaller, arithmetic.plain
    rhs, sizes = problem.rhs, problem.rows.error_norms
    weights = lam if problem.is_plain else np.abs(lam)
    bounds, squared = error_bounds(problem.shape, norm), norm.name == "frobenius"
    terms = arithmetic.nonzero(weights)
    error = bounds.dual * (terms + smaller(terms, problem.q) + 4) * dot(weights, sizes)
    if spectra is not None:
        size = plain(spectra.dual_values[..., 0])
        most = (size * spectra.grow + spectra.residual + error) * SLACK
    else:
        size = arithmetic.frobenius(matrix) if squared else plain(norm.dual.values(matrix))
        most = (size + error) * (1.0 + bounds.dual_value)
    gained, lost = dot(rhs, lam), plain(penalty.conjugates(loads))
    room = larger(math.inf, gained)  # as many as there are problems
    if penalty.loss == "hinge":
        room = plain(np.asarray(penalty.C)) / larger(arithmetic.most(loads), 1e-300)
    if not squared:
        room = smaller(room, 1.0 / larger(most, 1e-300))
    curve = 2.0 * lost + (most * most if squared else 0.0)
    t = _multiple(gained, curve, room)
    value = t * gained - 0.5 * t * t * curve
    sure = gained if problem.is_plain else dot(np.abs(rhs), weights)
    roundings = bounds.objective * (terms + 4) * (t * sure + t * t * lost)
    if problem.prior is not None:
        roundings = roundings + t * dot(problem.prior.error, weights) * SLACK
    proved = value - roundings - 8.0 * UNIT_ROUNDOFF * abs(value)
    return _Dual(value, proved, 0.0 * size if squared else larger(0.0, size - 1.0), t, error)


def _rank(
    arithmetic: Arithmetic[Number, Count],
    spectra: Spectra[Number],
    dual: _Dual[Number],
    gap: Number,
    excess: Number,
    tolerance: float | None,
) -> RankCertificate[Number, Count]:
    """The rank rule for admissible multipliers: ``sum_i (1 - sigma_i(t D)) sigma_i(W) <= excess`` for every optimal W.

    Where no singular value of ``t D`` comes near 1 this alone makes W vanish; otherwise the rule of hard margins, which
    divides by the largest of them, claims less.
    """
    plain = arithmetic.plain
    found = arithmetic.ranks(spectra, dual.error, gap, excess, tolerance)
    top = dual.multiple * (spectra.dual_values[..., 0] * spectra.grow + spectra.residual + dual.error) * SLACK
    vanishes = top < 1.0 - found.tolerance
    if not np.any(vanishes):
        return found
    bound = excess / np.where(vanishes, 1.0 - top, 1.0) * SLACK
    return replace(
        found,
        rank=arithmetic.whole(np.where(vanishes, 0, found.rank)),
        resolution=plain(np.where(vanishes, bound, found.resolution)),
        dual_gap=plain(np.where(vanishes, 1.0 - top, found.dual_gap)),
    )


def measure_soft(
    arithmetic: Arithmetic[Number, Count],
    problem: EitherProblem,
    penalty: EitherPenalty,
    W: FloatArray,
    lam: FloatArray,
    norm: Norm,
    rank_tolerance: float | None,
) -> Certificate[Number, Count]:
    """Certificate of a pair for a soft margin, of one problem or a batch; see `attsvm.solvers.certify.entry`."""
    larger = arithmetic.larger
    lam, loads, violation = _admissible(arithmetic, problem, penalty, lam)
    matrix = problem.adjoint(lam)
    spectra = arithmetic.spectra(W, matrix) if norm.name == "nuclear" else None
    primal = _primal(arithmetic, problem, penalty, W, norm, spectra)
    dual = _dual(arithmetic, problem, penalty, lam, loads, norm, matrix, spectra)
    scale = arithmetic.scale(primal.objective)
    gap = abs(primal.objective - dual.value) / scale
    excess = larger(0.0, primal.most - dual.proved)
    short = primal.short if problem.is_plain else np.where(problem.equality, np.abs(primal.short), primal.short)
    beyond = short - penalty.of_rows(primal.slacks, problem.owner)
    zero = 0.0 * scale
    return Certificate(
        primal_violation=zero,
        dual_violation=larger(violation, dual.violation),
        gap=gap,
        complementarity=arithmetic.most(np.abs(lam * beyond)) / scale,
        norm=primal.norm,
        lower_bound=dual.proved,
        primal_error=zero,
        gap_error=larger(0.0, excess / scale - gap) + 4.0 * UNIT_ROUNDOFF,
        rank_certificate=None if spectra is None else _rank(arithmetic, spectra, dual, gap, excess, rank_tolerance),
        _source=Source(problem, W, lam, norm),
        soft_objective=primal.objective,
    )
