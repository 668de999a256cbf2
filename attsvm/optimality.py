"""Local optimality of a selection (Definitions 2 to 5): low- and high-score tokens, support, the verdict, the cone."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from attsvm._arrays import BoolArray, IntArray, real_array
from attsvm.attention import logits
from attsvm.local_proof import LocalProof, prove_local
from attsvm.problem import AttentionProblem, ProblemBatch, require_problem
from attsvm.score_order import score_order
from attsvm.selection import Selection, SelectionLike, read_selection
from attsvm.solution import Solution, SolutionBatch
from attsvm.solvers import ConvergenceWarning
from attsvm.svm import att_svm

__all__ = [
    "Convergence",
    "SeparatingCone",
    "convergence_of",
    "high_score_tokens",
    "is_locally_optimal",
    "low_score_tokens",
    "prove",
    "separating_cone",
    "support_indices",
]


def _own(order: IntArray, chosen: Selection) -> IntArray:
    return np.take_along_axis(order, chosen.indices[..., None], axis=-1)


def low_score_tokens(problem: AttentionProblem, selection: SelectionLike = None) -> BoolArray:
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
    chosen, order = read_selection(require_problem(problem), selection), score_order(problem)
    return np.asarray(problem.allowed & (order < _own(order, chosen)))


def high_score_tokens(problem: AttentionProblem, selection: SelectionLike = None) -> BoolArray:
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
    chosen, order = read_selection(require_problem(problem), selection), score_order(problem)
    other = np.arange(problem.T) != chosen.indices[..., None]
    return np.asarray(problem.allowed & other & (order >= _own(order, chosen)))


def support_indices(solution: Solution, tolerance: float | None = None) -> tuple[IntArray, ...]:
    """Support tokens of each query (Definition 2): margin equal to 1 within a tolerance.

    Parameters
    ----------
    solution : Solution
    tolerance : float, optional
        The solution's ``support_tolerance`` by default.

    Returns
    -------
    tuple of ndarray
        One array of token indices per query, in C order of ``query_shape``; it may be empty.

    Examples
    --------
    >>> import attsvm
    >>> sol = attsvm.att_svm(attsvm.random_problem(n=2, T=3, d=4, seed=0))
    >>> [indices.tolist() for indices in attsvm.support_indices(sol)]
    [[1], [1, 2]]
    """
    if tolerance is not None and not tolerance >= 0:
        raise ValueError(f"tolerance must be >= 0, got {tolerance}")
    if not isinstance(solution, Solution):
        raise TypeError(f"solution must be a Solution, got {type(solution).__name__}; index a batch first")
    support = solution.support if tolerance is None else replace(solution, support_tolerance=tolerance).support
    return tuple(np.flatnonzero(row) for row in support.reshape(-1, solution.rows.T))


@overload
def is_locally_optimal(  # type: ignore[overload-overlap]  # a batch is a problem, so the narrower case comes first
    problem: ProblemBatch,
    selection: SelectionLike = None,
    *,
    norm: str = "frobenius",
    solution: SolutionBatch | None = None,
    solver: str = "auto",
    **options: object,
) -> BoolArray: ...


@overload
def is_locally_optimal(
    problem: AttentionProblem,
    selection: SelectionLike = None,
    *,
    norm: str = "frobenius",
    solution: Solution | None = None,
    solver: str = "auto",
    **options: object,
) -> bool: ...


def is_locally_optimal(
    problem: AttentionProblem,
    selection: SelectionLike = None,
    *,
    norm: str = "frobenius",
    solution: Solution | SolutionBatch | None = None,
    solver: str = "auto",
    **options: object,
) -> bool | BoolArray:
    """Whether every support token scores strictly less than the selected one (Definition 2 / 4): proved.

    In the Frobenius norm the answer is that of exact arithmetic on the data as given: error bounds decide clear cases,
    rationals the others, and a problem that is too large for them raises. In other norms solutions need not be
    unique; True means that every solution passes, False that none does (see ``docs/local_optima.md``).

    Parameters
    ----------
    problem : AttentionProblem
    selection : Selection or array_like of int, optional
        The optimal tokens by default.
    norm : str
        "frobenius" for W, "nuclear" for (K, Q): the support depends on it.
    solution : Solution, or SolutionBatch for a batch, optional
        Already solved for this selection; its norm counts.
    solver, **options
        As for `att_svm`.

    Returns
    -------
    bool, or ndarray of bool for a batch
        False when the selection is infeasible: there is no solution to be optimal.

    Raises
    ------
    RuntimeError
        When neither answer is proved; the message has the reason and the resolution reached.

    Examples
    --------
    >>> import attsvm
    >>> attsvm.is_locally_optimal(attsvm.random_problem(n=3, T=4, d=5, seed=0))
    True
    """
    chosen = read_selection(require_problem(problem), selection)
    solved: Solution | SolutionBatch
    if solution is None:
        settings: dict[str, Any] = dict(options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # what is undecided is told below
            solved = att_svm(problem, chosen, norm=norm, solver=solver, **settings)
    elif not isinstance(solution, Solution | SolutionBatch):
        raise TypeError(f"solution= must be a Solution or a SolutionBatch, got {type(solution).__name__}")
    elif isinstance(solution, SolutionBatch) != (problem.batch is not None):
        raise ValueError(
            "solution= must be a Solution for one problem and a SolutionBatch for a batch, got "
            f"{type(solution).__name__}; index the batch first, e.g. problem[0]"
        )
    elif not (isinstance(solution.selection, Selection) and solution.selection == chosen):
        raise ValueError("solution was computed for another selection")
    else:
        solved = solution
    proof = prove(solved)
    if proof.undecided.any():
        which = np.flatnonzero(proof.undecided).tolist()
        where = "" if problem.batch is None else f" for problems {which[:5]}"
        raise RuntimeError(f"local optimality is undecided{where}: {proof.reasons[which[0]]}")
    return bool(proof.local[0]) if problem.batch is None else proof.local


def prove(solution: Solution | SolutionBatch) -> LocalProof:
    """What is proved about local optimality of the tokens of a solved Att-SVM, without raising.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.optimality import prove
    >>> proof = prove(attsvm.att_svm(attsvm.random_problem(n=3, T=4, d=5, seed=0)))
    >>> bool(proof.local[0]), bool(proof.undecided[0])
    (True, False)
    """
    if not isinstance(solution.selection, Selection):
        raise ValueError("local optimality is about one token per query; this solution selects sets of tokens")
    return prove_local(solution.rows, solution.result, high_score_tokens(solution.problem, solution.selection))


class Convergence(StrEnum):
    """Where descent ended, by the tokens that it selects."""

    GLOBAL = "Global"
    LOCAL = "Local"
    NOT_LOCAL = "Not local"
    UNDECIDED = "Undecided"

    @classmethod
    def of(cls, *, local: bool, undecided: bool, optimal: bool) -> Convergence:
        """By what is proved of the tokens at the end, and whether they are the optimal ones.

        Examples
        --------
        >>> from attsvm.optimality import Convergence
        >>> str(Convergence.of(local=True, undecided=False, optimal=False))
        'Local'
        """
        if undecided:
            return cls.UNDECIDED
        if not local:
            return cls.NOT_LOCAL
        return cls.GLOBAL if optimal else cls.LOCAL

    @property
    def is_local(self) -> bool:
        """Proved locally optimal, which the globally optimal tokens are too."""
        return self in (Convergence.GLOBAL, Convergence.LOCAL)


@overload
def convergence_of(solution: Solution) -> Convergence: ...


@overload
def convergence_of(solution: SolutionBatch) -> npt.NDArray[np.object_]: ...


def convergence_of(solution: Solution | SolutionBatch) -> Convergence | npt.NDArray[np.object_]:
    """Class of the end of a run, given the SVM of the tokens that it selected in the norm of its bias.

    "Global" when they are the optimal tokens and locally optimal (Definition 2), "Local" when they are others and
    locally optimal, "Not local" when they are proved not to be (or infeasible), "Undecided" otherwise.

    Returns
    -------
    Convergence, or an object array of them for a batch; compare with strings: ``kinds == "Global"``

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.optimality import convergence_of
    >>> problem = attsvm.random_problem(n=3, T=4, d=5, seed=0)
    >>> print(convergence_of(attsvm.att_svm(problem)))
    Global
    """
    proof = prove(solution)
    same = np.asarray(solution.selection) == solution.problem.optimal_tokens().indices
    best = same.reshape(len(proof.local), -1).all(axis=1)
    kinds = np.empty(len(proof.local), dtype=object)
    kinds[:] = [
        Convergence.of(local=bool(local), undecided=bool(undecided), optimal=bool(optimal))
        for local, undecided, optimal in zip(proof.local, proof.undecided, best, strict=True)
    ]
    return kinds if isinstance(solution, SolutionBatch) else Convergence(kinds[0])


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

    def __repr__(self) -> str:
        counts = f"{int(self.low.sum())} low-score and {int(self.high.sum())} high-score tokens"
        return f"SeparatingCone({self.problem!r}, {counts})"

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
        values = logits(self.problem, matrix / size)
        best_low = np.where(self.low, values, -np.inf).max(axis=-1)
        best_high = np.where(self.high, values, -np.inf).max(axis=-1)
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


def separating_cone(problem: AttentionProblem, selection: SelectionLike = None) -> SeparatingCone:
    """The cone around a selection in which the local regularization path lives.

    Examples
    --------
    >>> import numpy as np
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=3, T=4, d=5, seed=0)
    >>> attsvm.separating_cone(problem).contains(np.eye(5), eps=1e9)  # optimal tokens: the whole space
    True
    """
    if require_problem(problem).batch is not None:
        raise ValueError("the cone belongs to one problem; index the batch first, e.g. problem[0]")
    chosen = read_selection(problem, selection)
    return SeparatingCone(problem, chosen, low_score_tokens(problem, chosen), high_score_tokens(problem, chosen))
