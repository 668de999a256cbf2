"""The sets that multipliers live in, and projections on them: nonnegative, boxed, or with capped sums per query.

A projection names the *face* it ends on: rows whose multipliers are free to move, rows that are fixed at a bound, and
queries whose sum is at its cap. On a face everything is linear, which is what Newton's method uses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.penalty import Penalty

__all__ = ["Face", "MultiplierSet"]


@dataclass(frozen=True, eq=False)
class Face:
    """Where a projection ends.

    Attributes
    ----------
    x : ndarray, shape (w,)
        The projection.
    free : ndarray of bool, shape (w,)
        Rows whose multiplier moves with the point that is projected.
    tight : ndarray of bool, shape (q,)
        Queries whose multipliers add up to the cap; empty unless sums are capped.
    """

    x: FloatArray
    free: BoolArray
    tight: BoolArray

    def same(self, other: Face | None) -> bool:
        """Whether two points lie on the same face."""
        return other is not None and np.array_equal(self.free, other.free) and np.array_equal(self.tight, other.tight)


class MultiplierSet:
    """Admissible multipliers of some rows.

    Parameters
    ----------
    owner : ndarray of int, shape (w,)
    q : int
    equality : ndarray of bool, shape (w,)
    penalty : Penalty or None
        None and squared hinges leave multipliers unbounded.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import Penalty
    >>> from attsvm.solvers.frobenius.multiplier_sets import MultiplierSet
    >>> capped = MultiplierSet(np.array([0, 0, 1]), 2, np.zeros(3, dtype=bool), Penalty(1.0))
    >>> face = capped.project(np.array([1.0, 0.6, 0.5]))
    >>> face.x.tolist(), face.tight.tolist()
    ([0.7, 0.29999999999999993, 0.5], [True, False])
    """

    def __init__(self, owner: IntArray, q: int, equality: BoolArray, penalty: Penalty | None) -> None:
        self.owner, self.q, self.equality = owner, q, equality
        self.cap = penalty.C if penalty is not None and penalty.loss == "hinge" else np.inf
        self.by_query = penalty is not None and penalty.slack == "query"
        self._any_equality = bool(equality.any())
        self._untied = np.zeros(0, dtype=bool)

    def project(self, u: FloatArray) -> Face:
        """The nearest admissible multipliers and their face."""
        x = np.where(self.equality, u, np.maximum(u, 0.0)) if self._any_equality else np.maximum(u, 0.0)
        if self.cap == np.inf:
            return Face(x, self._moving(x), self._untied)
        if not self.by_query:
            x = np.clip(x, -self.cap, self.cap)
            return Face(x, self._moving(x) & (np.abs(x) < self.cap), self._untied)
        size = np.abs(x)
        tight = np.bincount(self.owner, weights=size, minlength=self.q) > self.cap
        free = self._moving(x)
        if tight.any():
            rows = np.flatnonzero(tight[self.owner] & (size > 0))
            cut = np.maximum(size[rows] - self._thresholds(size[rows], self.owner[rows])[self.owner[rows]], 0.0)
            x[rows] = np.copysign(cut, x[rows])
            free = np.where(tight[self.owner], x != 0, free)
        return Face(x, free, tight)

    def _moving(self, x: FloatArray) -> BoolArray:
        moving = x != 0
        return np.asarray(moving | self.equality) if self._any_equality else np.asarray(moving)

    def _thresholds(self, size: FloatArray, owner: IntArray) -> FloatArray:
        """What to take from every entry of a query so that the positive rest adds up to the cap, shape (q,)."""
        order = np.lexsort((-size, owner))
        group, values = owner[order], size[order]
        first = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
        counts = np.diff(np.r_[first, len(group)])
        running = np.cumsum(values)
        running -= np.repeat(running[first] - values[first], counts)  # sums inside each query
        place = np.arange(len(group)) - np.repeat(first, counts) + 1
        level = (running - self.cap) / place
        kept = np.add.reduceat((values > level).astype(np.int64), first)  # the entries that stay positive come first
        out = np.zeros(self.q)
        out[group[first]] = level[first + np.maximum(kept, 1) - 1]
        return out
