"""How often the assumptions hold, and whether descent ends where the list of local optima says.

Assumption D implies that the optimal tokens are the only locally optimal selection, not conversely; B.1 is printed
exactly and by the published proxy. Then 1,000 random starts of one problem per dimension: every selection reached
should be in the list. Run as ``python -m attsvm.validation.assumptions``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
from rich.table import Table

import attsvm
from attsvm.comparison.tables import render
from attsvm.enumeration import SelectionTable, locally_optimal_selections, solve_every_selection
from attsvm.theory import attraction
from attsvm.theory.assumptions import check_first_step
from attsvm.theory.attraction import wilson_interval
from attsvm.theory.support_assumptions import check_all_support, misses_optimal_support
from attsvm.validation.report import console, environment

__all__ = ["AssumptionRow", "EndsRow", "assumption_row", "ends_row", "main"]

DIMENSIONS = (3, 5, 8, 10, 15, 20)
END_DIMENSIONS = (5, 8, 10)


@dataclass(frozen=True)
class AssumptionRow:
    """Counts over random problems of one size.

    ``D`` and ``single`` (one locally optimal selection) are over all selections; ``violations`` counts problems with D
    (and feasible optimal tokens) and another number of local optima than one, ``converse`` those with
    a single one but without D.
    """

    d: int
    problems: int
    feasible: int = 0
    D: int = 0
    single: int = 0
    violations: int = 0
    converse: int = 0
    optimal_listed: int = 0
    exact_B1: int = 0
    proxy_B1: int = 0
    C: int = 0
    undecided: int = 0
    local_optima: list[int] = field(default_factory=list)


def assumption_row(n: int, T: int, d: int, problems: int, seed: int = 0) -> AssumptionRow:
    """Every selection of every problem solved.

    Examples
    --------
    >>> from attsvm.validation.assumptions import assumption_row
    >>> row = assumption_row(n=2, T=3, d=10, problems=3)
    >>> row.problems, row.violations, row.D <= row.single
    (3, 0, True)
    """
    batch = attsvm.random_problem(n=n, T=T, d=d, batch=problems, seed=seed)
    counts = dict.fromkeys(
        ("feasible", "D", "single", "violations", "converse", "optimal_listed", "exact_B1", "proxy_B1", "C"), 0
    )
    undecided, local_optima = 0, []
    for problem in batch:
        table: SelectionTable = solve_every_selection(problem, limit=T**n)
        undecided += int((~table.decided).sum())
        optimal = problem.optimal_tokens()
        at = int(np.flatnonzero((table.indices == optimal.indices).all(axis=1))[0])
        holds = not bool(misses_optimal_support(table, optimal).any())
        listed = int(table.locally_optimal.sum())
        exact, proxy = check_all_support(attsvm.att_svm(problem))
        counts["feasible"] += bool(table.feasible[at])
        counts["D"] += holds
        counts["single"] += listed == 1
        counts["violations"] += holds and bool(table.feasible[at]) and listed != 1
        counts["converse"] += listed == 1 and not holds
        counts["optimal_listed"] += bool(table.locally_optimal[at])
        counts["exact_B1"] += bool(exact)
        counts["proxy_B1"] += bool(proxy)
        counts["C"] += bool(check_first_step(problem, optimal, attsvm.logistic))
        local_optima.append(listed)
    return AssumptionRow(d, problems, **counts, undecided=undecided, local_optima=local_optima)


@dataclass(frozen=True)
class EndsRow:
    """Where random starts of one problem ended, against the list of its locally optimal selections."""

    d: int
    seed: int
    starts: int
    listed: int
    reached: int
    outside: int
    unsaturated: int
    counts: dict[str, int]
    examples: list[dict[str, object]]
    spearman: float
    seconds: float


def ends_row(n: int, T: int, d: int, starts: int, steps: int, seed: int = 0) -> EndsRow:
    """Train one problem from many starts and compare the selections reached with the list.

    Examples
    --------
    >>> from attsvm.validation.assumptions import ends_row
    >>> row = ends_row(n=2, T=3, d=6, starts=10, steps=300)
    >>> row.starts, row.outside
    (10, 0)
    """
    begin = time.perf_counter()
    problem = attsvm.random_problem(n=n, T=T, d=d, seed=seed)
    found_all = locally_optimal_selections(problem)
    if not found_all.complete:
        raise RuntimeError(f"the list of locally optimal selections is incomplete at d={d}, seed={seed}")
    listed = {item.tokens for item in found_all}
    found = attraction(problem, starts, steps=steps, seed=seed)
    outside = [row for row in found.rows if tuple(row.selection.indices.tolist()) not in listed]
    return EndsRow(
        d,
        seed,
        starts,
        len(listed),
        sum(tuple(row.selection.indices.tolist()) in listed for row in found.rows),
        sum(row.count for row in outside),
        sum(row.unsaturated for row in outside),
        found.counts,
        [{"selection": row.selection.indices.tolist(), "starts": list(row.examples)} for row in outside[:3]],
        found.spearman,
        time.perf_counter() - begin,
    )


def _assumption_table(rows: Sequence[AssumptionRow], title: str) -> Table:
    table = Table(title=title)
    for name in (
        "d",
        "feasible",
        "D",
        "one local optimum",
        "D without one",
        "one without D",
        "local optima: mean, max",
    ):
        table.add_column(name, justify="right")
    for name in ("B.1 exact", "B.1 proxy", "C"):
        table.add_column(name, justify="right")
    for row in rows:
        mean = f"{np.mean(row.local_optima):.2f}, {max(row.local_optima)}"
        counts = (row.feasible, row.D, row.single, row.violations, row.converse)
        table.add_row(str(row.d), *map(str, counts), mean, str(row.exact_B1), str(row.proxy_B1), str(row.C))
    return table


def _ends_table(rows: Sequence[EndsRow], title: str) -> Table:
    table = Table(title=title)
    names = ("d", "seed", "listed", "reached", "Global", "Local", "outside (95 %)", "unsaturated", "Spearman", "s")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        low, high = wilson_interval(row.outside, row.starts)
        table.add_row(
            str(row.d),
            str(row.seed),
            str(row.listed),
            str(row.reached),
            str(row.counts.get("Global", 0)),
            str(row.counts.get("Local", 0)),
            f"{row.outside} ({100 * low:.1f}-{100 * high:.1f} %)",
            str(row.unsaturated),
            "-" if np.isnan(row.spearman) else f"{row.spearman:.2f}",
            f"{row.seconds:.1f}",
        )
    return table


def main(arguments: list[str] | None = None) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="python -m attsvm.validation.assumptions", description=__doc__)
    parser.add_argument("--problems", type=int, default=100, help="problems per dimension (n=T=4)")
    parser.add_argument("--starts", type=int, default=1000, help="starts per problem (n=T=5)")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--ends", type=int, nargs="+", default=END_DIMENSIONS, help="dimensions of the second table")
    parser.add_argument("--end-problems", type=int, default=3, help="problems per dimension in the second table")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    rows = [assumption_row(4, 4, d, options.problems, options.seed) for d in DIMENSIONS]
    listing = time.perf_counter() - start
    ends = [
        ends_row(5, 5, d, options.starts, options.steps, options.seed + k)
        for d in options.ends
        for k in range(options.end_problems)
    ]
    violations = sum(row.violations for row in rows)
    record = {
        "parameters": vars(options),
        "assumptions": [asdict(row) for row in rows],
        "ends": [asdict(row) for row in ends],
        "seconds": {"assumptions": listing, "ends": time.perf_counter() - start - listing},
        "environment": environment(),
    }
    if options.json:
        print(json.dumps(record, indent=2))
    else:
        out = console()
        title = f"Out of {options.problems} problems, n=T=4, unit sphere, every selection solved"
        out.print(render(_assumption_table(rows, title)))
        converse = sum(row.converse for row in rows)
        missing = sum(row.feasible - row.optimal_listed for row in rows)
        out.print(
            f"D implies one local optimum: {violations} violations; not conversely: {converse} problems have one "
            f"without D. Feasible optimal selections missing from their list: {missing}. "
            f"Undecided solves: {sum(row.undecided for row in rows)}."
        )
        out.print(render(_ends_table(ends, f"Ends of {options.starts} random starts, {options.steps} steps, n=T=5, W")))
        total, outside = sum(row.starts for row in ends), sum(row.outside for row in ends)
        low, high = wilson_interval(outside, total)
        out.print(
            f"Ends outside the list: {outside} of {total}, {100 * outside / total:.2f} % "
            f"({100 * low:.2f}-{100 * high:.2f} %), {sum(row.unsaturated for row in ends)} of them not saturated yet."
        )
        for row in ends:
            for example in row.examples:
                out.print(
                    f"  d={row.d}, problem seed {row.seed}: {example['selection']} from starts {example['starts']}"
                )
        out.print(f"{listing:.0f} s + {record['seconds']['ends']:.0f} s; {record['environment']}")  # type: ignore[index]
    if violations:
        parser.exit(1, f"{violations} problems satisfy D but have another number of local optima than one\n")


if __name__ == "__main__":
    main()
