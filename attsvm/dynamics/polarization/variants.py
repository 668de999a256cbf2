"""Two relatives of the value-softmax model: one softmax per row (sinks), and R shared by scores and values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attsvm._arrays import bool_array, finite_array
from attsvm.dynamics.polarization.integrate import LogTimeFlow, Rates, integrate, log_times, read_scale
from attsvm.dynamics.polarization.losses import LogisticLoss, aligned_rate
from attsvm.softmax import log_softmax, softmax

__all__ = ["RowFlow", "TiedFlow", "row_flow", "tied_flow", "tied_rates"]

Array = npt.NDArray[np.float64]


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

    u: Array
    A: Array
    log_scores: Array
    b: float
    evaluations: int

    @property
    def scores(self) -> Array:
        """Attention, shape (k, T, T)."""
        return np.exp(self.log_scores)

    @property
    def selected_tokens(self) -> npt.NDArray[np.int64]:
        """The token that each row attends to most at the end, shape (T,)."""
        return np.asarray(self.log_scores[-1].argmax(axis=-1))

    @property
    def loss(self) -> Array:
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

    def rates(_: Array) -> Rates:
        def right_hand_side(x: float, y: Array) -> Array:
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

    R: Array
    a: Array
    scores: Array
    loss: Array
    transposed: bool
    evaluations: int

    @property
    def winner(self) -> int:
        """``argmax`` of the final scores (not of a, as the caption of Figure 11 has it)."""
        return int(self.scores[-1].argmax())

    @property
    def norms(self) -> Array:
        """Norm of each column of R (row, when transposed), the value vectors, shape (k, D)."""
        return np.asarray(np.linalg.norm(self.R, axis=2 if self.transposed else 1))


def tied_rates(R: Array, a: Array, descent: Array, transposed: bool = False) -> tuple[Array, Array]:
    """Negative gradient of ``l(R softmax(R a))`` (or ``R^T softmax(R a)``) in R and a, with ``r = -grad l(beta)``.

    Parameters
    ----------
    R : ndarray, shape (D, D), or (T, d) when transposed
    a : ndarray, shape (D,)
    descent : ndarray, shape (D,)

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.polarization.variants import tied_rates
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

    def output(R: Array, a: Array) -> Array:
        s = softmax(R @ a)
        return np.asarray(s @ R if transposed else R @ s)

    def rates(_: Array) -> Rates:
        def right_hand_side(x: float, y: Array) -> Array:
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
