"""What a selector is fitted to: candidates with a query each, as pairs or as flat rows with group ids, in one problem.

The formats are listed in `FORMATS`, which every error about them repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from attsvm.problem import AttentionProblem
from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.user_input import require_finite

Task: TypeAlias = tuple[npt.ArrayLike, npt.ArrayLike]
TasksLike: TypeAlias = AttentionProblem | Sequence[Task] | npt.NDArray[Any]
"""An `AttentionProblem`, or one (candidates (T_i, dx), query (dz,)) per task: a list, or an array of objects."""

FORMATS = (
    "a sequence of pairs (candidates (T_i, dx), query (dz,)), an AttentionProblem(X, Z=Z) with X (n, T, dx) and Z "
    "(n, dz), or flat rows (rows, features) with qid=, one row per candidate"
)


def is_flat(X: object) -> bool:
    """Whether these are flat rows: a table of numbers, one row per candidate, not tasks.

    Examples
    --------
    >>> import numpy as np
    >>> is_flat(np.zeros((4, 3))), is_flat([[1.0, 2.0]]), is_flat([(np.eye(2), np.ones(2))])
    (True, True, False)
    """
    if isinstance(X, AttentionProblem):
        return False
    if hasattr(X, "columns") or hasattr(X, "tocsr"):  # a DataFrame; sparse matrices are refused as tables
        return True
    if hasattr(X, "__array__"):  # a pandas Series of pairs is an array of objects
        array = np.asarray(X)
        return array.ndim == 2 or (array.ndim == 1 and array.dtype != object)  # one row is refused as a table
    first = next(iter(X), None) if isinstance(X, Sequence) else None
    return isinstance(first, (Sequence, np.ndarray)) and all(np.ndim(entry) == 0 for entry in first)


def read_tasks(tasks: TasksLike) -> AttentionProblem:
    """Tasks as one padded problem.

    Parameters
    ----------
    tasks : AttentionProblem or sequence of (candidates, query)
        A list, an array of objects or a pandas Series of pairs; candidates may differ in number from task to task. A
        three-dimensional array is refused: it does not say which of its rows are queries.

    Examples
    --------
    >>> import numpy as np
    >>> read_tasks([(np.eye(3), np.ones(3)), (np.eye(3)[:2], np.ones(3))])
    AttentionProblem(n=2, T=3, dx=3, dz=3, no head, masked)
    """
    if isinstance(tasks, AttentionProblem):
        if tasks.batch is not None or tasks.multi_query:
            raise ValueError(f"tasks must be a problem with one query per sequence, got {tasks!r}")
        return tasks
    if isinstance(tasks, (str, bytes)) or not hasattr(tasks, "__iter__"):
        raise TypeError(f"tasks must be {FORMATS}; got {type(tasks).__name__}")
    if isinstance(tasks, np.ndarray) and tasks.dtype != object:
        raise ValueError(
            f"tasks must be {FORMATS}; got an array of shape {tasks.shape}, which does not say which rows are queries"
        )
    return _from_pairs(list(tasks))


def _from_pairs(pairs: list[Any]) -> AttentionProblem:
    """One (candidates, query) per task, padded."""
    if not pairs:
        raise ValueError("tasks must hold at least one task, got none")
    for i, pair in enumerate(pairs):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ValueError(
                f"task {i} must be a pair (candidates, query), got {type(pair).__name__}; tasks are {FORMATS}"
            )
    candidates = [_floats(f"candidates of task {i}", pair[0]) for i, pair in enumerate(pairs)]
    queries = [_floats(f"the query of task {i}", pair[1]) for i, pair in enumerate(pairs)]
    for i, (x, z) in enumerate(zip(candidates, queries, strict=True)):
        if x.ndim != 2 or not len(x) or x.shape[1:] != candidates[0].shape[1:]:
            raise ValueError(f"candidates of task {i} must have shape (T, {candidates[0].shape[-1]}), got {x.shape}")
        if z.shape != queries[0].shape or z.ndim != 1:
            raise ValueError(f"the query of task {i} must have shape {queries[0].shape}, got {z.shape}")
    X, mask = _padded([len(x) for x in candidates], np.concatenate(candidates))
    return AttentionProblem(X, Z=np.stack(queries), mask=None if mask.all() else mask)


def _floats(name: str, value: Any) -> FloatArray:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must hold numbers ({error})") from error
    require_finite(name, array)
    return array


def _padded(sizes: Sequence[int], rows: FloatArray) -> tuple[FloatArray, BoolArray]:
    """Consecutive rows of several sets as (n, T, d) and where they are, with T of at least 2."""
    there = np.arange(max(2, *sizes)) < np.asarray(sizes)[:, None]
    X = np.zeros((*there.shape, rows.shape[1]))
    X[there] = rows
    return X, there


@dataclass(frozen=True, eq=False)
class FlatRows:
    """Candidates as the rows of a table, grouped by their query.

    Attributes
    ----------
    problem : AttentionProblem
        One sequence per group, with the query of the group.
    group, place : ndarray of int, shape (rows,)
        Sequence of each row and its place there.
    """

    problem: AttentionProblem
    group: IntArray
    place: IntArray

    def spread(self, values: npt.NDArray[Any], fill: float = 0.0) -> npt.NDArray[Any]:
        """A number per row laid out as (groups, T)."""
        out = np.full((self.problem.n, self.problem.T), fill, dtype=np.asarray(values).dtype)
        out[self.group, self.place] = values
        return out

    def collect(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The inverse: of an array (groups, T) the entry of every row."""
        return np.asarray(values[self.group, self.place])


