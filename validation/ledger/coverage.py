"""What accounts for every numbered item of the papers: rows of the ledger, a figure's command, or a reason."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from attsvm.records import Table
from attsvm.validation.figures.registry import PAPERS, all_figures
from attsvm.validation.ledger.record import Claim

__all__ = ["Cover", "coverage_markdown", "covers", "numbered_items", "unaccounted"]


@dataclass(frozen=True)
class Cover:
    """What accounts for one item.

    Parameters
    ----------
    paper, item : str
        ``svm`` and ``Theorem 1``.
    rows : tuple of str
        Claims, without the paper's name.
    figure : str
        The figure that `attsvm validate` computes.
    why : str
        Why there is neither, or what a run at full size would take.
    """

    paper: str
    item: str
    rows: tuple[str, ...] = ()
    figure: str = ""
    why: str = ""


def _load(name: str) -> dict[str, Any]:
    return tomllib.loads((files("attsvm.validation.ledger") / name).read_text(encoding="utf-8"))


@cache
def numbered_items() -> dict[str, tuple[str, ...]]:
    """The papers' numbered items, in their order.

    Examples
    --------
    >>> from attsvm.validation.ledger.coverage import numbered_items
    >>> len(numbered_items()["localization"])
    20
    """
    return {paper: tuple(items) for paper, items in _load("items.toml").items()}


@cache
def covers() -> tuple[Cover, ...]:
    """One entry per item.

    Examples
    --------
    >>> from attsvm.validation.ledger.coverage import covers
    >>> covers()[0].rows
    ('def1', 'lemma2')
    """
    return tuple(
        Cover(paper, item, tuple(entry.get("rows", ())), entry.get("figure", ""), entry.get("why", ""))
        for paper, entries in _load("coverage.toml").items()
        for item, entry in entries.items()
    )


def unaccounted(claims: Sequence[Claim]) -> list[str]:
    """What is wrong with the table: items without an entry, entries without an item, and names that do not exist.

    Examples
    --------
    >>> from attsvm.validation.ledger.coverage import unaccounted
    >>> from attsvm.validation.ledger.run import all_claims
    >>> unaccounted(all_claims())
    []
    """
    known = {claim.id for claim in claims}
    drawn = {paper: {name for f in all_figures(paper) for name in (f.name, *f.aliases)} for paper in PAPERS}
    listed = {(paper, item) for paper, items in numbered_items().items() for item in items}
    entered = {(cover.paper, cover.item) for cover in covers()}
    found = [f"{paper}: {item} has no entry" for paper, item in sorted(listed - entered)]
    found += [f"{paper}: {item} is not an item" for paper, item in sorted(entered - listed)]
    for cover in covers():
        rows = [f"{cover.paper}:{row}" for row in cover.rows]
        found += [f"{cover.item}: no claim {row}" for row in sorted(set(rows) - known)]
        if cover.figure and cover.figure not in drawn[cover.paper]:
            found.append(f"{cover.item}: {cover.paper} has no {cover.figure}")
        if not any((cover.rows, cover.figure, cover.why)):
            found.append(f"{cover.paper}: {cover.item} has neither rows nor a figure nor a reason")
    return found


def coverage_markdown(claims: Sequence[Claim]) -> str:
    """The page of the numbered items.

    Examples
    --------
    >>> from attsvm.validation.ledger.coverage import coverage_markdown
    >>> from attsvm.validation.ledger.run import all_claims
    >>> coverage_markdown(all_claims()).startswith("# What is covered")
    True
    """
    verdicts = {claim.id: claim.verdict for claim in claims}
    lines = [
        "# What is covered",
        "",
        "Every numbered theorem, lemma, proposition, corollary, definition, assumption, figure and table of the "
        "five papers,",
        "with the [rows](claims.md) that test it, the figure that `attsvm validate` computes, or the reason why "
        "neither does.",
        "This page is written by `attsvm claims --coverage`; a test compares it with the list of the papers' items.",
        "",
    ]
    for paper, title in PAPERS.items():
        own = [cover for cover in covers() if cover.paper == paper]
        cells = []
        for cover in own:
            rows = ", ".join(f"{row} ({verdicts.get(f'{paper}:{row}', '?')})" for row in cover.rows)
            command = f"`attsvm validate {'' if paper == 'svm' else paper + ' '}{cover.figure}`" if cover.figure else ""
            cells.append((cover.item, rows, command, cover.why))
        lines += [f"## {title}", "", f"{len(own)} items.", ""]
        lines += [Table(title, ("item", "rows", "figure", "otherwise"), cells).markdown(), ""]
    return "\n".join(lines)
