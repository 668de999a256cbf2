"""Numbers that compare matrices and selections; all broadcast over leading axes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from attsvm._lazy import needs
from attsvm.attention import probabilities
from attsvm.optimality import Convergence, convergence_of
from attsvm.problem import AttentionProblem, is_batch_of_problems
from attsvm.records import Table
from attsvm.selection import Selection, SelectionLike
from attsvm.selection_rows import selection_rows
from attsvm.solution import Solution, SolutionBatch, unit_matrices
from attsvm.solvers import get_norm
from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.certify.ranks import count_above
from attsvm.svm import att_svm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    from attsvm.training.run_result import Run


def correlation(A: npt.ArrayLike, B: npt.ArrayLike) -> FloatArray:
    """``<A, B> / (|A|_F |B|_F)`` over the last two axes; NaN when either is zero or missing.

    Examples
    --------
    >>> import numpy as np
    >>> float(correlation(np.eye(2), [[1.0, 0.0], [0.0, 0.0]]).round(4))
    0.7071
    """
    return np.asarray((unit_matrices(A) * unit_matrices(B)).sum(axis=(-2, -1)))


def misalignment(A: npt.ArrayLike, B: npt.ArrayLike) -> FloatArray:
    """``1 - correlation`` without cancellation: half the squared distance of the unit matrices."""
    return np.asarray(0.5 * np.square(unit_matrices(A) - unit_matrices(B)).sum(axis=(-2, -1)))


def angle(misalignment: npt.ArrayLike) -> FloatArray:
    """The angle in degrees of two directions with ``1 - correlation = misalignment``, exact also where it is tiny.

    Examples
    --------
    >>> angle([0.0, 0.0002, 1.0]).round(2).tolist()
    [0.0, 1.15, 90.0]
    """
    half = np.sqrt(np.clip(np.asarray(misalignment, dtype=np.float64) / 2, 0.0, 1.0))
    return np.asarray(np.degrees(2 * np.arcsin(half)))


def numerical_rank(W: npt.ArrayLike, tolerance: float = 1e-3) -> npt.NDArray[np.int64]:
    """Singular values above ``tolerance`` times the largest.

    A trained W carries directions that decay slowly, hence the coarse default.

    Examples
    --------
    >>> import numpy as np
    >>> int(numerical_rank(np.diag([1.0, 0.5, 1e-6])))
    2
    """
    s = np.linalg.svd(np.asarray(W, dtype=np.float64), compute_uv=False)
    return count_above(s, tolerance)


def effective_rank(W: npt.ArrayLike) -> FloatArray:
    """Exponential of the entropy of the singular values divided by their sum.

    Examples
    --------
    >>> import numpy as np
    >>> float(effective_rank(np.eye(3)).round(6)), float(effective_rank(np.ones((3, 3))).round(6))
    (3.0, 1.0)
    """
    s = np.linalg.svd(np.asarray(W, dtype=np.float64), compute_uv=False)
    total = s.sum(axis=-1, keepdims=True)
    p = s / np.where(total > 0, total, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(p > 0, p * np.log(p), 0.0).sum(axis=-1)
    return np.asarray(np.where(total[..., 0] > 0, np.exp(entropy), 0.0))


def reached_margin(
    problem: AttentionProblem, W: npt.ArrayLike, selection: SelectionLike, norm: str = "frobenius"
) -> FloatArray:
    """Smallest margin of ``W / ||W||`` for a selection: at most ``1 / ||W_SVM||``, and equal to it at the optimum.

    Parameters
    ----------
    problem : AttentionProblem
        A single problem.
    W : array_like, shape (dx, dz) or (S, dx, dz)
    selection : Selection or array_like of int
    norm : str

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=3, T=4, d=5, seed=0)
    >>> sol = attsvm.att_svm(problem)
    >>> bool(abs(reached_margin(problem, 7 * sol.W, None) - sol.margin) < 1e-8)
    True
    """
    rows = selection_rows(problem, selection).margin_problem
    matrices = np.asarray(W, dtype=np.float64).reshape(-1, *rows.shape)
    kind = get_norm(norm)
    sizes = np.array([kind(M) for M in matrices])
    smallest = np.array([rows.margins(M).min() for M in matrices])
    with np.errstate(divide="ignore", invalid="ignore"):
        values = smallest / np.where(sizes > 0, sizes, np.nan)
    return np.asarray(values.reshape(np.shape(W)[:-2]))


def fitted_rate(steps: npt.ArrayLike, error: npt.ArrayLike) -> float:
    """Exponent r of ``error ~ steps^-r``, least squares in logs over the last decade of steps.

    NaN when fewer than three positive errors are there.

    Examples
    --------
    >>> import numpy as np
    >>> k = np.array([0, 10, 30, 100, 300, 1000])
    >>> round(fitted_rate(k, 5.0 / np.maximum(k, 1) ** 2), 6)
    2.0
    """
    k, e = np.asarray(steps, dtype=np.float64), np.asarray(error, dtype=np.float64)
    use = (k > 0) & (k >= k.max() / 10) & (e > 0) & np.isfinite(e)
    if use.sum() < 3:
        return float("nan")
    return float(-np.polyfit(np.log(k[use]), np.log(e[use]), 1)[0])


def _axes(count: int, width: float) -> Sequence[Axes]:
    with needs("plotting a report"):
        import matplotlib.pyplot as plt

    axes = plt.subplots(1, count, figsize=(width * count, 3.8), layout="constrained", squeeze=False)[1]
    return list(axes[0])


def attention_map(run: Run) -> np.ndarray:
    """Attention probabilities at the end of a single run, one row per query, shape (n*K, T)."""
    return probabilities(run.problem, run.W).reshape(-1, run.problem.T)


def plot_attention(run: Run, axis: Axes | None = None) -> Axes:
    """Heat map of the final attention; a dot marks the token of highest score."""
    from matplotlib.ticker import MaxNLocator

    axis = _axes(1, 4.5)[0] if axis is None else axis
    image = axis.imshow(attention_map(run), vmin=0, vmax=1, cmap="Blues", aspect="auto")
    best = run.problem.optimal_tokens().indices.reshape(-1)
    axis.plot(best, np.arange(len(best)), "o", color="tab:red", ms=4, label="highest score")
    axis.set(xlabel="token", ylabel="query", title="attention at the end")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axis.legend(fontsize=7, loc="upper right")
    axis.figure.colorbar(image, ax=axis)
    return axis


def plot_report(report: Report, axes: Sequence[Axes] | None = None) -> Figure | SubFigure:
    """1 - correlation with every solution, norm of W and probability off the selected token, and the attention map."""
    first, second, third = _axes(3, 4.5) if axes is None else axes
    steps = np.maximum(report.steps, 0.8)  # step 0 has a place on a logarithmic axis
    for c in report.comparisons:
        if c.solution.status.has_solution:
            first.loglog(steps, np.maximum(c.misalignment, 1e-16), marker=".", label=c.label)
    first.set(xlabel="step", ylabel="1 - correlation", title=f"{report.run.parameterization}: {report.convergence}")
    first.legend(fontsize=7)
    h = report.run.history
    second.semilogx(steps, h.norm, color="tab:blue", label=r"$\|W\|_F$")
    second.set(xlabel="step", ylabel=r"$\|W\|_F$")
    second.yaxis.label.set_color("tab:blue")
    twin = second.twinx()
    twin.semilogx(steps, h.log_rest / np.log(10), color="tab:orange")
    twin.set_ylabel(r"$\log_{10}$ of probability off the selected tokens", color="tab:orange")
    second.set_title("norm and saturation")
    plot_attention(report.run, third)
    return first.figure


def plot_batch(report: BatchReport, axes: Axes | None = None) -> Figure | SubFigure:
    """Median and 10 to 90 % band of 1 - correlation along training, one colour per solution."""
    axis = _axes(1, 5.5)[0] if axes is None else axes
    steps = np.maximum(report.run.history.steps, 0.8)
    for label in report.labels:
        error = report.misalignment(label)
        solved = np.isfinite(error).all(axis=0)
        if not solved.any():
            continue
        low, middle, high = np.quantile(np.maximum(error[:, solved], 1e-16), [0.1, 0.5, 0.9], axis=1)
        (line,) = axis.loglog(steps, middle, label=label)
        axis.fill_between(steps, low, high, color=line.get_color(), alpha=0.2)
    counts = ", ".join(f"{name} {count}" for name, count in report.convergence_counts().items())
    axis.set(
        xlabel="step", ylabel="1 - correlation", title=f"{report.run.parameterization}, {len(report)} runs: {counts}"
    )
    axis.legend(fontsize=8)
    return axis.figure


def svm_name(formulation: str, norm: str) -> str:
    """Name of a solved problem; a star says nuclear norm.

    Examples
    --------
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
        """Draw 1 - correlation, norm and attention; see `attsvm.comparison.plot_report`."""
        from attsvm.comparison import plot_report

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
        from attsvm.training.run_result import Run
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
        return compare_batch(run, *solutions, solver=solver)
    own = att_svm(run.trained_problem, run.selection, norm=run.norm or "frobenius", solver=solver)
    return build_report(run, own, *solutions)


def build_report(run: Run, own: Solution, *solutions: object, kind: Convergence | None = None) -> Report:
    """A report from solved pieces; the class of convergence is worked out if not given."""
    from attsvm.theory.diagnosis import why_uncovered

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
        from attsvm.comparison import plot_batch

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
    problems = run.trained_problem
    if not is_batch_of_problems(problems):
        raise ValueError("compare_batch takes a run of a batch of problems, got one of a single problem")
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
