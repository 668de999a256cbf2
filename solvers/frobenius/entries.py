"""Very many rows on few entries of W, hard and soft margins: interior-point steps with systems of the order of W.

    minimize |W|_F^2 / 2   subject to  F W - s = c,  s >= 0

Eliminating s and its multipliers from a step leaves ``(I + F' diag(lam / s) F) dW = right side``, of order dx dz. Rows
of one query share their right factor, so the matrix is a sum over queries of ``(sum_k w_k a_k a_k') (x) (b b')``: with
the upper triangles of both factors as vectors it is one product of two matrices with a column per query. Rows enter
through a working set: after each step those that W misses join, strictly inside.

Soft margins (`soft_interior`) add the slacks to the rows, ``F W + E xi - s = c``, and their multipliers to the sums of
the rows': ``E' lam + eta = C`` with ``xi eta = 0`` (hinge), or ``E' lam = 2 C xi`` (squared hinge). Elimination leaves
the same system with, for every slack, ``D - (x / (y + x 1'D1)) D11'D`` in place of ``D = diag(lam / s)``, where (x, y)
is (xi, eta) or (1, 2 C): the weighted rows of the slack about their mean, and the mean itself with the weight
``1'D1 y / (y + x 1'D1)``, which is how it is formed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.solvers.certify.entry import certify
from attsvm.solvers.correction import least_change
from attsvm.solvers.norms import Norm
from attsvm.solvers.penalty import Penalty
from attsvm.solvers.request import Request
from attsvm.solvers.rows.pairs import PairRows
from attsvm.solvers.solution import Extras, Found
from attsvm.solvers.unit import UnitProblem

__all__ = ["soft_interior", "solve_entries"]

# Entries of W up to which systems of their order are worth it.
_MOST_ENTRIES = 4200
# Rows of each query to begin with, and the gap from which on missed rows are looked for.
_FIRST, _LOOK = 4, 0.5
_STEPS = 200
_BACK_OFF = 0.99
# Numbers of working memory per chunk of queries.
_CHUNK_NUMBERS = 1 << 23


class _Triangles(NamedTuple):
    """Upper triangles of symmetric matrices as vectors, and where their entries belong."""

    i: IntArray
    j: IntArray
    place: IntArray


@lru_cache(maxsize=4)
def _triangles(d: int) -> _Triangles:
    i, j = np.triu_indices(d)
    place = np.zeros((d, d), dtype=np.int64)
    place[i, j] = place[j, i] = np.arange(len(i))
    return _Triangles(i, j, place)


class _Blocks(NamedTuple):
    """Rows sorted by query, with where each query's rows begin."""

    a: FloatArray
    begin: IntArray
    counts: IntArray
    queries: FloatArray


def _blocks(rows: PairRows, scale: FloatArray) -> tuple[_Blocks, IntArray]:
    """Unit rows by query, and the order that brought them there."""
    order = np.argsort(rows.owner, kind="stable")
    used, begin, counts = np.unique(rows.owner[order], return_index=True, return_counts=True)
    a = rows.a[order].astype(np.float64, copy=False) * scale[order, None]
    return _Blocks(a, begin, counts, rows.queries[used].astype(np.float64, copy=False)), order


