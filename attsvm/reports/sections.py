"""The sections of the page: tables and sentences that need no script."""

from __future__ import annotations

import math
from typing import Any

from attsvm.comparison import angle
from attsvm.comparison.tables import svm_name
from attsvm.records import Raw, Table
from attsvm.reports.markup import badge, escape
from attsvm.reports.solved import farkas_line, solutions_table
from attsvm.reports.trajectory import MOST_QUERIES, MOST_TOKENS
from attsvm.reports.words import WORDS

__all__ = ["degrees", "diagnosis", "graph", "solutions", "summary", "training", "words"]

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
