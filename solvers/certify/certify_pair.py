"""Certify a pair (W, multipliers) of a hard or soft margin, whoever computed it, with every rounding counted.

Of a soft margin every W is feasible with its slacks, so the values of primal and dual decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Generic, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import Count, FloatArray, IntArray, Number
from attsvm.solvers.certify.certificate import Certificate, CertificateBatch, RankCertificate, Source
from attsvm.solvers.certify.feasible import feasibility_cost
from attsvm.solvers.certify.ranks import (
    Spectra,
    rank_certificate,
    rank_certificate_of_batch,
    spectra_of,
    spectra_of_batch,
)
from attsvm.solvers.certify.rounding import SLACK, UNIT_ROUNDOFF, gamma, margin_error_by_entries
from attsvm.solvers.margin_problem import EitherProblem, MarginProblem, MarginProblemBatch
from attsvm.solvers.norms import Norm, get_norm
from attsvm.solvers.penalty import EitherPenalty
from attsvm.solvers.rows.pairs import PairRows

__all__ = [
    "MANY",
    "ONE",
    "Arithmetic",
    "certify",
    "error_bounds",
    "frobenius_of",
    "frobenius_of_batch",
    "measure",
    "measure_soft",
]

# Bounds below are computed from computed norms; this covers their own roundings for any size that fits in memory.
_SLACK = 1.0 + 1e-6


# An error of margins above this is looked at entry by entry (rows of different sizes), up to so many entries.
_COARSE, _BY_ENTRIES = 1e-11, 100_000


def frobenius_of(matrix: FloatArray) -> float:
    """Frobenius norm of one matrix."""
    entries = matrix.ravel()
    return math.sqrt(entries.dot(entries))


def frobenius_of_batch(matrices: FloatArray) -> FloatArray:
    """Frobenius norms over the last two axes, shape (B,)."""
    flat = matrices.reshape(len(matrices), -1)
    return np.asarray(np.sqrt(np.vecdot(flat, flat)))


class Arithmetic(NamedTuple, Generic[Number, Count]):
    """The same formulas for one problem and for a batch: Python numbers are ten times faster than 0-d arrays."""

    dot: Callable[[FloatArray, FloatArray], Number]
    least: Callable[[FloatArray], Number]
    most: Callable[[FloatArray], Number]
    larger: Callable[[Number | float, Number | float], Number]
    smaller: Callable[[Number, Number | float], Number]
    nonzero: Callable[[FloatArray], Number]
    scale: Callable[[Number], Number]  # the number if it is positive, else 1
    share: Callable[[Number, Number], Number]  # of a positive number what it is in such scales, else 0
    positive: Callable[[Number], bool]  # whether some number is
    plain: Callable[[FloatArray], Number]
    whole: Callable[[IntArray], Count]
    frobenius: Callable[[FloatArray], Number]
    spectra: Callable[[FloatArray, FloatArray], Spectra[Number]]
    ranks: Callable[[Spectra[Number], Number, Number, Number, float | None], RankCertificate[Number, Count]]


ONE: Arithmetic[float, int] = Arithmetic(
    dot=lambda x, y: float(x.dot(y)),
    least=lambda x: x.item(x.argmin()),  # a fifth of the time of a reduction, and NaN comes first in both
    most=lambda x: x.item(x.argmax()),
    larger=max,
    smaller=min,
    nonzero=lambda x: x.nonzero()[0].size,
    scale=lambda x: x if x > 0 else 1.0,
    share=lambda x, y: (x / y if y > 0 else x) if x > 0 else 0.0,
    positive=lambda x: x > 0.0,
    plain=float,
    whole=int,
    frobenius=frobenius_of,
    spectra=spectra_of,
    ranks=rank_certificate,
)


MANY: Arithmetic[FloatArray, IntArray] = Arithmetic(
    dot=np.vecdot,
    least=lambda x: np.minimum.reduce(x, axis=-1),
    most=lambda x: np.maximum.reduce(x, axis=-1),
    larger=np.maximum,
    smaller=np.minimum,
    nonzero=lambda x: np.add.reduce(x != 0.0, axis=-1, dtype=np.float64),
    scale=lambda x: np.where(x > 0, x, 1.0),
    share=lambda x, y: np.where(x > 0, x / np.where(y > 0, y, 1.0), 0.0),
    positive=lambda x: bool((x > 0.0).any()),
    plain=np.asarray,
    whole=np.asarray,
    frobenius=frobenius_of_batch,
    spectra=spectra_of_batch,
    ranks=rank_certificate_of_batch,
)


class _Bounds(NamedTuple):
    """Constants of the error bounds for one shape of problem; `attsvm.solvers.certify.rounding` has the lemmas."""

    margin: float  # `margin_error`, and the rounding of the slack
    dual: float  # one rounding of the dual matrix, in the dual norm
    objective: float  # one rounding of the objective
    value: float  # relative error of the norm
    dual_value: float  # relative error of the dual norm


@lru_cache(maxsize=256)
def error_bounds(shape: tuple[int, int], norm: Norm) -> _Bounds:
    """The constants of one shape and norm."""
    dual = norm.dual
    return _Bounds(
        gamma(sum(shape) + 3) * _SLACK,
        UNIT_ROUNDOFF * _SLACK * dual.largest_on_ball(shape),
        UNIT_ROUNDOFF * _SLACK,
        norm.rounding(shape),
        dual.rounding(shape),
    )


def measure(
    arithmetic: Arithmetic[Number, Count],
    problem: EitherProblem,
    W: FloatArray,
    lam: FloatArray,
    norm: Norm,
    cut: float | None,
    dual: FloatArray,
) -> Certificate[Number, Count]:
    """`certify` of arrays and a hard margin; ``dual`` is ``problem.adjoint(lam)``, which methods have."""
    dot, least, most, larger, smaller, nonzero, scale_of, share, positive, _, _, frobenius, _, ranks = arithmetic
    rows, rhs = problem.rows, problem.rhs
    error_norms, bounds = rows.error_norms, error_bounds(problem.shape, norm)
    slack = rows.margins(W) - rhs
    if problem.is_plain:  # right-hand sides 1, inequalities only
        violation, negative = larger(0.0, -least(slack)), larger(0.0, -least(lam))
        allowed, sides, allowance = error_norms, None, None
    else:
        sides, allowance = np.abs(rhs), problem.allowance
        missed, allowed = np.where(problem.equality, np.abs(slack), -slack) / allowance, error_norms / allowance
        violation = larger(most(missed), 0.0)
        negative = larger(0.0, -least(np.where(problem.equality, 0.0, lam)))
    # `rounding.margin_error`: every computed margin is within this of the true one; and the roundings of the slack.
    size = frobenius(W)
    primal_error = bounds.margin * size * most(allowed) + 2.0 * UNIT_ROUNDOFF * (1.0 + violation)
    if isinstance(primal_error, float) and primal_error > _COARSE:
        primal_error = min(primal_error, _error_by_entries(problem, W, allowance, violation))
    if problem.prior is not None:  # right-hand sides that are themselves rounded
        primal_error = primal_error + most(problem.prior.error / problem.allowance)

    if positive(negative):  # the worst times its row, and none of them in the bound
        negative = most(np.where(problem.equality, 0.0, np.maximum(-lam, 0.0)) * rows.row_norms)
        lam = problem.clipped(lam)
        dual = rows.adjoint(lam)
    weights = lam if problem.is_plain else np.abs(lam)
    if norm.name == "frobenius":
        value, dual_norm, spectra = size, frobenius(dual), None
    else:
        value, dual_norm, spectra = _norms(arithmetic, norm, W, dual)
    dual_violation = larger(larger(0.0, dual_norm - 1.0), negative)

    # The bound on every feasible norm, with everything that rounding may have done to it.
    # Entry by entry the dual matrix errs by at most gamma(depth) times sum_k |lam_k| |a_k| |b_k|' (lemma 1, and lemma 2
    # for rounded differences), and the Frobenius norm of a sum of outer products is at most the sum of theirs; the
    # objective as in `dot_error`. Adding an exact zero rounds nothing: only rows with a multiplier count.
    terms = nonzero(weights)
    dual_error = bounds.dual * dot(weights, error_norms) * (terms + smaller(terms, rows.q) + 4)
    if spectra is None:
        value_most, dual_most = value * (1.0 + bounds.value), (dual_norm + dual_error) * (1.0 + bounds.dual_value)
    else:
        value_most, dual_most = spectra.norm_most, (dual_norm * spectra.grow + spectra.residual + dual_error) * SLACK
    objective = dot(rhs, lam)
    sure = objective - bounds.objective * (objective if sides is None else dot(sides, weights)) * (terms + 2)
    if problem.prior is not None:
        sure = sure - dot(problem.prior.error, weights) * _SLACK
    lower = share(objective * (dual_norm > 0), dual_norm)
    proved = share(sure, dual_most) * (1.0 - 8.0 * UNIT_ROUNDOFF)
    scale = scale_of(value)
    excess = larger(0.0, value_most - proved)
    gap = abs(value - lower) / scale
    gap_error = larger(0.0, excess / scale - gap) + 4.0 * UNIT_ROUNDOFF
    complementarity = most(weights * np.abs(slack)) / scale
    rank = None
    if spectra is not None:
        # The best norm is at most that of W made feasible.
        cost = feasibility_cost(problem, W, slack, violation, primal_error, value_most)
        rank = ranks(spectra, dual_error, gap, excess + cost, cut)
    source = Source(problem, W, lam, norm)
    return Certificate(
        violation, dual_violation, gap, complementarity, value, proved, primal_error, gap_error, rank, None, source
    )


def _norms(
    arithmetic: Arithmetic[Number, Count], norm: Norm, W: FloatArray, dual: FloatArray
) -> tuple[Number, Number, Spectra[Number] | None]:
    """The norm of W, the dual norm of the dual matrix, and the singular values that these rest on, if they do."""
    plain = arithmetic.plain
    if norm.name != "nuclear":
        return plain(norm.values(W)), plain(norm.dual.values(dual)), None
    spectra = arithmetic.spectra(W, dual)  # one decomposition of each serves the norms and the ranks
    return plain(np.add.reduce(spectra.values, axis=-1)), plain(spectra.dual_values[..., 0]), spectra


def _error_by_entries(problem: EitherProblem, W: FloatArray, allowance: FloatArray | None, violation: float) -> float:
    """Largest error of a margin of one problem, relative to the allowance: the second, sharper bound, where it holds.

    It is about left factors that are at hand, not about differences of products.
    """
    rows = problem.rows
    if not isinstance(rows, PairRows) or rows.m * sum(rows.shape) > _BY_ENTRIES:
        return math.inf
    error = margin_error_by_entries(rows.a, W, rows.queries, rows.owner)
    largest = float(np.max(error if allowance is None else error / allowance)) * _SLACK
    return largest + 2.0 * UNIT_ROUNDOFF * (1.0 + violation)


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
    """Certificate of a pair for a soft margin, of one problem or a batch; see `attsvm.solvers.certify.certify_pair`."""
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


@overload
def certify(
    problem: MarginProblem,
    W: npt.ArrayLike,
    multipliers: npt.ArrayLike,
    norm: str | Norm = "frobenius",
    rank_tolerance: float | None = None,
) -> Certificate: ...


@overload
def certify(
    problem: MarginProblemBatch,
    W: npt.ArrayLike,
    multipliers: npt.ArrayLike,
    norm: str | Norm = "frobenius",
    rank_tolerance: float | None = None,
) -> CertificateBatch: ...


def certify(
    problem: EitherProblem,
    W: npt.ArrayLike,
    multipliers: npt.ArrayLike,
    norm: str | Norm = "frobenius",
    rank_tolerance: float | None = None,
) -> Certificate | CertificateBatch:
    """Certificate of a pair (W, multipliers), whoever computed it; over the leading axis for a batch.

    Parameters
    ----------
    problem : MarginProblem
    W : array_like, shape (*batch, dx, dz)
    multipliers : array_like, shape (*batch, m)
        In norm form: ``N*(W(lam)) = 1`` and ``rhs . lam = N(W)`` at the optimum.
    norm : str or Norm
    rank_tolerance : float, optional
        Where to cut singular values for the nuclear norm; ``max(1e-8, sqrt(gap))`` by default.

    Examples
    --------
    ``min |W|`` subject to ``2 W >= 1`` has W = 1/2 and multiplier 1/2:

    >>> from attsvm.solvers import MarginProblem, certify
    >>> certify(MarginProblem([[2.0]], [[1.0]], [0]), [[0.5]], [0.5]).gap
    0.0
    """
    matrix, lam = np.asarray(W, dtype=np.float64), np.asarray(multipliers, dtype=np.float64)
    if problem.batch:
        return _measured(MANY, problem, matrix, lam, get_norm(norm), rank_tolerance)
    return _measured(ONE, problem, matrix, lam, get_norm(norm), rank_tolerance)


def _measured(
    arithmetic: Arithmetic[Number, Count],
    problem: EitherProblem,
    W: FloatArray,
    lam: FloatArray,
    norm: Norm,
    rank_tolerance: float | None,
) -> Certificate[Number, Count]:
    if problem.penalty is not None:
        return measure_soft(arithmetic, problem, problem.penalty, W, lam, norm, rank_tolerance)
    return measure(arithmetic, problem, W, lam, norm, rank_tolerance, problem.adjoint(lam))
