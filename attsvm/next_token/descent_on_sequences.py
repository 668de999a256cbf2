"""Gradient descent on next-token prediction with one attention layer, far past where probabilities underflow.

With s the attention of the last token over its context and ``u = s_label`` (all occurrences together), the loss of a
sequence is ``l(u)``: ``-log u``, ``(1 - u)^2 / 2`` or ``-u``. This is the paper's ``l(c_y^T X^T s)`` for embeddings and
heads with ``c_y^T e_j = 1`` for j = y and 0 otherwise. In the logits

    dl/dh_j = w s_j  (j != label),     dl/dh_label = -w sum_{j != label} s_j,     w = -l'(u) u,

so the gradient is ``sum_j w s_j (e_j - e_label) e_k^T``: positive numbers times differences, each exact in logarithms.
Tokens of the label's component add up to something of order 1 that cancels over the sequences, beside which the
others would be lost; they only act in the cyclic subspace, so both parts are kept apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attsvm.next_token.finite_part import CyclicSubspace
from attsvm.next_token.sequences import graphs_of, read_embeddings, read_sequences
from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.training.options import snapshot_steps
from attsvm.user_input import require_choice, require_count, require_number

LossName = Literal["cross_entropy", "squared", "correlation"]

Parameterization = Literal["W", "KQ"]


@dataclass(frozen=True, eq=False)
class _Data:
    """Padded tensors of a batch of corpora: contexts (B, n, T) and their embeddings."""

    away: Tensor  # (B, n, T, d): embedding of each token minus that of the label
    tokens: Tensor  # (B, n, T, d)
    queries: Tensor  # (B, n, d)
    log_count: Tensor  # (B, n, T), -inf for padding
    label: Tensor  # (B, n, 1)
    outside: Tensor  # (B, n, T): in another component than the label's
    basis: Tensor  # (B, r, d * d): orthonormal, of the cyclic subspace; zero rows fill up


@dataclass(frozen=True, eq=False, repr=False)
class NextTokenRun:
    """Trained weights with their history; one more leading axis for a batch of corpora.

    Attributes
    ----------
    W : ndarray, shape (*batch, d, d)
    steps : ndarray of int, shape (S,)
        Steps of the snapshots.
    history : ndarray, shape (S, *batch, d, d)
    log_gradient : ndarray, shape (*batch,)
        Logarithm of the norm of the last gradient outside the cyclic subspace.
    """

    W: FloatArray
    steps: IntArray
    history: FloatArray
    log_gradient: FloatArray

    def __repr__(self) -> str:
        size = f"{self.W.shape[0]} corpora, " if self.W.ndim == 3 else ""
        return f"NextTokenRun({size}{self.steps[-1]} steps, |W|={np.linalg.norm(self.W, axis=(-2, -1)).max():.4g})"


def train(
    sequences: Sequence[Any],
    embeddings: npt.ArrayLike,
    parameterization: Parameterization = "W",
    *,
    steps: int = 2000,
    lr: float = 0.1,
    loss: LossName = "cross_entropy",
    seed: int | np.random.Generator = 0,
    m: int | None = None,
    init_scale: float = 0.01,
    snapshots: int | Sequence[int] = 30,
    device: torch.device | str | None = None,
    batch: bool = False,
) -> NextTokenRun:
    """Descend: normalized steps outside the cyclic subspace, plain gradient steps inside it.

    Outside, weights grow for ever and only normalized steps get anywhere; inside there is a minimum that a step of
    fixed length would jump around. For acyclic data this is normalized gradient descent. (K, Q) are
    trained by normalized gradient descent on both, whatever the graphs.

    Parameters
    ----------
    sequences : sequence of array_like of int
        Each ``[..., query, next]``; with ``batch`` a sequence of such corpora with as many sequences each.
    embeddings : array_like, shape (vocabulary, d), or (batch, vocabulary, d)
    parameterization : {"W", "KQ"}
    steps : int
    lr : float
    loss : {"cross_entropy", "squared", "correlation"}
    seed : int or Generator
        Of the start, Gaussian of standard deviation ``init_scale``.
    m : int, optional
        Inner dimension of (K, Q); d by default.
    snapshots : int
        About how many log-spaced snapshots to keep.
    device : optional
    batch : bool

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.next_token import decompose, train
    >>> data = [[0, 1, 2, 0], [0, 1, 2, 1], [1, 2, 0, 1]]
    >>> run = train(data, np.eye(3), steps=1000)
    >>> parts = decompose(data, np.eye(3), run.W)
    >>> parts.misalignment < 1e-4, parts.share_error < 1e-3, parts.recovered
    (True, True, True)
    """
    _check(parameterization, steps, lr, loss, m, init_scale)
    corpora = list(sequences) if batch else [sequences]
    data = _tensors(corpora, embeddings, batch, device)
    d = data.queries.shape[-1]
    rng = np.random.default_rng(seed)
    shapes = [(len(corpora), d, d)] if parameterization == "W" else [(len(corpora), d, m or d)] * 2
    weights = [torch.as_tensor(init_scale * rng.normal(size=s), device=data.queries.device) for s in shapes]
    kept = snapshot_steps(steps, snapshots)
    history = []
    log_gradient = data.queries.new_zeros(len(corpora))
    for step in range(steps + 1):
        W = weights[0] if parameterization == "W" else weights[0] @ weights[1].mT
        if step in kept:
            history.append(W.cpu().numpy().copy())
        if step == steps:
            break
        finite, outer, log_gradient = _gradients(data, W, loss)
        if parameterization == "W":
            size = outer.flatten(1).norm(dim=1).clamp_min(torch.finfo(outer.dtype).tiny)[:, None, None]
            weights[0] = W - lr * (finite + outer / size)
        else:
            weights = _factor_step(weights, finite, outer, log_gradient, lr)
    found = np.stack(history) if batch else np.stack(history)[:, 0]
    ends = log_gradient.cpu().numpy() if batch else log_gradient.cpu().numpy()[0]
    return NextTokenRun(found[-1], np.array(sorted(kept)), found, ends)


def _check(parameterization: str, steps: int, lr: float, loss: str, m: int | None, init_scale: float) -> None:
    require_choice("parameterization", parameterization, "W", "KQ")
    require_choice("loss", loss, *get_args(LossName))
    require_count("steps", steps)
    require_count("m", m, optional=True)
    require_number("lr", lr, "a positive number", low=0.0)
    require_number("init_scale", init_scale, "a number >= 0", 0.0, ends="[)")


def _tensors(corpora: Sequence[Any], embeddings: npt.ArrayLike, batch: bool, device: Any) -> _Data:
    """Pad the distinct tokens of every context."""
    read = [read_sequences(corpus) for corpus in corpora]
    n = read[0].n
    for b, corpus in enumerate(read):
        if corpus.n != n:
            raise ValueError(
                f"corpora of a batch must have as many sequences each: {n} in the first, {corpus.n} in {b}"
            )
    table = np.asarray(embeddings)
    if batch and (table.ndim != 3 or len(table) != len(read)):
        raise ValueError(f"embeddings must have shape ({len(read)}, vocabulary, d) for this batch, got {table.shape}")
    tables = [read_embeddings(table[b] if batch else table, corpus) for b, corpus in enumerate(read)]
    T, d = max(int(np.bincount(corpus.owner).max()) for corpus in read), tables[0].shape[1]
    shape = (len(read), n, T)
    tokens, queries = np.zeros((*shape, d)), np.zeros((len(read), n, d))
    log_count, label = np.full(shape, -np.inf), np.zeros((len(read), n, 1), dtype=np.int64)
    outside = np.zeros(shape, dtype=bool)
    bases = []
    for b, (corpus, own) in enumerate(zip(read, tables, strict=True)):
        graphs = graphs_of(corpus)
        starts = np.flatnonzero(np.r_[True, np.diff(corpus.owner) > 0])
        place = np.arange(len(corpus.owner)) - starts[corpus.owner]
        tokens[b, corpus.owner, place] = own[corpus.token]
        log_count[b, corpus.owner, place] = np.log(corpus.count)
        outside[b, corpus.owner, place] = ~graphs.of_label
        label[b, :, 0] = place[corpus.labelled]
        queries[b] = own[corpus.query]
        bases.append(CyclicSubspace(graphs, own).basis().reshape(-1, d * d))
    basis = np.zeros((len(read), max(len(part) for part in bases), d * d))
    for b, part in enumerate(bases):
        basis[b, : len(part)] = part
    away = tokens - np.take_along_axis(tokens, label[..., None], axis=2)

    def on_device(array: npt.NDArray[Any]) -> Tensor:
        return torch.as_tensor(array, device=device)

    return _Data(*map(on_device, (away, tokens, queries, log_count, label, outside, basis)))


def _gradients(data: _Data, W: Tensor, loss: str) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient inside the cyclic subspace, ``exp(log_scale)`` times that outside, and ``log_scale``."""
    keys = data.queries @ W.mT
    logits = (data.tokens * keys.unsqueeze(2)).sum(-1) + data.log_count
    log_s = logits - logits.logsumexp(-1, keepdim=True)
    log_u = log_s.gather(-1, data.label)
    others = log_s.scatter(-1, data.label, -torch.inf)
    log_weight = torch.zeros_like(log_u)  # log w; 0 for the cross-entropy
    if loss != "cross_entropy":
        log_weight = log_u if loss == "correlation" else log_u + others.logsumexp(-1, keepdim=True)
    log_g = others + log_weight
    n = log_g.shape[1]
    inside = log_g.masked_fill(data.outside, -torch.inf).exp()
    finite = _project(data, _pulled(data, inside), keep=True) / n
    far = log_g.masked_fill(~data.outside, -torch.inf)
    largest = far.amax(dim=(1, 2), keepdim=True)
    largest = largest.masked_fill(torch.isneginf(largest), 0.0)
    outer = _project(data, _pulled(data, (far - largest).exp()), keep=False) / n
    # What the outer tokens do inside the subspace; it fades as they do.
    finite = finite + _project(data, _pulled(data, far.exp()), keep=True) / n
    return finite, outer, largest.flatten()


