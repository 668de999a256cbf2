"""Certify a pair (W, multipliers) of a hard or soft margin, whoever computed it."""

from __future__ import annotations

from typing import overload

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import Count, FloatArray, Number
from attsvm.solvers.certify.certificate import Certificate, CertificateBatch
from attsvm.solvers.certify.hard_certificate import MANY, ONE, Arithmetic, measure
from attsvm.solvers.certify.soft_certificate import measure_soft
from attsvm.solvers.margin_problem import EitherProblem, MarginProblem, MarginProblemBatch
from attsvm.solvers.norms import Norm, get_norm

__all__ = ["certify"]


@overload
def certify(
    problem: MarginProblem,
    W: npt.ArrayLike,
    multipliers: npt.ArrayLike,
    norm: str | Norm = "frobenius",
    rank_tolerance: float | None = None,
) -> Certificate: ...


@overload
def certify(
    problem: MarginProblemBatch,
    W: npt.ArrayLike,
    multipliers: npt.ArrayLike,
    norm: str | Norm = "frobenius",
    rank_tolerance: float | None = None,
) -> CertificateBatch: ...


def certify(
    problem: EitherProblem,
    W: npt.ArrayLike,
    multipliers: npt.ArrayLike,
    norm: str | Norm = "frobenius",
    rank_tolerance: float | None = None,
) -> Certificate | CertificateBatch:
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
    if problem.batch:
        return _measured(MANY, problem, matrix, lam, get_norm(norm), rank_tolerance)
    return _measured(ONE, problem, matrix, lam, get_norm(norm), rank_tolerance)


def _measured(
    arithmetic: Arithmetic[Number, Count],
    problem: EitherProblem,
    W: FloatArray,
    lam: FloatArray,
    norm: Norm,
    rank_tolerance: float | None,
) -> Certificate[Number, Count]:
    if problem.penalty is not None:
        return measure_soft(arithmetic, problem, problem.penalty, W, lam, norm, rank_tolerance)
    return measure(arithmetic, problem, W, lam, norm, rank_tolerance, problem.adjoint(lam))
