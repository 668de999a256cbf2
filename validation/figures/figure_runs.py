"""Run figures one after the other with shared workers, and write what they found.

Records go to console tables, PNG files, and one summary in Markdown and HTML.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from attsvm.records import Table, atomic_write, environment, html_page, plain, versions, write_json
from attsvm.sweeps.resumable import process_pool
from attsvm.validation.figures.figure import DEFAULTS, Context, Figure, Options, Outcome
from attsvm.validation.figures.figure_registry import GROUPS, all_figures
from attsvm.validation.pictures import picture_faults

__all__ = [
    "print_record",
    "record_of",
    "run_figure",
    "run_figures",
    "write_picture",
    "write_summary",
]


def record_of(figure: Figure, outcome: Outcome, context: Context, seconds: float) -> dict[str, Any]:
    """Everything about a run as plain data; this is what the JSON file holds."""
    record = {
        "paper": figure.paper,
        "figure": figure.name,
        "aliases": list(figure.aliases),
        "title": figure.title,
        "quick": context.options.quick,
        "settings": plain(context.settings),
        "seed": context.seed,
        "device": context.device or "cpu",
        "command": context.options.command,
        "protocol": " ".join(figure.protocol.split()),
        "wall_seconds": seconds,
        "computing_seconds_of_all_chunks": sum(context.seconds),
        "resumed_chunks": sum(context.resumed),
        "cores": os.cpu_count(),
        "versions": versions("torch", "cvxpy", "clarabel", "scs", "scikit-learn", "matplotlib"),
        "tables": [table.record() for table in outcome.tables],
        "notes": list(outcome.notes),
        "curves": plain(outcome.curves),
    }
    return record | ({"refuted": list(outcome.refuted)} if outcome.refuted else {})


def _heading(record: Mapping[str, Any]) -> str:
    return f"{record['paper']} {'/'.join((record['figure'], *record['aliases']))}: {record['title']}"


def _run_of(record: Mapping[str, Any]) -> str:
    """What was run: the settings stand before what they gave, and a quick run says so."""
    kind = "QUICK RUN, not the paper's size: " if record.get("quick") else ""
    return f"{kind}settings {record['settings']}; seed {record['seed']}; {record['device']}"


def _remarks(record: Mapping[str, Any]) -> list[str]:
    return [
        *record["notes"],
        *(f"NOT confirmed: {text}" for text in record.get("refuted", ())),
        *(f"picture: {text}" for text in record.get("picture_faults", ())),
    ]


def _verdict(record: Mapping[str, Any]) -> str:
    """The finding in one sentence."""
    refuted = record.get("refuted", ())
    if refuted:
        return f"NOT confirmed: {refuted[0]}" + (f" (and {len(refuted) - 1} more)" if len(refuted) > 1 else "")
    trials = record["settings"]["trials"]
    agree = "The trial agrees" if trials == 1 else f"All {trials} trials agree"
    return f"{agree} with the figure's claim; see the notes."


def print_record(out: Console, record: Mapping[str, Any]) -> None:
    """Print what a reader of the terminal wants to see."""
    out.print(f"\n{_heading(record)}", markup=False, style="bold")
    out.print(_verdict(record), markup=False, style="bold")
    out.print(_run_of(record), markup=False)
    out.print(record["protocol"], markup=False)
    for table in record["tables"]:
        out.print(Table.read(table))
    for note in _remarks(record):
        out.print(f"note: {note}", markup=False)
    times = f"{record['wall_seconds']:.1f} s wall ({record['computing_seconds_of_all_chunks']:.1f} s over all chunks"
    used = environment(record["versions"])
    out.print(f"{times}, {record['resumed_chunks']} resumed) on {record['cores']} cores; {used}", markup=False)


def write_picture(path: Path, figure: Figure, outcome: Outcome) -> list[str]:
    """Draw the outcome and save it as PNG, without a display; returns what is wrong with the picture.

    A figure of tables alone has none.
    """
    if figure.draw is None:
        return []
    import matplotlib

    matplotlib.use("Agg", force=False)
    picture = figure.draw(outcome)
    faults = picture_faults(picture)
    picture.savefig(path, dpi=130, bbox_inches="tight")
    from matplotlib import pyplot

    pyplot.close(picture)
    return faults


def write_summary(folder: Path, records: Sequence[Mapping[str, Any]]) -> tuple[Path, Path]:
    """One page with every table and picture, in Markdown and in HTML.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from attsvm.validation.figures.figure_runs import write_summary
    >>> folder = Path(tempfile.mkdtemp())
    >>> [path.name for path in write_summary(folder, [])]
    ['summary.md', 'summary.html']
    """
    total = sum(record["wall_seconds"] for record in records)
    head = f"{len(records)} figures, {total:.0f} s of wall time together"
    markdown = ["# Validation summary", "", head, ""]
    parts: list[dict[str, Any]] = []
    for record in records:
        picture = f"{record['paper']}_{record['figure']}.png"
        part = {
            "title": _heading(record),
            "run": _run_of(record),
            "protocol": record["protocol"],
            "picture": picture if (folder / picture).exists() else None,
            "tables": [Table.read(table) for table in record["tables"]],
            "notes": _remarks(record),
            "foot": f"`{record['command']}`; {record['wall_seconds']:.1f} s wall; {environment(record['versions'])}",
        }
        parts.append(part)
        markdown += [f"## {part['title']}", "", f"*{part['run']}*", "", part["protocol"], ""]
        if part["picture"]:
            markdown += [f"![{part['title']}]({picture})", ""]
        for table in part["tables"]:
            markdown += [f"**{table.title}**", "", table.markdown(), ""]
        markdown += [f"- {note}" for note in part["notes"]] + ["", part["foot"], ""]
    page = html_page("validation.html", title="attsvm validation", head=head, parts=parts)
    paths = folder / "summary.md", folder / "summary.html"
    for path, text in zip(paths, ("\n".join(markdown), page), strict=True):
        with atomic_write(path) as file:
            file.write(text.encode())
    return paths


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
    >>> from attsvm.validation.figures.figure import Options
    >>> from attsvm.validation.figures.figure_registry import choose_figures
    >>> from attsvm.validation.figures.figure_runs import run_figure
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
    >>> from attsvm.validation.figures.figure import Options
    >>> from attsvm.validation.figures.figure_registry import choose_figures
    >>> from attsvm.validation.figures.figure_runs import run_figures
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
