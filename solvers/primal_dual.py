"""The compiled interior point methods (`attsvm.solvers.compiled`): every norm, hard and soft, one problem or a batch.

A soft margin is strictly feasible on both sides, so its method starts from the rows alone. A hard margin of rows that
all have the right-hand side 1 starts from equal multipliers. Where that proves nothing, for other right-hand sides and
for batches, the solution of least Frobenius norm comes first: it finds the proofs of infeasibility and a start strictly
inside. Problems of a batch are shared between the cores.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attsvm.solvers.arrays import Axis, BoolArray, FloatArray, IntArray
from attsvm.solvers.certify.certify_pair import certify
from attsvm.solvers.compiled.kernels import GroupPenalty, Sense, minimize
from attsvm.solvers.correction import least_change
from attsvm.solvers.frobenius.active_set import proved, solve_active_set, solve_active_sets
from attsvm.solvers.frobenius.conflicts import find_farkas
from attsvm.solvers.margin_problem import EitherProblem, MarginProblem
from attsvm.solvers.margin_solution import BatchResult, MethodResult, Request
from attsvm.solvers.norms import Norm, get_norm
from attsvm.solvers.unit import UnitProblem, UnitProblemBatch

__all__ = ["solve_primal_dual", "solve_primal_duals"]

MAX_ITERATIONS = 80
# Share of the tolerance at which the method ends, and less where steps cost little.
_GOAL, _CHEAP_GOAL = 1e-2, 1e-3
# Violations up to this are closed by a last step, and so many of these steps.
_SMALL_SLACK, _LAST_STEPS = 1e-6, 3
# Violations up to this are what a method may leave; larger ones are those of a problem that it did not solve.
_CORRECTED = 1e-3
# Rounding stops the gap of a nuclear or Frobenius problem about here.
_LEAST_GOAL = 2e-11


def _sense(unit: UnitProblem[Axis]) -> Sense:
    sense = np.ones(unit.c.shape, dtype=np.int8)
    if unit.has_equalities:
        sense[unit.equality] = 0
    if unit.has_zero_rows:
        sense[unit.inverse == 0] = -1
    return sense


def _run(
    unit: UnitProblem[Axis], norm: Norm, first: FloatArray, request: Request
) -> tuple[FloatArray, FloatArray, IntArray]:
    """W, multipliers and steps in the coordinates of the problem, from those of the least Frobenius norm."""
    a, b, left, right = unit.factors(reduced=norm.unitarily_invariant)
    goal = (_GOAL if norm.unitarily_invariant else _CHEAP_GOAL) * request.tolerance
    most = request.max_iterations or MAX_ITERATIONS
    W, lam, steps = minimize(norm, a, b, unit.c, _sense(unit), first, most, goal)
    return _lifted(W, left, right, unit), unit.restore_multipliers(unit.problem.clipped(lam)), steps


def _lifted(W: FloatArray, left: FloatArray | None, right: FloatArray | None, unit: UnitProblem[Axis]) -> FloatArray:
    """W of the unit rows in the coordinates and the scale of the problem."""
    W = W if left is None else left @ W
    W = W if right is None else W @ right.mT
    return np.asarray(W * unit.scale[..., None])


def solve_primal_dual(unit: UnitProblem, norm: Norm, request: Request) -> MethodResult:
    """Least norm, hard or soft, by a compiled interior point method; ``max_iterations`` are steps, 80 by default.

    Hard margins: spectral, l_1, l_inf and l_p norms. Soft margins: these, Frobenius and nuclear.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, solve
    >>> problem = MarginProblem(np.eye(2), np.eye(2), [0, 1])
    >>> [round(solve(problem, norm, "primal_dual").norm, 6) for norm in ("spectral", "l1", "linf", "l3")]
    [1.0, 2.0, 1.0, 1.259921]
    >>> solve(problem.soft(C=0.5), solver="primal_dual").W.round(6).tolist()
    [[0.5, 0.0], [0.0, 0.5]]
    """
    problem = unit.problem
    if problem.penalty is not None:
        return _solve_soft(unit, norm, request)
    if problem.is_plain:  # equal multipliers are as good a start as any, and nearly always enough
        found = _from(unit, norm, np.ones(unit.m), request)
        if request.max_iterations is not None or proved(found) <= request.tolerance:
            return found
    first = solve_active_set(unit, get_norm("frobenius"), Request(request.tolerance))
    if first.farkas is not None:
        return first
    if first.multipliers is None or first.W is None or not first.W.any():
        proof = find_farkas(problem)
        return MethodResult(farkas=proof)
    return _from(unit, norm, _unit_multipliers(unit, first.multipliers), request)


def _from(unit: UnitProblem, norm: Norm, first: FloatArray, request: Request) -> MethodResult:
    """One problem from multipliers of unit rows, with its certificate if the result is finite."""
    W, lam, steps = _run(unit, norm, first, request)
    if not (np.isfinite(W).all() and np.isfinite(lam).all()):
        return MethodResult(iterations=int(steps))
    return _certified(unit.problem, norm, W, lam, int(steps), request.tolerance)


def _unit_multipliers(unit: UnitProblem[Axis], multipliers: FloatArray) -> FloatArray:
    """Inverse of `UnitProblem.restore_multipliers`."""
    return np.asarray(unit.problem.clipped(multipliers) / np.where(unit.inverse > 0, unit.inverse, 1.0))


def _certified(
    problem: MarginProblem, norm: Norm, W: FloatArray, lam: FloatArray, steps: int, tolerance: float
) -> MethodResult:
    """One result with its certificate, and with the rows met that it misses by more than rounding."""
    certificate = certify(problem, W, lam, norm)
    found = MethodResult(W, lam, steps, certificate=certificate)
    if certificate.primal_violation <= certificate.primal_error or certificate.primal_violation > _CORRECTED:
        return found
    met = least_change(problem, W)
    other = certify(problem, met, lam, norm)
    return replace(found, W=met, certificate=other) if other.proved <= max(tolerance, certificate.proved) else found


def solve_primal_duals(unit: UnitProblemBatch, norm: Norm, request: Request) -> BatchResult:
    """`solve_primal_dual` for a batch; problems without a least Frobenius norm are left to one-by-one solves.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, solve
    >>> batch = MarginProblem(np.array([[[2.0]], [[4.0]]]), np.ones((2, 1, 1)), [0])
    >>> solve(batch, "l1", "primal_dual").W.ravel().round(6).tolist()
    [0.5, 0.25]
    """
    if unit.problem.penalty is not None:
        return _solve_soft_batch(unit, norm, request)
    first = solve_active_sets(unit, get_norm("frobenius"), Request(request.tolerance))
    W, lam, steps = first.W, first.multipliers, first.iterations.copy()
    usable = _usable(W, lam)
    ready = np.flatnonzero(usable & np.where(usable[:, None, None], W, 0.0).any(axis=(-2, -1)))
    if len(ready):
        some = unit if len(ready) == len(W) else UnitProblem(unit.problem.take(ready))
        start = _unit_multipliers(some, lam[ready])
        W[ready], lam[ready], steps[ready] = _run(some, norm, start, request)
    return BatchResult(W, lam, steps, first.candidates)


def _usable(W: FloatArray, lam: FloatArray) -> BoolArray:
    """Where a result is finite, shape (*batch,)."""
    return np.asarray(np.isfinite(W).all(axis=(-2, -1)) & np.isfinite(lam).all(axis=-1))


# -- soft margins -------------------------------------------------------------------------------------


def _solve_soft(unit: UnitProblem, norm: Norm, request: Request) -> MethodResult:
    """A soft margin of one problem, in any norm."""
    problem = unit.problem
    W, lam, steps = _run_soft(unit, norm, request)
    if not _usable(W, lam):
        return MethodResult(iterations=int(steps))
    if norm.name != "frobenius" and W.any():
        W = _zero_where_optimal(problem, norm, W, lam, request.tolerance)
    found = MethodResult(W, lam, int(steps), certificate=certify(problem, W, lam, norm))
    for _ in range(_LAST_STEPS):
        if proved(found) <= request.tolerance:
            break
        found = _small_slacks_closed(problem, norm, found)
    return found


def _solve_soft_batch(unit: UnitProblemBatch, norm: Norm, request: Request) -> BatchResult:
    """Soft margins of a batch, in any norm."""
    W, lam, steps = _run_soft(unit, norm, request)
    usable = _usable(W, lam)
    if norm.name != "frobenius" and W.any():
        W = np.where(usable[..., None, None], W, 0.0)
        W = _zero_where_optimal(unit.problem, norm, W, lam, request.tolerance)
    W[~usable] = np.nan
    return BatchResult(W, lam, steps)


def _small_slacks_closed(problem: MarginProblem, norm: Norm, found: MethodResult) -> MethodResult:
    """The result with violations of the size of rounding removed, if that proves more: a large C multiplies them."""
    assert problem.penalty is not None and found.W is not None and found.multipliers is not None
    violation = problem.missed(problem.margins(found.W) - problem.rhs) / problem.allowance
    slack = problem.penalty.slacks(violation, problem.owner, problem.q)
    small = np.flatnonzero((violation > 0.0) & (problem.penalty.of_rows(slack, problem.owner) <= _SMALL_SLACK))
    if not len(small):
        return found
    W = least_change(problem.soft(None).gather(small), found.W)
    certificate = certify(problem, W, found.multipliers, norm)
    return replace(found, W=W, certificate=certificate) if certificate.proved < proved(found) else found


def _zero_where_optimal(
    problem: EitherProblem, norm: Norm, W: FloatArray, lam: FloatArray, tolerance: float
) -> FloatArray:
    """W, and 0 where the multipliers prove that: a norm has a kink at 0, where small penalties end exactly."""
    penalty = problem.penalty
    assert penalty is not None
    slacks = penalty.costs(penalty.slacks(problem.missed(-problem.rhs), problem.owner, problem.q))
    if not np.any(np.asarray(norm.values(W)) <= np.sqrt(tolerance) * slacks):
        return W
    zero = np.asarray(certify(problem, np.zeros_like(W), np.nan_to_num(lam), norm).proved) <= tolerance
    return np.where(zero[..., None, None], 0.0, W)


def _run_soft(unit: UnitProblem[Axis], norm: Norm, request: Request) -> tuple[FloatArray, FloatArray, IntArray]:
    """W, multipliers and steps in the coordinates of the problem.

    With W = scale V, unit rows u_k = row_k / |row_k| and slacks xi = scale eta, row k reads ``<u_k, V> + eta / |row_k|
    >= c_k``: the weight of the slack is 1 / |row_k|. A row that is zero keeps its slack, with weight 1.
    """
    problem, penalty = unit.problem, unit.problem.penalty
    assert penalty is not None
    # The Frobenius norm needs the rows alone: bases of their spans take longer to find than they save, unless small.
    narrow = 2 * problem.q <= problem.shape[1] or 2 * unit.m <= problem.shape[0]
    a, b, left, right = unit.factors(reduced=norm.unitarily_invariant and (narrow or norm.name != "frobenius"))
    m, exists = unit.m, np.ones(unit.c.shape, dtype=bool) if problem.valid is None else problem.valid
    weight = np.where(exists & (unit.inverse == 0), 1.0, unit.inverse)
    c = problem.rhs * weight / unit.scale
    equal = np.flatnonzero(problem.equality.reshape(-1, m).any(axis=0)) if unit.has_equalities else np.zeros(0, np.intp)
    if len(equal):  # an equality row is violated on either side: two inequalities
        opposite = exists[..., equal] & problem.equality[..., equal]
        a = np.concatenate([a, -a[..., equal, :]], axis=-2)
        b = np.concatenate([b, b[..., equal, :]], axis=-2)
        c, weight = np.concatenate([c, -c[..., equal]], axis=-1), np.concatenate([weight, weight[..., equal]], axis=-1)
        exists = np.concatenate([exists, opposite], axis=-1)
    weight = np.where(exists, weight, 0.0)
    sense = np.where(exists, 1, -1).astype(np.int8)
    if norm.name == "nuclear":  # there a row that does not exist has a right-hand side below 0
        sense, c = np.ones_like(sense), np.where(exists, c, -1.0)
    goal = max((_GOAL if norm.unitarily_invariant else _CHEAP_GOAL) * request.tolerance, _LEAST_GOAL)
    W, lam, steps = minimize(
        norm, a, b, c, sense, _soft_start(unit, norm, c, weight, request), request.max_iterations or MAX_ITERATIONS,
        goal, None, _group_penalty(unit, norm, weight, equal),
    )  # fmt: skip
    lam = np.where(exists, lam, 0.0) * weight
    total = lam[..., :m].copy()
    total[..., equal] -= lam[..., m:]
    if norm.name == "frobenius":  # W is W(lam), not a unit vector in its direction
        total *= unit.scale
    return _lifted(W, left, right, unit), total, steps


def _soft_start(unit: UnitProblem[Axis], norm: Norm, c: FloatArray, weight: FloatArray, request: Request) -> FloatArray:
    """Multipliers whose combination is roughly in the direction of W: known ones, or the rows' right-hand sides."""
    known = request.multipliers(unit.problem)
    plain = np.maximum(c, 0.0) * (weight > 0)
    if known is None or known.ndim > 1 or c.shape[-1] != unit.m:
        return plain
    known = known / np.where(weight > 0, weight, 1.0)
    return known if float(c @ known) > 0 else plain


def _group_penalty(unit: UnitProblem[Axis], norm: Norm, weight: FloatArray, equal: IntArray) -> GroupPenalty:
    """The penalty in the coordinates of unit rows; rows of ``equal`` stand twice."""
    problem, penalty = unit.problem, unit.problem.penalty
    assert penalty is not None
    shape = weight.shape
    owner = problem.owner if penalty.slack == "query" else np.arange(unit.m)
    owner = np.concatenate([owner, owner[..., equal]], axis=-1)
    group = np.ascontiguousarray(np.broadcast_to(owner, shape), dtype=np.intc)
    scale = unit.scale[..., 0].reshape(-1)
    if norm.name == "frobenius":
        C = penalty.C / scale if penalty.loss == "hinge" else np.full(scale.shape, penalty.C)
    else:
        C = np.full(scale.shape, penalty.C) if penalty.loss == "hinge" else penalty.C * scale
    return GroupPenalty(penalty.loss, problem.q if penalty.slack == "query" else unit.m, group, weight, C)
