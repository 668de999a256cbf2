"""One problem from rows to solution: settle what needs no method, run the method, close what is open, conclude."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from attsvm.solvers.certify.certificate import Certificate, Source
from attsvm.solvers.certify.farkas import zero_row_proof
from attsvm.solvers.exact.settle import settle_exactly
from attsvm.solvers.norms import Norm
from attsvm.solvers.problem import MarginProblem
from attsvm.solvers.registry import SolverSpec
from attsvm.solvers.request import Request
from attsvm.solvers.solution import Found, MarginSolution, conclude
from attsvm.solvers.status import Status
from attsvm.solvers.unit import UnitProblem, scaled_to_range

__all__ = ["ROUNDING", "solve_one"]

# A violation of more than so many error bounds is not rounding: the rows may contradict each other.
ROUNDING = 64.0


def solve_one(spec: SolverSpec, problem: MarginProblem, norm: Norm, request: Request) -> MarginSolution:
    """Unit rows, what needs no method, the method, exact arithmetic for what float64 leaves open, the verdict."""
    begin = time.perf_counter()
    unit = UnitProblem(problem)
    if unit.is_extreme:
        return _solve_scaled(spec, problem, norm, request)
    found = _settled(unit) or spec.load()(unit, norm, request)
    if _is_open(found, request) and not spec.ranks and request.max_iterations is None:
        own = not spec.foreign or norm.name not in ("frobenius", "nuclear")  # a foreign result of these is left alone
        if own and problem.penalty is None:  # exact arithmetic settles hard margins
            found = settle_exactly(problem, norm, found, request.tolerance)
    label = f"{spec.name}:{request.variant.upper()}" if request.variant else found.extras.answered_by or spec.name
    return conclude(
        problem, norm, found, solver=label, seconds=time.perf_counter() - begin, tolerance=request.tolerance
    )


def _settled(unit: UnitProblem) -> Found | None:
    """What needs no method: a zero row that asks for something, or W = 0."""
    problem, sides = unit.problem, unit.problem.rhs
    if not unit.has_zero_rows and (problem.is_plain or sides.item(sides.argmax()) > 0.0):
        return None
    if unit.has_zero_rows and problem.penalty is None:
        proof = zero_row_proof(problem)
        if proof is not None:
            return Found(farkas=proof)
    if unit.trivial:
        return Found(np.zeros(problem.shape), np.zeros(problem.m))
    return None


def _is_open(found: Found, request: Request) -> bool:
    """Whether float64 leaves something to decide: no proof, or rows that are missed by more than rounding explains."""
    certificate = found.certificate
    if certificate is not None and certificate.proved <= request.tolerance:
        return certificate.primal_violation > ROUNDING * certificate.primal_error
    return found.farkas is None and (found.W is None or bool(found.W.any()))


def _solve_scaled(spec: SolverSpec, problem: MarginProblem, norm: Norm, request: Request) -> MarginSolution:
    """A problem whose numbers leave the range, through powers of two; its W may leave the range as well."""
    scaled, power = scaled_to_range(problem)
    if UnitProblem(scaled).is_extreme:  # rows too different for one power of two: exact arithmetic or nothing
        begin = time.perf_counter()
        with np.errstate(all="ignore"):
            found = settle_exactly(scaled, norm, Found(), request.tolerance)
            solution = conclude(
                scaled, norm, found, solver=spec.name, seconds=time.perf_counter() - begin, tolerance=request.tolerance
            )
    else:
        solution = solve_one(spec, scaled, norm, request)
    if not solution.status.has_solution:  # powers of two change no sign and cancel nothing: the same proof
        return replace(solution, problem=problem)
    W, lam = np.ldexp(solution.W, power), np.ldexp(solution.multipliers, power)
    whole = np.array_equal(np.ldexp(W, -power), solution.W)
    certificate = solution.certificate
    value, bound = (float(np.ldexp(x, power)) for x in (certificate.norm, certificate.lower_bound))
    if np.ldexp(bound, -power) > certificate.lower_bound:  # rounded up where float64 has few digits left
        bound = float(np.nextafter(bound, 0.0))
    if not whole:  # not to be represented in float64; the scaled problem is solved, this one is not
        nothing = np.full(problem.m, np.nan)
        unknown = Certificate.unknown(bound=bound, source=Source(problem, None, nothing, norm))
        return replace(
            solution, problem=problem, status=Status.FAILED, certificate=unknown, multipliers=nothing, _W=None
        )
    rank = certificate.rank_certificate
    if rank is not None:  # the one number of it that has the scale of W
        rank = replace(rank, resolution=float(np.ldexp(rank.resolution, power)))
    source = Source(problem, W, lam, norm)
    certificate = replace(certificate, norm=value, lower_bound=bound, rank_certificate=rank, _source=source)
    return replace(solution, problem=problem, certificate=certificate, multipliers=lam, _W=W)
