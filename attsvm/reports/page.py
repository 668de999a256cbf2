"""The page: HTML around the content, with style, script and data inside, and nothing from the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

from attsvm.problem import AttentionProblem
from attsvm.records import atomic_write, environment
from attsvm.reports.content import ReportOptions, build_content
from attsvm.reports.markup import assets, document, escape, section
from attsvm.reports.sections import diagnosis, graph, solutions, summary, training, words
from attsvm.reports.verdict import page_verdict

__all__ = ["render_page", "write_page", "write_report"]

_FOR_SCRIPT = ("selection", "K", "allowed")


def render_page(content: dict[str, Any]) -> str:
    """HTML of a report.

    Parameters
    ----------
    content : dict
        From `build_content`.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.reports import build_content, render_page
    >>> page = render_page(build_content(attsvm.random_problem(n=2, T=3, d=4, seed=0), steps=0))
    >>> page.startswith("<!DOCTYPE html>"), "http://" in page.replace("http://www.w3.org/2000/svg", "")
    (True, False)
    """
    style, script = assets("page.css"), assets("common.js", "page.js")
    data = {
        "problem": {name: content["problem"][name] for name in _FOR_SCRIPT},
        "runs": content["runs"],
        "graph": content["graph"],
    }
    parts = {
        "summary": ("Problem", summary(content)),
        "solutions": ("Solutions and certificates", solutions(content)),
        "training": ("Training", training(content)),
        "diagnosis": ("What theory says", diagnosis(content)),
        "graph-section": ("Local optima", graph(content)),
        "words": ("Words", words()),
    }
    links = "".join(f'<li><a href="#{key}">{escape(title)}</a></li>' for key, (title, _) in parts.items())
    body = "".join(section(key, title, html) for key, (title, html) in parts.items())
    settings = content["settings"]
    page = (
        f'<header><h1>{escape(content["name"])}</h1><p class="soft">Softmax attention as a max-margin machine: what '
        f'the SVM predicts, and what training does.</p><p class="verdict">{escape(page_verdict(content))}</p>'
        f'<nav aria-label="Sections"><ul>{links}</ul></nav></header>'
        f"<main>{body}</main><footer><p>Made by <code>attsvm report</code> with {settings['steps']} training steps, "
        f"seed {settings['seed']}. {escape(environment(content['versions']))}.</p><p>Next: <code>attsvm enumerate FILE "
        "--top 5</code> lists where training can end; <code>attsvm diagnose FILE</code> says why.</p></footer>"
    )
    title = f"{content['name']}: attention as a max-margin machine"
    return document(title, page, style=style, script=script, data=data)


def write_report(problem: AttentionProblem, path: str | Path, **options: Unpack[ReportOptions]) -> None:
    """Write one HTML page about a problem, atomically.

    Parameters
    ----------
    problem : AttentionProblem
    path : str or Path
    **options
        Of `build_content`: selection, steps, seed, device, graph_limit, name, progress.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import attsvm
    >>> from attsvm.reports import write_report
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_report(attsvm.random_problem(n=2, T=3, d=4, seed=0), Path(folder) / "report.html", steps=0)
    ...     "certificate" in (Path(folder) / "report.html").read_text()
    True
    """
    write_page(path, build_content(problem, **options))


def write_page(path: str | Path, content: dict[str, Any]) -> None:
    """Write the page of a content from `build_content`, atomically."""
    page = render_page(content)
    with atomic_write(path) as file:
        file.write(page.encode())
