"""The floor of normalized gradient descent, and what removes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import attsvm
from attsvm.comparison.metrics import misalignment
from attsvm.validation.figures.framework import Context, Figure, Outcome, Table

if TYPE_CHECKING:
    from attsvm.training.options import Arithmetic

__all__ = ["FACTOR_VARIANTS", "FIGURE", "factor_errors", "run", "weight_errors"]

CHECKPOINTS = (500, 1000, 2000, 5000, 10_000, 20_000, 60_000)

# What is changed against the recipe optimizer="ridge_decay" (joint normalization, ridge e^-200, lr 0.1, decay after a
# quarter of the steps, uniform start).
FACTOR_VARIANTS: dict[str, dict[str, Any]] = {
    "no ridge, no decay, joint": {"optimizer": "normalized_gd"},
    "no ridge, no decay, per factor": {"optimizer": "normalized_gd", "normalization": "factor"},
    "no ridge, decay": {"optimizer": "normalized_gd", "decay": True},
    "ridge e^-36 (machine epsilon)": {"optimizer": "ridge_decay", "log_ridge": -36.0},
    "ridge e^-100": {"optimizer": "ridge_decay", "log_ridge": -100.0},
    "ridge e^-200: the recipe": {"optimizer": "ridge_decay"},
    "ridge e^-400": {"optimizer": "ridge_decay", "log_ridge": -400.0},
    "recipe, per factor": {"optimizer": "ridge_decay", "normalization": "factor"},
    "recipe, lr 0.03": {"optimizer": "ridge_decay", "lr": 0.03},
    "recipe, lr 0.3": {"optimizer": "ridge_decay", "lr": 0.3},
    "recipe, no decay": {"optimizer": "ridge_decay", "decay": False},
    "recipe, start 10x smaller": {"optimizer": "ridge_decay", "scale": 0.1},
    "recipe, start 10x larger": {"optimizer": "ridge_decay", "scale": 10.0},
}


def _problems(trials: int, draw: int) -> attsvm.AttentionProblem:
    return attsvm.random_problem(n=6, T=8, d=10, batch=trials, seed=draw)


def _errors(run: attsvm.Run, snapshot: int, norm: str) -> np.ndarray:
    """1 - correlation with the SVM of the tokens selected at a snapshot, per problem."""
    solved = attsvm.att_svm(run.problem, run.history.selection[snapshot], norm=norm)
    return misalignment(run.history.W[snapshot], solved.W)


def weight_errors(trials: int, _: int, *, draw: int, arithmetic: Arithmetic, marks: list[int]) -> dict[str, Any]:
    """1 - corr of W with Att-SVM at the marked steps, for the batch that ``random_problem(seed=draw)`` gives.

    Examples
    --------
    >>> from attsvm.validation.figures.own.floor import weight_errors
    >>> weight_errors(2, 0, draw=0, arithmetic="log", marks=[500, 1000])["error"].shape
    (2, 2)
    """
    batch = _problems(trials, draw)
    run = attsvm.train(batch, steps=max(marks), arithmetic=arithmetic, snapshots=marks, seed=draw)
    at = np.searchsorted(run.history.steps, marks)
    return {"error": np.stack([_errors(run, int(s), "frobenius") for s in at], axis=1)}


def factor_errors(trials: int, _: int, *, draw: int, variant: str, steps: int) -> dict[str, Any]:
    """1 - corr of K Q^T with Att-SVM* at the end, and its norm, for one way of training (K, Q).

    Examples
    --------
    >>> from attsvm.validation.figures.own.floor import factor_errors
    >>> sorted(factor_errors(1, 0, draw=0, variant="recipe, lr 0.3", steps=20))
    ['error', 'norm']
    """
    batch = _problems(trials, draw)
    start = attsvm.train(batch, "KQ", steps=0, seed=draw).parameters
    options = dict(FACTOR_VARIANTS[variant])
    decay, scale = options.pop("decay", None), options.pop("scale", 1.0)
    if decay is not None:
        options["decay_after"] = max(1, steps // 4) if decay else steps
    init = (scale * start["K"], scale * start["Q"])
    run = attsvm.train(batch, "KQ", steps=steps, init=init, snapshots=2, **options)
    return {"error": _errors(run, -1, "nuclear"), "norm": run.history.norm[-1]}


def run(context: Context) -> Outcome:
    """Both arithmetics for W, then every variant for (K, Q)."""
    s, trials = context.settings, context.settings["trials"]
    marks = [k for k in CHECKPOINTS if k <= s["steps"]]
    cells = [{"draw": context.seed, "arithmetic": a, "marks": marks} for a in ("log", "naive")]
    log, naive = (c["error"].astype(float) for c in context.sweep(weight_errors, cells, chunk=trials, name="W").columns)
    middle = [(np.nanmean(e, axis=0), np.nanmedian(e, axis=0)) for e in (log, naive)]
    few = min(trials, s["factor_trials"])
    variants = [{"draw": context.seed, "variant": v, "steps": s["factor_steps"]} for v in FACTOR_VARIANTS]
    rows = []
    for cell, columns in context.sweep(factor_errors, variants, few, chunk=few, name="KQ"):
        error = columns["error"].astype(float)
        numbers = (np.nanmedian(error), np.nanmean(error), np.nanmax(error), np.median(columns["norm"]))
        rows.append((cell["variant"], *map(float, numbers)))
    return Outcome(
        tables=[
            Table(f"W, {trials} problems: 1 - corr with Att-SVM of the selected tokens",
                  ("step", "log domain: mean", "median", "published arithmetic: mean", "median"),
                  [(k, *(float(values[j]) for pair in middle for values in pair)) for j, k in enumerate(marks)]),
            Table(f"(K, Q), {s['factor_steps']} steps, {few} problems: 1 - corr with Att-SVM*",
                  ("variant", "median", "mean", "worst", "|W| median"), rows),
        ],
        curves={"steps": marks, "log": log, "naive": naive},
    )  # fmt: skip


FIGURE = Figure(
    paper="own",
    name="floor",
    title="The floor of normalized gradient descent, and what removes it",
    protocol="""Published arithmetic rounds the selected token's gradient away once the softmax saturates: the direction
        stops improving near 1 - corr = 3e-3 and then drifts away. Log-domain gradients go on. For (K, Q) they are not
        enough: the second table varies normalization, ridge, step and initial scale. Normalized gradient descent, lr
        0.1, logistic loss, n = 6, T = 8, d = 10, the problems of random_problem(seed=SEED).""",
    full={"trials": 100, "steps": 60_000, "factor_trials": 20, "factor_steps": 10_000},
    quick={"trials": 5, "steps": 2000, "factor_trials": 2, "factor_steps": 200},
    run=run,
)
