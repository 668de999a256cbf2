"""Complete listings as certificate files: every selection decided by multipliers of its low rows.

For each selection the SVM over the rows against tokens of lower score (the low rows) is solved. Its multipliers decide
local optimality up to a distance that is known exactly; where float64 multipliers leave a row undecided, exact ones are
taken, and where the low rows contradict each other, integers that cancel them. Everything is decided over the
rationals before it is written. `tools/check_certificate.py` has the theorem.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

import numpy as np

from attsvm.attention_proofs import attention_record, decided_locally, scores_record
from attsvm.enumeration.engine import Budget, Engine, run
from attsvm.enumeration.selection_search import BestFirst, Exhaustive, Swaps
from attsvm.enumeration.selection_space import LocalOptima, LocalOptimum, SelectionSpace
from attsvm.exact_tokens import EXACT_SELECTIONS, exact_selection_rows, score_order
from attsvm.problem import AttentionProblem
from attsvm.selection_rows import rows_of_selections
from attsvm.solvers import solve_batch
from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.certify.proof_file import Record, cancelling_integers, file_record, number_text, write_record
from attsvm.solvers.exact import ExactFarkas, ExactRows, exact_least_norm
from attsvm.user_input import check_keywords, require_choice, require_count, require_flag, require_number

if TYPE_CHECKING:
    from flint import fmpq

    from attsvm.enumeration.selection_space import LocalOptima
    from attsvm.problem import AttentionProblem

# Low rows of so many selections are solved at once.
_AT_ONCE = 2048


def _low_multipliers(problem: AttentionProblem, selections: IntArray, low: BoolArray) -> FloatArray:
    """Float multipliers of the low rows of every selection, shape (S, n*K, T), NaN where they were not solved."""
    out = np.zeros(low.shape)  # without low rows W = 0, which every other row refutes
    some = np.flatnonzero(low.any(axis=(1, 2)))
    for start in range(0, len(some), _AT_ONCE):
        part = some[start : start + _AT_ONCE]
        rows = rows_of_selections(problem, selections[part], low[part])
        found = solve_batch(rows.margin_problem)
        grid = rows.scatter(found.multipliers, fill=0.0).reshape(len(part), *low.shape[1:])
        out[part] = np.where((found.status == "optimal")[:, None, None], grid, np.nan)
    return out


def _decision(rows: ExactRows, low: list[bool], multipliers: FloatArray) -> tuple[bool, list[fmpq]]:
    """Whether a selection is locally optimal, and multipliers of its low rows that prove it."""
    from attsvm.solvers.exact.rows import rational

    kept = [k for k, is_low in enumerate(low) if is_low]
    known = bool(np.isfinite(multipliers).all())
    if known:
        weights = [rational(max(x, 0.0)) for x in multipliers.tolist()]
        W = rows.combination(weights)
        margins = [v for v, is_low in zip(rows.margins(W), low, strict=True) if is_low]
        if all(v > 0 for v in margins):
            longer = W * (1 / min(margins)) if margins else W
            verdict = decided_locally(rows, low, longer, weights)
            if verdict is not None:
                return verdict, weights
    best = exact_least_norm(rows.take(kept), multipliers[kept] if known else None)
    exact = [rational(0)] * rows.m
    if isinstance(best, ExactFarkas):
        for k, whole in zip(kept, cancelling_integers(best), strict=True):
            exact[k] = rational(whole)
        return False, exact
    for k, y in zip(kept, best.values, strict=True):
        exact[k] = y
    decided = decided_locally(rows, low, best.matrix, exact)
    assert decided is not None  # the distance is 0
    return decided, exact


def listing_record(found: LocalOptima) -> Record:
    """What `LocalOptima.save_certificate` writes, as data.

    Examples
    --------
    >>> import attsvm
    >>> record = listing_record(attsvm.locally_optimal_selections(attsvm.random_problem(n=2, T=3, d=3, seed=0)))
    >>> record["claims"][0]["claim"], len(record["claims"][0]["selections"]), len(record["proofs"])
    ('complete listing', 2, 9)
    """
    if found.norm_name != "frobenius":
        raise ValueError(f"listings are certified in the Frobenius norm, got {found.norm_name!r}")
    if not found.complete:
        raise ValueError("the listing is not proved complete: a certificate file says that it is")
    problem, size = found.problem, found.counts.selections
    if size > EXACT_SELECTIONS:
        raise ValueError(f"listings of up to {EXACT_SELECTIONS:,} selections are certified, this one has {size:,}")
    allowed = problem.allowed.reshape(-1, problem.T)
    grids = np.meshgrid(*(np.flatnonzero(row) for row in allowed), indexing="ij")
    selections = np.stack([grid.ravel() for grid in grids], axis=-1)
    order = np.broadcast_to(score_order(problem), (*problem.query_shape, problem.T)).reshape(-1, problem.T)
    chosen = np.take_along_axis(order[None], selections[..., None], axis=-1)
    low = (order[None] < chosen) & allowed
    multipliers = _low_multipliers(problem, selections, low)
    proofs, listed = [], []
    for tokens, is_low, lam in zip(selections, low, multipliers, strict=True):
        rows, token = exact_selection_rows(problem, tokens.reshape(problem.query_shape))
        place = (rows.owner, token)
        local, weights = _decision(rows, is_low[place].tolist(), lam[place])
        proofs.append({"tokens": tokens.tolist(), "multipliers": [number_text(y) for y in weights]})
        listed += [tokens.tolist()] if local else []
    if {tuple(tokens) for tokens in listed} != {item.tokens for item in found}:
        raise ArithmeticError("exact arithmetic finds other locally optimal selections than the listing, a bug")
    described = attention_record(problem) | scores_record(problem)
    if not allowed.all():
        described["allowed"] = allowed.astype(int).tolist()
    claim: Record = {"claim": "complete listing", "selections": [list(item.tokens) for item in found]}
    return file_record(described, "frobenius", {"proofs": proofs}, [claim])


def save_listing(found: LocalOptima, path: str | Path) -> tuple[str, ...]:
    """Write the certificate of a complete listing; the names of its claims."""
    return write_record(listing_record(found), path)


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
