"""Where a monitor writes: JSON lines, SQLite, TensorBoard."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from attsvm._lazy import needs
from attsvm.probing.alarms import Alarm
from attsvm.records import plain

__all__ = ["JsonlWriter", "SqliteWriter", "TensorBoardWriter", "Writer"]

Scalars = dict[str, float]


class Writer(Protocol):
    """Takes what was measured at a step."""

    def write(self, step: int, heads: dict[tuple[int, int], Scalars], alarms: Sequence[Alarm]) -> None:
        """Scalars of every (layer, head), and alarms."""

    def close(self) -> None:
        """End."""


class JsonlWriter:
    r"""One line of JSON per measurement.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from attsvm.probing.writers import JsonlWriter
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     writer = JsonlWriter(Path(folder) / "a.jsonl")
    ...     writer.write(5, {(0, 1): {"entropy": 2.0}}, [])
    ...     writer.close()
    ...     (Path(folder) / "a.jsonl").read_text()
    '{"step": 5, "heads": [{"layer": 0, "head": 1, "entropy": 2.0}], "alarms": []}\n'
    """

    def __init__(self, path: str | Path) -> None:
        self._file = Path(path).open("a", encoding="utf-8")  # noqa: SIM115 - open while training runs

    def write(self, step: int, heads: dict[tuple[int, int], Scalars], alarms: Sequence[Alarm]) -> None:
        """Append a line, at once."""
        rows = [{"layer": layer, "head": head, **values} for (layer, head), values in heads.items()]
        self._file.write(json.dumps(plain({"step": step, "heads": rows, "alarms": list(alarms)})) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class SqliteWriter:
    """Tables ``scalars`` (step, layer, head, name, value) and ``alarms`` (step, layer, head, kind, value).

    Examples
    --------
    >>> from attsvm.probing.writers import SqliteWriter
    >>> writer = SqliteWriter(":memory:")
    >>> writer.write(5, {(0, 1): {"entropy": 2.0}}, [])
    >>> writer.connection.execute("SELECT * FROM scalars").fetchall()
    [(5, 0, 1, 'entropy', 2.0)]
    """

    def __init__(self, path: str | Path) -> None:
        try:
            self.connection = sqlite3.connect(str(path))
            for table, name in (("scalars", "name"), ("alarms", "kind")):
                self.connection.execute(
                    f"CREATE TABLE IF NOT EXISTS {table} (step INTEGER, layer INTEGER, head INTEGER, {name} TEXT, "
                    "value REAL)"
                )
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{path} cannot be used as a database of scalars ({error})") from error

    def write(self, step: int, heads: dict[tuple[int, int], Scalars], alarms: Sequence[Alarm]) -> None:
        """Add rows in one transaction."""
        rows = [(step, *place, name, value) for place, values in heads.items() for name, value in values.items()]
        told = [(alarm.step, alarm.layer, alarm.head, alarm.kind, alarm.value) for alarm in alarms]
        with self.connection:
            self.connection.executemany("INSERT INTO scalars VALUES (?, ?, ?, ?, ?)", rows)
            self.connection.executemany("INSERT INTO alarms VALUES (?, ?, ?, ?, ?)", told)

    def close(self) -> None:
        """Close the file."""
        self.connection.close()


class TensorBoardWriter:
    """Scalars ``attention/LAYER.HEAD/NAME`` and alarms as text, in a folder that TensorBoard reads."""

    def __init__(self, folder: str | Path) -> None:
        with needs("TensorBoardWriter"):
            from torch.utils.tensorboard import SummaryWriter
        make: Any = SummaryWriter
        self._writer: Any = make(str(folder))

    def write(self, step: int, heads: dict[tuple[int, int], Scalars], alarms: Sequence[Alarm]) -> None:
        """Add scalars and texts."""
        for (layer, head), values in heads.items():
            for name, value in values.items():
                self._writer.add_scalar(f"attention/{layer}.{head}/{name}", value, step)
        for alarm in alarms:
            self._writer.add_text("attention/alarms", str(alarm), step)

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()
