"""All selections of a problem, or some of them, with what is proved about each of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attsvm._arrays import BoolArray, IntArray
from attsvm.enumeration.evaluate import full_verdicts
from attsvm.enumeration.space import SelectionSpace
from attsvm.problem import AttentionProblem

__all__ = ["SelectionTable", "count_selections", "solve_every_selection", "solve_selections"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SelectionTable:
    """Selections and the solutions of their SVMs.

    Attributes
    ----------
    indices : ndarray of int, shape (S,) + query_shape
    feasible : ndarray of bool, shape (S,)
        Proved to have a solution.
    decided : ndarray of bool, shape (S,)
        False where local optimality is neither proved nor refuted.
    margin : ndarray, shape (S,)
        0 where infeasible, NaN where no solution is certified.
    support : ndarray of bool, shape (S,) + query_shape + (T,)
        Support tokens; none where infeasible. Proved in the Frobenius norm.
    doubtful : ndarray of bool, shape (S,) + query_shape + (T,)
        Tokens that may be in the support: neither proved to lie on the margin nor beyond it.
    locally_optimal : ndarray of bool, shape (S,)
        Definition 2 / 4, proved: feasible, and every support token scores strictly less than the selected one.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.enumeration import solve_selections
    >>> table = solve_selections(attsvm.random_problem(n=2, T=3, d=4, seed=0), [[0, 1], [2, 2]])
    >>> len(table), table.feasible, table.margin.round(3)
    (2, array([ True,  True]), array([0.865, 0.791]))
    """

    indices: IntArray
    feasible: BoolArray
    decided: BoolArray
    margin: FloatArray
    support: BoolArray
    doubtful: BoolArray
    locally_optimal: BoolArray

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        counts = f"{int(self.feasible.sum())} feasible, {int(self.locally_optimal.sum())} locally optimal"
        return f"SelectionTable({len(self)} selections: {counts}, {int((~self.decided).sum())} undecided)"


def count_selections(problem: AttentionProblem) -> int:
    """How many selections a problem has: the product over queries of the tokens that each may see.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.enumeration import count_selections
    >>> count_selections(attsvm.random_problem(n=3, T=4, d=5))
    64
    """
    return SelectionSpace(problem).size


def solve_selections(problem: AttentionProblem, indices: npt.ArrayLike, *, norm: str = "frobenius") -> SelectionTable:
    """Solve the SVMs of given selections of one problem in batches.

    Parameters
    ----------
    problem : AttentionProblem
        With a head: local optimality needs scores.
    indices : array_like of int, shape (S,) + query_shape
    norm : str

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.enumeration import solve_selections
    >>> solve_selections(attsvm.random_problem(n=2, T=3, d=4), [[0, 1], [2, 2]]).feasible
    array([ True,  True])
    """
    space = SelectionSpace(problem)
    chosen = np.asarray(indices, dtype=np.int64)
    if chosen.shape[1:] != problem.query_shape:
        raise ValueError(f"indices must have shape (S,) + {problem.query_shape}, got {chosen.shape}")
    flat = chosen.reshape(len(chosen), -1)
    verdicts = full_verdicts(space, flat, norm, support=True)
    assert verdicts.support is not None
    grid = (len(chosen), *problem.query_shape, problem.T)
    return SelectionTable(
        chosen,
        verdicts.feasible,
        ~verdicts.undecided,
        np.asarray(1.0 / verdicts.norm),
        verdicts.support.tokens.reshape(grid),
        verdicts.support.doubtful.reshape(grid),
        verdicts.locally_optimal,
    )


def solve_every_selection(problem: AttentionProblem, *, norm: str = "frobenius", limit: int = 20_000) -> SelectionTable:
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
    >>> from attsvm.enumeration import solve_every_selection
    >>> table = solve_every_selection(attsvm.random_problem(n=3, T=3, d=4, seed=0))
    >>> len(table), int(table.feasible.sum()), table.indices[table.locally_optimal].tolist()
    (27, 27, [[1, 0, 0], [1, 1, 0]])
    """
    space = SelectionSpace(problem)
    if space.size > limit:
        raise ValueError(
            f"the problem has {space.size} selections, more than the limit of {limit}; raise limit, or use "
            "attsvm.locally_optimal_selections(problem, top=k), which searches without listing"
        )
    everything = space.selections(0, space.size)
    return solve_selections(problem, everything.reshape(-1, *problem.query_shape), norm=norm)
