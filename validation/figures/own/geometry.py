"""Which SVM does each optimizer follow? Margins reached in five norms."""

from __future__ import annotations

from typing import Any

import numpy as np

import attsvm
from attsvm.comparison.metrics import misalignment, reached_margin
from attsvm.validation.figures.framework import Context, Figure, Outcome, Table

__all__ = ["FIGURE", "NORMS", "OPTIMIZERS", "margins_reached", "run"]

NORMS = ("frobenius", "spectral", "linf", "l3", "l1.5")
# Optimizer: (step size, the norm that it should follow). Entrywise methods move every entry by lr, hence smaller steps.
OPTIMIZERS: dict[str, tuple[float, str | None]] = {
    "normalized_gd": (0.1, "frobenius"),
    "spectral": (0.05, "spectral"),
    "sign": (0.02, "linf"),
    "steepest:l3": (0.05, "l3"),
    "mirror:l3": (0.1, "l3"),
    "mirror:l1.5": (0.1, "l1.5"),
    "adam": (0.02, None),
}


def margins_reached(trials: int, _: int, *, draw: int, optimizer: str, steps: int) -> dict[str, Any]:
    """Share of the largest margin that a run reaches in every norm, and 1 - corr with the SVM of its tokens.

    Columns ``margin`` and ``misalignment`` have shape (trials, norms); NaN where the SVM is not solved.

    Examples
    --------
    >>> from attsvm.validation.figures.own.geometry import margins_reached
    >>> margins_reached(1, 0, draw=0, optimizer="sign", steps=50)["margin"].shape
    (1, 5)
    """
    batch = attsvm.random_problem(n=4, T=5, d=8, batch=trials, seed=draw)
    run = attsvm.train(
        batch, steps=steps, lr=OPTIMIZERS[optimizer][0], optimizer=optimizer, decay_after=max(1, steps // 4),
        snapshots=2, seed=draw,
    )  # fmt: skip
    found = np.full((2, trials, len(NORMS)), np.nan)
    for b, k in np.ndindex(trials, len(NORMS)):
        solution = attsvm.att_svm(batch[b], run.selection[b], norm=NORMS[k])
        if solution.status is attsvm.Status.OPTIMAL:
            reached = reached_margin(batch[b], run.W[b], run.selection[b], NORMS[k])
            found[:, b, k] = reached / solution.margin, misalignment(run.W[b], solution.W)
    return {"margin": found[0], "misalignment": found[1]}


def run(context: Context) -> Outcome:
    """Medians over the problems, one row per optimizer."""
    s = context.settings
    cells = [{"draw": context.seed, "optimizer": name, "steps": s["steps"]} for name in OPTIMIZERS]
    found = context.sweep(margins_reached, cells, chunk=s["trials"], name="optimizers")
    medians = {
        what: {c["optimizer"]: np.nanmedian(columns[what].astype(float), axis=0) for c, columns in found}
        for what in ("margin", "misalignment")
    }
    forms = {"margin": lambda x: f"{100 * x:.2f} %", "misalignment": lambda x: f"{x:.1e}"}
    titles = {"margin": "Margin reached, share of the largest", "misalignment": "1 - corr with the SVM"}
    columns = ("optimizer", *NORMS, "own norm")
    tables = [
        Table(title, columns, [(o, *map(forms[what], medians[what][o]), own) for o, (_, own) in OPTIMIZERS.items()])
        for what, title in titles.items()
    ]
    return Outcome(tables, medians, ["Medians over the problems, for the tokens that each run selects."])


FIGURE = Figure(
    paper="own",
    name="geometry",
    title="Which SVM each optimizer follows: margins reached in five norms",
    protocol="""Normalized steepest descent in a norm should maximize the margin of that norm. Solutions of the spectral
        and the entrywise maximum norm need not be unique, so the first table shows margins, which are: the margin of
        the normalized iterate in a norm, relative to the largest possible. n = 4, T = 5, d = 8, the step decays as 1/k
        after a quarter, the problems of random_problem(seed=SEED).""",
    full={"trials": 20, "steps": 20_000},
    quick={"trials": 3, "steps": 800},
    run=run,
)
