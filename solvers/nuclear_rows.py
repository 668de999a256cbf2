"""Rows in the form that the nuclear-norm solvers work on: reduced, normalized, expanded.

Both spans are reduced, every row is divided by its Frobenius norm and the right-hand sides by the largest of
them, so that tolerances and comparisons mean the same for every scale of the data. Zero rows are decided here:
they are either void (dropped, multiplier 0) or a proof of infeasibility on their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from attsvm.solvers.certificate import Certificate, certify_infeasible
from attsvm.solvers.margin import BoolArray, FloatArray, IntArray, MarginProblem
from attsvm.solvers.reduction import Reduction, reduce_dimensions

__all__ = [
    "UnitRows",
    "purify_farkas",
    "schur_matrix",
    "singular_triples",
    "singular_values",
    "unit_rows",
]

# Columns of workspace per row and column of a matrix to decompose: enough for blocked code.
_BLOCK = 64


def singular_values(matrix: FloatArray) -> FloatArray:
    """Singular values in descending order; infinite when they cannot be computed (NaN in the matrix).

    For matrices of a few columns NumPy's checks take longer than LAPACK, which is why it is called directly.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.nuclear_rows import singular_values
    >>> singular_values(np.diag([1.0, 2.0]))
    array([2., 1.])
    """
    from scipy.linalg import lapack

    workspace = 14 * min(matrix.shape) + 8252 + _BLOCK * sum(matrix.shape)  # what LAPACK asks for, and blocks
    _, values, _, failed = lapack.dgesdd(matrix, compute_uv=0, lwork=workspace)
    return np.full(min(matrix.shape), np.inf) if failed else np.asarray(values)


def singular_triples(matrix: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray] | None:
    """``U, sigma, V^T`` of the thin singular value decomposition; None when it cannot be computed.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.nuclear_rows import singular_triples
    >>> U, sigma, Vt = singular_triples(np.ones((3, 2)))
    >>> bool(np.allclose((U * sigma) @ Vt, 1.0))
    True
    """
    from scipy.linalg import lapack

    k = min(matrix.shape)
    workspace = k * (4 * k + 7) + _BLOCK * sum(matrix.shape)
    U, sigma, Vt, failed = lapack.dgesdd(matrix, full_matrices=0, lwork=workspace)
    return None if failed else (U, sigma, Vt)


@dataclass(frozen=True, eq=False)
class UnitRows:
    """Rows ``<a_k b_k^T, W>`` of Frobenius norm 1 with ``max |rhs| = 1``.

    Attributes
    ----------
    a : ndarray, shape (m, p)
    b : ndarray, shape (m, q)
        Right factors, one per row (not shared: the dense products below are matrix products).
    rhs : ndarray, shape (m,)
    equality : ndarray of bool, shape (m,)
    index : ndarray of int, shape (m,)
        The row of the original problem that each row comes from.
    row_scale : ndarray, shape (m,)
        Original row norms.
    rhs_scale : float
        ``max |rhs_k| / row_scale_k``; W of the original problem is ``rhs_scale`` times ours.
    reduction : Reduction
    original : MarginProblem
    """

    a: FloatArray
    b: FloatArray
    rhs: FloatArray
    equality: BoolArray
    index: IntArray
    row_scale: FloatArray
    rhs_scale: float
    reduction: Reduction
    original: MarginProblem

    @property
    def m(self) -> int:
        """Number of rows."""
        return len(self.rhs)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape ``(p, q)`` of W in reduced coordinates."""
        return int(self.a.shape[1]), int(self.b.shape[1])

    @property
    def trivial(self) -> bool:
        """True when W = 0 satisfies every row, hence is optimal."""
        return bool(np.all(np.where(self.equality, self.rhs == 0, self.rhs <= 0)))

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
            self.a[rows],
            self.b[rows],
            self.rhs[rows],
            self.equality[rows],
            self.index[rows],
            self.row_scale[rows],
            self.rhs_scale,
            self.reduction,
            self.original,
        )

    def restore(self, W: FloatArray, lam: FloatArray) -> tuple[FloatArray, FloatArray]:
        """W and multipliers in the coordinates and the scale of the original problem."""
        return self.reduction.lift(W * self.rhs_scale), self.restore_multipliers(lam)

    def restore_multipliers(self, lam: FloatArray) -> FloatArray:
        """Multipliers of the original rows; 0 for the rows that were dropped."""
        multipliers = np.zeros(self.original.m)
        multipliers[self.index] = lam / self.row_scale
        return multipliers

    def gap(self, W: FloatArray, lam: FloatArray) -> float:
        """Largest of relative gap, dual excess and missed rows: the certificate's measure in our scale."""
        value = float(singular_values(W).sum())
        clipped = self.clipped(lam)
        size = float(singular_values(self.adjoint(clipped))[0])
        lower = float(self.rhs @ clipped) / size if size > 0 else 0.0
        if not np.isfinite(value + lower):
            return float("inf")
        negative = float((clipped - lam).max())
        return max(abs(value - lower) / max(value, 1e-300), size - 1.0, negative, float(self.missed(W).max()))


