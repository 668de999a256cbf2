"""The dual method of Goldfarb and Idnani for a least-norm matrix, on an orthonormal basis of the active rows.

Slower than pivoting on the Gram matrix but far harder to break: the condition number is that of the rows,
not its square; duplicate rows, redundant equalities and infeasible rows are recognised as such, and the
dual objective rises with every step, so it cannot cycle but for rounding. Only the active rows are ever
expanded to ``dx * dz`` numbers.

D. Goldfarb and A. Idnani, "A numerically stable dual method for solving strictly convex quadratic
programs", Mathematical Programming 27 (1983).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.unit import UnitRows

__all__ = ["DualOutcome", "dual_active_set"]

# A unit row whose part outside the span of the active rows is below this is taken to lie in the span: a
# solution that had to use that part would have a norm of 1e11 and could not be certified in float64.
_DEPENDENT = 1e-11
# A conflict below this, relative to the right-hand sides that make it up, is rounding in the data:
# redundant equality rows disagree by about 1e-16.
_CONFLICT = 1e-9


@dataclass
class DualOutcome:
    """Multipliers after the last step.

    Attributes
    ----------
    multipliers : ndarray, shape (m,)
        Of the least-norm solution, or of a combination of rows that cancels when ``conflict``.
    W : ndarray, shape (dx, dz)
        The least-norm solution, more accurate than the sum of rows with large multipliers of cancelling rows.
    conflict : bool
        True when the rows were found to contradict each other.
    finished : bool
        False when the step limit was reached first.
    steps : int
    """

    multipliers: FloatArray
    W: FloatArray
    conflict: bool
    finished: bool
    steps: int


class _ActiveRows:
    """Active rows with ``N = Q R``: one column of N per active row."""

    def __init__(self, unit: UnitRows) -> None:
        self.unit = unit
        dimension = unit.shape[0] * unit.shape[1]
        self.dimension = dimension
        self.capacity = min(64, dimension)
        self.Q = np.empty((dimension, self.capacity), order="F")
        self.R = np.zeros((self.capacity, self.capacity), order="F")
        self.rows: list[int] = []
        self.w = np.zeros(dimension)
        self.u = np.zeros(0)

    @property
    def count(self) -> int:
        return len(self.rows)

    def expand(self, row: int) -> FloatArray:
        return np.outer(self.unit.a[row], self.unit.b[row]).ravel()

    def split(self, f: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Coordinates of f in Q, its part outside the span, and its coordinates in the active rows."""
        from scipy.linalg import solve_triangular

        p = self.count
        basis = self.Q[:, :p]
        inside = basis.T @ f
        outside = f - basis @ inside
        again = basis.T @ outside  # once more: keeps Q orthonormal to rounding however small the rest is
        outside -= basis @ again
        inside += again
        if p == 0:
            return inside, outside, inside
        return inside, outside, solve_triangular(self.R[:p, :p], inside, check_finite=False)

    def append(self, row: int, inside: FloatArray, outside: FloatArray, multiplier: float) -> None:
        p = self.count
        if p == self.capacity:
            self.capacity = min(2 * p, self.dimension)
            basis, triangle = self.Q, self.R
            self.Q = np.empty((self.dimension, self.capacity), order="F")
            self.R = np.zeros((self.capacity, self.capacity), order="F")
            self.Q[:, :p], self.R[:p, :p] = basis, triangle
        length = float(np.linalg.norm(outside))
        self.Q[:, p] = outside / length
        self.R[:p, p] = inside
        self.R[p, :p] = 0.0
        self.R[p, p] = length
        self.rows.append(row)
        self.u = np.append(self.u, multiplier)

    def remove(self, position: int) -> None:
        from scipy.linalg import qr_delete

        p = self.count
        Q, R = qr_delete(self.Q[:, :p], self.R[:p, :p], position, which="col", check_finite=False)
        self.Q[:, : p - 1], self.R[: p - 1, : p - 1] = Q[:, : p - 1], R[: p - 1, : p - 1]
        del self.rows[position]
        self.u = np.delete(self.u, position)

    def resolve(self) -> None:
        """Multipliers and W from scratch: the least-norm solution of the active rows as equalities."""
        from scipy.linalg import solve_triangular

        p = self.count
        if p == 0:
            self.w, self.u = np.zeros(self.dimension), np.zeros(0)
            return
        triangle = self.R[:p, :p]
        inner = solve_triangular(triangle, self.unit.rhs[self.rows], trans="T", check_finite=False)
        self.u = solve_triangular(triangle, inner, check_finite=False)
        self.w = self.Q[:, :p] @ inner

    def begin_with(self, rows: IntArray) -> None:
        """Start from the independent ones of ``rows`` whose multipliers come out nonnegative."""
        from scipy.linalg import qr

        equality = self.unit.equality
        rows = rows[: self.dimension]
        while len(rows):
            columns = np.empty((self.dimension, len(rows)), order="F")
            for k, row in enumerate(rows):
                columns[:, k] = self.expand(int(row))
            Q, R, order = qr(columns, mode="economic", pivoting=True, overwrite_a=True, check_finite=False)
            # Leave anything doubtful to the step-by-step part: a start may be any independent subset.
            rank = int(np.count_nonzero(np.abs(np.diag(R)) > 1e-6))
            self.capacity = max(1, rank)
            self.Q, self.R = np.asfortranarray(Q[:, :rank]), np.asfortranarray(R[:rank, :rank])
            self.rows = [int(r) for r in rows[order[:rank]]]
            self.resolve()
            keep = (self.u >= 0) | equality[self.rows]
            if keep.all():
                return
            rows = np.asarray(self.rows)[keep]
        self.rows = []
        self.resolve()


