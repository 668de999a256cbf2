"""Array types and the reading of arguments: numbers, counts, choices and arrays, refused by name."""

from __future__ import annotations

import numbers
import sys
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

import numpy as np
import numpy.typing as npt

__all__ = [
    "Axis", "Batch", "BoolArray", "Count", "FloatArray", "IntArray", "Number", "One", "did_you_mean", "is_count",
    "is_number", "lazy", "real_array", "require_choice", "require_count", "require_number",
]  # fmt: skip

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Ends = Literal["()", "[)", "(]", "[]"]  # which ends belong to an interval


class One:
    """For type checkers: no batch axis. ``MarginProblem[One]``, or `MarginProblem` alone, is one problem."""


class Batch:
    """For type checkers: one leading batch axis. ``MarginProblem[Batch]`` is a batch of problems."""


# What problems, certificates and solutions are generic over: the axis itself, and what stands for a number and for a
# count of each problem. One problem is the default, so that only a batch is told apart.
if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Axis = TypeVar("Axis", One, Batch, default=One)
    Number = TypeVar("Number", float, FloatArray, default=float)
    Count = TypeVar("Count", int, IntArray, default=int)
else:  # defaults of type variables came with Python 3.13, and nothing but type checkers reads them
    from typing import TypeVar

    Axis = TypeVar("Axis", One, Batch)
    Number = TypeVar("Number", float, FloatArray)
    Count = TypeVar("Count", int, IntArray)

_Value = TypeVar("_Value")

# Entries looked at or widened to float64 at once (32 MiB of float64).
CHUNK_ELEMENTS = 1 << 22


class lazy(cached_property[_Value]):
    """`cached_property` without the lock that it has up to Python 3.11, which takes twice the time of the rest."""

    if not TYPE_CHECKING:

        def __get__(self, instance, owner=None):
            return self if instance is None else instance.__dict__.setdefault(self.attrname, self.func(instance))


