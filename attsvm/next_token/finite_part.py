"""The finite part of next-token training: how attention is shared inside a component (soft composition).

In the cyclic subspace, the span of ``(e_i - e_j) e_k^T`` over tokens i, j of one component of graph k, the loss has a
minimizer: that of the cross-entropy over the tokens of the label's component,

    minimize  (1/n) sum_i [ log sum_{j in C_i} m_ij exp(h_ij) - h_i,label ],    h_ij = e_j^T W e_k   (arXiv 2403.08081).

It is strictly convex and has a minimizer there because every token of a component is preferred at least once. Tokens
are written relative to the first of their component, so p = sum (size - 1) numbers describe W.

A trained W read as theory predicts it: a finite part inside the cyclic subspace and a direction outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from attsvm.comparison import misalignment
from attsvm.next_token.graph_svm import solve_graphs
from attsvm.next_token.sequences import TokenGraphs, graphs_of, read_embeddings, read_sequences
from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.user_input import real_array

_NEWTON_STEPS = 100

# Squared Newton decrement below which the minimum is reached to rounding.
_DECREMENT = 1e-26

# Directions whose squared length is below this share of the largest are combinations of the others.
_DEPENDENT = 1e-12


def grouped_softmax(logits: FloatArray, owner: IntArray) -> tuple[FloatArray, FloatArray]:
    """Softmax inside groups of consecutive entries, shape (N,), and the logarithm of each group's sum, shape (n,).

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.next_token.finite_part import grouped_softmax
    >>> grouped_softmax(np.array([0.0, 0.0, 5.0]), np.array([0, 0, 1]))
    (array([0.5, 0.5, 1. ]), array([0.69314718, 5.        ]))
    """
    starts = np.flatnonzero(np.r_[True, np.diff(owner) > 0])
    top = np.maximum.reduceat(logits, starts)
    odds = np.exp(logits - top[owner])
    total = np.add.reduceat(odds, starts)
    return odds / total[owner], np.log(total) + top


class CyclicSubspace:
    """The span of ``(e_i - e_root) e_k^T`` over the tied tokens i of all graphs.

    Attributes
    ----------
    nodes : ndarray of int, shape (p,)
        Nodes of the graphs that are not the first of their component.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.next_token import CyclicSubspace, token_graphs
    >>> space = CyclicSubspace(token_graphs([[0, 1, 2, 0], [0, 1, 2, 1]]), np.eye(3))
    >>> space.dimension, space.project(np.ones((3, 3))).any(), space.project(np.diag([1.0, 0.0, 0.0])).any()
    (1, np.False_, np.False_)
    """

    def __init__(self, graphs: TokenGraphs, embeddings: FloatArray) -> None:
        roots = graphs.root[graphs.component]
        self.nodes: IntArray = np.flatnonzero(np.arange(len(graphs.token)) != roots)
        self._left = embeddings[graphs.token[self.nodes]] - embeddings[graphs.token[roots[self.nodes]]]
        self._right = embeddings[graphs.query[self.nodes]]

    @cached_property
    def _factor(self) -> tuple[FloatArray, FloatArray]:
        """``L (p, r)`` with Gram matrix ``L L^T``, and ``R (p, r)`` with ``L^T R = I``."""
        gram = (self._left @ self._left.T) * (self._right @ self._right.T)
        values, vectors = np.linalg.eigh(gram)
        keep = values > _DEPENDENT * values[-1] if len(values) else np.zeros(0, dtype=bool)
        roots = np.sqrt(values[keep])
        return vectors[:, keep] * roots, vectors[:, keep] / roots

    @property
    def dimension(self) -> int:
        """Dimension of the subspace."""
        return int(self._factor[0].shape[1])

    @property
    def logits_of(self) -> FloatArray:
        """Map from orthonormal coordinates to the logits of `nodes` against their first token, shape (p, dimension)."""
        return self._factor[0]

    def matrix(self, coordinates: FloatArray) -> FloatArray:
        """The matrix W of orthonormal coordinates, shape (d, d)."""
        weights = self._factor[1] @ coordinates
        return np.asarray((self._left * weights[:, None]).T @ self._right)

    def coordinates(self, W: npt.ArrayLike) -> FloatArray:
        """Orthonormal coordinates of the projection of W, shape (dimension,)."""
        margins = np.vecdot(self._left @ np.asarray(W, dtype=np.float64), self._right)
        return np.asarray(self._factor[1].T @ margins)

    def project(self, W: npt.ArrayLike) -> FloatArray:
        """Orthogonal projection of W on the subspace, shape (d, d)."""
        return self.matrix(self.coordinates(W))

    def basis(self) -> FloatArray:
        """Orthonormal matrices that span the subspace, shape (dimension, d, d)."""
        return np.asarray(np.einsum("pr,pi,pj->rij", self._factor[1], self._left, self._right))


@dataclass(frozen=True, eq=False, repr=False)
class SoftComposition:
    """The finite part, with how well it is known.

    Attributes
    ----------
    W : ndarray, shape (d, d)
        In the cyclic subspace; 0 when the graphs are acyclic.
    probabilities : ndarray, shape (N,)
        Share of every distinct token of every context (as in ``graphs.corpus``) among those of the label's component;
        0 outside.
    gradient_norm : float
        Of the loss in the subspace, at W.
    curvature : float
        Least eigenvalue of the Hessian in the subspace, at W; infinite when there is nothing to minimize.
    loss : float
    steps : int
        Newton steps.
    """

    W: FloatArray
    probabilities: FloatArray
    gradient_norm: float
    curvature: float
    loss: float
    steps: int

    def __repr__(self) -> str:
        return (
            f"SoftComposition(|W|={np.linalg.norm(self.W):.4g}, loss={self.loss:.4g}, "
            f"gradient {self.gradient_norm:.1e}, curvature {self.curvature:.2g})"
        )


def soft_composition(sequences: Sequence[npt.ArrayLike], embeddings: npt.ArrayLike) -> SoftComposition:
    """The finite part W_fin of next-token training with the cross-entropy.

    Parameters
    ----------
    sequences : sequence of array_like of int
        Each ``[..., query, next]``.
    embeddings : array_like, shape (vocabulary, d)

    Examples
    --------
    Token 0 follows (0, 1, 2) twice and token 1 once: attention is shared 2 : 1, and token 2 is out of it.

    >>> import numpy as np
    >>> from attsvm.next_token import soft_composition
    >>> soft = soft_composition([[0, 1, 2, 0], [0, 1, 2, 0], [0, 1, 2, 1]], np.eye(3))
    >>> soft.probabilities[:3].round(9)
    array([0.66666667, 0.33333333, 0.        ])
    """
    corpus = read_sequences(sequences)
    return compose(graphs_of(corpus), read_embeddings(embeddings, corpus))


class _CyclicLoss:
    """Cross-entropy over the label's component, as a function of orthonormal coordinates."""

    def __init__(self, graphs: TokenGraphs, space: CyclicSubspace) -> None:
        corpus = graphs.corpus
        self.inside = graphs.of_label
        node = graphs.node_of_token[self.inside]
        self.owner = corpus.owner[self.inside]
        self.log_count = np.log(corpus.count[self.inside])
        self.n = corpus.n
        place = np.full(len(graphs.token), -1)
        place[space.nodes] = np.arange(len(space.nodes))
        rows = place[node]  # -1 for the first token of a component, whose logit is 0
        self.features = np.zeros((len(rows), space.dimension))
        self.features[rows >= 0] = space.logits_of[rows[rows >= 0]]
        self.label = (np.cumsum(self.inside) - 1)[corpus.labelled]
        self.starts = np.flatnonzero(np.r_[True, np.diff(self.owner) > 0])

    def evaluate(self, x: FloatArray) -> tuple[float, FloatArray]:
        """Value and shares of the tokens."""
        logits = self.features @ x + self.log_count
        share, log_sum = grouped_softmax(logits, self.owner)
        return float(np.mean(log_sum - logits[self.label])), share

    def derivatives(self, share: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Gradient and Hessian."""
        mean = np.add.reduceat(share[:, None] * self.features, self.starts, axis=0)
        gradient = (mean - self.features[self.label]).sum(axis=0) / self.n
        hessian = ((share[:, None] * self.features).T @ self.features - mean.T @ mean) / self.n
        return gradient, hessian


def compose(graphs: TokenGraphs, embeddings: FloatArray) -> SoftComposition:
    """`soft_composition` of graphs that were built: Newton's method with a line search, from 0."""
    space = CyclicSubspace(graphs, embeddings)
    loss = _CyclicLoss(graphs, space)
    x = np.zeros(space.dimension)
    value, share = loss.evaluate(x)
    gradient, hessian = loss.derivatives(share)
    steps = 0
    while steps < _NEWTON_STEPS and len(x):
        direction = np.linalg.solve(hessian, -gradient)
        decrement = float(-(gradient @ direction))
        if decrement <= _DECREMENT:
            break
        length = 1.0
        while length > 1e-10:
            other, shares = loss.evaluate(x + length * direction)
            if other <= value - 0.25 * length * decrement or decrement < 1e-14:
                break
            length /= 2
        x, value, share = x + length * direction, other, shares
        gradient, hessian = loss.derivatives(share)
        steps += 1
    probabilities = np.zeros(len(loss.inside))
    probabilities[loss.inside] = share
    curvature = float(np.linalg.eigvalsh(hessian)[0]) if len(x) else float("inf")
    return SoftComposition(space.matrix(x), probabilities, float(np.linalg.norm(gradient)), curvature, value, steps)


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
