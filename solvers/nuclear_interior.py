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

from attsvm.solvers.certificate import Certificate
from attsvm.solvers.margin import BoolArray, FloatArray
from attsvm.solvers.nuclear_newton import Polished, polish_guess
from attsvm.solvers.nuclear_rows import UnitRows, purify_farkas, schur_matrix

__all__ = ["InteriorPoint", "run_interior"]


def _longest(inverse_factors: FloatArray, changes: FloatArray) -> tuple[float, float]:
    """Largest t with ``L L^T + t change >= 0`` for two pairs given as stacks of ``L^{-1}`` and ``change``."""
    lowest = np.linalg.eigvalsh(inverse_factors @ changes @ inverse_factors.transpose(0, 2, 1))[:, 0]
    first, second = (np.inf if value >= 0 else -1.0 / float(value) for value in lowest)
    return first, second


def _longest_orthant(value: FloatArray, change: FloatArray) -> float:
    """Largest t with ``value + t change >= 0``."""
    shrinking = change < 0
    return float((-value[shrinking] / change[shrinking]).min()) if shrinking.any() else np.inf


def _factor(M: FloatArray, inequality: BoolArray) -> tuple[FloatArray | None, int]:
    """Cholesky factor of M with the smallest shift that works, and the refinements that undo the shift.

    Dependent equality rows leave M singular, and so do, near the end, rows that leave W no interior.
    """
    from scipy.linalg import lapack

    diagonal = np.einsum("kk->k", M)
    exact, top = diagonal.copy(), float(diagonal.max())
    for shift, refinements in ((0.0, 1), (1e-14, 2), (1e-12, 3), (1e-10, 4)):
        diagonal += np.where(inequality, shift, max(shift, 1e-12)) * top
        factor, failed = lapack.dpotrf(M, lower=1, clean=0)
        diagonal[:] = exact
        if not failed:
            return np.asarray(factor), refinements
    return None, 0


