"""What the three ways of enumerating share: what was found, budgets, and saving to a file."""

from __future__ import annotations

import json
import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.enumeration.selection_solves import Verdicts
from attsvm.enumeration.selection_space import Counts, LocalOptimum, SelectionSpace, Undecided
from attsvm.records import atomic_write
from attsvm.selection import Selection
from attsvm.solvers import deadline
from attsvm.solvers.arrays import IntArray
from attsvm.solvers.deadline import late, within

# Seconds between two savings: writing must not cost more than computing again.
_TELL_EVERY = 10.0  # seconds between two lines of progress in a file
_SAVE_EVERY = 2.0
# Of the files: what was found by other rules is not continued.
_FORMAT = 2


class Engine(ABC):
    """A way of enumerating that works in steps; between steps its state can be saved.

    A step computes first and records last, so that an interrupted step leaves the state of the step before. A step that
    the deadline (`attsvm.solvers.deadline`) cuts short keeps what it proved locally optimal, and is taken again when
    the enumeration goes on.

    Parameters
    ----------
    space : SelectionSpace
    norm : str
    """

    mode: str
    top: int | None

    def __init__(self, space: SelectionSpace, norm: str) -> None:
        self.space, self.norm = space, norm
        self.counts = Counts(space.size)
        self.found: dict[tuple[int, ...], LocalOptimum] = {}
        self.undecided: dict[tuple[int, ...], Undecided] = {}
        self.done = False

    @abstractmethod
    def advance(self) -> list[LocalOptimum]:
        """Take one step and return the new locally optimal selections."""

    @property
    @abstractmethod
    def bound(self) -> float:
        """Proved upper bound on the margin of what is not in ``best()``."""

    @property
    def complete(self) -> bool:
        """Whether ``best()`` is proved to miss nothing."""
        return self.done and not self.undecided

    @property
    def progress(self) -> tuple[float, str]:
        """Share of the work that is done (0 to 1, 0 when unknown) and a line of text."""
        return 0.0, f"{len(self.found)} found"

    def best(self) -> list[LocalOptimum]:
        """What was found, all or the first ``top``: largest margin first, ties in order of the tokens."""
        return sorted(self.found.values(), key=lambda item: (item.norm, item.tokens))[: self.top]

    def record(self, selections: IntArray, verdicts: Verdicts) -> list[LocalOptimum]:
        """Keep the locally optimal and the undecided among these selections; return the new ones."""
        new = []
        shape = self.space.problem.query_shape
        for row in np.flatnonzero(verdicts.locally_optimal):
            tokens = tuple(int(t) for t in selections[row])
            if tokens not in self.found:
                chosen = Selection(selections[row].reshape(shape).copy())
                item = LocalOptimum(chosen, float(verdicts.norm[row]), float(verdicts.gap[row]))
                self.found[tokens] = item
                new.append(item)
        for row in np.flatnonzero(verdicts.undecided) if not late() else ():  # time might have decided them
            tokens = tuple(int(t) for t in selections[row])
            chosen = Selection(selections[row].reshape(shape).copy())
            self.undecided.setdefault(tokens, Undecided(chosen, verdicts.reasons.get(int(row), "")))
        self.counts.locally_optimal = len(self.found)
        return new

    # -- saving -----------------------------------------------------------------------------------

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What must be equal for a saved state to be this engine's."""

    @abstractmethod
    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The rest of the state as arrays."""

    @abstractmethod
    def restore(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """Continue from a state."""

    def _identity(self) -> str:
        own = {"format": _FORMAT, "mode": self.mode, "norm": self.norm, **self.settings()}
        return json.dumps({"problem": self.space.fingerprint, **own}, sort_keys=True)

    def save(self, path: Path) -> None:
        """Write the whole file or nothing: a kill leaves the old or the new one."""
        items = list(self.found.values())
        content = {
            "identity": np.array(self._identity()),
            "counts": np.array(json.dumps(self.counts.as_dict())),
            "done": np.array(self.done),
            "found": np.array([item.tokens for item in items], dtype=np.int64).reshape(-1, self.space.q),
            "norms": np.array([item.norm for item in items]),
            "gaps": np.array([item.gap for item in items]),
            "undecided": np.array(list(self.undecided), dtype=np.int64).reshape(-1, self.space.q),
            "reasons": np.array([item.reason for item in self.undecided.values()], dtype=np.str_),
            **{f"state_{name}": value for name, value in self.state().items()},
        }
        with atomic_write(path) as file:
            np.savez(file, **content)  # type: ignore[arg-type]

    def load(self, path: Path) -> None:
        """Continue a saved enumeration of this very problem and these settings."""
        try:
            with np.load(path, allow_pickle=False) as file:
                content = {name: file[name] for name in file.files}
            identity = str(content["identity"])
        except (ValueError, KeyError, OSError, EOFError) as error:
            raise ValueError(f"checkpoint {path} is not a saved enumeration; remove it to start over") from error
        if identity != self._identity():
            raise ValueError(
                f"checkpoint {path} belongs to another problem or other settings (mode, norm, top, seed); "
                "remove it to start over"
            )
        shape = self.space.problem.query_shape
        self.counts = Counts(**json.loads(str(content["counts"])))
        self.done = bool(content["done"])
        self.found = {
            tuple(int(t) for t in row): LocalOptimum(Selection(row.reshape(shape)), float(norm), float(gap))
            for row, norm, gap in zip(content["found"], content["norms"], content["gaps"], strict=True)
        }
        self.undecided = {
            tuple(int(t) for t in row): Undecided(Selection(row.reshape(shape)), str(reason))
            for row, reason in zip(content["undecided"], content["reasons"], strict=True)
        }
        prefix = "state_"
        self.restore({name.removeprefix(prefix): v for name, v in content.items() if name.startswith(prefix)})


class Budget:
    """Limits on one call: nodes, seconds, number of finds.

    Parameters
    ----------
    max_nodes, limit : int, optional
    time_limit : float, optional
        Seconds from now.
    """

    def __init__(self, max_nodes: int | None, time_limit: float | None, limit: int | None) -> None:
        self.max_nodes, self.limit = max_nodes, limit
        self.begin = deadline.now()
        self.time_limit = time_limit

    @property
    def seconds(self) -> float:
        """Seconds since the budget was made."""
        return deadline.now() - self.begin

    @property
    def left(self) -> float:
        """Seconds until the time limit."""
        return math.inf if self.time_limit is None else self.time_limit - self.seconds

    def spent(self, engine: Engine) -> bool:
        """Whether some limit is reached."""
        return (
            (self.max_nodes is not None and engine.counts.nodes >= self.max_nodes)
            or self.left <= 0
            or (self.limit is not None and len(engine.found) >= self.limit)
        )


class _Bar:
    """Progress on stderr if wanted: a bar of rich, or in a file a line for each tenth and every ten seconds."""

    def __init__(self, engine: Engine, wanted: bool) -> None:
        self.engine, self.wanted, self.bar, self.task = engine, wanted, None, None
        self.tenth, self.told = 0, time.monotonic()
        if not wanted:
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        if not (console.is_terminal or console.is_jupyter):
            return
        columns = BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
        bar = Progress(*columns, console=console, transient=True)
        self.task = bar.add_task("", total=1.0)
        self.bar = bar
        bar.start()

    def update(self) -> None:
        if not self.wanted:
            return
        share, text = self.engine.progress
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=share, description=text)
        elif int(10 * share) > self.tenth or time.monotonic() - self.told > _TELL_EVERY:
            self.tenth, self.told = int(10 * share), time.monotonic()
            sys.stderr.write(f"{text}\n")

    def stop(self) -> None:
        if self.bar is not None:
            self.bar.stop()


def run(engine: Engine, budget: Budget, progress: bool, checkpoint: Path | None) -> Iterator[LocalOptimum]:
    """Advance an engine until it is done or the budget is spent, yielding what it finds.

    What a loaded checkpoint already holds is yielded first. The state is saved every few seconds and whenever the
    iteration ends, also by an exception or by the caller's leaving.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.enumeration.selection_search import Exhaustive
    >>> from attsvm.enumeration.selection_space import SelectionSpace
    >>> space = SelectionSpace(attsvm.random_problem(n=3, T=4, d=4, seed=5))
    >>> len(list(run(Exhaustive(space, "frobenius"), Budget(None, None, None), False, None)))
    4
    """
    if checkpoint is not None and checkpoint.exists():
        engine.load(checkpoint)
    bar = _Bar(engine, progress)
    saved = time.monotonic()
    try:
        yield from list(engine.found.values())
        while not engine.done and not budget.spent(engine):
            new = within(budget.left, engine.advance)
            bar.update()
            if checkpoint is not None and time.monotonic() - saved >= _SAVE_EVERY:
                engine.save(checkpoint)
                saved = time.monotonic()
            yield from new
    finally:
        bar.stop()
        if checkpoint is not None:
            # A second interruption while saving leaves the file of before.
            with suppress(KeyboardInterrupt):
                engine.save(checkpoint)
