"""Every solver works on unit rows: each row divided by its norm, right-hand sides by the largest that results.

So tolerances and comparisons mean the same at every scale of the data. `UnitProblem` does this without touching the
rows (for any number of them, one problem or a batch); `UnitRows` are the explicit rows of one problem, in coordinates
of both their spans: replacing W by P W R, with P and R the projectors on the spans of the left factors and of the
queries, changes no row and raises no unitarily invariant norm (Lemma 1 of "Transformers as Support Vector
Machines" is the special case of the queries' span).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeAlias

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import Axis, Batch, BoolArray, FloatArray, IntArray
from attsvm.solvers.margin_problem import EitherProblem, MarginProblem

__all__ = ["UnitProblem", "UnitProblemBatch", "UnitRows", "scaled_to_range", "span"]

# Columns of workspace per column of a factorization: enough for blocked code.
_BLOCK = 64
# Row norms outside this range have squares that leave that of float64.
_SMALLEST, _LARGEST = 2.0**-400, 2.0**400


class UnitProblem(Generic[Axis]):
    """A margin problem seen through unit rows; a batch has a leading axis everywhere.

    Attributes
    ----------
    problem : MarginProblem
    m : int
        Number of rows.
    equality : ndarray of bool, shape (*batch, m)
    has_equalities, has_zero_rows : bool
    least_norm, largest_norm : float
        Of all rows.
    is_extreme : bool
        Some row is too large or too small for its square: nothing else is to be had.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.unit import UnitProblem
    >>> unit = UnitProblem(MarginProblem([[2.0], [0.0]], [[3.0]], [0, 0], rhs=[12.0, -1.0]))
    >>> unit.c, unit.scale
    (array([ 1., -0.]), array([2.]))
    """

    def __init__(self, problem: MarginProblem[Axis]) -> None:
        self.problem: MarginProblem[Axis] = problem
        self.m = problem.m
        self.equality = problem.equality
        self.has_equalities: bool = not problem.is_plain and self.equality.item(self.equality.argmax())
        self._norms, self.least_norm, self.largest_norm = _norms(problem)
        self.has_zero_rows = not self.least_norm > 0.0
        # Squares of such numbers leave the range of float64: scale by powers of two first (`scaled_to_range`).
        in_range = self.least_norm > _SMALLEST and self.largest_norm < _LARGEST
        self.is_extreme = not in_range and _leaves_range(problem)

    @cached_property
    def inverse(self) -> FloatArray:
        """Reciprocal row norms; 0 for zero rows, which thereby constrain nothing; shape (*batch, m)."""
        return 1.0 / np.where(self._norms > 0, self._norms, np.inf) if self.has_zero_rows else 1.0 / self._norms

    @cached_property
    def scale(self) -> FloatArray:
        """Largest ``|rhs_k| / |row_k|``, 1 where that is 0: W of the unit rows times this is W; shape (*batch, 1)."""
        size = self.inverse if self.problem.is_plain else np.abs(self.problem.rhs * self.inverse)
        scale = np.maximum.reduce(size, axis=-1, keepdims=True)
        return np.where(scale > 0, scale, 1.0)

    @cached_property
    def c(self) -> FloatArray:
        """Right-hand sides of the unit rows, at most 1 in size, shape (*batch, m)."""
        return (self.inverse if self.problem.is_plain else self.problem.rhs * self.inverse) / self.scale

    @property
    def trivial(self) -> BoolArray:
        """Where W = 0 satisfies every row and hence is optimal, shape (*batch,)."""
        sides = self.c if self.has_zero_rows else self.problem.rhs  # of the same signs
        asks = np.where(self.equality, sides != 0, sides > 0) if self.has_equalities else sides > 0
        return np.asarray(~asks.any(axis=-1))

    def margins(self, W: FloatArray) -> FloatArray:
        """Values of the unit rows at W, shape (*batch, m)."""
        return np.asarray(self.problem.margins(W) * self.inverse)

    def adjoint(self, x: FloatArray) -> FloatArray:
        """``sum_k x_k`` times the unit row k, shape (*batch, dx, dz)."""
        return self.problem.adjoint(x * self.inverse)

    def restore_multipliers(self, x: FloatArray) -> FloatArray:
        """Multipliers of the problem's rows from multipliers of the unit rows (of the dual in norm form)."""
        return np.asarray(x * self.inverse)

    @cached_property
    def gram(self) -> FloatArray:
        """Gram matrix of the unit rows, shape (*batch, m, m); a zero row has diagonal 1, so its multiplier is 0."""
        rows = self.problem.pairs()
        if rows.is_small:  # of which the Gram matrix is there
            gram = rows.gram * self.inverse[:, None]
            gram *= self.inverse
        else:
            gram = rows.weighted_gram(self.inverse)
        if self.has_zero_rows:
            diagonal = np.einsum("...kk->...k", gram)
            diagonal[self.inverse == 0] = 1.0
        return gram

    def factors(self, reduced: bool) -> tuple[FloatArray, FloatArray, FloatArray | None, FloatArray | None]:
        """Left and right factors of the unit rows, shapes (*batch, m, p) and (*batch, m, q), and two bases.

        They are in coordinates of these bases of both spans if ``reduced``; None stands for the identity.
        """
        pair = self.problem.pairs()
        a = (pair.a * self.inverse[..., None]).astype(np.float64, copy=False)
        b = pair.right.astype(np.float64, copy=False)
        if not reduced:
            return a, b, None, None
        left, right = (
            None if part.shape[-2] >= part.shape[-1] else np.linalg.qr(part.astype(np.float64, copy=False).mT)[0]
            for part in (pair.a, pair.queries)
        )
        return a if left is None else a @ left, b if right is None else b @ right, left, right

    @cached_property
    def rows(self: UnitProblem) -> UnitRows:
        """The nonzero rows written out in coordinates of their spans; one problem only."""
        index = np.flatnonzero(self.inverse > 0)
        pair = self.problem.rows.gather(index)
        a, queries = pair.a.astype(np.float64, copy=False), pair.queries.astype(np.float64, copy=False)
        left, right = span(a), span(queries[np.unique(pair.owner)])
        a = a if left is None else a @ left
        queries = queries if right is None else queries @ right
        # Reduction keeps row norms only up to rounding: divide by what is there, so that rows are unit exactly.
        return UnitRows(
            _normalized(a),
            _normalized(queries)[pair.owner],
            self.c[index],
            self.equality[index],
            index,
            left,
            right,
            self,
        )


