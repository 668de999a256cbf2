"""Why no W exists, in words: the sequences, queries and tokens that a Farkas proof sets against each other.

A solved attention SVM, or a batch of them, read in the language of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
import numpy.typing as npt

from attsvm.attention_proofs import AttentionOrigin
from attsvm.problem import AttentionProblem
from attsvm.records import html_table
from attsvm.selection import SelectedSets, Selection
from attsvm.selection_rows import AttentionRows
from attsvm.sensitivity import Derivative, Sensitivity, sensitivity_of
from attsvm.solvers import (
    Certificate,
    CertificateBatch,
    FarkasCertificate,
    InfeasibleError,
    MarginSolution,
    MarginSolutionBatch,
    Status,
)
from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.certify.certificate import counted
from attsvm.solvers.certify.ranks import count_above, rank_tolerance


def unit_matrices(A: npt.ArrayLike) -> FloatArray:
    """Matrices divided by their Frobenius norms, also where the norms overflow or underflow; NaN for zero matrices.

    Examples
    --------
    >>> unit_matrices([[3e300, 4e300]])
    array([[0.6, 0.8]])
    """
    a = np.asarray(A, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        sizes = np.linalg.norm(a, axis=(-2, -1), keepdims=True)
        if not ((sizes > 1e-100) & (sizes < 1e100)).all():
            a = a / np.abs(a).max(axis=(-2, -1), keepdims=True)
            sizes = np.linalg.norm(a, axis=(-2, -1), keepdims=True)
        return np.asarray(a / sizes)


def conflict_in_words(
    problem: AttentionProblem, rows: AttentionRows, farkas: FarkasCertificate, *, probabilities: bool = False
) -> str:
    """What the proof says; ``probabilities`` where the rows prescribe probabilities (W_fin) and not a choice.

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.AttentionProblem([[[1.0], [1.0]]], Z=[[1.0]])
    >>> solution = attsvm.att_svm(problem, [0])
    >>> conflict_in_words(problem, solution.rows, solution.certificate.farkas)
    'X[0] holds the same vector as tokens 0 and 1, so no W can select token 0 over token 1'
    """
    queries = [rows.query_index(int(o)) for o in farkas.owners]
    twins = _twins(problem, rows, farkas)
    if twins is not None:
        i, chosen, other = twins
        what = "give them different probabilities" if probabilities else f"select token {chosen} over token {other}"
        return f"X[{i}] holds the same vector as tokens {chosen} and {other}, so no W can {what}"
    if farkas.proof == "zero row":
        place = ", ".join(map(str, queries[0]))
        return f"Z[{place}] is zero, so all tokens of sequence {queries[0][0]} score the same for every W"
    if not problem.multi_query:
        names = [str(i) for (i,) in queries]
        return f"no W satisfies the rows of sequence{'s' if len(names) > 1 else ''} {', '.join(names)} together"
    return f"no W satisfies the rows of (sequence, query) {', '.join(map(str, queries))} together"


def _twins(
    problem: AttentionProblem, attention_rows: AttentionRows, farkas: FarkasCertificate
) -> tuple[int, int, int] | None:
    """Sequence and two of its tokens that are the same vector, which the proof would have to separate."""
    margins = attention_rows.margin_problem
    for owner in farkas.owners:
        i = attention_rows.query_index(int(owner))[0]
        rows = farkas.rows[margins.owner[farkas.rows] == owner]
        tokens = np.append(attention_rows.anchors[owner], attention_rows.token[rows])
        # What is asked of a token against the anchor: to keep a distance, or at least one.
        fixed, sides = np.append(True, margins.equality[rows]), np.append(0.0, margins.rhs[rows])
        for u, v in combinations(range(len(tokens)), 2):
            asked = (fixed[u] or fixed[v]) and (fixed[u] != fixed[v] or sides[u] != sides[v])
            if asked and np.array_equal(problem.X[i, tokens[u]], problem.X[i, tokens[v]]):
                chosen, other = (u, v) if fixed[u] else (v, u)
                return i, int(tokens[chosen]), int(tokens[other])
    return None


# Margins of certified solutions are accurate to about 1e-8, and margins that are not 1 are rarely within
# 1e-4 of it on random data: cut between.
SUPPORT_TOLERANCE = 1e-5


def _whole(result: MarginSolution | MarginSolutionBatch) -> FloatArray:
    """W, prior included: one more rounding of each entry, at most 2^-53 of it."""
    prior = result.problem.prior
    return result.W if prior is None else np.asarray(prior.W + result.W)


def _rank_of(W: FloatArray, gap: FloatArray) -> IntArray:
    return count_above(np.linalg.svd(W, compute_uv=False), rank_tolerance(gap))


class ResultView:
    """Base of frozen dataclasses with a field ``result``, one solved margin problem that they put into words."""

    result: MarginSolution

    @property
    def status(self) -> Status:
        """How the solve ended."""
        return self.result.status

    @property
    def reason(self) -> str:
        """Why the status is what it is, with the resolution at which more is proved."""
        return self.result.reason

    @property
    def certificate(self) -> Certificate:
        """Proof of optimality or of infeasibility."""
        return self.result.certificate

    @property
    def iterations(self) -> int:
        """Iterations of the solver."""
        return self.result.iterations

    @property
    def norm(self) -> float:
        """Norm of W, or of its change from the prior; infinite when infeasible."""
        return self.result.norm

    @property
    def margin(self) -> float:
        """1 / norm: 0 when infeasible, infinite when W (or its change from the prior) is 0."""
        return float("inf") if self.norm == 0 else 1.0 / self.norm


@dataclass(frozen=True, eq=False)
class _Solved:
    """What one solution and a batch of them are read by, with the batch axis in front if there is one."""

    formulation: str
    problem: AttentionProblem
    selection: Selection | SelectedSets
    rows: AttentionRows
    result: MarginSolution | MarginSolutionBatch
    support_tolerance: float = SUPPORT_TOLERANCE

    @property
    def solver(self) -> str:
        """Name of the solver that ran, as ``solver=`` takes it."""
        return self.result.solver

    @property
    def seconds(self) -> float:
        """Wall time of the solve and its certificate; of the whole batch for a batch."""
        return self.result.seconds

    @property
    def norm_name(self) -> str:
        """Name of the norm that was minimized."""
        return self.result.norm_kind.name

    @property
    def W(self) -> FloatArray:
        """The solution, shape (dx, dz); of a batch (batch, dx, dz), NaN without a solution."""
        return _whole(self.result)

    @property
    def change(self) -> FloatArray:
        """What was added to the prior, shape of W: W itself without one. Norm and certificate are about it."""
        return self.W if self.prior is None else self.result.W

    @property
    def prior(self) -> FloatArray | None:
        """The W0 that W was to stay close to, shape of W."""
        known = self.result.problem.prior
        return None if known is None else known.W

    @property
    def multipliers(self) -> FloatArray:
        """Dual multipliers per query and token, shape ``query_shape + (T,)``: 0 where there is no row, NaN unsolved."""
        return self.rows.scatter(self.result.multipliers, fill=0.0)

    def token_margins(self) -> FloatArray:
        """``(x_anchor - x_t)^T W z`` per query and token, NaN where there is no row; shape ``query_shape + (T,)``."""
        return self.rows.scatter(self.rows.margin_problem.margins(self.W))

    @cached_property
    def support(self) -> BoolArray:
        """True for the support tokens: margin within ``support_tolerance`` of 1; shape ``query_shape + (T,)``.

        With offsets: of the right-hand sides. Of a soft margin: of that less the slack.
        """
        problem = self.rows.margin_problem
        margins = problem.margins(self.W)
        slack = self.rows.row_slacks(margins)
        near = (np.abs(margins - problem.rhs + slack) <= self.support_tolerance) & ~problem.equality
        return np.asarray(self.rows.scatter(near, fill=0.0) > 0)

    def sensitivity(self, *, query_tokens: npt.ArrayLike | None = None) -> Sensitivity:
        """Gradients of the norm and of the margin in tokens, queries, offset and prior, by the multipliers.

        Of a soft margin: of the objective, ``||W||_F^2 / 2`` or the norm plus what the slacks cost. X, Z, offset and
        prior are independent variables, unless ``query_tokens`` says which tokens the queries are. Problems of a
        batch without a solution have NaN.

        Parameters
        ----------
        query_tokens : int or array_like of int, shape ``query_shape``, optional
            The token of its sequence that each query is: ``query_tokens=0`` after ``self_attention(X)``,
            ``range(T)`` after ``sequences(X)``. The gradient in X then holds that in Z as well.

        Returns
        -------
        Sensitivity

        Examples
        --------
        >>> import attsvm
        >>> sens = attsvm.att_svm(attsvm.random_problem(n=3, T=4, d=5, seed=0), norm="nuclear").sensitivity()
        >>> sens.gradients.X.shape, sens.margin.Z.shape, sens.differentiable["X"]
        ((3, 4, 5), (3, 5), True)
        """
        return sensitivity_of(self.problem, self.rows, self.result, self.W, query_tokens)

    def derivative(self) -> Derivative:
        """The derivative of W by implicit differentiation (Frobenius and nuclear norm): ``vjp(G)`` and ``jvp(X=...)``.

        Raises
        ------
        DegenerateError
            W has no derivative here; the message names the query and the token.

        Examples
        --------
        >>> import numpy as np
        >>> import attsvm
        >>> sol = attsvm.att_svm(attsvm.random_problem(n=3, T=4, d=5, seed=0), norm="nuclear")
        >>> sol.derivative().vjp(np.ones((5, 5))).X.shape
        (3, 4, 5)
        """
        found = Derivative(self.problem, self.rows, self.result)
        found.require(("X", "Z"))
        return found


@dataclass(frozen=True, eq=False)
class Solution(_Solved, ResultView):
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

    result: MarginSolution

    @cached_property
    def certificate(self) -> Certificate:
        """Proof of optimality or of infeasibility; it knows the tokens, for `Certificate.save`."""
        return self.result.certificate.with_origin(AttentionOrigin(self.problem, self.rows))

    @property
    def W(self) -> FloatArray:
        """The solution, shape (dx, dz); `InfeasibleError` names the sequences in conflict when there is none."""
        farkas = self.certificate.farkas
        if farkas is not None:
            why = conflict_in_words(self.problem, self.rows, farkas, probabilities=self.formulation == "W_fin")
            raise InfeasibleError(
                f"{self.formulation} is infeasible: {why}; "
                "choose another selection or a larger dimension (certificate.farkas holds the proof)"
            )
        return _whole(self.result)

    @property
    def conflicting_queries(self) -> IntArray:
        """Flat indices of the queries in the Farkas proof; empty when the problem is feasible."""
        farkas = self.certificate.farkas
        return np.empty(0, dtype=np.int64) if farkas is None else farkas.owners

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
        if self.result.extras.note:  # nothing is certified, so no gap says where to cut
            return int(_rank_of(self.change, np.zeros(())))
        if self.certificate.rank_certificate is not None:
            return self.certificate.rank_certificate.numerical_rank
        return int(_rank_of(self.change, np.asarray(self.certificate.gap)))

    @property
    def objective(self) -> float:
        """What was minimized: the norm, or with C= the norm's term plus what the slacks cost."""
        return self.certificate.primal_value

    @cached_property
    def slacks(self) -> FloatArray:
        """What a soft margin falls short: per query, shape ``query_shape``, or with ``slack="row"`` per token.

        A hard margin has 0 everywhere. Tokens without a row have slack 0.
        """
        problem = self.rows.margin_problem
        if problem.penalty is None:
            return np.zeros(self.rows.query_shape)
        slacks = self.rows.slacks(problem.margins(self.W))
        if problem.penalty.slack == "row":
            return self.rows.scatter(slacks, fill=0.0)
        return slacks.reshape(self.rows.query_shape)

    @property
    def queries_with_slack(self) -> IntArray:
        """Indices (i,) or (i, k) of the queries whose margin a soft solution gives up, shape (count, 1 or 2)."""
        slacks = self.slacks
        each = slacks.max(axis=-1) if slacks.ndim > len(self.rows.query_shape) else slacks
        return np.argwhere(each > self.support_tolerance)

    def __repr__(self) -> str:
        if not self.status.has_solution:
            return f"Solution({self.formulation}, {self.norm_name}, {self.status})"
        size = f"margin={self.margin:.4g}" if self.prior is None else f"distance={self.norm:.4g}"
        return (
            f"Solution({self.formulation}, {self.norm_name}, {self.status}, {size}, "
            f"rank={self.rank}, gap={self.certificate.gap:.1e})"
        )

    def _repr_html_(self) -> str:
        facts: dict[str, object] = {"norm": self.norm_name, "status": self.status, "solver": self.solver}
        if self.status.has_solution:
            facts |= {"W": f"{self.problem.dx} x {self.problem.dz}, norm {self.norm:.4g}", "rank": self.rank}
            facts |= {"margin": f"{self.margin:.4g}", "support tokens": int(self.support.sum())}
            facts |= {"gap": f"{self.certificate.gap:.1e}"}
        elif self.certificate.farkas is not None:
            facts["queries in conflict"] = ", ".join(map(str, self.conflicting_queries.tolist()))
        return html_table(f"{self.formulation} of {self.problem!r}", facts)


