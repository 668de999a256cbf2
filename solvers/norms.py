"""Spectral and nuclear norms of rows that share a factor: there both are the Frobenius norm of a vector.

Let ``b_k = beta_k u`` with ``|u| = 1`` in all rows. The rows see W through ``W u`` alone, as ``<a_k b_k', W> = beta_k
a_k . W u``. Replacing W by ``W u u'`` keeps this and increases no unitarily invariant norm, since ``u u'`` is a
projection. ``W u u'`` has one singular value, ``|W u|``, so its spectral, nuclear and Frobenius norms are this number.
Hence the least norm is that of the vector ``w`` with rows ``beta_k a_k``, and ``W = w u'`` has it; a dual matrix
``(sum_k lam_k beta_k a_k) u'`` has one singular value as well, so the multipliers are the same. Left factors that are
multiples of one vector: the same with both sides exchanged.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.certify.rounding import gamma
from attsvm.solvers.certify.singular_values import singular_value_error
from attsvm.solvers.margin_problem import MarginProblem
from attsvm.solvers.rows.pairs import PairRows

if TYPE_CHECKING:
    import cvxpy

__all__ = ["NORMS", "Entrywise", "Norm", "Schatten", "VectorProblem", "get_norm", "vector_problem"]

# Share of a vector by which it may differ from a multiple of another: the rounding of two products.
_PARALLEL = 4.0 * float(np.finfo(np.float64).eps)


class VectorProblem(NamedTuple):
    """A problem whose W is a vector times a known direction.

    Attributes
    ----------
    problem : MarginProblem
        Of the vector, as a matrix of one column.
    direction : ndarray, shape (dz,), or (dx,) if the rows share their left factor
    shared_left : bool
    """

    problem: MarginProblem
    direction: FloatArray
    shared_left: bool

    def lifted(self, w: FloatArray) -> FloatArray:
        """W from the matrix of one column, shape (dx, dz)."""
        return np.outer(self.direction, w) if self.shared_left else np.outer(w, self.direction)


def _direction(vectors: FloatArray) -> FloatArray | None:
    """The unit vector of which all are multiples; None if there is none."""
    squares = np.vecdot(vectors, vectors)
    largest = int(squares.argmax())
    size = float(np.sqrt(squares[largest]))
    if not 0.0 < size < np.inf:
        return None
    u = vectors[largest] / size
    off = vectors - np.outer(vectors @ u, u)
    return u if bool((np.vecdot(off, off) <= _PARALLEL**2 * squares).all()) else None


def _may_be_parallel(vectors: FloatArray) -> bool:
    """Whether the first two are: a look at all costs more than a small problem does."""
    if vectors.shape[-1] == 1 or len(vectors) == 1:
        return True
    one, two = vectors[0], vectors[1]
    # Roots, since fourth powers leave the range of float64 long before squares do.
    lengths = math.sqrt(float(one @ one)) * math.sqrt(float(two @ two))
    return abs(float(one @ two)) >= (1.0 - 4.0 * _PARALLEL) * lengths


def vector_problem(problem: MarginProblem, norm: Norm) -> VectorProblem | None:
    """The problem of a vector that has the same multipliers; None if rows share no factor or the norm is another.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, get_norm, solve
    >>> from attsvm.solvers.norms import vector_problem
    >>> one = vector_problem(MarginProblem(np.eye(2), [[0.0, 2.0], [0.0, 1.0]], [0, 1]), get_norm("spectral"))
    >>> one.lifted(solve(one.problem).W.ravel()).round(6).tolist()
    [[0.0, 0.5], [0.0, 1.0]]
    """
    rows = problem.rows
    if norm.name not in ("spectral", "nuclear") or problem.penalty is not None or not isinstance(rows, PairRows):
        return None
    a, queries = rows.a.astype(np.float64, copy=False), rows.queries.astype(np.float64, copy=False)
    right = _direction(queries) if _may_be_parallel(queries) else None
    left = _direction(a) if right is None and _may_be_parallel(a) else None
    if right is not None:
        vectors, direction = a * (queries @ right)[rows.owner][:, None], right
    elif left is not None:
        vectors, direction = queries[rows.owner] * (a @ left)[:, None], left
    else:
        return None
    one = PairRows(vectors, np.ones((1, 1)), np.zeros(problem.m, dtype=np.intp))
    if problem.is_plain:
        return VectorProblem(MarginProblem.from_rows(one), direction, right is None)
    same = MarginProblem.from_rows(one, problem.rhs, problem.equality, problem.valid)
    return VectorProblem(same, direction, right is None)


class Norm(ABC):
    """A matrix norm over the last two axes.

    A new norm is a subclass entered in `NORMS`: its value, its dual, its largest value on the Frobenius ball and its
    cvxpy expression; certificates, duals and the reference solver need no more.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import get_norm
    >>> norm = get_norm("nuclear")
    >>> norm(np.diag([3.0, 4.0])), norm.dual(np.diag([3.0, 4.0]))
    (7.0, 4.0)
    """

    unitarily_invariant: ClassVar[bool] = False
    """True when ``||U W V^T|| = ||W||`` for orthonormal U, V, so that both spans may be reduced."""

    def rank_bound(self, queries: int, shape: tuple[int, int]) -> int:
        """The rank that some solution does not exceed, whatever the rows: a limit from here on never binds.

        Projecting W on the span of the queries changes no row. It does not raise a unitarily invariant norm, but may
        raise others, whose solutions can have any rank.
        """
        return min(queries, *shape) if self.unitarily_invariant else min(shape)

    @property
    @abstractmethod
    def name(self) -> str:
        """What ``norm=`` takes."""

    @property
    def family(self) -> str:
        """What solvers list among the norms that they take: the name, or one for all exponents of a family."""
        return self.name

    @property
    @abstractmethod
    def dual(self) -> Norm:
        """The dual norm ``sup { <D, W> : ||W|| <= 1 }``."""

    @abstractmethod
    def values(self, W: FloatArray) -> FloatArray:
        """Norms of matrices of shape (*batch, dx, dz), shape (*batch,)."""

    @abstractmethod
    def largest_on_ball(self, shape: tuple[int, int]) -> float:
        """The most that a matrix of Frobenius norm 1 can have: turns error bounds into bounds in this norm."""

    @abstractmethod
    def expression(self, W: cvxpy.Variable) -> cvxpy.Expression:
        """The norm of a cvxpy variable, or an increasing function of it."""

    def rounding(self, shape: tuple[int, int]) -> float:
        """Bound on the relative error of `values` in float64 (`attsvm.solvers.certify.rounding.norm_bounds`)."""
        return 2.0 * gamma(shape[0] * shape[1] + 8)

    def __call__(self, W: npt.ArrayLike) -> float:
        """The norm of one matrix."""
        return float(self.values(np.asarray(W, dtype=np.float64)))


def _conjugate(p: float) -> float:
    """1/p + 1/q = 1."""
    return np.inf if p == 1.0 else 1.0 if np.isinf(p) else p / (p - 1.0)


_SCHATTEN = {1.0: "nuclear", 2.0: "frobenius"}


@dataclass(frozen=True)
class Schatten(Norm):
    """The l_p norm of the singular values: nuclear (p = 1), Frobenius (p = 2) and spectral (p = inf).

    They are the biases of gradient descent on (K, Q), of gradient descent on W, and of spectral descent.
    """

    p: float
    unitarily_invariant = True

    @cached_property
    def name(self) -> str:
        """``"nuclear"``, ``"frobenius"`` or ``"spectral"``."""
        return _SCHATTEN.get(self.p, "spectral")

    @property
    def dual(self) -> Norm:
        """The norm of the conjugate exponent."""
        return Schatten(_conjugate(self.p))

    def values(self, W: FloatArray) -> FloatArray:
        """Norms over the last two axes."""
        if self.p == 2.0:
            return np.asarray(np.sqrt(np.einsum("...ij,...ij->...", W, W)))
        singular = np.linalg.svd(W, compute_uv=False)
        return np.asarray(singular.sum(axis=-1) if self.p == 1.0 else singular[..., 0])

    def largest_on_ball(self, shape: tuple[int, int]) -> float:
        """Root of the rank for the nuclear norm, else 1."""
        return float(np.sqrt(min(shape))) if self.p == 1.0 else 1.0

    def rounding(self, shape: tuple[int, int]) -> float:
        """Of sums of squares, or of singular values (`attsvm.solvers.certify.singular_values.singular_value_error`)."""
        if self.p == 2.0:
            return super().rounding(shape)
        return float(singular_value_error(shape, 1.0)) * (min(shape) if self.p == 1.0 else 1)

    def expression(self, W: cvxpy.Variable) -> cvxpy.Expression:
        """Half the square of the Frobenius norm (a quadratic program, which OSQP takes too); the others as they are."""
        import cvxpy as cp

        if self.p == 2.0:
            return cp.sum_squares(cp.vec(W, order="C")) / 2
        return cp.normNuc(W) if self.p == 1.0 else cp.sigma_max(W)


@dataclass(frozen=True)
class Entrywise(Norm):
    """The l_p norm of the entries, ``"l1"``, ``"linf"`` or ``"l<p>"``.

    Examples
    --------
    >>> from attsvm.solvers import get_norm
    >>> get_norm("l3").dual.name, get_norm("l1")([[1.0, -2.0]])
    ('l1.5', 3.0)
    """

    p: float

    @cached_property
    def name(self) -> str:
        """``"l<p>"``."""
        return "linf" if np.isinf(self.p) else f"l{self.p:.17g}"

    @property
    def family(self) -> str:
        """``"lp"`` for every p between 1 and infinity."""
        return "lp" if 1.0 < self.p < np.inf else self.name

    @cached_property
    def dual(self) -> Norm:
        """The norm of the conjugate exponent."""
        return Entrywise(_conjugate(self.p))

    def values(self, W: FloatArray) -> FloatArray:
        """Norms over the last two axes."""
        size = np.abs(W).reshape(*W.shape[:-2], -1)  # np.linalg.norm does the same in three times the time
        if np.isinf(self.p):
            return np.asarray(np.maximum.reduce(size, axis=-1))
        if self.p == 1.0:
            return np.asarray(np.add.reduce(size, axis=-1))
        return np.asarray(np.add.reduce(size**self.p, axis=-1) ** (1.0 / self.p))

    def largest_on_ball(self, shape: tuple[int, int]) -> float:
        """``(dx dz)^(1/p - 1/2)`` for p < 2, else 1."""
        return float((shape[0] * shape[1]) ** max(0.0, 1.0 / self.p - 0.5))

    def expression(self, W: cvxpy.Variable) -> cvxpy.Expression:
        """``norm1``, ``norm_inf`` or exact power cones."""
        import cvxpy as cp

        entries = cp.vec(W, order="C")
        if self.p == 1.0:
            return cp.norm1(entries)
        if np.isinf(self.p):
            return cp.norm_inf(entries)
        return cp.pnorm(entries, self.p, approx=False)  # exact power cones, not a rational approximation of p


NORMS: dict[str, Norm] = {
    norm.name: norm for norm in (Schatten(2.0), Schatten(1.0), Schatten(np.inf), Entrywise(np.inf))
}


def get_norm(name: str | Norm) -> Norm:
    """Look a norm up by name.

    Parameters
    ----------
    name : str or Norm
        "frobenius", "nuclear", "spectral", "l1", "linf", "l<p>" with p > 1 (e.g. "l1.5", "l3"), or a name in `NORMS`.

    Examples
    --------
    >>> from attsvm.solvers import get_norm
    >>> get_norm("l3").dual.name
    'l1.5'
    """
    if isinstance(name, str):  # first: the look at an abstract class takes longer
        if name in NORMS:
            return NORMS[name]
        match = re.fullmatch(r"l(\d+(?:\.\d+)?)", name)
        if match and float(match[1]) == 2.0:
            return NORMS["frobenius"]  # the same norm, and unitarily invariant
        if match and float(match[1]) >= 1.0:
            return Entrywise(float(match[1]))
    elif isinstance(name, Norm):
        return name
    names = dict.fromkeys(["frobenius", "nuclear", "spectral", "l1", "linf", *NORMS])
    known = ", ".join(map(repr, names))
    raise ValueError(f"norm must be {known} or 'l<p>' with a number p >= 1, got {name!r}")
