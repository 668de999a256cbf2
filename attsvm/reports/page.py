"""The page about a problem, and the page of a batch with a line and a link for each of its problems.

This module prepares tables and numbers; the templates ``report.html`` and ``overview.html`` write them, with style,
script and data inside and nothing from the network. Tables and sentences need no script.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from attsvm.comparison import angle
from attsvm.problem import AttentionProblem
from attsvm.records import Raw, Table, atomic_write, environment, html_page, html_piece
from attsvm.reports.content import (
    MOST_QUERIES,
    MOST_TOKENS,
    ReportOptions,
    build_content,
    farkas_line,
    name_of,
    solutions_table,
)
from attsvm.reports.verdicts import WORDS, ends_in_words, form_name, own_misalignment, page_verdict, some_uncovered

# Rows of a table that are looked at; longer ones open with a summary and a click. And rows that a page holds at all.
_FEW_ROWS, _MOST_ROWS = 12, 2000
_MOST_SINGULAR_VALUES = 40
_FOR_SCRIPT = ("selection", "K", "allowed")


# -- the page of one problem -------------------------------------------------------------------------------------------


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
    >>> page.startswith("<!DOCTYPE html>"), "src=" in page
    (True, False)
    """
    spectra = [
        {"name": name_of(record), "values": record["singular_values"][:_MOST_SINGULAR_VALUES]}
        for record in content["solutions"]
        if "singular_values" in record
    ]
    data = {
        "problem": {name: content["problem"][name] for name in _FOR_SCRIPT},
        "spectra": spectra,
        "runs": content["runs"],
        "graph": content["graph"],
    }
    return html_page(
        "report.html",
        title=f"{content['name']}: attention as a max-margin problem",
        name=content["name"],
        verdict=page_verdict(content),
        summary=_summary(content),
        solutions=_solutions(content),
        training=_training(content),
        diagnosis=_diagnosis(content),
        optima=_optima(content["graph"]),
        meanings=WORDS,
        data=data,
        settings=content["settings"],
        environment=environment(content["versions"]),
    )


def _summary(content: dict[str, Any]) -> dict[str, Any]:
    """Sizes, head, and the selected tokens."""
    p = content["problem"]
    cards = [
        ("sequences", str(p["n"])),
        ("tokens each", str(p["T"])),
        *([("queries each", str(p["K"]))] if p["K"] is not None else []),
        ("token dimension", str(p["dx"])),
        ("query dimension", str(p["dz"])),
        ("constraints", f"{p['rows']:,}"),
        ("head", p["head"] or "none"),
        ("mask", "yes" if p["masked"] else "no"),
    ]
    if "scores" not in p:
        return {"cards": cards, "table": None}
    chosen = _flat(p["selection"])
    queries = _queries(p)
    rows = [
        (queries[q], f"{p['labels'][q]:+d}", chosen[q], f"{p['scores'][q]:+.4f}", _number(p["leads"][q], "+.4f"),
         *(_support(record, q) for record in content["solutions"]))
        for q in range(min(len(chosen), _MOST_ROWS))
    ]  # fmt: skip
    heads = ["query" if p["K"] is not None else "sequence", "label", "selected", "score", "lead",
             *(f"support ({r['norm_name']})" for r in content["solutions"])]  # fmt: skip
    caption = "Selected tokens" + (f" (the first {_MOST_ROWS} of {len(chosen)})" if len(chosen) > _MOST_ROWS else "")
    shown = Table(caption, heads, rows, align="lrrrr" + "l" * len(content["solutions"]))
    folded = len(chosen) > _FEW_ROWS
    if folded:
        cards += _lead_cards(p["leads"], chosen, p.get("optimal"))
    return {
        "cards": cards, "table": shown, "folded": folded, "is_optimal": p["is_optimal"], "ties": len(p["ties"]),
    }  # fmt: skip


