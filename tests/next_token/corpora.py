"""Random sequences for the tests, of a wanted kind."""

from attsvm.next_token import random_corpus, token_graphs


def draw(rng, n, T, vocabulary, d, *, acyclic=None):
    """Sequences and unit embeddings; redrawn until the graphs are (a)cyclic, where that is asked for."""
    labels = "realizable" if acyclic else "random"
    while True:
        sequences, embeddings = random_corpus(n, T, vocabulary, d, labels=labels, seed=rng)
        if acyclic is None or token_graphs(sequences).is_acyclic == acyclic:
            return sequences, embeddings
