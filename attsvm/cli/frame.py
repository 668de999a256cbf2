"""What stands around a command's tables: the verdict before them, the words and the next command after them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attsvm.reports.words import glossary

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["close", "open_with"]


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
        screen.print("Words:", style="dim", markup=False)
        for line in glossary(*words):
            screen.print(_indented(line, screen), style="dim")
    if commands:
        screen.print(f"Next: {' or '.join(commands)}", markup=False)
