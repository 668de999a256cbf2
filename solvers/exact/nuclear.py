"""Rigorous enclosures of all singular values of a rational matrix, to any number of bits.

Singular values are irrational, so they are enclosed. For A with n >= r columns and any invertible V (r, r), with
``B = A V``, ``s_j`` the column norms of B in falling order, f the Frobenius norm of the off-diagonal part of ``B'B``
and ``||V'V - I||_F <= q < 1``:

    sqrt(max(0, s_i^2 - f)) / sqrt(1 + q)  <=  sigma_i(A)  <=  sqrt(s_i^2 + f) / sqrt(1 - q).

Proof: ``|lambda_i(B'B) - s_i^2| <= f`` (Weyl), and ``sigma_i(A) = sigma_i(B V^{-1})`` lies between
``sigma_i(B) / sigma_max(V)`` and ``sigma_i(B) / sigma_min(V)``, where ``sigma(V)^2`` lies in ``[1 - q, 1 + q]``. V is
found without care (float singular vectors, orthogonalized and turned by one-sided Jacobi sweeps, which converge
quadratically also for clusters); s, f and q are computed in ball arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray, require_number
from attsvm.solvers.exact.rows import ExactRows, rational, rational_matrix, to_float

if TYPE_CHECKING:
    from flint import arb, arb_mat, fmpq, fmpq_mat

__all__ = ["NuclearEnclosure", "float_bounds", "nearest", "nuclear_enclosure", "repair", "singular_values"]

_SWEEPS = 8


def nearest(matrix: fmpq_mat) -> FloatArray:
    """Every entry rounded to the nearest float64.

    Examples
    --------
    >>> from flint import fmpq, fmpq_mat
    >>> from attsvm.solvers.exact import nearest
    >>> nearest(fmpq_mat(1, 2, [fmpq(1, 3), fmpq(2)]))
    array([[0.33333333, 2.        ]])
    """
    return np.array([to_float(x) for x in matrix.entries()]).reshape(matrix.nrows(), matrix.ncols())


def _power_near(matrix: fmpq_mat) -> fmpq:
    """A power of two near the largest entry, 1 for the zero matrix."""
    from flint import fmpq

    sizes = [int(x.p).bit_length() - int(x.q).bit_length() for x in matrix.entries() if x != 0]
    exponent = max(sizes, default=0)
    return fmpq(2**exponent) if exponent >= 0 else fmpq(1, 2**-exponent)


def _orthonormal_start(matrix: fmpq_mat) -> arb_mat:
    """Right singular vectors in float64, orthonormal to working precision (Newton-Schulz)."""
    from flint import arb_mat

    floats = nearest(matrix)
    r = matrix.ncols()
    V = arb_mat(r, r, [float(x) for x in np.linalg.svd(floats)[2].T.ravel()])
    three = arb_mat(r, r, [3 if i == j else 0 for i in range(r) for j in range(r)])
    for _ in range(4):
        V = (V * (three - V.transpose() * V) * 0.5).mid()
    return V


def _turn(x: list[arb], y: list[arb], c: arb, s: arb) -> tuple[list[arb], list[arb]]:
    return [(c * p - s * q).mid() for p, q in zip(x, y, strict=True)], [
        (s * p + c * q).mid() for p, q in zip(x, y, strict=True)
    ]


def _jacobi(matrix: fmpq_mat, V: arb_mat, bits: int) -> arb_mat:
    """V turned until the columns of ``A V`` are orthogonal to about the working precision. Not rigorous."""
    from flint import arb, arb_mat

    small = arb(2) ** (-bits + 16)
    r = V.ncols()
    columns = [list(c) for c in (arb_mat(matrix) * V).mid().transpose().tolist()]
    frame = [list(c) for c in V.transpose().tolist()]
    for _ in range(_SWEEPS):
        turned = False
        total = sum((x * x for c in columns for x in c), start=arb(0)).mid()
        for i in range(r):
            for j in range(i + 1, r):
                inner = sum((x * y for x, y in zip(columns[i], columns[j], strict=True)), start=arb(0)).mid()
                if not abs(inner) > small * total:
                    continue
                turned = True
                left, right = (sum((x * x for x in columns[k]), start=arb(0)).mid() for k in (i, j))
                slope = (right - left) / (2 * inner)
                t = 1 / (abs(slope) + (1 + slope * slope).sqrt())
                t = t if slope > 0 else -t
                c = (1 / (1 + t * t).sqrt()).mid()
                s = (t * c).mid()
                columns[i], columns[j] = _turn(columns[i], columns[j], c, s)
                frame[i], frame[j] = _turn(frame[i], frame[j], c, s)
        if not turned:
            break
    return arb_mat(frame).transpose()


def _norm_above(values: list[arb]) -> arb:
    """Upper bound of the Euclidean norm of numbers in these balls."""
    from flint import arb

    return sum((x.abs_upper() * x.abs_upper() for x in values), start=arb(0)).upper().sqrt().upper()


def singular_values(matrix: fmpq_mat, bits: int = 192) -> list[arb]:
    """Balls that contain the singular values of a rational matrix, in falling order.

    Parameters
    ----------
    matrix : fmpq_mat, shape (m, n)
    bits : int
        Working precision; the balls have radius about ``2^-bits`` relative to the largest value, a singular value 0
        is enclosed to the square root of that.

    Returns
    -------
    list of arb, length min(m, n)

    Examples
    --------
    >>> from flint import fmpq_mat
    >>> from attsvm.solvers.exact.nuclear import singular_values
    >>> large, small = singular_values(fmpq_mat([[1, 1], [1, 0]]))  # the golden ratio and its inverse
    >>> (large - small).contains(1), float(large.rad()) < 1e-55
    (True, True)
    """
    from flint import arb, arb_mat, ctx

    tall = matrix if matrix.nrows() >= matrix.ncols() else matrix.transpose()
    r = tall.ncols()
    if all(x == 0 for x in tall.entries()):
        return [arb(0)] * r
    unit = _power_near(tall)
    scaled = tall * (1 / unit)
    with ctx.workprec(bits):  # restores the caller's precision
        V = _jacobi(scaled, _orthonormal_start(scaled), bits)
        B = arb_mat(scaled) * V  # from here on balls: V is a matrix of exact numbers
        gram, frame = B.transpose() * B, V.transpose() * V
        squares = sorted((gram[i, i].mid() for i in range(r)), reverse=True)
        # Sorting midpoints moves no sorted value by more than the largest radius.
        blur = max((gram[i, i].rad() for i in range(r)), key=float)
        off = (_norm_above([gram[i, j] for i in range(r) for j in range(r) if i != j]) + blur).upper()
        defect = _norm_above([frame[i, j] - int(i == j) for i in range(r) for j in range(r)])
        if not defect < 1:
            raise ArithmeticError("no orthonormal frame was found for the singular values")
        out = []
        for square in squares:
            low = (square - off).lower()
            bottom = (low / (1 + defect)).lower().sqrt().lower() if low > 0 else arb(0)
            top = ((square + off).upper() / (1 - defect)).upper().sqrt().upper()
            out.append(bottom.union(top) * arb(unit))
    return out


def float_bounds(value: arb) -> tuple[float, float]:
    """Lower and upper float64 bounds of a ball.

    Examples
    --------
    >>> from flint import arb
    >>> from attsvm.solvers.exact.nuclear import float_bounds
    >>> low, high = float_bounds(arb(1) / 3)
    >>> low < 1 / 3 < high
    True
    """
    ends: FloatArray = np.array([float(value.lower()), float(value.upper())])
    return float(np.nextafter(ends[0], -np.inf)), float(np.nextafter(ends[1], np.inf))


@dataclass(frozen=True, eq=False)
class NuclearEnclosure:
    """Rigorous float64 bounds; each pair is (lower, upper).

    Attributes
    ----------
    violation : Fraction
        Exact violation of the W that was given, before it was repaired.
    norm : tuple of float
        ``||W||_*`` of the repaired, exactly feasible W: upper end bounds the optimal norm from above.
    lower_bound : float
        ``rhs . lam / ||D||_op`` rounded down: no feasible W has a smaller norm.
    gap : float
        Upper bound of ``||W||_* - rhs . lam / ||D||_op``.
    singular_values : tuple of ndarray
        Of the repaired W.
    dual_singular_values : tuple of ndarray
        Of ``D / ||D||_op``; the first is 1.
    tails : ndarray, shape (min(dx, dz) + 1,)
        Entry r: upper bound of ``sum_{i > r} sigma_i(W*)`` for every optimal W*; infinite where nothing is proved.
    resolutions : ndarray, shape (min(dx, dz) + 1,)
        Entry r: upper bound of ``sigma_{r+1}(W*)`` for every optimal W*.
    """

    violation: Fraction
    norm: tuple[float, float]
    lower_bound: float
    gap: float
    singular_values: tuple[FloatArray, FloatArray]
    dual_singular_values: tuple[FloatArray, FloatArray]
    tails: FloatArray
    resolutions: FloatArray

    @property
    def relative_gap(self) -> float:
        """Upper bound of the gap divided by the optimal norm; infinite if no positive lower bound is proved."""
        return float(np.nextafter(self.gap / self.lower_bound, np.inf)) if self.lower_bound > 0 else float("inf")

    def rank(self, delta: float) -> int:
        """Least r for which it is proved that every optimal W has at most r singular values above delta.

        Parameters
        ----------
        delta : float
            Absolute; not negative.
        """
        require_number("delta", delta, "a number >= 0", 0.0, ends="[]")
        return int(np.flatnonzero(self.resolutions <= delta)[0])


def _scaled(rows: ExactRows, W: fmpq_mat) -> fmpq_mat | None:
    """W enlarged until every row holds, when all right-hand sides are positive and all margins too."""
    if rows.equality.any() or any(r <= 0 for r in rows.rhs):
        return None
    margins = rows.margins(W)
    if any(v <= 0 for v in margins):
        return None
    return W * max(r / v for r, v in zip(rows.rhs, margins, strict=True))


def _projected(rows: ExactRows, W: fmpq_mat) -> fmpq_mat | None:
    """The feasible matrix nearest to W in the Frobenius norm: W plus the least C that satisfies the rows shifted by it.

    Holding close rows at their right-hand sides instead would be cheaper and wrong: two rows that agree to 1e-11 move W
    by 60 before both of their slacks of 1e-9 are gone.
    """
    from attsvm.solvers.exact.least_norm import ExactLeastNorm, exact_least_norm

    slacks = rows.slacks(W)
    shifted = replace(rows, rhs=[-s for s in slacks])
    missed = np.array([float(s < 0) for s in slacks])
    try:
        change = exact_least_norm(shifted, missed)
    except RuntimeError:  # too many exchanges of rows
        return None
    return W + change.matrix if isinstance(change, ExactLeastNorm) else None


def repair(rows: ExactRows, W: npt.ArrayLike | fmpq_mat) -> fmpq_mat | None:
    """An exactly feasible rational matrix near W: scaled or projected; None if rows conflict or steps run out.

    Examples
    --------
    >>> from attsvm.solvers.exact import exact_rows, repair
    >>> rows = exact_rows([[3.0], [1.0]], [[1.0], [1.0]], [0, 1], [1.0, 0.0], [True, False])
    >>> print(repair(rows, [[0.3333]]))
    [1/3]
    """
    matrix = rational_matrix("W", W, rows.shape)
    if rows.violation(matrix) == 0:
        return matrix
    scaled, projected = _scaled(rows, matrix), _projected(rows, matrix)
    if scaled is None or projected is None:
        return projected if scaled is None else scaled
    moved = [sum(to_float(abs(x)) for x in (candidate - matrix).entries()) for candidate in (scaled, projected)]
    return scaled if moved[0] <= moved[1] else projected


def _bounds(values: list[arb]) -> tuple[FloatArray, FloatArray]:
    ends = [float_bounds(v) for v in values]
    return np.array([max(low, 0.0) for low, _ in ends]), np.array([high for _, high in ends])


def _shares(gap: arb, dual: list[arb]) -> tuple[FloatArray, FloatArray]:
    """Tails and resolutions for r = 0, ..., len(dual); dual holds the balls ``sigma_i(D) / ||D||_op``."""
    from flint import arb

    tails, resolutions, total = [], [], arb(0)
    for value in dual:
        room = (1 - value).lower()
        room = room if room > 0 else arb(0)
        total = (total + room).lower()
        tails.append(float_bounds(gap.upper() / room)[1] if room > 0 else np.inf)
        resolutions.append(float_bounds(gap.upper() / total)[1] if total > 0 else np.inf)
    return np.array([*tails, 0.0]), np.array([*resolutions, 0.0])


def nuclear_enclosure(
    rows: ExactRows, W: npt.ArrayLike | fmpq_mat, multipliers: npt.ArrayLike, bits: int = 192
) -> NuclearEnclosure | None:
    """Everything that (W, multipliers) proves about the nuclear-norm problem, rigorously.

    Parameters
    ----------
    rows : ExactRows
    W : array_like, shape (dx, dz)
        Floats or rationals.
    multipliers : array_like, shape (m,)
        Floats or rationals, in any scale; negative ones of inequality rows count as 0.
    bits : int
        Precision of the enclosures.

    Returns
    -------
    NuclearEnclosure or None
        None when W cannot be repaired to satisfy the rows exactly.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.exact import exact_rows, nuclear_enclosure
    >>> rows = exact_rows(np.diag([1.0, 1e7]), np.eye(2), [0, 1])
    >>> proved = nuclear_enclosure(rows, np.diag([1.0, 1e-7]), [1.0, 1e-7])
    >>> proved.rank(1e-3), proved.rank(1e-8)  # W = diag(1, 1e-7) is optimal: rank 1 holds only above 1e-7
    (1, 2)
    """
    from flint import ctx

    lam: list[fmpq] = [rational(y) for y in np.asarray(multipliers).tolist()]
    if len(lam) != rows.m:
        raise ValueError(f"multipliers must have shape ({rows.m},), got {np.shape(multipliers)}")
    lam = [y if e or y > 0 else rational(0) for y, e in zip(lam, rows.equality.tolist(), strict=True)]
    given = rational_matrix("W", W, rows.shape)
    feasible = repair(rows, given)
    if feasible is None:
        return None
    objective = sum((r * y for r, y in zip(rows.rhs, lam, strict=True)), start=rational(0))
    primal, dual = singular_values(feasible, bits), singular_values(rows.combination(lam), bits)
    violation = rows.violation(given)
    with ctx.workprec(bits):
        norm = sum(primal, start=0 * primal[0])
        if not dual[0] > 0:  # nothing but 0 is proved by D = 0 (or rhs . lam > 0 and there is no feasible W)
            lower, ratios, gap = 0 * norm, [0 * norm] * len(dual), norm
        else:
            lower = objective / dual[0]
            ratios = [1 + 0 * norm, *(d / dual[0] for d in dual[1:])]
            gap = norm - lower
        tails, resolutions = _shares(gap, ratios)
    ceiling = max(float_bounds(gap)[1], 0.0)
    return NuclearEnclosure(
        Fraction(int(violation.p), int(violation.q)),
        float_bounds(norm),
        max(float_bounds(lower)[0], 0.0),
        ceiling,
        _bounds(primal),
        _bounds(ratios),
        np.maximum(tails, 0.0),
        np.maximum(resolutions, 0.0),
    )
