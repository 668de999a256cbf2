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
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.norms import Norm, get_norm
from attsvm.solvers.penalty import Penalty
from attsvm.solvers.problem import MarginProblem
from attsvm.solvers.rounding import UNIT_ROUNDOFF, gamma

if TYPE_CHECKING:
    pass

from attsvm.solvers.certificate import Certificate, CertificateBatch, RankCertificate, Source

__all__ = ["certify", "certify_batch"]

# Bounds below are computed from computed norms; this covers their own roundings for any size that fits in memory.
_SLACK = 1.0 + 1e-6


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
    least=lambda x: float(np.minimum.reduce(x)),
    most=lambda x: float(np.maximum.reduce(x)),
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


def _rank_certificate(
    singular: FloatArray,
    dual_singular: FloatArray,
    gap: Any,
    excess: Any,
    tolerance: float | None,
    error: Any,
    plain: Any,
    soft: bool = False,
) -> RankCertificate:
    """The one rank rule; ``excess`` bounds norm - lower bound, ``error`` the singular values of the scaled dual.

    The dual matrix of a soft margin is admissible as it is, and may have no singular value that reaches 1: W = 0 then.
    """
    gap = np.asarray(gap)
    # An interior point has sigma_j(W) (1 - sigma_j(D)) of the order of the gap for each pair, so under
    # strict complementarity one of the two factors exceeds sqrt(gap): that is where to cut.
    tol = np.maximum(1e-8, np.sqrt(gap)) if tolerance is None else np.full(gap.shape, tolerance)
    top = dual_singular[..., :1]
    scaled = dual_singular if soft else dual_singular / np.where(top > 0, top, 1.0)
    rank = np.count_nonzero(scaled >= 1.0 - tol[..., None], axis=-1)
    numerical = np.count_nonzero(singular > tol[..., None] * singular[..., :1], axis=-1)
    # A zero after the last value stands for "nothing follows": dual gap 1, singular gap infinite.
    after = np.concatenate([singular, np.zeros_like(top)], axis=-1)
    scaled_after = np.concatenate([scaled, np.zeros_like(top)], axis=-1)
    following = np.take_along_axis(after, np.expand_dims(numerical, -1), -1)[..., 0]
    last = np.take_along_axis(after, np.expand_dims(np.maximum(numerical - 1, 0), -1), -1)[..., 0]
    dual_gap = 1.0 - np.take_along_axis(scaled_after, np.expand_dims(rank, -1), -1)[..., 0]
    room = dual_gap - error
    with np.errstate(divide="ignore", invalid="ignore"):
        resolution = np.where(rank == singular.shape[-1], 0.0, np.where(room > 0, excess / room, np.inf))
        singular_gap = np.where((numerical > 0) & (following > 0), last / following, np.inf)
    parts = (rank, resolution, numerical, tol, dual_gap, singular_gap)
    numbers: list[Any] = [*(plain(np.asarray(part)) for part in parts), scaled]
    return RankCertificate(*numbers)


def _singular_values(matrix: FloatArray) -> FloatArray:
    return np.asarray(np.linalg.svd(matrix, compute_uv=False), dtype=np.float64)


class _Bounds(NamedTuple):
    """Constants of the error bounds for one shape of problem; the lemmas are those of `attsvm.solvers.rounding`."""

    margin: float  # `margin_error`, and the rounding of the slack
    dual: float  # one rounding of the dual matrix, in the dual norm
    objective: float  # one rounding of the objective
    value: float  # relative error of the norm
    dual_value: float  # relative error of the dual norm


