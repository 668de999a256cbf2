"""The four attention SVMs.

The certificate of a W from anywhere.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from attsvm.problem import AttentionProblem, require_problem
from attsvm.selection import (
    SelectedSets,
    SelectedSetsLike,
    Selection,
    SelectionLike,
    read_selected_sets,
    read_selection,
)
from attsvm.selection_rows import AttentionRows, finite_part_rows, gen_svm_rows, rows_of_selection, selection_rows
from attsvm.solution import SUPPORT_TOLERANCE, Solution, SolutionBatch
from attsvm.solvers import Certificate, certify, get_norm, solve, solve_batch
from attsvm.solvers.margin_solution import warn_if_inaccurate
from attsvm.solvers.penalty import LossKind, SlackKind
from attsvm.user_input import finite_array, is_number, real_array, require_count

if TYPE_CHECKING:
    from attsvm.problem import Solvable

__all__ = [
    "att_svm",
    "finite_part",
    "gen_svm",
    "satt_svm",
    "verify",
]


Solved = TypeVar("Solved", Solution, SolutionBatch)


def read_support_tolerance(given: object) -> float:
    """A tolerance for support tokens, or an error."""
    if not is_number(given, 0.0, ends="[]"):
        raise ValueError(f"support_tolerance must be a number >= 0, got {given!r}")
    return float(given)


def _solved(
    formulation: str,
    problem: AttentionProblem,
    selection: Selection | SelectedSets,
    rows: AttentionRows,
    norm: str,
    solver: str,
    support_tolerance: float,
    prior: npt.ArrayLike | None,
    options: dict[str, Any],
) -> Any:
    """Solve rows that were built, for one problem or a batch."""
    read_support_tolerance(support_tolerance)
    margins = rows.margin_problem
    if prior is not None:
        margins = margins.around(real_array("prior", prior))
    if problem.batch is None:
        one = solve(margins, norm, solver, **options)
        warn_if_inaccurate(one, stacklevel=4)
        return Solution(formulation, problem, selection, rows, one, support_tolerance)
    batch = solve_batch(margins, norm, solver, **options)
    warn_if_inaccurate(batch, stacklevel=4)
    return SolutionBatch(formulation, problem, selection, rows, batch, support_tolerance)


def att_svm(
    problem: Solvable[Solved],
    selection: SelectionLike = None,
    *,
    norm: str = "frobenius",
    rank: int | None = None,
    prior: npt.ArrayLike | None = None,
    offset: npt.ArrayLike | None = None,
    C: float | None = None,
    slack: SlackKind = "query",
    loss: LossKind = "hinge",
    solver: str = "auto",
    support_tolerance: float = SUPPORT_TOLERANCE,
    warm_start: Solution | SolutionBatch | None = None,
    **options: object,
) -> Solved:
    """Solve Att-SVM, or Att-SVM* with ``norm="nuclear"``.

    Minimize ``||W||`` subject to ``(x_{i,alpha_i} - x_it)^T W z_i >= 1`` for every allowed t != alpha_i.

    Parameters
    ----------
    problem : AttentionProblem
    selection : Selection or array_like of int, optional
        One token per query; the optimal tokens by default.
    norm : str
        "frobenius" (the bias of W), "nuclear" (the bias of (K, Q)), "spectral", "l1", "linf", "l<p>".
    rank : int, optional
        Largest rank allowed (nuclear norm; nonconvex when it binds). At least min(n K, dx, dz) never binds (in
        entrywise norms at least min(dx, dz)). The status is "optimal" only when the answer is proved global, "local"
        otherwise; ``result.extras.rank_limit`` has the convex bound.
    prior : array_like, shape (dx, dz) or (batch, dx, dz), optional
        Stay close to this W0: minimize ``||W - W0||`` over the same W. ``sol.W`` is then the whole W and ``sol.change``
        what was added; norm, margin, rank, direction and certificate are those of the change. A W0 that separates
        already is not changed at all, and a rank is that of the change.
    offset : array_like, shape ``query_shape + (T,)``, optional
        Added to the logits (ALiBi, relative biases); what it gives is not asked of W.
    C : float, optional
        Soft margin: minimize ``||W||_F^2 / 2 + C sum xi`` (other norms: ``||W|| + C sum xi``), where rows may fall
        short by their slack xi. None asks for every margin; as C grows the answer becomes that of None.
    slack : {"query", "row"}
        One slack per query (its selection holds or not; the multipliers of a query add up to at most C), or per row.
    loss : {"hinge", "squared_hinge"}
        Slacks cost ``C sum xi`` or ``C sum xi^2``.
    solver : str
        "auto" tries the methods of the norm from quick to robust, a batch of small problems at once. A name from
        `attsvm.solvers.SOLVERS` puts that method first; "cvxpy", "cvxpy:SCS", "cvxpy:CLARABEL", ... run alone.
    support_tolerance : float
        A token is in the support when its margin is within this distance of 1.
    warm_start : Solution or SolutionBatch, optional
        Of another selection of a problem of the same shape: own solvers start from its multipliers.
    **options
        Passed to the solver (``tolerance``, ``max_iterations``, ...).

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

    >>> W0 = 0.5 * sol.W  # half the margin that is asked for
    >>> near = attsvm.att_svm(problem, prior=W0)
    >>> print(near.status, round(near.norm / sol.norm, 4), abs(near.W - sol.W).max() < 1e-9)
    optimal 0.5 True
    """
    given = require_problem(problem)
    chosen = read_selection(given, selection)
    name = "SAtt-SVM" if given.multi_query else "Att-SVM"
    rows = rows_of_selection(given, chosen, offset).soft(C, slack, loss)
    if warm_start is not None:
        options |= _warm_option(rows, warm_start, norm, solver)
    if rank is not None:
        options |= _rank_option(rows, rank, norm)
    found: Solved = _solved(name, given, chosen, rows, norm, solver, support_tolerance, prior, options)
    return found


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


def satt_svm(
    problem: Solvable[Solved],
    selection: SelectionLike = None,
    *,
    norm: str = "frobenius",
    causal: bool = False,
    rank: int | None = None,
    prior: npt.ArrayLike | None = None,
    offset: npt.ArrayLike | None = None,
    C: float | None = None,
    slack: SlackKind = "query",
    loss: LossKind = "hinge",
    solver: str = "auto",
    support_tolerance: float = SUPPORT_TOLERANCE,
    warm_start: Solution | SolutionBatch | None = None,
    **options: object,
) -> Solved:
    """Solve SAtt-SVM: K queries per sequence, each with its own selected token and allowed tokens.

    Parameters
    ----------
    problem : AttentionProblem
        With queries Z of shape (n, K, dz); K = 1 or (n, dz) gives Att-SVM.
    selection : Selection or array_like of int, shape (n, K), optional
        The optimal tokens (under the causal mask if asked for) by default.
    norm, solver, rank, prior, offset, C, slack, loss, support_tolerance, warm_start, **options
        As for `att_svm`.
    causal : bool
        Let query k see tokens 0..k only (needs K = T), on top of the problem's own mask.

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=2, T=4, d=12, kind="sequence", seed=0)
    >>> full, causal = attsvm.satt_svm(problem), attsvm.satt_svm(problem, causal=True)
    >>> full.rows.margin_problem.m, causal.rows.margin_problem.m
    (24, 12)
    """
    given = require_problem(problem)
    if not isinstance(causal, (bool, np.bool_)):
        raise ValueError(f"causal must be True or False, got {causal!r}")
    shown: Any = given.with_causal_mask() if causal else given  # a batch stays a batch
    found: Solved = att_svm(
        shown,
        selection,
        norm=norm,
        rank=rank,
        prior=prior,
        offset=offset,
        C=C,
        slack=slack,
        loss=loss,
        solver=solver,
        support_tolerance=support_tolerance,
        warm_start=warm_start,
        **options,
    )
    return found


def gen_svm(
    problem: Solvable[Solved],
    selected_sets: SelectedSetsLike,
    *,
    norm: str = "frobenius",
    prior: npt.ArrayLike | None = None,
    offset: npt.ArrayLike | None = None,
    C: float | None = None,
    slack: SlackKind = "query",
    loss: LossKind = "hinge",
    solver: str = "auto",
    support_tolerance: float = SUPPORT_TOLERANCE,
    **options: object,
) -> Solved:
    """Solve Gen-SVM: a set of selected tokens per query, equal similarity inside, margin 1 outside.

    Parameters
    ----------
    problem : AttentionProblem
    selected_sets : SelectedSets, boolean array (n, T) or (n, K, T), lists of indices, or Selection
    norm, prior, solver, offset, C, slack, loss, support_tolerance, **options
        As for `att_svm`; a row that asks for equality costs by how much it is missed on either side.

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=2, T=4, d=6, seed=0)
    >>> sol = attsvm.gen_svm(problem, [[0, 2], [1]])
    >>> print(sol.status, abs(sol.token_margins()[0, 2]) < 1e-8)
    optimal True
    """
    given = require_problem(problem)
    sets = read_selected_sets(given, selected_sets)
    rows = gen_svm_rows(given, sets, offset=offset).soft(C, slack, loss)
    found: Solved = _solved("Gen-SVM", given, sets, rows, norm, solver, support_tolerance, prior, dict(options))
    return found


def finite_part(
    problem: Solvable[Solved],
    probabilities: npt.ArrayLike,
    selected_sets: SelectedSetsLike,
    *,
    norm: str = "frobenius",
    prior: npt.ArrayLike | None = None,
    offset: npt.ArrayLike | None = None,
    C: float | None = None,
    slack: SlackKind = "query",
    loss: LossKind = "hinge",
    solver: str = "auto",
    **options: object,
) -> Solved:
    """Minimum-norm W_fin that gives the selected tokens their probabilities (equation (8)).

    Parameters
    ----------
    problem : AttentionProblem
    probabilities : array_like, shape (n, T) or (n, K, T)
    selected_sets : SelectedSets, boolean array or lists of indices
    norm, prior, solver, offset, C, slack, loss, **options
        As for `gen_svm`.

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
    given = require_problem(problem)
    sets = read_selected_sets(given, selected_sets)
    rows = finite_part_rows(given, probabilities, sets, offset=offset).soft(C, slack, loss)
    found: Solved = _solved("W_fin", given, sets, rows, norm, solver, SUPPORT_TOLERANCE, prior, dict(options))
    return found


