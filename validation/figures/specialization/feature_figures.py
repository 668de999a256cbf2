"""Figures 3, 4, 11 to 14 and 16 to 20: which features heads learn, and in which order.

3 and 16 to 18: Gaussian features by decreasing variance, and heads of all sign patterns. 4, 19 and 20: eight heads
and three features. 11 to 14: two heads on a flipping spike, over the strengths of its two directions and three
activations.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.validation.figures.figure import Context, Figure, Outcome, Picture, Table, mean_of, subplots
from attsvm.validation.figures.specialization.time_scale_figures import NAMES, flow_cell, flow_paths

_LEVEL = 0.3  # of the largest |m_hf| at which feature f counts as learnt


def sign_patterns(m: Any, features: int, level: float = 0.1) -> int:
    """How many different sign patterns the heads have in their first features, counting large entries only.

    Examples
    --------
    >>> sign_patterns([[1.0, 1.0], [1.0, -1.0], [1.0, 1.0], [1.0, 0.01]], 2)
    2
    """
    rows = np.asarray(m, dtype=np.float64)[:, :features]
    rows = rows[(np.abs(rows) > level).all(axis=1)]
    return len({tuple(row) for row in np.sign(rows).astype(int).tolist()})


def directions(m: Any, degrees: float = 30.0) -> int:
    """How many groups the heads form by direction in the plane, a gap of so many degrees apart.

    Examples
    --------
    >>> directions([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0]])
    2
    """
    rows = np.asarray(m, dtype=np.float64)
    angles = np.sort(np.degrees(np.arctan2(rows[:, 1], rows[:, 0])))
    gaps = np.diff(np.append(angles, angles[0] + 360.0))
    return max(1, int((gaps > degrees).sum()))


def run_figure_3(context: Context) -> Outcome:
    """Softmax for several H, the other activations at H = 4."""
    from attsvm.dynamics.specialization import crossing_time, escape_modes, gaussian_spikes

    s = context.settings
    kinds = [("softmax", H) for H in s["heads"]] + [(a, 4) for a in ("softmax1", "bayes")]
    cells = [
        flow_cell(("gaussian", 2, nu1, 2.0), 4, H, s, 1.0, activation=activation)
        for nu1 in (2.0, 8.0)
        for activation, H in kinds
    ]
    found = context.sweep(flow_paths, cells, chunk=s["trials"])
    rows, paths, learnt = [], [], []
    for cell, columns in zip(cells, found.columns, strict=True):
        nu1, H = cell["prior"][2], cell["H"]
        m = columns["m"]
        paths.append({"nu1": nu1, "activation": cell["activation"], "H": H, "m": m[0]})
        rates = [mode.rate for mode in escape_modes(gaussian_spikes(2, nu1, 2.0), str(cell["activation"]), 4, H)]
        times = [[crossing_time(s["times"], np.abs(one[:, :, f]).max(axis=1), _LEVEL) for f in (0, 1)] for one in m]
        first, second = (list(column) for column in zip(*times, strict=True))
        learnt.append((nu1, f"{NAMES[str(cell['activation'])]} H = {H}", first, second))
        rows.append((
            f"({nu1:g}, 2)", NAMES[str(cell["activation"])], H, _by_run(first), _by_run(second), rates[0], rates[1],
            " ".join(str(sign_patterns(one[-1], 2)) for one in m), " ".join(str(directions(one[-1])) for one in m),
        ))  # fmt: skip
    table = Table(
        f"Time at which the largest |m_hf| passes {_LEVEL}, and sign patterns at tau = {s['times'][-1]:g}",
        ("variances", "activation", "H", "feature 1, by run", "feature 2", "rate 1 at 0", "rate 2 at 0",
         "sign patterns", "directions"),
        rows,
    )  # fmt: skip
    return Outcome([table], {"paths": paths}, _notes_figure_3([entry[1:] for entry in learnt if entry[0] == 8.0]))


def _notes_figure_3(unequal: list[tuple[str, list[float], list[float]]]) -> list[str]:
    """Of the settings with variances (8, 2): name, and when each run learnt the first and the second feature."""
    ordered = all(not b <= a for _, first, second in unequal for a, b in zip(first, second, strict=True))
    missing = [name for name, _, second in unequal if np.isnan(second).any()]
    return [
        "With variances (8, 2) the first feature is learnt first in every setting."
        if ordered
        else "With variances (8, 2) the order was not kept in every setting.",
        f"With variances (8, 2) the second feature did not pass the level in some run of: {', '.join(missing)}."
        if missing
        else "Every feature passed the level within the time.",
        "Equal variances leave the axes arbitrary: directions, not signs, count there.",
    ]


def _by_run(times: Any) -> str:
    return " ".join("-" if np.isnan(t) else f"{t:.0f}" for t in times)


def draw_figure_3(outcome: Outcome) -> Picture:
    """Trajectories of the heads in the plane of the features."""
    paths: list[Any] = list(outcome.curves["paths"])
    columns = len(paths) // 2
    picture, axes = subplots(2, columns, (3.0 * columns, 6.4), squeeze=False)
    for axis, path in zip(axes.ravel(), paths, strict=True):
        m = np.asarray(path["m"])
        for h in range(m.shape[1]):
            axis.plot(m[:, h, 0], m[:, h, 1], lw=1, color=f"C{h}")
            axis.plot(*m[-1, h], "o", ms=5, color=f"C{h}")
        axis.axhline(0, color="0.8", lw=0.6)
        axis.axvline(0, color="0.8", lw=0.6)
        axis.set(
            title=f"({path['nu1']:g}, 2), {NAMES[path['activation']]}, H = {path['H']}",
            xlabel=r"$m_1$",
            ylabel=r"$m_2$",
            aspect="equal",
            xlim=(-3.2, 3.2),
            ylim=(-2.6, 2.6),
        )
        axis.title.set_fontsize(9)
    return picture


FIGURE_3 = Figure(
    paper="specialization",
    name="fig3",
    aliases=("fig16", "fig17", "fig18"),
    title="Features are learnt in the order of their variance; heads combine them with all signs",
    protocol="""Gaussian theta with variances (2, 2) and (8, 2), F = 2, L = 4, eta = 1; softmax with H in {2, 4, 5, 8},
        softmax-1 and Bayes-softmax with H = 4; starts of size D^-1/2 with D = 10^4; Runge-Kutta steps of 1
        on 10,000 mirrored samples (the paper: Euler steps of 0.02 on 1e5). Chosen: a feature counts as
        learnt when some |m_hf| > 0.3.""",
    full={"trials": 2, "heads": (2, 4, 5, 8), "times": tuple(5.0 * t for t in range(81)), "samples": 10_000},
    quick={"trials": 1, "heads": (4,), "times": tuple(10.0 * t for t in range(17)), "samples": 500},
    run=run_figure_3,
    draw=draw_figure_3,
)


def run_figure_4(context: Context) -> Outcome:
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


def draw_figure_4(outcome: Outcome) -> Picture:
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


FIGURE_4 = Figure(
    paper="specialization",
    name="fig4",
    aliases=("fig19", "fig20"),
    title="Hierarchical specialization of eight heads on three features: what is found",
    protocol="""Gaussian theta with variances 20, 10.5, 1, F = 3, H = 8, L = 5, eta = 1, softmax and Bayes-softmax;
        besides, variances 20, 14, 8 with softmax. Starts of size D^-1/2 with D = 10^4; Runge-Kutta steps of
        1 on 10,000 mirrored samples. The paper does not say its final time.""",
    full={"trials": 2, "times": tuple(10.0 * t for t in range(81)), "samples": 10_000, "step": 1.0},
    quick={"trials": 1, "times": tuple(20.0 * t for t in range(8)), "samples": 600},
    run=run_figure_4,
    draw=draw_figure_4,
)


def _cosine(m: Any) -> float:
    a, b = np.asarray(m, dtype=float)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def run_figure_12(context: Context) -> Outcome:
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
        notes=_notes_figure_12(grid, s["strengths"]),
    )


def _notes_figure_12(grid: dict[str, dict[tuple[float, float], float]], strengths: Any) -> list[str]:
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


def draw_figure_12(outcome: Outcome) -> Picture:
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


FIGURE_12 = Figure(
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
    run=run_figure_12,
    draw=draw_figure_12,
)  # fmt: skip
