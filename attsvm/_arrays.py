"""Reading user input: lists, NumPy arrays of any real dtype, and torch tensors on any device."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.floating[Any]]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def _plain(name: str, value: Any) -> npt.NDArray[Any]:
    if hasattr(value, "detach"):  # a torch tensor, recognised without importing torch
        value = value.detach().cpu()
        if str(value.dtype) in ("torch.bfloat16", "torch.float16"):
            value = value.float()
        return np.asarray(value.numpy())
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(
            f"{name} must be a rectangular array; use AttentionProblem.from_ragged for sequences "
            f"of different lengths ({error})"
        ) from error


def real_array(name: str, value: Any) -> FloatArray:
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


def require_finite(name: str, array: FloatArray, where: BoolArray | None = None) -> None:
    """Raise a ValueError that names the first entry that is NaN or infinite."""
    bad = ~np.isfinite(array)
    if where is not None:
        bad &= where
    if bad.any():
        index = tuple(int(j) for j in np.argwhere(bad)[0])
        raise ValueError(f"{name} must be finite, but {name}[{', '.join(map(str, index))}] is {array[index]}")


def freeze(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Read-only view: frozen objects do not share writable state with the caller's code."""
    view = array.view()
    view.flags.writeable = False
    return view
