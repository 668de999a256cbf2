"""Least Frobenius norm of problems whose Gram matrix fits: pivoting, refinement, and a robust method for the rest.

With unit rows, Gram matrix G and right-hand side c, the multipliers solve the complementarity problem
``x >= 0, G x - c >= 0, x . (G x - c) = 0`` (x free and ``G x = c`` on equality rows). `pivoting` finds the active rows,
for one problem or a batch; dependent rows go to `least_distance`. What neither certifies for one problem (norms
of 1e6 and more, where float64's Gram matrices end) goes to `dual_steps`, which works on the rows themselves.
"""

from __future__ import annotations

import math

import numpy as np

from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.certificate import certify
from attsvm.solvers.farkas import certify_infeasible
from attsvm.solvers.frobenius.dual_steps import dual_active_set
from attsvm.solvers.frobenius.least_distance import least_distance
from attsvm.solvers.frobenius.pivoting import SmallResult, solve_active, solve_small
from attsvm.solvers.norms import Norm
from attsvm.solvers.request import Request
from attsvm.solvers.solution import Found
from attsvm.solvers.unit import UnitProblem

__all__ = ["exact_by_steps", "in_norm_form", "proved", "solve_active_set"]

# Certificates of well-posed problems are as good as rounding allows; anything above is worth refining.
_ROUNDING = 1e-13
_REFINEMENTS = 3
# Multipliers of unit rows beyond this come from nearly cancelling rows: a batch refines them before it certifies.
_STEEP = 1e3
# Numbers in the written-out rows of one problem, and of one problem of a batch, that least distances may take.
_DENSE_ENTRIES = 4_000_000
_STACK_ENTRIES = 100_000


def in_norm_form(unit: UnitProblem, x: FloatArray, W: FloatArray) -> tuple[FloatArray, FloatArray]:
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
        flat = W.ravel()
        square = float(flat.dot(flat))
        return W * unit.scale, x * (unit.inverse * (1.0 / math.sqrt(square) if square > 0 else 0.0))
    size = np.sqrt(np.einsum("bij,bij->b", W, W))[:, None]
    return W * unit.scale[..., None], x * unit.inverse / np.where(size > 0, size, np.inf)


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
    unit: UnitProblem, problems: IntArray, x: FloatArray, W: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """`_refined` for some problems of a batch at once; ``x`` and ``W`` are theirs."""
    part = UnitProblem(unit.problem.take(problems))
    active = (x != 0) | part.equality
    for _ in range(_REFINEMENTS):
        change, _ = solve_active(unit.gram[problems], np.where(active, part.c - part.margins(W), 0.0), active)
        x = x + change
        W = W + part.adjoint(change)
    return x, W


def exact_by_steps(unit: UnitProblem, active: BoolArray, steps: int, norm: Norm) -> Found:
    """The dual method on written-out rows, started from rows believed to be active.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, get_norm
    >>> from attsvm.solvers.frobenius.active_set import exact_by_steps
    >>> from attsvm.solvers.unit import UnitProblem
    >>> rows = UnitProblem(MarginProblem([[1.0], [4.0]], [[1.0]], [0, 0]))
    >>> exact_by_steps(rows, np.zeros(2, dtype=bool), 10, get_norm("frobenius")).W
    array([[1.]])
    """
    rows = unit.rows
    outcome = dual_active_set(rows, np.flatnonzero(active[rows.index]), steps)
    x = np.zeros(unit.m)
    x[rows.index] = outcome.multipliers
    if outcome.conflict:
        proof = certify_infeasible(unit.problem, x * unit.inverse)
        if proof is not None:
            return Found(farkas=proof, iterations=outcome.steps)
    W, lam = in_norm_form(unit, x, rows.lift(outcome.W) / unit.scale)
    return Found(W, lam, outcome.steps, certificate=certify(unit.problem, W, lam, norm))


def _by_distance(unit: UnitProblem, norm: Norm) -> Found | None:
    """One problem with dependent rows: the nearest point or a proof; None when it is left open."""
    rows = unit.rows
    features = (rows.a[:, :, None] * rows.b[:, None, :]).reshape(rows.m, -1)
    if features.size > _DENSE_ENTRIES:
        return None
    result = least_distance(features, rows.rhs, None if rows.inequalities_only else rows.equality)
    x = np.zeros(unit.m)
    x[rows.index] = result.x
    if result.ray:
        proof = certify_infeasible(unit.problem, x * unit.inverse)
        return None if proof is None else Found(farkas=proof, iterations=int(result.iterations))
    if not result.settled:
        return None
    return _certified(unit, norm, x, rows.lift(result.w.reshape(rows.shape)) / unit.scale, int(result.iterations))


