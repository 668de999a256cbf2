"""The command ``attsvm validate``: figures of the papers, and checks of our own."""

from __future__ import annotations

import shlex
import sys
import textwrap
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from attsvm.cli.arguments import Debug, Seed

__all__ = ["command"]


def command(
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

    from attsvm.cli.frame import close
    from attsvm.cli.support import print_json, progress_bar
    from attsvm.records import console
    from attsvm.validation.figures.framework import Figure, Options, read_settings
    from attsvm.validation.figures.output import print_record
    from attsvm.validation.figures.registry import GROUPS, choose_figures, figure_titles
    from attsvm.validation.figures.run import run_figures

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
        screen.print(f"\n{len(records)} figures in {time.perf_counter() - start:.1f} s; "
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
