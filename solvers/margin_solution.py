"""What every solver is asked and what it returns: one problem or a batch, certified by data alone."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING, Generic, TypeAlias

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import Axis, Batch, BoolArray, Count, FloatArray, IntArray, Number, One, is_count
from attsvm.solvers.certify.certificate import (
    Certificate,
    CertificateBatch,
    RankCertificate,
    RankCertificateBatch,
    Source,
    counted,
)
from attsvm.solvers.certify.certify_pair import certify
from attsvm.solvers.margin_problem import EitherProblem, MarginProblem, MarginProblemBatch
from attsvm.solvers.norms import Norm
from attsvm.solvers.status import ConvergenceWarning, InfeasibleError, NoSolutionError, Status

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from attsvm.solvers.certify.farkas import FarkasCertificate
    from attsvm.solvers.nuclear.uniqueness import UniquenessCertificate

__all__ = [
    "BatchExtras",
    "BatchResult",
    "EitherSolution",
    "Extras",
    "MarginSolution",
    "MarginSolutionBatch",
    "MethodResult",
    "RankLimit",
    "Request",
    "conclude",
    "is_one",
    "warn_if_inaccurate",
]


StatusArray: TypeAlias = npt.NDArray[np.object_]


@dataclass(frozen=True, eq=False)
class RankLimit:
    """What is known about a rank-limited solution.

    Attributes
    ----------
    is_global : bool
        True when the gap to the convex bound closes.
    convex_bound : float
        Proved lower bound on the norm of every feasible W, whatever its rank.
    kkt_residual : float
        Of the factored problem, in unit rows; NaN when the convex solution is returned as it is.
    starts, feasible : int
        Starting points, and how many of them became feasible.
    norms : tuple of float
        Norms of the feasible ones, sorted.
    message : str
    """

    is_global: bool
    convex_bound: float
    kkt_residual: float
    starts: int
    feasible: int
    norms: tuple[float, ...]
    message: str


@dataclass(frozen=True, eq=False)
class Extras:
    """What a particular solver adds.

    Attributes
    ----------
    newton_steps, evaluations, interior_iterations : int
        Of the nuclear-norm methods.
    warm_started : bool
        The warm start alone led to the solution.
    rescued : bool
        A problem of a batch that the batched method left without certificate and that was then solved alone.
    rank_limit : RankLimit or None
    working_rows, factorizations, products : int
        Rows that the working set held at the end, matrices that were factored, and products with the free rows.
    answered_by : str
        Another solver that gave the answer, where the one asked for left the problem to it; else empty.
    note : str
        What the reason of the solution is, in place of what the certificate says; else empty.
    """

    newton_steps: int = 0
    evaluations: int = 0
    interior_iterations: int = 0
    warm_started: bool = False
    rescued: bool = False
    rank_limit: RankLimit | None = None
    working_rows: int = 0
    factorizations: int = 0
    products: int = 0
    answered_by: str = ""
    note: str = ""


NO_EXTRAS = Extras()


@dataclass(frozen=True, eq=False)
class BatchExtras:
    """What the solution of a batch adds.

    Attributes
    ----------
    rescued : ndarray of bool, shape (B,)
        See `Extras`.
    each : tuple of Extras
        Of every problem, or empty where no problem was solved alone.
    """

    rescued: BoolArray
    each: tuple[Extras, ...] = ()


@dataclass(frozen=True, eq=False)
class MethodResult:
    """What a method hands back of one problem, in its coordinates and its scale.

    Attributes
    ----------
    W : ndarray, shape (dx, dz), or None
    multipliers : ndarray, shape (m,), or None
        In norm form.
    iterations : int
    farkas : Certificate or None
        Proof of infeasibility.
    certificate : Certificate or None
        Of (W, multipliers), when the method needed it anyway.
    status : Status or None
        Only where the method knows better than the certificate (a local optimum).
    extras : Extras
    """

    W: FloatArray | None = None
    multipliers: FloatArray | None = None
    iterations: int = 0
    farkas: Certificate | None = None
    certificate: Certificate | None = None
    status: Status | None = None
    extras: Extras = NO_EXTRAS

    def answered(self, solver: str) -> MethodResult:
        """The same, with the name of the solver that a method left the problem to, unless that one passed it on."""
        return replace(self, extras=replace(self.extras, answered_by=self.extras.answered_by or solver))


@dataclass(frozen=True, eq=False)
class BatchResult:
    """What a method hands back of a batch; certificates and proofs are worked out from it.

    Attributes
    ----------
    W : ndarray, shape (B, dx, dz)
    multipliers : ndarray, shape (B, m)
        In norm form. Entries of problems without a solution are NaN.
    iterations : ndarray of int, shape (B,)
    candidates : ndarray, shape (B, m), or None
        Multipliers that may prove infeasibility, NaN elsewhere.
    """

    W: FloatArray
    multipliers: FloatArray
    iterations: IntArray
    candidates: FloatArray | None = None


if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Outcome = TypeVar("Outcome", Status, StatusArray, default=Status)
    Added = TypeVar("Added", Extras, BatchExtras, default=Extras)
else:  # as in attsvm.solvers.arrays
    from typing import TypeVar

    Outcome, Added = TypeVar("Outcome", Status, StatusArray), TypeVar("Added", Extras, BatchExtras)


@dataclass(frozen=True, eq=False)
class MarginSolution(Generic[Axis, Number, Count, Outcome, Added]):
    """A solved margin problem with its certificate, or a batch of them: then index it to get one.

    Attributes
    ----------
    problem : MarginProblem
    norm_kind : Norm
    status : Status
        For a batch an object array; compare it with strings: ``solution.status == "optimal"``.
    certificate : Certificate
    multipliers : ndarray, shape (*batch, m)
        In norm form: ``N*(W(lam)) = 1`` and ``rhs . lam = N(W)``. ``lam_k > 0`` means that row k is
        active; multipliers of equality rows have either sign. NaN when there is no solution, 0 for void rows.
    solver : str
        What ``solver=`` takes to get the same method: the one that answered, where another one left the problem to it.
    iterations : int
    seconds : float
        Wall time of the solve with its certificate; of the whole batch for a batch.
    tolerance : float
        What the certificate had to reach.
    extras : Extras
        What a particular solver adds.
    """

    problem: MarginProblem[Axis]
    norm_kind: Norm
    status: Outcome
    certificate: Certificate[Number, Count]
    multipliers: FloatArray
    solver: str
    iterations: Count
    seconds: float
    tolerance: float
    _W: FloatArray | None = field(repr=False)
    extras: Added = field(repr=False)
    _proofs: dict[int, FarkasCertificate] = field(repr=False, default_factory=dict)

    def __repr__(self) -> str:
        if not isinstance(self.status, Status):
            return f"MarginSolution({self.norm_kind.name}, {len(self)} problems: {counted(self.status)}, {self.solver})"
        found = f", norm={self.norm:.6g}, gap={self.certificate.gap:.1e}" if self.status.has_solution else ""
        return f"MarginSolution({self.norm_kind.name}, {self.status}{found}, {self.solver})"

    @property
    def W(self) -> FloatArray:
        """The solution, shape (*batch, dx, dz).

        Reading it raises `InfeasibleError` or `NoSolutionError` when there is none; in a batch such entries are NaN.
        """
        if self._W is not None:
            return self._W
        farkas = self.certificate.farkas
        if farkas is not None:
            raise InfeasibleError(f"no W satisfies all rows; queries {farkas.owners.tolist()} conflict")
        advice = f" {self.status.advice}" if isinstance(self.status, Status) else ""
        raise NoSolutionError(f"there is no W to read: status is {self.status}.{advice}")

    @property
    def reason(self: MarginSolution) -> str:
        """Why the status is what it is, with the resolution at which more is proved; one problem only."""
        if self.problem.batch:
            raise ValueError("reason is about one problem; index the batch first, e.g. solution[0].reason")
        if self.extras.rank_limit is not None:
            return self.extras.rank_limit.message
        return self.extras.note or self.certificate.reason(self.tolerance)

    @property
    def norm(self) -> Number:
        """N(W); infinite when there is no solution."""
        return self.certificate.norm

    @cached_property
    def uniqueness(self: MarginSolution) -> UniquenessCertificate:
        """Whether a nuclear-norm solution is the only one (worked out at the first look); one problem only."""
        from attsvm.solvers.nuclear.uniqueness import certify_uniqueness

        if self.norm_kind.name != "nuclear" or self.problem.batch:
            raise ValueError(
                f"uniqueness is worked out for one nuclear-norm solution, got norm {self.norm_kind.name!r} of "
                f"{self.problem!r}"
            )
        return certify_uniqueness(self.problem, self.W, self.multipliers)

    def __len__(self) -> int:
        return len(self.problem)

    def __getitem__(self: MarginSolutionBatch, index: int) -> MarginSolution:
        """The solution of one problem of a batch."""
        problem = self.problem[index]
        index %= len(self)
        status: Status = self.status[index]
        keep = None if self.problem.valid is None else self.problem.valid[index]
        lam = self.multipliers[index] if keep is None else self.multipliers[index][keep]
        W = self.W[index] if status.has_solution else None
        certificate = self.certificate.of(index, Source(problem, W, lam, self.norm_kind))
        if index in self._proofs:
            certificate = replace(certificate, farkas=_narrowed(self._proofs[index], keep))
        if certificate.rank_certificate is not None and not status.has_solution:
            certificate = replace(certificate, rank_certificate=None)
        known = self.extras
        extras = known.each[index] if known.each else Extras(rescued=bool(known.rescued[index]))
        return MarginSolution(
            problem, self.norm_kind, status, certificate, lam, extras.answered_by or self.solver,
            self.iterations.item(index), self.seconds / len(self), self.tolerance, W, extras,
        )  # fmt: skip

    @staticmethod
    def stack(solutions: list[MarginSolution], problem: MarginProblemBatch) -> MarginSolutionBatch:
        """Solutions of the problems of a batch as the solution of the batch."""
        first = solutions[0]
        size, m = len(solutions), problem.m
        W = np.full((size, *problem.shape), np.nan)
        multipliers = np.full((size, m), np.nan)
        for i, solution in enumerate(solutions):
            keep = slice(None) if problem.valid is None else problem.valid[i]
            if solution.status.has_solution:
                W[i] = solution.W
                multipliers[i] = 0.0
                multipliers[i, keep] = solution.multipliers
        proofs = {
            i: _widened(solution.certificate.farkas, m, None if problem.valid is None else problem.valid[i])
            for i, solution in enumerate(solutions)
            if solution.certificate.farkas is not None
        }
        each = tuple(
            s.extras if s.solver in (first.solver, s.extras.answered_by) else replace(s.extras, answered_by=s.solver)
            for s in solutions
        )
        return MarginSolution(
            problem,
            first.norm_kind,
            np.array([solution.status for solution in solutions], dtype=object),
            _stacked([s.certificate for s in solutions], Source(problem, W, multipliers, first.norm_kind)),
            multipliers,
            first.solver,
            np.array([solution.iterations for solution in solutions], dtype=np.int64),
            sum(s.seconds for s in solutions),
            first.tolerance,
            W,
            BatchExtras(np.array([one.rescued for one in each], dtype=bool), each),
            proofs,
        )


MarginSolutionBatch: TypeAlias = MarginSolution[Batch, FloatArray, IntArray, StatusArray, BatchExtras]


EitherSolution: TypeAlias = MarginSolution[One, float, int, Status, Extras] | MarginSolutionBatch


def _narrowed(farkas: FarkasCertificate, keep: BoolArray | None) -> FarkasCertificate:
    """A proof in the numbering of the rows that exist."""
    if keep is None or keep.all():
        return farkas
    position = np.cumsum(keep) - 1
    return replace(farkas, multipliers=farkas.multipliers[keep], rows=position[farkas.rows])


def _widened(farkas: FarkasCertificate | None, m: int, valid: BoolArray | None) -> FarkasCertificate:
    """Inverse of `_narrowed`."""
    assert farkas is not None
    if valid is None:
        return farkas
    index = np.flatnonzero(valid)
    multipliers = np.zeros(m)
    multipliers[index] = farkas.multipliers
    return replace(farkas, multipliers=multipliers, rows=index[farkas.rows])


def _stacked(certificates: list[Certificate], source: Source) -> CertificateBatch:
    """Certificates of single problems as arrays over a batch."""
    objectives = [c.soft_objective for c in certificates if c.soft_objective is not None]
    return Certificate(
        np.array([c.primal_violation for c in certificates]),
        np.array([c.dual_violation for c in certificates]),
        np.array([c.gap for c in certificates]),
        np.array([c.complementarity for c in certificates]),
        np.array([c.norm for c in certificates]),
        np.array([c.lower_bound for c in certificates]),
        np.array([c.primal_error for c in certificates]),
        np.array([c.gap_error for c in certificates]),
        _stacked_ranks(certificates),
        None,
        source,
        np.array(objectives) if len(objectives) == len(certificates) else None,
    )


def _stacked_ranks(certificates: list[Certificate]) -> RankCertificateBatch | None:
    """Of the certificates that have one, with nothing proved for the others; None if none has."""
    known = [c.rank_certificate for c in certificates if c.rank_certificate is not None]
    if not known:
        return None
    nothing = np.full_like(known[0].dual_singular_values, np.nan)
    blank = RankCertificate(-1, np.inf, -1, np.inf, np.nan, np.nan, nothing)
    ranks = [c.rank_certificate or blank for c in certificates]
    return RankCertificate(
        np.array([r.rank for r in ranks]),
        np.array([r.resolution for r in ranks]),
        np.array([r.numerical_rank for r in ranks]),
        np.array([r.tolerance for r in ranks]),
        np.array([r.dual_gap for r in ranks]),
        np.array([r.singular_gap for r in ranks]),
        np.stack([r.dual_singular_values for r in ranks]),
    )


def is_one(solution: EitherSolution) -> TypeIs[MarginSolution]:
    """Whether a solution is that of one problem; type checkers then know as well.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, solve
    >>> from attsvm.solvers.margin_solution import is_one
    >>> is_one(solve(MarginProblem([[1.0]], [[1.0]], [0])))
    True
    """
    return not solution.problem.batch


def warn_if_inaccurate(solution: EitherSolution, stacklevel: int = 3) -> None:
    """Warn once where a solve, or problems of a batch, ended without the proof that the tolerance asks for.

    Examples
    --------
    >>> import warnings
    >>> from attsvm.solvers import MarginProblem, solve
    >>> from attsvm.solvers.margin_solution import warn_if_inaccurate
    >>> rows = MarginProblem([[1.0, 2.0], [2.0, -1.0]], [[1.0]], [0, 0]).soft(C=1.0)
    >>> with warnings.catch_warnings(record=True) as told:
    ...     warnings.simplefilter("always")
    ...     warn_if_inaccurate(solve(rows, "nuclear", max_iterations=1))
    >>> print(told[0].message.args[0].split(":")[0])
    the solve ended inaccurate
    """
    if is_one(solution):
        if solution.status is Status.INACCURATE:
            text = f"the solve ended inaccurate: {solution.reason}. {Status.INACCURATE.advice}"
            warnings.warn(text, ConvergenceWarning, stacklevel=stacklevel)
        return
    open_ones = np.flatnonzero(solution.status == Status.INACCURATE)
    if len(open_ones):
        text = f"{len(open_ones)} of {len(solution)} problems ended inaccurate, the first is problem {open_ones[0]}: "
        text += f"{solution[int(open_ones[0])].reason}. {Status.INACCURATE.advice}"
        warnings.warn(text, ConvergenceWarning, stacklevel=stacklevel)


def conclude(
    problem: MarginProblem, norm: Norm, found: MethodResult, *, solver: str, seconds: float, tolerance: float
) -> MarginSolution:
    """Certify what a method found on one problem; the certificate, not the method, decides the status."""
    iterations = int(found.iterations)
    if found.farkas is not None:
        return MarginSolution(
            problem, norm, Status.INFEASIBLE, found.farkas, np.full(problem.m, np.nan), solver, iterations, seconds,
            tolerance, None, found.extras,
        )  # fmt: skip
    W, lam, certificate = found.W, found.multipliers, found.certificate
    if W is not None and lam is not None and certificate is None:
        certificate = certify(problem, W, lam, norm)
    # A norm, a gap and a complementarity that are finite leave no room for numbers in W and lam that are not.
    if W is None or lam is None or certificate is None or not isfinite(certificate.complementarity + certificate.gap):
        nothing = np.full(problem.m, np.nan)
        return MarginSolution(
            problem, norm, Status.FAILED, Certificate.unknown(source=Source(problem, None, nothing, norm)), nothing,
            solver, iterations, seconds, tolerance, None, found.extras,
        )  # fmt: skip
    closes = certificate.proved <= tolerance
    status = Status.OPTIMAL if closes else found.status or Status.INACCURATE
    return MarginSolution(
        problem, norm, status, certificate, lam, solver, iterations, seconds, tolerance, W, found.extras
    )


@dataclass(frozen=True, eq=False)
class Request:
    """What the caller asked for, read once.

    Attributes
    ----------
    tolerance : float
        What the certificate must reach to be called optimal.
    max_iterations : int or None
        In the method's own unit.
    warm_start : MarginSolution or ndarray, or None
        A solution, or multipliers of shape (*batch, m).
    rank : int or None
        Largest rank allowed.
    solver : str
        As it was asked for, "auto" by default.
    variant : str
        What followed the colon in ``solver="name:VARIANT"``.
    options : dict
        Left for the method.
    """

    tolerance: float
    max_iterations: int | None = None
    warm_start: EitherSolution | FloatArray | None = None
    rank: int | None = None
    solver: str = "auto"
    variant: str = ""
    options: dict[str, object] = field(default_factory=dict)

    def check(self, problem: EitherProblem) -> None:
        """Refuse a warm start that does not fit, whether or not the method will use it."""
        given, batch, m, shape = self.warm_start, problem.batch, problem.m, problem.shape
        if given is None:
            return
        if isinstance(given, MarginSolution):
            known = given.problem
            if (known.batch, known.m, known.shape) != (batch, m, shape):
                raise ValueError(
                    f"warm_start must solve a problem with {m} rows and W of shape {(*batch, *shape)}, "
                    f"got {known.m} rows and {(*known.batch, *known.shape)}"
                )
        elif given.shape != (*batch, m):
            raise ValueError(f"warm_start must hold multipliers of shape {(*batch, m)}, one per row, got {given.shape}")
        elif not np.isfinite(given).all():
            raise ValueError("warm_start must be finite")

    def whole(self, name: str, default: int, least: int = 0) -> int:
        """An option that is an integer of at least ``least``; otherwise refused by name."""
        given = self.options.get(name)
        if given is None:
            return default
        if not is_count(given, least):
            raise ValueError(f"{name} must be an integer >= {least}, got {given!r}")
        return int(given)

    def multipliers(self, problem: EitherProblem) -> FloatArray | None:
        """Multipliers to start from, negative inequality multipliers cut to 0; None when there are none to use."""
        given = self.warm_start
        if given is None:
            return None
        # An infeasible neighbour knows nothing of use here: its multipliers are NaN.
        known = np.nan_to_num(given.multipliers) if isinstance(given, MarginSolution) else given
        lam = problem.clipped(known)
        return lam if lam.any() else None
