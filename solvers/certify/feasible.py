"""What it costs to make W feasible: an upper bound on the least norm from a matrix that misses its rows by a little.

*Scaling.* Where every right-hand side is positive (and no row is an equality), ``W / (1 - v)`` is feasible when no
row is missed by more than the share v of what it asks for. The norm grows by the factor ``1 / (1 - v)``.

*Correction.* In general, let H be the equality rows and the inequality rows that are missed or nearly so, each divided
by its norm, with smallest singular value s > 0: they are independent. Some matrix C with
``|C|_F <= |what they miss| / s`` puts the rows of H right, and the other rows, whose slack exceeds
``|row_k| |C|_F``, are still satisfied by ``W + C``. Its nuclear norm is larger by at most ``sqrt(min(dx, dz)) |C|_F``.

What rows miss is known up to rounding, and ``s^2`` is bounded from below by the least eigenvalue of the Gram matrix of
H minus the errors of its entries and of the decomposition (`least_eigenvalue`): nothing here is to first order.
Where H is dependent nothing is proved and the cost is infinite; `attsvm.solvers.exact.repair` may know more.
"""

from __future__ import annotations

import numpy as np

from attsvm.solvers.arrays import BoolArray, FloatArray, Number
from attsvm.solvers.certify.rounding import gamma
from attsvm.solvers.certify.singular_values import least_eigenvalue
from attsvm.solvers.margin_problem import EitherProblem

__all__ = ["correction_bound", "feasibility_cost"]

# For the roundings in the evaluation of the bounds.
_SLACK = 1.0 + 1e-6
# Inequality rows nearer than this to their right-hand side (relative to it and to 1) are held there by the correction.
_NEAR = 1e-6
# Rows that join the correction because it would push them too far, at most so often.
_ROUNDS = 3
# Held rows up to which a Gram matrix is decomposed.
_HELD_ROWS = 400
# Numbers in the Gram matrices of problems of a batch that are looked at together.
_CHUNK_NUMBERS = 1 << 22


