"""Finished chunks in one SQLite file: each is written in a transaction, and never twice."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from attsvm.sweeps.plan import Chunk, Plan, cell_key

__all__ = ["Store", "StoreError"]

FORMAT = 1
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS meta (format INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS sweeps (name TEXT PRIMARY KEY, signature TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS chunks (
        sweep TEXT NOT NULL, cell TEXT NOT NULL, chunk INTEGER NOT NULL, trials INTEGER NOT NULL,
        columns TEXT NOT NULL, seconds REAL NOT NULL, PRIMARY KEY (sweep, cell, chunk, trials))""",
)


class StoreError(ValueError):
    """A store that cannot serve this sweep: made by other parameters, or not a store."""


class Store:
    """The SQLite file behind a sweep.

    Parameters
    ----------
    path : str or Path
        Created with its folder if missing. ``":memory:"`` keeps nothing.

    Examples
    --------
    >>> from attsvm.sweeps.plan import make_plan
    >>> from attsvm.sweeps.store import Store
    >>> plan = make_plan(max, {"d": [2]}, trials=1, chunk=1, seed=0)
    >>> with Store(":memory:") as store:
    ...     store.claim(plan)
    ...     store.write(plan, plan.chunks()[0], {"x": [0.5]}, seconds=0.0)
    ...     store.read(plan)
    {(0, 0): {'x': [0.5]}}
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        if self.path != ":memory:":
            Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        try:
            self._connection = sqlite3.connect(self.path, timeout=60.0, isolation_level=None)
            self._open()
        except sqlite3.DatabaseError as error:
            raise StoreError(f"store: {self.path} cannot be used as a store of results ({error})") from error

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
            elif found[0] != FORMAT:
                raise StoreError(f"store: {self.path} has format {found[0]}, this version reads format {FORMAT}")

    def _transaction(self) -> _Transaction:
        return _Transaction(self._connection)

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
                differences = _differences(json.loads(row[0]), signature, ignored)
                if differences:
                    raise StoreError(
                        f"store: {self.path} holds sweep {plan.name!r} made by other parameters "
                        f"({'; '.join(differences)}); name another store or discard it with fresh=True"
                    )
            self._connection.execute(
                "INSERT OR REPLACE INTO sweeps VALUES (?, ?)", (plan.name, json.dumps(signature, sort_keys=True))
            )

    def write(self, plan: Plan, chunk: Chunk, columns: Mapping[str, Any], seconds: float) -> None:
        """Add one finished chunk in a transaction of its own."""
        key = (plan.name, cell_key(plan.cells[chunk.cell]), chunk.index, chunk.trials)
        with self._transaction():
            self._connection.execute(
                "INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?)", (*key, json.dumps(dict(columns)), seconds)
            )

    def read(self, plan: Plan) -> dict[tuple[int, int], dict[str, Any]]:
        """The finished chunks of this plan by (cell, chunk)."""
        place = {cell_key(cell): k for k, cell in enumerate(plan.cells)}
        sizes = {(c.cell, c.index): c.trials for c in plan.chunks()}
        found = {}
        query = "SELECT cell, chunk, trials, columns FROM chunks WHERE sweep = ?"
        for cell, index, trials, columns in self._connection.execute(query, (plan.name,)):
            key = (place.get(cell, -1), index)
            if sizes.get(key) == trials:
                found[key] = json.loads(columns)
        return found

    def seconds(self, plan: Plan) -> float:
        """Computing time of all stored chunks of the sweep, over every run that contributed."""
        row = self._connection.execute("SELECT SUM(seconds) FROM chunks WHERE sweep = ?", (plan.name,)).fetchone()
        return float(row[0] or 0.0)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class _Transaction:
    """BEGIN IMMEDIATE ... COMMIT: two processes never write the same chunk between each other's reads."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._connection.execute("COMMIT" if kind is None else "ROLLBACK")


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
