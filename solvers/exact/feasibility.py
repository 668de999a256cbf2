"""Is there any W that satisfies the rows? Answered over the rationals, with a W or a proof that anyone can check.

Queries that are linearly independent do not interact: ``sum_k y_k a_k b_k^T = 0`` then holds query by query, and any
vectors ``W b_j`` can be asked for at once. More generally the rows fall into the connected components of the linear
dependencies between queries; each is a linear program (`attsvm.solvers.exact.linear_programs`) on the coordinates that
its queries span. What comes out is checked on the rows as given, so nothing rests on how it was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isqrt
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.exact.linear_programs import (
    PRIMES,
    Vertex,
    guess_by_floats,
    pivot_columns,
    row_sizes,
    solve_inequalities,
)
from attsvm.solvers.exact.rows import ExactFarkas, ExactRows, as_fractions, rational_matrix, to_float

if TYPE_CHECKING:
    from flint import fmpq, fmpq_mat, fmpz_mat

__all__ = ["ExactFeasibility", "exact_farkas", "exact_feasibility", "rows_by_weight"]

# A multiplier below this share of the largest (times row norms) is taken for a zero of the solver.
_NOISE = 1e-9
# Exact pivots before a float linear program is asked for a better start.
_FIRST_PIVOTS = 6
_FEW_COLUMNS = 12


@dataclass(frozen=True, eq=False)
class ExactFeasibility:
    """Exactly one of the two is set.

    Attributes
    ----------
    witness : fmpq_mat or None
        A W, shape (dx, dz), that satisfies every row exactly.
    proof : ExactFarkas or None
        That there is none.
    pivots : int
        Exchanges of the simplex method.
    """

    witness: fmpq_mat | None
    proof: ExactFarkas | None
    pivots: int = 0

    @property
    def feasible(self) -> bool:
        """Whether some W satisfies all rows."""
        return self.witness is not None

    @cached_property
    def W(self) -> npt.NDArray[np.object_]:
        """The witness as Fractions, shape (dx, dz)."""
        if self.witness is None:
            raise ValueError("the rows are infeasible: there is a proof, no W")
        return as_fractions(self.witness.entries()).reshape(self.witness.nrows(), self.witness.ncols())


@dataclass(frozen=True, eq=False)
class _Component:
    """Queries that depend on one another: their rows, a basis of them and coordinates that tell them apart."""

    rows: list[int]
    basis: list[int]
    columns: list[int]


def _connected(size: int, links: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Connected components of 0 ... size - 1."""
    group = list(range(size))  # union-find

    def root(i: int) -> int:
        while group[i] != i:
            i = group[i]
        return i

    for i, j in links:
        group[root(i)] = root(j)
    parts: dict[int, list[int]] = {}
    for j in range(size):
        parts.setdefault(root(j), []).append(j)
    return list(parts.values())


def _components(rows: ExactRows, prime: int) -> list[_Component]:
    """Connected components of the dependencies between the queries that own rows."""
    from flint import fmpz_mat, nmod_mat

    owners = list(rows.members)
    matrix = fmpz_mat([rows.right[j] for j in owners])
    reduced, rank = nmod_mat(matrix.transpose(), prime).rref()
    basis = pivot_columns(matrix.transpose(), prime)
    links = [(basis[i], j) for j in range(len(owners)) for i in range(rank) if int(reduced[i, j]) != 0]
    out = []
    chosen = set(basis)
    for part in _connected(len(owners), links):
        own = [j for j in part if j in chosen]
        columns = pivot_columns(fmpz_mat([rows.right[owners[j]] for j in own]), prime) if own else []
        out.append(_Component([k for j in part for k in rows.members[owners[j]]], [owners[j] for j in own], columns))
    return out


def _meets(matrix: fmpz_mat, point: list[fmpq], levels: list[fmpq], equality: list[bool], strictly: bool) -> bool:
    """Whether the margins at a point reach the levels, or exceed them."""
    from flint import fmpq_mat

    margins = (matrix * fmpq_mat(matrix.ncols(), 1, point)).entries()
    return all(
        v > b if strictly else v == b if e else v >= b for v, b, e in zip(margins, levels, equality, strict=True)
    )


