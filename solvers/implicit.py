"""How W moves with the rows of a margin problem: implicit differentiation at a solution, one problem or a batch.

Near a solution whose support is strict, W solves the equations of the rows of its support alone. Let ``A_k = a_k b_k^T``
be the rows, ``c_k`` their right-hand sides, ``W = W0 + D`` with a prior W0, and ``mu_k`` the multipliers of the optimality
conditions. A change of the data moves D by xi and the multipliers by -y, where

    H xi + sum_k y_k P(A_k) = P(F),         F = sum_k mu_k dA_k,
    <A_k, xi> - R_k y_k     = g_k,          g_k = dc_k - <dA_k, W> - <A_k, dW0>,

over the rows of the support. For the Frobenius norm H and P are the identity. For the nuclear norm xi lies in the
tangent space of the matrices with the rank of D, P is the projection onto it, and H is the second derivative of the
nuclear norm on these matrices with the curvature that the dual matrix adds; H is diagonal in the basis of singular
vectors (`_NuclearSystem`). R is 0 for hard margins and for the hinge, and 1 / (2 C) for the squared hinge. A query whose
slack is positive fixes the sum of its multipliers, so that its rows act through their differences from the first one.

The matrix of the system is symmetric: products with the Jacobian (``jvp``) and with its transpose (``vjp``) solve the same
system. With ``F = G`` and ``g = 0`` its solution ``(P, eta)`` gives the gradient of ``<G, W>``: ``mu_k P - eta_k W`` for
``A_k``, ``eta_k`` for ``c_k``, and ``G - sum_k eta_k A_k`` for W0.

Where the system is singular or the support is not strict, W has no derivative: such problems are listed as faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.margin_problem import EitherProblem
from attsvm.solvers.margin_solution import EitherSolution
from attsvm.solvers.nuclear.symmetric_matrices import triangle
from attsvm.solvers.penalty import EitherPenalty

__all__ = [
    "STRICT",
    "ActiveRows",
    "Fault",
    "ImplicitSystem",
    "LocalRows",
    "RowGradient",
    "active_rows",
    "dependent_rows",
    "dual_vectors",
    "factors_of",
    "local_rows",
]

# Margins and multipliers of certified solutions are accurate to about 1e-8, relative to 1 and to the largest multiplier;
# what is within this of a kink cannot be told from it.
STRICT = 1e-6
# Entries of the arrays that one group of a batch may fill at once.
_ELEMENTS = 1 << 22


class Fault(NamedTuple):
    """Why a problem has no derivative: the row that shows it (-1 for none in particular) and the reason."""

    row: int
    reason: str


@dataclass(frozen=True, eq=False)
class ActiveRows:
    """What the rows of a solution do, as a batch (of one for a single problem).

    Attributes
    ----------
    problem : MarginProblem
    solved : ndarray of bool, shape (B,)
    multipliers : ndarray, shape (B, m)
        Of the optimality conditions ``D = sum mu A`` (Frobenius) or ``sum mu A`` in the subdifferential of the norm at D.
    sign : ndarray, shape (B, m)
        -1 for equality rows with a negative multiplier, else 1.
    met : ndarray of bool, shape (B, m)
        The margin plus the slack is what the row requires.
    support : ndarray of bool, shape (B, m)
        The multiplier is not 0, or it may have either sign.
    fixed : ndarray of bool, shape (B, m)
        The slack of this row alone is positive, so that its multiplier is C.
    bounded : ndarray of bool, shape (B, m)
        The slack of the row's query is positive, so that the multipliers of the query sum to C.
    faults : dict of int to Fault
        Problems whose support is not strict.
    """

    problem: EitherProblem
    solved: BoolArray
    multipliers: FloatArray
    sign: FloatArray
    met: BoolArray
    support: BoolArray
    fixed: BoolArray
    bounded: BoolArray
    faults: dict[int, Fault]


def _batched(array: FloatArray | BoolArray, problem: EitherProblem) -> FloatArray:
    return np.asarray(array if problem.batch else array[None])


def _change(solution: EitherSolution) -> FloatArray:
    return _batched(solution.W, solution.problem)


def active_rows(solution: EitherSolution, tolerance: float = STRICT) -> ActiveRows:
    """Which rows hold W in place, and whether that can be told.

    Parameters
    ----------
    solution : MarginSolution
        With a W; problems of a batch without one are left out.
    tolerance : float
        Margins, slacks and multipliers (relative to the largest) within this of a kink count as at the kink.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, solve
    >>> from attsvm.solvers.implicit import active_rows
    >>> found = active_rows(solve(MarginProblem([[1.0], [2.0]], [[1.0]], [0, 0])))
    >>> found.support.tolist(), found.faults
    ([[True, False]], {})
    """
    problem = solution.problem
    D = _change(solution)
    lam, equality = _batched(solution.multipliers, problem), _batched(problem.equality, problem).astype(bool)
    solved = np.isfinite(lam).all(axis=-1) & np.isfinite(D).all(axis=(-2, -1))
    lam, D = np.where(solved[:, None], lam, 0.0), np.where(solved[:, None, None], D, 0.0)
    with np.errstate(invalid="ignore"):
        off = _batched(problem.margins(D if problem.batch else D[0]) - problem.rhs, problem)
    missed = np.where(equality, np.abs(off), np.maximum(-off, 0.0))
    allowance = tolerance * _batched(problem.allowance, problem)
    size = np.abs(lam) * _batched(problem.row_norms, problem)
    positive = size > tolerance * np.maximum(size.max(axis=-1, keepdims=True), np.finfo(float).tiny)
    sign = np.where(equality & (lam < 0), -1.0, 1.0)
    penalty, nothing = problem.penalty, np.zeros(lam.shape, dtype=bool)
    scale = solution.norm_kind.name == "frobenius" and penalty is None
    norm = np.atleast_1d(np.asarray(solution.norm)) if scale else np.ones(len(lam))
    multipliers = np.where(positive | equality, lam, 0.0) * np.where(np.isfinite(norm), norm, 0.0)[:, None]
    valid = solved[:, None] & (np.ones(lam.shape, bool) if problem.valid is None else _batched(problem.valid, problem))
    if penalty is None:
        met = np.abs(off) <= allowance
        support = valid & (positive | equality)
        faults = _faults(valid, support, met, nothing)
        return ActiveRows(problem, solved, multipliers, sign, met & valid, support, nothing, nothing, faults)
    slack, load = _slack_and_load(penalty, problem, missed, lam)
    C = np.asarray(penalty.C).reshape(-1, 1)
    met = np.abs(sign * off + slack) <= allowance
    at_bound = (load >= C * (1.0 - tolerance)) if penalty.loss == "hinge" else nothing
    either = equality & ~at_bound if penalty.loss == "hinge" else equality & (penalty.slack == "row")
    support = valid & (positive | either)
    torn = support & (at_bound != (slack > allowance)) if penalty.loss == "hinge" else nothing
    per_row = penalty.slack == "row"
    faults = _faults(valid, support, met, torn)
    return ActiveRows(
        problem, solved, multipliers, sign, met & valid, support, at_bound & per_row, at_bound & (not per_row), faults
    )  # fmt: skip


def _slack_and_load(
    penalty: EitherPenalty, problem: EitherProblem, missed: FloatArray, lam: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Slack that each row has, and the sum of the multipliers that share it, shape (B, m) each."""
    owner = np.broadcast_to(problem.owner, lam.shape)
    slacks, loads = penalty.slacks(missed, owner, problem.q), penalty.loads(lam, owner, problem.q)
    return penalty.of_rows(slacks, owner), penalty.of_rows(loads, owner)


