"""Proofs of infeasibility: a nonnegative combination of rows that cancels while its right-hand side stays positive.

In float64 a combination cancels only up to rounding, which excludes matrices of moderate norm, not all of them. It
becomes a proof in one of three ways:

- one row is zero and has a positive right-hand side;
- *by rounding bounds*: the participating rows, more of them than dimensions, span their space with a smallest singular
  value s that rounding cannot have made up. What is left over, r, is then removed exactly by changing the multipliers
  by at most ``|r| / s``, and they are larger than that;
- *by rationals*: the multipliers are solved for in exact arithmetic (`attsvm.solvers.exact`).

Anything else is only a lower bound on the norm, and is said to be no more. Of a problem about the change of a matrix
the right-hand sides asked of the whole W are used, which are not rounded: rows that cancel do so at the prior as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.certify.certificate import Certificate, Source
from attsvm.solvers.certify.rounding import dot_error, dual_bound, gamma, norm_bounds
from attsvm.solvers.certify.singular_values import factor_bound, singular_value_bounds
from attsvm.solvers.margin_problem import MarginProblem
from attsvm.solvers.rows.pairs import PairRows
from attsvm.solvers.rows.products import by_query, normal_matrix

__all__ = ["FarkasCertificate", "certify_infeasible", "farkas_certificate", "zero_row_proof"]

# Multipliers below this share of the largest are not part of the candidate.
_NEGLIGIBLE = 1e-12
# A candidate that leaves more than this of its weight is not worth a proof: solvers stop far below it.
_PROMISING = 1e-6
# Right-hand sides that cancel down to this share of their terms may owe the rest to their own rounding (the equality
# rows of a W that satisfies them all, say): no proof.
_ROUNDED = 1e-12
# Largest matrix (rows times columns) for which the rational proof is tried, and for the one by singular values.
_RATIONAL_ENTRIES = 40_000
# Exact exchanges from the start that floats give: multipliers that are nearly a proof need few.
_RATIONAL_PIVOTS = 50
_DENSE_ENTRIES = 4_000_000
# Numbers from which on such a matrix is not written out at first: its normal matrix takes a fraction of the time, and
# proves less only of nearly dependent rows. Largest order of that matrix.
_NORMAL_ENTRIES, _NORMAL_ORDER = 100_000, 5000
# Solves with the normal matrix, each of which takes away what is left over but for rounding; inverse iterations.
_CORRECTIONS, _INVERSE_ITERATIONS = 3, 8


@dataclass(frozen=True, eq=False)
class FarkasCertificate:
    """A proof that no W satisfies all rows.

    Attributes
    ----------
    multipliers : ndarray, shape (m,)
        Nonnegative on inequality rows, free on equality rows, scaled to ``rhs . multipliers = 1``. Of a proof by
        rationals they are rounded to float64.
    residual : float
        ``||sum_k multipliers_k a_k b_k^T||_F / sum_k |multipliers_k| |a_k| |b_k|`` of these rounded multipliers.
    excluded_norm : float
        What these floating-point multipliers alone exclude, rounding included: every W of smaller Frobenius norm.
    rows : ndarray of int
        Rows that take part.
    owners : ndarray of int
        Queries that take part.
    proof : {"zero row", "rounding bounds", "rationals"}
        Why no W of any norm exists; see the module's text.
    """

    multipliers: FloatArray
    residual: float
    excluded_norm: float
    rows: IntArray
    owners: IntArray
    proof: Literal["zero row", "rounding bounds", "rationals"]

    def __repr__(self) -> str:
        taking = f"{len(self.rows)} of {len(self.multipliers)} rows, {len(self.owners)} queries"
        return f"FarkasCertificate(by {self.proof}, {taking}, excluded_norm={self.excluded_norm:.3g})"


def farkas_certificate(
    problem: MarginProblem,
    lam: FloatArray,
    proof: Literal["zero row", "rounding bounds", "rationals"],
    rows: IntArray | None = None,
) -> Certificate | None:
    """Measures of multipliers that are known to belong to a proof; None if it rests on rounded right-hand sides.

    ``rows`` take part: those with a multiplier, unless a proof by rationals knows of some that float64 rounds to 0.
    """
    gained = float(problem.asked @ lam)
    if not gained > _ROUNDED * float(np.abs(problem.asked) @ np.abs(lam)):
        return None
    lam = lam / gained
    weight = float(np.abs(lam) @ problem.row_norms)
    left_over = float(np.linalg.norm(problem.adjoint(lam)))
    error = gamma(problem.m + problem.q + 4) * 1.01 * float(np.abs(lam) @ problem.rows.error_norms)
    # Every row with a multiplier: the smallest one may belong to the largest row.
    rows = np.flatnonzero(lam) if rows is None else rows
    found = FarkasCertificate(
        multipliers=lam,
        residual=left_over / weight if weight > 0 else 0.0,
        excluded_norm=float(dual_bound(problem.asked @ lam, dot_error(problem.asked, lam), left_over, error)),
        rows=rows,
        owners=np.unique(problem.owner[rows]),
        proof=proof,
    )
    return Certificate.unknown(farkas=found, source=Source(problem, None, lam, None))


def zero_row_proof(problem: MarginProblem) -> Certificate | None:
    """The proof by a zero row with a positive right-hand side, if there is one.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.certify.farkas import zero_row_proof
    >>> zero_row_proof(MarginProblem([[0.0], [1.0]], [[1.0]], [0, 0])).farkas.rows
    array([0])
    """
    norms = problem.row_norms
    if norms.min() > 0:
        return None
    dead = np.flatnonzero((norms == 0) & np.where(problem.equality, problem.asked != 0, problem.asked > 0))
    for row in dead:
        if _is_zero(problem, int(row)):  # a norm may underflow where the row does not
            unit = np.zeros(problem.m)
            unit[row] = np.sign(problem.asked[row])
            return farkas_certificate(problem, unit, "zero row")
    return None


def _is_zero(problem: MarginProblem, row: int) -> bool:
    pair = problem.rows.gather(np.array([row]))
    return not pair.a.any() or not pair.queries[pair.owner[0]].any()


def certify_infeasible(problem: MarginProblem, multipliers: npt.ArrayLike) -> Certificate | None:
    """Turn a candidate into a proof of infeasibility, or refuse it.

    Negative inequality multipliers are set to zero first, so the verdict never rests on them.

    Parameters
    ----------
    problem : MarginProblem
        A single one.
    multipliers : array_like, shape (m,)
        Of any scale.

    Returns
    -------
    Certificate or None
        A certificate with ``farkas`` set when infeasibility is proved (see `FarkasCertificate`), else None.

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
    lam = problem.clipped(np.asarray(multipliers, dtype=np.float64))
    size = float(np.abs(lam).max(initial=0.0))
    if not 0 < size < np.inf:
        return None
    norms = problem.row_norms
    rows = np.flatnonzero(np.abs(lam) * norms > _NEGLIGIBLE * float((np.abs(lam) * norms).max()))
    if not len(rows) or not float(problem.asked[rows] @ lam[rows]) > 0:
        zero = np.abs(lam) * (norms == 0) > 0
        return zero_row_proof(problem) if zero.any() else None
    weight = np.abs(lam[rows]) * norms[rows]
    if float(np.linalg.norm(problem.adjoint(np.where(np.abs(lam) > 0, lam, 0.0)))) > _PROMISING * float(weight.sum()):
        return None
    for part in (_of_one_query(problem, rows, lam[rows]), rows):
        if part is not None:
            found = _by_rounding_bounds(problem, part, lam[part]) or _by_rationals(problem, part, lam)
            if found is not None:
                return found
    return None


