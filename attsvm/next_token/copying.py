"""Attention that copies the value of one token: two-stage next-token training, and match-and-copy.

The output ``sum_t s_t v_t`` with ``s = softmax(X W z)`` should be the value ``v_a`` of one token a. With
``D_t = v_t - v_a``, the error ``r = sum_t s_t D_t`` and the slope g of the loss in the output,

    dL/dh_t = s_t (g . D_t - g . r)      (t != a),        dL/dW = sum_t dL/dh_t (x_t - x_a) z^T.

- *Cross-entropy* behind a decoder ``W_ov`` that predicts the successor of each token from its embedding: ``v_t = W_ov
  e_t`` and g tends to a constant. As attention saturates, the terms fall like ``s_t``.
- *Squared loss*: ``g = r``, and the terms fall like ``s_t sum_k s_k D_k . D_t``: twice as fast, also to zero.

Both are exponential tails in the leads of token a, so that normalized descent follows the margin problem with the rows
``(x_a - x_t)^T W z >= 1``: Graph-SVM of the selected tokens, and Att-SVM (our derivation; compare arXiv 2409.17335 and
2602.07562, of which we know the abstracts). For the squared loss this needs ``D_k . D_t > 0`` on the support: with
opposed values a mixture of tokens can copy as well as one token does. Terms are computed relative to the largest
off-token probability, so that nothing underflows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attsvm.comparison import angle, misalignment
from attsvm.next_token.graph_svm import GraphSolution, linear_svm, solve_graphs
from attsvm.next_token.sequences import graphs_of, read_embeddings, read_sequences
from attsvm.problem import AttentionProblem
from attsvm.softmax import log_softmax
from attsvm.solution import Solution
from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.svm import att_svm
from attsvm.user_input import generator, integer_array, require_count, require_flag, require_number

# Standard deviation of the first weights.
_START = 0.01
# Log-probability of the other tokens of a sequence that has none: finite, so that differences are.
_NOTHING = -1e300


@dataclass(frozen=True, eq=False)
class _Copying:
    """Tokens, queries and values; the rows that do not exist have log count -inf."""

    X: FloatArray  # (n, T, dx)
    Z: FloatArray  # (n, dz)
    log_count: FloatArray  # (n, T)
    values: FloatArray  # (n, T, dv)
    place: IntArray  # (n,): the token to copy
    label: IntArray | None  # (n,): of the cross-entropy; None for the squared loss

    def gradient(self, W: FloatArray) -> tuple[FloatArray, float]:
        """``exp(-log_scale) dL/dW`` of the summed loss, and ``log_scale``."""
        each, own = np.arange(len(self.X)), self.place
        log_s = log_softmax(np.einsum("ntd,nd->nt", self.X, self.Z @ W.T) + self.log_count)
        log_s[each, own] = -np.inf
        largest = np.maximum(log_s.max(axis=1), _NOTHING)
        s, size = np.exp(log_s - largest[:, None]), np.exp(largest)[:, None]  # off the token, over the largest
        base = self.values[each, own]
        D = self.values - base[:, None]
        r = np.einsum("nt,ntv->nv", s, D)
        scale = 2.0 * largest
        if self.label is None:
            g = r
        else:
            g, slope = _cross_entropy_slope(base + size * r, self.label)
            scale = largest + slope
        change = s * (np.einsum("nv,ntv->nt", g, D) - size * np.einsum("nv,nv->n", g, r)[:, None])
        change *= np.exp(scale - scale.max())[:, None]
        away = self.X - self.X[each, own][:, None]
        return np.einsum("nt,ntd->nd", change, away).T @ self.Z, float(scale.max())

    def least_slope(self) -> float:
        """Least cosine of the slope at the selected token with the way to another token's value."""
        each = np.arange(len(self.X))
        base = self.values[each, self.place]
        assert self.label is not None
        g, _ = _cross_entropy_slope(base, self.label)
        return _least_cosine(g[:, None], self.values - base[:, None], np.isfinite(self.log_count))


