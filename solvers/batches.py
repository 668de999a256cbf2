"""A batch from rows to solution: one run of a method, certificates of all, and what stays open solved one by one."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import BoolArray, FloatArray
from attsvm.solvers.certify.certificate import Certificate
from attsvm.solvers.certify.entry import certify
from attsvm.solvers.certify.farkas import FarkasCertificate, certify_infeasible, zero_row_proof
from attsvm.solvers.norms import Norm
from attsvm.solvers.problem import MarginProblem
from attsvm.solvers.registry import SolverSpec, choose
from attsvm.solvers.request import Request
from attsvm.solvers.single import ROUNDING, solve_one
from attsvm.solvers.solution import Extras, MarginSolution
from attsvm.solvers.status import Status
from attsvm.solvers.unit import UnitProblem

__all__ = ["solve_many"]

# Row norms of a nuclear-norm problem that differ by more than this factor make it hard for float64.
_SPREAD = 1e5
# What is proved of a nuclear norm in a batch before the problem is finished alone: norms then agree to 1e-10.
_SHARP = 9e-11
_CODES = np.array([Status.OPTIMAL, Status.INACCURATE, Status.INFEASIBLE, Status.FAILED], dtype=object)


def solve_many(spec: SolverSpec, problem: MarginProblem, norm: Norm, request: Request) -> MarginSolution:
    """All problems of a batch: at once where the method can, else one by one."""
    if not len(problem):
        return _solved_nothing(spec, problem, norm, request.tolerance)
    # A budget of pivoting rounds is one problem's: a batch is then solved one by one, as each would be alone.
    if spec.batched and (spec.batch_only or request.max_iterations is None):
        return _solve_batched(spec, problem, norm, request)
    return _solve_each(spec, problem, norm, request)


def _solved_nothing(spec: SolverSpec, problem: MarginProblem, norm: Norm, tolerance: float) -> MarginSolution:
    """The solution of a batch without problems."""
    status: Any = np.empty(0, dtype=object)
    counts: Any = np.zeros(0, dtype=np.int64)
    return MarginSolution(
        problem, norm, status, Certificate.unknown((0,)), np.zeros((0, problem.m)), spec.name, counts,
        0.0, tolerance, np.zeros((0, *problem.shape)), _no_rescues(0),
    )  # fmt: skip


def _solve_each(spec: SolverSpec, problem: MarginProblem, norm: Norm, request: Request) -> MarginSolution:
    spec = choose(problem[0], norm)[0] if spec.batch_only else spec
    parts = []
    for i in range(len(problem)):
        start = _warm_part(request.warm_start, problem, i)
        parts.append(solve_one(spec, problem[i], norm, replace(request, warm_start=start)))
    return MarginSolution.stack(parts, problem)


def _warm_part(known: MarginSolution | FloatArray | None, problem: MarginProblem, i: int) -> Any:
    """The warm start of one problem of a batch: of a solution its part, unless that has other rows."""
    if known is None:
        return None
    if isinstance(known, MarginSolution):
        return known[i] if known.problem[i].m == problem[i].m else None
    return known[i] if problem.valid is None else known[i][problem.valid[i]]


def _solve_batched(spec: SolverSpec, batch: MarginProblem, norm: Norm, request: Request) -> MarginSolution:
    """A method that works on a batch, then its certificates; what is left open is solved one by one."""
    begin = time.perf_counter()
    unit = UnitProblem(batch)
    if unit.is_extreme:
        return _solve_each(spec, batch, norm, request)
    found = spec.load()(unit, norm, request)
    assert found.W is not None and found.multipliers is not None
    usable = np.asarray(np.isfinite(found.W).all(axis=(-2, -1)) & np.isfinite(found.multipliers).all(axis=-1))
    W = np.where(usable[:, None, None], found.W, 0.0)
    lam = np.where(usable[:, None], found.multipliers, 0.0)
    certificate: Any = certify(batch, W, lam, norm)
    rescue = request.options.get("rescue", request.max_iterations is None)
    hard = _is_hard(unit, norm) & rescue
    closes = usable & (certificate.proved <= request.tolerance) & ~hard
    if norm.name == "frobenius":  # pivoting meets rows to rounding; what it misses may be a contradiction
        closes &= certificate.primal_violation <= ROUNDING * certificate.primal_error
    proofs = _proofs(batch, found.candidates, ~closes & ~hard)
    code = np.where(closes, 0, np.where(usable, 1, 3))
    code[list(proofs)] = 2
    blunt = (norm.name == "nuclear") & (certificate.proved > _SHARP)
    open_ones = np.flatnonzero((code == 1) | (code == 3) | ((code == 0) & blunt))
    status: Any = _CODES[code]
    label = found.extras.answered_by or spec.name
    result = MarginSolution(
        batch, norm, status, _blanked(certificate, code), np.where(code[:, None] < 2, lam, np.nan), label,
        found.iterations, 0.0, request.tolerance, np.where(code[:, None, None] < 2, W, np.nan),
        _no_rescues(len(code)), proofs,
    )  # fmt: skip
    if len(open_ones) and rescue:
        result = _rescued(result, open_ones, norm, request, hard)
    return replace(result, seconds=time.perf_counter() - begin)


def _no_rescues(size: int) -> Extras:
    flags: Any = np.zeros(size, dtype=bool)
    return Extras(rescued=flags)


def _proofs(batch: MarginProblem, candidates: FloatArray | None, undecided: BoolArray) -> dict[int, FarkasCertificate]:
    """Verified proofs of infeasibility by problem."""
    proofs: dict[int, FarkasCertificate] = {}
    for i in np.flatnonzero(undecided):
        one = MarginProblem.from_rows(batch.rows[int(i)], batch.asked[i], batch.equality[i])
        proof = zero_row_proof(one)
        if proof is None and candidates is not None and np.isfinite(candidates[i]).all():
            proof = certify_infeasible(one, candidates[i])
        if proof is not None and proof.farkas is not None:
            proofs[int(i)] = proof.farkas
    return proofs


def _blanked(certificate: Any, code: npt.NDArray[np.int64]) -> Any:
    """The certificate of a batch with infinities where there is no solution."""
    without = code >= 2
    if not without.any():
        return certificate
    unknown: Any = Certificate.unknown((len(code),))
    unknown = replace(unknown, lower_bound=np.where(code == 2, np.inf, 0.0))  # nothing is proved by a failure
    parts = {
        name: np.where(without, getattr(unknown, name), getattr(certificate, name))
        for name in ("primal_violation", "dual_violation", "gap", "complementarity", "norm", "lower_bound",
                     "primal_error", "gap_error")
    }  # fmt: skip
    ranks = certificate.rank_certificate
    if ranks is not None:
        ranks = replace(
            ranks,
            rank=np.where(without, -1, ranks.rank),
            numerical_rank=np.where(without, -1, ranks.numerical_rank),
            resolution=np.where(without, np.inf, ranks.resolution),
            tolerance=np.where(without, np.inf, ranks.tolerance),
        )
    return replace(certificate, **parts, rank_certificate=ranks)


def _is_hard(unit: UnitProblem, norm: Norm) -> BoolArray:
    """Where rows differ so much that what closes depends on the method: solved as they would be alone, shape (B,)."""
    if norm.name != "nuclear":
        return np.zeros(len(unit.problem), dtype=bool)
    largest = unit.inverse.max(axis=-1)
    least = np.where(unit.inverse > 0, unit.inverse, np.inf).min(axis=-1)
    return np.asarray(largest > _SPREAD * least)


def _rescued(
    batch: MarginSolution, open_ones: npt.NDArray[np.intp], norm: Norm, request: Request, hard: BoolArray
) -> MarginSolution:
    """The batch with its open problems solved one by one, from where they are, unless that proves less.

    Hard ones are solved as they would be alone, and stay so.
    """
    alone = replace(request, warm_start=None, max_iterations=None, options={})
    parts = [batch[i] for i in range(len(batch))]
    for i in open_ones:
        one, so_far = batch.problem[int(i)], parts[i]
        spec, _ = choose(one, norm)
        near = so_far.status is Status.OPTIMAL and not hard[i]  # Newton finishes
        other = solve_one(spec, one, norm, replace(alone, warm_start=so_far) if near else alone)
        if hard[i] or other.status.is_certified or other.certificate.proved < so_far.certificate.proved:
            name = so_far.solver if near else other.solver  # Newton's last steps are no other solver's answer
            extras = replace(other.extras, rescued=not near, answered_by="" if near else name)
            parts[i] = replace(other, solver=name, extras=extras)
    return replace(MarginSolution.stack(parts, batch.problem), solver=batch.solver)
