"""Figure 8: margins of the selected and of the optimal tokens, and where gradient descent ends."""

from __future__ import annotations

from typing import Any

import numpy as np

import attsvm
from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, mean_of, share_of, subplots
from attsvm.validation.figures.svm.convergence import ends_of_descent

__all__ = ["FIGURE", "draw", "margin_trials", "run"]


def margin_trials(
    trials: int, seed: int, *, n: int, T: int, d: int, steps: int, device: str | None = None
) -> dict[str, Any]:
    """Train W and compare the margin of the tokens it ends at with the margin of the optimal tokens.

    Margins are ``1 / |W|_F`` of the certified Att-SVM solutions, 0 where infeasible.

    Examples
    --------
    >>> from attsvm.validation.figures.svm.fig08 import margin_trials
    >>> found = margin_trials(3, 0, n=1, T=3, d=5, steps=300)
    >>> len(found["optimal_margin"]), bool((found["optimal_margin"] > 0).all())
    (3, True)
    """
    size: dict[str, Any] = {"n": n, "T": T, "d": d, "min_score_gap": None}
    ends = ends_of_descent(trials, seed, parameterization="W", steps=steps, device=device, **size)
    optimal = attsvm.att_svm(attsvm.random_problem(batch=trials, seed=seed, **size))
    return {
        "is_global": ends["is_global"],
        "is_local": ends["is_local"],
        "undecided": np.asarray(ends["undecided"]) | [not status.is_certified for status in optimal.status],
        "margin": ends["margin"],
        "optimal_margin": optimal.margin,
    }


def run(context: Context) -> Outcome:
    """Margins and percentages for both halves of the figure."""
    s = context.settings
    panels = {
        "n": [(n, s["T"], s["d"]) for n in s["many_n"]],
        "d": [(s["n"], s["T"], d) for d in s["many_d"]],
    }
    sizes = list(dict.fromkeys(size for panel in panels.values() for size in panel))
    cells = [{"n": n, "T": T, "d": d, "steps": s["steps"], "device": context.device} for n, T, d in sizes]
    found = context.sweep(margin_trials, cells, chunk=s["chunk"], name="margins")
    ends_rows: list[tuple[Any, ...]] = []
    margin_rows: list[tuple[Any, ...]] = []
    numbers: dict[str, dict[str, float]] = {}
    pairs: list[bool] = []  # over every run that ends locally
    for n, T, d in sizes:
        c = found.where(n=n, T=T, d=d)
        label = f"n={n}, T={T}, d={d}"
        local = c["is_local"] & ~c["is_global"]
        neither = ~c["is_local"] & ~c["undecided"]
        feasible = c["optimal_margin"] > 0
        ends_rows.append((label, share_of(feasible), share_of(c["is_global"]), share_of(local), share_of(neither),
                          int(c["undecided"].sum())))  # fmt: skip
        margins = {
            "optimal, all": mean_of(c["optimal_margin"]),
            "optimal, Global runs": mean_of(c["optimal_margin"][c["is_global"]]),
            "optimal, Local runs": mean_of(c["optimal_margin"][local]),
            "selected, Local runs": mean_of(c["margin"][local]),
            "selected, all": mean_of(c["margin"]),
        }
        larger = (c["margin"] > c["optimal_margin"])[local]
        pairs.extend(larger)
        margin_rows.append((label, *margins.values(), share_of(larger)))
        numbers[f"{n},{T},{d}"] = {
            **{key: value.value for key, value in margins.items()},
            "global": float(c["is_global"].mean()),
            "local": float(local.mean()),
            "neither": float(neither.mean()),
        }
    return Outcome(
        tables=[
            Table("Where descent ends", ("size", "optimal tokens feasible", "Global", "Local (not Global)", "Not local",
                                         "undecided"), ends_rows),
            Table("Margins 1 / |W|_F (0 where infeasible)",
                  ("size", "optimal, all", "optimal, Global runs", "optimal, Local runs", "selected, Local runs",
                   "selected, all", "selected > optimal, Local runs"), margin_rows),
        ],
        curves={"panels": panels, "numbers": numbers},
        notes=[
            f"Of the {len(pairs)} runs that end locally {share_of(pairs)} select tokens of a larger margin than the "
            "optimal ones (compared run by run), which is what the paper concludes from averages.",
            "Not local: the selected tokens are no local optimum of Definition 2, so far or for good; the two bars of "
            "the paper do not show such runs.",
        ],
    )  # fmt: skip


def draw(outcome: Outcome) -> Picture:
    """Margins above, percentages below: n varies on the left, d on the right."""
    picture, axes = subplots(2, 2, (10, 6.4), sharex="col", sharey="row")
    lines = (
        ("optimal, all", "-", "tab:red", "optimal tokens, all runs"),
        ("optimal, Local runs", "--", "tab:red", "optimal tokens, runs that end locally"),
        ("selected, Local runs", "-", "tab:blue", "selected tokens, runs that end locally"),
    )
    for column, (varied, sizes) in enumerate(outcome.curves["panels"].items()):
        numbers = [outcome.curves["numbers"][",".join(map(str, size))] for size in sizes]
        values = [size[0] if varied == "n" else size[2] for size in sizes]
        places = np.arange(len(sizes))
        upper, lower = axes[:, column]
        for key, style, colour, label in lines:
            upper.plot(places, [x[key] for x in numbers], style, color=colour, marker="o", label=label)
        fixed = sizes[0][2] if varied == "n" else sizes[0][0]
        upper.set(title=f"T = {'d' if varied == 'n' else 'n'} = {fixed}", ylim=(0, None))
        upper.grid(alpha=0.4)
        for shift, key, colour in ((-0.27, "global", "tab:red"), (0, "local", "tab:blue"), (0.27, "neither", "0.6")):
            label = {"global": "Global", "local": "Local (not Global)", "neither": "Not local"}[key]
            lower.bar(places + shift, [100 * x[key] for x in numbers], 0.25, color=colour, label=label)
        lower.set(xlabel=varied, xticks=places, xticklabels=values)
    axes[0, 0].set_ylabel("SVM margin 1 / |W|")
    axes[1, 0].set_ylabel("% of problems")
    axes[0, 0].legend(fontsize=8)
    axes[1, 1].legend(fontsize=8)
    return picture


FIGURE = Figure(
    paper="svm",
    name="fig8",
    title="Margins of selected and optimal tokens, and where descent on W ends",
    protocol="""Left: T = d = 5, n = 1, 5, 10, 15; right: T = n = 5, d = 2, 5, 10, 15; tokens, queries and v uniform on
        the sphere, labels +-1 fair, no score gap; margins 1/|W|_F of the globally optimal and of the selected
        tokens, 0 when infeasible (as published). The paper does not state trials, steps and initial
        weights; chosen: 500 trials, 4,000 steps of normalized gradient descent on W, lr 0.1, logistic loss,
        exact gradients (log domain), uniform(+-1/sqrt(d)). Nor does it say over which runs the margins are
        averaged; the table has all of them.""",
    full={"trials": 500, "n": 5, "T": 5, "d": 5, "many_n": (1, 5, 10, 15), "many_d": (2, 5, 10, 15), "steps": 4000,
          "chunk": 250},
    quick={"trials": 40, "many_n": (1, 5, 15), "many_d": (2, 5, 15), "steps": 800, "chunk": 40},
    run=run,
    draw=draw,
)  # fmt: skip
