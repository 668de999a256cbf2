"""The point nearest to the origin that satisfies given rows: for dependent and contradictory rows.

``minimize |w|  subject to  F w >= c`` (``=`` on equality rows) is the least Frobenius norm with the rows written out.
DAQP is a dual active-set method in C; where no w exists its last multipliers are a combination of rows that cancels.
It works with products of rows. Where features differ so much in scale that float64 has no digits left for these,
`robust_distance` takes the same problem to nonnegative least squares, whose orthogonal factors are of the rows
themselves.

D. Arnström, A. Bemporad and D. Axehill, "A dual active-set solver for embedded quadratic programming using recursive
LDL^T updates", IEEE Transactions on Automatic Control 67 (2022). C. L. Lawson and R. J. Hanson, "Solving Least Squares
Problems" (1974), chapter 23.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import Axis, BoolArray, FloatArray, IntArray
from attsvm.solvers.certify.certify_pair import ONE, certify, frobenius_of, frobenius_of_batch, measure
from attsvm.solvers.certify.farkas import certify_infeasible
from attsvm.solvers.compiled.batched_pivoting import (
    MOST_ROWS,
    is_available,
    pivot_batch,
    pivot_one,
    pivot_soft,
    pivot_soft_batch,
)
from attsvm.solvers.deadline import OutOfTime, late, seconds_left, watched
from attsvm.solvers.exact.settle import measured_exactly
from attsvm.solvers.frobenius.pivoting import (
    DAQP_ROWS,
    by_daqp,
    guess_active,
    solve_active,
    solve_small,
    solve_small_batch,
)
from attsvm.solvers.margin_solution import BatchResult, MethodResult, Request
from attsvm.solvers.norms import Norm
from attsvm.solvers.penalty import EitherPenalty, Penalty
from attsvm.solvers.unit import UnitProblem, UnitProblemBatch

__all__ = [
    "DistanceResult",
    "by_distance",
    "in_norm_form",
    "least_distance",
    "proved",
    "robust_distance",
    "solve_active_set",
    "solve_active_sets",
]

# Numbers in the rows from which on DAQP may take long enough to be watched, and seconds that stand for no limit.
_LONG, _UNLIMITED = 150_000, 1e9
# Lengths of the point between which the residual of the nonnegative least squares has digits of both its parts, and
# how often the right-hand sides are scaled to get there.
_SHORT, _FAR, _SCALINGS = 0.1, 10.0, 4
# A residual of this size is rounding: the target is a combination of the columns.
_CANCELS = 1e-13


class DistanceResult(NamedTuple):
    """What `least_distance` found.

    Attributes
    ----------
    x : ndarray, shape (*batch, m)
        Multipliers of the unit rows; where ``ray``, of a combination of rows that cancels; 0 where there is neither.
    w : ndarray, shape (*batch, D)
        The nearest point, usually more accurate than ``F'x``; 0 without a solution.
    settled, ray : ndarray of bool, shape (*batch,)
        DAQP ended at a solution; at a contradiction.
    iterations : ndarray of int, shape (*batch,)
    """

    x: FloatArray
    w: FloatArray
    settled: BoolArray
    ray: BoolArray
    iterations: IntArray


def least_distance(rows: FloatArray, c: FloatArray, equality: BoolArray | None = None) -> DistanceResult:
    """Nearest point to the origin that satisfies the rows, or a ray that proves that there is none.

    Parameters
    ----------
    rows : ndarray, shape (*batch, m, D)
        Rows of norm 1.
    c : ndarray, shape (*batch, m)
        Right-hand sides, the largest of each problem of size 1.
    equality : ndarray of bool, shape (*batch, m), optional

    Examples
    --------
    ``w >= 1`` twice, and then a contradiction:

    >>> import numpy as np
    >>> from attsvm.solvers.frobenius.active_set import least_distance
    >>> least_distance(np.ones((2, 1)), np.ones(2)).w
    array([1.])
    >>> least_distance(np.array([[1.0], [-1.0]]), np.ones(2)).ray
    np.True_
    """
    batch, (m, D) = c.shape[:-1], rows.shape[-2:]
    size = int(np.prod(batch))
    F, lower = rows.reshape(size, m, D), np.array(c, dtype=np.float64).reshape(size, m)
    upper, sense = np.full((size, m), 1e30), np.zeros((size, m), dtype=np.intc)
    if equality is not None and equality.any():
        equal = equality.reshape(size, m)
        upper[equal], sense[equal] = lower[equal], 5
    x, w, flag, count = np.zeros((size, m)), np.zeros((size, D)), np.zeros(size, np.int64), np.zeros(size, np.int64)
    for i in range(size):
        if late():
            break
        # Eliminating equality rows first would lose their multipliers and the ray when they contradict each other.
        w[i], flag[i], x[i], count[i] = _by_daqp(F[i], upper[i], lower[i], sense[i])
    np.negative(x, out=x)  # multipliers of lower bounds are negative there
    settled, ray = flag == 1, flag == -1
    w[~settled], x[~(settled | ray)] = 0.0, 0.0  # what DAQP returns there was never written
    if not batch:
        return DistanceResult(x[0], w[0], settled[0], ray[0], count[0])
    return DistanceResult(x, w, settled, ray, count)


def _by_daqp(
    rows: FloatArray, upper: FloatArray, lower: FloatArray, sense: npt.NDArray[np.intc]
) -> tuple[FloatArray, int, FloatArray, int]:
    """Point, flag, multipliers and steps of DAQP, which ends at the deadline."""
    import daqp

    found: list[tuple[FloatArray, int, FloatArray, int]] = []

    def work() -> None:
        left = min(seconds_left(), _UNLIMITED)  # and a little more: 0 is no limit, and what is cut short ends late
        settings = {"primal_tol": 1e-12, "eq_reduction": -1, "time_limit": max(left, 0.0) + 1e-3}
        w, _, flag, info = daqp.solve(None, None, rows, upper, lower, sense, **settings)
        found.append((w, flag, info["lam"], info["iterations"]))

    if rows.size < _LONG:
        work()
    else:
        watched(work, lambda: None)  # it cannot be stopped, and ends some seconds after an interrupt
    return found[0]


def robust_distance(rows: FloatArray, c: FloatArray) -> DistanceResult:
    """The same for one problem of inequality rows by nonnegative least squares: for features of very different scales.

    The residual of ``min |E u - f|``, ``u >= 0``, with the columns ``(row_k, c_k)`` and ``f = (0, 1)`` is a multiple of
    ``(w, -1)``; where it vanishes, u is a combination of rows that cancels. Its last entry is ``1 / (1 + |w|^2)``, so
    the right-hand sides are scaled until w has a length of about 1.

    Parameters
    ----------
    rows : ndarray, shape (m, D)
    c : ndarray, shape (m,)

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.frobenius.active_set import robust_distance
    >>> found = robust_distance(np.array([[1.0, 1e-8], [-1.0, 1e-8]]), np.ones(2))
    >>> found.w.round(6) + 0.0, bool(found.settled)
    (array([0.e+00, 1.e+08]), True)
    """
    from scipy.optimize import nnls

    m, D = rows.shape
    target = np.zeros(D + 1)
    target[-1] = scale = 1.0
    for trial in range(_SCALINGS):
        try:
            u, left = nnls(np.vstack([rows.T, scale * c]), target)
        except RuntimeError:  # too many exchanges
            break
        if late():
            break
        if left <= _CANCELS:
            return _one_result(u, np.zeros(D), trial + 1, ray=True)
        w = (rows.T @ u) / (left * left)  # the last entry of the residual is its squared length
        size = float(np.linalg.norm(w))
        if _SHORT < size < _FAR:
            return _one_result(*_on_active_rows(rows, c, u > 0), trial + 1, settled=True)
        scale /= max(size, 1e-300)
    return _one_result(np.zeros(m), np.zeros(D), 0)


def _one_result(
    x: FloatArray, w: FloatArray, steps: int, *, settled: bool = False, ray: bool = False
) -> DistanceResult:
    return DistanceResult(x, w, np.asarray(settled), np.asarray(ray), np.asarray(steps))


def _on_active_rows(rows: FloatArray, c: FloatArray, active: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Multipliers and the nearest point that meets the active rows, by orthogonal factors."""
    x, some = np.zeros(len(c)), rows[active]
    w = np.asarray(np.linalg.lstsq(some, c[active])[0], dtype=np.float64)
    x[active] = np.linalg.lstsq(some.T, w)[0]
    return x, w