def feasibility_cost(
    problem: EitherProblem, W: FloatArray, slack: FloatArray, violation: Number, error: Number, value: Number
) -> Number:
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
    >>> from attsvm.solvers.certify.feasible import feasibility_cost
    >>> rows = MarginProblem([[1.0]], [[1.0]], [0])
    >>> cost = feasibility_cost(rows, np.array([[0.5]]), np.array([-0.5]), 0.5, 0.0, 0.5)
    >>> bool(0.5 <= cost < 0.5 + 1e-5)
    True
    """
    if problem.is_plain:
        return _scaling(violation + error, value)
    if isinstance(error, float):
        return float(_costs(problem, slack, np.asarray(error), np.asarray(value)))
    # As many at a time as keep the Gram matrices small.
    size = max(1, _CHUNK_NUMBERS // problem.m**2)
    if size >= len(slack):
        return _costs(problem, slack, error, value)
    parts = [np.arange(begin, min(begin + size, len(slack))) for begin in range(0, len(slack), size)]
    return np.concatenate([_costs(problem.take(i), slack[i], error[i], value[i]) for i in parts])


def _scaling(share: Number, value: Number) -> Number:
    """``value (1 / (1 - share) - 1)``."""
    if isinstance(share, float):
        return share * value / (1.0 - share) * _SLACK if share < 1.0 else float("inf")
    small = share < 1.0
    return np.where(small, share * value / np.where(small, 1.0 - share, 1.0) * _SLACK, np.inf)


def _costs(problem: EitherProblem, slack: FloatArray, error: FloatArray, value: FloatArray) -> FloatArray:
    """Costs of problems that are not plain, shape (*batch,)."""
    rhs, equality = problem.rhs, problem.equality
    hidden = error[..., None] * problem.allowance  # what rounding may hide from each row
    alive = problem.row_norms > 0  # another row is met by every W or by none
    hopeless = (~alive & np.where(equality, rhs != 0, rhs > 0)).any(axis=-1)
    asks = rhs > 0
    scales = (~alive | (asks & ~equality)).all(axis=-1)
    missed = np.where(alive & asks, np.maximum(hidden - slack, 0.0) / np.where(asks, rhs, 1.0), 0.0)
    cost = np.where(scales, _scaling(missed.max(axis=-1, initial=0.0), value), np.inf)
    more = ~hopeless & (cost > 1e-12 * value)  # one is enough where it is small
    if more.any():
        some = problem if more.all() else problem.take(more.nonzero()[0])
        distance = correction_bound(some, slack[more].reshape(some.rhs.shape), hidden[more].reshape(some.rhs.shape))
        other = np.full(cost.shape, np.inf)
        other[more] = float(np.sqrt(min(problem.shape))) * distance * _SLACK
        cost = np.minimum(cost, other)
    return np.asarray(np.where(hopeless, np.inf, cost))


def correction_bound(problem: EitherProblem, slack: FloatArray, hidden: FloatArray) -> FloatArray:
    """Upper bound on the Frobenius distance of W to a matrix that satisfies every row; infinite where none is proved.

    Parameters
    ----------
    problem : MarginProblem
    slack : ndarray, shape (*batch, m)
        Computed ``margin - rhs``.
    hidden : ndarray, shape (*batch, m)
        Bounds on their errors.

    Returns
    -------
    ndarray, shape (*batch,)

    Examples
    --------
    ``W11 = 1`` is missed by 1e-3, and ``W11 + W12 >= 0`` is far away:

    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.certify.feasible import correction_bound
    >>> rows = MarginProblem([[1.0, 0.0], [1.0, 1.0]], [[1.0]], [0, 0], [1.0, 0.0], [True, False])
    >>> f"{correction_bound(rows, np.array([-1e-3, 0.999]), np.zeros(2)):.4f}"
    '0.0010'
    """
    rhs, equality, norms = problem.rhs, problem.equality, problem.row_norms
    alive = norms > 0
    short = np.where(equality, np.abs(slack) + hidden, np.maximum(hidden - slack, 0.0))
    norms = np.where(alive, norms, 1.0)
    short /= norms
    held: BoolArray = alive & (equality | (slack < _NEAR * np.maximum(1.0, np.abs(rhs))))
    distance: FloatArray = np.full(slack.shape[:-1], np.inf)
    for _ in range(_ROUNDS):
        least = _least_eigenvalues(problem, held)
        size = np.sqrt(np.add.reduce(np.where(held, short, 0.0) ** 2, axis=-1)) * _SLACK
        moved = np.where(least > 0, size / np.sqrt(np.where(least > 0, least, 1.0)) * _SLACK, np.inf)
        pushed = alive & ~held & (slack - hidden < norms * moved[..., None] * _SLACK)
        distance = np.where(pushed.any(axis=-1), np.inf, moved)
        open_ = pushed & np.isfinite(moved)[..., None]
        if not open_.any():
            break
        held = held | open_
    return distance


def _least_eigenvalues(problem: EitherProblem, held: BoolArray) -> FloatArray:
    """Lower bounds on the least eigenvalues of the Gram matrices of the held rows, each divided by its norm.

    Rows that only other problems hold stand in a problem's matrix as rows of the identity: no bound grows by them.
    """
    count = np.count_nonzero(held, axis=-1)
    index = np.flatnonzero(held.reshape(-1, problem.m).any(axis=0))
    many = count > min(_HELD_ROWS, problem.shape[0] * problem.shape[1])
    if not len(index) or many.all():
        return np.where(many, 0.0, 1.0)
    part, own = problem.gather(index), held[..., index]
    inverse = np.where(own, 1.0 / np.where(own, part.row_norms, 1.0), 0.0)
    gram = part.gram() * inverse[..., :, None] * inverse[..., None, :]
    gram.reshape(*count.shape, -1)[..., :: len(index) + 1] += ~own
    # Entries: products of two inner products, the rounding of the rows (lemma 2), the norms, inverses and products.
    error = gamma(2 * sum(problem.shape) + 24) * count * _SLACK
    return np.where(many, 0.0, least_eigenvalue(gram) - error)
