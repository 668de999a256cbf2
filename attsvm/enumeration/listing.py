"""The public functions: every locally optimal selection, or the best k, or as many as a search meets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypedDict, Unpack

from attsvm.enumeration.engine import Budget, Engine, run
from attsvm.enumeration.selection_search import BestFirst, Exhaustive, Swaps
from attsvm.enumeration.selection_space import LocalOptima, LocalOptimum, SelectionSpace
from attsvm.problem import AttentionProblem
from attsvm.user_input import check_keywords, require_choice, require_count, require_flag, require_number

__all__ = ["EXHAUSTIVE_LIMIT", "Mode", "iter_locally_optimal", "locally_optimal_selections"]

Mode = Literal["auto", "exhaustive", "search", "heuristic"]

# Selections that "all of them" may mean; at some 10,000 solves per second this is hours.
EXHAUSTIVE_LIMIT = 100_000_000
# Up to this many selections listing all of them is quicker than proving that most need not be.
_SEARCH_FROM = 20_000


def _engine(problem: AttentionProblem, top: int | None, norm: str, mode: str, seed: int) -> Engine:
    require_choice("norm", norm, "frobenius", "nuclear")
    require_choice("mode", mode, "auto", "exhaustive", "search", "heuristic")
    require_count("top", top, optional=True)
    require_count("seed", seed, least=0)
    if mode == "search" and top is None:
        raise ValueError("mode='search' looks for the best few: pass top=k, or use mode='exhaustive'")
    space = SelectionSpace(problem)
    if mode == "heuristic":
        return Swaps(space, norm, int(seed), top=top)
    if mode == "search" or (mode == "auto" and top is not None and space.size > _SEARCH_FROM):
        assert top is not None
        return BestFirst(space, norm, top, int(seed))
    if space.size > EXHAUSTIVE_LIMIT:
        raise ValueError(
            f"the problem has {space.size:.3g} selections, too many to solve one by one (more than "
            f"{EXHAUSTIVE_LIMIT:.0e}): pass top=k for the k of largest margin by best-first search (with time_limit= "
            "it returns what it found and a proved bound), or mode='heuristic' for many of them without proof"
        )
    return Exhaustive(space, norm, top)


class ListingOptions(TypedDict, total=False):
    """What `locally_optimal_selections` takes by keyword."""

    norm: str
    mode: Mode
    max_nodes: int | None
    time_limit: float | None
    progress: bool
    checkpoint: str | Path | None
    seed: int


def _start(
    problem: AttentionProblem, limit: int | None, top: int | None, options: ListingOptions
) -> tuple[Engine, Budget, Iterator[LocalOptimum]]:
    """Everything checked, the engine ready, and what it will find."""
    check_keywords("iter_locally_optimal", options, list(ListingOptions.__annotations__))
    max_nodes, time_limit = options.get("max_nodes"), options.get("time_limit")
    require_count("limit", limit, optional=True)
    require_count("max_nodes", max_nodes, optional=True)
    require_number("time_limit", time_limit, "a positive number of seconds", 0.0, ends="(]", optional=True)
    require_flag("progress", options.get("progress", False))
    budget = Budget(max_nodes, time_limit, limit)
    norm, mode, seed = options.get("norm", "frobenius"), options.get("mode", "auto"), options.get("seed", 0)
    engine = _engine(problem, top, norm, mode, seed)
    checkpoint = options.get("checkpoint")
    path = None if checkpoint is None else Path(checkpoint)
    return engine, budget, run(engine, budget, options.get("progress", False), path)


def locally_optimal_selections(
    problem: AttentionProblem,
    limit: int | None = None,
    top: int | None = None,
    *,
    norm: str = "frobenius",
    mode: Mode = "auto",
    max_nodes: int | None = None,
    time_limit: float | None = None,
    progress: bool = False,
    checkpoint: str | Path | None = None,
    seed: int = 0,
) -> LocalOptima:
    """Locally optimal selections (Definition 2 / 4), largest margin first, with a proof of completeness.

    Parameters
    ----------
    problem : AttentionProblem
        One or K queries per sequence, any mask; not a batch.
    limit : int, optional
        Stop once this many are found, whichever they are; of more that were found at once the best are listed.
    top : int, optional
        Only the k of largest margin.
    norm : str
        "frobenius" (the bias of W) or "nuclear" (of (K, Q)); support and margin are those of this norm.
    mode : {"auto", "exhaustive", "search", "heuristic"}
        Exhaustive solves every selection. Search is a best-first branch and bound for ``top=k``. Heuristic climbs by
        token swaps from random selections, the ends of short descents and known optima, and proves nothing. "auto"
        takes the search when ``top`` is given and there are more than 20,000 selections, and the exhaustive mode
        otherwise.
    max_nodes : int, optional
        Stop after about this many tested (partial) selections.
    time_limit : float, optional
        Stop after about this many seconds.
    progress : bool
        Show a progress bar.
    checkpoint : str or Path, optional
        File to save to and, if it exists, to continue from.
    seed : int
        Of the random climbs.

    Returns
    -------
    LocalOptima
        ``complete`` says whether it is proved that there is no other, ``proved_best`` whether those of ``top=k`` are
        proved to have the largest margins; ``bound`` what is proved about the rest; ``undecided`` which selections
        neither error bounds nor rationals could settle, and why.

    Raises
    ------
    ValueError
        When all of more than 1e8 selections are requested, and on arguments out of range.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.enumeration import locally_optimal_selections
    >>> problem = attsvm.random_problem(n=5, T=5, d=10, seed=0)
    >>> found = locally_optimal_selections(problem)
    >>> found
    LocalOptima(frobenius, exhaustive: 2 found, complete, best margin 0.429, bound 0)
    >>> problem.optimal_tokens() in found
    True
    """
    engine, budget, found = _start(problem, limit, top, {
        "norm": norm, "mode": mode, "max_nodes": max_nodes, "time_limit": time_limit, "progress": progress,
        "checkpoint": checkpoint, "seed": seed,
    })  # fmt: skip
    for _ in found:
        pass
    items, bound = engine.best(), engine.bound
    if limit is not None and len(items) > limit:  # what is left out may be as good as the last that is listed
        bound = max(bound, items[limit].margin)
        items = items[:limit]
    return LocalOptima(
        problem, norm, engine.mode, tuple(items), engine.complete, bound, engine.counts,
        tuple(engine.undecided.values()), budget.seconds,
    )  # fmt: skip


def iter_locally_optimal(
    problem: AttentionProblem, limit: int | None = None, top: int | None = None, **options: Unpack[ListingOptions]
) -> Iterator[LocalOptimum]:
    """Yield locally optimal selections as they are found, in no particular order.

    Parameters are those of `locally_optimal_selections`; they are checked at the call. With ``top=k`` and the search,
    selections are yielded that were among the best k known when they were found or before; the proof is only in
    `locally_optimal_selections`. Leaving the loop early saves the checkpoint, if there is one.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.enumeration import iter_locally_optimal
    >>> problem = attsvm.random_problem(n=3, T=4, d=4, seed=5)
    >>> sorted(round(item.margin, 3) for item in iter_locally_optimal(problem))
    [0.281, 0.283, 0.474, 0.475]
    """
    return _start(problem, limit, top, options)[2]
