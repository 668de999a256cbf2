"""Small pieces of HTML, escaped."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["badge", "cell", "embed_json", "escape", "section", "table"]


def escape(value: Any) -> str:
    """Text for HTML, also inside attributes."""
    return html.escape(str(value), quote=True)


def embed_json(value: Any) -> str:
    r"""JSON that no text inside can end early: ``<``, ``>`` and ``&`` are written as escapes.

    Examples
    --------
    >>> from attsvm.reports.markup import embed_json
    >>> print(embed_json({"name": "</script><b>"}))
    {"name":"\u003c/script\u003e\u003cb\u003e"}
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # ASCII only: line separators are escaped too
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def badge(verdict: str) -> str:
    """A word in a colour of its own; the word alone says all."""
    good = {"holds", "applies", "optimal", "yes", "Global", "finished"}
    bad = {"fails", "infeasible", "failed", "no", "Not local", "not finite"}
    kind = "good" if verdict in good else "bad" if verdict in bad else "plain"
    return f'<span class="badge {kind}">{escape(verdict)}</span>'


def cell(content: str, number: bool = False) -> str:
    """One table cell; the content is already HTML."""
    return f'<td class="number">{content}</td>' if number else f"<td>{content}</td>"


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """A table whose first column names the row; cells are already HTML."""
    top = "".join(f'<th scope="col"{" class=number" if i in numbers else ""}>{h}</th>' for i, h in enumerate(heads))
    body = []
    for row in rows:
        first, *rest = row
        cells = "".join(cell(content, i + 1 in numbers) for i, content in enumerate(rest))
        body.append(f'<tr><th scope="row">{first}</th>{cells}</tr>')
    return (
        f'<div class="scroll"><table><caption>{caption}</caption><thead><tr>{top}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def section(identifier: str, title: str, *parts: str) -> str:
    """A section that the table of contents can link to."""
    return (
        f'<section id="{identifier}" aria-labelledby="{identifier}-title">'
        f'<h2 id="{identifier}-title">{escape(title)}</h2>{"".join(parts)}</section>'
    )
