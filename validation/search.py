"""How far exact listing of locally optimal selections reaches.

Run as ``python -m attsvm.validation.search``: all selections of n = T = 5, the best ten of 279,936 with proof (and
against the exhaustive list with ``--check``), and a size where no proof is possible in the time given.
"""

from __future__ import annotations

import argparse
import time

import attsvm
from attsvm.enumeration import LocalOptima
from attsvm.validation.report import console, environment

__all__ = ["listing", "main"]


def listing(n: int, T: int, d: int, seed: int, **options: object) -> tuple[LocalOptima, float]:
    """The list and the seconds it took.

    Examples
    --------
    >>> from attsvm.validation.search import listing
    >>> found, seconds = listing(3, 3, 4, seed=0)
    >>> found.complete
    True
    """
    problem = attsvm.random_problem(n=n, T=T, d=d, seed=seed)
    start = time.perf_counter()
    found: LocalOptima = attsvm.locally_optimal_selections(problem, **options)
    return found, time.perf_counter() - start


def _line(size: str, found: LocalOptima, seconds: float) -> str:
    best = f"best margin {found[0].margin:.4f}" if len(found) else "none found"
    proof = "complete" if found.complete else f"stopped: {found.proved} proved, bound {found.bound:.4f}"
    return (
        f"{size:22} {len(found):4d} found of {found.counts.selections:.3g} selections, {best}, {proof}, "
        f"{found.counts.nodes} nodes, {seconds:.1f} s"
    )


def main(arguments: list[str] | None = None) -> None:
    """Print one line per size."""
    parser = argparse.ArgumentParser(prog="python -m attsvm.validation.search", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--top", type=int, default=10)
    parser.add_argument(
        "--time-limit", type=float, default=110.0, help="seconds for the size without proof; 0 skips it"
    )
    parser.add_argument("--check", action="store_true", help="compare the best few with the exhaustive list")
    parser.add_argument("--small", action="store_true", help="smaller sizes, for a quick look")
    options = parser.parse_args(arguments)
    sizes = (4, 4, (3, 5)) if options.small else (5, 5, (5, 10))
    search = (5, 4, 5) if options.small else (7, 6, 7)
    out = console()
    for d in sizes[2]:
        for seed in range(options.seeds):
            found, seconds = listing(sizes[0], sizes[1], d, seed, mode="exhaustive")
            out.print(_line(f"n={sizes[0]}, T={sizes[1]}, d={d}, seed {seed}", found, seconds))
    n, T, d = search
    for seed in range(options.seeds):
        found, seconds = listing(n, T, d, seed, top=options.top, mode="search")
        out.print(_line(f"n={n}, T={T}, d={d}, seed {seed}", found, seconds))
        if options.check:
            every, seconds = listing(n, T, d, seed, top=options.top, mode="exhaustive")
            same = [item.tokens for item in every] == [item.tokens for item in found]
            out.print(f"{'':22} exhaustive: {'the same list' if same else 'ANOTHER LIST'}, {seconds:.1f} s")
    if options.time_limit > 0:
        found, seconds = listing(12, 8, 16, 0, top=options.top, time_limit=options.time_limit)
        out.print(_line("n=12, T=8, d=16, seed 0", found, seconds))
    out.print(environment())


if __name__ == "__main__":
    main()
