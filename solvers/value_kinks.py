"""Whether the optimal value of a margin problem has a derivative: multipliers and W must be unique.

The value ``v`` (the least norm, or the objective of a soft margin) changes with the data by the derivative of the
Lagrangian at a solution: ``dv = sum_k lam_k (dc_k - <dA_k, W> - <A_k, dW0>)``. This is its derivative where the
multipliers are unique and ``<dA_k, W>`` is the same for every optimal W. Otherwise v has a kink.

The multipliers are unique when the active rows are linearly independent after projection onto the complement of the
directions in which the subdifferential of the norm at D extends, which for D with its singular vectors U, V are

    Frobenius, l_p   none                                 nuclear    matrices outside the rows and columns of U and V
    spectral         U1 S V1^T, S symmetric of trace 0    l1         entries where D is 0
    linf             largest entries, of weighted sum 0

where U1, V1 belong to the largest singular value. W is unique when no direction of the face of the norm that the dual
matrix exposes leaves all active rows as they are; where some do, W may still be unique in what a change of the left
or of the right factors sees of it, which is decided by the products with random factors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from attsvm.solvers.active_rows import (
    STRICT,
    ActiveRows,
    LocalRows,
    active_rows,
    dependent_rows,
    factors_of,
    local_rows,
)
from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.implicit import dual_vectors
from attsvm.solvers.margin_solution import EitherSolution
from attsvm.solvers.nuclear.spectra import active_map

__all__ = ["ValueKinks", "value_kinks"]

# Entries and singular values of W and of the dual matrix, relative to the largest, within this of a kink are at it.
_AT_KINK = 1e-6
# Part of the random products that lies outside the active rows from which W is called not unique in them.
_SEEN = 1e-6


class ValueKinks(NamedTuple):
    """Where the optimal value has no derivative, shape (B,) each.

    Attributes
    ----------
    multipliers : ndarray of bool
        The multipliers are not unique: no derivative in the right-hand sides and the prior.
    left, right : ndarray of bool
        The multipliers, or W in what the left or the right factors see of it, are not unique: no derivative in these.
    row : ndarray of int
        A row that depends on other active ones, where the multipliers are not unique; else -1.
    """

    multipliers: BoolArray
    left: BoolArray
    right: BoolArray
    row: IntArray


class _Faces(NamedTuple):
    """Coordinates of matrices (k, dx, dz) in two spaces, shape (k, t) and (k, f).

    ``tangent`` is the complement of the directions of the subdifferential at D, ``within`` the span of the face of the
    norm that the dual matrix exposes.
    """

    tangent: Callable[[FloatArray], FloatArray]
    within: Callable[[FloatArray], FloatArray]


def value_kinks(
    solution: EitherSolution, tolerance: float = STRICT, left: Callable[[int], FloatArray] | None = None
) -> ValueKinks:
    """Whether the optimal value has a derivative at a solution; problems without a solution have no kink.

    Parameters
    ----------
    solution : MarginSolution
    tolerance : float
        See `attsvm.solvers.active_rows.active_rows`.
    left : callable, optional
        From the number of a problem to a random combination, as a matrix (dx, dz), of what matters of the products
        ``mu_k W b_k``; each of them by default.

    Examples
    --------
    Two equal rows share their multipliers in any way:

    >>> from attsvm.solvers import MarginProblem, solve
    >>> from attsvm.solvers.value_kinks import value_kinks
    >>> value_kinks(solve(MarginProblem([[1.0], [1.0]], [[1.0]], [0, 0]))).multipliers
    array([ True])
    """
    active = active_rows(solution, tolerance)
    rows = local_rows(active, (active.met | active.support) & active.solved[:, None])
    norm, problem = solution.norm_kind, solution.problem
    D = np.asarray(solution.W if problem.batch else solution.W[None])
    D = np.where(active.solved[:, None, None], D, 0.0)
    B, left_of = len(D), left
    left_kinks, right, row = np.zeros(B, dtype=bool), np.zeros(B, dtype=bool), np.full(B, -1)
    if norm.name == "frobenius" or norm.family == "lp":
        row = _dependent(rows, rows.gram)
    elif norm.name == "nuclear":
        for members, vectors in dual_vectors(problem, active.multipliers, D, tolerance):
            part, r = rows.of_problems(members), vectors.dual_rank
            a, b = part.left @ vectors.left, part.right @ vectors.right
            p, q = a[..., vectors.rank :], b[..., vectors.rank :]
            row[members] = _dependent(part, part.gram - (p @ p.mT) * (q @ q.mT))
            for at in _undetermined(a[..., :r], b[..., :r]):
                U, V, member = vectors.left[at, :, :r], vectors.right[at, :, :r], int(members[at])
                within = active_map(part.left[at], part.right[at], U, V)
                left_kinks[member], right[member] = _seen(active, member, within, _on_symmetric(U, V), left_of)
    elif norm.name in _FACES:
        Y = np.asarray(problem.adjoint(active.multipliers if problem.batch else active.multipliers[0])).reshape(D.shape)
        for one in np.flatnonzero(np.abs(D).max(axis=(-2, -1)) > 0).tolist():
            part, faces = rows.of_problems(np.array([one])), _FACES[norm.name](D[one], Y[one])
            matrices = part.left[0, :, :, None] * part.right[0, :, None, :]
            tangent = faces.tangent(matrices)
            row[one] = _dependent(part, (tangent @ tangent.T)[None])[0]
            left_kinks[one], right[one] = _seen(active, one, faces.within(matrices), faces.within, left_of)
    else:
        raise ValueError(f"the derivative of the optimal value is not known in the norm {norm.name!r}")
    if problem.penalty is None or norm.name != "frobenius":  # then the norm has a kink at 0
        held = ~D.any(axis=(-2, -1)) & rows.real.any(axis=-1)
        row = np.where(held, rows.index[:, 0], row)
    many = row >= 0
    whole = D if problem.prior is None else D + problem.prior.W
    moves = many & whole.any(axis=(-2, -1))  # at W = 0 the factors of the rows do not matter, whatever the multipliers
    return ValueKinks(many, left_kinks | moves, right | moves, row)


def _dependent(rows: LocalRows, gram: FloatArray) -> IntArray:
    """A row of each problem that depends on others in this Gram matrix, or -1; shape (B,)."""
    found = dependent_rows(rows.filled(gram))
    return np.where(found >= 0, np.take_along_axis(rows.index, np.maximum(found, 0)[:, None], axis=-1)[:, 0], -1)


def _undetermined(a: FloatArray, b: FloatArray) -> list[int]:
    """Problems whose active rows, with factors (B, k, r) on the face, do not determine a symmetric matrix there."""
    row, column = np.triu_indices(a.shape[-1])
    weight = np.where(row == column, 0.5, np.sqrt(0.5))
    mapped = (a[..., row] * b[..., column] + a[..., column] * b[..., row]) * weight
    if len(row) > a.shape[1]:
        return list(range(len(a)))
    return [int(at) for at in np.flatnonzero(dependent_rows(mapped.mT @ mapped) >= 0)]


def _seen(
    active: ActiveRows,
    member: int,
    rows: FloatArray,
    within: Callable[[FloatArray], FloatArray],
    left_of: Callable[[int], FloatArray] | None,
) -> tuple[bool, bool]:
    """Whether the left and the right factors of one problem see a difference between optimal W.

    ``rows (k, f)`` are the active rows on the face. What the factors see are the products ``mu_k W b_k`` and, of each
    query, ``W^T sum_k mu_k a_k``; sums of these with random vectors are functions of W on the face, and W is unique
    in them where they are combinations of the rows.
    """
    _, singular, basis = np.linalg.svd(rows, full_matrices=False)
    basis = basis[singular > _SEEN * max(float(singular[0]) if len(singular) else 0.0, np.finfo(float).tiny)]
    if len(basis) == rows.shape[1]:
        return False, False
    index = np.flatnonzero(active.multipliers[member])
    if not len(index):
        return False, False
    problem, mu = active.problem, active.multipliers[member, index]
    one = problem.take(np.array([member])) if problem.batch else problem
    a, b = (x[0] for x in factors_of(one, index[None]))
    rng = np.random.default_rng(0)
    owner = np.broadcast_to(problem.owner, active.multipliers.shape)[member, index]
    left = rng.normal(size=a.shape).T @ (mu[:, None] * b) if left_of is None else left_of(member)
    right = (mu[:, None] * a).T @ rng.normal(size=(problem.q, b.shape[1]))[owner]
    return _outside(within, basis, left), _outside(within, basis, right)


def _outside(within: Callable[[FloatArray], FloatArray], basis: FloatArray, product: FloatArray) -> bool:
    asked = within(product[None])[0]
    rest = asked - (asked @ basis.T) @ basis
    return bool(np.linalg.norm(rest) > _SEEN * np.linalg.norm(product))


def _on_symmetric(U: FloatArray, V: FloatArray) -> Callable[[FloatArray], FloatArray]:
    """Coordinates of matrices on ``U S V^T`` with S symmetric: those of `active_map`."""
    r = U.shape[1]
    row, column = np.triu_indices(r)
    weight = np.where(row == column, 0.5, np.sqrt(0.5))

    def within(M: FloatArray) -> FloatArray:
        core = U.T @ M @ V
        return np.asarray((core + core.mT)[:, row, column] * weight)

    return within


def _spectral(D: FloatArray, Y: FloatArray) -> _Faces:
    U, s, Vt = np.linalg.svd(D)
    top = int((s >= s[0] * (1.0 - _AT_KINK)).sum())
    left, right = U[:, :top], Vt[:top].T
    P, dual, Qt = np.linalg.svd(Y)
    rank = int((dual > _AT_KINK * dual[0]).sum())

    def tangent(M: FloatArray) -> FloatArray:
        core = left.T @ M @ right
        core = 0.5 * (core + core.mT)
        core = core - np.trace(core, axis1=-2, axis2=-1)[:, None, None] / top * np.eye(top)
        return np.asarray((M - left @ core @ right.T).reshape(len(M), -1))

    def within(M: FloatArray) -> FloatArray:
        size = np.einsum("kij,ij->k", M, P[:, :rank] @ Qt[:rank]) / np.sqrt(rank)
        rest = P[:, rank:].T @ M @ Qt[rank:].T
        return np.concatenate([size[:, None], rest.reshape(len(M), -1)], axis=1)

    return _Faces(tangent, within)


def _l1(D: FloatArray, Y: FloatArray) -> _Faces:
    used, largest = np.abs(D) > _AT_KINK * np.abs(D).max(), np.abs(Y) >= 1.0 - _AT_KINK
    return _Faces(lambda M: M[:, used], lambda M: M[:, largest])


def _linf(D: FloatArray, Y: FloatArray) -> _Faces:
    largest = np.abs(D) >= np.abs(D).max() * (1.0 - _AT_KINK)
    used = np.abs(Y) > _AT_KINK * np.abs(Y).max()

    def beside(chosen: BoolArray, sign: FloatArray) -> Callable[[FloatArray], FloatArray]:
        """Entries outside the chosen ones, and the signed sum of those."""
        weight = np.sign(sign[chosen]) / np.sqrt(max(1, int(chosen.sum())))
        return lambda M: np.concatenate([M[:, ~chosen], M[:, chosen] @ weight[:, None]], axis=1)

    return _Faces(beside(largest, D), beside(used, Y))


_FACES: dict[str, Callable[[FloatArray, FloatArray], _Faces]] = {"spectral": _spectral, "l1": _l1, "linf": _linf}
