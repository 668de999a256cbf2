"""Least Frobenius norm of large problems without the Gram matrix: pivoting and projected Newton steps.

The dual is ``max c . x - |W(x)|^2 / 2`` over ``x >= 0`` (free on equality rows), with unit rows. Each round
guesses the rows that are free to move, solves the equations on them by preconditioned conjugate gradients,
with accuracy that follows the progress, and looks at every row once:

1. *pivoting*: rows on the wrong side change sides at once (a primal-dual active-set method). On generic data
   the free set settles within ten rounds and the last solve is exact.
2. If that stalls: rows may be missed at a price (``G + ridge I`` in place of G), which is a smooth problem for
   W that Newton's method with an exact line search always solves; the price rises and pivoting is tried again
   from there. A shortfall that no price removes starts a search for a proof of infeasibility
   (`attsvm.solvers.conflict`).
3. What is still open, close to the border of infeasibility, goes to `attsvm.solvers.dual_steps` when W has few
   dimensions, else to *projected Newton* rounds, whose line search makes the dual objective rise every time.

D. P. Bertsekas, "Projected Newton methods for optimization problems with simple constraints", SIAM J. Control
and Optimization 20 (1982); M. Hintermüller, K. Ito and K. Kunisch, "The primal-dual active set strategy as a
semismooth Newton method", SIAM J. Optimization 13 (2002).
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attsvm.solvers.active_set import (
    ACHIEVABLE,
    conclude_multipliers,
    exact_by_steps,
    start_multipliers,
    trivial_solution,
)
from attsvm.solvers.certificate import Certificate
from attsvm.solvers.conflict import exact_step, find_conflict
from attsvm.solvers.free_rows import FreeRows, conjugate_gradient
from attsvm.solvers.margin import BoolArray, FloatArray, IntArray, MarginProblem
from attsvm.solvers.norms import Norm
from attsvm.solvers.solution import MarginSolution, without_solution
from attsvm.solvers.status import Status
from attsvm.solvers.unit_dual import DualPoint, UnitDual

__all__ = ["solve_projected"]

_ROUNDS = 300
# Rounds without a new smallest number of misplaced rows before pivoting is called stuck.
_PATIENCE = 4
# Up to this many dimensions the dual active-set method finishes what pivoting could not: its basis of active
# rows stays below 16 MiB.
_FEW_DIMENSIONS = 1400
# Prices of shortfall, as ridges on the unit rows; pivoting is tried again after each of the last three.
_RIDGES = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-8)
_SOFT_ROUNDS = 25
_REFINEMENTS = 4
_CG_STEPS = 150
# Newton rounds are exact once the free set is right; a longer solve per round pays when conditioning is poor.
_LONG_CG_STEPS = 2000
# Above this error the active rows are not known yet, and polishing would be wasted.
_WORTH_POLISHING = 1e-2


@dataclass
class _Progress:
    """Where pivoting stands and how it ended."""

    point: DualPoint
    free: BoolArray
    rounds: int
    ending: str  # "solved", "stuck" or "limit"


def _pivoting(dual: UnitDual, x: FloatArray, free: BoolArray, goal: float, limit: int) -> _Progress:
    """Primal-dual active-set rounds until the certificate's error is at most ``goal``."""
    m = dual.problem.m
    fewest, stalled, rounds, accuracy = m + 1, 0, 0, 0.1
    point: DualPoint | None = None
    while True:
        rounds += 1
        index = np.flatnonzero(free)
        start = dual.restrict(x, index)
        change = _solve_on(dual, index, _target(dual, index, start, point), accuracy)
        if change is None:
            return _Progress(point or dual.at(x), free, rounds, "stuck")
        x = np.zeros(m)
        x[index] = start + change
        point = dual.at(x)
        wanted = (x - point.slack > 1e-14 * max(1.0, float(np.abs(x).max()))) | dual.equality
        misplaced = int(np.count_nonzero(wanted != free))
        if point.error <= goal and not ((x < 0) & ~dual.equality).any():
            return _Progress(point, wanted, rounds, "solved")
        if misplaced < fewest:
            fewest, stalled = misplaced, 0
        elif misplaced or accuracy <= 1e-12:
            stalled += 1
        if rounds >= limit:
            return _Progress(point, wanted, rounds, "limit")
        if stalled > _PATIENCE:
            return _Progress(point, wanted, rounds, "stuck")
        ratio = misplaced / max(1, len(index))
        accuracy = min(0.1, max(0.1 * ratio, 1e-6)) if misplaced else max(1e-12, min(1e-4, 1e-3 * accuracy))
        free = wanted


def _target(dual: UnitDual, index: IntArray, start: FloatArray, last: DualPoint | None) -> FloatArray:
    """What the equations on the rows of ``index`` lack at ``start``, in float64 whatever the rows are."""
    x = np.zeros(dual.problem.m)
    x[index] = start
    if last is not None and np.array_equal(x, last.x):
        return -last.slack[index]
    return -dual.at(x).slack[index] if x.any() else dual.c[index]


