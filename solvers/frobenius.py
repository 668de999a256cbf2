"""Least Frobenius norm: the Gram matrix while it is small, matrix-free beyond."""

from __future__ import annotations

import numpy.typing as npt

from attsvm.solvers.active_set import solve_active_set
from attsvm.solvers.margin import MarginProblem
from attsvm.solvers.norms import Norm
from attsvm.solvers.projected import solve_projected
from attsvm.solvers.solution import MarginSolution

__all__ = ["solve_frobenius"]

# Rows up to which the exact method on the Gram matrix (18 MiB at this size) is the faster one.
_GRAM_ROWS = 1500


def solve_frobenius(
    problem: MarginProblem,
    norm: Norm,
    *,
    tolerance: float | None = None,
    max_iterations: int | None = None,
    warm_start: npt.ArrayLike | MarginSolution | None = None,
) -> MarginSolution:
    """Least Frobenius norm by the library's own solvers, chosen by the number of rows.

    Parameters
    ----------
    problem : MarginProblem
    norm : Norm
        ``Norm("frobenius")``.
    tolerance : float, optional
        What the certificate must reach to be called optimal; 1e-8 by default.
    max_iterations : int, optional
        Limit on rounds, see `solve_active_set` and `solve_projected`.
    warm_start : array_like of shape (m,) or MarginSolution, optional
        Multipliers of a similar problem with as many rows.

    Returns
    -------
    MarginSolution
        Its ``solver`` says which one was used: "active-set" or "projected".

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, Norm
    >>> from attsvm.solvers.frobenius import solve_frobenius
    >>> result = solve_frobenius(MarginProblem([[2.0]], [[1.0]], [0]), Norm("frobenius"))
    >>> print(result.status, result.solver, result.W.item())
    optimal active-set 0.5
    """
    chosen = solve_active_set if problem.m <= _GRAM_ROWS else solve_projected
    return chosen(problem, norm, tolerance=tolerance, max_iterations=max_iterations, warm_start=warm_start)
