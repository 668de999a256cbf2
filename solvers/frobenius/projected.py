"""Least Frobenius norm of large problems without the Gram matrix: pivoting with conjugate gradients.

The dual is ``max c . x - |W(x)|^2 / 2`` over ``x >= 0`` (free on equality rows), with unit rows. Each round
guesses the rows that are free to move, solves the equations on them by preconditioned conjugate gradients,
with accuracy that follows the progress, and looks at every row once:

1. *pivoting*: rows on the wrong side change sides at once (a primal-dual active-set method). On generic data
   the free set settles within ten rounds and the last solve is exact.
2. If that stalls: rows may be missed at a price (``G + ridge I`` in place of G), which is a smooth problem for
   W that Newton's method with an exact line search always solves; the price rises and pivoting is tried again
   from there. A shortfall that no price removes starts a search for a proof of infeasibility
   (`attsvm.solvers.frobenius.conflicts`).

M. Hintermüller, K. Ito and K. Kunisch, "The primal-dual active set strategy as a semismooth Newton method", SIAM J.
Optimization 13 (2002).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.certify.certificate import Certificate
from attsvm.solvers.certify.entry import certify
from attsvm.solvers.driver import Driver
from attsvm.solvers.frobenius.active_set import in_norm_form, proved
from attsvm.solvers.frobenius.conflicts import exact_step, find_conflict
from attsvm.solvers.frobenius.dual import Dual, DualPoint
from attsvm.solvers.frobenius.free_rows import FreeRows, solve_free
from attsvm.solvers.norms import Norm
from attsvm.solvers.request import Request
from attsvm.solvers.solution import Found
from attsvm.solvers.unit import UnitProblem

__all__ = ["solve_projected"]

_ROUNDS = 300
# Rounds without a new smallest number of misplaced rows before pivoting is called stuck.
_PATIENCE = 4
# Prices of shortfall, as ridges on the unit rows; pivoting is tried again after each of the last three.
_RIDGES = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-8)
_SOFT_ROUNDS = 25
_REFINEMENTS = 4
_CG_STEPS = 150
# Systems of at least so many numbers that need no more accuracy than this are solved with rows in float32: half the
# memory and traffic. What follows is float64: the residual of the next round, and the last ones altogether.
_LARGE, _SINGLE = 1 << 24, 1e-5
# Above this error the active rows are not known yet, and polishing would be wasted.
_WORTH_POLISHING = 1e-2


@dataclass(frozen=True, eq=False)
class _Progress:
    """Where pivoting stands and how it ended."""

    point: DualPoint
    free: BoolArray
    solved: bool = False


def _pivoting(dual: Dual, x: FloatArray, free: BoolArray, goal: float, driver: Driver[None]) -> _Progress:
    """Primal-dual active-set rounds until the certificate's error is at most ``goal``."""
    unit = dual.unit
    misplacement: Driver[None] = Driver(driver.left, _PATIENCE)
    accuracy, point = 0.1, None
    while driver.advance():
        index = np.flatnonzero(free)
        start = dual.restrict(x, index)
        change = _solve_on(dual, index, _target(dual, index, start, point), accuracy)
        if change is None:
            break
        x = np.zeros(unit.m)
        x[index] = start + change
        point = dual.at(x)
        wanted = (x - point.slack > 1e-14 * max(1.0, float(np.abs(x).max()))) | unit.equality
        misplaced = int(np.count_nonzero(wanted != free))
        if point.error <= goal and not ((x < 0) & ~unit.equality).any():
            return _Progress(point, wanted, True)
        if not misplacement.offer(misplaced, None) and not misplaced and accuracy > 1e-12:
            misplacement.waited -= 1  # the right rows: only accuracy is missing
        free = wanted
        if misplacement.stalled:
            break
        ratio = misplaced / max(1, len(index))
        accuracy = min(0.1, max(0.1 * ratio, 1e-6)) if misplaced else max(1e-12, min(1e-4, 1e-3 * accuracy))
    return _Progress(point or dual.at(x), free)


def _target(dual: Dual, index: IntArray, start: FloatArray, last: DualPoint | None) -> FloatArray:
    """What the equations on the rows of ``index`` lack at ``start``, in float64 whatever the rows are."""
    x = np.zeros(dual.unit.m)
    x[index] = start
    if last is not None and np.array_equal(x, last.x):
        return -last.slack[index]
    return -dual.at(x).slack[index] if x.any() else dual.unit.c[index]


def _solve_on(
    dual: Dual, index: IntArray, target: FloatArray, accuracy: float, ridge: float = 0.0
) -> FloatArray | None:
    """Solution of ``(G + ridge I) d = target`` on the rows of ``index``; None when singular."""
    if len(index) == 0:
        return target
    if accuracy >= _SINGLE and len(index) * dual.unit.problem.shape[0] >= _LARGE and not dual.prefer_dense:
        change, _, ending = solve_free(
            FreeRows(dual.unit, index, ridge=ridge, single=True), target, accuracy, _CG_STEPS
        )
        if ending == "solved":
            return change
    rows = FreeRows(dual.unit, index, ridge=ridge)
    if dual.prefer_dense:
        dense = rows.dense_solve(target)
        if dense is not None:
            return dense
    if rows.a.dtype == np.float32:
        accuracy = max(accuracy, _SINGLE)  # more is not to be had from these products; the next round goes on
    change, _, ending = solve_free(rows, target, accuracy, _CG_STEPS)
    if ending == "solved":
        return change
    dense = None if dual.prefer_dense else rows.dense_solve(target)
    dual.prefer_dense = dual.prefer_dense or dense is not None
    if dense is not None or ending == "singular":
        return dense
    return change


