"""A primal-dual interior point method for the nuclear norm that works on the multipliers alone.

The semidefinite form of the nuclear norm is ``min tr(X)/2`` with ``X = [[P, W], [W^T, Q]] >= 0``, and its dual
has slack ``Z = [[I, -D], [-D^T, I]] / 2`` with ``D = W(lam)``. General conic solvers carry all (p+q)(p+q+1)/2
entries of X as variables. Eliminating X leaves one linear system in the m multipliers per step (the HKM
direction), and since the rows have rank one its matrix is a sum of four entrywise products of Gram matrices:

    4 M = (a P a') o (b Y22 b') + (b Q b') o (a Y11 a') + C + C',   C = (a W b') o (a Y12 b')',   Y = Z^{-1}.

The dual is strictly feasible at any small positive lam, so the dual iterates stay exactly feasible; the primal
ones become feasible with full steps. Rows outside the working set join as soon as an iterate misses them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import BoolArray, FloatArray
from attsvm.solvers.frobenius.pivoting import solve_small
from attsvm.solvers.nuclear.spectra import schur_matrix, singular_triples, singular_values
from attsvm.solvers.unit import UnitRows

__all__ = ["InteriorPoint"]

# Columns of workspace per column of a matrix to reduce: enough for blocked code.
_BLOCK = 64
# The start from the least Frobenius norm, also of batches: the multiple of it that leaves every row some slack, mu
# relative to the largest singular value, share of the dual ball, least slack. Steps hardly depend on them.
START_MULTIPLE, START_MU, START_SHARE, START_SLACK = 1.1, 0.05, 0.5, 1e-2
# The ridge of its approximate solution.
_START_RIDGE = 1e-6
# Rows of a feasible problem seldom ask for more; beyond, the plain start is as good.
_START_LARGEST = 1e3


def _longest(lowest: float) -> float:
    """Largest t with ``1 + t lowest >= 0``; 0 when ``lowest`` is NaN."""
    if lowest >= 0:
        return np.inf
    return -1.0 / lowest if lowest < 0 else 0.0


def _lowest(inverse_factor: FloatArray, change: FloatArray) -> float:
    """Smallest eigenvalue of ``L^{-1} change L^{-T}``, given ``L^{-1}``."""
    from scipy.linalg import lapack

    # The transpose is the same matrix in the order that LAPACK may overwrite.
    relative = (inverse_factor @ change @ inverse_factor.T).T
    values, _, failed = lapack.dsyevd(relative, compute_v=0, lower=1, lwork=_BLOCK * len(relative) + 1, overwrite_a=1)
    return -np.inf if failed else float(values[0])


def _bordered(block: FloatArray, diagonal: float) -> FloatArray:
    """The symmetric matrix ``[[diagonal I, block], [block^T, diagonal I]]``."""
    p, n = len(block), sum(block.shape)
    out = np.zeros((n, n))
    out[:p, p:] = block
    out[p:, :p] = block.T
    if diagonal:
        out.ravel()[:: n + 1] = diagonal
    return out


def _factor(M: FloatArray, equality: BoolArray | None) -> tuple[FloatArray | None, int]:
    """Cholesky factor of M with the smallest shift that works, and the refinements that undo the shift.

    Dependent equality rows leave M singular, and so do, near the end, rows that leave W no interior.
    """
    from scipy.linalg import lapack

    if equality is None:  # M is positive definite by far until the last steps
        factor, failed = lapack.dpotrf(M.T, lower=1, clean=0)
        if not failed:
            return np.asarray(factor), 1
    diagonal = np.einsum("kk->k", M)
    exact, top = diagonal.copy(), float(diagonal.max())
    for shift, refinements in ((0.0, 1), (1e-14, 2), (1e-12, 3), (1e-10, 4)):
        diagonal += (shift if equality is None else np.where(equality, max(shift, 1e-12), shift)) * top
        factor, failed = lapack.dpotrf(M.T, lower=1, clean=0)
        diagonal[:] = exact
        if not failed:
            return np.asarray(factor), refinements
    return None, 0


def _least_squares_multipliers(rows: UnitRows) -> FloatArray | None:
    """Multipliers of the least Frobenius norm, roughly; None when pivoting does not settle.

    The ridge keeps the Gram matrix of dependent rows invertible and the multipliers of an infeasible problem finite.
    """
    gram = rows.a @ rows.a.T
    gram *= rows.b @ rows.b.T
    gram.ravel()[:: rows.m + 1] += _START_RIDGE
    found = solve_small(gram, rows.rhs)
    return found.x if found.settled else None


@dataclass(eq=False)
class InteriorPoint:
    """The state of the method; `step` advances it.

    Parameters
    ----------
    rows : UnitRows
        All rows.
    working : ndarray of int
        The rows that the method starts with.
    plain : bool
        Start from multiples of the identity. Otherwise the least Frobenius norm is asked for a start, and ``plain``
        is set when it has none.

    Attributes
    ----------
    lam, slack : ndarray, shape (len(working),)
        Multipliers and primal slacks (0 on equality rows) of the working rows.
    X : ndarray, shape (p+q, p+q)
    mu : float
        Complementarity per dimension.
    stalled : bool
        True when rounding stops further progress.
    """

    rows: UnitRows
    working: npt.NDArray[np.intp]
    plain: bool = False
    lam: FloatArray = field(init=False)
    slack: FloatArray = field(init=False)
    X: FloatArray = field(init=False)
    mu: float = field(init=False, default=np.inf)
    stalled: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._select(self.working)
        self.plain = self.plain or not self._start_from_least_squares()
        if self.plain:
            self._start_from_scale()

    def _start_from_scale(self) -> None:
        """Multiples of the identity; always possible."""
        n = sum(self.rows.shape)
        lam = np.where(self._inequality, 1.0, 0.0)
        lam *= 0.5 / max(float(singular_values(self.active.adjoint(lam))[0]), 1e-3)
        self.lam = lam
        # Both sides start on the scale sqrt(n) that the norm of a random instance has.
        size = float(np.sqrt(n))
        self.X = size * np.eye(n)
        self.slack = np.where(self._inequality, size, 0.0)

    def _start_from_least_squares(self) -> bool:
        """A multiple of the least Frobenius norm W, well centred: about three steps ahead; False when not available."""
        rows = self.active
        x = _least_squares_multipliers(rows) if rows.inequalities_only else None
        triples = None if x is None else singular_triples(rows.adjoint(x))
        if x is None or triples is None or not 0.0 < triples[1][0] < _START_LARGEST:
            return False
        U, sigma, Vt = triples
        p, top = len(U), float(sigma[0])
        lam, sigma = x * (START_SHARE / top), START_MULTIPLE * sigma
        # With P = U h U^T + 2 mu (I - U U^T) and Q alike, mu X^{-1} has the diagonal blocks I/2 of Z.
        mu = START_MU * float(sigma[0])
        both = np.concatenate([U, Vt.T])
        h = np.sqrt(mu * mu + sigma * sigma) - mu
        X = (both * h) @ both.T
        X.ravel()[:: len(X) + 1] += 2.0 * mu
        X[:p, p:] = W = (U * sigma) @ Vt
        X[p:, :p] = W.T
        slack = np.maximum(rows.values(W) - rows.rhs, START_SLACK)
        extra = mu / slack
        # Every row takes part, within most of what is left of the dual ball.
        size = float(singular_values(rows.adjoint(extra))[0])
        extra *= min(1.0, (0.95 - START_SHARE) / max(size, 1e-300))
        self.X, self.slack, self.lam = X, slack, lam + extra
        return True

    def _select(self, working: npt.NDArray[np.intp]) -> None:
        self.working = working
        self.active = self.rows if len(working) == self.rows.m else self.rows.take(working)
        self._inequality = ~self.active.equality

    @property
    def W(self) -> FloatArray:
        """The primal matrix, shape (p, q)."""
        p = self.rows.shape[0]
        return self.X[:p, p:]

    @property
    def multipliers(self) -> FloatArray:
        """Multipliers of all rows, shape (m,)."""
        lam = np.zeros(self.rows.m)
        lam[self.working] = self.lam
        return lam

    @property
    def objective(self) -> float:
        """Dual objective: a lower bound on the norm."""
        return float(self.active.rhs @ self.lam)

    @property
    def gap(self) -> float:
        """Relative distance between the primal and the dual objective."""
        primal = 0.5 * float(np.trace(self.X))
        return abs(primal - self.objective) / max(primal, 1e-300)

    @property
    def missed(self) -> float:
        """Largest residual of the primal equations on the working rows."""
        return float(np.abs(self.active.rhs + self.slack - self.active.values(self.W)).max())

    def enlarge(self, threshold: float) -> int:
        """Add the rows that the current W misses, or nearly so; return how many."""
        if len(self.working) == self.rows.m:
            return 0
        slack = self.rows.values(self.W) - self.rows.rhs
        slack[self.working] = np.inf
        new = np.flatnonzero(slack < threshold)
        if not len(new):
            return 0
        room = np.maximum(slack[new], max(threshold, float(np.sqrt(self.mu))))
        lam, adjoint = self.mu / room, self.active.adjoint(self.lam)
        extra = self.rows.take(new).adjoint(lam)
        # Stay inside the dual ball: the newcomers may use at most half of what is left.
        left = 1.0 - float(np.linalg.norm(adjoint, 2))
        lam *= min(1.0, 0.5 * left / max(float(np.linalg.norm(extra, 2)), 1e-300))
        order = np.concatenate([self.working, new])
        self.lam, self.slack = np.concatenate([self.lam, lam]), np.concatenate([self.slack, room])
        self._select(order)
        return len(new)

    def _inverse(self, value: FloatArray) -> FloatArray:
        """Entrywise inverse on inequality rows, 0 on equality rows: these have no cone and drop out with it."""
        if self.active.inequalities_only:
            return 1.0 / value
        return np.where(self._inequality, 1.0 / np.where(self._inequality, value, 1.0), 0.0)

    def step(self) -> None:
        """One predictor-corrector step; sets ``stalled`` instead when the linear algebra breaks down."""
        from scipy.linalg import lapack

        rows, lam, slack, X = self.active, self.lam, self.slack, self.X
        p, n = rows.shape[0], len(X)
        Z = _bordered(-0.5 * rows.adjoint(lam), 0.5)
        X_factor, X_failed = lapack.dpotrf(X, lower=1, clean=1)
        Z_factor, Z_failed = lapack.dpotrf(Z, lower=1, clean=1)
        if X_failed or Z_failed:
            self.stalled = True
            return
        X_root, Z_root = lapack.dtrtri(X_factor, lower=1)[0], lapack.dtrtri(Z_factor, lower=1)[0]
        Y = Z_root.T @ Z_root
        weights = n + (rows.m if rows.inequalities_only else int(np.count_nonzero(self._inequality)))
        self.mu = mu = (float(np.vdot(X, Z)) + float(slack @ lam)) / weights  # slack is 0 on equality rows
        if not mu > 0.0:  # complementary to the last digit
            self.stalled = True
            return

        M = schur_matrix(rows.a, rows.b, X, Y)
        inverse_lam, inverse_slack = self._inverse(lam), self._inverse(slack)
        M.ravel()[:: rows.m + 1] += slack * inverse_lam
        factor, refinements = _factor(M, None if rows.inequalities_only else rows.equality)
        if factor is None:
            self.stalled = True
            return

        def direction(
            h: FloatArray, refinements: int, complement: FloatArray | float, X_target: FloatArray
        ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
            """Changes of lam, Z, X and slack from ``M d_lam = h`` and the products that the step aims at."""
            d_lam = lapack.dpotrs(factor, h, lower=1)[0]
            for _ in range(refinements):
                d_lam += lapack.dpotrs(factor, h - M @ d_lam, lower=1)[0]
            d_Z = _bordered(-0.5 * rows.adjoint(d_lam), 0.0)
            half = X @ d_Z @ Y
            half += half.T
            half *= -0.5
            half += X_target
            return d_lam, d_Z, half, (complement - slack * d_lam) * inverse_lam - slack

        def lengths(d_lam: FloatArray, d_Z: FloatArray, d_X: FloatArray, d_slack: FloatArray) -> tuple[float, float]:
            # In this order min() keeps a NaN, which d_lam spreads to everything.
            primal = min(float((d_slack * inverse_slack).min()), _lowest(X_root, d_X))
            dual = min(float((d_lam * inverse_lam).min()), _lowest(Z_root, d_Z))
            return _longest(primal), _longest(dual)

        # Predictor: all products aim at 0.
        d_lam, d_Z, d_X, d_slack = direction(rows.rhs, refinements, 0.0, -X)
        primal, dual = lengths(d_lam, d_Z, d_X, d_slack)
        primal, dual = min(1.0, primal), min(1.0, dual)
        ahead = float(np.vdot(X + primal * d_X, Z + dual * d_Z))
        ahead += float((slack + primal * d_slack) @ (lam + dual * d_lam))
        centering = min(1.0, ahead / weights / mu) ** 2 if min(primal, dual) > 0.1 else 0.5
        target = max(centering, 1e-6) * mu
        complement = target - d_slack * d_lam
        second = d_X @ d_Z @ Y
        X_target = target * Y - 0.5 * (second + second.T)  # the symmetric product that the corrector aims at
        h = rows.rhs - rows.values(X_target[:p, p:]) + complement * inverse_lam
        X_target -= X
        d_lam, d_Z, d_X, d_slack = direction(h, refinements, complement, X_target)
        primal, dual = lengths(d_lam, d_Z, d_X, d_slack)
        damping = 0.9 + 0.09 * min(1.0, primal, dual)
        primal, dual = min(1.0, damping * primal), min(1.0, damping * dual)
        if not max(primal, dual) > 1e-6:  # also catches NaN
            self.stalled = True
            return
        self.X, self.slack = X + primal * d_X, slack + primal * d_slack
        self.lam = lam + dual * d_lam