def _solve_on(
    dual: UnitDual, index: IntArray, target: FloatArray, accuracy: float, ridge: float = 0.0
) -> FloatArray | None:
    """Solution of ``(G + ridge I) d = target`` on the rows of ``index``; None when singular."""
    if len(index) == 0:
        return target
    rows = FreeRows(dual.problem, dual.inverse, index, ridge=ridge)
    if dual.prefer_dense:
        dense = rows.dense_solve(target)
        if dense is not None:
            return dense
    if rows.a.dtype == np.float32:
        accuracy = max(accuracy, 1e-5)  # more is not to be had from these products; the next round goes on
    change, _, ending = conjugate_gradient(rows, target, accuracy, _CG_STEPS)
    if ending == "solved":
        return change
    dense = None if dual.prefer_dense else rows.dense_solve(target)
    dual.prefer_dense = dual.prefer_dense or dense is not None
    if dense is not None or ending == "singular":
        return dense
    return change


def _polished(dual: UnitDual, point: DualPoint) -> tuple[FloatArray, FloatArray]:
    """Multipliers and W with the active rows met to rounding: W is corrected, not summed up again.

    Matters near infeasibility, where multipliers are as large as the square of the norm.
    """
    x, W = point.x.copy(), point.W
    index = np.flatnonzero((x > 0) | dual.equality)
    for _ in range(_REFINEMENTS):
        slack = dual.problem.margins(W) * dual.inverse - dual.c
        change = _solve_on(dual, index, -slack[index], 1e-6)
        if change is None:
            break
        full = np.zeros(dual.problem.m)
        full[index] = change
        x += full
        W = W + dual.problem.adjoint(full * dual.inverse)
    return x, W


def _soft_newton(
    dual: UnitDual, W: FloatArray, gaps: FloatArray, x: FloatArray, ridge: float, limit: int
) -> tuple[FloatArray, FloatArray, FloatArray, int]:
    """Minimize ``|W|^2 / 2 + |(c - F W)_+|^2 / (2 ridge)`` by Newton steps with an exact line search.

    Returns W, ``gaps = c - F W``, multipliers and rounds.
    """
    accuracy, before = 1e-3, None
    for rounds in range(limit):
        short = (gaps > 0) | dual.equality
        # Good enough to tell the next price, or pivoting, which rows matter.
        if before is not None and 50 * int(np.count_nonzero(short != before)) <= int(np.count_nonzero(short)):
            return W, gaps, x, rounds
        before = short
        index = np.flatnonzero(short)
        start = dual.restrict(x, index)
        target = _target(dual, index, start, None) - ridge * start
        change = _solve_on(dual, index, target, accuracy, ridge)
        if change is None:
            return W, gaps, x, rounds + 1
        x = np.zeros(dual.problem.m)
        x[index] = start + change
        D = dual.problem.adjoint(x * dual.inverse) - W
        change = dual.problem.margins(D) * dual.inverse
        step = exact_step(gaps, change, dual.equality, ridge * float(np.vdot(W, D)), ridge * float(np.vdot(D, D)))
        if step < 0.1:  # a poor direction: conjugate gradients stopped too early
            accuracy = max(1e-2 * accuracy, 1e-10)
        W = W + step * D
        gaps = gaps - step * change
    return W, gaps, x, limit


def _ridge_path(
    dual: UnitDual, x: FloatArray, free: BoolArray, goal: float, limit: int
) -> tuple[_Progress, Certificate | None]:
    """Solutions that may fall short of the rows at a price, for a rising price; then pivoting from their rows.

    Where the shortfall does not vanish as its price rises the rows may contradict each other, which is looked
    into once.
    """
    point = dual.at(x)
    W, gaps, used, looked = point.W, -point.slack, 0, False
    progress = _Progress(point, free, 0, "limit")
    for ridge in _RIDGES:
        if used >= limit:
            break
        W, gaps, x, rounds = _soft_newton(dual, W, gaps, x, ridge, min(_SOFT_ROUNDS, limit - used))
        used += rounds
        if ridge > 1e-3:
            continue
        if not looked and float(gaps.max()) > 0.05:
            looked = True
            proof, _ = find_conflict(dual.problem, dual.inverse, W * dual.scaling.scale)
            if proof is not None:
                return _Progress(progress.point, free, used, "stuck"), proof
        if ridge <= 1e-4 and used < limit:
            progress = _pivoting(dual, x, (gaps > 0) | dual.equality, goal, limit - used)
            used += progress.rounds
            if progress.ending == "solved":
                break
    progress.rounds = used
    return progress, None