def _least_cosine(one: FloatArray, D: FloatArray, real: npt.NDArray[np.bool_]) -> float:
    """Least cosine of rows that are not zero and exist; 1 where there are none."""
    sizes = np.linalg.norm(one, axis=-1) * np.linalg.norm(D, axis=-1)
    cosines = (one * D).sum(axis=-1) / np.where(sizes > 0, sizes, 1.0)
    return float(cosines[real & (sizes > 0)].min(initial=1.0))


def _cross_entropy_slope(out: FloatArray, label: IntArray) -> tuple[FloatArray, FloatArray]:
    """``softmax(out) - one-hot`` over the largest probability off the label, and the logarithm of that."""
    logs, each = log_softmax(out), np.arange(len(out))
    logs[each, label] = -np.inf
    largest = logs.max(axis=1)
    g = np.exp(logs - largest[:, None])
    g[each, label] = -g.sum(axis=1)
    return g, largest


def _descended(
    W: FloatArray,
    gradient: Callable[[FloatArray], tuple[FloatArray, float]],
    marks: Sequence[int],
    lr: float,
    normalized: bool,
) -> list[FloatArray]:
    """Weights at the marked steps of descent."""
    found = []
    for step in range(1, max(marks) + 1):
        G, log_scale = gradient(W)
        length = float(np.linalg.norm(G))
        if length > 0:
            W = W - lr * (G / length if normalized else G * np.exp(log_scale))
        if step in marks:
            found.append(W)
    return found


def _marks(steps: int) -> list[int]:
    """About eight steps per factor of ten, the last one among them."""
    powers = 10.0 ** np.arange(0.0, np.log10(steps) + 1e-9, 0.125)
    return sorted({*np.round(powers).astype(int).tolist(), steps})


def _check(steps: int, lr: float) -> None:
    require_count("steps", steps)
    require_number("lr", lr, "a positive number", low=0.0)


@dataclass(frozen=True, eq=False, repr=False)
class TwoStageRun:
    """A decoder, then attention, with the margin problem of each.

    Attributes
    ----------
    decoder : ndarray, shape (vocabulary, d)
        W_ov after the first stage.
    W : ndarray, shape (d, d)
        W_kq after the second.
    decoder_svm : Solution
        The direction predicted for the decoder: one-hot tokens, one row per token and wrong successor.
    graph : GraphSolution
        The direction predicted for attention: Graph-SVM of the selected tokens.
    decoder_steps, steps : ndarray of int
        Marked steps of the stages.
    decoder_angles, angles : ndarray
        Degrees between weights and prediction at these steps.
    least_slope : float
        Least cosine between the slope of the loss at a selected token and ``D_t``. Where it is negative, attention on
        token t lowers the loss of that sequence: the selected token is not the best one under this decoder, and the
        prediction for attention does not apply.
    """

    decoder: FloatArray
    W: FloatArray
    decoder_svm: Solution
    graph: GraphSolution
    decoder_steps: IntArray
    steps: IntArray
    decoder_angles: FloatArray
    angles: FloatArray
    least_slope: float

    def __repr__(self) -> str:
        return f"TwoStageRun(decoder {self.decoder_angles[-1]:.2g} degrees, attention {self.angles[-1]:.2g} degrees)"


