"""The reference: any norm, any installed cvxpy solver, every constraint in one vectorised expression."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.certify import certify
from attsvm.solvers.infeasible import find_farkas
from attsvm.solvers.norms import Norm
from attsvm.solvers.penalty import Penalty
from attsvm.solvers.problem import MarginProblem
from attsvm.solvers.request import Request
from attsvm.solvers.solution import Found
from attsvm.solvers.unit import UnitProblem, span

__all__ = ["ACHIEVABLE", "TIGHT", "solve_cvxpy"]

# Accuracy that a solver's certificate can be expected to reach with the settings below.
ACHIEVABLE = {"CLARABEL": 1e-7, "SCS": 1e-4, "OSQP": 1e-5}

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


def _settings(name: str, request: Request) -> dict[str, Any]:
    options = dict(request.options)
    settings: dict[str, Any] = {} if options.pop("defaults", False) else dict(TIGHT.get(name, {}))
    if request.max_iterations is not None:
        settings["max_iters" if name == "SCS" else "max_iter"] = request.max_iterations
    return {**settings, **options}


def _reduced(problem: MarginProblem, norm: Norm) -> tuple[FloatArray, tuple[int, int], FloatArray, FloatArray]:
    """Dense rows, shape of W, and the bases of the spans in which both are written."""
    pair = problem.rows.gather(np.arange(problem.m))
    a, queries = pair.a.astype(np.float64), pair.queries.astype(np.float64)
    left = span(a) if norm.unitarily_invariant else None
    right = span(queries[np.unique(pair.owner)]) if norm.unitarily_invariant else None
    left = np.eye(a.shape[1]) if left is None else left
    right = np.eye(queries.shape[1]) if right is None else right
    a, b = a @ left, (queries @ right)[pair.owner]
    return (a[:, :, None] * b[:, None, :]).reshape(len(a), -1), (left.shape[1], right.shape[1]), left, right


def solve_cvxpy(unit: UnitProblem, norm: Norm, request: Request) -> Found:
    """Solve with cvxpy: ``solver="cvxpy"`` takes CLARABEL, ``"cvxpy:NAME"`` any installed solver.

    Options are solver settings, passed to ``cvxpy.Problem.solve``, and ``defaults=True`` for the solver package's own
    accuracy instead of our tight settings (for comparisons).

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, solve
    >>> solve(MarginProblem([[2.0]], [[1.0]], [0]), "linf", "cvxpy").W.round(6)
    array([[0.5]])
    """
    import cvxpy as cp

    problem = unit.problem
    name = _installed(request.variant or None)
    settings = _settings(name, request)
    features, shape, left, right = _reduced(problem, norm)
    scale = float(problem.row_norms.max()) or 1.0  # rows of size 1, so that tolerances mean the same at any scale
    W = cp.Variable(shape)
    values = (features / scale) @ cp.vec(W, order="C")
    if problem.penalty is None:
        constraints = _constraints(problem, values)
        program = cp.Problem(cp.Minimize(norm.expression(W)), constraints)
    else:
        program, constraints = _soft_program(problem, problem.penalty, norm, W, values, scale)
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

    found = Found(iterations=iterations)
    if outcome in _SOLVED and W.value is not None and all(c.dual_value is not None for c in constraints):
        matrix = np.asarray(W.value, dtype=np.float64)
        hard = problem.penalty is None
        multipliers = _multipliers(norm, problem, constraints) if hard else _soft_multipliers(problem, constraints)
        lifted = left @ (matrix / scale) @ right.T
        found = Found(lifted, multipliers, iterations, certificate=certify(problem, lifted, multipliers, norm))
        if found.certificate is not None and found.certificate.proved <= request.tolerance:
            return found
    proof = find_farkas(problem) if problem.penalty is None else None
    return found if proof is None else Found(farkas=proof, iterations=iterations)


def _constraints(problem: MarginProblem, values: Any) -> list[Any]:
    """Rows as constraints, inequalities first."""
    at_least, equal = ~problem.equality, problem.equality
    constraints = []
    if at_least.any():
        constraints.append(values[at_least] >= problem.rhs[at_least])
    if equal.any():
        constraints.append(values[equal] == problem.rhs[equal])
    return constraints


def _soft_program(
    problem: MarginProblem, penalty: Penalty, norm: Norm, W: Any, values: Any, scale: float
) -> tuple[Any, list[Any]]:
    """The soft margin with its slacks written out; W here is ``scale`` times the matrix."""
    import cvxpy as cp

    by_query = penalty.slack == "query"
    slacks = cp.Variable(problem.q if by_query else problem.m, nonneg=True)
    paid = slacks[problem.owner] if by_query else slacks
    constraints = [values + paid >= problem.rhs]
    if problem.equality.any():
        equal = np.flatnonzero(problem.equality)
        constraints.append(paid[equal] - values[equal] >= -problem.rhs[equal])
    regular = cp.sum_squares(W) / (2.0 * scale**2) if norm.name == "frobenius" else norm.expression(W) / scale
    cost = cp.sum(slacks) if penalty.loss == "hinge" else cp.sum_squares(slacks)
    # In units in which the price is 1: tolerances are absolute.
    unit = max(1.0, penalty.C)
    return cp.Problem(cp.Minimize(regular / unit + (penalty.C / unit) * cost), constraints), constraints


def _soft_multipliers(problem: MarginProblem, constraints: list[Any]) -> FloatArray:
    """Multipliers of the soft margin in its own scale, in row order."""
    assert problem.penalty is not None
    lam = np.array(constraints[0].dual_value, dtype=np.float64).reshape(problem.m)
    if len(constraints) > 1:
        lam[problem.equality] -= np.atleast_1d(constraints[1].dual_value)
    return np.asarray(lam * max(1.0, problem.penalty.C))


def _multipliers(norm: Norm, problem: MarginProblem, constraints: list[Any]) -> FloatArray:
    """Multipliers in norm form, in row order: whatever increasing function of the norm was minimized, ``N*(D) = 1``."""
    lam = np.zeros(problem.m)
    duals = iter(constraints)
    if not problem.equality.all():
        lam[~problem.equality] = np.atleast_1d(next(duals).dual_value)
    if problem.equality.any():
        lam[problem.equality] = -np.atleast_1d(next(duals).dual_value)  # cvxpy's Lagrangian adds nu (lhs - rhs)
    size = norm.dual(problem.adjoint(lam)) if np.isfinite(lam).all() else np.inf
    return lam / size if 0 < size < np.inf else np.zeros(problem.m)
