"""Least norm of very many rows by pivoting, with products alone: no matrix of rows is ever formed.

The dual is ``max c . x - |W(x)|^2 / 2`` over ``x >= 0`` (free on equality rows). Each round solves the equations
``F_S W(x) = c_S`` on a set S of rows by conjugate gradients, no more accurately than the next change of S deserves;
then rows with negative multipliers leave S and the most violated row of every query joins (a primal-dual active-set
method). Products run in float32 with residuals in float64, and a preconditioner of a few hundred features
(`row_features`) makes ten of them enough in all rounds but the last.

Pivoting need not end: `ProductPivoting.stalled` says that it goes round, and then another method takes over.

M. Hintermuller, K. Ito and K. Kunisch, "The primal-dual active set strategy as a semismooth Newton method", SIAM J.
Optimization 13 (2002).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.solvers.conjugate_gradient import Descended, conjugate_gradient
from attsvm.solvers.frobenius.face_system import Metric
from attsvm.solvers.frobenius.row_features import FeatureBasis, FeaturePreconditioner
from attsvm.solvers.problem import MarginProblem
from attsvm.solvers.rows.protocol import Rows
from attsvm.solvers.rows.shared import SharedRows

__all__ = ["ProductPivoting"]

# Features of the preconditioner, at least and at most, and free rows for each.
FEATURES, _MOST_FEATURES, _ROWS_PER_FEATURE = 256, 1024, 8
# Accuracy of the equations while rows change sides: at first, and at most when rows keep going round. What one run of
# conjugate gradients in float32 can gain.
_ROUGH, _LEAST_ROUGH, _SINGLE = 0.1, 1e-3, 1e-5
_PRODUCTS = 300
# Rounds without fewer changes or a better bound before the equations are solved more accurately, or pivoting is stuck.
_PATIENCE = 12
# Row norms outside this range are multiplied in float64.
_NARROW = (1e-9, 1e9)


class ProductPivoting:
    """The multipliers of one problem and the rows that are free to have one.

    Parameters
    ----------
    problem : MarginProblem
        Hard margins, one problem.
    metric : Metric, optional
        The norm is ``<W, M^-1 W>^1/2`` and ``W = M(W(x))``; the Frobenius norm by default.
    features : int, optional
        Of the preconditioner; by default they grow with the free rows.
    late : callable, optional
        Asked after every product: True ends the round at once.

    Attributes
    ----------
    x : ndarray, shape (m,)
        Multipliers; those that came out negative are cut to 0 when the next round begins.
    W, values : ndarray, shapes (dx, dz) and (m,)
        ``M(W(x))`` and what the rows say of it.
    norm : float
        Of W, as the metric measures it.
    free : ndarray of int
        Rows that had a multiplier in the last round, in order.
    bound : float
        A lower bound on the norm, from the multipliers that are not negative; the best so far.
    changed : int
        Rows that change sides next.
    products : int

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.frobenius.product_pivoting import ProductPivoting
    >>> pivoting = ProductPivoting(MarginProblem([[2.0, 0.0], [0.0, 1.0]], np.eye(1), [0, 0]))
    >>> pivoting.begin(None)
    >>> while pivoting.changed or pivoting.short > 1e-12:
    ...     pivoting.advance(1e-12)
    >>> pivoting.W.ravel().round(9)
    array([0.5, 1. ])
    """

    def __init__(
        self,
        problem: MarginProblem,
        metric: Metric | None = None,
        features: int | None = None,
        late: Callable[[], bool] | None = None,
    ) -> None:
        self.problem, self.rows, self.metric = problem, problem.rows, metric
        self.features, self.late = features, late
        norms = self.rows.row_norms
        narrow = _NARROW[0] < float(norms.min()) and float(norms.max()) < _NARROW[1]
        self.kind = np.float32 if narrow else np.float64
        self.side = max(float(np.abs(problem.rhs).max()), 1e-300)
        self.x = np.zeros(problem.m)
        self.free = np.zeros(0, dtype=np.int64)
        self.bound, self.changed, self.products, self.rounds = 0.0, problem.m, 0, 0
        self.stalled, self.norm, self._last = False, 0.0, 0.0
        self._basis: FeatureBasis | None = None
        self._narrow_metric = None
        if metric is not None:
            self._narrow_metric = Metric(metric.left.astype(self.kind), metric.right.astype(self.kind))
        self._fewest, self._waited, self._rough = problem.m + 1, 0, _ROUGH
        self._accuracy = self._rough

    def begin(self, multipliers: FloatArray | None) -> None:
        """Start from known multipliers of the dual above, or from the most violated row of every query."""
        problem = self.problem
        first = multipliers
        if first is None:
            norms = self.rows.row_norms
            first = problem.clipped(problem.rhs) / np.where(norms > 0, norms, np.inf)
        dual = self.rows.adjoint(first)
        self.W = self._image(dual)
        square = float(np.vdot(self.W, dual))
        scale = float(problem.rhs @ first) / square if square > 0 else 0.0
        self.W *= max(scale, 0.0)
        self.values = self.rows.margins(self.W)
        equal = np.flatnonzero(problem.equality)
        if multipliers is None:
            self._next = np.union1d(equal, self._joining(np.zeros(0, dtype=np.int64), -np.inf))
        else:
            self.x = max(scale, 0.0) * multipliers
            known = np.flatnonzero(multipliers)
            self._next = np.union1d(np.union1d(equal, known), self._joining(known, 1e-9 * self.side))

    def _image(self, dual: FloatArray) -> FloatArray:
        return dual if self.metric is None else self.metric.apply(dual)

    @property
    def short(self) -> float:
        """Largest amount by which a row is missed."""
        return float(self.problem.missed(self.values - self.problem.rhs).max())

    def _joining(self, free: IntArray, least: float) -> IntArray:
        """The most violated row outside of every query that misses by more than ``least``."""
        short = self.problem.rhs - self.values
        short[free] = -np.inf
        owner = self.rows.owner
        worst = np.full(self.rows.q, -np.inf)
        np.maximum.at(worst, owner, short)
        rows = np.flatnonzero((short > least) & (short == worst[owner]))
        return np.asarray(rows[np.unique(owner[rows], return_index=True)[1]])

    def advance(self, goal: float) -> None:
        """One round: equations on the free rows, then rows change sides.

        Parameters
        ----------
        goal : float
            By how much rows may be missed in the end.
        """
        problem, free = self.problem, self._next
        self.rounds += 1
        exact, narrow = _chosen(self.rows, free, np.float64), _chosen(self.rows, free, self.kind)
        equal = problem.equality[free]
        v = self.x[free]
        v = np.where(equal, v, np.maximum(v, 0.0))
        precondition = FeaturePreconditioner(self._features(len(free)), self.rows, free, self.metric)
        rest = problem.rhs[free]
        if v.any():
            rest = rest - exact.margins(self._image(exact.adjoint(v)))
            self.products += 1
        largest = float(np.abs(rest).max(initial=0.0))
        if largest > 0:
            accuracy = max(self._accuracy, min(self._rough, 0.1 * goal / largest), _SINGLE)
            found = self._descend(narrow, precondition, rest, accuracy)
            self.products += found.steps
            self.stalled = self.stalled or found.ending == "singular" or not np.isfinite(found.x).all()
            v = v + found.x
        if self.stalled:
            return
        self._move(free, v, exact)
        negative = free[(v < 0) & ~equal]
        joining = self._joining(free, goal)
        self.changed = len(negative) + len(joining)
        self._next = np.union1d(np.setdiff1d(free, negative, assume_unique=True), joining)
        share = self.changed / max(len(free), 1)
        self.free = free
        self._watch()
        self._accuracy = min(self._rough, max(3.0 * self._rough * share, 1e-3)) if self.changed else _SINGLE

    def _descend(
        self, narrow: Rows, precondition: FeaturePreconditioner, rest: FloatArray, accuracy: float
    ) -> Descended:
        """Conjugate gradients on the free rows."""
        rough = self._narrow_metric

        def product(y: FloatArray) -> FloatArray:
            dual = narrow.adjoint(y)
            return narrow.margins(dual if rough is None else rough.apply(dual.astype(self.kind)))

        return conjugate_gradient(product, precondition, rest, accuracy, _PRODUCTS, stop=self.late)

    def _features(self, size: int) -> FeatureBasis:
        """The basis of the preconditioner, for so many free rows."""
        if self._basis is None or (self.features is None and 1.3 * len(self._basis.pairs[0]) < self._wanted(size)):
            self._basis = FeatureBasis(self.rows, self._next, self.features or self._wanted(size), self.metric)
        return self._basis

    def _wanted(self, size: int) -> int:
        return min(max(FEATURES, size // _ROWS_PER_FEATURE), _MOST_FEATURES)

    def _move(self, free: IntArray, v: FloatArray, exact: Rows) -> None:
        """To multipliers v of the free rows: W, its values, and the bound of what is not negative."""
        problem = self.problem
        self.x = np.zeros(problem.m)
        self.x[free] = v
        dual = exact.adjoint(v)
        self.W = self._image(dual)
        self.norm = float(np.vdot(self.W, dual)) ** 0.5
        self.values = self.rows.margins(self.W)
        size = self.norm
        cut = np.where(problem.equality[free], v, np.maximum(v, 0.0))
        if (cut != v).any():
            dual = exact.adjoint(cut)
            size = float(np.vdot(self._image(dual), dual)) ** 0.5
        self.products += 1
        if size > 0:
            self._last = float(problem.rhs[free] @ cut) / size

    def _watch(self) -> None:
        """Whether rounds still bring something: fewer changes, or a better bound."""
        better = self._last > self.bound * (1.0 + 1e-6)
        self.bound = max(self.bound, self._last)
        if better or self.changed < self._fewest:
            self._fewest, self._waited = min(self._fewest, self.changed), 0
        else:
            self._waited += 1
        if self._waited > _PATIENCE:  # signs of inaccurate multipliers may send rows round
            self._rough, self._waited = 0.1 * self._rough, 0
            self.stalled = self._rough < _LEAST_ROUGH


def _chosen(rows: Rows, index: IntArray, kind: type[np.floating[Any]]) -> Rows:
    """Some rows, with products in the given precision where rows can do that."""
    return rows.select(index, kind) if isinstance(rows, SharedRows) else rows.gather(index)
