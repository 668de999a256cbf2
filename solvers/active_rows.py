"""Which rows hold a solution in place, and whether that can be told; the linear algebra of these rows.

A solution with a strict support is held by the rows that have a multiplier: all others may move a little without
moving W. `active_rows` sorts the rows of one problem or a batch by what they do, and `local_rows` returns those
through which W is held, divided by their norms; their Gram matrix says whether they are independent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.margin_problem import EitherProblem
from attsvm.solvers.margin_solution import EitherSolution
from attsvm.solvers.penalty import EitherPenalty

__all__ = [
    "STRICT",
    "ActiveRows",
    "Fault",
    "LocalRows",
    "active_rows",
    "as_batch",
    "cholesky",
    "dependent_rows",
    "factors_of",
    "local_rows",
    "taken",
]

# Margins and multipliers of certified solutions are accurate to about 1e-8, relative to 1 and to the largest
# multiplier; what is within this of a kink cannot be told from it.
STRICT = 1e-6
_Entry = TypeVar("_Entry", bound=np.generic)


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
        Of the optimality conditions ``D = sum mu A`` (Frobenius) or ``sum mu A`` in the subdifferential of the norm
        at D.
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


def as_batch(array: FloatArray | BoolArray, problem: EitherProblem) -> FloatArray:
    """What belongs to a problem, with a batch axis of length 1 if it has none."""
    return np.asarray(array if problem.batch else array[None])


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
    >>> from attsvm.solvers.active_rows import active_rows
    >>> found = active_rows(solve(MarginProblem([[1.0], [2.0]], [[1.0]], [0, 0])))
    >>> found.support.tolist(), found.faults
    ([[True, False]], {})
    """
    problem, penalty = solution.problem, solution.problem.penalty
    D, lam = as_batch(solution.W, problem), as_batch(solution.multipliers, problem)
    solved = np.isfinite(lam[:, 0])
    whole = bool(solved.all())
    if not whole:
        lam, D = np.where(solved[:, None], lam, 0.0), np.where(solved[:, None, None], D, 0.0)
    off = as_batch(problem.margins(D if problem.batch else D[0]) - problem.rhs, problem)
    size = np.abs(lam) * as_batch(problem.row_norms, problem)
    positive = size > tolerance * np.maximum(size.max(axis=-1, keepdims=True), np.finfo(np.float64).tiny)
    equality = None if not problem.equality.any() else as_batch(problem.equality, problem).astype(bool)
    valid = _existing(problem, solved, lam.shape)
    mu = np.where(positive if equality is None else positive | equality, lam, 0.0)
    sign = None if equality is None else np.where(equality & (lam < 0), -1.0, 1.0)
    if solution.norm_kind.name == "frobenius" and penalty is None:
        norm = np.asarray(solution.norm).reshape(-1, 1)
        mu *= norm if whole else np.where(solved[:, None], norm, 0.0)
    allowance: FloatArray | float = tolerance
    if not problem.is_plain:
        allowance = tolerance * as_batch(problem.allowance, problem)
    fixed = bounded = torn = None
    short, apart, support = 0.0, off, positive if equality is None else positive | equality
    if penalty is not None:
        signed = off if sign is None else sign * off
        found = _soft(penalty, problem, (off, signed, lam), positive, equality, tolerance)
        apart, support, at_bound, share = found.apart, found.support, found.at_bound, found.share
        mu, short = mu * share, float(np.abs(share - 1.0).max(initial=0.0))
        if penalty.loss == "hinge":
            torn = _and(valid, support & (at_bound != (found.slack > allowance)))
        fixed, bounded = (at_bound, None) if penalty.slack == "row" else (None, at_bound)
    met = np.abs(apart) <= allowance
    met, support = _and(valid, met), _and(valid, support)
    missed_by = max(short, float(np.abs(apart[support]).max(initial=0.0)))
    return ActiveRows(problem, solved, mu, sign, met, support, fixed, bounded, missed_by, _faults(support, met, torn))


def _and(valid: BoolArray | None, flags: BoolArray) -> BoolArray:
    return flags if valid is None else flags & valid


def _existing(problem: EitherProblem, solved: BoolArray, shape: tuple[int, ...]) -> BoolArray | None:
    """Rows that exist, of problems that are solved, shape (B, m); None for all."""
    whole = bool(solved.all())
    if problem.valid is None:
        return None if whole else np.broadcast_to(solved[:, None], shape)
    valid = as_batch(problem.valid, problem).astype(bool)
    return valid if whole else valid & solved[:, None]


class _SoftRows(NamedTuple):
    """What a soft margin makes of its rows, shape (B, m) each."""

    apart: FloatArray  # margin plus slack less what the row requires
    support: BoolArray
    at_bound: BoolArray  # multipliers of the slack sum to C
    share: FloatArray  # what multipliers at the bound are off by
    slack: FloatArray


