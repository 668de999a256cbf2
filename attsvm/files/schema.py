"""The schema of problem files: which entries there are, what they may hold, and what they mean together.

Both formats carry the same entries under the same names. Entries are *texts* (a string array in `.npz`, a metadata
string in `.safetensors`) or arrays.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.files.errors import ProblemFileError
from attsvm.heads import Head, stored_heads
from attsvm.problem import AttentionProblem
from attsvm.selection import Selection, read_selection

__all__ = [
    "PROBLEM_ARRAYS",
    "SCHEMA",
    "TEXTS",
    "Content",
    "check_claim",
    "checksum",
    "decoded_bytes",
    "known_arrays",
    "to_content",
    "to_problem",
]

SCHEMA = "attsvm.problem/1"

TEXTS = frozenset({"schema", "head", "sha256"})
# Kinds of numbers (numpy's letters) and most axes of each array, that of a batch included.
PROBLEM_ARRAYS: Mapping[str, tuple[str, int]] = {
    "X": ("fiu", 4),
    "Y": ("fiu", 3),
    "Z": ("fiu", 4),
    "mask": ("biu", 4),
}
_KIND_NAMES = {"fiu": "real numbers", "biu": "booleans", "iu": "integers"}


def known_arrays() -> dict[str, tuple[str, int]]:
    """Every array that a file may hold: those of a problem and the parameters of all heads, as ``head_<name>``.

    Examples
    --------
    >>> from attsvm.files.schema import known_arrays
    >>> known_arrays()["head_V"], known_arrays()["head_lam"]
    (('fiu', 3), ('fiu', 0))
    """
    found = dict(PROBLEM_ARRAYS)
    for cls in stored_heads().values():
        for name, axes in cls.parameters.items():
            entry = f"head_{name}"
            found[entry] = ("fiu", max(found.get(entry, ("", 0))[1], len(axes) + 1 if axes else 0))
    return found | {"selection": ("iu", 3)}


@dataclass(frozen=True, eq=False)
class Content:
    """The entries of a file, in whatever format."""

    texts: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, npt.NDArray[Any]] = field(default_factory=dict)


def check_claim(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Refuse an array by its header alone: unknown name, wrong kind of numbers, too many axes."""
    arrays = known_arrays()
    if name not in arrays:
        known = ", ".join([*sorted(TEXTS), *arrays])
        raise ProblemFileError(f"unknown entry {name[:40]!r}; schema {SCHEMA} has {known}")
    kinds, axes = arrays[name]
    if dtype.kind not in kinds or dtype.itemsize > 8:
        raise ProblemFileError(f"{name} must hold {_KIND_NAMES[kinds]}, got dtype {dtype}")
    if len(shape) > axes:
        raise ProblemFileError(f"{name} must have at most {axes} axes, got shape {shape}")


def decoded_bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Bytes in memory: everything but float32, half precision and booleans becomes 8 bytes per number."""
    width = {"f2": 4, "f4": 4, "b1": 1}.get(f"{dtype.kind}{dtype.itemsize}", 8)
    return width * math.prod(shape)  # Python integers: no overflow


def to_content(problem: AttentionProblem, selection: Selection | None) -> Content:
    """The entries of a problem; a head without a kind of its own is refused."""
    arrays: dict[str, npt.NDArray[Any]] = {"X": problem.X, "Y": problem.Y, "Z": problem.Z}
    if problem.mask is not None:
        arrays["mask"] = problem.mask
    kind = _head_kind(problem.head)
    for name in () if problem.head is None else problem.head.parameters:
        arrays[f"head_{name}"] = np.asarray(getattr(problem.head, name))
    if selection is not None:
        arrays["selection"] = selection.indices
    content = Content({"schema": SCHEMA, "head": kind}, arrays)
    content.texts["sha256"] = checksum(content)
    return content


def checksum(content: Content) -> str:
    """SHA-256 of the texts and arrays of a file: names, kinds, shapes and numbers, in either format.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.files.schema import Content, checksum
    >>> checksum(Content({"head": "none"}, {"X": np.zeros(2)}))[:12]
    '87df1bdfe90e'
    """
    digest = hashlib.sha256()
    for name, text in sorted(content.texts.items()):
        if name != "sha256":
            digest.update(f"{name}={text}\n".encode())
    for name, array in sorted(content.arrays.items()):
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        digest.update(f"{name} {little.dtype.str} {array.shape}\n".encode())
        digest.update(little.tobytes())
    return digest.hexdigest()


def _head_kind(head: Head | None) -> str:
    if head is None:
        return "none"
    for kind, cls in stored_heads().items():
        if type(head) is cls:
            return kind
    raise ProblemFileError(
        f"a head of type {head.name} is code and cannot be stored; use LinearHead, ReluHead, ConcaveHead or a Head "
        "with a kind of its own, or save the problem with head=None"
    )


def to_problem(content: Content) -> tuple[AttentionProblem, Selection | None]:
    """Build the problem; every message names the entry."""
    texts, arrays = content.texts, content.arrays
    if "schema" not in texts:
        raise ProblemFileError(f"no entry 'schema': not a problem file of attsvm (expected {SCHEMA!r})")
    if texts["schema"] != SCHEMA:
        raise ProblemFileError(f"schema is {texts['schema'][:40]!r}, but this version reads {SCHEMA!r}")
    if texts.get("sha256", checksum(content)) != checksum(content):
        raise ProblemFileError("its numbers do not match its checksum 'sha256': the file was changed or is damaged")
    for name in ("X", "Z"):
        if name not in arrays:
            raise ProblemFileError(f"no entry {name!r}, which every problem needs")
    head = _read_head(texts.get("head", "none"), arrays)
    problem = AttentionProblem.cross_attention(arrays["X"], arrays["Z"], arrays.get("Y"), head, arrays.get("mask"))
    if "selection" not in arrays:
        return problem, None
    return problem, read_selection(problem, arrays["selection"])


def _read_head(kind: str, arrays: Mapping[str, npt.NDArray[Any]]) -> Head | None:
    heads = stored_heads()
    if kind != "none" and kind not in heads:
        raise ProblemFileError(f"head must be one of {', '.join(['none', *heads])}, got {kind[:40]!r}")
    names = () if kind == "none" else tuple(heads[kind].parameters)
    needed = [f"head_{name}" for name in names]
    given = {name for name in arrays if name.startswith("head_")}
    for name in sorted(given ^ set(needed)):
        problem = "needs the entry" if name in needed else "does not take the entry"
        raise ProblemFileError(f"a head of kind {kind!r} {problem} {name!r}")
    return None if kind == "none" else heads[kind](**{name: arrays[f"head_{name}"] for name in names})