def _faults(valid: BoolArray, support: BoolArray, met: BoolArray, torn: BoolArray) -> dict[int, Fault]:
    """The first row of each problem that is at a kink, or that contradicts its multiplier."""
    reasons = (
        (valid & ~support & met, "is met with equality, but its multiplier is 0: the support is not strict"),
        (torn, "has a multiplier at the bound C, but no slack: the support is not strict"),
        (support & ~met, "has a multiplier, but is not met with equality: W is not accurate enough"),
    )
    found: dict[int, Fault] = {}
    for at, reason in reasons:
        if at.any():
            for b in np.flatnonzero(at.any(axis=-1)).tolist():
                found.setdefault(b, Fault(int(at[b].argmax()), reason))
    return found


@dataclass(frozen=True, eq=False)
class LocalRows:
    """The rows of the system, divided by their norms, as a batch; fewer ones are filled with zeros.

    Attributes
    ----------
    index, first : ndarray of int, shape (B, k)
        Row of the problem; and the one whose difference from it counts, where ``tied``.
    real, tied : ndarray of bool, shape (B, k)
    left, right : ndarray, shape (B, k, dx) and (B, k, dz)
    scale, first_scale : ndarray, shape (B, k)
        ``local row = scale * row[index] - first_scale * row[first]``.
    ridge : ndarray, shape (B, k)
        R of the module's text.
    """

    index: IntArray
    first: IntArray
    real: BoolArray
    tied: BoolArray
    left: FloatArray
    right: FloatArray
    scale: FloatArray
    first_scale: FloatArray
    ridge: FloatArray

    def values_of(self, per_row: FloatArray) -> FloatArray:
        """From one number per row of the problem, (B, m), to one per local row, (B, k)."""
        own, tied_to = (np.take_along_axis(per_row, at, axis=-1) for at in (self.index, self.first))
        return np.asarray(self.scale * own - self.first_scale * tied_to)

    def spread(self, y: FloatArray, m: int) -> FloatArray:
        """The transpose of `values_of`: shape (B, m)."""
        out, problem = np.zeros((len(y), m)), np.arange(len(y))[:, None]
        np.add.at(out, (problem, self.index), self.scale * y)
        if self.tied.any():
            np.add.at(out, (problem, self.first), -self.first_scale * y)
        return out

    def of_problems(self, index: IntArray) -> LocalRows:
        """Those of some problems, with no more columns than they need."""
        k = max(1, int(self.real[index].sum(axis=-1).max(initial=0)))
        fields = (self.index, self.first, self.real, self.tied, self.left, self.right)
        rest = (self.scale, self.first_scale, self.ridge)
        return LocalRows(*(x[index, :k] for x in fields), *(x[index, :k] for x in rest))

    @property
    def gram(self) -> FloatArray:
        """Inner products of the local rows, shape (B, k, k); 1 on the diagonal of the filled ones."""
        return np.asarray((self.left @ self.left.mT) * (self.right @ self.right.mT))

    def filled(self, matrix: FloatArray) -> FloatArray:
        """A matrix (B, k, k) with R, and with 1 on the diagonal where there is no row."""
        k = matrix.shape[-1]
        matrix[:, np.arange(k), np.arange(k)] += np.where(self.real, self.ridge, 1.0)
        return matrix


