"""The command ``attsvm claims``: the ledger of what the papers say and what of it holds."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from attsvm.cli.arguments import Debug

__all__ = ["command"]


def command(
    ids: Annotated[list[str] | None, typer.Argument(help="Claims by id (default: all).")] = None,
    paper: Annotated[list[str] | None, typer.Option(help="svm, conditioning, polarization, ... (repeatable).")] = None,
    run: Annotated[bool, typer.Option("--run", help="Measure again and compare with the stored verdicts.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the random instances.")] = 0,
    trials: Annotated[int | None, typer.Option(help="Instances per check instead of each claim's own number.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print records.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the documentation's page of all claims.")] = False,
    wrong: Annotated[bool, typer.Option("--wrong", help="Print the page of what the papers got wrong.")] = False,
    debug: Debug = False,
) -> None:
    """What the papers claim and what of it holds, with checks that run again. Exit code 1 if one is not confirmed.

    \b
    Example: attsvm claims svm:thm1 --run
    """  # noqa: D301
    from rich.progress import track

    from attsvm.cli.support import print_json
    from attsvm.records import console
    from attsvm.validation.ledger.run import audit, find_claims
    from attsvm.validation.ledger.table import claim_record, claims_markdown, wrong_markdown

    claims = find_claims(ids or [], paper)
    if markdown or wrong:
        print(wrong_markdown(claims) if wrong else claims_markdown(claims))
        return
    bar = track(claims, "checking", console=console(stderr=True), transient=True, disable=json or not run)
    records = [claim_record(claim, audit(claim, seed, trials) if run else None) for claim in bar]
    unconfirmed = [record["id"] for record in records if not record.get("agrees", True)]
    if json:
        print_json(records)
    else:
        screen = console()
        screen.print(_table(records, run))
        if run:
            seconds = sum(record["seconds"] for record in records)
            verdict = f"NOT confirmed: {', '.join(unconfirmed)}" if unconfirmed else "every stored verdict confirmed"
            screen.print(f"{len(records)} claims in {seconds:.0f} s, seed {seed}: {verdict}", markup=False)
    if unconfirmed:
        raise typer.Exit(1)


def _table(records: list[dict[str, Any]], run: bool) -> Any:
    from attsvm.records import Table

    columns = ("id", "verdict", "statement", *(("measured", "agrees") if run else ("corrected or sharper form",)))
    rows: list[tuple[object, ...]] = []
    for record in records:
        shown = (record["id"], record["verdict"], record["statement"])
        if not run:
            rows.append((*shown, record["correction"]))
            continue
        printed = record["printed"] or f"no check: {record['reason']}"
        measured = f"printed {printed}; corrected {record['corrected']}" if record["corrected"] else printed
        rows += [(*shown, measured, "yes" if record["agrees"] else "NO"), ()]
    return Table("", columns, rows, align="LLllL"[: len(columns)])
