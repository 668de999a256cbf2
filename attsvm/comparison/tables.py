"""Reports as tables (rich)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from attsvm.comparison.batch import BatchReport
    from attsvm.comparison.report import Comparison, Report

__all__ = ["batch_table", "render", "report_table"]


def render(table: Table, width: int = 120) -> str:
    """A table as plain text."""
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(table)
    return out.getvalue().rstrip("\n")


def report_table(reports: Sequence[Report]) -> Table:
    """One line per run and solution.

    Columns: parameterization and steps; class of convergence; numerical and effective rank of W; solution;
    1 - correlation with it; margin reached relative to its margin; fitted rate of 1 - correlation; whether the run
    selects the solution's tokens.
    """
    table = Table(title="Training against theory")
    for name in ("run", "ends", "rank", "solution"):
        table.add_column(name, no_wrap=True)
    for name in ("1 - corr", "margin", "rate"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("tokens", no_wrap=True)
    for report in reports:
        run = report.run
        start = f"{run.parameterization}, {int(run.steps)}"
        ends = report.convergence if run.status == "finished" else f"{report.convergence} ({run.status})"
        rank = f"{report.rank} ({report.effective_rank:.1f})"
        for c in _distinct(report):
            solved = c.solution.status.has_solution
            table.add_row(
                start,
                ends,
                rank,
                c.label,
                f"{c.misalignment[-1]:.1e}" if solved else str(c.solution.status),
                _percent(c.margin[-1]),
                "-" if np.isnan(c.rate) else f"{c.rate:.2f}",
                "same" if c.selection_match[-1] else "other",
            )
            start = ends = rank = ""
        table.add_section()
    return table


def _distinct(report: Report) -> list[Comparison]:
    """Leave the run's own SVM out where a given solution is the same problem."""
    own, *given = report.comparisons
    if any(c.solution.norm_name == own.solution.norm_name and c.selection_match[-1] for c in given):
        return given
    return [own, *given]


def _percent(share: float) -> str:
    return "-" if np.isnan(share) else f"{100 * share:.2f} %"


def batch_table(report: BatchReport) -> Table:
    """Medians and quantiles over a batch."""
    counts = ", ".join(f"{name} {count}" for name, count in report.convergence_counts().items())
    table = Table(title=f"{report.run.batch} runs of {report.run.parameterization}: {counts}")
    table.add_column("solution")
    for name in ("1 - corr: mean", "median", "10 %", "90 %", "margin: median", "rate: median", "same tokens", "solved"):
        table.add_column(name, justify="right")
    for label in report.labels:
        s = report.summary(label)
        numbers = (f"{s[name]:.1e}" for name in ("mean", "median", "q10", "q90"))
        table.add_row(
            label,
            *numbers,
            _percent(s["margin"]),
            f"{s['rate']:.2f}",
            f"{100 * s['selection_match']:.0f} %",
            f"{100 * s['solved']:.0f} %",
        )
    return table
