"""Problems of many rows by a growing set of them: each round solves the rows of the set, then looks at all.

A row outside the set matters only where W violates it by more than the slack that its query has already. The rows of
least margin of every query come first, as the least Frobenius norm sees them; after each round the most violated rows
of each query join, and rows far from active leave. What the last round proves about its rows is certified on all: a
multiplier of 0 is admissible everywhere. Rows that contradict each other do so whatever else there is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.certify.certify_pair import certify
from attsvm.solvers.certify.farkas import certify_infeasible
from attsvm.solvers.deadline import late
from attsvm.solvers.margin_problem import MarginProblem
from attsvm.solvers.margin_solution import Extras, MethodResult, Request
from attsvm.solvers.norms import Norm
from attsvm.solvers.nuclear.interior import solve_interior
from attsvm.solvers.primal_dual import solve_primal_dual
from attsvm.solvers.unit import UnitProblem

__all__ = ["solve_growing_rows"]

# Rows of each query to begin with, rows of each query that may join after a round at least (or as many as it has on
# average: the set may double), and rounds.
_FIRST, _JOIN, _ROUNDS = 3, 2, 40
# Accuracy of the first round, and by how much it improves from round to round: which rows are violated shows early.
_ROUGH, _SHARPER = 1e-3, 0.1
# Rows that hold by less than this share of the largest violation join too: W moves by about as much.
_NEAR = 0.2
# Rows of the set that may be solved at once: more would take minutes a round.
_MOST = 3000
# Share of all rows beyond which the set becomes all of them.
_SHARE = 0.5
# Share of the tolerance by which a row must be violated to join.
_VIOLATED = 0.1
# A row whose margin exceeds its right-hand side by more than this multiple of the largest one leaves, if its multiplier
# is nothing beside the largest.
_FAR, _SMALL = 1.0, 1e-7


def _best_of_each(values: FloatArray, owner: IntArray, count: int) -> IntArray:
    """Indices of the rows with the least values of each query, at most ``count`` per query, sorted."""
    order = np.lexsort((values, owner))
    begin = np.searchsorted(owner[order], np.arange(int(owner.max(initial=0)) + 1))
    place = np.arange(len(order)) - begin[owner[order]]
    return np.sort(order[place < count])


def _violations(problem: MarginProblem, W: FloatArray, rows: IntArray) -> FloatArray:
    """By how much W violates each row beyond the slack that its query, or the row itself in the set, has; (m,)."""
    short = problem.rhs - problem.margins(W)
    beyond = np.where(problem.equality, np.abs(short), short)
    penalty = problem.penalty
    if penalty is None:
        return np.asarray(beyond)
    if penalty.slack == "row":
        inside = np.zeros(problem.m, dtype=bool)
        inside[rows] = True
        return np.where(inside, 0.0, beyond)
    slack = np.zeros(problem.q)
    np.maximum.at(slack, problem.owner[rows], np.maximum(beyond[rows], 0.0))
    return np.asarray(beyond - slack[problem.owner])


class _Growing:
    """The set of rows, and the best pair so far."""

    def __init__(self, problem: MarginProblem, norm: Norm, request: Request) -> None:
        self.problem, self.norm, self.request = problem, norm, request
        start = problem.clipped(problem.rhs) / np.where(problem.row_norms > 0, problem.row_norms, np.inf)
        values = (problem.margins(problem.adjoint(start)) - problem.rhs) / np.maximum(problem.row_norms, 1e-300)
        first = _best_of_each(values, problem.owner, _FIRST)
        self.rows = np.union1d(first, np.flatnonzero(problem.equality))
        hard_nuclear = norm.name == "nuclear" and problem.penalty is None
        self.inner: Callable[[UnitProblem, Norm, Request], MethodResult] = (
            solve_interior if hard_nuclear else solve_primal_dual
        )
        self.best = MethodResult()
        self.steps = 0
        self.accuracy = 0.1 * request.tolerance
        if len(self.rows) < problem.m:
            self.accuracy = max(_ROUGH, self.accuracy)

    def solve_rows(self) -> MethodResult:
        """Solve the rows of the set."""
        part = UnitProblem(self.problem.gather(self.rows))
        found = self.inner(part, self.norm, Request(self.accuracy))
        self.steps += int(found.iterations)
        return found

    def widened(self, lam: FloatArray) -> FloatArray:
        """Multipliers of all rows from those of the set."""
        whole = np.zeros(self.problem.m)
        whole[self.rows] = lam
        return whole

    def offer(self, W: FloatArray, lam: FloatArray) -> None:
        """Keep the pair if it proves more than the best one."""
        certificate = certify(self.problem, W, lam, self.norm)
        known = self.best.certificate
        if known is None or certificate.proved < known.proved:
            extras = Extras(working_rows=len(self.rows))
            self.best = MethodResult(W, lam, self.steps, certificate=certificate, extras=extras)

    def grow(self, W: FloatArray, lam: FloatArray, beyond: FloatArray) -> bool:
        """Change the set, or solve it more accurately; False where no row is violated by an accurate solution."""
        problem, side = self.problem, max(float(np.abs(self.problem.rhs).max()), 1e-300)
        final = 0.1 * self.request.tolerance
        outside: BoolArray = np.ones(problem.m, dtype=bool)
        outside[self.rows] = False
        worst = float(beyond[outside].max(initial=-np.inf))
        if not worst > _VIOLATED * max(self.request.tolerance, self.accuracy) * side:
            rough, self.accuracy = self.accuracy > final, final
            return rough
        joins = outside & (beyond > -_NEAR * worst)
        self.accuracy = max(_SHARPER * self.accuracy, final)
        candidates = np.flatnonzero(joins)
        most = max(_JOIN, len(self.rows) // problem.q)
        new = candidates[_best_of_each(-beyond[candidates], problem.owner[candidates], most)]
        idle = np.abs(lam) <= _SMALL * max(float(np.abs(lam).max()), 1e-300)
        far = beyond < -_FAR * side
        kept = self.rows[~(idle & far & ~problem.equality)[self.rows]]
        self.rows = np.union1d(kept, new)
        if len(self.rows) > _SHARE * problem.m and problem.m <= _MOST:  # one round more instead of several
            self.rows, self.accuracy = np.arange(problem.m), final
        return len(self.rows) <= _MOST


def solve_growing_rows(unit: UnitProblem, norm: Norm, request: Request) -> MethodResult:
    """Least norm, hard or soft, of many rows; ``max_iterations`` are rounds, 40 by default.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, solve
    >>> rng = np.random.default_rng(0)
    >>> a, queries, owner = rng.normal(size=(400, 3)), rng.normal(size=(20, 4)), np.repeat(np.arange(20), 20)
    >>> rows = MarginProblem(a, queries, owner).soft(1.0)
    >>> many, all_at_once = (solve(rows, "spectral", solver) for solver in ("growing_rows", "primal_dual"))
    >>> bool(abs(many.certificate.soft_objective / all_at_once.certificate.soft_objective - 1) < 1e-6), many.solver
    (True, 'growing_rows')
    """
    state = _Growing(unit.problem, norm, request)
    for _ in range(request.max_iterations or _ROUNDS):
        found = state.solve_rows()
        if found.farkas is not None and found.farkas.farkas is not None:
            proof = certify_infeasible(unit.problem, state.widened(found.farkas.farkas.multipliers))
            return replace(MethodResult(farkas=proof, iterations=state.steps)) if proof is not None else state.best
        if found.W is None or found.multipliers is None:
            break
        lam = state.widened(found.multipliers)
        beyond = _violations(unit.problem, found.W, state.rows)
        state.offer(found.W, lam)
        certificate = state.best.certificate
        if certificate is not None and certificate.proved <= 0.1 * request.tolerance:
            break
        if late() or not state.grow(found.W, lam, beyond):
            break
    return replace(state.best, iterations=state.steps)
