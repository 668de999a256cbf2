"""From a pair in unit rows to a certified `MarginSolution`: shared by the nuclear-norm solvers."""

from __future__ import annotations

import time

import numpy as np

from attsvm.solvers.certificate import Certificate
from attsvm.solvers.margin import FloatArray, MarginProblem
from attsvm.solvers.norms import Norm
from attsvm.solvers.nuclear_rows import UnitRows, unit_rows
from attsvm.solvers.solution import MarginSolution, conclude, without_solution
from attsvm.solvers.status import Status
from attsvm.solvers.uniqueness import certify_uniqueness, uniqueness_of_rows

__all__ = ["ACHIEVABLE", "check_nuclear", "no_solution", "prepare", "report", "trivial_solution"]

# What the certificate reaches on every well-posed problem, with or without the Newton steps.
ACHIEVABLE = 1e-7


def check_nuclear(norm: Norm) -> None:
    """Raise unless the norm is the nuclear norm."""
    if norm.name != "nuclear":
        raise ValueError(f"norm must be 'nuclear' for this solver, got {norm.name!r}")


def no_solution(
    problem: MarginProblem, norm: Norm, proof: Certificate | None, *, solver: str, iterations: int, start: float
) -> MarginSolution:
    """Infeasible with its proof; failed without one."""
    status = Status.FAILED if proof is None else Status.INFEASIBLE
    seconds = time.perf_counter() - start
    return without_solution(problem, norm, status, proof, solver=solver, iterations=iterations, seconds=seconds)


def trivial_solution(problem: MarginProblem, norm: Norm, *, solver: str, start: float) -> MarginSolution:
    """W = 0, optimal because it satisfies every row."""
    zero = np.zeros(problem.shape)
    extras: dict[str, object] = {"uniqueness": certify_uniqueness(problem, zero, np.zeros(problem.m))}
    return conclude(
        problem,
        norm,
        zero,
        np.zeros(problem.m),
        solver=solver,
        iterations=0,
        seconds=time.perf_counter() - start,
        tolerance=ACHIEVABLE,
        extras=extras,
    )


def prepare(problem: MarginProblem, norm: Norm, *, solver: str, start: float) -> UnitRows | MarginSolution:
    """The rows that a solver works on, or the answer when it takes no solver: a zero row, or W = 0."""
    check_nuclear(norm)
    rows = unit_rows(problem)
    if isinstance(rows, Certificate):
        return no_solution(problem, norm, rows, solver=solver, iterations=0, start=start)
    return trivial_solution(problem, norm, solver=solver, start=start) if rows.trivial else rows


def report(
    rows: UnitRows,
    norm: Norm,
    W: FloatArray,
    lam: FloatArray,
    *,
    solver: str,
    iterations: int,
    start: float,
    tolerance: float | None,
    extras: dict[str, object],
) -> MarginSolution:
    """Lift, certify, and add the uniqueness certificate."""
    lifted, multipliers = rows.restore(W, lam)
    if np.isfinite(lifted).all() and np.isfinite(multipliers).all():
        extras = {**extras, "uniqueness": uniqueness_of_rows(rows, W, lam)}
    return conclude(
        rows.original,
        norm,
        lifted,
        multipliers,
        solver=solver,
        iterations=iterations,
        seconds=time.perf_counter() - start,
        tolerance=ACHIEVABLE if tolerance is None else tolerance,
        extras=extras,
    )
