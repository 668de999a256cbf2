"""From rationals back to float64: a matrix of floats that satisfies the rows where rounding each entry does not.

Rounding W entry by entry moves a margin by up to ``sum |a_i| |W_ij| |b_j| u``, which may be far more than 1 when rows
of very different sizes meet. But the entries need not all be rounded to nearest: those whose rounding moves the margins
most are fixed first, then as many of the others as there are independent rows are solved for exactly, so that the
margins are what they were, and rounded. Only the roundings of these last entries, the least harmful ones, are left.
The change is orthogonal to the rows that it keeps, so the least Frobenius norm grows to second order only.

Where that is not enough, inequality rows are asked for more than they need, by as much as rounding can take from them
(`raised`): a large W pays little for a row of ordinary size, and every rounding of the result is then feasible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.exact.rows import ExactRows, rational, rational_matrix, to_float
from attsvm.solvers.exact.simplex import independent_rows, pivot_columns

if TYPE_CHECKING:
    from flint import fmpq_mat

__all__ = ["nearest", "raised", "representable"]

_ROUNDS = 3


def nearest(matrix: fmpq_mat) -> FloatArray:
    """Every entry rounded to the nearest float64.

    Examples
    --------
    >>> from flint import fmpq, fmpq_mat
    >>> from attsvm.solvers.exact.representable import nearest
    >>> nearest(fmpq_mat(1, 2, [fmpq(1, 3), fmpq(2)]))
    array([[0.33333333, 2.        ]])
    """
    return np.array([to_float(x) for x in matrix.entries()]).reshape(matrix.nrows(), matrix.ncols())


def representable(rows: ExactRows, matrix: fmpq_mat) -> FloatArray:
    """A float64 matrix near an exactly feasible one that misses the rows as little as this method can.

    Parameters
    ----------
    rows : ExactRows
    matrix : fmpq_mat, shape (dx, dz)
        Satisfies the rows.

    Returns
    -------
    ndarray, shape (dx, dz)

    Examples
    --------
    ``1e12 (W1 + W2) + W3 = 1``: rounding W1 and W2 costs up to 1e-4, for which W3 can make up.

    >>> from flint import fmpq, fmpq_mat
    >>> from attsvm.solvers.exact import exact_rows
    >>> from attsvm.solvers.exact.representable import nearest, representable
    >>> from attsvm.solvers.exact.rows import to_float
    >>> rows = exact_rows([[1e12, 1e12, 1.0]], [[1.0]], [0], equality=[True])
    >>> W = fmpq_mat(3, 1, [fmpq(4, 3), fmpq(-4, 3) + fmpq(1, 3 * 10**12), fmpq(2, 3)])
    >>> [to_float(rows.violation(x)) < 1e-12 for x in (nearest(W), representable(rows, W))]
    [False, True]
    """
    W = best = nearest(matrix)
    least = rows.violation(best)
    tight = [s == 0 for s in rows.slacks(matrix)]
    held = {k for k in range(rows.m) if tight[k] or rows.equality[k]}
    for _ in range(_ROUNDS):
        if least == 0 or not np.isfinite(W).all():
            break
        slacks = rows.slacks(W)
        held |= {k for k in range(rows.m) if slacks[k] < 0}
        W = _solved(rows, matrix, W, sorted(held))
        missed = rows.violation(W) if np.isfinite(W).all() else least
        if missed < least:
            best, least = W, missed
    return best


def raised(rows: ExactRows, W: FloatArray, share: int = 0) -> ExactRows:
    """The rows with inequalities raised by what rounding the entries of a matrix like W can take from them.

    Parameters
    ----------
    rows : ExactRows
    W : ndarray, shape (dx, dz)
    share : int
        Only ``2^-share`` of that: enough where most roundings can be made up for.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.exact import exact_rows
    >>> from attsvm.solvers.exact.representable import raised
    >>> print(raised(exact_rows([[1.0]], [[1.0]], [0]), np.array([[2.0**53]])).rhs[0])
    3
    """
    spacing = rational_matrix("W", np.spacing(np.abs(W)))
    lost = ExactRows(
        [[abs(x) for x in row] for row in rows.left], [[abs(x) for x in row] for row in rows.right], rows.owner,
        rows.scale, rows.rhs, rows.equality,
    ).margins(spacing)  # fmt: skip
    # Half a spacing would do for entries of this size; a whole one leaves room for larger ones.
    sides = [r if e else r + x / 2**share for r, x, e in zip(rows.rhs, lost, rows.equality.tolist(), strict=True)]
    return ExactRows(rows.left, rows.right, rows.owner, rows.scale, sides, rows.equality)


def _solved(rows: ExactRows, matrix: fmpq_mat, W: FloatArray, held: list[int]) -> FloatArray:
    """W with its least harmful entries chosen such that the held rows have the margins of the matrix."""
    from flint import fmpq_mat, fmpz_mat

    dx, dz = rows.shape
    entries = dx * dz
    dense = [[x * b for x in rows.left[k] for b in rows.right[int(rows.owner[k])]] for k in held]
    sizes = np.array([[abs(to_float(rows.scale[k] * x)) for x in row] for k, row in zip(held, dense, strict=True)])
    with np.errstate(all="ignore"):
        harm = (sizes * np.spacing(np.abs(W)).ravel()).max(axis=0)
    order = np.argsort(np.where(np.isfinite(harm), harm, np.inf), kind="stable").tolist()
    integer = fmpz_mat(dense)
    kept = independent_rows(integer)
    sorted_columns = fmpz_mat([[dense[k][c] for c in order] for k in kept])
    free = [order[c] for c in pivot_columns(sorted_columns)]
    fixed = W.ravel().copy()
    fixed[free] = 0.0
    trial = fmpq_mat(entries, 1, [rational(x) for x in fixed.tolist()])
    goal = rows.integer_margins(matrix)
    there = (fmpq_mat(fmpz_mat([dense[k] for k in kept])) * trial).entries()
    missing = fmpq_mat(len(kept), 1, [goal[held[k]] - v for k, v in zip(kept, there, strict=True)])
    square = fmpq_mat(len(kept), len(free), [dense[k][c] for k in kept for c in free])
    for place, value in zip(free, square.solve(missing).entries(), strict=True):
        fixed[place] = to_float(value)
    return np.asarray(fixed.reshape(dx, dz))
