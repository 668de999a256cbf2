"""A run that trained its head against the SVMs of its own tokens, at the ratio of its own norms, by snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from attsvm.comparison.metrics import misalignment
from attsvm.joint.svm import JointSolution, joint_svm
from attsvm.records import Table

if TYPE_CHECKING:
    from attsvm.training import Run

__all__ = ["JointComparison", "compare_joint"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class JointComparison:
    """Distances, as 1 - correlation, at S snapshots; NaN where a problem has no solution.

    Attributes
    ----------
    steps : ndarray of int, shape (S,)
    ratio : ndarray, shape (S,)
        ``|v| / ||W||`` there, in the Frobenius norm (nuclear for factors).
    head : ndarray, shape (S,)
        v against the label SVM of the tokens selected there.
    attention : ndarray, shape (S,)
        W against the attention SVM at that ratio.
    plain, relaxed : ndarray, shape (S,)
        W against those of ratio 0 (Att-SVM) and inf.
    solutions : tuple of JointSolution
        At that ratio.
    """

    steps: npt.NDArray[np.int64]
    ratio: FloatArray
    head: FloatArray
    attention: FloatArray
    plain: FloatArray
    relaxed: FloatArray
    solutions: tuple[JointSolution, ...]

    def __repr__(self) -> str:
        last = f"1 - corr of v {self.head[-1]:.1e}, of W {self.attention[-1]:.1e} (Att-SVM {self.plain[-1]:.1e})"
        return (
            f"JointComparison({len(self.steps)} snapshots, step {self.steps[-1]}: ratio {self.ratio[-1]:.3g}, {last})"
        )

    def __str__(self) -> str:
        columns = (self.ratio, self.head, self.attention, self.plain, self.relaxed)
        rows = [(int(k), *(f"{x:.2g}" for x in row)) for k, *row in zip(self.steps, *columns, strict=True)]
        heads = ("step", "|v| / |W|", "v: label SVM", "W: at this ratio", "W: Att-SVM", "W: relaxed")
        return Table("1 - correlation with the coupled SVMs", heads, rows).markdown()


def compare_joint(run: Run, snapshots: Sequence[int] | None = None) -> JointComparison:
    """Compare head and attention of a run with the directions that they are predicted to take.

    Parameters
    ----------
    run : Run
        Of one problem, from ``train(..., train_head=True)``.
    snapshots : sequence of int, optional
        Indices into the history; all but the start by default.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.joint import compare_joint
    >>> run = attsvm.train(attsvm.random_problem(n=3, T=4, d=6, seed=0), steps=600, lr=0.5, train_head=True)
    >>> found = compare_joint(run, [-1])
    >>> bool(found.head[-1] < 1e-2 > found.attention[-1])
    True
    """
    h = run.history
    if run.batch is not None:
        raise ValueError("compare_joint takes one run; index the batch first, e.g. run[0]")
    if h.v is None:
        raise ValueError("compare_joint needs a run that trained its head: train(..., train_head=True)")
    chosen = range(1, len(h)) if snapshots is None else snapshots
    norm = "nuclear" if run.parameterization == "KQ" else "frobenius"
    found = np.full((5, len(chosen)), np.nan)
    solutions = []
    for j, k in enumerate(chosen):
        size = float(np.linalg.norm(h.W[k], "nuc" if norm == "nuclear" else "fro"))
        found[0, j] = float(np.linalg.norm(h.v[k])) / size if size > 0 else np.inf
        ratios = (float(found[0, j]), 0.0, float("inf"))
        solved = [joint_svm(run.problem, h.selection[k], ratio=r, norm=norm) for r in ratios]
        solutions.append(solved[0])
        if solved[0].status.has_solution and h.v[k].any() and size > 0:
            found[1, j] = misalignment(h.v[k][None], solved[0].v[None])
        for place, solution in enumerate(solved):
            if solution.status.has_solution and size > 0:
                found[2 + place, j] = misalignment(h.W[k], solution.W)
    ratio, head, attention, plain, relaxed = found
    return JointComparison(h.steps[list(chosen)], ratio, head, attention, plain, relaxed, tuple(solutions))
