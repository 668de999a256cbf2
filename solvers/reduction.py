"""Dimension reduction: for unitarily invariant norms a solution lives in the span of the rows.

Replacing W by P W R, with P and R the projectors on the spans of the left factors and of the queries,
changes no row and raises no unitarily invariant norm (Lemma 1 of "Transformers as Support Vector
Machines" is the special case of the queries' span).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.solvers.margin import FloatArray, MarginProblem

__all__ = ["Reduction", "reduce_dimensions"]

# Columns of workspace per column of a factorization: enough for blocked code.
_BLOCK = 64


@dataclass(frozen=True, eq=False)
class Reduction:
    """Orthonormal bases of both spans and the problem in their coordinates.

    Attributes
    ----------
    left : ndarray, shape (dx, rx)
    right : ndarray, shape (dz, rz)
    problem : MarginProblem
        Rows ``(left^T a_k)(right^T b_k)^T``; multipliers are those of the original problem.
    """

    left: FloatArray
    right: FloatArray
    problem: MarginProblem

    def lift(self, W: FloatArray) -> FloatArray:
        """``left @ W @ right^T``: a solution in the original coordinates, shape (dx, dz)."""
        return np.asarray(self.left @ W @ self.right.T)


def _span(vectors: FloatArray) -> FloatArray | None:
    """Orthonormal basis of the rows' span by pivoted QR, shape (d, r); None when it is the whole space."""
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


def reduce_dimensions(problem: MarginProblem) -> Reduction:
    """Rewrite the rows in orthonormal bases of the spans of ``a`` and of the used ``queries``.

    A span that is the whole space is left as it is (identity basis, data untouched).

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, reduce_dimensions
    >>> wide = MarginProblem(np.eye(2, 50), np.ones((1, 30)), [0, 0])
    >>> reduce_dimensions(wide).problem.shape
    (2, 1)
    """
    dx, dz = problem.shape
    used = problem.queries if problem.block else problem.queries[np.unique(problem.owner)]
    left = _span(problem.a.astype(np.float64, copy=False))
    right = _span(used.astype(np.float64, copy=False))
    if left is None and right is None:
        return Reduction(np.eye(dx), np.eye(dz), problem)
    reduced = MarginProblem(
        problem.a if left is None else problem.a @ left,
        problem.queries if right is None else problem.queries @ right,
        problem.owner,
        problem.rhs,
        problem.equality,
    )
    return Reduction(np.eye(dx) if left is None else left, np.eye(dz) if right is None else right, reduced)
