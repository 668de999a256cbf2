"""A solved attention SVM, read in the language of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from attsvm._arrays import BoolArray, IntArray
from attsvm.problem import AttentionProblem
from attsvm.rows import AttentionRows
from attsvm.selection import SelectedSets, Selection
from attsvm.solvers import Certificate, InfeasibleError, MarginSolution, Status

__all__ = ["SUPPORT_TOLERANCE", "Solution", "support_indices"]

FloatArray = npt.NDArray[np.float64]

# Margins of certified solutions are accurate to about 1e-8, and margins that are not 1 are rarely within
# 1e-4 of it on random data: cut between.
SUPPORT_TOLERANCE = 1e-5


@dataclass(frozen=True, eq=False)
class Solution:
    """An attention SVM solved, with its certificate.

    Attributes
    ----------
    formulation : str
        "Att-SVM", "SAtt-SVM", "Gen-SVM" or "W_fin".
    problem : AttentionProblem
    selection : Selection or SelectedSets
    rows : AttentionRows
    result : MarginSolution
    support_tolerance : float

    Examples
    --------
    >>> import attsvm
    >>> sol = attsvm.att_svm(attsvm.random_problem(n=3, T=4, d=5, seed=0), norm="nuclear")
    >>> sol  # doctest: +ELLIPSIS
    Solution(Att-SVM, nuclear, optimal, margin=0.4329, rank=2, gap=...)
    """

    formulation: str
    problem: AttentionProblem
    selection: Selection | SelectedSets
    rows: AttentionRows
    result: MarginSolution
    support_tolerance: float = SUPPORT_TOLERANCE

    @property
    def status(self) -> Status:
        """How the solve ended."""
        return self.result.status

    @property
    def certificate(self) -> Certificate:
        """Proof of optimality or of infeasibility."""
        return self.result.certificate

    @property
    def solver(self) -> str:
        """Name of the solver that ran."""
        return self.result.solver

    @property
    def iterations(self) -> int:
        """Iterations of the solver."""
        return self.result.iterations

    @property
    def seconds(self) -> float:
        """Wall time of the solve and its certificate."""
        return self.result.seconds

    @property
    def norm_name(self) -> str:
        """Name of the norm that was minimized."""
        return self.result.norm_kind.name

    @property
    def W(self) -> FloatArray:
        """The solution, shape (dx, dz); `InfeasibleError` names the sequences in conflict when there is none."""
        if self.certificate.farkas is not None:
            raise InfeasibleError(
                f"{self.formulation} is infeasible: no W satisfies the rows of {self._conflict()} together; "
                "choose another selection or a larger dimension (certificate.farkas holds the proof)"
            )
        return self.result.W

    def _conflict(self) -> str:
        queries = [self.rows.query_index(int(o)) for o in self.conflicting_queries]
        if not self.problem.multi_query:
            names = [str(i) for (i,) in queries]
            return f"sequence{'s' if len(names) > 1 else ''} {', '.join(names)}"
        return f"(sequence, query) {', '.join(map(str, queries))}"

    @property
    def conflicting_queries(self) -> IntArray:
        """Flat indices of the queries in the Farkas proof; empty when the problem is feasible."""
        farkas = self.certificate.farkas
        return np.empty(0, dtype=np.int64) if farkas is None else farkas.owners

    @property
    def norm(self) -> float:
        """Norm of W; infinite when infeasible."""
        return self.result.norm

    @property
    def margin(self) -> float:
        """1 / norm: 0 when infeasible, infinite when W = 0."""
        if self.norm == 0:
            return float("inf")
        return 1.0 / self.norm

    @property
    def direction(self) -> FloatArray:
        """W divided by its norm, shape (dx, dz)."""
        W = self.W
        if self.norm == 0:
            raise ValueError("direction is undefined: W = 0 satisfies every row")
        return np.asarray(W / self.norm)

    @cached_property
    def rank(self) -> int:
        """Numerical rank of W; for the nuclear norm compare with ``certificate.rank``, which bounds it."""
        if self.certificate.rank_certificate is not None:
            return self.certificate.rank_certificate.numerical_rank
        singular = np.linalg.svd(self.W, compute_uv=False)
        cut = max(1e-8, float(np.sqrt(self.certificate.gap)))
        return int(np.count_nonzero(singular > cut * singular[0])) if singular[0] > 0 else 0

    def token_margins(self) -> FloatArray:
        """``(x_anchor - x_t)^T W z`` per query and token, NaN where there is no row; shape ``query_shape + (T,)``."""
        return self.rows.scatter(self.rows.margin_problem.margins(self.W))

    @property
    def multipliers(self) -> FloatArray:
        """Dual multipliers per query and token, 0 where there is no row; shape ``query_shape + (T,)``."""
        return self.rows.scatter(self.result.multipliers, fill=0.0)

    @cached_property
    def support(self) -> BoolArray:
        """True for the support tokens: margin within ``support_tolerance`` of 1; shape ``query_shape + (T,)``."""
        inequality = self.rows.scatter(~self.rows.margin_problem.equality, fill=0.0).astype(bool)
        distance = np.abs(np.where(inequality, self.token_margins(), np.inf) - 1.0)
        return np.asarray(distance <= self.support_tolerance)

    def __repr__(self) -> str:
        if not self.status.has_solution:
            return f"Solution({self.formulation}, {self.norm_name}, {self.status})"
        return (
            f"Solution({self.formulation}, {self.norm_name}, {self.status}, margin={self.margin:.4g}, "
            f"rank={self.rank}, gap={self.certificate.gap:.1e})"
        )


def support_indices(solution: Solution, tolerance: float | None = None) -> tuple[IntArray, ...]:
    """Support tokens of each query (Definition 2): margin equal to 1 within a tolerance.

    Parameters
    ----------
    solution : Solution
    tolerance : float, optional
        The solution's ``support_tolerance`` by default.

    Returns
    -------
    tuple of ndarray
        One array of token indices per query, in C order of ``query_shape``; it may be empty.

    Examples
    --------
    >>> import attsvm
    >>> sol = attsvm.att_svm(attsvm.random_problem(n=2, T=3, d=4, seed=0))
    >>> [indices.tolist() for indices in attsvm.support_indices(sol)]
    [[1], [1, 2]]
    """
    if tolerance is not None and not tolerance >= 0:
        raise ValueError(f"tolerance must be >= 0, got {tolerance}")
    support = solution.support
    if tolerance is not None:
        equality = solution.rows.scatter(solution.rows.margin_problem.equality, fill=1.0).astype(bool)
        support = ~equality & (np.abs(solution.token_margins() - 1.0) <= tolerance)
    return tuple(np.flatnonzero(row) for row in support.reshape(-1, solution.rows.T))
