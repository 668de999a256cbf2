"""A float linear program that guesses where the exact one ends: a point to check, or the rows to start from.

Nothing here is trusted; the guess only saves exact pivots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.exact.rows import rational, to_float

if TYPE_CHECKING:
    from flint import fmpq, fmpz_mat

__all__ = ["guess_by_floats", "row_sizes"]


def row_sizes(matrix: fmpz_mat) -> list[int]:
    """A power of two at least as large as the entries of each row (1 for a zero row).

    Examples
    --------
    >>> from flint import fmpz_mat
    >>> from attsvm.solvers.exact.guess import row_sizes
    >>> row_sizes(fmpz_mat([[3, -9], [0, 0]]))
    [16, 1]
    """
    return [1 << max((int(x).bit_length() for x in row), default=0) for row in matrix.tolist()]


def guess_by_floats(
    matrix: fmpz_mat, levels: Sequence[fmpq], equality: Sequence[bool]
) -> tuple[list[fmpq] | None, list[int]]:
    """Maximize t subject to ``M w >= level + t`` (rows scaled to size 1, ``t <= 1``) in float64.

    Parameters
    ----------
    matrix : fmpz_mat, shape (m, N)
    levels : sequence of fmpq, length m
    equality : sequence of bool, length m

    Returns
    -------
    point : list of fmpq or None
        The float w as rationals.
    order : list of int
        Rows, those that the float solution finds tight first.

    Examples
    --------
    >>> from flint import fmpq, fmpz_mat
    >>> from attsvm.solvers.exact.guess import guess_by_floats
    >>> guess_by_floats(fmpz_mat([[1], [-1], [2]]), [fmpq(1)] * 3, [False] * 3)[1][:2]
    [0, 1]
    """
    from flint import fmpq
    from scipy.optimize import linprog

    m, N = matrix.nrows(), matrix.ncols()
    sizes = row_sizes(matrix)
    scaled = np.array(
        [[to_float(fmpq(x, size)) for x in row] for row, size in zip(matrix.tolist(), sizes, strict=True)]
    ).reshape(m, N)
    right: FloatArray = np.array([to_float(level / size) for level, size in zip(levels, sizes, strict=True)])
    equal = np.asarray(equality, dtype=bool)
    if not np.isfinite(right).all() or not (~equal).any():
        return None, list(range(m))
    unequal = np.flatnonzero(~equal)
    answer = linprog(
        np.append(np.zeros(N), -1.0),
        A_ub=np.column_stack([-scaled[unequal], np.ones(len(unequal))]),
        b_ub=-right[unequal],
        A_eq=np.column_stack([scaled[equal], np.zeros(equal.sum())]) if equal.any() else None,
        b_eq=right[equal] if equal.any() else None,
        bounds=[(None, None)] * N + [(None, 1.0)],
        method="highs",
    )
    if answer.x is None:
        return None, list(range(m))
    weight = np.zeros(m)
    weight[unequal] = -answer.ineqlin.marginals
    slack = scaled @ answer.x[:N] - right
    order = np.lexsort((slack, -weight))  # by multiplier, then by slack
    return [rational(float(x)) for x in answer.x[:N]], [int(k) for k in order]
