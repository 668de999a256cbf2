"""Is there a feasible matrix at all? Newton's method on the squared shortfall of the rows, without matrices of rows.

``h(W) = |(c - F W)_+|^2 / 2`` (both signs count on equality rows) is convex and smooth. Its minimum is 0 when
some W satisfies all rows; otherwise the shortfall ``lam = (c - F W)_+`` left at the minimum is nonnegative,
cancels (``F^T lam = -grad h = 0``) and has ``c . lam = |lam|^2 > 0``: it is the proof of infeasibility.
Contradictory data make this well conditioned, exactly where the least-norm problem diverges.
"""

from __future__ import annotations

import numpy as np

from attsvm.solvers.certificate import Certificate, certify_infeasible
from attsvm.solvers.free_rows import FreeRows
from attsvm.solvers.margin import BoolArray, FloatArray, MarginProblem

__all__ = ["exact_step", "find_conflict"]

_ROUNDS = 60
_CG_STEPS = 400


def _floored_inverse(moment: FloatArray) -> FloatArray:
    """Pseudo-inverse of a second-moment matrix with a floor on its spectrum."""
    values, vectors = np.linalg.eigh(moment)
    return np.asarray((vectors / np.maximum(values, 1e-6 * values[-1])) @ vectors.T)


def _newton_direction(rows: FreeRows, shortfall: FloatArray, accuracy: float) -> FloatArray:
    """Least-squares change of W that removes the shortfall, by conjugate gradients in the space of W."""
    queries = rows.queries.astype(np.float64, copy=False)
    left = rows.a.T @ rows.a
    right = queries.T @ queries
    left, right = _floored_inverse(left.astype(np.float64, copy=False)), _floored_inverse(right)
    residual = rows.combine(shortfall).T @ queries
    D = np.zeros_like(residual, dtype=np.float64)
    solved = left @ residual @ right
    direction = solved.copy()
    energy = float(np.vdot(residual, solved))
    goal = accuracy**2 * energy
    for _ in range(_CG_STEPS):
        if energy <= goal or energy <= 0:
            break
        change = rows.score((queries @ direction.T).astype(rows.a.dtype, copy=False))
        curvature = float(change @ change)
        if curvature <= 0:
            break
        step = energy / curvature
        D += step * direction
        residual = residual - step * (rows.combine(change).T @ queries)
        solved = left @ residual @ right
        following = float(np.vdot(residual, solved))
        direction = solved + (following / energy) * direction
        energy = following
    return D


def exact_step(
    gaps: FloatArray, change: FloatArray, equality: BoolArray, slope: float = 0.0, curvature: float = 0.0
) -> float:
    """Minimize ``|(gaps - t change)_+|^2 / 2 + slope t + curvature t^2 / 2`` over t >= 0, by bisection.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.conflict import exact_step
    >>> round(exact_step(np.array([2.0, -1.0]), np.array([1.0, 0.0]), np.array([False, False])), 9)
    2.0
    """

    def derivative(t: float) -> float:
        left = gaps - t * change
        left[(left < 0) & ~equality] = 0.0
        return slope + t * curvature - float(left @ change)

    low, high = 0.0, 1.0
    while derivative(high) < 0 and high < 1e6:
        low, high = high, 2.0 * high
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if derivative(middle) < 0 else (low, middle)
    return 0.5 * (low + high)


def find_conflict(
    problem: MarginProblem, inverse: FloatArray, W: FloatArray
) -> tuple[Certificate | None, FloatArray | None]:
    """Search for a proof of infeasibility, matrix-free.

    Parameters
    ----------
    problem : MarginProblem
    inverse : ndarray, shape (m,)
        Reciprocal row norms (0 for zero rows).
    W : ndarray, shape (dx, dz)
        Where to start.

    Returns
    -------
    proof : Certificate or None
        Verified by `certify_infeasible`.
    feasible : ndarray or None
        A matrix that satisfies all rows, if one was met. Both are None when the search was inconclusive.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.conflict import find_conflict
    >>> rows = MarginProblem([[1.0], [-2.0]], [[1.0]], [0, 0])
    >>> proof, _ = find_conflict(rows, 1 / rows.row_norms, np.zeros((1, 1)))
    >>> proof.farkas.multipliers.round(6)
    array([0.666667, 0.333333])
    """
    c = problem.rhs * inverse
    size = float(np.abs(c).max())
    gaps = c - problem.margins(W) * inverse
    accuracy = 1e-2
    before = -1
    for _ in range(_ROUNDS):
        short = (gaps > 0) | problem.equality
        lam = np.where(short, gaps, 0.0)
        worst = float(np.abs(lam).max())
        if worst <= 1e-13 * size:
            return None, W
        proof = certify_infeasible(problem, lam * inverse)
        # A shortfall at the level of rounding cancels for no reason but its smallness.
        if proof is not None and worst > 1e-9 * size:
            return proof, None
        index = np.flatnonzero(short)
        if len(index) == before:
            accuracy = max(1e-2 * accuracy, 1e-10)
        before = len(index)
        rows = FreeRows(problem, inverse, index, preconditioned=False)
        D = _newton_direction(rows, lam[index], accuracy)
        change = problem.margins(D) * inverse
        step = exact_step(gaps, change, problem.equality)
        if step < 1e-10:  # no descent left but rounding
            return None, None
        W = W + step * D
        gaps = c - problem.margins(W) * inverse
    return None, None
