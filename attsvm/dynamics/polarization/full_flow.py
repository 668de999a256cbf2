"""The full flow of ``l(V s(a))`` in (V, a), where no single direction of the target leads, and two relatives.

The relatives have one softmax per row (sinks), or share R between scores and values. Under the square loss the orbit is
cut at ``m = b``, after a finite polarization: `regression_limit` says where.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attsvm.dynamics.polarization.softmax_flow import (
    FlowError,
    LogTimeFlow,
    Rates,
    _both_scores,
    _stretch,
    integrate,
    log_times,
    orbit_rates,
    read_logits,
    read_scale,
    score_entropy,
)
from attsvm.dynamics.polarization.value_losses import (
    LogisticLoss,
    Normalization,
    VectorLoss,
    aligned_rate,
    get_normalization,
)
from attsvm.softmax import log_softmax, softmax
from attsvm.solvers.arrays import FloatArray
from attsvm.user_input import bool_array, finite_array, require_choice


@dataclass(frozen=True, eq=False)
class FullFlow(LogTimeFlow):
    """A trajectory of the full flow.

    Attributes
    ----------
    x : ndarray, shape (k,)
        ``log(1 + t)``.
    V : ndarray, shape (..., k, d, p)
    a, scores : ndarray, shape (..., k, p)
    log_scores : ndarray, shape (..., k, p), or None
        None where the scores are not a distribution.
    loss : ndarray, shape (..., k)
    normalization : Normalization
    evaluations : int
    """

    V: FloatArray
    a: FloatArray
    scores: FloatArray
    log_scores: FloatArray | None
    loss: FloatArray
    normalization: Normalization
    evaluations: int

    @property
    def beta(self) -> FloatArray:
        """``V s``, shape (..., k, d)."""
        return np.asarray(np.einsum("...dp,...p->...d", self.V, self.scores))

    @property
    def entropy(self) -> FloatArray:
        """Entropy of the scores, shape (..., k); refused where they are not a distribution."""
        return score_entropy(self.scores, self.log_scores, self.normalization.name)


def full_rates(
    V: npt.ArrayLike, a: npt.ArrayLike, descent: npt.ArrayLike, normalization: str | Normalization = "softmax"
) -> tuple[FloatArray, FloatArray]:
    """``dV/dt = r s^T`` and ``da/dt = (ds/da)^T V^T r`` with ``r = -grad l(beta)`` (equations 12-13).

    Parameters
    ----------
    V : array_like, shape (d, p)
    a : array_like, shape (p,)
    descent : array_like, shape (d,)
        r.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.polarization import full_rates
    >>> dV, da = full_rates(np.eye(2), np.zeros(2), [1.0, 0.0])
    >>> dV.tolist(), da.tolist()
    ([[0.5, 0.5], [0.0, 0.0]], [0.25, -0.25])
    """
    kind = get_normalization(normalization)
    s, w = kind.parts(np.asarray(a, dtype=np.float64))
    r = np.asarray(descent, dtype=np.float64)
    return np.outer(r, s), kind.centre(s, w, r @ np.asarray(V, dtype=np.float64))


def tangent_kernel(
    V: npt.ArrayLike, a: npt.ArrayLike, normalization: str | Normalization = "softmax", *, form: str = "corrected"
) -> FloatArray:
    """M with ``dbeta/dt = -M grad l``: ``|s|^2 I + V J J^T V^T`` (printed with J in place of J^2 in Lemma D.2).

    Parameters
    ----------
    V : array_like, shape (d, p)
    a : array_like, shape (p,)
    form : {"corrected", "printed"}

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.polarization import tangent_kernel
    >>> tangent_kernel(np.eye(2), np.zeros(2)).tolist()
    [[0.625, -0.125], [-0.125, 0.625]]
    """
    require_choice("form", form, "corrected", "printed")
    kind = get_normalization(normalization)
    values = np.asarray(V, dtype=np.float64)
    s, w = kind.parts(np.asarray(a, dtype=np.float64))
    p = s.size
    J = np.diag(w) - (np.outer(s, w) if kind.normalized else np.zeros((p, p)))  # ds_i/da_j = w_j (delta_ij - s_i)
    middle = J if form == "printed" else J @ J.T
    return np.asarray((s @ s) * np.eye(len(values)) + values @ middle @ values.T)


def full_flow(
    V0: npt.ArrayLike,
    a0: npt.ArrayLike,
    loss: VectorLoss,
    *,
    normalization: str | Normalization = "softmax",
    times: npt.ArrayLike | None = None,
    t_end: float = 1e12,
    points: int = 200,
    frozen: str | None = None,
    method: str = "LSODA",
    rtol: float = 1e-9,
    atol: float = 1e-12,
) -> FullFlow:
    """Integrate the flow of any loss of ``beta = V s(a)`` in ``log(1 + t)``.

    Parameters
    ----------
    V0 : array_like, shape (d, p) or (B, d, p)
        A batch is integrated one initialisation after the other: each keeps its own steps.
    a0 : array_like, shape (p,) or (B, p)
    loss : LogisticLoss, SquareLoss, KLLoss or any object with ``value`` and ``descent``
    normalization, times, t_end, points, rtol, atol
        As for `aligned_flow`; here the logits themselves are integrated, so that scores of "square" below ``atol``
        are not resolved.
    frozen : {"V", "a"}, optional
        Train only the other one.
    method : str
        LSODA switches to a stiff method by itself, which the square and KL losses need in log-time.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.polarization import SquareLoss, full_flow
    >>> flow = full_flow(np.zeros((2, 3)), [0.2, 0.0, -0.2], SquareLoss([3.0, 0.0]), t_end=1e6)
    >>> flow.beta[-1].round(6).tolist(), flow.scores[-1].round(3).tolist()
    ([3.0, 0.0], [0.725, 0.164, 0.11])
    """
    kind = get_normalization(normalization)
    V, a = _read_state(V0, a0)
    kind.check(a)
    require_choice("frozen", frozen, None, "V", "a")
    grid = log_times(times, t_end, points)
    single = V.ndim == 2
    flows = [
        _one(v, c, loss, kind, grid, frozen, method, rtol, atol)
        for v, c in zip(V.reshape(-1, *V.shape[-2:]), a.reshape(-1, a.shape[-1]), strict=True)
    ]
    if single:
        return flows[0]
    has_log = flows[0].log_scores is not None
    return FullFlow(
        grid,
        np.stack([f.V for f in flows]),
        np.stack([f.a for f in flows]),
        np.stack([f.scores for f in flows]),
        np.stack([f.log_scores for f in flows if f.log_scores is not None]) if has_log else None,
        np.stack([f.loss for f in flows]),
        kind,
        sum(f.evaluations for f in flows),
    )


def _read_state(V0: npt.ArrayLike, a0: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    V = finite_array("V0", V0, ("d", "p"), ("B", "d", "p"))
    return V, finite_array("a0", a0, (*V.shape[:-2], V.shape[-1]))


def _one(
    V: FloatArray,
    a: FloatArray,
    loss: VectorLoss,
    kind: Normalization,
    grid: FloatArray,
    frozen: str | None,
    method: str,
    rtol: float,
    atol: float,
) -> FullFlow:
    d, p = V.shape
    size = d * p

    def rates(signs: FloatArray) -> Rates:
        stretch = _stretch(kind, signs)

        def right_hand_side(x: float, y: FloatArray) -> FloatArray:
            V, a = y[:size].reshape(d, p), y[size:]
            s, w = stretch.parts(a)
            r = np.exp(x) * loss.descent(V @ s)  # dt = e^x dx
            dV = np.zeros(size) if frozen == "V" else np.outer(r, s).ravel()
            da = np.zeros(p) if frozen == "a" else stretch.centre(s, w, r @ V)
            return np.concatenate([dV, da])

        return right_hand_side

    stopping = slice(size, size + p) if kind.stops else None
    path = integrate(
        rates, np.concatenate([V.ravel(), a]), grid, method=method, rtol=rtol, atol=atol, stopping=stopping
    )
    Vs, logits = path.states[:, :size].reshape(-1, d, p), path.states[:, size:]
    log_scores, scores = _both_scores(kind, logits)
    values = np.array([loss.value(v @ s) for v, s in zip(Vs, scores, strict=True)])
    return FullFlow(grid, Vs, logits, scores, log_scores, values, kind, path.evaluations)


@dataclass(frozen=True, eq=False)
class RegressionLimit:
    """The state at t = infinity.

    Attributes
    ----------
    tau : float
        Total polarization, the integral of gamma over all times.
    u, a, scores : ndarray, shape (p,)
    evaluations : int
    """

    tau: float
    u: FloatArray
    a: FloatArray
    scores: FloatArray
    evaluations: int

    @property
    def relative_entropy(self) -> float:
        """Entropy of the scores divided by ``log p``; 0 for p = 1."""
        s = self.scores[self.scores > 0]
        return float(-(s @ np.log(s)) / np.log(self.scores.size)) if self.scores.size > 1 else 0.0


def regression_limit(
    a0: npt.ArrayLike,
    u0: npt.ArrayLike | None = None,
    *,
    b: float = 1.0,
    normalization: str | Normalization = "softmax",
    tau_max: float = 1e6,
    rtol: float = 1e-11,
    atol: float = 1e-13,
) -> RegressionLimit:
    """Follow the loss-free orbit to ``m = b``: the exact limit of the square loss, without a stiff clock.

    Parameters
    ----------
    a0 : array_like, shape (p,)
    u0 : array_like, shape (p,), optional
        Zero by default, ``V(0) = 0`` (Assumption 3.4); ``<u0, s(0)>`` must be below b.
    b : float
        ``|beta_*|^2``.
    normalization : str or Normalization
        Any map whose entries do not stop at zero.
    tau_max : float
        Give up past this polarization.

    Examples
    --------
    >>> from attsvm.dynamics.polarization import regression_limit
    >>> limit = regression_limit([0.1, 0.0, -0.1], b=1.0)
    >>> 1 <= limit.tau <= 3, limit.scores.round(3).tolist()
    (True, [0.387, 0.329, 0.285])
    """
    from scipy.integrate import solve_ivp

    kind, scale = get_normalization(normalization), read_scale(b)
    if kind.stops:
        raise ValueError(f"normalization {kind.name!r} stops at zero: use aligned_flow with loss='square'")
    logits = np.asarray(a0, dtype=np.float64)
    u, a = read_logits(np.zeros_like(logits) if u0 is None else u0, logits)
    if u.ndim != 1:
        raise ValueError(f"a0 must have shape (p,), got {a.shape}")
    kind.check(a)
    p = u.size
    if float(u @ kind.parts(a)[0]) >= scale:
        # gamma is negative: the flow runs the orbit backwards and reverses the order of the scores.
        raise ValueError(f"<u0, s(0)> must be below b = {scale:g}: past the target gamma is negative")

    def right_hand_side(_: float, y: FloatArray) -> FloatArray:
        return np.concatenate(orbit_rates(y[:p], y[p:], scale, kind))

    def fitted(_: float, y: FloatArray) -> float:
        return float(y[:p] @ kind.parts(y[p:])[0]) - scale

    fitted.terminal = True  # type: ignore[attr-defined]
    result = solve_ivp(
        right_hand_side, (0.0, tau_max), np.concatenate([u, a]), method="DOP853", rtol=rtol, atol=atol, events=fitted
    )
    if result.status != 1:
        raise FlowError(f"the target was not reached by tau = {tau_max:g}: {result.message}")
    end = result.y_events[0][0]
    return RegressionLimit(float(result.t_events[0][0]), end[:p], end[p:], kind.parts(end[p:])[0], int(result.nfev))


@dataclass(frozen=True, eq=False)
class RowFlow(LogTimeFlow):
    """Row-wise attention ``beta[t] = softmax(A[t]) V`` with one target for all rows.

    Attributes
    ----------
    x : ndarray, shape (k,)
        ``log(1 + t)``.
    u : ndarray, shape (k, T)
        ``V beta_*``.
    A, log_scores : ndarray, shape (k, T, T)
        -inf in ``log_scores`` where masked.
    b : float
    evaluations : int
    """

    u: FloatArray
    A: FloatArray
    log_scores: FloatArray
    b: float
    evaluations: int

    @property
    def scores(self) -> FloatArray:
        """Attention, shape (k, T, T)."""
        return np.exp(self.log_scores)

    @property
    def selected_tokens(self) -> npt.NDArray[np.int64]:
        """The token that each row attends to most at the end, shape (T,)."""
        return np.asarray(self.log_scores[-1].argmax(axis=-1))

    @property
    def loss(self) -> FloatArray:
        """``(1/T) sum_t log(1 + exp(-<beta_*, beta[t]>))``, shape (k,)."""
        m = np.einsum("ktj,kj->kt", self.scores, self.u)
        return np.asarray(np.logaddexp(0.0, -m).mean(axis=-1))


def row_flow(
    u0: npt.ArrayLike,
    A0: npt.ArrayLike | None = None,
    *,
    b: float = 1.0,
    mask: npt.ArrayLike | None = None,
    causal: bool = False,
    times: npt.ArrayLike | None = None,
    t_end: float = 1e12,
    points: int = 100,
    method: str = "LSODA",
    rtol: float = 1e-9,
    atol: float = 1e-12,
) -> RowFlow:
    """Integrate ``(1/T) sum_t log(1 + exp(-<beta_*, softmax(A[t]) V>))`` in ``u = V beta_*`` and A (section 4.1).

    Parameters
    ----------
    u0 : array_like, shape (T,)
    A0 : array_like, shape (T, T), optional
        Zero by default; then all rows stay equal and sink at ``argmax u0``. For a general A0 they need not.
    b : float
        ``|beta_*|^2``.
    mask : array_like of bool, shape (T, T), optional
        True where attention is allowed.
    causal : bool
        Row t sees tokens 0..t.
    times, t_end, points, method, rtol, atol
        As for `aligned_flow`.

    Examples
    --------
    >>> from attsvm.dynamics.polarization import row_flow
    >>> row_flow([0.1, 0.3, 0.2]).selected_tokens.tolist()
    [1, 1, 1]
    """
    u = finite_array("u0", u0, ("T",))
    T, scale = u.size, read_scale(b)
    A = np.zeros((T, T)) if A0 is None else finite_array("A0", A0, (T, T))
    allowed = np.ones((T, T), dtype=bool) if mask is None else bool_array("mask", mask)
    if allowed.shape != (T, T):
        raise ValueError(f"mask must have shape {(T, T)}, got {allowed.shape}")
    if causal:
        allowed = allowed & np.tri(T, dtype=bool)
    if not allowed.any(axis=1).all():
        raise ValueError(f"mask hides every token from row {int(np.argmin(allowed.any(axis=1)))}")
    grid = log_times(times, t_end, points)

    def rates(_: FloatArray) -> Rates:
        def right_hand_side(x: float, y: FloatArray) -> FloatArray:
            u = y[:T]
            logits = np.where(allowed, y[T:].reshape(T, T), -np.inf)
            s = np.exp(logits - logits.max(axis=1, keepdims=True))
            s /= s.sum(axis=1, keepdims=True)
            m = s @ u
            speed = np.exp(x - np.logaddexp(0.0, m)) / T
            dA = speed[:, None] * s * (u - m[:, None])
            return np.concatenate([scale * (speed @ s), dA.ravel()])

        return right_hand_side

    path = integrate(rates, np.concatenate([u, A.ravel()]), grid, method=method, rtol=rtol, atol=atol)
    logits = path.states[:, T:].reshape(-1, T, T)
    log_scores = np.asarray(log_softmax(np.where(allowed, logits, -np.inf)))
    return RowFlow(grid, path.states[:, :T], logits, log_scores, scale, path.evaluations)


@dataclass(frozen=True, eq=False)
class TiedFlow(LogTimeFlow):
    """The tied model ``beta = R softmax(R a)``.

    Attributes
    ----------
    x : ndarray, shape (k,)
    R : ndarray, shape (k, D, D)
    a, scores : ndarray, shape (k, D)
    loss : ndarray, shape (k,)
    transposed : bool
    evaluations : int
    """

    R: FloatArray
    a: FloatArray
    scores: FloatArray
    loss: FloatArray
    transposed: bool
    evaluations: int

    @property
    def winner(self) -> int:
        """``argmax`` of the final scores (not of a, as the caption of Figure 11 has it)."""
        return int(self.scores[-1].argmax())

    @property
    def norms(self) -> FloatArray:
        """Norm of each column of R (row, when transposed), the value vectors, shape (k, D)."""
        return np.asarray(np.linalg.norm(self.R, axis=2 if self.transposed else 1))


def tied_rates(
    R: FloatArray, a: FloatArray, descent: FloatArray, transposed: bool = False
) -> tuple[FloatArray, FloatArray]:
    """Negative gradient of ``l(R softmax(R a))`` (or ``R^T softmax(R a)``) in R and a, with ``r = -grad l(beta)``.

    Parameters
    ----------
    R : ndarray, shape (D, D), or (T, d) when transposed
    a : ndarray, shape (D,)
    descent : ndarray, shape (D,)

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.polarization.full_flow import tied_rates
    >>> dR, da = tied_rates(np.eye(2), np.zeros(2), np.array([1.0, 0.0]))
    >>> dR.tolist(), da.tolist()
    ([[0.5, 0.5], [0.0, 0.0]], [0.25, -0.25])
    """
    s = softmax(R @ a)
    pulled = R @ descent if transposed else R.T @ descent  # d beta / d s, transposed, times r
    h = s * (pulled - s @ pulled)
    values = np.outer(s, descent) if transposed else np.outer(descent, s)
    return values + np.outer(h, a), R.T @ h


def tied_flow(
    R0: npt.ArrayLike,
    a0: npt.ArrayLike,
    target: npt.ArrayLike,
    *,
    transposed: bool = False,
    times: npt.ArrayLike | None = None,
    t_end: float = 1e4,
    points: int = 100,
    method: str = "DOP853",
    rtol: float = 1e-8,
    atol: float = 1e-10,
) -> TiedFlow:
    """Integrate the logistic loss of the tied model in log-time.

    Parameters
    ----------
    R0 : array_like, shape (D, D); (T, d) when transposed
    a0 : array_like, shape (D,)
    target : array_like, shape (D,)
    transposed : bool
        ``beta = R^T softmax(R a)``, what the residual stream of section 4.1 implies.
    times, t_end, points, method, rtol, atol
        As for `aligned_flow`.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.polarization import tied_flow
    >>> flow = tied_flow(np.eye(4), [1.1, 1.0, 0.9, 1.05], [1.0, 0.0, 0.0, 0.0], t_end=1e6)
    >>> flow.winner, bool(flow.scores[-1].max() > 0.99)
    (0, True)
    """
    R, a = finite_array("R0", R0), finite_array("a0", a0)
    loss = LogisticLoss(target)
    beta_star = np.asarray(loss.target)
    if R.ndim != 2 or (not transposed and R.shape[0] != R.shape[1]):
        raise ValueError(f"R0 must be a {'matrix' if transposed else 'square matrix'}, got shape {R.shape}")
    rows, columns = R.shape
    if a.shape != (columns,) or beta_star.shape != (columns,):
        raise ValueError(f"a0 and target must have shape {(columns,)}, got {a.shape} and {beta_star.shape}")
    grid = log_times(times, t_end, points)

    def output(R: FloatArray, a: FloatArray) -> FloatArray:
        s = softmax(R @ a)
        return np.asarray(s @ R if transposed else R @ s)

    def rates(_: FloatArray) -> Rates:
        def right_hand_side(x: float, y: FloatArray) -> FloatArray:
            R, a = y[: rows * columns].reshape(rows, columns), y[rows * columns :]
            speed = np.exp(x) * aligned_rate("logistic", beta_star @ output(R, a))
            dR, da = tied_rates(R, a, speed * beta_star, transposed)
            return np.concatenate([dR.ravel(), da])

        return right_hand_side

    path = integrate(rates, np.concatenate([R.ravel(), a]), grid, method=method, rtol=rtol, atol=atol)
    Rs, logits = path.states[:, : rows * columns].reshape(-1, rows, columns), path.states[:, rows * columns :]
    scores = softmax(np.einsum("kij,kj->ki", Rs, logits))
    values = np.array([loss.value(output(r, c)) for r, c in zip(Rs, logits, strict=True)])
    return TiedFlow(grid, Rs, logits, scores, values, transposed, path.evaluations)
