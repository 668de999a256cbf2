"""Arguments and options that several commands share.

What stands around a command's tables: the verdict before them, the words and the next command after them.

What the commands share: reading problems and selections, progress on stderr, output on stdout.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn

from attsvm._lazy import need
from attsvm.files import ProblemFile, read_problem_file
from attsvm.problem import AttentionProblem
from attsvm.records import line_per_tenth, plain
from attsvm.reports.verdicts import glossary
from attsvm.selection import Selection

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = [
    "Debug",
    "Device",
    "File",
    "Index",
    "Json",
    "Quiet",
    "Seed",
    "Tokens",
    "check_device",
    "check_out",
    "close",
    "each_problem",
    "open_problem",
    "open_whole",
    "open_with",
    "print_json",
    "progress_bar",
    "read_tokens",
    "show_progress",
    "told_progress",
    "working",
]


File = Annotated[
    Path, typer.Argument(metavar="FILE", help="Problem file, .npz or .safetensors (attsvm new writes one).")
]


Index = Annotated[int | None, typer.Option("--index", help="Which problem of a file that holds a batch.")]


Tokens = Annotated[
    str | None,
    typer.Option("--selection", help="Tokens: 2,0,1 (K queries 2,0;1,1) or optimal [the file's]."),
]


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]


Seed = Annotated[int, typer.Option("--seed", help="Seed of everything random.")]


Device = Annotated[str | None, typer.Option("--device", help="Torch device of training, e.g. cuda.")]


Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print neither tables nor progress.")]


Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def open_with(screen: Console, verdict: str) -> None:
    """The finding in one plain sentence."""
    screen.print(verdict, style="bold", markup=False)


def _indented(line: str, screen: Console) -> RenderableType:
    """A line and what wraps of it, two columns in; in a file lines stay whole."""
    from rich.padding import Padding
    from rich.text import Text

    return Padding(Text(line), (0, 0, 0, 2)) if screen.is_terminal else Text(f"  {line}")


def close(screen: Console, words: tuple[str, ...], *commands: str) -> None:
    """The words of the tables, one line each, and what to try next."""
    if words:
        screen.print("Glossary:", style="dim", markup=False)
        for line in glossary(*words):
            screen.print(_indented(line, screen), style="dim")
    if commands:
        screen.print(f"Next: {' or '.join(commands)}", markup=False)


def print_json(record: Any) -> None:
    """One JSON object on stdout; numbers that are not finite become null."""
    print(json.dumps(plain(record), indent=2, allow_nan=False))


def open_problem(path: Path, index: int | None) -> ProblemFile:
    """One problem of a file, with its selection if it has one."""
    file = read_problem_file(path)
    batch = file.problem.batch
    if batch is None:
        if index is not None:
            raise ValueError(f"--index goes with a batch, but {path} holds a single problem")
        return file
    if index is None:
        raise ValueError(f"{path} holds a batch of {batch} problems: choose one, --index 0 to --index {batch - 1}")
    if not 0 <= index < batch:
        raise ValueError(f"--index must be in 0..{batch - 1}, got {index}")
    return _of_batch(file, index)


def _of_batch(file: ProblemFile, index: int) -> ProblemFile:
    selection = None if file.selection is None else file.selection[index]
    return ProblemFile(file.path, file.problem[index], selection)


def open_whole(path: Path, index: int | None) -> ProblemFile:
    """The problem of ``--index``, or all that the file holds: a single problem or the whole batch."""
    return open_problem(path, index) if index is not None else read_problem_file(path)


def each_problem(path: Path, index: int | None) -> list[ProblemFile]:
    """The problems of a file one by one: the one of ``--index``, or all of a batch."""
    if index is not None:
        return [open_problem(path, index)]
    file = read_problem_file(path)
    batch = file.problem.batch
    return [file] if batch is None else [_of_batch(file, k) for k in range(batch)]


def read_tokens(text: str | None, file: ProblemFile) -> Selection | None:
    """The selection that a command is about; None means the optimal tokens.

    Examples
    --------
    >>> from pathlib import Path
    >>> import attsvm
    >>> from attsvm.cli.command_support import read_tokens
    >>> from attsvm.files import ProblemFile
    >>> file = ProblemFile(Path("p.npz"), attsvm.random_problem(n=2, T=3, d=4, seed=0), None)
    >>> read_tokens("2,0", file).indices
    array([2, 0])
    """
    if text is None:
        return file.selection
    if text == "optimal":
        return None
    try:
        rows = [[int(token) for token in row.split(",")] for row in text.split(";")]
    except ValueError:
        raise ValueError(f"--selection must be token indices such as 2,0,1 (or 2,0;1,1), got {text!r}") from None
    if len({len(row) for row in rows}) > 1:
        raise ValueError(f"--selection must have equally many tokens in every sequence, got {text!r}")
    return Selection(rows if file.problem.multi_query else _flat(rows, file.problem))


def _flat(rows: list[list[int]], problem: AttentionProblem) -> list[int]:
    if len(rows) > 1 or len(rows[0]) != problem.n:
        raise ValueError(f"--selection must have {problem.n} tokens, one per sequence")
    return rows[0]


def check_out(option: str, path: Path | None, *suffixes: str) -> None:
    """Refuse a file that could not be written before any work is done.

    Examples
    --------
    >>> from pathlib import Path
    >>> from attsvm.cli.command_support import check_out
    >>> check_out("--out", Path("run.txt"), ".npz")
    Traceback (most recent call last):
    ...
    ValueError: --out writes .npz, got run.txt
    """
    if path is None:
        return
    if suffixes and path.suffix not in suffixes:
        raise ValueError(f"{option} writes {' or '.join(suffixes)}, got {path}")
    if path.is_dir():
        raise ValueError(f"{option} must be a file, but {path} is a folder")
    if not path.parent.is_dir():
        raise ValueError(f"{option} is in a folder that does not exist: {path.parent}")


def check_device(device: str | None) -> None:
    """Refuse a device that torch does not have, in one line."""
    if device is None:
        return
    need("--device", "torch")
    from attsvm.training.tensors import torch_device

    try:
        torch_device(device)
    except ValueError as error:
        raise ValueError(f"--{error}".replace(repr(device), device)) from error


def show_progress(quiet: bool) -> bool:
    """Whether to draw progress: not when quiet, and not into a file."""
    return not quiet and sys.stderr.isatty()


def progress_bar(quiet: bool, *columns: ProgressColumn) -> Progress:
    """Bars on stderr that go away at the end, each after its description."""
    shown = TextColumn("{task.description}"), *columns, TimeElapsedColumn()
    return Progress(*shown, console=Console(stderr=True), transient=True, disable=not show_progress(quiet))


@contextmanager
def told_progress(quiet: bool) -> Iterator[Callable[[str, int, int], object]]:
    """Progress of work that says where it is, ``progress(label, done, total)``, on stderr.

    On a terminal it is a bar; in a file a line for each label and for each tenth of what it counts.
    """
    if quiet or sys.stderr.isatty():
        with progress_bar(quiet, BarColumn()) as bar:
            task = bar.add_task("reading", total=None)
            yield lambda label, done, total: bar.update(task, description=label, completed=done, total=total)
        return
    yield line_per_tenth()


@contextmanager
def working(description: str, quiet: bool) -> Iterator[None]:
    """A running clock on stderr around work that cannot say how far it is."""
    with progress_bar(quiet, SpinnerColumn()) as progress:
        progress.add_task(description, total=None)
        yield
