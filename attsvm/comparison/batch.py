"""Reports over a batch of runs: the same numbers with mean, median and quantiles."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attsvm.comparison.report import Comparison, Report, build_report
from attsvm.optimality import Convergence, convergence_of
from attsvm.svm import att_svm

if TYPE_CHECKING:
    from attsvm.training.run import Run

__all__ = ["BatchReport", "compare_batch"]


@dataclass(frozen=True, eq=False)
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

    def plot(self, axes: Any = None) -> Any:
        """Draw median and quantiles of 1 - correlation along training."""
        from attsvm.comparison.plots import plot_batch

        return plot_batch(self, axes)

    def __str__(self) -> str:
        from attsvm.comparison.tables import batch_table, render

        return render(batch_table(self))


def compare_batch(run: Run, *solutions: Any, solver: str = "auto") -> BatchReport:
    """Compare every run of a batch; see `attsvm.compare`."""
    own = att_svm(run.problem, run.selection, norm=run.norm or "frobenius", solver=solver)
    for column in solutions:
        if len(column) != run.batch:
            raise ValueError(f"a batch of {run.batch} runs needs batches of {run.batch} solutions, got {len(column)}")
    kinds = convergence_of(own)
    reports = (build_report(run[b], own[b], tuple(c[b] for c in solutions), kinds[b]) for b in range(run.batch or 0))
    return BatchReport(run, tuple(reports))