def _pending(unit: UnitRows, active: _ActiveRows, ignored: BoolArray, equal: list[int]) -> tuple[int, float]:
    """Next row to add with its slack; -1 when every row holds to within rounding."""
    slack = unit.values(active.w.reshape(unit.shape)) - unit.rhs
    while equal:  # equalities first: while they enter, nothing can block them
        row = equal[-1]
        if row not in active.rows:
            return row, float(slack[row])
        equal.pop()
    rounding = 4e-15 * float(np.linalg.norm(active.w))
    slack[ignored | unit.equality] = 0.0
    slack[active.rows] = 0.0
    excess = slack + 1e-12 * np.abs(unit.rhs)
    row = int(np.argmin(excess))
    return (row, float(slack[row])) if excess[row] < -rounding else (-1, 0.0)


def dual_active_set(unit: UnitRows, start: IntArray, max_steps: int) -> DualOutcome:
    """Least-norm W by adding one violated row at a time.

    Parameters
    ----------
    unit : UnitRows
    start : ndarray of int
        Rows believed to be active; any set will do.
    max_steps : int

    Returns
    -------
    DualOutcome

    Examples
    --------
    Of ``W >= 1`` and ``W >= 2`` only the second is active:

    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.frobenius.dual_steps import dual_active_set
    >>> from attsvm.solvers.unit import UnitProblem
    >>> rows = UnitProblem(MarginProblem([[1.0], [1.0]], [[1.0]], [0, 0], rhs=[1.0, 2.0])).rows
    >>> dual_active_set(rows, np.array([], dtype=np.int64), 10).multipliers
    array([0., 1.])
    """
    active = _ActiveRows(unit)
    ignored = np.zeros(unit.m, dtype=bool)
    equal = [int(row) for row in np.flatnonzero(unit.equality)[::-1]]
    # Equalities enter unblocked, which only holds if no inequality is active before them.
    active.begin_with(np.asarray(equal[::-1], dtype=np.int64) if equal else start)
    steps = 0
    while steps < max_steps:
        row, slack = _pending(unit, active, ignored, equal)
        if row < 0:
            active.resolve()
            return DualOutcome(_spread(unit, active.rows, active.u), active.w.reshape(unit.shape), False, True, steps)
        f = active.expand(row)
        added = 0.0
        while steps < max_steps:
            steps += 1
            inside, outside, coordinates = active.split(f)
            room = float(outside @ outside)
            full = -slack / room if room > _DEPENDENT**2 else np.inf
            blocking = (coordinates > 0) & ~unit.equality[active.rows]
            partial, position = np.inf, -1
            if not unit.equality[row] and blocking.any():
                ratio = np.full(active.count, np.inf)
                ratio[blocking] = np.maximum(active.u[blocking], 0.0) / coordinates[blocking]
                position = int(np.argmin(ratio))
                partial = float(ratio[position])
            if np.isinf(full) and np.isinf(partial):
                sizes = abs(unit.rhs[row]) + float(np.abs(coordinates) @ np.abs(unit.rhs[active.rows]))
                # The second term: rounding of the slack itself, all there is when the right-hand sides are 0.
                if abs(slack) <= _CONFLICT * sizes + 1e-13 * float(np.linalg.norm(active.w)):
                    ignored[row] = True
                    if equal and equal[-1] == row:
                        equal.pop()
                    break
                lam = _spread(unit, active.rows, -coordinates)
                lam[row] = 1.0
                return DualOutcome(lam if slack < 0 else -lam, active.w.reshape(unit.shape), True, True, steps)
            step = full if unit.equality[row] else min(full, partial)
            active.u -= step * coordinates
            added += step
            if np.isfinite(full):
                active.w += step * outside
                slack += step * room
            if step == full:
                active.append(row, inside, outside, added)
                break
            active.remove(position)
    return DualOutcome(_spread(unit, active.rows, active.u), active.w.reshape(unit.shape), False, False, steps)


def _spread(unit: UnitRows, rows: list[int], values: FloatArray) -> FloatArray:
    out = np.zeros(unit.m)
    out[rows] = values
    return out
