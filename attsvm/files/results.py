"""Results of the command line as plain arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from attsvm.files.npz import pack
from attsvm.records import atomic_write

__all__ = ["save_arrays"]


def save_arrays(path: str | Path, arrays: Mapping[str, npt.ArrayLike]) -> None:
    """Write named arrays to a `.npz` file, atomically; objects are refused instead of pickled.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from attsvm.files import save_arrays
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_arrays(Path(folder) / "run.npz", {"steps": [0, 10]})
    ...     np.load(Path(folder) / "run.npz")["steps"]
    array([ 0, 10])
    """
    with atomic_write(path) as file:
        pack(file, {name: np.asarray(value) for name, value in arrays.items()})
