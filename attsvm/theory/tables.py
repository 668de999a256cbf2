"""Diagnoses and tallies as plain text."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np

from attsvm.records import Table, render

if TYPE_CHECKING:
    from attsvm.theory.attraction import Attraction
    from attsvm.theory.check import Check
    from attsvm.theory.diagnose import Diagnosis

__all__ = ["attraction_text", "diagnosis_tables", "diagnosis_text"]

_WIDTH = 118


def _check_table(title: str, first: str, checks: tuple[Check, ...]) -> Table:
    rows = [(check.name, check.verdict, check.detail) for check in checks]
    return Table(title, (first, "verdict", "because"), rows, align="LLl")


def _short(indices: object) -> str:
    return str(np.asarray(indices).tolist()).replace(" ", "")


def diagnosis_tables(diagnosis: Diagnosis) -> tuple[Table, ...]:
    """Assumptions, and theorems where there are labels to state them for."""
    p = diagnosis.problem
    size = f"n={p.n}, T={p.T}, dx={p.dx}, dz={p.dz}" + (f", K={p.K}" if p.multi_query else "")
    chosen = _short(diagnosis.selection.indices)
    where = chosen if len(chosen) <= 40 else "given"
    title = f"Assumptions ({size}, {diagnosis.norm} norm, selection {where})"
    return (
        _check_table(title, "assumption", diagnosis.checks),
        *(
            [_check_table("Theorems, with corrected hypotheses", "statement", diagnosis.theorems)]
            if diagnosis.theorems
            else []
        ),
    )


def diagnosis_text(diagnosis: Diagnosis) -> str:
    """Two tables, assumptions and theorems, and the prediction."""
    parts = [
        *(render(table, _WIDTH) for table in diagnosis_tables(diagnosis)),
        *(
            textwrap.fill(f"{name}: {text}", _WIDTH, subsequent_indent="  ")
            for name, text in diagnosis.prediction.items()
        ),
    ]
    return "\n".join(line.rstrip() for line in "\n".join(parts).splitlines())


def _rank_correlation(value: float) -> str:
    return "" if np.isnan(value) else f"; Spearman correlation of starts with margin {value:.2f}"


def attraction_text(found: Attraction, most: int = 20) -> str:
    """The most frequent selections, exceptions, and the rank correlation with the margin."""
    run = found.run
    title = f"{found.starts} starts, {run.parameterization}, {run.options.steps} steps, {found.norm} supports"
    rows = [
        (
            _short(row.selection.indices),
            row.count,
            f"{100 * row.share:.1f} % ({100 * row.interval[0]:.1f}-{100 * row.interval[1]:.1f})",
            f"{row.margin:.4g}" if row.feasible else "infeasible",
            f"{row.score:.4g}",
            row.kind,
            row.unsaturated,
        )
        for row in found.rows[:most]
    ]
    columns = ("selection", "starts", "share (95 %)", "margin", "mean score", "kind", "unsaturated")
    lines = [str(Table(title, columns, rows, align="lrLrrLr"))]
    if len(found.rows) > most:
        lines.append(f"and {len(found.rows) - most} more selections")
    kinds = ", ".join(f"{kind} {count}" for kind, count in found.counts.items())
    lines.append(f"ends: {kinds}{_rank_correlation(found.spearman)}")
    for row in found.exceptions[:5]:
        starts = ", ".join(map(str, row.examples))
        state = f"{row.unsaturated} of {row.count} not saturated yet"
        lines.append(f"exception {_short(row.selection.indices)}: starts {starts}; {state}")
    return "\n".join(line.rstrip() for line in "\n".join(lines).splitlines())
