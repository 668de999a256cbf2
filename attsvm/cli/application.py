"""Errors of the library in the words of the command line: ``--top 5`` instead of ``top=5``.

Running the application: exit codes, and errors in one line.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import NamedTuple

import typer

from attsvm._lazy import needs
from attsvm.solvers.memory import MemoryLimitError

__all__ = [
    "in_options",
    "run_app",
]


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
    >>> from attsvm.cli.application import in_options
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