def verify(
    problem: AttentionProblem,
    W: npt.ArrayLike,
    selection: SelectionLike = None,
    *,
    norm: str = "frobenius",
    selected_sets: SelectedSetsLike | None = None,
    multipliers: npt.ArrayLike | None = None,
    scale_free: bool = False,
    offset: npt.ArrayLike | None = None,
    C: float | None = None,
    slack: SlackKind = "query",
    loss: LossKind = "hinge",
    solver: str = "auto",
    **options: object,
) -> Certificate:
    """Certify a W from anywhere against Att-SVM / SAtt-SVM (or Gen-SVM when selected sets are given).

    Parameters
    ----------
    problem : AttentionProblem
    W : array_like, shape (dx, dz)
    selection : Selection or array_like of int, optional
        The optimal tokens by default.
    norm : str
    selected_sets : optional
        Certify against Gen-SVM with these sets instead.
    multipliers : array_like, shape (n, T) or (n, K, T), optional
        Dual multipliers per token, as in `Solution.multipliers`. Computed with ``solver`` when omitted, so
        the gap then compares W with the true optimum.
    scale_free : bool
        Judge the direction of W alone: W is divided by its smallest margin first, when that is positive. A trained head
        has a scale of its own, which has nothing to do with a margin of 1. Not with offset or C, which have a scale.
    offset, C, slack, loss
        Certify against logits with offsets, against the soft margin, as in `att_svm`.

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
    require_problem(problem)
    if problem.batch is not None:
        raise ValueError("verify takes one problem at a time; index the batch first, e.g. problem[0]")
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
        asked = ~rows.margin_problem.equality  # ties of Gen-SVM have no margin
        least = float(rows.margin_problem.margins(matrix)[asked].min(initial=np.inf))
        matrix = matrix / least if 0 < least < np.inf else matrix
    rows = rows.soft(C, slack, loss)
    if multipliers is not None:
        grid = real_array("multipliers", multipliers)
        if grid.shape != (*problem.query_shape, problem.T):
            raise ValueError(f"multipliers must have shape {(*problem.query_shape, problem.T)}, got {grid.shape}")
        lam = grid.reshape(-1, problem.T)[rows.margin_problem.owner, rows.token]
        return certify(rows.margin_problem, matrix, lam, get_norm(norm))
    settings: dict[str, Any] = dict(options)
    reference = solve(rows.margin_problem, norm, solver, **settings)
    own = certify(rows.margin_problem, matrix, np.nan_to_num(reference.multipliers), get_norm(norm))
    return dataclasses.replace(own, farkas=reference.certificate.farkas)
