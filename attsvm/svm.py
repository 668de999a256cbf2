"""The four attention SVMs and the certificate of a W from anywhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm._arrays import real_array
from attsvm.problem import AttentionProblem
from attsvm.rows import AttentionRows, finite_part_rows, gen_svm_rows, selection_rows
from attsvm.selection import read_selected_sets, read_selection
from attsvm.solution import SUPPORT_TOLERANCE, Solution
from attsvm.solution_batch import SolutionBatch, can_batch, solve_selections
from attsvm.solvers import Certificate, certify, get_norm, solve

__all__ = ["att_svm", "finite_part", "gen_svm", "satt_svm", "verify"]


def _solve_each(problem: AttentionProblem, solve_one: Callable[[AttentionProblem, int | None], Solution]) -> Any:
    if problem.batch is None:
        return solve_one(problem, None)
    return SolutionBatch.from_solutions([solve_one(problem[b], b) for b in range(problem.batch)])


def att_svm(
    problem: AttentionProblem,
    selection: Any = None,
    norm: str = "frobenius",
    rank: int | None = None,
    solver: str = "auto",
    *,
    support_tolerance: float = SUPPORT_TOLERANCE,
    warm_start: Solution | None = None,
    **options: Any,
) -> Any:
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
        Largest rank allowed (nuclear norm; nonconvex when it binds). At least min(n K, dx, dz) never binds. The
        status is "optimal" only when the answer is proved global; ``result.extras`` has the convex bound.
    solver : str
        "auto" (own solvers for the Frobenius and nuclear norms, in lockstep for batches of small problems),
        a name from `attsvm.solvers.SOLVERS`, "cvxpy", "cvxpy:SCS", "cvxpy:CLARABEL", "cvxpy:OSQP", ...
    support_tolerance : float
        A token is in the support when its margin is within this distance of 1.
    warm_start : Solution, optional
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
    """
    chosen = read_selection(problem, selection)
    name = "SAtt-SVM" if problem.multi_query else "Att-SVM"
    if warm_start is not None and problem.batch is not None:
        raise ValueError("warm_start goes with a single problem; index the batch first")
    if problem.batch is not None and rank is None and can_batch(problem, norm, solver, options):
        return solve_selections(problem, chosen, norm, name, support_tolerance, **options)

    def solve_one(single: AttentionProblem, b: int | None) -> Solution:
        picked = chosen if b is None else chosen[b]
        rows = selection_rows(single, picked)
        start = _warm_option(rows, warm_start, norm, solver)
        result = solve(rows.margin_problem, norm, solver, **start, **_rank_option(rows, rank), **options)
        return Solution(name, single, picked, rows, result, support_tolerance)

    return _solve_each(problem, solve_one)


def _warm_option(rows: AttentionRows, known: Solution | None, norm: str, solver: str) -> dict[str, Any]:
    """What the solver starts from: multipliers token by token, as the rows of another selection are other rows."""
    if known is None:
        return {}
    if (known.rows.query_shape, known.rows.T) != (rows.query_shape, rows.T):
        raise ValueError(
            f"warm_start must solve a problem with queries {rows.query_shape} and T = {rows.T}, "
            f"got {known.rows.query_shape} and {known.rows.T}"
        )
    if not known.status.has_solution or norm not in ("frobenius", "nuclear") or solver.startswith("cvxpy"):
        return {}  # nothing to start from, or a solver that always starts anew
    if norm == "nuclear":  # Newton starts from W and the multipliers of a problem with as many rows
        same = known.rows.margin_problem.m == rows.margin_problem.m and known.norm_name == "nuclear"
        return {"warm_start": known.result} if same else {}
    grid = known.multipliers.reshape(-1, rows.T)
    return {"warm_start": grid[rows.margin_problem.owner, rows.token]}


def _rank_option(rows: AttentionRows, rank: int | None) -> dict[str, int]:
    if rank is None:
        return {}
    if not isinstance(rank, (int, np.integer)) or rank < 1:
        raise ValueError(f"rank must be None or an integer >= 1, got {rank!r}")
    bound = min(rows.margin_problem.q, *rows.margin_problem.shape)  # Lemma 1: never needed beyond min(n, d)
    return {} if rank >= bound else {"rank": int(rank)}


