"""Least Frobenius norm of small problems from their Gram matrices, one or a stack of them.

With unit rows, Gram matrix G and right-hand sides c (the largest of size 1), the multipliers solve

    minimize  1/2 x'Gx - c'x   over  x >= 0  (free on equality rows).

G must be definite on the active rows (dependent rows are for `least_distance`). A set of rows is guessed to be active,
the equations are solved on it, and every row on the wrong side changes sides at once (block principal pivoting, with
Murty's rule against cycling). One problem starts from "all rows active"; a stack starts from the support of a few
accelerated projected gradient steps, which cost a product with G each and leave one or two rounds of pivoting. One
problem of a few dozen rows is left to DAQP, which takes one row at a time but does so in C.

References: Júdice and Pires (1994), Kim and Park (2011) for block principal pivoting; Arnström, Bemporad and Axehill
(2022) for DAQP.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.deadline import late

__all__ = [
    "DAQP_ROWS",
    "SmallResult",
    "SmallResults",
    "by_daqp",
    "guess_active",
    "solve_active",
    "solve_small",
    "solve_small_batch",
]

# Rounds without a new smallest number of misplaced rows before only one row changes sides at a time, which cannot
# cycle (Murty's rule).
_PATIENCE = 3
# Gradient steps of the first guess: more of them cost more than the rounds of pivoting that they save.
_GUESS_STEPS = 22
# Rounds that one problem takes with nothing but the exchange before it is watched for stalling.
_USUAL = 6
# One problem with at most this many rows is solved by DAQP.
DAQP_ROWS = 48
# One problem with fewer rows starts from "all rows active": cheaper than guessing.
_GUESS_ROWS = 100
# A squared Cholesky pivot of unit rows below this means dependent rows, whose multipliers are a matter of choice.
_PIVOT = 1e-11
# A stack of fewer systems is solved one by one: LAPACK calls then cost less than array operations.
_FEW = 12
# Numbers in the Gram matrices worked on at a time.
_CHUNK_NUMBERS = 1 << 21
_EMPTY: FloatArray = np.zeros((1, 0))
# x, objective, exit flag and what else it knows.
_Daqp = Callable[..., tuple[FloatArray, float, int, dict[str, int]]]


class SmallResult(NamedTuple):
    """What `solve_small` found.

    Attributes
    ----------
    x : ndarray, shape (m,)
        Multipliers of the unit rows.
    settled : bool
        Every row is on its side to within rounding; False for dependent rows.
    iterations : int
        Rounds of pivoting.
    """

    x: FloatArray
    settled: bool
    iterations: int


class SmallResults(NamedTuple):
    """What `solve_small_batch` found: as `SmallResult`, with a leading axis."""

    x: FloatArray
    settled: BoolArray
    iterations: IntArray


def solve_small(
    gram: FloatArray,
    c: FloatArray,
    equality: BoolArray | None = None,
    start: BoolArray | None = None,
    limit: int | None = None,
) -> SmallResult:
    """Multipliers of least Frobenius norm.

    Parameters
    ----------
    gram : ndarray, shape (m, m)
        Gram matrix of rows of norm 1.
    c : ndarray, shape (m,)
        Right-hand sides of the unit rows, the largest of size 1.
    equality : ndarray of bool, shape (m,), optional
        Rows whose multiplier may have either sign; none by default.
    start : ndarray of bool, shape (m,), optional
        Rows believed to be active.
    limit : int, optional
        Rounds of pivoting; ``50 + 2 m`` by default.

    Examples
    --------
    Rows at 60 degrees, of which the second asks for little:

    >>> import numpy as np
    >>> from attsvm.solvers.frobenius.pivoting import solve_small
    >>> solve_small(np.array([[1.0, 0.5], [0.5, 1.0]]), np.array([1.0, 0.25])).x
    array([1., 0.])
    """
    if start is None and limit is None and len(c) <= DAQP_ROWS:
        x, ended, rounds = by_daqp(gram, c, equality)
    else:
        if start is None and len(c) >= _GUESS_ROWS:
            free = np.zeros(len(c), dtype=bool) if equality is None else equality
            start = _guess(gram[None], c[None], free[None])[0]
        x, ended, rounds = _pivot_one(gram, c, equality, start, 50 + 2 * len(c) if limit is None else limit)
    if ended:
        return SmallResult(x, True, rounds)
    many = solve_small_batch(gram[None], c[None], None if equality is None else equality[None], None, limit)
    return SmallResult(many.x[0], bool(many.settled[0]), int(many.iterations[0]))


def solve_small_batch(
    gram: FloatArray,
    c: FloatArray,
    equality: BoolArray | None = None,
    start: BoolArray | None = None,
    limit: int | None = None,
) -> SmallResults:
    """`solve_small` over a leading axis of every array.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.frobenius.pivoting import solve_small_batch
    >>> solve_small_batch(np.array([[[1.0, 0.5], [0.5, 1.0]]]), np.array([[1.0, 0.25]])).x
    array([[1., 0.]])
    """
    size, m = c.shape
    most = 50 + 2 * m if limit is None else limit
    out = SmallResults(np.zeros((size, m)), np.zeros(size, dtype=bool), np.zeros(size, dtype=np.int64))
    free = np.zeros((size, m), dtype=bool) if equality is None else equality
    step = max(1, _CHUNK_NUMBERS // (m * m))
    for k in range(0, size, step):
        part = slice(k, k + step)
        active = _guess(gram[part], c[part], free[part]) if start is None else start[part]
        found = _pivot_stack(gram[part], c[part], free[part], active | free[part], most)
        out.x[part], out.settled[part], out.iterations[part] = found
    return out


@lru_cache(maxsize=64)
def _daqp(m: int) -> tuple[_Daqp, FloatArray, FloatArray, FloatArray, npt.NDArray[np.intc]]:
    """DAQP and what it wants beside the data: no general rows, and bounds 0 <= x."""
    import daqp  # once for all calls: looking it up again takes longer than the rest of this

    return daqp.solve, np.zeros((0, m)), np.full(m, 1e30), np.zeros(m), np.zeros(m, dtype=np.intc)


def by_daqp(G: FloatArray, c: FloatArray, equality: BoolArray | None) -> tuple[FloatArray, bool, int]:
    """As `_pivot_one`, in C: faster for a few dozen rows, whose number of steps grows with them."""
    solve, rows, upper, lower, sense = _daqp(c.size)
    if equality is not None:
        lower = np.where(equality, -1e30, 0.0)
    x, _, flag, info = solve(G, -c, rows, upper, lower, sense, eps_prox=0.0, primal_tol=1e-12, dual_tol=1e-12)
    return np.maximum(x, lower), flag == 1, info["iterations"]  # bounds hold up to rounding


def _pivot_one(
    G: FloatArray, c: FloatArray, equality: BoolArray | None, start: BoolArray | None, limit: int
) -> tuple[FloatArray, bool, int]:
    """Multipliers, whether every row is on its side, and rounds; for one problem with independent rows."""
    from scipy.linalg.lapack import dposv

    m = c.size
    active = np.ones(m, dtype=bool) if start is None else start if equality is None else start | equality
    rows, sides = active.nonzero()[0], active.tobytes()
    factor, fault, fewest, stalled, rounding = _EMPTY, 0, m + 1, 0, 1e-14
    for count in range(1, limit + 1):
        if rows.size == m:
            factor, x, fault = dposv(G.T, c)
        else:
            x = np.zeros(m)
            if rows.size:
                factor, x[rows], fault = dposv(G.take(rows, 0).take(rows, 1).T, c.take(rows), 0, 1, 1)
        if fault:
            return x, False, count
        if late():
            break
        # Multipliers of active rows minus slacks of inactive ones: whichever is not 0 decides the side.
        balance = c - G.dot(x)
        balance += x
        if count > _USUAL:  # rounding grows with the multipliers and these with the square of the norm
            rounding = max(1e-14, 1e-15 * math.sqrt(x.dot(x)))
        wanted = balance > rounding
        if equality is not None:
            wanted |= equality
        before, sides = sides, wanted.tobytes()  # the cheapest comparison of short arrays
        if sides == before:
            return x, rows.size == 0 or bool(factor.diagonal().min() ** 2 > _PIVOT), count
        if count > _USUAL:
            swap = (wanted ^ active).nonzero()[0]
            stalled = 0 if swap.size < fewest else stalled + 1
            fewest = min(fewest, swap.size)
            if stalled > _PATIENCE:
                wanted = active.copy()
                wanted[swap[-1]] ^= True
                sides = wanted.tobytes()
        active, rows = wanted, wanted.nonzero()[0]
    return x, False, count


def _guess(G: FloatArray, c: FloatArray, equality: BoolArray) -> BoolArray:
    """Supports after a few accelerated projected gradient steps, in float32: it is but a guess."""
    G, c = G.astype(np.float32), c.astype(np.float32)
    direction = _times(G, c)
    curved = _times(G, direction)
    lengths = np.einsum("bk,bk->b", curved, curved)
    step = 0.8 * np.sqrt(np.einsum("bk,bk->b", direction, direction) / np.maximum(lengths, 1e-30))[:, None]
    floor = np.where(equality, -np.inf, 0.0).astype(np.float32)
    x = point = np.zeros_like(c)
    for k in range(_GUESS_STEPS):
        moved = _times(G, point)
        np.subtract(c, moved, out=moved)
        moved *= step
        moved += point
        np.maximum(moved, floor, out=moved)
        point = moved - x
        point *= k / (k + 3.0)
        point += moved
        x = moved
    return np.asarray((x > 0) | equality)


def guess_active(G: FloatArray, c: FloatArray, equality: BoolArray) -> FloatArray:
    """1 for each row that is guessed to be active, of one problem; shape (m,).

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.frobenius.pivoting import guess_active
    >>> guess_active(np.array([[1.0, 0.9], [0.9, 1.0]]), np.array([1.0, 0.5]), np.zeros(2, dtype=bool))
    array([1., 0.])
    """
    return np.asarray(_guess(G[None], c[None], equality[None])[0], dtype=np.float64)


def _times(G: FloatArray, x: FloatArray) -> FloatArray:
    return np.asarray(np.matmul(G, x[:, :, None])[:, :, 0])


def _pivot_stack(G: FloatArray, c: FloatArray, equality: BoolArray, active: BoolArray, limit: int) -> SmallResults:
    """Block pivoting in lockstep; problems leave the stack when they settle or their rows turn out dependent."""
    size, m = c.shape
    out = SmallResults(np.zeros((size, m)), np.zeros(size, dtype=bool), np.zeros(size, dtype=np.int64))
    live, index = np.arange(size), np.arange(m)
    fewest, stalled = np.full(size, m + 1), np.zeros(size, dtype=np.int64)
    for count in range(1, limit + 1):
        x, pivot = solve_active(G, c, active)
        balance = c - _times(G, x)
        balance += x
        wanted = balance > np.maximum(1e-14, 1e-15 * np.sqrt(np.einsum("bk,bk->b", x, x)))[:, None]
        wanted |= equality
        swap = wanted != active
        misplaced = swap.sum(axis=1)
        good = pivot > _PIVOT
        leaves = (misplaced == 0) | ~good
        if leaves.any():
            where = live[leaves]
            out.x[where], out.iterations[where] = x[leaves], count
            out.settled[where] = good[leaves]
            stay = ~leaves
            live = live[stay]
            if len(live) == 0:
                break
            G, c, equality, active, wanted, swap, x = (f[stay] for f in (G, c, equality, active, wanted, swap, x))
            fewest, stalled, misplaced = fewest[stay], stalled[stay], misplaced[stay]
        stalled = np.where(misplaced < fewest, 0, stalled + 1)
        fewest = np.minimum(fewest, misplaced)
        stuck = stalled > _PATIENCE
        if stuck.any():
            last = index == np.where(swap, index, -1).max(axis=1, keepdims=True)
            wanted = np.where(stuck[:, None], active ^ last, wanted)
        active = wanted
        if late():
            break
    if len(live):  # out of rounds or of time: where they stood
        out.x[live], out.iterations[live] = x, count
    return out


def solve_active(G: FloatArray, c: FloatArray, active: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Solutions of the equations of the active rows and the smallest squared Cholesky pivots, over a batch.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.frobenius.pivoting import solve_active
    >>> solve_active(np.array([[[1.0, 0.5], [0.5, 1.0]]]), np.ones((1, 2)), np.array([[True, False]]))[0]
    array([[1., 0.]])
    """
    size, m = c.shape
    counts = active.sum(axis=1)
    k = int(counts.max())
    x = np.zeros((size, m))
    if k == 0:
        return x, np.ones(size)
    order = np.argsort(~active, axis=1, kind="stable")[:, :k]  # active rows first, then others to fill up
    corner = (order + np.arange(0, size * m, m)[:, None]) * m
    system = G.reshape(-1).take(corner[:, :, None] + order[:, None, :])
    right = np.take_along_axis(c, order, axis=1)
    if size < _FEW:
        inner, pivot = _solve_each(system, right, counts)
    else:
        inner, pivot = _solve_together(system, right, np.arange(k) < counts[:, None])
    np.put_along_axis(x, order, inner, axis=1)
    return x, pivot


