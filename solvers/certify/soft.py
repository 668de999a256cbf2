"""Certificates of soft margins: every W is feasible with its slacks, so the values of primal and dual decide.

Fenchel's inequality, ``rhs . lam - h*(lam) <= <W(lam), W> + h(W)``, holds for admissible multipliers (see
`attsvm.solvers.penalty`). With ``<D, W> <= r(W) + r*(D)`` it bounds the objective ``r(W) + h(W)`` of every W from
below by ``rhs . lam - h*(lam) - r*(W(lam))``, whoever computed lam.

Everything works over the leading axes of a batch: one problem is the case without any.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np

from attsvm.solvers.arrays import Count, FloatArray, Number
from attsvm.solvers.certify.certificate import Certificate, RankCertificate, Source
from attsvm.solvers.certify.hard import Arithmetic, error_bounds
from attsvm.solvers.certify.ranks import Spectra
from attsvm.solvers.certify.rounding import SLACK, UNIT_ROUNDOFF, gamma
from attsvm.solvers.norms import Norm
from attsvm.solvers.penalty import Penalty
from attsvm.solvers.problem import EitherProblem

__all__ = ["measure_soft"]


_Spectra: TypeAlias = Spectra[float] | Spectra[FloatArray]


class _Primal(NamedTuple):
    """The value of W, an upper bound that includes rounding, both of shape (*batch,), and the violations of W."""

    norm: FloatArray
    objective: FloatArray
    most: FloatArray
    violation: FloatArray
    short: FloatArray


class _Dual(NamedTuple):
    """The value of admissible multipliers, what of it is sure, and how far they were from admissible; (*batch,)."""

    value: FloatArray
    proved: FloatArray
    violation: FloatArray
    multiple: FloatArray
    error: FloatArray


def _primal(
    problem: EitherProblem, penalty: Penalty, W: FloatArray, size: FloatArray, norm: Norm, spectra: _Spectra | None
) -> _Primal:
    """Value and error of W, whose Frobenius norms are ``size``."""
    owner, q, rhs = problem.owner, problem.q, problem.rhs
    bounds = error_bounds(problem.shape, norm)
    if norm.name == "frobenius":
        value = size
        regular, regular_most = 0.5 * value * value, 0.5 * value * value * (1.0 + 2.5 * bounds.value)
    elif spectra is not None:
        value = np.add.reduce(spectra.values, axis=-1)
        regular, regular_most = value, np.asarray(spectra.norm_most)
    else:
        value = np.asarray(norm.values(W))
        regular, regular_most = value, value * (1.0 + bounds.value)
    short = rhs - problem.margins(W)
    violation = problem.missed(-short)
    error = bounds.margin * size[..., None] * problem.rows.error_norms
    error = error + 2.0 * UNIT_ROUNDOFF * (np.abs(rhs) + violation)
    if problem.prior is not None:  # right-hand sides that are themselves rounded
        error = error + problem.prior.error
    objective = regular + penalty.costs(penalty.slacks(violation, owner, q))
    most = regular_most + penalty.costs(penalty.slacks(violation + error, owner, q))
    return _Primal(value, objective, most * (1.0 + 4.0 * gamma(problem.m + 4)), violation, short)


def _multiple(gained: FloatArray, curve: FloatArray, room: FloatArray) -> FloatArray:
    """The best admissible multiple of the multipliers: 1 where that is nearly best, as they are exact then."""
    best = np.where(curve > 0, np.minimum(room, gained / np.where(curve > 0, curve, 1.0)), room)
    near = (np.abs(best - 1.0) < 1e-3) & (room >= 1.0)
    return np.where((gained > 0) & np.isfinite(best), np.where(near, 1.0, best * (1.0 - 4.0 * UNIT_ROUNDOFF)), 0.0)


def _admissible(problem: EitherProblem, penalty: Penalty, lam: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Multipliers made admissible beyond rounding, and how far they were from it."""
    owner, q = problem.owner, problem.q
    negative = np.maximum(np.where(problem.equality, 0.0, -lam) * problem.row_norms, 0.0).max(axis=-1, initial=0.0)
    lam = problem.clipped(lam)
    if penalty.loss != "hinge":
        return lam, negative
    over = np.maximum(0.0, penalty.loads(lam, owner, q).max(axis=-1, initial=0.0) / penalty.C - 1.0)
    down = np.where(over > 0, 1.0 - 8.0 * problem.m * UNIT_ROUNDOFF, 1.0)
    return penalty.admissible(lam, owner, q) * down[..., None], np.maximum(negative, over)


