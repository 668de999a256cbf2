"""Patches of retrievers on synthetic clusters: the large case checked by brute force, and sequences of patches.

``attsvm validate own patch-size`` and ``attsvm validate own patch-rounds`` print the tables.
"""

from __future__ import annotations

import json
import resource
import time
from typing import Any

import numpy as np
import numpy.typing as npt

import attsvm
from attsvm.records import Table, mean_of
from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.validation.figures.figure import Context, Figure, Outcome

__all__ = ["FIGURE_ROUNDS", "FIGURE_SIZE", "clustered", "compared_rounds", "first_answers", "large_case"]

Vectors = npt.NDArray[np.float32]


def clustered(documents: int, queries: int, d: int, seed: int) -> tuple[Vectors, Vectors, IntArray]:
    """Documents of length 1 in clusters that share their directions of variation, queries near some, and which.

    Queries are as far from their documents as leaves some of them, but not most, with another first answer.

    Examples
    --------
    >>> from attsvm.validation.figures.own.patch_studies import clustered
    >>> Z, X, right = clustered(50, 10, 16, seed=0)
    >>> Z.shape, X.shape, right.shape
    ((10, 16), (50, 16), (10,))
    """
    rng = np.random.default_rng(seed)
    k, noise = min(40, d), min(1.0, (d / 128) ** 0.5)
    centres = rng.standard_normal((max(2, documents // 100), d)) / np.sqrt(d)
    shared = rng.standard_normal((k, d)) * np.sqrt(np.linspace(2.0, 0.1, k) / d)[:, None]

    def spread(count: int) -> FloatArray:
        return np.asarray(rng.standard_normal((count, k)) @ shared / np.sqrt(k))

    X = centres[rng.integers(len(centres), size=documents)] + 0.7 * spread(documents)
    right = rng.choice(documents, queries, replace=False)
    Z = X[right] + noise * (spread(queries) + rng.standard_normal((queries, d)) / np.sqrt(d))
    X, Z = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (X, Z))
    return Z.astype(np.float32), X.astype(np.float32), right


def first_answers(Z: npt.NDArray[Any], X: npt.NDArray[Any], W: FloatArray | None = None) -> IntArray:
    """The document of the highest score of each query, in float64, all documents compared."""
    mapped = Z.astype(np.float64) if W is None else Z.astype(np.float64) @ W.T
    best, answer = np.full(len(Z), -np.inf), np.zeros(len(Z), dtype=np.int64)
    rows = np.arange(len(Z))
    for low in range(0, len(X), 4096):
        scores = mapped @ X[low : low + 4096].astype(np.float64).T
        strongest = scores.argmax(axis=1)
        better = scores[rows, strongest] > best
        best[better], answer[better] = scores[rows, strongest][better], strongest[better] + low
    return answer


def large_case(trials: int, seed: int, *, documents: int, d: int, failures: int, golden: int) -> dict[str, Any]:
    """One patch of an index of this size; every promised ranking is checked by brute force afterwards."""
    Z, X, right = clustered(documents, int(1.4 * (failures + golden)), d, seed)
    before = first_answers(Z, X)
    wrong, good = np.flatnonzero(before != right)[:failures], np.flatnonzero(before == right)[:golden]

    def pairs(index: IntArray) -> list[tuple[int, int]]:
        return [(int(q), int(right[q])) for q in index]

    start = time.perf_counter()
    patch = attsvm.patch(Z, X, pairs(wrong), pairs(good))
    seconds = time.perf_counter() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    named = np.concatenate([wrong, good])
    broken = int((first_answers(Z[named], X, patch.W) != right[named]).sum())
    found = {
        "documents": documents, "d": d, "failures": len(wrong), "golden": len(good), "status": str(patch.status),
        "seconds": seconds, "MB": memory, "gap": patch.certificate.gap, "violation": patch.certificate.violation,
        "scans": patch.certificate.scans, "rows": patch.certificate.rows, "size": patch.relative_size,
        "broken": broken,
    }  # fmt: skip
    return {"found": [json.dumps(found)] * trials}


def run_size(context: Context) -> Outcome:
    """Time, memory, certificate and brute force of each size."""
    s = context.settings
    cells = [{"documents": n, "d": d, "failures": f, "golden": g} for n, d, f, g in s["sizes"]]
    done = context.sweep(large_case, cells, 1, chunk=1, name="sizes")
    found = [json.loads(str(columns["found"][0])) for columns in done.columns]
    rows = [
        (f"{one['documents']:,} x {one['d']}", one["failures"], one["golden"], one["status"], one["seconds"], one["MB"],
         one["scans"], one["rows"], f"{one['size']:.2%}", one["gap"], one["violation"], one["broken"])
        for one in found
    ]  # fmt: skip
    columns = ("index", "failures", "golden", "status", "seconds", "MB", "scans", "rows", "size of the change", "gap",
               "largest violation", "promised answers that brute force finds wrong")  # fmt: skip
    refuted = [f"{one['broken']} promised answers are wrong" for one in found if one["broken"]]
    return Outcome([Table("One patch, every document compared", columns, rows)], {"found": found}, [], refuted)


# -- sequences -----------------------------------------------------------------------------------------


def _adapter(
    Z: Vectors, X: Vectors, W: FloatArray, pairs: IntArray, right: IntArray, steps: int, lr: float
) -> FloatArray:
    """A linear map of the queries by Adam on InfoNCE over the nearest documents, from a given map."""
    import torch

    from attsvm.training.optimizers import gradient_step

    torch.manual_seed(0)
    mapped = Z[pairs].astype(np.float64) @ W.T
    near = np.argsort(-(mapped @ X.T.astype(np.float64)), axis=1)[:, :30]
    candidates = torch.tensor(np.concatenate([right[pairs][:, None], near], axis=1))
    again = candidates[:, 1:] == candidates[:, :1]  # the right one among the nearest counts once
    tokens, queries = torch.tensor(X)[candidates], torch.tensor(Z[pairs])
    M = torch.tensor(W, dtype=torch.float32, requires_grad=True)
    optimizer = torch.optim.Adam([M], lr=lr)
    for _ in range(steps):
        logits = 20.0 * torch.einsum("nkd,nd->nk", tokens, queries @ M.T)
        logits[:, 1:][again] = -torch.inf
        gradient_step(optimizer, -torch.log_softmax(logits, dim=1)[:, 0].mean())
    return np.asarray(M.detach().double().numpy())


def compared_rounds(
    trials: int, seed: int, *, documents: int, d: int, rounds: int, each: int, golden: int, others: int, steps: int
) -> dict[str, Any]:
    """Rounds of patches against one patch and against rounds of training, on one draw."""
    Z, X, right = clustered(documents, int(6 * (rounds * each) + golden + others), d, seed)
    before = first_answers(Z, X)
    wrong, good = np.flatnonzero(before != right)[: rounds * each], np.flatnonzero(before == right)
    kept, rest = good[:golden], good[golden : golden + others]
    parts = np.array_split(wrong, rounds)

    def pairs(index: IntArray) -> list[tuple[int, int]]:
        return [(int(q), int(right[q])) for q in index]

    def sequence(start: attsvm.patching.patch_result.Start) -> FloatArray:
        patch = attsvm.patch(Z, X, pairs(parts[0]), pairs(kept))
        for part in parts[1:]:
            patch = patch.then(pairs(part), start=start)
        return patch.W

    def trained() -> FloatArray:
        W = np.eye(d)
        for k in range(rounds):  # with all earlier failures and the golden set: the most that a team would do
            W = _adapter(Z, X, W, np.concatenate([*parts[: k + 1], kept]), right, steps, 1e-3)
        return W

    ways = {
        "one patch of all failures": lambda: attsvm.patch(Z, X, pairs(wrong), pairs(kept)).W,
        "rounds, smallest from the origin": lambda: sequence("origin"),
        "rounds, smallest from the previous": lambda: sequence("previous"),
        "rounds of adapter training (InfoNCE, Adam)": trained,
    }
    found = {}
    for name, way in ways.items():
        start = time.perf_counter()
        W = way()
        seconds = time.perf_counter() - start
        after = first_answers(Z, X, W) == right
        found[name] = {
            "repaired": float(after[wrong].mean()), "broken": int((~after[kept]).sum()),
            "lost": float((~after[rest]).mean()), "size": float(np.linalg.norm(W - np.eye(d)) / np.sqrt(d)),
            "seconds": seconds,
        }  # fmt: skip
    return {"found": [json.dumps(found)] * trials}


def run_rounds(context: Context) -> Outcome:
    """The table of sequences, over draws."""
    s = dict(context.settings)
    trials = s.pop("trials")
    done = context.sweep(compared_rounds, [s | {"documents": s["documents"] + k} for k in range(trials)], 1, chunk=1,
                         name="rounds")  # fmt: skip
    found = [json.loads(str(columns["found"][0])) for columns in done.columns]
    rows = [
        (name, *(mean_of([draw[name][what] for draw in found]) for what in ("repaired", "broken", "lost", "size")),
         float(np.median([draw[name]["seconds"] for draw in found])))
        for name in found[0]
    ]  # fmt: skip
    columns = ("", "share repaired", f"golden broken, of {s['golden']}", "other right answers lost",
               "size of the change", "seconds")  # fmt: skip
    title = f"{s['rounds']} rounds of {s['each']} failures, {s['documents']:,} documents, {trials} draws"
    refuted = [
        f"{name} broke golden answers"
        for name in found[0]
        if "adapter" not in name and any(draw[name]["broken"] or draw[name]["repaired"] < 1 for draw in found)
    ]
    return Outcome([Table(title, columns, rows)], {"found": found}, [], refuted)


FIGURE_SIZE = Figure(
    paper="own",
    name="patch-size",
    title="Patches of large indexes: time, memory, certificate, and every promised answer by brute force",
    protocol="""Clustered documents of length 1 in float32, queries near some of them. Failures are queries whose own
        document is not first, golden answers some of the others. After the patch the scores of all documents are
        computed in float64, apart from the library, for every promised query.""",
    full={"trials": 1, "sizes": [[20_000, 384, 200, 2000], [63_000, 384, 500, 5000]]},
    quick={"trials": 1, "sizes": [[2000, 48, 20, 150]]},
    run=run_size,
)
FIGURE_ROUNDS = Figure(
    paper="own",
    name="patch-rounds",
    title="Sequences of patches against one patch and against rounds of adapter training",
    protocol="""Failures arrive in rounds. A patch keeps what earlier ones promised; the smallest change is taken from
        the first map or from the previous one. Training: a linear map of the queries by Adam on InfoNCE over the 30
        nearest documents, started at the map of the round before, with all failures so far and the golden set. Other
        right answers are queries that nobody named.""",
    full={"trials": 5, "documents": 8000, "d": 128, "rounds": 20, "each": 10, "golden": 500, "others": 1000,
          "steps": 60},
    quick={"trials": 1, "documents": 1500, "d": 32, "rounds": 3, "each": 3, "golden": 40, "others": 60, "steps": 20},
    run=run_rounds,
)  # fmt: skip
