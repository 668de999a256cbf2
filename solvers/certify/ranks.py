"""The rank that a dual matrix certifies, and the norms and singular values of W and D that it rests on.

Let D be the dual matrix, ``kappa >= ||D||_op`` and ``d_i >= sigma_i(D)`` proved bounds. Every W that satisfies the rows
has ``rhs . lam / kappa <= <D, W> / kappa <= sum_i (d_i / kappa) sigma_i(W)`` (the rows; von Neumann's trace
inequality). An optimal W has at most the norm ``most`` of some feasible matrix. Subtracting from ``||W||_* <= most``,

    sum_{i > r} sigma_i(W)  <=  (most - rhs . lam / kappa) / (1 - d_{r+1} / kappa)  =: resolution.

Only upper bounds are needed: of the singular values of D and of the nuclear norm of a feasible matrix.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Generic, NamedTuple

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray, IntArray, Number
from attsvm.solvers.certify.certificate import RankCertificate, RankCertificateBatch
from attsvm.solvers.certify.rounding import SLACK, gamma
from attsvm.solvers.certify.singular_values import decomposition_error, proved_spectrum, singular_value_error

__all__ = [
    "PROVED_UP_TO",
    "Spectra",
    "count_above",
    "rank_certificate",
    "rank_certificate_of_batch",
    "rank_tolerance",
    "spectra_of",
    "spectra_of_batch",
]

# Up to this smaller side singular values are proved from the singular vectors; beyond it, where vectors cost several
# times the values alone, the error of LAPACK's values is assumed (`singular_value_error`).
PROVED_UP_TO = 16
# Share of the largest singular value below which one is rounding of a solve.
_ROUNDING = 1e-8


def rank_tolerance(gap: npt.ArrayLike) -> FloatArray:
    """Share of the largest singular value at which the numerical rank of a solution with this relative gap is cut.

    An interior point has ``sigma_j(W) (1 - sigma_j(D))`` of the order of the gap for each pair, so under strict
    complementarity one of the two factors exceeds sqrt(gap).
    """
    return np.maximum(_ROUNDING, np.sqrt(gap))


def count_above(values: npt.NDArray[np.floating[Any]], tolerance: npt.ArrayLike = _ROUNDING) -> IntArray:
    """Numerical ranks over leading axes: how many of the falling singular values exceed that share of the largest.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.certify.ranks import count_above
    >>> count_above(np.array([[1.0, 0.5, 1e-9], [0.0, 0.0, 0.0]])).tolist()
    [2, 0]
    """
    return np.asarray(np.count_nonzero(values > np.asarray(tolerance)[..., None] * values[..., :1], axis=-1))


class Spectra(NamedTuple, Generic[Number]):
    """Singular values of W and of the dual matrix; arrays over the batch for a batch.

    Attributes
    ----------
    values, dual_values : ndarray, shape (*batch, r)
        As computed, falling.
    norm_most : float
        Upper bound of the nuclear norm of W.
    grow, residual : float
        ``sigma_i(D) <= grow dual_values_i + residual``.
    """

    values: FloatArray
    dual_values: FloatArray
    norm_most: Number
    grow: Number
    residual: Number


@lru_cache(maxsize=256)
def _assumed(shape: tuple[int, int]) -> float:
    return float(singular_value_error(shape, 1.0))


def spectra_of(W: FloatArray, dual: FloatArray, *, prove: bool | None = None) -> Spectra:
    """Singular values of W and D with bounds on their errors: proved where the matrices are small.

    Parameters
    ----------
    W, dual : ndarray, shape (dx, dz)
    prove : bool, optional
        From singular vectors, whatever the size; where the smaller side is at most `PROVED_UP_TO` by default.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.certify.ranks import spectra_of
    >>> found = spectra_of(np.diag([3.0, 4.0]), np.eye(2))
    >>> bool(7.0 <= found.norm_most < 7.0 + 1e-13), bool(found.grow + found.residual >= 1.0)
    (True, True)
    """
    r = min(W.shape)
    if r <= PROVED_UP_TO if prove is None else prove:
        (values, size, rest), (dual_values, grow, residual) = proved_spectrum(W), proved_spectrum(dual)
        most = (math.fsum(values.tolist()) * size + math.sqrt(r) * rest) * SLACK
        return Spectra(values, dual_values, most, grow, residual)
    values, dual_values = np.linalg.svd(np.array((W, dual)), compute_uv=False)
    error = _assumed((W.shape[0], W.shape[1]))
    most = (math.fsum(values.tolist()) * (1.0 + gamma(r)) + r * error * values.item(0)) * SLACK
    return Spectra(values, dual_values, most, 1.0, error * dual_values.item(0))


def spectra_of_batch(W: FloatArray, dual: FloatArray, *, prove: bool | None = None) -> Spectra[FloatArray]:
    """`spectra_of` over the leading axis.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.certify.ranks import spectra_of_batch
    >>> found = spectra_of_batch(np.diag([3.0, 4.0])[None], np.eye(2)[None])
    >>> bool(7.0 <= found.norm_most[0] < 7.0 + 1e-13), found.dual_values
    (True, array([[1., 1.]]))
    """
    r, pair = min(W.shape[-2:]), np.array((W, dual))
    if r <= PROVED_UP_TO if prove is None else prove:
        U, s, Vt = np.linalg.svd(pair, full_matrices=False)
        grown, rests = decomposition_error(pair, U, s, Vt)
        most = (s[0].sum(axis=-1) * grown[0] * (1.0 + gamma(r)) + math.sqrt(r) * rests[0]) * SLACK
        return Spectra(s[0], s[1], most, grown[1], rests[1])
    s = np.linalg.svd(pair, compute_uv=False)
    error, first = _assumed((W.shape[-2], W.shape[-1])), s[..., 0]
    most = (np.add.reduce(s[0], axis=-1) * (1.0 + gamma(r)) + r * error * first[0]) * SLACK
    return Spectra(s[0], s[1], most, np.ones(len(W)), error * first[1])


def rank_certificate(
    spectra: Spectra, dual_error: float, gap: float, excess: float, tolerance: float | None
) -> RankCertificate:
    """The one rank rule.

    Parameters
    ----------
    spectra : Spectra
    dual_error : float
        Bound on what rounding did to the dual matrix, in the spectral norm.
    gap : float
        Relative gap, which says where to cut.
    excess : float
        Upper bound on the norm of a feasible matrix minus the lower bound on all of them.
    tolerance : float, optional
        Where to cut instead.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.certify.ranks import rank_certificate, spectra_of
    >>> found = rank_certificate(spectra_of(np.diag([2.0, 0.0]), np.diag([1.0, 0.5])), 0.0, 0.0, 1e-9, None)
    >>> found.rank, bool(2e-9 <= found.resolution < 2.1e-9)
    (1, True)
    """
    tol = max(_ROUNDING, float(gap) ** 0.5) if tolerance is None else float(tolerance)  # `rank_tolerance`, unboxed
    values, dual = spectra.values.tolist(), spectra.dual_values.tolist()
    top, size = dual[0] or 1.0, len(values)
    if values[0] == dual[0] == 0.0:  # W = 0 beside the bound 0: what is left of the norm of a solution is the excess
        return RankCertificate(0, float(excess), 0, tol, 1.0, np.inf, spectra.dual_values)
    # D = 0 tells no singular value of another W from the next: all count.
    rank = sum(d >= (1.0 - tol) * top for d in dual) if dual[0] > 0 else size
    numerical = sum(v > tol * values[0] for v in values)
    # A zero after the last value stands for "nothing follows": dual gap 1, singular gap infinite.
    following = dual[rank] if rank < size else 0.0
    resolution = 0.0
    if rank < size:
        most = (spectra.grow * dual[0] + spectra.residual + dual_error) * SLACK
        room = 1.0 - (spectra.grow * following + spectra.residual + dual_error) * SLACK / most if most > 0 else 0.0
        resolution = float(excess / (room / SLACK)) if room > 0 else np.inf
    after = values[numerical] if numerical < size else 0.0
    gap_of_values = values[numerical - 1] / after if numerical and after > 0 else np.inf
    return RankCertificate(
        rank, resolution, numerical, tol, 1.0 - following / top, gap_of_values, spectra.dual_values / top
    )


def rank_certificate_of_batch(
    spectra: Spectra[FloatArray], dual_error: FloatArray, gap: FloatArray, excess: FloatArray, tolerance: float | None
) -> RankCertificateBatch:
    """`rank_certificate` over the leading axis.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.certify.ranks import rank_certificate_of_batch, spectra_of_batch
    >>> spectra = spectra_of_batch(np.diag([2.0, 0.0])[None], np.diag([1.0, 0.5])[None])
    >>> rank_certificate_of_batch(spectra, np.zeros(1), np.zeros(1), np.full(1, 1e-9), None).rank
    array([1])
    """
    singular, dual = spectra.values, spectra.dual_values
    tol = rank_tolerance(gap) if tolerance is None else np.full(gap.shape, tolerance)
    top = np.where(dual[..., :1] > 0, dual[..., :1], 1.0)
    nothing = (singular[..., 0] == 0) & (dual[..., 0] == 0)
    rank = np.count_nonzero((dual >= (1.0 - tol[..., None]) * top) | (dual[..., :1] == 0), axis=-1)
    rank = np.where(nothing, 0, rank)
    numerical = count_above(singular, tol)
    zero = np.zeros_like(top)
    after, dual_after = (np.concatenate([part, zero], axis=-1) for part in (singular, dual))
    following = np.take_along_axis(after, numerical[..., None], -1)[..., 0]
    last = np.take_along_axis(after, np.maximum(numerical - 1, 0)[..., None], -1)[..., 0]
    next_dual = np.take_along_axis(dual_after, rank[..., None], -1)[..., 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        most = (spectra.grow * dual[..., 0] + spectra.residual + dual_error) * SLACK
        room = 1.0 - (spectra.grow * next_dual + spectra.residual + dual_error) * SLACK / np.where(most > 0, most, 1.0)
        proved = np.where((room > 0) & (most > 0), excess / np.where(room > 0, room / SLACK, 1.0), np.inf)
        resolution = np.where(nothing, excess, np.where(rank == singular.shape[-1], 0.0, proved))
        singular_gap = np.where((numerical > 0) & (following > 0), last / following, np.inf)
    return RankCertificate(rank, resolution, numerical, tol, 1.0 - next_dual / top[..., 0], singular_gap, dual / top)
