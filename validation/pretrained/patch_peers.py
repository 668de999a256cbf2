"""Ways to change the query map of a retriever from reported failures and a golden set, ours and what people use.

Document i answers query i. Every way sees the queries and documents of the index, the failures (queries whose answer is
wrong) and the golden queries (whose answer is right and must stay), and gives a map of query embeddings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import attsvm
from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.validation.pretrained.retrieval import linear_svc_pairs

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Corrections", "Drawn", "QueryMap", "drawn_corrections", "judged", "peers", "without_copies"]

QueryMap = Callable[[FloatArray], FloatArray]
"""From queries (n, d) to queries (n, d)."""


@dataclass(frozen=True, eq=False)
class Corrections:
    """What a way may learn from.

    Attributes
    ----------
    queries, documents : ndarray, shape (n, d)
        Of length 1; document i answers query i.
    failures, golden : ndarray of int
        Queries whose answer is reported as wrong, and those whose answer must stay.
    """

    queries: FloatArray
    documents: FloatArray
    failures: IntArray
    golden: IntArray

    @property
    def shown(self) -> IntArray:
        """Failures and golden queries."""
        return np.concatenate([self.failures, self.golden])


@dataclass(frozen=True, eq=False)
class Drawn:
    """Corrections, and what no way is shown.

    Attributes
    ----------
    corrections : Corrections
    unreported : ndarray of int
        The other queries of the index.
    new_queries, new_documents : ndarray, shape (k, d)
        Pairs of another index.
    """

    corrections: Corrections
    unreported: IntArray
    new_queries: FloatArray
    new_documents: FloatArray


# Documents above this cosine are copies: texts that agree as far as the model reads them.
_SAME = 0.999


def without_copies(documents: npt.NDArray[np.floating]) -> IntArray:
    """Documents of length 1 that are no copy of an earlier one: no map can tell copies apart.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.validation.pretrained.patch_peers import without_copies
    >>> without_copies(np.eye(3)[[0, 1, 0, 2]])
    array([0, 1, 3])
    """
    same = np.tril(documents @ documents.T > _SAME, -1)
    return np.flatnonzero(~same.any(axis=1))


def answers(queries: FloatArray, documents: FloatArray) -> IntArray:
    """The document of largest score for each query, shape (n,)."""
    return np.asarray((queries @ documents.T).argmax(axis=1))


def drawn_corrections(
    queries: FloatArray, documents: FloatArray, *, failures: int, golden: int, new: int, seed: int
) -> Drawn:
    """Hold out ``new`` pairs, then report some of the wrong answers in the rest and keep some of the right ones.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.validation.pretrained.patch_peers import drawn_corrections
    >>> rng = np.random.default_rng(0)
    >>> documents = rng.normal(size=(60, 8))
    >>> queries = documents + 0.8 * rng.normal(size=(60, 8))
    >>> drawn = drawn_corrections(queries, documents, failures=3, golden=10, new=20, seed=0)
    >>> drawn.corrections.queries.shape, len(drawn.unreported)
    ((40, 8), 27)
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(queries))
    held, kept = order[:new], order[new:]
    Q, D = queries[kept], documents[kept]
    right = answers(Q, D) == np.arange(len(Q))
    wrong_ones, right_ones = rng.permutation(np.flatnonzero(~right)), rng.permutation(np.flatnonzero(right))
    if len(wrong_ones) < failures or len(right_ones) < golden:
        raise ValueError(
            f"{len(wrong_ones)} answers are wrong and {len(right_ones)} right: too few for {failures} failures and "
            f"{golden} golden queries"
        )
    shown = Corrections(Q, D, np.sort(wrong_ones[:failures]), np.sort(right_ones[:golden]))
    rest = np.setdiff1d(np.arange(len(Q)), shown.shown)
    return Drawn(shown, rest, queries[held], documents[held])


