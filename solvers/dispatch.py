"""One entry point and one pipeline: read, settle what needs no method, run the method, conclude."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import BoolArray, FloatArray
from attsvm.solvers.certificate import Certificate, Source
from attsvm.solvers.certify import certify
from attsvm.solvers.farkas import FarkasCertificate, certify_infeasible, zero_row_proof
from attsvm.solvers.norms import Norm, get_norm
from attsvm.solvers.problem import MarginProblem
from attsvm.solvers.registry import SolverSpec, choose
from attsvm.solvers.reproof import settle_exactly
from attsvm.solvers.request import Request
from attsvm.solvers.solution import Extras, Found, MarginSolution, MarginSolutionBatch, conclude
from attsvm.solvers.status import Status
from attsvm.solvers.threads import blas_threads
from attsvm.solvers.unit import UnitProblem, scaled_to_range

if TYPE_CHECKING:
    import torch

__all__ = ["solve", "solve_batch"]

# Rows below which one problem needs no limit on threads.
_FEW_ROWS = 100
# A violation of more than so many error bounds is not rounding: the rows may contradict each other.
_ROUNDING = 64.0
# Row norms of a nuclear-norm problem that differ by more than this factor make it hard for float64.
_SPREAD = 1e5


def _check(solver: object, tolerance: object, max_iterations: object, rank: object) -> None:
    """Refuse arguments of the wrong kind, by name."""
    if tolerance is not None and not (isinstance(tolerance, (int, float, np.number)) and tolerance > 0):
        raise ValueError(f"tolerance must be positive, got {tolerance!r}")
    for name, count in (("max_iterations", max_iterations), ("rank", rank)):
        if count is not None and (isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1):
            raise ValueError(f"{name} must be an integer of at least 1, got {count!r}")
    if not isinstance(solver, str):
        raise ValueError(f"solver must be a string such as 'auto' or 'cvxpy:SCS', got {solver!r}")


def _warm(given: Any) -> Any:
    """A solution as it is, anything else as an array of multipliers."""
    if given is None or isinstance(given, MarginSolution):
        return given
    try:
        return np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"warm_start must be a MarginSolution or multipliers, got {type(given).__name__}") from error


def solve(
    problem: MarginProblem,
    norm: str | Norm = "frobenius",
    solver: str = "auto",
    *,
    rank: int | None = None,
    tolerance: float | None = None,
    max_iterations: int | None = None,
    warm_start: MarginSolution | npt.ArrayLike | None = None,
    device: str | torch.device | None = None,
    **options: Any,
) -> MarginSolution:
    """Solve a margin problem, or all problems of a batch.

    Parameters
    ----------
    problem : MarginProblem
    norm : str or Norm
        "frobenius", "nuclear", "spectral", "l1", "linf" or "l<p>".
    solver : str
        "auto", or a name from `SOLVERS`, e.g. "cvxpy" or "cvxpy:SCS".
    rank : int, optional
        Largest rank of W allowed (nuclear norm, nonconvex): see `attsvm.solvers.nuclear.rank_limited`.
    tolerance : float, optional
        What the certificate must reach to be called optimal; what the solver achieves by default.
    max_iterations : int, optional
        In the solver's own unit.
    warm_start : MarginSolution or array_like, shape (*batch, m), optional
        Solution or multipliers of a similar problem with as many rows.
    device : str or torch.device, optional
        Run the iterations there (nuclear norm; see the ``devices`` of `SOLVERS`). Certificates are computed on the CPU.
    **options
        Passed to the solver.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, solve
    >>> result = solve(MarginProblem([[2.0]], [[1.0]], [0]))
    >>> print(result.status, round(result.W.item(), 6))
    optimal 0.5
    >>> batch = solve(MarginProblem(np.array([[[2.0]], [[4.0]]]), np.ones((2, 1, 1)), [0]))
    >>> batch.W.ravel().round(9).tolist(), (batch.status == "optimal").tolist()
    ([0.5, 0.25], [True, True])
    """
    if not isinstance(problem, MarginProblem):
        raise TypeError(f"problem must be a MarginProblem, got {type(problem).__name__}")
    norm = get_norm(norm)
    _check(solver, tolerance, max_iterations, rank)
    spec, variant = choose(problem, norm, solver, rank, device)
    if options and spec.options is not None and set(options) - spec.options:
        unknown = sorted(set(options) - spec.options)
        raise TypeError(f"solver {spec.name!r} takes no option {unknown[0]!r}; it takes {sorted(spec.options)}")
    goal = tolerance or _achievable(spec, variant, options)
    request = Request(goal, max_iterations, _warm(warm_start), device, rank, variant, options)
    request.check(problem)
    with _threads(spec, problem):
        if not problem.batch:
            return (
                _solve_batched(spec, problem, norm, request)
                if spec.devices
                else _solve_one(spec, problem, norm, request)
            )
        if not len(problem):
            return _solved_nothing(spec, problem, norm, goal)
        # A budget of pivoting rounds is one problem's: a batch is then solved one by one, as each would be alone.
        if spec.batched and (spec.devices or max_iterations is None):
            return _solve_batched(spec, problem, norm, request)
        return _solve_each(spec, problem, norm, request)


def solve_batch(
    problem: MarginProblem, norm: str | Norm = "frobenius", solver: str = "auto", **options: Any
) -> MarginSolutionBatch:
    """`solve` with the type of a batch: the same names with a leading axis.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, solve_batch
    >>> solve_batch(MarginProblem(np.ones((2, 1, 1)), np.ones((2, 1, 1)), [0])).norm
    array([1., 1.])
    """
    if not problem.batch:
        raise ValueError("solve_batch takes a batch of problems; use solve for one")
    found: Any = solve(problem, norm, solver, **options)
    face: MarginSolutionBatch = found
    return face


def _achievable(spec: SolverSpec, variant: str, options: dict[str, Any]) -> float:
    if spec.foreign:
        from attsvm.solvers.reference import ACHIEVABLE

        return ACHIEVABLE.get(variant.upper() or "CLARABEL", 1e-5)
    return 1e-3 if str(options.get("dtype", "")).endswith("float32") else spec.achievable


def _threads(spec: SolverSpec, problem: MarginProblem) -> AbstractContextManager[Any]:
    # A foreign solver keeps its own habits, and products of so few rows are never shared between threads.
    if spec.foreign or (not problem.batch and problem.m < _FEW_ROWS and spec.norms == frozenset({"frobenius"})):
        return nullcontext()
    large = spec.norms == frozenset({"frobenius"}) and not problem.batch
    return blas_threads(problem.rows.elements if large else 0)


def _settled(unit: UnitProblem, norm: Norm) -> Found | None:
    """What needs no method: a zero row that asks for something, or W = 0."""
    problem = unit.problem
    if unit.has_zero_rows and problem.penalty is None:
        proof = zero_row_proof(problem)
        if proof is not None:
            return Found(farkas=proof)
    if unit.trivial:
        return Found(np.zeros(problem.shape), np.zeros(problem.m))
    return None


def _solve_one(spec: SolverSpec, problem: MarginProblem, norm: Norm, request: Request) -> MarginSolution:
    begin = time.perf_counter()
    unit = UnitProblem(problem)
    if unit.is_extreme:
        return _solve_scaled(spec, problem, norm, request)
    found = _settled(unit, norm) or spec.load()(unit, norm, request)
    hard = problem.penalty is None
    if hard and _is_open(found, request) and not spec.foreign and not spec.ranks and request.max_iterations is None:
        found = settle_exactly(problem, norm, found, request.tolerance)
    label = f"{spec.name}:{request.variant.upper()}" if request.variant else spec.name
    return conclude(
        problem, norm, found, solver=label, seconds=time.perf_counter() - begin, tolerance=request.tolerance
    )


def _solved_nothing(spec: SolverSpec, problem: MarginProblem, norm: Norm, tolerance: float) -> MarginSolution:
    """The solution of a batch without problems."""
    status: Any = np.empty(0, dtype=object)
    counts: Any = np.zeros(0, dtype=np.int64)
    return MarginSolution(
        problem, norm, status, Certificate.unknown((0,)), np.zeros((0, problem.m)), spec.name, counts,
        0.0, tolerance, np.zeros((0, *problem.shape)), _no_rescues(0),
    )  # fmt: skip


def _is_open(found: Found, request: Request) -> bool:
    """Whether float64 leaves something to decide: no proof, or rows that are missed by more than rounding explains."""
    if found.farkas is not None or (found.W is not None and not found.W.any()):
        return False
    certificate = found.certificate
    if certificate is None or not certificate.proved <= request.tolerance:
        return True
    return certificate.primal_violation > _ROUNDING * certificate.primal_error


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
        solution = _solve_one(spec, scaled, norm, request)
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


def _solve_each(spec: SolverSpec, problem: MarginProblem, norm: Norm, request: Request) -> MarginSolution:
    spec = choose(problem[0], norm)[0] if spec.devices else spec
    parts = []
    for i in range(len(problem)):
        start = _warm_part(request.warm_start, problem, i)
        parts.append(_solve_one(spec, problem[i], norm, replace(request, warm_start=start)))
    return MarginSolution.stack(parts, problem)


def _warm_part(known: MarginSolution | FloatArray | None, problem: MarginProblem, i: int) -> Any:
    """The warm start of one problem of a batch: of a solution its part, unless that has other rows."""
    if known is None:
        return None
    if isinstance(known, MarginSolution):
        return known[i] if known.problem[i].m == problem[i].m else None
    return known[i] if problem.valid is None else known[i][problem.valid[i]]


_CODES = np.array([Status.OPTIMAL, Status.INACCURATE, Status.INFEASIBLE, Status.FAILED], dtype=object)


def _solve_batched(spec: SolverSpec, problem: MarginProblem, norm: Norm, request: Request) -> MarginSolution:
    """A method that works on a batch, then its certificates; what is left open is solved one by one."""
    begin = time.perf_counter()
    single = not problem.batch
    batch = MarginProblem.stack([problem]) if single else problem
    unit = UnitProblem(batch)
    if unit.is_extreme:
        return _solve_each(spec, batch, norm, replace(request, device=None))
    found = spec.load()(unit, norm, request)
    assert found.W is not None and found.multipliers is not None
    usable = np.asarray(np.isfinite(found.W).all(axis=(-2, -1)) & np.isfinite(found.multipliers).all(axis=-1))
    W = np.where(usable[:, None, None], found.W, 0.0)
    lam = np.where(usable[:, None], found.multipliers, 0.0)
    certificate: Any = certify(batch, W, lam, norm)
    limited = request.options.get("dtype") is not None or request.max_iterations is not None
    rescue = request.options.get("rescue", not limited)
    hard = _is_hard(unit, norm) & rescue
    closes = usable & (certificate.proved <= request.tolerance) & ~hard
    if norm.name == "frobenius":  # pivoting meets rows to rounding; what it misses may be a contradiction
        closes &= certificate.primal_violation <= _ROUNDING * certificate.primal_error
    proofs = _proofs(batch, found.candidates, ~closes & ~hard)
    code = np.where(closes, 0, np.where(usable, 1, 3))
    code[list(proofs)] = 2
    open_ones = np.flatnonzero((code == 1) | (code == 3))
    status: Any = _CODES[code]
    result = MarginSolution(
        batch, norm, status, _blanked(certificate, code), np.where(code[:, None] < 2, lam, np.nan), spec.name,
        found.iterations, 0.0, request.tolerance, np.where(code[:, None, None] < 2, W, np.nan),
        _no_rescues(len(code)), proofs,
    )  # fmt: skip
    if len(open_ones) and rescue:
        result = _rescued(result, open_ones, norm, request, hard)
    result = replace(result, seconds=time.perf_counter() - begin)
    return result[0] if single else result


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
    """The batch with its open problems solved one by one where that proves more, and its hard ones in any case."""
    alone = replace(request, warm_start=None, device=None, max_iterations=None, options={})
    parts = [batch[i] for i in range(len(batch))]
    for i in open_ones:
        one = batch.problem[int(i)]
        spec, _ = choose(one, norm)
        other = _solve_one(spec, one, norm, alone)
        if hard[i] or other.status.is_certified or other.certificate.proved < parts[i].certificate.proved:
            parts[i] = replace(other, extras=replace(other.extras, rescued=True))
    return replace(MarginSolution.stack(parts, batch.problem), solver=batch.solver)
