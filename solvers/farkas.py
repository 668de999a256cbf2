"""Search for a proof of infeasibility by nonnegative least squares.

The least-distance form of Lawson and Hanson: minimize ``|F^T y|^2 + (rhs . y - 1)^2`` over y >= 0 (free on
equality rows). The minimum is ``1 / (1 + |W|^2)`` with W the least-norm feasible matrix, and 0 exactly
when there is none; the minimizer is then the proof.
"""

from __future__ import annotations

import numpy as np

from attsvm.solvers.certificate import Certificate, certify_infeasible
from attsvm.solvers.margin import MarginProblem
from attsvm.solvers.reduction import reduce_dimensions

__all__ = ["find_farkas"]


def find_farkas(problem: MarginProblem) -> Certificate | None:
    """Find and verify a proof that no W satisfies the rows; None when none was found.

    Forms the dense features of the reduced problem: meant for problems of up to a few thousand rows.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, find_farkas
    >>> conflict = MarginProblem([[1.0], [-1.0], [3.0]], [[1.0]], [0, 0, 0])
    >>> find_farkas(conflict).farkas.rows
    array([0, 1])
    """
    from scipy.optimize import nnls

    norms = problem.row_norms
    dead = np.flatnonzero((norms == 0) & np.where(problem.equality, problem.rhs != 0, problem.rhs > 0))
    if len(dead):  # 0 >= positive: one row proves it
        unit = np.zeros(problem.m)
        unit[dead[0]] = np.sign(problem.rhs[dead[0]])
        return certify_infeasible(problem, unit)

    scale = np.where(norms > 0, norms, 1.0)
    typical = float(np.median(scale))
    columns = np.vstack([reduce_dimensions(problem).problem.features().T / scale, problem.rhs * typical / scale])
    free = np.flatnonzero(problem.equality)
    target = np.zeros(len(columns))
    target[-1] = 1.0
    try:
        y, _ = nnls(np.hstack([columns, -columns[:, free]]), target, maxiter=30 * (problem.m + len(free)))
    except RuntimeError:  # iteration limit: no proof found
        return None
    y, mirrored = y[: problem.m], y[problem.m :]
    y[free] -= mirrored
    return certify_infeasible(problem, y / scale)
