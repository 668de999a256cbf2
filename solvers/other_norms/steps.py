"""A primal-dual interior point method for any norm whose cone says how W answers to a change of the dual matrix.

    minimize  N(W)   subject to  F W - s = c,  s >= 0,        maximize  c . lam  subject to  N*(F' lam) <= 1,  lam >= 0

with unit rows F; equality rows have no s and a free lam. A step changes lam, s and W together. The norm enters through
a `Cone`: linearized, its optimality conditions answer a change ``dD = F' dlam`` of the dual matrix by

    dW = k + K dD,      so that     (F K F' + diag(s / lam)) dlam = c + s - F W + (target / lam) - F k

is the one linear system of a step, of the order of the rows. Steps are Mehrotra's: one that aims at the boundary tells
how far the next may aim, and its second-order error is made good. Everything has a leading axis: one
problem is a batch of one.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray

__all__ = ["Cone", "PrimalDual", "nothing", "shifted_factor", "solve_definite"]

# How near to the boundary a step goes, also where the cone asks for caution.
_BACK_OFF, _CAUTIOUS = 0.995, 0.97
# Share of mu that a cautious step aims at, after a long step and after any other: generous centring, because the
# lengths of the prediction are not computed.
_LONG, _EAGER, _CAREFUL = 0.9, 0.02, 0.15
# Dependent equality rows leave the matrix singular: this share of the diagonal is added, and refinement undoes it.
_RIDGE = 1e-12
# Shares of the diagonal that may be added where rounding leaves a matrix without a Cholesky factor.
_SHIFTS = (1e-15, 1e-14, 1e-13, 1e-12, 1e-11)


class Cone(Protocol):
    """What the method asks of a norm. ``W`` and ``D`` are flat, shape (B, N)."""

    W: FloatArray
    degree: int
    """Pairs of complementary numbers."""
    together: bool
    """Whether primal and dual variables must take steps of one length."""
    cautious: bool
    """Whether steps must keep more distance from the boundary, as those of matrices do, and lengths are dear."""

    def value(self, D: FloatArray) -> FloatArray:
        """What ``c . lam`` tends to from below: an upper bound of the norm of W (times that of D), shape (B,)."""
        ...

    def prepare(self, D: FloatArray) -> None:
        """Linearize at the present point, whose dual matrix is D."""
        ...

    def matrix(self, F: FloatArray) -> FloatArray:
        """``F K F'``, shape (B, m, m)."""
        ...

    def constant(self, target: FloatArray, second: bool) -> FloatArray:
        """``k`` for products that aim at ``target`` (B, 1); ``second`` makes good the error of the last answer."""
        ...

    def answer(self, k: FloatArray, dD: FloatArray) -> FloatArray:
        """``dW``; the changes of everything else are kept for `lengths`, `products` and `move`."""
        ...

    def lengths(self) -> tuple[FloatArray, FloatArray]:
        """Inverses of the longest primal and dual steps, each of shape (B,)."""
        ...

    def products(self, primal: FloatArray | float, dual: FloatArray | float) -> FloatArray:
        """Sum of complementary products after steps of such lengths (B, 1), shape (B,)."""
        ...

    def move(self, primal: FloatArray, dual: FloatArray) -> None:
        """Take the step."""
        ...

    def keep(self, index: Any) -> None:
        """Keep some problems of a batch."""
        ...

    def finish(self, state: PrimalDual) -> tuple[IntArray, FloatArray, FloatArray]:
        """Problems of a batch whose solution can be told exactly from where they are, their W and multipliers."""
        ...


def nothing(state: PrimalDual) -> tuple[IntArray, FloatArray, FloatArray]:
    """No problem is finished."""
    return np.zeros(0, dtype=np.int64), state.cone.W[:0], state.lam[:0]


def shifted_factor(matrix: FloatArray) -> tuple[FloatArray, int]:
    """Cholesky factor of a matrix that rounding left without one, its diagonal raised by as little as it takes."""
    from scipy.linalg import lapack

    for shift in _SHIFTS:
        raised = matrix.copy()
        raised.ravel()[:: len(matrix) + 1] *= 1.0 + shift
        factor, failed = lapack.dpotrf(raised.T, lower=1, clean=1)
        if not failed:
            return np.asarray(factor), 0
    return matrix, 1


