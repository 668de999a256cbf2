"""How often the assumptions hold, and whether descent ends where the list of local optima says."""

from __future__ import annotations

from typing import Any

import numpy as np

import attsvm
from attsvm.enumeration import locally_optimal_selections, solve_every_selection
from attsvm.records import share
from attsvm.sweeps import columns_of
from attsvm.theory import attraction
from attsvm.theory.assumptions import check_first_step
from attsvm.theory.support_assumptions import check_all_support, misses_optimal_support
from attsvm.validation.figures.framework import Context, Figure, Outcome, Table

__all__ = ["FIGURE", "assumption_flags", "ends_of_starts", "run"]


def assumption_flags(trials: int, _: int, *, draw: int, n: int, T: int, d: int) -> dict[str, Any]:
    """Which assumptions hold, with every selection of every problem of ``random_problem(seed=draw)`` solved.

    ``violation``: D holds and the optimal tokens are feasible, but another number of selections than one is locally
    optimal. ``listed``: the optimal tokens are in the list of local optima.

    Examples
    --------
    >>> from attsvm.validation.figures.own.assumptions import assumption_flags
    >>> found = assumption_flags(3, 0, draw=0, n=2, T=3, d=10)
    >>> len(found["D"]), any(found["violation"])
    (3, False)
    """

    def row(problem: attsvm.AttentionProblem) -> dict[str, Any]:
        table = solve_every_selection(problem, limit=T**n)
        optimal = problem.optimal_tokens()
        at = int(np.flatnonzero((table.indices == optimal.indices).all(axis=1))[0])
        holds, local = not misses_optimal_support(table, optimal).any(), int(table.locally_optimal.sum())
        exact, proxy = check_all_support(attsvm.att_svm(problem))
        return {
            "feasible": bool(table.feasible[at]),
            "D": holds,
            "local": local,
            "violation": bool(holds and table.feasible[at] and local != 1),
            "listed": bool(table.locally_optimal[at]),
            "exact": bool(exact),
            "proxy": bool(proxy),
            "C": bool(check_first_step(problem, optimal, attsvm.logistic)),
            "undecided": int((~table.decided).sum()),
        }

    return columns_of(map(row, attsvm.random_problem(n=n, T=T, d=d, batch=trials, seed=draw)))


def ends_of_starts(
    trials: int, _: int, *, draw: int, n: int, T: int, d: int, starts: int, steps: int
) -> dict[str, Any]:
    """Where random starts of a problem end, against the list of its local optima; problem seeds from ``draw`` on.

    ``outside`` counts starts that end on no selection of the list, ``unsaturated`` those of them that are not done.

    Examples
    --------
    >>> from attsvm.validation.figures.own.assumptions import ends_of_starts
    >>> ends_of_starts(1, 0, draw=0, n=2, T=3, d=6, starts=10, steps=300)["outside"]
    [0]
    """

    def row(seed: int) -> dict[str, Any]:
        problem = attsvm.random_problem(n=n, T=T, d=d, seed=seed)
        optima = locally_optimal_selections(problem)
        if not optima.complete:
            raise RuntimeError(f"the list of locally optimal selections is incomplete at d={d}, seed={seed}")
        listed = {item.tokens for item in optima}
        found = attraction(problem, starts, steps=steps, seed=seed)
        outside = [end for end in found.rows if tuple(end.selection.indices.tolist()) not in listed]
        return {
            "listed": len(listed),
            "reached": len(found.rows) - len(outside),
            "outside": sum(end.count for end in outside),
            "unsaturated": sum(end.unsaturated for end in outside),
            "counts": {name: int(found.counts.get(name, 0)) for name in ("Global", "Local", "Not local")},
            "examples": [[end.selection.indices.tolist(), list(end.examples)] for end in outside[:3]],
            "spearman": found.spearman,
        }

    return columns_of(row(draw + k) for k in range(trials))


