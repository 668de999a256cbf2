"""The command ``attsvm claims``: the ledger of what the papers say and what of it holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

__all__ = ["run_claims"]


def run_claims(
    papers: Sequence[str],
    *,
    ids: Sequence[str] = (),
    run: bool = False,
    seed: int = 0,
    trials: int | None = None,
    as_json: bool = False,
    markdown: bool = False,
    wrong: bool = False,
) -> bool:
    """Print the ledger; with ``run`` measure every claim again. Returns whether all stored verdicts were confirmed."""
    from attsvm.validation.ledger.run import Audit, all_claims, audit
    from attsvm.validation.ledger.table import claim_record, claims_markdown, wrong_markdown

    claims = all_claims(papers or None)
    if ids:
        unknown = set(ids) - {claim.id for claim in claims}
        if unknown:
            raise ValueError(f"claims: no claim is called {', '.join(sorted(unknown))}; attsvm claims lists them all")
        claims = [claim for claim in claims if claim.id in ids]
    console = Console(soft_wrap=True, highlight=False)
    if markdown or wrong:
        print(wrong_markdown(claims) if wrong else claims_markdown(claims))
        return True
    audits: list[Audit | None] = [None] * len(claims)
    if run:
        bar = track(claims, "checking", console=Console(stderr=True), transient=True, disable=as_json)
        audits = [audit(claim, seed, trials) for claim in bar]
    agrees = all(result is None or result.agrees for result in audits)
    records = [claim_record(claim, result) for claim, result in zip(claims, audits, strict=True)]
    if as_json:
        print(json.dumps(records, indent=1))
        return agrees
    console.print(_table(records, run))
    if run:
        unconfirmed = [record["id"] for record in records if not record["agrees"]]
        seconds = sum(record["seconds"] for record in records)
        verdict = "every stored verdict confirmed" if not unconfirmed else f"NOT confirmed: {', '.join(unconfirmed)}"
        console.print(f"{len(records)} claims in {seconds:.0f} s, seed {seed}: {verdict}", markup=False)
    return agrees


def _table(records: list[dict[str, Any]], run: bool) -> Table:
    table = Table(show_lines=run)
    table.add_column("id", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("statement", ratio=3)
    table.add_column("measured" if run else "corrected or sharper form", ratio=2)
    if run:
        table.add_column("agrees", no_wrap=True)
    for record in records:
        cells = [record["id"], record["verdict"], record["statement"]]
        if run:
            printed = record["printed"] or f"no check: {record['reason']}"
            cells.append(printed if not record["corrected"] else f"printed {printed}; corrected {record['corrected']}")
            cells.append("yes" if record["agrees"] else "NO")
        else:
            cells.append(record["correction"])
        table.add_row(*(str(cell).replace("[", r"\[") for cell in cells))
    return table
