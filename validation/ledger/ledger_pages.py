"""The ledger as tables: for the terminal, as records, and as pages of the documentation.

One page says what accounts for every numbered item of the papers: rows of the ledger, a figure's command, or a reason.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from attsvm.records import Table, plain
from attsvm.validation.figures.figure_registry import LEDGER, PAPERS
from attsvm.validation.ledger.audit import Audit
from attsvm.validation.ledger.claim_record import WEIGHTS, Claim, Verdict

__all__ = [
    "LINKS",
    "Cover",
    "claim_record",
    "claims_markdown",
    "coverage_markdown",
    "covers",
    "readings_markdown",
    "wrong_markdown",
]


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
def covers() -> tuple[Cover, ...]:
    """One entry per item.

    Examples
    --------
    >>> from attsvm.validation.ledger.ledger_pages import covers
    >>> covers()[0].rows
    ('def1', 'lemma2')
    """
    return tuple(
        Cover(paper, item, tuple(entry.get("rows", ())), entry.get("figure", ""), entry.get("why", ""))
        for paper, entries in _load("coverage.toml").items()
        for item, entry in entries.items()
    )


def coverage_markdown(claims: Sequence[Claim]) -> str:
    """The page of the numbered items.

    Examples
    --------
    >>> from attsvm.validation.ledger.ledger_pages import coverage_markdown
    >>> from attsvm.validation.ledger.audit import all_claims
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


# Where the papers are; the one on conditioning is an anonymous submission without a public number.
LINKS = {
    "svm": "[arXiv 2308.16898](https://arxiv.org/abs/2308.16898)",
    "conditioning": "anonymous submission, no public number",
    "polarization": "[arXiv 2603.06248](https://arxiv.org/abs/2603.06248)",
    "localization": "[arXiv 2402.02098](https://arxiv.org/abs/2402.02098)",
    "specialization": "[arXiv 2603.03993](https://arxiv.org/abs/2603.03993)",
    "newer": "arXiv 2306.13596, 2402.05738, 2402.18551, 2403.08081, 2410.14581, by their abstracts",
}


_HEADINGS = {
    "result": "What changes a result or its proof",
    "practice": "What changes what a user does",
    "wording": "Sentences that need a word more",
    "slip": "Slips of the pen",
}


_CLAIMS_PAGE = """\
# What of the papers holds

Every row is a record of `attsvm.validation.ledger` with a check that measures it on random instances that satisfy
its hypotheses; `attsvm claims --run --seeds 10` runs the checks again at ten seeds and compares, `attsvm claims
--mutate` tries wrong forms on them. *Holds* means that no instance contradicted the statement, which is evidence,
not a proof; *fails as printed*, that a counterexample is known and a corrected form survives; *typo*, a slip that
the paper itself contradicts; *imprecise*, an informal sentence that is false under one reading only. Rows whose
place begins with *ours* are not statements of the paper. This page is written by `attsvm claims --markdown`.

<div class="claims-filter"></div>
"""


_WRONG_PAGE = """\
# What needs a correction in the papers

Statements that a check of the [ledger](claims.md) contradicts as they are printed, each with the form that survives
it. They come in the order of what they change: results and proofs, what a user does, wording, and slips of the pen.
None of them takes away from what the papers found; most are a constant, a missing hypothesis or an index. Statements
that follow from one of these are counted with it and named there. A [second reading](second_reading.md) tells how
each verdict came about. This page is written by `attsvm claims --wrong`.
"""


_READINGS_PAGE = """\
# The second reading

A first reading called {all} statements of the five papers refuted. Each was read again beside the paper's text:
{holds} are withdrawn (the statement holds, or is a definition), {imprecise} are informal sentences
that are false under one reading only, {typo} are slips, and {kept} stand, of which
{same} are consequences of another one and count with it. Verdicts of this page
are those of the checks. This page is written by `attsvm claims --readings`.
"""


def _place(claim: Claim) -> str:
    return claim.id.split(":", 1)[1]


def claim_record(claim: Claim, audit: Audit | None = None) -> dict[str, Any]:
    """A claim, and its audit if it was run, as plain data.

    Examples
    --------
    >>> from attsvm.validation.ledger.audit import all_claims
    >>> from attsvm.validation.ledger.ledger_pages import claim_record
    >>> claim_record(all_claims(["svm"])[0])["paper"]
    'svm'
    """
    names = ("id", "paper", "source", "statement", "verdict", "correction", "evidence", "reason")
    record = {name: plain(getattr(claim, name)) for name in names} | {"has_check": claim.measure is not None}
    reading = claim.reading
    record |= {
        name: plain(getattr(reading, name)) for name in ("quote", "hypotheses", "related", "same_as", "before", "why")
    }
    if audit is not None:
        record |= {
            "printed": str(audit.printed) if audit.printed else None,
            "corrected": str(audit.corrected) if audit.corrected else None,
            "agrees": audit.agrees,
            "seconds": audit.seconds,
        }
    return record


def _tally(claims: Sequence[Claim]) -> str:
    found = Counter(claim.verdict for claim in claims)
    same = sum(bool(claim.reading.same_as) for claim in claims)
    listed = ", ".join(f"{found[verdict]} {verdict}" for verdict in Verdict)
    return listed + (f" ({same} of them count elsewhere)" if same else "")


