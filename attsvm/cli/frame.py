"""What stands around a command's tables: the verdict before them, the words and the next command after them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attsvm.reports.words import glossary

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["close", "open_with"]


def open_with(screen: Console, verdict: str) -> None:
    """The finding in one plain sentence."""
    screen.print(verdict, style="bold", markup=False)


def close(screen: Console, words: tuple[str, ...], *commands: str) -> None:
    """The words of the tables, one line each, and what to try next."""
    if words:
        screen.print("Words:", style="dim", markup=False)
        for line in glossary(*words):
            screen.print(f"  {line}", style="dim", markup=False)
    if commands:
        screen.print(f"Next: {' or '.join(commands)}", markup=False)
