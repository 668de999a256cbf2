"""Short tables for notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

__all__ = ["html_table"]


def html_table(title: str, rows: Mapping[str, object]) -> str:
    """A titled table of names and values, as HTML without styles of its own.

    Examples
    --------
    >>> from attsvm._display import html_table
    >>> html_table("Run", {"status": "finished", "|W| <": 3})
    '<table><caption>Run</caption><tr><th>status</th><td>finished</td></tr><tr><th>|W| &lt;</th><td>3</td></tr></table>'
    """
    body = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in rows.items())
    return f"<table><caption>{escape(title)}</caption>{body}</table>"
