"""Figure 10: the KL loss polarizes, and stops at a finite entropy."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics import polarization as pol
from attsvm.sweeps import columns_of
from attsvm.validation.figures.framework import (
    Context,
    Figure,
    Outcome,
    Picture,
    Table,
    mean_of,
    mean_share_of,
    subplots,
)
from attsvm.validation.figures.polarization._protocols import figure_10, legacy_seeds

__all__ = ["FIGURE", "draw", "kl_runs", "run"]


def kl_runs(trials: int, seed: int, t_end: float) -> dict[str, Any]:
    """Final scores of the KL flow for random instances of the protocol.

    Examples
    --------
    >>> from attsvm.validation.figures.polarization.fig10 import kl_runs
    >>> 0 < kl_runs(1, 0, t_end=100.0)["top"][0] < 1
    True
    """

    def row(draw: int) -> dict[str, float]:
        V, target = figure_10(draw)
        loss = pol.KLLoss(target)
        flow = pol.full_flow(V, np.zeros(target.size), loss, t_end=t_end, points=5, rtol=1e-6, atol=1e-10)
        top, entropy = float(flow.scores[-1].max()), float(flow.entropy[-1] / np.log(target.size))
        return {"top": top, "entropy": entropy, "divergence": loss.divergence(flow.beta[-1])}

    return columns_of(map(row, legacy_seeds(trials, seed)))


def run(context: Context) -> Outcome:
    """One instance in time, several at the end, and the printed loss beside."""
    s = context.settings
    V, target = figure_10()
    loss = pol.KLLoss(target)
    times = np.concatenate([[0.0], np.geomspace(1, s["t_end"], 60)])
    flow = pol.full_flow(V, np.zeros(target.size), loss, times=times, rtol=1e-7, atol=1e-10)
    descent = pol.descend(V, np.zeros(target.size), loss, lr=0.1, steps=s["steps"], snapshots=4, device=context.device)
    reached = 0.1 * s["steps"]
    beside = pol.full_flow(V, np.zeros(target.size), loss, times=[0.0, reached], rtol=1e-7, atol=1e-10)
    divergence = [loss.divergence(beta) for beta in flow.beta]
    printed = pol.full_flow(
        np.abs(V),
        np.zeros(target.size),
        pol.KLLoss(target, form="printed"),
        times=[0.0, 1e2, 1e5, 1e8],
        rtol=1e-6,
        atol=1e-9,
    )
    shown = [
        int(np.argmin(np.abs(np.log(times[1:]) - np.log(t)))) + 1
        for t in (1e1, 1e2, 1e3, 1e4, 1e5, 1e6)
        if t <= s["t_end"] * 1.01
    ]
    rows = tuple(
        (f"{times[k]:.2g}", divergence[k], flow.scores[k].max(), flow.entropy[k] / np.log(target.size)) for k in shown
    )
    many = context.sweep(kl_runs, [{"t_end": s["t_end"]}], chunk=s["chunk"], name="kl")
    got = many.where(t_end=s["t_end"])
    return Outcome(
        tables=[
            Table("One instance along the flow", ("t", "KL divergence", "largest score", "entropy / log p"), rows),
            Table(
                f"Gradient descent with step 0.1 at t = {reached:g}, beside the flow",
                ("", "largest score", "entropy / log p"),
                (
                    (
                        "descent",
                        float(descent.scores[-1, 0].max()),
                        float(descent.entropy[-1, 0]) / np.log(target.size),
                    ),
                    ("flow", beside.scores[-1].max(), beside.entropy[-1] / np.log(target.size)),
                ),
            ),
            Table(
                f"Random instances at t = {s['t_end']:g}",
                ("instances", "largest score", "entropy / log p", "KL divergence"),
                (
                    (
                        len(got["top"]),
                        mean_share_of(got["top"]),
                        mean_share_of(got["entropy"]),
                        mean_of(got["divergence"]),
                    ),
                ),
            ),
            Table(
                "The loss as printed, -<p, log(V s)>, unbounded below",
                ("t", "loss", "largest score"),
                tuple((f"{t:.0e}", printed.loss[k], printed.scores[k].max()) for k, t in enumerate(printed.times) if k),
            ),
        ],
        curves={"t": times[1:], "scores": flow.scores[1:], "divergence": divergence[1:]},
        notes=["The published run has another, unknown seed: its curves are reproduced in kind, not in number."],
    )


def draw(outcome: Outcome) -> Picture:
    """Scores and divergence over log-time."""
    c = outcome.curves
    picture, axes = subplots(1, 2, (10, 3.6))
    axes[0].semilogx(c["t"], np.asarray(c["scores"]), lw=1.4)
    axes[0].set(title="softmax(a), KL loss", xlabel="t", ylabel="score", ylim=(0, 1))
    axes[1].loglog(c["t"], np.maximum(np.asarray(c["divergence"], dtype=float), 1e-14), color="k")
    axes[1].set(title="KL divergence", xlabel="t")
    return picture


FIGURE = Figure(
    paper="polarization",
    name="fig10",
    title="The KL loss polarizes as regression does, not as classification",
    protocol="""d = p = 10, V = 0.1 randn, a(0) = 0, target softmax(10 rand), prediction softmax(V s) (published
        code; the text has V s itself), step 0.1 for 1e7 steps (t = 1e6); here the flow to t = 1e6, cross-checked by
        descent at fewer steps.""",
    full={"trials": 10, "t_end": 1e6, "steps": 50_000, "chunk": 5},
    quick={"trials": 2, "t_end": 1e4, "steps": 2_000, "chunk": 1},
    run=run,
    draw=draw,
)
