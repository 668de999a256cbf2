"""Finished chunks in one SQLite file: each is written in a transaction, never twice, and read back with its digest."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from attsvm.sweeps.plan import Chunk, Plan, cell_key

__all__ = ["Store", "StoreError"]

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
    >>> from attsvm.sweeps.plan import make_plan
    >>> from attsvm.sweeps.store import Store
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
