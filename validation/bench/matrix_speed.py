"""Every norm with every margin against cvxpy: correctness of each combination, and ratios of times."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np

import attsvm
from attsvm.validation.bench.measurement import Numbers, Stopwatch, measure, one_thread
from attsvm.validation.matrix import (
    MARGINS,
    NORM_NAMES,
    Instance,
    Margin,
    combinations,
    constraints_of,
    drawn,
    model,
    problem_of,
    run,
    solved,
)

# (n, T, dx, dz): few, as many, and many more rows than entries of W.
_SIZES = {"few": (6, 8, 10, 10), "equal": (10, 11, 10, 10), "many": (20, 16, 8, 8)}


def matrix_agreement(seed: int, norms: Sequence[str] = NORM_NAMES, every: int = 1) -> Numbers:
    """The matrix of `attsvm.validation.matrix`, one line per norm; its problems are the same whatever the seed.

    Parameters
    ----------
    seed : int
        Where to begin when only some are taken.
    norms : sequence of str
    every : int
        Take one combination of so many.

    Examples
    --------
    >>> found = matrix_agreement(0, ["l1"], every=90)
    >>> found["l1"]["combinations"] > 0
    True
    """
    lines: Numbers = {}
    for norm in norms:
        outcomes = run(
            [c for c in combinations() if c.norm == norm][seed % every :: every], report=partial(print, file=sys.stderr)
        )
        lines[norm] = {
            "combinations": float(len(outcomes)),
            "faults": float(sum(bool(outcome.faults) for outcome in outcomes)),
            "largest difference": max((o.excess for o in outcomes if not o.faults), default=0.0),
        }
    lines["all norms"] = {
        "combinations": sum(line["combinations"] for line in lines.values()),
        "faults": sum(line["faults"] for line in lines.values()),
    }
    return lines


def matrix_speed(
    seed: int,
    norms: Sequence[str] = NORM_NAMES,
    margins: Sequence[str] = tuple(MARGINS),
    sizes: Sequence[str] = tuple(_SIZES),
    batch: int = 50,
    repeats: int = 5,
) -> Numbers:
    """Times of Att-SVM alone and in a batch against cvxpy with CLARABEL at its default accuracy.

    Our time goes from a new `AttentionProblem` to the certificate, that of cvxpy from known coefficients to W. cvxpy
    solves one problem, and its time counts for each problem of a batch. An answer that is not proved has ratio 0.
    There is a line for each norm and margin (over the sizes), one for the soft margins of each norm, and one for all.

    Parameters
    ----------
    seed : int
    norms, margins, sizes : sequence of str
        Parts of the matrix; "hard" must be among the margins.
    batch, repeats : int

    Examples
    --------
    >>> found = matrix_speed(0, ["l1"], ["hard"], ["many"], batch=2, repeats=1)
    >>> found["all"]["unproved"]
    0.0
    """
    cells: dict[tuple[str, str, str], _Cell] = {}
    with one_thread():
        for norm in norms:
            _cell(norm, MARGINS["hard"], "many", seed, 2, 1)  # loads what it needs
            for margin in margins:
                for size in sizes:
                    cells[norm, margin, size] = _cell(norm, MARGINS[margin], size, seed, batch, repeats)
    hard = {(norm, size): cell["batch"] for (norm, margin, size), cell in cells.items() if margin == "hard"}
    for (norm, _, size), cell in cells.items():
        cell["over hard"] = cell["batch"] / hard[norm, size]
    lines = {
        f"{norm}, {margin}": _summary([cells[norm, margin, size] for size in sizes])
        for norm in norms
        for margin in margins
    }
    for norm in norms:
        soft = [cell for (other, margin, _), cell in cells.items() if other == norm and margin != "hard"]
        if soft:
            lines[f"{norm}, soft"] = _summary(soft)
    return lines | {"all": _summary(list(cells.values()))}


_Cell = dict[str, float]


def _cell(norm: str, margin: Margin, size: str, seed: int, batch: int, repeats: int) -> _Cell:
    """Seconds of one problem, of one in a batch, and ratios to cvxpy; how many answers were not proved."""
    given = [_plain(drawn("prior", _SIZES[size], 1000 * seed + k, wrong=not margin.hard)) for k in range(batch)]
    given = [replace(one, C=given[0].C) for one in given]
    seconds, proved = {}, {}
    for form, some, budget in (("one", given[:1], 5.0), ("batch", given, 20.0)):

        def work(problem: attsvm.AttentionProblem, form: str = form, some: Sequence[Instance] = some) -> Any:
            return solved(problem, some, norm, margin, form, "auto")

        def made(form: str = form, some: Sequence[Instance] = some) -> attsvm.AttentionProblem:
            return problem_of(some, form)

        timed = measure(work, made, repeats, budget)
        seconds[form] = timed.seconds / len(some)
        proved[form] = np.isin(np.atleast_1d(timed.answer.status).astype(str), ("optimal", "infeasible"))
    peer = median(_cvxpy_seconds(given[0], norm, margin) for _ in range(repeats))
    return {
        "one": seconds["one"],
        "batch": seconds["batch"],
        "ratio": peer / seconds["one"] if proved["one"].all() else 0.0,
        "ratio in a batch": peer / seconds["batch"] if proved["batch"].all() else 0.0,
        "unproved": float((~proved["one"]).sum() + (~proved["batch"]).sum()),
    }


def _plain(instance: Instance) -> Instance:
    """An instance with a prior as one of Att-SVM without padding."""
    return replace(instance, kind="att", prior=None)


def _cvxpy_seconds(instance: Instance, norm: str, margin: Margin) -> float:
    rows = constraints_of(instance)
    watch = Stopwatch()
    program, _ = model(instance, norm, margin, rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "may be inaccurate": its time counts all the same
        program.solve(solver="CLARABEL")
    return watch.seconds()


def _summary(cells: Sequence[_Cell]) -> dict[str, float]:
    """Medians and the worst over some cells."""
    return {
        "seconds": median(cell["one"] for cell in cells),
        "ratio": median(cell["ratio"] for cell in cells),
        "worst ratio": min(cell["ratio"] for cell in cells),
        "ratio in a batch": median(cell["ratio in a batch"] for cell in cells),
        "worst ratio in a batch": min(cell["ratio in a batch"] for cell in cells),
        "worst time of a batch over the hard batch": max(cell["over hard"] for cell in cells),
        "unproved": sum(cell["unproved"] for cell in cells),
    }
