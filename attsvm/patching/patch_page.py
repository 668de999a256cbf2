"""The page about a patch: what is repaired and kept, what contradicts, what drives the change and what else moves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.patching.patch_result import Demand, Outcome, Patch
from attsvm.records import Table, atomic_write, environment, html_page, share

# Lines of a table on the page, and of one that opens without a click; singular values in the chart.
_MOST_ROWS, _FEW_ROWS, _MOST_VALUES = 500, 15, 60
_WORDS = {
    "score": "document^T W query; W is the identity (inner products, or the cosine of vectors of length 1) before the "
    "first patch, or the prior map that was given.",
    "lead": "Score of the promised document less that of the strongest other document of the index.",
    "margin": "By how much the right document of a failure must lead. A golden answer keeps the margin, or the lead "
    "that it had when it was promised where that was less.",
    "weight": "Sum of the multipliers of a promise: by how much the smallest change grows per unit of its margin.",
    "proved": "Every document of the index was compared with every promise, and rounding errors are bounded.",
    "smallest change": "No map that keeps the promises is nearer to the one before, to within the relative gap.",
}

_HEURISTIC = (
    "Which failures are given up is chosen by a soft margin. This is a heuristic: another choice may repair more of "
    "them. The change for those that are left is proved to be the smallest."
)


def patch_page(patch: Patch) -> str:
    """The page as text of HTML."""
    found = patch.map is not None
    changes = patch.answer_changes if found and patch.data is not None else ()
    held = patch.held_out if found and patch.data is not None else None
    failures = [one for one in patch.outcomes if one.kind == "repair"]
    golden = [one for one in patch.outcomes if one.kind == "keep"]
    facts = patch.facts()
    return html_page(
        "patch.html", title="Patch", verdict=facts["status"], good=str(patch.status) == "optimal",
        numbers=_cards(patch, failures, golden, len(changes)), found=found,
        repairs=_folded(_outcomes("Failures", patch, failures)),
        kept=_folded(_outcomes("Golden answers, smallest leads first", patch, sorted(golden, key=lambda o: o.lead))),
        left_out=_folded(_outcomes("Golden answers that were not first before the patch", patch, patch.left_out)),
        unserved=_unserved(patch), heuristic=_HEURISTIC if patch.C is not None and _unserved(patch) else "",
        conflict=_folded(_demands("Demands that contradict each other", patch.conflict)),
        conflict_text=patch.conflict_text() if patch.conflict else "",
        driving=_folded(_demands("Demands with the largest multipliers", patch.driving)),
        changes=_folded(_changes(changes)), unreported=_unreported(patch, len(changes)) if found else "",
        held_out=None if held is None else held.table, rounds=patch.drift if found and len(patch.rounds) > 1 else None,
        certificate=str(patch.certificate), proof=_proof(patch), meanings=_WORDS, data=_chart_data(patch, failures),
        environment=environment(),
    )  # fmt: skip


def _unserved(patch: Patch) -> list[str]:
    """A sentence for each failure that a patch gives up."""
    given_up = () if patch.map is None else patch.unserved
    return [f"Query {o.query}: {o.document} is not first. {o.reason[:1].upper()}{o.reason[1:]}." for o in given_up]


def write_patch_page(patch: Patch, path: str | Path) -> Path:
    """Write the page (see `Patch.report`)."""
    target = Path(path)
    text = patch_page(patch)
    with atomic_write(target) as file:
        file.write(text.encode())
    return target


def _folded(table: Table) -> dict[str, Any]:
    """A table, and whether it is opened by a click."""
    shown = table.rows[:_MOST_ROWS]
    more = f"; the first {_MOST_ROWS:,} of {len(table.rows):,}" if len(table.rows) > _MOST_ROWS else ""
    return {
        "table": Table(table.title + more, table.columns, shown, table.align),
        "folded": len(shown) > _FEW_ROWS,
        "rows": len(table.rows),
    }


def _cards(patch: Patch, failures: list[Outcome], golden: list[Outcome], changes: int) -> list[tuple[str, str]]:
    if patch.map is None:
        return [("failures", f"{len(failures):,}"), ("golden promises", f"{len(golden):,}")]
    return [
        ("failures repaired", f"{len(patch.repaired):,} of {len(failures):,}"),
        ("golden promises kept", f"{len(patch.kept):,} of {len(golden):,}"),
        ("documents", f"{patch.certificate.documents:,}"),
        ("size of the change", f"{patch.relative_size:.2%} of the map"),
        ("rank of the change", f"{patch.rank}"),
        ("margin", f"{patch.margin:.3g}"),
        ("relative gap", f"{patch.certificate.gap:.1e}"),
        ("other answers changed", f"{changes:,}" if patch.data is not None else "-"),
        ("applied to", {"query": "queries", "document": "documents", "both": "both"}[patch.side]),
        ("seconds", f"{patch.certificate.seconds:.3g}"),
    ]


def _outcomes(title: str, patch: Patch, outcomes: Sequence[Outcome]) -> Table:
    many = len(patch.rounds) > 1
    rows = [
        (
            str(o.query), str(o.document), f"{o.lead_before:+.4g}", f"{o.lead:+.4g}",
            "-" if o.rival is None else str(o.rival), f"{o.weight:.3g}",
            *((patch.rounds[o.round].name,) if many else ()), "yes" if o.served else "no",
        )
        for o in outcomes
    ]  # fmt: skip
    columns = ["query", "right document", "lead before", "lead after", "strongest rival", "weight",
               *(["patch"] if many else []), "holds"]  # fmt: skip
    return Table(title, columns, rows, align="llrrlr" + ("l" if many else "") + "r")


def _demands(title: str, demands: Sequence[Demand]) -> Table:
    rows = [
        (str(o.query), {"repair": "repair", "keep": "keep"}[o.kind], str(o.document),
         f"{o.rival}{' (same embedding)' if o.same else ''}", f"{o.multiplier:.3g}")
        for o in demands
    ]  # fmt: skip
    return Table(title, ("query", "kind", "document", "above", "multiplier"), rows, align="llllr")


def _changes(changes: Sequence[Any]) -> Table:
    rows = [
        (str(one.query), str(one.before), str(one.after), f"{one.lead_before:+.4g}", f"{one.lead:+.4g}")
        for one in changes
    ]
    columns = ("query", "first before", "first after", "lead of the old one before", "lead of the new one now")
    return Table("First answers that change, largest new lead first", columns, rows, align="lllrr")


def _unreported(patch: Patch, changes: int) -> str:
    if patch.data is None:
        return "The embeddings are not at hand, so other queries were not compared."
    named = {one.query for one in patch.outcomes}
    total = len(patch.data.queries) - len(named)
    if not total:
        return "Every query of the embeddings is named by a promise."
    return f"Of {total:,} queries without a promise {changes:,} have another first answer: {share(changes, total)}."


def _proof(patch: Patch) -> list[str]:
    one = patch.certificate
    if patch.map is None:
        return []
    return [
        f"Size {one.norm:.6g} in the {patch.norm_kind} norm; no change that keeps every promise is smaller than "
        f"{one.lower_bound:.6g}.",
        f"{one.scans} scans of the index in float32; {one.compared:,} pairs were compared again in float64 in the last "
        f"one. {one.rows:,} rows were enough to determine the change (solver {one.solver or 'none needed'}).",
        f"Margins are met up to {one.violation:.1e}, rounding included; the order of every promised pair is proved."
        if not one.unproved
        else f"{one.unproved} pairs are violated or not proved.",
    ]


def _chart_data(patch: Patch, failures: Sequence[Outcome]) -> dict[str, Any]:
    """Singular values of the change, and leads of failures before and after in the order of those before."""
    if patch.map is None:
        return {"values": [], "before": [], "after": []}
    ordered = sorted((one for one in failures if np.isfinite(one.lead + one.lead_before)), key=lambda o: o.lead_before)
    return {
        "values": [float(v) for v in patch.singular_values[:_MOST_VALUES]],
        "before": [one.lead_before for one in ordered],
        "after": [one.lead for one in ordered],
    }
