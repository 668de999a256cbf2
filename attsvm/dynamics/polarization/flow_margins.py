"""What the softmax flow conserves, what only grows, and how fast: statements about a flow as numbers.

Drifts measure how far an invariant moves, `potential` is a Lyapunov function, and a margin is positive where a
statement holds. Each margin reduces over times and tokens to one number, or one per initialisation of a batch. Tokens
are taken in the order of u(0), largest first, as Assumption 3.1 names them; with a single token there is nothing to
violate and the margin is infinite. ``form="printed"`` evaluates the statement as published where that differs.

`measure_asymptotics` gives constants beside their limits. As t grows, with one winner: ``loss ~ 1 / (b t)``, ``b tau
= log(b t) + C``, ``u_0 = log(b t) + 2 (p - 1) / (p tau)``, and ``s_j ~ 2 / (p b tau^2) ~ 2 b / (p log^2 t)`` for
every other token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attsvm.dynamics.polarization.softmax_flow import Flow, GapFlow
from attsvm.dynamics.polarization.value_losses import Normalization, get_normalization
from attsvm.solvers.arrays import FloatArray
from attsvm.user_input import require_choice


def _largest(values: FloatArray, axes: int = 1) -> float | FloatArray:
    """Largest size over the last axes: a number, or one for each flow of a batch."""
    largest = np.max(np.abs(values), axis=tuple(range(-axes, 0)), initial=0.0)
    return float(largest) if np.ndim(largest) == 0 else np.asarray(largest)


def invariant_drift(flow: Flow) -> float | FloatArray:
    """Lemma D.1 and its generalization: largest change of ``sum_i K(a_i)``, ``K' = f / f'`` (softmax: the sum of a).

    Examples
    --------
    >>> from attsvm.dynamics.polarization import aligned_flow, invariant_drift
    >>> invariant_drift(aligned_flow([0.2, 0.1, -0.1])) < 1e-12
    True
    """
    values = flow.normalization.invariant(flow.a)
    return _largest(values - values[..., :1])


def identity_drift(flow: Flow) -> float | FloatArray:
    """Largest violation of ``sum_i (u_i - u_i(0)) = b tau`` (normalized maps: the scores sum to one).

    Examples
    --------
    >>> from attsvm.dynamics.polarization import aligned_flow, identity_drift
    >>> identity_drift(aligned_flow([0.2, 0.1, -0.1], b=3.0)) < 1e-11
    True
    """
    if not flow.normalization.normalized:
        raise ValueError(f"the scores of {flow.normalization.name!r} do not sum to one")
    return _largest((flow.u - flow.u[..., :1, :]).sum(axis=-1) - flow.b * flow.tau)


def potential(
    u: npt.ArrayLike, a: npt.ArrayLike, normalization: str | Normalization = "softmax", *, points: int = 64
) -> FloatArray:
    """``Phi_ij = (G(a_i) - G(a_j)) (u_i - u_j)`` with ``G' = 1 / f'``, shape (..., p, p); softmax: ``G = -e^{-a}``.

    G of a map without a formula is integrated by Gauss-Legendre quadrature with ``points`` nodes between the two
    logits.

    Examples
    --------
    >>> from attsvm.dynamics.polarization import potential
    >>> potential([1.0, 0.0], [0.5, -0.5])[0, 1].round(4).item()
    1.0422
    """
    x, y = np.asarray(u, dtype=np.float64), np.asarray(a, dtype=np.float64)
    gap = x[..., :, None] - x[..., None, :]
    return np.asarray(_primitive_gaps(y, get_normalization(normalization), points) * gap)


def _primitive_gaps(a: FloatArray, kind: Normalization, points: int = 64) -> FloatArray:
    """``G(a_i) - G(a_j)``, shape (..., p, p)."""
    if kind.name == "softmax":
        inverse = np.exp(-a)
        return np.asarray(inverse[..., None, :] - inverse[..., :, None])
    nodes, weights = np.polynomial.legendre.leggauss(points)
    centre, half = (a[..., :, None] + a[..., None, :]) / 2, (a[..., :, None] - a[..., None, :]) / 2
    slopes = kind.slope(centre[..., None] + half[..., None] * nodes)
    if not (slopes > 0).all():
        raise ValueError(f"the potential needs f' > 0 between the logits; {kind.name!r} has f' = {slopes.min():.3g}")
    return np.asarray(half * np.sum(weights / slopes, axis=-1))


def potential_rate(
    u: npt.ArrayLike,
    a: npt.ArrayLike,
    b: float = 1.0,
    normalization: str | Normalization = "softmax",
    *,
    form: str = "corrected",
) -> FloatArray:
    """``dPhi_ij/dtau = ((u_i - u_j)^2 + b (G(a_i) - G(a_j)) (f(a_i) - f(a_j))) / F``, shape (..., p, p).

    Lemma D.4 prints it without b.

    Examples
    --------
    >>> from attsvm.dynamics.polarization import potential_rate
    >>> potential_rate([1.0, 0.0], [0.0, 0.0])[0, 1].item()
    0.5
    """
    require_choice("form", form, "corrected", "printed")
    x, y = np.asarray(u, dtype=np.float64), np.asarray(a, dtype=np.float64)
    kind = get_normalization(normalization)
    gap = x[..., :, None] - x[..., None, :]
    f = kind.value(y)
    primitive = _primitive_gaps(y, kind)
    factor = 1.0 if form == "printed" else b
    total = f.sum(axis=-1)[..., None, None]
    return np.asarray((gap**2 + factor * primitive * (f[..., :, None] - f[..., None, :])) / total)


def _ordered(flow: Flow) -> tuple[FloatArray, FloatArray]:
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


def _least(values: FloatArray, axes: int = 2) -> float | FloatArray:
    """Minimum over the last axes: a float, or one number per initialisation."""
    least = np.min(values, axis=tuple(range(-axes, 0)), initial=np.inf)
    return float(least) if np.ndim(least) == 0 else least


def order_margin(flow: Flow, of: str = "u") -> float | FloatArray:
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


def repulsion_margin(flow: Flow, form: str = "corrected") -> float | FloatArray:
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


def logit_gap_margin(flow: Flow, form: str = "corrected") -> float | FloatArray:
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


def entropy_margin(flow: Flow) -> float | FloatArray:
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


def ratio_margin(flow: Flow, gap: str = "min") -> float | FloatArray:
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


def explicit_ratio_margin(flow: Flow) -> float | FloatArray:
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


def projection_margin(flow: Flow, form: str = "corrected") -> float | FloatArray:
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


def polarization_margin(flow: Flow, form: str = "corrected") -> float | FloatArray:
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


def mean_margin(flow: Flow, form: str = "corrected") -> float | FloatArray:
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


def loss_decay_margin(flow: Flow) -> float | FloatArray:
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

    loss_constant: FloatArray
    clock_constant: FloatArray
    offset: FloatArray
    top_constant: FloatArray
    score_constants: FloatArray
    exponents: FloatArray


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


def score_constants(flow: Flow | GapFlow) -> FloatArray:
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


def local_exponents(flow: Flow) -> FloatArray:
    """``-dlog s_j / dlog log t`` from the right-hand side itself, not by differences, shape (k, p).

    Examples
    --------
    >>> from attsvm.dynamics.polarization import aligned_flow
    >>> from attsvm.dynamics.polarization.flow_margins import local_exponents
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
