"""Certificates of soft margins: every W is feasible at its price, so the values of primal and dual decide.

Fenchel's inequality, ``rhs . lam - h*(lam) <= <W(lam), W> + h(W)``, holds for admissible multipliers (see
`attsvm.solvers.penalty`). With ``<D, W> <= r(W) + r*(D)`` it bounds the objective ``r(W) + h(W)`` of every W from
below by ``rhs . lam - h*(lam) - r*(W(lam))``, whoever computed lam.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.certify.certificate import Certificate, RankCertificate, Source
from attsvm.solvers.certify.hard import error_bounds, frobenius_of
from attsvm.solvers.certify.ranks import Spectra, rank_certificate, spectra_of
from attsvm.solvers.certify.rounding import SLACK, UNIT_ROUNDOFF, gamma
from attsvm.solvers.norms import Norm
from attsvm.solvers.penalty import Penalty
from attsvm.solvers.problem import MarginProblem

__all__ = ["measure_soft"]


class _Primal(NamedTuple):
    """The value of W, an upper bound that includes rounding, and what W misses."""

    norm: float
    objective: float
    most: float
    missed: FloatArray
    short: FloatArray


class _Dual(NamedTuple):
    """The value of admissible multipliers, what of it is sure, and how far they were from admissible."""

    multipliers: FloatArray
    value: float
    proved: float
    violation: float
    multiple: float
    error: float


def _primal(problem: MarginProblem, penalty: Penalty, W: FloatArray, norm: Norm, spectra: Spectra | None) -> _Primal:
    owner, q, rhs = problem.owner, problem.q, problem.rhs
    bounds, size = error_bounds(problem.shape, norm), frobenius_of(W)
    if norm.name == "frobenius":
        value = size
        regular, regular_most = 0.5 * value * value, 0.5 * value * value * (1.0 + 2.5 * bounds.value)
    elif spectra is not None:
        value = float(spectra.values.sum())
        regular, regular_most = value, float(spectra.norm_most)
    else:
        value = float(norm.values(W))
        regular, regular_most = value, value * (1.0 + bounds.value)
    short = rhs - problem.margins(W)
    missed = problem.missed(-short)
    blur = bounds.margin * size * problem.rows.error_norms + 2.0 * UNIT_ROUNDOFF * (np.abs(rhs) + missed)
    if problem.prior is not None:  # right-hand sides that are themselves rounded
        blur = blur + problem.prior.error
    if problem.prior is not None:  # right-hand sides that are themselves rounded
        blur = blur + problem.prior.error
    objective = regular + penalty.cost(penalty.slacks(missed, owner, q))
    most = regular_most + penalty.cost(penalty.slacks(missed + blur, owner, q))
    return _Primal(value, objective, most * (1.0 + 4.0 * gamma(problem.m + 4)), missed, short)


def _multiple(gained: float, curve: float, room: float) -> float:
    """The best admissible multiple of the multipliers: 1 where that is nearly best, as they are exact then."""
    if not gained > 0:
        return 0.0
    best = min(room, gained / curve) if curve > 0 else room
    if not np.isfinite(best):
        return 0.0
    return 1.0 if abs(best - 1.0) < 1e-3 and room >= 1.0 else best * (1.0 - 4.0 * UNIT_ROUNDOFF)


def _admissible(problem: MarginProblem, penalty: Penalty, lam: FloatArray) -> tuple[FloatArray, float]:
    """Multipliers made admissible beyond rounding, and how far they were from it."""
    owner, q = problem.owner, problem.q
    negative = float(np.maximum(np.where(problem.equality, 0.0, -lam) * problem.row_norms, 0.0).max())
    lam = problem.clipped(lam)
    if penalty.loss != "hinge":
        return lam, negative
    over = max(0.0, float(penalty.loads(lam, owner, q).max()) / penalty.C - 1.0)
    lam = penalty.admissible(lam, owner, q) * (1.0 - 8.0 * problem.m * UNIT_ROUNDOFF if over else 1.0)
    return lam, max(negative, over)


def _dual(
    problem: MarginProblem, penalty: Penalty, lam: FloatArray, norm: Norm, matrix: FloatArray, spectra: Spectra | None
) -> _Dual:
    """Value and error of admissible multipliers, with ``matrix = W(lam)``."""
    rhs, sizes, weights = problem.rhs, problem.rows.error_norms, np.abs(lam)
    bounds, squared = error_bounds(problem.shape, norm), norm.name == "frobenius"
    loads = penalty.loads(lam, problem.owner, problem.q)
    terms = int(np.count_nonzero(weights))
    error = bounds.dual * (terms + min(terms, problem.q) + 4) * float(weights @ sizes)
    if spectra is not None:
        size = float(spectra.dual_values[0])
        most = (size * spectra.grow + spectra.residual + error) * SLACK
    else:
        size = frobenius_of(matrix) if squared else float(norm.dual.values(matrix))
        most = (size + error) * (1.0 + bounds.dual_value)
    gained, lost = float(rhs @ lam), penalty.conjugate(loads)
    room = penalty.C / max(float(loads.max()), 1e-300) if penalty.loss == "hinge" else np.inf
    room = room if squared else min(room, 1.0 / most if most > 0 else np.inf)
    curve = 2.0 * lost + (most * most if squared else 0.0)
    t = _multiple(gained, curve, room)
    value = t * gained - 0.5 * t * t * curve
    roundings = bounds.objective * (terms + 4) * (t * float(np.abs(rhs) @ weights) + t * t * lost)
    if problem.prior is not None:
        roundings += t * float(problem.prior.error @ weights) * SLACK
    proved = value - roundings - 8.0 * UNIT_ROUNDOFF * abs(value)
    return _Dual(lam, value, proved, 0.0 if squared else max(0.0, size - 1.0), t, error)


def _rank(spectra: Spectra, dual: _Dual, gap: float, excess: float, tolerance: float | None) -> RankCertificate:
    """The rank rule for admissible multipliers: ``sum_i (1 - sigma_i(t D)) sigma_i(W) <= excess`` for every optimal W.

    Where no singular value of ``t D`` comes near 1 this alone makes W vanish; otherwise the rule of hard margins, which
    divides by the largest of them, claims less.
    """
    found = rank_certificate(spectra, dual.error, gap, excess, tolerance)
    top = dual.multiple * (float(spectra.dual_values[0]) * spectra.grow + spectra.residual + dual.error) * SLACK
    if top < 1.0 - found.tolerance:
        return replace(found, rank=0, resolution=excess / (1.0 - top) * SLACK, dual_gap=1.0 - top)
    return found


def measure_soft(
    problem: MarginProblem, penalty: Penalty, W: FloatArray, lam: FloatArray, norm: Norm, rank_tolerance: float | None
) -> Certificate:
    """Certificate of a pair for the soft margin of one problem; see `attsvm.solvers.certify.hard`."""
    if problem.batch:
        raise ValueError("the certificate of a soft margin is of one problem; index the batch first")
    lam, violation = _admissible(problem, penalty, lam)
    matrix = problem.adjoint(lam)
    spectra = spectra_of(W, matrix) if norm.name == "nuclear" else None
    primal = _primal(problem, penalty, W, norm, spectra)
    dual = _dual(problem, penalty, lam, norm, matrix, spectra)
    scale = primal.objective if primal.objective > 0 else 1.0
    gap = abs(primal.objective - dual.value) / scale
    excess = max(0.0, primal.most - dual.proved)
    gap_error = max(0.0, excess / scale - gap) + 4.0 * UNIT_ROUNDOFF
    slacks = penalty.slacks(primal.missed, problem.owner, problem.q)
    paid = slacks if penalty.slack == "row" else slacks[problem.owner]
    unpaid = np.where(problem.equality, np.abs(primal.short), primal.short) - paid
    rank = None if spectra is None else _rank(spectra, dual, gap, excess, rank_tolerance)
    return Certificate(
        0.0, max(violation, dual.violation), gap, float((np.abs(lam) * np.abs(unpaid)).max()) / scale, primal.norm,
        dual.proved, 0.0, gap_error, rank, None, Source(problem, W, lam, norm), primal.objective,
    )  # fmt: skip
