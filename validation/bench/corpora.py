"""Next-token graphs of a large corpus: reading it, its graphs and components, and its SVM through a working set."""

from __future__ import annotations

from attsvm.next_token import random_corpus, token_graphs
from attsvm.next_token.graph_svm import solve_graphs
from attsvm.validation.bench.measure import measure

__all__ = ["large_corpus"]


def large_corpus(
    seed: int, vocabulary: int = 10_000, sequences: int = 100_000, T: int = 6, d: int = 32
) -> dict[str, dict[str, float]]:
    """Sequences whose next token is the one that a hidden W prefers: acyclic graphs, a feasible SVM.

    Examples
    --------
    >>> from attsvm.validation.bench.corpora import large_corpus
    >>> found = large_corpus(0, vocabulary=100, sequences=800, d=6)["attsvm"]
    >>> found["gap"] <= 1e-8, found["rows"] > 2000
    (True, True)
    """
    data, table = random_corpus(sequences, T, vocabulary, d, labels="realizable", seed=seed)
    token_graphs(data[:10])  # loads what it needs
    built = measure(lambda _: token_graphs(data), lambda: None)
    graphs = built.answer
    solved = measure(lambda _: solve_graphs(graphs, table), lambda: None)
    svm = solved.answer
    numbers = {
        "seconds": built.seconds + solved.seconds,
        "seconds of the graphs": built.seconds,
        "MB": max(built.memory, solved.memory) / 1e6,
        "gap": svm.certificate.proved,
        "nodes": float(len(graphs.token)),
        "components": float(len(graphs.root)),
        "rows": float(len(svm.pairs)),
        "working rows": float(svm.result.extras.working_rows),
        "steps": float(svm.result.iterations),
    }
    return {"attsvm": numbers}
