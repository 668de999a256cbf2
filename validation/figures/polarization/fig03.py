"""Figures 3 and 12: regression with condition numbers 1 to 5, and what of it is the norm of the fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics import polarization as pol
from attsvm.sweeps import columns_of
from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, mean_of, subplots
from attsvm.validation.figures.polarization._protocols import figure_12, legacy_seeds

__all__ = ["FIGURE", "conditioned", "draw", "run"]

_STEP = 1e-3  # of the published gradient descent


def conditioned(trials: int, seed: int, kappa: float, difficulty: float | None) -> dict[str, Any]:
    """Final entropy and steps to 1e-6 of the first loss, for seeds of the published protocol.

    Examples
    --------
    >>> from attsvm.validation.figures.polarization.fig03 import conditioned
    >>> conditioned(1, 0, kappa=1.0, difficulty=2.0)["entropy"][0] > 0.99
    True
    """

    def row(draw: int) -> dict[str, float]:
        W, a, loss = figure_12(kappa, draw, difficulty=difficulty)
        flow = pol.full_flow(W, a, loss, t_end=600.0, points=800, method="DOP853", rtol=1e-6, atol=1e-9)
        fitted = int(np.argmax(flow.loss < 1e-6 * flow.loss[0]))
        steps = float(flow.times[fitted]) / _STEP if fitted else np.inf
        return {"entropy": float(flow.entropy[-1] / np.log(a.size)), "steps": steps, "difficulty": loss.difficulty}

    return columns_of(map(row, legacy_seeds(trials, seed)))


def run(context: Context) -> Outcome:
    """The published seed along the flow and by descent, and random seeds with and without matched norm."""
    s = context.settings
    kappas = s["kappas"]
    rows, curves = [], {"kappas": list(kappas), "t": [], "entropy": [], "loss": [], "scores": []}
    for kappa in kappas:
        W, a, loss = figure_12(kappa)
        flow = pol.full_flow(W, a, loss, t_end=300.0, points=600, method="DOP853", rtol=1e-7, atol=1e-10)
        descent = pol.descend(W, a, loss, lr=_STEP * s["coarser"], steps=int(300 / _STEP / s["coarser"]), snapshots=3)
        ratio = flow.entropy / np.log(a.size)
        fitted = int(np.argmax(flow.loss < 1e-6 * flow.loss[0]))
        rows.append((
            kappa, loss.difficulty, ratio[-1], float(descent.entropy[-1, 0]) / np.log(a.size), flow.scores[-1].max(),
            round(flow.times[fitted] / _STEP, -2) if fitted else float("nan"),
        ))  # fmt: skip
        curves["t"].append(flow.times)
        curves["entropy"].append(ratio)
        curves["loss"].append(flow.loss / flow.loss[0])
        curves["scores"].append(np.asarray(flow.a))
    cells = [{"kappa": k, "difficulty": d} for d in (None, *s["matched"]) for k in kappas]
    many = context.sweep(conditioned, cells, chunk=s["chunk"], name="conditioned")
    table = []
    for cell in cells:
        got = many.where(**cell)
        steps = np.asarray(got["steps"], dtype=float)
        table.append((
            "free" if cell["difficulty"] is None else cell["difficulty"], cell["kappa"], mean_of(got["difficulty"]),
            mean_of(got["entropy"]), float(np.median(steps)),
        ))  # fmt: skip
    return Outcome(
        tables=[
            Table(
                "The published instance (seed 123), t = 300",
                ("kappa", "|X^-1 beta|", "entropy / log p", "by descent", "largest score", "steps to 1e-6"),
                rows,
            ),
            Table(
                "Random seeds: |beta| as drawn, and |X^-1 beta| matched",
                ("|X^-1 beta|", "kappa", "its mean", "entropy / log p", "median steps to 1e-6"),
                table,
            ),
        ],
        curves=curves,
        notes=[
            "The effect of kappa on sparsity is real, but mostly one of |X^-1 beta|, which grows with kappa.",
            "'Higher condition number, slower optimization' holds in part only: kappa = 1 is fastest, but in the "
            "published instance kappa = 2 takes longer than 3, 4 and 5, because polarization raises |s|^2.",
            f"Descent is run with a step {s['coarser']} times the published one; the flow is its limit.",
        ],
    )


def draw(outcome: Outcome) -> Picture:
    """Logits at both ends (Figure 3), entropies and losses (Figure 12)."""
    from matplotlib import pyplot as plt

    c = outcome.curves
    picture, axes = subplots(1, 4, (15, 3.6))
    for axis, k in zip(axes[:2], (0, len(c["kappas"]) - 1), strict=True):
        t, logits = np.asarray(c["t"][k]), np.asarray(c["scores"][k])
        axis.plot(t / _STEP / 1000, logits, lw=1)
        axis.set(title=rf"logits $a$, $\kappa = {c['kappas'][k]:g}$", xlabel="thousand steps of 1e-3")
    for k, kappa in enumerate(c["kappas"]):
        color = plt.get_cmap("viridis")(k / max(1, len(c["kappas"]) - 1))
        steps = np.asarray(c["t"][k]) / _STEP / 1000
        axes[2].plot(steps, c["entropy"][k], color=color, label=rf"$\kappa = {kappa:g}$")
        axes[3].semilogy(steps, c["loss"][k], color=color, label=rf"$\kappa = {kappa:g}$")
    axes[2].set(title=r"entropy / $\log p$", xlabel="thousand steps of 1e-3", ylim=(0, 1.05))
    axes[3].set(title="loss / first loss", xlabel="thousand steps of 1e-3", ylim=(1e-9, 2))
    axes[2].legend(fontsize=8)
    return picture


FIGURE = Figure(
    paper="polarization",
    name="fig3",
    aliases=("fig12",),
    title="Ill-conditioned regression polarizes more, mostly because the fit needs a larger norm",
    protocol="""dim = 20, W = 1e-5 randn, a = 1e-3 randn, X = U diag(linspace(1, 1/kappa)) V^T, beta = randn, legacy
        seed 123, loss |beta - X W s|^2 without 1/2, step 1e-3 for 3e5 steps (as published, t = 300); here the flow,
        cross-checked by descent; random seeds and runs at a matched |X^-1 beta| are ours.""",
    full={"trials": 10, "kappas": (1.0, 2.0, 3.0, 4.0, 5.0), "matched": (7.0, 9.0), "coarser": 30, "chunk": 5},
    quick={"trials": 1, "kappas": (1.0, 2.0, 5.0), "matched": (7.0,), "coarser": 100, "chunk": 1},
    run=run,
    draw=draw,
)
