"""Is there a feasible matrix at all? Three searches for a proof of infeasibility, all verified by `farkas`.

- `find_farkas` for few rows: the multipliers with which the search for the nearest point ends when there is none.
- `find_conflict` for many rows: Newton's method on the squared shortfall ``h(W) = |(c - F W)_+|^2 / 2`` (both signs
  count on equality rows), without matrices of rows. Its minimum is 0 when some W satisfies all rows; otherwise the
  shortfall ``lam`` left at the minimum is nonnegative, cancels (``F^T lam = -grad h = 0``) and has
  ``c . lam = |lam|^2 > 0``. Contradictory data make this well conditioned, where the least-norm problem diverges.
- `purify_farkas` for multipliers that diverge in a method: the least relative change that makes them cancel.
"""

from __future__ import annotations

import numpy as np

from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.certify.certificate import Certificate
from attsvm.solvers.certify.farkas import certify_infeasible, farkas_certificate, zero_row_proof
from attsvm.solvers.conjugate_gradient import conjugate_gradient
from attsvm.solvers.deadline import late
from attsvm.solvers.exact.settle import exact_proof
from attsvm.solvers.frobenius.active_set import least_distance
from attsvm.solvers.margin_problem import MarginProblem
from attsvm.solvers.rows.pairs import PairRows
from attsvm.solvers.rows.products import ChosenRows, by_query, normal_matrix
from attsvm.solvers.unit import UnitProblem, UnitRows

__all__ = ["exact_step", "find_conflict", "find_farkas", "purify_farkas"]

_ROUNDS = 200
_CG_STEPS = 400
# Entries of W up to which Newton steps come from a factor of their order; its ridge relative to unit rows, and the
# solves with it that remove the effect of the ridge.
_FACTOR_ENTRIES, _RIDGE, _REFINEMENTS = 4200, 1e-9, 2
# A shortfall cancels when this share of it is left over; a step that gains less than this share of h is rounding.
_CANCELS, _NO_GAIN = 1e-6, 1e-14
# Rows per dimension that a proof is first tried with.
_PROOF_ROWS = 4
# Rows with this share of the largest shortfall stand out; at most so many are tried as a proof before the search ends.
_STANDS_OUT, _FEW = 0.1, 64
# How often different rows that stand out are tried: a proof among them is found at once or not at all.
_TRIALS = 12
# Steps of conjugate gradients, at least, before a factor takes over, and what a step costs beside its arithmetic.
_FEWEST_STEPS, _STEP_OVERHEAD = 20, 2e7


def _floored_inverse(moment: FloatArray) -> FloatArray:
    """Pseudo-inverse of a second-moment matrix with a floor on its spectrum."""
    values, vectors = np.linalg.eigh(moment)
    return np.asarray((vectors / np.maximum(values, 1e-6 * values[-1])) @ vectors.T)


class _Directions:
    """Least-squares changes of W that remove a shortfall: Newton steps on h.

    By conjugate gradients as long as these take less arithmetic than a Cholesky factor of the order of W, by such a
    factor from then on, if W has not too many entries.
    """

    def __init__(self, unit: UnitProblem) -> None:
        self.unit = unit
        entries = unit.problem.shape[0] * unit.problem.shape[1]
        self.can_factor = entries <= _FACTOR_ENTRIES
        self.factors = False
        self._arithmetic = entries**3 / 3.0

    def __call__(self, short: BoolArray, shortfall: FloatArray, accuracy: float) -> FloatArray:
        """For the rows that are missed, shape (dx, dz)."""
        index = np.flatnonzero(short)
        if not self.factors:
            direction, solved = self._descended(index, shortfall[index], accuracy)
            if solved or not self.can_factor or late():
                return direction
            self.factors = True
        factored = _factored_direction(self.unit, index, shortfall[index])
        if factored is not None:
            return factored
        self.can_factor = self.factors = False
        return self._descended(index, shortfall[index], accuracy)[0]

    def _descended(self, index: IntArray, shortfall: FloatArray, accuracy: float) -> tuple[FloatArray, bool]:
        """By conjugate gradients in the space of W, and whether they came to an end."""
        problem = self.unit.problem
        rows = ChosenRows(problem.rows, index, weights=self.unit.inverse[index])
        left, right = _floored_inverse(rows.moments()), _floored_inverse(rows.queries.T @ rows.queries)
        most = _CG_STEPS
        if self.can_factor:
            (dx, dz), q = problem.shape, len(rows.queries)
            each = 4.0 * dx * (len(index) + q * dz) + 2.0 * dx * dz * (dx + dz) + _STEP_OVERHEAD
            most = min(max(int(self._arithmetic / each), _FEWEST_STEPS), _CG_STEPS)

        def product(direction: FloatArray) -> FloatArray:
            return rows.adjoint(rows.margins(direction))

        def precondition(residual: FloatArray) -> FloatArray:
            return np.asarray(left @ residual @ right)

        found = conjugate_gradient(product, precondition, rows.adjoint(shortfall), accuracy, most, flat=0.0, stop=late)
        return found.x, found.ending == "solved"


