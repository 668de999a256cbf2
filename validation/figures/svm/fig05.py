"""Figures 2 and 5: how often gradient descent on W or (K, Q) ends globally, locally or not locally optimal."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, share_of, subplots
from attsvm.validation.figures.svm.convergence import ends_of_descent, support_assumption

__all__ = ["FIGURE", "draw", "run"]

_LABELS = {"W": "(a) W", "KQ": "(b) (K, Q)"}


def run(context: Context) -> Outcome:
    """Train every problem, classify its end, and test Assumption B.1 exactly and by the published proxy."""
    s = context.settings
    size = {"n": s["n"], "T": s["T"]}
    cells = [
        {**size, "d": d, "parameterization": p, "steps": s["steps"], "device": context.device}
        for p in _LABELS
        for d in s["dimensions"]
    ]
    ends = context.sweep(ends_of_descent, cells, chunk=s["chunk"], name="ends")
    support = context.sweep(
        support_assumption, [{**size, "d": d} for d in s["dimensions"]], chunk=s["chunk"], name="support"
    )
    rows: list[tuple[Any, ...]] = []
    curves: dict[str, Any] = {"d": list(s["dimensions"])}
    for p, label in _LABELS.items():
        shares: dict[str, list[float]] = {"global": [], "local": [], "not_local": []}
        for d in s["dimensions"]:
            found = ends.where(d=d, parameterization=p)
            local, undecided = found["is_local"], found["undecided"]
            rows.append((
                label, d, share_of(found["is_global"]), share_of(local), share_of(~local & ~undecided),
                int(undecided.sum()), share_of(found["saturated"]), share_of(found["empty_support"]),
            ))  # fmt: skip
            shares["global"].append(float(found["is_global"].mean()))
            shares["local"].append(float(local.mean()))
            shares["not_local"].append(float((~local & ~undecided).mean()))
        curves[p] = shares
    assumption = []
    for d in s["dimensions"]:
        found = support.where(d=d)
        assumption.append((d, share_of(found["feasible"]), share_of(found["proxy"]), share_of(found["exact"])))
    for name in ("proxy", "exact"):
        curves[name] = [float(support.where(d=d)[name].mean()) for d in s["dimensions"]]
    columns = ("trained", "d", "Global", "Local (with Global)", "Not local", "undecided", "saturated", "some T_i empty")
    return Outcome(
        tables=[
            Table("Where descent ends", columns, rows),
            Table(
                "Assumption B.1 (all tokens support)",
                ("d", "feasible", "proxy: average margin < 1.1", "exact"),
                assumption,
            ),
        ],
        curves=curves,
        notes=[
            "The paper tests B.1 by an average margin below 1.1; the exact test (G^-1 1 >= 0) holds far less often.",
            "Gradients are exact (log domain). W, (K, Q) and the test of B.1 meet different draws.",
        ],
    )


def draw(outcome: Outcome) -> Picture:
    """Stacked bars as in the paper, with the two tests of B.1 over them."""
    picture, axes = subplots(1, 2, (10, 3.9), sharey=True)
    curves = outcome.curves
    places = np.arange(len(curves["d"]))
    for axis, (p, label) in zip(axes, _LABELS.items(), strict=True):
        share = {k: 100 * np.asarray(v) for k, v in curves[p].items()}
        axis.bar(places, share["global"], color="tab:red", label="Global")
        axis.bar(places, share["local"] - share["global"], bottom=share["global"], color="tab:blue", label="Local")
        axis.bar(places, share["not_local"], bottom=share["local"], color="0.7", label="Not local")
        axis.plot(
            places, 100 * np.asarray(curves["proxy"]), "o--", color="tab:green", label="B.1 by the published proxy"
        )
        axis.plot(places, 100 * np.asarray(curves["exact"]), "s-", color="black", label="B.1 exactly")
        axis.set(title=label, xlabel="d", xticks=places, xticklabels=curves["d"])
    axes[0].set_ylabel("% of problems")
    picture.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8)
    return picture


FIGURE = Figure(
    paper="svm",
    name="fig5",
    aliases=("fig2",),
    title="Global and local convergence of gradient descent on W and (K, Q) against d",
    protocol="""n = T = 5, tokens, queries and v uniform on the sphere, labels +-1 fair, each sequence redrawn until
        the score gap is at least 0.1, 500 instances per d, normalized gradient descent, lr 0.1, logistic loss (as
        published). The paper does not state d, steps, initial weights and tolerance; chosen: d = 2..30, 2,000 steps,
        uniform(+-1/sqrt(d)), support tolerance of the certified solution; (K, Q) with m = d, a ridge of 2.2e-16, each
        factor normalized, and the support of the nuclear-norm solution. Figure 2 is panel (a) without B.1.""",
    full={"trials": 500, "n": 5, "T": 5, "dimensions": (2, 3, 4, 5, 6, 8, 10, 15, 20, 30), "steps": 2000, "chunk": 125},
    quick={"trials": 40, "dimensions": (2, 5, 10, 20), "steps": 1000, "chunk": 40},
    run=run,
    draw=draw,
)
