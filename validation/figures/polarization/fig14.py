"""Figures 14 to 17: sink heads and accuracy on the induction task, over positions, the auxiliary loss and t' = t."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics import polarization as pol
from attsvm.sweeps import columns_of
from attsvm.validation import models
from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, mean_share_of, subplots
from attsvm.validation.figures.polarization._protocols import legacy_seeds

__all__ = ["FIGURE", "draw", "grid_cell", "run"]


def grid_cell(
    trials: int, seed: int, kind: str, auxiliary: float, positions: str, shifted: bool, heads: int, dim: int, lr: float,
    batch: int, steps: int, symbols: int, length: int, device: str | None,
) -> dict[str, Any]:  # fmt: skip
    """Train one model per trial; accuracy, and the share of sink heads in the second layer.

    Examples
    --------
    >>> from attsvm.validation.figures.polarization.fig14 import grid_cell
    >>> found = grid_cell(1, 0, "softmax", 0.0, "add", True, 1, 8, 1e-3, batch=4, steps=1, symbols=6, length=3,
    ...                   device=None)
    >>> sorted(found)
    ['accuracy', 'share', 'top']
    """
    import torch

    torch.set_num_threads(1)
    chosen = {str(k): k for k in pol.ATTENTION_KINDS}[kind]
    task = models.InductionTask(symbols=symbols, length=length, shifted=shifted)

    def row(draw: int) -> dict[str, float]:
        model = models.train_induction(
            chosen, task=task, heads=heads, dim=dim, positions=positions, auxiliary=auxiliary, lr=lr, batch=batch,
            steps=steps, seed=draw, device=device,
        )  # fmt: skip
        report = models.induction_report(model, task, samples=300)
        return {"accuracy": report.accuracy, "share": report.sink_share, "top": float(report.scores.max())}

    return columns_of(map(row, legacy_seeds(trials, seed)))


def run(context: Context) -> Outcome:
    """The grid of lambda, positions, t' and kinds."""
    s = context.settings
    size = context.cell("heads", "dim", "lr", "batch", "steps", "symbols", "length")
    cells = [
        {"kind": kind, "auxiliary": auxiliary, "positions": positions, "shifted": shifted, **size}
        for auxiliary in (0.0, 0.2)
        for positions in s["positions"]
        for shifted in s["shifted"]
        for kind in s["kinds"]
    ]
    found = context.sweep(grid_cell, cells, chunk=1, name="grid")
    rows, table = [], {}
    for cell, columns in zip(cells, found.columns, strict=True):
        accuracy, share, top = (np.asarray(columns[name], dtype=float) for name in ("accuracy", "share", "top"))
        learned = accuracy > 0.95
        key = (cell["auxiliary"], cell["positions"], cell["shifted"], cell["kind"])
        table[key] = (accuracy, share, learned)
        rows.append((
            cell["auxiliary"], cell["positions"], "t' != t" if cell["shifted"] else "t' = t", cell["kind"],
            mean_share_of(accuracy),
            f"{int(learned.sum())} of {len(learned)}", mean_share_of(share[learned]) if learned.any() else float("nan"),
            float(top.mean()),
        ))  # fmt: skip
    columns_ = ("lambda", "positions", "task", "attention", "induction accuracy", "learned", "share of sink heads",
                "largest sink score")  # fmt: skip
    return Outcome(
        tables=[Table(f"Second layer after {s['steps']} steps, {s['trials']} seed(s)", columns_, rows)],
        curves=_curves(table),
        notes=_notes(table, s),
    )


def _curves(table: Any) -> dict[str, Any]:
    return {
        "labels": [f"{k[1]}, {'t!=' if k[2] else 't='}, {k[3]}" for k in table if k[0] == 0.0],
        "accuracy": {f"{a:g}": [v[0].tolist() for k, v in table.items() if k[0] == a] for a in (0.0, 0.2)},
        "share": {
            f"{a:g}": [(v[1][v[2]].tolist() or [float("nan")]) for k, v in table.items() if k[0] == a]
            for a in (0.0, 0.2)
        },
    }


