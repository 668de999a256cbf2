"""All selections, solved in batches; partial selections that are infeasible drop all their completions."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm._arrays import IntArray
from attsvm.enumeration.engine import Engine
from attsvm.enumeration.evaluate import full_verdicts
from attsvm.enumeration.relaxation import partial_norms
from attsvm.enumeration.result import LocalOptimum
from attsvm.enumeration.space import SelectionSpace
from attsvm.solvers.deadline import OutOfTime, late, require_time

__all__ = ["Exhaustive"]

# Selections per step: a second of work at most, and far above what makes a batch efficient.
_STEP = 4096
# Partial selections pay when many are infeasible: judged on this many random selections.
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
    >>> from attsvm.enumeration.exhaustive import Exhaustive
    >>> from attsvm.enumeration.space import SelectionSpace
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

    def best(self) -> list[LocalOptimum]:
        """All, or the first ``top``."""
        return super().best()[: self.top]

    def settings(self) -> dict[str, Any]:
        """Nothing but the problem and the norm matters."""
        return {}

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Position in the list of selections."""
        return {"next": np.array(self.next)}

    def restore(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """Continue at a position."""
        self.next = int(state["next"])