def unit_rows(problem: MarginProblem) -> UnitRows | Certificate:
    """Reduce and normalize a problem; a `Certificate` when a zero row alone proves it infeasible.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.nuclear_rows import unit_rows
    >>> rows = unit_rows(MarginProblem([[0.0, 2.0], [0.0, 0.0]], [[3.0]], [0, 0], rhs=[12.0, 0.0]))
    >>> rows.shape, rows.m, rows.rhs, rows.rhs_scale
    ((1, 1), 1, array([1.]), 2.0)
    """
    norms = problem.row_norms
    dead = norms == 0
    broken = np.flatnonzero(dead & np.where(problem.equality, problem.rhs != 0, problem.rhs > 0))
    if len(broken):  # 0 >= positive: one row proves it
        unit = np.zeros(problem.m)
        unit[broken[0]] = np.sign(problem.rhs[broken[0]])
        proof = certify_infeasible(problem, unit)
        if proof is not None:
            return proof
    index = np.flatnonzero(~dead)
    reduction = reduce_dimensions(problem)
    reduced = reduction.problem
    a = reduced.a[index].astype(np.float64)
    b = reduced.queries[reduced.owner[index]].astype(np.float64)
    scale = norms[index]
    left = np.sqrt(np.einsum("kd,kd->k", a, a))[:, None]
    right = np.sqrt(np.einsum("kd,kd->k", b, b))[:, None]
    rhs = problem.rhs[index] / scale
    # Reduction keeps row norms only up to rounding: divide by what is there, so that rows are unit exactly.
    top = float(np.abs(rhs).max(initial=0.0)) or 1.0
    return UnitRows(
        a / np.where(left > 0, left, 1.0),
        b / np.where(right > 0, right, 1.0),
        rhs / top,
        problem.equality[index],
        index.astype(np.int64),
        scale,
        top,
        reduction,
        problem,
    )


def schur_matrix(a: FloatArray, b: FloatArray, X: FloatArray, Y: FloatArray) -> FloatArray:
    """Matrix ``M_kl = <A_k, X A_l Y>`` of the rows ``A_k = [[0, a b^T], [b a^T, 0]] / 2``, shape (m, m)."""
    p = a.shape[1]
    a_X, a_Y = a @ X[:p], a @ Y[:p]
    M = a_X[:, :p] @ a.T
    M *= b @ Y[p:, p:] @ b.T
    other = a_Y[:, :p] @ a.T
    other *= b @ X[p:, p:] @ b.T
    M += other
    cross = a_X[:, p:] @ b.T
    cross *= b @ a_Y[:, p:].T
    M += cross
    M += cross.T
    M *= 0.25
    return np.asarray(M)


def purify_farkas(rows: UnitRows, lam: FloatArray) -> Certificate | None:
    """Turn diverging multipliers into a verified proof of infeasibility; None when they are not one.

    Multipliers of an infeasible problem diverge along a combination that cancels. What is left over is removed
    by the smallest change relative to each multiplier (so that signs stay), a least-squares problem in the
    relative changes.
    """
    size = float(np.abs(lam).max(initial=0.0))
    if size == 0 or not np.isfinite(size):
        return None
    # A proof often rests on few rows, which stand out long before the rest has faded.
    for cut in (0.1, 1e-3, 1e-9):
        part = np.flatnonzero(rows.equality | (lam > cut * size))
        proof = _cancel(rows.take(part), lam[part] / size)
        if proof is not None:
            return proof
    return None


def _verify(rows: UnitRows, lam: FloatArray) -> Certificate | None:
    """A verified proof of the original problem from multipliers of unit rows, or None."""
    return certify_infeasible(rows.original, rows.restore_multipliers(lam))


def _cancel(rows: UnitRows, lam: FloatArray) -> Certificate | None:
    """Remove what the combination leaves over by a small relative change of the multipliers, and verify."""
    from scipy.sparse.linalg import LinearOperator, lsqr

    p, q = rows.shape
    for _ in range(3):
        proof = _verify(rows, lam)
        if proof is not None or not lam.any():
            return proof
        weight = np.where(rows.equality, np.maximum(np.abs(lam), 1e-3), lam)
        operator = LinearOperator(
            (p * q, rows.m),
            matvec=lambda t, weight=weight: rows.adjoint(weight * np.ravel(t)).ravel(),
            rmatvec=lambda D, weight=weight: weight * rows.values(np.reshape(D, (p, q))),
            dtype=np.float64,
        )
        change = lsqr(operator, rows.adjoint(lam).ravel(), atol=1e-14, btol=1e-14, iter_lim=60)[0]
        lam = lam - weight * change
        lam = np.where(rows.equality, lam, np.maximum(lam, 0.0))
    return _verify(rows, lam)
