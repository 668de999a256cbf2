"""The schema of problem files: which entries there are, what they may hold, and what they mean together.

Both formats carry the same entries under the same names. Entries are *texts* (a string array in `.npz`, a metadata
string in `.safetensors`) or arrays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.files.errors import ProblemFileError
from attsvm.heads import ConcaveHead, Head, LinearHead, ReluHead
from attsvm.problem import AttentionProblem
from attsvm.selection import Selection, read_selection

__all__ = ["ARRAYS", "HEADS", "SCHEMA", "TEXTS", "Content", "check_claim", "decoded_bytes", "to_content", "to_problem"]

SCHEMA = "attsvm.problem/1"

TEXTS = frozenset({"schema", "head"})
# Kinds of numbers (numpy's letters) and most axes of each array, that of a batch included.
ARRAYS: Mapping[str, tuple[str, int]] = {
    "X": ("fiu", 4),
    "Y": ("fiu", 3),
    "Z": ("fiu", 4),
    "mask": ("biu", 4),
    "head_v": ("fiu", 2),
    "head_V": ("fiu", 3),
    "head_lam": ("fiu", 0),
    "selection": ("iu", 3),
}
# What each kind of head needs, in the order of its parameters.
HEADS: Mapping[str, tuple[type | None, tuple[str, ...]]] = {
    "none": (None, ()),
    "linear": (LinearHead, ("head_v",)),
    "relu": (ReluHead, ("head_V",)),
    "concave": (ConcaveHead, ("head_v", "head_lam")),
}
_KIND_NAMES = {"fiu": "real numbers", "biu": "booleans", "iu": "integers"}


@dataclass(frozen=True, eq=False)
class Content:
    """The entries of a file, in whatever format."""

    texts: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, npt.NDArray[Any]] = field(default_factory=dict)


def check_claim(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Refuse an array by its header alone: unknown name, wrong kind of numbers, too many axes."""
    if name not in ARRAYS:
        known = ", ".join([*sorted(TEXTS), *ARRAYS])
        raise ProblemFileError(f"unknown entry {name[:40]!r}; schema {SCHEMA} has {known}")
    kinds, axes = ARRAYS[name]
    if dtype.kind not in kinds or dtype.itemsize > 8:
        raise ProblemFileError(f"{name} must hold {_KIND_NAMES[kinds]}, got dtype {dtype}")
    if len(shape) > axes:
        raise ProblemFileError(f"{name} must have at most {axes} axes, got shape {shape}")


def decoded_bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Bytes in memory: everything but float32, half precision and booleans becomes 8 bytes per number."""
    width = {"f2": 4, "f4": 4, "b1": 1}.get(f"{dtype.kind}{dtype.itemsize}", 8)
    return width * math.prod(shape)  # Python integers: no overflow


def to_content(problem: AttentionProblem, selection: Selection | None) -> Content:
    """The entries of a problem; a head that is not of the library is refused."""
    arrays: dict[str, npt.NDArray[Any]] = {"X": problem.X, "Y": problem.Y, "Z": problem.Z}
    if problem.mask is not None:
        arrays["mask"] = problem.mask
    kind = _head_kind(problem.head)
    for entry in HEADS[kind][1]:
        arrays[entry] = np.asarray(getattr(problem.head, entry.removeprefix("head_")))
    if selection is not None:
        arrays["selection"] = selection.indices
    return Content({"schema": SCHEMA, "head": kind}, arrays)


def _head_kind(head: Head | None) -> str:
    for kind, (cls, _) in HEADS.items():
        if (head is None and cls is None) or (cls is not None and type(head) is cls):
            return kind
    raise ProblemFileError(
        f"a head of type {type(head).__name__} is code and cannot be stored; "
        "use LinearHead, ReluHead or ConcaveHead, or save the problem with head=None"
    )


def to_problem(content: Content) -> tuple[AttentionProblem, Selection | None]:
    """Build the problem; every message names the entry."""
    texts, arrays = content.texts, content.arrays
    if "schema" not in texts:
        raise ProblemFileError(f"no entry 'schema': not a problem file of attsvm (expected {SCHEMA!r})")
    if texts["schema"] != SCHEMA:
        raise ProblemFileError(f"schema is {texts['schema'][:40]!r}, but this version reads {SCHEMA!r}")
    for name in ("X", "Z"):
        if name not in arrays:
            raise ProblemFileError(f"no entry {name!r}, which every problem needs")
    head = _read_head(texts.get("head", "none"), arrays)
    problem = AttentionProblem.cross_attention(arrays["X"], arrays["Z"], arrays.get("Y"), head, arrays.get("mask"))
    if "selection" not in arrays:
        return problem, None
    return problem, read_selection(problem, arrays["selection"])


def _read_head(kind: str, arrays: Mapping[str, npt.NDArray[Any]]) -> Head | None:
    if kind not in HEADS:
        raise ProblemFileError(f"head must be one of {', '.join(HEADS)}, got {kind[:40]!r}")
    cls, needed = HEADS[kind]
    given = {name for name in arrays if name.startswith("head_")}
    for name in sorted(given ^ set(needed)):
        problem = "needs the entry" if name in needed else "does not take the entry"
        raise ProblemFileError(f"a head of kind {kind!r} {problem} {name!r}")
    head: Head | None = None if cls is None else cls(*(arrays[name] for name in needed))
    return head