def _lead_cards(leads: list[float | None], chosen: list[int], optimal: list[int] | None) -> list[tuple[str, str]]:
    """Many queries in a few numbers: how far ahead the selected tokens are, and where it is closest."""
    known = sorted((lead, q) for q, lead in enumerate(leads) if lead is not None)
    cards = [("different tokens selected", f"{len(set(chosen)):,}")]
    if optimal is not None:
        best = sum(a == b for a, b in zip(chosen, optimal, strict=True))
        cards.append(("selected token has the highest score", f"{best:,} of {len(chosen):,}"))
    if known:
        least, query = known[0]
        middle = known[len(known) // 2][0]
        cards += [("smallest lead", f"{least:+.3g} (query {query})"), ("median lead", f"{middle:+.3g}")]
    return cards


def _queries(problem: dict[str, Any]) -> list[str]:
    if problem["K"] is None:
        return [str(i) for i in range(problem["n"])]
    return [f"{i}, {k}" for i in range(problem["n"]) for k in range(problem["K"])]


def _flat(selection: list[Any]) -> list[int]:
    return [t for row in selection for t in (row if isinstance(row, list) else [row])]


def _support(record: dict[str, Any], q: int) -> str:
    return " ".join(map(str, record["support"][q])) if "support" in record else "-"


def _solutions(content: dict[str, Any]) -> dict[str, Any]:
    """Both norms side by side, and what is to be said of one that is not optimal."""
    records = content["solutions"]
    found = solutions_table(records, "One certificate per solution, computed from the data alone")
    rows = []
    for name, *cells in found.rows:
        if name in ("status", "locally optimal"):
            cells = [cell and _badge(cell) for cell in cells]
        if name != "milliseconds" and any(cells):  # a page of the same problem is the same page
            rows.append((name, *cells))
    notes = []
    for record in records:
        if "farkas" in record:
            notes.append(farkas_line(record))
        elif record["status"] != "optimal":
            notes.append(f"{name_of(record)}: {record['advice']}")
    return {"table": Table(found.title, found.columns, rows, align="l" * len(found.columns)), "notes": notes}


def _training(content: dict[str, Any]) -> dict[str, Any]:
    """Where the runs end, and how much of their attention is drawn."""
    if content["training_skipped"] is not None:
        return {"skipped": content["training_skipped"]}
    rows = [
        (f"{run['parameterization']} ({run['optimizer']})", _badge(run["convergence"]),
         f"{run['rank']} ({_number(run['effective_rank'], '.1f')})", c["label"],
         _degrees(c["misalignment"][-1]), _number(c["misalignment"][-1], ".1e"),
         _number(c["margin"][-1], ".4f"), _number(c["rate"], ".2f"))
        for run in content["runs"]
        for c in run["comparisons"]
    ]  # fmt: skip
    heads = ["run", "ends", "rank (effective)", "against", "degrees", "1 - correlation", "margin reached", "rate"]
    p = content["problem"]
    queries = p["n"] * (p["K"] or 1)
    shown = None
    if queries > MOST_QUERIES or p["T"] > MOST_TOKENS:
        shown = {"queries": min(queries, MOST_QUERIES), "tokens": min(p["T"], MOST_TOKENS), "of": p["T"]}
    return {"skipped": None, "table": Table("Where the runs end", heads, rows, align="llllrrrr"), "shown": shown}


def _diagnosis(content: dict[str, Any]) -> dict[str, Any]:
    """Predictions first, then theorems and assumptions."""
    found = content["diagnosis"]
    theorems = [(t["name"], _badge(t["verdict"]), t["detail"]) for t in found["theorems"]]
    checks = [(c["name"], _badge(c["verdict"]), c["detail"]) for c in found["checks"]]
    judged = Table("Theorems, with corrected hypotheses", ("statement", "verdict", "because"), theorems, align="lll")
    assumed = Table(f"Assumptions ({found['norm']} norm)", ("assumption", "verdict", "because"), checks, align="lll")
    return {"prediction": found["prediction"], "tables": (judged, assumed) if theorems else (assumed,)}


def _optima(found: dict[str, Any]) -> Table | None:
    """The list of local optima; None where no graph was drawn."""
    if "skipped" in found:
        return None
    rows = [
        (html_piece("swatch", item["colour"], item["tokens"]),
         f"{item['margin']:.6f}", f"{item['score']:+.4f}", "yes" if item["globally_optimal"] else "",
         f"{item['reaching']:,}", f"{item['only']:,}")
        for item in found["optima"]
    ]  # fmt: skip
    caption = "Locally optimal selections by margin"
    if found["local_optima"] > len(rows):
        caption += f" (the first {len(rows)} of {found['local_optima']})"
    heads = ["tokens", "margin", "mean score", "highest scores", "selections that can reach it", "and nothing else"]
    return Table(caption, heads, rows, align="lrrlrr")


# -- the page of a batch -----------------------------------------------------------------------------------------------


def page_of(out: Path, problem: int) -> Path:
    """Where the page of one problem stands: beside the page of the batch.

    Examples
    --------
    >>> from pathlib import Path
    >>> page_of(Path("report.html"), 2).name
    'report-2.html'
    """
    return out.with_name(f"{out.stem}-{problem}{out.suffix}")


def write_overview(out: Path, name: str, records: Sequence[Mapping[str, Any]]) -> None:
    """Write the page of a batch, atomically; the problems' own pages stand where `page_of` says."""
    page = render_overview(name, records, [page_of(out, k).name for k in range(len(records))])
    with atomic_write(out) as file:
        file.write(page.encode())


def overview_record(content: Mapping[str, Any]) -> dict[str, Any]:
    """What the page of a batch says of one problem, from the content of the problem's own page.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.reports import build_content
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
    >>> record = overview_record(build_content(attsvm.random_problem(n=2, T=3, d=4, seed=0), steps=0))
    >>> '<a href="report-0.html">0</a>' in render_overview("two", [record], ["report-0.html"])
    True
    """
    return html_page(
        "overview.html",
        title=f"{name}: a batch of {len(records)} problems",
        name=name,
        verdict=batch_page_verdict(records),
        problems=_table(records, links),
        meanings=WORDS,
        settings=records[0]["settings"],
        environment=environment(records[0]["versions"]),
    )


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
        margins = [
            f"{s['margin']:.4f}" if s["margin"] is not None else _badge(s["status"]) for s in record["solutions"]
        ]
        runs = [cell for run in record["runs"] for cell in (_badge(run["convergence"]), _degrees(run["misalignment"]))]
        optima = "-" if record["local_optima"] is None else record["local_optima"]
        name = html_piece("link", link, k)
        rows.append((name, *margins, *runs, optima, ", ".join(record["applies"]) or "no theorem"))
    align = "r" + "r" * len(first["solutions"]) + "lr" * len(first["runs"]) + "rl"
    return Table("One line per problem; its number opens its own page", columns, rows, align=align)


# -- cells of both -----------------------------------------------------------------------------------------------------


def _badge(verdict: str) -> Raw:
    """A word in a colour of its own; the word alone says all."""
    good = {"holds", "applies", "optimal", "yes", "Global", "finished"}
    bad = {"fails", "infeasible", "failed", "no", "Not local", "not finite"}
    kind = "good" if verdict in good else "bad" if verdict in bad else "plain"
    return html_piece("badge", verdict, kind)


def _number(value: float | None, form: str = ".6g") -> str:
    return "-" if value is None else format(value, form)


def _degrees(misalignment: float | None) -> str:
    """An angle as tables show it."""
    return "-" if misalignment is None else f"{float(angle(misalignment)):.2g}"
