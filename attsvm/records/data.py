"""Plain values, versions and files that are whole or not there."""

from __future__ import annotations

import json
import math
import os
import platform
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

import numpy as np

__all__ = ["atomic_write", "environment", "plain", "versions", "write_json"]


def plain(value: Any, finite: bool = True) -> Any:
    """A value as JSON can hold it: dataclasses as dicts, arrays and tensors as lists, enums as their values.

    Parameters
    ----------
    value : object
    finite : bool
        Write null for infinity and not-a-number, which JSON does not have; otherwise they stay.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.records import plain
    >>> plain({"x": np.array([1.0, np.nan]), 5: True, "gap": float("inf")})
    {'x': [1.0, None], '5': True, 'gap': None}
    """
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return None if finite and not math.isfinite(value) else float(value)
    if isinstance(value, Mapping):
        return {str(key): plain(entry, finite) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry, finite) for entry in value]
    if hasattr(value, "detach"):  # a torch tensor, on any device
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist(), finite)
    if is_dataclass(value) and not isinstance(value, type):
        return {
            entry.name: plain(getattr(value, entry.name), finite) for entry in fields(value) if entry.name[0] != "_"
        }
    return value


def versions(*names: str) -> dict[str, str]:
    """Versions of Python, attsvm, NumPy, SciPy and the named packages, those that are installed.

    Examples
    --------
    >>> from attsvm.records import versions
    >>> sorted(versions("torch", "no such package"))
    ['attsvm', 'numpy', 'python', 'scipy', 'torch']
    """
    found = {"python": platform.python_version()}
    for name in ("attsvm", "numpy", "scipy", *names):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def environment(found: Mapping[str, str] | None = None) -> str:
    """Versions in one line.

    Parameters
    ----------
    found : dict, optional
        From `versions`; by default what a solve depends on.

    Examples
    --------
    >>> from attsvm.records import environment
    >>> environment({"python": "3.11.2", "attsvm": "0.1.0"})
    'python 3.11.2, attsvm 0.1.0'
    """
    used = versions("cvxpy", "clarabel", "scs") if found is None else found
    return ", ".join(f"{name} {number}" for name, number in used.items())


@contextmanager
def atomic_write(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file beside ``path`` for writing; on success it takes the place of ``path``, on failure it is removed.

    A crash leaves the old content or the new one, never a half.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from attsvm.records import atomic_write
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_write(Path(folder) / "a.txt") as file:
    ...         _ = file.write(b"whole")
    ...     [p.name for p in Path(folder).iterdir()]
    ['a.txt']
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.partial")  # writers do not meet
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        if error.filename in (None, str(temporary)):  # name the file that was asked for
            raise type(error)(error.errno, error.strerror or str(error), str(target)) from error
        raise
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_json(path: str | Path, value: Any) -> None:
    """Write a value as JSON, atomically.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from attsvm.records import write_json
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_json(Path(folder) / "a.json", [float("nan"), 1])
    ...     (Path(folder) / "a.json").read_text().split()
    ['[', 'null,', '1', ']']
    """
    with atomic_write(path) as file:
        file.write((json.dumps(plain(value), indent=1, allow_nan=False) + "\n").encode())
