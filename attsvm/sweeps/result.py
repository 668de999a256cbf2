"""The rows of a finished sweep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Sweep", "columns_of"]


@dataclass(frozen=True, eq=False, repr=False)
class Sweep:
    """A finished sweep.

    Parameters
    ----------
    cells : tuple of dict
        Parameters of each cell.
    columns : tuple of dict
        For each cell the columns, arrays of shape ``(trials, ...)`` in the order of the trials.
    resumed, computed : int
        Chunks found in the store and chunks computed now.
    seconds : float
        Computing time of all chunks, added over workers and earlier runs.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.sweeps import Sweep
    >>> done = Sweep(({"d": 2},), ({"x": np.array([1.0, 2.0])},), resumed=0, computed=1, seconds=0.0)
    >>> list(done.rows())
    [{'d': 2, 'trial': 0, 'x': 1.0}, {'d': 2, 'trial': 1, 'x': 2.0}]
    """

    cells: tuple[dict[str, Any], ...]
    columns: tuple[dict[str, np.ndarray], ...]
    resumed: int
    computed: int
    seconds: float

    def __len__(self) -> int:
        return len(self.cells)

    def __repr__(self) -> str:
        trials = len(next(iter(self.columns[0].values()), ()))
        found = f"columns {', '.join(self.columns[0])}; {self.resumed} chunks resumed, {self.computed} computed"
        return f"Sweep({len(self)} cells of {trials} trials, {found})"

    def __iter__(self) -> Iterator[tuple[dict[str, Any], dict[str, np.ndarray]]]:
        return iter(zip(self.cells, self.columns, strict=True))

    def where(self, **parameters: object) -> dict[str, np.ndarray]:
        """The columns of the one cell with these parameters."""
        found = [c for cell, c in self if all(cell.get(k) == v for k, v in parameters.items())]
        if len(found) != 1:
            raise ValueError(f"{parameters} names {len(found)} cells of this sweep, expected one")
        return found[0]

    def rows(self) -> Iterator[dict[str, Any]]:
        """One flat record per trial: the cell's parameters, the number of the trial, its values."""
        for cell, columns in self:
            for trial in range(len(next(iter(columns.values())))):
                yield {**cell, "trial": trial, **{k: _scalar(v[trial]) for k, v in columns.items()}}


def columns_of(rows: Iterable[Mapping[str, object]]) -> dict[str, list[Any]]:
    """One list per name, from one row per trial: what a task of a sweep returns.

    Examples
    --------
    >>> from attsvm.sweeps import columns_of
    >>> columns_of({"square": k * k} for k in range(3))
    {'square': [0, 1, 4]}
    """
    columns: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    return columns


def join_columns(parts: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Chunks of one cell as one set of columns."""
    joined: dict[str, np.ndarray] = {}
    for name in parts[0]:
        values = [entry for part in parts for entry in part[name]]
        try:
            joined[name] = np.asarray(values)
        except ValueError:  # entries of different lengths stay as they are
            joined[name] = np.empty(len(values), dtype=object)
            joined[name][:] = values
    return joined


def _scalar(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
