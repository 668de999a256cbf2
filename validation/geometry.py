"""Which SVM does each optimizer follow? Margins reached in five norms.

Normalized steepest descent in a norm should maximize the margin of that norm. Solutions of the spectral and the
entrywise maximum norm need not be unique, so the table shows margins, which are: the margin of the normalized
iterate in a norm, relative to the largest possible. Run as ``python -m attsvm.validation.geometry``.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import attsvm
from attsvm.comparison.metrics import misalignment, reached_margin
from attsvm.solvers import Status
from attsvm.validation.report import console, environment

__all__ = ["OPTIMIZERS", "main", "margin_table"]

NORMS = ("frobenius", "spectral", "linf", "l3", "l1.5")
# Optimizer: (step size, the norm that it should follow). Entrywise methods move every entry by lr, hence smaller steps.
OPTIMIZERS: dict[str, tuple[float, str | None]] = {
    "normalized_gd": (0.1, "frobenius"),
    "spectral": (0.05, "spectral"),
    "sign": (0.02, "linf"),
    "steepest:l3": (0.05, "l3"),
    "mirror:l3": (0.1, "l3"),
    "mirror:l1.5": (0.1, "l1.5"),
    "adam": (0.02, None),
}


def margin_table(problems: int, steps: int, seed: int = 0) -> dict[str, dict[str, dict[str, float]]]:
    """Optimizer to norm to {"margin": median share of the largest margin, "misalignment": median 1 - corr}.

    Examples
    --------
    >>> from attsvm.validation.geometry import margin_table
    >>> table = margin_table(problems=1, steps=50)
    >>> sorted(table["sign"]["linf"])
    ['margin', 'misalignment']
    """
    batch = attsvm.random_problem(n=4, T=5, d=8, batch=problems, seed=seed)
    solved: dict[tuple[int, bytes, str], attsvm.Solution] = {}
    table = {}
    for optimizer, (lr, _) in OPTIMIZERS.items():
        run = attsvm.train(
            batch, steps=steps, lr=lr, optimizer=optimizer, decay_after=max(1, steps // 4), snapshots=2, seed=seed
        )
        shares: dict[str, list[float]] = {norm: [] for norm in NORMS}
        errors: dict[str, list[float]] = {norm: [] for norm in NORMS}
        for b in range(problems):
            single, selection = batch[b], run.selection[b]
            for norm in NORMS:
                key = (b, selection.indices.tobytes(), norm)
                if key not in solved:
                    solved[key] = attsvm.att_svm(single, selection, norm=norm)
                solution = solved[key]
                if solution.status is Status.OPTIMAL:
                    reached = reached_margin(single, run.W[b], selection, norm)
                    shares[norm].append(float(reached / solution.margin))
                    errors[norm].append(float(misalignment(run.W[b], solution.W)))
        table[optimizer] = {
            norm: {"margin": float(np.median(shares[norm])), "misalignment": float(np.median(errors[norm]))}
            for norm in NORMS
        }
    return table


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m attsvm.validation.geometry", description=__doc__)
    parser.add_argument("--problems", type=int, default=20)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    table = margin_table(options.problems, options.steps, options.seed)
    out = console()
    out.print(
        f"n=4, T=5, d=8, {options.problems} problems, {options.steps} steps, step decays as 1/k after a quarter, seed "
        f"{options.seed}; tokens that each run selects; medians"
    )
    for quantity, title in (
        ("margin", "margin reached, share of the largest"),
        ("misalignment", "1 - corr with the SVM"),
    ):
        out.print(f"{title}:")
        out.print(f"{'optimizer':16}" + "".join(f"{norm:>12}" for norm in NORMS) + "   own norm")
        for optimizer, (_, own) in OPTIMIZERS.items():
            values = [table[optimizer][norm][quantity] for norm in NORMS]
            cells = "".join(f"{100 * v:11.2f}%" if quantity == "margin" else f"{v:12.1e}" for v in values)
            out.print(f"{optimizer:16}{cells}   {own or '-'}")
    out.print(f"{time.perf_counter() - start:.0f} s; {environment()}")


if __name__ == "__main__":
    main()
