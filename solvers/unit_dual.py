"""The dual of the least Frobenius norm for unit rows, evaluated with one look at all rows.

``max c . x - |W(x)|^2 / 2`` over ``x >= 0`` (free on equality rows), where the rows are divided by their norms
and c by its largest entry, see `attsvm.solvers.active_set.Scaling`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.solvers.active_set import Scaling
from attsvm.solvers.margin import BoolArray, FloatArray, IntArray, MarginProblem

__all__ = ["DualPoint", "UnitDual"]


@dataclass
class DualPoint:
    """Multipliers of unit rows with everything that follows from them.

    Attributes
    ----------
    x : ndarray, shape (m,)
    W : ndarray, shape (dx, dz)
        ``W(x)``, to be multiplied by the scaling's ``scale`` to solve the problem as given.
    slack : ndarray, shape (m,)
        Minus the gradient: ``F W - c``.
    objective : float
    error : float
        The larger of the relative gap and the primal violation, measured as certificates do.
    """

    x: FloatArray
    W: FloatArray
    slack: FloatArray
    objective: float
    error: float


class UnitDual:
    """The dual of the unit rows: one full look at the data per evaluation.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.unit_dual import UnitDual
    >>> dual = UnitDual(MarginProblem(2 * np.eye(2), [[1.0]], [0, 0]))
    >>> dual.at(np.array([1.0, 0.0])).slack
    array([ 0., -1.])
    """

    def __init__(self, problem: MarginProblem) -> None:
        self.problem = problem
        self.scaling = Scaling(problem)
        self.c = self.scaling.c
        self.inverse = self.scaling.inverse
        self.equality = problem.equality
        # Set once conjugate gradients took too long where a Cholesky factor was affordable.
        self.prefer_dense = False
        # From slack of unit rows to the certificate's measure of primal violation.
        self.violation_weight = problem.row_norms * self.scaling.scale / np.maximum(1.0, np.abs(problem.rhs))

    def at(self, x: FloatArray) -> DualPoint:
        """Everything that follows from the multipliers x, shape (m,)."""
        W = self.problem.adjoint(x * self.inverse)
        slack = self.problem.margins(W) * self.inverse - self.c
        square = float(np.vdot(W, W))
        value = float(self.c @ x)
        missed = np.where(self.equality, np.abs(slack), np.maximum(-slack, 0.0)) * self.violation_weight
        gap = abs(1.0 - value / square) if square > 0 else np.inf
        return DualPoint(x, W, slack, value - 0.5 * square, max(gap, float(missed.max())))

    def restrict(self, x: FloatArray, index: IntArray) -> FloatArray:
        """Entries of x at ``index`` without negative inequality multipliers."""
        return np.where(self.equality[index], x[index], np.maximum(x[index], 0.0))

    def start(self, known: FloatArray | None) -> tuple[FloatArray, BoolArray]:
        """Multipliers at the best multiple of a first direction, and the rows that seem to be active."""
        if known is None:
            first = np.where(self.equality, self.c, np.maximum(self.c, 0.0))
        else:
            first = known * self.problem.row_norms
        W = self.problem.adjoint(first * self.inverse)
        square = float(np.vdot(W, W))
        multiple = max(0.0, float(self.c @ first)) / square if square > 0 else 0.0
        x = first * multiple
        if known is not None:
            return x, (known != 0) | self.equality
        slack = self.problem.margins(W * multiple) * self.inverse - self.c
        free = (slack < 1e-12) | self.equality
        # Of more rows than half the dimensions of W, the most violated: beyond, they are dependent soon.
        most = max(1, self.problem.shape[0] * min(self.problem.shape[1], self.problem.q) // 2)
        if int(np.count_nonzero(free)) > most:
            free &= slack <= np.partition(slack, most)[most]
            free |= self.equality
        return x, free