@dataclass(frozen=True, eq=False)
class SolutionBatch(_Solved):
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

    result: MarginSolutionBatch

    @property
    def status(self) -> npt.NDArray[np.object_]:
        """One `Status` per problem; compare with strings: ``batch.status == "optimal"``."""
        return self.result.status

    @property
    def certificate(self) -> CertificateBatch:
        """Certificates as arrays of shape (batch,)."""
        return self.result.certificate

    @property
    def iterations(self) -> IntArray:
        """Iterations of each problem, shape (batch,)."""
        return self.result.iterations

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
        """W divided by its norm, shape (batch, dx, dz); NaN without a solution."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(self.change / self.norm[:, None, None])

    @cached_property
    def rank(self) -> IntArray:
        """Numerical ranks, shape (batch,); -1 where there is no solution."""
        known = self.has_solution
        W = np.where(known[:, None, None], self.change, 0.0)
        return np.where(known, _rank_of(W, np.where(known, self.gap, 0.0)), -1)

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

    def _statuses(self) -> str:
        return counted(self.status)

    def __repr__(self) -> str:
        return f"SolutionBatch({self.formulation}, {self.norm_name}, {len(self)} problems: {self._statuses()})"

    def _repr_html_(self) -> str:
        facts: dict[str, object] = {"norm": self.norm_name, "status": self._statuses(), "solver": self.solver}
        known = self.has_solution
        if known.any():
            for name, values in (("margin", self.margin), ("rank", self.rank), ("gap", self.gap)):
                low, middle, high = np.quantile(values[known], [0.0, 0.5, 1.0])
                facts[name] = f"{middle:.3g} (median), {low:.3g} to {high:.3g}"
        return html_table(f"{self.formulation} of {self.problem!r}", facts)
