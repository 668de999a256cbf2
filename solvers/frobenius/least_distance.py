"""The point nearest to the origin that satisfies given rows: for dependent and contradictory rows.

``minimize |w|  subject to  F w >= c`` (``=`` on equality rows) is the least Frobenius norm with the rows written out.
DAQP is a dual active-set method in C; where no w exists its last multipliers are a combination of rows that cancels.
It works with products of rows. Where features differ so much in scale that float64 has no digits left for these,
`robust_distance` takes the same problem to nonnegative least squares, whose orthogonal factors are of the rows
themselves.

D. Arnström, A. Bemporad and D. Axehill, "A dual active-set solver for embedded quadratic programming using recursive
LDL^T updates", IEEE Transactions on Automatic Control 67 (2022). C. L. Lawson and R. J. Hanson, "Solving Least Squares
Problems" (1974), chapter 23.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.deadline import late, seconds_left, watched

__all__ = ["DistanceResult", "least_distance", "robust_distance"]


# Numbers in the rows from which on DAQP may take long enough to be watched, and seconds that stand for no limit.
_LONG, _UNLIMITED = 150_000, 1e9
# Lengths of the point between which the residual of the nonnegative least squares has digits of both its parts, and
# how often the right-hand sides are scaled to get there.
_SHORT, _FAR, _SCALINGS = 0.1, 10.0, 4
# A residual of this size is rounding: the target is a combination of the columns.
_CANCELS = 1e-13


class DistanceResult(NamedTuple):
    """What `least_distance` found.

    Attributes
    ----------
    x : ndarray, shape (*batch, m)
        Multipliers of the unit rows; where ``ray``, of a combination of rows that cancels; 0 where there is neither.
    w : ndarray, shape (*batch, D)
        The nearest point, usually more accurate than ``F'x``; 0 without a solution.
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
    batch, (m, D) = c.shape[:-1], rows.shape[-2:]
    size = int(np.prod(batch))
    F, lower = rows.reshape(size, m, D), np.array(c, dtype=np.float64).reshape(size, m)
    upper, sense = np.full((size, m), 1e30), np.zeros((size, m), dtype=np.intc)
    if equality is not None and equality.any():
        equal = equality.reshape(size, m)
        upper[equal], sense[equal] = lower[equal], 5
    x, w, flag, count = np.zeros((size, m)), np.zeros((size, D)), np.zeros(size, np.int64), np.zeros(size, np.int64)
    for i in range(size):
        if late():
            break
        # Eliminating equality rows first would lose their multipliers and the ray when they contradict each other.
        w[i], flag[i], x[i], count[i] = _by_daqp(F[i], upper[i], lower[i], sense[i])
    np.negative(x, out=x)  # multipliers of lower bounds are negative there
    settled, ray = flag == 1, flag == -1
    w[~settled], x[~(settled | ray)] = 0.0, 0.0  # what DAQP returns there was never written
    if not batch:
        return DistanceResult(x[0], w[0], settled[0], ray[0], count[0])
    return DistanceResult(x, w, settled, ray, count)


def _by_daqp(
    rows: FloatArray, upper: FloatArray, lower: FloatArray, sense: npt.NDArray[np.intc]
) -> tuple[FloatArray, int, FloatArray, int]:
    """Point, flag, multipliers and steps of DAQP, which ends at the deadline."""
    import daqp

    found: list[tuple[FloatArray, int, FloatArray, int]] = []

    def work() -> None:
        left = min(seconds_left(), _UNLIMITED)  # and a little more: 0 is no limit, and what is cut short ends late
        settings = {"primal_tol": 1e-12, "eq_reduction": -1, "time_limit": max(left, 0.0) + 1e-3}
        w, _, flag, info = daqp.solve(None, None, rows, upper, lower, sense, **settings)
        found.append((w, flag, info["lam"], info["iterations"]))

    if rows.size < _LONG:
        work()
    else:
        watched(work, lambda: None)  # it cannot be stopped, and ends some seconds after an interrupt
    return found[0]


def robust_distance(rows: FloatArray, c: FloatArray) -> DistanceResult:
    """The same for one problem of inequality rows by nonnegative least squares: for features of very different scales.

    The residual of ``min |E u - f|``, ``u >= 0``, with the columns ``(row_k, c_k)`` and ``f = (0, 1)`` is a multiple of
    ``(w, -1)``; where it vanishes, u is a combination of rows that cancels. Its last entry is ``1 / (1 + |w|^2)``, so
    the right-hand sides are scaled until w has a length of about 1.

    Parameters
    ----------
    rows : ndarray, shape (m, D)
    c : ndarray, shape (m,)

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.frobenius.least_distance import robust_distance
    >>> found = robust_distance(np.array([[1.0, 1e-8], [-1.0, 1e-8]]), np.ones(2))
    >>> found.w.round(6) + 0.0, bool(found.settled)
    (array([0.e+00, 1.e+08]), True)
    """
    from scipy.optimize import nnls

    m, D = rows.shape
    target = np.zeros(D + 1)
    target[-1] = scale = 1.0
    for trial in range(_SCALINGS):
        try:
            u, left = nnls(np.vstack([rows.T, scale * c]), target)
        except RuntimeError:  # too many exchanges
            break
        if late():
            break
        if left <= _CANCELS:
            return _one_result(u, np.zeros(D), trial + 1, ray=True)
        w = (rows.T @ u) / (left * left)  # the last entry of the residual is its squared length
        size = float(np.linalg.norm(w))
        if _SHORT < size < _FAR:
            return _one_result(*_on_active_rows(rows, c, u > 0), trial + 1, settled=True)
        scale /= max(size, 1e-300)
    return _one_result(np.zeros(m), np.zeros(D), 0)


def _one_result(
    x: FloatArray, w: FloatArray, steps: int, *, settled: bool = False, ray: bool = False
) -> DistanceResult:
    return DistanceResult(x, w, np.asarray(settled), np.asarray(ray), np.asarray(steps))


def _on_active_rows(rows: FloatArray, c: FloatArray, active: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Multipliers and the nearest point that meets the active rows, by orthogonal factors."""
    x, some = np.zeros(len(c)), rows[active]
    w = np.asarray(np.linalg.lstsq(some, c[active])[0], dtype=np.float64)
    x[active] = np.linalg.lstsq(some.T, w)[0]
    return x, w
