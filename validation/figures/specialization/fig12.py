"""Figures 11 to 14: two heads on a flipping spike, over the strengths of the two directions and three activations."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, mean_of, subplots
from attsvm.validation.figures.specialization.runs import NAMES, flow_cell, flow_paths

__all__ = ["FIGURE", "draw", "run"]


def _cosine(m: Any) -> float:
    a, b = np.asarray(m, dtype=float)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def run(context: Context) -> Outcome:
    """The flow at every (nu1, nu2): where the two heads end, and their cosine."""
    s = context.settings
    rows: list[tuple[Any, ...]] = []
    curves: dict[str, Any] = {"times": s["times"], "strengths": s["strengths"]}
    grid: dict[str, dict[tuple[float, float], float]] = {}
    for activation in s["activations"]:
        cells = [
            flow_cell(("flip", 2, nu1, nu2), 4, 2, s, s["step"], activation=activation)
            for nu1 in s["strengths"]
            for nu2 in s["strengths"]
        ]
        found = context.sweep(flow_paths, cells, chunk=s["trials"], name=f"{activation}")
        grid[activation], curves[activation] = {}, {}
        places = [(nu1, nu2) for nu1 in s["strengths"] for nu2 in s["strengths"]]
        for (nu1, nu2), columns in zip(places, found.columns, strict=True):
            m = np.asarray(columns["m"], dtype=float)  # (trials, times, 2, 2)
            cosines = np.array([_cosine(end) for end in m[:, -1]])
            grid[activation][nu1, nu2] = float(cosines.mean())
            curves[activation][f"{nu1:g}, {nu2:g}"] = m[0]
            split = np.abs(m[:, -1, 0, 1] - m[:, -1, 1, 1])
            rows.append((NAMES[activation], nu1, nu2, mean_of(cosines), float(np.abs(m[:, -1, :, 0]).mean()),
                         float(split.mean())))  # fmt: skip
    names = ("activation", "nu1 (constant)", "nu2 (flipping)", "cosine of the heads", "mean |m_1|", "split in m_2")
    return Outcome(
        tables=[Table(f"Two heads at tau = {s['times'][-1]:g}, L = 4", names, rows)],
        curves=curves,
        notes=_notes(grid, s["strengths"]),
    )


def _notes(grid: dict[str, dict[tuple[float, float], float]], strengths: Any) -> list[str]:
    notes = []
    for activation, values in grid.items():
        table = np.array([[values[a, b] for b in strengths] for a in strengths])
        up, down = np.diff(table, axis=0) >= -0.02, np.diff(table, axis=1) <= 0.02
        notes.append(
            f"{NAMES[activation]}: the cosine of the heads rises with nu1 in {int(up.sum())} of {up.size} steps of "
            "the grid and "
            f"falls with nu2 in {int(down.sum())} of {down.size} (the caption of Figure 11 has it rise and fall; "
            "appendix C.2 "
            "says so of specialization, which is the opposite)."
        )
    if {"softmax", "bayes"} <= set(grid):
        low, high = min(strengths), max(strengths)
        pair = grid["softmax"][high, low], grid["bayes"][high, low]
        notes.append(
            f"At the strongest constant and weakest flipping direction the cosine is {pair[0]:.2f} for softmax and "
            f"{pair[1]:.2f} "
            "for Bayes-softmax, which the paper says aligns with the spikes even there."
        )
    return notes


def draw(outcome: Outcome) -> Picture:
    """Paths in the plane of the two directions: a block of panels per activation."""
    c = outcome.curves
    kinds = [name for name in NAMES if name in c]
    size = len(c["strengths"])
    picture, axes = subplots(size, size * len(kinds), (1.7 * size * len(kinds), 1.8 * size), squeeze=False)
    for block, kind in enumerate(kinds):
        for place, (label, m) in enumerate(c[kind].items()):
            axis = axes[place // size, block * size + place % size]
            path = np.asarray(m)
            for h in range(2):
                axis.plot(path[:, h, 0], path[:, h, 1], lw=1, color=f"C{h}")
                axis.plot(*path[-1, h], "o", ms=4, color=f"C{h}")
            axis.set_title(rf"{NAMES[kind]}: $\nu$ = {label}", fontsize=6)
            axis.tick_params(labelsize=5)
            axis.axhline(0, color="0.8", lw=0.5, zorder=0)
    picture.supxlabel(r"$m$, constant direction", fontsize=8)
    picture.supylabel(r"$m$, flipping direction", fontsize=8)
    return picture


FIGURE = Figure(
    paper="specialization",
    name="fig12",
    aliases=("fig11", "fig13", "fig14"),
    title="Two heads over the strengths of the constant and the flipping direction",
    protocol="""Flipping spike, F = 2, L = 4, H = 2, eta = 1, starts of size 1e-2, nu1 and nu2 over a grid, softmax
        (Figures 11 and 12), softmax-1 (13) and Bayes-softmax (14). The paper's grid and final time are not in its
        text.""",
    full={"trials": 2, "strengths": (0.5, 2.0, 8.0), "activations": ("softmax", "softmax1", "bayes"), "samples": 3000,
          "times": tuple(10.0 * t for t in range(25)), "step": 2.0},
    quick={"trials": 1, "strengths": (0.5, 8.0), "activations": ("softmax", "bayes"), "samples": 600,
           "times": tuple(10.0 * t for t in range(9)), "step": 2.5},
    run=run,
    draw=draw,
)  # fmt: skip
