"""Random vocabularies and sequences for the tests."""

import numpy as np

from attsvm.next_token import token_graphs


def unit_embeddings(rng, vocabulary, d):
    table = rng.normal(size=(vocabulary, d))
    return table / np.linalg.norm(table, axis=1, keepdims=True)


def draw(rng, n, T, vocabulary, d, *, acyclic=None):
    """Sequences and unit embeddings; next tokens by a hidden W (acyclic) or at random among the context's."""
    while True:
        embeddings, hidden = unit_embeddings(rng, vocabulary, d), rng.normal(size=(d, d))
        sequences = []
        for _ in range(n):
            context = rng.integers(0, vocabulary, size=T)
            by_hidden = context[np.argmax(embeddings[context] @ hidden @ embeddings[context[-1]])]
            following = by_hidden if acyclic else rng.choice(context)
            sequences.append([*context.tolist(), int(following)])
        if all(len(set(s)) == 1 for s in sequences):
            continue
        if acyclic is None or token_graphs(sequences).is_acyclic == acyclic:
            return sequences, embeddings
