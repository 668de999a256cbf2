"""Figure 7: W aligns with the Frobenius-norm and (K, Q) with the nuclear-norm solution for the tokens each selects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import attsvm
from attsvm.comparison.metrics import correlation, misalignment
from attsvm.optimality import convergence_of
from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, mean_of, share_of, subplots
from attsvm.validation.figures.svm.convergence import NORM_OF, PUBLISHED_KQ

if TYPE_CHECKING:
    from attsvm.training.options import Arithmetic
    from attsvm.training.run import Run

__all__ = ["FIGURE", "alignment", "draw", "run"]

_LABELS = {"W": "W", "KQ": "(K, Q)"}
_ARITHMETIC: dict[Arithmetic, str] = {"naive": "published", "log": "exact"}


def alignment(
    trials: int, seed: int, *, n: int, T: int, d: int, steps: int, every: int, device: str | None = None
) -> dict[str, Any]:
    """Train W and (K, Q) in both arithmetics on the same problems from the same start.

    Columns are named ``"<parameterization> <arithmetic> <what>"``: the mean largest probability and the correlations
    with both solutions along training, and 1 - corr and optimality at the end, all for the tokens that the run ends at.

    Examples
    --------
    >>> from attsvm.validation.figures.svm.fig07 import alignment
    >>> found = alignment(2, 0, n=2, T=3, d=4, steps=100, every=50)
    >>> found["W log frobenius"].shape, found["KQ naive max_probability"].shape
    ((2, 3), (2, 3))
    """
    problems = attsvm.random_problem(n=n, T=T, d=d, batch=trials, seed=seed)
    columns: dict[str, Any] = {}
    for p in _LABELS:
        for a in _ARITHMETIC:
            run = attsvm.train(
                problems, p, steps=steps, lr=0.1, seed=seed + 1, arithmetic=a, device=device,
                snapshots=list(range(0, steps + 1, every)), **(PUBLISHED_KQ if p == "KQ" else {}),
            )  # fmt: skip
            columns |= {f"{p} {a} {name}": values for name, values in _followed(problems, run).items()}
    return columns


def _followed(problems: attsvm.ProblemBatch, run: Run) -> dict[str, Any]:
    """Columns of one batched run."""
    columns: dict[str, Any] = {"max_probability": run.history.max_probability.T}
    for norm in ("frobenius", "nuclear"):
        solutions = attsvm.att_svm(problems, run.selection, norm=norm)
        columns[norm] = correlation(run.history.W, solutions.W).T
        columns[f"{norm}_final"] = misalignment(run.W, solutions.W)
        if norm == NORM_OF[run.parameterization]:  # Definition 2 in the norm of the parameterization
            columns["is_local"] = np.array([kind.is_local for kind in convergence_of(solutions)])
    columns["is_global"] = (run.selection.indices == problems.optimal_tokens().indices).all(axis=-1)
    return columns


def run(context: Context) -> Outcome:
    """Train W and (K, Q) in both arithmetics."""
    s = context.settings
    cell = context.cell("n", "T", "d", "steps", "every")
    columns = context.sweep(alignment, [cell], chunk=s["chunk"], name="alignment").columns[0]
    steps = np.arange(0, s["steps"] + 1, s["every"])
    marks = [k for k in s["marks"] if k <= s["steps"]]
    rows, ends = [], []
    curves: dict[str, Any] = {"steps": steps, "shown": s["shown"]}
    for p, label in _LABELS.items():
        for a, name in _ARITHMETIC.items():
            largest, fro, nuclear = (
                columns[f"{p} {a} {c}"].astype(float) for c in ("max_probability", "frobenius", "nuclear")
            )
            for k in marks:
                at = int(np.searchsorted(steps, k))
                rows.append((label, name, k, mean_of(1 - largest[:, at]), mean_of(fro[:, at]), mean_of(nuclear[:, at])))
            own = columns[f"{p} {a} {NORM_OF[p]}_final"].astype(float)
            ends.append((
                label, name, NORM_OF[p], mean_of(own), float(np.nanmedian(own)), float(np.nanmax(own)),
                share_of(columns[f"{p} {a} is_global"]), share_of(columns[f"{p} {a} is_local"]),
            ))  # fmt: skip
            curves[f"{p} {a}"] = {
                "max_probability": largest.mean(axis=0),
                "frobenius": np.nanmean(fro, axis=0),
                "nuclear": np.nanmean(nuclear, axis=0),
            }
    return Outcome(
        tables=[
            Table("Means over the trials", ("trained", "arithmetic", "steps", "1 - (a), max softmax",
                  "(b) corr with W_mm,alpha", "(c) corr with W*_mm,alpha"), rows),
            Table(f"1 - corr after {s['steps']} steps with the solution in the own norm, for each run's tokens",
                  ("trained", "arithmetic", "norm", "mean", "median", "max", "optimal tokens", "locally optimal"),
                  ends),
        ],
        curves=curves,
        notes=["alpha are the tokens that the run itself selects at its last step; local optimality is judged by the "
               "support in the own norm.",
               "Exact gradients (log domain) and the published arithmetic part once probabilities round to 1."],
    )  # fmt: skip


def draw(outcome: Outcome) -> Picture:
    """The three panels: solid for the published arithmetic, dashed for exact gradients."""
    curves = outcome.curves
    steps = np.asarray(curves["steps"])
    shown = steps <= curves["shown"]
    picture, axes = subplots(1, 3, (13, 3.8))
    panels = {
        "max_probability": "(a) mean largest softmax probability",
        "frobenius": r"(b) corr with $W^{mm}_\alpha$",
        "nuclear": r"(c) corr with $W^{mm}_{\star,\alpha}$",
    }
    for axis, (column, title) in zip(axes, panels.items(), strict=True):
        for p, label in _LABELS.items():
            for a, style in zip(_ARITHMETIC, ("-", "--"), strict=True):
                values = np.asarray(curves[f"{p} {a}"][column], dtype=float)[shown]
                colour = "tab:blue" if p == "W" else "tab:red"
                axis.plot(steps[shown], values, style, color=colour, label=f"{label}, {_ARITHMETIC[a]}")
        axis.set(title=title, xlabel="iterations")
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    return picture


FIGURE = Figure(
    paper="svm",
    name="fig7",
    title="Bias of W towards the Frobenius-norm and of (K, Q) towards the nuclear-norm solution, along training",
    protocol="""n = 6, T = 8, d = m = 10, tokens, queries and v uniform on the sphere, labels +-1 fair, 100 trials,
        logistic loss, normalized gradient descent, lr 0.1, 2,000 steps of which 1,000 are shown, initial weights
        uniform(+-1/sqrt(d)); (K, Q) with each factor normalized and a ridge of 2.2e-16. Published arithmetic,
        and exact gradients on the same problems from the same start.""",
    full={"trials": 100, "n": 6, "T": 8, "d": 10, "steps": 2000, "shown": 1000, "every": 20,
          "marks": (200, 500, 1000, 2000), "chunk": 25},
    quick={"trials": 20, "steps": 1000, "marks": (200, 500, 1000), "chunk": 20},
    run=run,
    draw=draw,
)  # fmt: skip
