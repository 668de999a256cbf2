"""Small pieces of HTML, escaped.

The sections of the page: tables and sentences that need no script.

The page of a batch: what was found on all of it, and a line with a link for each of its problems.

The page: HTML around the content, with style, script and data inside, and nothing from the network.
"""

from __future__ import annotations

import html
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Unpack

from attsvm.comparison import angle
from attsvm.comparison.report import svm_name
from attsvm.problem import AttentionProblem
from attsvm.records import Raw, Table, atomic_write, environment
from attsvm.reports.content import MOST_QUERIES, MOST_TOKENS, ReportOptions, build_content
from attsvm.reports.solved import farkas_line, solutions_table
from attsvm.reports.verdicts import WORDS, ends_in_words, form_name, own_misalignment, page_verdict, some_uncovered

__all__ = [
    "assets",
    "badge",
    "batch_page_verdict",
    "degrees",
    "diagnosis",
    "document",
    "embed_json",
    "escape",
    "graph",
    "overview_record",
    "page_of",
    "render_overview",
    "render_page",
    "section",
    "solutions",
    "summary",
    "training",
    "words",
    "write_overview",
    "write_page",
    "write_report",
]


# Nothing may be fetched, from the network or the disk, whatever a name contains.
_POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'"
)


def assets(*names: str, package: str = "attsvm.reports") -> str:
    """Texts of style sheets or scripts of a package, one after the other.

    Examples
    --------
    >>> from attsvm.reports.page import assets
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
    >>> from attsvm.reports.page import document
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
    >>> from attsvm.reports.page import embed_json
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


# Rows of a table that are looked at; longer ones open with a summary and a click. And rows that a page holds at all.
_FEW_ROWS, _MOST_ROWS = 12, 2000


def _number(value: float | None, form: str = ".6g") -> str:
    return "-" if value is None else format(value, form)


def degrees(misalignment: float | None) -> str:
    """An angle as tables show it."""
    return "-" if misalignment is None else f"{float(angle(misalignment)):.2g}"


def _name(record: dict[str, Any]) -> str:
    return escape(svm_name(record["formulation"], record["norm_name"]))


def _cards(pairs: list[tuple[str, str]]) -> str:
    inside = "".join(f"<div><dt>{escape(name)}</dt><dd>{value}</dd></div>" for name, value in pairs)
    return f'<dl class="cards">{inside}</dl>'


def _queries(problem: dict[str, Any]) -> list[str]:
    if problem["K"] is None:
        return [str(i) for i in range(problem["n"])]
    return [f"{i}, {k}" for i in range(problem["n"]) for k in range(problem["K"])]


def _flat(selection: list[Any]) -> list[int]:
    return [t for row in selection for t in (row if isinstance(row, list) else [row])]


def summary(content: dict[str, Any]) -> str:
    """Sizes, head, and the selected tokens."""
    p = content["problem"]
    cards = [
        ("sequences", str(p["n"])),
        ("tokens each", str(p["T"])),
        *([("queries each", str(p["K"]))] if p["K"] is not None else []),
        ("token dimension", str(p["dx"])),
        ("query dimension", str(p["dz"])),
        ("constraints", f"{p['rows']:,}"),
        ("head", escape(p["head"] or "none")),
        ("mask", "yes" if p["masked"] else "no"),
    ]
    if "scores" not in p:
        return _cards(cards) + "<p>The problem has no head, so its tokens have no scores.</p>"
    chosen = _flat(p["selection"])
    what = "the tokens of highest score" if p["is_optimal"] else "given tokens, not all of highest score"
    text = f"<p>The solutions below are for {what}. A lead is the score's distance to the next best token."
    if p["ties"]:
        text += f" Tied for the highest score: {len(p['ties'])} queries."
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
    if len(chosen) <= _FEW_ROWS:
        return _cards(cards) + text + "</p>" + shown.html()
    details = f"<details><summary>All {len(rows):,} rows</summary>{shown.html()}</details>"
    return _cards([*cards, *_lead_cards(p["leads"], chosen, p.get("optimal"))]) + text + "</p>" + details


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


def words() -> str:
    """The glossary, folded."""
    inside = "".join(f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>" for word, meaning in WORDS.items())
    return f"<details><summary>What the words mean</summary><dl>{inside}</dl></details>"


def _support(record: dict[str, Any], q: int) -> str:
    return " ".join(map(str, record["support"][q])) if "support" in record else "-"


def solutions(content: dict[str, Any]) -> str:
    """Both norms side by side: numbers, certificate, singular values."""
    records = content["solutions"]
    found = solutions_table(records, "One certificate per solution, computed from the data alone")
    rows = []
    for name, *cells in found.rows:
        if name in ("status", "locally optimal"):
            cells = [cell and badge(cell) for cell in cells]
        if name != "milliseconds" and any(cells):  # a page of the same problem is the same page
            rows.append((name, *cells))
    parts = [Table(found.title, found.columns, rows, align="l" * len(found.columns)).html()]
    for record in records:
        if "farkas" in record:
            parts.append(f'<p class="note">{escape(farkas_line(record))}</p>')
        elif record["status"] != "optimal":
            parts.append(f'<p class="note">{_name(record)}: {escape(record["advice"])}</p>')
    bars = "".join(_bars(record) for record in records if "singular_values" in record)
    return "".join(parts) + (f'<div class="columns">{bars}</div>' if bars else "")


def _bars(record: dict[str, Any]) -> str:
    """Singular values of W on a logarithmic scale down to 1e-10 of the largest."""
    values = record["singular_values"][:40]
    top = values[0] or 1.0
    width, height, left, base = 460, 170, 46, 140
    step = (width - left - 10) / max(len(values), 1)
    drawn = []
    for decade in (0, -2, -4, -6, -8, -10):
        y = base - (decade + 10) / 10 * 124
        drawn.append(f'<line class="grid" x1="{left}" x2="{width - 8}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">1e{decade}</text>')
    for i, value in enumerate(values):
        share = max(0.0, (math.log10(max(value / top, 1e-30)) + 10) / 10)
        tall = max(124 * share, 0.8)
        drawn.append(
            f'<rect x="{left + i * step + 1:.1f}" y="{base - tall:.1f}" width="{max(step - 3, 1):.1f}" '
            f'height="{tall:.1f}" fill="var(--c0)"><title>{value:.6g}</title></rect>'
        )
    drawn.append(
        f'<text x="{(left + width) / 2:.0f}" y="{height - 8}" text-anchor="middle">singular value number</text>'
    )
    name = f"Singular values of the {_name(record)} solution, relative to the largest"
    return (
        f'<figure><figcaption>{escape(name)}</figcaption><svg viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(name)}">{"".join(drawn)}</svg></figure>'
    )


def training(content: dict[str, Any]) -> str:
    """Where the script draws, and a table that needs none."""
    if content["training_skipped"] is not None:
        return f'<p class="note">{escape(content["training_skipped"])}</p>'
    runs = content["runs"]
    rows = [
        (f"{run['parameterization']} ({run['optimizer']})", badge(run["convergence"]),
         f"{run['rank']} ({_number(run['effective_rank'], '.1f')})", c["label"],
         degrees(c["misalignment"][-1]), _number(c["misalignment"][-1], ".1e"),
         _number(c["margin"][-1], ".4f"), _number(c["rate"], ".2f"))
        for run in runs
        for c in run["comparisons"]
    ]  # fmt: skip
    heads = ["run", "ends", "rank (effective)", "against", "degrees", "1 - correlation", "margin reached", "rate"]
    choice = "".join(
        f'<label><input type="radio" name="run" value="{i}"{" checked" if i == 0 else ""}> '
        f"{run['parameterization']}</label>"
        for i, run in enumerate(runs)
    )
    plots = "".join(f'<figure id="plot-{i}"></figure>' for i in range(4))
    last = len(runs[0]["steps"]) - 1
    p = content["problem"]
    cut = ""
    if p["n"] * (p["K"] or 1) > MOST_QUERIES or p["T"] > MOST_TOKENS:
        shown = min(p["n"] * (p["K"] or 1), MOST_QUERIES), min(p["T"], MOST_TOKENS)
        cut = f" Shown are {shown[0]} queries and {shown[1]} of {p['T']} tokens, the selected ones always among them."
    return (
        "<p>Gradient descent against the SVMs. Global means that the run ends on the tokens of highest score, Local "
        "on other tokens that are locally optimal. &ldquo;Own tokens&rdquo; is the SVM of the tokens that the run "
        "selects itself, which theory says it follows.</p>"
        + Table("Where the runs end", heads, rows, align="llllrrrr").html()
        + "<noscript><p>The plots below need JavaScript, which is part of this file.</p></noscript>"
        f'<div class="controls"><fieldset><legend>Run</legend>{choice}</fieldset>'
        '<button type="button" id="play">Play</button><label for="scrubber">Step</label>'
        f'<input type="range" id="scrubber" min="0" max="{last}" value="{last}" step="1">'
        '<output id="step" for="scrubber"></output></div>'
        '<dl class="cards" id="readout"></dl>'
        f'<div class="columns">{plots}</div>'
        f"<h3>Attention at this step, in percent</h3><p>Outlined: the token that the solutions select.{cut}</p>"
        '<div class="maps scroll" id="maps"></div>'
    )


def diagnosis(content: dict[str, Any]) -> str:
    """Predictions first, then theorems and assumptions."""
    found = content["diagnosis"]
    said = "".join(
        f"<p><strong>{escape(name)}</strong>: {escape(text)}</p>" for name, text in found["prediction"].items()
    )
    theorems = [(t["name"], badge(t["verdict"]), t["detail"]) for t in found["theorems"]]
    checks = [(c["name"], badge(c["verdict"]), c["detail"]) for c in found["checks"]]
    judged = Table("Theorems, with corrected hypotheses", ("statement", "verdict", "because"), theorems, align="lll")
    assumed = Table(f"Assumptions ({found['norm']} norm)", ("assumption", "verdict", "because"), checks, align="lll")
    tables = (judged, assumed) if theorems else (assumed,)
    return said + "".join(table.html() for table in tables)


def graph(content: dict[str, Any]) -> str:
    """Where the script draws the graph, and the list of local optima."""
    found = content["graph"]
    if "skipped" in found:
        return (
            f'<p class="note">{escape(found["skipped"])} <code>attsvm enumerate FILE --top 5</code> lists the best.</p>'
        )
    rows = [
        (Raw(f'<span class="swatch" style="background: var(--c{item["colour"]})"></span>{escape(item["tokens"])}'),
         f"{item['margin']:.6f}", f"{item['score']:+.4f}", "yes" if item["globally_optimal"] else "",
         f"{item['reaching']:,}", f"{item['only']:,}")
        for item in found["optima"]
    ]  # fmt: skip
    caption = "Locally optimal selections by margin"
    if found["local_optima"] > len(rows):
        caption += f" (the first {len(rows)} of {found['local_optima']})"
    heads = ["tokens", "margin", "mean score", "highest scores", "selections that can reach it", "and nothing else"]
    drawn = ""
    if len(found["edges"]) < found["edge_count"]:
        drawn = f" Of its {found['edge_count']:,} swaps the {len(found['edges']):,} into local optima are drawn."
    return (
        f"<p>All {len(found['nodes']):,} selections of one token per query. A line is a swap of one token for a "
        "support token of higher score; where no swap is left, a selection is locally optimal: a candidate limit of "
        "training. Star: highest scores. Squares: other local optima. Crosses: infeasible. Colour: the only local "
        f"optimum that swaps lead to.{drawn}</p>"
        '<p id="graph-choice"></p><div id="graph"></div><p class="soft" id="graph-here"></p>'
        + Table(caption, heads, rows, align="lrrlrr").html()
    )


def page_of(out: Path, problem: int) -> Path:
    """Where the page of one problem stands: beside the page of the batch.

    Examples
    --------
    >>> from pathlib import Path
    >>> from attsvm.reports.page import page_of
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
    >>> from attsvm.reports.page import overview_record
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
    >>> from attsvm.reports.page import batch_page_verdict
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
    >>> from attsvm.reports.page import overview_record, render_overview
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
