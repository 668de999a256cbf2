"""The command ``attsvm report``: everything about a problem on one page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attsvm.cli.arguments import Debug, Device, File, Index, Quiet, Seed, Tokens

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["command"]


def command(
    file: File,
    out: Annotated[Path, typer.Option("--out", "-o", help="Page to write.")] = Path("report.html"),
    steps: Annotated[int, typer.Option(help="Training steps of W and of (K, Q); 0 leaves training out.")] = 5000,
    selection: Tokens = None,
    seed: Seed = 0,
    device: Device = None,
    index: Index = None,
    graph_limit: Annotated[int, typer.Option(help="Most selections for the graph of local optima.")] = 3000,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write one HTML page: data, diagnosis, solutions, training to scrub through, local optima.

    A batch gets a page that leads to one page per problem, report-0.html, report-1.html, ...

    \b
    Example: attsvm report problem.npz -o report.html --steps 500
    """  # noqa: D301
    from rich.progress import BarColumn

    from attsvm.cli.frame import close, open_with
    from attsvm.cli.support import check_device, check_out, each_problem, progress_bar, read_tokens
    from attsvm.records import console
    from attsvm.reports import build_content, overview_record, page_of, write_overview, write_page
    from attsvm.reports.overview import batch_page_verdict
    from attsvm.reports.verdict import page_verdict

    check_out("--out", out)
    check_device(device)
    problems = each_problem(file, index)
    many = len(problems) > 1
    records, verdict = [], ""
    with progress_bar(quiet, BarColumn()) as bar:
        task = bar.add_task("reading", total=None)
        for k, read in enumerate(problems):
            place = f"problem {k + 1} of {len(problems)}: " if many else ""
            content = build_content(
                read.problem, selection=read_tokens(selection, read), steps=steps, seed=seed, device=device,
                graph_limit=graph_limit, name=f"{file}, problem {k}" if many else str(file),
                progress=_progress(bar, task, place),
            )  # fmt: skip
            write_page(page_of(out, k) if many else out, content)
            records.append(overview_record(content))
            verdict = page_verdict(content)
        if many:
            write_overview(out, str(file), records)
            verdict = batch_page_verdict(records)
    if not quiet:
        screen = console()
        open_with(screen, verdict)
        beside = f", and {page_of(out, 0)} to {page_of(out, len(records) - 1)}" if many else ""
        screen.print(f"wrote {out} ({out.stat().st_size // 1024} KiB){beside}; open it in a browser", markup=False)
        close(screen, (), f"attsvm enumerate {file} --top 5")


def _progress(bar: Progress, task: TaskID, place: str) -> Callable[[str, int, int], object]:
    """Called with a label, the parts done and the number of parts."""
    return lambda label, done, total: bar.update(task, description=place + label, completed=done, total=total)
