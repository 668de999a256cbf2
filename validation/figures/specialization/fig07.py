"""Figure 7: greedy removal of trained heads."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, subplots
from attsvm.validation.figures.specialization.runs import ACTIVATIONS, NAMES, pruned_heads

__all__ = ["FIGURE", "draw", "run"]

_KINDS = {"one-hot": "one of four spikes", "gaussian": "isotropic Gaussian"}


def run(context: Context) -> Outcome:
    """Train eight heads, prune them, for both laws and all activations."""
    s = context.settings
    H = s["H"]
    options = {"L": 5, "H": H, "samples": s["samples"], "steps": s["steps"], "test_samples": s["test_samples"]}
    cells = [
        {"prior": (kind, 4, 10.0), "activation": activation, **options} for kind in _KINDS for activation in ACTIVATIONS
    ]
    found = context.sweep(pruned_heads, cells, chunk=s["trials"])
    rows, curves = [], []
    for cell, columns in zip(cells, found.columns, strict=True):
        kind, activation = cell["prior"][0], str(cell["activation"])
        versions = ["losses", "rescaled"] if activation == "softmax1" else ["losses"]
        for version in versions:
            losses = np.array(list(columns[version]), dtype=np.float64)  # (trials, H)
            name = NAMES[activation] + (", amplitude refitted" if version == "rescaled" else "")
            rows.append((_KINDS[str(kind)], name, *(float(x) for x in losses.mean(axis=0))))
            curves.append({"kind": kind, "name": name, "activation": activation, "losses": losses})
    table = Table(
        f"Mean loss over {s['trials']} runs after removing heads, H = {H}, L = 5, F = 4, nu = 10",
        ("theta", "activation", *(str(k) for k in range(H))),
        rows,
    )
    return Outcome([table], {"curves": curves}, _notes(curves, H))


def _notes(curves: Any, H: int) -> list[str]:
    notes = []
    spare = H - 4
    if spare > 0:
        shown = ", ".join(
            f"{c['name']} on {_KINDS[c['kind']]}: {c['losses'].mean(0)[0]:.3f} to {c['losses'].mean(0)[spare]:.3f}"
            for c in curves
        )
        notes.append(
            f"H - F = {spare} heads removed: {shown}. The paper: about H - F heads can go without loss, for both laws."
        )
    last = ", ".join(f"{c['name']} {c['losses'].mean(0)[-1]:.2f}" for c in curves if c["kind"] == "one-hot")
    notes.append(f"One head left, one-hot spikes: {last}.")
    return notes


def draw(outcome: Outcome) -> Picture:
    """Loss against the number of removed heads."""
    picture, axes = subplots(1, 2, (10.5, 4.2))
    for axis, kind in zip(axes, _KINDS, strict=True):
        for c in (c for c in outcome.curves["curves"] if c["kind"] == kind):
            losses = np.asarray(c["losses"], dtype=float)
            colour = f"C{ACTIVATIONS.index(c['activation'])}"
            removed = np.arange(losses.shape[1])
            style = ":" if "refitted" in c["name"] else "-"
            axis.plot(removed, losses.mean(axis=0), "o" + style, color=colour, label=c["name"], ms=4)
            axis.fill_between(removed, losses.min(axis=0), losses.max(axis=0), color=colour, alpha=0.15)
        axis.axvline(losses.shape[1] - 4, color="0.6", lw=0.8, ls="--")
        axis.set(title=_KINDS[kind], xlabel="removed heads", ylabel="loss", yscale="log")
    axes[0].legend(fontsize=8)
    return picture


FIGURE = Figure(
    paper="specialization",
    name="fig7",
    title="Greedy pruning of trained heads",
    protocol="""H = 8, L = 5, F = 4, nu = 10, one of four spikes and isotropic Gaussian. The head whose removal
        hurts least goes first; the output is the mean over the kept heads (Bayes-softmax normalizes
        itself), and for softmax-1 also with its amplitude fitted again. Chosen: training as in Figure 5;
        the paper has 5 runs.""",
    full={"trials": 3, "H": 8, "samples": 8000, "steps": 600, "test_samples": 40_000},
    quick={"trials": 1, "H": 6, "samples": 600, "steps": 100, "test_samples": 2000},
    run=run,
    draw=draw,
)
