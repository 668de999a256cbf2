"""Tokens as exact rationals: rows without the rounding of differences, scores, and Definition 2 decided exactly."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm._arrays import BoolArray
from attsvm.heads import LinearHead
from attsvm.problem import AttentionProblem
from attsvm.selection import SelectionLike, read_selection
from attsvm.solvers.exact import ExactRows, exact_rows

__all__ = ["every_support_scores_less", "exact_scores", "exact_selection_rows"]

ObjectArray = npt.NDArray[np.object_]


def _fractions(values: npt.NDArray[Any]) -> ObjectArray:
    """Floats of any precision as the Fractions that they are."""
    flat = values.astype(np.float64).ravel().tolist()
    out = np.empty(len(flat), dtype=object)
    out[:] = [Fraction(x) for x in flat]
    return out.reshape(values.shape)


def _single(problem: AttentionProblem) -> None:
    if problem.batch is not None:
        raise ValueError("exact arithmetic goes one problem at a time; index the batch first, e.g. problem[0]")


def exact_selection_rows(
    problem: AttentionProblem, selection: SelectionLike = None
) -> tuple[ExactRows, npt.NDArray[np.int64]]:
    """Rows ``(x_{i,alpha} - x_it) z^T`` of Att-SVM with differences that no rounding touched.

    Rows come in the order of `attsvm.rows.selection_rows`. Two equal tokens give a zero row, which asks for ``0 >= 1``.

    Parameters
    ----------
    problem : AttentionProblem
        A single one, in float32 or float64.
    selection : Selection or array_like of int, optional

    Returns
    -------
    rows : ExactRows
    token : ndarray of int, shape (m,)
        The token that row k is about.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.exact import exact_selection_rows
    >>> rows, token = exact_selection_rows(attsvm.random_problem(n=2, T=3, d=4, seed=0))
    >>> rows.m, rows.shape
    (4, (4, 4))
    """
    _single(problem)
    anchors = read_selection(problem, selection).indices.reshape(-1)
    keep = problem.allowed.reshape(-1, problem.T) & (np.arange(problem.T) != anchors[:, None])
    owner, token = np.nonzero(keep)
    if len(owner) == 0:
        raise ValueError("mask leaves no query with two tokens to choose from: there is nothing to separate")
    X = _fractions(problem.X)
    sequence = owner // problem.K
    a = X[sequence, anchors[owner]] - X[sequence, token]
    queries = np.asarray(problem.Z, dtype=np.float64).reshape(-1, problem.dz)
    return exact_rows(a, queries, owner), token


def exact_scores(problem: AttentionProblem) -> ObjectArray:
    """Scores ``Y_i v . x_it`` of a linear head as Fractions; of another head, the floats that it returns.

    Returns
    -------
    ndarray of Fraction, shape ``query_shape + (T,)``
        Also where a token is masked.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.exact import exact_scores
    >>> head = attsvm.LinearHead([1.0, 3.0])
    >>> problem = attsvm.AttentionProblem([[[0.5, 0.0], [0.0, 1.0]]], [-1.0], [[1.0, 0.0]], head)
    >>> exact_scores(problem)
    array([[Fraction(-1, 2), Fraction(-3, 1)]], dtype=object)
    """
    _single(problem)
    if problem.head is None:
        raise ValueError("scores need a prediction head: pass head=attsvm.LinearHead(v) or any callable")
    if isinstance(problem.head, LinearHead):
        values = (_fractions(problem.X) * _fractions(np.asarray(problem.head.v))).sum(axis=-1)
    else:
        values = _fractions(np.asarray(problem.head(problem.X)))
    if problem.multi_query:
        values = values[..., None, :]
    return np.asarray(_fractions(np.asarray(problem.Y))[..., None] * values, dtype=object)


def every_support_scores_less(support: npt.ArrayLike, scores: ObjectArray, selected: npt.ArrayLike) -> bool:
    """Definition 2 / 4: every support token scores strictly less than the selected one.

    Parameters
    ----------
    support : array_like of bool, shape ``query_shape + (T,)``
        Tokens whose margin is exactly 1.
    scores : ndarray of Fraction, shape ``query_shape + (T,)``
    selected : array_like of int, shape ``query_shape``

    Examples
    --------
    >>> import numpy as np
    >>> from fractions import Fraction
    >>> from attsvm.exact import every_support_scores_less
    >>> scores = np.array([[Fraction(1, 3), Fraction(1, 3), Fraction(2)]], dtype=object)
    >>> every_support_scores_less([[False, False, False]], scores, [0])
    True
    >>> every_support_scores_less([[False, True, False]], scores, [0])  # a tie is not less
    False
    """
    marked: BoolArray = np.asarray(support, dtype=bool)
    if marked.shape != scores.shape:
        raise ValueError(f"support must have the shape {scores.shape} of scores, got {marked.shape}")
    best = np.take_along_axis(scores, np.asarray(selected, dtype=np.int64)[..., None], axis=-1)
    return not bool((marked & (scores >= best)).any())
