"""Certify a pair (W, multipliers) of a hard or soft margin, whoever computed it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from attsvm.solvers.certify.certificate import Certificate
from attsvm.solvers.certify.hard import measure
from attsvm.solvers.certify.soft import measure_soft
from attsvm.solvers.norms import Norm, get_norm
from attsvm.solvers.problem import MarginProblem

__all__ = ["certify"]


def certify(
    problem: MarginProblem,
    W: npt.ArrayLike,
    multipliers: npt.ArrayLike,
    norm: str | Norm = "frobenius",
    rank_tolerance: float | None = None,
) -> Certificate:
    """Certificate of a pair (W, multipliers), whoever computed it; over the leading axis for a batch.

    Parameters
    ----------
    problem : MarginProblem
    W : array_like, shape (*batch, dx, dz)
    multipliers : array_like, shape (*batch, m)
        In norm form: ``N*(W(lam)) = 1`` and ``rhs . lam = N(W)`` at the optimum.
    norm : str or Norm
    rank_tolerance : float, optional
        Where to cut singular values for the nuclear norm; ``max(1e-8, sqrt(gap))`` by default.

    Examples
    --------
    ``min |W|`` subject to ``2 W >= 1`` has W = 1/2 and multiplier 1/2:

    >>> from attsvm.solvers import MarginProblem, certify
    >>> certify(MarginProblem([[2.0]], [[1.0]], [0]), [[0.5]], [0.5]).gap
    0.0
    """
    matrix, lam = np.asarray(W, dtype=np.float64), np.asarray(multipliers, dtype=np.float64)
    if problem.penalty is not None:
        return measure_soft(problem, problem.penalty, matrix, lam, get_norm(norm), rank_tolerance)
    return measure(problem, matrix, lam, get_norm(norm), rank_tolerance, problem.adjoint(lam))
