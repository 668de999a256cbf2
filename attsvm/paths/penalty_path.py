"""Soft margins along penalties: from W near 0 to the hard margin, on the same rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Unpack, overload

import numpy as np
import numpy.typing as npt

from attsvm.margin_options import DEFAULTS, AttSvmOptions, PathOptions, check_options, method_options, takes
from attsvm.problem import AttentionProblem, require_problem
from attsvm.records import html_listing
from attsvm.selection import Selection, SelectionLike, read_selection
from attsvm.selection_rows import AttentionRows, rows_of_selection
from attsvm.solution import Solution
from attsvm.solvers import MarginSolution, MarginSolutionBatch
from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.margin_solution import warn_if_inaccurate
from attsvm.solvers.penalty import PenaltyBatch, read_penalty
from attsvm.solvers.soft_path import solve_soft_path
from attsvm.svm import read_support_tolerance
from attsvm.user_input import real_array

__all__ = [
    "SoftPath",
    "soft_path",
]


class _Solutions(Sequence[Solution]):
    """Solutions in the language of tokens, put together when they are read; everything is solved and certified."""

    def __init__(
        self,
        problem: AttentionProblem,
        selection: Selection,
        rows: AttentionRows,
        penalty: PenaltyBatch,
        results: Sequence[MarginSolution] | MarginSolutionBatch,
        support_tolerance: float,
    ) -> None:
        self._problem, self._selection, self._rows, self._penalty = problem, selection, rows, penalty
        self._results, self._tolerance, self._read = results, support_tolerance, dict[int, Solution]()

    def __len__(self) -> int:
        return len(self._results)

    @overload
    def __getitem__(self, index: int) -> Solution: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Solution, ...]: ...
    def __getitem__(self, index: int | slice) -> Solution | tuple[Solution, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        place = range(len(self))[index]
        if place not in self._read:
            one = self._penalty.of_problem(place)
            rows, result = self._rows.soft(one.C, one.slack, one.loss), self._results[place]
            if result.problem.prior is None:
                result = replace(result, problem=rows.margin_problem)
            name = "SAtt-SVM" if self._problem.multi_query else "Att-SVM"
            self._read[place] = Solution(name, self._problem, self._selection, rows, result, self._tolerance)
        return self._read[place]


@dataclass(frozen=True, eq=False, repr=False)
class SoftPath:
    """Solutions along penalties.

    Attributes
    ----------
    Cs : ndarray, shape (P,)
        In the order of the solutions.
    solutions : sequence of Solution
    """

    Cs: FloatArray
    solutions: Sequence[Solution]

    @property
    def norms(self) -> FloatArray:
        """Norms of W, shape (P,); they rise with C."""
        return np.array([solution.norm for solution in self.solutions])

    @property
    def gaps(self) -> FloatArray:
        """Relative duality gaps, shape (P,)."""
        return np.array([solution.certificate.gap for solution in self.solutions])

    @property
    def slacks(self) -> FloatArray:
        """Total slack, shape (P,); it falls with C."""
        return np.array([float(solution.slacks.sum()) for solution in self.solutions])

    @property
    def slack_counts(self) -> npt.NDArray[np.int64]:
        """Number of queries with a positive slack, shape (P,)."""
        return np.array([len(solution.queries_with_slack) for solution in self.solutions])

    def __repr__(self) -> str:
        ends = f"C {self.Cs[0]:.3g}..{self.Cs[-1]:.3g}, norms {self.norms[0]:.3g}..{self.norms[-1]:.3g}"
        return f"SoftPath({len(self)} penalties, {ends}, gap <= {self.gaps.max():.1e})"

    def _repr_html_(self) -> str:
        numbers = zip(self.Cs, self.norms, self.slacks, self.slack_counts, self.gaps, strict=True)
        rows = [(f"{C:.4g}", f"{norm:.5g}", f"{slack:.5g}", int(n), f"{gap:.1e}") for C, norm, slack, n, gap in numbers]
        return html_listing("Soft margins", ("C", "norm", "total slack", "queries with slack", "gap"), rows)

    def __len__(self) -> int:
        return len(self.solutions)

    def __iter__(self) -> Iterator[Solution]:
        return iter(self.solutions)

    def __getitem__(self, index: int) -> Solution:
        return self.solutions[index]


@takes(PathOptions)
def soft_path(
    problem: AttentionProblem,
    Cs: Sequence[float] | npt.ArrayLike,
    selection: SelectionLike = None,
    **options: Unpack[PathOptions],
) -> SoftPath:
    """Solve the soft margin for several penalties on the same rows, most of them together or from one another.

    Parameters
    ----------
    problem : AttentionProblem
        A single one.
    Cs : sequence of float
        Positive weights of the slacks; they are sorted.
    selection : Selection or array_like of int, optional
        The optimal tokens by default.
    **options
        Passed to the solver: ``tolerance``, ``max_iterations``, ``time_limit``, ...
        All keywords: `attsvm.margin_options.PathOptions`.

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=6, T=6, d=3, kind="sequence", seed=0)
    >>> path = attsvm.soft_path(problem, [0.01, 0.1, 1.0], slack="row", loss="squared_hinge")
    >>> bool((path.norms[1:] >= path.norms[:-1]).all()), bool((path.gaps < 1e-8).all())
    (True, True)
    """
    given = require_problem(problem)
    if given.batch is not None:
        raise ValueError("soft_path takes one problem at a time; index the batch first, e.g. problem[0]")
    penalties = np.sort(np.atleast_1d(real_array("Cs", [] if Cs is None else Cs).astype(np.float64)))
    if penalties.ndim != 1 or not len(penalties) or not (np.isfinite(penalties) & (penalties > 0)).all():
        raise ValueError(f"Cs must be positive finite numbers, at least one, got {Cs!r}")
    for name in ("C", "rank", "warm_start"):
        if name in options:
            raise TypeError(f"soft_path does not take {name}=: it solves for every C of Cs, from its own solutions")
    check_options("soft_path", PathOptions, options)
    asked: AttSvmOptions = {**DEFAULTS, **options}
    norm, slack, loss, prior = asked["norm"], asked["slack"], asked["loss"], asked["prior"]
    chosen = read_selection(given, selection)
    tolerance = read_support_tolerance(asked["support_tolerance"])
    plain = rows_of_selection(given, chosen, asked["offset"])
    margins = plain.margin_problem if prior is None else plain.margin_problem.around(real_array("prior", prior))
    penalty = PenaltyBatch(penalties, read_penalty(penalties[0], slack, loss).slack, loss)
    results = solve_soft_path(margins, penalty, norm, solver=asked["solver"], **method_options(PathOptions, options))
    for result in [results] if isinstance(results, MarginSolution) else results:
        warn_if_inaccurate(result)
    return SoftPath(penalties, _Solutions(given, chosen, plain, penalty, results, tolerance))