def _pulled(data: _Data, weights: Tensor) -> Tensor:
    """``sum g_j (e_j - e_label) e_k^T``, shape (B, d, d)."""
    return (weights.unsqueeze(-1) * data.away).sum(2).mT @ data.queries


def _project(data: _Data, G: Tensor, *, keep: bool) -> Tensor:
    """The part of G in the cyclic subspace, or what is left without it."""
    if not data.basis.shape[1]:
        return torch.zeros_like(G) if keep else G
    flat = G.flatten(1).unsqueeze(1)
    part = ((flat @ data.basis.mT) @ data.basis).reshape(G.shape)
    return part if keep else G - part


def _factor_step(weights: list[Tensor], finite: Tensor, outer: Tensor, log_scale: Tensor, lr: float) -> list[Tensor]:
    """A normalized step of (K, Q) along the whole gradient: dL/dK = G Q, dL/dQ = G^T K."""
    K, Q = weights
    # The larger of the two parts is factored out, so that neither overflows nor do both underflow.
    scale = torch.maximum(log_scale, finite.flatten(1).abs().amax(1).log())[:, None, None]
    G = finite * (-scale).exp().clamp_max(1e300) + outer * (log_scale[:, None, None] - scale).exp()
    dK, dQ = G @ Q, G.mT @ K
    size = (
        (dK.square().sum((1, 2)) + dQ.square().sum((1, 2))).sqrt().clamp_min(torch.finfo(K.dtype).tiny)[:, None, None]
    )
    return [K - lr * dK / size, Q - lr * dQ / size]
