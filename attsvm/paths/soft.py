"""Soft margins along prices: from paying for everything to the hard margin, each solve started from the last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.problem import AttentionProblem, require_problem
from attsvm.selection import SelectionLike
from attsvm.solution import Solution
from attsvm.solvers.penalty import LossKind, SlackKind
from attsvm.svm import att_svm

__all__ = ["SoftPath", "soft_path"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class SoftPath:
    """Solutions along prices.

    Attributes
    ----------
    Cs : ndarray, shape (P,)
        In the order of the solutions.
    solutions : tuple of Solution
    """

    Cs: FloatArray
    solutions: tuple[Solution, ...]

    @property
    def norms(self) -> FloatArray:
        """Norms of W, shape (P,); they rise with the price."""
        return np.array([solution.norm for solution in self.solutions])

    @property
    def objectives(self) -> FloatArray:
        """Primal values, shape (P,)."""
        return np.array([solution.objective for solution in self.solutions])

    @property
    def gaps(self) -> FloatArray:
        """Relative duality gaps, shape (P,)."""
        return np.array([solution.certificate.gap for solution in self.solutions])

    @property
    def slacks(self) -> FloatArray:
        """Total slack, shape (P,); it falls with the price."""
        return np.array([float(solution.slacks.sum()) for solution in self.solutions])

    @property
    def paying(self) -> npt.NDArray[np.int64]:
        """Queries that give up their margin, shape (P,)."""
        return np.array([len(solution.paying_queries) for solution in self.solutions])

    def __repr__(self) -> str:
        ends = f"C {self.Cs[0]:.3g}..{self.Cs[-1]:.3g}, norms {self.norms[0]:.3g}..{self.norms[-1]:.3g}"
        return f"SoftPath({len(self)} prices, {ends}, gap <= {self.gaps.max():.1e})"

    def __len__(self) -> int:
        return len(self.solutions)

    def __iter__(self) -> Iterator[Solution]:
        return iter(self.solutions)

    def __getitem__(self, index: int) -> Solution:
        return self.solutions[index]


def soft_path(
    problem: AttentionProblem,
    Cs: Sequence[float] | npt.ArrayLike,
    selection: SelectionLike = None,
    *,
    norm: str = "frobenius",
    slack: SlackKind = "query",
    loss: LossKind = "hinge",
    **options: object,
) -> SoftPath:
    """Solve the soft margin for several prices, in rising order, each from the multipliers of the one before.

    Parameters
    ----------
    problem : AttentionProblem
        A single one.
    Cs : sequence of float
        Positive prices; they are sorted.
    selection : Selection or array_like of int, optional
        The optimal tokens by default.
    norm, slack, loss, **options
        As for `attsvm.att_svm`.

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=6, T=6, d=3, kind="sequence", seed=0)
    >>> path = attsvm.soft_path(problem, [0.01, 0.1, 1.0], slack="row", loss="squared_hinge")
    >>> bool((path.norms[1:] >= path.norms[:-1]).all()), bool((path.gaps < 1e-8).all())
    (True, True)
    """
    given = require_problem(problem)
    if given.batch is not None:
        raise ValueError("soft_path takes one problem at a time; index the batch first, e.g. problem[0]")
    prices = np.sort(np.atleast_1d(np.asarray(Cs, dtype=np.float64)))
    if prices.ndim != 1 or not len(prices) or not (np.isfinite(prices) & (prices > 0)).all():
        raise ValueError(f"Cs must be positive finite numbers, at least one, got {Cs!r}")
    found: list[Solution] = []
    asked: dict[str, Any] = {"norm": norm, "slack": slack, "loss": loss, **options}
    for C in prices.tolist():
        start = found[-1] if found and norm == "frobenius" else None
        found.append(att_svm(given, selection, C=C, warm_start=start, **asked))
    return SoftPath(prices, tuple(found))
