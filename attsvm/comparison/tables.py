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
    from attsvm.comparison.report import Report

__all__ = ["batch_table", "render", "report_table"]


def render(table: Table, width: int = 120) -> str:
    """A table as plain text."""
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(table)
    return out.getvalue().rstrip("\n")


def report_table(reports: Sequence[Report]) -> Table:
    """One line per run and solution."""
    table = Table(title="Training against theory")
    for name in ("run", "ends", "rank (effective)", "solution"):
        table.add_column(name)
    for name in ("1 - correlation", "margin reached", "rate"):
        table.add_column(name, justify="right")
    table.add_column("same tokens")
    for report in reports:
        run = report.run
        start = f"{run.parameterization}, {int(run.steps)} steps"
        ends = report.convergence if run.status == "finished" else f"{report.convergence} ({run.status})"
        rank = f"{report.rank} ({report.effective_rank:.1f})"
        for c in report.comparisons:
            solved = c.solution.status.has_solution
            table.add_row(
                start,
                ends,
                rank,
                c.label,
                f"{c.misalignment[-1]:.1e}" if solved else str(c.solution.status),
                _percent(c.margin[-1]),
                "-" if np.isnan(c.rate) else f"{c.rate:.2f}",
                "yes" if c.selection_match[-1] else "no",
            )
            start = ends = rank = ""
        table.add_section()
    return table


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
