"""Which of two tokens scores more: exactly, also where floating point cannot tell."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from attsvm._arrays import BoolArray, IntArray
from attsvm.heads import LinearHead
from attsvm.problem import AttentionProblem
from attsvm.solvers.certify.rounding import TINY, gamma

__all__ = ["score_order"]

FloatArray = npt.NDArray[np.float64]


def score_order(problem: AttentionProblem) -> IntArray:
    """Ranks of the scores within each query: a token scores less than another exactly if its rank is less.

    Scores of a linear head that floating point cannot tell apart are compared as rationals; any other head means the
    numbers that it returns.

    Returns
    -------
    ndarray of int, shape ``query_shape + (T,)``
        Equal for ties. What masked tokens get means nothing.

    Examples
    --------
    ``0.1 + 0.2`` is not the double 0.3, but it is less than a rounding away:

    >>> import attsvm
    >>> from attsvm.score_order import score_order
    >>> X = [[[0.1, 0.2], [0.3, 0.0], [0.2, 0.1]]]
    >>> score_order(attsvm.AttentionProblem(X, [1], [[1.0, 0.0]], attsvm.LinearHead([1.0, 1.0])))
    array([[1, 0, 1]])
    """
    scores = problem.scores()  # checks that there is a head and that what it returns is finite
    if not isinstance(problem.head, LinearHead):
        return np.asarray(_dense_ranks(scores)[0])
    X, v = problem.X.astype(np.float64, copy=False), np.asarray(problem.head.v, dtype=np.float64)
    seen = np.asarray(problem.allowed.any(axis=-2) if problem.multi_query else problem.allowed)
    # A computed dot product is within this of the exact one (`attsvm.solvers.certify.rounding`).
    blur = 1.01 * gamma(problem.dx + 2) * LinearHead(np.abs(v))(np.abs(X)) + 8.0 * problem.dx * TINY
    ranks, gap = _dense_ranks(np.where(seen, LinearHead(v)(X), np.inf), np.where(seen, blur, 0.0))
    for place in np.argwhere(gap):
        i = tuple(place)
        ranks[i][seen[i]] = _exact_ranks(X[i][seen[i]], v if v.ndim == 1 else v[place[0]])
    if problem.multi_query:
        ranks = ranks[..., None, :]
    return np.asarray(problem.Y[..., None].astype(np.int64) * ranks)


def _dense_ranks(values: FloatArray, blur: FloatArray | None = None) -> tuple[IntArray, BoolArray]:
    """Ranks along the last axis, equal for equal numbers, and where neighbours are closer than their blurs."""
    order = np.argsort(values, axis=-1, kind="stable")
    sorted_values = np.take_along_axis(values, order, axis=-1)
    with np.errstate(invalid="ignore"):  # masked tokens stand at infinity, where differences mean nothing
        step = np.diff(sorted_values, axis=-1)
    rank = np.zeros(values.shape, dtype=np.int64)
    rank[..., 1:] = np.cumsum(step > 0, axis=-1)
    out = np.empty_like(rank)
    np.put_along_axis(out, order, rank, axis=-1)
    if blur is None:
        return out, np.zeros(values.shape[:-1], dtype=bool)
    around = np.take_along_axis(blur, order, axis=-1)
    return out, np.asarray((step <= around[..., 1:] + around[..., :-1]).any(axis=-1))


def _exact_ranks(tokens: FloatArray, v: FloatArray) -> IntArray:
    """Ranks of ``v . x`` over the rationals, shape (number of tokens,)."""
    distinct, member = np.unique(tokens, axis=0, return_inverse=True)
    weights = [Fraction(x) for x in v.tolist()]
    worth = [
        sum((Fraction(x) * w for x, w in zip(row, weights, strict=True)), Fraction(0)) for row in distinct.tolist()
    ]
    place = {value: rank for rank, value in enumerate(sorted(set(worth)))}
    return np.array([place[value] for value in worth], dtype=np.int64)[member.reshape(-1)]