def satt_svm(
    problem: AttentionProblem,
    selection: Any = None,
    norm: str = "frobenius",
    causal: bool = False,
    solver: str = "auto",
    *,
    rank: int | None = None,
    support_tolerance: float = SUPPORT_TOLERANCE,
    **options: Any,
) -> Any:
    """Solve SAtt-SVM: K queries per sequence, each with its own selected token and allowed tokens.

    Parameters
    ----------
    problem : AttentionProblem
        With queries Z of shape (n, K, dz); K = 1 or (n, dz) gives Att-SVM.
    selection : Selection or array_like of int, shape (n, K), optional
        The optimal tokens (under the causal mask if asked for) by default.
    norm, solver, rank, support_tolerance, **options
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
    if causal:
        problem = problem.with_causal_mask()
    return att_svm(problem, selection, norm, rank, solver, support_tolerance=support_tolerance, **options)


def gen_svm(
    problem: AttentionProblem,
    selected_sets: Any,
    norm: str = "frobenius",
    solver: str = "auto",
    *,
    support_tolerance: float = SUPPORT_TOLERANCE,
    **options: Any,
) -> Any:
    """Solve Gen-SVM: a set of selected tokens per query, equal similarity inside, margin 1 outside.

    Parameters
    ----------
    problem : AttentionProblem
    selected_sets : SelectedSets, boolean array (n, T) or (n, K, T), lists of indices, or Selection
    norm, solver, support_tolerance, **options
        As for `att_svm`.

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=2, T=4, d=6, seed=0)
    >>> sol = attsvm.gen_svm(problem, [[0, 2], [1]])
    >>> print(sol.status, abs(sol.token_margins()[0, 2]) < 1e-8)
    optimal True
    """
    sets = read_selected_sets(problem, selected_sets)

    def solve_one(single: AttentionProblem, b: int | None) -> Solution:
        picked = sets if b is None else sets[b]
        rows = gen_svm_rows(single, picked)
        result = solve(rows.margin_problem, norm, solver, **options)
        return Solution("Gen-SVM", single, picked, rows, result, support_tolerance)

    return _solve_each(problem, solve_one)


def finite_part(
    problem: AttentionProblem,
    probabilities: Any,
    selected_sets: Any,
    norm: str = "frobenius",
    solver: str = "auto",
    **options: Any,
) -> Any:
    """Minimum-norm W_fin that gives the selected tokens their probabilities (equation (8)).

    Parameters
    ----------
    problem : AttentionProblem
    probabilities : array_like, shape (n, T) or (n, K, T)
    selected_sets : SelectedSets, boolean array or lists of indices
    norm, solver, **options
        As for `att_svm`.

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
    sets = read_selected_sets(problem, selected_sets)
    s = real_array("probabilities", probabilities)

    def solve_one(single: AttentionProblem, b: int | None) -> Solution:
        picked = sets if b is None else sets[b]
        rows = finite_part_rows(single, s if b is None else s[b], picked)
        result = solve(rows.margin_problem, norm, solver, **options)
        return Solution("W_fin", single, picked, rows, result, SUPPORT_TOLERANCE)

    return _solve_each(problem, solve_one)


def verify(
    problem: AttentionProblem,
    W: npt.ArrayLike,
    selection: Any = None,
    norm: str = "frobenius",
    *,
    selected_sets: Any = None,
    multipliers: npt.ArrayLike | None = None,
    solver: str = "auto",
    **options: Any,
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
    """
    matrix = real_array("W", W).astype(np.float64)
    if matrix.shape != (problem.dx, problem.dz):
        raise ValueError(f"W must have shape {(problem.dx, problem.dz)}, got {matrix.shape}")
    if not np.isfinite(matrix).all():
        raise ValueError("W must be finite")
    if selected_sets is not None and selection is not None:
        raise ValueError("give either selection or selected_sets, not both")
    rows = selection_rows(problem, selection) if selected_sets is None else gen_svm_rows(problem, selected_sets)
    if multipliers is not None:
        grid = real_array("multipliers", multipliers)
        if grid.shape != (*problem.query_shape, problem.T):
            raise ValueError(f"multipliers must have shape {(*problem.query_shape, problem.T)}, got {grid.shape}")
        lam = grid.reshape(-1, problem.T)[rows.margin_problem.owner, rows.token]
        return certify(rows.margin_problem, matrix, lam, get_norm(norm))
    reference = solve(rows.margin_problem, norm, solver, **options)
    own = certify(rows.margin_problem, matrix, np.nan_to_num(reference.multipliers), get_norm(norm))
    return dataclasses.replace(own, farkas=reference.certificate.farkas)
