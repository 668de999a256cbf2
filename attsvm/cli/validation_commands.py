"""The command ``attsvm bench``: speed against named peers.

The command ``attsvm claims``: which statements of the papers hold.

The command ``attsvm validate``: figures of the papers, and checks of our own.
"""

from __future__ import annotations

import os
import shlex
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attsvm._lazy import need
from attsvm.cli.command_support import Debug, Json, Seed

if TYPE_CHECKING:
    from attsvm.validation.bench.cases import Case
    from attsvm.validation.ledger.claim_record import Claim
    from attsvm.validation.ledger.mutate import Mutation


def bench_command(
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="CASE", help="Run this case only, also one that takes minutes; repeatable."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out what takes more than seconds a draw.")] = False,
    listing: Annotated[bool, typer.Option("--list", help="List the cases and exit.")] = False,
    draws: Annotated[int, typer.Option(min=1, help="Problems per case, whose median is judged.")] = 10,
    seed: Seed = 0,
    plot: Annotated[Path | None, typer.Option(help="Draw the case growth, time against size.")] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure the solvers and training against their peers, as ratios on this machine. Exit code 1 if a goal is missed.

    \b
    Example: attsvm bench --only fro-tiny --draws 1
    """  # noqa: D301
    from attsvm.records import console, environment
    from attsvm.validation.bench.cases import CASES
    from attsvm.validation.bench.measurement import as_record, as_table, as_verdicts, draw_growth, missed

    names = [case.name for case in CASES]
    if listing:
        typer.echo("\n".join(names))
        return
    if plot is not None and (quick or "growth" not in (only or names)):
        raise ValueError("--plot draws the case growth: run it, too (no --quick; --only growth, or no --only)")
    report = partial(console(stderr=True).print, markup=False)  # a message may hold brackets
    begin = time.perf_counter()
    results = []
    for case in _chosen(CASES, only or [], quick):
        results.append(case.run(seed, draws, report))
        for line in results[-1].lines:
            if line.note:
                report(f"{case.name}: {line.name}: {line.note}")
        if case.name == "growth" and plot is not None:
            draw_growth(plot, results[-1])
    failed = missed(results)
    seconds = time.perf_counter() - begin
    if json:
        record = {"seed": seed, "draws": draws, "environment": environment(), "cores": os.cpu_count()}
        typer.echo(dumps(record | {"seconds": seconds, "missed": failed, "cases": as_record(results)}, indent=2))
    else:
        out = console()
        out.print(as_table(results))
        facts = f"{seconds:.0f} s in all, {draws} draws; {os.cpu_count()} cores; {environment()}"
        for told in (*as_verdicts(results), facts):
            out.print(told, markup=False)
    if failed:
        raise typer.Exit(1)


def _chosen(cases: Sequence[Case], only: list[str], quick: bool) -> list[Case]:
    names = [case.name for case in cases]
    for name in only:
        if name not in names:
            raise ValueError(f"--only must be one of {', '.join(names)}, got {name}")
    return [case for case in cases if (case.name in only if only else not (case.opt_in or (quick and case.slow)))]


def claims_command(
    ids: Annotated[
        list[str] | None, typer.Argument(help="Claims by id (svm:thm4) or by item ('svm:Theorem 4'); default: all.")
    ] = None,
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
    pages: Annotated[
        Path | None, typer.Option(metavar="FOLDER", hidden=True, help="Write the documentation's pages there.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Which statements of the papers hold. Exit code 1 if a check does not confirm it.

    \b
    Example: attsvm claims svm:thm1 --run && attsvm claims "svm:Theorem 4"
    """  # noqa: D301
    from attsvm.validation.ledger.audit import find_claims

    if run:
        need("--run", "torch")
    wanted, told = _without_answered(ids or [])
    if told and not wanted:
        return
    claims = find_claims(wanted, paper)
    if pages is not None:
        _write_pages(claims, pages)
        return
    if quotes is not None:
        unconfirmed = _quotes(claims, quotes, json)
    elif mutate:
        unconfirmed = _mutate(claims, seed, trials, json)
    elif run and (seeds > 1 or store != ":memory:"):
        unconfirmed = _seeds(claims, range(seed, seed + seeds), trials, store, workers, fresh, json)
    else:
        unconfirmed = _once(claims, run, seed, trials, json, full=bool(wanted))
    if unconfirmed:
        raise typer.Exit(1)


def _without_answered(ids: list[str]) -> tuple[list[str], bool]:
    """Print what there is to say of items without a claim: the other ids, and whether something was printed."""
    from attsvm.validation.ledger.ledger_pages import item_text

    told = {name: text for name in ids if (text := item_text(name))}
    for text in told.values():
        typer.echo(text)
    return [name for name in ids if name not in told], bool(told)


def _write_pages(claims: list[Claim], folder: Path) -> None:
    from attsvm.records import atomic_write
    from attsvm.validation.ledger.ledger_pages import ledger_pages

    if not folder.is_dir():
        raise ValueError(f"--pages must be a folder, got {folder}")
    for name, text in ledger_pages(claims).items():
        with atomic_write(folder / name) as page:
            page.write(text.encode())


def _quotes(claims: list[Claim], folder: Path, json: bool) -> list[str]:
    """Quotations that are not printed, or whose paper has no text in the folder: nothing is left out silently."""
    from dataclasses import asdict

    from attsvm.cli.command_support import print_json
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
        f"{counts['printed']} of {len(found)} quotations appear in the papers as quoted, up to spaces and formulas; "
        f"{counts['NOT printed']} do not; {counts['no text']} have no text to compare with; {counts['formula']} are "
        f"formulas, which are not compared; {counts['not looked for']} are of abstracts, which are not looked for.",
        style="bold", markup=False,
    )  # fmt: skip
    if bad:
        screen.print(
            Table("", ("claim", "outcome", "words"), [(b.claim, b.outcome, b.missing) for b in bad], align="LLl")
        )
    return [item.claim for item in bad]


