"""Results as data and as text: plain values, versions, whole files, intervals, tables and HTML pages.

What the command line, reports, comparisons, figures and the ledger print or store is built and rendered here. A file is
written whole or not at all, an estimate has its 95 % confidence interval, and a table is printed, written as Markdown
or HTML, or stored. HTML is written by the templates of ``attsvm/templates`` alone, which escape every value.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import platform
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np

from attsvm.user_input import is_tensor

if TYPE_CHECKING:
    from jinja2 import Environment
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table as RichTable


def plain(value: Any, finite: bool = True) -> Any:
    """A value as JSON can hold it: dataclasses as dicts, arrays and tensors as lists, enums as their values.

    Parameters
    ----------
    value : object
    finite : bool
        Write null for infinity and not-a-number, which JSON does not have; otherwise they stay.

    Examples
    --------
    >>> import numpy as np
    >>> plain({"x": np.array([1.0, np.nan]), 5: True, "gap": float("inf")})
    {'x': [1.0, None], '5': True, 'gap': None}
    """
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return None if finite and not math.isfinite(value) else float(value)
    if isinstance(value, Mapping):
        return {str(key): plain(entry, finite) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry, finite) for entry in value]
    if hasattr(value, "detach"):  # a torch tensor, on any device
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist(), finite)
    if is_dataclass(value) and not isinstance(value, type):
        return {
            entry.name: plain(getattr(value, entry.name), finite) for entry in fields(value) if entry.name[0] != "_"
        }
    return value


def versions(*names: str) -> dict[str, str]:
    """Versions of Python, attsvm, NumPy, SciPy and the named packages, those that are installed.

    Examples
    --------
    >>> sorted(versions("torch", "no such package"))
    ['attsvm', 'numpy', 'python', 'scipy', 'torch']
    """
    found = {"python": platform.python_version()}
    for name in ("attsvm", "numpy", "scipy", *names):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def environment(found: Mapping[str, str] | None = None) -> str:
    """Versions in one line.

    Parameters
    ----------
    found : dict, optional
        From `versions`; by default what a solve depends on.

    Examples
    --------
    >>> environment({"python": "3.11.2", "attsvm": "0.1.0"})
    'python 3.11.2, attsvm 0.1.0'
    """
    used = versions("cvxpy", "clarabel", "scs") if found is None else found
    return ", ".join(f"{name} {number}" for name, number in used.items())


def digest(*parts: object, length: int = 64) -> str:
    """SHA-256 of texts, bytes, arrays and tensors with their sizes and precisions, as its first hexadecimal digits.

    Examples
    --------
    >>> import numpy as np
    >>> digest("ab", length=8), digest("a", "b", length=8), digest(np.zeros(2), length=8)
    ('2130ee48', '7dc2784f', '4a5aa840')
    """
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, str | bytes):
            raw = part.encode() if isinstance(part, str) else part
            found.update(f"{len(raw)} ".encode() + raw)
        else:
            array = np.ascontiguousarray(part.detach().cpu().numpy() if is_tensor(part) else part)
            found.update(f"{array.shape}{array.dtype}".encode() + array.tobytes())
    return found.hexdigest()[:length]


@contextmanager
def atomic_write(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file beside ``path`` for writing; on success it takes the place of ``path``, on failure it is removed.

    A crash leaves the old content or the new one, never a half.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_write(Path(folder) / "a.txt") as file:
    ...         _ = file.write(b"whole")
    ...     [p.name for p in Path(folder).iterdir()]
    ['a.txt']
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.partial")  # writers do not meet
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        if error.filename in (None, str(temporary)):  # name the file that was asked for
            raise type(error)(error.errno, error.strerror or str(error), str(target)) from error
        raise
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_json(path: str | Path, value: Any) -> None:
    """Write a value as JSON, atomically.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_json(Path(folder) / "a.json", [float("nan"), 1])
    ...     (Path(folder) / "a.json").read_text().split()
    ['[', 'null,', '1', ']']
    """
    with atomic_write(path) as file:
        file.write((json.dumps(plain(value), indent=1, allow_nan=False) + "\n").encode())


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % confidence interval.

    Examples
    --------
    >>> str(Interval(0.5, 0.25, 0.75, percent=True)), str(Interval(2.0, 1.0, 3.0))
    ('50.0 % [25.0, 75.0]', '2 ± 1')
    """

    value: float
    low: float
    high: float
    percent: bool = False
    skewed: bool = False

    def __str__(self) -> str:
        if not np.isfinite(self.value):
            return "-"
        if self.skewed:
            return f"{self.value:.2g} [{self.low:.2g}, {self.high:.2g}]"
        if self.percent:
            return f"{100 * self.value:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}]"
        half = (self.high - self.low) / 2
        return f"{self.value:.3g} ± {half:.1g}" if np.isfinite(half) else f"{self.value:.3g} (one value)"


