"""Atom mapping on the 3,000 reactions of syntemp: what edits of the head learn from some and keep on others.

Every reaction is held out once. RXNMapper's own answers, from the same head with its decoder, are the baseline.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.records import Interval, share
from attsvm.solvers.arrays import IntArray
from attsvm.trained_head import TrainedHead
from attsvm.validation.figures.figure import Context, Figure, Outcome, Picture, Table, finish, folder_beside, subplots
from attsvm.validation.figures.own.fit_studies import learned
from attsvm.validation.pretrained.atom_mapping import load_reaction_model
from attsvm.validation.pretrained.reference_maps import (
    archive_at,
    archive_digest,
    read_archive,
    read_states,
    write_states,
)

RAW, RXNMAPPER = "raw head", "RXNMapper"

# Columns of `ReactionStates.judged`.
ALL, RIGHT, SYMMETRY, ASSIGNED = range(4)


def fold_of(n: int, fold: int, folds: int, seed: int) -> tuple[IntArray, IntArray]:
    """Reactions to test and, in a random order, those to learn from: the folds part the reactions.

    Examples
    --------
    >>> test, rest = fold_of(7, 0, 3, seed=0)
    >>> len(test), np.sort(np.concatenate([test, rest])).tolist()
    (3, [0, 1, 2, 3, 4, 5, 6])
    """
    order = np.random.default_rng(seed).permutation(n)
    held = order[fold::folds]
    return held, np.random.default_rng([seed, fold]).permutation(np.setdiff1d(order, held))


def ratio(counts: npt.ArrayLike, totals: npt.ArrayLike) -> Interval:
    """Sum of counts over sum of totals with its 95 % interval; reactions, not atoms, are taken as independent.

    Parameters
    ----------
    counts, totals : array_like of int, shape (n,)
        Per reaction; counts may be differences, from -totals to totals.

    Examples
    --------
    >>> str(ratio([9, 10, 10, 7], [10, 10, 10, 10]))
    '90.0 % [76.1, 100.0]'
    """
    x, y = np.asarray(counts, dtype=np.float64), np.asarray(totals, dtype=np.float64)
    value = float(x.sum() / y.sum())
    spread = (x - value * y) / y.mean()  # the linearized ratio
    half = 1.96 * float(spread.std(ddof=1)) / float(np.sqrt(len(x))) if len(x) > 1 else float("nan")
    low = 0.0 if (x >= 0).all() else -1.0
    return Interval(value, max(low, value - half), min(1.0, value + half), percent=True)


@lru_cache(maxsize=1)
def _head() -> TrainedHead:
    return load_reaction_model().head


def mapping_of_fold(trials: int, seed: int, *, data: str, fold: int, folds: int, first: int, way: str, c: float,
                    size: int) -> dict[str, Any]:  # fmt: skip
    """One way of learning on one fold; what a sweep runs. Folds depend on the seed of the study alone."""
    states, head = read_states(data), _head()
    test, rest = fold_of(len(states), fold, folds, first)
    found: dict[str, Any] = {"status": "", "gap": 0.0}
    W: npt.NDArray[np.float64] | None = None if way == RXNMAPPER else head.W
    if size:
        tasks = states.tasks(rest[:size])
        start = time.process_time()
        edit = learned(tasks, head, way, c=c)
        found = {"status": str(edit.status), "gap": float(edit.certificate.gap), "seconds": time.process_time() - start}
        if edit.conflicts:
            return {"found": [json.dumps(found | {"conflicts": len(edit.conflicts)})] * trials}
        W = edit.W
        train = int((tasks.verdicts(W) == 2).sum())
        found |= {"train": [train, tasks.count], "change": float(edit.relative_frobenius)}
    return {"found": [json.dumps(found | {"judged": states.judged(test, W).tolist()})] * trials}


def _states(context: Context, folder: Path) -> tuple[Path, str]:
    """The hidden states of the reactions in a file, and where they are from."""
    s = context.settings
    archive = archive_at(s["data"], folder)
    origin = archive_digest(archive)
    path = folder / f"own_mapping_{s['read']}_{s['longest']}_{origin.split()[1]}.npz"
    if not path.exists():
        model = load_reaction_model()
        reactions, skipped = read_archive(archive, s["read"], s["longest"], set(model.vocabulary))
        write_states(path, model, reactions, skipped)
    return path, f"{archive.name}, {origin}"


def run_mapping(context: Context) -> Outcome:
    """All tables of the study."""
    s = context.settings
    with folder_beside(context.store) as folder:
        path, origin = _states(context, folder)
        states = read_states(str(path))
        most = len(states) - -(-len(states) // s["trials"])
        if s["trials"] < 2 or not all(1 <= size <= most for size in s["sizes"]):
            raise ValueError(
                f"trials must be at least 2 folds and sizes from 1 to {most} reactions outside a fold of "
                f"{len(states)}, got trials={s['trials']}, sizes={s['sizes']}"
            )
        asked = [(RAW, 0.0, 0), (RXNMAPPER, 0.0, 0), *_ways(s["sizes"], s["ways"])]
        cells = [
            {"data": str(path), "fold": fold, "folds": s["trials"], "first": context.seed, "way": way, "c": c,
             "size": size}
            for way, c, size in asked
            for fold in range(s["trials"])
        ]  # fmt: skip
        done = context.sweep(mapping_of_fold, cells, 1, chunk=1, name="folds", extend=True)
    found: dict[tuple[str, float, int], list[dict[str, Any]]] = {key: [] for key in asked}
    for cell, columns in zip(cells, done.columns, strict=True):
        key = (str(cell["way"]), float(cell["c"]), int(cell["size"]))
        found[key].append(json.loads(str(columns["found"][0])))
    where = (
        f"{len(states)} reactions of {origin}; {int(states.skipped)} left out; {len(states.wanted)} product atoms, "
        f"{len(states.reactant_classes)} candidates"
    )
    return _outcome(found, where, s["trials"])


def _ways(sizes: Sequence[int], ways: Sequence[Any]) -> list[tuple[str, float, int]]:
    """What is changed, its penalty and the number of reactions, of every edit of a fold."""
    for way in ways:
        if not (len(way) == 3 and way[0] in ("W", "K", "Q", "fit") and way[1] >= 0 and way[2] >= 1):
            raise ValueError(f"ways must be lists of W, K, Q or fit, c >= 0 and the most reactions, got {way}")
    return [(str(of), float(c), size) for size in sizes for of, c, most in ways if size <= most]


def _label(way: str, c: float) -> str:
    if way in (RAW, RXNMAPPER):
        return way
    return ("fitted from nothing" if way == "fit" else f"edit of {way}") + (f", soft, c = {c:g}" if c else ", hard")


@dataclass(frozen=True, eq=False)
class _Held:
    """Counts of the held-out reactions of some folds, shape (reactions, 4), and the raw head's of the same ones."""

    now: npt.NDArray[np.int64]
    before: npt.NDArray[np.int64]

    def share(self, column: int) -> Interval:
        """Atoms that count in a column."""
        return ratio(self.now[:, column], self.now[:, ALL])

    def gain(self, column: int) -> Interval:
        """The same against the raw head, paired by reaction."""
        return ratio(self.now[:, column] - self.before[:, column], self.now[:, ALL])

    def whole(self, column: int) -> Interval:
        """Reactions all of whose atoms count."""
        return share(int((self.now[:, column] == self.now[:, ALL]).sum()), len(self.now))


