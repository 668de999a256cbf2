"""The least Frobenius norm over the rationals: W, multipliers, norm squared and support without rounding.

``minimize |W|_F^2 / 2`` over the rows has the optimality conditions ``W = sum_k lam_k a_k b_k^T``, ``lam_k >= 0`` on
inequality rows, every row satisfied, and ``lam_k = 0`` where a margin exceeds its right-hand side. For the set S of
rows with ``lam_k != 0`` they are a linear system with the Gram matrix ``G_SS``, which is rational. The method is the
dual active set of Goldfarb and Idnani (1983): S stays independent and its multipliers nonnegative, a missed row e
enters along ``r = G_SS^{-1} G_Se``, rows whose multiplier would turn negative leave. The dual value grows with every
full step, so in exact arithmetic it ends: with the solution or, when e is a combination of S that no row can leave,
with a Farkas proof. Started from the multipliers of a float solver it usually needs no step: one system, one check.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import BoolArray, FloatArray
from attsvm.solvers.deadline import require_time
from attsvm.solvers.exact.feasibility import rows_by_weight
from attsvm.solvers.exact.linear_programs import pivot_columns
from attsvm.solvers.exact.rows import ExactFarkas, ExactRows, as_fractions, rational, to_float

if TYPE_CHECKING:
    from flint import fmpq, fmpq_mat, fmpz

__all__ = ["ExactLeastNorm", "Gram", "exact_least_norm"]


@dataclass(frozen=True, eq=False)
class ExactLeastNorm:
    """The one W of least Frobenius norm, proved: every optimality condition holds exactly.

    Attributes
    ----------
    matrix : fmpq_mat, shape (dx, dz)
    values : tuple of fmpq, length m
        Multipliers with ``W = sum_k lam_k a_k b_k^T`` (not normalized).
    squared : fmpq
        ``|W|_F^2 = rhs . lam``.
    support : ndarray of bool, shape (m,)
        Rows whose margin is exactly the right-hand side.
    active : ndarray of bool, shape (m,)
        Rows with a nonzero multiplier. A row of the support that is not active is a tie: the multipliers given here
        do not need it.
    pivots : int
        Rows that entered or left the guess.
    """

    matrix: fmpq_mat
    values: tuple[fmpq, ...]
    squared: fmpq
    support: BoolArray
    active: BoolArray
    pivots: int

    @cached_property
    def W(self) -> npt.NDArray[np.object_]:
        """W as Fractions, shape (dx, dz)."""
        return as_fractions(self.matrix.entries()).reshape(self.matrix.nrows(), self.matrix.ncols())

    @cached_property
    def multipliers(self) -> npt.NDArray[np.object_]:
        """Multipliers as Fractions, shape (m,)."""
        return as_fractions(self.values)

    @cached_property
    def multipliers_float(self) -> FloatArray:
        """Multipliers rounded to float64."""
        return np.array([to_float(x) for x in self.values])

    @property
    def norm_squared(self) -> Fraction:
        """``|W|_F^2`` as a Fraction."""
        return Fraction(int(self.squared.p), int(self.squared.q))


class Gram:
    """Inner products ``(A_j . A_k)(B_j . B_k)`` of the integer rows, computed when asked for."""

    def __init__(self, rows: ExactRows) -> None:
        from flint import fmpz_mat

        left, right = fmpz_mat(rows.left), fmpz_mat(rows.right)
        self.left, self.right = left * left.transpose(), right * right.transpose()
        self.owner = rows.owner.tolist()

    def __call__(self, j: int, k: int) -> fmpz:
        """The inner product of two integer rows."""
        return self.left[j, k] * self.right[self.owner[j], self.owner[k]]

    def block(self, rows: Sequence[int]) -> list[fmpz]:
        """The Gram matrix of these rows, row by row."""
        return [self(j, k) for j in rows for k in rows]


@dataclass(eq=False)
class _State:
    """Independent active rows, their multipliers (of the integer rows) and how many exchanges were made."""

    rows: ExactRows
    gram: Gram
    active: list[int]
    lam: dict[int, fmpq]
    pivots: int = 0

    def solve(self, right: Sequence[fmpq] | Sequence[fmpz]) -> list[fmpq]:
        """``G_SS^{-1}`` times a vector."""
        from flint import fmpq_mat

        size = len(self.active)
        if size == 0:
            return []
        return fmpq_mat(size, size, self.gram.block(self.active)).solve(fmpq_mat(size, 1, list(right))).entries()

    def fit(self) -> None:
        """Multipliers that put the active rows at their right-hand sides; rows with negative ones leave."""
        while True:
            require_time()
            values = self.solve([self.rows.levels[k] for k in self.active])
            wrong = [k for k, v in zip(self.active, values, strict=True) if v < 0 and not self.rows.equality[k]]
            if not wrong:
                self.lam = dict(zip(self.active, values, strict=True))
                return
            self.active = [k for k in self.active if k not in set(wrong)]
            self.pivots += len(wrong)

    def multipliers(self) -> list[fmpq]:
        """Multipliers of the rows as given, length m."""
        out = [rational(0)] * self.rows.m
        for k, v in self.lam.items():
            out[k] = v / self.rows.scale[k]
        return out


def _first_active(rows: ExactRows, gram: Gram, multipliers: npt.ArrayLike | None) -> list[int]:
    """Independent rows among the equalities and those with positive float multipliers, heaviest first."""
    from flint import fmpz_mat

    chosen = [int(k) for k in np.flatnonzero(rows.equality)]
    if multipliers is not None:
        order, support = rows_by_weight(rows, multipliers)
        kept = set(support)
        chosen += [k for k in order if k in kept and not rows.equality[k]]
    if not chosen:
        return []
    # Pivot columns of a symmetric matrix index a nonsingular principal block of full rank.
    return [chosen[i] for i in pivot_columns(fmpz_mat(len(chosen), len(chosen), gram.block(chosen)))]


def _most_missed(rows: ExactRows, slacks: list[fmpq]) -> tuple[int, int] | None:
    """The row that is missed most for its size and the sign with which it enters; equalities first."""
    equal = [k for k in np.flatnonzero(rows.equality) if slacks[k] != 0]
    if equal:
        return int(equal[0]), 1 if slacks[equal[0]] < 0 else -1
    missed = [k for k, s in enumerate(slacks) if s < 0 and not rows.equality[k]]
    return (min(missed, key=lambda k: slacks[k]), 1) if missed else None


def _proved(rows: ExactRows, multipliers: dict[int, fmpq]) -> ExactFarkas:
    checked = rows.check_farkas([y / rows.scale[k] for k, y in multipliers.items()], list(multipliers))
    if checked is None:
        raise ArithmeticError("an exact proof of infeasibility does not verify: this is a bug")
    return checked


def _enter(state: _State, e: int, sign: int, missing: fmpq) -> ExactFarkas | None:
    """Bring row e to its right-hand side, ``missing > 0`` away; a proof of infeasibility when that is impossible."""
    rows, gram = state.rows, state.gram
    gained = rational(0)  # multiplier of e, times its sign
    while True:
        direction = [sign * d for d in state.solve([gram(k, e) for k in state.active])]
        moves = dict(zip(state.active, direction, strict=True))
        curvature = gram(e, e) - sum((sign * d * gram(k, e) for k, d in moves.items()), start=rational(0))
        # A full step brings the row home; a multiplier that falls to 0 before leaves.
        ends = [(missing / curvature, e)] if curvature > 0 else []
        ends += [(state.lam[k] / d, k) for k, d in moves.items() if d > 0 and not rows.equality[k]]
        if not ends:
            return _proved(rows, {e: rational(sign)} | {k: -d for k, d in moves.items()})
        length, stop = min(ends, key=lambda end: (end[0], end[1] != e, end[1]))
        gained += length
        missing -= length * curvature
        for k, d in moves.items():
            state.lam[k] -= length * d
        state.pivots += 1
        if stop == e:
            state.active.append(e)
            state.lam[e] = sign * gained
            return None
        state.active.remove(stop)
        del state.lam[stop]


def exact_least_norm(
    rows: ExactRows, multipliers: npt.ArrayLike | None = None, max_pivots: int = 1000
) -> ExactLeastNorm | ExactFarkas:
    """The least Frobenius norm, exactly; an exact proof of infeasibility if no W satisfies the rows.

    Parameters
    ----------
    rows : ExactRows
    multipliers : array_like, shape (m,), optional
        Of a float solver: their support is the first guess. Without them the method starts from the equalities.
    max_pivots : int
        RuntimeError after so many exchanges of rows.

    Examples
    --------
    >>> from attsvm.solvers.exact import exact_least_norm, exact_rows
    >>> best = exact_least_norm(exact_rows([[2.0, 1.0], [1.0, 0.0]], [[3.0]], [0, 0]))
    >>> best.norm_squared, best.W.ravel(), best.support
    (Fraction(1, 9), array([Fraction(1, 3), Fraction(0, 1)], dtype=object), array([False,  True]))
    """
    gram = Gram(rows)
    state = _State(rows, gram, _first_active(rows, gram, multipliers), {})
    state.fit()
    while True:
        values = state.multipliers()
        W = rows.combination(values)
        margins = rows.integer_margins(W)
        slacks = [v - level for v, level in zip(margins, rows.levels, strict=True)]
        missed = _most_missed(rows, slacks)
        if missed is None:
            break
        require_time()
        if state.pivots >= max_pivots:
            raise RuntimeError(f"no exact solution within max_pivots = {max_pivots} exchanges of rows")
        proof = _enter(state, *missed, abs(slacks[missed[0]]))
        if proof is not None:
            return proof
    support = np.array([s == 0 for s in slacks])
    active = np.array([v != 0 for v in values])
    squared = sum((r * v for r, v in zip(rows.rhs, values, strict=True)), start=rational(0))
    if not bool(support[active].all()) or any(v < 0 for v, e in zip(values, rows.equality, strict=True) if not e):
        raise ArithmeticError("the optimality conditions do not hold: this is a bug")
    return ExactLeastNorm(W, tuple(values), squared, support, active, state.pivots)