def judged(drawn: Drawn, mapped: QueryMap) -> dict[str, float]:
    """What a map repairs, breaks and changes elsewhere.

    Returns
    -------
    dict
        Counts ``repaired`` (of the failures), ``broken`` (golden), ``lost`` and ``won`` (unreported queries that were
        right and no longer are, and the reverse), and ``new``: recall@1 on pairs of another index.
    """
    shown = drawn.corrections
    own = np.arange(len(shown.queries))
    before = answers(shown.queries, shown.documents) == own
    after = answers(mapped(shown.queries), shown.documents) == own
    rest, new = drawn.unreported, answers(mapped(drawn.new_queries), drawn.new_documents)
    return {
        "repaired": float(after[shown.failures].sum()),
        "broken": float((~after[shown.golden]).sum()),
        "lost": float((before[rest] & ~after[rest]).sum()),
        "won": float((~before[rest] & after[rest]).sum()),
        "new": float((new == np.arange(len(new))).mean()),
    }


def _linear(M: FloatArray) -> tuple[QueryMap, float]:
    """The map ``q -> M q`` and the size of its change, relative to the identity."""
    size = float(np.linalg.norm(M - np.eye(len(M))) / np.sqrt(len(M)))
    return lambda queries: queries @ M.T, size


Way = Callable[[Corrections, int], tuple[QueryMap, float]]
"""From corrections and a seed to a map, and the size of its change relative to the identity (NaN: not linear)."""


def _patched(**options: Any) -> Way:
    def way(shown: Corrections, seed: int) -> tuple[QueryMap, float]:
        found = attsvm.patch(
            shown.queries, shown.documents, failures=[(int(i), int(i)) for i in shown.failures],
            golden=[(int(i), int(i)) for i in shown.golden], side="query", **options,
        )  # fmt: skip
        return _linear(found.query_map)

    return way


def _one_program(rivals: int, margin: float) -> Way:
    """The least change that ranks the right document above the rivals of before: one program, none added later.

    This is what repairs by a linearized program do: the score is linear in the map, so the linearization is exact, and
    what is left out are the documents that the change itself brings forward.
    """

    def way(shown: Corrections, seed: int) -> tuple[QueryMap, float]:
        Q = shown.queries[shown.shown]
        scores = Q @ shown.documents.T
        own = scores[np.arange(len(Q)), shown.shown]
        scores[np.arange(len(Q)), shown.shown] = -np.inf
        nearest = np.argsort(-scores, axis=1)[:, :rivals]
        X = shown.documents[np.concatenate([shown.shown[:, None], nearest], axis=1)]
        # A golden query keeps what it leads by, up to the margin; a failure gets the margin. Logits that lead by 1 are
        # those of W / margin, so W0 is I / margin, and what a golden query lacks of the margin is an offset.
        lead = own - np.take_along_axis(scores, nearest[:, :1], axis=1)[:, 0]
        asked = np.where(np.arange(len(Q)) < len(shown.failures), margin, np.minimum(margin, lead))
        offset = np.zeros(X.shape[:2])
        offset[:, 0] = 1.0 - asked / margin
        d = Q.shape[1]
        problem = attsvm.AttentionProblem(X, Z=Q)
        solved = attsvm.att_svm(problem, np.zeros(len(Q), dtype=np.int64), prior=np.eye(d) / margin, offset=offset)
        return _linear(solved.W * margin if solved.status.has_solution else np.eye(d))

    return way


def _ridge(weight: float) -> Way:
    """Least squares from queries to their documents, with ``weight |M - I|^2``."""

    def way(shown: Corrections, seed: int) -> tuple[QueryMap, float]:
        Q, D = shown.queries[shown.shown], shown.documents[shown.shown]
        eye = np.eye(Q.shape[1])
        M: FloatArray = np.linalg.solve(Q.T @ Q + weight * eye, Q.T @ D + weight * eye).T.astype(np.float64)
        return _linear(M)

    return way


def _procrustes(shown: Corrections, seed: int) -> tuple[QueryMap, float]:
    """The rotation that brings the queries nearest to their documents."""
    left, _, right = np.linalg.svd(shown.documents[shown.shown].T @ shown.queries[shown.shown])
    return _linear(left @ right)


