"""Certificates: what data, W and multipliers alone prove, with the rounding of every number accounted for.

Weak duality for any norm N with dual norm N*: if W satisfies the rows, lam >= 0 on inequality rows and
D = W(lam), then ``rhs . lam = <D, W> - slack <= N*(D) N(W)``. So ``rhs . lam / N*(D)`` bounds the norm
of every feasible W from below, whoever computed lam.

Everything here works over the leading axes of a batch: one problem is the case without any.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.solvers.norms import Norm, get_norm
from attsvm.solvers.problem import MarginProblem
from attsvm.solvers.rounding import UNIT_ROUNDOFF, gamma

if TYPE_CHECKING:
    from attsvm.solvers.infeasible import FarkasCertificate

__all__ = ["Certificate", "CertificateBatch", "RankCertificate", "certify", "certify_batch"]

# Bounds below are computed from computed norms; this covers their own roundings for any size that fits in memory.
_SLACK = 1.0 + 1e-6


def _pick(value: Any, index: int) -> Any:
    """Entry of an array over the batch as a plain number; other things know how to be indexed themselves."""
    if value is None:
        return None
    entry = value[index]
    return entry.item() if isinstance(entry, np.generic) else entry


@dataclass(frozen=True, eq=False)
class RankCertificate:
    """What the dual matrix proves about the rank of every nuclear-norm solution.

    Let D be the dual matrix divided by its largest singular value. Every feasible W has
    ``<D, W> >= lower_bound``, and by von Neumann's trace inequality ``<D, W> <= sum_i sigma_i(D) sigma_i(W)``. So an
    optimal W, whose norm is at most that of the one returned, satisfies

        sum_{i > rank} sigma_i(W) <= (norm - lower_bound) / (1 - sigma_{rank+1}(D)) = resolution:

    it is a matrix of rank ``rank`` up to ``resolution`` in the nuclear norm. Arrays over the batch for a batch.

    Attributes
    ----------
    rank : int
        Number of singular values of D that reach ``1 - tolerance``: no optimal W has more singular values above
        ``resolution``.
    resolution : float
        See above; rounding included. Infinite when the dual proves nothing.
    numerical_rank : int
        Number of singular values of the returned W above ``tolerance`` times the largest.
    tolerance : float
        Where both counts cut.
    dual_gap : float
        ``1 - sigma_{rank+1}(D)``: how far the first inactive dual singular value stays below 1.
    singular_gap : float
        ``sigma_r(W) / sigma_{r+1}(W)`` at the numerical rank r; infinite when nothing follows.
    dual_singular_values : ndarray, shape (*batch, min(dx, dz))
        Of D.
    """

    rank: int
    resolution: float
    numerical_rank: int
    tolerance: float
    dual_gap: float
    singular_gap: float
    dual_singular_values: FloatArray

    def __getitem__(self, index: int) -> RankCertificate:
        """Of one problem of a batch."""
        return RankCertificate(*(_pick(getattr(self, field.name), index) for field in fields(self)))


@dataclass(frozen=True, eq=False)
class Certificate:
    """Optimality measures of a pair (W, multipliers); every field is recomputed from the data.

    For a batch every field is an array over the batch; index it to get the certificate of one problem.

    Attributes
    ----------
    primal_violation : float
        Largest amount by which W misses a row, relative to ``max(1, |rhs|)``.
    dual_violation : float
        Largest of ``N*(W(lam)) - 1`` and of the negative parts of inequality multipliers (times row norm).
    gap : float
        ``|N(W) - rhs . lam / N*(W(lam))| / N(W)``.
    complementarity : float
        Largest ``lam_k |margin_k - rhs_k|`` relative to ``N(W)``.
    norm : float
        N(W).
    lower_bound : float
        Proved lower bound on the norm of every feasible W: multipliers clipped and rescaled to be
        exactly dual feasible, rounding subtracted.
    primal_error, gap_error : float
        Bounds on what rounding can have hidden from ``primal_violation`` and from ``gap``.
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
    primal_error: float = 0.0
    gap_error: float = 0.0
    rank_certificate: RankCertificate | None = None
    farkas: FarkasCertificate | None = None

    @property
    def rank(self) -> int | None:
        """Certified rank (nuclear norm only)."""
        return None if self.rank_certificate is None else self.rank_certificate.rank

    @property
    def worst(self) -> float:
        """Largest of gap, primal violation and dual violation, as computed."""
        return _largest(self.gap, self.primal_violation, self.dual_violation)

    @property
    def proved(self) -> float:
        """`worst` with the rounding errors added: what may be compared with a tolerance to claim optimality."""
        return _largest(self.gap + self.gap_error, self.primal_violation + self.primal_error, self.dual_violation)

    def __getitem__(self, index: int) -> Certificate:
        """Of one problem of a batch."""
        return Certificate(*(_pick(getattr(self, field.name), index) for field in fields(self)))

    @staticmethod
    def unknown(
        batch: tuple[int, ...] = (), farkas: FarkasCertificate | None = None, bound: float = np.inf
    ) -> Certificate:
        """Of a solve that ended without W: infinite, never 0; ``bound`` is what is proved of the norm all the same."""
        inf: Any = np.full(batch, np.inf) if batch else float("inf")
        return Certificate(inf, inf, inf, inf, inf, bound, inf, inf, farkas=farkas)


