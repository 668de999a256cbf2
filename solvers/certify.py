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
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.certificate import Certificate, CertificateBatch, Source
from attsvm.solvers.certified_rank import Spectra, rank_certificate, spectra_of
from attsvm.solvers.feasible import feasibility_price
from attsvm.solvers.norms import Norm, get_norm
from attsvm.solvers.pairs import PairRows
from attsvm.solvers.problem import MarginProblem
from attsvm.solvers.rounding import SLACK, UNIT_ROUNDOFF, gamma, margin_error_by_entries

__all__ = ["certify", "certify_batch", "error_bounds", "frobenius_of"]

# Bounds below are computed from computed norms; this covers their own roundings for any size that fits in memory.
_SLACK = 1.0 + 1e-6


# An error of margins above this is looked at entry by entry (rows of different sizes), up to so many entries.
_COARSE, _BY_ENTRIES = 1e-11, 100_000


class _Arithmetic(NamedTuple):
    """The same formulas for one problem and for a batch: Python numbers are ten times faster than 0-d arrays."""

    dot: Callable[..., Any]
    least: Callable[..., Any]
    most: Callable[..., Any]
    larger: Callable[..., Any]
    smaller: Callable[..., Any]
    count: Callable[..., Any]
    where: Callable[..., Any]
    plain: Callable[..., Any]


_ONE = _Arithmetic(
    dot=lambda x, y: float(x.dot(y)),
    least=lambda x: x.item(x.argmin()),  # a fifth of the time of a reduction, and NaN comes first in both
    most=lambda x: x.item(x.argmax()),
    larger=max,
    smaller=min,
    count=lambda x: int(np.count_nonzero(x)),
    where=lambda condition, x, y: x if condition else y,
    plain=lambda x: x.item() if isinstance(x, (np.ndarray, np.generic)) else x,
)
_MANY = _Arithmetic(
    dot=np.vecdot,
    least=lambda x: np.minimum.reduce(x, axis=-1),
    most=lambda x: np.maximum.reduce(x, axis=-1),
    larger=np.maximum,
    smaller=np.minimum,
    count=lambda x: np.count_nonzero(x, axis=-1),
    where=np.where,
    plain=np.asarray,
)


class _Bounds(NamedTuple):
    """Constants of the error bounds for one shape of problem; the lemmas are those of `attsvm.solvers.rounding`."""

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


