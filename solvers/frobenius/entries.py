"""Least Frobenius norm of very many rows on few entries: interior-point steps whose linear systems are of W's order.

    minimize |W|_F^2 / 2   subject to  F W - s = c,  s >= 0

Eliminating s and its multipliers from a step leaves ``(I + F' diag(lam / s) F) dW = right side``, of order dx dz. Rows
of one query share their right factor, so the matrix is a sum over queries of ``(sum_k w_k a_k a_k') (x) (b b')``: with
the upper triangles of both factors as vectors it is one product of two matrices with a column per query. Rows enter
through a working set: after each step those that W misses join, strictly inside.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.solvers.certify.entry import certify
from attsvm.solvers.correction import least_change
from attsvm.solvers.norms import Norm
from attsvm.solvers.request import Request
from attsvm.solvers.rows.pairs import PairRows
from attsvm.solvers.solution import Extras, MethodResult
from attsvm.solvers.unit import UnitProblem

__all__ = ["BACK_OFF", "CHUNK_NUMBERS", "by_query", "normal_matrix", "solve_entries"]

# Entries of W up to which systems of their order are worth it.
_MOST_ENTRIES = 4200
# Rows of each query to begin with, and the gap from which on missed rows are looked for.
_FIRST, _LOOK = 4, 0.5
_STEPS = 200
BACK_OFF = 0.99
# Numbers of working memory per chunk of queries.
CHUNK_NUMBERS = 1 << 23


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


def by_query(rows: PairRows, scale: FloatArray) -> tuple[_Blocks, IntArray]:
    """Unit rows by query, and the order that brought them there."""
    order = np.argsort(rows.owner, kind="stable")
    used, begin, counts = np.unique(rows.owner[order], return_index=True, return_counts=True)
    a = rows.a[order].astype(np.float64, copy=False) * scale[order, None]
    return _Blocks(a, begin, counts, rows.queries[used].astype(np.float64, copy=False)), order


def normal_matrix(blocks: _Blocks, weights: FloatArray) -> FloatArray:
    """``I + F' diag(w) F`` of the order of W's entries."""
    dx, dz = blocks.a.shape[1], blocks.queries.shape[1]
    left, right = _triangles(dx), _triangles(dz)
    total = np.zeros((len(left.i), len(right.i)))
    longest = int(blocks.counts.max())
    step = max(1, CHUNK_NUMBERS // (longest * dx + len(left.i) + len(right.i)))
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
        self.blocks, order = by_query(unit.problem.rows.gather(index), unit.inverse[index])
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
        factor, failed = lapack.dpotrf(normal_matrix(self.blocks, weights).T, lower=1, clean=0, overwrite_a=1)
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
            return 1.0 / max(primal, BACK_OFF), 1.0 / max(dual, BACK_OFF)

        _, ds, dlam = direction(-s * lam)
        primal, dual = (min(1.0, x) for x in longest(ds, dlam))
        ahead = float((s + primal * ds) @ (lam + dual * dlam)) / m
        target = mu * min(1.0, max(ahead / mu, 1e-4)) ** 3
        dW, ds, dlam = direction(target - s * lam - ds * dlam)
        # One length: W and the multipliers are tied.
        length = BACK_OFF * min(longest(ds, dlam))
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


def solve_entries(unit: UnitProblem, norm: Norm, request: Request) -> MethodResult:
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
        return MethodResult()
    state = _Steps(unit, _first_rows(unit))
    state.run(max(0.1 * request.tolerance, 1e-9), request.max_iterations or _STEPS)
    return _certified(unit, norm, state)


def _certified(unit: UnitProblem, norm: Norm, state: _Steps) -> MethodResult:
    """The pair of the working rows on all rows, W raised where a row is missed by rounding."""
    problem = unit.problem
    x = np.zeros(unit.m)
    x[state.index] = state.lam
    W = state.W * unit.scale
    least = float(problem.margins(W).min())
    if problem.is_plain and 0.0 < least < 1.0:
        W = W / least
    elif not problem.is_plain:
        W = least_change(problem, W)
    lam = unit.restore_multipliers(x)
    size = float(np.linalg.norm(problem.adjoint(lam)))
    if not (np.isfinite(W).all() and np.isfinite(size) and size > 0.0):
        return MethodResult(iterations=state.steps)
    certificate = certify(problem, W, lam / size, norm)
    extras = Extras(working_rows=len(state.index), factorizations=state.steps)
    return MethodResult(W, lam / size, state.steps, certificate=certificate, extras=extras)