def _of_one_query(problem: MarginProblem, rows: IntArray, lam: FloatArray) -> IntArray | None:
    """Rows of a query that cancel by themselves, the fewest of such: a smaller proof; None without one."""
    pair = problem.rows.gather(rows)
    order = np.argsort(pair.owner, kind="stable")
    owner, lam, rows = pair.owner[order], lam[order], rows[order]
    begin = np.concatenate([[0], np.flatnonzero(owner[1:] != owner[:-1]) + 1])
    if len(begin) < 2:
        return None
    a = pair.a[order].astype(np.float64, copy=False)
    sums = np.add.reduceat(lam[:, None] * a, begin, axis=0)
    weight = np.add.reduceat(np.abs(lam) * np.sqrt(np.vecdot(a, a)), begin)
    gained = np.add.reduceat(lam * problem.asked[rows], begin)
    good = (np.sqrt(np.vecdot(sums, sums)) <= _PROMISING * weight) & (gained > 0)
    if not good.any():
        return None
    counts = np.diff(begin, append=len(rows))
    fewest = int(np.where(good, counts, len(rows) + 1).argmin())
    return rows[begin[fewest] : begin[fewest] + counts[fewest]]


def _coordinates(problem: MarginProblem, rows: IntArray) -> PairRows:
    """The rows in coordinates in which it is enough that they cancel, each of norm about 1, times powers of two.

    With fewer queries than dimensions: one copy of the left factor's space per query (the sums over the rows of each
    query vanish separately), else the space of W.
    """
    pair = problem.rows.gather(rows)
    used, position = np.unique(pair.owner, return_inverse=True)
    queries = pair.queries[used].astype(np.float64, copy=False)
    if len(used) <= problem.shape[1]:
        queries = np.eye(len(used))
    return PairRows.trusted(pair.a.astype(np.float64, copy=False), queries, position)