@lru_cache(maxsize=256)
def _bounds(shape: tuple[int, int], norm: Norm) -> _Bounds:
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
    row_norms, bounds = rows.row_norms, _bounds(rows.shape, norm)
    slack = rows.margins(W)
    slack -= rhs
    if problem.is_plain:  # right-hand sides 1, inequalities only
        violation, negative = larger(0.0, -least(slack)), larger(0.0, -least(lam))
        allowed, sides, allowance = row_norms, None, None
    else:
        allowance = problem.allowance
        violation, allowed, sides = most(problem.missed(slack) / allowance), row_norms / allowance, np.abs(rhs)
        negative = larger(0.0, most(np.where(problem.equality, 0.0, -lam)))
    # `rounding.margin_error`: every computed margin is within this of the true one; and the roundings of the slack.
    size = _frobenius(W)
    primal_error = bounds.margin * size * most(allowed) + 2.0 * UNIT_ROUNDOFF * (1.0 + violation)
    if problem.prior is not None:  # right-hand sides that are themselves rounded
        primal_error = primal_error + most(problem.prior.error / allowance)

    if (
        negative.any() if problem.batch else negative > 0.0
    ):  # the worst of them times its row, and none of them in the bound
        negative = most(np.where(problem.equality, 0.0, np.maximum(-lam, 0.0)) * row_norms)
        lam = problem.clipped(lam)
    weights = lam if problem.is_plain else np.abs(lam)
    dual = rows.adjoint(lam)
    spectra: tuple[FloatArray, FloatArray] | None = None
    if norm.name == "nuclear":  # one decomposition of each serves the norms and the ranks
        spectra = _singular_values(W), _singular_values(dual)
        value, dual_norm = plain(spectra[0].sum(axis=-1)), plain(spectra[1][..., 0])
    elif norm.name == "frobenius":
        value, dual_norm = size, _frobenius(dual)
    else:
        value, dual_norm = plain(norm.values(W)), plain(norm.dual.values(dual))
    dual_violation = larger(larger(0.0, dual_norm - 1.0), negative)

    # The bound on every feasible norm, with everything that rounding may have done to it.
    # `adjoint_error` and `dot_error`, where adding an exact zero rounds nothing: only rows with a multiplier count.
    terms = count(weights)
    dual_error = bounds.dual * (terms + smaller(terms, rows.q) + 4) * dot(weights, row_norms)
    dual_most = (dual_norm + dual_error) * (1.0 + bounds.dual_value)
    objective = dot(rhs, lam)
    sure = objective - bounds.objective * (terms + 2) * (objective if sides is None else dot(sides, weights))
    if problem.prior is not None:
        sure = sure - dot(problem.prior.error, weights) * _SLACK
    lower = where((objective > 0) & (dual_norm > 0), objective / where(dual_norm > 0, dual_norm, 1.0), 0.0)
    proved = where(sure > 0, sure / where(dual_most > 0, dual_most, 1.0) * (1.0 - 8.0 * UNIT_ROUNDOFF), 0.0)
    scale = where(value > 0, value, 1.0)
    excess = larger(0.0, value * (1.0 + bounds.value) - proved)
    gap = abs(value - lower) / scale
    gap_error = larger(0.0, excess / scale - gap) + 4.0 * UNIT_ROUNDOFF
    complementarity = most(weights * np.abs(slack)) / scale
    rank = None
    if spectra is not None:
        blur = where(dual_norm > 0, dual_error / where(dual_norm > 0, dual_norm, 1.0), np.inf)
        blur = 2.0 * (blur + bounds.dual_value)
        # The best norm is at most that of W made feasible: W / (1 - missed) where every row asks for 1. Elsewhere the
        # price of what is missed is taken from the multipliers, which is right to first order.
        missed = violation + primal_error
        if problem.is_plain:
            price = where(missed < 1.0, missed * value / where(missed < 1.0, 1.0 - missed, 1.0), np.inf)
        else:
            price = 2.0 * missed * dot(weights, allowance)
        rank = _rank_certificate(*spectra, gap, excess + price, rank_tolerance, blur, plain)
    numbers = (violation, dual_violation, gap, complementarity, value, proved, primal_error, gap_error)
    parts: list[Any] = [*(plain(number) for number in numbers), rank, None, Source(problem, W, lam, norm)]
    return Certificate(*parts)


