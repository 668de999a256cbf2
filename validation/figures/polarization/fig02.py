"""Figure 2: scores and projections under the logistic loss, by gradient descent and by the flow, far beyond it."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics import polarization as pol
from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, share_of, subplots
from attsvm.validation.figures.polarization._protocols import figure_2

__all__ = ["FIGURE", "draw", "margins", "run"]

_TIMES = (1e2, 1e3, 1e4, 1e5, 1e6, 1e8, 1e12, 1e20, 1e30)


def margins(trials: int, seed: int, p: int, b: float) -> dict[str, Any]:
    """Margins of Theorems 3.2 and 3.3 for random initial projections, at t up to 1e12.

    Examples
    --------
    >>> from attsvm.validation.figures.polarization.fig02 import margins
    >>> bool(min(margins(2, 0, p=4, b=1.0)["order"]) > 0)
    True
    """
    u0 = -np.sort(-0.1 * np.random.default_rng(seed).standard_normal((trials, p)), axis=1)
    flow = pol.aligned_flow(u0, b=b, t_end=1e12, points=60)
    return {
        "order": np.minimum(pol.order_margin(flow), pol.order_margin(flow, of="scores")),
        "repulsion": pol.repulsion_margin(flow),
        "repulsion_printed": pol.repulsion_margin(flow, form="printed"),
        "ratio": pol.ratio_margin(flow),
        "projection": pol.projection_margin(flow),
        "projection_printed": pol.projection_margin(flow, form="printed"),
        "entropy": pol.entropy_margin(flow),
        "drift": np.maximum(pol.invariant_drift(flow), pol.identity_drift(flow)),
        "top": flow.scores[:, -1].max(axis=-1),
    }


def run(context: Context) -> Outcome:
    """The published instance by descent and by the flow, and the theorems on random instances."""
    s = context.settings
    u0 = figure_2()
    flow = pol.aligned_flow(u0, times=[0.0, *_TIMES])
    found = pol.measure_asymptotics(flow)
    rows = tuple(
        (f"{t:.0e}", flow.scores[k, 0], flow.scores[k, 1], flow.entropy[k], flow.u[k, 0] - np.log(t), flow.tau[k],
         found.loss_constant[k], found.exponents[k, 1])
        for k, t in enumerate(_TIMES, start=1)
    )  # fmt: skip
    descent = pol.descend(
        u0[None],
        np.zeros(u0.size),
        pol.LogisticLoss([1.0]),
        lr=0.1,
        steps=s["steps"],
        snapshots=60,
        device=context.device,
    )
    times = np.asarray(descent.times.tolist())
    same = pol.aligned_flow(u0, times=times)
    gd_scores = np.asarray(descent.scores[:, 0].tolist())
    steps = tuple(
        (descent.steps[k], times[k], gd_scores[k, 0], same.scores[k, 0], gd_scores[k, 1], same.scores[k, 1])
        for k in (len(times) // 2, 3 * len(times) // 4, len(times) - 1)
    )
    cells = [{"p": p, "b": b} for p in s["tokens"] for b in s["scales"]]
    many = context.sweep(margins, cells, chunk=s["chunk"], name="margins")
    table = []
    for cell in cells:
        got = many.where(**cell)
        table.append((
            cell["p"], cell["b"], *(share_of(np.asarray(got[name]) > 0) for name in
            ("order", "repulsion", "repulsion_printed", "ratio", "projection", "projection_printed", "entropy")),
            float(np.max(got["drift"])), float(np.median(got["top"])),
        ))  # fmt: skip
    dense = pol.aligned_flow(u0, t_end=1e12, points=200)
    return Outcome(
        tables=[
            Table(
                "The published instance along the flow",
                ("t", "s_0", "s_1", "entropy", "u_0 - log t", "tau", "loss t", "-dlog s_1/dlog log t"),
                rows,
            ),
            Table(
                "Gradient descent, step 0.1, beside the flow",
                ("steps", "t", "s_0 descent", "s_0 flow", "s_1 descent", "s_1 flow"),
                steps,
            ),
            Table(
                "Theorems 3.2 and 3.3 on random instances to t = 1e12: share satisfied",
                ("p", "b", "order", "repulsion", "as printed", "ratio", "eq. 17", "as printed", "entropy falls",
                 "worst drift", "median s_0"),
                table,
            ),
        ],
        curves={
            "t": dense.times[1:], "scores": dense.scores[1:], "u": dense.u[1:],
            "gd_t": times[1:], "gd_scores": gd_scores[1:],
        },
        notes=[
            f"Descent is run for {s['steps']} of the published 1e6 steps; beyond, the flow stands in for it.",
            "Repulsion as printed (any i != j) contradicts itself; equation 17 as printed loses a factor 1/2.",
        ],
    )  # fmt: skip


def draw(outcome: Outcome) -> Picture:
    """Scores and projections over log-time; dots are gradient descent."""
    from matplotlib import pyplot as plt

    c = outcome.curves
    t, scores, u = np.asarray(c["t"]), np.asarray(c["scores"]), np.asarray(c["u"])
    picture, axes = subplots(1, 2, (11, 3.8))
    for j in range(scores.shape[1]):
        color = "tab:blue" if j == 0 else plt.get_cmap("autumn")(j / 9)
        axes[0].semilogx(t, scores[:, j], color=color, lw=2 if j == 0 else 1, label=f"token {j}")
        axes[1].semilogx(t, u[:, j], color=color, lw=2 if j == 0 else 1)
    for j in (0, 1):
        axes[0].plot(
            c["gd_t"], np.asarray(c["gd_scores"])[:, j], "k.", ms=4, label="gradient descent" if j == 0 else None
        )
    axes[1].semilogx(t, np.log(t), "k:", label="log t")
    axes[0].set(xlabel="t", ylabel="score", title="softmax(a)", xlim=(1, 1e12))
    axes[1].set(xlabel="t", ylabel="projection", title=r"$u = V^\top \beta_*$", xlim=(1, 1e12), ylim=(-1, 29))
    axes[0].legend(fontsize=7, loc="center right")
    axes[1].legend(fontsize=8)
    return picture


FIGURE = Figure(
    paper="polarization",
    name="fig2",
    title="One score tends to 1, the others to 0 like 1 / log^2 t, and only one projection grows",
    protocol="""p = 8, W = 0.1 randn, a(0) = 0, unit beta_*, legacy seed 123, logistic loss, gradient descent with
        step 0.1 for 1e6 steps (as published, t = 1e5); beside it the gradient flow, integrated in log(1 + t) to t =
        1e30; random instances u(0) = 0.1 N(0, 1) for the theorems (ours).""",
    full={"trials": 200, "steps": 300_000, "tokens": (8, 32), "scales": (0.25, 1.0, 4.0), "chunk": 100},
    quick={"trials": 20, "steps": 5_000, "tokens": (8,), "scales": (1.0, 4.0), "chunk": 20},
    run=run,
    draw=draw,
)
