"""Small pieces of HTML, escaped."""

from __future__ import annotations

import html
import json
from importlib.resources import files
from typing import Any

from attsvm.records import Raw

__all__ = ["assets", "badge", "document", "embed_json", "escape", "section"]

# Nothing may be fetched, from the network or the disk, whatever a name contains.
_POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'"
)


def assets(*names: str, package: str = "attsvm.reports") -> str:
    """Texts of style sheets or scripts of a package, one after the other.

    Examples
    --------
    >>> from attsvm.reports.markup import assets
    >>> "function node(" in assets("common.js", "page.js")
    True
    """
    return "".join(files(package).joinpath(name).read_text(encoding="utf-8") for name in names)


def document(title: str, body: str, *, style: str, script: str, data: Any) -> str:
    """A whole page with its style, script and data inside.

    Parameters
    ----------
    title : str
        Plain text.
    body : str
        HTML of the body.
    style, script : str
    data : object
        What the script finds as JSON in the element ``data``.

    Examples
    --------
    >>> from attsvm.reports.markup import document
    >>> page = document("a < b", "<main></main>", style="", script="", data={"x": 1})
    >>> "<title>a &lt; b</title>" in page, '{"x":1}' in page
    (True, True)
    """
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body>{body}"
        f'<script type="application/json" id="data">{embed_json(data)}</script>\n'
        f"<script>{script}</script></body></html>\n"
    )


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
