"""The linear system of one Newton step: multipliers that are free on a face, with the Gram matrix of their rows.

For rows S that are free, ``(G_SS + R) v_S = t_S``, where R holds the diagonal of the proximal term and, for squared
hinges, ``1 / (2 C)`` on the diagonal or on the block of each query. Where the multipliers of a query add up to its cap,
the largest of them follows from the others and is eliminated: rows of one query share their right factor, so this is a
difference of rows.

The lower half of the matrix is formed by blocks, factored in place, and thrown away: one matrix of |S|^2 numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import BoolArray, FloatArray
from attsvm.solvers.penalty import Penalty
from attsvm.solvers.rows.pairs import PairRows

__all__ = ["FaceSystem", "Metric"]

# Rows of the Gram matrix that are formed at once.
_BLOCK = 256


@dataclass(frozen=True, eq=False)
class Metric:
    """The metric ``M(D) = (left D + D right) / 2`` of symmetric positive matrices.

    Attributes
    ----------
    left : ndarray, shape (dx, dx)
    right : ndarray, shape (dz, dz)
    """

    left: FloatArray
    right: FloatArray

    @property
    def scale(self) -> float:
        """By how much it stretches on average."""
        return 0.5 * float(np.trace(self.left) / len(self.left) + np.trace(self.right) / len(self.right))

    def apply(self, D: FloatArray) -> FloatArray:
        """``M(D)``, shape (dx, dz)."""
        return np.asarray(0.5 * (self.left @ D + D @ self.right))


class FaceSystem:
    """``G_SS + R`` of free rows in factored form.

    Parameters
    ----------
    pair : PairRows
        The free rows.
    ridge : ndarray, shape (s,)
        Diagonal of the proximal term.
    penalty : Penalty or None
        Adds its curvature (squared hinge).
    signs : ndarray, shape (s,)
        Signs of the multipliers, for sums at their caps.
    tied : ndarray of bool, shape (s,)
        Rows of queries whose sum is at its cap.
    leader : ndarray, shape (s,)
        The largest of the rows of each query is eliminated.
    metric : Metric, optional
        Of the space that the rows act on; the Frobenius product by default.
    single : bool
        Form and factor the matrix in float32: half the memory and the time, for steps that need no accuracy.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import PairRows
    >>> from attsvm.solvers.frobenius.face_system import FaceSystem
    >>> rows = PairRows(np.eye(2), [[1.0]], [0, 0])
    >>> system = FaceSystem(rows, np.zeros(2), None, np.ones(2), np.zeros(2, dtype=bool), np.ones(2))
    >>> system.solve(np.array([1.0, 2.0]), 0.0)
    array([1., 2.])
    """

    def __init__(
        self,
        pair: PairRows,
        ridge: FloatArray,
        penalty: Penalty | None,
        signs: FloatArray,
        tied: BoolArray,
        leader: FloatArray,
        metric: Metric | None = None,
        single: bool = False,
    ) -> None:
        self.a = pair.a.astype(np.float64, copy=False)
        self.owner, self.single = pair.owner, single
        self.b = pair.queries.take(pair.owner, axis=0).astype(np.float64, copy=False)
        self.ridge, self.signs, self.metric = ridge, signs, metric
        self.curvature = 0.0 if penalty is None or penalty.loss == "hinge" else 0.5 / penalty.C
        self.joint = penalty is not None and penalty.slack == "query"
        self._choose(tied, leader)
        self.fault = self._factor()

    def _choose(self, tied: BoolArray, leader: FloatArray) -> None:
        """Which row of each tied query is eliminated, and the place of it for the others of the query."""
        self.kept, self.heads = np.arange(len(self.a)), np.zeros(0, dtype=np.int64)
        self.followers, self.follows = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        if not tied.any():
            return
        rows = np.flatnonzero(tied)
        order = rows[np.lexsort((-np.abs(leader[rows]), self.owner[rows]))]
        first = np.r_[True, self.owner[order][1:] != self.owner[order][:-1]]
        self.heads = order[first]
        which = np.cumsum(first) - 1
        others = order[~first]
        head_of = np.full(len(self.a), -1)
        head_of[others] = self.heads[which[~first]]
        self.kept = np.setdiff1d(self.kept, self.heads)
        self.followers = np.flatnonzero(head_of[self.kept] >= 0)  # places among the kept rows
        self.follows = head_of[self.kept[self.followers]]

    def _factor(self) -> int:
        from scipy.linalg.lapack import dpotrf, spotrf

        a, b, k, owner = self.a[self.kept], self.b[self.kept], self.kept, self.owner[self.kept]
        if len(self.followers):  # differences with the row that is eliminated; it shares the right factor
            sign = self.signs[k[self.followers]] * self.signs[self.follows]
            a = a.copy()
            a[self.followers] -= sign[:, None] * self.a[self.follows]
        n = len(k)
        if not n:
            return 0
        kind: type[np.floating[Any]] = np.float32 if self.single else np.float64
        gram: npt.NDArray[np.floating[Any]] = np.empty((n, n), dtype=kind)
        pair = (a, b) if self.metric is None else (a @ self.metric.left, b @ self.metric.right)
        left, right = a.astype(kind, copy=False), b.astype(kind, copy=False)
        a_right, b_right = pair[0].astype(kind, copy=False), pair[1].astype(kind, copy=False)
        for start in range(0, n, _BLOCK):
            rows = slice(start, min(start + _BLOCK, n))
            part = gram[rows, : rows.stop]
            np.matmul(a_right[rows], left[: rows.stop].T, out=part)
            part *= right[rows] @ right[: rows.stop].T
            if self.metric is not None:
                other = left[rows] @ left[: rows.stop].T
                other *= b_right[rows] @ right[: rows.stop].T
                part += other
                part *= 0.5
            if self.curvature and self.joint:
                part += kind(self.curvature) * (owner[rows, None] == owner[None, : rows.stop])
        diagonal = gram.ravel()[:: n + 1]
        diagonal += self.ridge[k] + (0.0 if self.joint else self.curvature)
        if len(self.followers):
            self._add_ridge_of_heads(gram, sign)
        self.factor, fault = (spotrf if self.single else dpotrf)(gram.T, lower=0, overwrite_a=1, clean=0)
        return int(fault)

    def _add_ridge_of_heads(self, gram: npt.NDArray[np.floating[Any]], sign: FloatArray) -> None:
        """The eliminated rows' own diagonal, which rows of the same query now share."""
        order = np.argsort(self.follows, kind="stable")
        place, head, s = self.followers[order], self.follows[order], sign[order]
        start = 0
        while start < len(head):
            stop = int(np.searchsorted(head, head[start], side="right"))
            rows = place[start:stop]
            gram[np.ix_(rows, rows)] += self.ridge[head[start]] * np.outer(s[start:stop], s[start:stop])
            start = stop

    def _product(self, v: FloatArray) -> FloatArray:
        """``(G_SS + R) v`` without the matrix."""
        dual = self.adjoint(v)
        W = dual if self.metric is None else self.metric.apply(dual)
        return self.margins(W) + self.ridge * v + self.softness(v)

    def softness(self, v: FloatArray) -> FloatArray:
        """The slack of squared hinges from the multipliers of the free rows, row by row."""
        if not self.curvature:
            return np.zeros(len(v))
        loads = np.bincount(self.owner, weights=v)[self.owner] if self.joint else v
        return np.asarray(self.curvature * loads)

    def solve(self, target: FloatArray, cap: float, refinements: int = 0) -> FloatArray:
        """The multipliers of the free rows for ``target``; sums of tied queries equal ``cap``."""
        from scipy.linalg.lapack import dpotrs, spotrs

        v = np.zeros(len(self.a))
        v[self.heads] = self.signs[self.heads] * cap
        for _ in range(refinements + 1):
            rest = target - self._product(v) if v.any() else target
            short = rest[self.kept]
            if len(self.followers):
                sign = self.signs[self.kept[self.followers]] * self.signs[self.follows]
                short[self.followers] -= sign * rest[self.follows]
            if not len(short):  # every multiplier is a cap
                break
            change, _ = (spotrs if self.single else dpotrs)(self.factor, short, lower=0)
            v[self.kept] += change
            if len(self.followers):
                np.subtract.at(v, self.follows, sign * change[self.followers])
        return v

    def adjoint(self, v: FloatArray) -> FloatArray:
        """``sum_k v_k a_k b_k^T`` over the free rows."""
        return np.asarray((self.a * v[:, None]).T @ self.b)

    def margins(self, W: FloatArray) -> FloatArray:
        """Values of the free rows at W."""
        return np.asarray(np.einsum("kd,kd->k", self.a @ W, self.b))