def read_rows(X: FloatArray, qid: npt.ArrayLike | None, query: npt.NDArray[np.bool_]) -> FlatRows:
    """Flat rows by their groups.

    Parameters
    ----------
    X : ndarray, shape (rows, features)
    qid : array_like, shape (rows,), optional
        Rows with the same value compete; in any order. None: all rows compete with each other.
    query : ndarray of bool, shape (features,)
        Columns that describe the query: equal in all rows of a group. Where there are none, the query is the
        constant 1, and the score is linear in the features of the candidate.

    Examples
    --------
    >>> import numpy as np
    >>> read_rows(np.eye(3), ["b", "a", "b"], np.zeros(3, dtype=bool)).group
    array([1, 0, 1])
    """
    names, group = _groups(qid, len(X))
    order = np.argsort(group, kind="stable")
    sizes = np.bincount(group)
    starts = np.cumsum(sizes) - sizes
    place = np.empty(len(X), dtype=np.int64)
    place[order] = np.arange(len(X)) - np.repeat(starts, sizes)
    tokens, there = _padded(sizes.tolist(), X[order][:, ~query])
    Z = np.ones((len(sizes), 1))
    if query.any():
        Z = X[order][starts][:, query]
        differ = np.flatnonzero((X[:, query] != Z[group]).any(axis=1))
        if len(differ):
            raise ValueError(
                f"query_columns must hold the same numbers in all rows of a group, but row {differ[0]} differs from "
                f"another row with qid {names[group[differ[0]]]!r}"
            )
    problem = AttentionProblem(tokens, Z=Z, mask=None if there.all() else there)
    return FlatRows(problem, group.astype(np.int64), place)


def _groups(qid: npt.ArrayLike | None, rows: int) -> tuple[list[Any], IntArray]:
    if qid is None:
        return [None], np.zeros(rows, dtype=np.int64)
    given = np.asarray(qid)
    if given.shape != (rows,):
        raise ValueError(f"qid must hold one group id per row of X, shape ({rows},), got {given.shape}")
    if given.dtype.kind == "f" and np.isnan(given).any():
        raise ValueError(f"qid must hold group ids, but qid[{int(np.isnan(given).argmax())}] is nan")
    names, group = np.unique(given, return_inverse=True)
    return names.tolist(), np.asarray(group, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class RankingProblem:
    """What must be ranked above what: a problem with one query per candidate that is better than another one.

    Attributes
    ----------
    problem : AttentionProblem
        K queries per group; each sees its own candidate and the worse ones.
    wanted : ndarray of int, shape (groups, K)
        The candidate of each query; -1 without a candidate.
    weights : ndarray, shape (groups, K), or (groups, K, T)
        Per query, or (``per_row``) per pair.
    """

    problem: AttentionProblem
    wanted: IntArray
    weights: FloatArray


def ranking_problem(rows: FlatRows, relevance: FloatArray, weights: FloatArray, per_row: bool) -> RankingProblem:
    """Each candidate against every worse one of its group.

    Parameters
    ----------
    rows : FlatRows
    relevance, weights : ndarray, shape (rows,)
        A row of weight w counts as w equal rows; with weight 0 it is left out.
    per_row : bool
        Whether each pair has a weight, the product of those of its rows, or each query that of its candidate.

    Examples
    --------
    >>> import numpy as np
    >>> flat = read_rows(np.eye(3), [0, 0, 0], np.zeros(3, dtype=bool))
    >>> found = ranking_problem(flat, np.array([2.0, 1.0, 0.0]), np.ones(3), per_row=False)
    >>> found.wanted, found.problem.mask.astype(int)
    (array([[0, 1]]), array([[[1, 1, 1],
            [0, 1, 1]]]))
    """
    base = rows.problem
    value, weight = rows.spread(relevance, -np.inf), rows.spread(weights)
    counts = np.asarray(weight > 0)
    worse = (value[:, None, :] < value[:, :, None]) & counts[:, None, :] & counts[:, :, None]  # (groups, T, T)
    leads = worse.any(axis=-1)  # candidates that are better than another one
    K = int(leads.sum(axis=1).max(initial=0))
    if K == 0:
        n = int(counts.sum())
        told = f"n_samples = {n}" if n < 2 else "all rows of a group are equally relevant"
        raise ValueError(
            f"y must mark a candidate as more relevant than another one of its group, but {told} (among the rows of "
            "positive weight)"
        )
    chosen = np.argsort(~leads, axis=1, kind="stable")[:, :K]
    real = np.take_along_axis(leads, chosen, axis=1)
    wanted = np.where(real, chosen, -1)
    allowed = np.take_along_axis(worse, chosen[..., None], axis=1)
    allowed |= np.arange(base.T) == chosen[..., None]
    Z = np.broadcast_to(base.Z[:, None], (base.n, K, base.dz))
    own = np.where(real, np.take_along_axis(weight, chosen, axis=1), 0.0)
    problem = AttentionProblem(base.X, Z=Z, mask=allowed)
    return RankingProblem(problem, wanted, own[..., None] * weight[:, None] if per_row else own)
