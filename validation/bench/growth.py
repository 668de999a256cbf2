"""How the Frobenius solve grows with the number of sequences."""

from __future__ import annotations

import numpy as np

import attsvm
from attsvm.validation.bench.measure import measure

__all__ = ["GROWTH_SIZES", "fitted_exponent", "growth"]

GROWTH_SIZES = (63, 125, 250, 500, 1000)


def growth(
    seed: int, *, sizes: tuple[int, ...] = GROWTH_SIZES, T: int = 64, d: int = 512
) -> dict[str, dict[str, float]]:
    """Seconds for each number of sequences and the fitted exponent, for one draw.

    Examples
    --------
    >>> from attsvm.validation.bench.growth import growth
    >>> list(growth(0, sizes=(2, 4), T=3, d=8)["attsvm"])
    ['exponent', '4 rows', '8 rows']
    """
    rows, seconds = [], []
    for n in sizes:
        problem = attsvm.random_problem(n=n, T=T, d=d, seed=seed)
        rows.append(n * (T - 1))
        seconds.append(measure(attsvm.att_svm, lambda p=problem: p, repeats=2).seconds)  # type: ignore[misc]
    points = {f"{count} rows": took for count, took in zip(rows, seconds, strict=True)}
    return {"attsvm": {"exponent": fitted_exponent(rows, seconds), **points}}


def fitted_exponent(rows: list[int], seconds: list[float]) -> float:
    """Slope of log time against log rows.

    Examples
    --------
    >>> from attsvm.validation.bench.growth import fitted_exponent
    >>> round(fitted_exponent([10, 100, 1000], [1.0, 10.0, 100.0]), 6)
    1.0
    """
    return float(np.polyfit(np.log(rows), np.log(seconds), 1)[0])
