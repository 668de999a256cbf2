"""Run figures one after the other with shared workers, and write what they found."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from attsvm.sweeps.run import process_pool
from attsvm.validation.figures.framework import Context, Figure
from attsvm.validation.figures.output import record_of, write_json, write_picture, write_summary
from attsvm.validation.figures.registry import PAPERS, all_figures

__all__ = ["run_figure", "run_figures"]


def run_figure(
    figure: Figure,
    folder: str | Path,
    *,
    quick: bool = False,
    trials: int | None = None,
    seed: int = 0,
    device: str | None = None,
    executor: Any = None,
    workers: int | None = 0,
    progress: Callable[[str, int, int], None] | None = None,
    fresh: bool = False,
    command: str = "attsvm.validation.figures.run_figure",
) -> dict[str, Any]:
    """Compute one figure, or resume it, and write its store, JSON and picture into a folder.

    Examples
    --------
    >>> import tempfile
    >>> from attsvm.validation.figures.registry import choose_figures
    >>> from attsvm.validation.figures.run import run_figure
    >>> record = run_figure(choose_figures(["fig1"])[0], tempfile.mkdtemp(), quick=True)
    >>> record["figure"], record["seed"]
    ('fig1', 0)
    """
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    stem = f"{figure.paper}_{figure.name}"
    context = Context(
        settings=figure.settings(quick, trials),
        seed=seed,
        device=device,
        store=out / f"{stem}.sqlite",
        executor=executor,
        workers=workers,
        progress=progress,
        fresh=fresh,
    )
    start = time.perf_counter()
    outcome = figure.run(context)
    record = record_of(
        figure,
        outcome,
        settings=context.settings,
        seed=seed,
        device=device,
        command=command,
        seconds=time.perf_counter() - start,
        computed_seconds=sum(context.seconds),
        resumed_chunks=sum(context.resumed),
    )
    write_json(out / f"{stem}.json", record)
    write_picture(out / f"{stem}.png", figure, outcome)
    return record


def run_figures(
    figures: Sequence[Figure],
    folder: str | Path,
    *,
    workers: int | None = None,
    report: Callable[[Figure, dict[str, Any]], None] | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Several figures on one pool of processes, and a summary of them all.

    Parameters
    ----------
    figures : sequence of Figure
    folder : str or Path
    workers : int, optional
        Processes (default: one per core); 0 computes here.
    report : callable, optional
        Called with each figure and its record as soon as it is done.
    **options
        As for :func:`run_figure`.

    Examples
    --------
    >>> import tempfile
    >>> from attsvm.validation.figures.registry import choose_figures
    >>> from attsvm.validation.figures.run import run_figures
    >>> records = run_figures(choose_figures(["fig1"]), tempfile.mkdtemp(), workers=0, quick=True)
    >>> len(records)
    1
    """
    records = []
    pool: AbstractContextManager[Executor | None] = nullcontext() if workers == 0 else process_pool(workers)
    with pool as executor:
        for figure in figures:
            record = run_figure(figure, folder, executor=executor, workers=0, **options)
            records.append(record)
            if report is not None:
                report(figure, record)
            write_summary(Path(folder), _records_in(Path(folder)))
    return records


def _records_in(folder: Path) -> list[dict[str, Any]]:
    """Every record of the folder, also of earlier commands, in the order of papers and figures."""
    order = {(f.paper, f.name): k for k, f in enumerate(f for paper in PAPERS for f in all_figures(paper))}
    found = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*_*.json")]
    return sorted(found, key=lambda r: order.get((r["paper"], r["figure"]), len(order)))
