"""Local search by gradient descent and token swaps: quick, many starts, no claim of completeness.

From a selection that is not locally optimal, one token is exchanged for a support token of higher score; from an
infeasible one, a token of a conflicting query is exchanged for one of higher score. Every move raises the sum of
the scores, so each climb ends after at most (number of queries) x (T - 1) moves.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm._arrays import IntArray
from attsvm.enumeration.engine import Engine
from attsvm.enumeration.evaluate import Verdicts, full_verdicts
from attsvm.enumeration.result import LocalOptimum
from attsvm.enumeration.space import SelectionSpace
from attsvm.heads import ConcaveHead, LinearHead, ReluHead

__all__ = ["Swaps"]

# Enough for descent to have chosen its tokens on small problems; the climb decides what they are worth.
_DESCENT_STEPS = 300


class Swaps(Engine):
    """Climbs from random selections, from where short descents end, and from known optima with tokens changed.

    The second round starts from the tokens that gradient descent on W (on (K, Q) for the nuclear norm) selects
    after a few hundred steps from random weights; it is left out without torch, or if it cannot differentiate the head.

    Parameters
    ----------
    space, norm
        As for `Engine`.
    seed : int
    starts : int
        Climbs per round.
    patience : int
        Rounds in a row that may find nothing new before the search ends.
    top : int, optional
        List only that many.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.enumeration.heuristic import Swaps
    >>> from attsvm.enumeration.space import SelectionSpace
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
        self.seed, self.starts, self.patience, self.top = seed, starts, patience, top
        self.round = self.stale = 0
        self.visited: set[tuple[int, ...]] = set()

    def _descended(self) -> IntArray:
        """Tokens that short runs of gradient descent select, one run per climb."""
        from attsvm.training import train

        parameterization = "KQ" if self.norm == "nuclear" else "W"
        run = train(  # normalized_gd: short runs are to come far, not close to a direction
            self.space.problem.repeat(self.starts), parameterization, steps=_DESCENT_STEPS, optimizer="normalized_gd",
            seed=self.seed, snapshots=2,
        )  # fmt: skip
        return np.asarray(run.selection.indices.reshape(self.starts, -1), dtype=np.int64)

    def _first(self, rng: np.random.Generator) -> IntArray:
        random = self.space.random(rng, self.starts)
        if self.round == 0:
            random[0] = self.space.best  # locally optimal if feasible and without ties
        trainable = isinstance(self.space.problem.head, LinearHead | ReluHead | ConcaveHead)
        if self.round == 1 and trainable and find_spec("torch") is not None:
            return self._descended()
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
            solves += len(current)
            feasible += int(verdicts.feasible.sum())
            infeasible += int(verdicts.infeasible.sum())
            finished.append((current, verdicts))
            where = np.where(verdicts.feasible[:, None, None], verdicts.near, verdicts.conflict[..., None])
            moves = (where & self.space.higher(current, ties=False)).reshape(len(current), -1)
            movable = moves.any(axis=1)
            if not movable.any():
                break
            current, moves = current[movable].copy(), moves[movable]
            query, token = np.divmod((moves * rng.random(moves.shape)).argmax(axis=1), self.space.T)
            current[np.arange(len(current)), query] = token
        new = [item for selections, verdicts in finished for item in self.record(selections, verdicts)]
        self.visited |= fresh
        self.counts.nodes += solves
        self.counts.solves += solves
        self.counts.feasible += feasible
        self.counts.infeasible += infeasible
        self.round += 1
        self.stale = 0 if new else self.stale + 1
        self.done = self.stale >= self.patience
        return new

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

    def best(self) -> list[LocalOptimum]:
        """All, or the first ``top``."""
        return super().best()[: self.top]

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
