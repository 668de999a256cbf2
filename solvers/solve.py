"""One way from rows to solution, for one problem and for a batch.

Read what is asked; unit rows; what needs no method; the ladder of the norm (`attsvm.solvers.ladder`); exact arithmetic
for what float64 leaves open; the verdict of the certificate. A batch runs the first rung on all problems at once, where
that method can; what stays open is solved one by one.
"""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import overload

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import BoolArray, FloatArray, did_you_mean, require_count, require_number
from attsvm.solvers.certify.certificate import Certificate, CertificateBatch, Source
from attsvm.solvers.certify.certify_pair import certify
from attsvm.solvers.certify.farkas import FarkasCertificate, certify_infeasible, zero_row_proof
from attsvm.solvers.correction import lengthened
from attsvm.solvers.deadline import OutOfTime, late, read_time_limit, seconds_left, within
from attsvm.solvers.exact.settle import settle_exactly
from attsvm.solvers.frobenius.conflicts import find_conflict
from attsvm.solvers.ladder import SolverSpec, rungs
from attsvm.solvers.margin_problem import EitherProblem, MarginProblem, MarginProblemBatch, is_batch
from attsvm.solvers.margin_solution import (
    BatchExtras,
    EitherSolution,
    Extras,
    MarginSolution,
    MarginSolutionBatch,
    MethodResult,
    Request,
    conclude,
    is_one,
)
from attsvm.solvers.norms import Norm, get_norm, vector_problem
from attsvm.solvers.rows.pairs import FEW_ROWS
from attsvm.solvers.status import Status
from attsvm.solvers.threads import blas_threads, under
from attsvm.solvers.unit import UnitProblem, UnitProblemBatch, scaled_to_range

__all__ = ["solve", "solve_batch"]

# A violation of more than so many error bounds is not rounding: the rows may contradict each other.
ROUNDING = 64.0
# Row norms of a nuclear-norm problem that differ by more than this factor make it hard for float64.
_SPREAD = 1e5
# What is proved of a hard nuclear margin before another rung is tried, and before a problem of a batch is finished
# alone: norms then agree to 1e-10 however the problem was solved.
_SHARP = 9e-11
# Numbers in the rows of a vector up to which active-set methods find its least norm soonest, however many rows.
_VECTOR_NUMBERS = 1_000_000
# Share of the largest multiplier below which a row is taken for inactive by the next rung.
_SMALL = 1e-6
# Share of a time limit after which whatever still runs is stopped.
_GRACE = 1.05
# Seconds that loading the reference may take: with less left it is not tried after other methods.
_LOADING = 10.0
# What is proved of a result that is nearly a solution: its rows do not contradict each other.
_NEARLY = 1e-3
# Beyond this and its inverse a C that goes with rows of size 1 leaves nothing of one of the two parts of the objective.
_WIDE = 2.0**400
_NO_SCALE = "float64 has no room for C beside rows of this size; divide the tokens or the queries by a power of two"
_CODES = np.array([Status.OPTIMAL, Status.INACCURATE, Status.INFEASIBLE, Status.FAILED], dtype=object)


def _check(solver: object, tolerance: object, max_iterations: object, rank: object) -> None:
    """Refuse arguments of the wrong kind, by name."""
    if not isinstance(solver, str):
        raise ValueError(f"solver must be a string such as 'auto' or 'cvxpy:SCS', got {solver!r}")
    if tolerance is None and max_iterations is None and rank is None:
        return
    require_number("tolerance", tolerance, "a positive number", 0.0, ends="(]", optional=True)
    require_count("max_iterations", max_iterations, optional=True)
    require_count("rank", rank, optional=True)


def _warm(given: EitherSolution | npt.ArrayLike | None) -> EitherSolution | FloatArray | None:
    """A solution as it is, anything else as an array of multipliers."""
    if given is None or isinstance(given, MarginSolution):
        return given
    try:
        return np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"warm_start must be a MarginSolution or multipliers, got {type(given).__name__}") from error


@overload
def solve(
    problem: MarginProblem,
    norm: str | Norm = "frobenius",
    solver: str = "auto",
    *,
    rank: int | None = None,
    tolerance: float | None = None,
    max_iterations: int | None = None,
    warm_start: EitherSolution | npt.ArrayLike | None = None,
    **options: object,
) -> MarginSolution: ...


