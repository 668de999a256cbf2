"""What a profile of propagation probabilities amounts to: which site keeps a signal, or all, or none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from attsvm._arrays import finite_array, real_array

__all__ = ["LocalizationSummary", "Site", "summarize"]

Float64Array = npt.NDArray[np.float64]
Site = Literal["early", "middle", "late", "split", "uniform", "vanishing"]


@dataclass(frozen=True)
class LocalizationSummary:
    """Where the signal propagates.

    Attributes
    ----------
    site : {"early", "middle", "late", "split", "uniform", "vanishing"}
        "vanishing" if no token reaches ``vanishing_below``; "uniform" if the lowest is within ``uniform_within`` of the
        highest; else the site of the window: it touches the first token (early), the last (late), neither (middle) or
        both (split).
    peak : float
        Highest probability.
    peak_theta : float
        Its relative position.
    window : tuple of float
        First and last relative position at or above the level halfway between the lowest and the highest.
    center : float
        Mean relative position, weighted by the probability; nan if all are zero.
    participation : float
        ``(sum rho)^2 / (T sum rho^2)``, from 1/T (one token) to 1 (all alike); nan if all are zero.
    mean : float
    contrast : float
        ``(highest - lowest) / highest``; 0 if all are zero.
    """

    site: Site
    peak: float
    peak_theta: float
    window: tuple[float, float]
    center: float
    participation: float
    mean: float
    contrast: float

    @property
    def localized(self) -> bool:
        """Whether some tokens keep a signal and others do not."""
        return self.site not in ("uniform", "vanishing")


def summarize(
    rho: Any, theta: Any = None, *, vanishing_below: float = 0.05, uniform_within: float = 0.1
) -> LocalizationSummary:
    """Summarize a profile of propagation probabilities.

    Parameters
    ----------
    rho : array_like, shape (T,)
        Probabilities, T >= 2.
    theta : array_like, shape (T,), optional
        Increasing relative positions; ``1/T, ..., 1`` by default.
    vanishing_below, uniform_within : float
        Thresholds of the verdict, see `LocalizationSummary`.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.localization import rho, summarize
    >>> theta = np.linspace(0, 1, 101)
    >>> found = summarize(rho(theta, xi=512.0, eta=0.01), theta)
    >>> found.site, found.window[0], round(found.window[1], 3)
    ('middle', 0.5, 0.69)
    >>> [summarize(rho(theta, xi, eta), theta).site for xi, eta in ((50, 0.01), (-50, 0.01), (0, 0.1), (0, 1), (0, 99))]
    ['late', 'early', 'uniform', 'middle', 'vanishing']
    """
    values = finite_array("rho", rho)
    if values.ndim != 1 or len(values) < 2:
        raise ValueError(f"rho must have shape (T,) with T >= 2, got {values.shape}")
    if values.min() < 0 or values.max() > 1:
        raise ValueError(f"rho must hold probabilities, got values in [{values.min():.6g}, {values.max():.6g}]")
    T = len(values)
    positions = np.arange(1, T + 1) / T if theta is None else real_array("theta", theta).astype(np.float64)
    if positions.shape != values.shape:
        raise ValueError(f"theta must have the shape {values.shape} of rho, got {positions.shape}")
    if not (np.diff(positions) > 0).all():
        raise ValueError("theta must increase")
    highest, lowest, total = float(values.max()), float(values.min()), float(values.sum())
    above = np.flatnonzero(values >= (highest + lowest) / 2)
    contrast = (highest - lowest) / highest if highest > 0 else 0.0
    first, last = above[0] == 0, above[-1] == T - 1
    site: Site
    if highest < vanishing_below:
        site = "vanishing"
    elif contrast <= uniform_within:
        site = "uniform"
    elif first and last:
        site = "split"
    else:
        site = "early" if first else "late" if last else "middle"
    return LocalizationSummary(
        site=site,
        peak=highest,
        peak_theta=float(positions[int(np.argmax(values))]),
        window=(float(positions[above[0]]), float(positions[above[-1]])),
        center=float(values @ positions) / total if total > 0 else float("nan"),
        participation=total**2 / (T * float(values @ values)) if total > 0 else float("nan"),
        mean=total / T,
        contrast=contrast,
    )
