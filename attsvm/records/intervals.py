"""Estimates with their 95 % confidence intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Interval", "mean_of", "mean_share_of", "median_of", "share", "share_of"]


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % confidence interval.

    Examples
    --------
    >>> from attsvm.records import Interval
    >>> str(Interval(0.5, 0.25, 0.75, percent=True)), str(Interval(2.0, 1.0, 3.0))
    ('50.0 % [25.0, 75.0]', '2 ± 1')
    """

    value: float
    low: float
    high: float
    percent: bool = False
    skewed: bool = False

    def __str__(self) -> str:
        if not np.isfinite(self.value):
            return "-"
        if self.skewed:
            return f"{self.value:.2g} [{self.low:.2g}, {self.high:.2g}]"
        if self.percent:
            return f"{100 * self.value:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}]"
        half = (self.high - self.low) / 2
        return f"{self.value:.3g} ± {half:.1g}" if np.isfinite(half) else f"{self.value:.3g} (one value)"


def mean_of(values: Any) -> Interval:
    """Mean of the finite values with its normal 95 % interval.

    Examples
    --------
    >>> from attsvm.records import mean_of
    >>> str(mean_of([1.0, 2.0, 3.0]))
    '2 ± 1'
    """
    x = np.asarray(values, dtype=np.float64).ravel()
    x = x[np.isfinite(x)]
    if not len(x):
        return Interval(float("nan"), float("nan"), float("nan"))
    half = 1.96 * float(x.std(ddof=1)) / float(np.sqrt(len(x))) if len(x) > 1 else float("nan")
    mean = float(x.mean())
    return Interval(mean, mean - half, mean + half)


def mean_share_of(values: Any) -> Interval:
    """Mean of finite shares, numbers in [0, 1], with an interval that stays in [0, 1], after Wilson.

    The shares may differ in how many things they count and in how alike these are, so the mean has the spread of the
    shares themselves, not that of a single count: Wilson's interval is taken for the number of independent counts
    whose share would spread as much. Where all shares are equal it is taken for as many counts as there are shares.

    Parameters
    ----------
    values : array_like
        One share per independent unit: a sequence, a run, a head.

    Examples
    --------
    >>> from attsvm.records import mean_share_of
    >>> str(mean_share_of([0.0, 0.0, 0.0, 0.125])), str(mean_share_of([0.0, 0.0, 0.0]))
    ('0.031 [0.0054, 0.16]', '0 [0, 0.56]')
    """
    x = np.asarray(values, dtype=np.float64).ravel()
    x = x[np.isfinite(x)]
    if len(x) and (x.min() < -1e-9 or x.max() > 1 + 1e-9):
        raise ValueError(f"shares must lie in [0, 1], got {x.min():.3g} to {x.max():.3g}")
    if len(x) < 2:
        return mean_of(x)
    mean = min(1.0, max(0.0, float(x.mean())))
    variance = float(x.var(ddof=1)) / len(x)
    # Of shares that spread as widely as they can, each is one count; they cannot spread more than that.
    counts = max(float(len(x) - 1), mean * (1 - mean) / variance) if variance > 0 else float(len(x))
    z2 = 1.96**2 / counts
    middle = (mean + z2 / 2) / (1 + z2)
    half = float(np.sqrt(z2 * mean * (1 - mean) + z2**2 / 4)) / (1 + z2)
    return Interval(mean, max(0.0, middle - half), min(1.0, middle + half), skewed=True)


def median_of(values: Any) -> Interval:
    """Median of the finite values with its 95 % interval by order statistics, whatever their distribution.

    Of fewer than six values no two enclose the median with 95 %: the interval is then all of them.

    Examples
    --------
    >>> from attsvm.records import median_of
    >>> str(median_of([1e-6, 2e-6, 3e-6, 4e-6, 5e-6, 6e-6, 7e-3]))
    '4e-06 [1e-06, 0.007]'
    """
    x = np.asarray(values, dtype=np.float64).ravel()
    x = np.sort(x[np.isfinite(x)])
    if not len(x):
        return Interval(float("nan"), float("nan"), float("nan"), skewed=True)
    from scipy.stats import binom

    k = max(0, int(binom.ppf(0.025, len(x), 0.5)) - 1)  # P(fewer than k + 1 values below the median) <= 2.5 %
    return Interval(float(np.median(x)), float(x[k]), float(x[len(x) - 1 - k]), skewed=True)


def share(count: int, total: int) -> Interval:
    """A share with Wilson's 95 % interval, which is right also at 0 and 100 %.

    Examples
    --------
    >>> from attsvm.records import share
    >>> str(share(0, 100))
    '0.0 % [0.0, 3.7]'
    """
    if not total:
        return Interval(float("nan"), float("nan"), float("nan"), percent=True)
    from scipy.stats import binomtest

    found = binomtest(count, total).proportion_ci(method="wilson")
    return Interval(count / total, float(found.low), float(found.high), percent=True)


def share_of(flags: Any) -> Interval:
    """Share of true values; see `share`.

    Examples
    --------
    >>> from attsvm.records import share_of
    >>> str(share_of([True] * 10))
    '100.0 % [72.2, 100.0]'
    """
    x = np.asarray(flags, dtype=bool).ravel()
    return share(int(x.sum()), len(x))
