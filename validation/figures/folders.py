"""Where a figure keeps what its cells share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["folder_beside"]


@contextmanager
def folder_beside(store: str | Path) -> Iterator[Path]:
    """The folder of a store, or one for the time being where the store is in memory.

    Examples
    --------
    >>> from attsvm.validation.figures.folders import folder_beside
    >>> with folder_beside("results/own.sqlite") as folder:
    ...     print(folder)
    results
    """
    if str(store) != ":memory:":
        yield Path(store).parent
        return
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)