def _linear_svc(dimensions: int, C: float, rivals: int) -> Way:
    """LinearSVC on pair features of the leading directions and the cosine."""

    def way(shown: Corrections, seed: int) -> tuple[QueryMap, float]:
        Q = shown.queries[shown.shown]
        scores = Q @ shown.documents.T
        scores[np.arange(len(Q)), shown.shown] = -np.inf
        nearest = np.argsort(-scores, axis=1)[:, :rivals]
        X = shown.documents[np.concatenate([shown.shown[:, None], nearest], axis=1)]
        y = np.zeros(len(Q), dtype=np.int64)
        W = linear_svc_pairs(attsvm.AttentionProblem(X, Z=Q), y, C, dimensions=dimensions, scale=10.0)
        return _linear(W * np.sqrt(len(W)) / np.linalg.norm(W))

    return way


def _adapter(loss: str, s: Mapping[str, Any], *, decay: float = 0.0, hidden: int = 0) -> Way:
    """A torch adapter of the queries over the whole index: linear from the identity, or residual with one hidden layer.

    The linear one is LlamaIndex's linear adapter, the other its two-layer adapter with a residual connection; both are
    trained on all shown queries at once, with all documents as candidates, until every shown answer is right or the
    steps end.
    """

    def way(shown: Corrections, seed: int) -> tuple[QueryMap, float]:
        import torch

        from attsvm.training.optimizers import gradient_step

        torch.manual_seed(seed)
        Q = torch.tensor(shown.queries[shown.shown], dtype=torch.float32)
        D = torch.tensor(shown.documents, dtype=torch.float32)
        target = torch.tensor(shown.shown)
        d = Q.shape[1]
        if hidden:
            module: Any = torch.nn.Sequential(torch.nn.Linear(d, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, d))
            torch.nn.init.zeros_(module[2].weight)
            torch.nn.init.zeros_(module[2].bias)
        else:
            module = torch.nn.Linear(d, d, bias=False)
            torch.nn.init.zeros_(module.weight)  # the change of the identity, so that decay pulls towards no change
        optimizer = torch.optim.AdamW(module.parameters(), lr=s["rate"], weight_decay=decay)
        for _ in range(s["steps"]):
            scores = torch.nn.functional.normalize(Q + module(Q), dim=-1) @ D.T
            if bool((scores.argmax(1) == target).all()):
                break
            gradient_step(optimizer, _loss(loss, scores, target, s))
        with torch.no_grad():
            if not hidden:
                return _linear(np.eye(d) + module.weight.double().numpy())

        def mapped(queries: FloatArray) -> FloatArray:
            with torch.no_grad():
                given = torch.tensor(queries, dtype=torch.float32)
                return np.asarray((given + module(given)).double().numpy())

        return mapped, float("nan")

    return way


def _loss(name: str, scores: Tensor, target: Tensor, s: Mapping[str, Any]) -> Tensor:
    import torch

    if name == "InfoNCE":
        return torch.nn.functional.cross_entropy(scores / s["temperature"], target)
    own = scores.gather(1, target[:, None])
    short = torch.relu(s["margin"] - own + scores).scatter(1, target[:, None], 0.0)
    return short.sum(1).mean()


def peers(s: Mapping[str, Any]) -> dict[str, Way]:
    """All ways by name, with the settings of a study.

    Parameters
    ----------
    s : mapping
        ``margin``, ``steps``, ``rate``, ``temperature``, ``decay``, ``hidden``, ``ridge``, ``rivals``, ``dimensions``.
    """
    return {
        "no change": lambda shown, seed: _linear(np.eye(shown.queries.shape[1])),
        "attsvm.patch, Frobenius": _patched(norm="frobenius", margin=s["margin"]),
        "attsvm.patch, nuclear": _patched(norm="nuclear", margin=s["margin"]),
        "one program, rivals fixed": _one_program(s["rivals"], s["margin"]),
        "linear adapter, InfoNCE": _adapter("InfoNCE", s),
        "linear adapter, InfoNCE and decay": _adapter("InfoNCE", s, decay=s["decay"]),
        "linear adapter, hinge": _adapter("hinge", s),
        "two-layer adapter, InfoNCE": _adapter("InfoNCE", s, hidden=s["hidden"]),
        "ridge": _ridge(s["ridge"]),
        "Procrustes": _procrustes,
        "LinearSVC on pairs": _linear_svc(s["dimensions"], 1.0, s["rivals"]),
    }
