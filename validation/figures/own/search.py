"""How far exact listing of locally optimal selections reaches."""

from __future__ import annotations

import time
from typing import Any

import attsvm
from attsvm.enumeration.listing import Mode
from attsvm.sweeps import columns_of
from attsvm.validation.figures.framework import Context, Figure, Outcome, Table

__all__ = ["FIGURE", "listing", "run"]


def listing(
    trials: int,
    _: int,
    *,
    draw: int,
    size: list[int],
    mode: Mode,
    top: int | None = None,
    time_limit: float | None = None,
) -> dict[str, Any]:
    """The list of locally optimal selections, and the seconds it took, for problem seeds from ``draw`` on.

    Examples
    --------
    >>> from attsvm.validation.figures.own.search import listing
    >>> listing(1, 0, draw=0, size=[3, 3, 4], mode="exhaustive")["complete"]
    [True]
    """

    def row(seed: int) -> dict[str, Any]:
        problem = attsvm.random_problem(n=size[0], T=size[1], d=size[2], seed=seed)
        start = time.perf_counter()
        found = attsvm.locally_optimal_selections(problem, top=top, mode=mode, time_limit=time_limit)
        return {
            "tokens": [list(item.tokens) for item in found],
            "margin": found[0].margin if len(found) else None,
            "complete": found.complete,
            "proved": found.proved,
            "bound": found.bound,
            "selections": found.counts.selections,
            "nodes": found.counts.nodes,
            "seconds": time.perf_counter() - start,
        }

    return columns_of(row(draw + k) for k in range(trials))


def run(context: Context) -> Outcome:
    """All selections of small problems, the best few of larger ones with proof, and a size without."""
    s = context.settings
    draws = range(context.seed, context.seed + s["trials"])
    few = {"size": s["search"], "top": s["top"]}
    cells = [{"draw": draw, "size": size, "mode": "exhaustive"} for size in s["all"] for draw in draws]
    cells += [{"draw": draw, "mode": "search", **few} for draw in draws]
    if s["check"]:
        cells += [{"draw": draw, "mode": "exhaustive", **few} for draw in draws]
    if s["time_limit"]:
        large = {"size": s["beyond"], "top": s["top"], "time_limit": s["time_limit"]}
        cells.append({"draw": context.seed, "mode": "auto", **large})
    found = context.sweep(listing, cells, 1, chunk=1, name="listing")
    rows: list[tuple[Any, ...]] = []
    lists: dict[tuple[Any, ...], Any] = {}
    refuted = []
    for cell, columns in found:
        r = {name: values[0] for name, values in columns.items()}
        tokens = columns["tokens"].tolist()[0]
        n, T, d = cell["size"]
        place = (n, T, d, cell["draw"], cell.get("top"))
        if lists.setdefault(place, tokens) != tokens:
            refuted.append(f"search and exhaustive list agree at n={n}, T={T}, d={d}, seed {cell['draw']}")
        proof = "complete" if r["complete"] else f"best {r['proved']} proved, bound {r['bound']:.4f}"
        rows.append((f"n={n}, T={T}, d={d}", cell["draw"], f"{r['selections']:.3g}", cell["mode"], cell.get("top"),
                     len(tokens), r["margin"], proof, int(r["nodes"]), f"{r['seconds']:.1f}"))  # fmt: skip
    heads = ("size", "seed", "selections", "mode", "top", "found", "best margin", "proof", "nodes", "seconds")
    agree = ["Where both were run, search and exhaustive listing give the same list."] if s["check"] else []
    return Outcome([Table("Locally optimal selections", heads, rows)], {}, [] if refuted else agree, refuted)


FIGURE = Figure(
    paper="own",
    name="search",
    title="How far exact listing of locally optimal selections reaches",
    protocol="""All selections of n = T = 5, the best ten of 279,936 with proof (n = 7, T = 6, d = 7) and against the
        exhaustive list, and n = 12, T = 8, d = 16, where no proof is possible in the time given; one problem per seed
        from SEED on.""",
    full={"trials": 3, "all": ((5, 5, 5), (5, 5, 10)), "search": (7, 6, 7), "top": 10, "check": True,
          "beyond": (12, 8, 16), "time_limit": 110.0},
    quick={"trials": 1, "all": ((4, 4, 3), (4, 4, 5)), "search": (5, 4, 5), "top": 3, "time_limit": 0.0},
    run=run,
)  # fmt: skip
