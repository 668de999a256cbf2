"""The k locally optimal selections of largest margin, by best-first branch and bound over the queries."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm._arrays import IntArray
from attsvm.enumeration.engine import Engine
from attsvm.enumeration.evaluate import Verdicts, full_verdicts, lower_verdicts
from attsvm.enumeration.heuristic import Swaps
from attsvm.enumeration.relaxation import CompletionBound, partial_norms
from attsvm.enumeration.result import LocalOptimum
from attsvm.enumeration.space import SelectionSpace
from attsvm.solvers.deadline import OutOfTime, late, require_time

__all__ = ["BestFirst"]

FloatArray = npt.NDArray[np.float64]
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
    >>> from attsvm.enumeration.search import BestFirst
    >>> from attsvm.enumeration.space import SelectionSpace
    >>> space = SelectionSpace(attsvm.random_problem(n=3, T=4, d=4, seed=5))
    >>> engine = BestFirst(space, "frobenius", top=1, seed=0)
    >>> while not engine.done:
    ...     _ = engine.advance()
    >>> engine.best()[0].tokens, engine.complete, engine.counts.nodes < space.size
    ((2, 3, 3), True, True)
    """

    mode = "search"

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

    def best(self) -> list[LocalOptimum]:
        """The first ``top``."""
        return super().best()[: self.top]

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