def local_rows(found: ActiveRows, chosen: BoolArray) -> LocalRows:
    """The rows through which W is held in place, from those that are chosen, shape (B, m).

    A row whose own slack is positive holds nothing; rows of a query with a slack act through their differences, and with
    a squared hinge the first one of them through a spring.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, solve
    >>> from attsvm.solvers.implicit import active_rows, local_rows
    >>> found = active_rows(solve(MarginProblem([[1.0], [2.0]], [[1.0]], [0, 0])))
    >>> local_rows(found, found.support).index
    array([[0]])
    """
    problem, penalty = found.problem, found.problem.penalty
    chosen = chosen & ~found.fixed
    B, m = chosen.shape
    tied = first = None
    squared = penalty is not None and penalty.loss == "squared_hinge"
    if penalty is not None and penalty.slack == "query":
        tied, first, chosen = _tied(found, chosen, squared)
    count = chosen.sum(axis=-1)
    k = max(1, int(count.max(initial=0)))
    index = np.argsort(~chosen, axis=-1, kind="stable")[:, :k].astype(np.int64)
    real = np.arange(k) < count[:, None]
    a, b = factors_of(problem, index)
    sign = np.where(real, np.take_along_axis(found.sign, index, axis=-1), 0.0)
    left = a * sign[..., None]
    at_first, is_tied, signs = index, np.zeros((B, k), dtype=bool), np.zeros((B, k))
    if tied is not None and first is not None:
        is_tied = np.take_along_axis(tied, index, axis=-1) & real
        at_first = np.where(is_tied, np.take_along_axis(first, index, axis=-1), index)
        signs = np.where(is_tied, np.take_along_axis(found.sign, at_first, axis=-1), 0.0)
        left = left - signs[..., None] * factors_of(problem, at_first)[0]
    size = np.sqrt(np.vecdot(left, left) * np.vecdot(b, b))
    inverse = np.divide(1.0, size, out=np.zeros_like(size), where=size > 0)
    length = np.sqrt(np.vecdot(b, b))
    left = left * (inverse * length)[..., None]
    right = b * np.divide(1.0, length, out=np.zeros_like(length), where=length > 0)[..., None]
    ridge = np.zeros((B, k))
    if squared and penalty is not None:
        each = 0.5 / np.asarray(penalty.C, dtype=np.float64).reshape(-1, 1) * inverse**2
        ridge = np.where(is_tied | ~real, 0.0, each)
    return LocalRows(index, at_first, real, is_tied, left, right, sign * inverse, signs * inverse, ridge)