UnitProblemBatch: TypeAlias = UnitProblem[Batch]


def _norms(problem: EitherProblem) -> tuple[FloatArray, float, float]:
    """Row norms, the least and the largest of them."""
    norms = problem.rows.row_norms
    if problem.batch:
        return norms, np.minimum.reduce(norms, axis=None), np.maximum.reduce(norms, axis=None)
    return norms, norms.item(norms.argmin()), norms.item(norms.argmax())  # a fifth of the time of a reduction


def _leaves_range(problem: EitherProblem) -> bool:
    """Whether some nonzero row is too large or too small for its square."""
    pair = problem.pairs()
    alive = pair.a.any(axis=-1) & pair.right.any(axis=-1)
    fine = (problem.row_norms > _SMALLEST) & (problem.row_norms < _LARGEST)
    return bool((alive & ~fine).any())


def scaled_to_range(problem: MarginProblem) -> tuple[MarginProblem, int]:
    """One problem with factors of size about 1, and the power of two by which W is to be multiplied afterwards.

    The problem itself and 0 when its numbers differ so much that scaling would lose some of them. A penalty stays as it
    is: what its C becomes depends on the norm.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.unit import scaled_to_range
    >>> scaled, power = scaled_to_range(MarginProblem([[2.0**-600]], [[2.0**-10]], [0]))
    >>> scaled.row_norms, power
    (array([0.25]), 608)
    """
    pair = problem.pairs()
    left, right = (-int(np.frexp(np.abs(part).max())[1]) for part in (pair.a, pair.queries))
    scaled = pair.scaled(left, right)
    back = scaled.scaled(-left, -right)
    whole = problem.prior is None or problem.prior.survives(left + right)
    if not (np.array_equal(back.a, pair.a) and np.array_equal(back.queries, pair.queries) and whole):
        return problem, 0  # some entry would be lost
    if problem.is_plain and problem.penalty is None:
        return MarginProblem.from_rows(scaled), left + right
    return problem.on_rows(scaled, left + right), left + right


def _normalized(vectors: FloatArray) -> FloatArray:
    lengths = np.sqrt(np.einsum("kd,kd->k", vectors, vectors))
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1.0)[:, None])