def _once(
    claims: list[Claim], run: bool, seed: int, trials: int | None, json: bool, *, full: bool = False
) -> list[str]:
    """List claims, in full where they were named, and measure them again if wanted."""
    from rich.progress import track

    from attsvm.cli.command_support import print_json
    from attsvm.records import console
    from attsvm.validation.ledger.audit import audit
    from attsvm.validation.ledger.ledger_pages import claim_record, claim_text

    bar = track(claims, "checking", console=console(stderr=True), transient=True, disable=json or not run)
    records = [claim_record(claim, audit(claim, seed, trials) if run else None) for claim in bar]
    unconfirmed = [record["id"] for record in records if not record.get("agrees", True)]
    if json:
        print_json(records)
        return unconfirmed
    screen = console()
    if full and not run:
        corrected_first = sorted(claims, key=lambda claim: not claim.verdict.refuted)
        print("\n\n".join(claim_text(claim) for claim in corrected_first))
        return unconfirmed
    screen.print(_table(records, run))
    if run:
        seconds = sum(record["seconds"] for record in records)
        verdict = f"NOT confirmed: {', '.join(unconfirmed)}" if unconfirmed else "every stored verdict confirmed"
        screen.print(f"{len(records)} claims, {seconds:.0f} s of processor time, seed {seed}: {verdict}", markup=False)
    return unconfirmed


def _seeds(
    claims: list[Claim], seeds: range, trials: int | None, store: str, workers: int, fresh: bool, json: bool
) -> list[str]:
    from dataclasses import asdict

    from attsvm.cli.command_support import print_json
    from attsvm.records import Table, console
    from attsvm.validation.ledger.audit import audit_seeds

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
        f"{sum(run.seconds for run in runs):.0f} s of processor time, {time.perf_counter() - start:.0f} s now",
        markup=False,
    )
    return [run.claim for run in bad]