def mean_of(values: Any) -> Interval:
    """Mean of the finite values with its normal 95 % interval.

    Examples
    --------
    >>> str(mean_of([1.0, 2.0, 3.0]))
    '2 ± 1'
    """
    x = np.asarray(values, dtype=np.float64).ravel()
    x = x[np.isfinite(x)]
    if not len(x):
        return Interval(float("nan"), float("nan"), float("nan"))
    half = 1.96 * float(x.std(ddof=1)) / float(np.sqrt(len(x))) if len(x) > 1 else float("nan")
    mean = float(x.mean())
    return Interval(mean, mean - half, mean + half)


def mean_share_of(values: Any) -> Interval:
    """Mean of finite shares, numbers in [0, 1], with an interval that stays in [0, 1], after Wilson.

    The shares may differ in how many things they count and in how alike these are, so the mean has the spread of the
    shares themselves, not that of a single count: Wilson's interval is taken for the number of independent counts
    whose share would spread as much. Where all shares are equal it is taken for as many counts as there are shares.

    Parameters
    ----------
    values : array_like
        One share per independent unit: a sequence, a run, a head.

    Examples
    --------
    >>> str(mean_share_of([0.0, 0.0, 0.0, 0.125])), str(mean_share_of([0.0, 0.0, 0.0]))
    ('0.031 [0.0054, 0.16]', '0 [0, 0.56]')
    """
    x = np.asarray(values, dtype=np.float64).ravel()
    x = x[np.isfinite(x)]
    if len(x) and (x.min() < -1e-9 or x.max() > 1 + 1e-9):
        raise ValueError(f"shares must lie in [0, 1], got {x.min():.3g} to {x.max():.3g}")
    if len(x) < 2:
        return mean_of(x)
    mean = min(1.0, max(0.0, float(x.mean())))
    variance = float(x.var(ddof=1)) / len(x)
    # Of shares that spread as widely as they can, each is one count; they cannot spread more than that.
    counts = max(float(len(x) - 1), mean * (1 - mean) / variance) if variance > 0 else float(len(x))
    z2 = 1.96**2 / counts
    middle = (mean + z2 / 2) / (1 + z2)
    half = float(np.sqrt(z2 * mean * (1 - mean) + z2**2 / 4)) / (1 + z2)
    return Interval(mean, max(0.0, middle - half), min(1.0, middle + half), skewed=True)


def median_of(values: Any) -> Interval:
    """Median of the finite values with its 95 % interval by order statistics, whatever their distribution.

    Of fewer than six values no two enclose the median with 95 %: the interval is then all of them.

    Examples
    --------
    >>> str(median_of([1e-6, 2e-6, 3e-6, 4e-6, 5e-6, 6e-6, 7e-3]))
    '4e-06 [1e-06, 0.007]'
    """
    x = np.asarray(values, dtype=np.float64).ravel()
    x = np.sort(x[np.isfinite(x)])
    if not len(x):
        return Interval(float("nan"), float("nan"), float("nan"), skewed=True)
    from scipy.stats import binom

    k = max(0, int(binom.ppf(0.025, len(x), 0.5)) - 1)  # P(fewer than k + 1 values below the median) <= 2.5 %
    return Interval(float(np.median(x)), float(x[k]), float(x[len(x) - 1 - k]), skewed=True)


@contextmanager
def counting_bar(wanted: bool, label: str, total: int) -> Iterator[Callable[[int], object]]:
    """Progress on stderr; calling what it gives counts so many more. Nothing if not wanted.

    A bar that goes away at the end on a terminal and in a notebook, a line for each tenth in a file.

    Examples
    --------
    >>> with counting_bar(False, "training", 100) as advance:
    ...     advance(1)
    """
    if not wanted:
        yield lambda count: None
        return
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal or console.is_jupyter:
        from rich.progress import Progress

        with Progress(console=console, transient=True) as progress:
            task = progress.add_task(label, total=total)
            yield lambda count: progress.update(task, advance=count)
        return
    done, write = 0, line_per_tenth()

    def advance(count: int) -> None:
        nonlocal done
        done += count
        write(label, done, total)

    yield advance


def line_per_tenth() -> Callable[[str, int, int], None]:
    """Progress where no bar can be drawn: a line on stderr for each label and for each tenth of what it counts."""
    start, last = time.perf_counter(), ("", -1)

    def write(label: str, done: int, total: int) -> None:
        nonlocal last
        tenth = 10 * done // max(total, 1)
        if (label, tenth) != last:
            last = label, tenth
            sys.stderr.write(f"{time.perf_counter() - start:.0f} s: {label}: {done} of {total}\n")
            sys.stderr.flush()

    return write


_NORMAL_95 = 1.959963984540054  # the normal distribution's quantile of 97.5 %


