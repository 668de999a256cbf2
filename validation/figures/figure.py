"""What a figure is: a protocol, settings for a full and a quick run, a computation and a picture.

A figure is a ``Figure(...)`` at the top level of its module. Its ``run(context)`` computes
through ``context.sweep``, so that finished chunks survive an interruption, and returns an :class:`Outcome`;
``draw(outcome)`` makes the picture from the outcome alone. Cells share files in a folder beside the store.
"""

from __future__ import annotations

import ast
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from rich.console import Console

from attsvm.records import (
    Interval,
    Table,
    atomic_write,
    environment,
    html_page,
    mean_of,
    mean_share_of,
    plain,
    share_of,
    versions,
    write_json,
)
from attsvm.sweeps import Sweep, sweep
from attsvm.sweeps.resumable import process_pool
from attsvm.sweeps.store import Grid, Task
from attsvm.user_input import require_count
from attsvm.validation.pictures import picture_faults

__all__ = [
    "DEFAULTS",
    "GROUPS",
    "LEDGER",
    "PAPERS",
    "Context",
    "Figure",
    "Interval",
    "Options",
    "Outcome",
    "Picture",
    "Table",
    "all_figures",
    "choose_figures",
    "figure_titles",
    "finish",
    "folder_beside",
    "mean_of",
    "mean_share_of",
    "print_record",
    "read_settings",
    "record_of",
    "run_figure",
    "run_figures",
    "share_of",
    "subplots",
    "write_picture",
    "write_summary",
]


@contextmanager
def folder_beside(store: str | Path) -> Iterator[Path]:
    """The folder of a store, or one for the time being where the store is in memory.

    Examples
    --------
    >>> with folder_beside("results/own.sqlite") as folder:
    ...     print(folder)
    results
    """
    if str(store) != ":memory:":
        yield Path(store).parent
        return
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture
else:  # listing the figures loads no matplotlib
    Picture = Any


@dataclass(frozen=True)
class Options:
    """How figures are run: one object from the command line to the context of a figure.

    Parameters
    ----------
    quick : bool
        The small settings.
    trials : int, optional
        Instead of the figure's own number.
    seed : int
    device : str, optional
        Torch device on which training runs.
    workers : int, optional
        Processes (None: one per core); 0 computes in this one.
    fresh : bool
        Discard stored chunks first.
    command : str
        What the record names as its origin.
    change : dict
        Settings to use instead of the figure's own.
    """

    quick: bool = False
    trials: int | None = None
    seed: int = 0
    device: str | None = None
    workers: int | None = 0
    fresh: bool = False
    command: str = "attsvm.validation.figures.figure"
    change: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_count("trials", self.trials, optional=True)


DEFAULTS = Options()


