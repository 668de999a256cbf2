"""The work that peers are given, and how their answers are judged: plain arrays, no solver of this library."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

import attsvm

__all__ = ["Task", "feasible_gap", "norm_of", "tasks_of"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Task:
    """Select one token per sequence with margin 1 and the least norm.

    Attributes
    ----------
    X : ndarray, shape (n, T, d)
    Z : ndarray, shape (n, d)
    selected : ndarray of int, shape (n,)
    """

    X: FloatArray
    Z: FloatArray
    selected: npt.NDArray[np.int64]

    @property
    def shape(self) -> tuple[int, int]:
        """Of W."""
        return self.X.shape[-1], self.Z.shape[-1]

    @cached_property
    def differences(self) -> FloatArray:
        """Selected minus other tokens, shape (n (T - 1), d)."""
        n, T, d = self.X.shape
        others = self.X[np.arange(T) != self.selected[:, None]].reshape(n, T - 1, d)
        return np.asarray((self.X[np.arange(n), self.selected][:, None] - others).reshape(-1, d))

    @cached_property
    def queries(self) -> FloatArray:
        """The query of each row, shape (n (T - 1), d)."""
        return np.repeat(self.Z, self.X.shape[1] - 1, axis=0)

    def gram(self) -> FloatArray:
        """Gram matrix of the rows ``a z^T``."""
        return np.asarray((self.differences @ self.differences.T) * (self.queries @ self.queries.T))

    def features(self) -> FloatArray:
        """The rows ``a z^T``, one flat vector each."""
        return np.asarray((self.differences[:, :, None] * self.queries[:, None, :]).reshape(len(self.queries), -1))

    def combine(self, multipliers: npt.ArrayLike) -> FloatArray:
        """The matrix ``sum_k multipliers_k a_k z_k^T``."""
        return np.asarray((self.differences * np.asarray(multipliers)[:, None]).T @ self.queries)

    def margins(self, W: npt.ArrayLike) -> FloatArray:
        """The margin of each row."""
        return np.asarray(np.sum((self.differences @ np.asarray(W)) * self.queries, axis=1))


def tasks_of(problem: attsvm.AttentionProblem, count: int | None = None) -> list[Task]:
    """The optimal selections of a problem without mask, or of the first ones of a batch.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.validation.bench.tasks import tasks_of
    >>> [task.differences.shape for task in tasks_of(attsvm.random_problem(n=2, T=3, d=4, batch=5, seed=0), 2)]
    [(4, 4), (4, 4)]
    """
    if problem.batch is None:
        tokens = np.asarray(problem.optimal_tokens().indices).reshape(-1)
        X, Z = (np.asarray(array, dtype=np.float64) for array in (problem.X, problem.Z))
        return [Task(X, Z.reshape(-1, problem.dz), tokens)]
    return [tasks_of(problem[b])[0] for b in range(problem.batch if count is None else min(count, problem.batch))]


def norm_of(W: npt.ArrayLike, norm: str) -> float:
    """Frobenius or nuclear norm."""
    return float(np.linalg.norm(np.asarray(W, dtype=np.float64), "nuc" if norm == "nuclear" else "fro"))


def feasible_gap(task: Task, W: npt.ArrayLike, lower_bound: float, norm: str = "frobenius") -> float:
    """Relative excess of ``||W||`` over a certified bound after scaling W to satisfy every row; inf if it cannot.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.validation.bench.tasks import feasible_gap, tasks_of
    >>> problem = attsvm.random_problem(n=2, T=3, d=4, seed=0)
    >>> best = attsvm.att_svm(problem)
    >>> abs(feasible_gap(tasks_of(problem)[0], 5.0 * best.W, best.certificate.lower_bound)) < 1e-12
    True
    """
    smallest = float(task.margins(W).min())
    return norm_of(W, norm) / smallest / lower_bound - 1.0 if smallest > 0 else float("inf")