# Certificates of well-posed problems are as good as rounding allows; anything above is worth refining.
_ROUNDING = 1e-13
_REFINEMENTS = 3
# Multipliers of unit rows beyond this come from nearly cancelling rows: a batch refines them before it certifies.
_STEEP = 1e3
# Row norms between this and its inverse are left as they are where unit rows would gain nothing.
_SIMILAR = 32.0
# Rows from which on pivoting is tried on dependent rows, too, where these are up to so many times the entries of W.
_DAQP_IS_QUICK, _DEPENDENT = 100, 2
# Rows up to which refinement may form the Gram matrix.
_GRAM_ROWS = 3000
# Numbers in the written-out rows of one problem, and of one problem of a batch, that least distances may take.
_DENSE_ENTRIES = 4_000_000
_STACK_ENTRIES = 100_000
# Numbers in such rows up to which nonnegative least squares end within a second or so: they cannot be interrupted.
_ROBUST_ENTRIES = 600_000
# Rows times entries of W up to which a certificate is computed again in rationals: a second or two.
_EXACT_ENTRIES = 50_000


def in_norm_form(unit: UnitProblem[Axis], x: FloatArray, W: FloatArray) -> tuple[FloatArray, FloatArray]:
    """W and multipliers of the problem from W and multipliers of the unit rows, ``W = W(x)`` up to refinement.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.frobenius.active_set import in_norm_form
    >>> from attsvm.solvers.unit import UnitProblem
    >>> unit = UnitProblem(MarginProblem([[2.0]], [[1.0]], [0]))
    >>> in_norm_form(unit, np.array([1.0]), np.array([[1.0]]))
    (array([[0.5]]), array([0.5]))
    """
    x = unit.problem.clipped(x) if unit.has_equalities else np.maximum(x, 0.0)
    if W.ndim == 2:
        size = frobenius_of(W)
        return W * unit.scale, x * (unit.inverse * (1.0 / size if size > 0 else 0.0))
    sizes = frobenius_of_batch(W)
    return W * unit.scale[..., None], x * unit.inverse / np.where(sizes > 0, sizes, np.inf)[:, None]


