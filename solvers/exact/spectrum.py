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

from typing import TYPE_CHECKING

import numpy as np

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.exact.rows import to_float

if TYPE_CHECKING:
    from flint import arb, arb_mat, fmpq, fmpq_mat

__all__ = ["float_bounds", "nearest", "singular_values"]

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
    >>> from attsvm.solvers.exact.spectrum import singular_values
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
    >>> from attsvm.solvers.exact.spectrum import float_bounds
    >>> low, high = float_bounds(arb(1) / 3)
    >>> low < 1 / 3 < high
    True
    """
    ends: FloatArray = np.array([float(value.lower()), float(value.upper())])
    return float(np.nextafter(ends[0], -np.inf)), float(np.nextafter(ends[1], np.inf))
