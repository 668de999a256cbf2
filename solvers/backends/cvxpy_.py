"""The reference: any norm, any installed cvxpy solver, every constraint in one vectorised expression."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np

from attsvm.solvers.farkas import find_farkas
from attsvm.solvers.margin import FloatArray, MarginProblem
from attsvm.solvers.norms import Norm
from attsvm.solvers.reduction import reduce_dimensions
from attsvm.solvers.solution import MarginSolution, conclude, without_solution
from attsvm.solvers.status import Status

__all__ = ["ACHIEVABLE", "TIGHT", "solve_cvxpy"]

# Accuracy that a solver's certificate can be expected to reach with the settings below.
ACHIEVABLE = {"CLARABEL": 1e-7, "SCS": 1e-4, "OSQP": 1e-5}
_OTHER_ACHIEVABLE = 1e-5

# Settings far tighter than the packages' defaults: an optimization geometry is read off the solution.
TIGHT: dict[str, dict[str, Any]] = {
    "CLARABEL": {"tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11, "max_iter": 200},
    "SCS": {"eps_abs": 1e-8, "eps_rel": 1e-8, "max_iters": 100_000},
    "OSQP": {
        "eps_abs": 1e-9,
        "eps_rel": 1e-9,
        "eps_prim_inf": 1e-12,  # the default calls feasible problems of large norm infeasible
        "max_iter": 100_000,
        "polishing": True,
    },
}

_SOLVED = {"optimal", "optimal_inaccurate", "user_limit"}


def _installed(name: str | None) -> str:
    import cvxpy as cp

    wanted = "CLARABEL" if name is None else name.upper()
    if wanted not in cp.installed_solvers():
        found = ", ".join(f"'cvxpy:{s}'" for s in cp.installed_solvers())
        raise ValueError(f"solver 'cvxpy:{name}' is not installed; found {found}")
    return wanted


def _objective(norm: Norm, W: Any) -> Any:
    import cvxpy as cp

    entries = cp.vec(W, order="C")
    if norm.name == "frobenius":
        return cp.sum_squares(entries) / 2  # a quadratic program: OSQP takes it too
    if norm.name == "nuclear":
        return cp.normNuc(W)
    if norm.name == "spectral":
        return cp.sigma_max(W)
    if norm.p == 1.0:
        return cp.norm1(entries)
    if norm.p == np.inf:
        return cp.norm_inf(entries)
    return cp.pnorm(entries, norm.p, approx=False)  # exact power cones, not a rational approximation of p


def solve_cvxpy(
    problem: MarginProblem,
    norm: Norm,
    *,
    variant: str | None = None,
    tolerance: float | None = None,
    max_iterations: int | None = None,
    defaults: bool = False,
    **options: Any,
) -> MarginSolution:
    """Solve with cvxpy.

    Parameters
    ----------
    problem : MarginProblem
    norm : Norm
    variant : str, optional
        cvxpy solver name; CLARABEL by default.
    tolerance : float, optional
        What the certificate must reach to be called optimal; the solver's achievable one by default.
    max_iterations : int, optional
        Passed on for CLARABEL, SCS and OSQP; use ``options`` for other solvers.
    defaults : bool
        Use the solver package's default accuracy instead of our tight settings (for comparisons).
    **options
        Solver settings, passed to ``cvxpy.Problem.solve``.
    """
    import cvxpy as cp

    name = _installed(variant)
    settings: dict[str, Any] = {} if defaults else dict(TIGHT.get(name, {}))
    if max_iterations is not None:
        settings["max_iters" if name == "SCS" else "max_iter"] = max_iterations
    settings.update(options)

    start = time.perf_counter()
    reduction = reduce_dimensions(problem) if norm.unitarily_invariant else None
    rows = problem if reduction is None else reduction.problem
    scale = float(problem.row_norms.max()) or 1.0  # unit rows, so that tolerances mean the same at any scale
    features = rows.features() / scale
    W = cp.Variable(rows.shape)
    values = features @ cp.vec(W, order="C")
    at_least, equal = ~rows.equality, rows.equality
    constraints = []
    if at_least.any():
        constraints.append(values[at_least] >= rows.rhs[at_least])
    if equal.any():
        constraints.append(values[equal] == rows.rhs[equal])
    program = cp.Problem(cp.Minimize(_objective(norm, W)), constraints)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "may be inaccurate": the certificate decides
        try:
            program.solve(solver=name, **settings)
            outcome = program.status
        except cp.SolverError as error:
            if "cannot solve this problem" in str(error):  # a cone that the solver does not have
                raise ValueError(f"solver 'cvxpy:{name}' does not support norm {norm.name!r}; use 'cvxpy'") from error
            outcome = "solver_error"
    iterations = int((program.solver_stats and program.solver_stats.num_iters) or 0)
    label = f"cvxpy:{name}"

    result = None
    if outcome in _SOLVED and W.value is not None and all(c.dual_value is not None for c in constraints):
        multipliers = _multipliers(norm, np.asarray(W.value), rows, constraints) / scale
        found = np.asarray(W.value, dtype=np.float64) / scale
        lifted = found if reduction is None else reduction.lift(found)
        result = conclude(
            problem,
            norm,
            lifted,
            multipliers,
            solver=label,
            iterations=iterations,
            seconds=time.perf_counter() - start,
            tolerance=tolerance or ACHIEVABLE.get(name, _OTHER_ACHIEVABLE),
        )
        if result.status is Status.OPTIMAL:
            return result
    proof = find_farkas(problem)
    if proof is not None or result is None:
        status = Status.FAILED if proof is None else Status.INFEASIBLE
        return without_solution(
            problem, norm, status, proof, solver=label, iterations=iterations, seconds=time.perf_counter() - start
        )
    return result


def _multipliers(norm: Norm, W: FloatArray, rows: MarginProblem, constraints: list[Any]) -> FloatArray:
    """Multipliers of the scaled rows in norm form, in row order."""
    lam = np.zeros(rows.m)
    duals = iter(constraints)
    if not rows.equality.all():
        lam[~rows.equality] = np.atleast_1d(next(duals).dual_value)
    if rows.equality.any():
        lam[rows.equality] = -np.atleast_1d(next(duals).dual_value)  # cvxpy's Lagrangian adds nu (lhs - rhs)
    if norm.name == "frobenius":  # the program minimizes |W|^2 / 2, whose gradient is W, not W / |W|
        size = float(np.linalg.norm(W))
        lam = lam / size if size > 0 else np.zeros(rows.m)
    return lam