class CertificateBatch(Protocol):
    """The face of a `Certificate` of a batch: the same names, arrays of shape (B,)."""

    @property
    def primal_violation(self) -> FloatArray:
        """As in `Certificate`."""
        ...

    @property
    def dual_violation(self) -> FloatArray:
        """As in `Certificate`."""
        ...

    @property
    def gap(self) -> FloatArray:
        """As in `Certificate`."""
        ...

    @property
    def complementarity(self) -> FloatArray:
        """As in `Certificate`."""
        ...

    @property
    def norm(self) -> FloatArray:
        """As in `Certificate`."""
        ...

    @property
    def lower_bound(self) -> FloatArray:
        """As in `Certificate`."""
        ...

    @property
    def rank(self) -> IntArray | None:
        """As in `Certificate`."""
        ...

    @property
    def worst(self) -> FloatArray:
        """As in `Certificate`."""
        ...

    @property
    def proved(self) -> FloatArray:
        """As in `Certificate`."""
        ...

    def __getitem__(self, index: int) -> Certificate:
        """Of one problem."""
        ...


def _largest(*values: Any) -> Any:
    if isinstance(values[0], np.ndarray):
        return np.maximum.reduce(values)
    return max(values)


def _plain(value: FloatArray) -> Any:
    """A Python number for one problem, the array for a batch."""
    return value if value.ndim else value.item()


