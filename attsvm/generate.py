"""Random problems as the papers draw them."""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from attsvm.heads import LinearHead
from attsvm.problem import AttentionProblem, ProblemBatch
from attsvm.selection import Selection
from attsvm.user_input import generator, require_choice, require_count, require_number

_MAX_REDRAWS = 10_000


def random_points(
    rng: np.random.Generator, shape: tuple[int, ...], distribution: Literal["sphere", "gaussian"] = "sphere"
) -> npt.NDArray[np.float64]:
    """Standard normal vectors along the last axis; on the sphere divided by their lengths.

    Examples
    --------
    >>> bool(np.allclose(np.linalg.norm(random_points(np.random.default_rng(0), (2, 3)), axis=-1), 1.0))
    True
    """
    points = rng.standard_normal(shape)
    if distribution == "sphere":
        points /= np.linalg.norm(points, axis=-1, keepdims=True)
    return points


@overload
def random_problem(
    n: int,
    T: int,
    d: int,
    batch: None = None,
    seed: int | np.random.Generator | None = ...,
    min_score_gap: float | None = ...,
    *,
    dz: int | None = ...,
    queries: int | None = ...,
    kind: Literal["cross", "self", "sequence"] = ...,
    causal: bool = ...,
    distribution: Literal["sphere", "gaussian"] = ...,
) -> AttentionProblem: ...


@overload
def random_problem(
    n: int,
    T: int,
    d: int,
    batch: int,
    seed: int | np.random.Generator | None = ...,
    min_score_gap: float | None = ...,
    *,
    dz: int | None = ...,
    queries: int | None = ...,
    kind: Literal["cross", "self", "sequence"] = ...,
    causal: bool = ...,
    distribution: Literal["sphere", "gaussian"] = ...,
) -> ProblemBatch: ...


def random_problem(
    n: int,
    T: int,
    d: int,
    batch: int | None = None,
    seed: int | np.random.Generator | None = 0,
    min_score_gap: float | None = None,
    *,
    dz: int | None = None,
    queries: int | None = None,
    kind: Literal["cross", "self", "sequence"] = "cross",
    causal: bool = False,
    distribution: Literal["sphere", "gaussian"] = "sphere",
) -> AttentionProblem:
    """Draw tokens, queries and a linear head from the unit sphere, and fair random labels.

    Parameters
    ----------
    n, T, d : int
        Sequences, tokens per sequence, dimension of the tokens.
    batch : int, optional
        Number of independent problems (each with its own head) in one object.
    seed : int or numpy.random.Generator
    min_score_gap : float, optional
        Redraw each sequence until its best score leads every other by at least this much (the papers'
        filter uses 0.1).
    dz : int, optional
        Dimension of the queries (cross-attention only); d by default.
    queries : int, optional
        K queries per sequence (cross-attention only); one query without a K axis by default.
    kind : {"cross", "self", "sequence"}
        Independent queries; the first token as query; every token as query.
    causal : bool
        With ``kind="sequence"``: query k sees tokens 0..k.
    distribution : {"sphere", "gaussian"}
        Law of tokens, queries and head.

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=6, T=8, d=10, seed=0)
    >>> problem.X.shape, problem.Z.shape
    ((6, 8, 10), (6, 10))
    >>> attsvm.random_problem(n=2, T=3, d=4, batch=500, seed=1).batch
    500
    """
    _check_sizes({"n": n, "T": T, "d": d}, {"batch": batch, "dz": dz, "queries": queries})
    _check_kind(kind, causal, distribution, own_queries=dz is not None or queries is not None)
    rng = generator(seed)
    lead = () if batch is None else (batch,)
    K = T if kind == "sequence" else queries
    query_shape = (*lead, n) if K is None else (*lead, n, K)
    head = LinearHead(random_points(rng, (*lead, d), distribution))
    labels = rng.choice([-1.0, 1.0], size=query_shape)
    X = random_points(rng, (*lead, n, T, d), distribution)

    def build(tokens: npt.NDArray[np.float64], Z: Any) -> AttentionProblem:
        if kind == "self":
            return AttentionProblem.self_attention(tokens, labels, head)
        if kind == "sequence":
            return AttentionProblem.sequences(tokens, labels, head, causal=causal)
        return AttentionProblem(tokens, labels, Z, head)

    Z = random_points(rng, (*query_shape, dz or d), distribution) if kind == "cross" else None
    problem = build(X, Z)
    if min_score_gap is None:
        return problem
    require_number("min_score_gap", min_score_gap, "a number >= 0", 0.0, ends="[]")
    for _ in range(_MAX_REDRAWS):
        close = _score_gaps(problem) < min_score_gap
        if not close.any():
            return problem
        X[close] = random_points(rng, (int(close.sum()), T, d), distribution)
        problem = build(X.copy(), Z)
    raise ValueError(
        f"min_score_gap = {min_score_gap} was not reached by {int(close.sum())} of {close.size} sequences "
        f"in {_MAX_REDRAWS} redraws; lower it or raise d"
    )


