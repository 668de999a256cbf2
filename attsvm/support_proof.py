"""Which rows lie on the margin of the exact least-norm solution: proved by error bounds, or decided by rationals.

Let W* be the matrix of least Frobenius norm with ``<r_k, W> >= 1`` for all rows, and W a computed one whose
certificate proves a violation of at most v and a lower bound L on ``|W*|``.

1. *Distance.* ``W / (1 - v)`` is feasible, and W* is the projection of 0 on the convex set of feasible matrices, so
   ``|W / (1 - v) - W*|^2 <= |W|^2 / (1 - v)^2 - L^2``. This bounds ``|W - W*|`` by a radius, and the margin of every
   row at W* by its computed margin within ``|r_k| radius`` and rounding. A row whose whole interval exceeds 1 is
   *beyond* the margin.
2. *Multipliers.* ``W* = sum lam_k r_k`` with ``lam >= 0``, ``lam_k = 0`` beyond the margin, ``sum lam_k = |W*|^2``.
   Let Y be any matrix and ``d`` the largest ``<r_k, Y>`` over a set A of rows. If W* were a combination of rows in A,
   then ``<W*, Y> <= |W*|^2 max(d, 0)``; and ``<W*, Y> >= <W, Y> - radius |Y|``. So
   ``<W, Y> - radius |Y| > |W*|^2 max(d, 0)`` proves that it is not: some row outside A carries a multiplier, and hence
   lies exactly on the margin. With A all rows but one this speaks of a single row. The Y tried are orthogonal to A up
   to rounding, which d measures.
3. *Rationals.* What neither settles is solved over the rationals, if it is small: `attsvm.solvers.exact`.

Docs: "Every locally optimal selection".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attsvm.solvers import Certificate, CertificateBatch, MarginProblem
from attsvm.solvers.arrays import BoolArray, FloatArray
from attsvm.solvers.certify.rounding import UNIT_ROUNDOFF, gamma
from attsvm.solvers.deadline import late
from attsvm.solvers.exact import ExactFarkas, ExactLeastNorm, exact_least_norm, exact_rows
from attsvm.solvers.margin_problem import EitherProblem, is_batch

# The bounds below are evaluated in float64 themselves; this covers their own roundings.
_SLACK = 1.0 + 1e-6
# Added to the diagonal of unit Gram matrices: dependent rows then cost a tiny residual, which is measured, no failure.
_RIDGE = 1e-13
# Below this a row norm may have lost digits to underflow.
_SAFE_NORM = 1e-140
# Entries of the Gram matrices formed at once (32 MiB), and rows of one problem up to which one is formed.
_GRAM_ELEMENTS = 1 << 22
_GRAM_ROWS = 3000
# Rows from which on the problems of a batch are proved one by one, on the rows near the margin.
_MANY_ROWS = 100
# Sizes up to which rationals are tried: about two seconds at worst.
_EXACT_ROWS, _EXACT_ENTRIES, _EXACT_PIVOTS = 250, 120_000, 200


@dataclass(frozen=True, eq=False)
class MarginBounds:
    """Where the margins at the exact solution lie; a batch has a leading axis.

    Attributes
    ----------
    margins : ndarray, shape (*batch, m)
        At the computed W; NaN without a W.
    error : ndarray, shape (*batch, m)
        The margin at W* is within this of the computed one; infinite where nothing is proved.
    radius : ndarray, shape (*batch,)
        Bound on ``|W - W*|``.
    size : ndarray, shape (*batch,)
        Upper bound on ``|W|`` and ``|W*|``.
    """

    margins: FloatArray
    error: FloatArray
    radius: FloatArray
    size: FloatArray

    @property
    def beyond(self) -> BoolArray:
        """Rows proved to lie strictly beyond the margin at W*."""
        return np.asarray(self.margins - self.error > 1.0)

    @property
    def inside(self) -> BoolArray:
        """Rows proved to be missed by W* (never one of its own)."""
        return np.asarray(self.margins + self.error < 1.0)

    def __getitem__(self, index: npt.NDArray[np.intp]) -> MarginBounds:
        """Of some problems of a batch."""
        return MarginBounds(self.margins[index], self.error[index], self.radius[index], self.size[index])

    def of_one(self, index: int, own: BoolArray) -> MarginBounds:
        """Of one problem of a batch, on the rows that it has."""
        return MarginBounds(self.margins[index, own], self.error[index, own], self.radius[index], self.size[index])


def upper_norm(certificate: Certificate | CertificateBatch) -> FloatArray:
    """Proved upper bound on the least norm: that of W, enlarged until it satisfies every row; infinite without one.

    The norm of W itself is at most ``lower_bound + (gap + gap_error) norm``, by what these two are.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, solve
    >>> found = solve(MarginProblem([[2.0]], [[1.0]], [0]))
    >>> bool(0.5 <= upper_norm(found.certificate) < 0.5 + 1e-12)
    True
    """
    violation = np.asarray(certificate.primal_violation) + np.asarray(certificate.primal_error)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        above = (np.asarray(certificate.gap) + np.asarray(certificate.gap_error)) * np.asarray(certificate.norm)
        size = np.maximum(np.asarray(certificate.lower_bound) + above, np.asarray(certificate.norm))
        enlarged = size / (1.0 - violation) * (1.0 + 16.0 * UNIT_ROUNDOFF)
    return np.asarray(np.where((violation < 0.5) & ~np.isnan(enlarged), enlarged, np.inf))


def margin_bounds(
    problem: EitherProblem, W: npt.ArrayLike, certificate: Certificate | CertificateBatch
) -> MarginBounds:
    """Margins of rows at the exact solution of least Frobenius norm that a certified W stands for (1 of the text).

    Parameters
    ----------
    problem : MarginProblem
        The rows to evaluate: those that were solved, or more.
    W : array_like, shape (*batch, dx, dz)
    certificate : Certificate
        Of W for the rows that were solved (right-hand sides 1).

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, solve
    >>> rows = MarginProblem([[2.0, 1.0], [1.0, 0.0]], [[3.0]], [0, 0])
    >>> found = solve(rows)
    >>> bounds = margin_bounds(rows, found.W, found.certificate)
    >>> bounds.beyond, bool(bounds.error.max() < 1e-6)
    (array([ True, False]), True)
    """
    (dx, dz), matrix = problem.shape, np.asarray(W, dtype=np.float64)
    size = upper_norm(certificate)
    violation = np.asarray(certificate.primal_violation) + np.asarray(certificate.primal_error)
    lower = np.asarray(certificate.lower_bound)
    with np.errstate(invalid="ignore", over="ignore"):
        excess = np.maximum(size - lower, 0.0) + 8.0 * UNIT_ROUNDOFF * size
        radius = _SLACK * (size * violation + np.sqrt(excess * (size + lower)))
        norms = problem.row_norms
        # `rounding.margin_error`: what is lost in evaluating the margins themselves.
        error = _SLACK * norms * (radius + gamma(dx + dz + 3) * size)[..., None] + 4.0 * UNIT_ROUNDOFF
    blurred = (norms <= _SAFE_NORM) & (problem.rhs != 0)  # void rows have no effect
    radius = np.where(np.isfinite(radius) & ~blurred.any(axis=-1), radius, np.inf)
    error = np.where(np.isfinite(error) & (norms > _SAFE_NORM), error, np.inf)
    return MarginBounds(problem.margins(matrix), error, radius, size)


def _unit_gram(problem: EitherProblem) -> tuple[FloatArray, FloatArray]:
    """Row norms (1 where a row is zero) and the Gram matrix of the unit rows; NaN where products leave the range."""
    norms = np.where(problem.row_norms > 0, problem.row_norms, 1.0)
    gram = problem.gram() / norms[..., :, None] / norms[..., None, :]
    inside = np.asarray(np.isfinite(gram).all(axis=(-2, -1)))[..., None, None]
    return norms, np.where(inside, gram, np.nan)  # nothing is proved from it


def _restricted(gram: FloatArray, near: BoolArray) -> FloatArray:
    """The Gram matrix on some rows, the identity on the others."""
    both = near[..., :, None] & near[..., None, :]
    out = np.where(both, gram, 0.0)
    diagonal = np.einsum("...kk->...k", out)
    diagonal += np.where(near, _RIDGE, 1.0)
    return out


def _chunks(problem: EitherProblem) -> list[slice]:
    step = max(1, _GRAM_ELEMENTS // problem.m**2)
    return [slice(start, start + step) for start in range(0, len(problem), step)]


def carries_weight_outside(
    problem: EitherProblem, bounds: MarginBounds, multipliers: FloatArray, base: BoolArray
) -> BoolArray:
    """Proved: W* is no combination of rows of ``base``, so a row outside it lies exactly on the margin (2 of the text).

    Parameters
    ----------
    problem : MarginProblem
        One problem or a batch; right-hand sides 1 where rows exist.
    bounds : MarginBounds
    multipliers : ndarray, shape (*batch, m)
        Of the solver, any scale: a guess.
    base : ndarray of bool, shape (*batch, m)

    Returns
    -------
    ndarray of bool, shape (*batch,)
        False where nothing is proved.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, solve
    >>> rows = MarginProblem(np.eye(2), [[1.0]], [0, 0])
    >>> found = solve(rows)
    >>> bounds = margin_bounds(rows, found.W, found.certificate)
    >>> bool(carries_weight_outside(rows, bounds, found.multipliers, np.array([True, False])))
    True
    """
    if not is_batch(problem):
        # Rows beyond the margin and without a multiplier play no part.
        rows = np.flatnonzero((base & ~bounds.beyond) | (multipliers > 0))
        if len(rows) > _GRAM_ROWS or not len(rows):
            return np.asarray(False)
        part = MarginBounds(bounds.margins[rows], bounds.error[rows], bounds.radius, bounds.size)
        return _outside(problem.gather(rows), part, multipliers[rows], base[rows])
    out = np.zeros(len(problem), dtype=bool)
    if problem.m > _MANY_ROWS:  # few of them are near the margin: systems of that order, one by one
        for i in range(len(problem)):
            own = np.ones(problem.m, dtype=bool) if problem.valid is None else problem.valid[i]
            part = bounds.of_one(i, own)
            out[i] = not late() and carries_weight_outside(problem[i], part, multipliers[i, own], base[i, own])
        return out
    for chunk in _chunks(problem):
        if late():
            break
        index = np.arange(len(problem))[chunk]
        out[chunk] = _outside(problem.take(index), bounds[index], multipliers[chunk], base[chunk])
    return out


@np.errstate(over="ignore", under="ignore", invalid="ignore")  # what leaves the range proves nothing
def _outside(problem: EitherProblem, bounds: MarginBounds, multipliers: FloatArray, base: BoolArray) -> BoolArray:
    norms, gram = _unit_gram(problem)
    near = base & ~bounds.beyond & (problem.row_norms > 0)
    pull = np.where(base, 0.0, np.maximum(np.nan_to_num(multipliers), 0.0) * norms)
    onto = np.where(near, _product(gram, pull), 0.0)
    # Y = the part of W that rows outside the base make up, minus its projection on the rows of the base.
    weights = pull - np.where(near, np.linalg.solve(_restricted(gram, near), onto[..., None])[..., 0], 0.0)
    values = _product(gram, weights)
    total = np.abs(weights).sum(axis=-1)
    blur = gamma(problem.m + sum(problem.shape) + 8) * _SLACK * total
    rise = np.where(near, norms * np.maximum(values + blur[..., None], 0.0), 0.0).max(axis=-1)
    length = np.sqrt(np.maximum((weights * values).sum(axis=-1), 0.0) + blur * total)
    # A problem without W has NaN or infinities: nothing is proved.
    reached = (weights * np.where(weights != 0, bounds.margins, 0.0) / norms).sum(axis=-1) - blur * bounds.size
    return np.asarray(reached > _SLACK * (bounds.radius * length + bounds.size**2 * rise))


def _product(gram: FloatArray, vector: FloatArray) -> FloatArray:
    return np.asarray(np.matmul(gram, vector[..., None])[..., 0])


def on_margin(problem: EitherProblem, bounds: MarginBounds) -> BoolArray:
    """Rows proved to lie exactly on the margin: each carries a multiplier (2 of the module's text, row by row).

    Parameters
    ----------
    problem : MarginProblem
        One problem or a batch; right-hand sides 1 where rows exist.
    bounds : MarginBounds

    Returns
    -------
    ndarray of bool, shape (*batch, m)
        False where nothing is proved, e.g. where the rows near the margin are dependent.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, solve
    >>> rows = MarginProblem([[2.0, 1.0], [1.0, 0.0]], [[3.0]], [0, 0])
    >>> found = solve(rows)
    >>> on_margin(rows, margin_bounds(rows, found.W, found.certificate))
    array([False,  True])
    """
    out = np.zeros(bounds.margins.shape, dtype=bool)
    if not is_batch(problem):
        rows = np.flatnonzero(~bounds.beyond)
        if 0 < len(rows) <= _GRAM_ROWS:
            part = MarginBounds(bounds.margins[rows], bounds.error[rows], bounds.radius, bounds.size)
            out[rows] = _each_on_margin(problem.gather(rows), part)
        return out
    if problem.m > _MANY_ROWS:
        for i in range(len(problem)):
            own = np.ones(problem.m, dtype=bool) if problem.valid is None else problem.valid[i]
            out[i, own] = on_margin(problem[i], bounds.of_one(i, own))
        return out
    for chunk in _chunks(problem):
        index = np.arange(len(problem))[chunk]
        out[chunk] = _each_on_margin(problem.take(index), bounds[index])
    return out


@np.errstate(over="ignore", under="ignore", invalid="ignore")
def _each_on_margin(problem: EitherProblem, bounds: MarginBounds) -> BoolArray:
    norms, gram = _unit_gram(problem)
    near = ~bounds.beyond & (problem.row_norms > 0)
    # Column k holds the weights of a Y with <r_k, Y> = 1 that is orthogonal to the other rows near the margin.
    weights = np.linalg.inv(_restricted(gram, near)) * near[..., :, None]
    values = gram @ weights
    total = np.abs(weights).sum(axis=-2)
    blur = gamma(problem.m + sum(problem.shape) + 8) * _SLACK * total
    others = near[..., :, None] & ~np.eye(problem.m, dtype=bool)
    rise = np.where(others, norms[..., :, None] * np.maximum(values + blur[..., None, :], 0.0), 0.0).max(axis=-2)
    own = np.einsum("...kk->...k", values) - blur
    length = np.sqrt(np.maximum((weights * values).sum(axis=-2), 0.0) + blur * total)
    size, radius = bounds.size[..., None], bounds.radius[..., None]
    margins = np.where(near, bounds.margins, 0.0) / norms
    reached = (weights * margins[..., :, None]).sum(axis=-2) - blur * size
    return np.asarray(near & (own > 0) & (reached > _SLACK * (radius * length + size**2 * rise)))


def solve_exactly(
    problem: MarginProblem, multipliers: npt.ArrayLike | None = None
) -> ExactLeastNorm | ExactFarkas | None:
    """The least Frobenius norm over the rationals, with exact support; None when the problem is too large for that.

    Parameters
    ----------
    problem : MarginProblem
        A single one.
    multipliers : array_like, shape (m,), optional
        Of a solver: where to start.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem
    >>> solve_exactly(MarginProblem([[1.0, 0.0], [1.0 + 5e-6, 1.0]], [[1.0]], [0, 0])).support
    array([ True, False])
    """
    dx, dz = problem.shape
    if problem.m > _EXACT_ROWS or problem.m * dx * dz > _EXACT_ENTRIES:
        return None
    pair = problem.rows.gather(np.arange(problem.m))
    start = None if multipliers is None else np.asarray(multipliers, dtype=np.float64)
    if start is not None and not np.isfinite(start).all():
        start = None
    rows = exact_rows(pair.exact_left(), pair.queries, pair.owner, problem.rhs, problem.equality)
    try:
        return exact_least_norm(rows, start, max_pivots=_EXACT_PIVOTS)
    except RuntimeError:  # too many exchanges
        return None
