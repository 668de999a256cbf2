"""Pictures of reports (matplotlib)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from attsvm._lazy import needs
from attsvm.attention import probabilities

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    from attsvm.comparison.report import BatchReport, Report
    from attsvm.training.run_result import Run

__all__ = ["attention_map", "plot_attention", "plot_batch", "plot_report"]


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
