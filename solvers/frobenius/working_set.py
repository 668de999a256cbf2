"""Least Frobenius norm of very many rows, hard or soft: a growing working set, certified on all rows.

Hard margins of many queries are solved by pivoting with products alone (`product_pivoting`), which takes no memory
beyond vectors and matrices of the size of W.

Everything else, and what pivoting does not finish, takes the steps of `proximal_newton`. Early rounds want little
accuracy: two Newton steps, then the most violated rows of each query join. Once no row outside is violated, the
proximal term is all but removed, the equations on the free rows are refined with residuals from W, and the pair is
certified on every row.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.certify.certificate import Certificate
from attsvm.solvers.certify.certify_pair import certify
from attsvm.solvers.certify.farkas import certify_infeasible
from attsvm.solvers.deadline import read_time_limit
from attsvm.solvers.frobenius.conflicts import find_conflict
from attsvm.solvers.frobenius.product_pivoting import ProductPivoting
from attsvm.solvers.frobenius.proximal_newton import Metric, ProximalNewton
from attsvm.solvers.margin_problem import MarginProblem
from attsvm.solvers.margin_solution import Extras, MethodResult, Request
from attsvm.solvers.memory import require_memory, system_rows
from attsvm.solvers.norms import Norm
from attsvm.solvers.unit import UnitProblem

__all__ = ["Progress", "WorkingSetSolve", "raised", "read_progress", "solve_working_set"]

# Proximal weights, relative to the squared row norms of a query: one to find the rows, one to settle them, and lower
# ones for what is still open.
_COARSE, _FINE = 1e-3, (1e-7, 1e-7, 1e-8, 1e-9, 1e-10, 1e-11, 1e-12)
# Newton steps of a round, and rows of each query that join after it.
_STEPS, _JOIN = 2, 1
_ROUNDS = 1000
# Rounds of one proximal weight without new rows before the next one is tried, times free rows: small systems are cheap.
_PATIENCE = 10_000
# Share of the largest right-hand side by which a row must be missed to join a coarse round.
_COARSE_MISS = 0.02
_REFINEMENTS = 3
# Queries from which on products are cheaper than the matrix of the free rows.
MANY_QUERIES = 256
# A loose level ends when fewer rows join than this multiple of its tolerance asks for.
_FEW_NEW = 0.5


@dataclass(frozen=True)
class Progress:
    """Where a working-set solve stands, as told to ``progress=``.

    Attributes
    ----------
    round : int
    rows : int
        Rows in the working set.
    free : int
        Rows whose multipliers are free: the size of the linear systems.
    violation : float
        Largest amount by which a row is missed now.
    norm : float
        Of W now.
    bound : float
        What the multipliers of now prove of the norm from below; 0 for soft margins.
    seconds : float
        Since the start.
    """

    round: int
    rows: int
    free: int
    violation: float
    norm: float
    bound: float
    seconds: float


def read_progress(given: object) -> Callable[[Progress], object] | None:
    """What is called after every round, if anything."""
    if given is not None and not callable(given):
        raise ValueError(f"progress must be None or a function that takes a Progress, got {given!r}")
    return given


class WorkingSetSolve:
    """One solve: what was asked for, the method, and the best certified pair."""

    def __init__(self, problem: MarginProblem, norm: Norm, request: Request, metric: Metric | None = None) -> None:
        self.problem, self.norm, self.request, self.metric = problem, norm, request, metric
        self.pivots = problem.penalty is None and (metric is None or problem.q >= MANY_QUERIES)
        self.plan = require_memory(problem, request.options.get("memory_limit"), self.pivots)
        self.rounds, self.begin = 0, time.perf_counter()
        self.best: MethodResult | None = None
        self.proof: Certificate | None = None
        self.working_rows = self.products = self.factorizations = 0
        self.limit = request.max_iterations or _ROUNDS
        self.tell = read_progress(request.options.get("progress"))
        self.time_limit = read_time_limit(request.options.get("time_limit"))

    @cached_property
    def method(self) -> ProximalNewton:
        """Newton's method on a working set, made when it is needed."""
        return ProximalNewton(self.problem, self.metric)

    @property
    def late(self) -> bool:
        """Whether the time is used up."""
        return time.perf_counter() - self.begin > self.time_limit

    @property
    def spent(self) -> bool:
        """Whether the budget of rounds or of time is used up."""
        return self.rounds >= self.limit or self.late

    def pivot(self, goal: float, known: FloatArray | None, *, search: bool = False) -> ProductPivoting:
        """Rounds of pivoting until no row changes sides and rows are missed by at most ``goal``.

        With ``search`` a proof of infeasibility is looked for, once, when multipliers diverge; `proof` ends the rounds.
        """
        matrix_rows = int(2**0.5 * system_rows(self.problem)) if self.plan.matrix else 0  # in float32
        pivoting = ProductPivoting(self.problem, self.metric, self.plan.features, lambda: self.late, matrix_rows)
        pivoting.begin(known)
        before = np.inf
        while not (self.spent or pivoting.stalled):
            pivoting.advance(goal)
            self.rounds += 1
            self.working_rows, self.products = len(pivoting.free), pivoting.products
            self.factorizations = pivoting.factorizations
            if self.tell is not None:
                size = len(pivoting.free)
                self._report(size, size, pivoting.values, pivoting.norm, pivoting.bound)
            if search and (pivoting.diverges or pivoting.stalled):
                search = False
                self.proof, _ = find_conflict(UnitProblem(self.problem), np.zeros(self.problem.shape))
                if self.proof is not None:
                    break
            if not pivoting.changed:
                short = pivoting.short
                if short <= goal or short > 0.5 * before:  # done, or as exact as float64 lets it be
                    break
                before = short
        return pivoting

    def start(self) -> None:
        """The working set to begin with: rows of known multipliers, or the most violated row of every query."""
        problem, method = self.problem, self.method
        known = self.request.multipliers(problem)
        first = known
        if known is None:
            norms = problem.row_norms
            first = problem.clipped(problem.rhs) / np.where(norms > 0, norms, np.inf)
        assert first is not None
        method.move_to(first)
        method.admit(np.flatnonzero(problem.equality))
        if known is not None:
            method.admit(np.flatnonzero(known))
            natural = known if problem.penalty is not None else known * method.scale
            method.center = method.admissible(natural) * (not method.natural)
        method.admit(method.missing(1, -np.inf if known is None else 0.0))

    def level(self, rho: float, steps: int, least: float, loose: float) -> None:
        """Rounds of one proximal weight until the working set holds every row that is violated by over ``least``."""
        method, idle = self.method, 0
        while not (self.spent or method.singular) and idle * max(method.free_rows, 1) < _PATIENCE:
            settled = method.newton(rho, steps, loose, lambda: self.late)
            self.rounds += 1
            self._report_newton()
            new = method.missing(_JOIN, least)
            if not len(new) and settled:
                break
            idle = 0 if len(new) else idle + 1
            if len(new):
                method.admit(new)
            if 0 < len(new) <= _FEW_NEW * loose * method.free_rows:  # a finer level finds them as well
                break

    def _report(self, rows: int, free: int, values: FloatArray, norm: float, bound: float) -> None:
        if self.tell is not None:
            short = float(self.problem.missed(values - self.problem.rhs).max())
            self.tell(Progress(self.rounds, rows, free, short, norm, bound, time.perf_counter() - self.begin))

    def _report_newton(self) -> None:
        if self.tell is None:
            return
        method = self.method
        self._report(len(method.index), method.free_rows, method.here.values, method.here.square**0.5, method.bound)

    def _certified(self, W: FloatArray, x: FloatArray) -> float:
        """Certify a pair on all rows and keep it if it proves more; what is proved of the best pair so far."""
        if self.problem.penalty is None:
            size = float(np.linalg.norm(W))
            x = x / size if size > 0 else x
        certificate = certify(self.problem, W, x, self.norm)
        known = None if self.best is None else self.best.certificate
        if known is None or certificate.proved < known.proved:
            self.best, known = MethodResult(W, x, self.rounds, certificate=certificate), certificate
        return known.proved

    def offer(self, rho: float) -> float:
        """Certify the refined pair of the face that was reached; what is proved of the best pair so far."""
        proved = np.inf
        for x, W in self.method.refined(rho, 0 if self.late else _REFINEMENTS):
            proved = self._certified(W, x)
        return proved

    def conflict(self) -> Certificate | None:
        """A proof of infeasibility from the rows that stay violated however large their multipliers are."""
        problem, method = self.problem, self.method
        if problem.penalty is not None:
            return None
        proof = certify_infeasible(problem, method.x)
        if proof is not None:
            return proof
        rows = np.flatnonzero((method.x != 0) | problem.equality | (problem.rhs > method.here.values))
        part = problem.gather(rows)
        found, _ = find_conflict(UnitProblem(part), method.here.W)
        if found is None or found.farkas is None:
            return None
        lam = np.zeros(problem.m)
        lam[rows] = found.farkas.multipliers
        return certify_infeasible(problem, lam)

    def approach(self, rho: float, loose: float, rough: float) -> tuple[FloatArray, FloatArray]:
        """W and multipliers that nearly solve it, without a certificate: for a problem inside another method.

        Rows are missed by up to ``rough`` of the largest right-hand side where only products are used, else by
        ``loose``.
        """
        side = _side(self.problem)
        if self.pivots:
            pivoting = self.pivot(rough * side, self.request.multipliers(self.problem))
            if not pivoting.stalled or not self.plan.matrix:
                return pivoting.W, self.problem.clipped(pivoting.x)
        self.start()
        self.level(_COARSE, _STEPS, _COARSE_MISS * side, 0.02)
        self.method.hold()
        self.level(rho, _STEPS, loose * side, 0.0)
        return self.method.here.W, self.method.x

    def run(self) -> MethodResult:
        """By pivoting where that applies, else and after that by proximal Newton steps; certified."""
        if self.pivots:
            problem, goal, side = self.problem, self.request.tolerance, _side(self.problem)
            # Rescaling W repairs small violations, unless a right-hand side is 0 or a row is an equality.
            lifts = not problem.equality.any() and float(problem.rhs.min()) >= 0.1 * side
            pivoting = self.pivot(
                (0.1 * goal if lifts else 1e-13) * side, self.request.multipliers(problem), search=True
            )
            if self.proof is not None:
                return MethodResult(farkas=self.proof, iterations=self.rounds, extras=self.extras())
            x = problem.clipped(pivoting.x)
            proved = self._certified(raised(problem, pivoting.W), x)
            if proved > goal and self.spent:  # negative multipliers are left out of the bound, not of W
                proved = self._certified(raised(problem, problem.adjoint(x)), x)
            if proved <= goal or self.spent or not self.plan.matrix:
                return self._result()
            settled = not (pivoting.changed or pivoting.stalled)
            del pivoting
            self.request = replace(self.request, warm_start=x if settled else None)
        return self._newton()

    def _newton(self) -> MethodResult:
        """Coarse rounds, fine ones, then ever smaller proximal weights until the certificate closes."""
        problem, method, goal, side = self.problem, self.method, self.request.tolerance, _side(self.problem)
        self.start()
        self.level(_COARSE, _STEPS, _COARSE_MISS * side, 0.02)
        looked = False
        for trial, rho in enumerate(_FINE):
            method.hold()
            self.level(rho, 4, 1e-10 * side, 0.0)
            if self.offer(rho) <= goal or self.spent or method.singular:
                break
            stuck = float(problem.missed(method.here.values - problem.rhs).max()) > 1e-3 * side
            if stuck and not looked and trial > 0:
                looked = True
                proof = self.conflict()
                if proof is not None:
                    return MethodResult(farkas=proof, iterations=self.rounds, extras=self.extras())
        if self.best is None:  # stopped before anything was settled
            self.offer(_FINE[0])
        return self._result()

    def _result(self) -> MethodResult:
        best = self.best or MethodResult()
        return MethodResult(best.W, best.multipliers, self.rounds, certificate=best.certificate, extras=self.extras())

    def extras(self) -> Extras:
        """What the solve adds to its solution."""
        made = "method" in self.__dict__
        return Extras(
            working_rows=len(self.method.index) if made else self.working_rows,
            factorizations=self.factorizations + (self.method.factorizations if made else 0),
            products=self.products,
        )


