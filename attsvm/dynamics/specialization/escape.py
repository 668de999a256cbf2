"""The two time scales: reaching the mean of theta, and leaving the saddle where all heads are alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attsvm.dynamics.specialization.flow import Trajectory, descend
from attsvm.dynamics.specialization.order import OrderParameters
from attsvm.dynamics.specialization.priors import Prior
from attsvm.dynamics.specialization.reduced import reduced_gradient
from attsvm.dynamics.specialization.samples import Samples

__all__ = [
    "LogFit",
    "crossing_time",
    "curvature_m",
    "head_split",
    "log_fit",
    "measured_escape",
    "specialization_time",
    "unspecialized_point",
]


def unspecialized_point(
    prior: Prior, samples: Samples, activation: str, H: int, *, steps: int = 2000, tolerance: float = 1e-7
) -> OrderParameters:
    """The point with equal heads and r = 0 at which they wait before they specialize.

    Found by descent from m = 0: equal heads stay equal (Lemma A.1). It lies on the line of the mean of theta if
    ``E[w . theta | mean . theta] = 0`` for every w orthogonal to the mean (Lemma A.2 needs that condition).

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.specialization import draw_samples, flipping_spike, unspecialized_point
    >>> prior = flipping_spike(2.0, 2.0)
    >>> samples = draw_samples(prior, L=5, H=0, n=20_000, generator=torch.Generator().manual_seed(0))
    >>> point = unspecialized_point(prior, samples, "softmax", H=2)
    >>> round(float(point.m[0, 0]), 1), abs(round(float(point.m[0, 1]), 6))  # sqrt(2): the constant spike
    (1.4, 0.0)
    """
    like = samples.blocks[0]
    start = OrderParameters(like.new_zeros(H, prior.features))
    return descend(start, samples, activation, steps=steps, lr=0.5, momentum=0.8, tolerance=tolerance).end


def curvature_m(point: OrderParameters, samples: Samples, activation: str, *, step: float = 1e-3) -> Tensor:
    """Hessian of the reduced loss in m, shape (H F, H F), by central differences of the exact gradient.

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.specialization import OrderParameters, draw_samples, gaussian_spikes
    >>> from attsvm.dynamics.specialization.escape import curvature_m
    >>> samples = draw_samples(gaussian_spikes(1, 4.0), L=5, H=0, n=20_000, generator=torch.Generator().manual_seed(0))
    >>> values = torch.linalg.eigvalsh(curvature_m(OrderParameters(torch.zeros(2, 1).double()), samples, "softmax"))
    >>> bool((values - torch.tensor([-0.384, -0.096])).abs().max() < 0.02)  # the closed form
    True
    """
    if point.m.ndim != 2:
        raise ValueError("curvature_m belongs to one point; index the batch first, e.g. point[0]")
    H, F = point.m.shape
    shifts = step * torch.eye(H * F, dtype=point.m.dtype, device=point.m.device).reshape(H * F, H, F)
    moved = torch.cat([point.m + shifts, point.m - shifts])
    runs = len(moved)
    spread: dict[str, Any] = {
        "r": None if point.r is None else point.r.expand(runs, *point.r.shape),
        "b": point.b.expand(runs, H),
        "v": point.v.expand(runs),
    }
    gradient = reduced_gradient(OrderParameters(moved, **spread), samples, activation).m.reshape(2, H * F, H * F)
    hessian = (gradient[0] - gradient[1]) / (2 * step)
    return 0.5 * (hessian + hessian.T)


def measured_escape(point: OrderParameters, samples: Samples, activation: str) -> float:
    """Rate at which the fastest perturbation of m grows at a stationary point; negative at a minimum.

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.specialization import OrderParameters, draw_samples, gaussian_spikes, measured_escape
    >>> samples = draw_samples(gaussian_spikes(1, 4.0), L=5, H=0, n=20_000, generator=torch.Generator().manual_seed(0))
    >>> abs(measured_escape(OrderParameters(torch.zeros(2, 1).double()), samples, "softmax") - 0.384) < 0.02
    True
    """
    return -float(torch.linalg.eigvalsh(curvature_m(point, samples, activation))[0])


def specialization_time(D: float, rate: float) -> float:
    """``log(D) / (2 rate)``: when a perturbation of size ``D^-1/2`` has grown to order one (Proposition III.4).

    Examples
    --------
    >>> from attsvm.dynamics.specialization import specialization_time
    >>> round(specialization_time(1e4, 0.05), 1)
    92.1
    """
    if not (D > 1 and rate > 0):
        raise ValueError(f"D > 1 and rate > 0 are needed, got D={D}, rate={rate}")
    return log(D) / (2 * rate)


def head_split(path: Trajectory) -> Tensor:
    """Largest distance between the alignments of two heads along a trajectory, shape (T, ...).

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.specialization import OrderParameters, head_split
    >>> from attsvm.dynamics.specialization.flow import Trajectory
    >>> point = OrderParameters(torch.tensor([[1.0, 2.0], [1.0, -1.0]]))
    >>> head_split(Trajectory.of([0.0], [point], [torch.tensor(0.5)]))
    tensor([3.])
    """
    m = path.m
    distances: Tensor = torch.linalg.vector_norm(m.unsqueeze(-2) - m.unsqueeze(-3), dim=-1)
    return distances.flatten(-2).amax(-1)


def crossing_time(times: npt.ArrayLike, values: npt.ArrayLike, level: float) -> float:
    """First time at which the values exceed the level, interpolated linearly; NaN if they never do.

    Examples
    --------
    >>> from attsvm.dynamics.specialization import crossing_time
    >>> crossing_time([0.0, 1.0, 2.0], [0.0, 0.0, 1.0], 0.5)
    1.5
    """
    t, x = np.asarray(times, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if t.shape != x.shape or t.ndim != 1:
        raise ValueError(f"times and values must be vectors of one length, got {t.shape} and {x.shape}")
    above = np.flatnonzero(x > level)
    if not len(above):
        return float("nan")
    k = int(above[0])
    if k == 0:
        return float(t[0])
    return float(t[k - 1] + (level - x[k - 1]) / (x[k] - x[k - 1]) * (t[k] - t[k - 1]))


@dataclass(frozen=True)
class LogFit:
    """Least-squares line ``time = intercept + slope log(D)`` with the standard error of its slope."""

    slope: float
    intercept: float
    error: float


def log_fit(D: Sequence[float], times: Sequence[float]) -> LogFit:
    """Fit times against log D, finite ones only.

    Examples
    --------
    >>> from attsvm.dynamics.specialization import log_fit
    >>> round(log_fit([1e2, 1e3, 1e4], [10.0, 12.302585, 14.60517]).slope, 6)
    1.0
    """
    x, y = np.log(np.asarray(D, dtype=np.float64)), np.asarray(times, dtype=np.float64)
    kept = np.isfinite(y)
    x, y = x[kept], y[kept]
    if len(np.unique(x)) < 2:
        raise ValueError("log_fit needs finite times at two values of D or more")
    slope, intercept = np.polyfit(x, y, 1)
    rest = y - slope * x - intercept
    dof = max(len(x) - 2, 1)
    error = np.sqrt((rest @ rest) / dof / ((x - x.mean()) ** 2).sum())
    return LogFit(float(slope), float(intercept), float(error))