def _solve_rows(
    matrix: fmpz_mat,
    levels: list[fmpq],
    equality: list[bool],
    order: Sequence[int] | None,
    prime: int,
    max_pivots: int | None = None,
) -> Vertex:
    """A few exact pivots; if they do not end, the guess of a float linear program and as many as it takes.

    ``max_pivots`` limits the latter; RuntimeError beyond them.
    """
    from flint import fmpq

    cone = all(level > 0 for level in levels) and not any(equality)
    # Positive levels can be changed at will: rows of one size make pivots and guesses blind to the scale of the data.
    even = [fmpq(size) for size in row_sizes(matrix)] if cone else levels
    patience = _FIRST_PIVOTS if matrix.ncols() <= _FEW_COLUMNS else 1
    vertex = solve_inequalities(matrix, even, equality, order, prime, max_pivots=patience)
    if vertex.point is None and vertex.multipliers is None:
        point, tight = guess_by_floats(matrix, even, equality)
        if point is not None and _meets(matrix, point, [fmpq(0)] * len(even) if cone else even, equality, cone):
            vertex = Vertex(point, None, vertex.pivots)
        if vertex.point is None:
            vertex = solve_inequalities(matrix, even, equality, tight, prime, max_pivots=max_pivots)
            if vertex.point is None and vertex.multipliers is None:
                raise RuntimeError(f"no answer after {max_pivots} exact exchanges")
    return _grown(vertex, matrix, levels) if cone else vertex


def _grown(vertex: Vertex, matrix: fmpz_mat, levels: list[fmpq]) -> Vertex:
    """A point at which all rows are positive, scaled until they reach their levels."""
    from flint import fmpq_mat

    if vertex.point is None:
        return vertex
    margins = (matrix * fmpq_mat(matrix.ncols(), 1, vertex.point)).entries()
    growth = max(level / v for level, v in zip(levels, margins, strict=True))
    return Vertex([growth * x for x in vertex.point], None, vertex.pivots)


def _solve_component(
    rows: ExactRows, part: _Component, order: Sequence[int], prime: int, max_pivots: int | None
) -> tuple[fmpq_mat | None, dict[int, fmpq] | None, int]:
    """``V`` of shape (dx, len(columns)) with ``a'V b[columns]`` as asked, or multipliers of the rows of a proof."""
    from flint import fmpq_mat, fmpz_mat

    dx = rows.shape[0]
    width = len(part.columns)
    right = {k: [rows.right[int(rows.owner[k])][c] for c in part.columns] for k in part.rows}
    matrix = fmpz_mat(len(part.rows), dx * width, [x * b for k in part.rows for x in rows.left[k] for b in right[k]])
    place = {k: i for i, k in enumerate(part.rows)}
    levels, equality = [rows.levels[k] for k in part.rows], [bool(rows.equality[k]) for k in part.rows]
    vertex = _solve_rows(matrix, levels, equality, [place[k] for k in order if k in place], prime, max_pivots)
    if vertex.point is not None:
        return fmpq_mat(dx, width, vertex.point), None, vertex.pivots
    assert vertex.multipliers is not None
    # Multipliers of the integer rows; those of the rows as given are smaller by their scale.
    return None, {part.rows[i]: y / rows.scale[part.rows[i]] for i, y in vertex.multipliers.items()}, vertex.pivots


def _assemble(rows: ExactRows, parts: Sequence[_Component], blocks: Sequence[fmpq_mat], prime: int) -> fmpq_mat:
    """W with ``W b_j = V b_j[columns]`` for the basis queries of every component."""
    from flint import fmpq_mat, fmpz_mat

    dx, dz = rows.shape
    basis = [j for part in parts for j in part.basis]
    W = fmpq_mat(dx, dz)
    if not basis:
        return W
    columns = pivot_columns(fmpz_mat([rows.right[j] for j in basis]), prime)
    target = fmpq_mat(len(basis), dx)
    row = 0
    for part, V in zip(parts, blocks, strict=True):
        for j in part.basis:
            image = V * fmpq_mat(len(part.columns), 1, [rows.right[j][c] for c in part.columns])
            for i in range(dx):
                target[row, i] = image[i, 0]
            row += 1
    square = fmpq_mat(len(basis), len(columns), [rows.right[j][c] for j in basis for c in columns])
    solved = square.solve(target)  # (columns, dx): W restricted to these columns, transposed
    for place, c in enumerate(columns):
        for i in range(dx):
            W[i, c] = solved[place, i]
    return W


def _decide(rows: ExactRows, order: Sequence[int], prime: int, max_pivots: int | None) -> ExactFeasibility | None:
    """Witness or proof by components, both checked; None when a rank modulo the prime was too small."""
    parts = _components(rows, prime)
    blocks: list[fmpq_mat] = []
    pivots = 0
    for part in parts:
        block, proof, steps = _solve_component(rows, part, order, prime, max_pivots)
        pivots += steps
        if proof is not None:
            farkas = rows.check_farkas(list(proof.values()), list(proof))
            return None if farkas is None else ExactFeasibility(None, farkas, pivots)
        assert block is not None
        blocks.append(block)
    W = blocks[0] if len(parts) == 1 and len(parts[0].columns) == rows.shape[1] else None
    W = _assemble(rows, parts, blocks, prime) if W is None else W
    return ExactFeasibility(W, None, pivots) if rows.violation(W) == 0 else None