def span(vectors: FloatArray) -> FloatArray | None:
    """Orthonormal basis of the rows' span by pivoted QR, shape (d, r); None when it is the whole space.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.unit import span
    >>> span(np.eye(2, 50)).shape, span(np.eye(3)) is None
    ((50, 2), True)
    """
    from scipy.linalg import lapack  # called directly: the wrappers cost more than a small factorization

    count, d = vectors.shape
    if count > d:  # QR of a tall matrix first: same row space, d x d left to pivot
        triangle = np.triu(lapack.dgeqrf(vectors, lwork=_BLOCK * d)[0][:d])
        factor, _, scales, _, _ = lapack.dgeqp3(triangle.T, lwork=_BLOCK * (d + 1))
    else:
        factor, _, scales, _, _ = lapack.dgeqp3(vectors.T, lwork=_BLOCK * (count + 1))
    diagonal = np.abs(factor.diagonal())
    rank = max(1, int(np.count_nonzero(diagonal > diagonal[0] * d * np.finfo(np.float64).eps)))
    if rank == d:
        return None
    basis = lapack.dorgqr(factor[:, :rank], scales[:rank], lwork=_BLOCK * rank)[0]
    return np.ascontiguousarray(basis)


@dataclass(frozen=True, eq=False)
class UnitRows:
    """Rows ``<a_k b_k^T, W>`` of Frobenius norm 1 with ``max |rhs| = 1``, written out.

    Attributes
    ----------
    a : ndarray, shape (m, p)
    b : ndarray, shape (m, q)
        Right factors, one per row (not shared: the dense products below are matrix products).
    rhs : ndarray, shape (m,)
    equality : ndarray of bool, shape (m,)
    index : ndarray of int, shape (m,)
        The row of the problem that each row comes from.
    left, right : ndarray, shape (dx, p) and (dz, q), or None
        Bases of the spans; None stands for the identity.
    unit : UnitProblem
    """

    a: FloatArray
    b: FloatArray
    rhs: FloatArray
    equality: BoolArray
    index: IntArray
    left: FloatArray | None
    right: FloatArray | None
    unit: UnitProblem

    @property
    def m(self) -> int:
        """Number of rows."""
        return len(self.rhs)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape ``(p, q)`` of W in reduced coordinates."""
        return int(self.a.shape[1]), int(self.b.shape[1])

    @cached_property
    def inequalities_only(self) -> bool:
        """True when no row is an equality."""
        return not self.equality.any()

    def clipped(self, lam: FloatArray) -> FloatArray:
        """Multipliers without the negative parts of inequality rows, shape (m,)."""
        positive = np.maximum(lam, 0.0)
        return positive if self.inequalities_only else np.where(self.equality, lam, positive)

    def values(self, W: FloatArray) -> FloatArray:
        """Values of all rows at W (p, q), shape (m,)."""
        return np.asarray(np.einsum("kd,kd->k", self.a @ W, self.b))

    def adjoint(self, lam: FloatArray) -> FloatArray:
        """``sum_k lam_k a_k b_k^T``, shape (p, q)."""
        return np.asarray((self.a * lam[:, None]).T @ self.b)

    def missed(self, W: FloatArray) -> FloatArray:
        """Amount by which W misses each row (0 where it holds), shape (m,)."""
        short = self.rhs - self.values(W)
        missed = np.maximum(short, 0.0)
        return missed if self.inequalities_only else np.where(self.equality, np.abs(short), missed)

    def take(self, rows: npt.NDArray[np.intp]) -> UnitRows:
        """The given rows only."""
        return UnitRows(
            self.a[rows], self.b[rows], self.rhs[rows], self.equality[rows], self.index[rows],
            self.left, self.right, self.unit,
        )  # fmt: skip

    def lift(self, W: FloatArray) -> FloatArray:
        """W in the coordinates and the scale of the problem, shape (dx, dz)."""
        W = W * float(self.unit.scale[0])
        W = W if self.left is None else self.left @ W
        return np.asarray(W if self.right is None else W @ self.right.T)

    def reduce(self, W: FloatArray) -> FloatArray:
        """Inverse of `lift` for a W that lives in the spans, shape (p, q)."""
        W = W / float(self.unit.scale[0])
        W = W if self.left is None else self.left.T @ W
        return np.asarray(W if self.right is None else W @ self.right)

    def restore_multipliers(self, lam: FloatArray) -> FloatArray:
        """Multipliers of the problem's rows; 0 for the rows that were dropped."""
        multipliers = np.zeros(self.unit.m)
        multipliers[self.index] = lam * self.unit.inverse[self.index]
        return multipliers