def _dual(
    problem: EitherProblem, penalty: Penalty, lam: FloatArray, norm: Norm, size: FloatArray, spectra: _Spectra | None
) -> _Dual:
    """Value and error of admissible multipliers, with ``size`` the dual norms of ``W(lam)``."""
    rhs, sizes, weights = problem.rhs, problem.rows.error_norms, np.abs(lam)
    bounds, squared = error_bounds(problem.shape, norm), norm.name == "frobenius"
    loads = penalty.loads(lam, problem.owner, problem.q)
    terms = np.count_nonzero(weights, axis=-1)
    error = bounds.dual * (terms + np.minimum(terms, problem.q) + 4) * np.vecdot(weights, sizes)
    if spectra is not None:
        most = (size * spectra.grow + spectra.residual + error) * SLACK
    else:
        most = (size + error) * (1.0 + bounds.dual_value)
    gained, lost = np.vecdot(rhs, lam), penalty.conjugates(loads)
    room = np.full(np.shape(gained), np.inf)
    if penalty.loss == "hinge":
        room = penalty.C / np.maximum(loads.max(axis=-1, initial=0.0), 1e-300)
    if not squared:
        room = np.minimum(room, 1.0 / np.maximum(most, 1e-300))
    curve = 2.0 * lost + (most * most if squared else 0.0)
    t = _multiple(gained, np.asarray(curve), room)
    value = t * gained - 0.5 * t * t * curve
    roundings = bounds.objective * (terms + 4) * (t * np.vecdot(np.abs(rhs), weights) + t * t * lost)
    if problem.prior is not None:
        roundings = roundings + t * np.vecdot(problem.prior.error, weights) * SLACK
    proved = value - roundings - 8.0 * UNIT_ROUNDOFF * np.abs(value)
    return _Dual(value, proved, np.zeros_like(size) if squared else np.maximum(0.0, size - 1.0), t, error)


def _rank(
    arithmetic: Arithmetic[Number, Count],
    spectra: Spectra[Number],
    dual: _Dual,
    gap: FloatArray,
    excess: FloatArray,
    tolerance: float | None,
) -> RankCertificate[Number, Count]:
    """The rank rule for admissible multipliers: ``sum_i (1 - sigma_i(t D)) sigma_i(W) <= excess`` for every optimal W.

    Where no singular value of ``t D`` comes near 1 this alone makes W vanish; otherwise the rule of hard margins, which
    divides by the largest of them, claims less.
    """
    plain = arithmetic.plain
    found = arithmetic.ranks(spectra, plain(dual.error), plain(gap), plain(excess), tolerance)
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
    penalty: Penalty,
    W: FloatArray,
    lam: FloatArray,
    norm: Norm,
    rank_tolerance: float | None,
) -> Certificate[Number, Count]:
    """Certificate of a pair for a soft margin, of one problem or a batch; see `attsvm.solvers.certify.entry`."""
    plain, size = arithmetic.plain, np.asarray(arithmetic.frobenius(W))
    lam, violation = _admissible(problem, penalty, lam)
    matrix = problem.adjoint(lam)
    spectra = arithmetic.spectra(W, matrix) if norm.name == "nuclear" else None
    if spectra is not None:
        dual_size = spectra.dual_values[..., 0]
    elif norm.name == "frobenius":
        dual_size = np.asarray(arithmetic.frobenius(matrix))
    else:
        dual_size = norm.dual.values(matrix)
    primal = _primal(problem, penalty, W, size, norm, spectra)
    dual = _dual(problem, penalty, lam, norm, dual_size, spectra)
    scale = np.where(primal.objective > 0, primal.objective, 1.0)
    gap = np.abs(primal.objective - dual.value) / scale
    excess = np.maximum(0.0, primal.most - dual.proved)
    gap_error = np.maximum(0.0, excess / scale - gap) + 4.0 * UNIT_ROUNDOFF
    slacks = penalty.of_rows(penalty.slacks(primal.violation, problem.owner, problem.q), problem.owner)
    beyond = np.where(problem.equality, np.abs(primal.short), primal.short) - slacks
    complementarity = (np.abs(lam) * np.abs(beyond)).max(axis=-1, initial=0.0) / scale
    zero = np.zeros_like(scale)
    return Certificate(
        primal_violation=plain(zero),
        dual_violation=plain(np.maximum(violation, dual.violation)),
        gap=plain(gap),
        complementarity=plain(complementarity),
        norm=plain(primal.norm),
        lower_bound=plain(dual.proved),
        primal_error=plain(zero),
        gap_error=plain(gap_error),
        rank_certificate=None if spectra is None else _rank(arithmetic, spectra, dual, gap, excess, rank_tolerance),
        _source=Source(problem, W, lam, norm),
        soft_objective=plain(primal.objective),
    )