def _notes(table: Any, s: Any) -> list[str]:
    def mean(chosen: list[Any]) -> tuple[float, int]:
        values = np.concatenate([share[learned] for _, share, learned in chosen]) if chosen else np.empty(0)
        return (float(values.mean()) if len(values) else float("nan")), len(values)

    off, on = (mean([v for k, v in table.items() if k[0] == a]) for a in (0.0, 0.2))
    notes = []
    if not off[1] or not on[1]:
        notes.append(
            f"Runs that learned the task: {off[1]} without the auxiliary loss, {on[1]} with it; nothing to compare."
        )
    else:
        notes.append(
            f"Mean share of sink heads over the runs that learned the task: {off[0]:.2f} without the auxiliary "
            f"loss ({off[1]} "
            f"runs), {on[0]:.2f} with lambda = 0.2 ({on[1]} runs). The paper: almost none at lambda = 0."
        )
    if len(set(s["shifted"])) == 2:
        same, other = (mean([v for k, v in table.items() if k[2] is flag and k[0] == 0.2]) for flag in (False, True))
        notes.append(
            f"With lambda = 0.2: {same[0]:.2f} for t' = t ({same[1]} runs), {other[0]:.2f} for t' != t ({other[1]} "
            "runs); the paper "
            "sees fewer for t' != t."
        )
    notes.append(
        f"REDUCED: width {s['dim']} (128), batch {s['batch']} (256), {s['steps']} steps (3,910), {s['heads']} "
        "heads (1, 2, 4, 8), "
        f"k = {s['length']} (10) of {s['symbols']} symbols (49), {s['trials']} seed(s) (5)."
    )
    return notes


def draw(outcome: Outcome) -> Picture:
    """Accuracy and share of sink heads by setting, for both values of lambda."""
    c = outcome.curves
    places = np.arange(len(c["labels"]))
    picture, axes = subplots(2, 1, (max(6.0, 0.55 * len(places)), 6), sharex=True)
    for offset, (value, color) in zip((-0.18, 0.18), (("0", "tab:blue"), ("0.2", "tab:orange")), strict=True):
        for axis, name in zip(axes, ("accuracy", "share"), strict=True):
            runs = [np.asarray(x, dtype=float) for x in c[name][value]]
            axis.bar(places + offset, [float(np.mean(x)) for x in runs], 0.34, color=color, alpha=0.6,
                     label=rf"$\lambda$ = {value}")  # fmt: skip
            for place, x in zip(places, runs, strict=True):
                axis.plot(np.full(len(x), place + offset), x, "k.", ms=3)
    axes[0].set(ylabel="induction accuracy", ylim=(0, 1.05), title="Figures 16 and 17")
    axes[1].set(ylabel="share of sink heads", ylim=(0, 1.05), title="Figures 14 and 15 (runs that learned the task)")
    if np.isnan([np.mean(x) for value in ("0", "0.2") for x in c["share"][value]]).all():
        axes[1].text(0.5, 0.5, "no run learned the task", ha="center", transform=axes[1].transAxes)
    axes[1].set_xticks(places, c["labels"], rotation=60, ha="right", fontsize=7)
    axes[0].legend(fontsize=8)
    return picture


FIGURE = Figure(
    paper="polarization",
    name="fig14",
    aliases=("fig15", "fig16", "fig17"),
    title="Sink heads and induction accuracy over positions, the auxiliary loss and t' = t",
    protocol="""Induction task of Figure 4; additive, concatenated and no positions; lambda = 0 (Figures 14, 16) and
        0.2 (15, 17); t' = t and t' != t; share of heads of the second layer with a sink score above 0.9 among runs
        above 95 % accuracy.""",
    full={"trials": 2, "kinds": ("softmax", "sigmoid_unnorm", "linear_unnorm"), "positions": ("add", "concat", "none"),
          "shifted": (True, False), "heads": 2, "dim": 32, "lr": 3e-3, "batch": 64, "steps": 400, "symbols": 12,
          "length": 4},
    quick={"trials": 1, "kinds": ("softmax",), "positions": ("add", "none"), "shifted": (True,), "dim": 16, "batch": 32,
           "steps": 80, "symbols": 8, "length": 3},
    run=run,
    draw=draw,
)  # fmt: skip
