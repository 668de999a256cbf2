"""Numbers that compare matrices and selections; all broadcast over leading axes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from attsvm.problem import AttentionProblem
from attsvm.selection import SelectionLike
from attsvm.selection_rows import selection_rows
from attsvm.solution import unit_matrices
from attsvm.solvers import get_norm
from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.certify.ranks import count_above

__all__ = ["angle", "correlation", "effective_rank", "fitted_rate", "numerical_rank", "reached_margin"]


def correlation(A: npt.ArrayLike, B: npt.ArrayLike) -> FloatArray:
    """``<A, B> / (|A|_F |B|_F)`` over the last two axes; NaN when either is zero or missing.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.comparison import correlation
    >>> float(correlation(np.eye(2), [[1.0, 0.0], [0.0, 0.0]]).round(4))
    0.7071
    """
    return np.asarray((unit_matrices(A) * unit_matrices(B)).sum(axis=(-2, -1)))


def misalignment(A: npt.ArrayLike, B: npt.ArrayLike) -> FloatArray:
    """``1 - correlation`` without cancellation: half the squared distance of the unit matrices."""
    return np.asarray(0.5 * np.square(unit_matrices(A) - unit_matrices(B)).sum(axis=(-2, -1)))


def angle(misalignment: npt.ArrayLike) -> FloatArray:
    """The angle in degrees of two directions with ``1 - correlation = misalignment``, exact also where it is tiny.

    Examples
    --------
    >>> from attsvm.comparison import angle
    >>> angle([0.0, 0.0002, 1.0]).round(2).tolist()
    [0.0, 1.15, 90.0]
    """
    half = np.sqrt(np.clip(np.asarray(misalignment, dtype=np.float64) / 2, 0.0, 1.0))
    return np.asarray(np.degrees(2 * np.arcsin(half)))


def numerical_rank(W: npt.ArrayLike, tolerance: float = 1e-3) -> npt.NDArray[np.int64]:
    """Singular values above ``tolerance`` times the largest.

    A trained W carries directions that decay slowly, hence the coarse default.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.comparison import numerical_rank
    >>> int(numerical_rank(np.diag([1.0, 0.5, 1e-6])))
    2
    """
    s = np.linalg.svd(np.asarray(W, dtype=np.float64), compute_uv=False)
    return count_above(s, tolerance)


def effective_rank(W: npt.ArrayLike) -> FloatArray:
    """Exponential of the entropy of the singular values divided by their sum.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.comparison import effective_rank
    >>> float(effective_rank(np.eye(3)).round(6)), float(effective_rank(np.ones((3, 3))).round(6))
    (3.0, 1.0)
    """
    s = np.linalg.svd(np.asarray(W, dtype=np.float64), compute_uv=False)
    total = s.sum(axis=-1, keepdims=True)
    p = s / np.where(total > 0, total, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(p > 0, p * np.log(p), 0.0).sum(axis=-1)
    return np.asarray(np.where(total[..., 0] > 0, np.exp(entropy), 0.0))


def reached_margin(
    problem: AttentionProblem, W: npt.ArrayLike, selection: SelectionLike, norm: str = "frobenius"
) -> FloatArray:
    """Smallest margin of ``W / ||W||`` for a selection: at most ``1 / ||W_SVM||``, and equal to it at the optimum.

    Parameters
    ----------
    problem : AttentionProblem
        A single problem.
    W : array_like, shape (dx, dz) or (S, dx, dz)
    selection : Selection or array_like of int
    norm : str

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.comparison import reached_margin
    >>> problem = attsvm.random_problem(n=3, T=4, d=5, seed=0)
    >>> sol = attsvm.att_svm(problem)
    >>> bool(abs(reached_margin(problem, 7 * sol.W, None) - sol.margin) < 1e-8)
    True
    """
    rows = selection_rows(problem, selection).margin_problem
    matrices = np.asarray(W, dtype=np.float64).reshape(-1, *rows.shape)
    kind = get_norm(norm)
    sizes = np.array([kind(M) for M in matrices])
    smallest = np.array([rows.margins(M).min() for M in matrices])
    with np.errstate(divide="ignore", invalid="ignore"):
        values = smallest / np.where(sizes > 0, sizes, np.nan)
    return np.asarray(values.reshape(np.shape(W)[:-2]))


def fitted_rate(steps: npt.ArrayLike, error: npt.ArrayLike) -> float:
    """Exponent r of ``error ~ steps^-r``, least squares in logs over the last decade of steps.

    NaN when fewer than three positive errors are there.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.comparison import fitted_rate
    >>> k = np.array([0, 10, 30, 100, 300, 1000])
    >>> round(fitted_rate(k, 5.0 / np.maximum(k, 1) ** 2), 6)
    2.0
    """
    k, e = np.asarray(steps, dtype=np.float64), np.asarray(error, dtype=np.float64)
    use = (k > 0) & (k >= k.max() / 10) & (e > 0) & np.isfinite(e)
    if use.sum() < 3:
        return float("nan")
    return float(-np.polyfit(np.log(k[use]), np.log(e[use]), 1)[0])