def _outcome(found: dict[tuple[str, float, int], list[dict[str, Any]]], where: str, folds: int) -> Outcome:
    raw = [np.array(fold["judged"]) for fold in found[RAW, 0.0, 0]]
    rows, notes, curve = [], [where], []
    for (way, c, size), parts in found.items():
        label = _label(way, c)
        each = [_Held(np.array(p["judged"]), r) for p, r in zip(parts, raw, strict=True) if "judged" in p]
        if not each:
            rows.append((label, size, *[""] * 5, "no such edit"))
            continue
        held = _Held(np.concatenate([h.now for h in each]), np.concatenate([h.before for h in each]))
        rows.append(_held_row(way, label, size, held, [100 * h.gain(SYMMETRY).value for h in each]))
        shares = [held.share(column) for column in (SYMMETRY, ASSIGNED)]
        curve.append({"label": label, "size": size, "wrong": [100 * (1 - found.value) for found in shares],
                      "half": [50 * (found.high - found.low) for found in shares]})  # fmt: skip
        if size:
            gains = f"{_said(held.gain(SYMMETRY))} by logits alone, {_said(held.gain(ASSIGNED))} one-to-one"
            notes.append(f"{label}, {size} reactions: {gains}")
    columns = ("", "reactions", "right", "up to symmetry", "gain by fold, points", "whole reactions",
               "one-to-one, up to symmetry", "one-to-one, whole reactions")  # fmt: skip
    tables = [Table(f"Held-out atoms: {folds} folds, every reaction held out once", columns, rows)]
    edits = {(_label(way, c), size): parts for (way, c, size), parts in found.items() if size}
    if edits:
        about = ("", "reactions", "folds", "proved optimal", "of its size", "right in training", "worst gap", "CPU s")
        made = [_edit_row(label, size, parts) for (label, size), parts in edits.items()]
        tables.append(Table("The edits: smallest changes of the head for their training reactions", about, made))
    return Outcome(tables, {"curve": curve}, notes, _missed(found))


def _held_row(way: str, label: str, size: int, held: _Held, gains: list[float]) -> tuple[Any, ...]:
    if way == RXNMAPPER:  # its map is decoded already, and which of two symmetric atoms it names is chance
        right, assigned, whole = "", "", ""
    else:
        right, assigned, whole = str(held.share(RIGHT)), str(held.share(ASSIGNED)), str(held.whole(ASSIGNED))
    by_fold = "" if way == RAW else f"{min(gains):+.2f} to {max(gains):+.2f}"
    return label, size or "", right, held.share(SYMMETRY), by_fold, held.whole(SYMMETRY), assigned, whole


