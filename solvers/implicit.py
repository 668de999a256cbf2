"""How W moves with the rows of a margin problem: implicit differentiation at a solution, one problem or a batch.

Near a solution whose support is strict, W solves the equations of the rows of its support alone. Let ``A_k = a_k
b_k^T`` be the rows, ``c_k`` their right-hand sides, ``W = W0 + D`` with a prior W0, and ``mu_k`` the multipliers of
the optimality conditions. A change of the data moves D by xi and the multipliers by -y, where

    H xi + sum_k y_k P(A_k) = P(F),         F = sum_k mu_k dA_k,
    <A_k, xi> - R_k y_k     = g_k,          g_k = dc_k - <dA_k, W> - <A_k, dW0>,

over the rows of the support. For the Frobenius norm H and P are the identity. For the nuclear norm xi lies in the
tangent space of the matrices with the rank of D, P is the projection onto it, and H is the second derivative of the
nuclear norm on these matrices with the curvature that the dual matrix adds; H is diagonal in the basis of singular
vectors (`_flexibility`). R is 0 for hard margins and for the hinge, and 1 / (2 C) for the squared hinge. A query whose
slack is positive fixes the sum of its multipliers, so that its rows act through their differences from the first one.

The matrix of the system is symmetric: products with the Jacobian (``jvp``) and with its transpose (``vjp``) solve the
same system. With ``F = G`` and ``g = 0`` its solution ``(P, eta)`` gives the gradient of ``<G, W>``: ``mu_k P - eta_k
W`` for ``A_k``, ``eta_k`` for ``c_k``, and ``G - sum_k eta_k A_k`` for W0.

Where the system is singular or the support is not strict, W has no derivative: such problems are listed as faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from attsvm.solvers.active_rows import (
    STRICT,
    ActiveRows,
    Fault,
    LocalRows,
    active_rows,
    as_batch,
    cholesky,
    dependent_rows,
    local_rows,
)
from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.margin_problem import EitherProblem
from attsvm.solvers.margin_solution import EitherSolution
from attsvm.solvers.nuclear.spectra import triangle

__all__ = ["ImplicitSystem", "RowGradient", "dual_vectors"]

# Newton steps that refine a nuclear-norm solution, the residual at which they end, and how far W may move by them.
_NEWTON_STEPS, _RESIDUAL, _REFINED = 3, 1e-12, 1e-3
# What rows of the support may be missed by before W of the Frobenius norm, for which one step is exact, is refined.
_EXACT = 1e-11
# Entries of the arrays that one group of a batch may fill at once.
_ELEMENTS = 1 << 22


class RowGradient(NamedTuple):
    """Gradient of a function of W in the rows, as a batch.

    Attributes
    ----------
    weights : ndarray, shape (B, m)
        ``mu``: the gradient for the matrix ``A_k`` of row k is ``mu_k along - sides_k W``.
    along : ndarray, shape (B, dx, dz)
    sides : ndarray, shape (B, m)
        For the right-hand sides.
    prior : ndarray, shape (B, dx, dz)
        For the prior.
    """

    weights: FloatArray
    along: FloatArray
    sides: FloatArray
    prior: FloatArray


_Solver = Callable[[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]


class ImplicitSystem:
    """The derivative of W at a solution, in the Frobenius or the nuclear norm; one problem or a batch.

    Parameters
    ----------
    solution : MarginSolution
    tolerance : float
        See `active_rows`.

    Examples
    --------
    ``W >= c / a`` for one row ``a W >= c``: W moves with c by 1 / a.

    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, solve
    >>> from attsvm.solvers.implicit import ImplicitSystem
    >>> system = ImplicitSystem(solve(MarginProblem([[2.0]], [[1.0]], [0])))
    >>> system.faults, system.vjp(np.ones((1, 1, 1))).sides
    ({}, array([[0.5]]))
    """

    active: ActiveRows
    faults: dict[int, Fault]
    D: FloatArray
    """``W - W0``, shape (B, dx, dz), refined by Newton steps on the support where the solver left something."""
    multipliers: FloatArray
    """mu of the module's text, shape (B, m)."""
    resting: BoolArray
    """Problems with a soft margin and W = 0, shape (B,): W does not move with the rows, even where it has a fault that
    matters to right-hand sides and priors."""

    def __init__(self, solution: EitherSolution, tolerance: float = STRICT) -> None:
        norm = solution.norm_kind.name
        if norm not in ("frobenius", "nuclear"):
            raise ValueError(f"the derivative of W is known in the norms 'frobenius' and 'nuclear', got {norm!r}")
        self.active = active_rows(solution, tolerance)
        self._problem, self._m, self._solved = solution.problem, solution.problem.m, self.active.solved
        self.faults = dict(self.active.faults)
        self._frobenius = norm == "frobenius"
        rows = local_rows(self.active, self.active.support)
        size, shape = len(self._solved), solution.problem.shape
        self._parts: list[tuple[IntArray, LocalRows, _Solver]] = []
        self.D = as_batch(solution.W, solution.problem)
        self.multipliers = self.active.multipliers.copy()
        self.resting = np.zeros(size, dtype=bool)
        if self._frobenius:
            everyone = np.arange(size)
            solver = _frobenius(rows, everyone, self.faults)
            self._parts.append((everyone, rows, solver))
            if self.active.missed > _EXACT and not self.faults and self._solved.all():
                point = _Point.at(self._problem, self.D, self.multipliers, rows)
                point = point.moved(*solver(point.Y - self.D, point.missed()))
                self.D, self.multipliers = point.D, point.multipliers
            return
        self.D = np.where(self._solved[:, None, None], self.D, 0.0)
        soft = solution.problem.penalty is not None and solution.problem.prior is None
        for members, vectors in dual_vectors(self._problem, self.active.multipliers, self.D, tolerance):
            if soft and not vectors.rank and not vectors.dual_rank:
                self._rest(members, rows.of_problems(members))
                continue
            if vectors.rank != vectors.dual_rank:
                self._blame_rank(members, vectors.rank, vectors.dual_rank)
                continue
            width = rows.left.shape[1] * sum(shape) * max(1, vectors.rank)
            step = max(1, _ELEMENTS // width)
            for low in range(0, len(members), step):
                self._add_nuclear(members[low : low + step], rows.of_problems(members[low : low + step]), vectors.rank)

    def _add_nuclear(self, members: IntArray, rows: LocalRows, rank: int) -> None:
        """The system of problems with one rank, after Newton steps on the optimality conditions of their support."""
        problem = self._problem.take(members) if self._problem.batch else self._problem
        point = _Point.at(problem, self.D[members], self.multipliers[members], rows)
        vectors = point.vectors(rank)
        solver = _nuclear(rows, vectors, members, self.faults)
        for _ in range(_NEWTON_STEPS):
            f, g = point.residuals(vectors)
            if max(float(np.abs(f).max(initial=0.0)), float(np.abs(g).max(initial=0.0))) <= _RESIDUAL:
                break
            point = point.moved(*solver(f, g), rank)
            vectors = point.vectors(rank)
            solver = _nuclear(rows, vectors, members, self.faults)
        kept = np.linalg.norm(point.D - self.D[members], axis=(-2, -1)) <= _REFINED * np.linalg.norm(
            self.D[members], axis=(-2, -1)
        )
        for b in members[~kept & self._solved[members]].tolist():
            self.faults.setdefault(b, Fault(-1, "Newton's method moves W away: solve with a smaller tolerance="))
        self.D[members] = np.where(kept[:, None, None], point.D, self.D[members])
        self.multipliers[members] = np.where(kept[:, None], point.multipliers, self.multipliers[members])
        self._parts.append((members, rows, solver))

    def _rest(self, members: IntArray, rows: LocalRows) -> None:
        """Problems with W = 0, where no change of the rows moves W, whatever the multipliers of tied rows are."""
        self.resting[members] = self._solved[members]
        for at in np.flatnonzero(rows.real.any(axis=-1) & self.resting[members]).tolist():
            self.faults.setdefault(int(members[at]), Fault(int(rows.index[at, 0]), "is tied with others at W = 0"))
        self._parts.append((members, rows, lambda F, g: (np.zeros(F.shape), np.zeros(g.shape))))

    def _blame_rank(self, members: IntArray, rank: int, dual_rank: int) -> None:
        for b in members[self._solved[members]].tolist():
            why = (
                f"{dual_rank} singular values of the dual matrix are 1, but W has rank {rank}: the rank may grow"
                if dual_rank > rank
                else f"W has rank {rank}, but {dual_rank} singular values of the dual matrix are 1: lower tolerance="
            )
            self.faults.setdefault(b, Fault(-1, why))

    def _solve(self, F: FloatArray, sides: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """``(xi, y)`` of the system, y per row of the problem; NaN where W has no derivative."""
        if len(self._parts) == 1 and not self.faults and self._solved.all():
            _, rows, solver = self._parts[0]
            found, y = solver(F, np.zeros(rows.real.shape) if sides is None else rows.values_of(sides))
            return found, rows.spread(y, self._m)
        xi, out = np.full(F.shape, np.nan), np.full((len(F), self._m), np.nan)
        for members, rows, solver in self._parts:
            g = np.zeros(rows.real.shape) if sides is None else rows.values_of(sides[members])
            found, y = solver(F[members], g)
            xi[members], out[members] = found, rows.spread(y, self._m)
        broken = [b for b in self.faults if not self.resting[b]] + np.flatnonzero(~self._solved).tolist()
        xi[broken], out[broken] = np.nan, np.nan
        return xi, out

    def vjp(self, G: FloatArray) -> RowGradient:
        """Gradient of ``<G, W>`` for G of shape (B, dx, dz); NaN where W has no derivative."""
        along, sides = self._solve(G, None)
        if self._frobenius:  # then P is what the rows leave of G
            return RowGradient(self.multipliers, along, sides, along)
        taken = self._problem.adjoint(sides if self._problem.batch else sides[0])
        return RowGradient(self.multipliers, along, sides, G - as_batch(taken, self._problem))

    def jvp(self, F: FloatArray, sides: FloatArray) -> FloatArray:
        """Change of ``D = W - W0`` for ``F = sum mu_k dA_k``, (B, dx, dz), and g of the module's text, (B, m)."""
        return self._solve(F, sides)[0]


def _frobenius(rows: LocalRows, members: IntArray, faults: dict[int, Fault]) -> _Solver:
    """``(G + R) y = <A, F> - g`` and ``xi = F - sum y A``."""
    from scipy.linalg.lapack import dpotrs

    factor, dependent = cholesky(rows.filled(rows.gram))
    _blame_rows(rows, dependent, members, faults)
    if faults:
        factor[dependent >= 0] = np.eye(factor.shape[-1])

    def solve(F: FloatArray, g: FloatArray) -> tuple[FloatArray, FloatArray]:
        y = np.where(rows.real, np.vecdot(rows.left @ F, rows.right) - g, 0.0)
        for L, sides in zip(factor, y, strict=True):  # a loop of LAPACK is three times as quick as np.linalg.solve
            dpotrs(L.T, sides, overwrite_b=1)
        return F - (rows.left * y[..., None]).mT @ rows.right, y

    return solve


def _blame_rows(rows: LocalRows, dependent: IntArray, members: IntArray, faults: dict[int, Fault]) -> None:
    """Enter problems with dependent rows among the faults."""
    if dependent.max(initial=-1) < 0:
        return
    for at in np.flatnonzero(dependent >= 0).tolist():
        row = int(rows.index[at, dependent[at]])
        faults.setdefault(int(members[at]), Fault(row, "depends linearly on other rows of the support"))


class _Vectors(NamedTuple):
    """Singular vectors of dual matrices of problems with the same ranks.

    ``left (B, dx, dx)`` and ``right (B, dz, dz)`` are complete bases: the first ``rank`` columns are those of D with
    the singular values ``values (B, rank)``, the following up to ``dual_rank`` belong to singular values 1 of the
    dual matrix, whose singular values are ``dual (B, min(dx, dz))``.
    """

    left: FloatArray
    right: FloatArray
    values: FloatArray
    dual: FloatArray
    rank: int
    dual_rank: int

    def of_problems(self, index: slice) -> _Vectors:
        some = (self.left[index], self.right[index], self.values[index], self.dual[index])
        return _Vectors(*some, self.rank, self.dual_rank)


def dual_vectors(
    problem: EitherProblem, multipliers: FloatArray, D: FloatArray, tolerance: float = STRICT
) -> Iterator[tuple[IntArray, _Vectors]]:
    """Members of a batch that agree in the rank of D and of the face of the dual matrix, with their vectors.

    Parameters
    ----------
    problem : MarginProblem
    multipliers : ndarray, shape (B, m)
        In norm form.
    D : ndarray, shape (B, dx, dz)
    tolerance : float
        Singular values of the dual matrix within this of 1 are 1; those of D, relative to the largest, are 0.
    """
    Y = as_batch(problem.adjoint(multipliers if problem.batch else multipliers[0]), problem)
    U, s, Vt = np.linalg.svd(Y, full_matrices=True)
    faces = (s >= 1.0 - tolerance).sum(axis=-1)
    for r in np.unique(faces).tolist():
        members = np.flatnonzero(faces == r)
        left, right = U[members].copy(), Vt[members].mT.copy()
        S = left[:, :, :r].mT @ D[members] @ right[:, :, :r]
        values, turn = np.linalg.eigh(0.5 * (S + S.mT))
        values, turn = values[:, ::-1], turn[:, :, ::-1]
        left[:, :, :r], right[:, :, :r] = left[:, :, :r] @ turn, right[:, :, :r] @ turn
        size = np.sqrt(np.square(D[members]).sum(axis=(-2, -1)))
        ranks = (values > tolerance * size[:, None]).sum(axis=-1)
        # What is left of D outside the face: a singular value of D without one of the dual matrix.
        rest = D[members] - left[:, :, :r] @ (turn.mT @ S @ turn) @ right[:, :, :r].mT
        outside = np.sqrt(np.square(rest).sum(axis=(-2, -1))) > 1e-3 * size
        ranks = np.where(outside, r + 1, ranks)
        for rank in np.unique(ranks).tolist():
            at = ranks == rank
            kept = min(rank, r)
            yield members[at], _Vectors(left[at], right[at], values[at][:, :kept], s[members[at]], rank, r)


class _Point(NamedTuple):
    """A point of Newton's method for problems of one rank: D, the multipliers (B, m) and the dual matrix Y.

    ``sides (B, k)`` are the right-hand sides of the local rows, ``x (B, k)`` their multipliers.
    """

    D: FloatArray
    multipliers: FloatArray
    Y: FloatArray
    rows: LocalRows
    sides: FloatArray
    x: FloatArray

    @classmethod
    def at(cls, problem: EitherProblem, D: FloatArray, multipliers: FloatArray, rows: LocalRows) -> _Point:
        Y = as_batch(problem.adjoint(multipliers if problem.batch else multipliers[0]), problem)
        inverse = np.divide(1.0, rows.scale, out=np.zeros_like(rows.scale), where=rows.scale != 0)
        own = np.take_along_axis(multipliers, rows.index, axis=-1)
        shared = rows.spread(np.where(rows.tied, own * inverse, 0.0), multipliers.shape[-1])
        rest = np.where(rows.tied, own, own - np.take_along_axis(shared, rows.index, axis=-1))
        return cls(D, multipliers, Y, rows, rows.values_of(as_batch(problem.rhs, problem)), rest * inverse)

    def vectors(self, rank: int) -> _Vectors:
        """The basis at D: its singular vectors, completed by those of what Y has outside of them."""
        U, values, Vt = np.linalg.svd(self.D, full_matrices=True)
        V = Vt.mT
        E, dual, Ft = np.linalg.svd(U[..., rank:].mT @ self.Y @ V[..., rank:], full_matrices=True)
        left = np.concatenate([U[..., :rank], U[..., rank:] @ E], axis=-1)
        right = np.concatenate([V[..., :rank], V[..., rank:] @ Ft.mT], axis=-1)
        ones = np.ones((len(dual), rank))
        return _Vectors(left, right, values[:, :rank], np.concatenate([ones, dual], axis=-1), rank, rank)

    def residuals(self, vectors: _Vectors) -> tuple[FloatArray, FloatArray]:
        """``Y - U V^T`` on the tangent space, and `missed`."""
        r = vectors.rank
        U, V = vectors.left[..., :r], vectors.right[..., :r]
        F = self.Y - U @ V.mT
        return F - (F - U @ (U.mT @ F)) @ (np.eye(V.shape[-2]) - V @ V.mT), self.missed()

    def missed(self) -> FloatArray:
        """What the local rows are missed by, shape (B, k)."""
        values = np.vecdot(self.rows.left @ self.D, self.rows.right)
        return np.where(self.rows.real, self.sides - values - self.rows.ridge * self.x, 0.0)

    def moved(self, xi: FloatArray, y: FloatArray, rank: int | None = None) -> _Point:
        """After one step, back on the matrices of this rank, if one is given."""
        D = self.D + xi
        if rank is not None:
            U, values, Vt = np.linalg.svd(D, full_matrices=False)
            D = (U[..., :rank] * values[:, None, :rank]) @ Vt[:, :rank]
        Y = self.Y - (self.rows.left * y[..., None]).mT @ self.rows.right
        multipliers = self.multipliers - self.rows.spread(y, self.multipliers.shape[-1])
        return self._replace(D=np.asarray(D), multipliers=multipliers, Y=Y, x=self.x - y)


class _Coordinates(NamedTuple):
    """A matrix in the tangent space: symmetric part (..., s), rest (..., p)."""

    symmetric: FloatArray
    rest: FloatArray


def _tangent_coordinates(top: FloatArray, below: FloatArray, beside: FloatArray) -> _Coordinates:
    """Orthonormal coordinates of ``[[top, beside], [below, .]]`` in the basis of `_Vectors`.

    ``top (..., r, r)``, ``below (..., dx - r, r)``, ``beside (..., r, dz - r)``. The rest lists the antisymmetric
    part, the sums and differences of mirrored entries of ``below`` and ``beside``, and what has no mirror image.
    """
    lead, r = top.shape[:-2], top.shape[-1]
    row, column, _, _ = triangle(r)
    half = np.sqrt(0.5)
    up, down = top[..., row, column], top[..., column, row]
    symmetric = np.where(row == column, up, half * (up + down))
    strict = row != column
    twist = half * (up - down)[..., strict]
    mirror = beside.mT
    both = min(below.shape[-2], mirror.shape[-2])
    u, v = below[..., :both, :], mirror[..., :both, :]
    extra = below[..., both:, :] if below.shape[-2] > both else mirror[..., both:, :]
    parts = [twist, half * (u + v), half * (u - v), extra]
    return _Coordinates(symmetric, np.concatenate([part.reshape(*lead, -1) for part in parts], axis=-1))


def _from_coordinates(c: _Coordinates, r: int, dx: int, dz: int) -> FloatArray:
    """The matrix of tangent coordinates, shape (B, dx, dz): the inverse of `_tangent_coordinates`."""
    B = len(c.symmetric)
    M = np.zeros((B, dx, dz))
    row, column, _, _ = triangle(r)
    strict = row != column
    half = np.sqrt(0.5)
    twist = np.zeros((B, len(row)))
    cut = int(strict.sum())
    twist[:, strict] = half * c.rest[:, :cut]
    same = np.where(strict, half, 1.0) * c.symmetric
    M[:, row, column] = same + twist
    M[:, column[strict], row[strict]] = (same - twist)[:, strict]
    both = min(dx, dz) - r
    sums, differences = (c.rest[:, cut + i * both * r : cut + (i + 1) * both * r].reshape(B, both, r) for i in (0, 1))
    extra = c.rest[:, cut + 2 * both * r :].reshape(B, -1, r)
    M[:, r : r + both, :r] = half * (sums + differences)
    M[:, :r, r : r + both] = half * (sums - differences).mT
    if dx > dz:
        M[:, r + both :, :r] = extra
    else:
        M[:, :r, r + both :] = extra.mT
    return M


def _flexibility(vectors: _Vectors, dx: int, dz: int) -> FloatArray:
    """``1 / H`` on the rest of the coordinates, shape (B, p); H is 0 on the symmetric part.

    With singular values sigma of D and tau of the dual matrix: ``2 / (sigma_i + sigma_j)`` on antisymmetric entries,
    ``(1 - tau_j) / sigma_i`` on sums and ``(1 + tau_j) / sigma_i`` on differences of mirrored entries, else ``1 /
    sigma_i``.
    """
    r, sigma = vectors.rank, vectors.values
    B = len(sigma)
    row, column, _, _ = triangle(r)
    strict = row != column
    twist = 0.5 * (sigma[:, row[strict]] + sigma[:, column[strict]])
    tau = vectors.dual[:, r : min(dx, dz)]
    sums = sigma[:, None, :] / (1.0 - tau)[:, :, None]
    differences = sigma[:, None, :] / (1.0 + tau)[:, :, None]
    extra = np.broadcast_to(sigma[:, None, :], (B, abs(dx - dz), r))
    return np.concatenate([twist, *(part.reshape(B, -1) for part in (sums, differences, extra))], axis=-1)


def _nuclear(rows: LocalRows, vectors: _Vectors, members: IntArray, faults: dict[int, Fault]) -> _Solver:
    """The system on the tangent space: ``rest = (F - A^T y) / H`` eliminated, y and the symmetric part solved for."""
    (B, k), r = rows.real.shape, vectors.rank
    dx, dz = rows.left.shape[-1], rows.right.shape[-1]
    a, b = rows.left @ vectors.left, rows.right @ vectors.right
    A = _tangent_coordinates(
        a[..., :r, None] * b[..., None, :r], a[..., r:, None] * b[..., None, :r], a[..., :r, None] * b[..., None, r:]
    )
    loose = _flexibility(vectors, dx, dz)
    gram = A.symmetric @ A.symmetric.mT + A.rest @ A.rest.mT
    _blame_rows(rows, dependent_rows(rows.filled(gram)), members, faults)
    s = A.symmetric.shape[-1]
    free = dependent_rows(A.symmetric.mT @ A.symmetric) if s <= k else np.zeros(B, dtype=np.int64)
    for b_ in np.flatnonzero(free >= 0).tolist():
        faults.setdefault(int(members[b_]), Fault(-1, "the rows of the support do not determine W on its face"))
    K = np.zeros((B, k + s, k + s))
    K[:, :k, :k] = -rows.filled((A.rest * loose[:, None, :]) @ A.rest.mT)
    K[:, :k, k:], K[:, k:, :k] = A.symmetric, A.symmetric.mT
    broken = [i for i, b_ in enumerate(members.tolist()) if b_ in faults]
    K[broken] = np.eye(k + s)

    def solve(F: FloatArray, g: FloatArray) -> tuple[FloatArray, FloatArray]:
        turned = vectors.left.mT @ F @ vectors.right
        f = _tangent_coordinates(turned[..., :r, :r], turned[..., r:, :r], turned[..., :r, r:])
        sides = np.where(rows.real, g - (A.rest @ (loose * f.rest)[..., None])[..., 0], 0.0)
        found = np.linalg.solve(K, np.concatenate([sides, f.symmetric], axis=-1)[..., None])[..., 0]
        y = np.where(rows.real, found[:, :k], 0.0)
        rest = loose * (f.rest - (y[:, None, :] @ A.rest)[:, 0])
        xi = _from_coordinates(_Coordinates(found[:, k:], rest), r, dx, dz)
        return vectors.left @ xi @ vectors.right.mT, y

    return solve
