"""Checks on newer papers: next-token prediction, and head and attention trained together.

The first are about Graph-SVM, the finite part, linear decoders and bigrams as attention; the second about steps, mirror
descent and softmax-1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import attsvm
from attsvm import next_token
from attsvm.comparison import misalignment
from attsvm.joint import consistent_selection, joint_svm
from attsvm.next_token import (
    attention_shares,
    graph_svm,
    linear_finite_part,
    linear_svm,
    random_corpus,
    soft_composition,
    token_graphs,
)
from attsvm.validation.ledger.claim_record import Check, each


def _corpus(rng: np.random.Generator, acyclic: bool) -> tuple[list[list[int]], np.ndarray]:
    """A corpus with a feasible Graph-SVM that orders something, of the wanted kind."""
    while True:
        sequences, table = random_corpus(5, 4, 6, 8, labels="realizable" if acyclic else "random", seed=rng)
        if token_graphs(sequences).is_acyclic == acyclic:
            svm = graph_svm(sequences, table)
            if svm.status == "optimal" and svm.norm > 0:
                return sequences, table


@each(1e-2, "1 - correlation of W without its finite part after 1,000 normalized steps")
def _direction(formula: Any, rng: np.random.Generator, k: int) -> float:
    sequences, table = _corpus(rng, acyclic=k % 2 == 0)
    W = next_token.train(sequences, table, steps=1000, snapshots=2).W
    growing = W - soft_composition(sequences, table).W
    return float(misalignment(growing, formula(sequences, table)))


@each(1e-3, "largest error of a share of attention inside components")
def _shares(formula: Any, rng: np.random.Generator, k: int) -> float:
    sequences, table = _corpus(rng, acyclic=False)
    W = next_token.train(sequences, table, steps=1000, snapshots=2).W
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


CHECKS_NEXT_TOKEN = {
    "graph-direction": Check(_direction, lambda sequences, table: graph_svm(sequences, table).W, trials=2),
    "graph-shares": Check(_shares, lambda sequences, table: soft_composition(sequences, table).probabilities, trials=2),
    "linear-infimum": Check(_infimum, _entropy, trials=50),
    "bigrams": Check(_bigrams, lambda contexts, counts: linear_svm(contexts, counts).W, trials=30),
}


def _trained(rng: np.random.Generator) -> tuple[attsvm.AttentionProblem, attsvm.Run, float]:
    """A run whose selection is consistent and in which some sequence does not support v, and its ratio of norms.

    It starts near a consistent selection, in the directions that the SVMs of it give.
    """
    while True:
        problem = attsvm.random_problem(n=5, T=4, d=6, seed=rng)
        chosen = consistent_selection(problem)
        start = joint_svm(problem, chosen, ratio=1.0)
        if not (start.status is attsvm.Status.OPTIMAL and (start.demanded < 0.95).any()):
            continue
        W = attsvm.cone_init(start.W, radius=5.0, correlation=0.8, seed=rng)
        run = attsvm.train(problem, steps=800, lr=0.5, train_head=True, init=W, head_init=5.0 * start.v, snapshots=2)
        if run.selection == chosen:
            return problem, run, float(np.linalg.norm(run.v) / np.linalg.norm(run.W))


@each(1e-3, "1 - correlation of v after 800 normalized steps")
def _head(formula: Any, rng: np.random.Generator, k: int) -> float:
    problem, run, _ = _trained(rng)
    return float(misalignment(run.v[None], formula(problem, run.selection)[None]))


@each(2e-3, "1 - correlation of W after 800 normalized steps")
def _attention(formula: Any, rng: np.random.Generator, k: int) -> float:
    problem, run, ratio = _trained(rng)
    return float(misalignment(run.W, formula(problem, run.selection, ratio)))


def _optimal_run(rng: np.random.Generator, **settings: Any) -> tuple[attsvm.AttentionProblem, attsvm.Run]:
    while True:
        problem = attsvm.random_problem(n=4, T=4, d=8, seed=rng)
        run = attsvm.train(problem, init="zero", snapshots=2, **settings)
        if run.selection == problem.optimal_tokens():
            return problem, run


@each(2e-3, "1 - correlation with Att-SVM, normalized and Polyak steps in turn")
def _steps(formula: Any, rng: np.random.Generator, k: int) -> float:
    settings = (
        {"steps": 500, "optimizer": "normalized_gd", "lr": 1.0} if k % 2 else {"steps": 500, "optimizer": "polyak"}
    )
    problem, run = _optimal_run(rng, **settings)
    return float(misalignment(run.W, formula(problem)))


@each(1e-2, "1 - correlation with the SVM of the l1.5 norm")
def _mirror(formula: Any, rng: np.random.Generator, k: int) -> float:
    problem, run = _optimal_run(rng, steps=1000, optimizer="mirror:l1.5", lr=0.1)
    return float(misalignment(run.W, formula(problem)))


@each(1e-12, "largest error of a probability")
def _null_token(formula: Any, rng: np.random.Generator, k: int) -> float:
    h = 3.0 * rng.standard_normal(5)
    return float(np.abs(np.exp(h) / (1 + np.exp(h).sum()) - formula(h)).max())


def _softmax_with_null(h: np.ndarray) -> np.ndarray:
    e = np.exp(np.append(h, 0.0))
    return np.asarray((e / e.sum())[:-1])


CHECKS_JOINT = {
    "joint-head": Check(_head, lambda problem, selection: joint_svm(problem, selection).v, trials=1),
    "joint-attention": Check(
        _attention, lambda problem, selection, ratio: joint_svm(problem, selection, ratio=ratio).W, trials=1
    ),
    "step-direction": Check(_steps, lambda problem: attsvm.att_svm(problem).W, trials=2),
    "mirror": Check(_mirror, lambda problem: attsvm.att_svm(problem, norm="l1.5").W, trials=1),
    "softmax-1": Check(_null_token, _softmax_with_null, trials=100),
}
