"""Soft margins of the Frobenius norm for rising C in one call of C: see exchanges.c, which it calls through ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.solvers.compiled.kernels import LOSSES, _begin, _check_sizes, _for_all, _opened
from attsvm.solvers.penalty import EitherPenalty, PenaltyBatch
from attsvm.solvers.rows.pairs import PairRows

__all__ = ["Exchanged", "are_few", "exchange_rows"]

# Exchanges for each C, per row and group, after which it is left to other methods.
_EACH = 20
# Directions of a face, those with squared slacks of single rows, and rows up to which exchanges are quick.
_MOST_DIRECTIONS, _MOST_SQUARED, _MOST_ROWS = 640, 200, 10_000


class Exchanged(NamedTuple):
    """What `exchange_rows` found, for the first P values of C.

    Attributes
    ----------
    multipliers : ndarray, shape (P, m)
    W : ndarray, shape (P, dx, dz)
    exchanges : ndarray of int, shape (P,)
    """

    multipliers: FloatArray
    W: FloatArray
    exchanges: IntArray


def _order(m: int, q: int, shape: tuple[int, int], penalty: EitherPenalty) -> int:
    """Most directions that are independent: W has its entries and, with squared slacks, one more for each of these."""
    slacks = 0 if penalty.loss == "hinge" else q if penalty.slack == "query" else m
    return min(m, shape[0] * shape[1] + slacks)


def are_few(m: int, q: int, shape: tuple[int, int], penalty: EitherPenalty) -> bool:
    """Whether faces of so many rows, queries and entries of W are small enough for exchanges of single rows.

    Examples
    --------
    >>> from attsvm.solvers import Penalty
    >>> from attsvm.solvers.compiled.exchanges import are_few
    >>> are_few(1800, 200, (16, 16), Penalty(1.0)), are_few(3600, 300, (64, 64), Penalty(1.0))
    (True, False)
    """
    by_row = penalty.loss != "hinge" and penalty.slack == "row"  # nearly every row has a multiplier
    return m <= _MOST_ROWS and _order(m, q, shape, penalty) <= (_MOST_SQUARED if by_row else _MOST_DIRECTIONS)


@cache
def _entry() -> Callable[..., int]:
    entry = _opened().attsvm_exchanges
    whole, array = ctypes.c_int, ctypes.c_void_p
    entry.argtypes = [*8 * [whole], *9 * [array], whole, array]
    return entry


def exchange_rows(rows: PairRows, rhs: FloatArray, penalty: PenaltyBatch, start: FloatArray | None = None) -> Exchanged:
    """Multipliers for every C of a penalty, each from the face of the one before.

    Those that do not settle, and all after them, are left out; so are those that a deadline leaves no time for.

    Parameters
    ----------
    rows : PairRows
        One problem; every row is an inequality.
    rhs : ndarray, shape (m,)
    penalty : PenaltyBatch
        In rising order of C.
    start : ndarray, shape (m,), optional
        Admissible multipliers for the first C to begin with; 0 by default.

    Examples
    --------
    ``min W^2 / 2 + C (2 - W)_+`` has W = min(C, 2):

    >>> import numpy as np
    >>> from attsvm.solvers import PairRows
    >>> from attsvm.solvers.compiled.exchanges import exchange_rows
    >>> from attsvm.solvers.penalty import PenaltyBatch
    >>> exchange_rows(PairRows([[1.0]], [[1.0]], [0]), np.array([2.0]), PenaltyBatch(np.array([1.5, 3.0]))).W.ravel()
    array([1.5, 2. ])
    """
    m, q, (dx, dz), count = rows.m, rows.q, rows.shape, len(penalty.C)
    order = np.argsort(rows.owner, kind="stable")
    most = _order(m, q, (dx, dz), penalty) + 1  # one more: what is told from a face of all dimensions depends on it
    _check_sizes(m, q * q, dx * dz, most * most, count)
    a, queries, sides, C = (_real(part) for part in (rows.a[order], rows.queries, rhs[order], penalty.C))
    fixed: list[npt.NDArray[Any]] = [a, queries, np.ascontiguousarray(rows.owner[order], dtype=np.int64), sides, C]
    first = None if start is None else _real(start[order])
    lam, W, exchanges = np.empty((count, m)), np.empty((count, dx, dz)), np.empty(count, dtype=np.intc)
    stop, done = np.zeros(1, dtype=np.intc), 0

    def run(begin: int, end: int) -> int:
        nonlocal done
        done = _entry()(
            LOSSES.index(penalty.loss), int(penalty.slack == "row"), count, m, dx, q, dz, most, *map(_begin, fixed),
            None if first is None else _begin(first), _begin(lam), _begin(W), _begin(exchanges), _EACH * (m + q),
            _begin(stop),
        )  # fmt: skip
        return int(done >= 0)

    _for_all(run, 1, m * dx, count * m * most, stop)
    found = np.empty((done, m))
    found[:, order] = lam[:done]
    return Exchanged(found, W[:done], exchanges[:done].astype(np.int64))


def _real(part: npt.ArrayLike) -> FloatArray:
    return np.ascontiguousarray(part, dtype=np.float64)