def _normal_matrix(blocks: _Blocks, weights: FloatArray) -> FloatArray:
    """``I + F' diag(w) F`` of the order of W's entries."""
    dx, dz = blocks.a.shape[1], blocks.queries.shape[1]
    left, right = _triangles(dx), _triangles(dz)
    total = np.zeros((len(left.i), len(right.i)))
    longest = int(blocks.counts.max())
    step = max(1, _CHUNK_NUMBERS // (longest * dx + len(left.i) + len(right.i)))
    for start in range(0, len(blocks.counts), step):
        part = slice(start, start + step)
        counts, begin = blocks.counts[part], blocks.begin[part]
        rows = slice(begin[0], begin[-1] + counts[-1])
        padded = np.zeros((len(counts), int(counts.max()), dx))
        inside = np.arange(padded.shape[1]) < counts[:, None]
        padded[inside] = blocks.a[rows] * np.sqrt(weights[rows])[:, None]
        squares = padded.mT @ padded
        b = blocks.queries[part]
        total += squares[:, left.i, left.j].T @ (b[:, right.i] * b[:, right.j])
    whole = total[left.place][:, :, right.place]  # (i, k, j, l)
    H = np.ascontiguousarray(whole.transpose(0, 2, 1, 3)).reshape(dx * dz, dx * dz)
    H.ravel()[:: len(H) + 1] += 1.0
    return H


class _SoftSteps:
    """Predictor-corrector steps of a soft margin on all its rows.

    Attributes
    ----------
    W : ndarray, shape (dx, dz)
    lam, s : ndarray, shape (m,)
        In the order of the rows sorted by query.
    xi, eta : ndarray, shape (slacks,)
        ``eta`` is ``2 C`` for squared hinges, where it is no variable.
    """

    def __init__(self, pair: PairRows, rhs: FloatArray, penalty: Penalty) -> None:
        self.order = np.argsort(pair.owner, kind="stable")
        owner = pair.owner[self.order]
        self.rows = PairRows.trusted(pair.a[self.order].astype(np.float64, copy=False), pair.queries, owner)
        self.c, self.penalty, self.hinge = rhs[self.order], penalty, penalty.loss == "hinge"
        self.by_query = penalty.slack == "query"
        # Rows of one slack stand together: where they begin, and the slack of each row.
        self.first = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]]) if self.by_query else np.arange(pair.m)
        self.counts = np.diff(np.r_[self.first, pair.m])
        self.slack_of = np.repeat(np.arange(len(self.first)), self.counts)
        self._begin()

    def _sum(self, values: FloatArray) -> FloatArray:
        """Over the rows of each slack."""
        return np.asarray(np.add.reduceat(values, self.first)) if self.by_query else values

    def _begin(self) -> None:
        """Equal multipliers, half of what a hinge allows, W along the sum of the rows, and slacks beyond the misses."""
        ones = np.ones(len(self.c))
        along = self.rows.adjoint(ones)
        square = float(np.vdot(along, along))
        size = max(float(np.maximum(self.c, 0.0).sum()), 1e-300) / square if square > 0.0 else 1.0
        most = 0.5 * self.penalty.C / float(self.counts.max()) if self.hinge else size
        self.lam, self.W = most * ones, min(size, most) * along
        side = max(float(np.abs(self.c).max()), 1e-300)
        short = self.c - self.rows.margins(self.W)
        self.xi = np.maximum(np.maximum.reduceat(short, self.first), 0.0) + side
        loads = self._sum(self.lam)
        self.eta = self.penalty.C - loads if self.hinge else np.full(len(loads), 2.0 * self.penalty.C)
        self.s = self.xi[self.slack_of] - short

    @property
    def products(self) -> float:
        """Sum of the products of all complementary pairs."""
        return float(self.s @ self.lam) + (float(self.xi @ self.eta) if self.hinge else 0.0)

    def gap(self) -> float:
        """Relative distance of the primal value at W from the dual one at the multipliers."""
        dual = self.rows.adjoint(self.lam)
        half, square = 0.5 * float(np.vdot(self.W, self.W)), float(np.vdot(dual, dual))
        loads = self._sum(self.lam)
        short = self.c - self.rows.margins(self.W)
        slacks = np.maximum(np.maximum.reduceat(short, self.first), 0.0)
        value = half + self.penalty.cost(slacks)
        bound = float(self.c @ self.lam) - 0.5 * square - self.penalty.conjugate(loads)
        return (value - bound) / value if value > 0.0 else 0.0

    def _weighted(self, D: FloatArray, total: FloatArray, x: FloatArray) -> tuple[PairRows, FloatArray]:
        """Rows and weights whose normal matrix is that of a step."""
        mean_weight = total * self.eta / (self.eta + x * total)
        if not self.by_query:
            return self.rows, mean_weight
        a, owner = self.rows.a.astype(np.float64, copy=False), self.rows.owner
        mean = np.add.reduceat(D[:, None] * a, self.first, axis=0) / total[:, None]
        rows = np.concatenate([a - mean[self.slack_of], mean])
        place = np.argsort(np.r_[owner, owner[self.first]], kind="stable")
        weights = np.r_[D, mean_weight]
        return PairRows.trusted(rows[place], self.rows.queries, np.r_[owner, owner[self.first]][place]), weights[place]

    def step(self) -> bool:
        """Take a step; False where rounding stops the method."""
        from scipy.linalg import lapack

        s, lam, xi, eta = self.s, self.lam, self.xi, self.eta
        D = lam / s
        total = self._sum(D)
        x = xi if self.hinge else np.ones(len(xi))
        rows, weights = self._weighted(D, total, x)
        blocks, _ = _blocks(rows, np.ones(rows.m))
        factor, failed = lapack.dpotrf(_normal_matrix(blocks, weights).T, lower=1, clean=0, overwrite_a=1)
        if failed:
            return False
        loads = self._sum(lam)
        missed = self.c + s - self.rows.margins(self.W) - xi[self.slack_of]
        off = self.rows.adjoint(lam) - self.W
        unbalanced = self.penalty.C - loads - eta if self.hinge else loads - eta * xi
        scale = 1.0 / (eta + x * total)

        def direction(aimed: FloatArray, slack_aimed: FloatArray) -> tuple[FloatArray, ...]:
            free = (aimed + lam * missed) / s
            known = slack_aimed - xi * unbalanced if self.hinge else unbalanced
            constant = free - D * (scale * (known + x * self._sum(free)))[self.slack_of]
            right = off + self.rows.adjoint(constant)
            dW = lapack.dpotrs(factor, right.ravel(), lower=1)[0].reshape(self.W.shape)
            values = self.rows.margins(dW)
            dxi = scale * (known + x * self._sum(free - D * values))
            ds = values + dxi[self.slack_of] - missed
            dlam = (aimed - lam * ds) / s
            deta = unbalanced - self._sum(dlam) if self.hinge else np.zeros(len(eta))
            return dW, ds, dlam, dxi, deta

        pairs = len(s) + (len(xi) if self.hinge else 0)
        mu = self.products / pairs
        _, ds, dlam, dxi, deta = direction(-s * lam, -xi * eta)
        length = min(1.0, self._longest(ds, dlam, dxi, deta))
        ahead = float((s + length * ds) @ (lam + length * dlam))
        if self.hinge:
            ahead += float((xi + length * dxi) @ (eta + length * deta))
        target = mu * min(1.0, max(ahead / pairs / mu, 1e-4)) ** 3
        dW, ds, dlam, dxi, deta = direction(target - s * lam - ds * dlam, target - xi * eta - dxi * deta)
        length = min(1.0, _BACK_OFF * self._longest(ds, dlam, dxi, deta))
        if not length > 1e-8:  # also catches NaN
            return False
        self.W = self.W + length * dW
        self.s, self.lam = s + length * ds, lam + length * dlam
        self.xi, self.eta = xi + length * dxi, eta + length * deta
        return True

    def _longest(self, ds: FloatArray, dlam: FloatArray, dxi: FloatArray, deta: FloatArray) -> float:
        """How far everything stays positive."""
        falls = [float((-ds / self.s).max()), float((-dlam / self.lam).max())]
        if self.hinge:
            falls += [float((-dxi / self.xi).max()), float((-deta / self.eta).max())]
        return 1.0 / max(*falls, 1e-3)


