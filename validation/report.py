"""What every validation prints: environment, confidence intervals, a console."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import version

import numpy as np
from rich.console import Console

__all__ = ["console", "environment", "mean_interval"]


def environment() -> str:
    """Versions that a number depends on, in one line.

    Examples
    --------
    >>> from attsvm.validation.report import environment
    >>> environment().startswith("Python 3")
    True
    """
    packages = ("attsvm", "numpy", "scipy", "cvxpy", "clarabel", "scs")
    return f"Python {platform.python_version()}, " + ", ".join(f"{name} {version(name)}" for name in packages)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half-width of its 95 % normal confidence interval.

    Examples
    --------
    >>> from attsvm.validation.report import mean_interval
    >>> mean_interval([1.0, 1.0])
    (1.0, 0.0)
    """
    x = np.asarray(values, dtype=np.float64)
    spread = float(x.std(ddof=1)) if len(x) > 1 else float("nan")
    return float(x.mean()), 1.96 * spread / float(np.sqrt(len(x)))


def console(stderr: bool = False) -> Console:
    """A console that neither wraps lines nor invents colours in files."""
    return Console(soft_wrap=True, highlight=False, stderr=stderr)
