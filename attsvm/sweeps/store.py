"""A sweep as data: cells, chunks, seeds, and the signature that a store must carry.

Finished chunks in one SQLite file: each is written in a transaction, never twice, and read back with its digest.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from attsvm.records import plain
from attsvm.user_input import require_count

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
    >>> plan = make_plan(max, {"d": [2, 3]}, trials=5, chunk=2, seed=0)
    >>> [(c.cell, c.trials) for c in plan.chunks()]
    [(0, 2), (0, 2), (0, 1), (1, 2), (1, 2), (1, 1)]
    """
    if not callable(fn):
        raise ValueError(f"fn must be callable as fn(trials, seed, **cell), got {type(fn).__name__}")
    for label, value, least in (("trials", trials, 1), ("chunk", chunk, 1), ("seed", seed, 0)):
        require_count(label, value, least)
    cells = cells_of(grid)
    label = name if name is not None else _identity(fn)
    return Plan(label, fn, cells, int(trials), int(chunk), int(seed))


def cells_of(grid: Grid) -> tuple[dict[str, Any], ...]:
    """The product of a mapping's values, or the given list of cells.

    Examples
    --------
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


FORMAT = 2

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS meta (format INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS sweeps (name TEXT PRIMARY KEY, signature TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS chunks (
        sweep TEXT NOT NULL, cell TEXT NOT NULL, chunk INTEGER NOT NULL, trials INTEGER NOT NULL,
        columns TEXT NOT NULL, seconds REAL NOT NULL, digest TEXT, PRIMARY KEY (sweep, cell, chunk, trials))""",
)


class StoreError(ValueError):
    """A store that cannot serve this sweep: made by other parameters, damaged, full, or not a store."""


