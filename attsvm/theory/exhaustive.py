"""All selections of a problem, or some of them, solved in batches."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from attsvm._arrays import BoolArray, IntArray
from attsvm.problem import AttentionProblem
from attsvm.solvers import Status
from attsvm.svm import att_svm

__all__ = ["SelectionTable", "count_selections", "solve_every_selection", "solve_some_selections"]

FloatArray = npt.NDArray[np.float64]

_CHUNK = 4096  # selections in one batch: about 100 MB of rows at 60 rows and 50 dimensions


@dataclass(frozen=True, eq=False)
class SelectionTable:
    """Selections and the solutions of their SVMs.

    Attributes
    ----------
    indices : ndarray of int, shape (S,) + query_shape
    feasible : ndarray of bool, shape (S,)
    decided : ndarray of bool, shape (S,)
        False where the solve ended without a certificate.
    margin : ndarray, shape (S,)
        0 where infeasible.
    support : ndarray of bool, shape (S,) + query_shape + (T,)
        Support tokens; none where infeasible.
    locally_optimal : ndarray of bool, shape (S,)
        Definition 2 / 4: feasible, and every support token scores strictly less than the selected one.
    """

    indices: IntArray
    feasible: BoolArray
    decided: BoolArray
    margin: FloatArray
    support: BoolArray
    locally_optimal: BoolArray

    def __len__(self) -> int:
        return len(self.indices)


def count_selections(problem: AttentionProblem) -> int:
    """How many selections a problem has: the product over queries of the tokens that each may see.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.theory import count_selections
    >>> count_selections(attsvm.random_problem(n=3, T=4, d=5))
    64
    """
    return prod(int(count) for count in problem.allowed.sum(axis=-1).reshape(-1))


def _all_indices(problem: AttentionProblem) -> IntArray:
    allowed = problem.allowed.reshape(-1, problem.T)
    tokens = [np.flatnonzero(row) for row in allowed]
    digits = np.unravel_index(np.arange(count_selections(problem)), [len(t) for t in tokens])
    flat = np.stack([t[d] for t, d in zip(tokens, digits, strict=True)], axis=1)
    return flat.reshape(-1, *problem.query_shape).astype(np.int64)


def duplicated_tokens(problem: AttentionProblem) -> BoolArray:
    """True where another allowed token of the query is the same vector: selecting it is infeasible."""
    X = problem.X
    same = np.stack([(x[:, None] == x[None]).all(axis=-1) & ~np.eye(problem.T, dtype=bool) for x in X])
    allowed = problem.allowed.reshape(problem.n, problem.K, problem.T)
    found = (same[:, None] & allowed[:, :, None, :]).any(axis=-1) & allowed
    return np.asarray(found.reshape(*problem.query_shape, problem.T))


def solve_some_selections(problem: AttentionProblem, indices: npt.ArrayLike, norm: str = "frobenius") -> SelectionTable:
    """Solve the SVMs of given selections of one problem in batches.

    Parameters
    ----------
    problem : AttentionProblem
    indices : array_like of int, shape (S,) + query_shape
    norm : str

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.theory.exhaustive import solve_some_selections
    >>> solve_some_selections(attsvm.random_problem(n=2, T=3, d=4), [[0, 1], [2, 2]]).feasible
    array([ True,  True])
    """
    chosen = np.asarray(indices, dtype=np.int64)
    S, axes = len(chosen), tuple(range(1, chosen.ndim))
    doubled = np.take_along_axis(duplicated_tokens(problem)[None], chosen[..., None], axis=-1)[..., 0]
    hopeless = np.asarray(doubled.any(axis=axes))
    feasible, decided = np.zeros(S, dtype=bool), np.ones(S, dtype=bool)
    margin = np.zeros(S)
    support = np.zeros((S, *problem.query_shape, problem.T), dtype=bool)
    for start in range(0, S, _CHUNK):
        part = start + np.flatnonzero(~hopeless[start : start + _CHUNK])
        if not len(part):
            continue
        solved = att_svm(problem.repeat(len(part)), chosen[part], norm=norm)
        feasible[part] = [status.has_solution for status in solved.status]
        decided[part] = [status.is_certified for status in solved.status]
        margin[part] = np.where([status is Status.INFEASIBLE for status in solved.status], 0.0, solved.margin)
        support[part] = solved.support
    scores = problem.scores()[None]
    beaten = scores >= np.take_along_axis(scores, chosen[..., None], axis=-1)
    local = feasible & ~(support & beaten).any(axis=(*axes, chosen.ndim))
    return SelectionTable(chosen, feasible, decided, margin, support, np.asarray(local))


def solve_every_selection(problem: AttentionProblem, norm: str = "frobenius", limit: int = 20_000) -> SelectionTable:
    """Solve the SVMs of all selections of a problem, in lexicographic order.

    Parameters
    ----------
    problem : AttentionProblem
        A single problem; K queries and masks count as they are.
    norm : str
    limit : int
        Most selections that are solved.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.theory import solve_every_selection
    >>> table = solve_every_selection(attsvm.random_problem(n=3, T=3, d=4, seed=0))
    >>> len(table), int(table.feasible.sum()), table.indices[table.locally_optimal].tolist()
    (27, 27, [[1, 0, 0], [1, 1, 0]])
    """
    if problem.batch is not None:
        raise ValueError("selections are listed for one problem at a time; index the batch first, e.g. problem[0]")
    count = count_selections(problem)
    if count > limit:
        raise ValueError(
            f"the problem has {count} selections, more than the limit of {limit}; raise limit, or use "
            "attsvm.locally_optimal_selections(problem, top=k), which searches without listing"
        )
    return solve_some_selections(problem, _all_indices(problem), norm)
