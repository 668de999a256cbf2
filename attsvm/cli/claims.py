"""The command ``attsvm claims``: the ledger of what the papers say and what of it holds."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attsvm._lazy import need
from attsvm.cli.arguments import Debug

if TYPE_CHECKING:
    from attsvm.validation.ledger.mutate import Mutation
    from attsvm.validation.ledger.record import Claim

__all__ = ["command"]


def command(
    ids: Annotated[list[str] | None, typer.Argument(help="Claims by id, or by how ids begin (default: all).")] = None,
    paper: Annotated[list[str] | None, typer.Option(help="svm, conditioning, polarization, ... (repeatable).")] = None,
    run: Annotated[bool, typer.Option("--run", help="Measure again and compare with the stored verdicts.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the random instances; the first of several.")] = 0,
    seeds: Annotated[int, typer.Option(help="With --run: number of seeds.", min=1)] = 1,
    store: Annotated[str, typer.Option(help="With --seeds: file that keeps finished checks.")] = ":memory:",
    workers: Annotated[int, typer.Option(help="With --seeds: processes (0: this one).", min=0)] = 0,
    fresh: Annotated[bool, typer.Option("--fresh", help="With --store: discard what it holds.")] = False,
    trials: Annotated[int | None, typer.Option(help="Instances per check instead of each claim's own number.")] = None,
    mutate: Annotated[bool, typer.Option("--mutate", help="Try wrong forms on the checks; the share caught.")] = False,
    quotes: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Compare quotations with the papers' texts (.txt) there.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print records.")] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", hidden=True, help="Print the documentation's page of all claims.")
    ] = False,
    wrong: Annotated[
        bool, typer.Option("--wrong", hidden=True, help="Print the page of what needs a correction.")
    ] = False,
    readings: Annotated[
        bool, typer.Option("--readings", hidden=True, help="Print the page of the second reading.")
    ] = False,
    coverage: Annotated[
        bool, typer.Option("--coverage", hidden=True, help="Print the page of the papers' numbered items.")
    ] = False,
    debug: Debug = False,
) -> None:
    """What the papers claim and what of it holds. Exit code 1 if a check does not confirm it.

    \b
    Example: attsvm claims svm:thm1 --run
    """  # noqa: D301
    from attsvm.validation.ledger.run import find_claims

    if run:
        need("--run", "torch")
    claims = find_claims(ids or [], paper)
    if markdown or wrong or readings or coverage:
        print(_page(claims, wrong=wrong, readings=readings, coverage=coverage))
        return
    if quotes is not None:
        unconfirmed = _quotes(claims, quotes, json)
    elif mutate:
        unconfirmed = _mutate(claims, seed, trials, json)
    elif run and (seeds > 1 or store != ":memory:"):
        unconfirmed = _seeds(claims, range(seed, seed + seeds), trials, store, workers, fresh, json)
    else:
        unconfirmed = _once(claims, run, seed, trials, json)
    if unconfirmed:
        raise typer.Exit(1)


def _page(claims: list[Claim], *, wrong: bool, readings: bool, coverage: bool) -> str:
    from attsvm.validation.ledger import table
    from attsvm.validation.ledger.coverage import coverage_markdown

    if coverage:
        return coverage_markdown(claims)
    if readings:
        return table.readings_markdown(claims)
    return table.wrong_markdown(claims) if wrong else table.claims_markdown(claims)


def _quotes(claims: list[Claim], folder: Path, json: bool) -> list[str]:
    """Quotations that are not printed, or whose paper has no text in the folder: nothing is left out silently."""
    from dataclasses import asdict

    from attsvm.cli.support import print_json
    from attsvm.records import Table, console
    from attsvm.validation.ledger.quotations import check_quotations

    if not folder.is_dir():
        raise ValueError(f"--quotes must be a folder of the papers' texts, got {folder}")
    found = check_quotations(claims, folder)
    bad = [item for item in found if item.outcome in ("NOT printed", "no text")]
    if json:
        print_json([asdict(item) for item in found])
        return [item.claim for item in bad]
    screen = console()
    counts = Counter(item.outcome for item in found)
    screen.print(
        f"{counts['printed']} of {len(found)} quotations stand in the papers as quoted, up to spaces and formulas; "
        f"{counts['NOT printed']} do not; {counts['no text']} have no text to compare with; {counts['formula']} are "
        f"formulas, which are not compared; {counts['not looked for']} are of abstracts, which are not looked for.",
        style="bold", markup=False,
    )  # fmt: skip
    if bad:
        screen.print(
            Table("", ("claim", "outcome", "words"), [(b.claim, b.outcome, b.missing) for b in bad], align="LLl")
        )
    return [item.claim for item in bad]


def _once(claims: list[Claim], run: bool, seed: int, trials: int | None, json: bool) -> list[str]:
    from rich.progress import track

    from attsvm.cli.support import print_json
    from attsvm.records import console
    from attsvm.validation.ledger.run import audit
    from attsvm.validation.ledger.table import claim_record

    bar = track(claims, "checking", console=console(stderr=True), transient=True, disable=json or not run)
    records = [claim_record(claim, audit(claim, seed, trials) if run else None) for claim in bar]
    unconfirmed = [record["id"] for record in records if not record.get("agrees", True)]
    if json:
        print_json(records)
        return unconfirmed
    screen = console()
    screen.print(_table(records, run))
    if run:
        seconds = sum(record["seconds"] for record in records)
        verdict = f"NOT confirmed: {', '.join(unconfirmed)}" if unconfirmed else "every stored verdict confirmed"
        screen.print(f"{len(records)} claims in {seconds:.0f} s, seed {seed}: {verdict}", markup=False)
    return unconfirmed


def _seeds(
    claims: list[Claim], seeds: range, trials: int | None, store: str, workers: int, fresh: bool, json: bool
) -> list[str]:
    from dataclasses import asdict

    from attsvm.cli.support import print_json
    from attsvm.records import Table, console
    from attsvm.validation.ledger.seeds import audit_seeds

    start, screen = time.perf_counter(), console()
    note = console(stderr=True)

    def progress(finished: int, total: int) -> None:
        if finished % 100 == 0 or finished == total:
            note.print(f"{finished} of {total} checks, {time.perf_counter() - start:.0f} s", markup=False)

    runs = audit_seeds(claims, seeds, trials=trials, store=store, workers=workers, fresh=fresh, progress=progress)
    bad = [run for run in runs if not run.agrees]
    if json:
        print_json([asdict(run) for run in runs])
        return [run.claim for run in bad]
    if bad:
        screen.print(Table("", ("claim", "seed", "found"), [(r.claim, r.seed, r.found) for r in bad], align="lll"))
    checked = len({run.claim for run in runs})
    screen.print(
        f"{checked} claims at seeds {seeds.start} to {seeds.stop - 1}: {len(bad)} contradictions in {len(runs)} "
        "checks; "
        f"{sum(run.seconds for run in runs):.0f} s of computation, {time.perf_counter() - start:.0f} s now",
        markup=False,
    )
    return [run.claim for run in bad]


def _mutate(claims: list[Claim], seed: int, trials: int | None, json: bool) -> list[str]:
    from dataclasses import asdict

    from rich.progress import track

    from attsvm.cli.support import print_json
    from attsvm.records import console
    from attsvm.validation.ledger.mutate import mutations

    bar = track(claims, "mutating", console=console(stderr=True), transient=True, disable=json)
    found = [mutation for claim in bar for mutation in mutations(claim, seed, trials)]
    unexplained = [m.claim for m in found if not m.caught and not m.reason]
    if json:
        print_json([asdict(mutation) for mutation in found])
    else:
        _show_mutations(console(), list(dict.fromkeys(claim.paper for claim in claims)), found)
    return unexplained


def _show_mutations(screen: Any, papers: list[str], found: list[Mutation]) -> None:
    from attsvm.records import Table
    from attsvm.validation.ledger.mutate import shares

    def row(name: str, chosen: list[Mutation]) -> tuple[object, ...]:
        cells: list[object] = [name]
        for kind in (True, False):
            caught, total = shares([m for m in chosen if m.scaled is kind])
            cells.append(f"{caught} of {total}" + (f" ({caught / total:.0%})" if total else ""))
        return (*cells, sum(m.scaled and m.invariant and not m.caught for m in chosen))

    rows = [row(name, [m for m in found if m.claim.startswith(f"{name}:")]) for name in papers]
    left = [(m.claim, m.name, m.reason or "NO REASON KNOWN", m.how) for m in found if not m.caught and not m.invariant]
    if left:
        screen.print(Table("Survivors", ("claim", "variant", "why", "measured"), left, align="llll"))
    columns = ("paper", "off by 10 %, caught", "slips, caught", "scale-invariant")
    screen.print(Table("Variants caught", columns, [*rows, row("all", found)], align="llll"))


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