def two_stage(
    sequences: Sequence[npt.ArrayLike],
    embeddings: npt.ArrayLike,
    successors: npt.ArrayLike,
    *,
    decoder_steps: int = 2000,
    steps: int = 5000,
    lr: float = 0.1,
    seed: int | np.random.Generator = 0,
) -> TwoStageRun:
    """Train the decoder on successors of single tokens, then attention with the decoder fixed: normalized descent.

    Attention should select the token of the context whose successor comes next. Per last token these selections are a
    partial order of the vocabulary, and its rows are those of `graph_svm` with ``selected=``.

    Parameters
    ----------
    sequences : sequence of array_like of int
        Each ``[..., query, next]``; exactly one token of the context has the next token as successor.
    embeddings : array_like, shape (vocabulary, d)
    successors : array_like of int, shape (vocabulary,)
        The token that follows each token.
    decoder_steps, steps : int
        Of the first and of the second stage.
    lr : float
        Length of a step.
    seed : int or Generator
        Of both starts.

    Returns
    -------
    TwoStageRun

    Raises
    ------
    ValueError
        By name: for a sequence without such a token or with several, and for selections that contradict each other
        (two tokens in both orders for one last token), which this derivation does not cover.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.next_token import two_stage
    >>> run = two_stage([[0, 1, 2, 1], [1, 3, 0, 0]], np.eye(4), [1, 2, 3, 0], steps=2000)
    >>> run.decoder_angles[-1] < 1.0, run.angles[-1] < 1.0
    (np.True_, np.True_)
    """
    _check(steps, lr)
    require_count("decoder_steps", decoder_steps)
    selected = _selected(sequences, successors)
    corpus = read_sequences(sequences, selected)
    table = read_embeddings(embeddings, corpus)
    following = integer_array("successors", successors)
    if following.shape != (len(table),) or following.min() < 0 or following.max() >= len(table):
        raise ValueError(
            f"successors must hold one token id below {len(table)} for each of the {len(table)} embeddings, got shape "
            f"{following.shape}"
        )
    graphs = graphs_of(corpus)
    if not graphs.is_acyclic:
        both = next(part for q in graphs.queries.tolist() for part in graphs.components(q) if len(part) > 1)
        raise ValueError(
            f"sequences must select tokens in one order per last token, got tokens {both[0]} and {both[1]} in both"
        )
    rng = generator(seed)
    d, V = table.shape[1], len(table)
    one_hot = np.eye(V)[following]
    decoder_svm, graph = linear_svm(table, one_hot), solve_graphs(graphs, table)

    def decoder_gradient(W: FloatArray) -> tuple[FloatArray, float]:
        g, largest = _cross_entropy_slope(table @ W.T, following)
        return (g * np.exp(largest - largest.max())[:, None]).T @ table, float(largest.max())

    first, second = _marks(decoder_steps), _marks(steps)
    decoders = _descended(_START * rng.standard_normal((V, d)), decoder_gradient, first, lr, True)
    counts = np.bincount(corpus.owner)
    shape = (corpus.n, int(counts.max()))
    row, column = corpus.owner, np.arange(len(corpus.owner)) - (np.cumsum(counts) - counts)[corpus.owner]
    X, log_count, place = np.zeros((*shape, d)), np.full(shape, -np.inf), column[corpus.labelled]
    X[row, column], log_count[row, column] = table[corpus.token], np.log(corpus.count)
    label = np.array([int(np.asarray(sequence)[-1]) for sequence in sequences])
    data = _Copying(X, table[corpus.query], log_count, X @ decoders[-1].T, place, label)
    trained = _descended(_START * rng.standard_normal((d, d)), data.gradient, second, lr, True)
    return TwoStageRun(
        decoders[-1], trained[-1], decoder_svm, graph, np.array(first), np.array(second),
        angle(misalignment(np.stack(decoders), decoder_svm.W)), angle(misalignment(np.stack(trained), graph.W)),
        data.least_slope(),
    )  # fmt: skip


def _selected(sequences: Sequence[npt.ArrayLike], successors: npt.ArrayLike) -> IntArray:
    """The token of each context whose successor comes next."""
    following = integer_array("successors", successors)
    found = []
    for i, sequence in enumerate(sequences):
        ids = integer_array(f"sequences[{i}]", sequence)
        if ids.ndim != 1 or len(ids) < 3 or ids.min() < 0 or ids.max() >= len(following):
            raise ValueError(
                f"sequences[{i}] must hold a context of at least two tokens and the next token, all below "
                f"{len(following)}, the number of successors"
            )
        fitting = np.unique(ids[:-1][following[ids[:-1]] == ids[-1]])
        if len(fitting) != 1:
            raise ValueError(
                f"sequences[{i}] must hold exactly one token whose successor is {ids[-1]}, got {fitting.tolist()}"
            )
        found.append(int(fitting[0]))
    return np.array(found, dtype=np.int64)


