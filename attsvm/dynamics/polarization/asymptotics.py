"""How fast: measured constants and exponents of a flow beside their predicted limits.

As t grows, with one winner: ``loss ~ 1 / (b t)``, ``b tau = log(b t) + C``, ``u_0 = log(b t) + 2 (p - 1) / (p tau)``,
``s_j ~ 2 / (p b tau^2) ~ 2 b / (p log^2 t)`` for every other token, with the same constant.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attsvm.dynamics.polarization.flow import Flow
from attsvm.dynamics.polarization.gap import GapFlow

__all__ = ["Asymptotics", "local_exponents", "measure_asymptotics", "score_constants"]

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Asymptotics:
    """Numbers that tend to known limits, along a logistic softmax flow; each of shape (k,) unless said.

    Attributes
    ----------
    loss_constant : ndarray
        ``loss * b * t``, tends to 1.
    clock_constant : ndarray
        ``b tau / log t``, tends to 1.
    offset : ndarray
        ``b tau - log(b t)``, tends to C, ``sum_{j >= 1} u_j(inf) - sum_i u_i(0)``.
    top_constant : ndarray
        ``(u_0 - log(b t)) tau``, tends to ``2 (p - 1) / p``.
    score_constants : ndarray, shape (k, p)
        ``s_j p b tau^2 / 2``, each tends to 1 (NaN at the winner).
    exponents : ndarray, shape (k, p)
        ``-dlog s_j / dlog log t``, each tends to 2 (NaN at the winner).
    """

    loss_constant: Array
    clock_constant: Array
    offset: Array
    top_constant: Array
    score_constants: Array
    exponents: Array


def _one(flow: Flow) -> None:
    if flow.u.ndim != 2:
        raise ValueError("asymptotics are measured on one trajectory; index the batch first")
    if flow.loss_name != "logistic" or flow.normalization.name != "softmax":
        raise ValueError(f"a logistic softmax flow is needed, got {flow.loss_name!r} and {flow.normalization.name!r}")


def measure_asymptotics(flow: Flow) -> Asymptotics:
    """Constants along a flow of the logistic loss.

    Examples
    --------
    >>> from attsvm.dynamics.polarization import aligned_flow, measure_asymptotics
    >>> found = measure_asymptotics(aligned_flow([0.2, 0.1, -0.1], b=2.0, t_end=1e300))
    >>> bool(abs(found.loss_constant[-1] - 1) < 1e-6), bool(abs(found.top_constant[-1] - 4 / 3) < 0.05)
    (True, True)
    """
    _one(flow)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_t = np.log(flow.times)
        winner = int(flow.scores[-1].argmax())
        top = flow.u[:, winner] - np.log(flow.b) - log_t
        return Asymptotics(
            loss_constant=np.exp(np.log(flow.loss) + np.log(flow.b) + log_t),
            clock_constant=flow.b * flow.tau / log_t,
            offset=flow.b * flow.tau - np.log(flow.b) - log_t,
            top_constant=top * flow.tau,
            score_constants=score_constants(flow),
            exponents=local_exponents(flow),
        )


def score_constants(flow: Flow | GapFlow) -> Array:
    """``s_j p b tau^2 / 2`` along a flow, shape (k, p); NaN at the winner.

    Examples
    --------
    >>> from attsvm.dynamics.polarization import gap_flow, score_constants
    >>> score_constants(gap_flow([1.0, 0.0], clock="tau", end=1e6))[-1].round(4).tolist()
    [nan, 1.0]
    """
    assert flow.log_scores is not None
    p = flow.log_scores.shape[-1]
    constants = np.exp(flow.log_scores) * (p * flow.b / 2) * flow.tau[:, None] ** 2
    constants[:, int(flow.log_scores[-1].argmax())] = np.nan
    return np.asarray(constants)


def local_exponents(flow: Flow) -> Array:
    """``-dlog s_j / dlog log t`` from the right-hand side itself, not by differences, shape (k, p).

    Examples
    --------
    >>> from attsvm.dynamics.polarization import aligned_flow
    >>> from attsvm.dynamics.polarization.asymptotics import local_exponents
    >>> local_exponents(aligned_flow([0.2, -0.1], t_end=1e300))[-1].round(1).tolist()
    [nan, 2.0]
    """
    _one(flow)
    s, u = flow.scores, flow.u
    winner = int(s[-1].argmax())
    m = flow.m[:, None]
    da = s * (u - m)
    rate = da - np.sum(s * da, axis=-1, keepdims=True)  # dlog s / dtau
    with np.errstate(divide="ignore", invalid="ignore"):
        log_t = np.log(flow.times)
        exponents = -rate * (np.exp(log_t - np.logaddexp(0.0, flow.m)) * log_t)[:, None]
    exponents[:, winner] = np.nan
    return np.asarray(exponents)
