"""The SVMs of next-token prediction: of an attention layer (Graph-SVM) and of a linear decoder.

**Graph-SVM** is the direction in which next-token training of attention sends W (arXiv 2403.08081):

minimize ||W||  subject to  (e_i - e_j)^T W e_k  = 0   where i, j share a component of graph k,
                            (e_i - e_j)^T W e_k >= 1   where i reaches j in graph k and not back.

Inside a component all tokens are tied to the first by equalities, and one inequality per edge between components
(first token against first token) says what all pairs say: along a path inequalities add up.

**A linear decoder** predicts from contexts h_j with empirical next-token distributions. Training ``W (V x d)`` with the
cross-entropy of ``softmax(W h_j)`` on distributions p_j whose supports S_j are not all of the vocabulary
(Thrampoulidis, *Implicit bias of next-token prediction*, arXiv 2402.18551; for the nuclear norm arXiv
2408.15417). The loss tends to its infimum, the conditional entropy, only if inside the supports

    (e_z - e_z')^T W h_j = log p_j(z) / p_j(z')         (finite part, when such a W exists),

while W grows along the solution of

    minimize ||W||  s.t.  (e_z - e_z')^T W h_j = 0  for z, z' in S_j,   >= 1  for z in S_j, z' outside.

These are Gen-SVM and its finite part with one-hot tokens: the same rows, so the same solvers and certificates. The
derivation is in ``docs/next_token.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Unpack

import numpy as np
import numpy.typing as npt

from attsvm.margin_options import SolverOptions, SvmOptions, check_options, takes
from attsvm.next_token.sequences import Corpus, TokenGraphs, distinct, graphs_of, read_embeddings, read_sequences
from attsvm.problem import AttentionProblem
from attsvm.solution import ResultView, Solution
from attsvm.solvers import InfeasibleError, MarginProblem, MarginSolution, solve
from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.certify.ranks import count_above, rank_tolerance
from attsvm.solvers.margin_solution import warn_if_inaccurate
from attsvm.solvers.rows.pairs import PairRows
from attsvm.solvers.rows.shared import lost_in_difference
from attsvm.svm import finite_part, gen_svm
from attsvm.user_input import real_array, require_finite


@dataclass(frozen=True, eq=False, repr=False)
class GraphSolution(ResultView):
    """A solved Graph-SVM with its certificate.

    Attributes
    ----------
    graphs : TokenGraphs
    embeddings : ndarray, shape (vocabulary, d)
    result : MarginSolution
    pairs : ndarray of int, shape (m, 3)
        Last token, token put first and token put behind (or beside) of each row.
    """

    graphs: TokenGraphs
    embeddings: FloatArray
    result: MarginSolution
    pairs: IntArray

    @property
    def W(self) -> FloatArray:
        """The solution, shape (d, d); `InfeasibleError` names the last tokens in conflict when there is none."""
        farkas = self.certificate.farkas
        if farkas is not None:
            last = sorted({int(k) for k in self.pairs[farkas.rows, 0]})
            raise InfeasibleError(
                f"Graph-SVM is infeasible: no W keeps the graphs of last tokens {', '.join(map(str, last))} in order; "
                "use embeddings of a larger dimension (certificate.farkas holds the proof)"
            )
        return self.result.W

    @cached_property
    def rank(self) -> int:
        """Numerical rank of W; for the nuclear norm ``certificate.rank`` bounds that of every solution."""
        if self.certificate.rank_certificate is not None:
            return self.certificate.rank_certificate.numerical_rank
        return int(count_above(np.linalg.svd(self.W, compute_uv=False), rank_tolerance(self.certificate.gap)))

    @property
    def equality(self) -> BoolArray:
        """True for the rows that tie tokens of a component, shape (m,)."""
        return self.result.problem.equality

    def margins(self, W: npt.ArrayLike | None = None) -> FloatArray:
        """``(e_i - e_j)^T W e_k`` of every row, for the solution or another W; shape (m,)."""
        return self.result.problem.margins(self.W if W is None else W)

    def __repr__(self) -> str:
        rows = f"{len(self.pairs)} rows"
        if not self.status.has_solution:
            return f"GraphSolution({self.result.norm_kind.name}, {self.status}, {rows})"
        return (
            f"GraphSolution({self.result.norm_kind.name}, {self.status}, margin={self.margin:.4g}, rank={self.rank}, "
            f"{rows}, gap={self.certificate.gap:.1e})"
        )


@takes(SolverOptions)
def graph_svm(
    sequences: Sequence[npt.ArrayLike],
    embeddings: npt.ArrayLike,
    *,
    selected: npt.ArrayLike | None = None,
    **options: Unpack[SolverOptions],
) -> GraphSolution:
    """Solve Graph-SVM for sequences of token ids.

    Parameters
    ----------
    sequences : sequence of array_like of int
        Each ``[..., query, next]``, as for `token_graphs`.
    embeddings : array_like, shape (vocabulary, d)
        One vector per token id.
    selected : array_like of int, shape (n,), optional
        A local version: tokens that attention selects, in place of the next tokens.
    **options
        Passed to the solver: ``tolerance``, ``max_iterations``, ``time_limit``, ...
        All keywords: `attsvm.margin_options.SolverOptions`.

    Returns
    -------
    GraphSolution

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.next_token import graph_svm
    >>> svm = graph_svm([[0, 1, 2, 0], [1, 0, 2, 1], [0, 1, 2, 2]][:1], np.eye(3))
    >>> print(svm.status, svm.W[:, 2].round(3))
    optimal [ 0.667 -0.333 -0.333]
    """
    check_options("graph_svm", SolverOptions, options, "selected")
    corpus = read_sequences(sequences, selected)
    table = read_embeddings(embeddings, corpus)
    return solve_graphs(graphs_of(corpus), table, **options)


@takes(SolverOptions)
def graph_svms(
    corpora: Sequence[Sequence[npt.ArrayLike]],
    embeddings: Sequence[npt.ArrayLike],
    **options: Unpack[SolverOptions],
) -> list[GraphSolution]:
    """Solve the Graph-SVM of many corpora as one batch.

    Parameters
    ----------
    corpora : sequence of what `graph_svm` takes as ``sequences``
    embeddings : sequence of array_like, each of shape (vocabulary, d)
        One table per corpus, all of one dimension d.
    **options
        Passed to the solver: ``tolerance``, ``max_iterations``, ``time_limit``, ...
        All keywords: `attsvm.margin_options.SolverOptions`.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.next_token import graph_svms
    >>> [svm.norm.__round__(4) for svm in graph_svms([[[0, 1, 2, 0]], [[0, 1, 1]]], [np.eye(3), np.eye(3)])]
    [0.8165, 0.7071]
    """
    check_options("graph_svms", SolverOptions, options)
    if len(corpora) != len(embeddings) or not len(corpora):
        raise ValueError(f"embeddings must hold one table per corpus, got {len(embeddings)} for {len(corpora)} corpora")
    read = [_read_one(k, sequences) for k, sequences in enumerate(corpora)]
    tables = [read_embeddings(table, corpus) for table, corpus in zip(embeddings, read, strict=True)]
    graphs = [graphs_of(corpus) for corpus in read]
    built = [_margin_problem(graph, table) for graph, table in zip(graphs, tables, strict=True)]
    found = solve(MarginProblem.stack([problem for problem, _ in built]), **options)
    warn_if_inaccurate(found)
    return [
        GraphSolution(graph, table, found[i], pairs)
        for i, (graph, table, (_, pairs)) in enumerate(zip(graphs, tables, built, strict=True))
    ]


def _read_one(k: int, sequences: Sequence[npt.ArrayLike]) -> Corpus:
    try:
        return read_sequences(sequences)
    except ValueError as error:
        raise ValueError(f"corpora[{k}]: {error}") from error


def solve_graphs(graphs: TokenGraphs, embeddings: FloatArray, **options: Unpack[SolverOptions]) -> GraphSolution:
    """`graph_svm` of graphs that were built."""
    problem, pairs = _margin_problem(graphs, embeddings)
    found = solve(problem, **options)
    warn_if_inaccurate(found)
    return GraphSolution(graphs, embeddings, found, pairs)


def _margin_problem(graphs: TokenGraphs, embeddings: FloatArray) -> tuple[MarginProblem, IntArray]:
    """Rows of the graphs: components tied to their first token, components against components."""
    root, component, order = graphs.root, graphs.component, graphs.order
    first, behind = root.take(order.T)
    ties = len(component) - len(root)
    if ties:
        home = root.take(component)  # first node of the component of each node
        tied = (home != np.arange(len(home))).nonzero()[0]
        first, behind = np.concatenate([home.take(tied), first]), np.concatenate([tied, behind])
    asked, left, right = graphs.query.take(first), graphs.token.take(first), graphs.token.take(behind)
    pairs = np.array([asked, left, right]).T.copy()
    queries = distinct(asked)
    owner = queries.searchsorted(asked)
    ahead, after = embeddings.take(left, axis=0), embeddings.take(right, axis=0)

    def remainder(index: IntArray) -> FloatArray:
        return lost_in_difference(ahead[index], after[index])

    rows = PairRows.trusted(ahead - after, embeddings.take(queries, axis=0), owner, lambda _: remainder)
    if not ties:
        return MarginProblem.from_rows(rows), pairs
    equality = np.zeros(len(first), dtype=bool)
    equality[:ties] = True
    return MarginProblem.from_rows(rows, 1.0 - equality, equality), pairs


def linear_problem(contexts: npt.ArrayLike, distributions: npt.ArrayLike) -> tuple[AttentionProblem, FloatArray]:
    """Contexts as queries over one-hot tokens, and the checked distributions.

    Parameters
    ----------
    contexts : array_like, shape (m, d)
        Embeddings of the distinct contexts.
    distributions : array_like, shape (m, V)
        Counts or probabilities of the next token; 0 outside the support.

    Examples
    --------
    >>> from attsvm.next_token import linear_problem
    >>> problem, p = linear_problem([[1.0, 0.0], [0.0, 1.0]], [[3, 1, 0], [0, 0, 2]])
    >>> problem, p[0]
    (AttentionProblem(n=2, T=3, dx=3, dz=2, no head), array([0.75, 0.25, 0.  ]))
    """
    h, counts = real_array("contexts", contexts).astype(np.float64), real_array("distributions", distributions)
    if h.ndim != 2 or counts.ndim != 2 or len(h) != len(counts):
        raise ValueError(
            f"contexts must have shape (m, d) and distributions (m, V), got shapes {h.shape} and {counts.shape}"
        )
    require_finite("distributions", counts)
    total = counts.sum(axis=1, dtype=np.float64)
    bad = np.flatnonzero((counts < 0).any(axis=1) | ~(total > 0))
    if len(bad):
        raise ValueError(f"distributions[{bad[0]}] must hold numbers >= 0 that are not all 0")
    m, V = counts.shape
    tokens = np.broadcast_to(np.eye(V), (m, V, V))
    return AttentionProblem(tokens, Z=h), counts / total[:, None]


@takes(SvmOptions)
def linear_svm(contexts: npt.ArrayLike, distributions: npt.ArrayLike, **options: Unpack[SvmOptions]) -> Solution:
    """The direction in which training a linear decoder sends W, shape (V, d).

    Parameters
    ----------
    contexts : array_like, shape (m, d)
    distributions : array_like, shape (m, V)
        Counts or probabilities of the next token; only their supports matter here.
    **options
        Passed to the solver, as by `attsvm.gen_svm`.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.next_token import linear_svm
    >>> sol = linear_svm(np.eye(2), [[3, 1, 0], [0, 0, 2]])
    >>> print(sol.status, (sol.W @ np.eye(2)).T.round(3))
    optimal [[ 0.333  0.333 -0.667]
     [-0.333 -0.333  0.667]]
    """
    problem, p = linear_problem(contexts, distributions)
    if (p > 0).all():
        raise ValueError("distributions give every token a positive probability: nothing is left to separate")
    return gen_svm(problem, p > 0, **options)


@takes(SvmOptions)
def linear_finite_part(
    contexts: npt.ArrayLike, distributions: npt.ArrayLike, **options: Unpack[SvmOptions]
) -> Solution:
    """Least W whose logits have the log odds of the distributions inside every support.

    Infeasible (with a proof) when the contexts do not allow them: training then ends at another finite part.

    Parameters
    ----------
    contexts : array_like, shape (m, d)
    distributions : array_like, shape (m, V)
    **options
        Passed to the solver, as by `attsvm.finite_part`.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.next_token import linear_finite_part
    >>> W = linear_finite_part(np.eye(2), [[3, 1, 0], [0, 0, 2]]).W
    >>> round(float(np.exp(W[0, 0] - W[1, 0])), 9)
    3.0
    """
    problem, p = linear_problem(contexts, distributions)
    if ((p > 0).sum(axis=1) < 2).all():
        raise ValueError("distributions give every context one token only: there are no log odds to match")
    return finite_part(problem, p, p > 0, **options)
