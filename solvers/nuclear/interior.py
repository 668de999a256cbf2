"""Least nuclear norm of one problem: interior-point steps with attempts to finish by Newton's method."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.certify.certificate import Certificate
from attsvm.solvers.deadline import Driver
from attsvm.solvers.frobenius.conflicts import find_farkas, purify_farkas
from attsvm.solvers.margin_solution import Extras, MethodResult
from attsvm.solvers.norms import Norm
from attsvm.solvers.nuclear.interior_point import InteriorPoint
from attsvm.solvers.nuclear.newton import Polished, polish_guess, report, warm_polish
from attsvm.solvers.nuclear.spectra import pair_gap
from attsvm.solvers.request import Request
from attsvm.solvers.unit import UnitProblem, UnitRows

__all__ = ["run_interior", "solve_interior"]

# Gap from which on Newton's method is tried: a step of it takes as long as six of these.
_ATTEMPT = 3e-5
# Objective from which on rows are suspected of contradicting each other.
_DOUBT = 1e3
# Accuracy that either start reaches unless rounding interferes.
_RETRY = 1e-10


def run_interior(
    rows: UnitRows, working: npt.NDArray[np.intp], driver: Driver[Polished], *, goal: float = 1e-11
) -> Certificate | None:
    """Interior point steps with attempts to finish by Newton, until ``goal`` or until rounding stops them.

    Parameters
    ----------
    rows : UnitRows
    working : ndarray of int
        Rows to start with; the others join when they are missed. Must hold all equality rows.
    driver : Driver
        Holds the budget; the best pair met is left in it, measured by `pair_gap`.
    goal : float
        Measure that ends the method.

    Returns
    -------
    Certificate or None
        Proof of infeasibility.
    """
    state = InteriorPoint(rows, working)
    proof = _iterate(state, driver, goal)
    # Nearly infeasible rows have a large W, and where rounding stops the method depends on the path: others may get
    # closer, from the plain start, and from both starts of rows for which W is of size 1.
    for unit_size, plain in ((False, True), (True, True), (True, False)):
        if proof is not None or driver.best is None or driver.measure <= _RETRY or driver.left <= 0:
            break
        size = float(np.linalg.norm(driver.best.W)) if unit_size else 1.0
        if unit_size or not state.plain:
            proof = _retry(rows, working, size, plain, driver, goal)
    return proof


def _retry(
    rows: UnitRows, working: npt.NDArray[np.intp], size: float, plain: bool, driver: Driver[Polished], goal: float
) -> Certificate | None:
    """The method from one of its starts, on right-hand sides divided by ``size``."""
    again: Driver[Polished] = Driver(driver.left)
    proof = _iterate(InteriorPoint(replace(rows, rhs=rows.rhs / size), working, plain), again, goal)
    driver.advance(again.steps)
    if again.best is not None:
        W, lam = again.best.W * size, again.best.lam
        gap = pair_gap(rows, W, lam)
        driver.offer(gap, replace(again.best, W=W, gap=gap))
    return proof


def _iterate(state: InteriorPoint, driver: Driver[Polished], goal: float) -> Certificate | None:
    """Steps and attempts from one start: a proof of infeasibility, or None with the best pair in the driver."""
    rows = state.rows
    attempt_below, doubt_above, offered = _ATTEMPT, _DOUBT, False
    while driver.advance():
        if not state.step():
            break
        gap, missed, objective = state.measures.gap, state.measures.missed, state.measures.objective
        if missed < 0.1:
            state.enlarge(0.0)
        if objective > doubt_above:  # unit rows and right-hand sides up to 1: unusual for a feasible problem
            proof = _contradiction(rows, state.multipliers, first=doubt_above == _DOUBT)
            if proof is not None:
                return proof
            doubt_above = 10.0 * objective
        if max(gap, missed) > attempt_below:
            continue
        W, lam = state.W, state.multipliers
        slack = np.full(rows.m, np.inf)
        slack[state.working] = state.slack
        polished = polish_guess(rows, W, lam, lam > slack)
        if polished is not None:
            driver.offer(polished.gap, polished)
        if driver.measure > goal:  # the iterate itself may be better than what Newton made of it
            _offer_iterate(state, driver)
        offered = True
        if driver.measure <= goal:
            break
        attempt_below = 0.2 * max(gap, missed)
    if not offered:  # out of iterations: what there is, for the certificate to judge
        _offer_iterate(state, driver)
    return None


def _contradiction(rows: UnitRows, lam: FloatArray, first: bool) -> Certificate | None:
    """A proof of infeasibility: by a search of its own where entries are few, which is quick, or from ``lam``."""
    if first and rows.m > rows.shape[0] * rows.shape[1]:
        proof = find_farkas(rows.unit.problem)
        if proof is not None:
            return proof
    return purify_farkas(rows, lam)


def _offer_iterate(state: InteriorPoint, driver: Driver[Polished]) -> None:
    W, lam = state.W, state.multipliers
    gap = pair_gap(state.rows, W, lam)
    driver.offer(gap, Polished(W, lam, min(state.rows.shape), gap, 0))


def solve_interior(unit: UnitProblem, norm: Norm, request: Request) -> MethodResult:
    """Least nuclear norm with the interior point method on all rows; ``max_iterations`` are its steps, 100 by default.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, solve
    >>> result = solve(MarginProblem(np.eye(2), np.eye(2), [0, 1]), "nuclear", "interior")
    >>> print(result.status, round(result.norm, 6), result.uniqueness.verdict)
    optimal 2.0 not unique
    """
    rows = unit.rows
    best = warm_polish(rows, request)
    if best is not None:
        return report(rows, best, 0, Extras(newton_steps=best.steps, warm_started=True))
    driver: Driver[Polished] = Driver(request.max_iterations or 100)
    proof = run_interior(rows, np.arange(rows.m), driver)
    if proof is None and driver.measure > 1e-6:
        proof = find_farkas(unit.problem)
    if proof is not None or driver.best is None:
        return MethodResult(farkas=proof, iterations=driver.steps)
    found = report(rows, driver.best, driver.steps, Extras(newton_steps=driver.best.steps))
    return found
