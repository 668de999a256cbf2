"""H_p, the block Jacobian of the attention dynamics, and their common spectrum at a global minimum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attsvm.dynamics.conditioning.model import Array, PromptProblem

__all__ = ["Curvature", "block_factors", "block_jacobian", "curvature", "joint_curvature"]


@dataclass(frozen=True, eq=False)
class Curvature:
    """Spectrum of a matrix sum_i l''_i r_i r_i^T, from the singular values of its N rows.

    Attributes
    ----------
    eigenvalues : ndarray, shape (d,)
        Descending; zeros beyond the number of examples.
    vectors : ndarray, shape (min(N, d), d)
        Their eigenvectors as rows.
    """

    eigenvalues: Array
    vectors: Array

    @property
    def condition_number(self) -> float:
        """Largest over smallest eigenvalue; infinite when there are fewer examples than parameters."""
        smallest = self.eigenvalues[-1]
        return float(self.eigenvalues[0] / smallest) if smallest > 0 else float("inf")

    @property
    def range_condition_number(self) -> float:
        """Largest over smallest eigenvalue among the min(N, d) that can differ from zero."""
        smallest = self.eigenvalues[len(self.vectors) - 1]
        return float(self.eigenvalues[0] / smallest) if smallest > 0 else float("inf")


def _from_rows(rows: Array) -> Curvature:
    _, sizes, vectors = np.linalg.svd(rows, full_matrices=False)
    eigenvalues = np.zeros(rows.shape[1])
    eigenvalues[: len(sizes)] = sizes**2
    return Curvature(eigenvalues, vectors)


def curvature(problem: PromptProblem, p: npt.ArrayLike) -> Curvature:
    """Spectrum of ``H_p = sum_i l''_i r_i r_i^T``, r_i = K_i^T J_i u_i; the Hessian of the loss at p* is H_p / N.

    The d x d matrix is never formed: squaring would halve the digits of the small eigenvalues.

    Examples
    --------
    >>> from attsvm.dynamics.conditioning import student_teacher
    >>> teacher = student_teacher(N=30, n=5, d=4, sigma_p=0.5, seed=0)
    >>> found = curvature(teacher.problem, teacher.p_star)
    >>> found.eigenvalues.shape, found.condition_number > 1
    ((4,), True)
    """
    second = problem.loss.curvature(problem.predict(p) - problem.y)
    return _from_rows(np.sqrt(second)[:, None] * problem.rows(p))


def joint_curvature(problem: PromptProblem, p: npt.ArrayLike) -> Curvature:
    """The same for p and v trained together: rows ``(r_i, X_i^T a_i)`` in R^{2 d}.

    Examples
    --------
    >>> from attsvm.dynamics.conditioning import student_teacher
    >>> teacher = student_teacher(N=30, n=5, d=4, sigma_p=0.5, seed=0)
    >>> joint_curvature(teacher.problem, teacher.p_star).eigenvalues.shape
    (8,)
    """
    second = problem.loss.curvature(problem.predict(p) - problem.y)
    rows = np.concatenate([problem.rows(p), np.einsum("in,ind->id", problem.weights(p), problem.X)], axis=1)
    return _from_rows(np.sqrt(second)[:, None] * rows)


def block_factors(problem: PromptProblem, p: npt.ArrayLike) -> tuple[Array, Array]:
    """``B`` with blocks J_i K_i, shape (N n, d), and ``C`` with blocks K_k^T J_k H_k, shape (d, N n), equation (44).

    ``B C`` is the block Jacobian on the product of simplices; ``C B`` is H_p.

    Examples
    --------
    >>> from attsvm.dynamics.conditioning import student_teacher
    >>> teacher = student_teacher(N=3, n=4, d=2, seed=0)
    >>> B, C = block_factors(teacher.problem, teacher.p_star)
    >>> bool(np.allclose(np.linalg.eigvalsh(C @ B)[::-1], curvature(teacher.problem, teacher.p_star).eigenvalues))
    True
    """
    N, n, d = problem.shape
    a, u = problem.weights(p), problem.values
    B = a[:, :, None] * (problem.keys - np.einsum("in,ind->id", a, problem.keys)[:, None])
    second = problem.loss.curvature(problem.predict(p) - problem.y)
    # H_k = l''_k u_k u_k^T, so that K_k^T J_k H_k = l''_k r_k u_k^T
    C = (second[:, None] * problem.rows(p))[:, :, None] * u[:, None, :]
    return B.reshape(N * n, d), np.moveaxis(C, 0, 1).reshape(d, N * n)


def block_jacobian(problem: PromptProblem, p: npt.ArrayLike) -> Array:
    """``A_ik = J_i K_i K_k^T J_k H_k`` (equation 43) as one matrix, shape (N n, N n); for inspection at small sizes.

    Examples
    --------
    >>> from attsvm.dynamics.conditioning import student_teacher
    >>> teacher = student_teacher(N=3, n=4, d=2, seed=0)
    >>> block_jacobian(teacher.problem, teacher.p_star).shape
    (12, 12)
    """
    B, C = block_factors(problem, p)
    return B @ C