@overload
def solve(
    problem: MarginProblemBatch,
    norm: str | Norm = "frobenius",
    solver: str = "auto",
    *,
    rank: int | None = None,
    tolerance: float | None = None,
    max_iterations: int | None = None,
    warm_start: EitherSolution | npt.ArrayLike | None = None,
    **options: object,
) -> MarginSolutionBatch: ...


def solve(
    problem: EitherProblem,
    norm: str | Norm = "frobenius",
    solver: str = "auto",
    *,
    rank: int | None = None,
    tolerance: float | None = None,
    max_iterations: int | None = None,
    warm_start: EitherSolution | npt.ArrayLike | None = None,
    **options: object,
) -> MarginSolution | MarginSolutionBatch:
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
    specs, variant = rungs(problem, norm, solver, rank)
    if options:
        _check_options(specs, options)
    start = None if warm_start is None else _warm(warm_start)
    request = Request(
        tolerance or _achievable(specs[0], variant), max_iterations, start, rank, solver, variant, options
    )
    if start is not None:
        request.check(problem)
    # Methods that know the limit stop by themselves; the deadline is for what they call, and for the other methods.
    allowed = _GRACE * read_time_limit(options.get("time_limit"))
    if problem.m < FEW_ROWS and not is_batch(problem) and norm.name == "frobenius" and not specs[0].foreign:
        # products of so few rows are never shared between threads
        return within(allowed, _solve_one, specs, problem, norm, request)
    threads = _threads(specs[0], problem, norm)
    if is_batch(problem):
        return under(threads, within, allowed, _solve_many, specs, problem, norm, request)
    return under(threads, within, allowed, _solve_one, specs, problem, norm, request)


def solve_batch(
    problem: EitherProblem,
    norm: str | Norm = "frobenius",
    solver: str = "auto",
    *,
    rank: int | None = None,
    tolerance: float | None = None,
    max_iterations: int | None = None,
    warm_start: EitherSolution | npt.ArrayLike | None = None,
    **options: object,
) -> MarginSolutionBatch:
    """`solve` of what must be a batch, where type checkers cannot know that it is one.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, solve_batch
    >>> solve_batch(MarginProblem(np.ones((2, 1, 1)), np.ones((2, 1, 1)), [0])).norm
    array([1., 1.])
    """
    if not is_batch(problem):
        raise ValueError("solve_batch takes a batch of problems; use solve for one")
    return solve(
        problem, norm, solver, rank=rank, tolerance=tolerance, max_iterations=max_iterations, warm_start=warm_start,
        **options,
    )  # fmt: skip


def _check_options(specs: tuple[SolverSpec, ...], options: dict[str, object]) -> None:
    """Refuse options that neither the first method nor, on the ladder of "auto", another one takes; by name."""
    if not options or specs[0].options is None:
        return
    taken = sorted({"time_limit"}.union(*(spec.options or () for spec in specs)))
    unknown = sorted(set(options) - set(taken))
    if unknown:
        known = ("tolerance", "max_iterations", "warm_start", *taken)
        near = did_you_mean(unknown[0], known)
        raise TypeError(
            f"solver {specs[0].name!r} takes no option {unknown[0]!r}{near}{' It' if near else '; it'} takes "
            f"{', '.join(known)}"
        )


def _achievable(spec: SolverSpec, variant: str) -> float:
    if spec.foreign:
        from attsvm.solvers.reference import ACHIEVABLE

        return ACHIEVABLE.get(variant.upper() or "CLARABEL", 1e-5)
    return spec.achievable


def _threads(spec: SolverSpec, problem: EitherProblem, norm: Norm) -> AbstractContextManager[object]:
    if spec.foreign:  # keeps its own habits
        return nullcontext()
    if "memory_limit" in (spec.options or ()) and not problem.batch:
        # Methods with a working set: the largest matrix is that of the free rows.
        return blas_threads(max(problem.rows.elements, min(problem.m, 2 * problem.q) ** 2))
    large = norm.name == "frobenius" and not problem.batch
    return blas_threads(problem.rows.elements if large else 0)


