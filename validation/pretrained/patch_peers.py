"""Ways to change the query map of a retriever from reported failures and a golden set, ours and what people use.

Document i answers query i. Every way sees the queries and documents of the index, the failures (queries whose answer is
wrong) and the golden queries (whose answer is right and must stay), and gives a map of queries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import attsvm
from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.validation.pretrained.installed_models import embed, pooled, sentence_encoder
from attsvm.validation.pretrained.retrieval import SAME, linear_svc_pairs

if TYPE_CHECKING:
    from torch import Tensor

    from attsvm.patching.patch_result import Start

LORA = "LoRA of the encoder, InfoNCE"
QueryMap = Callable[[FloatArray, Sequence[str]], FloatArray]
"""From queries (n, d) and their texts to queries (n, d)."""


@dataclass(frozen=True, eq=False)
class Corrections:
    """What a way may learn from.

    Attributes
    ----------
    queries, documents : ndarray, shape (n, d)
        Of length 1; document i answers query i.
    failures, golden : ndarray of int
        Queries whose answer is reported as wrong, and those whose answer must stay.
    texts : tuple of str
        Of the queries; empty where none are known.
    """

    queries: FloatArray
    documents: FloatArray
    failures: IntArray
    golden: IntArray
    texts: tuple[str, ...] = ()

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
    new_texts : tuple of str
        Of the new queries.
    """

    corrections: Corrections
    unreported: IntArray
    new_queries: FloatArray
    new_documents: FloatArray
    new_texts: tuple[str, ...] = ()


def without_copies(documents: npt.NDArray[np.floating]) -> IntArray:
    """Documents of length 1 that are no copy of an earlier one: no map can tell copies apart.

    Examples
    --------
    >>> without_copies(np.eye(3)[[0, 1, 0, 2]])
    array([0, 1, 3])
    """
    copy = np.zeros(len(documents), dtype=bool)
    for low in range(0, len(documents), 1000):
        same = documents[low : low + 1000] @ documents[: low + 1000].T > SAME
        copy[low : low + 1000] = np.tril(same, low - 1).any(axis=1)
    return np.flatnonzero(~copy)


def answers(queries: FloatArray, documents: FloatArray) -> IntArray:
    """The document of largest score for each query, shape (n,)."""
    return np.asarray((queries @ documents.T).argmax(axis=1))


