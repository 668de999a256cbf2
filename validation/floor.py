"""The floor of normalized gradient descent, and what removes it.

Published arithmetic rounds the selected token's gradient away once the softmax saturates: the direction stops
improving near 1 - corr = 3e-3 and then drifts away. Log-domain gradients go on. For (K, Q) they are not enough:
the second table varies normalization, ridge, step and initial scale. Run as ``python -m attsvm.validation.floor``.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np

import attsvm
from attsvm.comparison.metrics import misalignment
from attsvm.validation.report import console, environment

__all__ = ["factor_table", "floor_table", "main"]

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


def _errors(run: attsvm.Run, snapshot: int, norm: str) -> np.ndarray:
    """1 - correlation with the SVM of the tokens selected at a snapshot, per problem."""
    solved = attsvm.att_svm(run.problem, run.history.selection[snapshot], norm=norm)
    return misalignment(run.history.W[snapshot], solved.W)


def floor_table(problems: int, steps: int, seed: int = 0, progress: bool = False) -> list[dict[str, Any]]:
    """Mean and median of 1 - corr with Att-SVM at the checkpoints, for both arithmetics.

    Examples
    --------
    >>> from attsvm.validation.floor import floor_table
    >>> [row["step"] for row in floor_table(problems=2, steps=1000)]
    [500, 1000]
    """
    batch = attsvm.random_problem(n=6, T=8, d=10, batch=problems, seed=seed)
    kept = [k for k in CHECKPOINTS if k <= steps]
    rows: list[dict[str, Any]] = [{"step": k} for k in kept]
    for arithmetic in ("log", "naive"):
        run = attsvm.train(batch, steps=max(kept), arithmetic=arithmetic, snapshots=kept, seed=seed, progress=progress)
        for row in rows:
            s = int(np.flatnonzero(run.history.steps == row["step"])[0])
            error = _errors(run, s, "frobenius")
            row[arithmetic] = {"mean": float(np.nanmean(error)), "median": float(np.nanmedian(error))}
    return rows


def factor_table(problems: int, steps: int, seed: int = 0) -> list[dict[str, Any]]:
    """Median, mean and worst 1 - corr with Att-SVM* for each variant of training (K, Q).

    Examples
    --------
    >>> from attsvm.validation.floor import factor_table
    >>> len(factor_table(problems=1, steps=20))
    13
    """
    batch = attsvm.random_problem(n=6, T=8, d=10, batch=problems, seed=seed)
    start = attsvm.train(batch, "KQ", steps=0, seed=seed).parameters
    rows = []
    for label, variant in FACTOR_VARIANTS.items():
        options = dict(variant)
        decay, scale = options.pop("decay", None), options.pop("scale", 1.0)
        if decay is not None:
            options["decay_after"] = max(1, steps // 4) if decay else steps
        init = (scale * start["K"], scale * start["Q"])
        run = attsvm.train(batch, "KQ", steps=steps, init=init, snapshots=2, **options)
        error = _errors(run, -1, "nuclear")
        rows.append(
            {
                "variant": label,
                "median": float(np.nanmedian(error)),
                "mean": float(np.nanmean(error)),
                "worst": float(np.nanmax(error)),
                "norm": float(np.median(run.history.norm[-1])),
            }
        )
    return rows


def main(arguments: list[str] | None = None) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="python -m attsvm.validation.floor", description=__doc__)
    parser.add_argument("--problems", type=int, default=100, help="problems for W")
    parser.add_argument("--steps", type=int, default=60_000, help="steps for W")
    parser.add_argument("--factor-problems", type=int, default=20)
    parser.add_argument("--factor-steps", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    floor = floor_table(options.problems, options.steps, options.seed, progress=not options.json)
    factors = factor_table(options.factor_problems, options.factor_steps, options.seed)
    seconds = time.perf_counter() - start
    if options.json:
        record = {"parameters": vars(options), "W": floor, "KQ": factors, "seconds": seconds}
        print(json.dumps(record | {"environment": environment()}, indent=2))
        return
    out = console()
    out.print(f"W, normalized GD, lr 0.1, logistic, n=6, T=8, d=10, {options.problems} problems, seed {options.seed}")
    out.print(f"{'step':>7} {'log domain: mean':>17} {'median':>8} {'published: mean':>17} {'median':>8}   (1 - corr)")
    for row in floor:
        log, naive = row["log"], row["naive"]
        out.print(
            f"{row['step']:7d} {log['mean']:17.1e} {log['median']:8.1e} {naive['mean']:17.1e} {naive['median']:8.1e}"
        )
    out.print(f"(K, Q), {options.factor_steps} steps, {options.factor_problems} problems, 1 - corr with Att-SVM*")
    out.print(f"{'variant':32} {'median':>8} {'mean':>8} {'worst':>8} {'|W| median':>11}")
    for row in factors:
        out.print(
            f"{row['variant']:32} {row['median']:8.1e} {row['mean']:8.1e} {row['worst']:8.1e} {row['norm']:11.3g}"
        )
    out.print(f"{seconds:.0f} s; {environment()}")


if __name__ == "__main__":
    main()
