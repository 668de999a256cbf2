"""The nuclear norm: our own solver, in two sizes.

Up to a few hundred rows an interior point method on the multipliers runs on all rows at once; beyond that, low-rank
factors find the rank and the active rows first. Both hand over to Newton's method on the identified manifold, which
ends at rounding level: singular values of W are then either clearly positive or exactly zero, and the certified rank
can be read off.
"""

from __future__ import annotations

import time

import numpy as np

from attsvm.solvers.farkas import find_farkas
from attsvm.solvers.margin import MarginProblem
from attsvm.solvers.norms import Norm
from attsvm.solvers.nuclear_factored import solve_nuclear_factored
from attsvm.solvers.nuclear_interior import run_interior
from attsvm.solvers.nuclear_newton import warm_polish
from attsvm.solvers.nuclear_report import no_solution, prepare, report
from attsvm.solvers.solution import MarginSolution

__all__ = ["solve_nuclear", "solve_nuclear_interior"]

# Rows up to which one factorization of an m x m matrix per step beats the factored method.
_SMALL_ROWS = 700


def solve_nuclear(
    problem: MarginProblem,
    norm: Norm,
    *,
    tolerance: float | None = None,
    max_iterations: int | None = None,
    warm_start: MarginSolution | None = None,
) -> MarginSolution:
    """Solve a nuclear-norm margin problem to high accuracy, choosing the method by size.

    Parameters
    ----------
    problem : MarginProblem
    norm : Norm
        ``Norm("nuclear")``.
    tolerance : float, optional
        What the certificate must reach to be called optimal, 1e-7 by default; rounding level is reached on
        nondegenerate problems whatever it is.
    max_iterations : int, optional
        Interior point steps (small problems) or rounds of the factored method.
    warm_start : MarginSolution, optional
        Solution of a problem with the same rows or slightly changed ones; Newton is tried from it first.

    Returns
    -------
    MarginSolution
        ``extras["uniqueness"]`` holds a `UniquenessCertificate`.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, Norm
    >>> from attsvm.solvers.nuclear import solve_nuclear
    >>> result = solve_nuclear(MarginProblem([[3.0, 4.0]], [[1.0]], [0]), Norm("nuclear"))
    >>> print(result.status, result.W.ravel().round(6), result.certificate.rank)
    optimal [0.12 0.16] 1
    """
    chosen = solve_nuclear_interior if problem.m <= _SMALL_ROWS else solve_nuclear_factored
    return chosen(problem, norm, tolerance=tolerance, max_iterations=max_iterations, warm_start=warm_start)


def solve_nuclear_interior(
    problem: MarginProblem,
    norm: Norm,
    *,
    tolerance: float | None = None,
    max_iterations: int | None = None,
    warm_start: MarginSolution | None = None,
) -> MarginSolution:
    """Solve with the interior point method on all rows; parameters as for `solve_nuclear`.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, Norm
    >>> from attsvm.solvers.nuclear import solve_nuclear_interior
    >>> result = solve_nuclear_interior(MarginProblem(np.eye(2), np.eye(2), [0, 1]), Norm("nuclear"))
    >>> print(result.status, round(result.norm, 6), result.extras["uniqueness"].verdict)
    optimal 2.0 not unique
    """
    start, solver = time.perf_counter(), "nuclear"
    rows = prepare(problem, norm, solver=solver, start=start)
    if isinstance(rows, MarginSolution):
        return rows
    best = None if warm_start is None else warm_polish(rows, warm_start)
    proof, iterations = None, 0
    if best is None:
        best, proof, iterations = run_interior(rows, np.arange(rows.m), max_iterations=max_iterations or 100)
    if proof is None and (best is None or best.gap > 1e-6):
        proof = find_farkas(problem)
    if proof is not None or best is None:
        return no_solution(problem, norm, proof, solver=solver, iterations=iterations, start=start)
    extras: dict[str, object] = {"newton_steps": best.steps, "warm_started": warm_start is not None and iterations == 0}
    return report(
        rows,
        norm,
        best.W,
        best.lam,
        solver=solver,
        iterations=iterations,
        start=start,
        tolerance=tolerance,
        extras=extras,
    )
