"""What it costs to make W feasible: an upper bound on the least norm from a matrix that misses its rows by a little.

*Scaling.* Where every row asks for something positive (and none is an equality), ``W / (1 - v)`` is feasible when no
row is missed by more than the share v of what it asks for. The norm grows by the factor ``1 / (1 - v)``.

*Correction.* In general, let H be the equality rows and the inequality rows that are missed or nearly so, each divided
by its norm, with smallest singular value s > 0: they are independent. Some matrix C with
``|C|_F <= |what they miss| / s`` puts the rows of H right, and the other rows, whose slack exceeds
``|row_k| |C|_F``, are still satisfied by ``W + C``. Its nuclear norm is larger by at most ``sqrt(min(dx, dz)) |C|_F``.

What rows miss is known up to rounding, and ``s^2`` is bounded from below by the least eigenvalue of the Gram matrix of
H minus the errors of its entries and of the decomposition (`least_eigenvalue`): nothing here is to first order.
Where H is dependent nothing is proved and the price is infinite; `attsvm.solvers.exact.repair` may know more.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.solvers.arrays import BoolArray, FloatArray
from attsvm.solvers.problem import MarginProblem
from attsvm.solvers.rounding import gamma
from attsvm.solvers.spectral_bounds import least_eigenvalue

__all__ = ["correction_bound", "feasibility_price"]

# For the roundings in the evaluation of the bounds.
_SLACK = 1.0 + 1e-6
# Inequality rows nearer than this to their right-hand side (relative to it and to 1) are held there by the correction.
_NEAR = 1e-6
# Rows that join the correction because it would push them too far, at most so often.
_ROUNDS = 3
# Held rows up to which a Gram matrix is decomposed.
_HELD_ROWS = 400


def feasibility_price(
    problem: MarginProblem, W: FloatArray, slack: FloatArray, violation: Any, error: Any, value: Any
) -> Any:
    """By how much the nuclear norm grows at most when W is made feasible; infinite where nothing is proved.

    Parameters
    ----------
    problem : MarginProblem
    W : ndarray, shape (*batch, dx, dz)
    slack : ndarray, shape (*batch, m)
        Computed ``margin - rhs``.
    violation, error : float or ndarray of shape (*batch,)
        Largest miss relative to ``max(1, |rhs|)``, and what rounding may hide from it.
    value : float or ndarray of shape (*batch,)
        Upper bound of the norm of W.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.feasible import feasibility_price
    >>> rows = MarginProblem([[1.0]], [[1.0]], [0])
    >>> price = feasibility_price(rows, np.array([[0.5]]), np.array([-0.5]), 0.5, 0.0, 0.5)
    >>> bool(0.5 <= price < 0.5 + 1e-5)
    True
    """
    if problem.is_plain:
        return _scaling(violation + error, value)
    if not problem.batch:
        return _price(problem, W, slack, float(error), float(value))
    return np.array([
        _price(
            problem.plain_rows(i), W[i], slack[i], float(error[i]), float(value[i]),
        )
        for i in range(len(slack))
    ])  # fmt: skip


def _scaling(share: Any, value: Any) -> Any:
    """``value (1 / (1 - share) - 1)``."""
    if isinstance(share, float):
        return share * value / (1.0 - share) * _SLACK if share < 1.0 else float("inf")
    small = share < 1.0
    return np.where(small, share * value / np.where(small, 1.0 - share, 1.0) * _SLACK, np.inf)


def _price(problem: MarginProblem, W: FloatArray, slack: FloatArray, error: float, value: float) -> float:
    """The price of one problem that is not plain."""
    rhs, equality = problem.rhs, problem.equality
    hidden = error * problem.allowance  # what rounding may hide from each row
    void = problem.row_norms == 0  # such a row is met by every W or by none
    if bool((void & (equality & (rhs != 0) | (rhs > 0))).any()):
        return float("inf")
    price = float("inf")
    if not bool((equality & ~void).any()) and bool((rhs[~void] > 0).all()):
        missed = np.maximum(hidden - slack, 0.0)[~void] / rhs[~void]
        price = float(_scaling(float(missed.max(initial=0.0)), value))
    if price > 1e-12 * value:  # one is enough where it is small
        distance = correction_bound(problem, slack, hidden)
        price = min(price, float(np.sqrt(min(problem.shape))) * distance * _SLACK)
    return price


def correction_bound(problem: MarginProblem, slack: FloatArray, hidden: FloatArray) -> float:
    """Upper bound on the Frobenius distance of W to a matrix that satisfies every row; infinite where none is proved.

    Parameters
    ----------
    problem : MarginProblem
        A single one.
    slack : ndarray, shape (m,)
        Computed ``margin - rhs``.
    hidden : ndarray, shape (m,)
        Bounds on their errors.

    Examples
    --------
    ``W11 = 1`` is missed by 1e-3, and ``W11 + W12 >= 0`` is far away:

    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.feasible import correction_bound
    >>> rows = MarginProblem([[1.0, 0.0], [1.0, 1.0]], [[1.0]], [0, 0], [1.0, 0.0], [True, False])
    >>> f"{correction_bound(rows, np.array([-1e-3, 0.999]), np.zeros(2)):.4f}"
    '0.0010'
    """
    rhs, equality, norms = problem.rhs, problem.equality, problem.row_norms
    alive = norms > 0
    short = np.where(equality, np.abs(slack) + hidden, np.maximum(hidden - slack, 0.0))
    held: BoolArray = alive & (equality | (slack < _NEAR * np.maximum(1.0, np.abs(rhs))))
    for _ in range(_ROUNDS):
        index = np.flatnonzero(held)
        if not len(index):
            return 0.0
        if len(index) > min(_HELD_ROWS, problem.shape[0] * problem.shape[1]):
            return float("inf")
        least = _least_eigenvalue(problem, index)
        if not least > 0:
            return float("inf")
        distance = float(np.linalg.norm(short[index] / norms[index])) / float(np.sqrt(least)) * _SLACK
        pushed = alive & ~held & (slack - hidden < norms * distance * _SLACK)
        if not pushed.any():
            return distance
        held = held | pushed
    return float("inf")


def _least_eigenvalue(problem: MarginProblem, index: Any) -> float:
    """Lower bound on the least eigenvalue of the Gram matrix of some rows, each divided by its norm."""
    part, norms = problem.gather(index), problem.row_norms[index]
    gram = part.gram() / norms[:, None] / norms
    # Entries: products of two inner products, the rounding of the rows (lemma 2), the norms and two divisions.
    error = gamma(2 * sum(problem.shape) + 24) * len(index) * _SLACK
    return least_eigenvalue(gram) - error
