"""Regularization paths against the SVM directions they should follow (Theorems 2 and 7)."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

import attsvm
from attsvm.validation.figures.framework import Context, Figure, Outcome, Table

__all__ = ["FIGURE", "global_distances", "local_distances", "run"]

LOSSES = ("logistic", "exponential", "correlation")
_NORMS = {"W": "frobenius", "KQ": "nuclear"}


def global_distances(
    trials: int, _: int, *, draw: int, parameterization: str, loss: str, radii: list[float]
) -> dict[str, Any]:
    """1 - corr with the predicted direction at every radius; n=3, T=4, d=4, problem seeds from ``draw`` on.

    Examples
    --------
    >>> from attsvm.validation.figures.own.paths import global_distances
    >>> found = global_distances(1, 0, draw=0, parameterization="W", loss="logistic", radii=[5.0, 80.0])
    >>> far, near = found["distances"][0][0]
    >>> bool(near < 0.1 * far)
    True
    """
    problems = (attsvm.random_problem(n=3, T=4, d=4, seed=draw + k) for k in range(trials))
    paths = (attsvm.regularization_path(problem, radii, parameterization, loss=loss) for problem in problems)
    return {"distances": [[path.distance.tolist()] for path in paths]}


def local_distances(trials: int, _: int, *, draw: int, parameterization: str, radii: list[float]) -> dict[str, Any]:
    """1 - corr with the local direction for every locally optimal, non-global selection; n=2, T=4, d=3.

    Only selections with non-empty support sets: Lemma 5 fails without (and so does the theorem).

    Examples
    --------
    >>> from attsvm.validation.figures.own.paths import local_distances
    >>> len(local_distances(2, 0, draw=0, parameterization="W", radii=[5.0])["distances"])
    2
    """
    found: list[list[Any]] = [[] for _ in range(trials)]
    for k, tokens in itertools.product(range(trials), itertools.product(range(4), repeat=2)):
        problem = attsvm.random_problem(n=2, T=4, d=3, seed=draw + k)
        solution = attsvm.att_svm(problem, list(tokens), norm=_NORMS[parameterization])
        best = problem.optimal_tokens().indices.tolist()
        if list(tokens) == best or not solution.status.has_solution or not solution.support.any(axis=-1).all():
            continue
        if attsvm.is_locally_optimal(problem, list(tokens), norm=_NORMS[parameterization], solution=solution):
            path = attsvm.regularization_path(problem, radii, parameterization, selection=list(tokens))
            found[k].append(path.distance.tolist())
    return {"distances": found}


def run(context: Context) -> Outcome:
    """Global paths for every loss and local paths, of W and of (K, Q)."""
    s = context.settings
    radii, draws = list(s["radii"]), range(context.seed, context.seed + s["trials"])
    rows, curves = [], {}
    for p, norm in _NORMS.items():
        kinds = {f"Theorem 2: {p}, {loss}": (global_distances, {"loss": loss}) for loss in LOSSES}
        for label, (fn, extra) in (kinds | {f"Theorem 7: {p}, local {norm}": (local_distances, {})}).items():
            cells = [{"draw": draw, "parameterization": p, "radii": radii, **extra} for draw in draws]
            done = context.sweep(fn, cells, 1, chunk=1, name=label).columns
            found = np.array([d for c in done for d in c["distances"].tolist()[0]]).reshape(-1, len(radii))
            curves[label] = found
            shown = (f"{np.median(x):.1e} / {x.max():.1e}" if len(x) else None for x in found.T)
            rows.append((label, len(found), *shown))
    columns = ("path", "paths", *(f"R = {radius:g}" for radius in radii))
    return Outcome([Table("1 - corr with the predicted direction, median / largest", columns, rows)], curves)


FIGURE = Figure(
    paper="own",
    name="paths",
    title="Regularization paths approach the directions of Theorems 2 and 7",
    protocol="""The W path against the Frobenius direction and the (K, Q) path against the nuclear one (n = 3, T = d =
        4), and local paths against the local direction (n = 2, T = 4, d = 3, selections whose support sets are not
        empty), with their distances at growing radii; one problem per seed from SEED on.""",
    full={"trials": 10, "radii": (5.0, 20.0, 80.0, 320.0)},
    quick={"trials": 1, "radii": (5.0, 40.0)},
    run=run,
)
