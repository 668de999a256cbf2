"""Regularization paths against the SVM directions they should follow (Theorems 2 and 7).

Run as ``python -m attsvm.validation.paths``: the W path against the Frobenius direction, the (K, Q) path against the
nuclear one, and local paths against the local direction, with their distances at growing radii.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Sequence

import numpy as np

import attsvm
from attsvm.validation.report import console, environment

__all__ = ["global_distances", "local_distances", "main"]

LOSSES = ("logistic", "exponential", "correlation")


def global_distances(parameterization: str, loss: str, radii: Sequence[float], seeds: int) -> np.ndarray:
    """1 - corr with the predicted direction, shape (seeds, radii); n=3, T=4, d=4.

    Examples
    --------
    >>> from attsvm.validation.paths import global_distances
    >>> far, near = global_distances("W", "logistic", [5.0, 80.0], seeds=1)[0]
    >>> bool(near < 0.1 * far)
    True
    """
    found = []
    for seed in range(seeds):
        problem = attsvm.random_problem(n=3, T=4, d=4, seed=seed)
        found.append(attsvm.regularization_path(problem, radii, parameterization, loss=loss).distance)
    return np.array(found)


def local_distances(parameterization: str, radii: Sequence[float], seeds: int) -> np.ndarray:
    """1 - corr with the local direction for every locally optimal, non-global selection; n=2, T=4, d=3.

    Only selections with non-empty support sets: Lemma 5 fails without (and so does the theorem).
    """
    norm = "nuclear" if parameterization == "KQ" else "frobenius"
    found = []
    for seed in range(seeds):
        problem = attsvm.random_problem(n=2, T=4, d=3, seed=seed)
        best = problem.optimal_tokens().indices.tolist()
        for selection in itertools.product(range(4), repeat=2):
            solution = attsvm.att_svm(problem, list(selection), norm=norm)
            if list(selection) == best or not solution.status.has_solution:
                continue
            if not solution.support.any(axis=-1).all():
                continue
            if attsvm.is_locally_optimal(problem, list(selection), norm=norm, solution=solution):
                path = attsvm.regularization_path(problem, radii, parameterization, selection=list(selection))
                found.append(path.distance)
    return np.array(found).reshape(-1, len(radii))


def main(arguments: list[str] | None = None) -> None:
    """Print the distances."""
    parser = argparse.ArgumentParser(prog="python -m attsvm.validation.paths", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--radii", type=float, nargs="+", default=[5.0, 20.0, 80.0, 320.0])
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    out = console()
    out.print(f"1 - corr with the predicted direction, median / largest over seeds 0..{options.seeds - 1}")
    out.print(f"{'path':34}" + "".join(f"{f'R = {radius:g}':>20}" for radius in options.radii))

    def show(label: str, distances: np.ndarray) -> None:
        if not len(distances):
            out.print(f"{label:34} no such selection in these seeds")
            return
        cells = (f"{np.median(column):.1e} / {column.max():.1e}" for column in distances.T)
        out.print(f"{label:34}" + "".join(f"{cell:>20}" for cell in cells))

    for parameterization, direction in (("W", "Frobenius"), ("KQ", "nuclear")):
        for loss in LOSSES:
            show(
                f"Theorem 2: {parameterization}, {loss}",
                global_distances(parameterization, loss, options.radii, options.seeds),
            )
        show(
            f"Theorem 7: {parameterization}, local {direction}",
            local_distances(parameterization, options.radii, options.seeds),
        )
    out.print(f"{time.perf_counter() - start:.0f} s; {environment()}")


if __name__ == "__main__":
    main()
