"""Margin problems with a rank limit: ``W = K Q^T`` with a fixed number of columns, from many starts.

Below the rank of the convex solution the problem is not convex: what is returned is the best KKT point found, and its
distance to the convex optimum, which bounds the norm of every feasible W from below whatever its rank. Where the
convex solution has no more than the allowed rank it solves the limited problem too, and the answer is global.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from attsvm.solvers.certificate import Certificate, certify
from attsvm.solvers.margin import FloatArray, MarginProblem
from attsvm.solvers.norms import Norm
from attsvm.solvers.nuclear import solve_nuclear
from attsvm.solvers.nuclear_factored import Factors, augmented_lagrangian
from attsvm.solvers.nuclear_report import ACHIEVABLE, check_nuclear, no_solution
from attsvm.solvers.nuclear_rows import UnitRows, unit_rows
from attsvm.solvers.solution import MarginSolution
from attsvm.solvers.status import Status

__all__ = ["solve_rank_limited"]

_SOLVER = "rank_limited"
# A start counts as feasible when its rows hold to this accuracy (unit rows, largest right-hand side 1).
_FEASIBLE = 1e-7
# Largest dense system of the Newton steps; beyond it the point keeps the accuracy of the first-order method.
_DENSE_LIMIT = 1500


def _kkt_residual(rows: UnitRows, K: FloatArray, Q: FloatArray, lam: FloatArray) -> float:
    """Largest violation of stationarity, feasibility, sign and complementarity of the factored problem."""
    D = rows.adjoint(lam)
    slack = rows.values(K @ Q.T) - rows.rhs
    condition = np.where(rows.equality, np.abs(slack), np.abs(np.minimum(slack, lam)))
    return float(max(np.abs(K - D @ Q).max(), np.abs(Q - D.T @ K).max(), condition.max()))


def _refine(rows: UnitRows, point: Factors, steps: int = 8) -> Factors:
    """Newton on ``K = D Q``, ``Q = D^T K`` and the active rows; the rotation of K and Q is left where it is."""
    (p, q), r = rows.shape, point.K.shape[1]
    K, Q, lam = point.K, point.Q, point.lam
    residual = _kkt_residual(rows, K, Q, lam)
    active = np.flatnonzero(rows.equality | (lam > np.maximum(rows.values(K @ Q.T) - rows.rhs, 0.0)))
    size = (p + q) * r
    if size + len(active) > _DENSE_LIMIT:
        return point
    a, b = rows.a[active], rows.b[active]
    for _ in range(steps):
        trial = np.zeros(rows.m)
        trial[active] = lam[active]
        D = rows.adjoint(trial)
        left, right = a @ K, b @ Q
        gradients = np.concatenate(
            [np.einsum("kd,kr->kdr", a, right).reshape(-1, p * r), np.einsum("kd,kr->kdr", b, left).reshape(-1, q * r)],
            axis=1,
        )
        system = np.zeros((size + len(active), size + len(active)))
        system[:size, :size] = np.eye(size)
        system[: p * r, p * r : size] = -np.kron(D, np.eye(r))
        system[p * r : size, : p * r] = system[: p * r, p * r : size].T
        system[:size, size:] = -gradients.T
        system[size:, :size] = -gradients
        target = np.concatenate(
            [(D @ Q - K).ravel(), (D.T @ K - Q).ravel(), np.einsum("kr,kr->k", left, right) - rows.rhs[active]]
        )
        # Least squares of smallest norm: the rotations of (K, Q) are null directions.
        change = np.linalg.lstsq(system, target, rcond=1e-12)[0]
        K_new = K + change[: p * r].reshape(p, r)
        Q_new = Q + change[p * r : size].reshape(q, r)
        trial[active] += change[size:]
        reached = _kkt_residual(rows, K_new, Q_new, trial)
        if not reached < residual:
            break
        K, Q, lam, residual = K_new, Q_new, trial, reached
    return Factors(K, Q, lam, point.penalty, point.missed, point.evaluations)


def _starts(rows: UnitRows, W: FloatArray, rank: int, count: int, seed: int) -> list[Factors]:
    """The truncated convex solution first, then random factors of a similar size."""
    random = np.random.default_rng(seed)
    U, sigma, Vt = np.linalg.svd(W, full_matrices=False)
    root = np.sqrt(sigma[:rank])
    size = float(np.sqrt(sigma.sum() / rank))
    (p, q), zero = rows.shape, np.zeros(rows.m)
    starts = [Factors(U[:, :rank] * root, Vt[:rank].T * root, zero, 5.0, np.inf, 0)]
    for _ in range(count - 1):
        K = random.standard_normal((p, rank)) * size / np.sqrt(p)
        Q = random.standard_normal((q, rank)) * size / np.sqrt(q)
        starts.append(Factors(K, Q, zero, 5.0, np.inf, 0))
    return starts


def solve_rank_limited(
    problem: MarginProblem,
    rank: int,
    *,
    norm: Norm = Norm("nuclear"),  # noqa: B008 - frozen
    starts: int = 8,
    seed: int = 0,
    tolerance: float | None = None,
    max_iterations: int | None = None,
    **options: Any,
) -> MarginSolution:
    """Minimize the nuclear norm over matrices of limited rank.

    Parameters
    ----------
    problem : MarginProblem
    rank : int
        Largest rank allowed, at least 1.
    norm : Norm
        ``Norm("nuclear")``.
    starts : int
        Starting points: the truncated convex solution and ``starts - 1`` random ones.
    seed : int
        Of the random starts.
    tolerance : float, optional
        Gap to the convex bound below which the answer is called global; 1e-7 by default.
    max_iterations : int, optional
        Rounds of the method of multipliers per start, 60 by default.
    **options
        Passed to `solve_nuclear` for the convex problem.

    Returns
    -------
    MarginSolution
        The certificate belongs to W and the multipliers of the convex problem: its gap is the distance to the
        convex bound. Status "optimal" means global; "inaccurate" a local KKT point of the nonconvex problem;
        "failed" that no start became feasible although the convex problem is. ``extras``: "global" (bool),
        "convex_bound" (proved lower bound), "kkt_residual" (unit rows, nan when the convex solution is returned
        as it is), "starts" (dict with "count", "feasible", "norms") and "message".

    Examples
    --------
    Two rows that one column can serve, and the four of a matrix with ``det W >= 2``, which it cannot:

    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.rank_limited import solve_rank_limited
    >>> result = solve_rank_limited(MarginProblem(np.eye(2), [[1.0, 0.0]], [0, 0]), 1)
    >>> print(result.status, round(result.norm, 6))
    optimal 1.414214
    >>> signs = MarginProblem([[1.0, 0], [0, -1.0], [1.0, 0], [0, 1.0]], np.eye(2), [0, 0, 1, 1])
    >>> print(solve_rank_limited(signs, 1).status)
    failed
    """
    check_nuclear(norm)
    if rank < 1:
        raise ValueError(f"rank must be at least 1, got {rank}")
    if starts < 1:
        raise ValueError(f"starts must be at least 1, got {starts}")
    start = time.perf_counter()
    tol = ACHIEVABLE if tolerance is None else tolerance
    convex = solve_nuclear(problem, norm, tolerance=tolerance, **options)
    if not convex.status.has_solution:
        return no_solution(
            problem,
            norm,
            convex.certificate if convex.certificate.farkas is not None else None,
            solver=_SOLVER,
            iterations=convex.iterations,
            start=start,
        )
    within = convex.certificate.rank_certificate
    if convex.status is Status.OPTIMAL and within is not None and within.numerical_rank <= rank:
        U, sigma, Vt = np.linalg.svd(convex.W, full_matrices=False)
        W = (U[:, :rank] * sigma[:rank]) @ Vt[:rank]
        return _conclude(convex, W, rank, tol, float("nan"), {"count": 0, "feasible": 0, "norms": []}, 0, start)

    rows = unit_rows(problem)
    if isinstance(rows, Certificate):
        raise AssertionError("a problem with a solution has no zero row that proves it infeasible")
    reduced = rows.reduction.left.T @ convex.W @ rows.reduction.right / rows.rhs_scale
    limit = min(rank, *rows.shape)
    found: list[tuple[float, FloatArray, float]] = []
    evaluations = 0
    for initial in _starts(rows, reduced, limit, starts, seed):
        point = augmented_lagrangian(rows, initial, tolerance=1e-8, rounds=max_iterations or 60, inner=100)
        evaluations += point.evaluations
        point = _refine(rows, point)
        if float(rows.missed(point.W).max()) <= _FEASIBLE:
            size = float(np.linalg.svd(point.W, compute_uv=False).sum()) * rows.rhs_scale
            found.append(
                (size, rows.reduction.lift(point.W) * rows.rhs_scale, _kkt_residual(rows, point.K, point.Q, point.lam))
            )
    statistics: dict[str, object] = {
        "count": starts,
        "feasible": len(found),
        "norms": sorted(size for size, _, _ in found),
    }
    if not found:
        failed = no_solution(problem, norm, None, solver=_SOLVER, iterations=evaluations, start=start)
        failed.extras.update(
            {
                "global": False,
                "convex_bound": convex.certificate.lower_bound,
                "kkt_residual": float("inf"),
                "starts": statistics,
                "message": f"no start reached a feasible W of rank {rank}; one of higher rank exists",
            }
        )
        return failed
    _, W, residual = min(found, key=lambda item: item[0])
    return _conclude(convex, W, rank, tol, residual, statistics, evaluations, start)


def _conclude(
    convex: MarginSolution,
    W: FloatArray,
    rank: int,
    tolerance: float,
    residual: float,
    statistics: dict[str, object],
    iterations: int,
    start: float,
) -> MarginSolution:
    """Certificate against the convex multipliers; global exactly when it closes."""
    certificate = certify(convex.problem, W, convex.multipliers, convex.norm_kind)
    is_global = certificate.worst <= tolerance
    message = (
        f"a solution of the convex problem has rank at most {rank}: the answer is global"
        if is_global
        else f"a KKT point of the nonconvex problem with rank limit {rank}, within {certificate.gap:.2e} (relative) of "
        "the convex bound; other starts may give a smaller norm"
    )
    extras: dict[str, object] = {
        "global": is_global,
        "convex_bound": certificate.lower_bound,
        "kkt_residual": residual,
        "starts": statistics,
        "message": message,
    }
    return MarginSolution(
        convex.problem,
        convex.norm_kind,
        Status.OPTIMAL if is_global else Status.INACCURATE,
        certificate,
        convex.multipliers,
        _SOLVER,
        iterations or convex.iterations,
        time.perf_counter() - start,
        W,
        extras,
    )