# -- one problem --------------------------------------------------------------------------------------


def _solve_one(specs: tuple[SolverSpec, ...], problem: MarginProblem, norm: Norm, request: Request) -> MarginSolution:
    """Unit rows, what needs no method, the ladder, exact arithmetic for what float64 leaves open, the verdict."""
    begin = time.perf_counter()
    unit = UnitProblem(problem)
    if unit.is_extreme:
        return _solve_scaled(specs, problem, norm, request)
    settled = _settled(unit)
    if settled is None and norm.name != "frobenius" and not specs[0].foreign:
        settled = _on_vectors(problem, norm, request)
    found, spec = (settled, specs[0]) if settled is not None else _climb(specs, unit, norm, request)
    found = _or_contradiction(found, unit, norm, request)
    if _is_open(found, request) and not spec.ranks and request.max_iterations is None and not late():
        # Exact arithmetic settles hard margins; a foreign result in a norm with own methods is left alone.
        own = not specs[0].foreign or norm.name not in ("frobenius", "nuclear")
        if own and problem.penalty is None:
            with suppress(OutOfTime):
                found = settle_exactly(problem, norm, found, request.tolerance)
    label = f"{spec.name}:{request.variant.upper()}" if request.variant else spec.name
    return conclude(
        problem, norm, found, solver=label, seconds=time.perf_counter() - begin, tolerance=request.tolerance
    )


def _or_contradiction(found: MethodResult, unit: UnitProblem, norm: Norm, request: Request) -> MethodResult:
    """A proof that no W satisfies the rows, which depends on no norm, for a hard margin of many rows in another norm.

    Where own methods left nothing that is nearly a solution.
    """
    many = norm.name != "frobenius" and unit.problem.penalty is None and unit.m > math.prod(unit.problem.shape)
    asked = request.rank is None and request.max_iterations is None and not request.variant
    if not (many and asked) or found.farkas is not None or proved(found) < _NEARLY or late():
        return found
    proof, _ = find_conflict(unit, np.zeros(unit.problem.shape))
    return found if proof is None else MethodResult(farkas=proof, iterations=found.iterations)


def _on_vectors(problem: MarginProblem, norm: Norm, request: Request) -> MethodResult | None:
    """A spectral or nuclear problem whose rows share a factor, on the ladder of the Frobenius norm; None if open."""
    asked = request.max_iterations is not None or request.rank is not None
    vectors = None if asked else vector_problem(problem, norm)
    if vectors is None:
        return None
    frobenius = get_norm("frobenius")
    few = problem.m * vectors.problem.shape[0] <= _VECTOR_NUMBERS
    specs, _ = rungs(vectors.problem, frobenius, "active_set" if few else "auto")
    found = _solve_one(specs, vectors.problem, frobenius, Request(request.tolerance))
    if found.certificate.farkas is not None:
        proof = certify_infeasible(problem, found.certificate.farkas.multipliers)
        return None if proof is None else MethodResult(farkas=proof, iterations=found.iterations)
    if found.status is not Status.OPTIMAL:
        return None
    W, lam = vectors.lifted(found.W.ravel()), found.multipliers
    certificate = certify(problem, W, lam, norm)
    closes = certificate.proved <= request.tolerance
    return MethodResult(W, lam, found.iterations, certificate=certificate) if closes else None


def _climb(
    specs: tuple[SolverSpec, ...], unit: UnitProblem, norm: Norm, request: Request
) -> tuple[MethodResult, SolverSpec]:
    """Rung after rung until one proves enough; the best result, and who found it.

    A number of iterations is the first rung's; the time is for all of them.
    """
    goal = min(request.tolerance, _SHARP) if _is_sharp(unit.problem, norm) else request.tolerance
    first = _measured(specs[0].load()(unit, norm, _of_rung(specs[0], norm, request, None)), unit, norm)
    return (first, specs[0]) if proved(first) <= goal else _climb_on(specs, unit, norm, request, first, goal)