def drawn_corrections(
    queries: FloatArray,
    documents: FloatArray,
    *,
    failures: int,
    golden: int,
    new: int,
    seed: int,
    texts: Sequence[str] = (),
) -> Drawn:
    """Hold out ``new`` pairs, then report some of the wrong answers in the rest and keep some of the right ones.

    Examples
    --------
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
    old, fresh = (tuple(texts[k] for k in part) if len(texts) else () for part in (kept, held))
    shown = Corrections(Q, D, np.sort(wrong_ones[:failures]), np.sort(right_ones[:golden]), old)
    rest = np.setdiff1d(np.arange(len(Q)), shown.shown)
    return Drawn(shown, rest, queries[held], documents[held], fresh)


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
    after = answers(mapped(shown.queries, shown.texts), shown.documents) == own
    rest = drawn.unreported
    new = answers(mapped(drawn.new_queries, drawn.new_texts), drawn.new_documents)
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
    return lambda queries, texts: queries @ M.T, size


Way = Callable[[Corrections, int], tuple[QueryMap, float]]
"""From corrections and a seed to a map, and the size of its change relative to the identity (NaN: not linear)."""


def _pairs(index: IntArray) -> list[tuple[int, int]]:
    return [(int(i), int(i)) for i in index]


def _patched(**options: Any) -> Way:
    def way(shown: Corrections, seed: int) -> tuple[QueryMap, float]:
        pairs = _pairs(shown.failures), _pairs(shown.golden)
        return _linear(attsvm.patch(shown.queries, shown.documents, *pairs, side="query", **options).query_map)

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
    """A torch adapter of the queries: linear from the identity, or residual with one hidden layer.

    The linear one is LlamaIndex's linear adapter, the other its two-layer adapter with a residual connection.
    """

    def way(shown: Corrections, seed: int) -> tuple[QueryMap, float]:
        import torch

        torch.manual_seed(seed)
        d = shown.queries.shape[1]
        if hidden:
            module: Any = torch.nn.Sequential(torch.nn.Linear(d, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, d))
            torch.nn.init.zeros_(module[2].weight)
            torch.nn.init.zeros_(module[2].bias)
        else:
            module = _linear_change(d)
        _train(module, shown, shown.shown, loss, s, decay)
        if not hidden:
            return _linear(_map_of(module))

        def mapped(queries: FloatArray, texts: Sequence[str]) -> FloatArray:
            with torch.no_grad():
                given = torch.tensor(queries, dtype=torch.float32)
                return np.asarray((given + module(given)).double().numpy())

        return mapped, float("nan")

    return way


def _linear_change(d: int) -> Any:
    """The change of the identity as a layer of zeros, so that decay pulls towards no change."""
    import torch

    module = torch.nn.Linear(d, d, bias=False)
    torch.nn.init.zeros_(module.weight)
    return module


def _map_of(module: Any) -> FloatArray:
    return np.asarray(np.eye(module.in_features) + module.weight.detach().double().numpy())


def _train(module: Any, shown: Corrections, which: IntArray, loss: str, s: Mapping[str, Any], decay: float) -> None:
    """AdamW on these queries at once, all documents as candidates, until every answer is right or the steps end."""
    import torch

    from attsvm.training.optimizers import gradient_step

    Q = torch.tensor(shown.queries[which], dtype=torch.float32)
    D, target = torch.tensor(shown.documents, dtype=torch.float32), torch.tensor(which)
    optimizer = torch.optim.AdamW(module.parameters(), lr=s["rate"], weight_decay=decay)
    for _ in range(s["steps"]):
        scores = torch.nn.functional.normalize(Q + module(Q), dim=-1) @ D.T
        if bool((scores.argmax(1) == target).all()):
            break
        gradient_step(optimizer, _loss(loss, scores, target, s))


def _lora(s: Mapping[str, Any]) -> Way:
    """Low-rank changes of the query and value maps of the encoder, for queries alone: the index stays as it is.

    Minibatches of the shown queries, all documents as candidates, until an epoch meets no wrong answer.
    """

    def way(shown: Corrections, seed: int) -> tuple[QueryMap, float]:
        import torch
        from peft import LoraConfig, get_peft_model

        from attsvm.training.optimizers import gradient_step

        if not shown.texts:
            raise ValueError("LoRA of the encoder needs the texts of the queries")
        torch.manual_seed(seed)
        network, tokenizer = sentence_encoder()
        rank = s["lora_rank"]
        model: Any = get_peft_model(
            network, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["query", "value"], lora_dropout=0.0)
        )
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=s["rate"])
        D, which = torch.tensor(shown.documents, dtype=torch.float32), torch.tensor(shown.shown)
        for _ in range(s["epochs"]):
            wrong = 0
            order = which[torch.randperm(len(which))]
            for low in range(0, len(order), 64):
                part = order[low : low + 64]
                scores = pooled(model, tokenizer, [shown.texts[k] for k in part.tolist()], s["longest"]) @ D.T
                wrong += int((scores.argmax(1) != part).sum())
                gradient_step(optimizer, _loss("InfoNCE", scores, part, s))
            if not wrong:
                break

        def mapped(queries: FloatArray, texts: Sequence[str]) -> FloatArray:
            return embed(texts, longest=s["longest"], encoder=(model, tokenizer)).astype(np.float64)

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
        ``margin``, ``steps``, ``rate``, ``temperature``, ``decay``, ``hidden``, ``ridge``, ``rivals``, ``dimensions``;
        of LoRA ``lora_rank``, ``epochs``, ``longest``.
    """
    return {
        "no change": lambda shown, seed: _linear(np.eye(shown.queries.shape[1])),
        "attsvm.patch, Frobenius": _patched(norm="frobenius", margin=s["margin"]),
        "attsvm.patch, nuclear": _patched(norm="nuclear", margin=s["margin"]),
        "one program, rivals fixed": _one_program(s["rivals"], s["margin"]),
        "linear adapter, InfoNCE": _adapter("InfoNCE", s),
        **{f"linear adapter, InfoNCE, decay {w:g}": _adapter("InfoNCE", s, decay=w) for w in s["decay"]},
        "linear adapter, hinge": _adapter("hinge", s),
        "two-layer adapter, InfoNCE": _adapter("InfoNCE", s, hidden=s["hidden"]),
        LORA: _lora(s),
        "ridge": _ridge(s["ridge"]),
        "Procrustes": _procrustes,
        "LinearSVC on pairs": _linear_svc(s["dimensions"], 1.0, s["rivals"]),
    }


def sequences(s: Mapping[str, Any]) -> dict[str, Way]:
    """Ways to serve failures that arrive in rounds, and in one round for comparison.

    Parameters
    ----------
    s : mapping
        As of `peers`, and ``rounds``.
    """

    def parted(shown: Corrections) -> list[IntArray]:
        return np.array_split(shown.failures, min(s["rounds"], len(shown.failures)))

    def patches(start: Start) -> Way:
        def way(shown: Corrections, seed: int) -> tuple[QueryMap, float]:
            first, *rest = parted(shown)
            patch = attsvm.patch(
                shown.queries, shown.documents, _pairs(first), _pairs(shown.golden), margin=s["margin"]
            )
            for part in rest:
                patch = patch.then(_pairs(part), start=start)
            return _linear(patch.query_map)

        return way

    def training(decay: float) -> Way:
        def way(shown: Corrections, seed: int) -> tuple[QueryMap, float]:
            module, parts = _linear_change(shown.queries.shape[1]), parted(shown)
            for k in range(len(parts)):  # with all earlier failures and the golden set: the most that a team would do
                which = np.concatenate([*parts[: k + 1], shown.golden])
                _train(module, shown, which, "InfoNCE", s, decay)
            return _linear(_map_of(module))

        return way

    return {
        "no change": lambda shown, seed: _linear(np.eye(shown.queries.shape[1])),
        "one patch of all failures": _patched(norm="frobenius", margin=s["margin"]),
        "rounds of patches, smallest from the origin": patches("origin"),
        "rounds of patches, smallest from the previous": patches("previous"),
        "one adapter, InfoNCE": _adapter("InfoNCE", s),
        "rounds of adapter training, InfoNCE": training(0.0),
        **{f"rounds of adapter training, decay {w:g}": training(w) for w in s["decay"]},
    }
