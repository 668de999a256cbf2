"""Multiclass classification as attention, against LIBLINEAR; and a soft margin of realistic size.

A class is a one-hot token, a sample is a query, and its label is the selected token. Row c of W then scores class c,
the margins are those of Crammer and Singer's SVM, and one slack per query is its slack per sample: ``att_svm(C=C)`` and
LIBLINEAR with the same C minimize the same function ``|W|_F^2 / 2 + C sum_i max_c (1 - (w_y - w_c) . z_i)_+``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import attsvm
from attsvm.validation.bench.draws import Numbers
from attsvm.validation.bench.measure import measure, one_thread

__all__ = ["classes_as_tokens", "crammer_singer", "multiclass_speed", "soft_size", "standardized"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def standardized(data: str) -> tuple[FloatArray, IntArray]:
    """Samples and labels of scikit-learn's iris, wine or digits.

    Every feature has mean 0 and variance 1, but for the constant ones (three pixels of the digits), which are 0.

    Examples
    --------
    >>> from attsvm.validation.bench.multiclass import standardized
    >>> standardized("wine")[0].shape
    (178, 13)
    """
    from sklearn import datasets

    samples, labels = getattr(datasets, f"load_{data}")(return_X_y=True)
    spread = samples.std(axis=0)
    return (samples - samples.mean(axis=0)) / np.where(spread > 0, spread, 1.0), labels.astype(np.int64)


def classes_as_tokens(samples: npt.ArrayLike, classes: int) -> attsvm.AttentionProblem:
    """The problem whose tokens are the classes, one-hot, and whose queries are the samples, shape (n, d).

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.validation.bench.multiclass import classes_as_tokens
    >>> classes_as_tokens(np.ones((5, 2)), 3)
    AttentionProblem(n=5, T=3, dx=3, dz=2, no head)
    """
    Z = np.asarray(samples, dtype=np.float64)
    return attsvm.AttentionProblem(np.broadcast_to(np.eye(classes), (len(Z), classes, classes)), Z=Z)


def crammer_singer(W: FloatArray, samples: FloatArray, labels: IntArray, C: float) -> float:
    """The objective of Crammer and Singer's SVM at W, shape (classes, d).

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.validation.bench.multiclass import crammer_singer
    >>> crammer_singer(np.zeros((3, 2)), np.ones((4, 2)), np.zeros(4, dtype=np.int64), 0.5)
    2.0
    """
    scores = samples @ W.T
    right = scores[np.arange(len(labels)), labels]
    short = 1.0 - (right[:, None] - scores)
    short[np.arange(len(labels)), labels] = 0.0
    return float(0.5 * (W * W).sum() + C * short.max(axis=1).sum())


def multiclass_speed(
    seed: int,
    data: tuple[str, ...] = ("iris", "wine", "digits"),
    penalties: tuple[float, ...] = (0.01, 1.0, 10.0),
    repeats: int = 3,
) -> Numbers:
    """Att-SVM with one slack per query against LinearSVC's Crammer-Singer method at tolerance 1e-8, without intercept.

    Examples
    --------
    >>> from attsvm.validation.bench.multiclass import multiclass_speed
    >>> found = multiclass_speed(0, ("iris",), (1.0,), repeats=1)
    >>> abs(found["iris, C = 1"]["objective over LinearSVC's, less 1"]) < 1e-6
    True
    """
    lines: Numbers = {}
    with one_thread():
        attsvm.att_svm(classes_as_tokens(np.eye(3), 3), [0, 1, 2], C=1.0)  # loads what it needs
        for name in data:
            samples, labels = standardized(name)
            for C in penalties:
                lines[f"{name}, C = {C:g}"] = _compared(samples, labels, C, seed, repeats)
    lines["all"] = {
        "largest excess": max(line["objective over LinearSVC's, less 1"] for line in lines.values()),
        "gap": max(line["gap"] for line in lines.values()),
    }
    return lines


def _compared(samples: FloatArray, labels: IntArray, C: float, seed: int, repeats: int) -> dict[str, float]:
    """Both on one data set at one C."""
    from sklearn.svm import LinearSVC

    model = LinearSVC(
        C=C, multi_class="crammer_singer", fit_intercept=False, tol=1e-8, max_iter=10**7, random_state=seed
    )
    theirs = measure(lambda given: model.fit(*given), lambda: (samples, labels), repeats, budget=20.0)
    classes = int(labels.max()) + 1
    ours = measure(
        lambda problem: attsvm.att_svm(problem, labels, C=C),
        lambda: classes_as_tokens(samples, classes),
        repeats,
        budget=20.0,
    )
    W, V = ours.answer.W, theirs.answer.coef_
    mine, known = crammer_singer(W, samples, labels, C), crammer_singer(V, samples, labels, C)
    return {
        "seconds": ours.seconds,
        "ratio": theirs.seconds / ours.seconds,
        "seconds of LinearSVC": theirs.seconds,
        "objective": mine,
        "objective over LinearSVC's, less 1": mine / known - 1.0,
        "gap": float(ours.answer.certificate.proved),
        "share of equal predictions": float(((samples @ W.T).argmax(axis=1) == (samples @ V.T).argmax(axis=1)).mean()),
    }


def soft_size(seed: int, size: tuple[int, int, int] = (5000, 20, 128), C: float = 1.0, wrong: float = 0.1) -> Numbers:
    """Time and peak memory of the default soft margin: unit vectors, labels of a hidden W, some of them wrong.

    Examples
    --------
    >>> from attsvm.validation.bench.multiclass import soft_size
    >>> soft_size(0, (20, 4, 6))["attsvm"]["gap"] <= 1e-6
    True
    """
    n, T, d = size
    rng = np.random.default_rng(seed)
    X, Z = rng.standard_normal((n, T, d)), rng.standard_normal((n, d))
    X /= np.linalg.norm(X, axis=-1, keepdims=True)
    Z /= np.linalg.norm(Z, axis=-1, keepdims=True)
    labels = np.einsum("ntd,nd->nt", X, Z @ rng.standard_normal((d, d)).T).argmax(axis=1)
    moved = rng.random(n) < wrong
    labels[moved] = (labels[moved] + rng.integers(1, T, int(moved.sum()))) % T
    problem = attsvm.AttentionProblem(X, Z=Z)
    timed = measure(lambda _: attsvm.att_svm(problem, labels, C=C), lambda: None)
    solved = timed.answer
    numbers = {
        "rows": float(n * (T - 1)),
        "seconds": timed.seconds,
        "memory": timed.memory,
        "memory, in sizes of the tokens": timed.memory / X.nbytes,
        "gap": float(solved.certificate.proved),
        "unproved": float(solved.status != "optimal"),
    }
    return {"attsvm": numbers}