def is_count(value: object, least: int = 1) -> TypeGuard[int]:
    """Whether this is an integer of at least ``least``; flags and whole floats are no integers."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value >= least)


def is_number(value: object, low: float = -np.inf, high: float = np.inf, ends: Ends = "()") -> TypeGuard[float]:
    """Whether this is a real number between two ends, which belong to the interval as ``ends`` says; NaN is none.

    Examples
    --------
    >>> from attsvm.solvers.arrays import is_number
    >>> is_number(0.0, 0.0), is_number(0.0, 0.0, ends="[)"), is_number(float("inf")), is_number(True)
    (False, True, False, False)
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (float, int, numbers.Real)):
        return False
    number: Any = value
    above = number >= low if ends[0] == "[" else number > low
    return bool(above and (number <= high if ends[1] == "]" else number < high))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question about the nearest known name, for an error about an unknown one; empty when none is near.

    Examples
    --------
    >>> from attsvm.solvers.arrays import did_you_mean
    >>> did_you_mean("nomr", ["norm", "rank"]), did_you_mean("device", ["norm"])
    ("; did you mean 'norm'?", '')
    """
    from difflib import get_close_matches  # rarely needed

    near = get_close_matches(name, list(known), n=1, cutoff=0.7)  # one pair of letters exchanged in four passes
    return f"; did you mean {near[0]!r}?" if near else ""


def require_choice(name: str, value: object, *choices: str | None) -> None:
    """Refuse a value that is not one of the choices.

    Examples
    --------
    >>> from attsvm.solvers.arrays import require_choice
    >>> require_choice("form", "rounded", "corrected", "sharp", "printed")
    Traceback (most recent call last):
    ...
    ValueError: form must be 'corrected', 'sharp' or 'printed', got 'rounded'
    """
    if value not in choices:
        *most, last = map(repr, choices)
        raise ValueError(f"{name} must be {', '.join(most)} or {last}, got {value!r}")


def require_count(name: str, value: object, least: int = 1, optional: bool = False) -> None:
    """Refuse what `is_count` says is none; None passes where the argument is optional.

    Examples
    --------
    >>> from attsvm.solvers.arrays import require_count
    >>> require_count("steps", 2.0)
    Traceback (most recent call last):
    ...
    ValueError: steps must be an integer >= 1, got 2.0
    """
    if not ((optional and value is None) or is_count(value, least)):
        raise ValueError(f"{name} must be {'None or ' if optional else ''}an integer >= {least}, got {value!r}")


def require_number(
    name: str,
    value: object,
    wanted: str,
    low: float = -np.inf,
    high: float = np.inf,
    ends: Ends = "()",
    optional: bool = False,
) -> None:
    """Refuse what `is_number` says is none in the interval; None passes where the argument is optional.

    Examples
    --------
    >>> from attsvm.solvers.arrays import require_number
    >>> require_number("lr", "fast", "a positive number", low=0.0)
    Traceback (most recent call last):
    ...
    ValueError: lr must be a positive number, got 'fast'
    """
    if not ((optional and value is None) or is_number(value, low, high, ends)):
        raise ValueError(f"{name} must be {'None or ' if optional else ''}{wanted}, got {value!r}")


def to_numpy(value: object) -> npt.NDArray[Any]:
    """An array of anything array-like, torch tensors on any device included."""
    torch = sys.modules.get("torch")  # a tensor cannot exist before torch is imported
    if torch is not None and isinstance(value, torch.Tensor):
        return np.asarray(value.detach().cpu().numpy())
    return np.asarray(value)


def _all_finite(array: npt.NDArray[np.floating[Any]]) -> bool:
    if array.size > CHUNK_ELEMENTS:  # a finite sum proves it without a mask as large as the data
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(array.sum()):
                return True
    return bool(np.isfinite(array).all())


def real_array(name: str, value: object, axes: str, *, keep_float32: bool = True) -> npt.NDArray[np.floating[Any]]:
    """A finite float array of two axes, or of three for a batch; float32 may be kept as given (no copy).

    Examples
    --------
    >>> from attsvm.solvers.arrays import real_array
    >>> real_array("a", [[1, 2]], "(m, dx)")
    array([[1., 2.]])
    """
    array = to_numpy(value)
    if array.dtype != np.float32 or not keep_float32:
        try:
            array = array.astype(np.float64, copy=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} must hold real numbers, got dtype {array.dtype}") from error
    if array.ndim not in (2, 3) or 0 in array.shape[-2:]:
        raise ValueError(
            f"{name} must be a non-empty array {axes}, or one with a leading batch axis, got shape {array.shape}"
        )
    if not _all_finite(array):
        place = np.argwhere(~np.isfinite(array).all(axis=-1))[0]
        where = f"row {place[-1]}" if array.ndim == 2 else f"row {place[-1]} of problem {place[0]}"
        raise ValueError(f"{name} must be finite, but {where} holds NaN or infinity")
    return np.ascontiguousarray(array)


def per_row(name: str, value: object, shape: tuple[int, ...], what: str) -> npt.NDArray[Any]:
    """One number per row, given for each problem of a batch or once for all of them; shape ``shape``."""
    array = to_numpy(value)
    if array.shape not in (shape, shape[-1:]):
        raise ValueError(f"{name} must be {shape[-1]} {what}, one per row of a, got shape {array.shape}")
    return array if array.shape == shape else np.broadcast_to(array, shape)


def voided(
    a: npt.NDArray[Any],
    owner: npt.NDArray[Any],
    rhs: npt.ArrayLike | None,
    equality: npt.ArrayLike | None,
    valid: npt.ArrayLike,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.ArrayLike | None, npt.ArrayLike | None, BoolArray]:
    """The arguments with everything about rows that do not exist set to zero."""
    shape = a.shape[:-1]
    keep = per_row("valid", valid, shape, "booleans")
    if keep.dtype != bool:
        raise ValueError(f"valid must be booleans, got dtype {keep.dtype}")
    if not keep.any(axis=-1).all():
        i = int(np.flatnonzero(~np.atleast_2d(keep).any(axis=-1))[0])
        raise ValueError(f"valid must leave at least one row in every problem, but problem {i} has none")
    if keep.all():
        return a, owner, rhs, equality, keep
    kind = a.dtype if a.dtype == np.float32 else np.dtype(np.float64)
    used = keep.any(axis=0) if owner.ndim < keep.ndim else keep
    sides = np.ones(shape) if rhs is None else per_row("rhs", rhs, shape, "finite numbers")
    equal = None if equality is None else per_row("equality", equality, shape, "booleans") & keep
    return np.where(keep[..., None], a, kind.type(0)), np.where(used, owner, 0), np.where(keep, sides, 0.0), equal, keep