def _climb_on(
    specs: tuple[SolverSpec, ...], unit: UnitProblem, norm: Norm, request: Request, first: MethodResult, goal: float
) -> tuple[MethodResult, SolverSpec]:
    """The rungs after one that left a gap."""
    best, answered = _with_sure_rows(unit.problem, norm, first, request.tolerance), specs[0]
    steps = int(first.iterations)
    for spec in specs[1:]:
        if best.farkas is not None or request.max_iterations is not None or late() or proved(best) <= goal:
            break
        if spec.foreign:
            best = _from_hard_margin(unit.problem, norm, best, request)
            if not _wants_reference(best, request):
                break
        found = _measured(spec.load()(unit, norm, _of_rung(spec, norm, request, best)), unit, norm)
        found = _with_sure_rows(unit.problem, norm, found, request.tolerance)
        steps += int(found.iterations)
        if found.farkas is not None or proved(found) < proved(best):
            best, answered = found, spec
    if answered is not specs[0]:
        best = replace(best, iterations=steps).answered(answered.name)
    return best, answered


def _from_hard_margin(problem: MarginProblem, norm: Norm, found: MethodResult, request: Request) -> MethodResult:
    """A result of a soft margin with the hinge that is open, or the hard margin if that proves more.

    Where C is larger than every load of the hard margin's multipliers, both have the same solutions; an interior point
    method then sees slacks whose weight is by far the largest number, and may stall.
    """
    penalty = problem.single_penalty
    if penalty is None or penalty.loss != "hinge" or not proved(found) > request.tolerance:
        return found
    hard = problem._with_penalty(None)
    own = tuple(spec for spec in rungs(hard, norm, warn=False)[0] if not spec.foreign)
    other, _ = _climb(own, UnitProblem(hard), norm, Request(request.tolerance)) if own else (found, None)
    if other.W is None or other.multipliers is None:
        return found
    # The objective with slacks is half the square of the Frobenius norm, the other norms as they are.
    lam = other.multipliers * (float(np.linalg.norm(other.W)) if norm.name == "frobenius" else 1.0)
    certificate, steps = certify(problem, other.W, lam, norm), found.iterations + other.iterations
    same = MethodResult(other.W, lam, steps, certificate=certificate)
    same = _with_sure_rows(problem, norm, same, request.tolerance)
    return same if proved(same) < proved(found) else found


def _wants_reference(best: MethodResult, request: Request) -> bool:
    """The reference is for what is open, if there is time for it."""
    return proved(best) > request.tolerance and seconds_left() > _LOADING


def _is_sharp(problem: EitherProblem, norm: Norm) -> bool:
    """Whether more is wanted than the tolerance: hard nuclear margins, whose norms agree however they were solved."""
    return norm.name == "nuclear" and problem.penalty is None


def _measured(found: MethodResult, unit: UnitProblem, norm: Norm) -> MethodResult:
    """The result with its certificate, where there is something to certify."""
    if found.certificate is not None or found.W is None or found.multipliers is None:
        return found
    return replace(found, certificate=certify(unit.problem, found.W, found.multipliers, norm))


def _with_sure_rows(problem: MarginProblem, norm: Norm, found: MethodResult, tolerance: float) -> MethodResult:
    """A result of a soft margin that is open, with a W whose rows hold in spite of rounding if that proves more."""
    if problem.penalty is None or not tolerance < proved(found) < np.inf:
        return found
    assert found.W is not None and found.multipliers is not None
    other = lengthened(problem, found.W, found.multipliers, norm)
    if other is None or not proved(other) < proved(found):
        return found
    return replace(found, W=other.W, certificate=other.certificate)


def _of_rung(spec: SolverSpec, norm: Norm, request: Request, before: MethodResult | None) -> Request:
    """The request with the options that this rung takes, and with what the rung before found as a start."""
    options = request.options
    if options and spec.options is not None:
        options = {name: value for name, value in options.items() if name in spec.options}
    if before is None:
        return request if options is request.options else replace(request, options=options)
    start = None  # Newton's method for the nuclear norm starts from a solution, not from multipliers
    if norm.name != "nuclear" and before.multipliers is not None and np.isfinite(before.multipliers).all():
        size = np.abs(before.multipliers)
        start = np.where(size > _SMALL * float(size.max(initial=0.0)), before.multipliers, 0.0)
    return replace(request, options={} if spec.foreign else options, warm_start=start)


