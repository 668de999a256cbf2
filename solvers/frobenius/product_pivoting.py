"""Least norm of very many rows by pivoting: products with the rows, and a matrix of rows only where that is cheaper.

The dual is ``max c . x - |W(x)|^2 / 2`` over ``x >= 0`` (free on equality rows). Each round solves the equations
``F_S W(x) = c_S`` on a set S of rows by conjugate gradients, no more accurately than the next change of S deserves;
then rows with negative multipliers leave S and the most violated rows of every query join (a primal-dual active-set
method). One row of every query joins at first. On generic data hardly any multiplier comes out negative: then ever more
rows join at once, and S settles within ten rounds. Products run in float32 with residuals in float64.

Three preconditioners (`row_features`) make a few products enough: blocks of the rows of each query where products are
cheap and rows generic, features with larger blocks, or, where conjugate gradients
with these took several times the arithmetic of a Cholesky factor of the whole matrix in float32, that factor. Copies
of a row (tokens repeat) never join together.

Pivoting need not end: `ProductPivoting.stalled` says that it goes round, and then another method takes over.

M. Hintermuller, K. Ito and K. Kunisch, "The primal-dual active set strategy as a semismooth Newton method", SIAM J.
Optimization 13 (2002).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.solvers.conjugate_gradient import conjugate_gradient
from attsvm.solvers.frobenius.proximal_newton import Metric
from attsvm.solvers.frobenius.row_features import FeatureBasis, QueryPreconditioner, RowPreconditioner
from attsvm.solvers.margin_problem import MarginProblem
from attsvm.solvers.rows.products import ChosenRows, chosen
from attsvm.solvers.rows.shared import SharedRows

__all__ = ["ProductPivoting"]

# Features of the preconditioner, at least and at most, and free rows for each; what a feature must carry.
FEATURES, _MOST_FEATURES, _ROWS_PER_FEATURE, _LEAST_FEATURE = 256, 1024, 8, 0.5
# Rows of a block of the preconditioner: at least, at most, and products whose arithmetic the blocks may take.
_BLOCK, _MOST_BLOCK, _BLOCK_PRODUCTS = 128, 512, 2.0
# Products of one round that the rows of each query alone may take as the preconditioner.
_LEAN_PRODUCTS = 40
# Accuracy of the equations while rows change sides: at first, where many multipliers come out negative, and at most
# when rows keep going round. What one run of conjugate gradients in float32 can gain, and what is wanted of it where a
# factor of the matrix makes it cheap.
_ROUGH, _CLOSE, _LEAST_ROUGH, _SINGLE, _FACTORED = 0.1, 3e-2, 1e-4, 1e-5, 1e-5
_PRODUCTS = 300
# Conjugate gradients give way to the factor after this multiple of its arithmetic, and never before so many products.
_OVERSPEND, _FEWEST_PRODUCTS = 3.0, 20
# Weight of the proximal term around the multipliers of the last round, relative to squared row norms: rows that depend
# on each other get large multipliers of both signs, and some of them leave.
_PROXIMAL: dict[type, float] = {np.float32: 1e-7, np.float64: 1e-12}
# Shares of multipliers that come out negative: below the first so many times as many rows join at once, above the
# second fewer, and never more again.
_FEW_NEGATIVE, _MANY_NEGATIVE, _MORE = 0.1, 0.25, 4
# Rounds without fewer changes or a better bound before the equations are solved more accurately, or pivoting is stuck.
_PATIENCE = 12
# Values this many times as large as the right-hand sides: multipliers diverge, as they do where rows contradict each
# other.
_DIVERGED = 1e12
# Rows missed by this multiple of the largest right-hand side: worth a look whether they contradict each other.
_FAR = 100.0
# Values that differ by no more than this share of their rounding scale belong to copies of one row.
_SAME = 1e-14
# Rows join that are missed by more than this multiple of the error of the free rows.
_ERRORS = 5.0
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
        Called after every product: True ends the round at once.
    matrix_rows : int
        Free rows up to which their matrix may be formed.

    Attributes
    ----------
    x : ndarray, shape (m,)
        Multipliers, those that came out negative cut to 0; the next round starts from them.
    W, values : ndarray, shapes (dx, dz) and (m,)
        ``M(W(x))`` and the values of all rows at it.
    norm : float
        Of W, as the metric measures it.
    free : ndarray of int
        Rows that had a multiplier in the last round, in order.
    bound : float
        A lower bound on the norm, from the multipliers that are not negative; the best so far.
    changed : int
        Rows that change sides next.
    diverges : bool
        Rows are missed by much more than they ask for, or their equations take too many products: as it is where rows
        contradict each other.
    products, factorizations : int

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
        matrix_rows: int = 0,
    ) -> None:
        self.problem, self.rows, self.metric = problem, problem.rows, metric
        self.features, self.late, self.matrix_rows = features, late, matrix_rows
        norms = self.rows.row_norms
        narrow = _NARROW[0] < float(norms.min()) and float(norms.max()) < _NARROW[1]
        self.kind = np.float32 if narrow else np.float64
        self.side = max(float(np.abs(problem.rhs).max()), 1e-300)
        dx, dz = problem.shape
        # More rows than dimensions are dependent.
        self._most = dx * min(dz, problem.q)
        self.x = np.zeros(problem.m)
        self.free = np.zeros(0, dtype=np.int64)
        self.bound, self.changed, self.rounds = 0.0, problem.m, 0
        self.products = self.factorizations = 0
        self.stalled, self.diverges, self.norm, self._last = False, False, 0.0, 0.0
        self._basis: FeatureBasis | None = None
        self._based_on = 0
        self._fewest, self._waited, self._rough = problem.m + 1, 0, _ROUGH
        self._accuracy, self._each, self._more = self._rough, 1, _MORE
        # Whether rows have much in common, so that even one row of each query is too many.
        self._alike = False
        # Whether rows of a query, each query by itself, are all that the preconditioner needs where products are cheap.
        self._lean = True
        # Products that a round is expected to take without the factor of its matrix.
        self._expected = 0.0

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
        scale = max(float(problem.rhs @ first) / square if square > 0 else 0.0, 0.0)
        self.W *= scale
        self.values = self.rows.margins(self.W)
        self.products += 1
        self._copies = self._find_copies()
        equal = np.flatnonzero(problem.equality)
        if multipliers is None:
            self._start: FloatArray | None = None  # values at the multipliers that the next round starts from
            free = self._joining(equal, -np.inf, self._most // 2)
        else:
            self.x, self._start = scale * multipliers, self.values
            known = np.union1d(equal, np.flatnonzero(multipliers))
            free = np.union1d(known, self._joining(known, 1e-9 * self.side, self._most))
        self._next = np.union1d(equal, free)

    def _find_copies(self) -> IntArray | None:
        """A number for every row that it shares with its copies, by the values at a random W; None without copies."""
        W = np.random.default_rng(0).standard_normal(self.problem.shape)
        values, side = self.rows.margins(W), self.problem.rhs
        self.products += 1
        order = np.lexsort((values, side))
        noise = _SAME * float(np.linalg.norm(W)) * self.rows.error_norms[order[1:]]
        new = (np.diff(values[order]) > noise) | (np.diff(side[order]) != 0)
        if new.all():
            return None
        numbers = np.empty(self.problem.m, dtype=np.int64)
        numbers[order] = np.cumsum(np.r_[True, new])
        return numbers

    def _image(self, dual: FloatArray) -> FloatArray:
        return dual if self.metric is None else self.metric.apply(dual)

    @property
    def short(self) -> float:
        """Largest amount by which a row is missed."""
        return float(self.problem.missed(self.values - self.problem.rhs).max())

    def _joining(self, free: IntArray, least: float, most: int) -> IntArray:
        """The most violated rows of every query that miss by over ``least``; with the free ones at most ``most``."""
        short = self.problem.rhs - self.values
        short[free] = -np.inf
        rows = np.flatnonzero(short > least)
        owner = self.rows.owner[rows]
        order = np.lexsort((-short[rows], owner))
        rows, owner = rows[order], owner[order]
        if not len(rows):
            return rows
        if self._copies is not None:  # copies of a row would leave its multiplier undetermined
            alone = ~np.isin(self._copies[rows], self._copies[free])
            alone[np.setdiff1d(np.arange(len(rows)), np.unique(self._copies[rows], return_index=True)[1])] = False
            rows, owner = rows[alone], owner[alone]
            if not len(rows):
                return rows
        first = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])
        place = np.arange(len(rows)) - np.repeat(first, np.diff(np.r_[first, len(rows)]))
        rows = rows[place < self._each]
        room = max(most - len(free), 1)
        if len(rows) > room:
            rows = rows[np.argpartition(-short[rows], room - 1)[:room]]
        return np.sort(rows)

    def advance(self, goal: float) -> None:
        """One round: equations on the free rows, then rows change sides.

        Parameters
        ----------
        goal : float
            By how much rows may be missed in the end.
        """
        problem, free = self.problem, self._next
        self.rounds += 1
        equal = problem.equality[free]
        v = self.x[free]
        rest = problem.rhs[free]
        if self._start is not None:
            rest = rest - self._start[free]
        largest = float(np.abs(rest).max(initial=0.0))
        if not largest < _DIVERGED * self.side:
            self.stalled = True
            return
        if largest > 0:
            accuracy = max(self._accuracy, min(self._rough, 0.1 * goal / largest), _SINGLE)
            change = self._solve(free, rest, accuracy)
            if change is None:
                self.stalled = True
                return
            v = v + change
        self._move(free, v)
        self.diverges = self.diverges or self.short > _FAR * self.side
        negative = free[(v < 0) & ~equal]
        kept = np.setdiff1d(free, negative, assume_unique=True)
        share = len(negative) / max(len(free), 1)
        if share > _MANY_NEGATIVE:  # what joined together drives each other out again
            if self._each == 1:
                self._alike, self._rough = True, min(self._rough, _CLOSE)
            self._each, self._more = max(self._each // _MORE, 1), 1
        elif share < _FEW_NEGATIVE:
            self._each = min(self._each * self._more, problem.m)
        # A row that is missed by no more than the free rows are, perhaps the copy of one, may be met as they are.
        error = float(np.sqrt(np.mean((problem.rhs - self.values)[free] ** 2))) if self._alike else 0.0
        joining = self._joining(free, max(goal, _ERRORS * error), self._most)
        self.changed = len(negative) + len(joining)
        self._next = np.union1d(kept, joining)
        self.free = free
        self._watch()
        share = self.changed / max(len(free), 1)
        self._accuracy = min(self._rough, max(3.0 * self._rough * share, 1e-3)) if self.changed else _SINGLE

    # -- the equations ------------------------------------------------------------------------------

    def _solve(self, free: IntArray, rest: FloatArray, accuracy: float) -> FloatArray | None:
        """Multipliers of the free rows whose values are ``rest``; None where rows are dependent.

        The leaner preconditioners first, unless the last rounds took more products than the factor of the matrix is
        worth; what they leave, if they take too many, is left to the factor.
        """
        if self._is_lean(free):
            precondition = QueryPreconditioner(self.rows, free)
            found, ending = self._descend(self.kind, precondition, free, rest, accuracy, _LEAN_PRODUCTS)
            if ending == "solved" or self._out_of_time:
                return found
            self._lean = False  # rows of different queries have much in common
        return self._solve_in_blocks(free, rest, accuracy)

    def _is_lean(self, free: IntArray) -> bool:
        """Whether products are so cheap that features and blocks would take longer to make than they save."""
        if not self._lean or self.metric is not None or self._budget(len(free)) >= _BLOCK:
            return False
        counts = np.bincount(self.rows.owner[free])
        return int(np.count_nonzero(counts)) * int(counts.max()) ** 2 <= max(len(free) * self.problem.shape[0], 1 << 16)

    def _solve_in_blocks(self, free: IntArray, rest: FloatArray, accuracy: float) -> FloatArray | None:
        """With features and blocks, or with the factor of the whole matrix."""
        worth, ending, found = self._worth(len(free)), "limit", None
        precondition = None
        if self._expected <= worth:
            precondition = RowPreconditioner(self.rows, free, self._features(free), self._block(len(free)), self.metric)
            limit = int(min(_PRODUCTS, max(_OVERSPEND * worth, _FEWEST_PRODUCTS)))
            found, ending = self._descend(self.kind, precondition, free, rest, accuracy, limit)
            self.diverges = self.diverges or (ending == "limit" and limit == _PRODUCTS)
            if ending == "limit" and limit < _PRODUCTS:
                self._expected = float(limit)
        if found is not None and (ending == "solved" or (ending == "limit" and worth == np.inf) or self._out_of_time):
            return found
        if worth < np.inf or precondition is None:
            precondition = None  # before the next one is made
            precondition = RowPreconditioner(self.rows, free, None, len(free), self.metric)
            self.factorizations += 1
            accuracy = min(accuracy, _FACTORED)
        # Good preconditioners lead along directions whose curvature float32 cannot tell from 0.
        found, ending = self._descend(np.float64, precondition, free, rest, accuracy, _PRODUCTS)
        return None if ending == "singular" or not np.isfinite(found).all() else found

    @property
    def _out_of_time(self) -> bool:
        return self.late is not None and self.late()

    def _descend(
        self,
        kind: type[np.floating[Any]],
        precondition: Callable[[FloatArray], FloatArray],
        free: IntArray,
        rest: FloatArray,
        accuracy: float,
        limit: int,
    ) -> tuple[FloatArray, str]:
        """Conjugate gradients on the free rows with a proximal term, which dependent rows need; how they ended."""
        products, metric = chosen(self.rows, free, kind), self.metric
        ridge = _PROXIMAL[kind] * self.rows.row_norms[free] ** 2
        if metric is not None:
            ridge *= metric.scale

        def product(y: FloatArray) -> FloatArray:
            if metric is None and isinstance(products, ChosenRows):
                return products.gram_product(y) + ridge * y
            dual = products.adjoint(y)
            return products.margins(dual if metric is None else metric.apply(dual)) + ridge * y

        found = conjugate_gradient(product, precondition, rest.copy(), accuracy, limit, stop=self.late)
        self.products += found.steps
        return found.x, found.ending

    def _arithmetic(self, size: int) -> float:
        """Floating-point operations of one product with so many free rows."""
        (dx, dz), q = self.problem.shape, self.problem.q
        return 4.0 * dx * (q * dz + (self.problem.m if isinstance(self.rows, SharedRows) else size))

    def _worth(self, size: int) -> float:
        """Products that cost as much as the factor of the matrix; infinite where that must not be formed."""
        if size > self.matrix_rows:
            return np.inf
        return (size**2 * sum(self.problem.shape) + size**3 / 3.0) / self._arithmetic(size)

    def _budget(self, size: int) -> float:
        """Rows of a block of the preconditioner whose making takes the arithmetic of a few products."""
        return _BLOCK_PRODUCTS * self._arithmetic(size) / max(2.0 * size * sum(self.problem.shape), 1.0)

    def _block(self, size: int) -> int:
        """Rows of a block of the preconditioner."""
        return int(np.clip(self._budget(size), _BLOCK, _MOST_BLOCK))

    def _features(self, free: IntArray) -> FeatureBasis:
        """The basis of the preconditioner for these rows; made again when there are many more of them."""
        known = self._basis
        if known is None or (1.3 * self._based_on < len(free) and len(free) * known.largest > _LEAST_FEATURE):
            wanted = self.features or min(max(FEATURES, len(free) // _ROWS_PER_FEATURE), _MOST_FEATURES)
            self._basis = FeatureBasis(self.rows, free, wanted, self.metric, _LEAST_FEATURE)
            self._based_on, known = len(free), self._basis
        return known

    # -- points ---------------------------------------------------------------------------------------

    def _move(self, free: IntArray, v: FloatArray) -> None:
        """To multipliers v of the free rows: W, its values, and the bound of what is not negative."""
        problem = self.problem
        self.x = np.zeros(problem.m)
        self.x[free] = v
        dual = self.rows.adjoint(self.x)
        self.W = self._image(dual)
        self.norm = float(np.vdot(self.W, dual)) ** 0.5
        self.values = self._start = self.rows.margins(self.W)
        self.products += 1
        size, cut = self.norm, problem.clipped(self.x)
        value = float(problem.rhs @ cut)
        if (cut != self.x).any():
            dual = self.rows.adjoint(cut)
            W = self._image(dual)
            size = float(np.vdot(W, dual)) ** 0.5
            # Dependent rows have huge multipliers of both signs: without the negative ones the best multiple is small.
            multiple = max(value, 0.0) / size**2 if size > 0 else 0.0
            self.x, self._start = multiple * cut, multiple * self.rows.margins(W)
            self.products += 1
        if size > 0:
            self._last = value / size

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
