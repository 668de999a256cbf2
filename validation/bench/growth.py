"""How the Frobenius solve grows with the number of sequences."""

from __future__ import annotations

import numpy as np

import attsvm
from attsvm.validation.bench.measure import measure

__all__ = ["fitted_exponent", "growth_times"]


def growth_times(sizes: tuple[int, ...], T: int, d: int, seed: int = 0) -> list[tuple[int, float, float]]:
    """(rows, seconds, worst of the certificate) for each number of sequences, the best of two runs."""
    found = []
    for n in sizes:
        problem = attsvm.random_problem(n=n, T=T, d=d, seed=seed)
        solution, seconds, _ = measure(lambda p=problem: attsvm.att_svm(p), repeats=2)  # type: ignore[misc]
        found.append((n * (T - 1), seconds, solution.certificate.worst))
    return found


def fitted_exponent(rows: list[int], seconds: list[float]) -> float:
    """Slope of log time against log rows.

    Examples
    --------
    >>> from attsvm.validation.bench.growth import fitted_exponent
    >>> round(fitted_exponent([10, 100, 1000], [1.0, 10.0, 100.0]), 6)
    1.0
    """
    return float(np.polyfit(np.log(rows), np.log(seconds), 1)[0])
