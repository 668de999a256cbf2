"""The command ``attsvm bench``: speed against named peers."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import partial
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attsvm.cli.arguments import Debug, Json, Seed

if TYPE_CHECKING:
    from attsvm.validation.bench.cases import Case

__all__ = ["command"]


def command(
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
    from attsvm.validation.bench.judge import missed
    from attsvm.validation.bench.show import as_record, as_table, as_verdicts, draw_growth

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
