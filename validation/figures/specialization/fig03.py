"""Figures 3 and 16 to 18: Gaussian features are learnt by decreasing variance, and heads take all sign patterns."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, subplots
from attsvm.validation.figures.specialization.runs import NAMES, flow_cell, flow_paths

__all__ = ["FIGURE", "directions", "draw", "run", "sign_patterns"]

_LEVEL = 0.3  # of the largest |m_hf| at which feature f counts as learnt


def sign_patterns(m: Any, features: int, level: float = 0.1) -> int:
    """How many different sign patterns the heads have in their first features, counting large entries only.

    Examples
    --------
    >>> from attsvm.validation.figures.specialization.fig03 import sign_patterns
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
    >>> from attsvm.validation.figures.specialization.fig03 import directions
    >>> directions([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0]])
    2
    """
    rows = np.asarray(m, dtype=np.float64)
    angles = np.sort(np.degrees(np.arctan2(rows[:, 1], rows[:, 0])))
    gaps = np.diff(np.append(angles, angles[0] + 360.0))
    return max(1, int((gaps > degrees).sum()))


def run(context: Context) -> Outcome:
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
    return Outcome([table], {"paths": paths}, _notes([entry[1:] for entry in learnt if entry[0] == 8.0]))


def _notes(unequal: list[tuple[str, list[float], list[float]]]) -> list[str]:
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


def draw(outcome: Outcome) -> Picture:
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


FIGURE = Figure(
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
    run=run,
    draw=draw,
)