def _factored_direction(unit: UnitProblem, index: IntArray, shortfall: FloatArray) -> FloatArray | None:
    """The same from a Cholesky factor of ``F'F`` plus a small ridge; None if LAPACK fails."""
    from scipy.linalg import lapack

    blocks, order = by_query(unit.problem.rows.gather(index), unit.inverse[index])
    owner = np.repeat(np.arange(len(blocks.counts)), blocks.counts)
    rows = PairRows.trusted(blocks.a, blocks.queries, owner)
    matrix = normal_matrix(blocks, np.full(len(index), 1.0 / _RIDGE))
    factor, failed = lapack.dpotrf(matrix.T, lower=1, clean=0, overwrite_a=1)
    if failed:
        return None
    left, direction = shortfall[order], np.zeros(unit.problem.shape)
    for _ in range(_REFINEMENTS):
        right = rows.adjoint(left)
        change = lapack.dpotrs(factor, right.ravel(), lower=1)[0].reshape(right.shape) / _RIDGE
        direction += change
        left = left - rows.margins(change)
    return direction


def exact_step(
    gaps: FloatArray, change: FloatArray, equality: BoolArray, slope: float = 0.0, curvature: float = 0.0
) -> float:
    """Minimize ``|(gaps - t change)_+|^2 / 2 + slope t + curvature t^2 / 2`` over t >= 0.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.frobenius.conflicts import exact_step
    >>> round(exact_step(np.array([2.0, -1.0]), np.array([1.0, 0.0]), np.array([False, False])), 9)
    2.0
    """

    def derivative(t: float) -> float:
        left = gaps - t * change
        left[(left < 0) & ~equality] = 0.0
        return slope + t * curvature - float(left @ change)

    from scipy.optimize import brentq

    low, high = 0.0, 1.0
    while (right := derivative(high)) < 0 and high < 1e6:
        low, high = high, 2.0 * high
    if right < 0:
        return high
    if low == 0 and derivative(0.0) >= 0:
        return 0.0
    return float(brentq(derivative, low, high, xtol=1e-12 * high))


def find_conflict(unit: UnitProblem, W: FloatArray) -> tuple[Certificate | None, FloatArray | None]:
    """Search for a proof of infeasibility, matrix-free.

    Parameters
    ----------
    unit : UnitProblem
    W : ndarray, shape (dx, dz)
        Where to start, in the scale of the problem.

    Returns
    -------
    proof : Certificate or None
        Verified by `certify_infeasible`.
    feasible : ndarray or None
        A matrix that satisfies all rows, if one was met. Both are None when the search was inconclusive, or a deadline
        ended it.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.frobenius.conflicts import find_conflict
    >>> from attsvm.solvers.unit import UnitProblem
    >>> proof, _ = find_conflict(UnitProblem(MarginProblem([[1.0], [-2.0]], [[1.0]], [0, 0])), np.zeros((1, 1)))
    >>> proof.farkas.multipliers.round(6)
    array([0.666667, 0.333333])
    """
    W = W / unit.scale
    gaps = unit.c - unit.margins(W)
    direction, proofs = _Directions(unit), _Proofs(unit)
    accuracy, before = 1e-2, -1
    for _ in range(_ROUNDS):
        short = (gaps > 0) | unit.equality
        lam = np.where(short, gaps, 0.0)
        worst = float(np.abs(lam).max())
        if worst <= 1e-13:
            return None, W * unit.scale
        gradient = unit.adjoint(lam)
        # A shortfall at the level of rounding cancels for no reason but its smallness.
        proof = proofs.attempt(lam, W, float(np.linalg.norm(gradient))) if worst > 1e-9 else None
        if proof is not None:
            return proof, None
        count = int(np.count_nonzero(short))
        if count == before:
            accuracy = max(1e-2 * accuracy, 1e-10)
        before = count
        D = direction(short, lam, accuracy)
        if late():
            return None, None
        change = unit.margins(D)
        step = exact_step(gaps, change, unit.equality)
        gain = step * float(np.vdot(gradient, D))  # twice what a Newton step takes off h
        if step < 1e-10 or gain <= _NO_GAIN * float(lam @ lam):  # no descent left but rounding
            return None, None
        W = W + step * D
        gaps = unit.c - unit.margins(W)
    return None, None


