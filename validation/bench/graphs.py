"""Graph-SVM of small vocabularies against one cvxpy constraint per pair of tokens."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
import numpy.typing as npt

from attsvm.next_token import graph_svm, graph_svms, random_corpus, token_graphs
from attsvm.validation.bench.measure import Stopwatch

__all__ = ["Modelled", "all_pairs_model", "graph_speed", "vocabularies"]


class Modelled(NamedTuple):
    """What cvxpy answers: W is None and the value NaN where its solver breaks down, infinite where it finds no W."""

    W: npt.NDArray[np.float64] | None
    value: float
    status: str


def all_pairs_model(
    sequences: Sequence[Any],
    embeddings: npt.NDArray[np.float64],
    norm: str,
    *,
    independent: bool = False,
    **options: Any,
) -> Modelled:
    """Graph-SVM as a user would write it: one cvxpy constraint for every pair of tokens that the graphs order.

    ``independent`` leaves out equations that follow from others: tokens of a component are tied to its first alone.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.validation.bench.graphs import all_pairs_model
    >>> round(float(all_pairs_model([[0, 1, 2, 0]], np.eye(3), "frobenius", solver="CLARABEL").value), 4)
    0.8165
    """
    import cvxpy as cp

    d = embeddings.shape[1]
    W = cp.Variable((d, d))
    rows = []
    graphs = token_graphs(sequences)
    for k in graphs.queries.tolist():
        closure = nx.transitive_closure(graphs.graph(k))
        for i, j in closure.edges:
            tied = closure.has_edge(j, i)
            if i == j or (tied and i > j):  # the same equation twice makes interior-point solvers break down
                continue
            if tied and independent and any(closure.has_edge(i, h) and closure.has_edge(h, i) for h in range(i)):
                continue
            score = (embeddings[i] - embeddings[j]) @ W @ embeddings[k]
            rows.append(score == 0 if tied else score >= 1)
    size = cp.sum_squares(W) if norm == "frobenius" else cp.normNuc(W)
    program = cp.Problem(cp.Minimize(size), rows)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where its solver stops short the status says so
            program.solve(**options)
    except cp.SolverError:  # ties that depend on each other
        return Modelled(None, np.nan, "broken")
    if W.value is None:
        return Modelled(None, np.inf, program.status)
    value = float(np.sqrt(program.value)) if norm == "frobenius" else float(program.value)
    return Modelled(W.value, value, program.status)


def vocabularies(count: int, seed: int, norm: str) -> list[tuple[list[list[int]], npt.NDArray[np.float64]]]:
    """Sequences and embeddings whose Graph-SVM is feasible and orders something: n 4-10, T 4-6, 6-8 tokens, d = 8.

    Examples
    --------
    >>> from attsvm.validation.bench.graphs import vocabularies
    >>> (sequences, table), = vocabularies(1, 0, "frobenius")
    >>> 4 <= len(sequences) <= 10, table.shape[1]
    (True, 8)
    """
    rng = np.random.default_rng(seed)
    found: list[tuple[list[list[int]], npt.NDArray[np.float64]]] = []
    while len(found) < count:
        sizes = (int(rng.integers(4, 11)), int(rng.integers(4, 7)), int(rng.integers(6, 9)))
        sequences, table = random_corpus(*sizes, 8, seed=rng)
        svm = graph_svm(sequences, table, norm=norm)
        if svm.status == "optimal" and svm.norm > 0:
            found.append((sequences, table))
    return found


def graph_speed(seed: int, norm: str, batch: int = 200, sample: int = 9) -> dict[str, dict[str, float]]:
    """Graph-SVM of small vocabularies, alone and as a batch, against one cvxpy constraint per pair of tokens.

    cvxpy has its default accuracy and solves the first ``sample`` vocabularies; its median counts for all.

    Examples
    --------
    >>> from attsvm.validation.bench.graphs import graph_speed
    >>> found = graph_speed(0, "frobenius", batch=4, sample=1)
    >>> found["attsvm"]["gap"] <= 1e-8, found["cvxpy CLARABEL"]["seconds"] > 0
    (True, True)
    """
    data = vocabularies(batch, seed, norm)
    corpora, tables = zip(*data, strict=True)
    peers, alone = [], []
    all_pairs_model(*data[0], norm, solver="CLARABEL")  # loads what it needs
    for sequences, table in data[:sample]:
        watch = Stopwatch()
        all_pairs_model(sequences, table, norm, solver="CLARABEL")
        peers.append(watch.seconds())
        watch = Stopwatch()
        for _ in range(4):
            graph_svm(sequences, table, norm=norm)
        alone.append(watch.seconds() / 4)
    together = graph_svms(corpora, tables, norm=norm)
    watch = Stopwatch()
    for _ in range(3):
        graph_svms(corpora, tables, norm=norm)
    many = watch.seconds() / 3 / batch
    ours = {
        "seconds": median(alone),
        "seconds in a batch": many,
        "times as fast": median(peer / own for peer, own in zip(peers, alone, strict=True)),
        "times as fast in a batch": median(peers) / many,
        "gap": max(svm.certificate.proved for svm in together),
    }
    return {"attsvm": ours, "cvxpy CLARABEL": {"seconds": median(peers)}}