def _solve_each(system: FloatArray, right: FloatArray, counts: IntArray) -> tuple[FloatArray, FloatArray]:
    from scipy.linalg.lapack import dposv

    inner, pivot = np.zeros_like(right), np.ones(len(right))
    for i, k in enumerate(counts.tolist()):
        if k:
            factor, inner[i, :k], fault = dposv(system[i, :k, :k].T, right[i, :k])
            pivot[i] = 0.0 if fault else factor.diagonal().min() ** 2
    return inner, pivot


def _solve_together(system: FloatArray, right: FloatArray, used: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Cholesky factors of the systems bordered by the right-hand sides, then back substitution in lockstep."""
    size, k = right.shape
    bordered = np.zeros((size, k + 1, k + 1))
    if used.all():
        bordered[:, :k, :k] = system
        bordered[:, k, :k] = right
    else:
        np.multiply(system, used[:, :, None], out=bordered[:, :k, :k])
        bordered[:, :k, :k] *= used[:, None, :]
        np.multiply(right, used, out=bordered[:, k, :k])
        bordered[:, np.arange(k), np.arange(k)] += ~used
    bordered[:, k, k] = 1e300  # above any |L^-1 right|^2, so that the last row of the factor is L^-1 right
    factor = _cholesky(bordered)
    diagonal = factor[:, np.arange(k), np.arange(k)]
    columns = np.ascontiguousarray(factor.transpose(1, 2, 0))  # problems last: long inner loops
    x = columns[k, :k]
    for i in range(k - 1, -1, -1):
        x[i] /= columns[i, i]
        x[:i] -= columns[i, :i] * x[i]
    return x.T, diagonal.min(axis=1) ** 2


def _cholesky(stack: FloatArray) -> FloatArray:
    """Lower factors; a matrix without a factor gets one whose pivots are too small to be believed."""
    try:
        return np.asarray(np.linalg.cholesky(stack), dtype=np.float64)
    except np.linalg.LinAlgError:
        if len(stack) == 1:
            return np.asarray(np.eye(stack.shape[1])[None] * _PIVOT)
        half = len(stack) // 2
        return np.concatenate([_cholesky(stack[:half]), _cholesky(stack[half:])])