def _side(problem: MarginProblem) -> float:
    """The largest right-hand side."""
    return max(float(np.abs(problem.rhs).max()), 1e-300)


def raised(problem: MarginProblem, W: FloatArray) -> FloatArray:
    """W made longer so that it meets every row, if right-hand sides are positive and W has the right sign on all.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.frobenius.working_set import raised
    >>> raised(MarginProblem([[2.0]], [[1.0]], [0]), np.array([[0.4]]))
    array([[0.5]])
    """
    if problem.penalty is not None or problem.equality.any() or not (problem.rhs > 0).all():
        return W
    least = float((problem.margins(W) / problem.rhs).min())
    return W / least if 0.0 < least < 1.0 else W


def solve_working_set(unit: UnitProblem, norm: Norm, request: Request) -> MethodResult:
    """Least Frobenius norm of any number of rows through a working set.

    ``max_iterations`` limits the rounds (1000 by default). Options are ``time_limit`` in seconds, after which the best
    certified pair is returned, ``progress``, a function that is called with a `Progress` after every round, and
    ``memory_limit`` in bytes: a solve that would take more beside the data is refused before it starts.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, solve
    >>> rows = MarginProblem([[2.0, 0.0], [0.0, 1.0]], [[1.0]], [0, 0])
    >>> solve(rows, solver="working_set").W.round(6)
    array([[0.5],
           [1. ]])
    """
    with np.errstate(over="ignore", invalid="ignore"):  # right-hand sides beyond float32: the certificate judges
        return WorkingSetSolve(unit.problem, norm, request).run()
