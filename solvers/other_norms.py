"""Least spectral, l_1, l_inf and l_p norms by the compiled interior point methods (`attsvm.solvers.compiled`).

One problem of rows that all ask for 1 starts from rows alike. Where that proves nothing, for other problems and for
batches, the solution of least Frobenius norm comes first: it finds the proofs of infeasibility, and starts the method
strictly inside. Problems of a batch are shared between the cores.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.certify.entry import certify
from attsvm.solvers.compiled.kernels import Sense, minimize
from attsvm.solvers.correction import least_change
from attsvm.solvers.frobenius.active_set import proved, solve_active_set
from attsvm.solvers.norms import Norm, get_norm
from attsvm.solvers.problem import MarginProblem
from attsvm.solvers.request import Request
from attsvm.solvers.solution import Found
from attsvm.solvers.unit import UnitProblem

__all__ = ["solve_primal_dual"]

MAX_ITERATIONS = 80
# Share of the tolerance at which the method ends, and less where steps cost little.
_GOAL, _CHEAP_GOAL = 1e-2, 1e-3


def _sense(unit: UnitProblem) -> Sense:
    sense = np.ones(unit.c.shape, dtype=np.int8)
    if unit.has_equalities:
        sense[unit.equality] = 0
    if unit.has_zero_rows:
        sense[unit.inverse == 0] = -1
    return sense


def _run(unit: UnitProblem, norm: Norm, first: FloatArray, request: Request) -> tuple[FloatArray, FloatArray, IntArray]:
    """W, multipliers and steps in the coordinates of the problem, from those of the least Frobenius norm."""
    a, b, left, right = unit.factors(reduced=norm.unitarily_invariant)
    goal = (_GOAL if norm.unitarily_invariant else _CHEAP_GOAL) * request.tolerance
    most = request.max_iterations or MAX_ITERATIONS
    W, lam, steps = minimize(norm, a, b, unit.c, _sense(unit), first, most, goal)
    W = W if left is None else left @ W
    W = W if right is None else W @ right.mT
    return np.asarray(W * unit.scale[..., None]), unit.restore_multipliers(unit.problem.clipped(lam)), steps


def solve_primal_dual(unit: UnitProblem, norm: Norm, request: Request) -> Found:
    """Least spectral, l_1, l_inf or l_p norm; ``max_iterations`` are steps, 80 by default.

    Where the method ends without a certificate, one problem is given to the reference (`solve_cvxpy`) as well.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, solve
    >>> problem = MarginProblem(np.eye(2), np.eye(2), [0, 1])
    >>> [round(solve(problem, norm, "primal_dual").norm, 6) for norm in ("spectral", "l1", "linf", "l3")]
    [1.0, 2.0, 1.0, 1.259921]
    """
    problem, vectors = unit.problem, norm.unitarily_invariant and min(unit.problem.shape) == 1
    if problem.batch:
        return _solve_batch(unit, norm, request)
    if problem.is_plain and not vectors:  # rows alike are as good a start as any, and nearly always enough
        found = _from(unit, norm, np.ones(unit.m), request)
        if request.max_iterations is not None or proved(found) <= request.tolerance:
            return found
    first = solve_active_set(unit, get_norm("frobenius"), Request(request.tolerance))
    if first.farkas is not None or vectors:
        return replace(first, certificate=None)  # on vectors the norms of singular values are one
    found = Found()
    if first.multipliers is not None and first.W is not None and first.W.any():
        found = _from(unit, norm, _unit_multipliers(unit, first.multipliers), request)
    if request.max_iterations is None and proved(found) > request.tolerance:
        return _or_reference(unit, norm, request, found)
    return found


def _from(unit: UnitProblem, norm: Norm, first: FloatArray, request: Request) -> Found:
    """One problem from multipliers of unit rows, with its certificate if the result is finite."""
    W, lam, steps = _run(unit, norm, first, request)
    if not (np.isfinite(W).all() and np.isfinite(lam).all()):
        return Found(iterations=int(steps))
    return _certified(unit.problem, norm, W, lam, int(steps), request.tolerance)


def _unit_multipliers(unit: UnitProblem, multipliers: FloatArray) -> FloatArray:
    """Inverse of `UnitProblem.restore_multipliers`."""
    return np.asarray(unit.problem.clipped(multipliers) / np.where(unit.inverse > 0, unit.inverse, 1.0))


def _certified(
    problem: MarginProblem, norm: Norm, W: FloatArray, lam: FloatArray, steps: int, tolerance: float
) -> Found:
    """One result with its certificate, and with the rows met that it misses by more than rounding."""
    certificate = certify(problem, W, lam, norm)
    found = Found(W, lam, steps, certificate=certificate)
    if certificate.primal_violation <= certificate.primal_error:
        return found
    met = least_change(problem, W)
    other = certify(problem, met, lam, norm)
    return replace(found, W=met, certificate=other) if other.proved <= max(tolerance, certificate.proved) else found


def _or_reference(unit: UnitProblem, norm: Norm, request: Request, found: Found) -> Found:
    """What the reference finds, where it proves more."""
    from attsvm.solvers.reference import solve_cvxpy

    other = solve_cvxpy(unit, norm, replace(request, options={})).answered("cvxpy")
    if other.farkas is not None or found.certificate is None:
        return replace(other, iterations=other.iterations + found.iterations)
    if other.certificate is None or other.certificate.proved >= found.certificate.proved:
        return found
    return replace(other, iterations=other.iterations + found.iterations)


def _solve_batch(unit: UnitProblem, norm: Norm, request: Request) -> Found:
    """A batch; problems without a solution of least Frobenius norm are left to one-by-one solves."""
    first = solve_active_set(unit, get_norm("frobenius"), Request(request.tolerance))
    W, lam = first.W, first.multipliers
    steps: IntArray = np.array(first.iterations)
    assert W is not None and lam is not None
    usable: BoolArray = np.asarray(np.isfinite(lam).all(axis=-1) & np.isfinite(W).all(axis=(-2, -1)))
    ready = np.flatnonzero(usable & np.where(usable[:, None, None], W, 0.0).any(axis=(-2, -1)))
    if len(ready):
        some = unit if len(ready) == len(W) else UnitProblem(unit.problem.take(ready))
        start = _unit_multipliers(some, lam[ready])
        W[ready], lam[ready], steps[ready] = _run(some, norm, start, request)
    return Found(W, lam, steps, candidates=first.candidates)
