"""From a selection to the rows of its margin problem (the only place where attention meets rows)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm._arrays import BoolArray, FloatArray, IntArray, real_array
from attsvm.problem import AttentionProblem
from attsvm.selection import SelectedSets, Selection, read_selected_sets, read_selection
from attsvm.solvers import MarginProblem

__all__ = ["AttentionRows", "finite_part_rows", "gen_svm_rows", "selection_rows"]

# Differences formed at once (32 MiB of float64), so that building rows needs no second copy of them.
_CHUNK_ELEMENTS = 1 << 22


@dataclass(frozen=True, eq=False)
class AttentionRows:
    """A margin problem and where its rows come from.

    Attributes
    ----------
    margin_problem : MarginProblem
        Row k reads ``(x_{i,anchor} - x_{i,token[k]})^T W z`` with the query ``owner[k]``.
    token : ndarray of int, shape (m,)
        The token that row k is about.
    query_shape : tuple of int
        (n,) or (n, K); ``owner`` counts queries in C order of this shape.
    T : int
    """

    margin_problem: MarginProblem
    token: IntArray
    query_shape: tuple[int, ...]
    T: int

    def scatter(self, values: npt.ArrayLike, fill: float = np.nan) -> npt.NDArray[np.float64]:
        """One number per row, laid out per query and token: shape ``query_shape + (T,)``."""
        out = np.full((self.margin_problem.q, self.T), fill)
        out[self.margin_problem.owner, self.token] = values
        return out.reshape(*self.query_shape, self.T)

    def query_index(self, owner: int) -> tuple[int, ...]:
        """The (i,) or (i, k) of a query."""
        return tuple(int(i) for i in np.unravel_index(owner, self.query_shape))


def _differences(X: FloatArray, anchors: IntArray, sequence: IntArray, owner: IntArray, token: IntArray) -> FloatArray:
    """Rows ``x_{i,anchor} - x_{i,token}``, shape (m, dx), in chunks."""
    out = np.empty((len(token), X.shape[-1]), dtype=X.dtype)
    step = max(1, _CHUNK_ELEMENTS // X.shape[-1])
    for start in range(0, len(token), step):
        rows = slice(start, start + step)
        i = sequence[rows]
        np.subtract(X[i, anchors[owner[rows]]], X[i, token[rows]], out=out[rows])
    return out


def _build(
    problem: AttentionProblem, anchors: IntArray, keep: BoolArray, rhs: FloatArray | None, equality: BoolArray | None
) -> AttentionRows:
    """Rows of ``anchor - token`` wherever keep, shape (n*K, T); rhs and equality have the same layout."""
    owner, token = np.nonzero(keep)
    if len(owner) == 0:
        raise ValueError("mask leaves no query with two tokens to choose from: there is nothing to separate")
    sequence = owner // problem.K
    a = _differences(problem.X, anchors, sequence, owner, token)
    is_equal = None if equality is None else equality[owner, token]
    same = ~a.any(axis=1)
    if is_equal is not None:
        same &= ~is_equal  # equal tokens inside a selected set ask for 0 = rhs, which the solver judges
    if same.any():
        k = int(np.flatnonzero(same)[0])
        chosen, other = int(anchors[owner[k]]), int(token[k])
        raise ValueError(
            f"X[{sequence[k]}] holds the same vector as tokens {chosen} and {other}, so no W can select "
            f"token {chosen} over token {other}; remove the duplicate or mask it"
        )
    rows = MarginProblem(
        a,
        problem.Z.reshape(-1, problem.dz),
        owner,
        None if rhs is None else rhs[owner, token],  # type: ignore[arg-type]
        is_equal,  # type: ignore[arg-type]
    )
    return AttentionRows(rows, token, problem.query_shape, problem.T)


def _single(problem: AttentionProblem) -> None:
    if problem.batch is not None:
        raise ValueError("rows are built for one problem at a time; index the batch first, e.g. problem[0]")


def selection_rows(problem: AttentionProblem, selection: Any = None) -> AttentionRows:
    """Rows of Att-SVM (one query) and SAtt-SVM (K queries, any mask).

    For every query and every allowed token other than the selected one:
    ``(x_{i,alpha} - x_it)^T W z >= 1``, equations (Att-SVM), (12) and (SAtt-SVM).

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.rows import selection_rows
    >>> rows = selection_rows(attsvm.random_problem(n=6, T=8, d=10, seed=0))
    >>> rows.margin_problem.m
    42
    """
    _single(problem)
    chosen: Selection = read_selection(problem, selection)
    anchors = chosen.indices.reshape(-1)
    keep = problem.allowed.reshape(-1, problem.T) & (np.arange(problem.T) != anchors[:, None])
    return _build(problem, anchors, keep, None, None)


def gen_svm_rows(problem: AttentionProblem, selected_sets: Any) -> AttentionRows:
    """Rows of Gen-SVM: equal similarity inside a selected set, margin 1 against every other token.

    The tokens of a set are tied to its first member by ``= 0`` rows, so one ``>= 1`` row per masked token
    (against the first member) says the same as one per pair; |O| |not O| + |O|^2 rows become T - 1.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.rows import gen_svm_rows
    >>> problem = attsvm.random_problem(n=2, T=4, d=6, seed=0)
    >>> gen_svm_rows(problem, [[0, 2], [1]]).margin_problem.equality.sum()
    np.int64(1)
    """
    _single(problem)
    sets: SelectedSets = read_selected_sets(problem, selected_sets)
    members = sets.members.reshape(-1, problem.T)
    anchors = members.argmax(axis=1)
    keep = problem.allowed.reshape(-1, problem.T) & (np.arange(problem.T) != anchors[:, None])
    return _build(problem, anchors, keep, np.where(members, 0.0, 1.0), members)


def finite_part_rows(problem: AttentionProblem, probabilities: Any, selected_sets: Any) -> AttentionRows:
    """Rows of the finite part: ``(x_it - x_itau)^T W z = log(s_t / s_tau)`` inside each set, equation (8).

    Parameters
    ----------
    problem : AttentionProblem
    probabilities : array_like, shape (n, T) or (n, K, T)
        Attention probabilities; only ratios inside a set matter.
    selected_sets : SelectedSets, boolean array or lists of indices

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.rows import finite_part_rows
    >>> problem = attsvm.random_problem(n=1, T=3, d=4, seed=0)
    >>> finite_part_rows(problem, [[0.8, 0.2, 0.0]], [[0, 1]]).margin_problem.rhs.round(4)
    array([1.3863])
    """
    _single(problem)
    members = read_selected_sets(problem, selected_sets).members.reshape(-1, problem.T)
    s = real_array("probabilities", probabilities).astype(np.float64)
    expected = (*problem.query_shape, problem.T)
    if s.shape != expected:
        raise ValueError(f"probabilities must have shape {expected}, got {s.shape}")
    s = s.reshape(-1, problem.T)
    bad = np.argwhere(members & ~((s > 0) & np.isfinite(s)))
    if len(bad):
        query, token = int(bad[0][0]), int(bad[0][1])
        raise ValueError(
            f"probabilities must be positive on the selected sets, but query {query} gives token {token} "
            f"{s[query, token]:g}"
        )
    anchors = members.argmax(axis=1)
    keep = members & (np.arange(problem.T) != anchors[:, None])
    if not keep.any():
        raise ValueError("selected_sets holds one token per query: there is no ratio of probabilities to match")
    logs = np.log(np.where(members, s, 1.0))
    rhs = np.take_along_axis(logs, anchors[:, None], axis=1) - logs
    return _build(problem, anchors, keep, rhs, keep)