def _refined(unit: UnitProblem, x: FloatArray, W: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Multipliers and W of the unit rows after iterative refinement on the active rows.

    The residual comes from W, not from the Gram matrix, and W is corrected instead of being summed up again:
    multipliers of nearly cancelling rows are as large as the square of the norm.
    """
    from scipy.linalg.lapack import dpotrf, dpotrs

    active = (x > unit.margins(W) - unit.c) | unit.equality  # a method may leave traces on inactive rows
    if (x[~active] != 0).any():
        x = np.where(active, x, 0.0)
        W = unit.adjoint(x)
    rows = np.flatnonzero(active)
    factor, fault = dpotrf(unit.gram[np.ix_(rows, rows)])
    if fault:
        return x, W
    for _ in range(_REFINEMENTS):
        change = np.zeros(unit.m)
        change[rows], _ = dpotrs(factor, (unit.c - unit.margins(W))[rows])
        x = x + change
        W = W + unit.adjoint(change)
    return x, W


def _refined_stack(
    unit: UnitProblemBatch, problems: IntArray, x: FloatArray, W: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """`_refined` for some problems of a batch at once; ``x`` and ``W`` are theirs."""
    part = UnitProblem(unit.problem.take(problems))
    active = (x != 0) | part.equality
    for _ in range(_REFINEMENTS):
        change, _ = solve_active(part.gram, np.where(active, part.c - part.margins(W), 0.0), active)
        x = x + change
        W = W + part.adjoint(change)
    return x, W


def by_distance(unit: UnitProblem, norm: Norm, goal: float = 1e-8) -> MethodResult | None:
    """One problem with dependent rows: the nearest point or a proof; None when it is left open."""
    rows = unit.rows
    features = (rows.a[:, :, None] * rows.b[:, None, :]).reshape(rows.m, -1)
    if features.size > _DENSE_ENTRIES:
        return None
    result = least_distance(features, rows.rhs, None if rows.inequalities_only else rows.equality)
    best = _of_distance(unit, norm, result)
    fits = rows.inequalities_only and features.size <= _ROBUST_ENTRIES and not late()
    if proved(best) <= goal or (best is not None and best.farkas is not None) or not fits:
        return best
    other = _of_distance(unit, norm, robust_distance(features, rows.rhs))
    return best if other is None else _better(best, _without_rounding(unit, norm, other, goal))


def _without_rounding(unit: UnitProblem, norm: Norm, found: MethodResult, goal: float) -> MethodResult:
    """The result with exact measures, where rounding errors of the certificate are all that keeps it open."""
    certificate, problem = found.certificate, unit.problem
    if certificate is None or not certificate.worst <= goal < certificate.proved:
        return found
    if problem.m * math.prod(problem.shape) > _EXACT_ENTRIES:
        return found
    try:
        return measured_exactly(problem, norm, found, goal)
    except OutOfTime:
        return found


def _of_distance(unit: UnitProblem, norm: Norm, result: DistanceResult) -> MethodResult | None:
    """The certified nearest point, or the proof that there is none; None where there is neither."""
    rows, x = unit.rows, np.zeros(unit.m)
    x[rows.index] = result.x
    if result.ray:
        proof = certify_infeasible(unit.problem, x * unit.inverse)
        return None if proof is None else MethodResult(farkas=proof, iterations=int(result.iterations))
    if not result.settled:
        return None
    return _polished(unit, norm, x, rows.lift(result.w.reshape(rows.shape)) / unit.scale, int(result.iterations))


def _polished(unit: UnitProblem, norm: Norm, x: FloatArray, W: FloatArray, iterations: int) -> MethodResult:
    """The result with its certificate, refined where that is not as good as rounding allows."""
    best = _certified(unit, norm, x, W, iterations)
    if best.certificate is not None and best.certificate.worst > _ROUNDING and unit.m <= _GRAM_ROWS:
        best = _better(best, _certified(unit, norm, *_refined(unit, x, W), iterations))
    return best


def _certified(unit: UnitProblem, norm: Norm, x: FloatArray, W: FloatArray, iterations: int) -> MethodResult:
    solution, lam = in_norm_form(unit, x, W)
    return MethodResult(solution, lam, iterations, certificate=certify(unit.problem, solution, lam, norm))


def _better(one: MethodResult | None, other: MethodResult) -> MethodResult:
    if one is None or other.farkas is not None:
        return other
    return other if proved(other) <= proved(one) else one


def proved(found: MethodResult | None) -> float:
    """What the certificate of a result proves; infinite without one."""
    return np.inf if found is None or found.certificate is None else found.certificate.proved


def _can_be_independent(unit: UnitProblem[Axis]) -> bool:
    """Whether there are no more rows than dimensions: otherwise every Gram matrix is singular."""
    dx, dz = unit.problem.shape
    return unit.m <= dx * min(dz, unit.problem.q)


def _guessed(unit: UnitProblem) -> FloatArray | None:
    """Active rows to start from where the rows are dependent: those of a solution are fewer, and mostly are not."""
    some = _DAQP_IS_QUICK < unit.m <= _DEPENDENT * math.prod(unit.problem.shape)
    return guess_active(unit.gram, unit.c, unit.equality) if some else None


def _pivoted(unit: UnitProblem, norm: Norm, known: FloatArray | None, limit: int | None) -> MethodResult | None:
    """One problem by pivoting, as far as the limit lets it get; None where rows turn out dependent."""
    start, equality = None if known is None else known != 0, unit.equality if unit.has_equalities else None
    result = solve_small(unit.gram, unit.c, equality, start, limit)
    rounds = int(result.iterations)
    if result.settled:
        return _polished(unit, norm, result.x, unit.adjoint(result.x), rounds)
    if limit is None:
        return None
    x = unit.problem.clipped(result.x)
    return _certified(unit, norm, x, unit.adjoint(x), rounds)


def _fits_compiled(unit: UnitProblem[Axis]) -> bool:
    """Whether the rows are few enough for the compiled pivoting, if that is there."""
    return unit.m <= MOST_ROWS and is_available()


def _in_one_call(unit: UnitProblem) -> tuple[FloatArray, bool, int]:
    """Multipliers of few rows as they are, whether they are the ones, and steps: in C, or from the Gram matrix by DAQP.

    DAQP scales rows itself, if these are of similar norms.
    """
    problem, equality = unit.problem, unit.equality if unit.has_equalities else None
    if _fits_compiled(unit):
        return pivot_one(problem.pairs(), None if problem.is_plain else problem.rhs, equality)
    sides = np.abs(problem.rhs)
    similar = unit.least_norm > 1.0 / _SIMILAR and unit.largest_norm < _SIMILAR
    if unit.m > DAQP_ROWS or not (similar and 1.0 / _SIMILAR < sides.item(sides.argmax()) < _SIMILAR):
        return sides, False, 0
    return by_daqp(problem.gram(), problem.rhs, equality)


def _solve_directly(unit: UnitProblem, norm: Norm) -> MethodResult | None:
    """Few rows by one call; None if in doubt."""
    if not _can_be_independent(unit):
        return None
    problem = unit.problem
    x, ended, steps = _in_one_call(unit)
    if not ended:
        return None
    square = float(problem.rhs.dot(x))  # that of the norm of W, as G x = rhs wherever x is not 0
    if not square > 0.0:
        return None
    size = math.sqrt(square)
    lam = x * (1.0 / size)
    dual = problem.adjoint(lam)
    W = dual * size
    certificate = measure(ONE, problem, W, lam, norm, None, dual)
    return MethodResult(W, lam, steps, certificate=certificate) if certificate.worst <= _ROUNDING else None


def _pivoted_stack(
    unit: UnitProblemBatch, known: FloatArray | None, limit: int | None
) -> tuple[FloatArray, FloatArray, BoolArray, IntArray]:
    """Multipliers and W of the unit rows of a batch by pivoting, where these are meant, and rounds."""
    problem, start = unit.problem, None if known is None else known != 0
    equality = unit.equality if unit.has_equalities else None
    if _fits_compiled(unit):
        sides = None if problem.is_plain else problem.rhs
        done = pivot_batch(problem.pairs(), sides, equality, start, limit)
        x, W = done.multipliers * problem.row_norms, done.W
        x /= unit.scale
        W /= unit.scale[..., None]
        settled, rounds, peaks = done.settled, done.rounds, done.peaks
    else:
        found = solve_small_batch(unit.gram, unit.c, equality, start, limit)
        x = problem.clipped(found.x)
        settled, rounds, peaks = found.settled, found.iterations, np.abs(x).max(axis=-1)
        W = unit.adjoint(x)
    steep = np.flatnonzero(settled & (peaks > _STEEP))
    if len(steep):
        x[steep], W[steep] = _refined_stack(unit, steep, x[steep], W[steep])
    # What a limit stopped is a result, if not a good one; otherwise unsettled rows are dependent.
    return x, W, settled | (limit is not None), rounds


def _fits_soft(unit: UnitProblem[Axis]) -> bool:
    """Whether the compiled pivoting takes a soft margin: few rows, no equalities, and none that is zero but exists."""
    if not _fits_compiled(unit) or unit.has_equalities:
        return False
    if not unit.has_zero_rows:
        return True
    exists = np.ones(unit.inverse.shape, dtype=bool) if unit.problem.valid is None else unit.problem.valid
    return not (exists & (unit.inverse == 0)).any()  # such a row has its slack


def _solve_soft(unit: UnitProblem, norm: Norm, penalty: Penalty, request: Request) -> MethodResult:
    """A soft margin of few rows in C; nothing where pivoting does not settle, or cannot be tried."""
    if not _fits_soft(unit):
        return MethodResult()
    problem, limit = unit.problem, request.max_iterations
    sides = None if problem.is_plain else problem.rhs
    lam, W, settled, rounds = pivot_soft(problem.pairs(), sides, penalty, request.multipliers(problem), limit)
    if not settled and limit is None:
        return MethodResult(iterations=rounds)
    return MethodResult(W, lam, rounds, certificate=certify(problem, W, lam, norm))


def _solve_soft_batch(unit: UnitProblemBatch, penalty: EitherPenalty, request: Request) -> BatchResult:
    """`_solve_soft` for a batch."""
    problem = unit.problem
    if not _fits_soft(unit):
        nothing = np.full((len(problem), *problem.shape), np.nan)
        return BatchResult(nothing, np.full(problem.rhs.shape, np.nan), np.zeros(len(problem), dtype=np.int64))
    sides, known = None if problem.is_plain else problem.rhs, request.multipliers(problem)
    lam, W, settled, rounds = pivot_soft_batch(problem.pairs(), sides, penalty, known, request.max_iterations)
    lam[~settled] = np.nan
    return BatchResult(W, lam, rounds)


def solve_active_sets(unit: UnitProblemBatch, norm: Norm, request: Request) -> BatchResult:
    """`solve_active_set` for a batch: pivoting where the rows can be independent, else least distances if small enough.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, solve
    >>> batch = MarginProblem.stack([MarginProblem([[2.0]], [[1.0]], [0]), MarginProblem([[4.0]], [[1.0]], [0])])
    >>> solve(batch, solver="active_set").W.ravel()
    array([0.5 , 0.25])
    """
    penalty = unit.problem.penalty
    if penalty is not None:
        return _solve_soft_batch(unit, penalty, request)
    known, limit = request.multipliers(unit.problem), request.max_iterations
    dx, dz = unit.problem.shape
    size, m = unit.equality.shape
    if _can_be_independent(unit):
        x, W, settled, iterations = _pivoted_stack(unit, known, limit)
    else:
        x, W = np.zeros((size, m)), np.zeros((size, dx, dz))
        settled, iterations = np.zeros(size, dtype=bool), np.zeros(size, dtype=np.int64)
    candidates = np.full((size, m), np.nan)
    left = np.flatnonzero(~settled)
    x[left], W[left] = 0.0, 0.0
    if len(left) and m * dx * dz <= _STACK_ENTRIES:
        features = unit.problem.rows.take(left).gather(np.arange(m)).features() * unit.inverse[left][..., None]
        result = least_distance(features, unit.c[left], unit.equality[left] if unit.has_equalities else None)
        x[left], W[left] = np.where(result.settled[:, None], result.x, 0.0), result.w.reshape(-1, dx, dz)
        settled[left], iterations[left] = result.settled, iterations[left] + result.iterations
        close = left[result.settled]
        if len(close):
            x[close], W[close] = _refined_stack(unit, close, x[close], W[close])
        candidates[left] = np.where(result.ray[:, None], result.x * unit.inverse[left], np.nan)
    solution, lam = in_norm_form(unit, x, W)
    lam[~settled] = np.nan
    return BatchResult(solution, lam, iterations, candidates)


def solve_active_set(unit: UnitProblem, norm: Norm, request: Request) -> MethodResult:
    """Least Frobenius norm by active-set methods: exact, for up to a few thousand rows.

    Soft margins of a few hundred inequality rows are solved, too. ``max_iterations`` limits the rounds of pivoting,
    ``50 + 2 m`` by default; what it stops is returned as it is.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, solve
    >>> rows = MarginProblem([[2.0, 0.0], [0.0, 1.0]], [[1.0]], [0, 0])
    >>> solve(rows, solver="active_set").W
    array([[0.5],
           [1. ]])
    """
    penalty = unit.problem.single_penalty
    return _solve_hard(unit, norm, request) if penalty is None else _solve_soft(unit, norm, penalty, request)


def _solve_hard(unit: UnitProblem, norm: Norm, request: Request) -> MethodResult:
    known, limit = request.multipliers(unit.problem), request.max_iterations
    # A warm start would save the guess of the active rows, a third of a call in C, and may take more rounds than that.
    best = _solve_directly(unit, norm) if limit is None and (known is None or _fits_compiled(unit)) else None
    if best is not None:
        return best
    independent = _can_be_independent(unit)
    start = known if independent or limit is not None or known is not None else _guessed(unit)
    if independent or start is not known:
        best = _pivoted(unit, norm, start, limit)
        if best is not None and (limit is not None or proved(best) <= request.tolerance):
            return best
    near = by_distance(unit, norm, request.tolerance)
    return best or MethodResult() if near is None else _better(best, near)
