"""Figure 1: gradient descent on the prompt model, fewer and more dimensions than examples."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.validation.figures.conditioning.students import SUCCESS, record_steps, softmax_student
from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, share_of, subplots

__all__ = ["FIGURE", "draw", "run"]


def run(context: Context) -> Outcome:
    """Train every cell."""
    s = context.settings
    rows, curves = [], {}
    for d, sigma, lr, steps, trials in s["cells"]:
        tried = min(trials, s["trials"])
        cell = {"N": s["N"], "d": d, "sigma_p": sigma, "lr": lr, "steps": steps, "spectrum": d <= 150}
        name = f"d={d} sigma_p={sigma}"
        found = context.sweep(softmax_student, [cell], tried, chunk=1, name=name).columns[0]
        loss, taken = found["loss"], found["steps"]
        middle = {name_: float(np.median(values)) for name_, values in found.items() if name_ != "loss"}
        rows.append((
            d, sigma, lr, tried, share_of(found["final"] < SUCCESS), middle["final"],
            float(np.nanmedian(taken)) if np.isfinite(taken).any() else float("nan"), middle["teacher"],
            middle["student"], float(np.median(np.abs(found["cosine"]))), middle["kappa"], middle["kappa_joint"],
        ))  # fmt: skip
        recorded = np.arange(loss.shape[1]) * record_steps(steps)
        curves[name] = {"steps": recorded, "loss": loss, "d": d, "N": s["N"], "sigma": sigma}
    columns = ("d", "sigma_p", "lr", "runs", f"loss < {SUCCESS:g}", "median final loss", "median steps to it",
               "log10 R teacher", "log10 R student", "|cos(p, p*)|", "log10 kappa(H_p)",
               "log10 kappa(joint)")  # fmt: skip
    return Outcome(
        tables=[Table("Students at the end; kappa at the teacher, on the range where d > N", columns, rows)],
        curves={"cells": curves},
        notes=[
            "Where a run stalls, |cos(p, p*)| and log10 R of the student tell a wrong basin (small cosine, a student "
            "sparser than its teacher) from slow convergence to the teacher (cosine near 1); kappa(H_p) says what "
            "conditioning alone would do.",
            "v is trained here; Theorem 1, which the right panel is to show, freezes it.",
            "log10 R is the median over examples; at sigma_p = 0.1 and 1 it differs tenfold, so the printed pair "
            "(10, 1e25) belongs to no single d.",
        ],
    )


def draw(outcome: Outcome) -> Picture:
    """Loss curves, one panel for d < N and one for d > N."""
    picture, axes = subplots(1, 2, (10, 4))
    labelled: set[Any] = set()
    for name, cell in outcome.curves["cells"].items():
        axis = axes[int(cell["d"] > cell["N"])]
        colour = "tab:blue" if cell["sigma"] < 0.5 else "tab:red"
        style = "-" if cell["d"] in (20, 150) else "--"
        label = rf"$d = {cell['d']}$, $\sigma_p = {cell['sigma']:g}$"
        for curve in np.asarray(cell["loss"], dtype=float):
            axis.semilogy(np.asarray(cell["steps"]), np.maximum(curve, 1e-13), style, color=colour, lw=0.9, alpha=0.8,
                          label=None if name in labelled else label)  # fmt: skip
            labelled.add(name)
    for axis, title in zip(axes, ("fewer dimensions than examples", "more dimensions than examples"), strict=True):
        axis.set(title=title, xlabel="steps", ylabel="loss")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    return picture


FIGURE = Figure(
    paper="conditioning",
    name="fig1",
    title="Gradient descent on softmax attention under a dense and a sparse teacher",
    protocol="""f = softmax(X p)^T X v, X standard Gaussian, n = d, N = 100, full-batch gradient descent on p and v from
        N(0, 1/d), teacher p ~ N(0, sigma_p^2), v ~ N(0, 1), sigma_p in {0.1, 1}, d in {20, 150, 400}. Our choices
        (the paper gives none): half the squared error, learning rates and steps as in the table, stop at 1e-12.""",
    full={"trials": 6, "N": 100, "cells": ((20, 0.1, 0.05, 20000, 6), (20, 1.0, 0.05, 20000, 6),
          (150, 0.1, 0.1, 1200, 2), (150, 1.0, 0.02, 1600, 2), (400, 0.1, 0.03, 400, 1), (400, 1.0, 0.005, 500, 1))},
    quick={"trials": 2, "N": 100, "cells": ((20, 0.1, 0.05, 6000, 2), (20, 1.0, 0.05, 6000, 2),
           (120, 0.1, 0.1, 150, 1), (120, 1.0, 0.02, 150, 1))},
    run=run,
    draw=draw,
)  # fmt: skip
