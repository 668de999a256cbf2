"""Tasks of a selector: candidates with a query each, as one padded problem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from attsvm.problem import AttentionProblem

__all__ = ["Task", "TasksLike", "read_tasks"]

Task: TypeAlias = tuple[npt.ArrayLike, npt.ArrayLike]
TasksLike: TypeAlias = AttentionProblem | Sequence[Task] | npt.NDArray[Any]
"""An `AttentionProblem`, or one (candidates (T_i, dx), query (dz,)) per task: a list, or an array of objects."""


def read_tasks(tasks: TasksLike) -> AttentionProblem:
    """Tasks as one padded problem.

    Parameters
    ----------
    tasks : AttentionProblem, sequence of (candidates, query), or ndarray, shape (n, T + 1, d)
        A dense array holds the query of each task in its last row; rows of NaN are padding.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.tasks import read_tasks
    >>> read_tasks([(np.eye(3), np.ones(3)), (np.eye(3)[:2], np.ones(3))])
    AttentionProblem(n=2, T=3, dx=3, dz=3, no head, masked)
    """
    if isinstance(tasks, AttentionProblem):
        if tasks.batch is not None or tasks.multi_query:
            raise ValueError(f"tasks must be a problem with one query per sequence, got {tasks!r}")
        return tasks
    if isinstance(tasks, np.ndarray) and tasks.dtype != object:
        return _from_table(tasks)
    return _from_pairs(list(tasks))


def _from_table(tasks: npt.NDArray[Any]) -> AttentionProblem:
    """A dense array with the query of each task in its last row."""
    if tasks.ndim != 3 or tasks.shape[1] < 3:
        raise ValueError(
            f"tasks must have shape (n, T + 1, d), at least two candidates and then the query, got {tasks.shape}"
        )
    X, Z = tasks[:, :-1], tasks[:, -1]
    there = np.asarray(~np.isnan(X).all(axis=-1))
    return AttentionProblem(np.where(there[..., None], X, 0.0), Z=Z, mask=None if there.all() else there)


def _from_pairs(pairs: list[Any]) -> AttentionProblem:
    """One (candidates, query) per task, padded."""
    if not pairs:
        raise ValueError("tasks must hold at least one task, got none")
    for i, pair in enumerate(pairs):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ValueError(f"task {i} must be a pair (candidates, query), got {type(pair).__name__}")
    candidates = [np.asarray(pair[0], dtype=np.float64) for pair in pairs]
    queries = [np.asarray(pair[1], dtype=np.float64) for pair in pairs]
    for i, (x, z) in enumerate(zip(candidates, queries, strict=True)):
        if x.ndim != 2 or not len(x) or x.shape[1:] != candidates[0].shape[1:]:
            raise ValueError(f"candidates of task {i} must have shape (T, {candidates[0].shape[-1]}), got {x.shape}")
        if z.shape != queries[0].shape or z.ndim != 1:
            raise ValueError(f"the query of task {i} must have shape {queries[0].shape}, got {z.shape}")
    sizes = np.array([len(x) for x in candidates])
    longest = max(2, int(sizes.max()))
    X = np.zeros((len(pairs), longest, candidates[0].shape[1]))
    for i, x in enumerate(candidates):
        X[i, : len(x)] = x
    mask = np.arange(longest) < sizes[:, None]
    return AttentionProblem(X, Z=np.stack(queries), mask=None if mask.all() else mask)
