"""Records and pictures of figures: console tables, JSON, PNG, and one summary in Markdown and HTML."""

from __future__ import annotations

import html
import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable

from attsvm.validation.figures.framework import Figure, Outcome

__all__ = ["plain", "print_outcome", "record_of", "versions", "write_json", "write_picture", "write_summary"]


def versions() -> dict[str, str]:
    """Versions that the numbers depend on.

    Examples
    --------
    >>> from attsvm.validation.figures.output import versions
    >>> "numpy" in versions()
    True
    """
    found = {"python": platform.python_version()}
    for name in ("attsvm", "numpy", "scipy", "torch", "cvxpy", "clarabel", "scs", "scikit-learn", "matplotlib"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def plain(value: Any) -> Any:
    """A value as JSON can hold it: arrays as lists, not-a-number as null.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.validation.figures.output import plain
    >>> plain({"x": np.array([1.0, np.nan]), 5: True})
    {'x': [1.0, None], '5': True}
    """
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def record_of(
    figure: Figure,
    outcome: Outcome,
    *,
    settings: Mapping[str, Any],
    seed: int,
    device: str | None,
    command: str,
    seconds: float,
    computed_seconds: float,
    resumed_chunks: int,
) -> dict[str, Any]:
    """Everything about a run as plain data; this is what the JSON file holds."""
    return {
        "paper": figure.paper,
        "figure": figure.name,
        "aliases": list(figure.aliases),
        "title": figure.title,
        "protocol": " ".join(figure.protocol.split()),
        "settings": plain(settings),
        "seed": seed,
        "device": device or "cpu",
        "command": command,
        "wall_seconds": seconds,
        "computing_seconds_of_all_chunks": computed_seconds,
        "resumed_chunks": resumed_chunks,
        "cores": os.cpu_count(),
        "versions": versions(),
        "tables": [{"title": t.title, "columns": list(t.columns), "rows": t.texts(), "values": plain(t.rows)}
                   for t in outcome.tables],
        "notes": list(outcome.notes),
        "curves": plain(outcome.curves),
    }  # fmt: skip


def print_outcome(out: Console, figure: Figure, record: Mapping[str, Any]) -> None:
    """Print what a reader of the terminal wants to see."""
    names = "/".join((figure.name, *figure.aliases))
    out.print(f"\n{figure.paper} {names}: {figure.title}", markup=False, style="bold")
    out.print(record["protocol"], markup=False)
    for table in record["tables"]:
        out.print(_rich(table))
    for note in record["notes"]:
        out.print(f"note: {note}", markup=False)
    shown = ", ".join(f"{k} {v}" for k, v in record["versions"].items())
    out.print(f"settings {record['settings']}; seed {record['seed']}; {record['device']}", markup=False)
    times = f"{record['wall_seconds']:.1f} s wall ({record['computing_seconds_of_all_chunks']:.1f} s over all chunks"
    out.print(f"{times}, {record['resumed_chunks']} resumed) on {record['cores']} cores; {shown}", markup=False)


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record so that a kill leaves the old file or the new one, never half of one."""
    beside = path.with_suffix(".tmp")
    beside.write_text(json.dumps(record, indent=1, allow_nan=False), encoding="utf-8")
    os.replace(beside, path)


def write_picture(path: Path, figure: Figure, outcome: Outcome) -> None:
    """Draw the outcome and save it as PNG, without a display."""
    import matplotlib

    matplotlib.use("Agg", force=False)
    picture = figure.draw(outcome)
    picture.savefig(path, dpi=130, bbox_inches="tight")
    from matplotlib import pyplot

    pyplot.close(picture)


def write_summary(folder: Path, records: Sequence[Mapping[str, Any]]) -> tuple[Path, Path]:
    """One page with every table and picture, in Markdown and in HTML.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from attsvm.validation.figures.output import write_summary
    >>> folder = Path(tempfile.mkdtemp())
    >>> [path.name for path in write_summary(folder, [])]
    ['summary.md', 'summary.html']
    """
    total = sum(record["wall_seconds"] for record in records)
    head = f"{len(records)} figures, {total:.0f} s of wall time together"
    markdown = ["# Validation summary", "", head, ""]
    page = [_HTML_HEAD, f"<h1>Validation summary</h1><p>{html.escape(head)}</p>"]
    for record in records:
        names = "/".join((record["figure"], *record["aliases"]))
        title = f"{record['paper']} {names}: {record['title']}"
        picture = f"{record['paper']}_{record['figure']}.png"
        shown = ", ".join(f"{k} {v}" for k, v in record["versions"].items())
        run = f"`{record['command']}`; seed {record['seed']}; settings {record['settings']}"
        foot = f"{run}; {record['wall_seconds']:.1f} s wall; {shown}"
        markdown += [f"## {title}", "", record["protocol"], "", f"![{title}]({picture})", ""]
        page += [f"<h2>{html.escape(title)}</h2><p>{html.escape(record['protocol'])}</p>",
                 f'<img src="{picture}" alt="{html.escape(title)}">']  # fmt: skip
        for table in record["tables"]:
            markdown += [f"**{table['title']}**", "", *_markdown(table), ""]
            page.append(_html(table))
        markdown += [f"- {note}" for note in record["notes"]] + ["", foot, ""]
        page += ["<ul>" + "".join(f"<li>{html.escape(n)}</li>" for n in record["notes"]) + "</ul>",
                 f"<p><small>{html.escape(foot)}</small></p>"]  # fmt: skip
    paths = folder / "summary.md", folder / "summary.html"
    paths[0].write_text("\n".join(markdown), encoding="utf-8")
    paths[1].write_text("\n".join([*page, "</body></html>"]), encoding="utf-8")
    return paths


_HTML_HEAD = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>attsvm validation</title>
<style>body{font:15px/1.5 sans-serif;max-width:70em;margin:2em auto;padding:0 1em}img{max-width:100%}
table{border-collapse:collapse;margin:1em 0}td,th{border:1px solid #bbb;padding:.2em .6em;text-align:right}
caption{text-align:left;font-weight:bold}</style></head><body>"""


def _rich(table: Mapping[str, Any]) -> RichTable:
    shown = RichTable(title=table["title"], title_justify="left", title_style="")
    for k, column in enumerate(table["columns"]):
        shown.add_column(column, justify="left" if k == 0 else "right")
    for row in table["rows"]:
        shown.add_row(*(cell.replace("[", r"\[") for cell in row))
    return shown


def _markdown(table: Mapping[str, Any]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"

    return [line(table["columns"]), "|" + "---|" * len(table["columns"]), *(line(row) for row in table["rows"])]


def _html(table: Mapping[str, Any]) -> str:
    head = "".join(f"<th>{html.escape(c)}</th>" for c in table["columns"])
    body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in table["rows"])
    return f"<table><caption>{html.escape(table['title'])}</caption><tr>{head}</tr>{body}</table>"
