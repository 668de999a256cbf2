"""Atom mapping with a real head: raw, edited and fitted, and the edit put back into the whole network."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import attsvm
from attsvm.editing import Edit
from attsvm.records import share
from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, finish, subplots
from attsvm.validation.pretrained.reactions import package_reactions, read_reactions
from attsvm.validation.pretrained.rxnmapper import ReactionModel, Tasks, load_reaction_model, tasks_of

__all__ = ["FIGURE", "counts", "left_out", "run"]


def counts(verdicts: npt.NDArray[np.int64]) -> dict[str, Any]:
    """Right, equivalent and wrong atoms, and their shares.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.validation.figures.own.atoms import counts
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


def left_out(tasks: Tasks, model: ReactionModel, of: str, norm: str, C: float | None = None) -> npt.NDArray[np.int64]:
    """Verdicts on each reaction by the head edited (``of="fit"``: a head fitted) on all others, shape (n, K)."""
    verdicts = np.empty_like(tasks.wanted)
    for i in range(len(tasks.wanted)):
        rest = tasks.take(np.delete(np.arange(len(tasks.wanted)), i))
        verdicts[i] = tasks.take([i]).verdicts(_learned(rest, model, of, norm, C).W)[0]
    return verdicts


def _learned(tasks: Tasks, model: ReactionModel, of: str, norm: str, C: float | None) -> Edit:
    start: Any = np.zeros_like(model.head.W) if of == "fit" else model.head
    what: Any = "W" if of == "fit" else of
    return attsvm.edit(start, tasks.problem, tasks.wanted, of=what, norm=norm, C=C)


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


def _curve(tasks: Tasks, model: ReactionModel, s: dict[str, Any], seed: int) -> list[dict[str, Any]]:
    """Held-out shares by number of training reactions and way of learning, over random splits."""
    n, held = len(tasks.wanted), s["held_out"]
    found = []
    for split in range(s["splits"]):
        order = np.random.default_rng([seed, split]).permutation(n)
        test, pool = tasks.take(order[:held]), order[held:]
        raw = counts(test.verdicts(model.head.W))
        found.append({"way": "raw head", "size": 0, "split": split, "right": raw["right"], "total": test.count})
        for size in (k for k in s["sizes"] if k <= len(pool)):
            train = tasks.take(pool[:size])
            for way in s["ways"]:
                got = counts(test.verdicts(_learned(train, model, way, "frobenius", s["C"]).W))
                entry = {"way": way, "size": int(size), "split": split, "right": got["right"], "total": test.count}
                found.append(entry | {"equivalent": got["equivalent"]})
    return found


def _curve_table(found: list[dict[str, Any]], C: float | None) -> Table:
    rows = []
    for way, size in dict.fromkeys((f["way"], f["size"]) for f in found):
        these = [f for f in found if (f["way"], f["size"]) == (way, size)]
        shares = [f["right"] / f["total"] for f in these]
        right, total = sum(f["right"] for f in these), sum(f["total"] for f in these)
        label = {"raw head": "raw head", "fit": "fitted from nothing"}.get(way, f"edit of {way}")
        rows.append((label, size or "", share(right, total), min(shares), max(shares), len(these)))
    title = (
        f"Held-out atoms by number of training reactions ({'hard margin' if C is None else f'soft margin, C = {C:g}'})"
    )
    return Table(title, ("", "reactions", "share right", "worst split", "best split", "splits"), rows)


def _tasks(context: Context, model: ReactionModel) -> tuple[Tasks, list[Any], str]:
    """Reactions of the package, or of a file, with their hidden states (kept beside the results)."""
    s = context.settings
    if not s["data"]:
        reactions = package_reactions()
        return (
            tasks_of(model, reactions, model.head),
            reactions,
            "the 13 mapped reactions in the tests of rxnmapper 0.4.3",
        )
    path = Path(s["data"])
    reactions = read_reactions(path, s["read"], s["longest"], set(model.vocabulary))
    where = f"{len(reactions)} reactions of {path.name}"
    if context.store == ":memory:":
        return tasks_of(model, reactions, model.head), reactions, where
    cache = Path(context.store).with_name(f"own_atoms_{path.stem}_{len(reactions)}_{s['longest']}.npz")
    if cache.exists() and not context.options.fresh:
        with np.load(cache) as kept:
            problem = attsvm.AttentionProblem(kept["X"], Z=kept["Z"], mask=kept["mask"])
            return Tasks(problem, kept["wanted"], kept["ranks"]), reactions, where
    tasks = tasks_of(model, reactions, model.head)
    p = tasks.problem
    np.savez(cache, X=p.X, Z=p.Z, mask=np.asarray(p.mask), wanted=tasks.wanted, ranks=tasks.ranks)
    return tasks, reactions, where


def run(context: Context) -> Outcome:
    """All tables of the study."""
    s = dict(context.settings)
    model = load_reaction_model()
    tasks, reactions, where = _tasks(context, model)
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
        curve = _curve(tasks, model, s, context.seed)
        tables.append(_curve_table(curve, s["C"]))
    whole = [row[0] for table in tables if "smallest" in table.title for row in table.rows if row[7] != tasks.count]
    refuted = [f"{label} is right on all atoms that it was asked for" for label in whole]
    return Outcome(tables, {"curve": curve, "raw": raw["right"] / tasks.count}, notes, refuted)


def draw(outcome: Outcome) -> Picture:
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


FIGURE = Figure(
    paper="own",
    name="atoms",
    title="Atom mapping by a real head: raw, edited, fitted",
    protocol="""Head 5 of layer 10 of rxnmapper's ALBERT (weights of the installed package, network in float64): each
        product atom is a query, the reactant atoms are its candidates, the atom map is the truth; hidden states that
        enter the layer, constant 1 appended. An atom is 'equivalent' if it is another one of the same canonical rank
        (RDKit). Edits are hard-margin and certified; leave-one-out over reactions; --data FILE (column rxn_Smiles)
        takes other reactions, with random splits. Intervals: Wilson, 95 %, atoms taken as independent.""",
    full={
        "trials": 1, "data": "", "read": 260, "longest": 512, "certify": True, "norms": ["frobenius", "nuclear"],
        "heads": ["W", "K", "Q"], "leave_one_out": [["W", "frobenius"], ["K", "frobenius"], ["Q", "frobenius"],
        ["fit", "frobenius"]], "held_out": 4, "sizes": [3, 6, 9], "splits": 10, "ways": ["W", "K", "Q", "fit"],
        "C": None,
    },
    quick={
        "trials": 1, "data": "", "read": 20, "longest": 200, "certify": True, "norms": ["frobenius"],
        "heads": ["W", "K"], "leave_one_out": [["W", "frobenius"]], "held_out": 4, "sizes": [3], "splits": 2,
        "ways": ["W", "fit"], "C": None,
    },
    run=run,
    draw=draw,
)  # fmt: skip
