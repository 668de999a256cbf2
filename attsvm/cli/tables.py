"""Tables of solutions (rich)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from rich.table import Table

import attsvm

__all__ = ["farkas_line", "solutions_table", "support_table", "title"]


def title(record: dict[str, Any]) -> str:
    """Name of a solved problem: Att-SVM, Att-SVM*, SAtt-SVM, ...

    Examples
    --------
    >>> from attsvm.cli.tables import title
    >>> title({"formulation": "Att-SVM", "norm_name": "nuclear"})
    'Att-SVM*'
    """
    return str(record["formulation"]) + ("*" if record["norm_name"] == "nuclear" else "")


def _power(value: float | None) -> str:
    if value is None:
        return "-"
    return "full rank" if value == float("inf") else f"{value:.0e}"


_LINES: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("status", lambda r: r["status"]),
    ("norm", lambda r: f"{r['norm']:.6f}"),
    ("margin = 1 / norm", lambda r: f"{r['margin']:.6f}"),
    ("numerical rank", lambda r: str(r["rank"])),
    ("certified rank", lambda r: str(r["certificate"].get("rank", "-"))),
    ("singular-value gap", lambda r: _power(r["certificate"].get("singular_gap"))),
    ("support tokens", lambda r: str(sum(map(len, r["support"])))),
    ("locally optimal", lambda r: {True: "yes", False: "no", None: "undecided"}[r["locally_optimal"]]),
    ("relative duality gap", lambda r: f"{r['certificate']['gap']:.0e}"),
    ("primal violation", lambda r: f"{r['certificate']['primal_violation']:.0e}"),
    ("dual violation", lambda r: f"{r['certificate']['dual_violation']:.0e}"),
    ("solver", lambda r: r["solver"]),
    ("milliseconds", lambda r: f"{1e3 * r['seconds']:.1f}"),
)


def solutions_table(records: list[dict[str, Any]], heading: str) -> Table:
    """One column per solution; a dash where something is not defined."""
    table = Table(title=heading)
    table.add_column("")
    for record in records:
        table.add_column(f"{title(record)} ({record['norm_name']})", justify="right")
    for name, show in _LINES:
        cells = []
        for record in records:
            try:
                cells.append(show(record))
            except KeyError:  # not defined without a solution
                cells.append("-")
        table.add_row(name, *cells)
    return table


def support_table(
    problem: attsvm.AttentionProblem, selection: attsvm.Selection, records: list[dict[str, Any]], most: int = 40
) -> Table:
    """Selected token, score and support of each query; the first ``most`` of them."""
    multi = problem.multi_query
    indices = selection.indices
    scores = None if problem.head is None else problem.scores()
    table = Table(title="Tokens per query" if multi else "Tokens per sequence")
    table.add_column("sequence, query" if multi else "sequence", justify="right")
    for name in ("selected", "score"):
        table.add_column(name, justify="right")
    for record in records:
        table.add_column(f"support ({record['norm_name']})")
    for flat, place in enumerate(np.ndindex(indices.shape)):
        if flat == most:
            table.add_row("...", "", f"{indices.size - most} more", *([""] * len(records)))
            break
        score = "-" if scores is None else f"{scores[(*place, indices[place])]:+.4f}"
        supports = [" ".join(map(str, record["support"][flat])) for record in records]
        table.add_row(", ".join(map(str, place)), str(indices[place]), score, *supports)
    return table


def farkas_line(record: dict[str, Any], advice: str) -> str:
    """What the proof of infeasibility says."""
    farkas = record["farkas"]
    return (
        f"{title(record)} is infeasible: sequences {farkas['sequences']} conflict. The combination of their "
        f"rows cancels to {farkas['residual']:.0e}, so no W of norm below {farkas['excluded_norm']:.0e} "
        f"satisfies them. {advice}"
    )
