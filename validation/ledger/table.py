"""The ledger as tables: for the terminal, as records, and as a page of the documentation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attsvm.records import Table, plain
from attsvm.validation.figures.registry import PAPERS
from attsvm.validation.ledger.record import Claim, Verdict
from attsvm.validation.ledger.run import Audit

__all__ = ["claim_record", "claims_markdown", "wrong_markdown"]


def claim_record(claim: Claim, audit: Audit | None = None) -> dict[str, Any]:
    """A claim, and its audit if it was run, as plain data.

    Examples
    --------
    >>> from attsvm.validation.ledger.run import all_claims
    >>> from attsvm.validation.ledger.table import claim_record
    >>> claim_record(all_claims(["svm"])[0])["paper"]
    'svm'
    """
    names = ("id", "paper", "source", "statement", "verdict", "correction", "evidence", "reason")
    record = {name: plain(getattr(claim, name)) for name in names} | {"has_check": claim.measure is not None}
    if audit is not None:
        record |= {
            "printed": str(audit.printed) if audit.printed else None,
            "corrected": str(audit.corrected) if audit.corrected else None,
            "agrees": audit.agrees,
            "seconds": audit.seconds,
        }
    return record


def claims_markdown(claims: Sequence[Claim]) -> str:
    """The page of the documentation: one table per paper.

    Examples
    --------
    >>> from attsvm.validation.ledger.run import all_claims
    >>> from attsvm.validation.ledger.table import claims_markdown
    >>> claims_markdown(all_claims(["svm"])).startswith("# What of the papers holds")
    True
    """
    lines = ["# What of the papers holds", ""]
    lines += [
        "Every row is a record of `attsvm.validation.ledger` with a check that measures it on random instances;",
        "`attsvm claims --run` runs the checks again and compares. *Holds* means that no instance contradicted the",
        "statement, which is evidence, not a proof. This page is written by `attsvm claims --markdown`.",
        "",
    ]
    for paper, title in PAPERS.items():
        rows = [claim for claim in claims if claim.paper == paper]
        if not rows:
            continue
        tally = ", ".join(f"{sum(c.verdict is v for c in rows)} {v}" for v in Verdict)
        lines += [f"## {title}", "", f"{len(rows)} claims: {tally}.", ""]
        columns = ("id", "where", "statement", "verdict", "corrected or sharper form", "evidence")
        cells = [
            (c.id.split(":", 1)[1], c.source, c.statement, c.verdict, c.correction, c.evidence or c.reason)
            for c in rows
        ]
        lines += [Table(title, columns, cells).markdown(), ""]
    return "\n".join(lines)


def wrong_markdown(claims: Sequence[Claim]) -> str:
    """The page *What the papers got wrong*: refuted statements and slips, each with its corrected form.

    Examples
    --------
    >>> from attsvm.validation.ledger.run import all_claims
    >>> from attsvm.validation.ledger.table import wrong_markdown
    >>> "holds |" in wrong_markdown(all_claims(["svm"]))
    False
    """
    lines = [
        "# What the papers got wrong",
        "",
        "Refuted by the checks of the [ledger](claims.md), with the form that survives them. Slips of the pen come",
        "after each paper's errors. This page is written by `attsvm claims --wrong`.",
        "",
    ]
    for paper, title in PAPERS.items():
        for verdict, heading in ((Verdict.FAILS, "Fails as printed"), (Verdict.TYPO, "Slips")):
            rows = [claim for claim in claims if claim.paper == paper and claim.verdict is verdict]
            if not rows:
                continue
            columns = ("id", "where", "printed", "what holds instead", "evidence")
            cells = [(c.id, c.source, c.statement, c.correction, c.evidence) for c in rows]
            lines += [f"## {title}: {heading.lower()}", "", Table(title, columns, cells).markdown(), ""]
    return "\n".join(lines)