@dataclass(frozen=True, eq=False, repr=False)
class CopyTask:
    """Keys with values, and queries that match one key.

    Attributes
    ----------
    problem : AttentionProblem
        Keys as tokens.
    values : ndarray, shape (n, T, value_dim)
    selection : ndarray of int, shape (n,)
        The key that each query matches.
    """

    problem: AttentionProblem
    values: FloatArray
    selection: IntArray

    @property
    def least_cosine(self) -> float:
        """Least cosine of ``D_k`` and ``D_t`` in a sequence: positive where no mixture of tokens copies the value."""
        each = np.arange(len(self.values))
        D = self.values - self.values[each, self.selection][:, None]
        both = np.ones((*D.shape[:2], D.shape[1]), dtype=bool)
        return _least_cosine(D[:, :, None], D[:, None], both)

    def __repr__(self) -> str:
        n, T, d = self.problem.X.shape
        return f"CopyTask(n={n}, T={T}, d={d}, value_dim={self.values.shape[2]})"


def match_and_copy(
    n: int,
    T: int,
    d: int,
    *,
    value_dim: int | None = None,
    noise: float = 0.0,
    seed: int | np.random.Generator = 0,
) -> CopyTask:
    """Gaussian keys and values; each query is one of its keys, plus noise.

    Parameters
    ----------
    n, T, d : int
        Sequences, pairs in each, dimension of keys.
    value_dim : int, optional
        Dimension of values; d by default.
    noise : float
        Standard deviation per coordinate.
    seed : int or Generator

    Examples
    --------
    >>> from attsvm.next_token import match_and_copy
    >>> task = match_and_copy(3, 4, 5, seed=0)
    >>> task, bool((task.problem.Z[0] == task.problem.X[0, task.selection[0]]).all())
    (CopyTask(n=3, T=4, d=5, value_dim=5), True)
    """
    for name, value, least in (("n", n, 1), ("T", T, 2), ("d", d, 1)):
        require_count(name, value, least)
    require_count("value_dim", value_dim, optional=True)
    require_number("noise", noise, "a number >= 0", 0.0, ends="[)")
    rng = generator(seed)
    X, values = rng.standard_normal((n, T, d)), rng.standard_normal((n, T, value_dim or d))
    chosen = rng.integers(0, T, size=n)
    Z = X[np.arange(n), chosen] + noise * rng.standard_normal((n, d))
    return CopyTask(AttentionProblem(X, Z=Z), values, chosen)


@dataclass(frozen=True, eq=False, repr=False)
class CopyRun:
    """Attention trained to copy, beside Att-SVM of the matched keys.

    Attributes
    ----------
    W : ndarray, shape (d, d)
    svm : Solution
    steps : ndarray of int, shape (S,)
    angles : ndarray, shape (S,)
        Degrees between W and the solution at these steps.
    """

    W: FloatArray
    svm: Solution
    steps: IntArray
    angles: FloatArray

    def __repr__(self) -> str:
        return f"CopyRun({self.steps[-1]} steps, {self.angles[-1]:.2g} degrees from Att-SVM)"


def train_copy(
    task: CopyTask,
    *,
    steps: int = 5000,
    lr: float = 0.1,
    normalized: bool = True,
    seed: int | np.random.Generator = 0,
) -> CopyRun:
    """Descend on the squared loss ``sum_i |sum_t s_it v_it - v_i,match|^2 / 2`` in W.

    Parameters
    ----------
    task : CopyTask
    steps : int
    lr : float
        Length of a step, or factor of the gradient.
    normalized : bool
        Steps of equal length; plain gradient steps otherwise, which slow down as attention saturates.
    seed : int or Generator
        Of the start.

    Returns
    -------
    CopyRun

    Examples
    --------
    >>> from attsvm.next_token import train_copy, match_and_copy
    >>> run = train_copy(match_and_copy(3, 4, 8, seed=0), steps=3000)
    >>> run.angles[-1] < 2.0
    np.True_
    """
    _check(steps, lr)
    require_flag("normalized", normalized)
    problem = task.problem
    X, Z = problem.X.astype(np.float64), problem.Z.astype(np.float64)
    data = _Copying(X, Z, np.zeros(X.shape[:2]), task.values, task.selection, None)
    svm: Solution = att_svm(problem, task.selection)
    marks = _marks(steps)
    start = _START * generator(seed).standard_normal((problem.dx, problem.dz))
    trained = _descended(start, data.gradient, marks, lr, normalized)
    return CopyRun(trained[-1], svm, np.array(marks), angle(misalignment(np.stack(trained), svm.W)))
