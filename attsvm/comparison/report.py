"""How well theory predicts a run: correlations, ranks, margins and the class of convergence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attsvm.comparison.metrics import (
    correlation,
    effective_rank,
    fitted_rate,
    misalignment,
    numerical_rank,
    reached_margin,
)
from attsvm.optimality import Convergence, convergence_of
from attsvm.selection import Selection
from attsvm.solution import Solution
from attsvm.svm import att_svm

if TYPE_CHECKING:
    from attsvm.training.run import Run

__all__ = ["Comparison", "Report", "compare"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Comparison:
    """One run against one solution; S snapshots.

    Attributes
    ----------
    label : str
    solution : Solution
    correlation : ndarray, shape (S,)
        NaN when the solution is infeasible.
    misalignment : ndarray, shape (S,)
        ``1 - correlation``, computed without cancellation.
    margin : ndarray, shape (S,)
        Smallest margin of the normalized iterate for the solution's selection, relative to the optimal margin.
    selection_match : ndarray of bool, shape (S,)
    rate : float
        Exponent of ``1 - correlation ~ steps^-rate`` over the last decade of steps.
    """

    label: str
    solution: Solution
    correlation: FloatArray
    misalignment: FloatArray
    margin: FloatArray
    selection_match: npt.NDArray[np.bool_]
    rate: float


@dataclass(frozen=True, eq=False)
class Report:
    """A run and what theory said about it.

    Attributes
    ----------
    run : Run
    convergence : Convergence
        "Global", "Local", "Not local" or "Undecided",
        by local optimality of the tokens selected at the end, with the support of the run's own norm.
    rank, effective_rank : int, float
        Of W at the end.
    comparisons : tuple of Comparison
        The first is with the SVM of the run's own selection and norm.
    """

    run: Run
    convergence: Convergence
    rank: int
    effective_rank: float
    comparisons: tuple[Comparison, ...]

    @property
    def steps(self) -> npt.NDArray[np.int64]:
        """Steps of the snapshots."""
        return self.run.history.steps

    def records(self) -> list[dict[str, Any]]:
        """One flat record per solution and snapshot, ready for a DataFrame."""
        h = self.run.history
        return [
            {
                "solution": c.label,
                "norm": c.solution.norm_name,
                "step": int(step),
                "correlation": float(c.correlation[s]),
                "misalignment": float(c.misalignment[s]),
                "margin": float(c.margin[s]),
                "selection_match": bool(c.selection_match[s]),
                "loss": float(h.loss[s]),
                "W_norm": float(h.norm[s]),
                "max_probability": float(h.max_probability[s]),
            }
            for c in self.comparisons
            for s, step in enumerate(h.steps)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Final numbers as plain data."""
        h = self.run.history
        return {
            "parameterization": self.run.parameterization,
            "steps": int(self.run.steps),
            "status": str(self.run.status),
            "convergence": str(self.convergence),
            "selection": self.run.selection.indices.tolist(),
            "W_norm": float(h.norm[-1]),
            "loss": float(h.loss[-1]),
            "log_rest": float(h.log_rest[-1]),
            "rank": self.rank,
            "effective_rank": self.effective_rank,
            "solutions": [
                {
                    "label": c.label,
                    "norm": c.solution.norm_name,
                    "status": str(c.solution.status),
                    "correlation": float(c.correlation[-1]),
                    "misalignment": float(c.misalignment[-1]),
                    "margin": float(c.margin[-1]),
                    "selection_match": bool(c.selection_match[-1]),
                    "rate": c.rate,
                    "gap": c.solution.certificate.gap,
                }
                for c in self.comparisons
            ],
        }

    def plot(self, axes: Any = None) -> Any:
        """Draw 1 - correlation, norm and attention; see `attsvm.comparison.plots.plot_report`."""
        from attsvm.comparison.plots import plot_report

        return plot_report(self, axes)

    def __str__(self) -> str:
        from attsvm.comparison.tables import render, report_table

        return render(report_table([self]))


def _label(solution: Solution, own: bool) -> str:
    star = "*" if solution.norm_name == "nuclear" else ""
    name = f"{solution.formulation}{star}"
    if solution.norm_name not in ("frobenius", "nuclear"):
        name = f"{name} ({solution.norm_name})"
    return f"{name}, own tokens" if own else name


def _compare_one(run: Run, solution: Solution, own: bool) -> Comparison:
    h = run.history
    S = len(h)
    label = _label(solution, own)
    chosen = solution.selection
    is_selection = isinstance(chosen, Selection)
    match = np.zeros(S, dtype=bool)
    if is_selection:
        match = (h.selection == np.asarray(chosen)).reshape(S, -1).all(axis=1)
    if not solution.status.has_solution:
        nothing = np.full(S, np.nan)
        return Comparison(label, solution, nothing, nothing, nothing, match, float("nan"))
    margin = np.full(S, np.nan)
    if is_selection and solution.margin > 0:
        margin = reached_margin(run.problem, h.W, chosen, solution.norm_name) / solution.margin
    error = misalignment(h.W, solution.W)
    return Comparison(label, solution, correlation(h.W, solution.W), error, margin, match, fitted_rate(h.steps, error))


def compare(run: Run, *solutions: Any, solver: str = "auto") -> Any:
    """Compare a run with SVM solutions; the SVM of the run's own tokens and norm always comes first.

    Parameters
    ----------
    run : Run
        From `train`; a batch gives a `BatchReport`.
    *solutions : Solution (or SolutionBatch for a batch)
        Any formulation and norm, solved for the same problem.
    solver : str
        For the SVM of the run's own selection.

    Returns
    -------
    Report or BatchReport

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=3, T=4, d=6, seed=0)
    >>> report = attsvm.compare(attsvm.train(problem, steps=1000), attsvm.att_svm(problem))
    >>> str(report.convergence), bool(report.comparisons[1].correlation[-1] > 0.99)
    ('Global', True)
    """
    if run.batch is not None:
        from attsvm.comparison.batch import compare_batch

        return compare_batch(run, *solutions, solver=solver)
    norm = run.norm or "frobenius"
    own = att_svm(run.problem, run.selection, norm=norm, solver=solver)
    return build_report(run, own, solutions)


def build_report(run: Run, own: Solution, solutions: Any, kind: Convergence | None = None) -> Report:
    """A report from solved pieces; the class of convergence is worked out if not given."""
    for solution in solutions:
        if not isinstance(solution, Solution):
            raise ValueError(f"compare takes Solution objects, got {type(solution).__name__}")
        if solution.rows.margin_problem.shape != run.W.shape:
            raise ValueError(
                f"a solution has W of shape {solution.rows.margin_problem.shape}, "
                f"but the run's W has shape {run.W.shape}"
            )
    comparisons = (_compare_one(run, own, True), *(_compare_one(run, s, False) for s in solutions))
    return Report(
        run,
        kind or convergence_of(own),
        int(numerical_rank(run.W)),
        float(effective_rank(run.W)),
        comparisons,
    )