def _polished(dual: Dual, point: DualPoint) -> tuple[FloatArray, FloatArray]:
    """Multipliers and W with the active rows met to rounding: W is corrected, not summed up again.

    Matters near infeasibility, where multipliers are as large as the square of the norm.
    """
    unit, x, W = dual.unit, point.x.copy(), point.W
    index = np.flatnonzero((x > 0) | unit.equality)
    for _ in range(_REFINEMENTS):
        change = _solve_on(dual, index, (unit.c - unit.margins(W))[index], 1e-6)
        if change is None:
            break
        full = np.zeros(unit.m)
        full[index] = change
        x += full
        W = W + unit.adjoint(full)
    return x, W


def _soft_newton(
    dual: Dual, W: FloatArray, gaps: FloatArray, x: FloatArray, ridge: float, driver: Driver[None]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Minimize ``|W|^2 / 2 + |(c - F W)_+|^2 / (2 ridge)`` by Newton steps with an exact line search.

    Returns W, ``gaps = c - F W`` and multipliers.
    """
    unit = dual.unit
    accuracy, before = 1e-3, None
    for _ in range(_SOFT_ROUNDS):
        short = (gaps > 0) | unit.equality
        # Good enough to tell the next price, or pivoting, which rows matter.
        if before is not None and 50 * int(np.count_nonzero(short != before)) <= int(np.count_nonzero(short)):
            break
        if not driver.advance():
            break
        before = short
        index = np.flatnonzero(short)
        start = dual.restrict(x, index)
        target = _target(dual, index, start, None) - ridge * start
        change = _solve_on(dual, index, target, accuracy, ridge)
        if change is None:
            break
        x = np.zeros(unit.m)
        x[index] = start + change
        D = unit.adjoint(x) - W
        rise = unit.margins(D)
        step = exact_step(gaps, rise, unit.equality, ridge * float(np.vdot(W, D)), ridge * float(np.vdot(D, D)))
        if step < 0.1:  # a poor direction: conjugate gradients stopped too early
            accuracy = max(1e-2 * accuracy, 1e-10)
        W = W + step * D
        gaps = gaps - step * rise
    return W, gaps, x


def _ridge_path(
    dual: Dual, x: FloatArray, free: BoolArray, goal: float, driver: Driver[None]
) -> tuple[_Progress, Certificate | None]:
    """Solutions that may fall short of the rows at a price, for a rising price; then pivoting from their rows.

    Where the shortfall does not vanish as its price rises the rows may contradict each other, which is looked
    into once.
    """
    point = dual.at(x)
    W, gaps, looked = point.W, -point.slack, False
    progress = _Progress(point, free)
    for ridge in _RIDGES:
        if driver.left <= 0:
            break
        W, gaps, x = _soft_newton(dual, W, gaps, x, ridge, driver)
        if ridge > 1e-3:
            continue
        if not looked and float(gaps.max()) > 0.05:
            looked = True
            proof, _ = find_conflict(dual.unit, W * dual.unit.scale)
            if proof is not None:
                return progress, proof
        if ridge <= 1e-4 and driver.left > 0:
            progress = _pivoting(dual, x, (gaps > 0) | dual.unit.equality, goal, driver)
            if progress.solved:
                break
    return progress, None


def _settle(dual: Dual, norm: Norm, point: DualPoint, request: Request, steps: int) -> Found:
    """The point with its certificate, polished where that is worth it."""

    def finish(x: FloatArray, W: FloatArray) -> Found:
        solution, lam = in_norm_form(dual.unit, x, W)
        return Found(solution, lam, steps, certificate=certify(dual.unit.problem, solution, lam, norm))

    found = finish(point.x, point.W)
    if proved(found) > request.tolerance and point.error < _WORTH_POLISHING:
        polished = finish(*_polished(dual, point))
        return polished if proved(polished) < proved(found) else found
    return found


def solve_projected(unit: UnitProblem, norm: Norm, request: Request) -> Found:
    """Least Frobenius norm without the Gram matrix, for any number of rows.

    Works beside the data with a copy of the rows that are free to move and vectors of length m. ``float32``
    rows are multiplied in ``float32`` inside conjugate gradients, and in ``float64`` by chunks for residuals.
    ``max_iterations`` limits the rounds (each solves equations on the free rows and looks at all rows once); 300 by
    default.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, solve
    >>> rows = MarginProblem([[2.0, 0.0], [0.0, 1.0]], [[1.0]], [0, 0])
    >>> solve(rows, solver="projected").W.round(6)
    array([[0.5],
           [1. ]])
    """
    aim = min(1e-2 * request.tolerance, 1e-10)
    driver: Driver[None] = Driver(request.max_iterations or _ROUNDS)
    dual = Dual(unit)
    progress = _pivoting(dual, *dual.start(request.multipliers(unit.problem)), aim, driver)
    result = _settle(dual, norm, progress.point, request, driver.steps)
    if proved(result) <= request.tolerance or driver.left <= 0:
        return result

    progress, proof = _ridge_path(dual, *dual.start(None), aim, driver)
    if proof is not None:
        return Found(farkas=proof, iterations=driver.steps)
    return _settle(dual, norm, progress.point, request, driver.steps)
