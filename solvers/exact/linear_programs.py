"""Linear programs over the rationals: feasibility of ``M w >= level``, and least l1 or linf norms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from attsvm.solvers.arrays import FloatArray, require_choice
from attsvm.solvers.deadline import require_time
from attsvm.solvers.exact.rows import ExactFarkas, ExactRows, rational, to_float

if TYPE_CHECKING:
    from flint import fmpq, fmpq_mat, fmpz_mat

__all__ = [
    "PRIMES",
    "ExactPolyhedral",
    "Vertex",
    "exact_polyhedral",
    "guess_by_floats",
    "independent_rows",
    "pivot_columns",
    "row_sizes",
    "solve_inequalities",
]


def row_sizes(matrix: fmpz_mat) -> list[int]:
    """A power of two at least as large as the entries of each row (1 for a zero row).

    Examples
    --------
    >>> from flint import fmpz_mat
    >>> from attsvm.solvers.exact.linear_programs import row_sizes
    >>> row_sizes(fmpz_mat([[3, -9], [0, 0]]))
    [16, 1]
    """
    return [1 << max((int(x).bit_length() for x in row), default=0) for row in matrix.tolist()]


def guess_by_floats(
    matrix: fmpz_mat, levels: Sequence[fmpq], equality: Sequence[bool]
) -> tuple[list[fmpq] | None, list[int]]:
    """Maximize t subject to ``M w >= level + t`` (rows scaled to size 1, ``t <= 1``) in float64.

    Parameters
    ----------
    matrix : fmpz_mat, shape (m, N)
    levels : sequence of fmpq, length m
    equality : sequence of bool, length m

    Returns
    -------
    point : list of fmpq or None
        The float w as rationals.
    order : list of int
        Rows, those that the float solution finds tight first.

    Examples
    --------
    >>> from flint import fmpq, fmpz_mat
    >>> from attsvm.solvers.exact.linear_programs import guess_by_floats
    >>> guess_by_floats(fmpz_mat([[1], [-1], [2]]), [fmpq(1)] * 3, [False] * 3)[1][:2]
    [0, 1]
    """
    from flint import fmpq
    from scipy.optimize import linprog

    m, N = matrix.nrows(), matrix.ncols()
    sizes = row_sizes(matrix)
    scaled = np.array(
        [[to_float(fmpq(x, size)) for x in row] for row, size in zip(matrix.tolist(), sizes, strict=True)]
    ).reshape(m, N)
    right: FloatArray = np.array([to_float(level / size) for level, size in zip(levels, sizes, strict=True)])
    equal = np.asarray(equality, dtype=bool)
    if not np.isfinite(right).all() or not (~equal).any():
        return None, list(range(m))
    unequal = np.flatnonzero(~equal)
    answer = linprog(
        np.append(np.zeros(N), -1.0),
        A_ub=np.column_stack([-scaled[unequal], np.ones(len(unequal))]),
        b_ub=-right[unequal],
        A_eq=np.column_stack([scaled[equal], np.zeros(equal.sum())]) if equal.any() else None,
        b_eq=right[equal] if equal.any() else None,
        bounds=[(None, None)] * N + [(None, 1.0)],
        method="highs",
    )
    if answer.x is None:
        return None, list(range(m))
    weight = np.zeros(m)
    weight[unequal] = -answer.ineqlin.marginals
    slack = scaled @ answer.x[:N] - right
    order = np.lexsort((slack, -weight))  # by multiplier, then by slack
    return [rational(float(x)) for x in answer.x[:N]], [int(k) for k in order]


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
    >>> from attsvm.solvers.exact.linear_programs import pivot_columns
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
    >>> from attsvm.solvers.exact.linear_programs import independent_rows
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
    >>> from attsvm.solvers.exact.linear_programs import solve_inequalities
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


# Exchanges by the largest violation before the least index takes over.
_GREEDY = 200


@dataclass(frozen=True, eq=False)
class ExactPolyhedral:
    """A solution and multipliers that prove it: ``rhs . lam`` is the norm, and ``lam`` has dual norm at most 1.

    Attributes
    ----------
    matrix : fmpq_mat, shape (dx, dz)
    values : tuple of fmpq, length m
        Multipliers in norm form.
    value : fmpq
        The least norm.
    pivots : int
    """

    matrix: fmpq_mat
    values: tuple[fmpq, ...]
    value: fmpq
    pivots: int

    @cached_property
    def multipliers_float(self) -> FloatArray:
        """Multipliers rounded to float64."""
        return np.array([to_float(x) for x in self.values])


class _Tableau:
    """Rows of the linear program, a basis of them, its multipliers, and one factorization at a time."""

    def __init__(self, rows: ExactRows, largest: bool) -> None:
        dx, dz = rows.shape
        N = dx * dz
        self.m, self.columns = rows.m, N + (1 if largest else N)
        dense = [[x * b for x in rows.left[k] for b in rows.right[int(rows.owner[k])]] for k in range(rows.m)]
        self.matrix = [[*row, *([0] * (self.columns - N))] for row in dense]
        for sign in (-1, 1):
            for j in range(N):
                row = [0] * self.columns
                row[j], row[N if largest else N + j] = sign, 1
                self.matrix.append(row)
        self.levels = [*rows.levels, *([rational(0)] * (2 * N))]
        self.equality = [*rows.equality.tolist(), *([False] * (2 * N))]
        # t - W_j for all j, and t + W_j for the first (linf) or all (l1): a square basis.
        self.basis = [*range(rows.m, rows.m + N), *range(rows.m + N, rows.m + N + (1 if largest else N))]
        half, paired = rational(1) / 2, 1 if largest else N
        self.y = [half if i < paired or i >= N else rational(0) for i in range(len(self.basis))]

    @cached_property
    def whole(self) -> fmpz_mat:
        from flint import fmpz_mat

        return fmpz_mat(self.matrix)

    def vertex(self) -> fmpq_mat:
        from flint import fmpq_mat, fmpz_mat

        self.square = fmpq_mat(fmpz_mat([self.matrix[k] for k in self.basis]))
        return self.square.solve(fmpq_mat(len(self.basis), 1, [self.levels[k] for k in self.basis]))

    def weights(self, row: int) -> list[fmpq]:
        """``d`` with ``row = sum_i d_i (basic row i)``."""
        from flint import fmpq_mat

        right = fmpq_mat(len(self.basis), 1, [rational(x) for x in self.matrix[row]])
        return list(self.square.transpose().solve(right).entries())

    def missed(self, point: fmpq_mat, greedy: bool) -> tuple[int, int] | None:
        """A row that the point misses and the sign with which it enters; equalities first."""
        values = (self.whole * point).entries()
        slacks = [v - level for v, level in zip(values, self.levels, strict=True)]
        out = [k for k, s in enumerate(slacks) if s < 0 or (self.equality[k] and s != 0)]
        if not out:
            return None
        equal = [k for k in out if self.equality[k]]
        row = equal[0] if equal else min(out, key=lambda k: slacks[k]) if greedy else out[0]
        return row, 1 if slacks[row] < 0 else -1

    def exchange(self, row: int, sign: int) -> dict[int, fmpq] | None:
        """Bring a row into the basis; multipliers of a proof of infeasibility if none can leave."""
        weights = [sign * d for d in self.weights(row)]
        falling = [
            (self.y[i] / d, self.basis[i], i)
            for i, d in enumerate(weights)
            if d > 0 and not self.equality[self.basis[i]]
        ]
        if not falling:
            return {row: rational(sign)} | {k: -d for k, d in zip(self.basis, weights, strict=True) if d != 0}
        length, _, leaves = min(falling, key=lambda item: item[:2])
        self.y = [v - length * d for v, d in zip(self.y, weights, strict=True)]
        self.basis[leaves], self.y[leaves] = row, sign * length
        return None


def exact_polyhedral(rows: ExactRows, norm: str, max_pivots: int = 2000) -> ExactPolyhedral | ExactFarkas:
    """The least l1 or linf norm, exactly; an exact proof of infeasibility if no W satisfies the rows.

    Parameters
    ----------
    rows : ExactRows
    norm : {"l1", "linf"}
        Of the entries of W.
    max_pivots : int
        RuntimeError after so many exchanges of rows.

    Examples
    --------
    >>> from attsvm.solvers.exact import exact_rows
    >>> from attsvm.solvers.exact.linear_programs import exact_polyhedral
    >>> S = 1e15
    >>> best = exact_polyhedral(exact_rows([[S, 0.0], [-S, 1.0]], [[1.0]], [0, 0]), "linf")
    >>> print(best.value, best.matrix[0, 0] * 10**15)
    2 1
    """
    from flint import fmpq_mat

    require_choice("norm", norm, "l1", "linf")
    tableau = _Tableau(rows, norm == "linf")
    pivots = 0
    while True:
        point = tableau.vertex()
        entering = tableau.missed(point, pivots < _GREEDY)
        if entering is None:
            break
        require_time()
        if pivots >= max_pivots:
            raise RuntimeError(f"no exact solution within max_pivots = {max_pivots} exchanges of rows")
        proof = tableau.exchange(*entering)
        if proof is not None:
            return _checked(rows, proof)
        pivots += 1
    dx, dz = rows.shape
    W = fmpq_mat(dx, dz, [point[j, 0] for j in range(dx * dz)])
    lam = [rational(0)] * rows.m
    for k, y in zip(tableau.basis, tableau.y, strict=True):
        if k < rows.m:
            lam[k] = y / rows.scale[k]
    return _proved(rows, norm, W, lam, pivots)


def _checked(rows: ExactRows, proof: dict[int, fmpq]) -> ExactFarkas:
    """Multipliers of the integer rows as a proof on the rows as given."""
    own = {k: y / rows.scale[k] for k, y in proof.items() if k < rows.m}
    checked = rows.check_farkas(list(own.values()), list(own))
    if checked is None:
        raise ArithmeticError("an exact proof of infeasibility does not verify: this is a bug")
    return checked


def norm_of(entries: list[fmpq], norm: str) -> fmpq:
    """The l1 or linf norm of rationals."""
    sizes = [abs(x) for x in entries]
    return max(sizes) if norm == "linf" else sum(sizes, start=rational(0))


def _proved(rows: ExactRows, norm: str, W: fmpq_mat, lam: list[fmpq], pivots: int) -> ExactPolyhedral:
    """The answer, after a look at everything that makes it one."""
    value = norm_of(W.entries(), norm)
    dual = norm_of(rows.combination(lam).entries(), "l1" if norm == "linf" else "linf")
    gained = sum((r * y for r, y in zip(rows.rhs, lam, strict=True)), start=rational(0))
    signs = all(y >= 0 or e for y, e in zip(lam, rows.equality.tolist(), strict=True))
    if rows.violation(W) != 0 or dual > 1 or gained != value or not signs:
        raise ArithmeticError("the optimality conditions do not hold: this is a bug")
    return ExactPolyhedral(W, tuple(lam), value, pivots)
