"""Every public function with all pairs of its options, judged by separate arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.sweeps import columns_of
from attsvm.validation.figures.framework import Context, Figure, Outcome, Table

__all__ = ["FIGURE", "judge_function", "run"]

_SHOWN = 40


def judge_function(trials: int, seed: int, *, function: str, most: int) -> dict[str, Any]:
    """Combinations tried, refused as documented and failed, for coverings of one function, one row each.

    Examples
    --------
    >>> from attsvm.validation.figures.own.matrix import judge_function
    >>> found = judge_function(1, 0, function="attsvm.export.factor", most=2)
    >>> found["combinations"], found["failed"]
    ([2], [0])
    """
    from attsvm.validation.matrix_calls import judge, rows_of  # loads torch, which a list of figures must not

    rows = []
    for covering in range(trials):
        own = seed + covering
        chosen = rows_of(function, own)
        # A sample is spread over the whole covering, whose first rows vary the first axes.
        picked = np.unique(np.linspace(0, len(chosen) - 1, min(most, len(chosen))).round().astype(int))
        judged = [judge(function, chosen[k], own) for k in picked]
        bad = [one for one in judged if one.faults]
        rows.append({
            "combinations": len(judged), "refused": sum(one.refused for one in judged), "failed": len(bad),
            "work": max(one.work for one in judged), "took": sum(one.seconds for one in judged),
            "faults": "\n".join(f"{one.row}: {'; '.join(one.faults[:2])} (seed {own})" for one in bad),
        })  # fmt: skip
    return columns_of(rows)


def run(context: Context) -> Outcome:
    """Counts per function, and every failure with its combination."""
    from attsvm.validation.matrix_calls import CASES, public_functions

    missing = [name for name in public_functions() if name not in CASES]
    grid = {"function": list(CASES), "most": [context.settings["most"]]}
    found = context.sweep(judge_function, grid, chunk=1, name="matrix")
    rows: list[tuple[object, ...]] = []
    faults: list[str] = []
    for cell, columns in found:
        name = cell["function"].removeprefix("attsvm.")
        counts = [int(columns[key].sum()) for key in ("combinations", "refused", "failed")]
        rows.append((name, len(CASES[cell["function"]].axes), *counts, int(columns["work"].max()),
                     f"{columns['took'].sum():.1f}"))  # fmt: skip
        faults += [f"{name}: {line}" for text in columns["faults"] for line in str(text).split("\n") if line]
    whole = [sum(int(str(row[k])) for row in rows) for k in (2, 3, 4)]
    seconds = sum(float(str(row[6])) for row in rows)
    total = (f"all {len(rows)} functions", "", *whole, max(int(str(row[5])) for row in rows), f"{seconds:.1f}")
    heads = ("function", "axes", "combinations", "refused as documented", "failed", "most calls", "seconds")
    return Outcome(
        tables=[Table("Public functions with all pairs of their options", heads, [*rows, total], align="lrrrrrr")],
        curves={"faults": faults, "missing": missing},
        notes=[f"{len(rows)} functions, {whole[0]} combinations, {whole[2]} failed, {seconds:.0f} s of work."],
        refuted=[*(f"{name} has no case" for name in missing), *faults[:_SHOWN]],
    )


FIGURE = Figure(
    paper="own",
    name="matrix",
    title="Every public function with all pairs of its options, against separate arithmetic",
    protocol="""Public are the functions of `attsvm` and of its documented modules. Choices come from the signatures:
        Literal types, booleans, optional arguments given and not, strings with a list in the docstring; a choice
        without a case is a failure. Three sizes, one problem and a batch. Combinations in which every two values of
        different axes meet; those that a docstring excludes must raise. Judged by cvxpy on constraints written out,
        enumeration, autograd, finite differences, plain Runge-Kutta steps and simulation; statuses must be final; work
        is counted in calls of functions and in iterations, not in seconds. trials is the number of coverings per
        function, each with its own random problems.""",
    full={"trials": 1, "most": 1000},
    quick={"trials": 1, "most": 3},
    run=run,
)
