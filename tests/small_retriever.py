"""A small retriever with queries that are answered wrongly."""

import numpy as np


def retriever(seed=0, documents=120, d=8, queries=40, noise=0.22, kind=np.float64):
    """Documents of length 1, queries near the first of them, and who is answered rightly."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(documents, d))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    Z = X[:queries] + noise * rng.normal(size=(queries, d))
    X, Z = X.astype(kind), Z.astype(kind)
    first = (Z.astype(float) @ X.astype(float).T).argmax(axis=1)
    wrong = [(int(q), int(q)) for q in np.flatnonzero(first != np.arange(queries))]
    right = [(int(q), int(q)) for q in np.flatnonzero(first == np.arange(queries))]
    return Z, X, wrong, right
