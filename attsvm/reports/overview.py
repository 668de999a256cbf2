"""The page of a batch: what was found on all of it, and a line with a link for each of its problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from attsvm.records import Raw, Table, atomic_write, environment
from attsvm.reports.markup import badge, document, escape, section
from attsvm.reports.sections import degrees, words
from attsvm.reports.verdict import ends_in_words, form_name, own_misalignment, some_uncovered

__all__ = ["batch_page_verdict", "overview_record", "page_of", "render_overview", "write_overview"]


def page_of(out: Path, problem: int) -> Path:
    """Where the page of one problem stands: beside the page of the batch.

    Examples
    --------
    >>> from pathlib import Path
    >>> from attsvm.reports.overview import page_of
    >>> page_of(Path("report.html"), 2).name
    'report-2.html'
    """
    return out.with_name(f"{out.stem}-{problem}{out.suffix}")


def overview_record(content: Mapping[str, Any]) -> dict[str, Any]:
    """What the page of a batch says of one problem, from the content of the problem's own page.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.reports import build_content
    >>> from attsvm.reports.overview import overview_record
    >>> record = overview_record(build_content(attsvm.random_problem(n=2, T=3, d=4, seed=0), steps=0))
    >>> record["solutions"][0]["status"], record["local_optima"]
    ('optimal', 1)
    """
    return {
        "solutions": [
            {"norm_name": s["norm_name"], "status": s["status"], "margin": s.get("margin")}
            for s in content["solutions"]
        ],
        "runs": [
            {"parameterization": run["parameterization"], "status": run["status"], "convergence": run["convergence"],
             "uncovered": run["uncovered"], "misalignment": own_misalignment(run)}
            for run in content["runs"]
        ],
        "local_optima": content["graph"].get("local_optima"),
        "applies": list(content["diagnosis"]["applies"]),
        "versions": content["versions"],
        "settings": content["settings"],
    }  # fmt: skip


def batch_page_verdict(records: Sequence[Mapping[str, Any]]) -> str:
    """One sentence about the solutions of a batch, and one about each kind of training.

    Examples
    --------
    >>> from attsvm.reports.overview import batch_page_verdict
    >>> solved = {"solutions": [{"norm_name": "frobenius", "status": "optimal", "margin": 0.5}], "runs": []}
    >>> batch_page_verdict([solved, solved])
    'One W selects these tokens, proved optimal, in 2 of 2 problems.'
    """
    proved = sum(all(s["status"] == "optimal" for s in record["solutions"]) for record in records)
    said = [f"One W selects these tokens, proved optimal, in {proved} of {len(records)} problems."]
    for k, run in enumerate(records[0]["runs"]):
        ends = Counter(str(record["runs"][k]["convergence"]) for record in records)
        why = some_uncovered(record["runs"][k]["uncovered"] for record in records)
        said.append(f"Training {form_name(run['parameterization'])} {ends_in_words(ends, why)}.")
    return " ".join(said)


def _table(records: Sequence[Mapping[str, Any]], links: Sequence[str]) -> Table:
    first = records[0]
    columns = [
        "problem",
        *(f"{s['norm_name']} margin" for s in first["solutions"]),
        *(head for run in first["runs"] for head in (f"{run['parameterization']} ends", "degrees")),
        "local optima",
        "applies",
    ]
    rows = []
    for k, (record, link) in enumerate(zip(records, links, strict=True)):
        margins = [f"{s['margin']:.4f}" if s["margin"] is not None else badge(s["status"]) for s in record["solutions"]]
        runs = [cell for run in record["runs"] for cell in (badge(run["convergence"]), degrees(run["misalignment"]))]
        optima = "-" if record["local_optima"] is None else record["local_optima"]
        name = Raw(f'<a href="{escape(link)}">{k}</a>')
        rows.append((name, *margins, *runs, optima, ", ".join(record["applies"]) or "no theorem"))
    align = "r" + "r" * len(first["solutions"]) + "lr" * len(first["runs"]) + "rl"
    return Table("One line per problem; its number opens its own page", columns, rows, align=align)


def render_overview(name: str, records: Sequence[Mapping[str, Any]], links: Sequence[str]) -> str:
    """HTML of the page of a batch.

    Parameters
    ----------
    name : str
        What the page calls the batch.
    records : sequence of dict
        From `overview_record`, one per problem.
    links : sequence of str
        Addresses of the problems' own pages, beside this one.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.reports import build_content
    >>> from attsvm.reports.overview import overview_record, render_overview
    >>> record = overview_record(build_content(attsvm.random_problem(n=2, T=3, d=4, seed=0), steps=0))
    >>> '<a href="report-0.html">0</a>' in render_overview("two", [record], ["report-0.html"])
    True
    """
    style = files("attsvm.reports").joinpath("page.css").read_text(encoding="utf-8")
    settings = records[0]["settings"]
    body = (
        f'<header><h1>{escape(name)}</h1><p class="soft">A batch of {len(records)} problems of softmax attention as a '
        f'max-margin machine.</p><p class="verdict">{escape(batch_page_verdict(records))}</p></header><main>'
        f"{section('problems', 'Problems', _table(records, links).html())}{section('words', 'Words', words())}</main>"
        f"<footer><p>Made by <code>attsvm report</code> with {settings['steps']} training steps, seed "
        f"{settings['seed']}. {escape(environment(records[0]['versions']))}.</p></footer>"
    )
    return document(f"{name}: a batch of {len(records)} problems", body, style=style, script="", data={})


def write_overview(out: Path, name: str, records: Sequence[Mapping[str, Any]]) -> None:
    """Write the page of a batch, atomically; the problems' own pages stand where `page_of` says."""
    page = render_overview(name, records, [page_of(out, k).name for k in range(len(records))])
    with atomic_write(out) as file:
        file.write(page.encode())
