"""`load_problem` and `save_problem`.

Results of the command line as plain arrays.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from attsvm.files.formats import (
    MAX_BYTES,
    Content,
    ProblemFileError,
    pack,
    read_npz,
    read_safetensors,
    to_content,
    to_problem,
    write_npz,
    write_safetensors,
)
from attsvm.problem import AttentionProblem, require_problem
from attsvm.records import atomic_write
from attsvm.selection import Selection, SelectionLike, read_selection
from attsvm.user_input import require_count

__all__ = [
    "ProblemFile",
    "load_problem",
    "read_problem_file",
    "save_arrays",
    "save_problem",
]


_READERS: dict[str, Callable[[Path, int], Content]] = {".npz": read_npz, ".safetensors": read_safetensors}


_WRITERS: dict[str, Callable[[Path, Content], None]] = {".npz": write_npz, ".safetensors": write_safetensors}


@dataclass(frozen=True, eq=False)
class ProblemFile:
    """What a problem file holds.

    Attributes
    ----------
    path : Path
    problem : AttentionProblem
    selection : Selection or None
        One token per query, if the file names them.
    """

    path: Path
    problem: AttentionProblem
    selection: Selection | None


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in _READERS:
        raise ProblemFileError(f"{path}: problem files end in .npz or .safetensors, got {suffix or 'no ending'!r}")
    return suffix


def read_problem_file(path: str | Path, *, max_bytes: int = MAX_BYTES) -> ProblemFile:
    """Read a problem and, if the file has one, its selection.

    Parameters
    ----------
    path : str or Path
        A `.npz` or `.safetensors` file of schema ``attsvm.problem/1``; see docs/files.md.
    max_bytes : int
        Most bytes that the arrays may take in memory together; checked before anything is allocated.

    Raises
    ------
    ProblemFileError
        In one line: not a problem file, corrupt, truncated, too large, pickled objects, wrong numbers. No code of the
        file is executed.
    OSError
        When the file cannot be opened.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import attsvm
    >>> from attsvm.files import read_problem_file, save_problem
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "problem.npz"
    ...     save_problem(attsvm.random_problem(n=2, T=3, d=4, seed=0), path, selection=[2, 0])
    ...     read_problem_file(path).selection.indices
    array([2, 0])
    """
    path = Path(path)
    require_count("max_bytes", max_bytes)
    reader = _READERS[_suffix(path)]
    state = path.stat()
    if not stat.S_ISREG(state.st_mode):
        raise ProblemFileError(f"{path}: not a regular file")
    if state.st_size > max_bytes + 2**20:
        raise ProblemFileError(f"{path}: {state.st_size:,} bytes are more than the limit of {max_bytes:,}")
    try:
        problem, selection = to_problem(reader(path, max_bytes))
    except ValueError as error:  # from the file layer or from the problem itself; both name the entry
        raise ProblemFileError(f"{path}: {' '.join(str(error).split())}") from error
    return ProblemFile(path, problem, selection)


def load_problem(path: str | Path, *, max_bytes: int = MAX_BYTES) -> AttentionProblem:
    """Read a problem from a `.npz` or `.safetensors` file; see `read_problem_file` for what is refused.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import attsvm
    >>> from attsvm.files import load_problem, save_problem
    >>> problem = attsvm.random_problem(n=2, T=3, d=4, seed=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "problem.safetensors"
    ...     save_problem(problem, path)
    ...     bool((load_problem(path).X == problem.X).all())
    True
    """
    return read_problem_file(path, max_bytes=max_bytes).problem


def save_problem(problem: AttentionProblem, path: str | Path, *, selection: SelectionLike = None) -> None:
    """Write a problem (or a batch) to a `.npz` or `.safetensors` file, atomically.

    Parameters
    ----------
    problem : AttentionProblem
        With `LinearHead`, `ReluHead`, `ConcaveHead` or no head; any other head is code and refused.
    path : str or Path
        The ending decides the format. An existing file is replaced.
    selection : Selection or array_like of int, optional
        Stored beside the problem; the command line then uses it instead of the optimal tokens.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import attsvm
    >>> from attsvm.files import load_problem, save_problem
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "problem.npz"
    ...     save_problem(attsvm.random_problem(n=2, T=3, d=4, seed=0), path)
    ...     load_problem(path).head  # doctest: +ELLIPSIS
    LinearHead(v=array([...]))
    """
    path = Path(path)
    writer = _WRITERS[_suffix(path)]
    require_problem(problem)
    chosen = None if selection is None else read_selection(problem, selection)
    try:
        content = to_content(problem, chosen)
    except ProblemFileError as error:
        raise ProblemFileError(f"{path}: {error}") from error
    writer(path, content)


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
