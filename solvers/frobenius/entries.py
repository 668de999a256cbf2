"""Least Frobenius norm of very many rows on few entries: interior-point steps whose linear systems are of W's order.

    minimize |W|_F^2 / 2   subject to  F W - s = c,  s >= 0,   E W = e

Eliminating s and its multipliers from a step leaves ``(I + F' diag(lam / s) F) dW = right side``, of order dx dz
(`normal_matrix`). Rows enter through a working set: after each step those that W misses join, strictly inside. Equality
rows E take part from the first step on, without those that depend on others, through a second factor of their order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.solvers.certify.certify_pair import certify
from attsvm.solvers.correction import least_change
from attsvm.solvers.deadline import OutOfTime, late, now, require_time, seconds_left
from attsvm.solvers.frobenius.conflicts import find_conflict
from attsvm.solvers.margin_solution import Extras, MethodResult
from attsvm.solvers.norms import Norm
from attsvm.solvers.request import Request
from attsvm.solvers.rows.pairs import PairRows
from attsvm.solvers.rows.products import by_query, normal_matrix
from attsvm.solvers.unit import UnitProblem

__all__ = ["BACK_OFF", "solve_entries"]

# Entries of W up to which systems of their order are worth it.
_MOST_ENTRIES = 4200
# Rows of each query to begin with, and the gap from which on missed rows are looked for.
_FIRST, _LOOK = 4, 0.5
_STEPS = 200
BACK_OFF = 0.99
# Bounds this many times as large as the norm of W: multipliers diverge. On the way to a solution they are within 2.
_DIVERGED = 8.0
# Numbers in the equality rows, written out, and directions of theirs that count as combinations of others.
_TIE_NUMBERS, _DEPENDENT = 8_000_000, 1e-10


class _Ties:
    """The equality rows of the unit problem, ``E W = e``, without those that depend on others.

    Attributes
    ----------
    index : ndarray of int, shape (p,)
    matrix : ndarray, shape (p, dx dz)
        Written out.
    """

    def __init__(self, unit: UnitProblem) -> None:
        from scipy.linalg import qr

        index = np.flatnonzero(unit.equality)
        matrix = unit.problem.rows.gather(index).features() * unit.inverse[index, None]
        factor, order = qr(matrix.T, mode="r", pivoting=True)
        sizes = np.abs(factor.diagonal())
        keep = np.sort(order[: np.count_nonzero(sizes > _DEPENDENT * sizes[0])])
        self.index, self.matrix, self.sides = index[keep], matrix[keep], unit.c[index[keep]]

    def left_over(self, W: FloatArray) -> FloatArray:
        """``e - E W``, shape (p,)."""
        return np.asarray(self.sides - self.matrix @ W.ravel())

    def adjoint(self, mu: FloatArray) -> FloatArray:
        """``E' mu``, flat."""
        return np.asarray(mu @ self.matrix)


