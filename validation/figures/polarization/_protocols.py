"""Initial values of the published experiments, from the legacy generator in the order of the published code."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from attsvm.dynamics import polarization as pol

__all__ = ["KINDS", "figure_2", "figure_10", "figure_12", "figure_13", "legacy_seeds"]

Array = npt.NDArray[np.float64]
# The names of `ATTENTION_KINDS`, written out: listing the figures must not load torch.
KINDS = (
    "softmax",
    *(f"{name}_{form}" for name in ("sigmoid", "elu", "elu_elu", "mlp", "linear") for form in ("norm", "unnorm")),
)


def legacy_seeds(count: int, seed: int) -> list[int]:
    """Seeds of the legacy generator, or of torch, for the trials of a chunk.

    Examples
    --------
    >>> from attsvm.validation.figures.polarization._protocols import legacy_seeds
    >>> len(set(legacy_seeds(5, 0)))
    5
    """
    return [int(k) for k in np.random.default_rng(seed).integers(2**31, size=count)]


def figure_2(seed: int = 123, p: int = 8) -> Array:
    """Projections ``W^T beta_*``, largest first: W = 0.1 randn, a draw for a that is then set to 0, a unit beta_*.

    Examples
    --------
    >>> from attsvm.validation.figures.polarization._protocols import figure_2
    >>> u = figure_2()
    >>> round(float(u[0] - u[1]), 4)
    0.0197
    """
    draw = np.random.RandomState(seed)
    W = 0.1 * draw.randn(p, p)
    draw.randn(p)
    beta = draw.randn(p)
    return np.asarray(-np.sort(-(W.T @ (beta / np.linalg.norm(beta)))))


def figure_10(seed: int = 42, p: int = 10) -> tuple[Array, Array]:
    """V(0) = 0.1 randn and the target softmax(10 rand); the published seed is not known.

    Examples
    --------
    >>> from attsvm.validation.figures.polarization._protocols import figure_10
    >>> round(float(figure_10()[1].sum()), 12)
    1.0
    """
    draw = np.random.RandomState(seed)
    V, logits = 0.1 * draw.randn(p, p), 10 * draw.rand(p)
    weights = np.exp(logits - logits.max())
    return V, weights / weights.sum()


def figure_12(
    kappa: float, seed: int = 123, p: int = 20, difficulty: float | None = None
) -> tuple[Array, Array, pol.SquareLoss]:
    """W, a and the loss ``|beta - X W s|^2`` (no 1/2), X with singular values from 1 to 1 / kappa.

    ``difficulty`` rescales beta so that ``|X^-1 beta|`` has this value.

    Examples
    --------
    >>> from attsvm.validation.figures.polarization._protocols import figure_12
    >>> round(figure_12(5.0)[2].difficulty, 2)
    10.82
    """
    draw = np.random.RandomState(seed)
    W, a = 1e-5 * draw.randn(p, p), 1e-3 * draw.randn(p)
    left, _, right = np.linalg.svd(draw.randn(p, p))
    X = left @ np.diag(np.linspace(1, 1 / kappa, p)) @ right
    beta = draw.randn(p)
    loss = pol.SquareLoss(beta, X=X, scale=2.0)
    return W, a, loss if difficulty is None else pol.SquareLoss(beta * difficulty / loss.difficulty, X=X, scale=2.0)


def figure_13() -> tuple[Array, Array, Array]:
    """V(0), a(0), beta_*: the seed is reset, so that beta_* repeats the first row of V(0).

    Examples
    --------
    >>> from attsvm.validation.figures.polarization._protocols import figure_13
    >>> V, a, beta = figure_13()
    >>> int((V.T @ beta).argmax()), int(a.argmax())
    (1, 6)
    """
    draw = np.random.RandomState(42)
    V, a = 0.1 * draw.randn(10, 10), 1 + 0.1 * draw.randn(10)
    beta = np.random.RandomState(42).randn(10)
    return V, a, beta / np.linalg.norm(beta)
