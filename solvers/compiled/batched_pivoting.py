"""Least Frobenius norms of problems with few rows in C: rows in, multipliers out, one problem or a batch.

`active_set.c` has the method, that of `attsvm.solvers.frobenius.pivoting`, which is used where the library is missing.
It calls no BLAS, so the library is loaded without binding it to that of SciPy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.compiled.kernels import LOSSES, _begin, _check_sizes, _for_all, _MissingError, _opened
from attsvm.solvers.penalty import EitherPenalty, Penalty
from attsvm.solvers.rows.pairs import PairRows

__all__ = ["MOST_ROWS", "Pivoted", "is_available", "pivot_batch", "pivot_one", "pivot_soft", "pivot_soft_batch"]

# Rows up to which loops in C are faster than LAPACK on whole matrices.
MOST_ROWS = 256

_Entry = Callable[..., int]
_in_place = (ctypes.c_char * 0).from_buffer


class Pivoted(NamedTuple):
    """What `pivot_batch` found.

    Attributes
    ----------
    multipliers : ndarray, shape (B, m)
        Of the rows as they are: ``W = sum_k multipliers_k a_k b_k^T``.
    W : ndarray, shape (B, dx, dz)
    settled : ndarray of bool, shape (B,)
        Every row is on its side to within rounding; False for dependent rows.
    rounds : ndarray of int, shape (B,)
        Of pivoting.
    peaks : ndarray, shape (B,)
        Largest multiplier of each problem in units of unit rows whose largest right-hand side is 1.
    """

    multipliers: FloatArray
    W: FloatArray
    settled: BoolArray
    rounds: IntArray
    peaks: FloatArray


@cache
def _loaded() -> _Entry:
    entry = _opened().attsvm_active_set
    whole, array = ctypes.c_int, ctypes.c_void_p
    entry.argtypes = [*5 * [whole], *3 * [array], whole, *7 * [array], whole]
    return entry


@cache
def _soft_entry() -> _Entry:
    entry = _opened().attsvm_soft_active_set
    whole, array = ctypes.c_int, ctypes.c_void_p
    entry.argtypes = [*8 * [whole], *3 * [array], whole, *6 * [array], whole]
    return entry


@cache
def is_available() -> bool:
    """Whether the compiled library is there."""
    try:
        _loaded()
    except _MissingError:
        return False
    return True


def pivot_one(
    rows: PairRows, rhs: FloatArray | None = None, equality: BoolArray | None = None
) -> tuple[FloatArray, bool, int]:
    """Multipliers of one problem, as in `Pivoted`, whether it is settled, and rounds of pivoting.

    Parameters
    ----------
    rows : PairRows
    rhs : ndarray, shape (m,), optional
        1 by default.
    equality : ndarray of bool, shape (m,), optional
        None by default.

    Examples
    --------
    >>> from attsvm.solvers import PairRows
    >>> from attsvm.solvers.compiled.batched_pivoting import pivot_one
    >>> pivot_one(PairRows([[2.0, 0.0], [1.0, 1.0]], [[1.0]], [0, 0]))[:2]
    (array([0. , 0.5]), True)
    """
    m, (dx, dz) = rows.m, rows.shape
    _check_sizes(m, rows.q, dx * dz)
    out, rounds = np.empty(m), ctypes.c_int()
    a, queries = rows.a.astype(np.float64, copy=False), rows.queries.astype(np.float64, copy=False)
    # Bytes are the cheapest way of handing over small arrays: reading an address takes longer than copying them.
    done = _loaded()(
        1, m, dx, rows.q, dz, a.tobytes(), queries.tobytes(), rows.owner.tobytes(), 1,
        None if rhs is None else rhs.tobytes(), None if equality is None else equality.tobytes(), None,
        _in_place(out.data), None, None, ctypes.byref(rounds), 50 + 2 * m,
    )  # fmt: skip
    if not done:
        raise MemoryError(f"no memory for the Gram matrix of {m} rows")
    taken = rounds.value
    return out, taken > 0, abs(taken)


def pivot_batch(
    rows: PairRows,
    rhs: FloatArray | None = None,
    equality: BoolArray | None = None,
    start: BoolArray | None = None,
    limit: int | None = None,
) -> Pivoted:
    """Multipliers of least Frobenius norm of every problem of a batch; zero rows do not count.

    Parameters
    ----------
    rows : PairRows
        Of a batch.
    rhs : ndarray, shape (B, m), optional
        1 by default.
    equality : ndarray of bool, shape (B, m), optional
        Rows whose multiplier may have either sign; none by default.
    start : ndarray of bool, shape (B, m), optional
        Rows believed to be active.
    limit : int, optional
        Rounds of pivoting; ``50 + 2 m`` by default.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import PairRows
    >>> from attsvm.solvers.compiled.batched_pivoting import pivot_batch
    >>> found = pivot_batch(PairRows(np.array([[[2.0]], [[4.0]]]), np.ones((2, 1, 1)), [0]))
    >>> found.W.ravel(), found.settled
    (array([0.5 , 0.25]), array([ True,  True]))
    """
    entry, B, m, (dx, dz) = _loaded(), rows.batch[0], rows.m, rows.shape
    _check_sizes(B, m, rows.q, dx * dz)
    most, shared = 50 + 2 * m if limit is None else limit, rows.owner.ndim == 1
    a, queries = (np.ascontiguousarray(part, dtype=np.float64) for part in (rows.a, rows.queries))
    owner = np.ascontiguousarray(rows.owner)
    given = [None if part is None else np.ascontiguousarray(part) for part in (rhs, equality, start)]
    lam, W, peaks, rounds = np.empty((B, m)), np.empty((B, dx, dz)), np.empty(B), np.empty(B, dtype=np.intc)
    arrays = (a, queries, owner, *given, lam, W, peaks, rounds)
    places = _places(arrays, B)
    if shared:
        places[2] = _begin(owner), 0

    def run(begin: int, end: int) -> int:
        at = [None if place is None else place + begin * step for place, step in places]
        return entry(end - begin, m, dx, rows.q, dz, *at[:3], int(shared), *at[3:], most)

    _for_all(run, B, m * dx)
    return Pivoted(lam, W, rounds > 0, np.abs(rounds).astype(np.int64), peaks)


def pivot_soft(
    rows: PairRows, rhs: FloatArray | None, penalty: Penalty, start: FloatArray | None = None, limit: int | None = None
) -> tuple[FloatArray, FloatArray, bool, int]:
    """A soft margin of inequality rows: multipliers, W, whether it is settled, and rounds of pivoting.

    Rows that are zero do not count.

    Parameters
    ----------
    rows : PairRows
    rhs : ndarray, shape (m,), or None
        None for 1 everywhere.
    penalty : Penalty
    start : ndarray, shape (m,), optional
        Multipliers of a similar problem.
    limit : int, optional
        Rounds of pivoting; ``50 + m`` by default.

    Examples
    --------
    ``min W^2 / 2 + C (2 - W)_+`` has W = C for C < 2:

    >>> import numpy as np
    >>> from attsvm.solvers import PairRows, Penalty
    >>> from attsvm.solvers.compiled.batched_pivoting import pivot_soft
    >>> pivot_soft(PairRows([[1.0]], [[1.0]], [0]), np.array([2.0]), Penalty(1.5))[:3]
    (array([1.5]), array([[1.5]]), True)
    """
    m, (dx, dz) = rows.m, rows.shape
    _check_sizes(m, rows.q, dx * dz)
    lam, W, rounds = np.empty(m), np.empty((dx, dz)), ctypes.c_int()
    a, queries = rows.a.astype(np.float64, copy=False), rows.queries.astype(np.float64, copy=False)
    given = (a, queries, rows.owner, rhs, np.array([penalty.C]), start)
    at = [None if part is None else part.tobytes() for part in given]  # as in `pivot_one`
    done = _soft_entry()(
        *_method(penalty), 0, 1, m, dx, rows.q, dz, *at[:3], 1, *at[3:], _in_place(lam.data), _in_place(W.data),
        ctypes.byref(rounds), 50 + m if limit is None else limit,
    )  # fmt: skip
    if not done:
        raise MemoryError(f"no memory for the Gram matrix of {m} rows")
    taken = rounds.value
    return lam, W, taken > 0, abs(taken)


def pivot_soft_batch(
    rows: PairRows,
    rhs: FloatArray | None,
    penalty: EitherPenalty,
    start: FloatArray | None = None,
    limit: int | None = None,
) -> tuple[FloatArray, FloatArray, BoolArray, IntArray]:
    """`pivot_soft` for every problem of a batch.

    Rows that are one array for all problems (`numpy.broadcast_to`) are read once, and each problem begins with the face
    of the one before: best in rising order of C.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import PairRows
    >>> from attsvm.solvers.compiled.batched_pivoting import pivot_soft_batch
    >>> from attsvm.solvers.penalty import PenaltyBatch
    >>> rows = PairRows(np.ones((2, 1, 1)), np.ones((2, 1, 1)), [0])
    >>> pivot_soft_batch(rows, np.full((2, 1), 2.0), PenaltyBatch(np.array([1.5, 3.0])))[1].ravel()
    array([1.5, 2. ])
    """
    entry, B, m, (dx, dz) = _soft_entry(), rows.batch[0], rows.m, rows.shape
    _check_sizes(B, m, rows.q, dx * dz)
    most, method = 50 + m if limit is None else limit, _method(penalty)
    a, queries = rows.a.astype(np.float64, copy=False), rows.queries.astype(np.float64, copy=False)
    same, shared = all(part is None or part.strides[0] == 0 for part in (a, queries, rhs)), rows.owner.ndim == 1
    lam, W, rounds = np.empty((B, m)), np.empty((B, dx, dz)), np.empty(B, dtype=np.intc)
    rest = (np.full(B, penalty.C), start, lam, W, rounds)
    # Copies must live as long as their addresses.
    arrays = [_whole(part, same) for part in (a, queries)] + [_whole(rows.owner), _whole(rhs, same), *map(_whole, rest)]
    places = _places(arrays, B)
    for k, one in enumerate((same, same, same or shared, same)):  # one for all problems
        places[k] = (places[k][0], 0) if one else places[k]

    def run(begin: int, end: int) -> int:
        at = [None if place is None else place + begin * step for place, step in places]
        return entry(*method, int(same), end - begin, m, dx, rows.q, dz, *at[:3], int(shared), *at[3:], most)

    _for_all(run, B, 0 if same else m * dx)  # one after another where each begins with the one before
    return lam, W, rounds > 0, np.abs(rounds).astype(np.int64)


def _method(penalty: EitherPenalty) -> tuple[int, int]:
    """Loss and kind of slack, as C numbers them."""
    return LOSSES.index(penalty.loss), int(penalty.slack == "row")


def _whole(part: npt.NDArray[Any] | None, once: bool = False) -> npt.NDArray[Any] | None:
    """An array without gaps, as it is where it has none; of the first problem if all have the same."""
    return None if part is None else np.ascontiguousarray(part[0] if once else part)


def _places(arrays: Sequence[npt.NDArray[Any] | None], B: int) -> list[tuple[int | None, int]]:
    """Of every array where it begins and how far its problems are apart."""
    return [(None, 0) if part is None else (_begin(part), part.nbytes // B) for part in arrays]
