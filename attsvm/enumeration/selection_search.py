"""The three ways of enumerating, as engines that work in steps.

- `Exhaustive` solves all selections in batches; partial selections that are infeasible drop all their completions.
- `BestFirst` finds the k locally optimal selections of largest margin, by branch and bound over the queries.
- `Swaps` is a local search from many starts, without a claim of completeness. From a selection that is not locally
  optimal, one token is exchanged for a support token of higher score; from an infeasible one, a token of a conflicting
  query for one of higher score. Every move raises the sum of the scores, so each climb ends after at most
  (number of queries) x (T - 1) moves. Of many queries several move at once.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.enumeration.engine import Engine
from attsvm.enumeration.selection_solves import CompletionBound, Verdicts, full_verdicts, lower_verdicts, partial_norms
from attsvm.enumeration.selection_space import LocalOptimum, SelectionSpace
from attsvm.heads import ConcaveHead, LinearHead, ReluHead
from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.deadline import OutOfTime, late, require_time, seconds_left

# -- all selections ----------------------------------------------------------------------------------------------------

# Selections per step: a second of work at most, and far above what makes a batch efficient.
_STEP = 4096
# Partial selections save time when many are infeasible: judged on this many random selections.
_PILOT, _WORTHWHILE = 128, 0.1
_MOST_PREFIXES = 20_000


class Exhaustive(Engine):
    """Solve the SVM of every selection and decide Definition 2.

    Parameters
    ----------
    space, norm
        As for `Engine`.
    top : int, optional
        List only that many.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.enumeration.selection_space import SelectionSpace
    >>> engine = Exhaustive(SelectionSpace(attsvm.random_problem(n=3, T=4, d=4, seed=5)), "frobenius")
    >>> len(engine.advance()), engine.done, engine.counts.solves
    (4, True, 64)
    """

    mode = "exhaustive"

    def __init__(self, space: SelectionSpace, norm: str, top: int | None = None) -> None:
        super().__init__(space, norm)
        self.top = top
        self.next = 0
        self.pruned = 0  # partial selections tested

    @cached_property
    def _prefixes(self) -> IntArray:
        """Partial selections whose completions are to be solved, shape (P, k); k = 0 when all are."""
        everything = np.empty((1, 0), dtype=np.int64)
        sample = self.space.random(np.random.default_rng(0), min(_PILOT, self.space.size))
        infeasible = np.isinf(partial_norms(self.space, sample, np.arange(self.space.q), "frobenius"))
        if infeasible.mean() < _WORTHWHILE:
            return everything
        kept = everything
        for depth in range(1, self.space.q):
            tokens = self.space.choices[depth - 1]
            if not len(kept) or len(kept) * len(tokens) > _MOST_PREFIXES:
                break
            require_time()  # a part of them would be another list
            longer = np.hstack([np.repeat(kept, len(tokens), axis=0), np.tile(tokens, len(kept))[:, None]])
            norms = partial_norms(self.space, longer, np.arange(depth), "frobenius")  # feasible in one norm, in all
            self.pruned += len(longer)
            kept = longer[np.isfinite(norms)]
        require_time()
        return kept

    @cached_property
    def _suffixes(self) -> int:
        """Completions of each prefix."""
        return math.prod(len(c) for c in self.space.choices[self._prefixes.shape[1] :])

    @property
    def total(self) -> int:
        """Selections to solve."""
        return len(self._prefixes) * self._suffixes

    def advance(self) -> list[LocalOptimum]:
        """Solve the next few thousand selections."""
        try:
            dropped = self.space.size - self.total
        except OutOfTime:
            self.pruned = 0
            return []
        if self.next == 0 and self.counts.nodes == 0:
            self.counts.nodes = self.counts.solves = self.pruned
            self.counts.infeasible = dropped
        stop = min(self.next + min(_STEP, self.space.at_once), self.total)
        first, last = divmod(self.next, self._suffixes)[0], -(-stop // self._suffixes)
        depth = self._prefixes.shape[1]
        rest = np.arange(depth, self.space.q)
        parts = []
        for prefix in range(first, last):
            low = max(self.next - prefix * self._suffixes, 0)
            high = min(stop - prefix * self._suffixes, self._suffixes)
            tail = self.space.selections(low, high, rest)
            parts.append(np.hstack([np.broadcast_to(self._prefixes[prefix], (len(tail), depth)), tail]))
        new: list[LocalOptimum] = []
        if parts:
            selections = np.vstack(parts)
            verdicts = full_verdicts(self.space, selections, self.norm)
            new = self.record(selections, verdicts)
            if late():
                return new
            self.counts.nodes += len(selections)
            self.counts.solves += len(selections)
            self.counts.feasible += int(verdicts.feasible.sum())
            self.counts.infeasible += int(verdicts.infeasible.sum())
        self.next = stop
        self.done = stop == self.total
        return new

    @property
    def bound(self) -> float:
        """0 when every selection is decided, else infinite; the last margin when the list is cut."""
        if not self.complete:
            return float("inf")
        return self.best()[-1].margin if self.top is not None and len(self.found) > self.top else 0.0

    @property
    def progress(self) -> tuple[float, str]:
        """Share of the selections solved."""
        if "_prefixes" not in self.__dict__:  # the time did not suffice to find them
            return 0.0, "0 found"
        return self.next / max(self.total, 1), f"{self.next:,} of {self.total:,} solved, {len(self.found)} found"

    def settings(self) -> dict[str, Any]:
        """Nothing but the problem and the norm matters."""
        return {}

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Position in the list of selections."""
        return {"next": np.array(self.next)}

    def restore(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """Continue at a position."""
        self.next = int(state["next"])


# -- branch and bound --------------------------------------------------------------------------------------------------

_Node = tuple[float, int, tuple[int, ...]]  # bound, -depth, tokens in order
# Norms are certified to about 1e-8 relative: a node is dropped only when its proved bound exceeds the k-th by more.
_SAFETY = 1e-7
# Nodes expanded per step at 35 steps between tokens; a solve costs their cube.
_WIDTH, _WIDTH_AT = 128, 35
# Stands for an infeasible token when queries are ordered.
_NEVER = 1e3


class BestFirst(Engine):
    """Expand the partial selection with the smallest bound until no open one can beat the k-th best.

    Bounds are those of `CompletionBound` (Frobenius norm, independent steps) or `partial_norms`; complete selections
    are tested by the lower-row SVM (Frobenius) or the full one. Incumbents come from `Swaps`.

    Parameters
    ----------
    space, norm
        As for `Engine`.
    top : int
    seed : int
        Of the swaps.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.enumeration.selection_space import SelectionSpace
    >>> space = SelectionSpace(attsvm.random_problem(n=3, T=4, d=4, seed=5))
    >>> engine = BestFirst(space, "frobenius", top=1, seed=0)
    >>> while not engine.done:
    ...     _ = engine.advance()
    >>> engine.best()[0].tokens, engine.complete, engine.counts.nodes < space.size
    ((2, 3, 3), True, True)
    """

    mode = "search"
    top: int

    def __init__(self, space: SelectionSpace, norm: str, top: int, seed: int) -> None:
        super().__init__(space, norm)
        self.top, self.seed = top, seed
        self.swaps = Swaps(space, norm, seed, patience=3)
        self._open: list[_Node] = [(0.0, 0, ())]
        self._turn = 0
        self.width = int(np.clip(_WIDTH * (_WIDTH_AT / space.steps) ** 3, 16, 2 * _WIDTH))

    @cached_property
    def _completion(self) -> CompletionBound | None:
        """The better bounds, where they can be used."""
        bound = CompletionBound(self.space, np.arange(self.space.q)) if self.norm == "frobenius" else None
        return bound if bound is not None and bound.usable else None

    def _bounds(self, order: IntArray) -> Callable[[IntArray], FloatArray]:
        if self._completion is not None:
            return self._completion.reordered(order)
        return lambda partial: partial_norms(self.space, partial, order[: partial.shape[1]], self.norm)

    @cached_property
    def _bound(self) -> Callable[[IntArray], FloatArray]:
        return self._bounds(self.order)

    @cached_property
    def order(self) -> IntArray:
        """Queries by how much selecting a token of theirs costs alone, most first: high bounds come early."""
        cost = np.empty(self.space.q)
        for query in range(self.space.q):
            require_time()  # half of the costs would be another order
            order = np.r_[query, np.delete(np.arange(self.space.q), query)]
            alone = self._bounds(order)(self.space.choices[query][:, None])
            cost[query] = np.minimum(alone, _NEVER).mean()
        require_time()
        return np.argsort(-cost, kind="stable")

    # -- what is known ----------------------------------------------------------------------------

    @property
    def _kth_norm(self) -> float:
        """Norm that a selection must not exceed to be listed."""
        if len(self.found) < self.top:
            return float("inf")
        return float(np.partition([item.norm for item in self.found.values()], self.top - 1)[self.top - 1])

    @property
    def bound(self) -> float:
        """Upper bound on the margin of anything unlisted: the k-th margin, or what the open nodes leave possible."""
        possible = [1.0 / self._kth_norm]
        if not self.done:
            lowest = self._open[0][0]
            possible.append(1.0 / lowest if lowest > 0 else float("inf"))
        if self.undecided:
            possible.append(float("inf"))
        return max(possible)

    @property
    def progress(self) -> tuple[float, str]:
        """Nodes, finds and the state of the proof."""
        best = self.best()
        last = f"{best[-1].margin:.4f}" if best else "none"
        text = f"{self.counts.nodes:,} nodes, {len(self._open):,} open, {len(best)} found"
        return 0.0, f"{text}, last margin {last}, bound {self.bound:.4f}"

    # -- search -----------------------------------------------------------------------------------

    def advance(self) -> list[LocalOptimum]:
        """A round of swaps while they find something (every second step), else an expansion of the best nodes."""
        self._turn += 1
        if self._turn % 2 == 1 and not self.swaps.done:
            return self._incumbents()
        try:
            return self._expand()
        except OutOfTime:
            return []

    def _incumbents(self) -> list[LocalOptimum]:
        before = self.swaps.counts.solves
        items = [item for item in self.swaps.advance() if item.tokens not in self.found]
        self.found.update({item.tokens: item for item in items})
        self.counts.solves += self.swaps.counts.solves - before
        self.counts.locally_optimal = len(self.found)
        return items

    @property
    def _limit(self) -> float:
        """Nodes whose bound exceeds this hold nothing to list."""
        largest = np.inf if self._completion is None else self._completion.largest
        return min(self._kth_norm, largest) * (1.0 + _SAFETY)

    def _expand(self) -> list[LocalOptimum]:
        limit = self._limit
        # Smallest bounds first; the heap itself is changed only after the solves.
        chosen = [node for node in heapq.nsmallest(self.width, self._open) if node[0] <= limit]
        children, leaves, solved = self._tested(chosen, limit)
        new = [item for selections, verdicts in leaves for item in self.record(selections, verdicts)]
        if late():  # the nodes stay open
            return new
        removed = set(chosen)
        for _, verdicts in leaves:
            self.counts.feasible += int(verdicts.locally_optimal.sum())
            self.counts.infeasible += int(verdicts.infeasible.sum())
        self.counts.nodes += solved
        self.counts.solves += solved
        limit = self._limit
        children += [node for node in self._open if node not in removed]
        self._open = [node for node in children if node[0] <= limit]
        heapq.heapify(self._open)
        self.done = not self._open
        return new

    def _tested(self, chosen: list[_Node], limit: float) -> tuple[list[_Node], list[tuple[IntArray, Verdicts]], int]:
        """Children that may hold something to list, complete selections with their verdicts, and the number tested."""
        children: list[_Node] = []
        leaves: list[tuple[IntArray, Verdicts]] = []
        solved = 0
        for depth in sorted({-node[1] for node in chosen}):
            if late():
                break
            longer, bounds = self._longer([node for node in chosen if -node[1] == depth], depth)
            if depth + 1 == self.space.q:
                solved += len(longer)
                selections = np.empty_like(longer)
                selections[:, self.order] = longer
                leaves.append((selections, self._test(selections)))
                continue
            # While fewer than k are known only infeasibility prunes: near the leaves a bound costs more than they do.
            if self._kth_norm < np.inf or depth + 1 < self.space.q - 2:
                bounds = np.maximum(bounds, self._bound(longer))
                solved += len(longer)
            for row in np.flatnonzero((bounds <= limit) & np.isfinite(bounds)):
                children.append((float(bounds[row]), -depth - 1, tuple(int(t) for t in longer[row])))
        return children, leaves, solved

    def _longer(self, nodes: list[_Node], depth: int) -> tuple[IntArray, FloatArray]:
        """Nodes of one depth with each token of the next query, and the bounds that they inherit."""
        tokens = self.space.choices[int(self.order[depth])]
        parents = np.array([node[2] for node in nodes], dtype=np.int64).reshape(len(nodes), depth)
        longer = np.hstack([np.repeat(parents, len(tokens), axis=0), np.tile(tokens, len(nodes))[:, None]])
        return longer, np.repeat([node[0] for node in nodes], len(tokens))

    def _test(self, selections: IntArray) -> Verdicts:
        if self.norm == "frobenius":
            return lower_verdicts(self.space, selections)
        return full_verdicts(self.space, selections, self.norm)

    # -- saving -----------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """The list kept depends on ``top``, the incumbents on the seed."""
        return {"top": self.top, "seed": self.seed}

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Open nodes and the rounds of swaps."""
        tokens = np.full((len(self._open), self.space.q), -1, dtype=np.int64)
        for row, node in enumerate(self._open):
            tokens[row, : len(node[2])] = node[2]
        return {
            "bounds": np.array([node[0] for node in self._open]),
            "tokens": tokens,
            "turn": np.array(self._turn),
            **{f"swaps_{name}": value for name, value in self.swaps.state().items()},
        }

    def restore(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """Continue with the open nodes."""
        self._open = []
        for bound, row in zip(state["bounds"], state["tokens"], strict=True):
            tokens = tuple(int(t) for t in row if t >= 0)
            self._open.append((float(bound), -len(tokens), tokens))
        heapq.heapify(self._open)
        self._turn = int(state["turn"])
        self.swaps.found = dict(self.found)
        self.swaps.restore({n.removeprefix("swaps_"): v for n, v in state.items() if n.startswith("swaps_")})


# -- local search ------------------------------------------------------------------------------------------------------

# Enough for descent to have chosen its tokens on small problems; the climb decides what they are worth.
_DESCENT_STEPS = 300
# Operations that all descents of a round may take, some seconds, and seconds without which there are none.
_DESCENT_OPERATIONS, _DESCENT_SECONDS = 3e9, 8.0
# Queries up to which climbs from random selections are short: beyond, descents come first.
_FEW_QUERIES = 30
# Queries that could move for each that does: on many queries a climb by single tokens would take hundreds of solves.
_QUERIES_PER_MOVE = 10


class Swaps(Engine):
    """Climbs from random selections, from where short descents end, and from known optima with tokens changed.

    The second round (the first one, of many queries) starts from the tokens that gradient descent on W (on (K, Q) for
    the nuclear norm) selects after a few hundred steps from random weights; it is left out without torch, without time,
    or if it cannot differentiate the head.

    Parameters
    ----------
    space, norm
        As for `Engine`.
    seed : int
    starts : int
        Climbs per round, fewer where a batch is smaller than that.
    patience : int
        Rounds in a row that may find nothing new before the search ends.
    top : int, optional
        List only that many.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.enumeration.selection_space import SelectionSpace
    >>> engine = Swaps(SelectionSpace(attsvm.random_problem(n=3, T=4, d=4, seed=5)), "frobenius", seed=0)
    >>> while not engine.done:
    ...     _ = engine.advance()
    >>> len(engine.found), engine.complete
    (4, False)
    """

    mode = "heuristic"

    def __init__(
        self,
        space: SelectionSpace,
        norm: str,
        seed: int,
        starts: int = 64,
        patience: int = 5,
        top: int | None = None,
    ) -> None:
        super().__init__(space, norm)
        self.seed, self.starts, self.patience, self.top = seed, min(starts, space.at_once), patience, top
        self.round = self.stale = 0
        self.visited: set[tuple[int, ...]] = set()

    def _descended(self) -> IntArray:
        """Tokens that short runs of gradient descent select, one run per climb."""
        from attsvm.training import train

        parameterization, problem = "KQ" if self.norm == "nuclear" else "W", self.space.problem
        step = 6.0 * self.space.q * problem.dx * (problem.dz + problem.T)
        starts = int(np.clip(_DESCENT_OPERATIONS / (step * _DESCENT_STEPS), 1, self.starts))
        run = train(  # normalized_gd: short runs are to come far, not close to a direction
            problem.repeat(starts), parameterization, steps=_DESCENT_STEPS, optimizer="normalized_gd", seed=self.seed,
            snapshots=2,
        )  # fmt: skip
        return np.array(run.selection.indices.reshape(starts, -1), dtype=np.int64)

    def _first(self, rng: np.random.Generator) -> IntArray:
        random = self.space.random(rng, self.starts)
        trainable = isinstance(self.space.problem.head, LinearHead | ReluHead | ConcaveHead)
        able = trainable and find_spec("torch") is not None and seconds_left() > _DESCENT_SECONDS
        if self.round == (1 if self.space.q <= _FEW_QUERIES else 0) and able:
            with suppress(OutOfTime):
                random = self._descended()
                if self.round:
                    return random
        if self.round == 0:
            random[0] = self.space.best  # locally optimal if feasible and without ties
        known = [item.tokens for item in self.best()]
        if self.round % 2 == 0 or not known:
            return random
        changed = np.array([known[int(i)] for i in rng.integers(len(known), size=self.starts)], dtype=np.int64)
        for moves in range(2):
            query = rng.integers(self.space.q, size=self.starts)
            rows = np.flatnonzero(rng.random(self.starts) < 1.0 / (1 + moves))
            changed[rows, query[rows]] = random[rows, query[rows]]
        return changed

    def advance(self) -> list[LocalOptimum]:
        """One round of climbs; a climb ends where an earlier one has passed."""
        rng = np.random.default_rng([self.seed, self.round])
        current = self._first(rng)
        fresh: set[tuple[int, ...]] = set()
        finished: list[tuple[IntArray, Verdicts]] = []
        solves = feasible = infeasible = 0
        while True:
            names = [tuple(int(t) for t in row) for row in current]
            keep = []
            for row, name in enumerate(names):
                if name not in self.visited and name not in fresh:
                    fresh.add(name)
                    keep.append(row)
            if not keep:
                break
            current = current[keep]
            verdicts = full_verdicts(self.space, current, self.norm)
            finished.append((current, verdicts))
            solves += int((~np.isnan(verdicts.norm)).sum())
            feasible += int(verdicts.feasible.sum())
            infeasible += int(verdicts.infeasible.sum())
            if late():
                break
            where = np.where(verdicts.feasible[:, None, None], verdicts.near, verdicts.conflict[..., None])
            moves = (where & self.space.higher(current, ties=False)).reshape(len(current), -1)
            movable = moves.any(axis=1)
            if not movable.any():
                break
            current, moves = current[movable].copy(), moves[movable]
            self._move(current, moves, rng)
        new = [item for selections, verdicts in finished for item in self.record(selections, verdicts)]
        self.counts.nodes += solves
        self.counts.solves += solves
        self.counts.feasible += feasible
        self.counts.infeasible += infeasible
        if late():
            return new
        self.visited |= fresh
        self.round += 1
        self.stale = 0 if new else self.stale + 1
        self.done = self.stale >= self.patience
        return new

    def _move(self, current: IntArray, moves: BoolArray, rng: np.random.Generator) -> None:
        """Exchange a token of one query in `_QUERIES_PER_MOVE`, at least of one; ``moves`` is (B, q T)."""
        weight = (moves * rng.random(moves.shape)).reshape(*current.shape, self.space.T)
        token, weight = weight.argmax(axis=2), weight.max(axis=2)
        chosen = np.argsort(-weight, axis=1, kind="stable")
        count = np.maximum((weight > 0).sum(axis=1) // _QUERIES_PER_MOVE, 1)
        for row, (order, most) in enumerate(zip(chosen, count, strict=True)):
            current[row, order[:most]] = token[row, order[:most]]

    @property
    def complete(self) -> bool:
        """Never: a climb that was not made proves nothing."""
        return False

    @property
    def bound(self) -> float:
        """Infinite: nothing is proved."""
        return float("inf")

    @property
    def progress(self) -> tuple[float, str]:
        """Rounds so far."""
        return 0.0, f"round {self.round}, {len(self.found)} found"

    def settings(self) -> dict[str, Any]:
        """The random climbs are part of the identity."""
        return {"seed": self.seed, "starts": self.starts}

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Rounds made and selections passed."""
        visited = np.array(sorted(self.visited), dtype=np.int64).reshape(-1, self.space.q)
        return {"round": np.array(self.round), "stale": np.array(self.stale), "visited": visited}

    def restore(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """Continue with the next round."""
        self.round, self.stale = int(state["round"]), int(state["stale"])
        self.visited = {tuple(int(t) for t in row) for row in state["visited"]}
        self.done = self.stale >= self.patience
