"""Student-teacher data: Gaussian tokens labelled by a prompt of a given scale or a given sparsity ratio."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm._checks import require_count
from attsvm.dynamics.conditioning.loss import ScalarLoss, squared_loss
from attsvm.dynamics.conditioning.model import Array, PromptProblem
from attsvm.softmax import peakedness

__all__ = ["StudentTeacher", "structured_teacher", "student_teacher"]


@dataclass(frozen=True, eq=False)
class StudentTeacher:
    """A problem with the teacher that labelled it.

    Attributes
    ----------
    problem : PromptProblem
        With the teacher's value vector.
    p_star : ndarray, shape (d,)
        The teacher's prompt: a global minimum, loss zero.
    """

    problem: PromptProblem
    p_star: Array

    def log_ratios(self) -> Array:
        """``log(max a / min a)`` of the teacher's attention on every example, shape (N,)."""
        return peakedness(log_attention=self.problem.log_weights(self.p_star), log=True)

    def student(self, seed: int | np.random.Generator = 0) -> tuple[Array, Array]:
        """Random p and v of a student, entries N(0, 1/d)."""
        rng = np.random.default_rng(seed)
        d = self.problem.shape[2]
        return rng.normal(size=d) / np.sqrt(d), rng.normal(size=d) / np.sqrt(d)


def student_teacher(
    N: int = 100,
    n: int = 20,
    d: int = 20,
    *,
    sigma_p: float = 1.0,
    sigma_v: float = 1.0,
    log_ratio: float | None = None,
    loss: ScalarLoss | None = None,
    seed: int | np.random.Generator = 0,
) -> StudentTeacher:
    """Gaussian tokens, W = I, labels of a teacher with p ~ N(0, sigma_p^2), v ~ N(0, sigma_v^2).

    Parameters
    ----------
    N, n, d : int
        Examples, tokens, dimension.
    sigma_p, sigma_v : float
        Standard deviations of the teacher's entries. The log-ratio is proportional to sigma_p.
    log_ratio : float, optional
        Rescale the teacher's prompt so that the median of log(max a / min a) over the examples is exactly this.
    loss : ScalarLoss, optional
        `squared_loss` by default.
    seed : int or Generator

    Returns
    -------
    StudentTeacher

    Examples
    --------
    >>> teacher = student_teacher(N=5, n=4, d=3, log_ratio=2.0, seed=0)
    >>> round(float(np.median(teacher.log_ratios())), 12), teacher.problem.loss_at(teacher.p_star)
    (2.0, 0.0)
    """
    for name, number in (("N", N), ("n", n), ("d", d)):
        require_count(name, number)
    if not (sigma_p > 0 and sigma_v > 0):
        raise ValueError(f"sigma_p and sigma_v must be positive, got {sigma_p} and {sigma_v}")
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, n, d))
    p, v = sigma_p * rng.normal(size=d), sigma_v * rng.normal(size=d)
    if log_ratio is not None:
        if not log_ratio >= 0:
            raise ValueError(f"log_ratio must be nonnegative, got {log_ratio}")
        if n == 1 and log_ratio > 0:
            raise ValueError("log_ratio is 0 with one token (n = 1)")
        scores = X @ p
        spread = float(np.median(np.ptp(scores, axis=1)))
        p = p * (log_ratio / spread if n > 1 else 1.0)
    problem = PromptProblem(X=X, y=np.zeros(N), v=v, loss=loss or squared_loss())
    return StudentTeacher(problem.with_labels(problem.predict(p)), p)


def structured_teacher(
    N: int,
    n: int,
    d: int,
    important: int,
    *,
    gap: float,
    leakage: float = 0.0,
    spread: float = 0.0,
    signal: int | None = None,
    seed: int | np.random.Generator = 0,
) -> tuple[StudentTeacher, Array, Array]:
    """Data that meets Assumption B: important keys in a signal subspace I, scores ahead of the others by ``gap``.

    Parameters
    ----------
    N, n, d : int
    important : int
        Tokens s of every example with large attention.
    gap : float
        Score gap Delta between important and other tokens.
    leakage : float
        Size of the important keys' part in U relative to the other keys.
    spread : float
        Width Gamma of the important scores.
    signal : int, optional
        Dimension of I, at least 2; half of d by default.
    seed : int or Generator

    Returns
    -------
    teacher : StudentTeacher
    members : ndarray of bool, shape (N, n)
        The important tokens.
    basis : ndarray, shape (d, d - signal)
        Orthonormal basis of U.

    Examples
    --------
    >>> teacher, members, basis = structured_teacher(6, 5, 6, 2, gap=4.0)
    >>> scores = teacher.problem.keys @ teacher.p_star
    >>> gaps = np.where(members, scores, np.inf).min(1) - np.where(members, -np.inf, scores).max(1)
    >>> bool(np.allclose(gaps, 4.0)), basis.shape
    (True, (6, 3))
    """
    k = d // 2 if signal is None else signal
    if not 1 <= important < n:
        raise ValueError(f"important must be between 1 and n - 1 = {n - 1}, got {important}")
    if not 2 <= k < d:
        raise ValueError(f"signal must be between 2 and d - 1 = {d - 1}, got {k}")
    rng = np.random.default_rng(seed)
    X = np.zeros((N, n, d))
    members = np.zeros((N, n), dtype=bool)
    members[:, :important] = True
    # p* = e_1: the first coordinate is the score. Important keys live in I = span(e_1, ..., e_k), others in U + e_1.
    X[:, :important, 0] = gap + spread * rng.random((N, important))
    X[:, 0, 0] = gap
    X[:, :important, 1:k] = rng.normal(size=(N, important, k - 1))
    X[:, :important, k:] = leakage * rng.normal(size=(N, important, d - k))
    X[:, important:, k:] = rng.normal(size=(N, n - important, d - k))
    p = np.zeros(d)
    p[0] = 1.0
    v = rng.normal(size=d)
    problem = PromptProblem(X=X, y=np.zeros(N), v=v)
    return StudentTeacher(problem.with_labels(problem.predict(p)), p), members, np.eye(d)[:, k:]