def _by_rounding_bounds(problem: MarginProblem, rows: IntArray, lam: FloatArray) -> Certificate | None:
    """The second way of the module's text."""
    pair = _coordinates(problem, rows)
    columns = pair.shape[0] * pair.shape[1]
    if len(rows) <= columns:
        return None
    # Powers of two change nothing but the scale: rows of norm about 1, multipliers to match.
    exponent = np.frexp(np.abs(pair.a).max(axis=1) * np.abs(pair.queries).max(axis=1)[pair.owner])[1]
    pair = PairRows.trusted(np.ldexp(pair.a, -exponent[:, None]), pair.queries, pair.owner)
    y = np.ldexp(lam, exponent)
    y = y / float(np.abs(y).max())
    rhs, equality = np.ldexp(problem.asked[rows], -exponent), problem.equality[rows]
    numbers = len(rows) * columns
    for attempt, fits in (
        (_through_normal_matrix, numbers >= _NORMAL_ENTRIES and columns <= _NORMAL_ORDER),
        (_through_singular_values, numbers <= _DENSE_ENTRIES),
    ):
        if fits:
            corrected, smallest = attempt(pair, y)
            if _is_proof(pair, rhs, equality, corrected, smallest):
                full = np.zeros(problem.m)
                full[rows] = np.ldexp(corrected, -exponent)
                return farkas_certificate(problem, full, "rounding bounds")
    return None


def _through_singular_values(pair: PairRows, y: FloatArray) -> tuple[FloatArray, float]:
    """Multipliers that cancel up to rounding, and a lower bound on the least singular value of their rows."""
    matrix = pair.features()
    U, singular, Vt = np.linalg.svd(matrix, full_matrices=False)
    y = y - U @ ((Vt @ (y @ matrix)) / np.maximum(singular, 1e-300))  # removes what is left over, up to rounding
    # Entries are rounded products of two factors.
    blur = gamma(2) * float(norm_bounds(matrix, 2)[1])
    return y, float(singular_value_bounds(matrix, (U, singular, Vt))[0][-1]) - blur


def _through_normal_matrix(pair: PairRows, y: FloatArray) -> tuple[FloatArray, float]:
    """The same from two Cholesky factors of the normal matrix: for many rows."""
    from scipy.linalg.lapack import dpotrf, dpotrs

    blocks, _ = by_query(pair, np.ones(pair.m))
    normal = normal_matrix(blocks, np.ones(pair.m), ridge=0.0)
    factor, failed = dpotrf(normal.T, lower=1)
    if failed:
        return y, 0.0
    for _ in range(_CORRECTIONS):
        left_over = pair.adjoint(y)
        y = y - pair.margins(dpotrs(factor, left_over.ravel(), lower=1)[0].reshape(left_over.shape))
    flat = np.ones(len(normal))
    for _ in range(_INVERSE_ITERATIONS):
        flat = flat / float(np.linalg.norm(flat))
        flat = dpotrs(factor, flat, lower=1)[0]
    error = gamma(int(blocks.counts.max()) + 2 * pair.q + 8) * 1.01 * float(pair.row_norms @ pair.row_norms)
    return y, max(factor_bound(normal, 0.5 / float(np.linalg.norm(flat))) - error, 0.0) ** 0.5 * (1.0 - 1e-15)


def _is_proof(pair: PairRows, rhs: FloatArray, equality: BoolArray, y: FloatArray, smallest: float) -> bool:
    """Whether a change of the multipliers that makes them cancel exactly leaves signs and right-hand side positive."""
    sizes = pair.row_norms
    # Left factors may be rounded differences: one rounding each.
    smallest -= gamma(2) * 1.01 * float(np.sqrt(sizes @ sizes))
    if (y[~equality] < 0).any() or not smallest > 0:
        return False
    rounding = gamma(pair.m + pair.q + 4) * 1.01 * float(np.abs(y) @ sizes)
    change = 1.01 * (float(norm_bounds(pair.adjoint(y), 2)[1]) + rounding) / smallest
    least = float(rhs @ y) - float(dot_error(rhs, y)) - change * float(norm_bounds(rhs)[1])
    return bool(y[~equality].min(initial=np.inf) > change and least > 0)


def _by_rationals(problem: MarginProblem, rows: IntArray, lam: FloatArray) -> Certificate | None:
    """The third way: exact multipliers on the participating rows."""
    from attsvm.solvers.exact import exact_farkas
    from attsvm.solvers.exact.measures import exact_rows_of

    dx, dz = problem.shape
    if len(rows) * dx * min(dz, len(np.unique(problem.owner[rows]))) > _RATIONAL_ENTRIES:
        return None
    try:
        proof = exact_farkas(exact_rows_of(problem.gather(rows)), lam[rows], max_pivots=_RATIONAL_PIVOTS)
    except RuntimeError:  # too many exchanges, or no time left
        return None
    if proof is None:
        return None
    full = np.zeros(problem.m)
    full[rows] = [float(value) for value in proof.multipliers]
    return farkas_certificate(problem, full, "rationals", rows[proof.rows])
