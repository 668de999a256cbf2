"""Rows for coordinate descent on soft margins: what of them fits into memory, and equalities as two inequalities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.solvers.margin_problem import MarginProblem
from attsvm.solvers.memory import allowed_memory, too_large
from attsvm.solvers.rows.normal_matrix import CHUNK_NUMBERS
from attsvm.solvers.rows.pairs import PairRows

__all__ = ["FIRST_ROWS", "BothSigns", "SoftMemory", "largest_of_each", "plan_memory"]

# Order of the largest linear system.
_LARGEST_SYSTEM = 8000
# Vectors of one number per row that a solve holds at once.
_VECTORS = 16
# Rows of each query that a working set begins with.
FIRST_ROWS = 8
# Share of the memory that rows may take where not all of them fit.
_SHARE_OF_ROWS = 0.7


@dataclass(frozen=True)
class SoftMemory:
    """How a solve divides the memory that it may take.

    Attributes
    ----------
    rows : int
        Rows that are written out at a time.
    left : float
        Bytes for linear systems.
    """

    rows: int
    left: float

    def order(self, shape: tuple[int, int]) -> int:
        """Order of the largest system in multipliers: its matrix, and the factors of its rows while it is formed."""
        fits = (self.left / 8.0) ** 0.5 - 2.0 * sum(shape)
        return int(min(_LARGEST_SYSTEM, max(0.0, fits)))

    def holds_entries(self, m: int, shape: tuple[int, int]) -> bool:
        """Whether systems in the entries of W fit, with the working memory of m rows."""
        entries = shape[0] * shape[1]
        need = 8.0 * (4.0 * entries * entries + m * (4.0 * shape[0] + 20.0) + 3.0 * CHUNK_NUMBERS)
        return entries <= _LARGEST_SYSTEM and need <= self.left


def plan_memory(problem: MarginProblem, limit: object) -> SoftMemory:
    """Divide the memory that a solve may take; refuse one for which too little is left.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.frobenius.soft_rows import plan_memory
    >>> plan_memory(MarginProblem([[1.0]], [[1.0]], [0]), 1e6).rows
    1
    """
    allowed = allowed_memory(limit)
    dx, dz = problem.shape
    m = problem.m + int(np.count_nonzero(problem.equality))  # equalities count twice
    if allowed is None:
        return SoftMemory(m, np.inf)
    copies = 1 if isinstance(problem.rows, PairRows) and m == problem.m else 2  # of rows that are gathered
    fixed = 8.0 * (_VECTORS * m + problem.q * (dx + dz + 4) + 6 * dx * dz)
    each = 8.0 * (copies * dx + 8)
    fewest = min(m, FIRST_ROWS * problem.q)
    if fixed + each * fewest > allowed:
        raise too_large(problem, fixed + each * fewest, allowed, limit is not None)
    share = 1.0 if fixed + each * m <= allowed else _SHARE_OF_ROWS
    rows = int(min(m, max(fewest, share * (allowed - fixed) / each)))
    return SoftMemory(rows, max(0.0, allowed - fixed - each * rows))


class BothSigns:
    """Rows in which an equality counts as two opposite inequalities.

    Attributes
    ----------
    source : ndarray of int, shape (m',)
        The row of the problem that each comes from.
    sign : ndarray, shape (m',)
    """

    def __init__(self, problem: MarginProblem) -> None:
        self.problem = problem
        equal = np.flatnonzero(problem.equality)
        self.source: IntArray = np.concatenate([np.arange(problem.m), equal])
        self.sign = np.ones(len(self.source))
        self.sign[problem.m :] = -1.0
        self.plain = not len(equal)
        self.rhs = problem.rhs if self.plain else problem.rhs[self.source] * self.sign
        self.owner = problem.owner if self.plain else problem.owner[self.source]

    def values(self, W: FloatArray) -> FloatArray:
        """Of all of them at W, shape (m',)."""
        values = self.problem.margins(W)
        return values if self.plain else values[self.source] * self.sign

    def gather(self, index: IntArray) -> PairRows:
        """Some of them, written out."""
        if len(index) == self.problem.m and self.plain and isinstance(self.problem.rows, PairRows):
            return self.problem.rows
        pair = self.problem.rows.gather(self.source[index])
        if self.plain:
            return pair
        a = pair.a.astype(np.float64) * self.sign[index][:, None]
        return PairRows.trusted(a, pair.queries, pair.owner)

    def split(self, lam: FloatArray) -> FloatArray:
        """Multipliers of theirs from multipliers of the problem, which have any sign on equality rows."""
        return np.maximum(lam[self.source] * self.sign, 0.0)

    def join(self, lam: FloatArray) -> FloatArray:
        """Multipliers of the problem from multipliers of theirs."""
        joined = lam[: self.problem.m].copy()
        np.add.at(joined, self.source[self.problem.m :], -lam[self.problem.m :])
        return joined


def largest_of_each(short: FloatArray, owner: IntArray, each: int) -> IntArray:
    """The ``each`` largest entries of every query, sorted."""
    order = np.lexsort((-short, owner))
    group = owner[order]
    first = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    place = np.arange(len(order)) - np.repeat(first, np.diff(np.r_[first, len(order)]))
    return np.sort(order[place < each])
