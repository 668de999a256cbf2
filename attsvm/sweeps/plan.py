"""A sweep as data: cells, chunks, seeds, and the signature that a store must carry."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from attsvm.records import plain

__all__ = ["Chunk", "Grid", "Plan", "Task", "cells_of", "make_plan"]

# A task is called as fn(trials, seed, **cell) and returns columns of equal length.
Task = Callable[..., Mapping[str, object]]
# Parameters and their values, of which the product is taken, or the cells themselves.
Grid = Mapping[str, Sequence[object]] | Sequence[Mapping[str, object]]


@dataclass(frozen=True)
class Chunk:
    """Some trials of one cell, the unit of work and of storage."""

    cell: int
    index: int
    trials: int
    seed: int


@dataclass(frozen=True)
class Plan:
    """Everything that determines the rows of a sweep.

    Parameters
    ----------
    name : str
        Several sweeps may share a store under different names.
    fn : callable
        ``fn(trials, seed, **cell)``.
    cells : tuple of dict
        One dict of keyword arguments per cell.
    trials, chunk, seed : int
        Trials per cell, trials per chunk, and the seed of the sweep.
    """

    name: str
    fn: Task
    cells: tuple[dict[str, Any], ...]
    trials: int
    chunk: int
    seed: int

    def chunks(self) -> list[Chunk]:
        """Every chunk, cell by cell; the last one of a cell may be shorter."""
        sizes = [min(self.chunk, self.trials - start) for start in range(0, self.trials, self.chunk)]
        return [
            Chunk(cell, index, size, _chunk_seed(self.seed, self.cells[cell], index))
            for cell in range(len(self.cells))
            for index, size in enumerate(sizes)
        ]

    def signature(self) -> dict[str, Any]:
        """What a store must have been made with, as plain data."""
        return {
            "function": _identity(self.fn),
            "code": _code_digest(self.fn),
            "grid": [cell_key(cell) for cell in self.cells],
            "trials": self.trials,
            "chunk": self.chunk,
            "seed": self.seed,
        }


def make_plan(
    fn: Task,
    grid: Grid,
    trials: int,
    *,
    chunk: int,
    seed: int,
    name: str | None = None,
) -> Plan:
    """Check the arguments of a sweep and lay out its cells.

    Examples
    --------
    >>> from attsvm.sweeps.plan import make_plan
    >>> plan = make_plan(max, {"d": [2, 3]}, trials=5, chunk=2, seed=0)
    >>> [(c.cell, c.trials) for c in plan.chunks()]
    [(0, 2), (0, 2), (0, 1), (1, 2), (1, 2), (1, 1)]
    """
    if not callable(fn):
        raise ValueError(f"fn must be callable as fn(trials, seed, **cell), got {type(fn).__name__}")
    for label, value, least in (("trials", trials, 1), ("chunk", chunk, 1), ("seed", seed, 0)):
        if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
            raise ValueError(f"{label} must be an integer of at least {least}, got {value!r}")
    cells = cells_of(grid)
    label = name if name is not None else _identity(fn)
    return Plan(label, fn, cells, int(trials), int(chunk), int(seed))


def cells_of(grid: Grid) -> tuple[dict[str, Any], ...]:
    """The product of a mapping's values, or the given list of cells.

    Examples
    --------
    >>> from attsvm.sweeps.plan import cells_of
    >>> cells_of({"n": [5], "d": [2, 3]})
    ({'n': 5, 'd': 2}, {'n': 5, 'd': 3})
    """
    if isinstance(grid, Mapping):
        for key, values in grid.items():
            if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray | range):
                raise ValueError(f"grid[{key!r}] must be a sequence of values, got {type(values).__name__}")
        names = list(grid)
        cells = tuple(dict(zip(names, values, strict=True)) for values in itertools.product(*grid.values()))
    elif isinstance(grid, Sequence) and not isinstance(grid, str) and all(isinstance(c, Mapping) for c in grid):
        cells = tuple(dict(cell) for cell in grid)
    else:
        raise ValueError("grid must map parameter names to values, or list one mapping per cell")
    if not cells:
        raise ValueError("grid has no cells; give at least one value for every parameter")
    keys = [cell_key(cell) for cell in cells]
    if len(set(keys)) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"grid holds a cell twice: {twice}")
    return tuple(plain(cell, finite=False) for cell in cells)


def cell_key(cell: Mapping[str, object]) -> str:
    """A cell as canonical JSON; its identity in a store and in the seeds.

    Examples
    --------
    >>> from attsvm.sweeps.plan import cell_key
    >>> cell_key({"d": 3, "arithmetic": "log"})
    '{"arithmetic": "log", "d": 3}'
    """
    for key in cell:
        if key in ("trials", "seed") or not isinstance(key, str) or not key.isidentifier():
            raise ValueError(f"grid: {key!r} cannot name a parameter (trials and seed are given by the sweep)")
    try:
        return json.dumps(plain(cell, finite=False), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"grid: a cell must hold numbers, strings, lists or None, got {dict(cell)!r}") from error


def _chunk_seed(seed: int, cell: Mapping[str, object], index: int) -> int:
    """A seed that depends on the cell's content, not on its place: a grown grid keeps its old rows."""
    digest = hashlib.blake2b(cell_key(cell).encode(), digest_size=16).digest()
    words = np.random.SeedSequence([seed, int.from_bytes(digest, "big"), index]).generate_state(2)
    return int(words[0]) << 31 | int(words[1]) >> 1  # 63 bits: fits torch's and SQLite's integers


def _unwrap(fn: Any) -> tuple[Any, str]:
    extra = ""
    while isinstance(fn, partial):
        extra += f"({', '.join([*map(repr, fn.args), *(f'{k}={v!r}' for k, v in sorted(fn.keywords.items()))])})"
        fn = fn.func
    return fn, extra


def _identity(fn: Any) -> str:
    inner, extra = _unwrap(fn)
    return f"{getattr(inner, '__module__', '?')}.{getattr(inner, '__qualname__', type(inner).__qualname__)}{extra}"


def _code_digest(fn: Any) -> str:
    """A digest of the function's own source, so that rows of an older version are not mixed in unseen."""
    try:
        source = inspect.getsource(_unwrap(fn)[0])
    except (OSError, TypeError):  # builtins, functions typed at a prompt
        return "unknown"
    return hashlib.blake2b(source.encode(), digest_size=8).hexdigest()
