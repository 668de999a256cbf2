"""The least l1 or linf norm over the rationals: a linear program, solved by the dual simplex method.

``minimize c . v`` over v = (W, t) with the rows of the problem, ``t_j - W_j >= 0`` and ``t_j + W_j >= 0``, where t is
one number for linf and one per entry for l1. At v = 0 these last rows are tight and 1/2 of each pair adds up to the
cost: a basis that is dual feasible from the start. A row that its vertex misses enters, the row whose multiplier falls
to 0 first leaves; the objective never falls, and ties are broken by the least index, so it ends: with a vertex that
satisfies everything, or with a row that nothing can leave for, which is a proof of infeasibility.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from attsvm.solvers.arrays import FloatArray, require_choice
from attsvm.solvers.deadline import require_time
from attsvm.solvers.exact.rows import ExactFarkas, ExactRows, rational, to_float

if TYPE_CHECKING:
    from flint import fmpq, fmpq_mat, fmpz_mat

__all__ = ["ExactPolyhedral", "exact_polyhedral"]

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
    >>> from attsvm.solvers.exact.polyhedral import exact_polyhedral
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