def soft_interior(
    pair: PairRows, rhs: FloatArray, penalty: Penalty, goal: float, most: int, late: Callable[[], bool] | None = None
) -> tuple[FloatArray, FloatArray, int]:
    """Multipliers and W of a soft margin on inequality rows, and the steps taken.

    Parameters
    ----------
    pair : PairRows
        One problem; every row is an inequality.
    rhs : ndarray, shape (m,)
    penalty : Penalty
    goal : float
        Relative gap that ends it.
    most : int
        At most so many steps.
    late : callable, optional
        Asked before every step; True ends it there.

    Examples
    --------
    ``min W^2 / 2 + C (2 - W)_+`` has W = C for C < 2:

    >>> import numpy as np
    >>> from attsvm.solvers import PairRows, Penalty
    >>> from attsvm.solvers.frobenius.entries import soft_interior
    >>> lam, W, _ = soft_interior(PairRows([[1.0]], [[1.0]], [0]), np.array([2.0]), Penalty(1.5), 1e-9, 50)
    >>> W.round(6).item(), lam.round(6).item()
    (1.5, 1.5)
    """
    state, steps = _SoftSteps(pair, rhs, penalty), 0
    best, lam, W = np.inf, state.lam, state.W
    while True:
        gap = state.gap()
        if gap < best:
            best, lam, W = gap, state.lam, state.W
        if gap <= goal or steps >= most or (late is not None and late()) or not state.step():
            break
        steps += 1
    out = np.empty(len(rhs))
    out[state.order] = lam
    return out, W, steps