def proved(found: MethodResult) -> float:
    """What the certificate of a result proves; infinite without one."""
    return np.inf if found.certificate is None else found.certificate.proved


def _settled(unit: UnitProblem) -> MethodResult | None:
    """What needs no method: a zero row with a positive right-hand side, or W = 0."""
    problem, sides = unit.problem, unit.problem.rhs
    if not unit.has_zero_rows and (problem.is_plain or sides.item(sides.argmax()) > 0.0):
        return None
    if unit.has_zero_rows and problem.penalty is None:
        proof = zero_row_proof(problem)
        if proof is not None:
            return MethodResult(farkas=proof)
    violated = np.where(problem.equality, np.abs(sides), sides).max(initial=0.0) > 0.0
    if unit.trivial and not (problem.penalty is not None and violated):  # a zero row of a soft margin has its slack
        return MethodResult(np.zeros(problem.shape), np.zeros(problem.m))
    return None


def _is_open(found: MethodResult, request: Request) -> bool:
    """Whether float64 leaves something to decide: no proof, or rows that are missed by more than rounding explains."""
    certificate = found.certificate
    if certificate is not None and certificate.proved <= request.tolerance:
        return certificate.primal_violation > ROUNDING * certificate.primal_error
    return found.farkas is None and (found.W is None or bool(found.W.any()))


def _solve_scaled(
    specs: tuple[SolverSpec, ...], problem: MarginProblem, norm: Norm, request: Request
) -> MarginSolution:
    """A problem whose numbers leave the range, through powers of two; its W may leave the range as well."""
    scaled, power = scaled_to_range(problem)
    # The objective of a soft margin grows with the square of the Frobenius norm, with other norms as they do.
    rise = 2 * power if problem.penalty is not None and norm.name == "frobenius" else power
    penalty = problem.single_penalty
    if penalty is not None:
        C = float(np.ldexp(penalty.C, -rise))
        if UnitProblem(scaled).is_extreme or not 1.0 / _WIDE < C < _WIDE:
            none = MethodResult(extras=Extras(note=_NO_SCALE))
            return conclude(problem, norm, none, solver=specs[0].name, seconds=0.0, tolerance=request.tolerance)
        scaled = scaled._with_penalty(replace(penalty, C=C))
    if UnitProblem(scaled).is_extreme:  # rows too different for one power of two: exact arithmetic or nothing
        begin = time.perf_counter()
        with np.errstate(all="ignore"):
            found = MethodResult()
            with suppress(OutOfTime):
                found = settle_exactly(scaled, norm, found, request.tolerance)
            solution = conclude(
                scaled,
                norm,
                found,
                solver=specs[0].name,
                seconds=time.perf_counter() - begin,
                tolerance=request.tolerance,
            )
    else:
        solution = _solve_one(specs, scaled, norm, request)
    if not solution.status.has_solution:  # powers of two change no sign and cancel nothing: the same proof
        return replace(solution, problem=problem)
    return _scaled_back(solution, problem, norm, power, rise)


def _scaled_back(solution: MarginSolution, problem: MarginProblem, norm: Norm, power: int, rise: int) -> MarginSolution:
    """The solution for W times ``2^power``: multipliers and objective (the norm of a hard margin) times ``2^rise``."""
    W, lam = np.ldexp(solution.W, power), np.ldexp(solution.multipliers, rise)
    whole = np.array_equal(np.ldexp(W, -power), solution.W)
    certificate = solution.certificate
    value, bound = float(np.ldexp(certificate.norm, power)), float(np.ldexp(certificate.lower_bound, rise))
    if np.ldexp(bound, -rise) > certificate.lower_bound:  # rounded up where float64 has few digits left
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
    cost = certificate.soft_objective
    certificate = replace(
        certificate,
        norm=value,
        lower_bound=bound,
        rank_certificate=rank,
        soft_objective=None if cost is None else float(np.ldexp(cost, rise)),
        _source=Source(problem, W, lam, norm),
    )
    return replace(solution, problem=problem, certificate=certificate, multipliers=lam, _W=W)


