"""Soft margins of the same rows for several C: what one solution proves of the others is not solved again.

With the hinge a solution without bounds that are reached is that of every larger C, and where all bounds are reached,
or W = 0, multipliers grow in proportion to C. Certificates tell where that is so. The others are solved

- by exchanges of single rows from one face to the next (`attsvm.solvers.compiled.exchanges`), where the face of a
  Frobenius norm is small;
- from the largest C down, a few as a batch, where their method works on batches;
- else one after another, each from the multipliers of the one before.

Every solution has its own certificate, whatever it came from. A time limit is that of all of them together.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.solvers.certify.certificate import Source
from attsvm.solvers.certify.certify_pair import certify
from attsvm.solvers.compiled.descent import DualDescent
from attsvm.solvers.compiled.exchanges import exchange_rows
from attsvm.solvers.deadline import late, read_time_limit, within
from attsvm.solvers.ladder import follows_faces, rungs
from attsvm.solvers.margin_problem import MarginProblem, MarginProblemBatch, Prior
from attsvm.solvers.margin_solution import MarginSolution, MarginSolutionBatch, MethodResult, conclude
from attsvm.solvers.norms import Norm, get_norm
from attsvm.solvers.penalty import PenaltyBatch
from attsvm.solvers.solve import solve

__all__ = ["solve_soft_path"]

# Sweeps of coordinate descent that find most of the face to begin with.
_SWEEPS = 10
# Values of C that are solved as a batch after the largest one; twice as many each time.
_AT_ONCE = 3
# Share of its bound by which a sum of multipliers may fall short and still be at it.
_NEAR = 1e-6
# Share of the tolerance that the first of many solutions is solved to, and the least tolerance of that kind.
_FIRST, _LEAST = 0.03, 1e-10
_Entry = TypeVar("_Entry", bound=np.generic)


class _Asked(NamedTuple):
    """What the caller asks of every solve."""

    norm: Norm
    solver: str
    tolerance: float | None
    max_iterations: int | None
    options: dict[str, object]

    def one(
        self, problem: MarginProblem, start: MarginSolution | None = None, tolerance: float | None = None
    ) -> MarginSolution:
        """Of one problem; to a tolerance of its own, if that is given."""
        return solve(
            problem, self.norm, self.solver, rank=None, tolerance=tolerance or self.tolerance,
            max_iterations=self.max_iterations, warm_start=start, **self.options,
        )  # fmt: skip

    def many(self, batch: MarginProblemBatch) -> MarginSolutionBatch:
        """Of a batch."""
        return solve(
            batch, self.norm, self.solver, rank=None, tolerance=self.tolerance, max_iterations=self.max_iterations,
            warm_start=None, **self.options,
        )  # fmt: skip


def solve_soft_path(
    problem: MarginProblem,
    penalty: PenaltyBatch,
    norm: str | Norm = "frobenius",
    solver: str = "auto",
    *,
    tolerance: float | None = None,
    max_iterations: int | None = None,
    **options: object,
) -> Sequence[MarginSolution] | MarginSolutionBatch:
    """Solutions for several penalties: a list of them, or that of a batch of as many problems.

    Parameters
    ----------
    problem : MarginProblem
        One problem; its own penalty does not count.
    penalty : PenaltyBatch
        In rising order of C.
    norm, solver, tolerance, max_iterations, **options
        As for `attsvm.solvers.solve`.

    Examples
    --------
    ``min W^2 / 2 + C (2 - W)_+`` has W = min(C, 2):

    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.penalty import PenaltyBatch
    >>> from attsvm.solvers.soft_path import solve_soft_path
    >>> row = MarginProblem([[1.0]], [[1.0]], [0], rhs=[2.0])
    >>> found = solve_soft_path(row, PenaltyBatch(np.array([1.5, 3.0])))
    >>> [round(found[i].W.item(), 6) for i in range(2)]
    [1.5, 2.0]
    """
    asked = _Asked(get_norm(norm), solver, tolerance, max_iterations, options)
    return within(read_time_limit(options.get("time_limit")), _solve_path, problem, penalty, asked)


def _solve_path(
    problem: MarginProblem, penalty: PenaltyBatch, asked: _Asked
) -> Sequence[MarginSolution] | MarginSolutionBatch:
    first = problem._with_penalty(penalty.of_problem(0))
    specs, _ = rungs(first, asked.norm, asked.solver, warn=False)  # every solve warns
    if len(penalty.C) == 1:
        return _one_by_one(problem, penalty, asked)
    if specs[0].name == "active_set" and asked.max_iterations is None:  # solved sooner than proved
        return asked.many(_repeated(problem, penalty))
    if asked.solver == "auto" and asked.max_iterations is None and follows_faces(first, asked.norm):
        return _face_by_face(problem, penalty, asked, asked.tolerance or specs[0].achievable)
    if not specs[0].batched:
        return _one_by_one(problem, penalty, asked)
    return _Path(problem, penalty, asked).run()


def _one_by_one(
    problem: MarginProblem, penalty: PenaltyBatch, asked: _Asked, known: Sequence[MarginSolution] = ()
) -> list[MarginSolution]:
    """Each from the one before, where the method takes that as a start; the first ones may be known."""
    found = list(known)
    if not found and len(penalty.C) > 1:
        found.append(_sharp(problem._with_penalty(penalty.of_problem(0)), asked))
    for i in range(len(found), len(penalty.C)):
        start = found[-1] if found and asked.norm.name == "frobenius" and found[-1].status.has_solution else None
        one = problem._with_penalty(penalty.of_problem(i))
        if found and late():
            nothing, tolerance = MethodResult(), found[-1].tolerance
            found.append(conclude(one, asked.norm, nothing, solver=found[-1].solver, seconds=0.0, tolerance=tolerance))
            continue
        carried = None if start is None else _carried(start, one)
        found.append(asked.one(one, start) if carried is None else carried)
    return found


def _sharp(problem: MarginProblem, asked: _Asked) -> MarginSolution:
    """The solution for the least C; sharper than asked where its multiples may be solutions: their gaps grow with C."""
    specs, _ = rungs(problem, asked.norm, asked.solver, warn=False)
    tolerance = asked.tolerance or specs[0].achievable
    multiples = asked.norm.name == "frobenius" and not specs[0].foreign  # others reach their own tolerance at best
    if not multiples or asked.max_iterations is not None or tolerance <= _LEAST:
        return asked.one(problem)
    sharp = asked.one(problem, tolerance=max(_FIRST * tolerance, _LEAST))
    if not sharp.status.has_solution:
        return sharp
    found = MethodResult(
        sharp.W, sharp.multipliers, sharp.iterations, certificate=sharp.certificate, extras=sharp.extras
    )
    return conclude(problem, asked.norm, found, solver=sharp.solver, seconds=sharp.seconds, tolerance=tolerance)


def _face_by_face(
    problem: MarginProblem, penalty: PenaltyBatch, asked: _Asked, tolerance: float
) -> Sequence[MarginSolution]:
    """All by exchanges, from the face that a few sweeps find for the least C; what these do not prove one by one."""
    if late():
        return _one_by_one(problem, penalty, asked)
    begin, pairs = time.perf_counter(), problem.pairs()
    descent = DualDescent(pairs, problem.rhs, penalty.of_problem(0), np.zeros(problem.m))
    descent.sweep(_SWEEPS)
    start = np.empty(problem.m)
    start[descent.order] = descent.lam
    start = penalty.of_problem(0).admissible(start, problem.owner, problem.q)
    done = exchange_rows(pairs, problem.rhs, penalty, start)
    found: list[MarginSolution] = []
    if len(done.W):
        batch = _repeated(problem, penalty.of_problems(np.arange(len(done.W))))
        certificate = certify(batch, done.W, done.multipliers, asked.norm)
        each = (time.perf_counter() - begin) / len(done.W)
        for i in np.flatnonzero(np.logical_and.accumulate(certificate.proved <= tolerance)):
            one, W, lam = problem._with_penalty(penalty.of_problem(int(i))), done.W[i], done.multipliers[i]
            own = certificate.of(int(i), Source(one, W, lam, asked.norm))
            result = MethodResult(W, lam, int(done.exchanges[i]), certificate=own)
            found.append(conclude(one, asked.norm, result, solver="soft_large", seconds=each, tolerance=tolerance))
    return _one_by_one(problem, penalty, asked, found)


def _carried(known: MarginSolution, problem: MarginProblem) -> MarginSolution | None:
    """A solution for a smaller C as one of this problem, where all or none of its bounds are reached; else None."""
    old, new = known.problem.single_penalty, problem.single_penalty
    assert old is not None and new is not None
    if old.loss != "hinge" or known.status != "optimal":
        return None
    begin = time.perf_counter()
    loads = old.loads(known.multipliers, problem.owner, problem.q)
    reached = loads >= old.C * (1.0 - _NEAR)
    if reached.any() and not reached.all():
        return None
    ratio = new.C / old.C if reached.all() else 1.0
    W, lam = ratio * known.W, ratio * known.multipliers
    certificate = certify(problem, W, lam, known.norm_kind)
    if not certificate.proved <= known.tolerance and not reached.any():  # a larger C multiplies the last small slacks
        W = W * (1.0 + float(problem.missed(problem.margins(W) - problem.rhs).max()))
        certificate = certify(problem, W, lam, known.norm_kind)
    if not certificate.proved <= known.tolerance:
        return None
    return conclude(
        problem, known.norm_kind, MethodResult(W, lam, 0, certificate=certificate), solver=known.solver,
        seconds=time.perf_counter() - begin, tolerance=known.tolerance,
    )  # fmt: skip


def _repeated(problem: MarginProblem, penalty: PenaltyBatch) -> MarginProblemBatch:
    """The problem once for each penalty, as a batch."""
    size = len(penalty.C)
    rows = problem.pairs().repeated(size)
    batch: MarginProblemBatch
    if problem.is_plain:
        batch = MarginProblem.from_rows(rows)
    else:
        batch = MarginProblem.from_rows(rows, _copies(problem.rhs, size), _copies(problem.equality, size))
    if problem.prior is not None:
        W, sides, error = (_copies(part, size) for part in problem.prior)
        batch = batch._with(Prior(W, sides, error))
    return batch._with_penalty(penalty)


def _copies(array: npt.NDArray[_Entry], size: int) -> npt.NDArray[_Entry]:
    return np.broadcast_to(array, (size, *array.shape))


class _Path:
    """Solutions for all penalties, from the largest C down, some of them proved by others."""

    def __init__(self, problem: MarginProblem, penalty: PenaltyBatch, asked: _Asked) -> None:
        self.problem, self.penalty, self.asked = problem, penalty, asked
        self.C: FloatArray = penalty.C
        self.batch = _repeated(problem, penalty)
        self.found: dict[int, MarginSolution] = {}
        self.expected: dict[int, tuple[int, float, FloatArray]] = {}  # source, multiple of its multipliers, and W

    def _of(self, i: int) -> MarginProblem:
        return self.problem._with_penalty(self.penalty.of_problem(i))

    def _left(self) -> IntArray:
        """Penalties without a solution, and without one that is expected."""
        some = self.found.keys() | self.expected.keys()
        return np.array([i for i in range(len(self.C)) if i not in some], dtype=np.int64)

    def run(self) -> list[MarginSolution]:
        """All solutions, in order."""
        last, count = len(self.C) - 1, 1
        while len(left := self._left()):
            self._solve(left if late() else left[-count:])
            count = max(_AT_ONCE, 2 * count)
        self._prove()
        if len(left := self._left()):
            self._solve(left)
        return [self.found[i] for i in range(last + 1)]

    def _solve(self, which: IntArray) -> None:
        """Solve for these C, and note what follows from that for the others."""
        if len(which) == 1:
            self.found[int(which[0])] = self.asked.one(self._of(int(which[0])))
        else:
            several = self.asked.many(self.batch.take(which))
            self.found |= {int(i): several[place] for place, i in enumerate(which)}
        for i in which.tolist():
            self._expect(i)

    def _expect(self, source: int) -> None:
        """Where no bound is reached, C does not matter; where all are, multipliers of smaller C are multiples.

        In norm form multiples below 1 belong to W = 0.
        """
        known, C = self.found[source], self.C[source]
        if known.status != "optimal":
            return
        loads, W = self.penalty.of_problem(source).loads(known.multipliers, self.problem.owner, self.problem.q), known.W
        hinge, multiples = self.penalty.loss == "hinge", self.asked.norm.name == "frobenius"
        same = hinge and float(loads.max()) < C * (1.0 - _NEAR)
        rises = (hinge and bool((loads >= C * (1.0 - _NEAR)).all())) or not W.any()
        for i in self._left()[: None if same or rises else 0].tolist():
            if same and self.C[i] >= float(loads.max()):
                self.expected[i] = (source, 1.0, W)
            elif rises and self.C[i] < C:
                t = self.C[i] / C
                self.expected[i] = (source, t, t * W if multiples else np.zeros_like(W))

    def _prove(self) -> None:
        """Certify what is expected, all at once; what is not proved is left to be solved."""
        which, self.expected = self.expected, {}
        if not which:
            return
        index, norm = np.array(list(which)), self.asked.norm
        W = np.stack([part for _, _, part in which.values()])
        lam = np.stack([t * self.found[source].multipliers for source, t, _ in which.values()])
        certificate = certify(self.batch.take(index), W, lam, norm)
        for place, (i, (source, _, _)) in enumerate(which.items()):
            known, one = self.found[source], self._of(i)
            if certificate.proved[place] <= known.tolerance:
                own = certificate.of(place, Source(one, W[place], lam[place], norm))
                result = MethodResult(W[place], lam[place], 0, certificate=own)
                self.found[i] = conclude(one, norm, result, solver=known.solver, seconds=0.0, tolerance=known.tolerance)
