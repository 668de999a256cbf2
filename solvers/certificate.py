"""Certificates: proofs of optimality or infeasibility, computed from data, W and multipliers alone.

Weak duality for any norm N with dual norm N*: if W satisfies the rows, lam >= 0 on inequality rows and
D = W(lam), then ``rhs . lam = <D, W> - slack <= N*(D) N(W)``. So ``rhs . lam / N*(D)`` bounds the norm
of every feasible W from below, whoever computed lam, and ``N*(D) = 0`` with ``rhs . lam > 0`` proves
that no feasible W exists.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attsvm.solvers.margin import FloatArray, IntArray, MarginProblem
from attsvm.solvers.norms import Norm, get_norm

__all__ = ["Certificate", "FarkasCertificate", "RankCertificate", "certify", "certify_infeasible"]

# A proof of infeasibility is accepted when its combination of rows cancels to this relative accuracy:
# rounding leaves about 1e-15, a feasible problem whose norm is below 1e8 row norms leaves more than 1e-8.
FARKAS_TOLERANCE = 1e-9
_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class FarkasCertificate:
    """A nonnegative combination of rows that cancels while its right-hand side stays positive.

    Attributes
    ----------
    multipliers : ndarray, shape (m,)
        Nonnegative on inequality rows, free on equality rows, scaled to ``rhs . multipliers = 1``.
    residual : float
        ``||sum_k multipliers_k a_k b_k^T||_F / sum_k |multipliers_k| |a_k| |b_k|``: 0 is an exact proof.
    cancellation : float
        ``|rhs| . |multipliers|``: how much larger the terms of ``rhs . multipliers = 1`` are than their sum. 1 when
        every rhs is positive; huge when the 1 is itself what rounding left of a sum that cancels.
    excluded_norm : float
        What the floating-point numbers prove: every feasible W has at least this Frobenius norm.
    rows : ndarray of int
        Rows that take part.
    owners : ndarray of int
        Queries that take part.
    """

    multipliers: FloatArray
    residual: float
    cancellation: float
    excluded_norm: float
    rows: IntArray
    owners: IntArray

    @property
    def verified(self) -> bool:
        """True when the rows cancel to within rounding and their right-hand sides do not."""
        return max(self.residual, _EPS) * self.cancellation <= FARKAS_TOLERANCE


@dataclass(frozen=True, eq=False)
class RankCertificate:
    """What the dual matrix proves about the rank of every nuclear-norm solution.

    With D the dual matrix, ``||D||_op <= 1``, every optimal W satisfies ``||W||_* - <D, W> <= gap`` and
    lives, up to that gap, on the singular vectors of D whose singular value is 1.

    Attributes
    ----------
    rank : int
        Number of singular values of D that reach ``1 - tolerance``: bounds the rank of every optimal W.
    numerical_rank : int
        Number of singular values of the returned W above ``tolerance`` times the largest.
    tolerance : float
        Used for both counts.
    dual_gap : float
        ``1 - sigma_{rank+1}(D)``: how far the first inactive dual singular value stays below 1.
    singular_gap : float
        ``sigma_r(W) / sigma_{r+1}(W)`` at the numerical rank r; infinite when nothing follows.
    outside_mass : float
        Bound, relative to the norm, on the nuclear norm that any optimal W has on the orthogonal
        complement of the active singular vectors: relative gap / dual_gap.
    dual_singular_values : ndarray
    """

    rank: int
    numerical_rank: int
    tolerance: float
    dual_gap: float
    singular_gap: float
    outside_mass: float
    dual_singular_values: FloatArray


@dataclass(frozen=True, eq=False)
class Certificate:
    """Optimality measures of a pair (W, multipliers); every field is recomputed from the data.

    Attributes
    ----------
    primal_violation : float
        Largest amount by which W misses a row, relative to ``max(1, |rhs|)``.
    dual_violation : float
        Largest of ``N*(W(lam)) - 1`` and of the negative parts of inequality multipliers (times row norm).
    gap : float
        ``|N(W) - lower_bound| / N(W)``.
    complementarity : float
        Largest ``lam_k |margin_k - rhs_k|`` relative to ``N(W)``.
    norm : float
        N(W).
    lower_bound : float
        Proved lower bound on the norm of every feasible W (multipliers clipped and rescaled to be
        exactly dual feasible).
    rank_certificate : RankCertificate or None
        For the nuclear norm.
    farkas : FarkasCertificate or None
        Proof of infeasibility; the other fields are then infinite, never 0.
    """

    primal_violation: float
    dual_violation: float
    gap: float
    complementarity: float
    norm: float
    lower_bound: float
    rank_certificate: RankCertificate | None = None
    farkas: FarkasCertificate | None = None

    @property
    def rank(self) -> int | None:
        """Certified rank (nuclear norm only)."""
        return None if self.rank_certificate is None else self.rank_certificate.rank

    @property
    def worst(self) -> float:
        """Largest of gap, primal violation and dual violation: one number to compare with a tolerance."""
        return max(self.gap, self.primal_violation, self.dual_violation)


def _farkas_only(farkas: FarkasCertificate) -> Certificate:
    inf = float("inf")
    return Certificate(inf, inf, inf, inf, inf, inf, farkas=farkas)


def certify_infeasible(problem: MarginProblem, multipliers: npt.ArrayLike) -> Certificate | None:
    """Verify a candidate proof of infeasibility.

    Negative inequality multipliers are set to zero first, so the verdict never rests on them.

    Returns
    -------
    Certificate or None
        A certificate with ``farkas`` set when the combination cancels (see `FarkasCertificate`), else None.

    Examples
    --------
    Two rows that ask for ``W >= 1`` and ``-W >= 1``:

    >>> from attsvm.solvers import MarginProblem, certify_infeasible
    >>> rows = MarginProblem([[1.0], [-1.0]], [[1.0]], [0, 0])
    >>> certify_infeasible(rows, [1.0, 1.0]).farkas.multipliers
    array([0.5, 0.5])
    >>> certify_infeasible(rows, [1.0, 0.0]) is None
    True
    """
    lam = np.array(multipliers, dtype=np.float64)
    lam[~problem.equality & (lam < 0)] = 0.0
    value = float(problem.rhs @ lam)
    if not np.isfinite(value) or value <= 0:
        return None
    lam /= value
    weight = float(np.abs(lam) @ problem.row_norms)
    left_over = float(np.linalg.norm(problem.adjoint(lam)))
    residual = left_over / weight if weight > 0 else 0.0  # zero rows with positive rhs: exact proof
    rows = np.flatnonzero(np.abs(lam) > 1e-12 * np.abs(lam).max())
    farkas = FarkasCertificate(
        multipliers=lam,
        residual=residual,
        cancellation=float(np.abs(lam) @ np.abs(problem.rhs)),
        excluded_norm=1.0 / left_over if left_over > 0 else float("inf"),
        rows=rows,
        owners=np.unique(problem.owner[rows]),
    )
    return _farkas_only(farkas) if farkas.verified else None


def _rank_certificate(
    singular: FloatArray, dual_singular: FloatArray, gap: float, tolerance: float | None
) -> RankCertificate:
    # An interior point has sigma_j(W) (1 - sigma_j(D)) of the order of the gap for each pair, so under
    # strict complementarity one of the two factors exceeds sqrt(gap): that is where to cut.
    tol = max(1e-8, float(np.sqrt(gap))) if tolerance is None else tolerance
    dual_singular = dual_singular / max(1.0, float(dual_singular[0]))
    rank = int(np.count_nonzero(dual_singular >= 1.0 - tol))
    numerical = int(np.count_nonzero(singular > tol * singular[0]))
    following = float(singular[numerical]) if numerical < len(singular) else 0.0
    dual_gap = 1.0 - float(dual_singular[rank]) if rank < len(dual_singular) else 1.0
    return RankCertificate(
        rank=rank,
        numerical_rank=numerical,
        tolerance=tol,
        dual_gap=dual_gap,
        singular_gap=float(singular[numerical - 1]) / following if numerical and following > 0 else float("inf"),
        outside_mass=gap / dual_gap,
        dual_singular_values=np.asarray(dual_singular, dtype=np.float64),
    )


def _singular_values(matrix: FloatArray) -> FloatArray:
    return np.asarray(np.linalg.svd(matrix, compute_uv=False), dtype=np.float64)


def certify(
    problem: MarginProblem,
    W: npt.ArrayLike,
    multipliers: npt.ArrayLike,
    norm: str | Norm = "frobenius",
    rank_tolerance: float | None = None,
) -> Certificate:
    """Certificate of a pair (W, multipliers), whoever computed it.

    Parameters
    ----------
    problem : MarginProblem
    W : array_like, shape (dx, dz)
    multipliers : array_like, shape (m,)
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
    norm = get_norm(norm)
    matrix = np.asarray(W, dtype=np.float64)
    lam = np.array(multipliers, dtype=np.float64)
    slack = problem.margins(matrix) - problem.rhs
    missed = np.where(problem.equality, np.abs(slack), np.maximum(-slack, 0.0))
    primal_violation = float((missed / np.maximum(1.0, np.abs(problem.rhs))).max())

    negative = np.where(problem.equality, 0.0, np.maximum(-lam, 0.0))
    lam = lam + negative
    dual = problem.adjoint(lam)
    spectra: tuple[FloatArray, FloatArray] | None = None
    if norm.name == "nuclear":  # one decomposition of each serves the norms and the ranks
        spectra = _singular_values(matrix), _singular_values(dual)
        value, dual_norm = float(spectra[0].sum()), float(spectra[1][0])
    else:
        value, dual_norm = norm(matrix), norm.dual(dual)
    dual_violation = max(0.0, dual_norm - 1.0, float((negative * problem.row_norms).max()))
    objective = float(problem.rhs @ lam)
    lower = objective / dual_norm if objective > 0 and dual_norm > 0 else 0.0
    scale = value if value > 0 else 1.0
    gap = abs(value - lower) / scale
    complementarity = float((np.abs(lam) * np.abs(slack)).max()) / scale
    rank = None if spectra is None else _rank_certificate(*spectra, gap, rank_tolerance)
    return Certificate(primal_violation, dual_violation, gap, complementarity, value, lower, rank)
