"""Results of the benchmark as tables, records and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from attsvm.validation.bench.judge import Line, Result, Spread

__all__ = ["as_record", "as_table", "as_verdicts", "draw_growth"]

_COLUMNS = ("gap", "seconds", "ratio", "memory")


def _time(seconds: float) -> str:
    if seconds != seconds:
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _one(name: str, value: float) -> str:
    if value != value:
        return "-"
    if name == "gap":
        return f"{value:.0e}"
    if "seconds" in name or name.endswith(" rows"):
        return _time(value)
    if name == "memory":
        return f"{value / 2**20:.0f} MiB"
    return f"{value:.3g}x" if name == "ratio" else f"{value:.3g}"


def _cell(name: str, found: Spread | None) -> str:
    """Median with the range of the draws."""
    if found is None:
        return "-"
    middle, low, high = (_one(name, v) for v in (found.median, found.low, found.high))
    return middle if low == high else f"{middle} ({low} to {high})"


def _row(line: Line) -> list[str]:
    more = [f"{name} {_cell(name, found)}" for name, found in line.numbers.items() if name not in _COLUMNS]
    return [line.name, *(_cell(name, line.numbers.get(name)) for name in _COLUMNS), "; ".join(more)]


def as_table(results: Sequence[Result]) -> Table:
    """One section per case, one row per solver that has numbers.

    Examples
    --------
    >>> from attsvm.validation.bench.judge import Line, Result, Spread
    >>> from attsvm.validation.bench.show import as_table
    >>> as_table([Result("x", "work", (Line("ours", {"seconds": Spread((1.0, 2.0, 3.0))}),))]).row_count
    1
    """
    table = Table(title="medians over the draws (smallest to largest)", box=box.SIMPLE, width=180)
    for name in ("work", "solver", "gap", "time per problem", "ratio", "peak memory", "more"):
        table.add_column(name)
    for result in results:
        for k, line in enumerate(line for line in result.lines if line.numbers):
            table.add_row("" if k else f"{result.case}: {result.title}", *_row(line))
        table.add_section()
    return table


def as_verdicts(results: Sequence[Result]) -> list[str]:
    """One line per goal.

    Examples
    --------
    >>> from attsvm.validation.bench.judge import Result, Verdict
    >>> from attsvm.validation.bench.show import as_verdicts
    >>> as_verdicts([Result("x", "", (), (Verdict("fast", 1.25, False), Verdict("small", None, None)))])
    ['MISSED     x: fast (1.25)', 'not judged x: small']
    """
    words = {True: "ok", False: "MISSED", None: "not judged"}
    return [
        f"{words[v.met]:10s} {result.case}: {v.text}" + ("" if v.value is None else f" ({v.value:.3g})")
        for result in results
        for v in result.verdicts
    ]


def as_record(results: Sequence[Result]) -> list[dict[str, Any]]:
    """What ``--json`` prints: every draw of every number.

    Examples
    --------
    >>> from attsvm.validation.bench.judge import Line, Result, Spread
    >>> from attsvm.validation.bench.show import as_record
    >>> as_record([Result("x", "work", (Line("ours", {"ratio": Spread((2.0,))}),))])[0]["lines"][0]["ratio"]
    {'median': 2.0, 'low': 2.0, 'high': 2.0, 'draws': [2.0]}
    """

    def numbers(line: Line) -> dict[str, Any]:
        return {
            name: {"median": s.median, "low": s.low, "high": s.high, "draws": list(s.values)}
            for name, s in line.numbers.items()
        }

    return [
        {
            "case": result.case,
            "title": result.title,
            "lines": [{"name": line.name, "note": line.note, **numbers(line)} for line in result.lines],
            "goals": [{"text": v.text, "value": v.value, "met": v.met} for v in result.verdicts],
        }
        for result in results
    ]


def draw_growth(path: Path, result: Result) -> None:
    """Time against rows with the fitted power, written to ``path``."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    numbers = dict(result.lines[0].numbers)
    exponent = numbers.pop("exponent").median
    rows = np.array([int(name.split()[0]) for name in numbers])
    seconds = np.array([s.median for s in numbers.values()])
    figure, axis = plt.subplots(figsize=(5.5, 4), layout="constrained")
    axis.loglog(rows, seconds, "o-", label="attsvm, certificate included")
    axis.loglog(rows, seconds[0] * (rows / rows[0]) ** exponent, "--", color="0.5", label=f"fitted rows^{exponent:.2f}")
    axis.set(xlabel="rows", ylabel="seconds", title="Frobenius solve, T = 64, d = 512")
    axis.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)
