"""Local optimality of a selection, low- and high-score tokens, and the separating cone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm._arrays import BoolArray, real_array
from attsvm.problem import AttentionProblem
from attsvm.selection import Selection, read_selection
from attsvm.solution import SUPPORT_TOLERANCE, Solution
from attsvm.solvers import Status
from attsvm.svm import att_svm

__all__ = ["SeparatingCone", "high_score_tokens", "is_locally_optimal", "low_score_tokens", "separating_cone"]


def _selected_scores(problem: AttentionProblem, chosen: Selection) -> npt.NDArray[np.float64]:
    return np.take_along_axis(problem.scores(), chosen.indices[..., None], axis=-1)


def low_score_tokens(problem: AttentionProblem, selection: Any = None) -> BoolArray:
    """Allowed tokens that score strictly less than the selected one (Definition 3 / 5).

    Returns
    -------
    ndarray of bool, shape ``query_shape + (T,)``

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=2, T=4, d=5, seed=0)
    >>> attsvm.low_score_tokens(problem).sum(axis=-1)  # every other token scores less than the best
    array([3, 3])
    """
    chosen = read_selection(problem, selection)
    return np.asarray(problem.allowed & (problem.scores() < _selected_scores(problem, chosen)))


def high_score_tokens(problem: AttentionProblem, selection: Any = None) -> BoolArray:
    """Allowed tokens other than the selected one that score at least as much (Definition 3 / 5).

    Returns
    -------
    ndarray of bool, shape ``query_shape + (T,)``

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=2, T=4, d=5, seed=0)
    >>> attsvm.high_score_tokens(problem).any()
    np.False_
    """
    chosen = read_selection(problem, selection)
    other = np.arange(problem.T) != chosen.indices[..., None]
    return np.asarray(problem.allowed & other & (problem.scores() >= _selected_scores(problem, chosen)))


def is_locally_optimal(
    problem: AttentionProblem,
    selection: Any = None,
    norm: str = "frobenius",
    *,
    solution: Solution | None = None,
    solver: str = "auto",
    support_tolerance: float = SUPPORT_TOLERANCE,
    **options: Any,
) -> Any:
    """Whether every support token scores strictly less than the selected one (Definition 2 / 4).

    Parameters
    ----------
    problem : AttentionProblem
    selection : Selection or array_like of int, optional
        The optimal tokens by default.
    norm : str
        "frobenius" for W, "nuclear" for (K, Q): the support depends on it.
    solution : Solution, optional
        Already solved for this selection and norm.
    solver, support_tolerance, **options
        As for `att_svm`.

    Returns
    -------
    bool, or ndarray of bool for a batch
        False when the selection is infeasible: there is no solution to be optimal.

    Examples
    --------
    >>> import attsvm
    >>> attsvm.is_locally_optimal(attsvm.random_problem(n=3, T=4, d=5, seed=0))
    True
    """
    chosen = read_selection(problem, selection)
    solved: Any = solution
    if solved is None:
        solved = att_svm(problem, chosen, norm=norm, solver=solver, support_tolerance=support_tolerance, **options)
    elif problem.batch is not None:
        raise ValueError("solution= goes with a single problem; index the batch first")
    elif not (isinstance(solved.selection, Selection) and solved.selection == chosen):
        raise ValueError("solution was computed for another selection")
    if problem.batch is not None:
        undecided = [b for b, status in enumerate(solved.status) if not status.is_certified]
        if undecided:
            raise RuntimeError(
                f"local optimality is undecided: the solves of problems {undecided[:5]} are not certified"
            )
        feasible = np.asarray(solved.status == "optimal")
        beaten = (solved.support & high_score_tokens(problem, chosen)).reshape(problem.batch, -1).any(axis=1)
        return feasible & ~beaten
    return _decide(problem, chosen, solved)


def _decide(problem: AttentionProblem, chosen: Selection, solution: Solution) -> bool:
    if solution.status is Status.INFEASIBLE:
        return False
    if solution.status is not Status.OPTIMAL:
        raise RuntimeError(
            f"local optimality is undecided: the solve ended {solution.status} with gap {solution.certificate.gap:.1e}"
        )
    return not bool((solution.support & high_score_tokens(problem, chosen)).any())


@dataclass(frozen=True, eq=False)
class SeparatingCone:
    """Matrices that rank some low-score token above every high-score token (Definition 3 / 5).

    ``cone_eps = { W : value(W) >= eps }``, where ``value`` is the minimum over queries of
    ``max_{t low} min_{tau high} (x_t - x_tau)^T W z / |W|_F``.

    Attributes
    ----------
    problem : AttentionProblem
    selection : Selection
    low, high : ndarray of bool, shape ``query_shape + (T,)``
    """

    problem: AttentionProblem
    selection: Selection
    low: BoolArray
    high: BoolArray

    def value(self, W: npt.ArrayLike) -> float:
        """Largest eps for which W lies in the cone.

        A query without high-score tokens asks for nothing (+inf); one with high- but no low-score tokens
        cannot be met (-inf).

        Parameters
        ----------
        W : array_like, shape (dx, dz)
        """
        matrix = real_array("W", W).astype(np.float64)
        if matrix.shape != (self.problem.dx, self.problem.dz):
            raise ValueError(f"W must have shape {(self.problem.dx, self.problem.dz)}, got {matrix.shape}")
        size = float(np.linalg.norm(matrix))
        if size == 0:
            raise ValueError("W must not be zero: its direction is undefined")
        Z = self.problem.Z if self.problem.multi_query else self.problem.Z[:, None]
        logits = np.einsum("itd,de,ike->ikt", self.problem.X, matrix / size, Z, optimize=True)
        logits = logits.reshape(self.low.shape)
        best_low = np.where(self.low, logits, -np.inf).max(axis=-1)
        best_high = np.where(self.high, logits, -np.inf).max(axis=-1)
        constrained = self.high.any(axis=-1)
        return float((best_low[constrained] - best_high[constrained]).min(initial=np.inf))

    def contains(self, W: npt.ArrayLike, eps: float = 0.0, rank: int | None = None) -> bool:
        """Whether W lies in ``cone_eps`` (and has at most the given rank).

        Parameters
        ----------
        W : array_like, shape (dx, dz)
        eps : float
        rank : int, optional
        """
        if rank is not None and int(np.linalg.matrix_rank(np.asarray(W))) > rank:
            return False
        return self.value(W) >= eps


def separating_cone(problem: AttentionProblem, selection: Any = None) -> SeparatingCone:
    """The cone around a selection in which the local regularization path lives.

    Examples
    --------
    >>> import numpy as np
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=3, T=4, d=5, seed=0)
    >>> attsvm.separating_cone(problem).contains(np.eye(5), eps=1e9)  # optimal tokens: the whole space
    True
    """
    if problem.batch is not None:
        raise ValueError("the cone belongs to one problem; index the batch first, e.g. problem[0]")
    chosen = read_selection(problem, selection)
    return SeparatingCone(problem, chosen, low_score_tokens(problem, chosen), high_score_tokens(problem, chosen))
