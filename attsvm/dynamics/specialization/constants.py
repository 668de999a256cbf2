"""The loss near unspecialized heads in closed form: gradient and Hessian, Lemmas A.2 to A.5.

``a`` and ``o`` are the derivatives of one head's attention to a token in the score of the same and of another token.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

import numpy as np
import numpy.typing as npt

from attsvm._checks import require_choice
from attsvm.dynamics.specialization.priors import Prior

__all__ = [
    "EscapeMode",
    "QuadraticConstants",
    "balanced_amplitude",
    "escape_modes",
    "initial_gradient",
    "quadratic_constants",
    "threshold_gradient",
    "unspecialized_hessian",
]

Array = npt.NDArray[np.float64]
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
) -> Array:
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

    direction: Array
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
