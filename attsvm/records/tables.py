"""Tables: printed, written as Markdown or HTML, or stored."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from attsvm.records.data import plain

if TYPE_CHECKING:  # loaded where something is printed
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table as RichTable

__all__ = ["Raw", "Table", "console", "html_table", "render"]

# Lines that a cell may wrap into before a table is better read as blocks; length of what blocks put side by side.
_TOWER = 4
# Of tables where no terminal says how wide it is: in files, in notebooks' plain text, in documents.
WIDTH = 120
_SHORT_FACT = 48


class Raw(str):
    """Text that is HTML already: a table does not escape it."""

    __slots__ = ()


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
    >>> from attsvm.records import Table
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

    def html(self) -> str:
        """For a page; the first cell of a row is its heading."""
        numbers = ["" if letter in "lL" else ' class="number"' for letter in self.align]
        heads = zip(self.columns, numbers, strict=True)
        head = "".join(f'<th scope="col"{kind}>{_escaped(name)}</th>' for name, kind in heads)
        body = ""
        for row in filter(None, self.rows):
            first, *rest = (_escaped(cell if isinstance(cell, Raw) else _text(cell)) for cell in row)
            cells = "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(rest, numbers[1:], strict=True))
            body += f'<tr><th scope="row">{first}</th>{cells}</tr>'
        return (
            f'<div class="scroll"><table><caption>{_escaped(self.title)}</caption><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )

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


def _escaped(text: str) -> str:
    return text if isinstance(text, Raw) else html.escape(text)


def _markdown_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|").replace("<", "&lt;") or "-"


def html_table(title: str, facts: Mapping[str, object]) -> str:
    """Names and values as a table for notebooks.

    Examples
    --------
    >>> from attsvm.records import html_table
    >>> "<td>finished</td>" in html_table("Run", {"status": "finished"})
    True
    """
    return Table(title, ("", ""), [(name, str(value)) for name, value in facts.items()], align="ll").html()


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
