"""Reading and writing `.safetensors`: a length, a JSON header, then the numbers.

The format is small enough to be read here with every offset checked before a byte is allocated, so that the file needs
no further package.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.files.errors import ProblemFileError
from attsvm.files.schema import TEXTS, Content, check_claim, decoded_bytes
from attsvm.records import atomic_write

__all__ = ["read_safetensors", "write_safetensors"]

_HEADER_LIMIT = 2**20
_DTYPES = {
    "BOOL": "?", "U8": "<u1", "I8": "<i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
    "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8",
}  # fmt: skip
_NAMES = {np.dtype(code).str: name for name, code in _DTYPES.items()}


def read_safetensors(path: Path, max_bytes: int) -> Content:
    """Read the entries of a `.safetensors` file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise ProblemFileError(f"truncated: a header of {length:,} bytes is claimed in a file of {size:,}")
        if length > _HEADER_LIMIT:
            raise ProblemFileError(f"the header takes {length:,} bytes, more than {_HEADER_LIMIT:,}")
        header = _read_header(file.read(length))
        texts = _read_texts(header.pop("__metadata__", {}))
        claims = {name: _read_claim(name, claim) for name, claim in header.items()}
        _check_offsets(claims, size - 8 - length)
        total = sum(_cost(*claim[:2]) for claim in claims.values())
        if total > max_bytes:
            raise ProblemFileError(f"the arrays take {total:,} bytes in memory, more than the limit of {max_bytes:,}")
        arrays = {}
        for name, (code, shape, start, end) in claims.items():
            file.seek(8 + length + start)
            arrays[name] = _decode(file.read(end - start), code, shape)
    return Content(texts, arrays)


def _read_header(raw: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise ProblemFileError("the header names an entry twice")
        return dict(pairs)

    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except ProblemFileError:
        raise
    except (ValueError, RecursionError) as error:
        raise ProblemFileError("the header is not JSON: corrupt, or no .safetensors file") from error
    if not isinstance(header, dict):
        raise ProblemFileError("the header is not a JSON object")
    return header


def _read_texts(metadata: Any) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ProblemFileError("__metadata__ must map names to texts")
    return {name: text for name, text in metadata.items() if name in TEXTS}  # other tools add keys of their own


def _integers(value: Any, most: int) -> tuple[int, ...] | None:
    """A short list of nonnegative integers below 2^63, or None."""
    if not isinstance(value, list) or len(value) > most:
        return None
    return tuple(value) if all(type(v) is int and 0 <= v < 2**63 for v in value) else None


def _read_claim(name: str, claim: Any) -> tuple[str, tuple[int, ...], int, int]:
    """Code of the dtype, shape, start and end of one tensor, as far as the header alone decides."""
    fields = claim if isinstance(claim, dict) else {}
    code, shape = fields.get("dtype"), _integers(fields.get("shape"), 8)
    offsets = _integers(fields.get("data_offsets"), 2)
    if not isinstance(code, str) or shape is None or offsets is None or len(offsets) != 2:
        raise ProblemFileError(f"{name[:40]} is not described by dtype, shape and data_offsets")
    if code not in _DTYPES and code != "BF16":
        raise ProblemFileError(f"{name[:40]} has dtype {code[:20]!r}; real numbers, integers and booleans are read")
    check_claim(name, np.dtype(_DTYPES.get(code, "<f2")), shape)
    return code, shape, *offsets


def _cost(code: str, shape: tuple[int, ...]) -> int:
    return decoded_bytes(np.dtype(_DTYPES.get(code, "<f4")), shape)


def _check_offsets(claims: dict[str, tuple[str, tuple[int, ...], int, int]], available: int) -> None:
    """Each tensor takes the bytes that its shape needs, and together they fill the file without overlap."""
    place = 0
    for name, (code, shape, start, end) in sorted(claims.items(), key=lambda item: item[1][2:]):
        needed = np.dtype(_DTYPES.get(code, "<u2")).itemsize
        for axis in shape:
            needed *= axis
        if end - start != needed:
            raise ProblemFileError(
                f"{name} claims shape {shape} of {code}, {needed:,} bytes, but its offsets span {end - start:,}"
            )
        if start != place:
            raise ProblemFileError(
                f"{name} starts at byte {start:,} instead of {place:,}: entries overlap or leave gaps"
            )
        if end > available:
            raise ProblemFileError(f"truncated: {name} ends at byte {end:,}, but the file holds {available:,}")
        place = end
    if place != available:
        raise ProblemFileError(f"{available - place:,} bytes follow the last entry: corrupt")


def _decode(raw: bytes, code: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    if code == "BF16":  # the upper half of a float32
        return (np.frombuffer(raw, dtype="<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
    if code == "BOOL":
        array = np.frombuffer(raw, dtype=np.uint8)
        if (array > 1).any():
            raise ProblemFileError("a boolean entry holds bytes other than 0 and 1: corrupt")
        return array.astype(bool).reshape(shape)
    stored = np.frombuffer(raw, dtype=_DTYPES[code])
    return stored.astype(stored.dtype.newbyteorder("="), copy=False).reshape(shape)


def write_safetensors(path: Path, content: Content) -> None:
    """Write the entries atomically; widest numbers first, so that every tensor is aligned."""
    header: dict[str, Any] = {"__metadata__": content.texts}
    chunks = []
    place = 0
    for name, array in sorted(content.arrays.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(array.shape)
        header[name] = {
            "dtype": _NAMES[little.dtype.str],
            "shape": list(array.shape),
            "data_offsets": [place, place + little.nbytes],
        }
        place += little.nbytes
        chunks.append(little.tobytes())
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with atomic_write(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.writelines(chunks)