def _row_sizes(rows: ExactRows) -> FloatArray:
    """Float norms of the rows, for guesses only; integers may be far beyond the range of floats."""
    from flint import fmpq

    squares = [sum(x * x for x in row) for row in rows.right]
    out = []
    for row, j, scale in zip(rows.left, rows.owner.tolist(), rows.scale, strict=True):
        root = isqrt(sum(x * x for x in row) * squares[j] << 60)
        out.append(to_float(fmpq(root, 2**30) * scale))
    return np.array(out)


def rows_by_weight(rows: ExactRows, multipliers: npt.ArrayLike) -> tuple[list[int], list[int]]:
    """Rows by falling weight of float multipliers, and those whose weight is more than noise."""
    y = np.asarray(multipliers, dtype=np.float64)
    if y.shape != (rows.m,):
        raise ValueError(f"multipliers must have shape ({rows.m},), got {y.shape}")
    weight = np.where(rows.equality, np.abs(y), y) * _row_sizes(rows)
    weight = np.where(np.isfinite(weight), weight, 0.0)
    order = [int(k) for k in np.argsort(-weight, kind="stable")]
    largest = float(weight.max())
    # A zero row weighs nothing whatever its multiplier: it stays in the support for its right-hand side.
    kept = (weight > _NOISE * largest) | ((y > 0) & (_row_sizes(rows) == 0))
    return order, [int(k) for k in np.flatnonzero(kept)]


def exact_farkas(
    rows: ExactRows, multipliers: npt.ArrayLike | None = None, max_pivots: int | None = None
) -> ExactFarkas | None:
    """An exact proof of infeasibility, started from the float multipliers of a solver; None if the rows are feasible.

    First the rows that the float proof uses, then all of them.

    Parameters
    ----------
    rows : ExactRows
    multipliers : array_like, shape (m,), optional
        Approximately nonnegative on inequality rows with ``sum_k y_k a_k b_k^T`` near zero.
    max_pivots : int, optional
        As for `exact_feasibility`.

    Examples
    --------
    >>> from attsvm.solvers.exact import exact_farkas, exact_rows
    >>> rows = exact_rows([[0.1, 0.3], [-0.1, -0.3], [1.0, 0.0]], [[1.0]], [0, 0, 0])
    >>> exact_farkas(rows, [0.4999, 0.5001, 0.0]).multipliers
    array([Fraction(1, 2), Fraction(1, 2), Fraction(0, 1)], dtype=object)
    >>> exact_farkas(exact_rows([[1.0]], [[1.0]], [0])) is None
    True
    """
    if multipliers is not None:
        _, support = rows_by_weight(rows, multipliers)
        if support and len(support) < rows.m:
            part = exact_feasibility(rows.take(support), max_pivots=max_pivots).proof
            if part is not None:
                index = np.asarray(support, dtype=np.int64)[part.rows]
                return ExactFarkas(index, part.values, rows.m)
    return exact_feasibility(rows, multipliers=multipliers, max_pivots=max_pivots).proof


def exact_feasibility(
    rows: ExactRows,
    W: npt.ArrayLike | None = None,
    multipliers: npt.ArrayLike | None = None,
    max_pivots: int | None = None,
) -> ExactFeasibility:
    """Decide exactly whether the rows can be satisfied, with a rational W or a rational proof that they cannot.

    Parameters
    ----------
    rows : ExactRows
    W : array_like, shape (dx, dz), optional
        A guess: taken as it is, or slightly enlarged, if that satisfies the rows exactly.
    multipliers : array_like, shape (m,), optional
        A guess of the tight rows (the multipliers of a solver): they enter the first basis.
    max_pivots : int, optional
        Raise RuntimeError after so many exact exchanges; as many as it takes by default.

    Examples
    --------
    >>> from attsvm.solvers.exact import exact_feasibility, exact_rows
    >>> S = 1e15
    >>> rows = exact_rows([[S, 0.0], [-S, 1.0]], [[1.0]], [0, 0])
    >>> answer = exact_feasibility(rows)
    >>> answer.feasible, str(rows.violation(answer.W))
    (True, '0')
    """
    if W is not None:
        given = rational_matrix("W", W, rows.shape)
        for growth in (0, -40, -20):
            matrix = given if growth == 0 else given * (1 + rational_power(growth))
            if rows.violation(matrix) == 0:
                return ExactFeasibility(matrix, None)
    order = range(rows.m) if multipliers is None else rows_by_weight(rows, multipliers)[0]
    for prime in PRIMES:
        decided = _decide(rows, order, prime, max_pivots)
        if decided is not None:
            return decided
    raise ArithmeticError("two primes divide minors of these rows: the exact answer could not be verified")


def rational_power(exponent: int) -> fmpq:
    """``2^exponent`` as a rational."""
    from flint import fmpq

    return fmpq(2**exponent) if exponent >= 0 else fmpq(1, 2**-exponent)