def _tied(found: ActiveRows, chosen: BoolArray, squared: bool) -> tuple[BoolArray, IntArray, BoolArray]:
    """Rows that act through their difference from the first one of their query, that row, and what is still chosen."""
    B, m = chosen.shape
    owner = np.broadcast_to(found.problem.owner, (B, m))
    sharing = chosen if squared else chosen & found.bounded
    keys = (owner + found.problem.q * np.arange(B)[:, None])[sharing]
    place = np.broadcast_to(np.arange(m), (B, m))[sharing]
    _, at, back = np.unique(keys, return_index=True, return_inverse=True)
    first = np.zeros((B, m), dtype=np.int64)
    first[sharing] = place[at][back]
    heads = sharing & (first == np.arange(m))
    return sharing & ~heads, first, chosen if squared else chosen & ~heads


def factors_of(problem: EitherProblem, index: IntArray) -> tuple[FloatArray, FloatArray]:
    """Left and right factors of rows (B, k), shape (B, k, dx) and (B, k, dz)."""
    if not problem.batch:
        pairs = problem.rows.gather(index[0])
        a, b = pairs.a, pairs.queries[pairs.owner]
        return np.asarray(a, dtype=np.float64)[None], np.asarray(b, dtype=np.float64)[None]
    pairs = problem.pairs()
    owner = np.take_along_axis(np.broadcast_to(pairs.owner, (len(index), pairs.m)), index, axis=-1)
    a = np.take_along_axis(pairs.a, index[..., None], axis=-2)
    b = np.take_along_axis(pairs.queries, owner[..., None], axis=-2)
    return np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)