def _measure_soft(
    problem: MarginProblem, penalty: Penalty, W: FloatArray, lam: FloatArray, norm: Norm, rank_tolerance: float | None
) -> Certificate:
    """Certificate of a soft margin: every W is feasible at its price, so the values of primal and dual decide.

    Fenchel's inequality, ``rhs . lam - h*(lam) <= <W(lam), W> + h(W)``, holds for admissible multipliers; with
    ``<D, W> <= r(W) + r*(D)`` it bounds the objective of every W from below.
    """
    if problem.batch:
        raise ValueError("the certificate of a soft margin is of one problem; index the batch first")
    rows, rhs, row_norms, owner, q = problem.rows, problem.rhs, problem.row_norms, problem.owner, problem.q
    bounds, squared = _bounds(rows.shape, norm), norm.name == "frobenius"
    size = _frobenius(W)
    spectra = (_singular_values(W), None) if norm.name == "nuclear" else None
    value = size if squared else float(spectra[0].sum()) if spectra else float(norm.values(W))
    regular, error = (0.5 * value * value, 2.5) if squared else (value, 1.0)
    missed = problem.missed(rows.margins(W) - rhs)
    blur = bounds.margin * size * row_norms + 2.0 * UNIT_ROUNDOFF * (np.abs(rhs) + missed)
    sides = (
        np.zeros(problem.m) if problem.prior is None else problem.prior.error
    )  # of right-hand sides that are rounded
    blur = blur + sides
    objective = regular + penalty.cost(penalty.slacks(missed, owner, q))
    most = regular * (1.0 + error * bounds.value) + penalty.cost(penalty.slacks(missed + blur, owner, q))
    most *= 1.0 + 4.0 * gamma(problem.m + 4)

    negative = float(np.maximum(np.where(problem.equality, 0.0, -lam), 0.0).max())
    lam = problem.clipped(lam)
    loads = penalty.loads(lam, owner, q)
    over = max(0.0, float(loads.max()) / penalty.C - 1.0) if penalty.loss == "hinge" else 0.0
    lam = penalty.admissible(lam, owner, q) * (1.0 - 8.0 * problem.m * UNIT_ROUNDOFF if over else 1.0)
    loads = penalty.loads(lam, owner, q)
    dual = rows.adjoint(lam)
    if spectra is not None:
        spectra = spectra[0], _singular_values(dual)
    dual_norm = _frobenius(dual) if squared else float(spectra[1][0]) if spectra else float(norm.dual.values(dual))
    weights = np.abs(lam)
    terms = int(np.count_nonzero(weights))
    dual_error = bounds.dual * (terms + min(terms, rows.q) + 4) * float(weights @ row_norms)
    dual_most = (dual_norm + dual_error) * (1.0 + bounds.dual_value)
    gained, lost = float(rhs @ lam), penalty.conjugate(loads)
    # The best multiple t of the multipliers that stays admissible.
    room = penalty.C / max(float(loads.max()), 1e-300) if penalty.loss == "hinge" else np.inf
    room = room if squared else min(room, 1.0 / dual_most if dual_most > 0 else np.inf)
    curve = 2.0 * lost + (dual_most * dual_most if squared else 0.0)
    t = min(room, gained / curve) if curve > 0 and gained > 0 else (room if gained > 0 and room < np.inf else 0.0)
    t = 1.0 if abs(t - 1.0) < 1e-3 and room >= 1.0 else t * (1.0 - 4.0 * UNIT_ROUNDOFF)
    roundings = bounds.objective * (terms + 4) * (t * float(np.abs(rhs) @ weights) + t * t * lost)
    roundings += t * float(sides @ weights) * _SLACK
    dual_value = t * gained - 0.5 * t * t * curve
    proved = dual_value - roundings - 8.0 * UNIT_ROUNDOFF * abs(dual_value)
    scale = objective if objective > 0 else 1.0
    gap = abs(objective - dual_value) / scale
    gap_error = max(0.0, (most - proved) / scale - gap) + 4.0 * UNIT_ROUNDOFF
    outside = 0.0 if squared else max(0.0, dual_norm - 1.0)
    slack_of = penalty.slacks(missed, owner, q)
    paid = slack_of if penalty.slack == "row" else slack_of[owner]
    unpaid = rows.margins(W) - rhs + paid
    complementarity = float((weights * np.abs(np.where(problem.equality, np.minimum(unpaid, missed), unpaid))).max())
    rank = None
    if spectra is not None and spectra[1] is not None:
        excess = max(0.0, most - proved)
        blurred = 2.0 * (dual_error * t + bounds.dual_value)
        rank = _rank_certificate(
            spectra[0], t * spectra[1], gap, excess, rank_tolerance, blurred, lambda x: x.item(), soft=True
        )
    return Certificate(
        0.0, max(negative * float(row_norms.max()), over, outside), gap, complementarity / scale, value, proved,
        0.0, gap_error, rank, None, Source(problem, W, lam, norm), objective,
    )  # fmt: skip


def _frobenius(matrix: FloatArray) -> Any:
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
        return _measure_soft(problem, problem.penalty, matrix, lam, get_norm(norm), rank_tolerance)
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