def _missed(found: dict[tuple[str, float, int], list[dict[str, Any]]]) -> list[str]:
    """Hard edits that miss an atom of their training reactions, against what they were solved for."""
    return [
        f"{_label(way, c)}, learned on {size} reactions, is right on all of their atoms"
        for (way, c, size), parts in found.items()
        if c == 0 and any(part["train"][0] != part["train"][1] for part in parts if "train" in part)
    ]


def _said(gain: Interval) -> str:
    """A paired difference with the raw head in words."""
    text = f"{100 * gain.value:+.2f} points [{100 * gain.low:+.2f}, {100 * gain.high:+.2f}]"
    verb = "beats" if gain.low > 0 else "loses to" if gain.high < 0 else "cannot be told from"
    return f"{verb} the raw head ({text})"


def _edit_row(label: str, size: int, parts: Sequence[dict[str, Any]]) -> tuple[Any, ...]:
    """What the edits of one kind are, over the folds."""
    changes = [part["change"] for part in parts if "change" in part]
    train = np.array([part["train"] for part in parts if "train" in part]).reshape(-1, 2).sum(axis=0)
    percent = f"{100 * float(np.median(changes)):.1f} %" if changes and np.isfinite(changes).all() else ""
    impossible = sum("conflicts" in part for part in parts)
    proved = sum(part["status"] == "optimal" for part in parts)
    return (
        label, size, len(parts), f"{proved}; impossible in {impossible}" if impossible else proved, percent,
        f"{100 * train[0] / train[1]:.2f} %" if train[1] else "", max(part["gap"] for part in parts),
        round(float(np.median([part["seconds"] for part in parts])), 1),
    )  # fmt: skip


def draw_mapping(outcome: Outcome) -> Picture:
    """Share of wrong atoms by number of training reactions, for both ways to read a map off the logits."""
    picture, axes = subplots(1, 2, (11, 4))
    curve = outcome.curves["curve"]
    sizes = sorted({entry["size"] for entry in curve if entry["size"]})
    for j, (axis, title) in enumerate(
        zip(axes, ("highest logit of each atom", "one-to-one, same element"), strict=True)
    ):
        for label, style in ((RAW, "--"), (RXNMAPPER, ":")):
            wrong = next(entry["wrong"][j] for entry in curve if entry["label"] == label)
            axis.axhline(wrong, color="black", linestyle=style, label=label)
        for label in dict.fromkeys(entry["label"] for entry in curve if entry["size"]):
            these = [entry for entry in curve if entry["label"] == label]
            axis.errorbar([e["size"] for e in these], [e["wrong"][j] for e in these], [e["half"][j] for e in these],
                          marker="o", capsize=3, label=label)  # fmt: skip
        axis.set(xlabel="training reactions", title=title, xscale="log")
        axis.set_xticks(sizes, [str(size) for size in sizes], minor=False)
        axis.set_xticks([], minor=True)
        axis.set_ylim(bottom=0)
    axes[0].set_ylabel("held-out atoms wrong, up to symmetry (%)")
    picture.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    return finish(picture, axes, legend=None)


FIGURE_MAPPING = Figure(
    paper="own",
    name="mapping",
    title="Atom mapping on 3,000 reactions: edits of a head on held-out reactions, and RXNMapper",
    protocol="""Reference maps and RXNMapper's answers from the source archive of syntemp 1.0.3 (--data FILE, or in the
        folder of the results; read, not imported; its reference equals LocalMapper's output, so that is no baseline).
        Head 5 of layer 10 of rxnmapper's ALBERT, network in float64, hidden states kept in float32. Each product atom
        goes to the reactant atom of highest logit, or all together one-to-one to atoms of their elements (likeliest
        assignment). 'right': the reference's atom; 'up to symmetry': symmetric atoms of reactants and of the product
        are exchangeable (RDKit, without stereochemistry), which is how RXNMapper is judged; 'whole reactions': all
        atoms. Folds part the reactions; edits are learned on the first reactions of a random order of the others,
        with hard margins (smallest Frobenius change, certified) or a squared hinge with the penalty c over the median
        squared row; --set ways lists what is changed, c (0: hard) and the most reactions to learn from. Intervals:
        95 %, over reactions; of whole reactions Wilson's.""",
    full={
        "trials": 5, "data": "", "read": 3000, "longest": 512, "sizes": [100, 300, 1000],
        "ways": [["W", 0, 1000], ["K", 0, 300], ["Q", 0, 300], ["W", 10, 1000], ["K", 10, 1000], ["Q", 10, 1000]],
    },
    quick={"trials": 2, "read": 60, "longest": 200, "sizes": [10, 20],
           "ways": [["W", 0, 20], ["K", 0, 20], ["W", 10, 20]]},
    run=run_mapping,
    draw=draw_mapping,
)  # fmt: skip
