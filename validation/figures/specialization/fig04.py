"""Figures 4, 19 and 20: eight heads and three features of decreasing variance."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, subplots
from attsvm.validation.figures.specialization.fig03 import sign_patterns
from attsvm.validation.figures.specialization.runs import NAMES, flow_cell, flow_paths

__all__ = ["FIGURE", "draw", "run"]


def run(context: Context) -> Outcome:
    """The paper's variances with softmax and Bayes-softmax, and closer variances with softmax."""
    s = context.settings
    settings = (("softmax", 20.0, 1.0), ("bayes", 20.0, 1.0), ("softmax", 20.0, 8.0))
    cells = [flow_cell(("gaussian", 3, nu1, nu2), 5, 8, s, s["step"], activation=a) for a, nu1, nu2 in settings]
    found = context.sweep(flow_paths, cells, chunk=s["trials"])
    rows: list[tuple[Any, ...]] = []
    paths = []
    for (activation, nu1, nu2), columns in zip(settings, found.columns, strict=True):
        m, rest = columns["m"], columns["orthogonal"]
        paths.append({"activation": activation, "nu2": nu2, "m": m[0]})
        for trial, one in enumerate(m):
            end = one[-1]
            idle = int((np.linalg.norm(end, axis=1) < 0.4).sum())
            share = np.abs(end) / np.maximum(np.linalg.norm(end, axis=1, keepdims=True), 1e-9)
            single = int(((share.max(axis=1) > 0.95) & (np.linalg.norm(end, axis=1) >= 0.4)).sum())
            rows.append((
                NAMES[activation], f"{nu1:g}, {(nu1 + nu2) / 2:g}, {nu2:g}", trial,
                *(float(np.abs(end[:, f]).max()) for f in range(3)), sign_patterns(end, 2), sign_patterns(end, 3), idle,
                single, float(rest[trial, -1]),
            ))  # fmt: skip
    table = Table(
        f"H = 8, F = 3, L = 5 at tau = {s['times'][-1]:g}",
        ("activation", "variances", "run", "max |m_1|", "max |m_2|", "max |m_3|", "sign patterns in f = 1, 2",
         "in f = 1, 2, 3", "idle heads", "heads on one feature", "tr r r^T left"),
        rows,
    )  # fmt: skip
    paper = [row for row in rows if row[0] == "softmax" and row[1].endswith(" 1")]
    bayes = [row for row in rows if row[0] != "softmax"]
    reached = max(row[7] for row in paper)
    notes = [
        f"Softmax, variances 20, 10.5, 1: at most {reached} of 8 sign patterns of all three features by tau = "
        f"{s['times'][-1]:g}; the largest "
        f"alignment with the third feature is {max(row[5] for row in paper):.3f}. The paper shows all 8 combinations.",
        f"Bayes-softmax: {min(row[9] for row in bayes)} to {max(row[9] for row in bayes)} of 8 heads on a "
        "single feature, "
        f"{min(row[8] for row in bayes)} to {max(row[8] for row in bayes)} idle. The paper shows pairs of "
        "heads on single features.",
    ]
    return Outcome([table], {"paths": paths, "times": s["times"]}, notes)


def draw(outcome: Outcome) -> Picture:
    """Alignments of the eight heads with the three features against time."""
    paths: list[Any] = list(outcome.curves["paths"])
    times = outcome.curves["times"]
    picture, axes = subplots(len(paths), 3, (11, 2.9 * len(paths)), sharex=True)
    for row, path in zip(axes, paths, strict=True):
        m = np.asarray(path["m"])
        for f, axis in enumerate(row):
            for h in range(m.shape[1]):
                axis.plot(times, m[:, h, f], lw=1, color=f"C{h}")
            axis.set(title=f"{NAMES[path['activation']]}, variances 20 to {path['nu2']:g}: feature {f + 1}", ylabel="m")
            axis.title.set_fontsize(9)
    for axis in axes[-1]:
        axis.set_xlabel(r"$\tau$")
    return picture


FIGURE = Figure(
    paper="specialization",
    name="fig4",
    aliases=("fig19", "fig20"),
    title="Hierarchical specialization of eight heads on three features: what is found",
    protocol="""Gaussian theta with variances 20, 10.5, 1, F = 3, H = 8, L = 5, eta = 1, softmax and Bayes-softmax;
        besides, variances 20, 14, 8 with softmax. Starts of size D^-1/2 with D = 10^4; Runge-Kutta steps of
        1 on 10,000 mirrored samples. The paper does not say its final time.""",
    full={"trials": 2, "times": tuple(10.0 * t for t in range(81)), "samples": 10_000, "step": 1.0},
    quick={"trials": 1, "times": tuple(20.0 * t for t in range(8)), "samples": 600},
    run=run,
    draw=draw,
)
