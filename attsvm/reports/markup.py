"""Small pieces of HTML, escaped."""

from __future__ import annotations

import html
import json
from typing import Any

from attsvm.records import Raw

__all__ = ["badge", "embed_json", "escape", "section"]


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


def badge(verdict: str) -> Raw:
    """A word in a colour of its own; the word alone says all."""
    good = {"holds", "applies", "optimal", "yes", "Global", "finished"}
    bad = {"fails", "infeasible", "failed", "no", "Not local", "not finite"}
    kind = "good" if verdict in good else "bad" if verdict in bad else "plain"
    return Raw(f'<span class="badge {kind}">{escape(verdict)}</span>')


def section(identifier: str, title: str, *parts: str) -> str:
    """A section that the table of contents can link to."""
    return (
        f'<section id="{identifier}" aria-labelledby="{identifier}-title">'
        f'<h2 id="{identifier}-title">{escape(title)}</h2>{"".join(parts)}</section>'
    )
