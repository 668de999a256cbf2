"""Coordinate descent on the dual of soft margins in C: see descent.c, which it calls through ctypes."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.solvers.compiled.kernels import _begin, _check_sizes, _for_all, _library
from attsvm.solvers.penalty import Penalty
from attsvm.solvers.rows.pairs import PairRows

__all__ = ["DualDescent"]

# Iterates that are kept for a combined step: PAST of descent.c and one more.
_ITERATES = 4
# Any odd number: the state of the generator that shuffles the queries.
_SEED = 0x9E3779B97F4A7C15


class DualDescent:
    """Multipliers of the inequality rows of a soft margin, which sweeps over the queries improve.

    Parameters
    ----------
    pair : PairRows
        One problem; every row is an inequality.
    rhs : ndarray, shape (m,)
    penalty : Penalty
    lam : ndarray, shape (m,)
        Admissible multipliers to start from.

    Attributes
    ----------
    order : ndarray of int, shape (m,)
        Rows sorted by query: everything below is in this order.
    rows : PairRows
    rhs, lam : ndarray, shape (m,)
    W : ndarray, shape (dx, dz)
        ``sum_k lam_k a_k b_k^T`` up to rounding.

    Examples
    --------
    ``min W^2 / 2 + C (2 - W)_+`` has W = C for C < 2:

    >>> import numpy as np
    >>> from attsvm.solvers import PairRows, Penalty
    >>> from attsvm.solvers.compiled.descent import DualDescent
    >>> descent = DualDescent(PairRows([[1.0]], [[1.0]], [0]), np.array([2.0]), Penalty(1.5), np.zeros(1))
    >>> descent.sweep(1), descent.W.item()
    (1, 1.5)
    """

    def __init__(self, pair: PairRows, rhs: FloatArray, penalty: Penalty, lam: FloatArray) -> None:
        self.penalty, q = penalty, pair.q
        _check_sizes(q, *pair.shape)
        self.order: IntArray = np.argsort(pair.owner, kind="stable")
        owner = pair.owner[self.order]
        a = np.ascontiguousarray(pair.a if _is_sorted(self.order) else pair.a[self.order], dtype=np.float64)
        self.rows = PairRows.trusted(a, np.ascontiguousarray(pair.queries, dtype=np.float64), owner)
        self._begin = np.searchsorted(owner, np.arange(q + 1)).astype(np.int64)
        self.rhs = np.ascontiguousarray(rhs[self.order], dtype=np.float64)
        self.lam = np.array(lam[self.order], dtype=np.float64)
        self._seed = np.array([_SEED], dtype=np.uint64)
        self._misses, self._rest, self._slept = np.zeros(q), np.zeros(q, dtype=np.int32), np.zeros(q, dtype=np.int32)
        self._moved = True
        self._past = np.empty((_ITERATES, len(self.lam) + math.prod(pair.shape)))
        self._kept = np.zeros(2, dtype=np.intc)
        self.refresh()
        self._sweep = _library().attsvm_descend
        whole, real, array = ctypes.c_int, ctypes.c_double, ctypes.c_void_p
        self._sweep.argtypes = [*3 * [whole], *4 * [array], *2 * [whole], *2 * [real], whole, *9 * [array]]
        self._sweep.restype = ctypes.c_ssize_t

    def move_to(self, lam: FloatArray) -> None:
        """Go on from other multipliers, shape (m,): every query is visited again."""
        self.lam, self._moved = np.array(lam, dtype=np.float64), True
        self.refresh()
        self._rest[:] = self._slept[:] = self._kept[:] = 0

    def refresh(self) -> None:
        """Sum W up again, if something moved: updates leave rounding in it."""
        if self._moved:
            self.W, self._moved = np.ascontiguousarray(self.rows.adjoint(self.lam)), False

    def sweep(self, count: int, goal: float = 0.0) -> int:
        """Sweeps over all queries but those at rest; how many queries were visited.

        Optimality conditions that are missed by at most ``goal`` are left alone.
        """
        (dx, dz), rows, penalty, self._moved = self.rows.shape, self.rows, self.penalty, True
        fixed: list[npt.NDArray[Any]] = [self._begin, rows.a, rows.queries, self.rhs]
        moved: list[npt.NDArray[Any]] = [
            self.lam, self.W, self._misses, self._rest, self._slept, self._seed, self._past, self._kept,
        ]  # fmt: skip
        visits, stop = 0, np.zeros(1, dtype=np.intc)

        def run(begin: int, end: int) -> int:
            nonlocal visits
            visits = self._sweep(
                rows.q, dx, dz, *map(_begin, fixed), penalty.slack == "query", penalty.loss != "hinge", penalty.C, goal,
                count, *map(_begin, moved), _begin(stop),
            )  # fmt: skip
            return int(visits >= 0)

        _for_all(run, 1, rows.m * dx, count * (rows.q * dx * dz + rows.m * dx), stop)
        return visits


def _is_sorted(order: IntArray) -> bool:
    return bool((order[1:] > order[:-1]).all())