# -- a batch ------------------------------------------------------------------------------------------


def _solve_many(
    specs: tuple[SolverSpec, ...], problem: MarginProblemBatch, norm: Norm, request: Request
) -> MarginSolutionBatch:
    """All problems of a batch: at once where the method can, else one by one."""
    if not len(problem):
        return _solved_nothing(specs[0], problem, norm, request.tolerance)
    # A budget of pivoting rounds is one problem's: a batch is then solved one by one, as each would be alone.
    if specs[0].batched and (specs[0].batch_budget or request.max_iterations is None):
        return _solve_batched(specs, problem, norm, request)
    return _solve_each(problem, norm, request)


def _solved_nothing(spec: SolverSpec, problem: MarginProblemBatch, norm: Norm, tolerance: float) -> MarginSolutionBatch:
    """The solution of a batch without problems."""
    return MarginSolution(
        problem, norm, np.empty(0, dtype=object), Certificate.unknown_batch(0), np.zeros((0, problem.m)), spec.name,
        np.zeros(0, dtype=np.int64), 0.0, tolerance, np.zeros((0, *problem.shape)),
        BatchExtras(np.zeros(0, dtype=bool)),
    )  # fmt: skip


def _solve_each(problem: MarginProblemBatch, norm: Norm, request: Request) -> MarginSolutionBatch:
    """One by one, each on its own ladder."""
    parts = []
    for i in range(len(problem)):
        one = problem[i]
        mine = rungs(one, norm, request.solver, request.rank, warn=False)[0]  # the batch has warned
        if i and late():
            name = mine[0].name
            parts.append(conclude(one, norm, MethodResult(), solver=name, seconds=0.0, tolerance=request.tolerance))
            continue
        start = _warm_part(request.warm_start, problem, i)
        parts.append(_solve_one(mine, one, norm, replace(request, warm_start=start)))
    return MarginSolution.stack(parts, problem)


def _warm_part(
    known: EitherSolution | FloatArray | None, problem: MarginProblemBatch, i: int
) -> MarginSolution | FloatArray | None:
    """The warm start of one problem of a batch: of a solution its part, unless that has other rows."""
    if known is None or not isinstance(known, MarginSolution):
        return known if known is None else known[i] if problem.valid is None else known[i][problem.valid[i]]
    if is_one(known):  # refused by `Request.check`
        raise TypeError("the warm start of a batch must be the solution of a batch")
    return known[i] if known.problem[i].m == problem[i].m else None


def _solve_batched(
    specs: tuple[SolverSpec, ...], batch: MarginProblemBatch, norm: Norm, request: Request
) -> MarginSolutionBatch:
    """A method that works on a batch, then its certificates; what is left open is solved one by one."""
    begin, spec = time.perf_counter(), specs[0]
    unit = UnitProblem(batch)
    if unit.is_extreme:
        return _solve_each(batch, norm, request)
    found = spec.load_batched()(unit, norm, request)
    usable = np.asarray(np.isfinite(found.W).all(axis=(-2, -1)) & np.isfinite(found.multipliers).all(axis=-1))
    W = np.where(usable[:, None, None], found.W, 0.0)
    lam = np.where(usable[:, None], found.multipliers, 0.0)
    certificate = certify(batch, W, lam, norm)
    rescue = bool(request.options.get("rescue", request.max_iterations is None))
    hard = _is_hard(unit, norm) & rescue
    closes = usable & (certificate.proved <= request.tolerance) & ~hard
    if (
        norm.name == "frobenius" and batch.penalty is None
    ):  # pivoting meets rows to rounding; what it misses may be a contradiction
        closes &= certificate.primal_violation <= ROUNDING * certificate.primal_error
    proofs = _proofs(batch, found.candidates, ~closes & ~hard) if batch.penalty is None else {}
    code = np.where(closes, 0, np.where(usable, 1, 3))
    code[list(proofs)] = 2
    not_sharp = _is_sharp(batch, norm) & (certificate.proved > _SHARP)
    open_ones = np.flatnonzero((code == 1) | (code == 3) | ((code == 0) & not_sharp))
    result: MarginSolutionBatch = MarginSolution(
        batch, norm, _CODES[code], _blanked(certificate, code), np.where(code[:, None] < 2, lam, np.nan), spec.name,
        found.iterations, 0.0, request.tolerance, np.where(code[:, None, None] < 2, W, np.nan),
        BatchExtras(np.zeros(len(code), dtype=bool)), proofs,
    )  # fmt: skip
    if len(open_ones) and rescue:
        result = _rescued(result, open_ones, norm, request, hard)
    return replace(result, seconds=time.perf_counter() - begin)


