"""The dual of the least Frobenius norm for unit rows, evaluated with one look at all rows.

``max c . x - |W(x)|^2 / 2`` over ``x >= 0`` (free on equality rows).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.unit import UnitProblem

__all__ = ["Dual", "DualPoint"]


@dataclass(frozen=True, eq=False)
class DualPoint:
    """Multipliers of unit rows with everything that follows from them.

    Attributes
    ----------
    x : ndarray, shape (m,)
    W : ndarray, shape (dx, dz)
        ``W(x)``, to be multiplied by the unit problem's ``scale`` to solve the problem as given.
    slack : ndarray, shape (m,)
        Minus the gradient: ``F W - c``.
    error : float
        The larger of the relative gap and the primal violation, measured as certificates do.
    """

    x: FloatArray
    W: FloatArray
    slack: FloatArray
    error: float


class Dual:
    """One full look at the data per evaluation.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.frobenius.dual import Dual
    >>> from attsvm.solvers.unit import UnitProblem
    >>> dual = Dual(UnitProblem(MarginProblem(2 * np.eye(2), [[1.0]], [0, 0])))
    >>> dual.at(np.array([1.0, 0.0])).slack
    array([ 0., -1.])
    """

    def __init__(self, unit: UnitProblem) -> None:
        self.unit = unit
        # Set once conjugate gradients took too long where a Cholesky factor was affordable.
        self.prefer_dense = False
        # From slack of unit rows to the certificate's measure of primal violation.
        problem = unit.problem
        self._weight = problem.row_norms * unit.scale / problem.allowance

    def at(self, x: FloatArray) -> DualPoint:
        """Everything that follows from the multipliers x, shape (m,)."""
        unit = self.unit
        W = unit.adjoint(x)
        slack = unit.margins(W) - unit.c
        square = float(np.vdot(W, W))
        value = float(unit.c @ x)
        missed = float((unit.problem.missed(slack) * self._weight).max())
        gap = abs(1.0 - value / square) if square > 0 else np.inf
        return DualPoint(x, W, slack, max(gap, missed))

    def restrict(self, x: FloatArray, index: IntArray) -> FloatArray:
        """Entries of x at ``index`` without negative inequality multipliers."""
        return np.asarray(np.where(self.unit.equality[index], x[index], np.maximum(x[index], 0.0)))

    def start(self, known: FloatArray | None) -> tuple[FloatArray, BoolArray]:
        """Multipliers at the best multiple of a first direction, and the rows that seem to be active."""
        unit, problem = self.unit, self.unit.problem
        first = problem.clipped(unit.c) if known is None else known * problem.row_norms
        W = unit.adjoint(first)
        square = float(np.vdot(W, W))
        multiple = max(0.0, float(unit.c @ first)) / square if square > 0 else 0.0
        x = first * multiple
        if known is not None:
            return x, (known != 0) | unit.equality
        slack = unit.margins(W * multiple) - unit.c
        free = (slack < 1e-12) | unit.equality
        # Of more rows than half the dimensions of W, the most violated: beyond, they are dependent soon.
        most = max(1, problem.shape[0] * min(problem.shape[1], problem.q) // 2)
        if int(np.count_nonzero(free)) > most:
            free &= slack <= np.partition(slack, most)[most]
            free |= unit.equality
        return x, free