def solve_definite(factors: list[FloatArray], right: FloatArray) -> FloatArray:
    """Solutions of definite systems from their Cholesky factors, for right sides of shape (B, m)."""
    from scipy.linalg import lapack

    if len(right) == 1:
        return np.asarray(lapack.dpotrs(factors[0], right[0], lower=1)[0])[None]
    return np.stack([lapack.dpotrs(factor, part, lower=1)[0] for factor, part in zip(factors, right, strict=True)])


def _times(F: FloatArray, W: FloatArray) -> FloatArray:
    """``F W`` for flat W, shape (B, m)."""
    return np.asarray((F @ W[..., None])[..., 0])


class PrimalDual:
    """The state of the method on a batch; `step` advances it.

    Parameters
    ----------
    cone : Cone
        Started.
    F : ndarray, shape (B, m, N)
        Unit rows; zero where a row does not exist.
    c, lam : ndarray, shape (B, m)
        Right-hand sides, and multipliers that are positive on inequality rows.
    equality, exists : ndarray of bool, shape (B, m), or None
        None when every row is an inequality, and exists.

    Attributes
    ----------
    slack : ndarray, shape (B, m)
        Of the rows: positive on inequality rows, else 0.
    gap, missed : ndarray, shape (B,)
        Relative distance of the two objectives, and largest residual of the rows.
    ordered, tied : ndarray of bool, shape (B, m)
        Inequality and equality rows that exist; ``ordered`` is None when all rows are inequalities.
    broken : ndarray of bool, shape (B,)
        The last step found no direction.
    """

    def __init__(
        self,
        cone: Cone,
        F: FloatArray,
        c: FloatArray,
        lam: FloatArray,
        equality: BoolArray | None = None,
        exists: BoolArray | None = None,
    ) -> None:
        self.cone, self.F, self.c, self.lam = cone, F, c, lam
        self.ordered: BoolArray | None = None
        self.tied: BoolArray = np.zeros(lam.shape, dtype=bool)
        if equality is not None and exists is not None:
            self.ordered, self.tied, self._void = ~equality & exists, equality & exists, ~exists
        room = 0.1 * np.maximum.reduce(np.abs(c), axis=-1, keepdims=True)
        self.slack = np.maximum(_times(F, cone.W) - c, room)
        if self.ordered is not None:
            self.slack = np.where(self.ordered, self.slack, 0.0)
        self.broken: BoolArray = np.zeros(lam.shape[:-1], dtype=bool)
        self._length: FloatArray = np.zeros(lam.shape[:-1])
        self.measure()

    def measure(self) -> None:
        """Gap and residual of the present point."""
        self.residual = self.c + self.slack - _times(self.F, self.cone.W)
        self._D = np.asarray((self.lam[..., None, :] @ self.F)[..., 0, :])
        value = self.cone.value(self._D)
        self.gap = np.abs(value - np.vecdot(self.c, self.lam)) / value
        self.missed = np.maximum.reduce(np.abs(self.residual), axis=-1)

    def keep(self, index: Any) -> None:
        """Keep some problems of a batch."""
        for name in ("F", "c", "lam", "slack", "residual", "gap", "missed", "broken", "_length", "_D"):
            setattr(self, name, getattr(self, name)[index])
        if self.ordered is not None:
            self.ordered, self.tied, self._void = (x[index] for x in (self.ordered, self.tied, self._void))
        self.cone.keep(index)

    def _factors(self, M: FloatArray) -> list[FloatArray]:
        """Cholesky factors; a problem without one is broken and gets the identity."""
        from scipy.linalg import lapack

        factors = []
        for i, part in enumerate(M.reshape(-1, *M.shape[-2:])):
            # The transpose is the same matrix in the order that LAPACK wants.
            factor, failed = lapack.dpotrf(part.T, lower=1, clean=0)
            if failed:
                factor, failed = shifted_factor(part)
            if failed:
                self.broken.reshape(-1)[i] = True
                factor = np.eye(len(part))
            factors.append(np.asarray(factor))
        return factors

    def step(self) -> None:
        """One predictor-corrector step."""
        cone, F, lam, slack = self.cone, self.F, self.lam, self.slack
        m, ordered = F.shape[-2], self.ordered
        cone.prepare(self._D)
        M = cone.matrix(F)
        # The diagonal as a view.
        diagonal = M.reshape(*M.shape[:-2], -1)[..., :: m + 1]
        inverse = 1.0 / lam if ordered is None else np.where(ordered, 1.0 / np.where(ordered, lam, 1.0), 0.0)
        ratio = slack * inverse
        diagonal += ratio
        if ordered is not None:
            diagonal += np.where(self._void, 1.0, np.where(self.tied, _RIDGE * diagonal, 0.0))
        factors = self._factors(M)
        pairs = cone.degree + (m if ordered is None else np.count_nonzero(ordered, axis=-1))
        mu = (cone.products(0.0, 0.0) + np.vecdot(slack, lam)) / pairs

        def direction(target: Any, aimed: FloatArray, second: bool) -> tuple[FloatArray, FloatArray]:
            k = cone.constant(target, second)
            pull = aimed * inverse
            right = self.residual + pull - _times(F, k)
            d_lam = solve_definite(factors, right)
            if ordered is not None:  # what the ridge took
                back = right - _times(M, d_lam) + np.where(self.tied, _RIDGE * diagonal * d_lam, 0.0)
                d_lam = d_lam + solve_definite(factors, back)
            cone.answer(k, np.asarray((d_lam[..., None, :] @ F)[..., 0, :]))
            return d_lam, pull - ratio * d_lam

        def longest(d_lam: FloatArray, d_slack: FloatArray) -> tuple[FloatArray, FloatArray]:
            primal, dual = cone.lengths()
            rows = slack if ordered is None else np.where(ordered, slack, 1.0)
            if ordered is not None:
                d_lam, d_slack = np.where(ordered, d_lam, 0.0), np.where(ordered, d_slack, 0.0)
            primal = np.maximum(primal, np.maximum.reduce(-d_slack / rows, axis=-1))
            dual = np.maximum(dual, np.maximum.reduce(-d_lam * inverse, axis=-1))
            if cone.together:
                primal = dual = np.maximum(primal, dual)
            return primal, dual

        aimed = -slack * lam
        d_lam, d_slack = direction(0.0, aimed, False)
        if cone.cautious:
            share = _CAUTIOUS
            target = (mu * np.where(self._length > _LONG, _EAGER, _CAREFUL))[..., None]
        else:
            share = _BACK_OFF
            primal, dual = (1.0 / np.maximum(x, 1.0)[..., None] for x in longest(d_lam, d_slack))
            ahead = cone.products(primal, dual) + np.vecdot(slack + primal * d_slack, lam + dual * d_lam)
            target = (mu * np.minimum(np.maximum(ahead / (pairs * mu), 1e-6), 1.0) ** 3)[..., None]
        aimed = aimed + target - d_slack * d_lam
        if ordered is not None:
            aimed = np.where(ordered, aimed, 0.0)
        d_lam, d_slack = direction(target, aimed, True)
        primal, dual = (1.0 / np.maximum(x / share, 1.0)[..., None] for x in longest(d_lam, d_slack))
        finite = np.isfinite(np.add.reduce(d_lam, axis=-1) + primal[..., 0] + dual[..., 0])
        self.broken |= ~finite
        if self.broken.any():
            primal, dual = (np.where(self.broken[..., None], 0.0, x) for x in (primal, dual))
            d_lam, d_slack = (np.where(self.broken[..., None], 0.0, x) for x in (d_lam, d_slack))
        cone.move(primal, dual)
        self._length = np.minimum(primal, dual)[..., 0]
        self.lam, self.slack = lam + dual * d_lam, slack + primal * d_slack
        self.measure()
