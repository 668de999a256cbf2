"""What the flow conserves and what only grows: drifts of invariants, Lyapunov potentials, the decrease of the loss."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from attsvm._checks import require_choice
from attsvm.dynamics.polarization.flow import Flow
from attsvm.dynamics.polarization.full import tangent_kernel
from attsvm.dynamics.polarization.normalizations import Normalization, get_normalization

__all__ = [
    "decrease_margin",
    "elementwise_drift",
    "identity_drift",
    "invariant_drift",
    "potential",
    "potential_rate",
    "two_token_drift",
    "two_token_winner",
]

Array = npt.NDArray[np.float64]


def _largest(values: Array, axes: int = 1) -> float | Array:
    """Largest size over the last axes: a number, or one for each flow of a batch."""
    largest = np.max(np.abs(values), axis=tuple(range(-axes, 0)), initial=0.0)
    return float(largest) if np.ndim(largest) == 0 else np.asarray(largest)


def invariant_drift(flow: Flow) -> float | Array:
    """Lemma D.1 and its generalization: largest change of ``sum_i K(a_i)``, ``K' = f / f'`` (softmax: the sum of a).

    Examples
    --------
    >>> from attsvm.dynamics.polarization import aligned_flow, invariant_drift
    >>> invariant_drift(aligned_flow([0.2, 0.1, -0.1])) < 1e-12
    True
    """
    values = flow.normalization.invariant(flow.a)
    return _largest(values - values[..., :1])


def elementwise_drift(flow: Flow) -> float | Array:
    """Largest change of ``b K(a_i) - u_i^2 / 2``, conserved for each i by elementwise maps under aligned losses.

    Examples
    --------
    >>> from attsvm.dynamics.polarization import aligned_flow, elementwise_drift
    >>> elementwise_drift(aligned_flow([0.2, 0.1], [1.0, 1.0], normalization="linear")) < 1e-8
    True
    """
    kind = flow.normalization
    if kind.normalized or kind.primitive is None:
        raise ValueError(f"normalization {kind.name!r} is not an elementwise map with a known primitive")
    values = flow.b * kind.primitive(flow.a) - 0.5 * flow.u**2
    return _largest(values - values[..., :1, :], axes=2)


def identity_drift(flow: Flow) -> float | Array:
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


def two_token_drift(flow: Flow) -> float | Array:
    """Largest relative change of ``(u_0 - u_1)^2 - 4 b sinh^2((a_0 - a_1) / 2)``, exact for two tokens with sum a = 0.

    Examples
    --------
    >>> from attsvm.dynamics.polarization import aligned_flow, two_token_drift
    >>> two_token_drift(aligned_flow([0.2, -0.1])) < 1e-8
    True
    """
    if flow.p != 2 or flow.normalization.name != "softmax":
        raise ValueError(f"two softmax tokens are needed, got p = {flow.p} and {flow.normalization.name!r}")
    if np.abs(flow.a[..., 0, :].sum(axis=-1)).max() > 1e-12:
        raise ValueError("a0 must sum to 0 for this invariant")
    gap = flow.u[..., 0] - flow.u[..., 1]
    values = gap**2 - 4 * flow.b * np.sinh((flow.a[..., 0] - flow.a[..., 1]) / 2) ** 2
    return _largest((values - values[..., :1]) / np.maximum(1.0, gap**2))


def two_token_winner(u: npt.ArrayLike, a: npt.ArrayLike, b: float = 1.0) -> int:
    """Which of two tokens wins from any (u, a): token 0 iff ``u_0 - u_1 + 2 sqrt(b) sinh((a_0 - a_1) / 2) > 0``.

    Returns -1 on the boundary, where the two stay level.

    Examples
    --------
    >>> from attsvm.dynamics.polarization.invariants import two_token_winner
    >>> two_token_winner([0.2, 0.0], [-0.5, 0.5])  # the larger u loses to the larger a
    1
    """
    x, y = np.asarray(u, dtype=np.float64), np.asarray(a, dtype=np.float64)
    if x.shape != (2,) or y.shape != (2,):
        raise ValueError(f"u and a must have shape (2,), got {x.shape} and {y.shape}")
    drive = float(x[0] - x[1] + 2 * np.sqrt(b) * np.sinh((y[0] - y[1]) / 2))
    return -1 if drive == 0 else int(drive < 0)


def potential(
    u: npt.ArrayLike, a: npt.ArrayLike, normalization: str | Normalization = "softmax", *, points: int = 64
) -> Array:
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


def _primitive_gaps(a: Array, kind: Normalization, points: int = 64) -> Array:
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
) -> Array:
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


def decrease_margin(
    V: npt.ArrayLike,
    a: npt.ArrayLike,
    gradient: npt.ArrayLike,
    normalization: str | Normalization = "softmax",
    *,
    form: str = "corrected",
) -> float:
    """Lemma D.2: ``-dl/dt - |s|^2 |grad l|^2`` at one state, non-negative.

    Printed as ``-dl/dt - |grad l|^2 / d``, where d is the number of rows of V; it is right with the softmax width p.

    Parameters
    ----------
    V : array_like, shape (d, p)
    a : array_like, shape (p,)
    gradient : array_like, shape (d,)
        Gradient of the loss in ``beta = V s``.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.polarization.invariants import decrease_margin
    >>> V = np.zeros((1, 10))
    >>> decrease_margin(V, np.zeros(10), [1.0]), round(decrease_margin(V, np.zeros(10), [1.0], form="printed"), 12)
    (0.0, -0.9)
    """
    g = np.asarray(gradient, dtype=np.float64)
    kernel = tangent_kernel(V, a, normalization)
    require_choice("form", form, "corrected", "printed")
    s = get_normalization(normalization).parts(np.asarray(a, dtype=np.float64))[0]
    share = 1.0 / g.size if form == "printed" else float(s @ s)
    return float(g @ kernel @ g - share * (g @ g))