def _suppositions(claim: Claim) -> str:
    reading = claim.reading
    parts = []
    if reading.hypotheses:
        parts.append("Supposed: " + "; ".join(reading.hypotheses) + ".")
    if reading.same_as:
        parts.append(f"Counted with `{reading.same_as}`.")
    if reading.related:
        parts.append("See " + ", ".join(f"`{name}`" for name in reading.related) + ".")
    if reading.tight:
        parts.append(f"Tightness on reference instances: worst {reading.tight[0]:.2g}, mean {reading.tight[1]:.2g}.")
    return " ".join(parts)


def claims_markdown(claims: Sequence[Claim]) -> str:
    """The page of all claims: one table per paper, with a filter that works without a server.

    Examples
    --------
    >>> from attsvm.validation.ledger.audit import all_claims
    >>> from attsvm.validation.ledger.ledger_pages import claims_markdown
    >>> claims_markdown(all_claims(["svm"])).startswith("# What of the papers holds")
    True
    """
    lines = [_CLAIMS_PAGE]
    for paper, title in LEDGER.items():
        rows = [claim for claim in claims if claim.paper == paper]
        if not rows:
            continue
        lines += [f"## {title}", "", f"{LINKS[paper]}. {len(rows)} claims: {_tally(rows)}.", ""]
        columns = ("id", "where", "statement", "verdict", "corrected or sharper form", "evidence",
                   "hypotheses and links")  # fmt: skip
        cells = [
            (_place(c), c.source, c.statement, c.verdict, c.correction, c.evidence or c.reason, _suppositions(c))
            for c in rows
        ]
        lines += [Table(title, columns, cells).markdown(), ""]
    return "\n".join(lines)


def _math(tex: str, words: str) -> str:
    """TeX that survives a Markdown table: no bars and no angles."""
    if not tex:
        return words
    for bare, safe in ((r"\|", r"\Vert "), ("|", r"\vert "), ("<", r"\lt ")):
        tex = tex.replace(bare, safe)
    return f"${tex}$"


def _plainly(why: str) -> str:
    """A reason without the word that says what was decided."""
    head, found, rest = why.partition(": ")
    return rest if found and len(head) < 40 else why


def _correction(c: Claim, claims: Sequence[Claim]) -> tuple[object, ...]:
    """One row of the page: what is printed, what holds, the evidence, and what follows from it."""
    heirs = [_place(other) for other in claims if other.reading.same_as == c.id]
    evidence = c.evidence or _plainly(c.reading.why)
    if heirs:
        evidence += f". With it: {', '.join(heirs)}"
    printed, holds = _math(c.reading.printed, c.statement), _math(c.reading.holds, c.correction)
    if c.reading.printed:
        printed += f" ({c.statement})"
        holds += f" ({c.correction})"
    return _place(c), c.source, c.verdict, printed, holds, evidence


def wrong_markdown(claims: Sequence[Claim]) -> str:
    """The page of what needs a correction, ranked by what it changes.

    Examples
    --------
    >>> from attsvm.validation.ledger.audit import all_claims
    >>> from attsvm.validation.ledger.ledger_pages import wrong_markdown
    >>> "holds |" in wrong_markdown(all_claims(["svm"]))
    False
    """
    main = [claim for claim in claims if claim.verdict.refuted and not claim.reading.same_as]
    lines = [_WRONG_PAGE, *(f"- {title}: {LINKS[paper]}" for paper, title in PAPERS.items()), ""]
    for weight in WEIGHTS:
        rows = [claim for claim in main if (claim.reading.weight or "slip") == weight]
        if not rows:
            continue
        lines += [f"## {_HEADINGS[weight]}", ""]
        for paper, title in PAPERS.items():
            own = [claim for claim in rows if claim.paper == paper]
            if not own:
                continue
            cells = [_correction(claim, claims) for claim in own]
            columns = ("id", "where", "verdict", "printed", "what holds instead", "evidence")
            lines += [f"### {title}", "", Table(title, columns, cells).markdown(), ""]
    return "\n".join(lines)


def readings_markdown(claims: Sequence[Claim]) -> str:
    """The page of the second reading: every accusation of the first one, before and after.

    Examples
    --------
    >>> from attsvm.validation.ledger.audit import all_claims
    >>> from attsvm.validation.ledger.ledger_pages import readings_markdown
    >>> readings_markdown(all_claims(["polarization"])).startswith("# The second reading")
    True
    """
    rows = [claim for claim in claims if claim.reading.before]
    kept = [c for c in rows if c.verdict is Verdict.FAILS]
    counts = Counter(str(c.verdict) for c in rows)
    same = sum(bool(c.reading.same_as) for c in kept)
    lines = [_READINGS_PAGE.format_map(counts + Counter(all=len(rows), kept=len(kept), same=same))]
    columns = ("id", "before", "after", "why", "the paper's words")
    for paper, title in PAPERS.items():
        own = [c for c in rows if c.paper == paper]
        if not own:
            continue
        cells = []
        for c in own:
            after = str(c.verdict) + (f", counted with {c.reading.same_as}" if c.reading.same_as else "")
            if c.verdict is Verdict.HOLDS:
                after = "withdrawn: " + after
            cells.append((c.id, c.reading.before, after, c.reading.why, f"{c.source}: {c.reading.quote}"))
        lines += [f"## {title}", "", LINKS[paper], "", Table(title, columns, cells).markdown(), ""]
    return "\n".join(lines)