def _check_sizes(needed: dict[str, int], optional: dict[str, int | None]) -> None:
    for name, value in needed.items():
        require_count(name, value, least=2 if name == "T" else 1)
    for name, size in optional.items():
        require_count(name, size, optional=True)


def _check_kind(kind: str, causal: bool, distribution: str, own_queries: bool) -> None:
    require_choice("kind", kind, "cross", "self", "sequence")
    require_choice("distribution", distribution, "sphere", "gaussian")
    if kind != "cross" and own_queries:
        raise ValueError(f"dz and queries apply to kind='cross' only, got kind={kind!r}")
    if causal and kind != "sequence":
        raise ValueError(f"causal=True needs kind='sequence', got kind={kind!r}")


def _score_gaps(problem: AttentionProblem) -> npt.NDArray[np.float64]:
    """Smallest lead of the best score over the second best, per sequence (over its queries)."""
    scores = problem.scores()
    top = np.partition(scores, problem.T - 2, axis=-1)
    gaps = top[..., -1] - top[..., -2]  # infinite where a query sees one token only
    return np.asarray(gaps.min(axis=-1) if problem.multi_query else gaps)


# Shares of a token's square norm: what all tokens have in common, its word, its position, its context.
_SHARES = {"mean": 0.12, "word": 0.70, "position": 0.15, "context": 0.03}


def _falling_scales(d: int) -> npt.NDArray[np.float64]:
    """Singular values as those of hidden states fall: ``(1 + i/4)^-0.4 exp(-i/200)`` at d = 384, norm 1."""
    i = np.arange(d) * (384.0 / d)
    scales = (1.0 + i / 4.0) ** -0.4 * np.exp(-i / 200.0)
    return np.asarray(scales / np.linalg.norm(scales))


def structured_problem(
    n: int,
    T: int,
    d: int = 384,
    *,
    causal: bool = False,
    rank: int = 32,
    bias: bool = True,
    vocabulary: int | None = None,
    dtype: npt.DTypeLike = np.float64,
    seed: int | np.random.Generator | None = 0,
) -> tuple[AttentionProblem, Selection]:
    """Self-attention on tokens that resemble hidden states, every position a query, and the selection of a random head.

    Hidden states of trained models share a mean, fill few directions well (the singular values here follow those of a
    small sentence encoder, within a factor of two up to index 200 and falling faster beyond), repeat words and add
    positions: rows of their margin problem are nearly dependent, which points from a sphere are not. Solutions rest on
    about three rows per query, where heads of that encoder rest on one to two: these problems are the harder ones.

    Parameters
    ----------
    n, T, d : int
        Sequences, tokens per sequence, dimension of the hidden states.
    causal : bool
        Query k sees tokens 0..k.
    rank : int
        Rank of the random head whose most attended tokens are selected.
    bias : bool
        Append a constant 1 to every token, as heads with biases see them: the dimension becomes d + 1.
    vocabulary : int, optional
        Distinct words, drawn with frequencies 1, 1/2, 1/3, ...; a quarter of the tokens by default.
    dtype : dtype
        Of tokens and queries.
    seed : int or numpy.random.Generator

    Returns
    -------
    problem : AttentionProblem
    selection : Selection
        Of the random head: one W separates it, so hard margins exist.

    Examples
    --------
    >>> import attsvm
    >>> problem, selection = attsvm.structured_problem(n=2, T=8, d=24, seed=0)
    >>> problem
    AttentionProblem(n=2, T=8, dx=25, dz=25, K=8, no head)
    >>> print(attsvm.satt_svm(problem, selection).status)
    optimal
    """
    for name, value, least in (("n", n, 1), ("T", T, 2), ("d", d, 1), ("rank", rank, 1)):
        require_count(name, value, least)
    require_count("vocabulary", vocabulary, optional=True)
    words = max(2, n * T // 4) if vocabulary is None else vocabulary
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.standard_normal((d, d)))[0]
    spread = _falling_scales(d)[:, None] * turn
    often = 1.0 / np.arange(1, words + 1)
    spoken = rng.choice(words, size=(n, T), p=often / often.sum())
    mean = rng.standard_normal(d)
    X = np.sqrt(_SHARES["mean"]) * mean / np.linalg.norm(mean)
    X = X + np.sqrt(_SHARES["word"]) * (rng.standard_normal((words, d)) @ spread)[spoken]
    X = X + np.sqrt(_SHARES["position"]) * (rng.standard_normal((T, d)) @ spread)
    X = X + np.sqrt(_SHARES["context"]) * (rng.standard_normal((n, T, d)) @ spread)
    X *= np.sqrt(d) / np.linalg.norm(X, axis=-1, keepdims=True)  # as layer normalization leaves them
    if bias:
        X = np.concatenate([X, np.ones((n, T, 1))], axis=-1)
    X = X.astype(dtype)
    problem = AttentionProblem.sequences(X, causal=causal)
    keys, queries = (X @ rng.standard_normal((X.shape[-1], rank)) for _ in range(2))
    logits = np.where(problem.allowed, queries @ keys.mT, -np.inf)
    return problem, Selection(logits.argmax(axis=-1))
