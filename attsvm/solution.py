"""A solved attention SVM, or a batch of them, read in the language of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm._arrays import BoolArray, IntArray
from attsvm.problem import AttentionProblem
from attsvm.rows import AttentionRows
from attsvm.selection import SelectedSets, Selection
from attsvm.solvers import Certificate, CertificateBatch, InfeasibleError, MarginSolution, MarginSolutionBatch, Status

__all__ = ["SUPPORT_TOLERANCE", "Solution", "SolutionBatch", "support_indices"]

FloatArray = npt.NDArray[np.float64]

# Margins of certified solutions are accurate to about 1e-8, and margins that are not 1 are rarely within
# 1e-4 of it on random data: cut between.
SUPPORT_TOLERANCE = 1e-5


def _support(rows: AttentionRows, margins: FloatArray, tolerance: float) -> BoolArray:
    """Inequality rows whose margin is 1 within the tolerance, per query and token."""
    near = (np.abs(margins - 1.0) <= tolerance) & ~rows.margin_problem.equality
    return np.asarray(rows.scatter(near, fill=0.0) > 0)


def _whole(result: MarginSolution | MarginSolutionBatch) -> FloatArray:
    """W, prior included: one more rounding of each entry, at most 2^-53 of it."""
    prior = result.problem.prior
    return result.W if prior is None else np.asarray(prior.W + result.W)


def _rank_of(W: FloatArray, gap: FloatArray) -> IntArray:
    """Numerical ranks over leading axes: singular values above ``max(1e-8, sqrt(gap))`` times the largest."""
    singular = np.linalg.svd(W, compute_uv=False)
    cut = np.maximum(1e-8, np.sqrt(gap))[..., None] * singular[..., :1]
    return np.asarray(np.count_nonzero((singular > cut) & (singular > 0), axis=-1))


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
        """Name of the solver that ran, as ``solver=`` takes it."""
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
                f"{self.formulation} is infeasible: {self._conflict()}; "
                "choose another selection or a larger dimension (certificate.farkas holds the proof)"
            )
        return _whole(self.result)

    @property
    def change(self) -> FloatArray:
        """What was added to the prior, shape (dx, dz): W itself without one. Norm and certificate are about it."""
        return self.W if self.prior is None else self.result.W

    @property
    def prior(self) -> FloatArray | None:
        """The W0 that W was to stay close to, shape (dx, dz)."""
        known = self.result.problem.prior
        return None if known is None else known.W

    def _conflict(self) -> str:
        farkas = self.certificate.farkas
        assert farkas is not None
        queries = [self.rows.query_index(int(o)) for o in farkas.owners]
        twins = self._twins()
        if twins is not None:
            i, chosen, other = twins
            select = f"select token {chosen} over token {other}"
            what = "give them different probabilities" if self.formulation == "W_fin" else select
            return f"X[{i}] holds the same vector as tokens {chosen} and {other}, so no W can {what}"
        if farkas.proof == "zero row":
            place = ", ".join(map(str, queries[0]))
            return f"Z[{place}] is zero, so all tokens of sequence {queries[0][0]} score the same for every W"
        if not self.problem.multi_query:
            names = [str(i) for (i,) in queries]
            return f"no W satisfies the rows of sequence{'s' if len(names) > 1 else ''} {', '.join(names)} together"
        return f"no W satisfies the rows of (sequence, query) {', '.join(map(str, queries))} together"

    def _twins(self) -> tuple[int, int, int] | None:
        """Sequence and two of its tokens that are one vector, of which the proof asks for a difference."""
        farkas, margins = self.certificate.farkas, self.rows.margin_problem
        assert farkas is not None
        for owner in farkas.owners:
            i = self.rows.query_index(int(owner))[0]
            rows = farkas.rows[margins.owner[farkas.rows] == owner]
            tokens = np.append(self.rows.anchors[owner], self.rows.token[rows])
            # What is asked of a token against the anchor: to keep a distance, or at least one.
            fixed, sides = np.append(True, margins.equality[rows]), np.append(0.0, margins.rhs[rows])
            for u, v in combinations(range(len(tokens)), 2):
                asked = (fixed[u] or fixed[v]) and (fixed[u] != fixed[v] or sides[u] != sides[v])
                if asked and np.array_equal(self.problem.X[i, tokens[u]], self.problem.X[i, tokens[v]]):
                    chosen, other = (u, v) if fixed[u] else (v, u)
                    return i, int(tokens[chosen]), int(tokens[other])
        return None

    @property
    def conflicting_queries(self) -> IntArray:
        """Flat indices of the queries in the Farkas proof; empty when the problem is feasible."""
        farkas = self.certificate.farkas
        return np.empty(0, dtype=np.int64) if farkas is None else farkas.owners

    @property
    def norm(self) -> float:
        """Norm of W, or of its change from the prior; infinite when infeasible."""
        return self.result.norm

    @property
    def margin(self) -> float:
        """1 / norm: 0 when infeasible, infinite when W (or its change from the prior) is 0."""
        return float("inf") if self.norm == 0 else 1.0 / self.norm

    @property
    def direction(self) -> FloatArray:
        """W (or its change from the prior) divided by its norm, shape (dx, dz)."""
        change = self.change
        if self.norm == 0:
            what = "W = 0" if self.prior is None else "the prior"
            raise ValueError(f"direction is undefined: {what} satisfies every row")
        return np.asarray(change / self.norm)

    @cached_property
    def rank(self) -> int:
        """Numerical rank of W (or of its change); for the nuclear norm ``certificate.rank`` bounds it."""
        if self.certificate.rank_certificate is not None:
            return self.certificate.rank_certificate.numerical_rank
        return int(_rank_of(self.change, np.asarray(self.certificate.gap)))

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
        return _support(self.rows, self.rows.margin_problem.margins(self.W), self.support_tolerance)

    def __repr__(self) -> str:
        if not self.status.has_solution:
            return f"Solution({self.formulation}, {self.norm_name}, {self.status})"
        size = f"margin={self.margin:.4g}" if self.prior is None else f"distance={self.norm:.4g}"
        return (
            f"Solution({self.formulation}, {self.norm_name}, {self.status}, {size}, "
            f"rank={self.rank}, gap={self.certificate.gap:.1e})"
        )


@dataclass(frozen=True, eq=False)
class SolutionBatch:
    """One solution per problem of a batch: what `Solution` offers, with a leading axis; index it to get one.

    Attributes
    ----------
    formulation : str
    problem : AttentionProblem
        The batch.
    selection : Selection or SelectedSets
    rows : AttentionRows
    result : MarginSolution
        Of the batch.
    support_tolerance : float

    Examples
    --------
    >>> import attsvm
    >>> sols = attsvm.att_svm(attsvm.random_problem(n=2, T=3, d=4, batch=3, seed=0))
    >>> sols.W.shape, sols.norm.shape, sols.status == "optimal"
    ((3, 4, 4), (3,), array([ True,  True,  True]))
    >>> sols[1].certificate.gap < 1e-8
    True
    """

    formulation: str
    problem: AttentionProblem
    selection: Selection | SelectedSets
    rows: AttentionRows
    result: MarginSolutionBatch
    support_tolerance: float = SUPPORT_TOLERANCE

    @property
    def status(self) -> npt.NDArray[np.object_]:
        """One `Status` per problem; compare with strings: ``batch.status == "optimal"``."""
        return self.result.status

    @property
    def certificate(self) -> CertificateBatch:
        """Certificates as arrays of shape (batch,)."""
        return self.result.certificate

    @property
    def solver(self) -> str:
        """Name of the solver that ran, as ``solver=`` takes it."""
        return self.result.solver

    @property
    def iterations(self) -> IntArray:
        """Iterations of each problem, shape (batch,)."""
        return self.result.iterations

    @property
    def seconds(self) -> float:
        """Wall time of the whole batch."""
        return self.result.seconds

    @property
    def norm_name(self) -> str:
        """Name of the norm that was minimized."""
        return self.result.norm_kind.name

    @property
    def W(self) -> FloatArray:
        """Solutions, shape (batch, dx, dz); NaN where there is none."""
        return _whole(self.result)

    @property
    def change(self) -> FloatArray:
        """What was added to the priors, shape (batch, dx, dz); W itself without them."""
        return self.result.W

    @property
    def prior(self) -> FloatArray | None:
        """The W0 that each W was to stay close to, shape (batch, dx, dz)."""
        known = self.result.problem.prior
        return None if known is None else known.W

    @property
    def has_solution(self) -> BoolArray:
        """Where W can be read, shape (batch,)."""
        return np.array([status.has_solution for status in self.status], dtype=bool)

    @property
    def norm(self) -> FloatArray:
        """Norms, shape (batch,); infinite where there is no solution."""
        return self.result.norm

    @property
    def gap(self) -> FloatArray:
        """Relative duality gaps, shape (batch,); infinite where there is no solution."""
        return self.certificate.gap

    @property
    def margin(self) -> FloatArray:
        """1 / norm, shape (batch,): 0 where infeasible, infinite where W = 0."""
        with np.errstate(divide="ignore"):
            return np.asarray(1.0 / self.norm)

    @property
    def direction(self) -> FloatArray:
        """W divided by its norm, shape (batch, dx, dz); NaN where there is none."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(self.change / self.norm[:, None, None])

    @cached_property
    def rank(self) -> IntArray:
        """Numerical ranks, shape (batch,); -1 where there is no solution."""
        known = self.has_solution
        W = np.where(known[:, None, None], self.change, 0.0)
        return np.where(known, _rank_of(W, np.where(known, self.gap, 0.0)), -1)

    @property
    def multipliers(self) -> FloatArray:
        """Dual multipliers per query and token, shape (batch, *query_shape, T); NaN where there is no solution."""
        return self.rows.scatter(self.result.multipliers, fill=0.0)

    def token_margins(self) -> FloatArray:
        """Margins per query and token, shape (batch, *query_shape, T); NaN where there is no row or no solution."""
        return self.rows.scatter(self.rows.margin_problem.margins(self.W))

    @cached_property
    def support(self) -> BoolArray:
        """Support tokens, shape (batch, *query_shape, T); all False where there is no solution."""
        return _support(self.rows, self.rows.margin_problem.margins(self.W), self.support_tolerance)

    def __len__(self) -> int:
        return len(self.status)

    def __getitem__(self, index: int) -> Solution:
        if not -len(self) <= index < len(self):
            raise IndexError(f"solution {index} is out of range for a batch of {len(self)}")
        i = index % len(self)
        return Solution(
            self.formulation, self.problem[i], self.selection[i], self.rows[i], self.result[i], self.support_tolerance
        )

    def __iter__(self) -> Iterator[Solution]:
        return (self[b] for b in range(len(self)))

    def __repr__(self) -> str:
        counts: dict[Any, int] = {}
        for status in self.status:
            counts[str(status)] = counts.get(str(status), 0) + 1
        told = ", ".join(f"{count} {status}" for status, count in counts.items())
        return f"SolutionBatch({self.formulation}, {self.norm_name}, {len(self)} problems: {told})"


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
        support = _support(solution.rows, solution.rows.margin_problem.margins(solution.W), tolerance)
    return tuple(np.flatnonzero(row) for row in support.reshape(-1, solution.rows.T))