def _rank_certificate(
    singular: FloatArray,
    dual_singular: FloatArray,
    gap: FloatArray,
    excess: FloatArray,
    tolerance: float | None,
    error: FloatArray,
) -> RankCertificate:
    """The one rank rule; ``excess`` bounds norm - lower bound, ``error`` the singular values of the scaled dual."""
    # An interior point has sigma_j(W) (1 - sigma_j(D)) of the order of the gap for each pair, so under
    # strict complementarity one of the two factors exceeds sqrt(gap): that is where to cut.
    tol = np.maximum(1e-8, np.sqrt(gap)) if tolerance is None else np.full(gap.shape, tolerance)
    top = dual_singular[..., :1]
    scaled = dual_singular / np.where(top > 0, top, 1.0)
    rank = np.count_nonzero(scaled >= 1.0 - tol[..., None], axis=-1)
    numerical = np.count_nonzero(singular > tol[..., None] * singular[..., :1], axis=-1)
    # A zero after the last value stands for "nothing follows": dual gap 1, singular gap infinite.
    pad = [(0, 0)] * (singular.ndim - 1) + [(0, 1)]
    after = np.pad(singular, pad)
    following = np.take_along_axis(after, numerical[..., None], -1)[..., 0]
    last = np.take_along_axis(after, np.maximum(numerical - 1, 0)[..., None], -1)[..., 0]
    dual_gap = 1.0 - np.take_along_axis(np.pad(scaled, pad), rank[..., None], -1)[..., 0]
    room = dual_gap - error
    nothing_follows = rank == singular.shape[-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        resolution = np.where(nothing_follows, 0.0, np.where(room > 0, excess / room, np.inf))
        singular_gap = np.where((numerical > 0) & (following > 0), last / following, np.inf)
    return RankCertificate(
        *(_plain(np.asarray(part)) for part in (rank, resolution, numerical, tol, dual_gap, singular_gap)), scaled
    )


def _singular_values(matrix: FloatArray) -> FloatArray:
    return np.asarray(np.linalg.svd(matrix, compute_uv=False), dtype=np.float64)


def _measure(
    problem: MarginProblem, W: FloatArray, lam: FloatArray, norm: Norm, rank_tolerance: float | None
) -> Certificate:
    dx, dz = problem.shape
    row_norms, rhs = problem.row_norms, problem.rhs
    slack = problem.margins(W) - rhs
    allowance = np.maximum(1.0, np.abs(rhs))
    violation = (problem.missed(slack) / allowance).max(axis=-1)
    size = np.sqrt(np.einsum("...ij,...ij->...", W, W))
    # `rounding.margin_error`: every computed margin is within this of the true one. One more for the slack.
    margin_error = row_norms * (gamma(dx + dz + 3) * _SLACK * size[..., None])
    primal_error = (margin_error / allowance).max(axis=-1) + 2.0 * UNIT_ROUNDOFF * (1.0 + violation)

    inequality_lam = np.where(problem.equality, 0.0, lam)
    negative = np.maximum(-inequality_lam, 0.0)
    lam = lam + negative
    weights = np.abs(lam)
    dual = problem.adjoint(lam)
    spectra: tuple[FloatArray, FloatArray] | None = None
    if norm.name == "nuclear":  # one decomposition of each serves the norms and the ranks
        spectra = _singular_values(W), _singular_values(dual)
        value, dual_norm = spectra[0].sum(axis=-1), spectra[1][..., 0]
    else:
        value, dual_norm = norm.values(W), norm.dual.values(dual)
    dual_violation = np.maximum(0.0, np.maximum(dual_norm - 1.0, (negative * row_norms).max(axis=-1)))

    # `rounding.adjoint_error`, `dot_error`, `dual_bound`: the dual matrix, the objective and both norms with their errors.
    spread = (weights * row_norms).sum(axis=-1)
    terms = np.count_nonzero(weights, axis=-1)  # adding an exact zero rounds nothing
    depth = (terms + np.minimum(terms, problem.q) + 4) * (_SLACK * UNIT_ROUNDOFF)
    dual_error = (depth * norm.dual.largest_on_ball((dx, dz))) * spread
    dual_most = (dual_norm + dual_error) * (1.0 + norm.dual.rounding((dx, dz)))
    objective = (rhs * lam).sum(axis=-1)
    least = objective - ((terms + 2) * (_SLACK * UNIT_ROUNDOFF)) * (np.abs(rhs) * weights).sum(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        lower = np.where((objective > 0) & (dual_norm > 0), objective / dual_norm, 0.0)
        proved = np.where((least > 0) & (dual_most > 0), least / dual_most * (1.0 - 8.0 * UNIT_ROUNDOFF), 0.0)
    scale = np.where(value > 0, value, 1.0)
    most = value * (1.0 + norm.rounding((dx, dz)))
    gap = np.abs(value - lower) / scale
    gap_error = np.maximum(0.0, (most - proved) / scale - gap) + 4.0 * UNIT_ROUNDOFF
    complementarity = (weights * np.abs(slack)).max(axis=-1) / scale
    rank = None
    if spectra is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            blur = np.where(dual_norm > 0, 2.0 * (dual_error / dual_norm + norm.dual.rounding((dx, dz))), np.inf)
        rank = _rank_certificate(*spectra, gap, np.maximum(0.0, most - proved), rank_tolerance, blur)
    numbers = (violation, dual_violation, gap, complementarity, value, proved, primal_error, gap_error)
    return Certificate(*(_plain(np.asarray(number)) for number in numbers), rank)


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
    return _measure(problem, matrix, lam, get_norm(norm), rank_tolerance)


def certify_batch(
    problem: MarginProblem, W: npt.ArrayLike, multipliers: npt.ArrayLike, norm: str | Norm = "frobenius"
) -> CertificateBatch:
    """`certify` with the type of a batch: arrays over the leading axis.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, certify_batch
    >>> batch = MarginProblem(np.array([[[2.0]], [[4.0]]]), np.ones((2, 1, 1)), [0])
    >>> certify_batch(batch, [[[0.5]], [[0.25]]], [[0.5], [0.25]]).gap
    array([0., 0.])
    """
    if not problem.batch:
        raise ValueError("certify_batch takes a batch of problems; use certify for one")
    found: Any = certify(problem, W, multipliers, norm)
    face: CertificateBatch = found
    return face
