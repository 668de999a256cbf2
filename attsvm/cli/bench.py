"""The command ``attsvm bench``: speed against named peers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attsvm.cli.arguments import Debug, Json, Seed

__all__ = ["command"]


def command(
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="CASE", help="Run this case only; repeatable.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out what takes more than seconds.")] = False,
    listing: Annotated[bool, typer.Option("--list", help="List the cases and exit.")] = False,
    seed: Seed = 0,
    plot: Annotated[Path | None, typer.Option(help="Draw time against size.")] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure the solvers and training against their peers, as ratios of one run on this machine.

    \b
    Example: attsvm bench --only fro-tiny
    """  # noqa: D301
    from attsvm.validation.bench.__main__ import EXTRA, main
    from attsvm.validation.bench.cases import CASES

    names = [*(case.name for case in CASES), *EXTRA]
    if listing:
        for name in names:
            typer.echo(name)
        return
    for name in only or []:
        if name not in names:
            raise ValueError(f"--only must be one of {', '.join(names)}, got {name}")
    arguments = ["--seed", str(seed)]
    if only:
        arguments += ["--only", *only]
    arguments += [flag for flag, wanted in (("--quick", quick), ("--json", json)) if wanted]
    if plot is not None:
        arguments += ["--plot", str(plot)]
    main(arguments)
