"""Soft margins of very many rows on few entries of W: interior-point steps whose linear systems are of W's order.

The slacks enter the rows of `attsvm.solvers.frobenius.entries`, ``F W + E xi - s = c``, and their multipliers the sums
of the rows': ``E' lam + eta = C`` with ``xi eta = 0`` (hinge), or ``E' lam = 2 C xi`` (squared hinge). Elimination
leaves the same system with, for every slack, ``D - (x / (y + x 1'D1)) D11'D`` in place of ``D = diag(lam / s)``, where
(x, y) is (xi, eta) or (1, 2 C): the weighted rows of the slack about their mean, and the mean itself with the weight
``1'D1 y / (y + x 1'D1)``, which is how it is formed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.frobenius.entries import BACK_OFF
from attsvm.solvers.penalty import Penalty
from attsvm.solvers.rows.pairs import PairRows
from attsvm.solvers.rows.products import by_query, normal_matrix

__all__ = ["soft_interior"]


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
        length = min(1.0, BACK_OFF * self._longest(ds, dlam, dxi, deta))
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
    >>> from attsvm.solvers.frobenius.soft_entries import soft_interior
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
