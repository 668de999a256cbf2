"""Figure 7: how success and speed change with the teacher's sparsity ratio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attsvm.validation.figures.conditioning.students import SUCCESS, record_steps, softmax_student
from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, finish, share_of, subplots

__all__ = ["FIGURE", "draw", "run"]


def run(context: Context) -> Outcome:
    """Train students of teachers with exact sparsity ratios, by gradient descent and by Levenberg-Marquardt."""
    s = context.settings
    base = {name: s[name] for name in ("N", "d", "lr", "steps", "newton_steps")}
    grid = [base | {"log_ratio": float(r * np.log(10))} for r in s["log10_ratios"]]
    found = context.sweep(softmax_student, grid, chunk=1, name="students").columns
    rows, curves = [], []
    for ratio, gd in zip(s["log10_ratios"], found, strict=True):
        final, newton = gd["final"], gd["newton"]
        good = final < SUCCESS
        taken = gd["steps"][good]
        lost = np.abs(gd["cosine"][~good])
        rows.append((
            ratio, share_of(good), float(np.median(taken)) if good.any() else float("nan"), float(np.median(final)),
            float(np.median(lost)) if (~good).any() else float("nan"), share_of(newton < SUCCESS),
            float(np.median(gd["khat"])), float(np.mean(gd["kappa"])),
            float(np.mean(gd["kappa_joint"])),
        ))  # fmt: skip
        curves.append(gd["loss"])
    columns = ("log10 R", f"GD loss < {SUCCESS:g}", "median steps (successes)", "median final loss",
               "median |cos(p, p*)| (failures)", "LM success", "median log10 khat(J)", "log10 kappa(H_p)",
               "log10 kappa(joint)")  # fmt: skip
    return Outcome(
        tables=[Table("Students by the teacher's sparsity ratio", columns, rows)],
        curves={
            "ratios": s["log10_ratios"],
            "steps": np.arange(curves[0].shape[1]) * record_steps(s["steps"]),
            "loss": curves,
        },
        notes=_notes(found),
    )


def _notes(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """What separates a stall from slow convergence, in the numbers of this run."""
    first, last = found[0], found[-1]

    def middle(columns: Mapping[str, Any], name: str) -> float:
        return float(np.median(columns[name]))

    final = np.concatenate([columns["final"] for columns in found])
    newton = np.concatenate([columns["newton"] for columns in found])
    cosine = np.abs(np.concatenate([columns["cosine"] for columns in found]))
    failed = final >= SUCCESS
    stuck = failed & (final > 1e-3)
    direction = float(np.median(cosine[stuck])) if stuck.any() else float("nan")
    notes = [
        f"From the first to the last R the median log10 khat(J) goes from {middle(first, 'khat'):.2f} to "
        f"{middle(last, 'khat'):.2f}, log10 kappa(H_p) at the teacher from {middle(first, 'kappa'):.2f} to "
        f"{middle(last, 'kappa'):.2f}, log10 kappa(joint) from {middle(first, 'kappa_joint'):.2f} to "
        f"{middle(last, 'kappa_joint'):.2f}.",
        f"{int(failed.sum())} of {len(final)} runs of gradient descent fail, {int(stuck.sum())} of them above 1e-3, "
        f"with median |cos(p, p*)| {direction:.2f}: a small one means another basin, not slow convergence.",
        f"Levenberg-Marquardt from the same starts, which ill-conditioning does not slow, fails in "
        f"{int((newton >= SUCCESS).sum())} of {len(newton)}.",
        "The caption speaks of five orders of magnitude for R from 1 to 1e8, and gives 1e-7 both for convergence and "
        "for stagnation.",
    ]
    return notes


def draw(outcome: Outcome) -> Picture:
    """Median loss curves, and the share of successes."""
    from matplotlib import pyplot as plt

    curves = outcome.curves
    picture, (left, right) = subplots(1, 2, (10, 4))
    ratios = np.asarray(curves["ratios"], dtype=float)
    shades = plt.get_cmap("viridis")(np.linspace(0, 0.9, len(ratios)))
    for ratio, colour, loss in zip(ratios, shades, curves["loss"], strict=True):
        median = np.maximum(np.median(np.asarray(loss, dtype=float), axis=0), 1e-13)
        left.semilogy(np.asarray(curves["steps"]), median, color=colour, label=rf"$\log_{{10}} R = {ratio:g}$")
    left.set(xlabel="steps", ylabel="median loss")
    left.legend(fontsize=7)
    found = [share_of(np.asarray(loss, dtype=float)[:, -1] < SUCCESS) for loss in curves["loss"]]
    shares = np.array([share.value for share in found])
    right.errorbar(
        ratios, shares, [shares - [s.low for s in found], [s.high for s in found] - shares], fmt="o-", capsize=2
    )
    right.set(xlabel=r"$\log_{10} R$ of the teacher", ylabel="share of runs that find the teacher", ylim=(-0.05, 1.05))
    return finish(picture, (left, right), legend=None)


FIGURE = Figure(
    paper="conditioning",
    name="fig7",
    title="Gradient descent against the sparsity ratio of the teacher",
    protocol="""d = n = 20, N = 100 as in Figure 1; the teacher's prompt is scaled so that the median over examples of
        max a / min a is R exactly. Gradient descent on p and v, learning rate 0.05; Levenberg-Marquardt from the same
        starts. Success: loss below 1e-7.""",
    full={"trials": 6, "N": 100, "d": 20, "lr": 0.05, "steps": 20000, "newton_steps": 300,
          "log10_ratios": (0.03, 0.7, 1.4, 2.7, 4.0, 5.5, 6.8, 8.0)},
    quick={"trials": 2, "steps": 9000, "newton_steps": 50, "log10_ratios": (0.03, 2.7, 8.0)},
    run=run,
    draw=draw,
)  # fmt: skip
