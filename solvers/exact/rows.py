"""Rows as exact rationals: margins, violations, adjoints and proofs of infeasibility without a single rounding.

A float64 number is a rational number, so "exact" is about the numbers as given. Every row is kept as integers times one
rational scale, ``a_k = s_k A_k`` and ``b_j = t_j B_j`` with integer vectors without common factor: a row of floats is
a row of 53-bit integers whatever its magnitude, and products stay small. ``Fraction`` and integer entries (object
arrays) are accepted as well, e.g. differences of tokens that float64 cannot hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import gcd, lcm
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import BoolArray, IntArray

if TYPE_CHECKING:
    from flint import fmpq, fmpq_mat, fmpz

    Real: TypeAlias = float | int | Fraction | np.floating[Any] | fmpq | fmpz

__all__ = ["ExactFarkas", "ExactRows", "as_fractions", "exact_rows", "rational", "rational_matrix", "to_float"]


def rational(value: Real) -> fmpq:
    """A real number (float, integer, Fraction, fmpq) as ``flint.fmpq``.

    Examples
    --------
    >>> from attsvm.solvers.exact.rows import rational
    >>> print(rational(0.75))
    3/4
    """
    from flint import fmpq, fmpz

    if isinstance(value, fmpq):
        return value
    if isinstance(value, fmpz):
        return fmpq(value)
    top, bottom = value.as_integer_ratio()
    return fmpq(int(top), int(bottom))


def rational_matrix(name: str, value: npt.ArrayLike | fmpq_mat, shape: tuple[int, int] | None = None) -> fmpq_mat:
    """A finite real matrix as ``flint.fmpq_mat``.

    Examples
    --------
    >>> from attsvm.solvers.exact.rows import rational_matrix
    >>> print(rational_matrix("W", [[0.5, 2.0]]))
    [1/2, 2]
    """
    from flint import fmpq_mat

    if isinstance(value, fmpq_mat):
        got, matrix = (value.nrows(), value.ncols()), value
    else:
        array = np.asarray(value)
        if array.ndim != 2 or (array.dtype != object and not np.isfinite(array).all()):
            raise ValueError(f"{name} must be a finite matrix, got shape {array.shape}")
        got = (array.shape[0], array.shape[1])
        matrix = fmpq_mat(*got, [rational(x) for x in array.ravel()])
    if shape is not None and got != shape:
        raise ValueError(f"{name} must have shape {shape}, got {got}")
    return matrix


def as_fractions(values: Iterable[fmpq]) -> npt.NDArray[np.object_]:
    """Rationals as a one-dimensional object array of ``fractions.Fraction``.

    Examples
    --------
    >>> from attsvm.solvers.exact.rows import as_fractions, rational
    >>> as_fractions([rational(0.5)])
    array([Fraction(1, 2)], dtype=object)
    """
    items = [Fraction(int(x.p), int(x.q)) for x in values]
    out = np.empty(len(items), dtype=object)
    out[:] = items
    return out


def to_float(value: fmpq) -> float:
    """The nearest float64 (infinite beyond the range).

    Examples
    --------
    >>> from attsvm.solvers.exact.rows import rational, to_float
    >>> to_float(rational(0.1))
    0.1
    """
    try:
        return int(value.p) / int(value.q)  # Python divides integers with one rounding
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _ratio(value: Real) -> tuple[int, int]:
    number = rational(value)
    return int(number.p), int(number.q)


def _primitive(values: Sequence[Real]) -> tuple[list[int], fmpq]:
    """Integers without common factor and the positive scale that turns them back into the values."""
    from flint import fmpq

    ratios = [x.as_integer_ratio() if isinstance(x, float | int | Fraction) else _ratio(x) for x in values]
    bottom = lcm(*(q for _, q in ratios))
    whole = [p * (bottom // q) for p, q in ratios]
    common = gcd(*whole)
    if common == 0:
        return whole, fmpq(1)
    return [w // common for w in whole], fmpq(common, bottom)


@dataclass(frozen=True, eq=False)
class ExactFarkas:
    """A rational combination of rows that is exactly zero while its right-hand side is exactly positive.

    Attributes
    ----------
    rows : ndarray of int
        Rows that take part.
    values : tuple of fmpq
        Their multipliers: positive on inequality rows, nonzero on equality rows, ``rhs . y = 1``.
    m : int
        Number of rows of the problem.
    """

    rows: IntArray
    values: tuple[fmpq, ...]
    m: int

    @cached_property
    def multipliers(self) -> npt.NDArray[np.object_]:
        """All multipliers as fractions, shape (m,)."""
        out = np.full(self.m, Fraction(0), dtype=object)
        out[self.rows] = as_fractions(self.values)
        return out


@dataclass(frozen=True, eq=False)
class ExactRows:
    """Rows ``<a_k b_k^T, W>`` with right-hand sides, as integers and scales; made by `exact_rows`.

    Attributes
    ----------
    left : list of list of int, shape (m, dx)
        Primitive integer vectors along ``a_k``.
    right : list of list of int, shape (q, dz)
        Primitive integer vectors along the queries.
    owner : ndarray of int, shape (m,)
    scale : list of fmpq, length m
        Positive: row k is ``scale[k] left[k] right[owner[k]]^T``.
    rhs : list of fmpq, length m
    equality : ndarray of bool, shape (m,)
    """

    left: list[list[int]]
    right: list[list[int]]
    owner: IntArray
    scale: list[fmpq]
    rhs: list[fmpq]
    equality: BoolArray

    @property
    def m(self) -> int:
        """Number of rows."""
        return len(self.left)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape ``(dx, dz)`` of W."""
        return len(self.left[0]), len(self.right[0])

    @cached_property
    def levels(self) -> list[fmpq]:
        """Right-hand sides of the integer rows: ``rhs / scale``."""
        return [r / s for r, s in zip(self.rhs, self.scale, strict=True)]

    @cached_property
    def members(self) -> dict[int, list[int]]:
        """Rows of every query that owns some."""
        out: dict[int, list[int]] = {}
        for k, j in enumerate(self.owner.tolist()):
            out.setdefault(j, []).append(k)
        return out

    def take(self, index: Iterable[int]) -> ExactRows:
        """Some of the rows; the queries stay."""
        keep = [int(k) for k in index]
        return ExactRows(
            [self.left[k] for k in keep],
            self.right,
            self.owner[keep],
            [self.scale[k] for k in keep],
            [self.rhs[k] for k in keep],
            self.equality[keep],
        )

    def integer_margins(self, W: fmpq_mat) -> list[fmpq]:
        """Margins of the integer rows (true margins divided by ``scale``), length m."""
        from flint import fmpq, fmpz_mat

        numerator, denominator = W.numer_denom()
        keys = fmpz_mat(self.right) * numerator.transpose()
        out: list[fmpq] = [fmpq(0)] * self.m
        dx = self.shape[0]
        for j, rows in self.members.items():
            block = fmpz_mat([self.left[k] for k in rows]) * fmpz_mat(dx, 1, [keys[j, i] for i in range(dx)])
            for place, k in enumerate(rows):
                out[k] = fmpq(block[place, 0], denominator)
        return out

    def margins(self, W: npt.ArrayLike | fmpq_mat) -> list[fmpq]:
        """Exact margins ``<a_k b_k^T, W>`` of a matrix of floats or rationals, length m."""
        values = self.integer_margins(rational_matrix("W", W, self.shape))
        return [s * v for s, v in zip(self.scale, values, strict=True)]

    def slacks(self, W: npt.ArrayLike | fmpq_mat) -> list[fmpq]:
        """Exact ``margin - rhs``, length m."""
        return [v - r for v, r in zip(self.margins(W), self.rhs, strict=True)]

    def violation(self, W: npt.ArrayLike | fmpq_mat) -> fmpq:
        """Largest exact amount by which W misses a row: 0 proves that W is feasible."""
        from flint import fmpq

        worst = fmpq(0)
        for slack, equal in zip(self.slacks(W), self.equality.tolist(), strict=True):
            worst = max(worst, abs(slack) if equal else -slack)
        return worst

    def combination(self, values: Sequence[fmpq], rows: Sequence[int] | None = None) -> fmpq_mat:
        """The matrix ``sum_k y_k a_k b_k^T``, exactly.

        Parameters
        ----------
        values : sequence of fmpq
            One per row, or per row of ``rows``.
        rows : sequence of int, optional
        """
        from flint import fmpq_mat

        dx, dz = self.shape
        used = range(self.m) if rows is None else rows
        weight = fmpq_mat(1, len(used), [y * self.scale[k] for y, k in zip(values, used, strict=True)])
        numerator, denominator = weight.numer_denom()
        per_query: dict[int, list[fmpz | int]] = {}
        for place, k in enumerate(used):
            w = numerator[0, place]
            total = per_query.setdefault(int(self.owner[k]), [0] * dx)
            if w != 0:
                for i, x in enumerate(self.left[k]):
                    total[i] += w * x
        if not per_query:
            return fmpq_mat(dx, dz)
        owners = list(per_query)
        from flint import fmpz_mat

        sums = fmpz_mat([per_query[j] for j in owners]).transpose() * fmpz_mat([self.right[j] for j in owners])
        return fmpq_mat(sums) * (1 / rational(denominator))

    def check_farkas(self, values: Sequence[fmpq], rows: Sequence[int] | None = None) -> ExactFarkas | None:
        """The proof of infeasibility that these multipliers are, or None if they are none.

        Signs, ``sum_k y_k a_k b_k^T = 0`` and ``rhs . y > 0`` are checked exactly, on the data as given.
        """
        used = list(range(self.m)) if rows is None else [int(k) for k in rows]
        taken = sorted(((k, y) for k, y in zip(used, values, strict=True) if y != 0), key=lambda pair: pair[0])
        value = sum((self.rhs[k] * y for k, y in taken), start=rational(0))
        if value <= 0 or any(y < 0 and not self.equality[k] for k, y in taken):
            return None
        index, multipliers = [k for k, _ in taken], tuple(y / value for _, y in taken)
        if any(x != 0 for x in self.combination(multipliers, index).entries()):
            return None
        return ExactFarkas(np.array(index, dtype=np.int64), multipliers, self.m)