def dependent_rows(gram: FloatArray, tolerance: float = STRICT) -> IntArray:
    """Of Gram matrices of unit rows, (B, k, k): a row that the ones before it determine, or -1; shape (B,).

    The diagonal of the Cholesky factor holds the distance of each row from the span of those before it.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.implicit import dependent_rows
    >>> dependent_rows(np.array([[[1.0, 0.5], [0.5, 1.0]], [[1.0, 1.0], [1.0, 1.0]]]))
    array([-1,  1])
    """
    if not gram.shape[-1]:
        return np.full(len(gram), -1)
    try:
        distance = np.diagonal(np.linalg.cholesky(gram), axis1=-2, axis2=-1)
    except np.linalg.LinAlgError:
        if len(gram) == 1:
            k = gram.shape[-1]
            for size in range(1, k + 1):
                try:
                    last = np.linalg.cholesky(gram[0, :size, :size])[-1, -1]
                except np.linalg.LinAlgError:
                    last = 0.0
                if last <= tolerance:
                    return np.array([size - 1])
            return np.array([-1])
        return np.concatenate([dependent_rows(one[None], tolerance) for one in gram])
    low = distance <= tolerance
    return np.where(low.any(axis=-1), low.argmax(axis=-1), -1)


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

    def __init__(self, solution: EitherSolution, tolerance: float = STRICT) -> None:
        norm = solution.norm_kind.name
        if norm not in ("frobenius", "nuclear"):
            raise ValueError(f"the derivative of W is known in the norms 'frobenius' and 'nuclear', got {norm!r}")
        self.active = active_rows(solution, tolerance)
        self._problem, self._m, self._solved = solution.problem, solution.problem.m, self.active.solved
        self.faults = dict(self.active.faults)
        rows = local_rows(self.active, self.active.support)
        size, shape = len(self._solved), solution.problem.shape
        self._parts: list[tuple[IntArray, LocalRows, _Solver]] = []
        if norm == "frobenius":
            everyone = np.arange(size)
            self._parts.append((everyone, rows, _frobenius(rows, everyone, self.faults)))
            return
        D = np.where(self._solved[:, None, None], _change(solution), 0.0)
        for members, vectors in dual_vectors(self._problem, self.active.multipliers, D, tolerance):
            if vectors.rank != vectors.dual_rank:
                self._blame_rank(members, vectors.rank, vectors.dual_rank)
                continue
            width = rows.left.shape[1] * sum(shape) * max(1, vectors.rank)
            step = max(1, _ELEMENTS // width)
            for low in range(0, len(members), step):
                some = slice(low, low + step)
                part = rows.of_problems(members[some])
                solver = _nuclear(part, vectors.of_problems(some), members[some], self.faults)
                self._parts.append((members[some], part, solver))

    def _blame_rank(self, members: IntArray, rank: int, dual_rank: int) -> None:
        for b in members[self._solved[members]].tolist():
            why = (
                f"{dual_rank} singular values of the dual matrix are 1, but W has rank {rank}: the rank may grow"
                if dual_rank > rank
                else f"W has rank {rank}, but {dual_rank} singular values of the dual matrix are 1: not accurate enough"
            )
            self.faults.setdefault(b, Fault(-1, why))

    def _solve(self, F: FloatArray, sides: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """``(xi, y)`` of the system, y per row of the problem; NaN where W has no derivative."""
        xi, out = np.full(F.shape, np.nan), np.full((len(F), self._m), np.nan)
        for members, rows, solver in self._parts:
            g = np.zeros(rows.real.shape) if sides is None else rows.values_of(sides[members])
            found, y = solver(F[members], g)
            xi[members], out[members] = found, rows.spread(y, self._m)
        broken = [*self.faults, *np.flatnonzero(~self._solved).tolist()]
        xi[broken], out[broken] = np.nan, np.nan
        return xi, out

    def vjp(self, G: FloatArray) -> RowGradient:
        """Gradient of ``<G, W>`` for G of shape (B, dx, dz); NaN where W has no derivative."""
        along, sides = self._solve(G, None)
        taken = self._problem.adjoint(sides if self._problem.batch else sides[0])
        return RowGradient(self.active.multipliers, along, sides, G - _batched(taken, self._problem))

    def jvp(self, F: FloatArray, sides: FloatArray) -> FloatArray:
        """Change of ``D = W - W0`` for ``F = sum mu_k dA_k``, (B, dx, dz), and g of the module's text, (B, m)."""
        return self._solve(F, sides)[0]


def _frobenius(rows: LocalRows, members: IntArray, faults: dict[int, Fault]) -> _Solver:
    """``(G + R) y = <A, F> - g`` and ``xi = F - sum y A``."""
    gram = rows.filled(rows.gram)
    _blame_rows(rows, gram, members, faults)

    def solve(F: FloatArray, g: FloatArray) -> tuple[FloatArray, FloatArray]:
        sides = np.where(rows.real, np.vecdot(rows.left @ F, rows.right) - g, 0.0)
        y = np.linalg.solve(gram, sides[..., None])[..., 0]
        return F - (rows.left * y[..., None]).mT @ rows.right, y

    return solve


def _blame_rows(rows: LocalRows, gram: FloatArray, members: IntArray, faults: dict[int, Fault]) -> None:
    """Enter problems with dependent rows among the faults; their matrices become the identity."""
    dependent = dependent_rows(gram)
    for at in np.flatnonzero(dependent >= 0).tolist():
        row = int(rows.index[at, dependent[at]])
        faults.setdefault(int(members[at]), Fault(row, "depends linearly on other rows of the support"))
        gram[at] = np.eye(gram.shape[-1])


class _Vectors(NamedTuple):
    """Singular vectors of dual matrices of problems with the same ranks.

    ``left (B, dx, dx)`` and ``right (B, dz, dz)`` are complete bases: the first ``rank`` columns are those of D with the
    singular values ``values (B, rank)``, the following up to ``dual_rank`` belong to singular values 1 of the dual matrix,
    whose singular values are ``dual (B, min(dx, dz))``.
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
    Y = _batched(problem.adjoint(multipliers if problem.batch else multipliers[0]), problem)
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


class _Coordinates(NamedTuple):
    """A matrix in the tangent space: symmetric part (..., s), rest (..., p)."""

    symmetric: FloatArray
    rest: FloatArray


def _tangent_coordinates(top: FloatArray, below: FloatArray, beside: FloatArray) -> _Coordinates:
    """Orthonormal coordinates of ``[[top, beside], [below, .]]`` in the basis of `_Vectors`.

    ``top (..., r, r)``, ``below (..., dx - r, r)``, ``beside (..., r, dz - r)``. The rest lists the antisymmetric part, the
    sums and differences of mirrored entries of ``below`` and ``beside``, and what has no mirror image.
    """
    lead, r = top.shape[:-2], top.shape[-1]
    row, column, weight, _ = triangle(r)
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
    ``(1 - tau_j) / sigma_i`` on sums and ``(1 + tau_j) / sigma_i`` on differences of mirrored entries, else ``1 / sigma_i``.
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
    _blame_rows(rows, rows.filled(A.symmetric @ A.symmetric.mT + A.rest @ A.rest.mT), members, faults)
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
