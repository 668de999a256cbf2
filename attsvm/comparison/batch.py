"""Reports over a batch of runs: the same numbers with mean, median and quantiles."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from attsvm.comparison.metrics import angle
from attsvm.comparison.report import Comparison, Report, build_report
from attsvm.comparison.tables import batch_table
from attsvm.optimality import Convergence, convergence_of
from attsvm.solution import SolutionBatch
from attsvm.svm import att_svm

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    from attsvm.problem import ProblemBatch
    from attsvm.training.run import Run

__all__ = ["BatchReport", "compare_batch"]


@dataclass(frozen=True, eq=False, repr=False)
class BatchReport:
    """Reports of a batched run.

    Attributes
    ----------
    run : Run
    reports : tuple of Report
        One per problem.
    """

    run: Run
    reports: tuple[Report, ...]

    def __len__(self) -> int:
        return len(self.reports)

    def __getitem__(self, index: int) -> Report:
        return self.reports[index]

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the solutions compared with."""
        return tuple(c.label for c in self.reports[0].comparisons)

    def _column(self, label: str) -> list[Comparison]:
        return [r.comparisons[self.labels.index(label)] for r in self.reports]

    def misalignment(self, label: str) -> npt.NDArray[np.float64]:
        """``1 - correlation`` with a solution, shape (S, batch); NaN where infeasible."""
        return np.stack([c.misalignment for c in self._column(label)], axis=1)

    def convergence_counts(self) -> dict[str, int]:
        """How many runs ended Global, Local, Not local (or Undecided)."""
        counts = Counter(r.convergence for r in self.reports)
        return {str(kind): counts[kind] for kind in Convergence if counts[kind]}

    def summary(self, label: str | None = None, snapshot: int = -1) -> dict[str, float]:
        """Mean, median, 10 % and 90 % quantiles of ``1 - correlation`` at a snapshot, over the solved problems."""
        label = self.labels[0] if label is None else label
        if label not in self.labels:
            raise ValueError(f"label must be one of {self.labels}, got {label!r}")
        column = self._column(label)
        error = np.array([c.misalignment[snapshot] for c in column])
        solved = np.isfinite(error)
        if not solved.any():
            nothing = dict.fromkeys(("mean", "median", "q10", "q90", "margin", "rate"), float("nan"))
            return nothing | {"selection_match": 0.0, "solved": 0.0}
        good = error[solved]
        rates = np.array([c.rate for c in column])
        margins = np.array([c.margin[snapshot] for c in column])
        return {
            "mean": float(good.mean()),
            "median": float(np.median(good)),
            "q10": float(np.quantile(good, 0.1)),
            "q90": float(np.quantile(good, 0.9)),
            "margin": float(np.nanmedian(margins)) if np.isfinite(margins).any() else float("nan"),
            "rate": float(np.nanmedian(rates)) if np.isfinite(rates).any() else float("nan"),
            "selection_match": float(np.mean([c.selection_match[snapshot] for c in column])),
            "solved": float(solved.mean()),
        }

    def records(self) -> list[dict[str, Any]]:
        """One flat record per problem, solution and snapshot, ready for a DataFrame."""
        return [{"problem": b} | record for b, report in enumerate(self.reports) for record in report.records()]

    def to_dict(self) -> dict[str, Any]:
        """Summaries as plain data."""
        return {
            "parameterization": self.run.parameterization,
            "batch": len(self),
            "convergence": self.convergence_counts(),
            "solutions": {label: self.summary(label) for label in self.labels},
        }

    def plot(self, axes: Axes | None = None) -> Figure | SubFigure:
        """Draw median and quantiles of 1 - correlation along training."""
        from attsvm.comparison.plots import plot_batch

        return plot_batch(self, axes)

    def __repr__(self) -> str:
        counts = ", ".join(f"{name} {count}" for name, count in self.convergence_counts().items())
        errors = ", ".join(f"{label!r} {float(angle(self.summary(label)['median'])):.2g}" for label in self.labels)
        return f"BatchReport({len(self)} runs of {self.run.parameterization}, {counts}; median degrees: {errors})"

    def __str__(self) -> str:
        return str(batch_table(self))

    def _repr_html_(self) -> str:
        return batch_table(self).html()


def compare_batch(run: Run, *solutions: object, solver: str = "auto") -> BatchReport:
    """Compare every run of a batch; see `attsvm.compare`."""
    problems = cast("ProblemBatch", run.trained_problem)
    own = att_svm(problems, run.selection, norm=run.norm or "frobenius", solver=solver)
    columns = []
    for column in solutions:
        if not isinstance(column, SolutionBatch):
            raise TypeError(f"compare takes batches of solutions after a batch of runs, got {type(column).__name__}")
        if len(column) != run.batch:
            raise ValueError(f"a batch of {run.batch} runs needs batches of {run.batch} solutions, got {len(column)}")
        columns.append(column)
    kinds = convergence_of(own)
    reports = (
        build_report(run[b], own[b], *(column[b] for column in columns), kind=kinds[b]) for b in range(run.batch or 0)
    )
    return BatchReport(run, tuple(reports))