def _soft(
    penalty: EitherPenalty,
    problem: EitherProblem,
    values: tuple[FloatArray, FloatArray, FloatArray],
    positive: BoolArray,
    equality: BoolArray | None,
    tolerance: float,
) -> _SoftRows:
    """Rows of a soft margin from ``margins - rhs``, the same with signs, and the multipliers."""
    off, signed, lam = values
    both = np.zeros(lam.shape, dtype=bool) if equality is None else equality
    missed, owner = np.where(both, np.abs(off), np.maximum(-off, 0.0)), np.broadcast_to(problem.owner, lam.shape)
    slack = penalty.of_rows(penalty.slacks(missed, owner, problem.q), owner)
    if penalty.loss == "squared_hinge":
        support = positive | (both if penalty.slack == "row" else np.zeros_like(both))
        return _SoftRows(signed + slack, support, np.zeros_like(both), np.ones_like(lam), slack)
    load = penalty.of_rows(penalty.loads(lam, owner, problem.q), owner)
    C = np.broadcast_to(np.asarray(penalty.C, dtype=np.float64).reshape(-1, 1), lam.shape)
    at_bound = load >= C * (1.0 - tolerance)
    share = np.divide(C, load, out=np.ones_like(load), where=at_bound)
    # Below the bound a slack is what the solver left.
    apart = signed + np.where(at_bound, slack, 0.0)
    return _SoftRows(apart, positive | (both & ~at_bound), at_bound, share, slack)


def _faults(support: BoolArray, met: BoolArray, torn: BoolArray | None) -> dict[int, Fault]:
    """The first row of each problem that is at a kink, or that contradicts its multiplier."""
    found: dict[int, Fault] = {}
    if torn is None and np.array_equal(support, met):
        return found
    reasons = (
        (met & ~support, "is met with equality, but its multiplier is 0: the support is not strict"),
        (torn, "has a multiplier at the bound C, but no slack: the support is not strict"),
        (support & ~met, "has a multiplier, but is not met with equality: solve with a smaller tolerance="),
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
        return np.asarray(self.scale * taken(per_row, self.index) - self.first_scale * taken(per_row, self.first))

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
        at = (index, slice(0, k))
        return LocalRows(
            self.index[at], self.first[at], self.real[at], self.tied[at], self.left[at], self.right[at],
            self.scale[at], self.first_scale[at], self.ridge[at],
        )  # fmt: skip

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

    A row whose own slack is positive holds nothing; rows of a query with a slack act through their differences, and
    with a squared hinge the first one of them through a spring.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, solve
    >>> from attsvm.solvers.active_rows import active_rows, local_rows
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
        is_tied = taken(tied, index) & real
        at_first = np.where(is_tied, taken(first, index), index)
        signs = is_tied * (1.0 if found.sign is None else taken(found.sign, at_first))
    if not is_tied.any():
        size = taken(as_batch(problem.row_norms, problem), index)
        sign = real * (1.0 if found.sign is None else taken(found.sign, index))
        scale = np.divide(sign, size, out=np.zeros_like(size), where=size > 0)
        left, first_scale = a * scale[..., None], signs
    else:
        sign = real * (1.0 if found.sign is None else taken(found.sign, index))
        left = a * sign[..., None] - signs[..., None] * factors_of(problem, at_first)[0]
        size = np.sqrt(np.vecdot(left, left) * np.vecdot(b, b))
        inverse = np.divide(1.0, size, out=np.zeros_like(size), where=size > 0)
        left, scale, first_scale = left * inverse[..., None], sign * inverse, signs * inverse
    ridge = np.zeros(real.shape)
    if squared and penalty is not None:
        each = 0.5 / np.asarray(penalty.C, dtype=np.float64).reshape(-1, 1) * scale**2
        ridge = np.where(is_tied, 0.0, each)
    return LocalRows(index, at_first, real, is_tied, left, b, scale, first_scale, ridge)


def taken(per_row: npt.NDArray[_Entry], index: npt.NDArray[np.int64]) -> npt.NDArray[_Entry]:
    """Of numbers per row (B, m), or of all problems alike, those of an index (B, k)."""
    B, m = per_row.shape
    found: npt.NDArray[_Entry] = per_row.reshape(-1).take(index + m * np.arange(B)[:, None])
    return found


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
    pairs, B = problem.pairs(), len(index)
    problems = np.arange(B)[:, None]
    owner = pairs.owner.take(index) if pairs.owner.ndim == 1 else taken(pairs.owner, index)
    a = pairs.a.reshape(B * pairs.m, -1).take(index + pairs.m * problems, axis=0)
    b = pairs.queries.reshape(B * pairs.q, -1).take(owner + pairs.q * problems, axis=0)
    return np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)


def dependent_rows(gram: FloatArray, tolerance: float = STRICT) -> IntArray:
    """Of Gram matrices of unit rows, (B, k, k): a row that the ones before it determine, or -1; shape (B,).

    The diagonal of the Cholesky factor holds the distance of each row from the span of those before it.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.active_rows import dependent_rows
    >>> dependent_rows(np.array([[[1.0, 0.5], [0.5, 1.0]], [[1.0, 1.0], [1.0, 1.0]]]))
    array([-1,  1])
    """
    return cholesky(gram.copy(), tolerance)[1]


def cholesky(gram: FloatArray, tolerance: float = STRICT) -> tuple[FloatArray, IntArray]:
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