def _certified(unit: UnitProblem, norm: Norm, x: FloatArray, W: FloatArray, iterations: int) -> Found:
    solution, lam = in_norm_form(unit, x, W)
    return Found(solution, lam, iterations, certificate=certify(unit.problem, solution, lam, norm))


def _better(one: Found | None, other: Found) -> Found:
    if one is None or other.farkas is not None:
        return other
    return other if proved(other) <= proved(one) else one


def proved(found: Found | None) -> float:
    """What the certificate of a result proves; infinite without one."""
    return np.inf if found is None or found.certificate is None else found.certificate.proved


def _pivot(unit: UnitProblem, request: Request) -> SmallResult:
    known = request.multipliers(unit.problem)
    start = None if known is None else known != 0
    equality = unit.equality if unit.has_equalities else None
    return solve_small(unit.gram, unit.c, equality, start, request.max_iterations)


def _solve_stack(unit: UnitProblem, request: Request) -> Found:
    """A batch: pivoting where the rows can be independent, least distances for the others that are small enough."""
    dx, dz = unit.problem.shape
    size, m = unit.c.shape
    x, W = np.zeros((size, m)), np.zeros((size, dx, dz))
    settled, iterations = np.zeros(size, dtype=bool), np.zeros(size, dtype=np.int64)
    if m <= dx * dz:
        found = _pivot(unit, request)
        x, settled, iterations = np.where(found.settled[:, None], found.x, 0.0), found.settled, found.iterations
        W = unit.adjoint(x)
        steep = np.flatnonzero(settled & (np.abs(x).max(axis=-1) > _STEEP))
        if len(steep):
            x[steep], W[steep] = _refined_stack(unit, steep, x[steep], W[steep])
    candidates = np.full((size, m), np.nan)
    left = np.flatnonzero(~settled)
    if len(left) and m * dx * dz <= _STACK_ENTRIES:
        rows = unit.problem.rows.gather(np.arange(m)) if len(left) == size else unit.problem.rows.take(left)
        features = rows.gather(np.arange(m)).features() * unit.inverse[left][..., None]
        result = least_distance(features, unit.c[left], unit.equality[left] if unit.has_equalities else None)
        x[left], W[left] = np.where(result.settled[:, None], result.x, 0.0), result.w.reshape(-1, dx, dz)
        settled[left], iterations[left] = result.settled, iterations[left] + result.iterations
        candidates[left] = np.where(result.ray[:, None], result.x * unit.inverse[left], np.nan)
    solution, lam = in_norm_form(unit, x, W)
    lam[~settled] = np.nan
    return Found(solution, lam, iterations, candidates=candidates)


def solve_active_set(unit: UnitProblem, norm: Norm, request: Request) -> Found:
    """Least Frobenius norm by active-set methods: exact, for up to a few thousand rows, one problem or a batch.

    ``max_iterations`` limits pivoting rounds (``50 + 2 m`` by default) and single-row steps (``100 + 10 m``).

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, solve
    >>> rows = MarginProblem([[2.0, 0.0], [0.0, 1.0]], [[1.0]], [0, 0])
    >>> solve(rows, solver="active_set").W
    array([[0.5],
           [1. ]])
    """
    if unit.problem.batch:
        return _solve_stack(unit, request)
    best: Found | None = None
    active, rounds = unit.equality, 0
    if unit.m <= unit.problem.shape[0] * min(unit.problem.shape[1], unit.problem.q):
        result = _pivot(unit, request)
        rounds = int(result.iterations)
        if result.settled:
            x, W = result.x, unit.adjoint(result.x)
            best, active = _certified(unit, norm, x, W, rounds), (x > 0) | unit.equality
            if best.certificate is not None and best.certificate.worst > _ROUNDING:
                best = _better(best, _certified(unit, norm, *_refined(unit, x, W), rounds))
            if proved(best) <= request.tolerance:
                return best
    if request.max_iterations is None:
        near = _by_distance(unit, norm)
        if near is not None:
            best = _better(best, near)
            if best.farkas is not None or proved(best) <= request.tolerance:
                return best
    steps = 100 + 10 * unit.m if request.max_iterations is None else request.max_iterations - rounds
    if steps <= 0 and best is not None:
        return best
    return _better(best, exact_by_steps(unit, active, max(steps, 1), norm))
