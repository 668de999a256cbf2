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
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

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
_TINY = float(np.finfo(np.float64).tiny)
# Newton steps that refine a nuclear-norm solution, the residual at which they end, and how far W may move by them.
_NEWTON_STEPS, _RESIDUAL, _REFINED = 3, 1e-12, 1e-3
# What rows of the support may be missed by before W of the Frobenius norm, for which one step is exact, is refined.
_EXACT = 1e-11
_Entry = TypeVar("_Entry", bound=np.generic)
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
    sign : ndarray, shape (B, m), or None
        -1 for equality rows with a negative multiplier, else 1; None where there are no equality rows.
    met : ndarray of bool, shape (B, m)
        The margin plus the slack is what the row requires.
    support : ndarray of bool, shape (B, m)
        The multiplier is not 0, or it may have either sign.
    fixed : ndarray of bool, shape (B, m), or None
        The slack of this row alone is positive, so that its multiplier is C.
    bounded : ndarray of bool, shape (B, m), or None
        The slack of the row's query is positive, so that the multipliers of the query sum to C.
    missed : float
        Largest distance of a row of the support from equality, and of multipliers at the bound from it.
    faults : dict of int to Fault
        Problems whose support is not strict.
    """

    problem: EitherProblem
    solved: BoolArray
    multipliers: FloatArray
    sign: FloatArray | None
    met: BoolArray
    support: BoolArray
    fixed: BoolArray | None
    bounded: BoolArray | None
    missed: float
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
    problem, penalty = solution.problem, solution.problem.penalty
    D, lam = _change(solution), _batched(solution.multipliers, problem)
    solved = np.isfinite(lam[:, 0])
    whole = bool(solved.all())
    if not whole:
        lam, D = np.where(solved[:, None], lam, 0.0), np.where(solved[:, None, None], D, 0.0)
    off = _batched(problem.margins(D if problem.batch else D[0]) - problem.rhs, problem)
    size = np.abs(lam) * _batched(problem.row_norms, problem)
    positive = size > tolerance * np.maximum(size.max(axis=-1, keepdims=True), _TINY)
    equality = None if not problem.equality.any() else _batched(problem.equality, problem).astype(bool)
    valid = None if problem.valid is None else _batched(problem.valid, problem).astype(bool)
    if not whole:
        valid = np.broadcast_to(solved[:, None], lam.shape) if valid is None else valid & solved[:, None]
    mu = np.where(positive if equality is None else positive | equality, lam, 0.0)
    sign = None if equality is None else np.where(equality & (lam < 0), -1.0, 1.0)
    if solution.norm_kind.name == "frobenius" and penalty is None:
        norm = np.asarray(solution.norm).reshape(-1, 1)
        mu *= norm if whole else np.where(solved[:, None], norm, 0.0)
    allowance: FloatArray | float = tolerance
    if not problem.is_plain:
        allowance = tolerance * _batched(problem.allowance, problem)
    if penalty is None:
        apart, support = off, positive if equality is None else positive | equality
        fixed = bounded = torn = None
        short = 0.0
    else:
        both = np.zeros(lam.shape, dtype=bool) if equality is None else equality
        missed = np.where(both, np.abs(off), np.maximum(-off, 0.0))
        slack, load = _slack_and_load(penalty, problem, missed, lam)
        hinge, per_row = penalty.loss == "hinge", penalty.slack == "row"
        C = np.asarray(penalty.C).reshape(-1, 1)
        at_bound = load >= C * (1.0 - tolerance) if hinge else np.zeros_like(both)
        share = np.divide(C, load, out=np.ones_like(load), where=at_bound)
        # Below the bound a slack is what the solver left.
        apart = (off if sign is None else sign * off) + (np.where(at_bound, slack, 0.0) if hinge else slack)
        mu, short = mu * share, float(np.abs(share - 1.0).max(initial=0.0))
        support = positive | (both & ~at_bound if hinge else both & per_row)
        torn = support & (at_bound != (slack > allowance)) if hinge else None
        fixed, bounded = (at_bound, None) if per_row else (None, at_bound)
    met = np.abs(apart) <= allowance
    if valid is not None:
        met, support = met & valid, support & valid
        torn = None if torn is None else torn & valid
    missed_by = max(short, float(np.where(support, np.abs(apart), 0.0).max(initial=0.0)))
    return ActiveRows(problem, solved, mu, sign, met, support, fixed, bounded, missed_by, _faults(support, met, torn))


def _slack_and_load(
    penalty: EitherPenalty, problem: EitherProblem, missed: FloatArray, lam: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Slack that each row has, and the sum of the multipliers that share it, shape (B, m) each."""
    owner = np.broadcast_to(problem.owner, lam.shape)
    slacks, loads = penalty.slacks(missed, owner, problem.q), penalty.loads(lam, owner, problem.q)
    return penalty.of_rows(slacks, owner), penalty.of_rows(loads, owner)


