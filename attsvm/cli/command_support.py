"""Errors of the library in the words of the command line: ``--top 5`` instead of ``top=5``.

Running the application: exit codes, and errors in one line.
"""

from __future__ import annotations

import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn

from attsvm._lazy import need, needs
from attsvm.files import ProblemFile, read_problem_file
from attsvm.problem import AttentionProblem
from attsvm.records import line_per_tenth, plain
from attsvm.reports.verdicts import glossary
from attsvm.selection import Selection
from attsvm.solvers.memory import MemoryLimitError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_KEYWORD = re.compile(r"\b([A-Za-z_]+) ?= ?(?:'([^']*)'|\"([^\"]*)\"|([\w.+-]+))")


def in_options(text: str, options: set[str]) -> str:
    """Write keywords that are options of the command as such.

    Parameters
    ----------
    text : str
    options : set of str
        Long options, such as ``{"--top", "--time-limit"}``.

    Examples
    --------
    >>> in_options("mode='search' looks for the best few: pass top=k", {"--mode", "--top"})
    '--mode search looks for the best few: pass --top k'
    >>> in_options("steps must be an integer >= 0, got -1", {"--steps"})
    '--steps must be an integer >= 0, got -1'
    """

    def option(name: str) -> str:
        return "--" + name.replace("_", "-")

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        if option(name) not in options:
            return match[0]
        value = next((part for part in match.groups()[1:] if part is not None), "")
        if value in ("True", "False"):
            return option(name)
        return f"{option(name)} {value}"

    said = _KEYWORD.sub(replace, text)
    first = re.match(r"([a-z_]+)(?= (?:must|is|has|takes|cannot|needs)\b)", said)
    return option(first[1]) + said[first.end() :] if first and option(first[1]) in options else said


# The base class of "No such option", "Missing argument", ...: typer exports only what is derived from it, and its
# home differs between versions.
_UsageError = typer.BadParameter.__bases__[0]


def run_app(app: typer.Typer, arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit; ``--debug`` anywhere shows the traceback of an error."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _progress_to_stderr()
    try:
        code = _run(app, given)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:
        code = 141
    except SystemExit as error:  # some versions of typer end the process themselves when nobody reads on
        code = 141 if isinstance(error.__context__, BrokenPipeError) else error.code
    except Exception as error:
        code = _explain(error, "--debug" in given, _called(app, given))
    if code == 130:
        _fail("interrupted", 130, False)
    if code == 141:  # `attsvm ... | head`: what is left in the buffer has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code if isinstance(code, int) else 0)


def _run(app: typer.Typer, given: Sequence[str]) -> object:
    """Run the command; of an import that failed without a word about the extra, name the extra."""
    try:
        return app(args=list(given), prog_name="attsvm", standalone_mode=False)
    except ModuleNotFoundError as error:
        if "pip install" in str(error):
            raise
        with needs("this"):
            raise


def _progress_to_stderr() -> None:
    """Bars of the library go to rich's own console: point it at stderr, so that stdout holds the answer alone."""
    import rich

    rich.reconfigure(stderr=True)


class _Called(NamedTuple):
    """The command that was called: its long options, and whether it reads a problem file."""

    options: set[str]
    reads_problem: bool


def _called(app: typer.Typer, given: Sequence[str]) -> _Called:
    commands = getattr(typer.main.get_command(app), "commands", {})
    name = next((word for word in given if word in commands), None)
    parameters = getattr(commands.get(name), "params", ())
    options = {option for parameter in parameters for option in parameter.opts if option.startswith("--")}
    return _Called(options, name != "new" and any(parameter.name == "file" for parameter in parameters))


def _explain(error: Exception, debug: bool, called: _Called) -> int:
    if isinstance(error, _UsageError):
        context = getattr(error, "ctx", None)
        text = getattr(error, "format_message", lambda: str(error))()
        if type(error).__name__ == "NoArgsIsHelpError":
            print(text)
            return 2
        path = context.command_path if context is not None else "attsvm"
        return _fail(f"{text.rstrip('.')} ({path} --help shows what there is)", 2, debug)
    written = isinstance(error, OSError) and isinstance(error.__cause__, OSError)  # renamed by atomic_write
    if isinstance(error, FileNotFoundError) and error.filename is not None and not written:
        hint = " (attsvm new writes an example)" if called.reads_problem else ""
        return _fail(f"no such file: {error.filename}{hint}", 2, debug)
    if isinstance(error, OSError):
        return _fail(("cannot write " if written else "") + _of_file(error), 2, debug)
    if isinstance(error, (ValueError, ImportError, MemoryLimitError)):
        return _fail(in_options(str(error), called.options), 2, debug)
    return _fail(f"internal error, {type(error).__name__}: {error} (--debug shows where)", 70, debug)


def _of_file(error: OSError) -> str:
    if error.filename is None or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror[0].lower()}{error.strerror[1:]}"


def _fail(text: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"attsvm: {' '.join(text.split())}", file=sys.stderr)
    return code


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
