"""Solutions of a batch of problems: arrays over the batch, and a `Solution` per problem on request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm._arrays import BoolArray, IntArray
from attsvm.problem import AttentionProblem
from attsvm.rows import selection_rows
from attsvm.selection import Selection
from attsvm.solution import Solution
from attsvm.solvers import Status
from attsvm.solvers.batch import BatchSolution, MarginBatch

__all__ = ["SolutionBatch", "batch_rows", "solve_selections"]

FloatArray = npt.NDArray[np.float64]

# Rows per problem up to which solving a batch in lockstep beats solving its problems one by one.
BATCHED_ROWS = {"frobenius": 60, "nuclear": 120}


@dataclass(frozen=True, eq=False)
class SolutionBatch:
    """One solution per problem of a batch.

    Attributes
    ----------
    status : tuple of Status
    W : ndarray, shape (batch, dx, dz)
        NaN where there is no solution.
    norm, margin, gap : ndarray, shape (batch,)
        Infinite norm and gap, and margin 0, where infeasible.
    rank : ndarray of int, shape (batch,)
        Numerical ranks; -1 where there is no solution.
    support : ndarray of bool, shape (batch,) + query_shape + (T,)
        All False where there is no solution.

    Examples
    --------
    >>> import attsvm
    >>> sols = attsvm.att_svm(attsvm.random_problem(n=2, T=3, d=4, batch=3, seed=0))
    >>> sols.W.shape, sols.norm.shape, [str(s) for s in sols.status]
    ((3, 4, 4), (3,), ['optimal', 'optimal', 'optimal'])
    >>> sols[1].certificate.gap < 1e-8
    True
    """

    status: tuple[Status, ...]
    W: FloatArray
    norm: FloatArray
    gap: FloatArray
    support: BoolArray
    _build: Callable[[int], Solution] = field(repr=False)
    _cache: dict[int, Solution] = field(repr=False, default_factory=dict)

    @classmethod
    def from_solutions(cls, solutions: list[Solution]) -> SolutionBatch:
        """From problems that were solved one by one."""
        first = solutions[0]
        has = [s.status.has_solution for s in solutions]
        no_W = np.full((first.problem.dx, first.problem.dz), np.nan)
        no_support = np.zeros((*first.rows.query_shape, first.rows.T), dtype=bool)
        return cls(
            tuple(s.status for s in solutions),
            np.stack([s.W if ok else no_W for s, ok in zip(solutions, has, strict=True)]),
            np.array([s.norm for s in solutions]),
            np.array([s.certificate.gap for s in solutions]),
            np.stack([s.support if ok else no_support for s, ok in zip(solutions, has, strict=True)]),
            solutions.__getitem__,
        )

    def __len__(self) -> int:
        return len(self.status)

    def __getitem__(self, index: int) -> Solution:
        if not -len(self) <= index < len(self):
            raise IndexError(f"solution {index} is out of range for a batch of {len(self)}")
        index %= len(self)
        if index not in self._cache:
            self._cache[index] = self._build(index)
        return self._cache[index]

    def __iter__(self) -> Iterator[Solution]:
        return (self[b] for b in range(len(self)))

    @property
    def margin(self) -> FloatArray:
        """1 / norm, shape (batch,)."""
        with np.errstate(divide="ignore"):
            return np.asarray(1.0 / self.norm)

    @cached_property
    def rank(self) -> IntArray:
        """Numerical ranks, shape (batch,); -1 where there is no solution."""
        cut = np.maximum(1e-8, np.sqrt(np.where(np.isfinite(self.gap), self.gap, 0.0)))
        known = np.asarray(np.isfinite(self.W).all(axis=(1, 2)))
        singular = np.linalg.svd(np.where(known[:, None, None], self.W, 0.0), compute_uv=False)
        ranks = (singular > cut[:, None] * singular[:, :1]).sum(axis=1)
        return np.where(known, ranks, -1)


def batch_rows(problem: AttentionProblem, selection: Selection) -> tuple[MarginBatch, IntArray]:
    """Rows of Att-SVM / SAtt-SVM for a batch: every query has T - 1 of them, masked ones do not exist.

    Returns
    -------
    MarginBatch
    token : ndarray of int, shape (batch, n*K, T - 1)
        The token that each row is about.
    """
    B, T = problem.X.shape[0], problem.T
    chosen = selection.indices.reshape(B, -1)
    others = np.arange(T - 1)
    token = others + (others >= chosen[..., None])
    sequence = np.arange(chosen.shape[1]) // problem.K
    picked = problem.X[np.arange(B)[:, None], sequence, chosen]
    a = picked[:, :, None] - problem.X[np.arange(B)[:, None, None], sequence[:, None], token]
    valid = np.ones((B, chosen.shape[1] * (T - 1)), dtype=bool)
    if problem.mask is not None:
        valid = np.take_along_axis(problem.allowed.reshape(B, -1, T), token, axis=-1).reshape(B, -1)
    owner = np.repeat(np.arange(chosen.shape[1]), T - 1)
    zero = ~a.any(axis=-1).reshape(B, -1) & valid
    if zero.any():
        b, k = (int(i) for i in np.argwhere(zero)[0])
        q, t = int(owner[k]), int(token.reshape(B, -1)[b, k])
        raise ValueError(
            f"X[{b}, {q // problem.K}] holds the same vector as tokens {chosen[b, q]} and {t}, so no W can select "
            f"token {chosen[b, q]} over token {t}; remove the duplicate or mask it"
        )
    return MarginBatch(a.reshape(B, -1, problem.dx), problem.Z.reshape(B, -1, problem.dz), owner, valid=valid), token


def can_batch(problem: AttentionProblem, norm: str, solver: str, options: dict[str, Any]) -> bool:
    """Whether the lockstep solver applies: own norms, few rows, torch installed."""
    rows = problem.n * problem.K * (problem.T - 1)
    return (
        solver == "auto"
        and rows <= BATCHED_ROWS.get(norm, 0)
        and not set(options) - {"tolerance", "max_iterations", "device", "chunk"}
        and find_spec("torch") is not None
    )


def solve_selections(
    problem: AttentionProblem, selection: Selection, norm: str, name: str, support_tolerance: float, **options: Any
) -> SolutionBatch:
    """Solve a batch in lockstep; problems and selections have the batch axis."""
    from attsvm.solvers.batch_solve import solve_batch

    rows, token = batch_rows(problem, selection)
    found: BatchSolution = solve_batch(rows, norm, **options)
    B, T = len(found), problem.T
    known = np.asarray(np.isfinite(found.W).all(axis=(1, 2)))
    margins = np.asarray(rows.margins(np.where(known[:, None, None], found.W, 0.0)))
    active = (np.abs(margins - 1.0) <= support_tolerance) & rows.valid & known[:, None]
    support = np.zeros((B, token.shape[1], T), dtype=bool)
    np.put_along_axis(support, token, active.reshape(token.shape), axis=-1)

    def build(b: int) -> Solution:
        single, picked = problem[b], selection[b]
        return Solution(name, single, picked, selection_rows(single, picked), found.solution(b), support_tolerance)

    return SolutionBatch(
        tuple(found.status), found.W, found.norm, found.gap, support.reshape(*problem.query_shape, T), build
    )