def _mutate(claims: list[Claim], seed: int, trials: int | None, json: bool) -> list[str]:
    from dataclasses import asdict

    from rich.progress import track

    from attsvm.cli.command_support import print_json
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

    columns = ("id", "verdict", "answer", *(("measured", "agrees") if run else ("corrected or sharper form",)))
    rows: list[tuple[object, ...]] = []
    for record in records:
        shown = (record["id"], record["verdict"], record["answer"] or record["statement"])
        if not run:
            rows.append((*shown, record["correction"]))
            continue
        printed = record["printed"] or f"no check: {record['reason']}"
        measured = f"printed {printed}; corrected {record['corrected']}" if record["corrected"] else printed
        rows += [(*shown, measured, "yes" if record["agrees"] else "NO"), ()]
    return Table("", columns, rows, align="LLllL"[: len(columns)])


def validate_command(
    figures: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every figure of the named papers (default: svm).")] = False,
    listing: Annotated[bool, typer.Option("--list", help="List the figures and exit.")] = False,
    trials: Annotated[int | None, typer.Option(help="Trials instead of the paper's number.")] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Another setting, as in the record; repeatable."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File of a study that reads one (setting 'data').")
    ] = None,
    seed: Seed = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Small settings, seconds per figure.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of results [validation-results/full or /quick].")] = None,
    device: Annotated[str | None, typer.Option(help="Torch device of training.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; 0 computes in this one [one per core].")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard stored results first.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Write files only.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the records instead of tables.")] = False,
    judge: Annotated[
        bool,
        typer.Option("--judge-pictures", hidden=True, help="Exit code 1 if a picture is empty or its texts overlap."),
    ] = False,
    debug: Debug = False,
) -> None:
    """Reproduce figures: tables, JSON, pictures. Stopped runs resume. Exit code 1 if one is refuted.

    A paper's name (or own: checks of our own) stands before its figures; svm is understood.

    \b
    Example: attsvm validate --list && attsvm validate fig5 --quick
    """  # noqa: D301
    from rich.progress import BarColumn, MofNCompleteColumn, TaskID

    from attsvm.cli.command_support import close, print_json, progress_bar
    from attsvm.records import console
    from attsvm.validation.figures.figure import (
        GROUPS,
        Figure,
        Options,
        choose_figures,
        figure_titles,
        print_record,
        read_settings,
        run_figures,
    )

    if listing:
        for group in GROUPS:
            for names, title in figure_titles(group):
                _echo(f"{group:15s} {names:14s} {title}")
        return
    chosen = choose_figures(figures or [], everything)
    settings = read_settings(change or []) | ({} if data is None else {"data": str(data)})
    words = shlex.join(["attsvm", *sys.argv[1:]])
    options = Options(quick, trials, seed, device, workers, fresh, words, settings)
    folder = out or Path("validation-results") / ("quick" if quick else "full")
    silent = quiet or json
    screen = console(width=170)
    start = time.perf_counter()
    with progress_bar(silent, BarColumn(), MofNCompleteColumn()) as bars:
        shown: dict[str, TaskID] = {}

        def progress(label: str, finished: int, total: int) -> None:
            if label not in shown:
                shown[label] = bars.add_task(label, total=total)
            bars.update(shown[label], completed=finished, total=total)

        def report(figure: Figure, record: dict[str, Any]) -> None:
            while shown:
                bars.remove_task(shown.popitem()[1])
            if not silent:
                print_record(screen, record)

        records = run_figures(chosen, folder, options, report=report, progress=progress)
    if not silent:
        screen.print(f"\n{len(records)} figure{'s' * (len(records) != 1)} in {time.perf_counter() - start:.1f} s; "
                     f"summary: {folder / 'summary.html'}, {folder / 'summary.md'}", markup=False)  # fmt: skip
        close(screen, ("± and [ , ]", "NOT confirmed"), f"open {folder / 'summary.html'}", "attsvm validate --list")
    if json:
        print_json(records)
    if any(_fails(record, judge) for record in records):
        raise typer.Exit(1)


def _echo(line: str) -> None:
    """A line of a list; on a terminal what does not fit goes on under the second column."""
    from attsvm.records import console

    screen = console()
    width = screen.width if screen.is_terminal else len(line) + 1
    for part in textwrap.wrap(line, width, subsequent_indent=" " * 16, break_long_words=False, break_on_hyphens=False):
        typer.echo(part)


def _fails(record: dict[str, Any], judge: bool) -> bool:
    return bool(record.get("refuted")) or (judge and bool(record["picture_faults"]))
