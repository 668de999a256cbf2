"""Margin problems as cvxpy programs: rows that hold, or hold up to a slack, the objective, and the multipliers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.solvers.margin_problem import MarginProblem
from attsvm.solvers.norms import Norm
from attsvm.solvers.penalty import Penalty

if TYPE_CHECKING:
    import cvxpy

    Expression: TypeAlias = cvxpy.Expression | FloatArray

__all__ = ["Stated", "at_least", "equal_to", "in_norm_form", "multipliers_of", "objective"]


class Stated(NamedTuple):
    """A constraint of a program and the rows that it holds.

    Attributes
    ----------
    constraint : cvxpy.Constraint
    rows : ndarray of int
        Where the multipliers of its rows go.
    sign : float
        Of its dual value in these multipliers. cvxpy's Lagrangian adds ``nu (left - right)`` for an equality and
        ``nu (smaller - larger)`` with ``nu >= 0`` for an inequality.
    """

    constraint: cvxpy.Constraint
    rows: IntArray
    sign: float


def at_least(values: Expression, sides: FloatArray, rows: IntArray, slacks: Expression | None = None) -> list[Stated]:
    """``values >= sides``, or with slacks ``values >= sides - slacks``; nothing for no rows.

    Examples
    --------
    >>> import cvxpy as cp
    >>> import numpy as np
    >>> from attsvm.solvers.margin_program import at_least
    >>> W = cp.Variable((1, 1))
    >>> [held] = at_least(2.0 * cp.vec(W, order="C"), np.ones(1), np.array([0]))
    >>> round(float(cp.Problem(cp.Minimize(cp.norm1(W)), [held.constraint]).solve(solver="CLARABEL")), 6)
    0.5
    """
    if not len(rows):
        return []
    return [Stated(values >= (sides if slacks is None else sides - slacks), rows, 1.0)]


def equal_to(values: Expression, sides: FloatArray, rows: IntArray, slacks: Expression | None = None) -> list[Stated]:
    """``values = sides``, or with slacks ``|values - sides| <= slacks``; nothing for no rows.

    Examples
    --------
    >>> import cvxpy as cp
    >>> import numpy as np
    >>> from attsvm.solvers.margin_program import equal_to
    >>> x = cp.Variable(2)
    >>> len(equal_to(x, np.ones(2), np.arange(2))), len(equal_to(x, np.ones(2), np.arange(2), cp.Variable(2)))
    (1, 2)
    """
    if not len(rows):
        return []
    if slacks is None:
        return [Stated(values == sides, rows, -1.0)]
    return [Stated(values >= sides - slacks, rows, 1.0), Stated(values <= sides + slacks, rows, -1.0)]


def objective(
    W: Expression, norm: Norm, penalty: Penalty | None = None, slacks: Expression | None = None
) -> cvxpy.Expression:
    """The norm of W, or half its square for the Frobenius norm, plus the penalty of the slacks.

    Examples
    --------
    >>> import cvxpy as cp
    >>> from attsvm.solvers import get_norm
    >>> from attsvm.solvers.margin_program import objective
    >>> W = cp.Variable((2, 2), value=[[3.0, 0.0], [0.0, 4.0]])
    >>> [round(float(objective(W, get_norm(name)).value), 6) for name in ("frobenius", "nuclear")]
    [12.5, 7.0]
    """
    import cvxpy as cp

    if penalty is None:
        return norm.expression(W)
    cost = cp.sum(slacks) if penalty.loss == "hinge" else cp.sum_squares(slacks)
    return norm.expression(W) + penalty.C * cost


def multipliers_of(stated: Iterable[Stated], duals: Mapping[int, FloatArray], m: int) -> FloatArray:
    """Dual values of the constraints as one multiplier per row, shape (m,).

    Parameters
    ----------
    stated : iterable of Stated
    duals : mapping
        ``problem.solution.dual_vars`` of the program; a constraint that it lacks has multipliers 0.
    m : int
    """
    lam = np.zeros(m)
    for part in stated:
        if part.constraint.id in duals:
            lam[part.rows] += part.sign * np.ravel(duals[part.constraint.id])
    return lam


def in_norm_form(norm: Norm, problem: MarginProblem, lam: FloatArray) -> FloatArray:
    """Multipliers of a hard margin divided by the dual norm of ``W(lam)``, or 0 where that is 0 or not finite.

    Whatever increasing function of the norm was minimized, ``N*(W(lam)) = 1`` then.
    """
    size = norm.dual(problem.adjoint(lam)) if np.isfinite(lam).all() else np.inf
    return lam / size if 0 < size < np.inf else np.zeros(problem.m)