class _Steps:
    """Predictor-corrector steps on a growing set of inequality rows, with all equality rows.

    Attributes
    ----------
    index : ndarray of int, shape (k,)
        Rows of the working set, sorted by query.
    W : ndarray, shape (dx, dz)
        Of the unit rows.
    s, lam : ndarray, shape (k,)
    mu : ndarray, shape (p,)
        Multipliers of the equality rows.
    steps : int
    watches : bool
        Whether `run` ends where the multipliers diverge.
    seconds : float
        That the last step took: the next one begins if there is as much time left.
    """

    def __init__(self, unit: UnitProblem, index: IntArray) -> None:
        self.unit, self.W, self.steps, self.watches = unit, np.zeros(unit.problem.shape), 0, True
        self.seconds = 0.0
        self.ties = _Ties(unit) if unit.has_equalities else None
        self.mu = np.zeros(0 if self.ties is None else len(self.ties.index))
        self._take(index, np.ones(len(index)), np.ones(len(index)))

    def _take(self, index: IntArray, s: FloatArray, lam: FloatArray) -> None:
        unit = self.unit
        self.blocks, order = by_query(unit.problem.rows.gather(index), unit.inverse[index])
        self.index, self.s, self.lam = index[order], s[order], lam[order]
        self.rows = PairRows.trusted(
            self.blocks.a, self.blocks.queries, np.repeat(np.arange(len(self.blocks.counts)), self.blocks.counts)
        )
        self.c = unit.c[self.index]
        self.outside = ~unit.equality
        self.outside[self.index] = False

    def admit(self) -> int:
        """Take in the rows that W misses; how many."""
        short = self.unit.margins(self.W) - self.unit.c
        new = np.flatnonzero((short < 0.0) & self.outside)
        if len(new):
            mu = float(self.s @ self.lam) / len(self.s)
            room = np.maximum(np.sqrt(mu), -short[new])
            self._take(
                np.concatenate([self.index, new]),
                np.concatenate([self.s, room]),
                np.concatenate([self.lam, mu / room]),
            )
        return len(new)

    def _dual(self) -> FloatArray:
        """``W(lam, mu)``, shape (dx, dz)."""
        dual = self.rows.adjoint(self.lam)
        return dual if self.ties is None else dual + self.ties.adjoint(self.mu).reshape(dual.shape)

    def measures(self) -> tuple[float, float]:
        """The gap (of the norm of W to the dual bound, or the residual of the rows), and the bound over the norm."""
        value, size = float(np.linalg.norm(self.W)), float(np.linalg.norm(self._dual()))
        gain = float(self.c @ self.lam)
        missed = float(np.abs(self.c + self.s - self.rows.margins(self.W)).max())
        if self.ties is not None:
            gain += float(self.ties.sides @ self.mu)
            missed = max(missed, float(np.abs(self.ties.left_over(self.W)).max()))
        bound = gain / size if size > 0 else 0.0
        if not value > 0:
            return np.inf, 0.0
        return max(1.0 - bound / value, missed), bound / value

    def run(self, goal: float, most: int) -> bool:
        """Steps until the gap is below the goal and no row is missed, or until rounding or the budget stops them.

        False where the multipliers diverge, as they do where rows contradict each other.
        """
        while self.steps < most and not (late() or self.seconds > seconds_left()):
            gap, ratio = self.measures()
            if self.watches and ratio > _DIVERGED:
                return False
            joined = self.admit() if gap < _LOOK else 0
            if (gap <= goal and not joined) or not self._timed_step():
                return True
        return True

    def _timed_step(self) -> bool:
        """One step; False where rounding or the deadline stops it."""
        begin = now()
        try:
            moved = self._step()
        except OutOfTime:
            return False
        self.seconds = now() - begin
        return moved

    def _solver(self, factor: FloatArray) -> Callable[[FloatArray], tuple[FloatArray, FloatArray]] | None:
        """The change of W and of the multipliers of equality rows for a right-hand side; None without one."""
        from scipy.linalg import lapack

        ties = self.ties
        if ties is None:
            return lambda right: (lapack.dpotrs(factor, right.ravel(), lower=1)[0].reshape(right.shape), self.mu)
        short = ties.left_over(self.W)
        half, _ = lapack.dtrtrs(factor, ties.matrix.T, lower=1)
        inner, failed = lapack.dpotrf(half.T @ half, lower=1)
        if failed:
            return None

        def solve(right: FloatArray) -> tuple[FloatArray, FloatArray]:
            free = lapack.dpotrs(factor, right.ravel(), lower=1)[0]
            change = lapack.dpotrs(inner, short - ties.matrix @ free, lower=1)[0]
            tied = lapack.dtrtrs(factor, half @ change, lower=1, trans=1)[0]
            return (free + tied).reshape(right.shape), change

        return solve

    def _step(self) -> bool:
        from scipy.linalg import lapack

        s, lam, m = self.s, self.lam, len(self.s)
        weights = lam / s
        matrix = normal_matrix(self.blocks, weights, look=require_time)
        require_time()  # the factorization cannot be stopped
        factor, failed = lapack.dpotrf(matrix.T, lower=1, clean=0, overwrite_a=1)
        solve = None if failed else self._solver(factor)
        if solve is None:
            return False
        residual = self.c + s - self.rows.margins(self.W)
        off = self._dual() - self.W
        mu = float(s @ lam) / m

        def direction(aimed: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
            dW, tied = solve(off + self.rows.adjoint(aimed / s + weights * residual))
            ds = self.rows.margins(dW) - residual
            return dW, tied, ds, (aimed - lam * ds) / s

        def longest(ds: FloatArray, dlam: FloatArray) -> tuple[float, float]:
            primal, dual = float((-ds / s).max()), float((-dlam / lam).max())
            return 1.0 / max(primal, BACK_OFF), 1.0 / max(dual, BACK_OFF)

        _, _, ds, dlam = direction(-s * lam)
        primal, dual = (min(1.0, x) for x in longest(ds, dlam))
        ahead = float((s + primal * ds) @ (lam + dual * dlam)) / m
        target = mu * min(1.0, max(ahead / mu, 1e-4)) ** 3
        dW, tied, ds, dlam = direction(target - s * lam - ds * dlam)
        # One length: W and the multipliers are tied.
        length = BACK_OFF * min(longest(ds, dlam))
        if not length > 1e-8:  # also catches NaN
            return False
        self.W, self.s, self.lam = self.W + length * dW, s + length * ds, lam + length * dlam
        if self.ties is not None:
            self.mu = self.mu + length * tied
        self.steps += 1
        return True


def _first_rows(unit: UnitProblem) -> IntArray:
    """The inequality rows of each query with the least values along the sum of all rows."""
    some = np.flatnonzero(~unit.equality)
    values = unit.margins(unit.adjoint(np.where(unit.equality, 0.0, 1.0)))[some]
    owner = unit.problem.owner[some]
    order = np.lexsort((values, owner))
    begin = np.searchsorted(owner[order], np.arange(unit.problem.q))
    return np.sort(some[order[np.arange(len(some)) - begin[owner[order]] < _FIRST]])


def _fits(unit: UnitProblem) -> bool:
    """Whether W has few entries, the equality rows may be written out, and there is something to do."""
    problem = unit.problem
    entries, ties = problem.shape[0] * problem.shape[1], int(np.count_nonzero(unit.equality))
    return entries <= _MOST_ENTRIES and ties * entries <= _TIE_NUMBERS and ties < unit.m and not unit.has_zero_rows


def solve_entries(unit: UnitProblem, norm: Norm, request: Request) -> MethodResult:
    """Least Frobenius norm of many more rows than entries; ``max_iterations`` are steps, 200 by default.

    Where multipliers diverge a proof of infeasibility is looked for. W of more entries than its systems are worth, and
    zero rows, are left to other methods.

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
    if not _fits(unit):
        return MethodResult()
    state = _Steps(unit, _first_rows(unit))
    goal, most = max(0.1 * request.tolerance, 1e-9), request.max_iterations or _STEPS
    if not state.run(goal, most):
        proof, _ = find_conflict(unit, np.zeros(unit.problem.shape))  # nearer to its minimum than what diverges
        if proof is not None:
            return MethodResult(farkas=proof, iterations=state.steps)
        state.watches = False
        state.run(goal, most)
    return _certified(unit, norm, state)


def _certified(unit: UnitProblem, norm: Norm, state: _Steps) -> MethodResult:
    """The pair of the working rows on all rows, W raised where a row is missed by rounding."""
    problem = unit.problem
    x = np.zeros(unit.m)
    x[state.index] = state.lam
    if state.ties is not None:
        x[state.ties.index] = state.mu
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
