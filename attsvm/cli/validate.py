"""The command ``attsvm validate``: figures of the papers."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["list_figures", "run_validate"]


def list_figures() -> list[tuple[str, str, str]]:
    """Paper, name and title of every figure.

    Examples
    --------
    >>> from attsvm.cli.validate import list_figures
    >>> ("svm", "fig5/fig2") in [row[:2] for row in list_figures()]
    True
    """
    from attsvm.validation.figures.registry import PAPERS, all_figures

    return [(p, "/".join((f.name, *f.aliases)), f.title) for p in PAPERS for f in all_figures(p)]


def run_validate(
    names: Sequence[str],
    *,
    everything: bool = False,
    trials: int | None = None,
    seed: int = 0,
    quick: bool = False,
    out: Path | None = None,
    device: str | None = None,
    workers: int | None = None,
    fresh: bool = False,
    quiet: bool = False,
    as_json: bool = False,
) -> list[dict[str, Any]]:
    """Run the named figures, print their tables, and write records, pictures and a summary."""
    from attsvm.validation.figures.output import print_outcome
    from attsvm.validation.figures.registry import choose_figures
    from attsvm.validation.figures.run import run_figures

    figures = choose_figures(names, everything)
    quiet = quiet or as_json
    folder = out or Path("validation-results") / ("quick" if quick else "full")
    console = Console(soft_wrap=True, highlight=False)
    if not console.is_terminal:
        console = Console(soft_wrap=True, highlight=False, width=170)  # tables in a file are not squeezed
    start = time.perf_counter()
    with _progress(quiet) as bars:
        shown: dict[str, Any] = {}

        def progress(label: str, finished: int, total: int) -> None:
            key = f"{current[0]} {label}"
            if key not in shown:
                shown[key] = bars.add_task(key, total=total)
            bars.update(shown[key], completed=finished, total=total)

        def report(figure: Any, record: dict[str, Any]) -> None:
            for task in shown.values():
                bars.remove_task(task)
            shown.clear()
            if not quiet:
                print_outcome(console, figure, record)
            done = 1 + order.index((figure.paper, figure.name))
            if done < len(order):
                current[0] = " ".join(order[done])

        order = [(figure.paper, figure.name) for figure in figures]
        current = [" ".join(order[0])]
        records = run_figures(
            figures,
            folder,
            workers=workers,
            report=report,
            quick=quick,
            trials=trials,
            seed=seed,
            device=device,
            progress=progress,
            fresh=fresh,
            command=shlex.join(["attsvm", *sys.argv[1:]]),
        )
    if not quiet:
        console.print(f"\n{len(records)} figures in {time.perf_counter() - start:.1f} s; "
                      f"summary: {folder / 'summary.html'}, {folder / 'summary.md'}", markup=False)  # fmt: skip
    if as_json:
        print(json.dumps(records, indent=1))
    return records


def _progress(quiet: bool) -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=quiet)
