"""The state of a primal-dual interior point method for the nuclear norm: where it starts, which rows it works on.

The steps are compiled (``solvers/compiled/nuclear.h`` has the derivation). The dual is strictly feasible at any small
positive lam, so the dual iterates stay exactly feasible; the primal ones become feasible with full steps. Rows outside
the working set join as soon as an iterate misses them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.compiled.kernels import Measures, NuclearSteps
from attsvm.solvers.frobenius.pivoting import solve_small
from attsvm.solvers.nuclear.spectra import singular_triples, singular_values
from attsvm.solvers.unit import UnitRows

__all__ = ["InteriorPoint"]

# The start from the least Frobenius norm, also of batches: the multiple of it that leaves every row some slack, mu
# relative to the largest singular value, share of the dual ball, least slack. Steps hardly depend on them.
START_MULTIPLE, START_MU, START_SHARE, START_SLACK = 1.1, 0.05, 0.5, 1e-2
# The ridge of its approximate solution.
_START_RIDGE = 1e-6
# With more rows, their Gram matrix costs more than the steps that it saves, and pivoting on it seldom settles.
_START_ROWS_PER_ENTRY = 2
# Rows of a feasible problem seldom ask for more; beyond, the plain start is as good.
_START_LARGEST = 1e3


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
    """

    rows: UnitRows
    working: npt.NDArray[np.intp]
    plain: bool = False
    lam: FloatArray = field(init=False)
    slack: FloatArray = field(init=False)
    X: FloatArray = field(init=False)
    _steps: NuclearSteps | None = field(init=False, default=None)

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
        few = rows.m <= _START_ROWS_PER_ENTRY * rows.shape[0] * rows.shape[1]
        x = _least_squares_multipliers(rows) if few and rows.inequalities_only else None
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
        self.working, self._steps = working, None
        self.active = self.rows if len(working) == self.rows.m else self.rows.take(working)
        self._inequality = ~self.active.equality
        self._sense = self._inequality.astype(np.int8)

    @property
    def W(self) -> FloatArray:
        """The primal matrix, shape (p, q): a copy, as steps move X itself."""
        p = self.rows.shape[0]
        return self.X[:p, p:].copy()

    @property
    def multipliers(self) -> FloatArray:
        """Multipliers of all rows, shape (m,)."""
        lam = np.zeros(self.rows.m)
        lam[self.working] = self.lam
        return lam

    @property
    def measures(self) -> Measures:
        """Gap, objective and residual after the last step."""
        assert self._steps is not None
        return self._steps.measures

    def enlarge(self, threshold: float) -> int:
        """Add the rows that the current W misses, or nearly so; return how many."""
        if len(self.working) == self.rows.m:
            return 0
        slack = self.rows.values(self.W) - self.rows.rhs
        slack[self.working] = np.inf
        new = np.flatnonzero(slack < threshold)
        if not len(new):
            return 0
        mu = self.measures.mu
        room = np.maximum(slack[new], max(threshold, float(np.sqrt(mu))))
        lam, adjoint = mu / room, self.active.adjoint(self.lam)
        extra = self.rows.take(new).adjoint(lam)
        # Stay inside the dual ball: the newcomers may use at most half of what is left.
        left = 1.0 - float(np.linalg.norm(adjoint, 2))
        lam *= min(1.0, 0.5 * left / max(float(np.linalg.norm(extra, 2)), 1e-300))
        order = np.concatenate([self.working, new])
        self.lam, self.slack = np.concatenate([self.lam, lam]), np.concatenate([self.slack, room])
        self._select(order)
        return len(new)

    def step(self) -> bool:
        """One predictor-corrector step; False, and nothing moved, when the linear algebra breaks down."""
        if self._steps is None:
            rows = self.active
            self._steps = NuclearSteps(rows.a, rows.b, rows.rhs, self._sense, self.X, self.lam, self.slack)
        return self._steps.advance()
