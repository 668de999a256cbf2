"""From a selection to the rows of its margin problem (the only place where attention meets rows)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from attsvm._arrays import BoolArray, IntArray, real_array
from attsvm.problem import AttentionProblem
from attsvm.row_builder import AttentionRows, build_rows, lead_of
from attsvm.selection import SelectedSetsLike, Selection, SelectionLike, read_selected_sets, read_selection

__all__ = [
    "AttentionRows",
    "finite_part_rows",
    "gen_svm_rows",
    "rows_of_selection",
    "rows_of_selections",
    "selection_rows",
]


def selection_rows(
    problem: AttentionProblem,
    selection: SelectionLike = None,
    *,
    offset: npt.ArrayLike | None = None,
    shared: bool | None = None,
) -> AttentionRows:
    """Rows of Att-SVM (one query) and SAtt-SVM (K queries, any mask), for one problem or a batch.

    For every query and every allowed token other than the selected one:
    ``(x_{i,alpha} - x_it)^T W z >= 1``, equations (Att-SVM), (12) and (SAtt-SVM).

    Parameters
    ----------
    problem : AttentionProblem
    selection : Selection or array_like of int, optional
    offset : array_like, shape ``query_shape + (T,)``, optional
        Added to the logits (ALiBi, relative biases): it moves to the right-hand sides.
    shared : bool, optional
        Store tokens once and imply the rows (`attsvm.solvers.SharedRows`), or write every row out
        (`attsvm.solvers.PairRows`); by default whatever is smaller. Batches are written out.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.rows import selection_rows
    >>> rows = selection_rows(attsvm.random_problem(n=6, T=8, d=10, seed=0))
    >>> rows.margin_problem.m
    42
    """
    return rows_of_selection(problem, read_selection(problem, selection), offset, shared)


def rows_of_selection(
    problem: AttentionProblem,
    chosen: Selection,
    offset: npt.ArrayLike | None = None,
    shared: bool | None = None,
) -> AttentionRows:
    """`selection_rows` of a selection that was read against the problem."""
    anchors = chosen.indices
    if problem.multi_query:
        anchors = anchors.reshape(*lead_of(problem), -1)
    keep = None if problem.mask is None else problem.allowed.reshape(*anchors.shape, problem.T)
    return build_rows(problem, anchors, keep, None, None, offset, shared)


def rows_of_selections(problem: AttentionProblem, selections: IntArray, keep: BoolArray | None = None) -> AttentionRows:
    """Rows of many selections of one problem, as a batch of margin problems: those of `selection_rows` for each.

    Parameters
    ----------
    problem : AttentionProblem
        A single one.
    selections : ndarray of int, shape (S, n*K)
        Tokens of the queries in C order; nothing is checked.
    keep : ndarray of bool, shape (S, n*K, T), optional
        Rows that count; those of all allowed tokens by default. Every selection must keep at least one.

    Examples
    --------
    >>> import numpy as np
    >>> import attsvm
    >>> from attsvm.rows import rows_of_selections
    >>> problem = attsvm.random_problem(n=2, T=3, d=4, seed=0)
    >>> rows_of_selections(problem, np.array([[0, 1], [2, 2], [1, 1]])).margin_problem
    MarginProblem(3 problems, 4 rows, 2 queries, W 4 x 4)
    """
    if keep is None and problem.mask is not None:
        keep = np.broadcast_to(problem.allowed.reshape(-1, problem.T), (*selections.shape, problem.T))
    return build_rows(problem, selections, keep, None, None)


def gen_svm_rows(
    problem: AttentionProblem, selected_sets: SelectedSetsLike, *, offset: npt.ArrayLike | None = None
) -> AttentionRows:
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
    members = read_selected_sets(problem, selected_sets).members.reshape(*lead_of(problem), -1, problem.T)
    keep = None if problem.mask is None else problem.allowed.reshape(members.shape)
    return build_rows(problem, members.argmax(axis=-1), keep, np.where(members, 0.0, 1.0), members, offset)


def finite_part_rows(
    problem: AttentionProblem,
    probabilities: npt.ArrayLike,
    selected_sets: SelectedSetsLike,
    *,
    offset: npt.ArrayLike | None = None,
) -> AttentionRows:
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
    members = read_selected_sets(problem, selected_sets).members.reshape(*lead_of(problem), -1, problem.T)
    s = real_array("probabilities", probabilities).astype(np.float64)
    expected = (*problem.query_shape, problem.T)
    if s.shape != expected:
        raise ValueError(f"probabilities must have shape {expected}, got {s.shape}")
    s = s.reshape(members.shape)
    bad = np.argwhere(members & ~((s > 0) & np.isfinite(s)))
    if len(bad):
        query, token = int(bad[0][-2]), int(bad[0][-1])
        raise ValueError(
            f"probabilities must be positive on the selected sets, but query {query} gives token {token} "
            f"{s[tuple(bad[0])]:g}"
        )
    if not (members.sum(axis=-1) > 1).any(axis=-1).all():
        raise ValueError("selected_sets holds one token per query: there is no ratio of probabilities to match")
    anchors = members.argmax(axis=-1)
    logs = np.log(np.where(members, s, 1.0))
    rhs = np.take_along_axis(logs, anchors[..., None], axis=-1) - logs
    return build_rows(problem, anchors, members, rhs, members, offset)
