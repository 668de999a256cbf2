"""A training run as plain data for the page: series, and attention at every snapshot."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.attention import probabilities
from attsvm.comparison import Report
from attsvm.comparison.report import Comparison
from attsvm.problem import AttentionProblem

__all__ = ["MOST_QUERIES", "MOST_TOKENS", "attention_maps", "run_content"]

# Larger maps are cut to what can be looked at.
MOST_QUERIES, MOST_TOKENS = 32, 48


def attention_maps(problem: AttentionProblem, weights: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
    """Attention probabilities of every query under each W.

    Parameters
    ----------
    problem : AttentionProblem
        Not a batch.
    weights : ndarray, shape (S, dx, dz)

    Returns
    -------
    ndarray, shape (S, queries, T)
        Queries in C order of (n, K); 0 where masked.

    Examples
    --------
    >>> import numpy as np
    >>> import attsvm
    >>> from attsvm.reports.trajectory import attention_maps
    >>> problem = attsvm.random_problem(n=2, T=4, d=3, seed=0)
    >>> attention_maps(problem, np.zeros((1, 3, 3)))[0, 0]
    array([0.25, 0.25, 0.25, 0.25])
    """
    return probabilities(problem, weights).reshape(len(weights), -1, problem.T)


def _number(value: float, digits: int = 5) -> float | None:
    """Few digits keep the page light; JSON has neither NaN nor infinity."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def _numbers(values: Any) -> list[float | None]:
    return [_number(float(value)) for value in values]


def _distinct(report: Report) -> list[Comparison]:
    """The run's own SVM is left out where a given solution is the same problem."""
    own, *given = report.comparisons
    same = any(c.solution.norm_name == own.solution.norm_name and c.selection_match[-1] for c in given)
    return given if same else [own, *given]


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
    maps = attention_maps(run.problem, h.W)[:, :MOST_QUERIES, :MOST_TOKENS]
    return {
        "parameterization": run.parameterization,
        "optimizer": run.options.optimizer,
        "status": str(run.status),
        "convergence": report.convergence,
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
            for c in _distinct(report)
        ],
        "selection": h.selection.reshape(len(h), -1).tolist(),
        "attention": (1000 * maps).round().astype(int).tolist(),
    }
