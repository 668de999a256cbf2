"""Retrieval as tasks of a selector: the splits by module, and every way of scoring that the study compares."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import attsvm
from attsvm.sklearn import AttentionSelector, mean_reciprocal_rank
from attsvm.validation.pretrained import retrieval_peers as peers
from attsvm.validation.pretrained.retrieval_peers import Scorer

__all__ = ["Asked", "Split", "hard_negatives", "measured", "ways"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
# Documents above this cosine are copies: texts that agree as far as the model reads them.
_SAME = 0.999


def hard_negatives(queries: FloatArray, documents: FloatArray, count: int) -> tuple[attsvm.AttentionProblem, IntArray]:
    """Tasks of each query: its own document and the nearest others by cosine, at random places (seeded by size).

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.validation.pretrained.retrieval_ways import hard_negatives
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


@dataclass(frozen=True, eq=False)
class Asked:
    """Queries (n, d), their documents (n, d) and modules (n,)."""

    queries: FloatArray
    documents: FloatArray
    modules: npt.NDArray[Any]

    def parted(self, rng: np.random.Generator) -> tuple[Asked, Asked]:
        """The rest, and a random third of the modules."""
        names = np.unique(self.modules)
        held = np.isin(self.modules, rng.permutation(names)[: len(names) // 3])
        return self._where(~held), self._where(held)

    def _where(self, chosen: npt.NDArray[np.bool_]) -> Asked:
        return Asked(self.queries[chosen], self.documents[chosen], self.modules[chosen])

    def tasks(self, negatives: int) -> tuple[attsvm.AttentionProblem, IntArray]:
        """As tasks with labels."""
        return hard_negatives(self.queries, self.documents, negatives)


@dataclass(frozen=True, eq=False)
class Split:
    """Training modules, with their tasks and labels, and what a way of learning may depend on besides."""

    train: Asked
    negatives: int
    seed: int

    @property
    def tasks(self) -> tuple[attsvm.AttentionProblem, IntArray]:
        """Tasks and labels of the training modules."""
        return self.train.tasks(self.negatives)

    @property
    def inner(self) -> tuple[tuple[attsvm.AttentionProblem, IntArray], tuple[attsvm.AttentionProblem, IntArray]]:
        """The training modules parted once more: tasks to fit and tasks to choose by."""
        fit, choose = self.train.parted(np.random.default_rng([self.seed, 1]))
        return fit.tasks(self.negatives), choose.tasks(self.negatives)


# What a way of learning gives: a scorer, and what there is to say of it.
Learned = tuple[Scorer, dict[str, Any]]
Way = Callable[[Split], Learned]


def _bilinear(W: FloatArray) -> Scorer:
    return lambda problem: attsvm.attention.logits(problem, W)


def _selector(**options: Any) -> AttentionSelector:
    return AttentionSelector(**({"loss": "squared_hinge", "slack": "row"} | options))


def _fit(**options: Any) -> Way:
    def way(split: Split) -> Learned:
        fitted = _selector(**options).fit(*split.tasks)
        return fitted.decision_function, _told(fitted)

    return way


def _told(fitted: AttentionSelector) -> dict[str, Any]:
    return {"rank": int(fitted.edit_.rank), "gap": float(fitted.edit_.certificate.gap)}


def _cut(rank: int, prior: float, **options: Any) -> Way:
    """The change from the prior, cut to its leading directions."""

    def way(split: Split) -> Learned:
        fitted = _selector(prior=prior, **options).fit(*split.tasks)
        left, values, right = np.linalg.svd(fitted.edit_.change, full_matrices=False)
        W = prior * np.eye(len(left)) + (left[:, :rank] * values[:rank]) @ right[:rank]
        return _bilinear(W), {"rank": min(rank, len(values))}

    return way


def _chosen(priors: list[float], prices: list[float]) -> Way:
    """Prior and price with the best MRR on a third of the training modules, then fitted on all of them."""

    def way(split: Split) -> Learned:
        fit, choose = split.inner
        tried = {
            (prior, C): mean_reciprocal_rank(_selector(C=C, prior=prior).fit(*fit), *choose)
            for prior in priors
            for C in prices
        }
        prior, C = max(tried, key=lambda pair: tried[pair])
        fitted = _selector(C=C, prior=prior).fit(*split.tasks)
        return fitted.decision_function, {**_told(fitted), "chosen": f"{prior:g} I, C = {C:g}"}

    return way


def _triplet(steps: int) -> Way:
    def way(split: Split) -> Learned:
        W = peers.triplet_adapter(*split.tasks, steps=steps, margin=0.1, lr=3e-4, seed=split.seed)
        return _bilinear(W), {}

    return way


def _metric(method: str, dimensions: int) -> Way:
    return lambda split: (
        peers.metric_learning(*split.tasks, method, dimensions=dimensions, seed=split.seed), {},
    )  # fmt: skip


def ways(s: Mapping[str, Any]) -> dict[str, Way]:
    """Every way of scoring, by its label.

    Examples
    --------
    >>> from attsvm.validation.figures.own.retrieval import FIGURE
    >>> from attsvm.validation.pretrained.retrieval_ways import ways
    >>> list(ways(FIGURE.quick))[0]
    'cosine'
    """
    c, C, k = s["prior"], s["C"], s["directions"]
    found: dict[str, Way] = {
        "cosine": lambda split: (_bilinear(np.eye(split.train.queries.shape[1])), {}),
        "hard margin from nothing": _fit(C=None),
        f"hard margin around {2 * c:g} I": _fit(C=None, prior=2 * c),
        f"squared hinge from nothing, C = {C:g}": _fit(C=C),
        f"squared hinge around {c:g} I, C = {C:g}": _fit(C=C, prior=c),
        "LinearSVC on products (diagonal W)": lambda split: (
            _bilinear(peers.linear_svc_diagonal(*split.tasks, s["svc_C"])), {},
        ),
        f"LinearSVC on pairs of {k} directions and cosine": lambda split: (
            _bilinear(peers.linear_svc_pairs(*split.tasks, C, dimensions=k, scale=c)), {},
        ),
        "triplet loss, torch": _triplet(s["steps"]),
    }  # fmt: skip
    if s["low_rank"]:
        found[f"the change around {c:g} I cut to rank {s['low_rank']}"] = _cut(s["low_rank"], c, C=C)
    if s["priors"]:
        found["squared hinge around c I, c and C chosen"] = _chosen(s["priors"], s["prices"])
    if s["nuclear_C"]:
        found[f"nuclear norm around {c:g} I, C = {s['nuclear_C']:g}"] = _fit(norm="nuclear", C=s["nuclear_C"], prior=c)
    for method in s["metric_learn"]:
        found[f"metric-learn, {method}, {k} directions"] = _metric(method, k)
    return found


def measured(way: Way, split: Split, test: Asked) -> dict[str, Any]:
    """Recall@1 and MRR on held-out modules, recall@1 in training, seconds, and what the way told."""
    start = time.process_time()
    scorer, told = way(split)
    seconds = time.process_time() - start
    tasks, truth = test.tasks(split.negatives)
    scores = scorer(tasks)
    problem, y = split.tasks
    return {
        "recall": float(np.mean(scores.argmax(axis=1) == truth)),
        "mrr": mean_reciprocal_rank(_Fixed(scores), tasks, truth),
        "train": float(np.mean(scorer(problem).argmax(axis=1) == y)),
        "seconds": seconds,
        "tasks": len(y),
        **told,
    }


class _Fixed:
    """Something with scores, for the scorers of `attsvm.sklearn`."""

    def __init__(self, scores: FloatArray) -> None:
        self.scores = scores

    def decision_function(self, _: Any) -> FloatArray:
        return self.scores
