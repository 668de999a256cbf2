"""Random vocabularies and sequences, as the papers draw them."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

__all__ = ["random_corpus"]

Kind = Literal["sphere", "orthonormal", "equicorrelated"]
Labels = Literal["realizable", "random"]
FloatArray = npt.NDArray[np.float64]
_MAX_REDRAWS = 1000


def random_corpus(
    n: int,
    T: int,
    vocabulary: int,
    d: int,
    *,
    embeddings: Kind = "sphere",
    labels: Labels = "random",
    seed: int | np.random.Generator = 0,
) -> tuple[list[list[int]], FloatArray]:
    """Sequences ``[..., query, next]`` with contexts of T tokens, and embeddings.

    Parameters
    ----------
    n, T, vocabulary, d : int
    embeddings : {"sphere", "orthonormal", "equicorrelated"}
        Uniform on the unit sphere; orthonormal; unit vectors with all inner products 1/2. The last two need
        ``vocabulary <= d``.
    labels : {"realizable", "random"}
        The next token is the one that a hidden W prefers (graphs are then acyclic), or a random one of the context.
    seed : int or Generator

    Returns
    -------
    list of lists of int, and ndarray of shape (vocabulary, d)

    Examples
    --------
    >>> from attsvm.next_token import random_corpus, token_graphs
    >>> sequences, table = random_corpus(4, 5, vocabulary=7, d=8, labels="realizable", seed=0)
    >>> len(sequences[0]), table.shape, token_graphs(sequences).is_acyclic
    (6, (7, 8), True)
    """
    for name, value, least in (("n", n, 1), ("T", T, 2), ("vocabulary", vocabulary, 2), ("d", d, 1)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise ValueError(f"{name} must be an integer >= {least}, got {value!r}")
    if labels not in get_args(Labels):
        raise ValueError(f"labels must be one of {list(get_args(Labels))}, got {labels!r}")
    rng = np.random.default_rng(seed)
    table = _table(rng, vocabulary, d, embeddings)
    hidden = rng.normal(size=(d, d))
    for _ in range(_MAX_REDRAWS):
        contexts = rng.integers(0, vocabulary, size=(n, T))
        if (contexts != contexts[:, :1]).any():  # else every graph is empty
            break
    if labels == "random":
        following = np.take_along_axis(contexts, rng.integers(0, T, size=(n, 1)), axis=1)
    else:
        scores = np.einsum("ntd,nd->nt", table[contexts], table[contexts[:, -1]] @ hidden.T)
        following = np.take_along_axis(contexts, scores.argmax(axis=1)[:, None], axis=1)
    return np.concatenate([contexts, following], axis=1).tolist(), table


def _table(rng: np.random.Generator, vocabulary: int, d: int, kind: str) -> FloatArray:
    if kind not in get_args(Kind):
        raise ValueError(f"embeddings must be one of {list(get_args(Kind))}, got {kind!r}")
    if kind == "sphere":
        table = rng.normal(size=(vocabulary, d))
        return np.asarray(table / np.linalg.norm(table, axis=1, keepdims=True))
    if vocabulary > d:
        raise ValueError(f"embeddings={kind!r} needs vocabulary <= d, got {vocabulary} and {d}")
    basis = np.linalg.qr(rng.normal(size=(d, d)))[0][:vocabulary]
    if kind == "orthonormal":
        return np.asarray(basis)
    gram = 0.5 * (np.eye(vocabulary) + 1.0)
    return np.asarray(np.linalg.cholesky(gram) @ basis)
