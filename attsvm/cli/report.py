"""The command ``attsvm report``: everything about a problem on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attsvm.cli.arguments import Debug, Device, File, Index, Quiet, Seed, Tokens

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

    \b
    Example: attsvm report problem.npz -o report.html --steps 500
    """  # noqa: D301
    from rich.progress import BarColumn

    from attsvm.cli.frame import close, open_with
    from attsvm.cli.support import check_device, check_out, open_problem, progress_bar, read_tokens
    from attsvm.records import console
    from attsvm.reports import build_content, write_page
    from attsvm.reports.verdict import page_verdict

    check_out("--out", out)
    check_device(device)
    read = open_problem(file, index)
    chosen = read_tokens(selection, read)
    with progress_bar(quiet, BarColumn()) as bar:
        task = bar.add_task("reading", total=None)
        content = build_content(
            read.problem, selection=chosen, steps=steps, seed=seed, device=device, graph_limit=graph_limit,
            name=str(file),
            progress=lambda label, done, total: bar.update(task, description=label, completed=done, total=total),
        )  # fmt: skip
        write_page(out, content)
    if not quiet:
        screen = console()
        open_with(screen, page_verdict(content))
        screen.print(f"wrote {out} ({out.stat().st_size // 1024} KiB); open it in a browser", markup=False)
        close(screen, (), f"attsvm enumerate {file} --top 5")