def share(count: int, total: int) -> Interval:
    """A share with Wilson's 95 % interval, which is right also at 0 and 100 %.

    Examples
    --------
    >>> str(share(0, 100))
    '0.0 % [0.0, 3.7]'
    """
    if not total:
        return Interval(float("nan"), float("nan"), float("nan"), percent=True)
    value, square = count / total, _NORMAL_95**2 / total
    middle = (value + square / 2) / (1 + square)
    half = math.sqrt(square * (value * (1 - value) + square / 4)) / (1 + square)
    low = 0.0 if count == 0 else middle - half  # exact there, where rounding would leave 1e-17
    return Interval(value, low, 1.0 if count == total else middle + half, percent=True)


def share_of(flags: Any) -> Interval:
    """Share of true values; see `share`.

    Examples
    --------
    >>> str(share_of([True] * 10))
    '100.0 % [72.2, 100.0]'
    """
    x = np.asarray(flags, dtype=bool).ravel()
    return share(int(x.sum()), len(x))


# Lines that a cell may wrap into before a table is better read as blocks; length of what blocks put side by side.
_TOWER = 4

# Of tables where no terminal says how wide it is: in files, in notebooks' plain text, in documents.
WIDTH = 120

_SHORT_FACT = 48


class Raw(str):
    """Text that is HTML already: no template escapes it again."""

    __slots__ = ()

    def __html__(self) -> str:
        return str(self)


def _asset(name: str) -> Raw:
    """A style sheet or script that a template writes into its page."""
    return Raw(files("attsvm").joinpath("templates", name).read_text(encoding="utf-8"))