def _faults(support: BoolArray, met: BoolArray, torn: BoolArray | None) -> dict[int, Fault]:
    """The first row of each problem that is at a kink, or that contradicts its multiplier."""
    found: dict[int, Fault] = {}
    if torn is None and np.array_equal(support, met):
        return found
    reasons = (
        (met & ~support, "is met with equality, but its multiplier is 0: the support is not strict"),
        (torn, "has a multiplier at the bound C, but no slack: the support is not strict"),
        (support & ~met, "has a multiplier, but is not met with equality: W is not accurate enough"),
    )
    for at, reason in reasons:
        if at is not None and at.any():
            for b in np.flatnonzero(at.any(axis=-1)).tolist():
                found.setdefault(b, Fault(int(at[b].argmax()), reason))
    return found


@dataclass(frozen=True, eq=False)
class LocalRows:
    """The rows ``left right^T`` of the system, of norm 1, as a batch; fewer ones are filled with zeros.

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
        return np.asarray(self.scale * _taken(per_row, self.index) - self.first_scale * _taken(per_row, self.first))

    def spread(self, y: FloatArray, m: int) -> FloatArray:
        """The transpose of `values_of`: shape (B, m)."""
        B = len(y)
        out, problem = np.zeros(B * m), m * np.arange(B)[:, None]
        # Filled places name rows that others name, too, hence with weight 0.
        np.add.at(out, self.index + problem, self.scale * y)
        if self.tied.any():
            np.add.at(out, self.first + problem, -self.first_scale * y)
        return out.reshape(B, m)

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
    if found.fixed is not None:
        chosen = chosen & ~found.fixed
    tied = first = None
    squared = penalty is not None and penalty.loss == "squared_hinge"
    if penalty is not None and penalty.slack == "query":
        tied, first, chosen = _tied(found, chosen, squared)
    count = chosen.sum(axis=-1)
    k = max(1, int(count.max(initial=0)))
    index = np.argsort(~chosen, axis=-1, kind="stable")[:, :k]
    real = np.arange(k) < count[:, None]
    a, b = factors_of(problem, index)
    at_first, is_tied, signs = index, np.zeros(real.shape, dtype=bool), np.zeros(real.shape)
    if tied is not None and first is not None and tied.any():
        is_tied = _taken(tied, index) & real
        at_first = np.where(is_tied, _taken(first, index), index)
        signs = is_tied * (1.0 if found.sign is None else _taken(found.sign, at_first))
    if not is_tied.any():
        size = _taken(_batched(problem.row_norms, problem), index)
        sign = real * (1.0 if found.sign is None else _taken(found.sign, index))
        scale = np.divide(sign, size, out=np.zeros_like(size), where=size > 0)
        left, first_scale = a * scale[..., None], signs
    else:
        sign = real * (1.0 if found.sign is None else _taken(found.sign, index))
        left = a * sign[..., None] - signs[..., None] * factors_of(problem, at_first)[0]
        size = np.sqrt(np.vecdot(left, left) * np.vecdot(b, b))
        inverse = np.divide(1.0, size, out=np.zeros_like(size), where=size > 0)
        left, scale, first_scale = left * inverse[..., None], sign * inverse, signs * inverse
    ridge = np.zeros(real.shape)
    if squared and penalty is not None:
        each = 0.5 / np.asarray(penalty.C, dtype=np.float64).reshape(-1, 1) * scale**2
        ridge = np.where(is_tied, 0.0, each)
    return LocalRows(index, at_first, real, is_tied, left, b, scale, first_scale, ridge)


def _taken(per_row: npt.NDArray[_Entry], index: npt.NDArray[np.int64]) -> npt.NDArray[_Entry]:
    """Of numbers per row (B, m), or of all problems alike, those of an index (B, k)."""
    B, m = per_row.shape
    return per_row.reshape(-1).take(index + m * np.arange(B)[:, None])


def _tied(found: ActiveRows, chosen: BoolArray, squared: bool) -> tuple[BoolArray, IntArray, BoolArray]:
    """Rows that act through their difference from the first one of their query, that row, and what is still chosen."""
    B, m = chosen.shape
    owner = np.broadcast_to(found.problem.owner, (B, m))
    sharing = chosen if squared or found.bounded is None else chosen & found.bounded
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
        a, b = pairs.a, pairs.queries.take(pairs.owner, axis=0)
        return np.asarray(a[None], dtype=np.float64), np.asarray(b[None], dtype=np.float64)
    pairs, (B, k) = problem.pairs(), index.shape
    problems = np.arange(B)[:, None]
    owner = pairs.owner.take(index) if pairs.owner.ndim == 1 else _taken(pairs.owner, index)
    a = pairs.a.reshape(B * pairs.m, -1).take(index + pairs.m * problems, axis=0)
    b = pairs.queries.reshape(B * pairs.q, -1).take(owner + pairs.q * problems, axis=0)
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
    return _cholesky(gram.copy(), tolerance)[1]


def _cholesky(gram: FloatArray, tolerance: float = STRICT) -> tuple[FloatArray, IntArray]:
    """Cholesky factors in place of the matrices, in the lower triangle, and `dependent_rows`."""
    from scipy.linalg.lapack import dpotrf

    if not gram.shape[-1]:
        return gram, np.full(len(gram), -1)
    ends = np.full(len(gram), -1)
    for at, matrix in enumerate(gram):  # a loop of LAPACK is twice as quick as np.linalg.cholesky
        _, info = dpotrf(matrix.T, overwrite_a=1, clean=0)
        if info:
            ends[at] = info - 1
    low = np.diagonal(gram, axis1=-2, axis2=-1) <= tolerance
    if low.any():
        early = np.where(low.any(axis=-1), low.argmax(axis=-1), gram.shape[-1])
        ends = np.where(ends < 0, np.where(early < gram.shape[-1], early, -1), np.minimum(early, ends))
    return gram, ends


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
        rows = local_rows(self.active, self.active.support)
        size, shape = len(self._solved), solution.problem.shape
        self._parts: list[tuple[IntArray, LocalRows, _Solver]] = []
        self.D = _change(solution)
        self.multipliers = self.active.multipliers.copy()
        self.resting = np.zeros(size, dtype=bool)
        if norm == "frobenius":
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
            self.faults.setdefault(b, Fault(-1, "Newton's method moves W away: it is not accurate enough"))
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
                else f"W has rank {rank}, but {dual_rank} singular values of the dual matrix are 1: not accurate enough"
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
        taken = self._problem.adjoint(sides if self._problem.batch else sides[0])
        return RowGradient(self.multipliers, along, sides, G - _batched(taken, self._problem))

    def jvp(self, F: FloatArray, sides: FloatArray) -> FloatArray:
        """Change of ``D = W - W0`` for ``F = sum mu_k dA_k``, (B, dx, dz), and g of the module's text, (B, m)."""
        return self._solve(F, sides)[0]


def _frobenius(rows: LocalRows, members: IntArray, faults: dict[int, Fault]) -> _Solver:
    """``(G + R) y = <A, F> - g`` and ``xi = F - sum y A``."""
    from scipy.linalg.lapack import dpotrs

    factor, dependent = _cholesky(rows.filled(rows.gram))
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
        Y = _batched(problem.adjoint(multipliers if problem.batch else multipliers[0]), problem)
        inverse = np.divide(1.0, rows.scale, out=np.zeros_like(rows.scale), where=rows.scale != 0)
        own = np.take_along_axis(multipliers, rows.index, axis=-1)
        shared = rows.spread(np.where(rows.tied, own * inverse, 0.0), multipliers.shape[-1])
        rest = np.where(rows.tied, own, own - np.take_along_axis(shared, rows.index, axis=-1))
        return cls(D, multipliers, Y, rows, rows.values_of(_batched(problem.rhs, problem)), rest * inverse)

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