def read_settings(words: Sequence[str]) -> dict[str, Any]:
    """Settings from words ``name=value``, values in JSON.

    Examples
    --------
    >>> read_settings(["starts=100", "ends=[2, 3]"])
    {'starts': 100, 'ends': [2, 3]}
    """
    found = {}
    for word in words:
        name, _, value = word.partition("=")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            raise ValueError(f"--set takes NAME=VALUE with a value in JSON, got {word!r}") from None
    return found


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a figure found.

    Parameters
    ----------
    tables : sequence of Table
        Printed, and written to the record and the summary.
    curves : dict
        Numbers that the picture is drawn from: numbers, strings, lists, dicts, arrays.
    notes : sequence of str
        What a reader must know: choices, what differs from the paper, what could not be reproduced.
    refuted : sequence of str
        Statements that a run should confirm and this one did not; the command then ends with exit code 1.
    """

    tables: Sequence[Table]
    curves: Mapping[str, Any]
    notes: Sequence[str] = ()
    refuted: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Context:
    """What a figure's ``run`` is given.

    Parameters
    ----------
    settings : dict
        The figure's full or quick settings, with ``trials`` replaced when the user gave it.
    options : Options
    store : str or Path
        SQLite file of this figure.
    executor : object, optional
        Shared worker processes.
    progress : callable, optional
        ``progress(label, finished, total)``.
    """

    settings: Mapping[str, Any]
    options: Options = DEFAULTS
    store: str | Path = ":memory:"
    executor: Any = None
    progress: Callable[[str, int, int], None] | None = None
    seconds: list[float] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)

    @property
    def seed(self) -> int:
        """Seed of everything random."""
        return self.options.seed

    @property
    def device(self) -> str | None:
        """Torch device on which training runs."""
        return self.options.device

    def cell(self, *names: str) -> dict[str, Any]:
        """These settings and the device, for functions that train."""
        return {name: self.settings[name] for name in names} | {"device": self.device}

    def sweep(
        self,
        fn: Task,
        grid: Grid,
        trials: int | None = None,
        *,
        chunk: int = 100,
        name: str | None = None,
        extend: bool = False,
    ) -> Sweep:
        """:func:`attsvm.sweep` with this figure's store, seed, workers and progress display.

        ``fn(trials, seed, **cell)`` must be a function of a module; put ``device`` into the cells if it trains.
        """
        label = name or str(getattr(fn, "__name__", "sweep"))
        done = sweep(
            fn, grid, self.settings["trials"] if trials is None else trials, self.executor, self.store, chunk=chunk,
            seed=self.seed, workers=self.options.workers, name=label, extend=extend, fresh=self.options.fresh,
            progress=None if self.progress is None else partial(self.progress, label),
        )  # fmt: skip
        self.seconds.append(done.seconds)
        self.resumed.append(done.resumed)
        return done


@dataclass(frozen=True, eq=False)
class Figure:
    """One figure (or table) of a paper, or a check of our own.

    Parameters
    ----------
    paper : str
        ``svm``, ``conditioning``, ``polarization``, ``localization``, ``specialization`` or ``own``.
    name : str
        As on the command line: ``fig5``.
    title : str
        One line.
    protocol : str
        The paper's protocol and, where the paper is silent, our choices; printed with the results.
    full, quick : dict
        Settings; both have ``trials``. The full ones are the paper's; of the quick ones only those that
        differ need be given.
    run : callable
        ``run(context) -> Outcome``.
    draw : callable, optional
        ``draw(outcome) -> matplotlib.figure.Figure``; without it the figure is its tables.
    aliases : tuple of str
        Other figures that the same computation shows.
    """

    paper: str
    name: str
    title: str
    protocol: str
    full: Mapping[str, Any]
    quick: Mapping[str, Any]
    run: Callable[[Context], Outcome]
    draw: Callable[[Outcome], Picture] | None = None
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for label, settings in (("full", self.full), ("quick", self.quick)):
            if not isinstance(settings.get("trials"), int):
                raise ValueError(f"{self.name}: {label} must hold an integer 'trials'")
        object.__setattr__(self, "quick", {**self.full, **self.quick})

    @property
    def names(self) -> str:
        """All names, as they are listed."""
        return "/".join((self.name, *self.aliases))

    def settings(self, options: Options = DEFAULTS) -> dict[str, Any]:
        """The settings of a run."""
        chosen = dict(self.quick if options.quick else self.full)
        for name in options.change:
            if name not in chosen:
                raise ValueError(f"{self.name} has no setting {name!r}; it has {', '.join(chosen)}")
        chosen |= options.change
        return chosen if options.trials is None else chosen | {"trials": options.trials}


def subplots(rows: int, columns: int, size: tuple[float, float], **options: Any) -> tuple[Picture, Any]:
    """A picture and its axes (as ``matplotlib.pyplot.subplots`` gives them), with room for labels."""
    from matplotlib import pyplot

    picture, axes = pyplot.subplots(rows, columns, figsize=size, layout="constrained", **options)
    return picture, axes


def finish(picture: Picture, axes: Iterable[Any], *, legend: int | None = 8, grid: float | None = 0.3) -> Picture:
    """Put a grid and a legend on the axes and return the picture."""
    for axis in axes:
        if grid is not None:
            axis.grid(alpha=grid)
        if legend is not None:
            axis.legend(fontsize=legend)
    return picture


PAPERS = {
    "svm": "Transformers as Support Vector Machines",
    "conditioning": "Softmax-induced ill-conditioning in transformer models",
    "polarization": "Gradient flow polarizes softmax outputs towards low-entropy solutions",
    "localization": "Self-attention networks localize when QK-eigenspectrum concentrates",
    "specialization": "Specialization of softmax attention heads",
}

# Whose statements are rows of the ledger: the papers, and newer ones whose figures are not drawn again.
LEDGER = PAPERS | {"newer": "Newer papers on the same margin problem"}

GROUPS = PAPERS | {"own": "What this library says of itself"}


def all_figures(paper: str = "svm") -> list[Figure]:
    """The figures of one paper (or our own) in the order of their numbers.

    Examples
    --------
    >>> [figure.name for figure in all_figures("svm")][:2]
    ['fig1', 'fig4']
    """
    if paper not in GROUPS:
        raise ValueError(f"paper must be one of {', '.join(GROUPS)}, got {paper!r}")
    package = import_module(f"attsvm.validation.figures.{paper}")
    modules = (import_module(f"{package.__name__}.{m.name}") for m in iter_modules(package.__path__))
    figures = [value for module in modules for value in vars(module).values() if isinstance(value, Figure)]
    figures = list({figure.name: figure for figure in figures}.values())  # a module may import another one's
    return sorted(figures, key=lambda figure: _order(figure.name))


def choose_figures(names: Sequence[str], everything: bool = False) -> list[Figure]:
    """Figures by the words of a command: ``["fig5"]``, ``["conditioning", "fig1"]``, ``["conditioning:fig1"]``.

    A paper's name applies to the words after it; ``svm`` is understood before the first. With ``everything`` all
    figures of the named papers are meant, by default those of ``svm``.

    Examples
    --------
    >>> [(f.paper, f.name) for f in choose_figures(["fig2"])]
    [('svm', 'fig5')]
    """
    paper, named, chosen = "svm", [], []
    for word in names:
        group, _, figure = word.partition(":")
        if figure and group in GROUPS and not everything:
            chosen.append(_find(group, figure))
        elif word in GROUPS:
            paper = word
            named.append(word)
        elif everything:
            raise ValueError(f"figures: with --all name papers only ({', '.join(GROUPS)}), got {word!r}")
        else:
            chosen.append(_find(paper, word))
    if everything:
        return [figure for name in named or ["svm"] for figure in all_figures(name)]
    if not chosen:
        have = ", ".join(f.name for f in all_figures(paper))
        raise ValueError(f"figures: name at least one figure of {paper} ({have}), or pass --all")
    return list(dict.fromkeys(chosen))


def figure_titles(paper: str) -> list[tuple[str, str]]:
    """Names and titles of a paper's figures, read from the modules' text: a listing needs nothing that they import.

    Examples
    --------
    >>> figure_titles("svm")[0]
    ('fig1', 'Paths of W z and K Q^T z towards the SVM directions in the plane')
    """
    package = import_module(f"attsvm.validation.figures.{paper}")
    found = []
    for module in iter_modules(package.__path__):
        source = (Path(package.__path__[0]) / f"{module.name}.py").read_text(encoding="utf-8")
        for node in ast.parse(source).body:
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Call)
                and ast.unparse(node.value.func) == "Figure"
            ):
                words = {k.arg: k.value for k in node.value.keywords if k.arg in ("name", "title", "aliases")}
                name, title, *more = (ast.literal_eval(words[k]) for k in ("name", "title", "aliases") if k in words)
                found.append(("/".join((name, *(more[0] if more else ()))), title))
    return sorted(found, key=lambda pair: _order(pair[0].split("/")[0]))


def _find(paper: str, word: str) -> Figure:
    figures = all_figures(paper)
    for figure in figures:
        if word in (figure.name, *figure.aliases):
            return figure
    names = ", ".join(f.names for f in figures)
    raise ValueError(f"figures: {paper} has no {word!r}; there are {names}")


def _order(name: str) -> tuple[str, int]:
    digits = re.search(r"\d+", name)
    return (name[: digits.start()] if digits else name, int(digits.group()) if digits else 0)


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
