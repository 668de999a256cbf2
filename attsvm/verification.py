"""The certificate of a W from anywhere."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm._arrays import finite_array, real_array
from attsvm.problem import AttentionProblem, require_problem
from attsvm.rows import gen_svm_rows, selection_rows
from attsvm.selection import SelectedSetsLike, SelectionLike
from attsvm.solvers import Certificate, certify, get_norm, solve
from attsvm.solvers.penalty import LossKind, SlackKind

__all__ = ["verify"]


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
