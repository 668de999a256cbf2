"""The nuclear norm through Clarabel, called directly: an independent second opinion for small problems.

The dual program has only the m multipliers as variables and one semidefinite cone ``[[I, D], [D^T, I]] >= 0``; W is
read off the cone's own dual variable. A modelling layer would pass the primal form instead, with (p+q)(p+q+1)/2 more
variables and the time to compile them.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from attsvm.solvers.farkas import find_farkas
from attsvm.solvers.margin import FloatArray, MarginProblem
from attsvm.solvers.norms import Norm
from attsvm.solvers.nuclear_newton import Polished, polish_guess, warm_polish
from attsvm.solvers.nuclear_report import no_solution, prepare, report
from attsvm.solvers.nuclear_rows import UnitRows, purify_farkas
from attsvm.solvers.solution import MarginSolution

__all__ = ["solve_nuclear_conic"]

_TIGHT: dict[str, Any] = {"tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11, "max_iter": 200}


def _off_diagonal(p: int, q: int) -> FloatArray:
    """Places of the entries of the upper right block in the packed upper triangle (columns in turn), shape (p, q)."""
    column = p + np.arange(q)
    return np.arange(p)[:, None] + (column * (column + 1) // 2)[None, :]


def _call_clarabel(rows: UnitRows, settings: dict[str, Any]) -> tuple[FloatArray, FloatArray, str, int]:
    """Multipliers, W, Clarabel's status and its iterations."""
    import clarabel
    from scipy import sparse

    (p, q), m = rows.shape, rows.m
    n = p + q
    packed = n * (n + 1) // 2
    places = _off_diagonal(p, q).ravel()
    # Off-diagonal entries of a packed symmetric matrix carry a factor sqrt(2).
    entries = -np.sqrt(2.0) * (rows.a[:, :, None] * rows.b[:, None, :]).reshape(m, p * q)
    cone = sparse.csc_matrix(
        (entries.ravel(), np.tile(places, m), np.arange(m + 1) * (p * q)),
        shape=(packed, m),
    )
    identity = np.zeros(packed)
    identity[np.cumsum(np.arange(1, n + 1)) - 1] = 1.0
    signed = np.flatnonzero(~rows.equality)
    signs = sparse.csc_matrix((-np.ones(len(signed)), (np.arange(len(signed)), signed)), shape=(len(signed), m))
    matrix = sparse.vstack([signs, cone], format="csc")
    options = clarabel.DefaultSettings()
    options.verbose = False
    for name, value in settings.items():
        setattr(options, name, value)
    cones = [clarabel.NonnegativeConeT(len(signed))] if len(signed) else []
    cones.append(clarabel.PSDTriangleConeT(n))
    solver = clarabel.DefaultSolver(
        sparse.csc_matrix((m, m)), -rows.rhs, matrix, np.concatenate([np.zeros(len(signed)), identity]), cones, options
    )
    result = solver.solve()
    lam, dual = np.asarray(result.x), np.asarray(result.z)[len(signed) :]
    # Stationarity reads rhs_k = -sqrt(2) <a_k b_k^T, dual block> - (sign multiplier): W is that block times -sqrt(2).
    W = -np.sqrt(2.0) * dual[places].reshape(p, q)
    return lam, W, str(result.status), int(result.iterations)


def solve_nuclear_conic(
    problem: MarginProblem,
    norm: Norm,
    *,
    tolerance: float | None = None,
    max_iterations: int | None = None,
    warm_start: MarginSolution | None = None,
    newton: bool = True,
    **options: Any,
) -> MarginSolution:
    """Solve a small nuclear-norm margin problem with Clarabel on the dual, then Newton.

    Parameters
    ----------
    problem : MarginProblem
    norm : Norm
        ``Norm("nuclear")``.
    tolerance : float, optional
        What the certificate must reach to be called optimal; 1e-7 by default.
    max_iterations : int, optional
        Clarabel's iteration limit.
    warm_start : MarginSolution, optional
        Newton is tried from it first.
    newton : bool
        Finish with Newton's method; False returns what Clarabel gives.
    **options
        Clarabel settings by name, e.g. ``tol_gap_rel=1e-8``.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, Norm
    >>> from attsvm.solvers.nuclear_conic import solve_nuclear_conic
    >>> result = solve_nuclear_conic(MarginProblem([[3.0, 4.0]], [[1.0]], [0]), Norm("nuclear"))
    >>> print(result.status, result.W.ravel().round(6))
    optimal [0.12 0.16]
    """
    start, solver = time.perf_counter(), "nuclear_conic"
    rows = prepare(problem, norm, solver=solver, start=start)
    if isinstance(rows, MarginSolution):
        return rows
    best = None if warm_start is None else warm_polish(rows, warm_start)
    iterations = 0
    if best is None:
        settings = {**_TIGHT, **options}
        if max_iterations is not None:
            settings["max_iter"] = max_iterations
        lam, W, outcome, iterations = _call_clarabel(rows, settings)
        if "Infeasible" in outcome:  # the dual is unbounded along lam
            proof = purify_farkas(rows, lam) or find_farkas(problem)
            if proof is not None:
                return no_solution(problem, norm, proof, solver=solver, iterations=iterations, start=start)
        if np.isfinite(W).all() and np.isfinite(lam).all():
            best = Polished(W, lam, min(rows.shape), rows.gap(W, lam), 0)
            slack = np.maximum(rows.values(W) - rows.rhs, 0.0)
            polished = polish_guess(rows, W, lam, lam > slack) if newton and best.gap < 1e-2 else None
            if polished is not None and polished.gap < best.gap:
                best = polished
    if best is None or best.gap > 1e-6:
        proof = find_farkas(problem)
        if proof is not None or best is None:
            return no_solution(problem, norm, proof, solver=solver, iterations=iterations, start=start)
    return report(
        rows,
        norm,
        best.W,
        best.lam,
        solver=solver,
        iterations=iterations,
        start=start,
        tolerance=tolerance,
        extras={"newton_steps": best.steps},
    )
