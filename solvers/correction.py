"""Rows that a method left missed by its tolerance, met by a last small step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.solvers.certify.certify_pair import certify, error_bounds, frobenius_of
from attsvm.solvers.certify.rounding import UNIT_ROUNDOFF
from attsvm.solvers.margin_problem import MarginProblem
from attsvm.solvers.margin_solution import MarginSolution, MethodResult
from attsvm.solvers.norms import Norm

__all__ = ["least_change", "lengthened", "with_rows_met"]

# Rows within this of their right-hand side take part; more of them than that are left as they are.
_NEAR, _MOST_ROWS = 1e-5, 2000
_ROUNDS = 3


def least_change(problem: MarginProblem, W: FloatArray) -> FloatArray:
    """W of one problem after the least change (in the Frobenius norm) that puts the rows right which it misses.

    W itself when it misses none, or too many.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.correction import least_change
    >>> least_change(MarginProblem(np.eye(2), [[1.0]], [0, 0]), np.array([[0.75], [2.0]]))
    array([[1.],
           [2.]])
    """
    slack = problem.margins(W) - problem.rhs
    rows = np.flatnonzero((problem.equality | (slack < 0)) & (problem.row_norms > 0))
    return _moved(problem, W, slack, rows) if 0 < len(rows) <= _MOST_ROWS else W


def _moved(problem: MarginProblem, W: FloatArray, slack: FloatArray, rows: IntArray) -> FloatArray:
    """W plus the least combination of these rows that takes their slack away, or leaves least of it in squares."""
    part = problem.gather(rows)
    norms = part.row_norms
    missing = -slack[rows] / norms
    if len(rows) > W.size:  # the rows themselves are smaller than their Gram matrix
        return W + np.linalg.lstsq(part.features() / norms[:, None], missing, rcond=1e-13)[0].reshape(W.shape)
    gram = part.gram() / norms[:, None] / norms
    return W + part.adjoint(np.linalg.lstsq(gram, missing, rcond=1e-13)[0] / norms)


def lengthened(problem: MarginProblem, W: FloatArray, multipliers: FloatArray, norm: Norm) -> MethodResult | None:
    """W of a soft margin made so much longer that rows with no slack but rounding have none for sure; None if not so.

    A large C multiplies the errors of the rows that hold with equality; a longer W costs little beside that.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, get_norm
    >>> from attsvm.solvers.correction import lengthened
    >>> row = MarginProblem([[3.0]], [[1.0]], [0]).soft(C=1e6)
    >>> found = lengthened(row, np.array([[1.0 / 3.0]]), np.array([1.0 / 9.0]), get_norm("frobenius"))
    >>> bool(found.certificate.proved < 1e-12)
    True
    """
    sides, margins = problem.rhs, problem.margins(W)
    error = error_bounds(problem.shape, norm).margin * frobenius_of(W) * problem.rows.error_norms
    error = error + 4.0 * UNIT_ROUNDOFF * (1.0 + np.abs(sides))
    if problem.prior is not None:
        error = error + problem.prior.error
    near = (np.abs(margins - sides) <= _NEAR * problem.allowance) & (sides > 0.0) & ~problem.equality
    if not near.any():
        return None
    more = float(((sides + 2.0 * error - margins)[near] / sides[near]).max())
    if not 0.0 < more <= _NEAR:
        return None
    longer = W * (1.0 + more)
    certificate = certify(problem, longer, multipliers, norm)
    return MethodResult(longer, multipliers, certificate=certificate)


def with_rows_met(solution: MarginSolution, goal: float = 1e-12) -> MarginSolution:
    """The solution with the least change of W (in the Frobenius norm) that meets its missed rows, certified again.

    The solution itself when every row is met to the goal, when its margin is soft, or when the change proves less.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, solve
    >>> from attsvm.solvers.correction import with_rows_met
    >>> rng = np.random.default_rng(0)
    >>> problem = MarginProblem(rng.normal(size=(12, 5)), rng.normal(size=(4, 5)), np.repeat(np.arange(4), 3))
    >>> rough = solve(problem, "nuclear", tolerance=1e-4)
    >>> met = with_rows_met(rough)
    >>> met.certificate.primal_violation <= max(1e-12, rough.certificate.primal_violation)
    True
    """
    problem = solution.problem
    if problem.batch or problem.penalty is not None or not solution.status.has_solution:
        return solution
    W = solution.W
    for _ in range(_ROUNDS):
        slack = problem.margins(W) - problem.rhs
        if float((problem.missed(slack) / problem.allowance).max()) <= goal:
            break
        index = np.flatnonzero((problem.equality | (slack < _NEAR * problem.allowance)) & (problem.row_norms > 0))
        if not 0 < len(index) <= _MOST_ROWS:
            return solution
        W = _moved(problem, W, slack, index)
    if W is solution.W:
        return solution
    certificate = certify(problem, W, solution.multipliers, solution.norm_kind)
    better = certificate.primal_violation < solution.certificate.primal_violation
    if not better or certificate.proved > max(solution.tolerance, solution.certificate.proved):
        return solution
    return replace(solution, certificate=certificate, _W=W)
