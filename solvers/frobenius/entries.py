"""Least Frobenius norm of very many rows on few entries: interior-point steps whose linear systems are of W's order.

    minimize |W|_F^2 / 2   subject to  F W - s = c,  s >= 0,   E W = e

Eliminating s and its multipliers from a step leaves ``(I + F' diag(lam / s) F) dW = right side``, of order dx dz
(`normal_matrix`). Rows enter through a working set: after each step those that W misses join, strictly inside. Equality
rows E take part from the first step on, without those that depend on others, through a second factor of their order.

The slacks of a soft margin enter the rows, ``F W + E xi - s = c``, and their multipliers the sums of the rows':
``E' lam + eta = C`` with ``xi eta = 0`` (hinge), or ``E' lam = 2 C xi`` (squared hinge). Elimination leaves the same
system with, for every slack, ``D - (x / (y + x 1'D1)) D11'D`` in place of ``D = diag(lam / s)``, where (x, y) is
(xi, eta) or (1, 2 C): the weighted rows of the slack about their mean, and the mean itself with the weight
``1'D1 y / (y + x 1'D1)``, which is how it is formed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.solvers.certify.certify_pair import certify
from attsvm.solvers.correction import least_change
from attsvm.solvers.deadline import OutOfTime, late, now, require_time, seconds_left
from attsvm.solvers.frobenius.conflicts import find_conflict
from attsvm.solvers.margin_solution import Extras, MethodResult, Request
from attsvm.solvers.norms import Norm
from attsvm.solvers.penalty import Penalty
from attsvm.solvers.rows.pairs import PairRows
from attsvm.solvers.rows.products import by_query, normal_matrix
from attsvm.solvers.unit import UnitProblem

__all__ = ["soft_interior", "solve_entries"]

# Entries of W up to which systems of their order are worth it.
_MOST_ENTRIES = 4200
# Rows of each query to begin with, and the gap from which on missed rows are looked for.
_FIRST, _LOOK = 4, 0.5
_STEPS = 200
_BACK_OFF = 0.99
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
            return 1.0 / max(primal, _BACK_OFF), 1.0 / max(dual, _BACK_OFF)

        _, _, ds, dlam = direction(-s * lam)
        primal, dual = (min(1.0, x) for x in longest(ds, dlam))
        ahead = float((s + primal * ds) @ (lam + dual * dlam)) / m
        target = mu * min(1.0, max(ahead / mu, 1e-4)) ** 3
        dW, tied, ds, dlam = direction(target - s * lam - ds * dlam)
        # One length: W and the multipliers are tied.
        length = _BACK_OFF * min(longest(ds, dlam))
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
        self.joint = penalty.slack == "query"
        # Rows of one slack stand together: where they begin, and the slack of each row.
        self.first = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]]) if self.joint else np.arange(pair.m)
        self.counts = np.diff(np.r_[self.first, pair.m])
        self.slack_of = np.repeat(np.arange(len(self.first)), self.counts)
        self._begin()

    def _sum(self, values: FloatArray) -> FloatArray:
        """Over the rows of each slack."""
        return np.asarray(np.add.reduceat(values, self.first)) if self.joint else values

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
        if not self.joint:
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
        blocks, _ = by_query(rows, np.ones(rows.m))
        factor, failed = lapack.dpotrf(normal_matrix(blocks, weights).T, lower=1, clean=0, overwrite_a=1)
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