def _projected_newton(dual: UnitDual, x: FloatArray, goal: float, limit: int) -> tuple[DualPoint, int]:
    """Newton directions on the free rows with a projected line search."""
    x = np.where(dual.equality, x, np.maximum(x, 0.0))
    point = dual.at(x)
    accuracy = 1e-2
    before: BoolArray | None = None
    for rounds in range(limit):
        if point.error <= goal:
            return point, rounds
        free = (point.x > 0) | (point.slack < 0) | dual.equality
        changed = dual.problem.m if before is None else int(np.count_nonzero(free != before))
        accuracy = max(1e-12, 1e-3 * accuracy) if changed == 0 else min(1e-2, max(1e-6, changed / dual.problem.m))
        before = free
        index = np.flatnonzero(free)
        rows = FreeRows(dual.problem, dual.inverse, index)
        slack, here, equal = point.slack[index], point.x[index], dual.equality[index]
        direction, _, ending = conjugate_gradient(rows, -slack, accuracy, _LONG_CG_STEPS)
        # A direction without curvature is followed as far as it pays: start beyond any sensible length.
        step = (
            1e6 * max(1.0, float(np.abs(here).max())) / float(np.abs(direction).max()) if ending == "singular" else 1.0
        )
        c = dual.c[index]
        for _ in range(60):
            moved = here + step * direction
            moved[(moved < 0) & ~equal] = 0.0
            objective = float(c @ moved) - 0.5 * float(moved @ rows.gram_product(moved))
            promised = -float(slack @ (moved - here))
            if objective >= point.objective + 1e-4 * promised and promised > 0:
                break
            step *= 0.5
        else:
            return point, rounds + 1  # no progress beyond rounding
        del rows
        x = np.zeros(dual.problem.m)
        x[index] = moved
        point = dual.at(x)
    return point, limit


def solve_projected(
    problem: MarginProblem,
    norm: Norm,
    *,
    tolerance: float | None = None,
    max_iterations: int | None = None,
    warm_start: npt.ArrayLike | MarginSolution | None = None,
) -> MarginSolution:
    """Least Frobenius norm without the Gram matrix, for any number of rows.

    Works beside the data with a copy of the rows that are free to move and vectors of length m. ``float32``
    rows are multiplied in ``float32`` inside conjugate gradients, and in ``float64`` by chunks for residuals.

    Parameters
    ----------
    problem : MarginProblem
    norm : Norm
        ``Norm("frobenius")``.
    tolerance : float, optional
        What the certificate must reach to be called optimal; 1e-8 by default.
    max_iterations : int, optional
        Limit on rounds (each solves equations on the free rows and looks at all rows once); 300 by default.
    warm_start : array_like of shape (m,) or MarginSolution, optional
        Multipliers of a similar problem with as many rows.

    Returns
    -------
    MarginSolution

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, Norm
    >>> from attsvm.solvers.projected import solve_projected
    >>> rows = MarginProblem([[2.0, 0.0], [0.0, 1.0]], [[1.0]], [0, 0])
    >>> solve_projected(rows, Norm("frobenius")).W.round(6)
    array([[0.5],
           [1. ]])
    """
    begin = time.perf_counter()
    label = "projected"
    goal = ACHIEVABLE if tolerance is None else tolerance
    aim = min(1e-2 * goal, 1e-10)
    limit = _ROUNDS if max_iterations is None else max_iterations
    known = start_multipliers(problem, warm_start)
    settled = trivial_solution(problem, norm, label, goal, begin)
    if settled is not None:
        return settled

    dual = UnitDual(problem)

    def finish(x: FloatArray, W: FloatArray | None, iterations: int) -> MarginSolution:
        lam = x * dual.scaling.back
        full = None if W is None else W * dual.scaling.scale
        return conclude_multipliers(
            problem, norm, lam, full, solver=label, iterations=iterations, start=begin, tolerance=goal
        )

    def settle(point: DualPoint, iterations: int) -> MarginSolution:
        found = finish(point.x, point.W, iterations)
        if found.status is not Status.OPTIMAL and point.error < _WORTH_POLISHING:
            polished = finish(*_polished(dual, point), iterations)
            if polished.certificate.worst < found.certificate.worst:
                return polished
        return found

    def refuse(proof: Certificate, iterations: int) -> MarginSolution:
        return without_solution(
            problem, norm, Status.INFEASIBLE, proof,
            solver=label, iterations=iterations, seconds=time.perf_counter() - begin,
        )  # fmt: skip

    x, free = dual.start(known)
    progress = _pivoting(dual, x, free, aim, limit)
    rounds = progress.rounds
    result = settle(progress.point, rounds)
    if result.status is Status.OPTIMAL or rounds >= limit:
        return result

    x, free = dual.start(None)
    progress, proof = _ridge_path(dual, x, free, aim, limit - rounds)
    rounds += progress.rounds
    if proof is not None:
        return refuse(proof, rounds)
    result = settle(progress.point, rounds)
    if result.status is Status.OPTIMAL or rounds >= limit:
        return result

    if problem.shape[0] * min(problem.shape[1], problem.q) <= _FEW_DIMENSIONS:
        budget = 100 + 10 * problem.m if max_iterations is None else limit - rounds
        y, W, proof, steps = exact_by_steps(problem, dual.scaling, progress.point.x, budget)
        rounds += steps
        if proof is not None:
            return refuse(proof, rounds)
        last = finish(y, W / dual.scaling.scale, rounds)
    else:
        point, more = _projected_newton(dual, progress.point.x, aim, limit - rounds)
        last = settle(point, rounds + more)
    return last if last.certificate.worst <= result.certificate.worst else result
