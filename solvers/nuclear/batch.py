"""Least nuclear norm of small problems, one or many at once, in compiled code that shares them between the cores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.certify.certify_pair import certify
from attsvm.solvers.compiled.kernels import minimize
from attsvm.solvers.frobenius.active_set import proved, solve_active_sets
from attsvm.solvers.margin_problem import MarginProblem, MarginProblemBatch
from attsvm.solvers.margin_solution import BatchResult, Extras, MethodResult
from attsvm.solvers.norms import Norm, get_norm
from attsvm.solvers.nuclear.newton import polish_pair, report
from attsvm.solvers.request import Request
from attsvm.solvers.unit import UnitProblem, UnitProblemBatch

__all__ = ["solve_nuclear_alone", "solve_nuclear_batch"]

MAX_ITERATIONS = 60
# Near here the Newton matrix runs out of digits; a problem also stops when it no longer improves.
_GOAL = 8e-11
# Rows per entry of W from which on the method starts from the right-hand sides, as in interior_point.py.
_ROWS_PER_ENTRY = 2


def _compiled(unit: UnitProblemBatch, x: FloatArray, most: int) -> tuple[FloatArray, FloatArray, IntArray]:
    """W and multipliers of unit rows, and steps, from those of the least Frobenius norm."""
    a, b, left, right = unit.factors(reduced=True)
    live = unit.inverse > 0
    # A zero row constrains nothing (or the problem were infeasible): give it slack.
    c = np.where(live, unit.c, -1.0)
    room = np.where(live, unit.problem.allowance * unit.inverse / unit.scale, 1.0)
    sense = np.where(unit.equality & live, 0, 1).astype(np.int8)
    W, lam, steps = minimize(get_norm("nuclear"), a, b, c, sense, x, most, _GOAL, room)
    W = W if left is None else left @ W
    return W if right is None else W @ right.mT, np.where(live, lam, 0.0), steps


def solve_nuclear_batch(unit: UnitProblemBatch, norm: Norm, request: Request) -> BatchResult:
    """Least nuclear norm for a batch of small problems.

    ``max_iterations`` are interior-point steps, 60 by default (typical problems need 10 to 15).

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, solve
    >>> batch = MarginProblem(np.array([[[2.0]], [[4.0]]]), np.ones((2, 1, 1)), [0])
    >>> solve(batch, "nuclear", "nuclear_batch").W.ravel().round(6).tolist()
    [0.5, 0.25]
    """
    if _has_many_rows(unit.problem) and not unit.has_equalities:
        return _solve_many_rows(unit, request)
    first = solve_active_sets(unit, norm, Request(request.tolerance))
    W, lam, iterations = first.W, first.multipliers, first.iterations.copy()
    ready = np.isfinite(lam).all(axis=-1) & (np.abs(W).max(axis=(-2, -1)) > 0)  # W = 0 cannot be improved
    # Rows that even the least Frobenius norm misses may contradict each other: left to one-by-one solves.
    doubtful = ready & _misses_rows(unit, W)
    lam[doubtful], ready = np.nan, ready & ~doubtful
    if ready.any():
        picked = np.flatnonzero(ready)
        some = unit if len(picked) == len(ready) else UnitProblem(unit.problem.take(picked))
        start_W = W[picked] / some.scale[..., None]
        # Multipliers of the unit rows: W(x) = start_W.
        x = lam[picked] * some.problem.row_norms * np.sqrt(np.einsum("bij,bij->b", start_W, start_W))[:, None]
        found, multipliers, steps = _compiled(some, x, request.max_iterations or MAX_ITERATIONS)
        W[picked], lam[picked] = found * some.scale[..., None], multipliers * some.inverse
        iterations[picked] += steps
    return BatchResult(W, lam, iterations, candidates=first.candidates)


def _has_many_rows(problem: MarginProblemBatch) -> bool:
    """Whether pivoting for the least Frobenius norm would take longer than the steps that its start saves."""
    return problem.m > _ROWS_PER_ENTRY * problem.shape[0] * problem.shape[1]


def _solve_many_rows(unit: UnitProblemBatch, request: Request) -> BatchResult:
    """A batch from the right-hand sides; problems that may be infeasible stay open, for one-by-one solves."""
    W, lam, steps = _compiled(unit, np.maximum(unit.c, 0.0), request.max_iterations or MAX_ITERATIONS)
    return BatchResult(W * unit.scale[..., None], lam * unit.inverse, steps)


def solve_nuclear_alone(unit: UnitProblem, norm: Norm, request: Request) -> MethodResult:
    """One problem as a batch of one, and what Newton's method makes of that, whichever proves more.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, solve
    >>> round(solve(MarginProblem([[2.0]], [[1.0]], [0]), "nuclear", "nuclear_batch").norm, 9)
    0.5
    """
    stacked = UnitProblem(MarginProblem.stack([unit.problem]))
    many = solve_nuclear_batch(stacked, norm, replace(request, warm_start=None))
    W, lam, steps = many.W[0], many.multipliers[0], int(many.iterations[0])
    if not (np.isfinite(lam).all() and np.isfinite(W).all()):
        return MethodResult(iterations=steps)
    found = MethodResult(W, lam, steps, certificate=certify(unit.problem, W, lam, norm))
    polished = polish_pair(unit.rows, W, lam)
    if polished is None:
        return found
    last = report(unit.rows, polished, steps, Extras(newton_steps=polished.steps))
    return min(found, last, key=proved)


def _misses_rows(unit: UnitProblemBatch, W: FloatArray) -> BoolArray:
    """Where a least-norm solution misses a row by more than rounding, shape (B,)."""
    problem = unit.problem
    missed = problem.missed(problem.margins(W) - problem.rhs) * unit.inverse
    size = np.sqrt(np.einsum("bij,bij->b", W, W))
    return np.asarray(missed.max(axis=-1) > 1e-12 * np.maximum(size, unit.scale[:, 0]))
