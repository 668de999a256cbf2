"""The full flow of ``l(V s(a))`` in (V, a): losses whose gradient is not aligned with one target direction."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attsvm._arrays import finite_array
from attsvm._checks import require_choice
from attsvm.dynamics.polarization.flow import _both_scores, _stretch
from attsvm.dynamics.polarization.integrate import LogTimeFlow, Rates, integrate, log_times, score_entropy
from attsvm.dynamics.polarization.losses import VectorLoss
from attsvm.dynamics.polarization.normalizations import Normalization, get_normalization

__all__ = ["FullFlow", "full_flow", "full_rates", "tangent_kernel"]

Array = npt.NDArray[np.float64]


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

    V: Array
    a: Array
    scores: Array
    log_scores: Array | None
    loss: Array
    normalization: Normalization
    evaluations: int

    @property
    def beta(self) -> Array:
        """``V s``, shape (..., k, d)."""
        return np.asarray(np.einsum("...dp,...p->...d", self.V, self.scores))

    @property
    def entropy(self) -> Array:
        """Entropy of the scores, shape (..., k); refused where they are not a distribution."""
        return score_entropy(self.scores, self.log_scores, self.normalization.name)


def full_rates(
    V: npt.ArrayLike, a: npt.ArrayLike, descent: npt.ArrayLike, normalization: str | Normalization = "softmax"
) -> tuple[Array, Array]:
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
) -> Array:
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


def _read_state(V0: npt.ArrayLike, a0: npt.ArrayLike) -> tuple[Array, Array]:
    V = finite_array("V0", V0, ("d", "p"), ("B", "d", "p"))
    return V, finite_array("a0", a0, (*V.shape[:-2], V.shape[-1]))


def _one(
    V: Array,
    a: Array,
    loss: VectorLoss,
    kind: Normalization,
    grid: Array,
    frozen: str | None,
    method: str,
    rtol: float,
    atol: float,
) -> FullFlow:
    d, p = V.shape
    size = d * p

    def rates(signs: Array) -> Rates:
        stretch = _stretch(kind, signs)

        def right_hand_side(x: float, y: Array) -> Array:
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
