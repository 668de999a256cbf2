"""Equality rows under one squared slack per query, each as two inequalities.

The load of a query is the sum of the sizes of its multipliers, and its square is not smooth where one of an equality
row is 0; for the two halves of it, both nonnegative, it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from attsvm.solvers.certify.entry import certify
from attsvm.solvers.norms import Norm
from attsvm.solvers.problem import MarginProblem
from attsvm.solvers.request import Request
from attsvm.solvers.rows.pairs import PairRows
from attsvm.solvers.solution import Found

__all__ = ["needs_split", "solve_split"]


def needs_split(problem: MarginProblem) -> bool:
    """Whether equality rows share a squared slack."""
    penalty = problem.penalty
    shared = penalty is not None and penalty.slack == "query" and penalty.loss == "squared_hinge"
    return shared and bool(problem.equality.any())


def solve_split(
    problem: MarginProblem, norm: Norm, request: Request, method: Callable[[MarginProblem, Request], Found]
) -> Found:
    """Solve with every equality row as two inequalities, and put the multipliers together again.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, solve
    >>> rows = MarginProblem([[1.0]], [[1.0]], [0], rhs=[-3.0], equality=[True])
    >>> round(solve(rows.soft(C=1.0, loss="squared_hinge")).W.item(), 9)  # W^2 / 2 + (W + 3)^2
    -2.0
    """
    equal = np.flatnonzero(problem.equality)
    pair = problem.rows.gather(np.r_[np.arange(problem.m), equal])
    a = pair.a.astype(np.float64)
    a[problem.m :] *= -1.0
    rows = PairRows.trusted(a, pair.queries, pair.owner)
    split = MarginProblem.from_rows(rows, np.r_[problem.rhs, -problem.rhs[equal]])
    split.penalty = problem.penalty
    known = request.multipliers(problem)
    if known is not None:
        known = np.maximum(np.r_[known, -known[equal]], 0.0)
    found = method(split, replace(request, warm_start=known))
    if found.W is None or found.multipliers is None:
        return found
    lam = found.multipliers[: problem.m].copy()
    lam[equal] -= found.multipliers[problem.m :]
    return replace(found, multipliers=lam, certificate=certify(problem, found.W, lam, norm))
