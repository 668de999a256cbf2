"""Soft margins of the same rows for several C: what one solution proves of the others is not solved again.

With the hinge a solution without bounds that are reached is that of every larger C, and where all bounds are reached,
or W = 0, multipliers grow in proportion to C. Certificates tell where that is so. The others are solved as one batch
where their method works on batches; else one after another, each from the multipliers of the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.solvers.certify.certificate import Source
from attsvm.solvers.certify.entry import certify
from attsvm.solvers.ladder import rungs
from attsvm.solvers.norms import Norm, get_norm
from attsvm.solvers.penalty import Penalty, PenaltyBatch
from attsvm.solvers.prior import Prior
from attsvm.solvers.problem import MarginProblem
from attsvm.solvers.rows.pairs import PairRows
from attsvm.solvers.solution import MarginSolution, MethodResult, conclude
from attsvm.solvers.solve import solve

__all__ = ["solve_soft_path"]


def solve_soft_path(
    problems: Sequence[MarginProblem], norm: str | Norm = "frobenius", solver: str = "auto", **options: Any
) -> Sequence[MarginSolution] | MarginSolution:
    """Solutions for several penalties: a list of them, or that of a batch of as many problems.

    Parameters
    ----------
    problems : sequence of MarginProblem
        Soft margins on the same rows, with one slack and one loss, in rising order of C.
    norm, solver, **options
        As for `attsvm.solvers.solve`.

    Examples
    --------
    ``min W^2 / 2 + C (2 - W)_+`` has W = min(C, 2):

    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.soft_path import solve_soft_path
    >>> row = MarginProblem([[1.0]], [[1.0]], [0], rhs=[2.0])
    >>> found = solve_soft_path([row.soft(1.5), row.soft(3.0)])
    >>> [round(found[i].W.item(), 6) for i in range(2)]
    [1.5, 2.0]
    """
    norm = get_norm(norm)
    specs, _ = rungs(problems[0], norm, solver)
    if not specs[0].batched or len(problems) == 1:
        return _one_by_one(problems, norm, solver, options)
    batch = _stacked(problems)
    if specs[0].name == "active_set" and "max_iterations" not in options:  # solved sooner than proved
        return solve(batch, norm, solver, **options)
    return _Path(problems, norm, batch).run(solver, options)


def _one_by_one(
    problems: Sequence[MarginProblem], norm: Norm, solver: str, options: dict[str, Any]
) -> list[MarginSolution]:
    """Each from the one before, where the method takes that as a start."""
    found: list[MarginSolution] = []
    for problem in problems:
        start = found[-1] if found and norm.name == "frobenius" and found[-1].status.has_solution else None
        found.append(solve(problem, norm, solver, warm_start=start, **options))
    return found


def _stacked(problems: Sequence[MarginProblem]) -> MarginProblem:
    """The problems as a batch."""
    problem, size = problems[0], len(problems)
    pair = problem.pairs()
    rows = PairRows.trusted(_copies(pair.a, size), _copies(pair.queries, size), pair.owner)
    if problem.is_plain:
        batch = MarginProblem.from_rows(rows)
    else:
        batch = MarginProblem.from_rows(rows, _copies(problem.rhs, size), _copies(problem.equality, size))
    if problem.prior is not None:
        batch = batch._with(Prior(*(_copies(part, size) for part in problem.prior)))
    penalties = [_penalty_of(each) for each in problems]
    C = np.array([penalty.C for penalty in penalties])
    return batch._with_penalty(PenaltyBatch(C, penalties[0].slack, penalties[0].loss))


def _penalty_of(problem: MarginProblem) -> Penalty:
    assert problem.penalty is not None
    return problem.penalty


def _copies(array: Any, size: int) -> Any:
    return np.ascontiguousarray(np.broadcast_to(array, (size, *array.shape)))


class _Path:
    """Solutions for all penalties, some of them proved by others."""

    def __init__(self, problems: Sequence[MarginProblem], norm: Norm, batch: MarginProblem) -> None:
        self.problems, self.norm, self.batch = problems, norm, batch
        self.C = np.array([_penalty_of(problem).C for problem in problems])
        self.found: dict[int, MarginSolution] = {}

    def _left(self) -> IntArray:
        """Penalties without a solution."""
        return np.array([i for i in range(len(self.C)) if i not in self.found], dtype=np.int64)

    def run(self, solver: str, options: dict[str, Any]) -> list[MarginSolution]:
        """All solutions, in order."""
        last = len(self.C) - 1
        for i in (last, 0):
            if i not in self.found:
                self.found[i] = solve(self.problems[i], self.norm, solver, **options)
                left = self._left()
                if len(left) and self.found[i].status == "optimal":
                    self._offer(i, left, np.ones(len(left)) if i else self.C[left] / self.C[i])
        left = self._left()
        if len(left):
            rest = solve(self.batch.take(left), self.norm, solver, **options)
            self.found |= {int(i): rest[place] for place, i in enumerate(left)}
        return [self.found[i] for i in range(last + 1)]

    def _offer(self, source: int, others: IntArray, multiples: FloatArray) -> None:
        """Take multiples of a solution for other penalties where they are proved."""
        known = self.found[source]
        W, lam = known.W * multiples[:, None, None], known.multipliers * multiples[:, None]
        certificate: Any = certify(self.batch.take(others), W, lam, self.norm)
        for place in np.flatnonzero(certificate.proved <= known.tolerance):
            i = int(others[place])
            own = certificate.of(int(place), Source(self.problems[i], W[place], lam[place], self.norm))
            result = MethodResult(W[place], lam[place], 0, certificate=own)
            self.found[i] = conclude(
                self.problems[i], self.norm, result, solver=known.solver, seconds=0.0, tolerance=known.tolerance
            )