def _read(name: str, value: npt.ArrayLike) -> npt.NDArray[Any]:
    array = np.asarray(value)
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(f"{name} must be a non-empty matrix, got shape {array.shape}")
    if array.dtype != object and not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite")
    return array


def _read_owner(owner: npt.ArrayLike, m: int, q: int) -> IntArray:
    """The query of each of m rows, among q."""
    index = np.asarray(owner)
    if index.shape != (m,) or not np.issubdtype(index.dtype, np.integer) or index.min() < 0 or index.max() >= q:
        raise ValueError(f"owner must be {m} integers in [0, {q}), got shape {index.shape} and dtype {index.dtype}")
    return index.astype(np.int64)


def exact_rows(
    a: npt.ArrayLike,
    queries: npt.ArrayLike,
    owner: npt.ArrayLike,
    rhs: npt.ArrayLike | None = None,
    equality: npt.ArrayLike | None = None,
) -> ExactRows:
    """Read the rows of a margin problem as exact rationals.

    Parameters
    ----------
    a : array_like, shape (m, dx)
        Floats, or an object array of Fractions or integers.
    queries : array_like, shape (q, dz)
    owner : array_like of int, shape (m,)
    rhs : array_like, shape (m,), optional
        1 by default.
    equality : array_like of bool, shape (m,), optional

    Examples
    --------
    >>> from attsvm.solvers.exact import exact_rows
    >>> rows = exact_rows([[1e-9, 1.0], [-1e-9, 1.0]], [[1.0]], [0, 0])
    >>> print(rows.violation([[0.0], [1.0]]))
    0
    """
    arrays = {"a": _read("a", a), "queries": _read("queries", queries)}
    m = len(arrays["a"])
    index = _read_owner(owner, m, len(arrays["queries"]))
    levels = np.ones(m) if rhs is None else np.asarray(rhs)
    equal = np.zeros(m, dtype=bool) if equality is None else np.asarray(equality, dtype=bool)
    if levels.shape != (m,) or equal.shape != (m,):
        raise ValueError(f"rhs and equality must have shape ({m},), got {levels.shape} and {equal.shape}")
    if levels.dtype != object and not np.isfinite(levels).all():
        raise ValueError("rhs must be finite")
    left = [_primitive(row) for row in arrays["a"].tolist()]
    right = [_primitive(row) for row in arrays["queries"].tolist()]
    scale = [s * right[j][1] for (_, s), j in zip(left, index.tolist(), strict=True)]
    return ExactRows(
        [x for x, _ in left],
        [x for x, _ in right],
        index,
        scale,
        [rational(v) for v in levels.tolist()],
        equal,
    )
