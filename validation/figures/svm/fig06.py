"""Figure 6: how often gradient descent on W and (K, Q) ends at the optimal tokens, against d."""

from __future__ import annotations

from typing import Any

import numpy as np

import attsvm
from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, share_of, subplots
from attsvm.validation.figures.svm.span_training import train_in_span

__all__ = ["FIGURE", "draw", "global_trials", "run"]

_COLOURS = ("tab:blue", "tab:green", "tab:red")
_STYLES = {"W": "-", "KQ": "--"}
_NAMES = {"W": "W", "KQ": "(K, Q)"}


def global_trials(
    trials: int, seed: int, *, n: int, T: int, d: int, parameterization: str, steps: int, device: str | None = None
) -> dict[str, Any]:
    """Draw problems with a score gap of 0.1, train them, and say which end at the optimal tokens.

    No margin problem needs to be solved: weights whose largest logits are those of the optimal tokens separate them, so
    Att-SVM is feasible there in every norm, and with a positive gap no other token scores as much, so that the optimal
    tokens are locally optimal by Definition 2 whatever their support.

    Examples
    --------
    >>> from attsvm.validation.figures.svm.fig06 import global_trials
    >>> found = global_trials(3, 0, n=2, T=3, d=8, parameterization="KQ", steps=200)
    >>> sorted(found), len(found["is_global"])
    (['is_global', 'saturated'], 3)
    """
    problems = attsvm.random_problem(n=n, T=T, d=d, batch=trials, seed=seed, min_score_gap=0.1)
    start = np.random.default_rng((seed, 1))  # a stream of its own: the start must not share draws with the data
    ended = train_in_span(problems, parameterization, steps=steps, seed=start, device=device)
    reached = (ended.selection.indices == problems.optimal_tokens().indices).all(axis=-1)
    return {"is_global": reached, "saturated": ended.history.log_rest[-1] < np.log(1e-6)}


def run(context: Context) -> Outcome:
    """Percentages of global convergence for both panels."""
    s = context.settings
    curves_of = {"a": [(n, s["T"]) for n in s["many_n"]], "b": [(s["n"], T) for T in s["many_T"]]}
    sizes = list(dict.fromkeys(size for curves in curves_of.values() for size in curves))
    cells = [
        {"n": n, "T": T, "d": d, "parameterization": p, "steps": s["steps"], "device": context.device}
        for n, T in sizes
        for d in s["dimensions"]
        for p in _STYLES
    ]
    found = context.sweep(global_trials, cells, chunk=s["chunk"], name="global")
    rows = []
    shares: dict[str, Any] = {}
    for n, T in sizes:
        for p in _STYLES:
            shares[f"{n},{T},{p}"] = {
                name: [getattr(share_of(found.where(n=n, T=T, d=d, parameterization=p)["is_global"]), name)
                       for d in s["dimensions"]]
                for name in ("value", "low", "high")
            }  # fmt: skip
        for d in s["dimensions"]:
            ends = {p: found.where(n=n, T=T, d=d, parameterization=p) for p in _STYLES}
            rows.append((
                f"n={n}, T={T}", d, *(share_of(ends[p]["is_global"]) for p in _STYLES),
                *(share_of(ends[p]["saturated"]) for p in _STYLES),
            ))  # fmt: skip
    columns = ("size", "d", "Global, W", "Global, (K, Q)", "saturated, W", "saturated, (K, Q)")
    return Outcome(
        tables=[Table("Runs that end at the optimal tokens", columns, rows)],
        curves={"d": list(s["dimensions"]), "panels": curves_of, "shares": shares},
        notes=[
            "Saturated: every query has probability above 1 - 1e-6 on one token. Other runs may still change tokens.",
            "Training works in the span of the queries, which takes the same steps; Global needs no margin problem, as "
            "weights that select the optimal tokens separate them.",
        ],
    )


def draw(outcome: Outcome) -> Picture:
    """Percentages against d: W solid, (K, Q) dashed, 95 % intervals shaded."""
    picture, axes = subplots(1, 2, (10, 3.8), sharey=True)
    curves = outcome.curves
    for axis, (panel, sizes) in zip(axes, curves["panels"].items(), strict=True):
        for (n, T), colour in zip(sizes, _COLOURS, strict=False):
            for p, style in _STYLES.items():
                share = {name: 100 * np.asarray(v) for name, v in curves["shares"][f"{n},{T},{p}"].items()}
                varied = f"n = {n}" if panel == "a" else f"T = {T}"
                axis.plot(curves["d"], share["value"], style, color=colour, marker="o", markersize=4,
                          label=f"{varied}, {_NAMES[p]}")  # fmt: skip
                axis.fill_between(curves["d"], share["low"], share["high"], color=colour, alpha=0.12, linewidth=0)
        fixed = f"T = {sizes[0][1]}" if panel == "a" else f"n = {sizes[0][0]}"
        axis.set(title=f"({panel}) {fixed}", xlabel="d", ylim=(-3, 103))
        axis.grid(alpha=0.4)
        axis.legend(fontsize=8)
    axes[0].set_ylabel("global convergence, %")
    return picture


FIGURE = Figure(
    paper="svm",
    name="fig6",
    title="Global convergence of gradient descent on W and (K, Q) against d, n and T",
    protocol="""(a) T = 5, n = 5, 10, 20; (b) n = 5, T = 5, 10, 20; tokens, queries and v uniform on the sphere, labels
        +-1 fair, each sequence redrawn until the score gap is at least 0.1, normalized gradient descent, lr
        0.1, logistic loss (as published). The paper does not state d, trials, steps and initial weights;
        chosen: d = 5, 10, 15, 20, 500 trials (as in Figure 5), 2,000 steps, uniform(+-1/sqrt(d)); (K, Q)
        with m = d, a ridge of 2.2e-16 and each factor normalized. Gradients are exact (log domain). Global:
        every selected token is the optimal one.""",
    full={"trials": 500, "n": 5, "T": 5, "many_n": (5, 10, 20), "many_T": (5, 10, 20), "dimensions": (5, 10, 15, 20),
          "steps": 2000, "chunk": 250},
    quick={"trials": 40, "many_n": (5, 10), "many_T": (5, 10), "dimensions": (5, 20), "steps": 500, "chunk": 40},
    run=run,
    draw=draw,
)  # fmt: skip
