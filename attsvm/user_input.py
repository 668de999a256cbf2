"""What users give: lists, arrays of any real dtype, torch tensors on any device, and seeds; refused by name.

Numbers, counts and choices are read where the solvers read theirs, in `attsvm.solvers.arrays`.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import (
    BoolArray,
    IntArray,
    did_you_mean,
    is_count,
    is_number,
    require_choice,
    require_count,
    require_number,
)

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "check_keywords",
    "generator",
    "is_count",
    "is_number",
    "positive",
    "require_choice",
    "require_count",
    "require_flag",
    "require_number",
]


def check_keywords(function: str, given: Iterable[str], known: Sequence[str], method: Sequence[str] = ()) -> None:
    """Refuse a keyword that a function does not take; the message names the nearest one and lists them.

    Parameters
    ----------
    function : str
        Its name.
    given : iterable of str
        Keywords of the call.
    known : sequence of str
        Keywords of the function.
    method : sequence of str
        Keywords that it passes on to a solver.

    Examples
    --------
    >>> check_keywords("listed", ["modes"], ["norm", "mode"])
    Traceback (most recent call last):
    ...
    TypeError: listed takes no option 'modes'; did you mean 'mode'? It takes norm, mode
    """
    for name in given:
        if name not in known and name not in method:
            near = did_you_mean(name, [*known, *method])
            passed = f" and, for the solver, {', '.join(method)}" if method else ""
            listed = f"{' It' if near else '; it'} takes {', '.join(known)}{passed}"
            raise TypeError(f"{function} takes no option {name!r}{near}{listed}")


def positive(name: str, value: float) -> float:
    """A positive and finite number; anything else is refused.

    Examples
    --------
    >>> positive("lr", 0.0)
    Traceback (most recent call last):
    ...
    ValueError: lr must be positive and finite, got 0.0
    """
    require_number(name, value, "positive and finite", low=0.0)
    return float(value)


def require_flag(name: str, value: object) -> None:
    """Refuse anything but True and False: 'no' and 2 would count as True.

    Examples
    --------
    >>> require_flag("progress", "no")
    Traceback (most recent call last):
    ...
    ValueError: progress must be True or False, got 'no'
    """
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} must be True or False, got {value!r}")


def generator(seed: Any) -> np.random.Generator:
    """The generator of a seed; what cannot be one is refused by name.

    Examples
    --------
    >>> generator("zero")
    Traceback (most recent call last):
    ...
    ValueError: seed must be an integer >= 0 or a numpy Generator, got 'zero'
    """
    try:
        if isinstance(seed, bool):
            raise TypeError("a flag is no seed")
        return np.random.default_rng(seed)
    except (TypeError, ValueError) as error:
        raise ValueError(f"seed must be an integer >= 0 or a numpy Generator, got {seed!r}") from error


AnyFloatArray = npt.NDArray[np.floating[Any]]

# What formulas that serve NumPy and torch alike are written for.
ArrayT = TypeVar("ArrayT", AnyFloatArray, "Tensor")


def is_tensor(value: object) -> TypeGuard[Tensor]:
    """True for torch tensors, without importing torch."""
    return not isinstance(value, np.ndarray) and hasattr(value, "detach")  # arrays, the usual case, cost no look-up


def namespace(array: object) -> ModuleType:
    """The module whose functions map this array: torch for tensors, else NumPy.

    Examples
    --------
    >>> namespace([1.0]).__name__
    'numpy'
    """
    return sys.modules["torch"] if is_tensor(array) else np


def _plain(name: str, value: Any) -> npt.NDArray[Any]:
    if is_tensor(value):
        if value.device.type == "meta":
            raise ValueError(f"{name} must hold numbers, got a tensor on the device 'meta', which has none")
        value = value.detach().cpu()
        if str(value.dtype) in ("torch.bfloat16", "torch.float16"):
            value = value.float()
        return np.asarray(value.numpy())
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ValueError(
            f"{name} is a masked array with masked entries, which would be taken for data; pass the filled array and, "
            "to leave tokens out, the argument mask"
        )
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(
            f"{name} must be a rectangular array; use AttentionProblem.from_ragged for sequences "
            f"of different lengths ({error})"
        ) from error


def real_array(name: str, value: Any) -> AnyFloatArray:
    """Float64 array, or float32 when given as such (also from half precision)."""
    array = _plain(name, value)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name} must hold real numbers, got dtype {array.dtype}")
    if array.dtype == np.float32:
        return array
    return array.astype(np.float32 if array.dtype == np.float16 else np.float64, copy=False)


def integer_array(name: str, value: Any) -> IntArray:
    """Int64 array from integers of any width; floats are refused even when whole."""
    array = _plain(name, value)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} must hold integers, got dtype {array.dtype}")
    return array.astype(np.int64, copy=False)


def bool_array(name: str, value: Any) -> BoolArray:
    """Boolean array; 0/1 integers are accepted, other numbers are not."""
    array = _plain(name, value)
    if array.dtype == bool:
        return array
    if array.dtype.kind in "iu" and np.isin(array, (0, 1)).all():
        return array.astype(bool)
    raise ValueError(f"{name} must be boolean (True where attention is allowed), got dtype {array.dtype}")


def require_finite(name: str, array: AnyFloatArray, where: BoolArray | None = None) -> None:
    """Raise a ValueError that names the first entry that is NaN or infinite."""
    finite = np.isfinite(array)
    if np.logical_and.reduce(finite, axis=None):
        return
    bad = ~finite if where is None else ~finite & where
    if bad.any():
        index = tuple(int(j) for j in np.argwhere(bad)[0])
        raise ValueError(f"{name} must be finite, but {name}[{', '.join(map(str, index))}] is {array[index]}")


def finite_array(name: str, value: Any, *shapes: tuple[int | str, ...]) -> npt.NDArray[np.float64]:
    """Float64 array of finite numbers, of one of the shapes if there are any.

    A shape has sizes, names of sizes of at least 1 that are free, and may begin with "..." for any leading axes.

    Examples
    --------
    >>> finite_array("X", [[1, 2]], ("T", 2), ("B", "T", 2))
    array([[1., 2.]])
    >>> finite_array("X", [1, 2], ("T", 2), ("B", "T", 2))
    Traceback (most recent call last):
    ...
    ValueError: X must have shape (T, 2) or (B, T, 2), got (2,)
    """
    array = real_array(name, value).astype(np.float64)
    if shapes and not any(_fits(array.shape, shape) for shape in shapes):
        wanted = " or ".join(f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})" for shape in shapes)
        raise ValueError(f"{name} must have shape {wanted}, got {array.shape}")
    require_finite(name, array)
    return array


def _fits(given: tuple[int, ...], wanted: tuple[int | str, ...]) -> bool:
    if wanted[:1] == ("...",):
        wanted, given = wanted[1:], given[max(0, len(given) - len(wanted) + 1) :]
    return len(given) == len(wanted) and all(
        size > 0 if isinstance(want, str) else size == want for size, want in zip(given, wanted, strict=True)
    )


def short(array: npt.NDArray[Any]) -> str:
    """An array for a representation: its entries if they fit in a line, else its shape and type.

    Examples
    --------
    >>> import numpy as np
    >>> short(np.arange(3)), short(np.ones((5, 7)))
    ('array([0, 1, 2])', '<5 x 7 float64>')
    """
    text = repr(array)
    return text if len(text) <= 75 and "\n" not in text else f"<{' x '.join(map(str, array.shape))} {array.dtype}>"


def freeze(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Read-only view: frozen objects do not share writable state with the caller's code."""
    view = array.view()
    view.flags.writeable = False
    return view


def own(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Read-only array that nobody else can write to: shared where that is so already, else a copy.

    Axes that a broadcast repeats stay repeated: the copy is as small as what was given.

    Examples
    --------
    >>> import numpy as np
    >>> given = np.zeros(3)
    >>> kept = own(given)
    >>> given[:] = 1.0
    >>> kept, own(kept) is kept
    (array([0., 0., 0.]), True)
    """
    if _is_read_only(array):
        return array
    copy = array[tuple(slice(0, 1) if s == 0 else slice(None) for s in array.strides)].copy()
    copy.flags.writeable = False
    return copy if copy.shape == array.shape else np.broadcast_to(copy, array.shape)


def _is_read_only(array: npt.NDArray[Any]) -> bool:
    base: object = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return False
        base = base.base
    return base is None or isinstance(base, mmap.mmap)  # a file opened for reading