def run(context: Context) -> Outcome:
    """Assumptions for every dimension, then the ends of many starts."""
    s = context.settings
    cells = [{"draw": context.seed, "n": 4, "T": 4, "d": d} for d in s["dimensions"]]
    found = context.sweep(assumption_flags, cells, chunk=s["trials"], name="assumptions")
    total = {name: sum(int(c[name].sum()) for c in found.columns) for name in found.columns[0]}
    rows = []
    converse = 0
    for cell, c in found:
        single = c["local"] == 1
        converse += int((single & ~c["D"]).sum())
        counts = (c["feasible"], c["D"], single, c["violation"], single & ~c["D"])
        optima = f"{c['local'].mean():.2f}, {c['local'].max()}"
        rows.append((cell["d"], *(int(x.sum()) for x in counts), optima,
                     *(int(c[name].sum()) for name in ("exact", "proxy", "C"))))  # fmt: skip
    draws = range(context.seed, context.seed + s["end_problems"])
    size = {"n": 5, "T": 5, "starts": s["starts"], "steps": s["steps"]}
    cells = [{"draw": draw, "d": d, **size} for d in s["ends"] for draw in draws]
    ends, notes, outside, unsaturated = [], [], 0, 0
    for cell, columns in context.sweep(ends_of_starts, cells, 1, chunk=1, name="ends"):
        r = {name: values[0] for name, values in columns.items()}
        outside, unsaturated = outside + int(r["outside"]), unsaturated + int(r["unsaturated"])
        ends.append((cell["d"], cell["draw"], r["listed"], r["reached"], r["counts"]["Global"], r["counts"]["Local"],
                     share(int(r["outside"]), s["starts"]), r["unsaturated"], float(r["spearman"])))  # fmt: skip
        for tokens, starts in columns["examples"].tolist()[0]:
            notes.append(f"d={cell['d']}, problem seed {cell['draw']}: {tokens} from starts {starts}")
    tried = len(cells) * s["starts"]
    notes = [
        f"D implies one local optimum: {total['violation']} violations; not conversely: {converse} problems have one "
        f"without D. Feasible optimal selections missing from their list: {total['feasible'] - total['listed']}. "
        f"Undecided solves: {total['undecided']}.",
        f"Ends outside the list: {outside} of {tried}, {share(outside, tried)}, {unsaturated} of them not saturated.",
        *notes,
    ]
    refuted = f"{total['violation']} problems satisfy D but have another number of local optima than one"
    return Outcome(
        tables=[
            Table(f"Out of {s['trials']} problems, n = T = 4, unit sphere, every selection solved",
                  ("d", "feasible", "D", "one local optimum", "D without one", "one without D",
                   "local optima: mean, max", "B.1 exact", "B.1 proxy", "C"), rows),
            Table(f"Ends of {s['starts']} random starts, {s['steps']} steps, n = T = 5, W",
                  ("d", "seed", "listed", "reached", "Global", "Local", "outside", "unsaturated", "Spearman"), ends),
        ],
        curves={},
        notes=notes,
        refuted=[refuted] if total["violation"] else [],
    )  # fmt: skip


FIGURE = Figure(
    paper="own",
    name="assumptions",
    title="How often the assumptions hold, and whether descent ends in the list of local optima",
    protocol="""Assumption D implies that the optimal tokens are the only locally optimal selection, not conversely; B.1
        exactly and by the published proxy; the problems of random_problem(seed=SEED). Then random starts of one problem
        per seed and dimension: every selection reached should be in the list of local optima.""",
    full={"trials": 100, "dimensions": (3, 5, 8, 10, 15, 20), "ends": (5, 8, 10), "end_problems": 3, "starts": 1000,
          "steps": 2000},
    quick={"trials": 4, "dimensions": (4, 12), "ends": (6,), "end_problems": 1, "starts": 20, "steps": 500},
    run=run,
)  # fmt: skip
