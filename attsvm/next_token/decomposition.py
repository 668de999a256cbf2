"""A trained W read as theory predicts it: a finite part inside the cyclic subspace and a direction outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attsvm._arrays import real_array
from attsvm.comparison.metrics import misalignment
from attsvm.next_token.composition import CyclicSubspace, compose, grouped_softmax
from attsvm.next_token.graph_svm import solve_graphs
from attsvm.next_token.graphs import TokenGraphs, graphs_of
from attsvm.next_token.sequences import read_embeddings, read_sequences

__all__ = ["NextTokenDecomposition", "attention_shares", "decompose"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class NextTokenDecomposition:
    """W beside what next-token training is predicted to end at.

    Attributes
    ----------
    finite : ndarray, shape (d, d)
        Projection of W on the cyclic subspace.
    rest : ndarray, shape (d, d)
        What is left; it grows along the Graph-SVM direction.
    misalignment : float
        ``1 - cos`` of ``rest`` with the Graph-SVM solution; NaN where one of them is 0 or the SVM has no solution.
    finite_error : float
        Frobenius distance of ``finite`` from the predicted finite part.
    share_error : float
        Largest difference between the attention of W inside the label's component and the predicted shares.
    recovered : bool
        Whether in every sequence the tokens of the label's component hold more attention than all others together.
    """

    finite: FloatArray
    rest: FloatArray
    misalignment: float
    finite_error: float
    share_error: float
    recovered: bool

    def __repr__(self) -> str:
        return (
            f"NextTokenDecomposition(misalignment={self.misalignment:.2e}, finite error={self.finite_error:.2e}, "
            f"share error={self.share_error:.2e}, components {'' if self.recovered else 'not '}recovered)"
        )


def attention_shares(graphs: TokenGraphs, embeddings: FloatArray, W: FloatArray) -> FloatArray:
    """Attention of every distinct token of every context (all its occurrences together), shape (N,).

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.next_token import attention_shares, token_graphs
    >>> attention_shares(token_graphs([[0, 1, 1, 2, 0]]), np.eye(3), np.zeros((3, 3)))
    array([0.25, 0.5 , 0.25])
    """
    corpus = graphs.corpus
    logits = np.vecdot(embeddings[corpus.token] @ W, embeddings[corpus.query[corpus.owner]]) + np.log(corpus.count)
    return grouped_softmax(logits, corpus.owner)[0]


def decompose(
    sequences: Sequence[npt.ArrayLike], embeddings: npt.ArrayLike, W: npt.ArrayLike, *, norm: str = "frobenius"
) -> NextTokenDecomposition:
    """Split a trained W into finite part and direction, and compare both with theory.

    Parameters
    ----------
    sequences : sequence of array_like of int
    embeddings : array_like, shape (vocabulary, d)
    W : array_like, shape (d, d)
    norm : str
        Of the Graph-SVM that the direction is compared with: "frobenius" for trained W, "nuclear" for (K, Q).

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.next_token import decompose, graph_svm, soft_composition
    >>> data = [[0, 1, 2, 0], [0, 1, 2, 1]]
    >>> W = soft_composition(data, np.eye(3)).W + 50 * graph_svm(data, np.eye(3)).W
    >>> parts = decompose(data, np.eye(3), W)
    >>> parts.misalignment < 1e-12, parts.finite_error < 1e-12, parts.recovered
    (True, True, True)
    """
    corpus = read_sequences(sequences)
    table = read_embeddings(embeddings, corpus)
    matrix = real_array("W", W).astype(np.float64)
    d = table.shape[1]
    if matrix.shape != (d, d):
        raise ValueError(f"W must have shape {(d, d)}, got {matrix.shape}")
    graphs = graphs_of(corpus)
    finite = CyclicSubspace(graphs, table).project(matrix)
    rest = matrix - finite
    predicted = compose(graphs, table)
    svm = solve_graphs(graphs, table, norm=norm)
    direction = svm.W if svm.status.has_solution else np.zeros((d, d))  # 0 / 0 is NaN
    attention = attention_shares(graphs, table, matrix)
    inside = graphs.of_label
    held = np.bincount(corpus.owner, np.where(inside, attention, 0.0))
    shares = np.where(inside, attention / held[corpus.owner], 0.0)
    return NextTokenDecomposition(
        finite,
        rest,
        float(misalignment(rest, direction)),
        float(np.linalg.norm(finite - predicted.W)),
        float(np.abs(shares - predicted.probabilities).max()),
        bool((held > 0.5).all()),
    )
