"""The four attention SVMs, soft margins along penalties, and the certificate of a W from anywhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

import numpy as np
import numpy.typing as npt

from attsvm.margin_options import (
    DEFAULTS,
    AttSvmOptions,
    MarginOptions,
    PathOptions,
    SvmOptions,
    check_options,
    method_options,
    takes,
)
from attsvm.problem import AttentionProblem, require_problem, require_single
from attsvm.records import html_listing
from attsvm.selection import (
    SelectedSets,
    SelectedSetsLike,
    Selection,
    SelectionLike,
    read_selected_sets,
    read_selection,
)
from attsvm.selection_rows import AttentionRows, finite_part_rows, gen_svm_rows, rows_of_selection, selection_rows
from attsvm.solution import Solution, SolutionBatch
from attsvm.solvers import Certificate, MarginSolution, MarginSolutionBatch, certify, get_norm, solve, solve_batch
from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.margin_solution import warn_if_inaccurate
from attsvm.solvers.penalty import PenaltyBatch, read_penalty
from attsvm.solvers.soft_path import solve_soft_path
from attsvm.user_input import finite_array, is_number, real_array, require_count, require_flag

if TYPE_CHECKING:
    from attsvm.problem import Solvable

Solved = TypeVar("Solved", Solution, SolutionBatch)


def read_support_tolerance(given: object) -> float:
    """A tolerance for support tokens, or an error."""
    if not is_number(given, 0.0, ends="[]"):
        raise ValueError(f"support_tolerance must be a number >= 0, got {given!r}")
    return float(given)


@dataclasses.dataclass(frozen=True, eq=False)
class _Posed:
    """What is to be solved: its name, its tokens, its rows, and what the solver is given."""

    formulation: str
    selection: Selection | SelectedSets
    rows: AttentionRows
    options: AttSvmOptions
    method: dict[str, Any]


@overload
def _solved(problem: Solvable[Solution], posed: _Posed, stacklevel: int = 4) -> Solution: ...
@overload
def _solved(problem: Solvable[SolutionBatch], posed: _Posed, stacklevel: int = 4) -> SolutionBatch: ...
def _solved(
    problem: Solvable[Solution] | Solvable[SolutionBatch], posed: _Posed, stacklevel: int = 4
) -> Solution | SolutionBatch:
    """Solve rows that were built, for one problem or a batch; a warning names the line ``stacklevel`` calls up."""
    given, asked = require_problem(problem), posed.options
    tolerance = read_support_tolerance(asked["support_tolerance"])
    margins = posed.rows.margin_problem
    if asked["prior"] is not None:
        margins = margins.around(real_array("prior", asked["prior"]))
    of = (posed.formulation, given, posed.selection, posed.rows)
    if given.batch is None:
        one = solve(margins, asked["norm"], asked["solver"], **posed.method)
        warn_if_inaccurate(one, stacklevel=stacklevel)
        return Solution(*of, one, tolerance)
    batch = solve_batch(margins, asked["norm"], asked["solver"], **posed.method)
    warn_if_inaccurate(batch, stacklevel=stacklevel)
    return SolutionBatch(*of, batch, tolerance)


def _posed_selection(problem: AttentionProblem, selection: SelectionLike, options: AttSvmOptions) -> _Posed:
    """Att-SVM and SAtt-SVM: one selected token per query."""
    asked: AttSvmOptions = {**DEFAULTS, **options}
    method = method_options(AttSvmOptions, options)
    chosen = read_selection(problem, selection)
    rows = rows_of_selection(problem, chosen, asked["offset"]).soft(asked["C"], asked["slack"], asked["loss"])
    if asked["warm_start"] is not None:
        method |= _warm_option(rows, asked["warm_start"], asked["norm"], asked["solver"])
    if asked["rank"] is not None:
        method |= _rank_option(rows, asked["rank"], asked["norm"])
    return _Posed("SAtt-SVM" if problem.multi_query else "Att-SVM", chosen, rows, asked, method)


def _warm_option(rows: AttentionRows, known: object, norm: str, solver: str) -> dict[str, Any]:
    """What the solver starts from: multipliers token by token, as the rows of another selection are other rows."""
    if not isinstance(known, (Solution, SolutionBatch)):
        raise TypeError(f"warm_start must be a Solution or a SolutionBatch, got {type(known).__name__}")
    other = known.rows
    if (other.query_shape, other.T, other.margin_problem.batch) != (
        rows.query_shape,
        rows.T,
        rows.margin_problem.batch,
    ):
        raise ValueError(
            f"warm_start must solve a problem with queries {(*rows.margin_problem.batch, *rows.query_shape)} and "
            f"T = {rows.T}, got {(*other.margin_problem.batch, *other.query_shape)} and {other.T}"
        )
    if norm not in ("frobenius", "nuclear") or solver.startswith("cvxpy"):
        return {}  # a solver that always starts anew
    if norm == "nuclear":  # Newton starts from W and the multipliers of a problem with as many rows
        same = isinstance(known, Solution) and other.margin_problem.m == rows.margin_problem.m
        return {"warm_start": known.result} if same and known.norm_name == "nuclear" else {}
    if isinstance(known, Solution) and not known.status.has_solution:
        return {}  # nothing to start from
    grid = np.nan_to_num(known.multipliers).reshape(*rows.margin_problem.batch, -1)
    if rows.margin_problem.penalty is not None and other.margin_problem.penalty is None:  # out of the norm form
        grid = grid * np.nan_to_num(known.norm, posinf=0.0)[..., None]
    place = np.broadcast_to(rows.margin_problem.owner * rows.T + rows.token, rows.margin_problem.rhs.shape)
    return {"warm_start": np.take_along_axis(grid, place, axis=-1)}


def _rank_option(rows: AttentionRows, rank: int, norm: str) -> dict[str, int]:
    require_count("rank", rank, optional=True)
    bound = get_norm(norm).rank_bound(rows.margin_problem.q, rows.margin_problem.shape)
    return {} if rank >= bound else {"rank": int(rank)}


@takes(AttSvmOptions)
def att_svm(problem: Solvable[Solved], selection: SelectionLike = None, **options: Unpack[AttSvmOptions]) -> Solved:
    """Solve Att-SVM, or Att-SVM* with ``norm="nuclear"``.

    Minimize ``||W||`` subject to ``(x_{i,alpha_i} - x_it)^T W z_i >= 1`` for every allowed t != alpha_i.

    Parameters
    ----------
    problem : AttentionProblem
    selection : Selection or array_like of int, optional
        One token per query; the optimal tokens by default.
    **options
        Passed to the solver: ``tolerance``, ``max_iterations``, ``time_limit``, ...
        All keywords: `attsvm.margin_options.AttSvmOptions`.

    Returns
    -------
    Solution, or SolutionBatch for a batch of problems

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=6, T=8, d=10, seed=0)
    >>> sol = attsvm.att_svm(problem)
    >>> print(sol.status, round(sol.margin, 4), sol.rank)
    optimal 0.2669 6

    The smallest change of a given W0:

    >>> W0 = 0.5 * sol.W  # half the required margin
    >>> near = attsvm.att_svm(problem, prior=W0)
    >>> print(near.status, round(near.norm / sol.norm, 4), abs(near.W - sol.W).max() < 1e-9)
    optimal 0.5 True
    """
    check_options("att_svm", AttSvmOptions, options)
    return _solved(problem, _posed_selection(require_problem(problem), selection, options))


@takes(AttSvmOptions)
def satt_svm(
    problem: Solvable[Solved],
    selection: SelectionLike = None,
    *,
    causal: bool = False,
    **options: Unpack[AttSvmOptions],
) -> Solved:
    """Solve SAtt-SVM: K queries per sequence, each with its own selected token and allowed tokens.

    Parameters
    ----------
    problem : AttentionProblem
        With queries Z of shape (n, K, dz); K = 1 or (n, dz) gives Att-SVM.
    selection : Selection or array_like of int, shape (n, K), optional
        The optimal tokens (those under the causal mask, if there is one) by default.
    causal : bool
        Let query k see tokens 0..k only (needs K = T), on top of the problem's own mask.
    **options
        Passed to the solver: ``tolerance``, ``max_iterations``, ``time_limit``, ...
        All keywords: `attsvm.margin_options.AttSvmOptions`.

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=2, T=4, d=12, kind="sequence", seed=0)
    >>> full, causal = attsvm.satt_svm(problem), attsvm.satt_svm(problem, causal=True)
    >>> full.rows.margin_problem.m, causal.rows.margin_problem.m
    (24, 12)
    """
    check_options("satt_svm", AttSvmOptions, options)
    require_problem(problem)
    require_flag("causal", causal)
    shown = problem.with_causal_mask() if causal else problem
    return _solved(shown, _posed_selection(require_problem(shown), selection, options))


# Rows of selected sets are passed on with what `attsvm.solvers.solve` makes of these.
_OF_ROWS = ("rank", "warm_start")


def _posed_sets(formulation: str, sets: SelectedSets, rows: AttentionRows, options: SvmOptions) -> _Posed:
    """Gen-SVM and the finite part: a set of selected tokens per query."""
    asked: AttSvmOptions = {**DEFAULTS, **options}
    soft = rows.soft(asked["C"], asked["slack"], asked["loss"])
    return _Posed(formulation, sets, soft, asked, method_options(SvmOptions, options))


@takes(SvmOptions)
def gen_svm(problem: Solvable[Solved], selected_sets: SelectedSetsLike, **options: Unpack[SvmOptions]) -> Solved:
    """Solve Gen-SVM: a set of selected tokens per query, equal similarity inside, margin 1 outside.

    With C a row that requires equality costs by how much it is missed on either side.

    Parameters
    ----------
    problem : AttentionProblem
    selected_sets : SelectedSets, boolean array (n, T) or (n, K, T), lists of indices, or Selection
    **options
        Passed to the solver: ``tolerance``, ``max_iterations``, ``time_limit``, ...
        All keywords: `attsvm.margin_options.SvmOptions`.

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=2, T=4, d=6, seed=0)
    >>> sol = attsvm.gen_svm(problem, [[0, 2], [1]])
    >>> print(sol.status, abs(sol.token_margins()[0, 2]) < 1e-8)
    optimal True
    """
    check_options("gen_svm", SvmOptions, options, *_OF_ROWS)
    given = require_problem(problem)
    sets = read_selected_sets(given, selected_sets)
    rows = gen_svm_rows(given, sets, offset=options.get("offset"))
    return _solved(problem, _posed_sets("Gen-SVM", sets, rows, options))


@takes(SvmOptions)
def finite_part(
    problem: Solvable[Solved],
    probabilities: npt.ArrayLike,
    selected_sets: SelectedSetsLike,
    **options: Unpack[SvmOptions],
) -> Solved:
    """Minimum-norm W_fin that gives the selected tokens their probabilities (equation (8)).

    Parameters
    ----------
    problem : AttentionProblem
    probabilities : array_like, shape (n, T) or (n, K, T)
    selected_sets : SelectedSets, boolean array or lists of indices
    **options
        Passed to the solver: ``tolerance``, ``max_iterations``, ``time_limit``, ...
        All keywords: `attsvm.margin_options.SvmOptions`.

    Examples
    --------
    >>> import numpy as np
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=1, T=3, d=4, seed=0)
    >>> W = attsvm.finite_part(problem, [[0.8, 0.2, 0.0]], [[0, 1]]).W
    >>> logits = problem.X[0] @ W @ problem.Z[0]
    >>> round(float(np.exp(logits[0] - logits[1])), 6)
    4.0
    """
    check_options("finite_part", SvmOptions, options, *_OF_ROWS)
    given = require_problem(problem)
    sets = read_selected_sets(given, selected_sets)
    rows = finite_part_rows(given, probabilities, sets, offset=options.get("offset"))
    return _solved(problem, _posed_sets("W_fin", sets, rows, options))


@takes(MarginOptions)
def verify(
    problem: AttentionProblem,
    W: npt.ArrayLike,
    selection: SelectionLike = None,
    *,
    selected_sets: SelectedSetsLike | None = None,
    multipliers: npt.ArrayLike | None = None,
    scale_free: bool = False,
    offset: npt.ArrayLike | None = None,
    **options: Unpack[MarginOptions],
) -> Certificate:
    """Certify a W from anywhere against Att-SVM / SAtt-SVM (or Gen-SVM when selected sets are given).

    Parameters
    ----------
    problem : AttentionProblem
    W : array_like, shape (dx, dz)
    selection : Selection or array_like of int, optional
        The optimal tokens by default.
    selected_sets : optional
        Certify against Gen-SVM with these sets instead.
    multipliers : array_like, shape (n, T) or (n, K, T), optional
        Dual multipliers per token, as in `Solution.multipliers`. Computed with ``solver`` when omitted, so
        the gap then compares W with the true optimum.
    scale_free : bool
        Judge the direction of W alone: W is divided by its smallest margin first, when that is positive. A trained head
        has a scale of its own, which has nothing to do with a margin of 1. Not with offset or C, which have a scale.
    offset : array_like, shape ``query_shape + (T,)``, optional
        Added to the logits, as in `att_svm`.
    **options
        Passed to the solver: ``tolerance``, ``max_iterations``, ``time_limit``, ...
        All keywords: `attsvm.margin_options.MarginOptions`.

    Returns
    -------
    Certificate
        With ``farkas`` set when no W at all satisfies the rows.

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=3, T=4, d=5, seed=0)
    >>> W = attsvm.att_svm(problem).W
    >>> attsvm.verify(problem, W).gap < 1e-7, round(attsvm.verify(problem, 2 * W).gap, 3)
    (True, 0.5)
    >>> attsvm.verify(problem, 2 * W, scale_free=True).gap < 1e-7
    True
    """
    check_options("verify", MarginOptions, options)
    asked: AttSvmOptions = {**DEFAULTS, **options}
    C, norm = asked["C"], get_norm(asked["norm"])
    require_single(problem, "verify takes one problem at a time")
    matrix = finite_array("W", W, (problem.dx, problem.dz))
    if selected_sets is not None and selection is not None:
        raise ValueError("give either selection or selected_sets, not both")
    if selected_sets is None:
        rows = selection_rows(problem, selection, offset=offset)
    else:
        rows = gen_svm_rows(problem, selected_sets, offset=offset)
    if scale_free:
        if offset is not None or C is not None:
            raise ValueError(
                "scale_free goes with hard margins without offset: an offset and C have a scale of their own"
            )
        demanding = ~rows.margin_problem.equality  # ties of Gen-SVM have no margin
        least = float(rows.margin_problem.margins(matrix)[demanding].min(initial=np.inf))
        matrix = matrix / least if 0 < least < np.inf else matrix
    rows = rows.soft(C, asked["slack"], asked["loss"])
    if multipliers is not None:
        grid = real_array("multipliers", multipliers)
        if grid.shape != (*problem.query_shape, problem.T):
            raise ValueError(f"multipliers must have shape {(*problem.query_shape, problem.T)}, got {grid.shape}")
        lam = grid.reshape(-1, problem.T)[rows.margin_problem.owner, rows.token]
        return certify(rows.margin_problem, matrix, lam, norm)
    reference = solve(rows.margin_problem, norm, asked["solver"], **method_options(MarginOptions, options))
    own = certify(rows.margin_problem, matrix, np.nan_to_num(reference.multipliers), norm)
    return dataclasses.replace(own, farkas=reference.certificate.farkas)


class _Solutions(Sequence[Solution]):
    """Solutions in the language of tokens, put together when they are read; everything is solved and certified."""

    def __init__(
        self,
        problem: AttentionProblem,
        selection: Selection,
        rows: AttentionRows,
        penalty: PenaltyBatch,
        results: Sequence[MarginSolution] | MarginSolutionBatch,
        support_tolerance: float,
    ) -> None:
        self._problem, self._selection, self._rows, self._penalty = problem, selection, rows, penalty
        self._results, self._tolerance, self._read = results, support_tolerance, dict[int, Solution]()

    def __len__(self) -> int:
        return len(self._results)

    @overload
    def __getitem__(self, index: int) -> Solution: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Solution, ...]: ...
    def __getitem__(self, index: int | slice) -> Solution | tuple[Solution, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        place = range(len(self))[index]
        if place not in self._read:
            one = self._penalty.of_problem(place)
            rows, result = self._rows.soft(one.C, one.slack, one.loss), self._results[place]
            if result.problem.prior is None:
                result = replace(result, problem=rows.margin_problem)
            name = "SAtt-SVM" if self._problem.multi_query else "Att-SVM"
            self._read[place] = Solution(name, self._problem, self._selection, rows, result, self._tolerance)
        return self._read[place]


@dataclass(frozen=True, eq=False, repr=False)
class SoftPath:
    """Solutions along penalties.

    Attributes
    ----------
    Cs : ndarray, shape (P,)
        In the order of the solutions.
    solutions : sequence of Solution
    """

    Cs: FloatArray
    solutions: Sequence[Solution]

    @property
    def norms(self) -> FloatArray:
        """Norms of W, shape (P,); they rise with C."""
        return np.array([solution.norm for solution in self.solutions])

    @property
    def gaps(self) -> FloatArray:
        """Relative duality gaps, shape (P,)."""
        return np.array([solution.certificate.gap for solution in self.solutions])

    @property
    def slacks(self) -> FloatArray:
        """Total slack, shape (P,); it falls with C."""
        return np.array([float(solution.slacks.sum()) for solution in self.solutions])

    @property
    def slack_counts(self) -> npt.NDArray[np.int64]:
        """Number of queries with a positive slack, shape (P,)."""
        return np.array([len(solution.queries_with_slack) for solution in self.solutions])

    def __repr__(self) -> str:
        ends = f"C {self.Cs[0]:.3g}..{self.Cs[-1]:.3g}, norms {self.norms[0]:.3g}..{self.norms[-1]:.3g}"
        return f"SoftPath({len(self)} penalties, {ends}, gap <= {self.gaps.max():.1e})"

    def _repr_html_(self) -> str:
        numbers = zip(self.Cs, self.norms, self.slacks, self.slack_counts, self.gaps, strict=True)
        rows = [(f"{C:.4g}", f"{norm:.5g}", f"{slack:.5g}", int(n), f"{gap:.1e}") for C, norm, slack, n, gap in numbers]
        return html_listing("Soft margins", ("C", "norm", "total slack", "queries with slack", "gap"), rows)

    def __len__(self) -> int:
        return len(self.solutions)

    def __iter__(self) -> Iterator[Solution]:
        return iter(self.solutions)

    def __getitem__(self, index: int) -> Solution:
        return self.solutions[index]


@takes(PathOptions)
def soft_path(
    problem: AttentionProblem,
    Cs: Sequence[float] | npt.ArrayLike,
    selection: SelectionLike = None,
    **options: Unpack[PathOptions],
) -> SoftPath:
    """Solve the soft margin for several penalties on the same rows, most of them together or from one another.

    Parameters
    ----------
    problem : AttentionProblem
        A single one.
    Cs : sequence of float
        Positive weights of the slacks; they are sorted.
    selection : Selection or array_like of int, optional
        The optimal tokens by default.
    **options
        Passed to the solver: ``tolerance``, ``max_iterations``, ``time_limit``, ...
        All keywords: `attsvm.margin_options.PathOptions`.

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=6, T=6, d=3, kind="sequence", seed=0)
    >>> path = attsvm.soft_path(problem, [0.01, 0.1, 1.0], slack="row", loss="squared_hinge")
    >>> bool((path.norms[1:] >= path.norms[:-1]).all()), bool((path.gaps < 1e-8).all())
    (True, True)
    """
    given = require_single(problem, "soft_path takes one problem at a time")
    penalties = np.sort(np.atleast_1d(real_array("Cs", [] if Cs is None else Cs).astype(np.float64)))
    if penalties.ndim != 1 or not len(penalties) or not (np.isfinite(penalties) & (penalties > 0)).all():
        raise ValueError(f"Cs must be positive finite numbers, at least one, got {Cs!r}")
    for name in ("C", "rank", "warm_start"):
        if name in options:
            raise TypeError(f"soft_path does not take {name}=: it solves for every C of Cs, from its own solutions")
    check_options("soft_path", PathOptions, options)
    asked: AttSvmOptions = {**DEFAULTS, **options}
    norm, slack, loss, prior = asked["norm"], asked["slack"], asked["loss"], asked["prior"]
    chosen = read_selection(given, selection)
    tolerance = read_support_tolerance(asked["support_tolerance"])
    plain = rows_of_selection(given, chosen, asked["offset"])
    margins = plain.margin_problem if prior is None else plain.margin_problem.around(real_array("prior", prior))
    penalty = PenaltyBatch(penalties, read_penalty(penalties[0], slack, loss).slack, loss)
    results = solve_soft_path(margins, penalty, norm, solver=asked["solver"], **method_options(PathOptions, options))
    for result in [results] if isinstance(results, MarginSolution) else results:
        warn_if_inaccurate(result)
    return SoftPath(penalties, _Solutions(given, chosen, plain, penalty, results, tolerance))