class _Proofs:
    """What was tried as a proof on the way to the least shortfall."""

    def __init__(self, unit: UnitProblem) -> None:
        self.unit = unit
        self._left = np.inf
        self._few = np.zeros(0, dtype=np.int64)
        self._trials = 0

    def attempt(self, lam: FloatArray, W: FloatArray, left_over: float) -> Certificate | None:
        """A proof from the few rows that stand out, or from all once their shortfall cancels."""
        size = np.abs(lam)
        rows = np.flatnonzero(size > _STANDS_OUT * float(size.max()))
        if len(rows) <= _FEW and self._trials < _TRIALS and not np.array_equal(rows, self._few):
            self._few = rows
            self._trials += 1
            part = UnitProblem(self.unit.problem.gather(rows))
            if not (part.has_zero_rows or part.trivial):
                proof = self._lifted(_cancel(part.rows, lam[rows]), rows)
                if proof is not None:
                    return proof
        share = left_over / float(size.sum())
        if share > min(_CANCELS, 1e-2 * self._left):
            return None
        self._left = share
        return self._whole(lam, W)

    def _whole(self, lam: FloatArray, W: FloatArray) -> Certificate | None:
        """From the rows with most of a shortfall that cancels, if these contradict each other, else from all.

        A few times as many rows as dimensions take as long to search as one step, and make a proof that is shorter.
        """
        problem = self.unit.problem
        few = _PROOF_ROWS * problem.shape[0] * min(problem.shape[1], problem.q)
        rows = np.flatnonzero(lam)
        top = rows if len(rows) <= few else rows[np.argpartition(-lam[rows], few)[:few]]
        part = np.union1d(top, np.flatnonzero(self.unit.equality))
        if 2 * len(rows) > 3 * len(part):
            proof, _ = find_conflict(UnitProblem(problem.gather(part)), W * self.unit.scale)
            if proof is not None:
                return self._lifted(proof, part)
        return certify_infeasible(problem, lam * self.unit.inverse)

    def _lifted(self, proof: Certificate | None, rows: IntArray) -> Certificate | None:
        """The proof of some rows as one of all."""
        if proof is None or proof.farkas is None:
            return None
        lam = np.zeros(self.unit.m)
        lam[rows] = proof.farkas.multipliers
        return farkas_certificate(self.unit.problem, lam, proof.farkas.proof, rows[proof.farkas.rows])


def find_farkas(problem: MarginProblem) -> Certificate | None:
    """Find and verify a proof that no W satisfies the rows; None when none was found.

    Forms the dense features of the reduced problem: meant for problems of up to a few thousand rows.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, find_farkas
    >>> conflict = MarginProblem([[1.0], [-1.0], [3.0]], [[1.0]], [0, 0, 0])
    >>> find_farkas(conflict).farkas.rows
    array([0, 1])
    """
    dead = zero_row_proof(problem)
    if dead is not None:
        return dead
    unit = UnitProblem(problem)
    if unit.trivial:  # also where no row is left
        return None
    rows = unit.rows
    features = (rows.a[:, :, None] * rows.b[:, None, :]).reshape(rows.m, -1)
    found = least_distance(features, rows.rhs, None if rows.inequalities_only else rows.equality)
    lam = rows.restore_multipliers(found.x)
    proof = certify_infeasible(problem, lam) if found.ray else None
    # Equalities that contradict each other end the search without multipliers worth having.
    return exact_proof(problem) if proof is None and not found.settled else proof


def purify_farkas(rows: UnitRows, lam: FloatArray) -> Certificate | None:
    """Turn diverging multipliers into a verified proof of infeasibility; None when they are not one.

    Multipliers of an infeasible problem diverge along a combination that cancels. What is left over is removed
    by the smallest change relative to each multiplier (so that signs stay), a least-squares problem in the
    relative changes.
    """
    size = float(np.abs(lam).max(initial=0.0))
    if size == 0 or not np.isfinite(size):
        return None
    # A proof often rests on few rows, which stand out long before the rest has faded.
    for cut in (0.1, 1e-3, 1e-9):
        part = np.flatnonzero(rows.equality | (lam > cut * size))
        proof = _cancel(rows.take(part), lam[part] / size)
        if proof is not None:
            return proof
    return None


def _cancel(rows: UnitRows, lam: FloatArray) -> Certificate | None:
    """Remove what the combination leaves over by a small relative change of the multipliers, and verify."""
    from scipy.sparse.linalg import LinearOperator, lsqr

    p, q = rows.shape
    for _ in range(3):
        proof = certify_infeasible(rows.unit.problem, rows.restore_multipliers(lam))
        if proof is not None or not lam.any():
            return proof
        weight = np.where(rows.equality, np.maximum(np.abs(lam), 1e-3), lam)
        operator = LinearOperator(
            (p * q, rows.m),
            matvec=lambda t, weight=weight: rows.adjoint(weight * np.ravel(t)).ravel(),
            rmatvec=lambda D, weight=weight: weight * rows.values(np.reshape(D, (p, q))),
            dtype=np.float64,
        )
        change = lsqr(operator, rows.adjoint(lam).ravel(), atol=1e-14, btol=1e-14, iter_lim=60)[0]
        lam = rows.clipped(lam - weight * change)
    return certify_infeasible(rows.unit.problem, rows.restore_multipliers(lam))