@cache
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("attsvm"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    made.globals["asset"] = _asset
    return made


def html_page(template: str, **values: Any) -> str:
    """A page from a template of ``attsvm/templates``.

    Parameters
    ----------
    template : str
        Name of the file.
    **values
        What the template names; text is escaped, `Raw` is not.

    Examples
    --------
    >>> "<title>a &lt; b</title>" in html_page("page.html", title="a < b")
    True
    """
    return _templates().get_template(template).render(**values)


def html_piece(name: str, *values: Any) -> Raw:
    """A macro of ``attsvm/templates/pieces.html``, for cells of tables and for notebooks.

    Examples
    --------
    >>> html_piece("link", "page.html?a&b", "<1>")
    '<a href="page.html?a&amp;b">&lt;1&gt;</a>'
    """
    return Raw(getattr(_templates().get_template("pieces.html").module, name)(*values))


@dataclass(frozen=True)
class Table:
    """A titled table, printed, written as Markdown or HTML, or stored.

    Parameters
    ----------
    title : str
    columns : sequence of str
    rows : sequence of sequence
        Cells are strings, numbers, flags or :class:`Interval`; None and what is not finite print as a dash. An empty
        row draws a rule.
    align : str
        One letter per column: ``l`` or ``r``, and ``L`` or ``R`` where the terminal may not wrap. By default the
        first column is flush left and the others flush right.

    Examples
    --------
    >>> print(Table("Margins", ("norm", "margin"), [("nuclear", 0.25)]).markdown())
    | norm | margin |
    |---|---|
    | nuclear | 0.25 |
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    align: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "rows", tuple(map(tuple, self.rows)))
        object.__setattr__(self, "align", self.align or "l" + "r" * (len(self.columns) - 1))
        if len(self.align) != len(self.columns):
            raise ValueError(f"table {self.title!r}: align has {len(self.align)} letters, expected {len(self.columns)}")
        for row in self.rows:
            if row and len(row) != len(self.columns):
                raise ValueError(f"table {self.title!r}: a row has {len(row)} cells, expected {len(self.columns)}")

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Table:
        """The table of a stored record, its cells as they were printed."""
        return cls(record["title"], record["columns"], record["rows"])

    def record(self) -> dict[str, Any]:
        """Cells as printed and as values, ready for JSON."""
        values = plain(self.rows)
        return {"title": self.title, "columns": list(self.columns), "rows": self.texts(), "values": values}

    def texts(self) -> list[list[str]]:
        """Cells as they are printed."""
        return [[_text(cell) for cell in row] for row in self.rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As a grid where every word has room, else one block of lines per row."""
        widths = self._widths(options.max_width)
        yield self._blocks(whole=console.soft_wrap) if widths is None else self._grid(widths)

    def _widths(self, width: int) -> list[int] | None:
        """Columns of a grid that breaks no word and makes no tower of short lines of a cell; None without room."""
        cells = [self.columns, *(row for row in self.texts() if row)]
        wraps = [letter.islower() for letter in self.align]
        least = [max(_longest(line[k], wrap) for line in cells) for k, wrap in enumerate(wraps)]
        free = width - (3 * len(least) + 1) - sum(least)
        if free < 0:
            return None
        wanted = [max(len(line[k]) for line in cells) for k in range(len(least))]
        widths = list(least)
        while free > 0 and (short := [k for k in range(len(least)) if widths[k] < wanted[k]]):
            for k in short[:free]:  # one column each in turn: short cells soon have all they want
                widths[k] += 1
            free -= len(short[:free])
        towers = (len(line[k]) > _TOWER * max(widths[k], 1) for line in cells for k in range(len(least)))
        return None if any(towers) else widths

    def _grid(self, widths: Sequence[int]) -> RichTable:
        from rich.table import Table as RichTable
        from rich.text import Text

        shown = RichTable(title=self.title and Text(self.title))
        for name, letter, width in zip(self.columns, self.align, widths, strict=True):
            justify: Literal["left", "right"] = "left" if letter in "lL" else "right"
            shown.add_column(Text(name), justify=justify, no_wrap=letter.isupper(), width=width)
        for row in self.texts():
            if row:
                shown.add_row(*map(Text, row))
            else:
                shown.add_section()
        return shown

    def _blocks(self, whole: bool) -> RenderableType:
        """One block per row: its first cell, then the others by name, indented and wrapped at words unless whole."""
        from rich.console import Group
        from rich.padding import Padding
        from rich.text import Text

        lines: list[RenderableType] = [Text(self.title, style="italic")] if self.title else []
        for row in self.texts():
            if not row:
                continue
            head = f"{self.columns[0]} {row[0]}".strip() if row[0].strip() else ""
            if head:
                lines.append(Text(head, style="bold"))
            facts = [f"{name}: {cell}" if name else cell for name, cell in zip(self.columns[1:], row[1:], strict=True)]
            said = [fact for fact in facts if not fact.endswith((": -", ": "))]
            short = "; ".join(fact for fact in said if len(fact) <= _SHORT_FACT)
            long = [fact for fact in said if len(fact) > _SHORT_FACT]
            # In a file lines stay whole: what is padded there is cut at the width instead of wrapped.
            lines += [
                Text(f"  {text}") if whole else Padding(Text(text), (0, 0, 0, 2)) for text in (short, *long) if text
            ]
        return Group(*lines)

    def __str__(self) -> str:
        return render(self)

    def markdown(self) -> str:
        """For a page of text, without the title."""
        lines = [self.columns, ["---"] * len(self.columns), *(row for row in self.texts() if row)]
        shown = ["| " + " | ".join(map(_markdown_cell, line)) + " |" for line in lines]
        return "\n".join([shown[0], shown[1].replace(" ", ""), *shown[2:]])

    def html(self) -> Raw:
        """For a page; the first cell of a row is its heading."""
        columns = [
            (name, "" if letter in "lL" else "number") for name, letter in zip(self.columns, self.align, strict=True)
        ]
        rows = [[cell if isinstance(cell, Raw) else _text(cell) for cell in row] for row in self.rows if row]
        return html_piece("table", self.title, columns, rows)

    _repr_html_ = html


def _longest(text: str, wraps: bool) -> int:
    """Width that a text cannot go below: its longest word, or all of it where it may not wrap."""
    return max(map(len, text.split()), default=0) if wraps else len(text)


def _text(cell: Any) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool | np.bool_):
        return "yes" if cell else "no"
    if isinstance(cell, float | np.floating):
        return "-" if not np.isfinite(cell) else f"{cell:.3g}"
    return str(cell)


def _markdown_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|").replace("<", "&lt;") or "-"


def html_table(title: str, facts: Mapping[str, object]) -> str:
    """Names and values as a table for notebooks.

    Examples
    --------
    >>> "<td>finished</td>" in html_table("Run", {"status": "finished"})
    True
    """
    return Table(title, ("", ""), [(name, str(value)) for name, value in facts.items()], align="ll").html()


def html_listing(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], most: int = 12) -> str:
    """The first rows of a listing as a table for notebooks; the title says how many there are when some are left out.

    Examples
    --------
    >>> page = html_listing("Numbers", ("number", "square"), [(k, k * k) for k in range(99)], most=2)
    >>> page.count("<tr>"), "Numbers; the first 2 of 99" in page
    (3, True)
    """
    told = f"{title}; the first {most} of {len(rows)}" if len(rows) > most else title
    return Table(told, columns, rows[:most]).html()


def render(shown: RenderableType, width: int = WIDTH) -> str:
    """What a terminal would show, as plain text."""
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(shown)
    return out.getvalue().rstrip("\n")


def console(width: int = WIDTH, *, stderr: bool = False) -> Console:
    """Where tables and lines go; in a file tables have this width, and lines are left whole: nothing is cut."""
    from rich.console import Console

    out = Console(highlight=False, stderr=stderr)
    return out if out.is_terminal else Console(highlight=False, stderr=stderr, soft_wrap=True, width=width)
