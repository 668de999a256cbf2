"""Next-token prediction: Graph-SVM, the finite part, linear decoders, and bigrams as attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm import next_token
from attsvm.comparison.metrics import misalignment
from attsvm.next_token import (
    attention_shares,
    graph_svm,
    linear_finite_part,
    linear_svm,
    random_corpus,
    soft_composition,
    token_graphs,
)
from attsvm.validation.ledger.record import Check, each

__all__ = ["CHECKS"]


def _corpus(rng: np.random.Generator, acyclic: bool) -> tuple[list[list[int]], np.ndarray]:
    """A corpus with a feasible Graph-SVM that orders something, of the wanted kind."""
    while True:
        sequences, table = random_corpus(5, 4, 6, 8, labels="realizable" if acyclic else "random", seed=rng)
        if token_graphs(sequences).is_acyclic == acyclic:
            svm = graph_svm(sequences, table)
            if svm.status == "optimal" and svm.norm > 0:
                return sequences, table


@each(1e-2, "1 - correlation of W without its finite part after 2,000 normalized steps")
def _direction(formula: Any, rng: np.random.Generator, k: int) -> float:
    sequences, table = _corpus(rng, acyclic=k % 2 == 0)
    W = next_token.train(sequences, table, steps=2000, snapshots=2).W
    growing = W - soft_composition(sequences, table).W
    return float(misalignment(growing, formula(sequences, table)))


@each(1e-3, "largest error of a share of attention inside components")
def _shares(formula: Any, rng: np.random.Generator, k: int) -> float:
    sequences, table = _corpus(rng, acyclic=False)
    W = next_token.train(sequences, table, steps=2000, snapshots=2).W
    return float(np.abs(attention_shares(token_graphs(sequences), table, W) - formula(sequences, table)).max())


def _counts(rng: np.random.Generator, contexts: int, vocabulary: int) -> np.ndarray:
    counts = rng.integers(1, 6, size=(contexts, vocabulary)) * (rng.random((contexts, vocabulary)) < 0.5)
    counts[np.arange(contexts), rng.integers(vocabulary, size=contexts)] += 1
    counts[0, 0] = 0  # some token follows never
    counts[0, 1] += 1
    return np.asarray(counts)


@each(1e-9, "distance of the cross-entropy at W_fin + 60 W_svm from its infimum")
def _infimum(formula: Any, rng: np.random.Generator, k: int) -> float:
    contexts, counts = rng.standard_normal((4, 6)), _counts(rng, 4, 5)
    finite, direction = linear_finite_part(contexts, counts), linear_svm(contexts, counts)
    logits = contexts @ (finite.W + 60.0 * direction.W).T
    log_p = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    p = counts / counts.sum(axis=1, keepdims=True)
    return float(abs(-(np.where(p > 0, p * log_p, 0.0)).sum(axis=1).mean() - formula(p)))


def _entropy(p: np.ndarray) -> float:
    return float(-np.where(p > 0, p * np.log(np.where(p > 0, p, 1.0)), 0.0).sum(axis=1).mean())


@each(1e-8, "largest difference of the two W")
def _bigrams(formula: Any, rng: np.random.Generator, k: int) -> float:
    V = int(rng.integers(3, 6))
    counts = _counts(rng, V, V)
    pairs = [(a, b) for a, b in np.ndindex(V, V) for _ in range(int(counts[a, b]))]
    sequences = [[*(t for t in range(V) if t != a), a, b] for a, b in pairs]
    return float(np.abs(graph_svm(sequences, np.eye(V)).W - formula(np.eye(V), counts)).max())


CHECKS = {
    "graph-direction": Check(_direction, lambda sequences, table: graph_svm(sequences, table).W, trials=6),
    "graph-shares": Check(_shares, lambda sequences, table: soft_composition(sequences, table).probabilities, trials=5),
    "linear-infimum": Check(_infimum, _entropy, trials=50),
    "bigrams": Check(_bigrams, lambda contexts, counts: linear_svm(contexts, counts).W, trials=30),
}