def _measure(
    problem: MarginProblem, W: FloatArray, lam: FloatArray, norm: Norm, rank_tolerance: float | None
) -> Certificate:
    dot, least, most, larger, smaller, count, where, plain = _MANY if problem.batch else _ONE
    rows, rhs = problem.rows, problem.rhs
    row_norms, error_norms, bounds = rows.row_norms, rows.error_norms, error_bounds(rows.shape, norm)
    slack = rows.margins(W)
    slack -= rhs
    if problem.is_plain:  # right-hand sides 1, inequalities only
        violation, negative = larger(0.0, -least(slack)), larger(0.0, -least(lam))
        allowed, sides, allowance = error_norms, None, None
    else:
        allowance = problem.allowance
        violation, allowed, sides = most(problem.missed(slack) / allowance), error_norms / allowance, np.abs(rhs)
        negative = larger(0.0, most(np.where(problem.equality, 0.0, -lam)))
    # `rounding.margin_error`: every computed margin is within this of the true one; and the roundings of the slack.
    size = frobenius_of(W)
    primal_error = bounds.margin * size * most(allowed) + 2.0 * UNIT_ROUNDOFF * (1.0 + violation)
    # Entry by entry the bound is about left factors that are at hand, not about differences of products.
    written = isinstance(rows, PairRows) and not problem.batch
    if written and primal_error > _COARSE and rows.m * sum(rows.shape) <= _BY_ENTRIES:
        primal_error = min(
            primal_error, _error_by_entries(problem, W, allowance) + 2.0 * UNIT_ROUNDOFF * (1.0 + violation)
        )
    if problem.prior is not None:  # right-hand sides that are themselves rounded
        primal_error = primal_error + most(problem.prior.error / problem.allowance)

    if (
        negative.any() if problem.batch else negative > 0.0
    ):  # the worst of them times its row, and none of them in the bound
        negative = most(np.where(problem.equality, 0.0, np.maximum(-lam, 0.0)) * row_norms)
        lam = problem.clipped(lam)
    weights = lam if problem.is_plain else np.abs(lam)
    dual = rows.adjoint(lam)
    spectra: Spectra | None = None
    if norm.name == "nuclear":  # one decomposition of each serves the norms and the ranks
        spectra = spectra_of(W, dual)
        value, dual_norm = plain(np.add.reduce(spectra.values, axis=-1)), plain(spectra.dual_values[..., 0])
    elif norm.name == "frobenius":
        value, dual_norm = size, frobenius_of(dual)
    else:
        value, dual_norm = plain(norm.values(W)), plain(norm.dual.values(dual))
    dual_violation = larger(larger(0.0, dual_norm - 1.0), negative)

    # The bound on every feasible norm, with everything that rounding may have done to it.
    # `adjoint_error` and `dot_error`, where adding an exact zero rounds nothing: only rows with a multiplier count.
    terms = count(weights)
    dual_error = bounds.dual * (terms + smaller(terms, rows.q) + 4) * dot(weights, error_norms)
    if spectra is None:
        value_most, dual_most = value * (1.0 + bounds.value), (dual_norm + dual_error) * (1.0 + bounds.dual_value)
    else:
        value_most, dual_most = spectra.norm_most, (dual_norm * spectra.grow + spectra.residual + dual_error) * SLACK
    objective = dot(rhs, lam)
    sure = objective - bounds.objective * (terms + 2) * (objective if sides is None else dot(sides, weights))
    if problem.prior is not None:
        sure = sure - dot(problem.prior.error, weights) * _SLACK
    lower = where((objective > 0) & (dual_norm > 0), objective / where(dual_norm > 0, dual_norm, 1.0), 0.0)
    proved = where(sure > 0, sure / where(dual_most > 0, dual_most, 1.0) * (1.0 - 8.0 * UNIT_ROUNDOFF), 0.0)
    scale = where(value > 0, value, 1.0)
    excess = larger(0.0, value_most - proved)
    gap = abs(value - lower) / scale
    gap_error = larger(0.0, excess / scale - gap) + 4.0 * UNIT_ROUNDOFF
    complementarity = most(weights * np.abs(slack)) / scale
    rank = None
    if spectra is not None:
        # The best norm is at most that of W made feasible.
        price = feasibility_price(problem, W, slack, violation, primal_error, value_most)
        rank = rank_certificate(spectra, dual_error, gap, excess + price, rank_tolerance)
    source = Source(problem, W, lam, norm)
    return Certificate(
        violation, dual_violation, gap, complementarity, value, proved, primal_error, gap_error, rank, None, source
    )


def _error_by_entries(problem: MarginProblem, W: FloatArray, allowance: FloatArray | None) -> float:
    """Largest error of a margin of one problem, relative to the allowance: the second, sharper bound."""
    pair = problem.rows.gather(np.arange(problem.m))
    error = margin_error_by_entries(pair.a, W, pair.queries, pair.owner)
    return float(np.max(error if allowance is None else error / allowance)) * _SLACK


def frobenius_of(matrix: FloatArray) -> Any:
    """Frobenius norms over the last two axes, a Python number for one matrix."""
    if matrix.ndim == 2:
        entries = matrix.ravel()
        return math.sqrt(entries.dot(entries))
    flat = matrix.reshape(len(matrix), -1)
    return np.sqrt(np.vecdot(flat, flat))


def certify(
    problem: MarginProblem,
    W: npt.ArrayLike,
    multipliers: npt.ArrayLike,
    norm: str | Norm = "frobenius",
    rank_tolerance: float | None = None,
) -> Certificate:
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
    if problem.penalty is not None:
        from attsvm.solvers.soft_certificate import measure_soft

        return measure_soft(problem, problem.penalty, matrix, lam, get_norm(norm), rank_tolerance)
    return _measure(problem, matrix, lam, get_norm(norm), rank_tolerance)


def certify_batch(
    problem: MarginProblem, W: npt.ArrayLike, multipliers: npt.ArrayLike, norm: str | Norm = "frobenius"
) -> CertificateBatch:
    """`certify` with the type of a batch: arrays over the leading axis.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, certify_batch
    >>> batch = MarginProblem(np.array([[[2.0]], [[4.0]]]), np.ones((2, 1, 1)), [0])
    >>> certify_batch(batch, [[[0.5]], [[0.25]]], [[0.5], [0.25]]).gap
    array([0., 0.])
    """
    if not problem.batch:
        raise ValueError("certify_batch takes a batch of problems; use certify for one")
    found: Any = certify(problem, W, multipliers, norm)
    face: CertificateBatch = found
    return face
