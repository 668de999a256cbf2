"""The loss near heads that are all alike, in closed form, and the two time scales on which they specialize.

Gradient and Hessian are those of Lemmas A.2 to A.5; ``a`` and ``o`` are the derivatives of one head's attention to a
token in the score of the same and of another token. Learnt features change the curvature of the others as Lemmas
III.2 and A.6 say (softmax, independent centred theta): the derivatives of softmax at zero are the joint cumulants of
a uniform one-hot vector, and all constants follow. The first time scale reaches the mean of theta, the second leaves
the saddle.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, factorial, log
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attsvm.dynamics.specialization.head_flow import Trajectory, descend
from attsvm.dynamics.specialization.reduced_loss import OrderParameters, reduced_gradient
from attsvm.dynamics.specialization.spiked_data import Prior, Samples
from attsvm.solvers import ConvergenceWarning
from attsvm.solvers.arrays import FloatArray
from attsvm.user_input import require_choice

_NAMES = ("softmax", "softmax1", "bayes")


def _check(activation: str, L: int, H: int, form: str) -> None:
    require_choice("activation", activation, *_NAMES)
    if L < 2 or H < 1:
        raise ValueError(f"L >= 2 and H >= 1 are needed, got L={L}, H={H}")
    require_choice("form", form, "corrected", "printed")


def balanced_amplitude(L: int, b: float = 0.0) -> float:
    """Amplitude ``v = 1 + e^b / L`` of softmax-1 at which uniform attention sums to one (Lemma A.4).

    Examples
    --------
    >>> from attsvm.dynamics.specialization import balanced_amplitude
    >>> balanced_amplitude(4)
    1.25
    """
    return 1.0 + exp(b) / L


@dataclass(frozen=True)
class QuadraticConstants:
    """Constants of the expansion (37).

    ``loss = loss_0 + c1 |1^T r|^2 + c5 (1^T b)^2 + [1 1^T x (c1 I + (c2 + c4) Cov) - (c3 + c4) I x Cov](m, m)``.
    """

    c1: float
    c2: float
    c3: float
    c4: float
    c5: float


def quadratic_constants(
    activation: str, L: int, H: int, *, b: float = 0.0, form: str = "corrected"
) -> QuadraticConstants:
    """Constants (51)-(57) of the Hessian at m = r = 0, heads unspecialized, v balanced.

    Parameters
    ----------
    activation : {"softmax", "softmax1", "bayes"}
    L, H : int
    b : float
        Common threshold of softmax-1.
    form : {"corrected", "printed"}
        The printed (52) sums over one token index too many: c2 is L times too large.

    Examples
    --------
    >>> from attsvm.dynamics.specialization import quadratic_constants
    >>> quadratic_constants("softmax", L=4, H=2).c3  # (L - 1)(L - 2) / (H L^3)
    0.046875
    """
    _check(activation, L, H, form)
    c4 = c5 = 0.0
    if activation == "softmax1":
        S, v = L + exp(b), balanced_amplitude(L, b)
        a, o = v * (S - 1) / S**2, -v / S**2
        c1 = (L * a**2 + L * (L - 1) * o**2) / H**2
        c2 = (a**2 + (L - 1) * o**2) / H**2
        c3 = v * (L - 1) / (H * L * S) * (1 - 2 / S)
        c5 = L * v**2 * exp(2 * b) / (H**2 * S**4)
    else:
        c1 = (L - 1) / (H * L) ** 2
        c2 = (L - 1) / (H**2 * L**3)
        c3 = (L - 1) * (L - 2) / (H * L**3)
        if activation == "bayes":
            c3 = (L - 1) / (H * L**2) * (1 - 2 / (H * L))
            c4 = 2 * (L - 1) / (L * (H * L) ** 2)
    return QuadraticConstants(c1, L * c2 if form == "printed" else c2, c3, c4, c5)


def initial_gradient(
    activation: str, L: int, H: int, *, b: float = 0.0, v: float | None = None, form: str = "corrected"
) -> float:
    """Factor g in ``grad_{m_h} loss = g E[theta]`` at m = r = 0 (Lemma A.2); negative.

    Parameters
    ----------
    v : float, optional
        Amplitude of softmax-1; 1, its initial value, by default.
    form : {"corrected", "printed"}
        Equations (25)-(29) lack a factor 1/H.

    Examples
    --------
    >>> from attsvm.dynamics.specialization import initial_gradient
    >>> initial_gradient("softmax", L=4, H=2)  # -(2/H)(L - 1)/L^2
    -0.1875
    """
    _check(activation, L, H, form)
    if activation == "softmax1":
        S, amplitude = L + exp(b), 1.0 if v is None else v
        a, o, level = amplitude * (S - 1) / S**2, -amplitude / S**2, amplitude / S
    else:  # uniform attention of all heads: Bayes-softmax moves its mean like softmax
        a, o, level = (L - 1) / L**2, -1 / L**2, 1 / L
    slope = 2.0 * ((level - 1) * a + (L - 1) * level * o)
    return slope if form == "printed" else slope / H


def threshold_gradient(L: int, H: int, b: float, v: float, *, form: str = "corrected") -> tuple[float, float]:
    """Derivatives of the softmax-1 loss at m = r = 0 in the common threshold and in v (Lemma A.4).

    Parameters
    ----------
    form : {"corrected", "printed"}
        The printed (33) is the derivative in one b_h; in the common threshold it is H times that.

    Examples
    --------
    >>> from attsvm.dynamics.specialization import threshold_gradient
    >>> threshold_gradient(L=4, H=2, b=0.0, v=1.25)
    (-0.0, 0.0)
    """
    _check("softmax1", L, H, form)
    S = L + exp(b)
    excess = L * v / S - 1
    one = -2 * excess * v / H * exp(b) / S**2
    return (one if form == "printed" else H * one), 2 * excess / S


def unspecialized_hessian(
    activation: str, L: int, H: int, covariance: npt.ArrayLike, *, b: float = 0.0, form: str = "corrected"
) -> FloatArray:
    """Hessian in m at m = r = 0, shape (H F, H F), index ``h F + f``, for m orthogonal to the mean of theta.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.specialization import unspecialized_hessian
    >>> np.linalg.eigvalsh(unspecialized_hessian("softmax", 5, 2, [[4.0]])).round(4)
    array([-0.384, -0.096])
    """
    c = quadratic_constants(activation, L, H, b=b, form=form)
    cov = np.asarray(covariance, dtype=np.float64)
    if cov.ndim != 2 or cov.shape[0] != cov.shape[1]:
        raise ValueError(f"covariance must be a square matrix, got shape {cov.shape}")
    together = c.c1 * np.eye(len(cov)) + (c.c2 + c.c4) * cov
    quadratic = np.kron(np.ones((H, H)), together) - (c.c3 + c.c4) * np.kron(np.eye(H), cov)
    return np.asarray(2.0 * quadratic)


@dataclass(frozen=True, eq=False)
class EscapeMode:
    """One direction that the heads learn after the mean.

    Attributes
    ----------
    direction : ndarray, shape (F,)
        Eigenvector of the covariance of theta orthogonal to its mean.
    variance : float
    rate : float
        Growth rate of differences between heads along it; a negative one does not grow.
    rate_together : float
        Growth rate of what all heads share.
    """

    direction: FloatArray
    variance: float
    rate: float
    rate_together: float


def escape_modes(prior: Prior, activation: str, L: int, H: int, *, b: float = 0.0) -> list[EscapeMode]:
    """Directions in the order in which the heads learn them: by decreasing eigenvalue of Cov(theta) (Lemma III.1).

    Differences between heads grow like ``exp(2 (c3 + c4) variance tau)`` near m = r = 0. For priors with a mean of
    order one use `measured_escape`, which looks at the point where the heads wait.

    Examples
    --------
    >>> from attsvm.dynamics.specialization import escape_modes, gaussian_spikes
    >>> [(mode.variance, round(mode.rate, 3)) for mode in escape_modes(gaussian_spikes(2, 8.0, 2.0), "bayes", 5, 2)]
    [(8.0, 1.28), (2.0, 0.32)]
    """
    c = quadratic_constants(activation, L, H, b=b)
    mean = prior.mean
    projector = np.eye(prior.features)
    if mean.any():
        projector -= np.outer(mean, mean) / (mean @ mean)
    values, vectors = np.linalg.eigh(projector @ prior.covariance @ projector)
    modes: list[EscapeMode] = []
    kept = prior.features - (1 if mean.any() else 0)
    orthogonal = np.linalg.norm(projector @ vectors, axis=0) > 0.5  # not the mean itself
    for k in np.argsort(-values, kind="stable"):
        if not orthogonal[k] or len(modes) == kept:
            continue
        variance = float(max(values[k], 0.0))
        together = 2 * ((c.c3 + c.c4) * variance - H * (c.c1 + (c.c2 + c.c4) * variance))
        modes.append(EscapeMode(vectors[:, k], variance, 2 * (c.c3 + c.c4) * variance, together))
    return modes


def _partitions(items: tuple[int, ...]) -> Iterator[list[list[int]]]:
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for partition in _partitions(rest):
        yield [[first], *partition]
        for k, block in enumerate(partition):
            yield [*partition[:k], [first, *block], *partition[k + 1 :]]


@lru_cache(maxsize=4096)
def _cumulant(pattern: tuple[int, ...], L: int) -> float:
    total = 0.0
    for partition in _partitions(tuple(range(len(pattern)))):
        # The mean of a product of indicators is 1/L if all name the same entry, else 0.
        if all(len({pattern[i] for i in block}) == 1 for block in partition):
            k = len(partition)
            total += (-1.0) ** (k - 1) * factorial(k - 1) * (1.0 / L) ** k
    return total


def one_hot_cumulant(indices: Sequence[int], L: int) -> float:
    """Joint cumulant of the named entries of a uniform one-hot vector in R^L: a derivative of softmax at 0.

    Examples
    --------
    >>> from attsvm.dynamics.specialization.unspecialized import one_hot_cumulant
    >>> one_hot_cumulant([0, 0], L=4), one_hot_cumulant([0, 1], L=4)
    (0.1875, -0.0625)
    """
    if L < 1 or not all(0 <= i < L for i in indices):
        raise ValueError(f"indices must lie in [0, {L}), got {list(indices)}")
    names: dict[int, int] = {}
    pattern = tuple(names.setdefault(i, len(names)) for i in indices)  # only which are equal matters
    return _cumulant(pattern, L)


@dataclass(frozen=True)
class HierarchyConstants:
    """Constants of (58): learning ``mbar`` along one feature adds to the Hessian of another feature

    ``c1 |mbar|^2 I + c2 Diag(mbar^2) + c3 mbar mbar^T`` on vectors orthogonal to 1_H, for mbar orthogonal to 1_H.
    """  # noqa: D400  one sentence around a formula

    c1: float
    c2: float
    c3: float


def hierarchy_constants(L: int, H: int, variance: float, learnt_variance: float) -> HierarchyConstants:
    """Fourth-order constants for a feature of the given variance next to a learnt one.

    Examples
    --------
    >>> from attsvm.dynamics.specialization import hierarchy_constants
    >>> constants = hierarchy_constants(L=3, H=4, variance=1.0, learnt_variance=1.0)
    >>> round(constants.c1, 4), round(constants.c2, 3), round(constants.c3, 3)
    (0.0005, 0.105, 0.016)
    """
    if L < 2 or H < 1 or variance < 0 or learnt_variance < 0:
        raise ValueError("L >= 2, H >= 1 and variances >= 0 are needed")
    spread = 1.0 + variance * (np.arange(L) == 0)
    learnt = 1.0 + learnt_variance * (np.arange(L) == 0)
    c2 = c3 = 0.0
    for token in range(L):
        for i in range(L):
            for j in range(L):
                weight = spread[i] * learnt[j]
                c3 += one_hot_cumulant([token, i, j], L) ** 2 * weight
                c2 += (1.0 / L - (token == 0)) * one_hot_cumulant([token, i, i, j, j], L) * weight
    c1 = (L - 1) * (L - 2) ** 2 * variance * learnt_variance / (H**2 * L**5)
    return HierarchyConstants(c1, float(c2) / H, 2.0 * float(c3) / H**2)


def hessian_near(
    L: int, H: int, variance: float, learnt: Sequence[tuple[float, npt.ArrayLike]], *, form: str = "corrected"
) -> FloatArray:
    """Hessian in one unlearnt column of m, shape (H, H), restricted to vectors orthogonal to 1_H (Lemma A.6).

    Parameters
    ----------
    variance : float
        Of the unlearnt feature.
    learnt : sequence of (variance, mbar)
        The learnt features and their columns of m, each orthogonal to 1_H.
    form : {"corrected", "printed"}
        (63) and (67) print the second-order constants in exchanged roles and with one sign lost.

    Examples
    --------
    Two heads that have split along a strong feature bend less towards a second one:

    >>> import numpy as np
    >>> from attsvm.dynamics.specialization import hessian_near
    >>> [round(float(np.linalg.eigvalsh(hessian_near(5, 2, 2.0, [(8.0, [s, -s])]))[0]), 3) for s in (0.0, 0.1, 0.2)]
    [-0.192, -0.174, -0.118]
    """
    c = quadratic_constants("softmax", L, H)
    ones = np.ones((H, H))
    if form == "corrected":
        hessian = 2.0 * ((c.c1 + c.c2 * variance) * ones - c.c3 * variance * np.eye(H))
    elif form == "printed":
        hessian = 2.0 * ((c.c1 + c.c3 * variance) * ones + c.c2 * variance * np.eye(H))
    else:
        raise ValueError(f"form must be 'corrected' or 'printed', got {form!r}")
    for index, (other, column) in enumerate(learnt):
        mbar = np.asarray(column, dtype=np.float64)
        if mbar.shape != (H,) or abs(mbar.sum()) > 1e-9 * (1.0 + float(np.abs(mbar).sum())):
            raise ValueError(f"learnt[{index}] must hold a column of {H} entries with sum 0")
        k = hierarchy_constants(L, H, variance, other)
        hessian += k.c1 * (mbar @ mbar) * np.eye(H) + k.c2 * np.diag(mbar**2) + k.c3 * np.outer(mbar, mbar)
    projector = np.eye(H) - ones / H
    return np.asarray(projector @ hessian @ projector) if form == "corrected" else hessian


def unspecialized_point(
    prior: Prior, samples: Samples, activation: str, H: int, *, steps: int = 2000, tolerance: float = 1e-7
) -> OrderParameters:
    """The point with equal heads and r = 0 at which they wait before they specialize.

    Found by descent from m = 0: equal heads stay equal (Lemma A.1). It lies on the line of the mean of theta if
    ``E[w . theta | mean . theta] = 0`` for every w orthogonal to the mean (Lemma A.2 needs that condition).
    An `attsvm.ConvergenceWarning` says that descent has not ended within ``steps``.

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
    point = descend(start, samples, activation, steps=steps, lr=0.5, momentum=0.8, tolerance=tolerance).end
    gradient = reduced_gradient(point, samples, activation)
    slope = max(float(getattr(gradient, name).abs().max()) for name in point.tensors())
    if slope > tolerance:
        text = f"the point still moves after steps={steps}: its gradient has entries of {slope:.1e}"
        warnings.warn(f"{text}, above tolerance={tolerance:g}", ConvergenceWarning, stacklevel=2)
    return point


def curvature_m(point: OrderParameters, samples: Samples, activation: str, *, step: float = 1e-3) -> Tensor:
    """Hessian of the reduced loss in m, shape (H F, H F), by central differences of the exact gradient.

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.specialization import OrderParameters, draw_samples, gaussian_spikes
    >>> from attsvm.dynamics.specialization.unspecialized import curvature_m
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
    >>> from attsvm.dynamics.specialization.head_flow import Trajectory
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
