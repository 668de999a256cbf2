"""Reports as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm.comparison.metrics import angle
from attsvm.records import Table

if TYPE_CHECKING:
    from attsvm.comparison.batch import BatchReport
    from attsvm.comparison.report import Report

__all__ = ["batch_table", "report_table", "svm_name"]


def svm_name(formulation: str, norm: str) -> str:
    """Name of a solved problem; a star says nuclear norm.

    Examples
    --------
    >>> from attsvm.comparison.tables import svm_name
    >>> svm_name("Att-SVM", "nuclear")
    'Att-SVM*'
    """
    return formulation + ("*" if norm == "nuclear" else "")


def report_table(reports: Sequence[Report]) -> Table:
    """One line per run and solution.

    Columns: parameterization and steps; class of convergence; numerical and effective rank of W; solution;
    angle to it in degrees, 1 - correlation with it; margin reached relative to its margin; fitted rate of
    1 - correlation; whether the run selects the solution's tokens.
    """
    rows: list[tuple[Any, ...]] = []
    for report in reports:
        run = report.run
        notes = [run.status] * (run.status != "finished") + ["no theorem"] * bool(report.uncovered)
        ends = f"{report.convergence} ({', '.join(notes)})" if notes else report.convergence
        first = (f"{run.parameterization}, {int(run.steps)}", ends, f"{report.rank} ({report.effective_rank:.1f})")
        for c in report.shown:
            solved = c.solution.status.has_solution
            error = (f"{c.angle[-1]:.2g}", f"{c.misalignment[-1]:.1e}") if solved else (str(c.solution.status), None)
            rate = None if np.isnan(c.rate) else f"{c.rate:.2f}"
            tokens = "same" if c.selection_match[-1] else "other"
            rows.append((*first, c.label, *error, _percent(c.margin[-1]), rate, tokens))
            first = ("", "", "")
        rows.append(())
    columns = ("run", "ends", "rank", "solution", "degrees", "1 - corr", "margin", "rate", "tokens")
    return Table("Training against theory", columns, rows, align="LLLLRRRRL")


def _percent(share: float) -> str | None:
    return None if np.isnan(share) else f"{100 * share:.2f} %"


def batch_table(report: BatchReport) -> Table:
    """Medians over a batch, and the quantiles of 1 - correlation."""
    counts = ", ".join(f"{name} {count}" for name, count in report.convergence_counts().items())
    rows = []
    for label in report.labels:
        s = report.summary(label)
        spread = f"{s['q10']:.1e} to {s['q90']:.1e}"
        shares = (f"{100 * s[name]:.0f} %" for name in ("selection_match", "solved"))
        degrees = f"{float(angle(s['median'])):.2g}"
        rows.append((label, degrees, f"{s['median']:.1e}", spread, _percent(s["margin"]), f"{s['rate']:.2f}", *shares))
    columns = ("solution", "degrees", "1 - corr", "10 % to 90 %", "margin", "rate", "same tokens", "solved")
    return Table(
        f"{report.run.batch} runs of {report.run.parameterization}, medians: {counts}", columns, rows, "lRRRRRrR"
    )
