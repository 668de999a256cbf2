"""Low-rank factors for many rows: augmented Lagrangian in ``W = K Q^T`` (Burer and Monteiro), then Newton.

``||W||_* = min (|K|^2 + |Q|^2) / 2`` over ``K Q^T = W``, so a problem with r columns costs O(m r (p + q)) per
gradient and never forms an m x m matrix. The factored problem is not convex, but its multipliers are those of the
convex one: where ``D = W(lam)`` has singular values above 1 the point is a saddle (or the rank too small), and the
singular vectors are directions of descent. They are appended to K and Q until none is left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.certify.certificate import Certificate
from attsvm.solvers.deadline import Driver
from attsvm.solvers.frobenius.conflicts import purify_farkas
from attsvm.solvers.margin_solution import Extras, MethodResult, Request
from attsvm.solvers.norms import Norm
from attsvm.solvers.nuclear.interior import run_interior
from attsvm.solvers.nuclear.newton import Polished, polish_guess, report, warm_polish
from attsvm.solvers.nuclear.spectra import pair_gap
from attsvm.solvers.unit import UnitProblem, UnitRows

__all__ = ["Factors", "augmented_lagrangian", "solve_factored"]

# Updates of the multipliers without progress after which rounding is taken for what is left.
_PATIENCE = 60


@dataclass(frozen=True, eq=False)
class Factors:
    """A point of the factored problem.

    Attributes
    ----------
    K, Q : ndarray, shape (p, r) and (q, r)
    lam : ndarray, shape (m,)
    penalty : float
        Weight of the quadratic penalty at the end.
    missed : float
        Largest violation of a row, or of complementarity: ``max |min(slack, lam / penalty)|``.
    evaluations : int
        Gradients computed.
    """

    K: FloatArray
    Q: FloatArray
    lam: FloatArray
    penalty: float
    missed: float
    evaluations: int

    @property
    def W(self) -> FloatArray:
        """The product ``K Q^T``, shape (p, q)."""
        return np.asarray(self.K @ self.Q.T)


def augmented_lagrangian(
    rows: UnitRows,
    start: Factors,
    *,
    tolerance: float,
    rounds: int = 30,
    inner: int = 100,
    late: Callable[[], bool] | None = None,
) -> Factors:
    """Minimize ``(|K|^2 + |Q|^2) / 2`` subject to the rows by the method of multipliers with L-BFGS.

    Parameters
    ----------
    rows : UnitRows
    start : Factors
        Factors, multipliers and penalty to start from.
    tolerance : float
        Ends when ``missed`` and the inner gradient are this small.
    rounds, inner : int
        Updates of the multipliers, and L-BFGS steps between two of them.
    late : callable, optional
        Asked after every L-BFGS step; True ends it where it is.
    """
    from scipy.optimize import minimize

    (p, q), r = rows.shape, start.K.shape[1]
    lam, penalty = start.lam, start.penalty
    point = np.concatenate([start.K.ravel(), start.Q.ravel()])
    missed, evaluations = np.inf, start.evaluations
    least, idle = np.inf, 0

    def multipliers(K: FloatArray, Q: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        left, right = rows.a @ K, rows.b @ Q
        trial = lam + penalty * (rows.rhs - np.einsum("kr,kr->k", left, right))
        return np.where(rows.equality, trial, np.maximum(trial, 0.0)), left, right

    def value(flat: FloatArray) -> tuple[float, FloatArray]:
        K, Q = flat[: p * r].reshape(p, r), flat[p * r :].reshape(q, r)
        trial, left, right = multipliers(K, Q)
        gradient = np.concatenate(
            [(K - rows.a.T @ (right * trial[:, None])).ravel(), (Q - rows.b.T @ (left * trial[:, None])).ravel()]
        )
        return 0.5 * float(flat @ flat) + float(trial @ trial - lam @ lam) / (2.0 * penalty), gradient

    def watch(intermediate_result: object) -> None:
        if late is not None and late():
            raise StopIteration

    for _ in range(rounds):
        result = minimize(
            value,
            point,
            jac=True,
            method="L-BFGS-B",
            callback=watch,
            options={"maxiter": inner, "maxcor": 20, "gtol": 0.1 * tolerance, "ftol": 0.0, "maxls": 30},
        )
        point, evaluations = result.x, evaluations + int(result.nfev)
        K, Q = point[: p * r].reshape(p, r), point[p * r :].reshape(q, r)
        new = multipliers(K, Q)[0]
        before, missed = missed, float(np.abs(new - lam).max()) / penalty
        lam = new
        if late is not None and late():
            break
        slope = float(np.abs(result.jac).max())
        idle = 0 if max(missed, slope) < 0.9 * least else idle + 1
        least = min(least, max(missed, slope))
        if max(missed, slope) <= tolerance or idle >= _PATIENCE:
            break
        # A larger penalty helps only where the multipliers are at fault, not an unfinished inner minimization.
        if missed > 0.7 * before and slope < missed:
            penalty *= 3.0
    return Factors(K, Q, lam, penalty, missed, evaluations)


def _escape(rows: UnitRows, point: Factors) -> Factors:
    """Append the singular pairs of D above 1 (directions of descent) unless all columns are in use already."""
    spare = min(rows.shape) - point.K.shape[1]
    U, sigma, Vt = np.linalg.svd(rows.adjoint(point.lam), full_matrices=False)
    count = min(spare, int(np.count_nonzero(sigma > 1.01)))
    if count <= 0:
        return point
    step = 0.1 * float(np.linalg.norm(point.K)) / np.sqrt(point.K.shape[1])
    return Factors(
        np.hstack([point.K, step * U[:, :count]]),
        np.hstack([point.Q, step * Vt[:count].T]),
        point.lam,
        point.penalty,
        point.missed,
        point.evaluations,
    )


def _descend(rows: UnitRows, columns: int, seed: int, driver: Driver[Polished]) -> tuple[Certificate | None, Factors]:
    """Rounds of the factored method with Newton attempts: a proof or None, and the last factors."""
    p, q = rows.shape
    random = np.random.default_rng(seed)
    K, Q = random.standard_normal((p, columns)) * 0.1, random.standard_normal((q, columns)) * 0.1
    point = Factors(K, Q, np.zeros(rows.m), 5.0, np.inf, 0)
    attempt_below, failures = 3e-3, 0
    while driver.advance():
        before = point
        point = augmented_lagrangian(rows, before, tolerance=1e-9, rounds=1, inner=40)
        # On an infeasible problem the rows stay missed and the multipliers grow along a combination that cancels.
        if driver.steps in (6, 11, 16) and point.missed > 0.03:
            proof = purify_farkas(rows, point.lam - before.lam)
            if proof is not None:
                return proof, point
        W = point.W
        reached = max(pair_gap(rows, W, point.lam), point.missed)
        if reached < attempt_below:
            polished = polish_guess(rows, W, point.lam, point.lam > np.maximum(rows.values(W) - rows.rhs, 0.0))
            if polished is not None:
                driver.offer(polished.gap, polished)
            attempt_below, failures = 0.3 * reached, failures + 1
            if driver.measure <= 1e-11 or failures >= 2:
                break  # done, or nearly degenerate: first-order steps would take long to tell the rank
            if polished is not None and polished.gap < 0.5 * reached:  # better than where it came from: go on there
                point = _factors_of(polished, point)
        elif driver.steps > 2:
            point = _escape(rows, point)
    return None, point


def _factors_of(polished: Polished, point: Factors) -> Factors:
    U, sigma, Vt = np.linalg.svd(polished.W, full_matrices=False)
    root = np.sqrt(sigma[: polished.rank])
    K, Q = U[:, : polished.rank] * root, Vt[: polished.rank].T * root
    return Factors(K, Q, polished.lam, point.penalty, polished.gap, point.evaluations)


def solve_factored(unit: UnitProblem, norm: Norm, request: Request) -> MethodResult:
    """Least nuclear norm for many rows.

    Low-rank factors identify rank and active rows, Newton finishes. Where the factored method does not come close
    enough for that, the interior point method takes over on the rows that it found to be nearly active.
    ``max_iterations`` are rounds of the method of multipliers, 20 by default; options are ``columns`` (of K and Q to
    start with; about a third of the smaller dimension by default) and ``seed`` (of the random start).

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, solve
    >>> result = solve(MarginProblem([[3.0, 4.0]], [[1.0]], [0]), "nuclear", "factored")
    >>> print(result.status, result.W.ravel().round(6))
    optimal [0.12 0.16]
    """
    rows = unit.rows
    warm = warm_polish(rows, request)
    if warm is not None:
        return report(rows, warm, 0, Extras(newton_steps=warm.steps, warm_started=True))
    smaller = min(rows.shape)
    width = min(smaller, request.whole("columns", -(-35 * smaller // 100) + 2, least=1))
    driver: Driver[Polished] = Driver(request.max_iterations or 20)
    proof, point = _descend(rows, width, request.whole("seed", 0), driver)
    interior: Driver[Polished] = Driver(request.max_iterations or 100)
    if proof is None and driver.measure > 1e-9:
        near = rows.equality | (point.lam > 0) | (rows.values(point.W) - rows.rhs < 0.05)
        proof = run_interior(rows, np.flatnonzero(near), interior)
    best = interior.best if interior.measure < driver.measure else driver.best
    iterations = point.evaluations + interior.steps
    if proof is not None or best is None:
        return MethodResult(farkas=proof, iterations=iterations)
    extras = Extras(best.steps, evaluations=point.evaluations, interior_iterations=interior.steps)
    return report(rows, best, iterations, extras)