class _Steps:
    """Predictor-corrector steps on a growing set of rows.

    Attributes
    ----------
    index : ndarray of int, shape (k,)
        Rows of the working set, sorted by query.
    W : ndarray, shape (dx, dz)
        Of the unit rows.
    s, lam : ndarray, shape (k,)
    steps : int
    """

    def __init__(self, unit: UnitProblem, index: IntArray) -> None:
        self.unit, self.W, self.steps = unit, np.zeros(unit.problem.shape), 0
        self._take(index, np.ones(len(index)), np.ones(len(index)))

    def _take(self, index: IntArray, s: FloatArray, lam: FloatArray) -> None:
        unit = self.unit
        self.blocks, order = _blocks(unit.problem.rows.gather(index), unit.inverse[index])
        self.index, self.s, self.lam = index[order], s[order], lam[order]
        self.rows = PairRows.trusted(
            self.blocks.a, self.blocks.queries, np.repeat(np.arange(len(self.blocks.counts)), self.blocks.counts)
        )
        self.c = unit.c[self.index]
        self.inside = np.zeros(unit.m, dtype=bool)
        self.inside[self.index] = True

    def admit(self) -> int:
        """Take in the rows that W misses; how many."""
        short = self.unit.margins(self.W) - self.unit.c
        new = np.flatnonzero((short < 0.0) & ~self.inside)
        if len(new):
            mu = float(self.s @ self.lam) / len(self.s)
            room = np.maximum(np.sqrt(mu), -short[new])
            self._take(
                np.concatenate([self.index, new]),
                np.concatenate([self.s, room]),
                np.concatenate([self.lam, mu / room]),
            )
        return len(new)

    def gap(self) -> float:
        """Relative distance of the norms of W and of the dual bound, or the residual of the rows."""
        dual = self.rows.adjoint(self.lam)
        value, size = float(np.linalg.norm(self.W)), float(np.linalg.norm(dual))
        bound = float(self.c @ self.lam) / size if size > 0 else 0.0
        missed = float(np.abs(self.c + self.s - self.rows.margins(self.W)).max())
        return max(1.0 - bound / value if value > 0 else np.inf, missed)

    def run(self, goal: float, most: int) -> None:
        """Steps until the gap is below the goal and no row is missed, or until rounding or the budget stops them."""
        while self.steps < most:
            gap = self.gap()
            joined = self.admit() if gap < _LOOK else 0
            if (gap <= goal and not joined) or not self._step():
                return

    def _step(self) -> bool:
        from scipy.linalg import lapack

        s, lam, m = self.s, self.lam, len(self.s)
        weights = lam / s
        factor, failed = lapack.dpotrf(_normal_matrix(self.blocks, weights).T, lower=1, clean=0, overwrite_a=1)
        if failed:
            return False
        residual = self.c + s - self.rows.margins(self.W)
        off = self.rows.adjoint(lam) - self.W
        mu = float(s @ lam) / m

        def direction(aimed: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
            right = off + self.rows.adjoint(aimed / s + weights * residual)
            dW = lapack.dpotrs(factor, right.ravel(), lower=1)[0].reshape(self.W.shape)
            ds = self.rows.margins(dW) - residual
            return dW, ds, (aimed - lam * ds) / s

        def longest(ds: FloatArray, dlam: FloatArray) -> tuple[float, float]:
            primal, dual = float((-ds / s).max()), float((-dlam / lam).max())
            return 1.0 / max(primal, _BACK_OFF), 1.0 / max(dual, _BACK_OFF)

        _, ds, dlam = direction(-s * lam)
        primal, dual = (min(1.0, x) for x in longest(ds, dlam))
        ahead = float((s + primal * ds) @ (lam + dual * dlam)) / m
        target = mu * min(1.0, max(ahead / mu, 1e-4)) ** 3
        dW, ds, dlam = direction(target - s * lam - ds * dlam)
        # One length: W and the multipliers are tied.
        length = _BACK_OFF * min(longest(ds, dlam))
        if not length > 1e-8:  # also catches NaN
            return False
        self.W, self.s, self.lam = self.W + length * dW, s + length * ds, lam + length * dlam
        self.steps += 1
        return True


def _first_rows(unit: UnitProblem) -> IntArray:
    """The rows of each query with the least values along the sum of all rows."""
    values = unit.margins(unit.adjoint(np.ones(unit.m)))
    owner = unit.problem.owner
    order = np.lexsort((values, owner))
    begin = np.searchsorted(owner[order], np.arange(unit.problem.q))
    return np.sort(order[np.arange(unit.m) - begin[owner[order]] < _FIRST])


def solve_entries(unit: UnitProblem, norm: Norm, request: Request) -> Found:
    """Least Frobenius norm of many more rows than entries; ``max_iterations`` are steps, 200 by default.

    Equality rows, and W of more entries than its systems are worth, are left to other methods.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, solve
    >>> rng = np.random.default_rng(0)
    >>> a, queries = rng.normal(size=(400, 2)), rng.normal(size=(20, 2))
    >>> a *= np.sign((a @ np.ones(2)) * np.repeat(queries @ [1.0, 3.0], 20))[:, None]
    >>> rows = MarginProblem(a, queries, np.repeat(np.arange(20), 20))
    >>> found = solve(rows, solver="entries")
    >>> print(found.status, abs(found.norm / solve(rows, solver="active_set").norm - 1) < 1e-6)
    optimal True
    """
    problem = unit.problem
    if unit.has_equalities or unit.has_zero_rows or problem.shape[0] * problem.shape[1] > _MOST_ENTRIES:
        return Found()
    state = _Steps(unit, _first_rows(unit))
    state.run(max(0.1 * request.tolerance, 1e-9), request.max_iterations or _STEPS)
    return _certified(unit, norm, state)


def _certified(unit: UnitProblem, norm: Norm, state: _Steps) -> Found:
    """The pair of the working rows on all rows, W raised where a row is missed by rounding."""
    problem = unit.problem
    x = np.zeros(unit.m)
    x[state.index] = state.lam
    W = state.W * unit.scale
    values: Any = problem.margins(W)
    if problem.is_plain and 0.0 < float(values.min()) < 1.0:
        W = W / float(values.min())
    elif not problem.is_plain:
        W = least_change(problem, W)
    lam = unit.restore_multipliers(x)
    size = float(np.linalg.norm(problem.adjoint(lam)))
    if not (np.isfinite(W).all() and np.isfinite(size) and size > 0.0):
        return Found(iterations=state.steps)
    certificate = certify(problem, W, lam / size, norm)
    extras = Extras(working_rows=len(state.index), factorizations=state.steps)
    return Found(W, lam / size, state.steps, certificate=certificate, extras=extras)
