"""Certificates: what data, W and multipliers alone prove, with the rounding of every number accounted for.

Weak duality for any norm N with dual norm N*: if W satisfies the rows, lam >= 0 on inequality rows and
D = W(lam), then ``rhs . lam = <D, W> - slack <= N*(D) N(W)``. So ``rhs . lam / N*(D)`` bounds the norm
of every feasible W from below, whoever computed lam.

Everything here works over the leading axes of a batch: one problem is the case without any.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Generic, NamedTuple

import numpy as np

from attsvm.solvers.arrays import Count, FloatArray, IntArray, Number
from attsvm.solvers.certify.certificate import Certificate, RankCertificate, Source
from attsvm.solvers.certify.feasible import feasibility_cost
from attsvm.solvers.certify.ranks import (
    Spectra,
    rank_certificate,
    rank_certificate_of_batch,
    spectra_of,
    spectra_of_batch,
)
from attsvm.solvers.certify.rounding import SLACK, UNIT_ROUNDOFF, gamma, margin_error_by_entries
from attsvm.solvers.margin_problem import EitherProblem
from attsvm.solvers.norms import Norm
from attsvm.solvers.rows.pairs import PairRows

__all__ = [
    "MANY",
    "ONE",
    "Arithmetic",
    "error_bounds",
    "frobenius_of",
    "frobenius_of_batch",
    "measure",
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
