"""Linear feasibility over the rationals: a solution of ``M w >= level``, or multipliers that prove there is none.

A basis is a set of independent rows that spans all of them; its vertex solves these rows with equality. A row e that
the vertex misses is a combination ``e = sum_i d_i i`` of basic rows. If no inequality row has ``d_i > 0`` then
``y_e = 1, y_i = -d_i`` cancels the rows and proves infeasibility (Farkas); otherwise e replaces such a row. This is the
simplex method on "maximize level . y over the cone of y >= 0 with M'y = 0", which starts feasible at y = 0 from any
basis; Bland's rule (least index in and out) makes it finite. Everything is solved exactly by FLINT; ranks are guessed
modulo one prime, which can only be too small: answers are checked by the caller against the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attsvm.solvers.deadline import require_time

if TYPE_CHECKING:
    from flint import fmpq, fmpq_mat, fmpz_mat

__all__ = ["PRIMES", "Vertex", "independent_rows", "pivot_columns", "solve_inequalities"]

# The largest primes below 2^63: the second is for the day on which the first divides a determinant.
PRIMES = (2**63 - 25, 2**63 - 165)
# Pivots by the largest violation before Bland's rule takes over.
_GREEDY_PIVOTS = 1000


@dataclass(frozen=True, eq=False)
class Vertex:
    """Outcome of `solve_inequalities`: one of the two is set, none if it gave up.

    Attributes
    ----------
    point : list of fmpq or None
        A solution w, one number per column.
    multipliers : dict of int to fmpq or None
        Nonzero multipliers of a proof of infeasibility.
    pivots : int
    """

    point: list[fmpq] | None
    multipliers: dict[int, fmpq] | None
    pivots: int


def pivot_columns(matrix: fmpz_mat, prime: int = PRIMES[0]) -> list[int]:
    """Columns that are independent (surely) and span the others (almost surely), judged modulo the prime.

    Examples
    --------
    >>> from flint import fmpz_mat
    >>> from attsvm.solvers.exact.simplex import pivot_columns
    >>> pivot_columns(fmpz_mat([[0, 1, 2, 1], [0, 2, 4, 1]]))
    [1, 3]
    """
    from flint import nmod_mat

    reduced, rank = nmod_mat(matrix, prime).rref()
    columns, pivots = matrix.ncols(), []
    start = 0
    for row in range(rank):
        start = next(j for j in range(start, columns) if int(reduced[row, j]) != 0)
        pivots.append(start)
        start += 1
    return pivots


def independent_rows(matrix: fmpz_mat, order: Sequence[int] | None = None, prime: int = PRIMES[0]) -> list[int]:
    """Rows, earliest in the order first, that are independent (surely) and span the others (almost surely).

    Examples
    --------
    >>> from flint import fmpz_mat
    >>> from attsvm.solvers.exact.simplex import independent_rows
    >>> independent_rows(fmpz_mat([[1, 2], [2, 4], [0, 1]]), order=[1, 0, 2])
    [1, 2]
    """
    from flint import fmpz_mat

    rows = range(matrix.nrows()) if order is None else order
    columns = matrix.ncols()
    turned = fmpz_mat(columns, len(rows), [matrix[k, c] for c in range(columns) for k in rows])
    return [rows[j] for j in pivot_columns(turned, prime)]


def _pick(matrix: fmpz_mat, rows: Sequence[int], columns: Sequence[int]) -> fmpz_mat:
    from flint import fmpz_mat

    return fmpz_mat(len(rows), len(columns), [matrix[r, c] for r in rows for c in columns])


def _entering(slacks: list[fmpq], equality: Sequence[bool], greedy: bool) -> int | None:
    """A row that is missed: an equality first, then the least index or the largest violation."""
    missed = [k for k, s in enumerate(slacks) if s != 0 and (equality[k] or s < 0)]
    if not missed:
        return None
    equal = [k for k in missed if equality[k]]
    if equal:
        return equal[0]
    return min(missed, key=lambda k: slacks[k]) if greedy else missed[0]


class _Basis:
    """Independent rows that span all, and the columns on which they are independent."""

    def __init__(self, matrix: fmpz_mat, equality: Sequence[bool], order: Sequence[int] | None, prime: int) -> None:
        guess = list(range(matrix.nrows())) if order is None else list(order)
        guess.sort(key=lambda k: not equality[k])  # equalities never leave, so they enter first
        self.rows = independent_rows(matrix, guess, prime)
        every = range(matrix.ncols())
        self.columns = pivot_columns(_pick(matrix, self.rows, every), prime) if self.rows else []
        self.core = _pick(matrix, range(matrix.nrows()), self.columns)

    def square(self) -> fmpq_mat:
        from flint import fmpq_mat

        return fmpq_mat(_pick(self.core, self.rows, range(len(self.columns))))

    def vertex(self, levels: Sequence[fmpq]) -> fmpq_mat:
        """The point that meets the basic rows with equality."""
        from flint import fmpq_mat

        if not self.rows:
            return fmpq_mat(0, 1)
        return self.square().solve(fmpq_mat(len(self.rows), 1, [levels[k] for k in self.rows]))

    def weights(self, row: int) -> list[fmpq]:
        """``d`` with ``row = sum_i d_i (basic row i)``."""
        from flint import fmpq_mat

        if not self.rows:
            return []
        size = len(self.columns)
        return self.square().transpose().solve(fmpq_mat(size, 1, [self.core[row, c] for c in range(size)])).entries()


def solve_inequalities(
    matrix: fmpz_mat,
    levels: Sequence[fmpq],
    equality: Sequence[bool],
    order: Sequence[int] | None = None,
    prime: int = PRIMES[0],
    max_pivots: int | None = None,
) -> Vertex:
    """A w with ``(M w)_k >= levels_k`` (``=`` where equality), or a proof that there is none.

    Parameters
    ----------
    matrix : fmpz_mat, shape (m, N)
        Integer rows.
    levels : sequence of fmpq, length m
    equality : sequence of bool, length m
    order : sequence of int, optional
        Rows in the order in which they should enter the first basis: a guess of the tight ones first saves pivots.
    prime : int
        For the guess of the rank. The point always solves the rows; the multipliers cancel them unless the rank
        modulo this prime is too small, which the caller excludes by checking them.
    max_pivots : int, optional
        Give up after so many exchanges (both answers are then None).

    Examples
    --------
    >>> from flint import fmpq, fmpz_mat
    >>> from attsvm.solvers.exact.simplex import solve_inequalities
    >>> one = fmpq(1)
    >>> proof = solve_inequalities(fmpz_mat([[2], [-1]]), [one, one], [False, False]).multipliers
    >>> {k: str(y) for k, y in proof.items()}
    {1: '1', 0: '1/2'}
    """
    from flint import fmpq, fmpq_mat

    basis = _Basis(matrix, equality, order, prime)
    right = fmpq_mat(matrix.nrows(), 1, list(levels))
    pivots, seen, greedy = 0, set(), True
    while True:
        point = basis.vertex(levels)
        slacks = (basis.core * point - right).entries()
        entering = _entering(slacks, equality, greedy)
        if entering is None:
            full = [fmpq(0)] * matrix.ncols()
            for place, c in enumerate(basis.columns):
                full[c] = point[place, 0]
            return Vertex(full, None, pivots)
        sign = 1 if slacks[entering] < 0 else -1  # an equality missed from above enters with a negative multiplier
        weights = dict(zip(basis.rows, basis.weights(entering), strict=True))
        leaving = [k for k, d in weights.items() if sign * d > 0 and not equality[k]]
        if not leaving:
            proof = {entering: fmpq(sign)} | {k: -sign * d for k, d in weights.items() if d != 0}
            return Vertex(None, proof, pivots)
        require_time()
        if pivots == max_pivots:
            return Vertex(None, None, pivots)
        basis.rows[basis.rows.index(min(leaving))] = entering
        pivots += 1
        key = frozenset(basis.rows)
        greedy = greedy and key not in seen and pivots < _GREEDY_PIVOTS
        seen.add(key)
