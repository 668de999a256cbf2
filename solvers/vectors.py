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
from typing import NamedTuple

import numpy as np

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.margin_problem import MarginProblem
from attsvm.solvers.norms import Norm
from attsvm.solvers.rows.pairs import PairRows

__all__ = ["VectorProblem", "vector_problem"]

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
    >>> from attsvm.solvers.vectors import vector_problem
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