@dataclass(eq=False)
class InteriorPoint:
    """The state of the method; `step` advances it.

    Parameters
    ----------
    rows : UnitRows
        All rows.
    working : ndarray of int
        The rows that the method starts with.

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
    lam: FloatArray = field(init=False)
    slack: FloatArray = field(init=False)
    X: FloatArray = field(init=False)
    mu: float = field(init=False, default=np.inf)
    iterations: int = field(init=False, default=0)
    stalled: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._select(self.working)
        n = sum(self.rows.shape)
        lam = np.where(self._inequality, 1.0, 0.0)
        lam *= 0.5 / max(float(np.linalg.norm(self.active.adjoint(lam), 2)), 1e-3)
        self.lam = lam
        # Both sides start on the scale sqrt(n) that the norm of a random instance has.
        size = float(np.sqrt(n))
        self.X = size * np.eye(n)
        self.slack = np.where(self._inequality, size, 0.0)

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

    def step(self) -> None:
        """One predictor-corrector step; sets ``stalled`` instead when the linear algebra breaks down."""
        from scipy.linalg import lapack

        rows, inequality, lam, slack, X = self.active, self._inequality, self.lam, self.slack, self.X
        p, n = rows.shape[0], len(self.X)
        Z = 0.5 * np.eye(n)
        Z[:p, p:] = -0.5 * rows.adjoint(lam)
        Z[p:, :p] = Z[:p, p:].T
        factors = [lapack.dpotrf(matrix, lower=1, clean=1) for matrix in (X, Z)]
        if factors[0][1] or factors[1][1]:
            self.stalled = True
            return
        inverses = np.stack([lapack.dtrtri(factor, lower=1)[0] for factor, _ in factors])
        Y = inverses[1].T @ inverses[1]
        weights = n + int(np.count_nonzero(inequality))
        self.mu = mu = (float(np.vdot(X, Z)) + float(slack @ lam)) / weights  # slack is 0 on equality rows

        M = schur_matrix(rows.a, rows.b, X, Y)
        ratio = np.where(inequality, slack / np.where(inequality, lam, 1.0), 0.0)
        diagonal = np.einsum("kk->k", M)
        diagonal += ratio
        factor, refinements = _factor(M, inequality)
        if factor is None:
            self.stalled = True
            return
        Y_values = rows.values(Y[:p, p:])
        inverse_lam = np.where(inequality, 1.0 / np.where(inequality, lam, 1.0), 0.0)

        def direction(
            target: float, second: FloatArray | None, second_slack: FloatArray | float
        ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
            h = rows.rhs - target * Y_values + (target - second_slack) * inverse_lam
            if second is not None:
                h += rows.values(second[:p, p:])
            d_lam = lapack.dpotrs(factor, h, lower=1)[0]
            for _ in range(refinements):
                d_lam += lapack.dpotrs(factor, h - M @ d_lam, lower=1)[0]
            d_Z = np.zeros((n, n))
            d_Z[:p, p:] = -0.5 * rows.adjoint(d_lam)
            d_Z[p:, :p] = d_Z[:p, p:].T
            half = X @ d_Z @ Y
            d_X = target * Y - X - 0.5 * (half + half.T)
            if second is not None:
                d_X -= second
            d_slack = np.where(inequality, (target - second_slack - slack * d_lam) * inverse_lam - slack, 0.0)
            return d_lam, d_Z, d_X, d_slack

        def lengths(d_lam: FloatArray, d_Z: FloatArray, d_X: FloatArray, d_slack: FloatArray) -> tuple[float, float]:
            primal, dual = _longest(inverses, np.stack([d_X, d_Z]))
            primal = min(primal, _longest_orthant(slack, d_slack))
            return primal, min(dual, _longest_orthant(lam[inequality], d_lam[inequality]))

        d_lam, d_Z, d_X, d_slack = direction(0.0, None, 0.0)
        primal, dual = (min(1.0, t) for t in lengths(d_lam, d_Z, d_X, d_slack))
        ahead = float(np.vdot(X + primal * d_X, Z + dual * d_Z))
        ahead += float(((slack + primal * d_slack) * (lam + dual * d_lam))[inequality].sum())
        centering = min(1.0, ahead / weights / mu) ** 2 if min(primal, dual) > 0.1 else 0.5
        half = d_X @ d_Z @ Y
        d_lam, d_Z, d_X, d_slack = direction(max(centering, 1e-6) * mu, 0.5 * (half + half.T), d_slack * d_lam)
        primal, dual = lengths(d_lam, d_Z, d_X, d_slack)
        damping = 0.9 + 0.09 * min(1.0, primal, dual)
        primal, dual = min(1.0, damping * primal), min(1.0, damping * dual)
        if not max(primal, dual) > 1e-6:  # also catches NaN
            self.stalled = True
            return
        self.X, self.slack = X + primal * d_X, slack + primal * d_slack
        self.lam = lam + dual * d_lam
        self.iterations += 1


def run_interior(
    rows: UnitRows,
    working: npt.NDArray[np.intp],
    *,
    max_iterations: int,
    goal: float = 1e-11,
    attempt_first: float = 1e-3,
) -> tuple[Polished | None, Certificate | None, int]:
    """Interior point steps with attempts to finish by Newton, until ``goal`` or until rounding stops them.

    Parameters
    ----------
    rows : UnitRows
    working : ndarray of int
        Rows to start with; the others join when they are missed. Must hold all equality rows.
    max_iterations : int
    goal : float
        Value of `UnitRows.gap` that ends the method.
    attempt_first : float
        Gap at which Newton is tried for the first time.

    Returns
    -------
    best : Polished or None
        The best pair met.
    proof : Certificate or None
        Proof of infeasibility.
    iterations : int
    """
    state = InteriorPoint(rows, working)
    best: Polished | None = None
    attempt_below, doubt_above = attempt_first, 1e3
    while state.iterations < max_iterations:
        state.step()
        if state.stalled:
            break
        gap, missed = state.gap, state.missed
        if missed < 0.1:
            state.enlarge(0.0)
        if state.objective > doubt_above:  # unit rows and right-hand sides up to 1: unusual for a feasible problem
            proof = purify_farkas(rows, state.multipliers)
            if proof is not None:
                return None, proof, state.iterations
            doubt_above = 10.0 * state.objective
        if max(gap, missed) > attempt_below:
            continue
        W, lam = state.W, state.multipliers
        slack = np.full(rows.m, np.inf)
        slack[state.working] = state.slack
        polished = polish_guess(rows, W, lam, lam > slack)
        if polished is not None and (best is None or polished.gap < best.gap):
            best = polished
        if best is None or best.gap > goal:  # the iterate itself may be better than what Newton made of it
            reached = rows.gap(W, lam)
            if best is None or reached < best.gap:
                best = Polished(W, lam, min(rows.shape), reached, 0)
        if best.gap <= goal:
            break
        attempt_below = 0.2 * max(gap, missed)
    if best is None:  # out of iterations: what there is, for the certificate to judge
        W, lam = state.W, state.multipliers
        best = Polished(W, lam, min(rows.shape), rows.gap(W, lam), 0)
    return best, None, state.iterations
