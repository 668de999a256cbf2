"""One squared slack per row: the smooth problem ``min |W|^2 / 2 + C sum_k (c_k - <F_k, W>)_+^2`` by Newton's method.

On the rows that are missed the objective is quadratic: a Newton step solves ``(I + 2 C F'F) D = -gradient`` there by
conjugate gradients, products with rows alone and no matrix of rows, and an exact line search follows. Steps end when
the missed rows no longer change. Multipliers are ``2 C`` times what is missed, so the certificate needs no second
solve.
"""

from __future__ import annotations

import numpy as np

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.frobenius.conflicts import exact_step
from attsvm.solvers.problem import MarginProblem
from attsvm.solvers.request import Request
from attsvm.solvers.solution import Found

__all__ = ["applies", "solve_squared_hinge"]

_STEPS, _PRODUCTS = 60, 500


def applies(problem: MarginProblem) -> bool:
    """Whether the problem has one squared slack per row."""
    penalty = problem.penalty
    return penalty is not None and not problem.batch and (penalty.slack, penalty.loss) == ("row", "squared_hinge")


def _direction(
    problem: MarginProblem, taken: FloatArray, price: float, residual: FloatArray, goal: float
) -> FloatArray:
    """Conjugate gradients on ``(I + price F' diag(taken) F) D = residual``."""
    D = np.zeros_like(residual)
    p = residual.copy()
    square = float(np.vdot(residual, residual))
    end = goal * goal * square
    for _ in range(_PRODUCTS):
        if square <= end:
            break
        image = p + price * problem.adjoint(taken * problem.margins(p))
        step = square / float(np.vdot(p, image))
        D += step * p
        residual = residual - step * image
        following = float(np.vdot(residual, residual))
        p = residual + (following / square) * p
        square = following
    return D


def solve_squared_hinge(problem: MarginProblem, request: Request) -> Found:
    """W and multipliers of a soft margin with one squared slack per row.

    Examples
    --------
    ``min W^2 / 2 + C (1 - W)_+^2`` has W = 2 C / (1 + 2 C):

    >>> from attsvm.solvers import MarginProblem, solve
    >>> rows = MarginProblem([[1.0]], [[1.0]], [0]).soft(0.5, slack="row", loss="squared_hinge")
    >>> round(solve(rows, solver="working_set").W.item(), 9)
    0.5
    """
    assert problem.penalty is not None
    price = 2.0 * problem.penalty.C
    start = request.multipliers(problem)
    W = np.zeros(problem.shape) if start is None else problem.adjoint(start)
    values = problem.margins(W)
    before, steps = None, 0
    while steps < min(_STEPS, request.max_iterations or _STEPS):
        steps += 1
        short = problem.rhs - values
        taken = problem.equality | (short > 0)
        residual = price * problem.adjoint(np.where(taken, short, 0.0)) - W  # minus the gradient
        size = float(np.linalg.norm(residual))
        if size <= 1e-14 * max(float(np.linalg.norm(W)), 1e-300):
            break
        settled = before is not None and bool(np.array_equal(before, taken))
        D = _direction(problem, taken.astype(np.float64), price, residual, 1e-12 if settled else 1e-3)
        change = problem.margins(D)
        slope, curvature = float(np.vdot(W, D)) / price, float(np.vdot(D, D)) / price
        step = exact_step(short, change, problem.equality, slope, curvature)
        if not step > 0:
            break
        W, values, before = W + step * D, values + step * change, taken
        if settled and abs(step - 1.0) < 1e-6:
            short = problem.rhs - problem.margins(W)
            if np.array_equal(problem.equality | (short > 0), taken):
                break
    short = problem.rhs - problem.margins(W)
    multipliers = price * np.where(problem.equality | (short > 0), short, 0.0)
    return Found(problem.adjoint(multipliers), multipliers, steps)
