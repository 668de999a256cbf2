"""Run figures one after the other with shared workers, and write what they found."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from attsvm.records import write_json
from attsvm.sweeps.run import process_pool
from attsvm.validation.figures.framework import DEFAULTS, Context, Figure, Options
from attsvm.validation.figures.output import record_of, write_picture, write_summary
from attsvm.validation.figures.registry import GROUPS, all_figures

__all__ = ["run_figure", "run_figures"]

Progress = Callable[[str, int, int], None]


def run_figure(
    figure: Figure,
    folder: str | Path,
    options: Options = DEFAULTS,
    *,
    executor: Any = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Compute one figure, or resume it, and write its store, JSON and picture into a folder.

    Examples
    --------
    >>> import tempfile
    >>> from attsvm.validation.figures.framework import Options
    >>> from attsvm.validation.figures.registry import choose_figures
    >>> from attsvm.validation.figures.run import run_figure
    >>> short = Options(quick=True, trials=1, change={"steps": 20, "marks": (10, 20)})
    >>> record = run_figure(choose_figures(["fig1"])[0], tempfile.mkdtemp(), short)
    >>> record["figure"], record["seed"]
    ('fig1', 0)
    """
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    stem = out / f"{figure.paper}_{figure.name}"

    def named(label: str, finished: int, total: int) -> None:
        if progress is not None:
            progress(f"{figure.paper} {figure.name} {label}", finished, total)

    context = Context(figure.settings(options), options, stem.with_suffix(".sqlite"), executor, named)
    start = time.perf_counter()
    outcome = figure.run(context)
    record = record_of(figure, outcome, context, time.perf_counter() - start)
    record["picture_faults"] = write_picture(stem.with_suffix(".png"), figure, outcome)
    write_json(stem.with_suffix(".json"), record)
    return record


def run_figures(
    figures: Sequence[Figure],
    folder: str | Path,
    options: Options = DEFAULTS,
    *,
    report: Callable[[Figure, dict[str, Any]], None] | None = None,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Several figures on one pool of processes, and a summary of them all.

    Parameters
    ----------
    figures : sequence of Figure
    folder : str or Path
    options : Options
    report : callable, optional
        Called with each figure and its record as soon as it is done.
    progress : callable, optional
        ``progress(label, finished, total)``.

    Examples
    --------
    >>> import tempfile
    >>> from attsvm.validation.figures.framework import Options
    >>> from attsvm.validation.figures.registry import choose_figures
    >>> from attsvm.validation.figures.run import run_figures
    >>> short = Options(quick=True, trials=1, change={"steps": 20, "marks": (10, 20)})
    >>> records = run_figures(choose_figures(["fig1"]), tempfile.mkdtemp(), short)
    >>> len(records)
    1
    """
    records = []
    here = options.workers == 0
    pool: AbstractContextManager[Executor | None] = nullcontext() if here else process_pool(options.workers)
    with pool as executor:
        for figure in figures:
            record = run_figure(figure, folder, replace(options, workers=0), executor=executor, progress=progress)
            records.append(record)
            if report is not None:
                report(figure, record)
            write_summary(Path(folder), _records_in(Path(folder)))
    return records


def _records_in(folder: Path) -> list[dict[str, Any]]:
    """Every record of the folder, also of earlier commands, in the order of papers and figures."""
    order = {(f.paper, f.name): k for k, f in enumerate(f for group in GROUPS for f in all_figures(group))}
    found = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*_*.json")]
    return sorted(found, key=lambda r: order.get((r["paper"], r["figure"]), len(order)))
