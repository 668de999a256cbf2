"""A training run as plain data for the page: series, and attention at every snapshot."""

from __future__ import annotations

import math
from typing import Any

from attsvm.attention import probabilities
from attsvm.comparison import Report

__all__ = ["MOST_QUERIES", "MOST_TOKENS", "run_content"]

# Larger maps are cut to what can be looked at; the selected tokens are always among the columns.
MOST_QUERIES, MOST_TOKENS = 32, 64


def _number(value: float, digits: int = 5) -> float | None:
    """Few digits keep the page light; JSON has neither NaN nor infinity."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def _numbers(values: Any) -> list[float | None]:
    return [_number(float(value)) for value in values]


def _columns(report: Report) -> list[int]:
    """Tokens that the maps show: those of the solutions, then those of the run, then the first others."""
    run = report.run
    solved = [c.solution.selection.indices for c in report.comparisons if hasattr(c.solution.selection, "indices")]
    wanted = [*solved, run.history.selection[-1]]
    tokens = [int(t) for selection in wanted for t in selection.reshape(-1)[:MOST_QUERIES]]
    return sorted(list(dict.fromkeys([*tokens, *range(run.problem.T)]))[:MOST_TOKENS])


def run_content(report: Report) -> dict[str, Any]:
    """One run: numbers per snapshot, comparisons, and maps in thousandths.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.reports.trajectory import run_content
    >>> problem = attsvm.random_problem(n=2, T=3, d=4, seed=0)
    >>> content = run_content(attsvm.compare(attsvm.train(problem, steps=10, snapshots=3)))
    >>> content["steps"], [c["label"] for c in content["comparisons"]]
    ([0, 1, 3, 10], ['Att-SVM, own tokens'])
    """
    run = report.run
    h = run.history
    columns = _columns(report)
    maps = probabilities(run.problem, h.W).reshape(len(h), -1, run.problem.T)[:, :MOST_QUERIES, columns]
    return {
        "parameterization": run.parameterization,
        "optimizer": run.options.optimizer_name,
        "status": str(run.status),
        "convergence": report.convergence,
        "uncovered": report.uncovered,
        "rank": report.rank,
        "effective_rank": _number(report.effective_rank, 3),
        "steps": h.steps.tolist(),
        "loss": _numbers(h.loss),
        "norm": _numbers(h.norm),
        "rest": _numbers(h.log_rest / math.log(10)),
        "comparisons": [
            {
                "label": c.label,
                "norm_name": c.solution.norm_name,
                "status": str(c.solution.status),
                "misalignment": _numbers(c.misalignment),
                "margin": _numbers(c.margin),
                "rate": _number(c.rate, 3),
            }
            for c in report.shown
        ],
        "selection": h.selection.reshape(len(h), -1).tolist(),
        "columns": columns,
        "attention": (1000 * maps).round().astype(int).tolist(),
    }
