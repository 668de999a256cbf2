"""Local optimality of a selection (Definitions 2 to 5): low- and high-score tokens, support, the verdict, the cone.

Definition 2 is proved: is every token on the margin worth less than the selected one? Yes, no, or undecided and why.

*Frobenius norm.* The solution is unique; rows of high-score tokens that are all proved to lie beyond the margin say
yes, a proof that some of them carries a multiplier says no (`attsvm.support_proof`), and rationals decide the rest.

*Other norms.* There may be many solutions, and Definition 2 may depend on which is meant. Two statements hold for all
of them, each proved by certificates of margin problems alone:

- no solution has all high-score rows beyond the margin when the norm without those rows is strictly less: such a
  solution would solve the smaller problem too;
- every solution has row k beyond the margin when the norm with that row held at exactly 1 is strictly more.

Where neither is proved the readings may differ, and the answer is "undecided".

*The two readings.* Let S_all and S_low be the solution sets with all rows and with the rows of low-score tokens alone.

- Some W in S_all has all high-score rows > 1 iff some W in S_low has. A W in S_all with these rows slack is a local,
  hence global, minimum of the smaller problem; such a W in S_low is feasible for the full problem, hence optimal. In
  both cases the values agree and ``S_all = S_low & {high-score rows >= 1}``.
- Every W in a nonempty S_all has them > 1 iff every W in a nonempty S_low has. If: S_all is a nonempty subset of S_low.
  Only if: suppose a W' in S_low had such a row <= 1. The segment from a W in S_all to W' lies in S_low; its last point
  with all of them >= 1 belongs to S_all and has one equal to 1, a contradiction.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Unpack, overload

import numpy as np
import numpy.typing as npt

from attsvm.attention import logits
from attsvm.exact_tokens import score_order
from attsvm.margin_options import SolverOptions, check_options, takes
from attsvm.problem import AttentionProblem, require_problem, require_single
from attsvm.selection import Selection, SelectionLike, read_selection
from attsvm.selection_rows import AttentionRows
from attsvm.solution import Solution, SolutionBatch
from attsvm.solvers import (
    Certificate,
    CertificateBatch,
    ConvergenceWarning,
    MarginProblem,
    MarginSolution,
    certify,
    solve,
    solve_batch,
)
from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.deadline import late
from attsvm.solvers.exact import ExactFarkas, ExactLeastNorm
from attsvm.solvers.margin_problem import EitherProblem, is_batch
from attsvm.solvers.margin_solution import EitherSolution, is_one
from attsvm.support_proof import MarginBounds, carries_weight_outside, margin_bounds, solve_exactly, upper_norm
from attsvm.svm import att_svm
from attsvm.user_input import real_array, require_number

if TYPE_CHECKING:
    from attsvm.problem import Solvable

# A high-score row this close to the margin is suspected to lie on it: which proof is tried first.
_CLOSE = 1e-3

# Problems with a row held at 1 that are solved as one batch.
_AT_ONCE = 2048


@dataclass(frozen=True, eq=False)
class LocalProof:
    """What is proved about each of S selections.

    Attributes
    ----------
    local : ndarray of bool, shape (S,)
        Proved locally optimal.
    undecided : ndarray of bool, shape (S,)
        Neither that nor the contrary is proved.
    reasons : dict from int to str
        Why, for the undecided ones.
    exact : dict from int to ExactLeastNorm or ExactFarkas
        Solved over the rationals on the way.
    """

    local: BoolArray
    undecided: BoolArray
    reasons: dict[int, str] = field(default_factory=dict)
    exact: dict[int, ExactLeastNorm | ExactFarkas] = field(default_factory=dict)


def prove_local(rows: AttentionRows, result: EitherSolution, high: BoolArray) -> LocalProof:
    """Decide Definition 2 / 4 for a solved Att-SVM, or for each of a batch.

    Parameters
    ----------
    rows : AttentionRows
        Of all allowed tokens.
    result : MarginSolution
        Its solution, in any norm.
    high : ndarray of bool, shape (*batch, *query_shape, T)
        Tokens that do not score less than the selected one.

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=3, T=4, d=5, seed=0)
    >>> solution = attsvm.att_svm(problem, [0, 0, 0])
    >>> prove_local(solution.rows, solution.result, attsvm.high_score_tokens(problem, [0, 0, 0])).local
    array([False])
    """
    problem: EitherProblem = rows.margin_problem
    above = rows.pick(high) & (problem.rhs != 0)
    status = np.atleast_1d(np.asarray(result.status, dtype=object))
    optimal, infeasible = status == "optimal", status == "infeasible"
    # No token scores as much: any solution will do.
    local = optimal & ~np.atleast_1d(above.any(axis=-1))
    proof = LocalProof(local, ~local & ~infeasible)
    if result.norm_kind.name == "frobenius":
        return _frobenius(problem, result, result.certificate, above, optimal, proof)
    if min(problem.shape) == 1 and result.norm_kind.unitarily_invariant:  # on vectors these norms are one
        certificate: Certificate | CertificateBatch = result.certificate
        if optimal.any():
            # There may be no W; and squares that leave the range make error bounds infinite, which decide nothing.
            with np.errstate(over="ignore", invalid="ignore"):
                certificate = certify(problem, np.asarray(result.W), result.multipliers, "frobenius")
        return _frobenius(problem, result, certificate, above, optimal, proof)
    return _any_norm(problem, result, above, optimal, proof)


def _one(result: EitherSolution, problem: EitherProblem, index: int) -> tuple[MarginProblem, MarginSolution]:
    if is_one(result):
        assert not is_batch(problem)
        return problem, result
    return problem[index], result[index]


def _own_rows(problem: EitherProblem, values: BoolArray, index: int) -> BoolArray:
    """The entries of one problem of a batch, without its void rows."""
    if not problem.batch:
        return values
    return np.asarray(values[index] if problem.valid is None else values[index][problem.valid[index]])


def _frobenius(
    problem: EitherProblem,
    result: EitherSolution,
    certificate: Certificate | CertificateBatch,
    above: BoolArray,
    optimal: BoolArray,
    proof: LocalProof,
) -> LocalProof:
    local, left = proof.local.copy(), proof.undecided.copy()
    bounds: MarginBounds | None = None
    if optimal.any():
        bounds = margin_bounds(problem, result.W, certificate)
        local |= optimal & ~np.atleast_1d((above & ~bounds.beyond).any(axis=-1))
        left &= ~local
        left &= ~_refuted(problem, result, bounds, above, left & optimal)
    reasons: dict[int, str] = {}
    exact: dict[int, ExactLeastNorm | ExactFarkas] = {}
    for i in np.flatnonzero(left):
        one, solved = _one(result, problem, int(i))
        answer = None if late() else solve_exactly(one, solved.multipliers)
        if answer is None:
            reasons[int(i)] = _why(problem, result, bounds, above, int(i), bool(optimal[i]))
            continue
        exact[int(i)] = answer
        left[i] = False
        if isinstance(answer, ExactLeastNorm):
            local[i] = not bool((answer.support & _own_rows(problem, above, int(i))).any())
    return LocalProof(local, left, reasons, exact)


def _refuted(
    problem: EitherProblem, result: EitherSolution, bounds: MarginBounds, above: BoolArray, some: BoolArray
) -> BoolArray:
    """Where the high-score rows are proved to carry a multiplier, shape (S,)."""
    out = np.zeros(len(some), dtype=bool)
    below = ~above & (problem.rhs != 0)
    if not problem.batch:
        if some[0]:
            out[0] = carries_weight_outside(problem, bounds, result.multipliers, below)
        return out
    index = np.flatnonzero(some)
    if len(index):
        out[index] = carries_weight_outside(problem.take(index), bounds[index], result.multipliers[index], below[index])
    return out


def _why(
    problem: EitherProblem,
    result: EitherSolution,
    bounds: MarginBounds | None,
    above: BoolArray,
    index: int,
    optimal: bool,
) -> str:
    """Why a selection stays undecided, with the resolution at which margins are known."""
    if late():
        return "the time limit was reached"
    if not optimal or bounds is None:
        _, solved = _one(result, problem, index)
        return f"the solve ended {solved.status} with gap {solved.certificate.gap:.1e}"
    margins, error = np.atleast_2d(bounds.margins)[index], np.atleast_2d(bounds.error)[index]
    rows = np.atleast_2d(above)[index]
    distance = np.where(rows, np.abs(margins - 1.0), np.inf)
    k = int(distance.argmin())
    return (
        f"the margin of a token of no lower score is {margins[k]:.12g}, known to within {error[k]:.1e}, "
        "and the problem is too large for exact arithmetic"
    )


def _any_norm(
    problem: EitherProblem, result: EitherSolution, above: BoolArray, optimal: BoolArray, proof: LocalProof
) -> LocalProof:
    norm = result.norm_kind.name
    local, left = proof.local.copy(), proof.undecided.copy()
    most = np.atleast_1d(upper_norm(result.certificate))
    least = np.atleast_1d(np.asarray(result.certificate.lower_bound))
    high = np.atleast_2d(above)
    if (left & optimal).any():
        with np.errstate(invalid="ignore"):
            close = (high & (np.atleast_2d(problem.margins(result.W)) <= 1.0 + _CLOSE)).any(axis=-1)
        index = np.flatnonzero(left & optimal & close)
        if len(index):
            left[index[_least_without(_some(problem, index), high[index], norm) < least[index]]] = False
        index = np.flatnonzero(left & optimal)
        if len(index):
            local[index] = _beyond_in_every_solution(_some(problem, index), high[index], most[index], norm)
        left &= ~local
    reasons = {}
    for i in np.flatnonzero(left):
        if optimal[i]:
            reasons[int(i)] = (
                f"the solutions of the {norm}-norm problem differ, or are not proved not to, on whether a token of no "
                f"lower score lies on the margin (norms known to {most[i] / least[i] - 1.0:.0e})"
            )
        else:
            reasons[int(i)] = _why(problem, result, None, above, int(i), False)
    return LocalProof(local, left, reasons)


def _some(problem: EitherProblem, index: npt.NDArray[np.intp]) -> EitherProblem:
    return problem.take(index) if is_batch(problem) else problem


def _least_without(problem: EitherProblem, high: BoolArray, norm: str) -> FloatArray:
    """Upper bounds on the least norm over the rows that are not high, shape (S,)."""
    pair = problem.rows.gather(np.arange(problem.m))
    a, queries = np.asarray(pair.a), np.asarray(pair.queries)
    if not problem.batch:
        a, queries = a[None], queries[None]
    keep = ~high & np.atleast_2d(problem.rhs != 0)
    out = np.zeros(len(high))  # without any row W = 0
    some = np.flatnonzero(keep.any(axis=-1))
    if len(some):
        owner = pair.owner if pair.owner.ndim == 1 else pair.owner[some]
        found = solve_batch(MarginProblem(a[some], queries[some], owner, valid=keep[some]), norm)
        out[some] = upper_norm(found.certificate)
    return out


def _beyond_in_every_solution(problem: EitherProblem, high: BoolArray, most: FloatArray, norm: str) -> BoolArray:
    """Whether holding any high row at exactly 1 costs more than ``most``, shape (S,)."""
    if not problem.batch:
        for k in np.flatnonzero(high[0]):
            held: MarginProblem = MarginProblem.from_rows(problem.rows, None, np.arange(problem.m) == k)
            if not _proved_least(solve(held, norm)) > most[0]:
                return np.zeros(1, dtype=bool)
        return np.ones(1, dtype=bool)
    which, row = np.nonzero(high)
    beyond = np.ones(len(which), dtype=bool)
    for start in range(0, len(which), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        copies = problem.take(which[part])
        equality = np.arange(problem.m) == row[part, None]
        tied = solve_batch(MarginProblem.from_rows(copies.rows, copies.rhs, equality, copies.valid), norm)
        beyond[part] = _proved_least(tied) > most[which[part]]
    out = np.ones(len(high), dtype=bool)
    np.logical_and.at(out, which, beyond)
    return out


def _proved_least(found: EitherSolution) -> FloatArray:
    """Proved lower bounds on the norm: infinite where infeasible, 0 where the solve failed."""
    failed = np.asarray(np.asarray(found.status, dtype=object) == "failed", dtype=bool)
    return np.where(failed, 0.0, found.certificate.lower_bound)


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
    require_number("tolerance", tolerance, "a number >= 0", 0.0, ends="[]", optional=True)
    if not isinstance(solution, Solution):
        raise TypeError(f"solution must be a Solution, got {type(solution).__name__}; index a batch first")
    support = solution.support if tolerance is None else replace(solution, support_tolerance=tolerance).support
    return tuple(np.flatnonzero(row) for row in support.reshape(-1, solution.rows.T))


@overload
def is_locally_optimal(
    problem: Solvable[SolutionBatch],
    selection: SelectionLike = None,
    *,
    solution: SolutionBatch | None = None,
    **options: Unpack[SolverOptions],
) -> BoolArray: ...


@overload
def is_locally_optimal(
    problem: Solvable[Solution],
    selection: SelectionLike = None,
    *,
    solution: Solution | None = None,
    **options: Unpack[SolverOptions],
) -> bool: ...


@takes(SolverOptions)
def is_locally_optimal(
    problem: Solvable[Solution] | Solvable[SolutionBatch],
    selection: SelectionLike = None,
    *,
    solution: Solution | SolutionBatch | None = None,
    **options: Unpack[SolverOptions],
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
    solution : Solution, or SolutionBatch for a batch, optional
        Already solved for this selection; its norm counts.
    **options
        Passed to the solver: ``tolerance``, ``max_iterations``, ``time_limit``, ...
        All keywords: `attsvm.margin_options.SolverOptions`.

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
    check_options("is_locally_optimal", SolverOptions, options)
    given = require_problem(problem)
    chosen = read_selection(given, selection)
    solved: Solution | SolutionBatch
    if solution is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # what is undecided is told below
            solved = att_svm(given, chosen, **options)
    elif not isinstance(solution, Solution | SolutionBatch):
        raise TypeError(f"solution= must be a Solution or a SolutionBatch, got {type(solution).__name__}")
    elif isinstance(solution, SolutionBatch) != (given.batch is not None):
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
        where = "" if given.batch is None else f" for problems {which[:5]}"
        raise RuntimeError(f"local optimality is undecided{where}: {proof.reasons[which[0]]}")
    return bool(proof.local[0]) if given.batch is None else proof.local


def prove(solution: Solution | SolutionBatch) -> LocalProof:
    """What is proved about local optimality of the tokens of a solved Att-SVM, without raising.

    Examples
    --------
    >>> import attsvm
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

        A query without high-score tokens has no constraint (+inf); one with high- but no low-score tokens
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
    require_single(problem, "the cone belongs to one problem")
    chosen = read_selection(problem, selection)
    return SeparatingCone(problem, chosen, low_score_tokens(problem, chosen), high_score_tokens(problem, chosen))
