"""Margins of satisfaction of what is said about the softmax flow: positive where a statement holds.

Each function reduces over times and tokens and returns one number, or one per initialisation of a batch. Tokens are
taken in the order of u(0), largest first, as Assumption 3.1 names them; with a single token there is nothing to
violate and the margin is infinite. ``form="printed"`` evaluates the statement as published where that differs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from attsvm._checks import require_choice
from attsvm.dynamics.polarization.flow import Flow

__all__ = [
    "entropy_margin",
    "explicit_ratio_margin",
    "logit_gap_margin",
    "loss_decay_margin",
    "mean_margin",
    "order_margin",
    "polarization_margin",
    "projection_margin",
    "ratio_margin",
    "repulsion_margin",
]

Array = npt.NDArray[np.float64]


def _ordered(flow: Flow) -> tuple[Array, Array]:
    """Projections and log-scores with the tokens in the order of u(0), shapes (..., k, p)."""
    if flow.normalization.name != "softmax":
        raise ValueError(f"this statement is about softmax, the flow has normalization {flow.normalization.name!r}")
    assert flow.log_scores is not None
    order = np.argsort(-flow.u[..., 0, :], axis=-1, kind="stable")[..., None, :]
    return np.take_along_axis(flow.u, order, axis=-1), np.take_along_axis(flow.log_scores, order, axis=-1)


def _form(form: str) -> bool:
    require_choice("form", form, "corrected", "printed")
    return form == "printed"


def _logistic(flow: Flow) -> None:
    if flow.loss_name != "logistic":
        raise ValueError(f"this statement is about the logistic loss, the flow has {flow.loss_name!r}")


def _least(values: Array, axes: int = 2) -> float | Array:
    """Minimum over the last axes: a float, or one number per initialisation."""
    least = np.min(values, axis=tuple(range(-axes, 0)), initial=np.inf)
    return float(least) if np.ndim(least) == 0 else least


def order_margin(flow: Flow, of: str = "u") -> float | Array:
    """Theorem 3.2(a): the smallest gap between neighbours for t > 0, in u or in log-scores.

    Parameters
    ----------
    flow : Flow
    of : {"u", "scores"}

    Returns
    -------
    float, or ndarray of shape (B,)

    Examples
    --------
    >>> from attsvm.dynamics.polarization import aligned_flow, order_margin
    >>> flow = aligned_flow([0.2, 0.1, -0.1])
    >>> order_margin(flow) > 0, order_margin(flow, of="scores") > 0
    (True, True)
    """
    require_choice("of", of, "u", "scores")
    values = _ordered(flow)[0 if of == "u" else 1]
    return _least(-np.diff(values[..., 1:, :], axis=-1))


def repulsion_margin(flow: Flow, form: str = "corrected") -> float | Array:
    """Theorem 3.2(b): least growth rate of a gap, ``d(u_i - u_j)/dtau = b (s_i - s_j)``, for t > 0.

    It holds for i < j; printed for any i != j, which a sign change refutes.

    Examples
    --------
    >>> from attsvm.dynamics.polarization import aligned_flow, repulsion_margin
    >>> flow = aligned_flow([1.0, 0.0, -1.0])
    >>> repulsion_margin(flow) > 0 > repulsion_margin(flow, form="printed")
    True
    """
    printed = _form(form)
    s = np.exp(_ordered(flow)[1][..., 1:, :])
    if printed:
        return _least(flow.b * (s[..., :, None] - s[..., None, :])[..., ~np.eye(flow.p, dtype=bool)])
    return _least(-flow.b * np.diff(s, axis=-1))  # i < j: a sum of neighbours


def logit_gap_margin(flow: Flow, form: str = "corrected") -> float | Array:
    """End of the proof of Theorem 3.2: least growth rate of ``a_0 - a_j`` for t > 0; printed for all pairs i < j.

    The gaps between losing tokens grow and then shrink: their scores equalize.

    Examples
    --------
    >>> from attsvm.dynamics.polarization import aligned_flow, logit_gap_margin
    >>> flow = aligned_flow([1.0, 0.0, -1.0])
    >>> logit_gap_margin(flow) > 0 > logit_gap_margin(flow, form="printed")
    True
    """
    printed = _form(form)
    u, log_s = (values[..., 1:, :] for values in _ordered(flow))
    s = np.exp(log_s)
    rate = s * (u - np.sum(s * u, axis=-1, keepdims=True))
    if printed:
        return _least(-np.diff(rate, axis=-1))
    return _least(rate[..., :1] - rate[..., 1:])


def entropy_margin(flow: Flow) -> float | Array:
    """Least rate of decrease of the entropy, ``<log s, J^2 u>``, for t > 0; positive under Assumption 3.1.

    Examples
    --------
    >>> from attsvm.dynamics.polarization import aligned_flow, entropy_margin
    >>> entropy_margin(aligned_flow([0.2, 0.1, -0.1])) > 0
    True
    """
    u, log_s = (values[..., 1:, :] for values in _ordered(flow))
    s = np.exp(log_s)
    da = s * (u - np.sum(s * u, axis=-1, keepdims=True))
    ds = s * (da - np.sum(s * da, axis=-1, keepdims=True))
    # Relative to the winner: sum(ds) = 0, and log s_0 - log s_j does not cancel.
    return _least(np.sum((log_s - log_s[..., :1]) * ds, axis=-1), axes=1)


def ratio_margin(flow: Flow, gap: str = "min") -> float | Array:
    """Theorem 3.3(b): least of ``log bound - log(s_j / s_0)`` for t > 0, ``bound = 1 / (1 + delta tau / p)``.

    Parameters
    ----------
    flow : Flow
    gap : {"min", "top"}
        delta as printed, ``min_{i<j} (u_i - u_j)(0)``, or the larger ``(u_0 - u_1)(0)``, which the same proof gives.

    Examples
    --------
    >>> from attsvm.dynamics.polarization import aligned_flow, ratio_margin
    >>> flow = aligned_flow([0.2, 0.1, -0.1])
    >>> ratio_margin(flow) >= ratio_margin(flow, gap="top") > 0
    True
    """
    require_choice("gap", gap, "min", "top")
    u, log_s = _ordered(flow)
    if flow.p == 1:
        return _least(log_s[..., 1:, 1:])
    gaps = -np.diff(u[..., 0, :], axis=-1)
    delta = gaps.min(axis=-1) if gap == "min" else gaps[..., 0]
    log_bound = -np.log1p(delta[..., None] * flow.tau[..., 1:] / flow.p)
    return _least(log_bound[..., None] - (log_s[..., 1:, 1:] - log_s[..., 1:, :1]))


def explicit_ratio_margin(flow: Flow) -> float | Array:
    """Lemma B.1(b) with constants: least of ``log(s_0 / s_j) - log(bound)`` for t > 0.

    With ``w = delta tau / p``, ``delta = (u_0 - u_1)(0)``:
    ``s_0 / s_j >= 1 + w + (b / p^2) (tau^2 / 2 - (p / delta)^2 ((1 + w) log(1 + w) - w))``, which is of order tau^2.
    The printed derivation integrates an inequality of the wrong direction.

    Examples
    --------
    >>> from attsvm.dynamics.polarization import aligned_flow, explicit_ratio_margin
    >>> explicit_ratio_margin(aligned_flow([0.2, 0.1, -0.1])) > 0
    True
    """
    u, log_s = _ordered(flow)
    if flow.p == 1:
        return _least(log_s[..., 1:, 1:])
    p, tau = flow.p, flow.tau[..., 1:]
    delta = (u[..., 0, 0] - u[..., 0, 1])[..., None]
    w = delta * tau / p
    bound = 1 + w + flow.b / p**2 * (tau**2 / 2 - (p / delta) ** 2 * ((1 + w) * np.log1p(w) - w))
    ratio = log_s[..., 1:, :1] - log_s[..., 1:, 1:]
    return _least(ratio - np.log(np.maximum(bound, 1e-300))[..., None])


def projection_margin(flow: Flow, form: str = "corrected") -> float | Array:
    """Equation 17: least of ``u_0 - log(b t / (2 p) + (u_0(0) + e^{u_0(0)}) / 2)`` for t > 0.

    The printed bound, ``log(t / (2 p) - c_0)`` with ``c_0 = -u_0(0) - e^{u_0(0)}``, drops the 1/2 and supposes b = 1.

    Examples
    --------
    >>> from attsvm.dynamics.polarization import aligned_flow, projection_margin
    >>> flow = aligned_flow([0.2, 0.1, -0.1])
    >>> projection_margin(flow) > 0 > projection_margin(flow, form="printed")
    True
    """
    printed = _form(form)
    _logistic(flow)
    top = _ordered(flow)[0][..., 0]
    start = top[..., :1] + np.exp(top[..., :1])
    t = flow.times[1:]
    inside = t / (2 * flow.p) + start if printed else flow.b * t / (2 * flow.p) + start / 2
    return _least(top[..., 1:] - np.log(np.maximum(inside, 1e-300)), axes=1)


def polarization_margin(flow: Flow, form: str = "corrected") -> float | Array:
    """Equation 18 and its other side: ``u_0 - u_0(0) <= b tau <= p (u_0 - u_0(0))``; printed ``tau >= u_0 - u_0(0)``.

    The middle is ``sum_i (u_i - u_i(0))``, an identity; the two sides make ``tau = Theta(log t)``.

    Examples
    --------
    >>> from attsvm.dynamics.polarization import aligned_flow, polarization_margin
    >>> flow = aligned_flow([0.2, 0.1, -0.1], b=4.0)
    >>> polarization_margin(flow) > 0 > polarization_margin(flow, form="printed")
    True
    """
    printed = _form(form)
    top = _ordered(flow)[0][..., 0]
    growth, tau = top[..., 1:] - top[..., :1], flow.tau[..., 1:]
    if printed:
        return _least(tau - growth, axes=1)
    if flow.p == 1:
        return _least(growth[..., :0], axes=1)
    return _least(np.minimum(flow.b * tau - growth, flow.p * growth - flow.b * tau), axes=1)


def mean_margin(flow: Flow, form: str = "corrected") -> float | Array:
    """Proof of Theorem 3.3(a): least of ``m - u_0 / p + max(0, -u_{p-1}(0))`` where u_0 >= 0; printed ``m >= u_0 / p``.

    Examples
    --------
    >>> from attsvm.dynamics.polarization import aligned_flow, mean_margin
    >>> flow = aligned_flow([0.1, -10.0])
    >>> mean_margin(flow) > 0 > mean_margin(flow, form="printed")
    True
    """
    printed = _form(form)
    u = _ordered(flow)[0]
    slack = flow.m - u[..., 0] / flow.p
    if not printed:
        slack = slack + np.maximum(0.0, -u[..., :1, -1])
    return _least(np.where(u[..., 0] >= 0, slack, np.inf), axes=1)


def loss_decay_margin(flow: Flow) -> float | Array:
    """Theorem 3.3(a) with a rate: least of ``(m + e^m - m_0 - e^{m_0} - b t / p) / (1 + b t / p)`` for t > 0.

    It follows from Lemma D.2, and bounds gamma by ``2 p / (b t)`` once m >= 0.

    Examples
    --------
    >>> from attsvm.dynamics.polarization import aligned_flow, loss_decay_margin
    >>> loss_decay_margin(aligned_flow([0.2, 0.1, -0.1])) > 0
    True
    """
    _logistic(flow)
    value = flow.m + np.exp(flow.m)
    target = flow.b * flow.times[1:] / flow.p
    return _least((value[..., 1:] - value[..., :1] - target) / (1 + target), axes=1)