def _proofs(
    batch: MarginProblemBatch, candidates: FloatArray | None, undecided: BoolArray
) -> dict[int, FarkasCertificate]:
    """Verified proofs of infeasibility by problem."""
    proofs: dict[int, FarkasCertificate] = {}
    for i in np.flatnonzero(undecided):
        one: MarginProblem = MarginProblem.from_rows(batch.rows[int(i)], batch.asked[i], batch.equality[i])
        proof = zero_row_proof(one)
        if proof is None and candidates is not None and np.isfinite(candidates[i]).all():
            proof = certify_infeasible(one, candidates[i])
        if proof is not None and proof.farkas is not None:
            proofs[int(i)] = proof.farkas
    return proofs


def _blanked(certificate: CertificateBatch, code: npt.NDArray[np.int64]) -> CertificateBatch:
    """The certificate of a batch with infinities where there is no solution."""
    without = code >= 2
    if not without.any():
        return certificate

    def infinite(values: FloatArray) -> FloatArray:
        return np.where(without, np.inf, values)

    ranks = certificate.rank_certificate
    if ranks is not None:
        ranks = replace(
            ranks,
            rank=np.where(without, -1, ranks.rank),
            numerical_rank=np.where(without, -1, ranks.numerical_rank),
            resolution=infinite(ranks.resolution),
            tolerance=infinite(ranks.tolerance),
        )
    return replace(
        certificate,
        primal_violation=infinite(certificate.primal_violation),
        dual_violation=infinite(certificate.dual_violation),
        gap=infinite(certificate.gap),
        complementarity=infinite(certificate.complementarity),
        norm=infinite(certificate.norm),
        lower_bound=np.where(code == 3, 0.0, infinite(certificate.lower_bound)),  # nothing is proved by a failure
        primal_error=infinite(certificate.primal_error),
        gap_error=infinite(certificate.gap_error),
        rank_certificate=ranks,
    )


def _is_hard(unit: UnitProblemBatch, norm: Norm) -> BoolArray:
    """Where rows differ so much that what closes depends on the method: solved as they would be alone, shape (B,)."""
    if norm.name != "nuclear" or unit.problem.penalty is not None:
        return np.zeros(len(unit.problem), dtype=bool)
    largest = unit.inverse.max(axis=-1)
    least = np.where(unit.inverse > 0, unit.inverse, np.inf).min(axis=-1)
    return np.asarray(largest > _SPREAD * least)


def _rescued(
    batch: MarginSolutionBatch, open_ones: npt.NDArray[np.intp], norm: Norm, request: Request, hard: BoolArray
) -> MarginSolutionBatch:
    """The batch with its open problems solved one by one, from where they are, unless that proves less.

    Hard ones are solved as they would be alone, and stay so.
    """
    alone = replace(request, warm_start=None, max_iterations=None, solver="auto", options={})
    parts = [batch[i] for i in range(len(batch))]
    for i in open_ones:
        if late():
            break
        one, so_far = batch.problem[int(i)], parts[i]
        specs, _ = rungs(one, norm, warn=False)
        near = so_far.status is Status.OPTIMAL and not hard[i]  # Newton finishes
        other = _solve_one(specs, one, norm, replace(alone, warm_start=so_far) if near else alone)
        if hard[i] or other.status.is_certified or other.certificate.proved < so_far.certificate.proved:
            name = so_far.solver if near else other.solver  # Newton's last steps are no other solver's answer
            extras = replace(other.extras, rescued=not near, answered_by="" if near else name)
            parts[i] = replace(other, solver=name, extras=extras)
    return replace(MarginSolution.stack(parts, batch.problem), solver=batch.solver)
