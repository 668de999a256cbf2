"""Ranks of a batch by the published protocol: one compiled model per size instead of one model per problem.

The modelling package's defaults, ``matrix_rank`` at an absolute 1e-7, and rank 1 for every infeasible draw (the rank
that ``matrix_rank(None)`` returns). The solver sees the same numbers as when every problem is modelled anew, row by
row, and starts cold each time: the ranks are those of :func:`published_rank`.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

import attsvm
from attsvm.rows import selection_rows

__all__ = ["PUBLISHED_SOLVERS", "PUBLISHED_TOLERANCE", "optimal_differences", "published_rank", "published_ranks"]

PUBLISHED_TOLERANCE = 1e-7  # absolute

# What the modelling package picks by itself: a first-order method for the semidefinite program of the nuclear norm,
# an interior-point method for the second-order cone program of the Frobenius norm.
PUBLISHED_SOLVERS = {"nuclear": "SCS", "frobenius": "CLARABEL"}
_ATOMS = {"nuclear": "nuc", "frobenius": "fro"}


def optimal_differences(problems: attsvm.AttentionProblem) -> npt.NDArray[np.float64]:
    """Differences ``x_opt - x_t`` of the optimal token from the others, shape (batch, n, T - 1, d).

    A zero difference (repeated tokens, certain at d = 1 with T > 2 up to rare draws) is kept: it makes the problem
    infeasible.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.validation.figures.svm.ranks_published import optimal_differences
    >>> optimal_differences(attsvm.random_problem(n=2, T=3, d=4, batch=5)).shape
    (5, 2, 2, 4)
    """
    best = problems.optimal_tokens().indices[..., None]
    others = np.arange(problems.T - 1)
    others = others + (others >= best)
    chosen = np.take_along_axis(problems.X, best[..., None], axis=-2)
    return np.asarray(chosen - np.take_along_axis(problems.X, others[..., None], axis=-2))


def published_rank(problem: attsvm.AttentionProblem, solver: str) -> int:
    """Rank of one Att-SVM* solution, its problem modelled row by row.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.validation.figures.svm.ranks_published import published_rank
    >>> published_rank(attsvm.random_problem(n=4, T=3, d=6, seed=0), "SCS") <= 6
    True
    """
    import cvxpy as cp

    rows = selection_rows(problem).margin_problem
    pairs = rows.rows.gather(np.arange(rows.m))
    W = cp.Variable(rows.shape)
    constraints = [a @ W @ z >= 1 for a, z in zip(pairs.a, pairs.right, strict=True)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        cp.Problem(cp.Minimize(cp.normNuc(W)), constraints).solve(solver=solver)
    return int(np.linalg.matrix_rank(W.value, tol=PUBLISHED_TOLERANCE))


def published_ranks(problems: attsvm.AttentionProblem, norm: str) -> dict[str, npt.NDArray[Any]]:
    """Ranks of Att-SVM (Frobenius) or Att-SVM* (nuclear) solutions as the published protocol measures them.

    Returns
    -------
    dict
        ``rank`` (1 where the solver reports infeasible, NaN where it fails: the published code draws again) and
        ``feasible`` (whether the solver returned a W), each of shape (batch,).

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.validation.figures.svm.ranks_published import published_ranks
    >>> found = published_ranks(attsvm.random_problem(n=4, T=3, d=6, batch=2), "nuclear")
    >>> found["rank"].shape, bool((found["rank"] <= 6).all())
    ((2,), True)
    """
    import cvxpy as cp

    if norm not in _ATOMS:
        raise ValueError(f"norm must be one of {', '.join(_ATOMS)}, got {norm!r}")
    a = optimal_differences(problems)
    rows = np.einsum("bntd,bne->bntde", a, problems.Z).reshape(len(a), -1, problems.dx * problems.dz)
    W = cp.Variable((problems.dx, problems.dz))
    features = cp.Parameter(rows.shape[1:])
    model = cp.Problem(cp.Minimize(cp.norm(W, _ATOMS[norm])), [features @ cp.vec(W, order="C") >= 1])
    ranks, feasible = np.full(len(rows), np.nan), np.zeros(len(rows), dtype=bool)
    for b, values in enumerate(rows):
        features.value = values
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # "solution may be inaccurate": it is taken as it is
            try:
                # Cold: a compiled model would otherwise start from the problem before, which a fresh one cannot.
                model.solve(solver=PUBLISHED_SOLVERS[norm], warm_start=False)
            except cp.SolverError:
                continue
        feasible[b] = W.value is not None
        ranks[b] = 1 if W.value is None else np.linalg.matrix_rank(W.value, tol=PUBLISHED_TOLERANCE)
    return {"rank": ranks, "feasible": feasible}
