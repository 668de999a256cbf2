"""The sets that multipliers live in, and projections on them: nonnegative, boxed, or with capped sums per query.

A projection names the *face* it ends on: rows whose multipliers are free to move, rows that are fixed at a bound, and
queries whose sum is at its cap. On a face everything is linear, which is what Newton's method uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.margin_problem import MarginProblem
from attsvm.solvers.penalty import Penalty
from attsvm.solvers.rows.pairs import PairRows

__all__ = ["Face", "FaceSystem", "Iterate", "Metric", "MultiplierSet", "ProximalNewton"]


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
    >>> from attsvm.solvers.frobenius.proximal_newton import MultiplierSet
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
    >>> from attsvm.solvers.frobenius.proximal_newton import FaceSystem
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


# Proximal weights that float32 can tell from rounding, and free rows above which that is faster.
_SINGLE, _SMALL = 1e-5, 300


@dataclass(frozen=True, eq=False)
class Iterate:
    """A matrix with its values on all rows.

    Attributes
    ----------
    W : ndarray, shape (dx, dz)
    dual : ndarray, shape (dx, dz)
        The combination of rows that W comes from: W itself, unless a metric stands between the two.
    paid : ndarray, shape (q,) or (m,)
        Slacks of a squared hinge, which count as further coordinates of W; empty otherwise.
    values : ndarray, shape (m,)
        ``F W``, slacks included.
    square : float
        ``|W|^2``, slacks included.
    """

    W: FloatArray
    dual: FloatArray
    paid: FloatArray
    values: FloatArray
    square: float


class ProximalNewton:
    """Newton's method for the smooth problem of one proximal term, on a working set of rows.

    With a metric the norm is ``<W, M^-1 W>^1/2`` in place of the Frobenius norm, and ``W = M(W(x))``.
    """

    def __init__(self, problem: MarginProblem, metric: Metric | None = None) -> None:
        self.problem, self.rows, self.metric = problem, problem.rows, metric
        penalty = problem.single_penalty
        self.penalty = penalty
        self.squared = penalty is not None and penalty.loss == "squared_hinge"
        # One squared slack per row is a proximal term around 0 by itself: no other is needed.
        self.natural = self.squared and penalty is not None and penalty.slack == "row"
        self.squared = self.squared and not self.natural
        self.by_query = penalty is not None and penalty.slack == "query"
        self.cap = np.inf if penalty is None or penalty.loss != "hinge" else penalty.C
        owner, squares = self.rows.owner, self.rows.row_norms**2
        counts = np.bincount(owner, minlength=self.rows.q)
        self.weight = np.bincount(owner, weights=squares, minlength=self.rows.q) / np.maximum(counts, 1)
        self.weight[self.weight == 0] = float(squares.max()) or 1.0
        if metric is not None:
            self.weight *= metric.scale
        self.x = np.zeros(self.rows.m)  # multipliers now
        self.center = np.zeros(self.rows.m)  # multipliers that the proximal term holds on to
        self.index = np.zeros(0, dtype=np.int64)
        self.here = self._iterate(np.zeros(self.rows.shape), np.zeros(self.rows.m))
        self.factorizations, self.singular = 0, False
        self.face: Face | None = None
        self.free_rows, self.scale = 0, 0.0

    # -- the working set --------------------------------------------------------------------------

    def admit(self, index: IntArray) -> None:
        """Let further rows into the working set."""
        self.index = np.union1d(self.index, index)
        self.set = MultiplierSet(
            self.rows.owner[self.index], self.rows.q, self.problem.equality[self.index], self.penalty
        )
        self.face = None

    def missing(self, each: int, least: float) -> IntArray:
        """The ``each`` most violated rows of every query that are not in the working set and miss by over ``least``."""
        short = self.problem.rhs - self.here.values
        if self.cap < np.inf and self.by_query:  # the slack of the query covers its other rows, too
            paid = np.zeros(self.rows.q)
            np.maximum.at(paid, self.rows.owner[self.index], np.maximum(short[self.index], 0.0))
            short = short - paid[self.rows.owner]
        short[self.index] = -np.inf
        rows = np.flatnonzero(short > least)
        order = rows[np.lexsort((-short[rows], self.rows.owner[rows]))]
        owner = self.rows.owner[order]
        first = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]]) if len(order) else np.zeros(0, dtype=np.int64)
        place = np.arange(len(order)) - np.repeat(first, np.diff(np.r_[first, len(order)]))
        return order[place < each]

    def admissible(self, x: FloatArray) -> FloatArray:
        """Multipliers of all rows cut to what is admissible."""
        x = self.problem.clipped(x)
        return x if self.penalty is None else self.penalty.admissible(x, self.rows.owner, self.rows.q)

    def hold(self) -> None:
        """Center the proximal term at the multipliers that were reached."""
        if not self.natural:
            self.center = self.x

    @property
    def bound(self) -> float:
        """What the multipliers prove of the norm from below; 0 for soft margins."""
        dual = self.rows.adjoint(self.x)
        size = float(np.vdot(dual if self.metric is None else self.metric.apply(dual), dual)) ** 0.5
        return float(self.problem.rhs @ self.x) / size if size > 0 and self.penalty is None else 0.0

    # -- points -------------------------------------------------------------------------------------

    def _iterate(self, dual: FloatArray, v: FloatArray) -> Iterate:
        """The W of a combination of rows; ``v`` are the multipliers of slacks of a squared hinge."""
        W = dual if self.metric is None else self.metric.apply(dual)
        values = self.rows.margins(W)
        square = float(np.vdot(W, dual))
        if not self.squared:
            return Iterate(W, dual, np.zeros(0), values, square)
        assert self.penalty is not None
        half = 0.5 / self.penalty.C
        if self.by_query:
            paid = np.asarray(half * np.bincount(self.rows.owner, weights=v, minlength=self.rows.q), dtype=np.float64)
            return Iterate(W, dual, paid, values + paid[self.rows.owner], square + float(paid @ paid) / half)
        paid = half * v
        return Iterate(W, dual, paid, values + paid, square + float(paid @ paid) / half)

    def move_to(self, first: FloatArray) -> None:
        """Start from the best multiple of the W of some multipliers, shape (m,)."""
        dual = self.rows.adjoint(first)
        square = self._iterate(dual, np.zeros(self.rows.m)).square
        self.scale = max(0.0, float(self.problem.rhs @ first)) / square if square > 0 else 0.0
        self.here = self._iterate(dual * self.scale, np.zeros(self.rows.m))

    def begin_at(self, x: FloatArray, dual: FloatArray) -> None:
        """Start from multipliers of all rows, shape (m,), and their combination; all rows are in the working set."""
        self.admit(np.arange(self.rows.m))
        self.x = x
        self.hold()
        self.here = self._iterate(dual, x)

    def _inner(self, one: Iterate, other: Iterate) -> float:
        product = float(np.vdot(one.dual, other.W))
        if self.squared:
            assert self.penalty is not None
            product += 2.0 * self.penalty.C * float(one.paid @ other.paid)
        return product

    def _ridge(self, rho: float) -> FloatArray:
        if self.natural:
            assert self.penalty is not None
            return np.full(len(self.index), 0.5 / self.penalty.C)
        return rho * self.weight[self.rows.owner[self.index]]

    def _shifted(self, values: FloatArray, ridge: FloatArray) -> FloatArray:
        """``u``, whose projection are the multipliers."""
        return np.asarray(self.center[self.index] + (self.problem.rhs - values)[self.index] / ridge)

    # -- Newton ---------------------------------------------------------------------------------------

    def newton(self, rho: float, steps: int, loose: float, late: Callable[[], bool] | None = None) -> bool:
        """Newton steps for the proximal weight ``rho``; True when the face settled, ``loose`` of its rows forgiven.

        ``late`` is asked before every step but the first; True ends it where it is.
        """
        ridge = self._ridge(rho)
        face = self.set.project(self._shifted(self.here.values, ridge))
        for step in range(steps):
            if step and late is not None and late():
                break
            full = self._step(face, ridge, single=rho >= _SINGLE and not self.natural)
            if full is None:  # no factor at this proximal weight: it is as small as rounding lets it be
                self.singular = True
                break
            trial = self._iterate(full[1], full[0])
            ahead = self.set.project(self._shifted(trial.values, ridge))
            changed = int(np.count_nonzero(ahead.free != face.free)) + int(np.count_nonzero(ahead.tight != face.tight))
            free = int(np.count_nonzero(face.free))
            promised = float(face.x @ (trial.values - self.here.values)[self.index]) + self.here.square
            promised -= self._inner(self.here, trial)
            at_rest = promised <= 1e-14 * (trial.square + float(np.abs(self.problem.rhs[self.index]) @ np.abs(face.x)))
            self.here, face = (trial, ahead) if at_rest else self._search(trial, ahead, ridge)
            self.free_rows = int(np.count_nonzero(face.free))
            if at_rest or (changed <= loose * free and face is ahead):
                self._settle(face)
                if at_rest or changed == 0:  # on the face itself: the projection would bring in the rounding of u
                    self.x = self.admissible(full[0])
                return True
        self._settle(face)
        return False

    def _step(self, face: Face, ridge: FloatArray, single: bool) -> tuple[FloatArray, FloatArray] | None:
        """Multipliers of all rows that solve the equations of the face, and their combination; None when singular."""
        target, dual, v = self._linear(face, ridge)
        free = np.flatnonzero(face.free)
        if len(free):
            system = self._system(face, free, ridge, single=single and len(free) > _SMALL)
            self.factorizations += 1
            if system.fault and system.single:
                system = self._system(face, free, ridge)
            if system.fault:
                return None
            v = v.copy()
            v[free] = system.solve(target, self.cap if self.cap < np.inf else 0.0)
            dual = dual + system.adjoint(v[free])
        full = np.zeros(self.rows.m)
        full[self.index] = v
        return full, dual

    def _settle(self, face: Face) -> None:
        self.face = face
        self.x = np.zeros(self.rows.m)
        self.x[self.index] = face.x

    def _linear(self, face: Face, ridge: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Right-hand side on the free rows, and combination and multipliers of the rows fixed at a bound."""
        target = (self.problem.rhs[self.index] + ridge * self.center[self.index])[face.free]
        fixed = np.where(face.free, 0.0, face.x)
        dual = np.zeros(self.rows.shape)
        if fixed.any():
            full = np.zeros(self.rows.m)
            full[self.index] = fixed
            dual = self.rows.adjoint(full)
            W = dual if self.metric is None else self.metric.apply(dual)
            target = target - self.rows.margins(W)[self.index[face.free]]
        return target, dual, fixed

    def _system(self, face: Face, free: IntArray, ridge: FloatArray, single: bool = False) -> FaceSystem:
        pair = self.rows.gather(self.index[free])
        tied: BoolArray = face.tight[pair.owner] if len(face.tight) else np.zeros(len(free), dtype=bool)
        leader = face.x[free]
        signs = np.where(leader < 0, -1.0, 1.0)
        penalty = None if self.natural else self.penalty
        return FaceSystem(pair, ridge[free], penalty, signs, tied, leader, self.metric, single)

    def _search(self, trial: Iterate, ahead: Face, ridge: FloatArray) -> tuple[Iterate, Face]:
        """The point on the way to ``trial`` where the smooth function is least (its derivative is monotone)."""
        here, index = self.here, self.index
        change = trial.values - here.values
        rise = change[index]
        start, curve = self._inner(here, trial) - here.square, here.square + trial.square
        curve -= 2.0 * self._inner(here, trial)

        def derivative(t: float, face: Face) -> float:
            return start + t * curve - float(face.x @ rise)

        end = derivative(1.0, ahead)
        if end <= 1e-12 * (abs(start) + abs(curve) + trial.square):
            return trial, ahead
        u0, u1 = self._shifted(here.values, ridge), self._shifted(trial.values, ridge)
        t = self._zero(lambda t: derivative(t, self.set.project(u0 + t * (u1 - u0))), end)
        paid = here.paid + t * (trial.paid - here.paid)
        W = here.W + t * (trial.W - here.W)
        dual = W if self.metric is None else here.dual + t * (trial.dual - here.dual)
        square = here.square + 2.0 * t * start + t * t * curve
        point = Iterate(W, dual, paid, here.values + t * change, square)
        return point, self.set.project(u0 + t * (u1 - u0))

    @staticmethod
    def _zero(derivative: Callable[[float], float], end: float) -> float:
        """Where an increasing function that ends at ``end`` > 0 is 0, by false position and, where that lags, halving.

        A hundredth of the slope at the start may be left: the next step starts from there anyway.
        """
        low, high, at_high = 0.0, 1.0, end
        first = at_low = derivative(0.0)
        if not first < 0.0:
            return 0.0
        for k in range(30):
            share = at_low / (at_low - at_high) if k % 3 < 2 else 0.5
            t = low + min(max(share, 0.01), 0.99) * (high - low)
            slope = derivative(t)
            if abs(slope) <= 0.01 * abs(first):
                break
            if slope < 0.0:
                low, at_low = t, slope
            else:
                high, at_high = t, slope
        return t

    # -- the end --------------------------------------------------------------------------------------

    def refined(self, rho: float, refinements: int) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Multipliers and W of the face that was reached, with its equations refined: W is corrected, not summed up.

        The proximal term is only a preconditioner here. Yields the multipliers with what refinement made negative cut
        away, and W; first as reached, then refined.
        """
        face, x = self.face, self.x
        yield x, self.rows.adjoint(x)
        if face is None or not refinements:  # rows joined since, or no time is left
            return
        free = np.flatnonzero(face.free)
        if not len(free):
            return
        ridge = self._ridge(rho) * (1.0 if self.natural else 1e-4)
        system = self._system(face, free, ridge)
        self.factorizations += 1
        if system.fault:
            return
        rows = self.index[free]
        target = self.problem.rhs[rows]
        W = self.rows.adjoint(x)
        v = x[rows]
        total = x.copy()
        for _ in range(refinements):
            rest = target - system.margins(W) - system.softness(v) - (ridge[free] * v if self.natural else 0.0)
            change = system.solve(rest, 0.0)
            v = v + change
            W = W + system.adjoint(change)
            total[rows] = v
            yield self.admissible(total), W
