"""How well theory predicts a run: correlations, ranks, margins and the class of convergence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from attsvm.comparison.metrics import (
    angle,
    correlation,
    effective_rank,
    fitted_rate,
    misalignment,
    numerical_rank,
    reached_margin,
)
from attsvm.comparison.tables import report_table, svm_name
from attsvm.optimality import Convergence, convergence_of
from attsvm.selection import Selection
from attsvm.solution import Solution, SolutionBatch
from attsvm.svm import att_svm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    from attsvm.comparison.batch import BatchReport
    from attsvm.training.run import Run

__all__ = ["Comparison", "Report", "compare"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
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

    @property
    def angle(self) -> FloatArray:
        """Degrees between the iterate and the solution, shape (S,); NaN when the solution is infeasible."""
        return angle(self.misalignment)

    def at(self, snapshot: int) -> dict[str, Any]:
        """The numbers of one snapshot as plain data."""
        names = ("correlation", "misalignment", "angle", "margin", "selection_match")
        return {name: getattr(self, name)[snapshot].item() for name in names}

    def __repr__(self) -> str:
        if not self.solution.status.has_solution:
            return f"Comparison({self.label!r}, {self.solution.status})"
        return f"Comparison({self.label!r}, {self.angle[-1]:.2g} degrees)"


@dataclass(frozen=True, eq=False, repr=False)
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
    uncovered : str
        Why no theorem is about a run with this head; empty where one is.
    """

    run: Run
    convergence: Convergence
    rank: int
    effective_rank: float
    comparisons: tuple[Comparison, ...]
    uncovered: str = ""

    @property
    def steps(self) -> npt.NDArray[np.int64]:
        """Steps of the snapshots."""
        return self.run.history.steps

    def records(self) -> list[dict[str, Any]]:
        """One flat record per solution and snapshot, ready for a DataFrame."""
        h = self.run.history
        return [
            {"solution": c.label, "norm": c.solution.norm_name, "step": int(step), **c.at(s), "loss": float(h.loss[s]),
             "W_norm": float(h.norm[s]), "max_probability": float(h.max_probability[s])}
            for c in self.comparisons
            for s, step in enumerate(h.steps)
        ]  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Final numbers as plain data."""
        h = self.run.history
        return {
            "parameterization": self.run.parameterization,
            "steps": int(self.run.steps),
            "status": str(self.run.status),
            "convergence": str(self.convergence),
            "uncovered": self.uncovered,
            "selection": self.run.selection.indices.tolist(),
            "W_norm": float(h.norm[-1]),
            "loss": float(h.loss[-1]),
            "log_rest": float(h.log_rest[-1]),
            "rank": self.rank,
            "effective_rank": self.effective_rank,
            "solutions": [
                {"label": c.label, "norm": c.solution.norm_name, "status": str(c.solution.status), **c.at(-1),
                 "rate": c.rate, "gap": c.solution.certificate.gap}
                for c in self.comparisons
            ],
        }  # fmt: skip

    def plot(self, axes: Sequence[Axes] | None = None) -> Figure | SubFigure:
        """Draw 1 - correlation, norm and attention; see `attsvm.comparison.plots.plot_report`."""
        from attsvm.comparison.plots import plot_report

        return plot_report(self, axes)

    @property
    def shown(self) -> tuple[Comparison, ...]:
        """The comparisons without the run's own SVM where a given solution is the same problem."""
        own, *given = self.comparisons
        same = any(c.solution.norm_name == own.solution.norm_name and c.selection_match[-1] for c in given)
        return tuple(given) if same else self.comparisons

    def __repr__(self) -> str:
        run = self.run
        found = ", ".join(map(repr, self.shown))
        ends = f"{self.convergence} (no theorem)" if self.uncovered else self.convergence
        return f"Report({run.parameterization}, {int(run.steps)} steps, {ends}, rank {self.rank}, {found})"

    def __str__(self) -> str:
        return "\n".join(
            [str(report_table([self])), *([f"No theorem applies: {self.uncovered}."] if self.uncovered else [])]
        )

    def _repr_html_(self) -> str:
        return report_table([self]).html()


def _label(solution: Solution, own: bool) -> str:
    name = svm_name(solution.formulation, solution.norm_name)
    if solution.norm_name not in ("frobenius", "nuclear"):
        name = f"{name} ({solution.norm_name})"
    return f"{name}, own tokens" if own else name


def _compare_one(run: Run, solution: Solution, own: bool) -> Comparison:
    h = run.history
    S = len(h)
    label = _label(solution, own)
    chosen = solution.selection
    match = np.zeros(S, dtype=bool)
    if isinstance(chosen, Selection):
        match = (h.selection == np.asarray(chosen)).reshape(S, -1).all(axis=1)
    if not solution.status.has_solution:
        nothing = np.full(S, np.nan)
        return Comparison(label, solution, nothing, nothing, nothing, match, float("nan"))
    margin = np.full(S, np.nan)
    if isinstance(chosen, Selection) and solution.margin > 0:
        margin = reached_margin(run.problem, h.W, chosen, solution.norm_name) / solution.margin
    error = misalignment(h.W, solution.W)
    return Comparison(label, solution, correlation(h.W, solution.W), error, margin, match, fitted_rate(h.steps, error))


def _is_run(given: object) -> bool:
    try:
        from attsvm.training.run import Run
    except ModuleNotFoundError:  # without torch there are no runs
        return False
    return isinstance(given, Run)


@overload
def compare(run: Run, *solutions: Solution, solver: str = "auto") -> Report: ...
@overload
def compare(run: Run, first: SolutionBatch, /, *rest: SolutionBatch, solver: str = "auto") -> BatchReport: ...
def compare(run: Run, *solutions: Solution | SolutionBatch, solver: str = "auto") -> Report | BatchReport:
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

    Raises
    ------
    TypeError
        If the first argument is not a run or another one not a solution; the message names what was given.

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=3, T=4, d=6, seed=0)
    >>> report = attsvm.compare(attsvm.train(problem, steps=1000), attsvm.att_svm(problem))
    >>> str(report.convergence), bool(report.comparisons[1].correlation[-1] > 0.99)
    ('Global', True)
    """
    if not _is_run(run):
        raise TypeError(f"compare takes a Run first, as train returns it, got {type(run).__name__}")
    if run.batch is not None:
        from attsvm.comparison.batch import compare_batch

        return compare_batch(run, *solutions, solver=solver)
    own = att_svm(run.trained_problem, run.selection, norm=run.norm or "frobenius", solver=solver)
    return build_report(run, own, *solutions)


def build_report(run: Run, own: Solution, *solutions: object, kind: Convergence | None = None) -> Report:
    """A report from solved pieces; the class of convergence is worked out if not given."""
    from attsvm.theory.prediction import why_uncovered

    comparisons = [_compare_one(run, own, True)]
    for solution in solutions:
        if not isinstance(solution, Solution):
            raise TypeError(f"compare takes Solution objects after the run, got {type(solution).__name__}")
        if solution.rows.margin_problem.shape != run.W.shape:
            raise ValueError(
                f"a solution has W of shape {solution.rows.margin_problem.shape}, "
                f"but the run's W has shape {run.W.shape}"
            )
        comparisons.append(_compare_one(run, solution, False))
    rank, effective = int(numerical_rank(run.W)), float(effective_rank(run.W))
    uncovered = why_uncovered(run.trained_problem, run.selection)
    return Report(run, kind or convergence_of(own), rank, effective, tuple(comparisons), uncovered)
