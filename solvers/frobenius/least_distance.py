"""The point nearest to the origin that satisfies given rows, by DAQP: for dependent and contradictory rows.

``minimize |w|  subject to  F w >= c`` (``=`` on equality rows) is the least Frobenius norm with the rows written out.
DAQP is a dual active-set method in C; where no w exists its last multipliers are a combination of rows that cancels.

D. Arnström, A. Bemporad and D. Axehill, "A dual active-set solver for embedded quadratic programming using recursive
LDL^T updates", IEEE Transactions on Automatic Control 67 (2022).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray

__all__ = ["DistanceResult", "least_distance"]


class DistanceResult(NamedTuple):
    """What `least_distance` found.

    Attributes
    ----------
    x : ndarray, shape (*batch, m)
        Multipliers of the unit rows; where ``ray``, of a combination of rows that cancels; 0 where there is neither.
    w : ndarray, shape (*batch, D)
        The nearest point, usually more accurate than ``F'x``; 0 where there is none.
    settled, ray : ndarray of bool, shape (*batch,)
        DAQP ended at a solution; at a contradiction.
    iterations : ndarray of int, shape (*batch,)
    """

    x: FloatArray
    w: FloatArray
    settled: BoolArray
    ray: BoolArray
    iterations: IntArray


def least_distance(rows: FloatArray, c: FloatArray, equality: BoolArray | None = None) -> DistanceResult:
    """Nearest point to the origin that satisfies the rows, or a ray that proves that there is none.

    Parameters
    ----------
    rows : ndarray, shape (*batch, m, D)
        Rows of norm 1.
    c : ndarray, shape (*batch, m)
        Right-hand sides, the largest of each problem of size 1.
    equality : ndarray of bool, shape (*batch, m), optional

    Examples
    --------
    ``w >= 1`` twice, and then a contradiction:

    >>> import numpy as np
    >>> from attsvm.solvers.frobenius.least_distance import least_distance
    >>> least_distance(np.ones((2, 1)), np.ones(2)).w
    array([1.])
    >>> least_distance(np.array([[1.0], [-1.0]]), np.ones(2)).ray
    np.True_
    """
    import daqp

    batch, (m, D) = c.shape[:-1], rows.shape[-2:]
    size = int(np.prod(batch))
    F, lower = rows.reshape(size, m, D), np.array(c, dtype=np.float64).reshape(size, m)
    upper, sense = np.full((size, m), 1e30), np.zeros((size, m), dtype=np.intc)
    if equality is not None and equality.any():
        equal = equality.reshape(size, m)
        upper[equal], sense[equal] = lower[equal], 5
    x, w, flag, count = np.empty((size, m)), np.empty((size, D)), np.empty(size, np.int64), np.empty(size, np.int64)
    for i in range(size):
        # Eliminating equality rows first would lose their multipliers and the ray when they contradict each other.
        w[i], _, flag[i], info = daqp.solve(
            None, None, F[i], upper[i], lower[i], sense[i], primal_tol=1e-12, eq_reduction=-1
        )
        x[i], count[i] = info["lam"], info["iterations"]
    np.negative(x, out=x)  # multipliers of lower bounds are negative there
    settled, ray = flag == 1, flag == -1
    w[~settled], x[~(settled | ray)] = 0.0, 0.0  # what DAQP returns there was never written
    if not batch:
        return DistanceResult(x[0], w[0], settled[0], ray[0], count[0])
    return DistanceResult(x, w, settled, ray, count)
