"""Figures 2 and 15: heads first move along the constant spike, then split along the flipping one."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, subplots
from attsvm.validation.figures.specialization.runs import flow_cell, flow_paths

__all__ = ["FIGURE", "draw", "run"]


def run(context: Context) -> Outcome:
    """The flow for several numbers of heads, one start each per trial."""
    from attsvm.dynamics.specialization import crossing_time

    s = context.settings
    cells = [flow_cell(("flip", 2, 2.0, 2.0), 4, H, s, 2.0) for H in s["heads"]]
    found = context.sweep(flow_paths, cells, chunk=s["trials"])
    rows, paths = [], {}
    for H, columns in zip(s["heads"], found.columns, strict=True):
        m = columns["m"]  # (trials, times, H, 2)
        paths[str(H)] = m[0]
        for trial, one in enumerate(m):
            end = one[-1]
            first = crossing_time(s["times"], one[:, :, 0].mean(axis=1), 0.5 * float(end[:, 0].mean()))
            split = one[:, :, 1].max(axis=1) - one[:, :, 1].min(axis=1)
            rows.append((
                H, trial, first, crossing_time(s["times"], split, 0.5 * float(split[-1])),
                int((end[:, 1] > 0.1).sum()), int((end[:, 1] < -0.1).sum()), float(np.abs(end[:, 1]).max()),
                float(columns["loss"][trial][-1]),
            ))  # fmt: skip
    table = Table(
        f"Softmax, flipping spike nu = 2, L = 4, at tau = {s['times'][-1]:g}",
        ("H", "run", "half of m_1 at tau", "half of the split at tau", "heads with m_2 > 0.1", "with m_2 < -0.1",
         "largest |m_2|", "loss"),
        rows,
    )  # fmt: skip
    split_runs = [row for row in rows if row[4] and row[5]]  # heads on both sides of the flipping direction
    later = sum(row[3] > 2 * row[2] for row in split_runs)
    grows = [max(row[6] for row in rows if row[0] == H) for H in s["heads"]]
    notes = [
        f"Heads stand on both sides of the flipping direction in {len(split_runs)} of {len(rows)} runs by tau = "
        f"{s['times'][-1]:g}; in {later} of these they had reached half of the constant direction in less than "
        "half of the time "
        "of the split.",
        "Largest deviation from the average direction by H: "
        + ", ".join(f"H = {H}: {x:.2f}" for H, x in zip(s["heads"], grows, strict=True))
        + " (the paper: some heads deviate more when H grows).",
    ]
    return Outcome([table], {"paths": paths, "times": s["times"]}, notes)


def draw(outcome: Outcome) -> Picture:
    """The plane of the two spikes, one panel per number of heads."""
    paths: dict[str, Any] = dict(outcome.curves["paths"])
    picture, axes = subplots(1, len(paths), (3.6 * len(paths), 3.8), squeeze=False)
    for axis, (H, m) in zip(axes[0], paths.items(), strict=True):
        m = np.asarray(m)
        for h in range(m.shape[1]):
            axis.plot(m[:, h, 0], m[:, h, 1], lw=1, color=f"C{h}")
            axis.plot(*m[-1, h], "o", ms=6, color=f"C{h}")
        for sign in (1, -1):
            axis.plot(2**0.5, sign * 2**0.5, "k*", ms=10)
        axis.set(
            title=f"$H = {H}$",
            xlabel="$m$, constant direction",
            aspect="equal",
            xlim=(-0.3, 2.7),
            ylim=(-2.4, 2.4),
        )
    axes[0, 0].set_ylabel("$m$, flipping direction")
    return picture


FIGURE = Figure(
    paper="specialization",
    name="fig2",
    aliases=("fig15",),
    title="Heads follow the mean first and then split along the flipping direction",
    protocol="""Flipping spike nu = 2, F = 2, L = 4, H in {2, 4, 5, 8}, softmax, eta = 1, starts of size D^-1/2 with D =
        10^4; Runge-Kutta steps of 2 on 8,000 mirrored samples (the paper: Euler steps of 0.02 on 1e5).""",
    full={"trials": 2, "heads": (2, 4, 5, 8), "times": tuple(12.0 * t for t in range(76)), "samples": 8000},
    quick={"trials": 1, "heads": (2, 4), "times": tuple(12.0 * t for t in range(21)), "samples": 800},
    run=run,
    draw=draw,
)
