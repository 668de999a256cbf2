"""The reference for soft margins: the same program with its slacks written out, for cvxpy."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.certify.entry import certify
from attsvm.solvers.norms import Norm
from attsvm.solvers.penalty import Penalty
from attsvm.solvers.problem import MarginProblem
from attsvm.solvers.solution import Found

__all__ = ["solve_soft"]


def solve_soft(
    problem: MarginProblem,
    penalty: Penalty,
    norm: Norm,
    reduced: tuple[FloatArray, tuple[int, int], FloatArray, FloatArray],
    name: str,
    settings: dict[str, Any],
) -> Found:
    """Solve the soft margin of dense rows, in coordinates of their spans, with an installed cvxpy solver."""
    import cvxpy as cp

    features, shape, left, right = reduced
    scale = float(problem.row_norms.max()) or 1.0  # rows of size 1, so that tolerances mean the same at any scale
    W = cp.Variable(shape)
    values = (features / scale) @ cp.vec(W, order="C")
    by_query = penalty.slack == "query"
    slacks = cp.Variable(problem.q if by_query else problem.m, nonneg=True)
    paid = slacks[problem.owner] if by_query else slacks
    constraints = [values + paid >= problem.rhs]
    equal = np.flatnonzero(problem.equality)
    if len(equal):
        constraints.append(paid[equal] - values[equal] >= -problem.rhs[equal])
    regular = cp.sum_squares(W) / (2.0 * scale**2) if norm.name == "frobenius" else norm.expression(W) / scale
    cost = cp.sum(slacks) if penalty.loss == "hinge" else cp.sum_squares(slacks)
    unit = max(1.0, penalty.C)  # the objective in units in which the price is 1: tolerances are absolute
    program = cp.Problem(cp.Minimize(regular / unit + (penalty.C / unit) * cost), constraints)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "may be inaccurate": the certificate decides
        try:
            program.solve(solver=name, **settings)
        except cp.SolverError as error:
            if "cannot solve this problem" in str(error):
                raise ValueError(f"solver 'cvxpy:{name}' does not support norm {norm.name!r}; use 'cvxpy'") from error
            return Found()
    iterations = int((program.solver_stats and program.solver_stats.num_iters) or 0)
    if W.value is None or any(c.dual_value is None for c in constraints):
        return Found(iterations=iterations)
    lam = np.array(constraints[0].dual_value, dtype=np.float64).reshape(problem.m)
    if len(equal):
        lam[equal] -= np.atleast_1d(constraints[1].dual_value)
    lam *= unit
    lifted = left @ (np.asarray(W.value, dtype=np.float64) / scale) @ right.T
    return Found(lifted, lam, iterations, certificate=certify(problem, lifted, lam, norm))