class Store:
    """The SQLite file behind a sweep.

    Parameters
    ----------
    path : str or Path
        Created with its folder if missing. ``":memory:"`` keeps nothing.

    Examples
    --------
    >>> plan = make_plan(max, {"d": [2]}, trials=1, chunk=1, seed=0)
    >>> with Store(":memory:") as store:
    ...     store.claim(plan)
    ...     _ = store.write(plan, plan.chunks()[0], {"x": [0.5]}, seconds=0.0)
    ...     store.read(plan)
    {(0, 0): {'x': [0.5]}}
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        if self.path != ":memory:":
            Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        with self._errors("cannot be used as a store of results"):
            self._connection = sqlite3.connect(self.path, timeout=60.0, isolation_level=None)
        try:
            with self._errors("cannot be used as a store of results"):
                self._open()
        except BaseException:
            self._connection.close()
            raise

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Say whose error it is: SQLite knows neither the file's name nor what it was used for."""
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(f"store: {self.path} {what} ({error})") from error
        except (UnicodeDecodeError, OverflowError) as error:  # damaged text, a number that SQLite does not have
            raise StoreError(f"store: {self.path} {what} (damaged: {error})") from error

    def _open(self) -> None:
        # WAL: a killed writer leaves either the whole chunk or nothing, and readers may look while a sweep runs.
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        tables = {row[0] for row in self._connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}
        if tables and not {"meta", "sweeps", "chunks"} <= tables:
            raise StoreError(f"store: {self.path} is a database of something else (tables {sorted(tables)})")
        with self._transaction():
            for statement in _SCHEMA:
                self._connection.execute(statement)
            found = self._connection.execute("SELECT format FROM meta").fetchone()
            if found is None:
                self._connection.execute("INSERT INTO meta VALUES (?)", (FORMAT,))
            elif found[0] == 1:  # from before chunks had digests
                self._connection.execute("ALTER TABLE chunks ADD COLUMN digest TEXT")
                self._connection.execute("UPDATE meta SET format = ?", (FORMAT,))
            elif found[0] != FORMAT:
                raise StoreError(f"store: {self.path} has format {found[0]}, this version reads format {FORMAT}")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """BEGIN IMMEDIATE ... COMMIT: two processes never write the same chunk between each other's reads."""
        with self._errors("cannot be read or written; what it holds is kept"):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # SQLite itself rolls back when the disk is full
                    self._connection.execute("ROLLBACK")
                raise

    def claim(self, plan: Plan, *, extend: bool = False, fresh: bool = False) -> None:
        """Take the store for this plan, or refuse it when it was made by other parameters.

        Parameters
        ----------
        plan : Plan
        extend : bool
            Allow other cells and another number of trials: finished chunks that still fit are used again.
        fresh : bool
            Discard the sweep of that name first.
        """
        signature = plan.signature()
        with self._transaction():
            if fresh:
                self._connection.execute("DELETE FROM chunks WHERE sweep = ?", (plan.name,))
                self._connection.execute("DELETE FROM sweeps WHERE name = ?", (plan.name,))
            row = self._connection.execute("SELECT signature FROM sweeps WHERE name = ?", (plan.name,)).fetchone()
            if row is not None:
                ignored = {"grid", "trials"} if extend else set()
                differences = _differences(self._signature(row[0]), signature, ignored)
                if differences:
                    raise StoreError(
                        f"store: {self.path} holds sweep {plan.name!r} made by other parameters "
                        f"({'; '.join(differences)}); name another store or discard it with fresh=True"
                    )
            self._connection.execute(
                "INSERT OR REPLACE INTO sweeps VALUES (?, ?)", (plan.name, json.dumps(signature, sort_keys=True))
            )

    def _signature(self, stored: Any) -> dict[str, Any]:
        try:
            signature: dict[str, Any] = json.loads(stored)
            signature["grid"], signature["function"]
        except (ValueError, TypeError, KeyError) as error:
            raise StoreError(
                f"store: {self.path} is damaged (parameters of a sweep); discard it with fresh=True"
            ) from error
        return signature

    def write(self, plan: Plan, chunk: Chunk, columns: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Add one finished chunk in a transaction of its own, and return what is stored.

        Another process may have stored the same chunk meanwhile: then its rows stand, and are returned.
        """
        key = (plan.name, cell_key(plan.cells[chunk.cell]), chunk.index, chunk.trials)
        text = json.dumps(dict(columns))
        with self._transaction():
            added = self._connection.execute(
                "INSERT OR IGNORE INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?)", (*key, text, seconds, _digest(key, text))
            ).rowcount
            if added:
                return dict(columns)
            query = "SELECT columns, digest FROM chunks WHERE sweep = ? AND cell = ? AND chunk = ? AND trials = ?"
            return self._columns(key, *self._connection.execute(query, key).fetchone())

    def read(self, plan: Plan) -> dict[tuple[int, int], dict[str, Any]]:
        """The finished chunks of this plan by (cell, chunk)."""
        place = {cell_key(cell): k for k, cell in enumerate(plan.cells)}
        sizes = {(c.cell, c.index): c.trials for c in plan.chunks()}
        found = {}
        query = "SELECT cell, chunk, trials, columns, digest FROM chunks WHERE sweep = ?"
        with self._errors("cannot be read"):
            for cell, index, trials, text, digest in self._connection.execute(query, (plan.name,)):
                key = (place.get(cell, -1), index)
                if sizes.get(key) == trials:
                    found[key] = self._columns((plan.name, cell, index, trials), text, digest)
        return found

    def _columns(self, key: tuple[Any, ...], text: Any, digest: Any) -> dict[str, Any]:
        """The columns of a stored chunk; a chunk that was cut or changed is refused, not read as fewer rows."""
        try:
            columns = json.loads(text)
            whole = isinstance(columns, dict) and all(len(values) == key[-1] for values in columns.values())
        except (ValueError, TypeError):
            whole = False
        if not whole or (digest is not None and digest != _digest(key, text)):
            raise StoreError(
                f"store: {self.path} is damaged: chunk {key[2]} of cell {key[1]} is not what was stored; "
                "discard the sweep with fresh=True"
            )
        return dict(columns)

    def seconds(self, plan: Plan) -> float:
        """Computing time of all stored chunks of the sweep, over every run that contributed."""
        query = "SELECT SUM(seconds) FROM chunks WHERE sweep = ?"
        with self._errors("cannot be read"):
            row = self._connection.execute(query, (plan.name,)).fetchone()
        return float(row[0] or 0.0)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _digest(key: tuple[Any, ...], text: str) -> str:
    return hashlib.blake2b(json.dumps([*key, text]).encode(), digest_size=16).hexdigest()


def _differences(old: dict[str, Any], new: dict[str, Any], ignored: set[str]) -> list[str]:
    out = []
    for key in new:
        if key in ignored or old.get(key) == new[key]:
            continue
        if key == "code":
            out.append("the function's code has changed")
        elif key == "grid":
            gone = [c for c in old["grid"] if c not in new["grid"]]
            came = [c for c in new["grid"] if c not in old["grid"]]
            shown = (came or gone or ["order"])[0]
            out.append(f"grid of {len(old['grid'])} cells, now {len(new['grid'])}, for one {shown}")
        else:
            out.append(f"{key} {old.get(key)!r}, now {new[key]!r}")
    return out
