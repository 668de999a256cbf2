"""Reading `.npz` without trusting it.

NumPy's own reader would evaluate headers and allocate what they claim. Here the zip directory and each array's
header are checked first: names, kinds of numbers, and that the claimed shape takes exactly the bytes that are there.
Nothing is ever unpickled.
"""

from __future__ import annotations

import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from attsvm.files.errors import ProblemFileError
from attsvm.files.schema import TEXTS, Content, check_claim, decoded_bytes
from attsvm.records import atomic_write

__all__ = ["pack", "read_npz", "write_npz"]

# What the zip layer raises on damaged files; OSError comes from seeking to an impossible offset.
_CORRUPT = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, OSError, OverflowError,
)  # fmt: skip
_END = struct.Struct("<4s4H2LH")  # end of central directory
_DIRECTORY_LIMIT = 64 * 2**10
_HEADER_LIMIT = 4096
_TEXT_LIMIT = 256
# A compressed file may decode to this much, or to this many times its size, whichever is more.
_FREE_EXPANSION, _MOST_EXPANSION = 64 * 2**20, 20

_ITEM = re.compile(r"\s*'(\w+)'\s*:\s*(?:'([^'\\]*)'|(True|False)|\(([\d\s,]*)\)|(\[.*\]))\s*,?", re.DOTALL)
_DTYPE = re.compile(r"[<>=|]?(?:b1|\?|[fiu][1248])")


def read_npz(path: Path, max_bytes: int) -> Content:
    """Read the entries of a `.npz` file; raises `ProblemFileError` or an error of the zip layer."""
    content = Content()
    with path.open("rb") as file:
        _check_directory(file)
        try:
            with zipfile.ZipFile(file) as archive:
                members = _check_members(archive, path.stat().st_size, max_bytes)
                left = max_bytes
                for name, info in members.items():
                    with archive.open(info) as stream:
                        left -= _read_member(content, name, stream, info.file_size, left)
        except _CORRUPT as error:
            detail = str(error)[:100] or type(error).__name__
            raise ProblemFileError(f"corrupt or truncated archive ({detail})") from error
    return content


def _check_directory(file: IO[bytes]) -> None:
    """Bound the directory before `zipfile` reads it whole."""
    size = file.seek(0, 2)
    if size < _END.size:
        raise ProblemFileError(f"not a zip archive: {size} bytes are too few")
    file.seek(max(0, size - _END.size - 20))
    tail = file.read()
    signature, *_, count, directory, _offset, comment = _END.unpack(tail[-_END.size :])
    if signature != b"PK\x05\x06" or comment:
        raise ProblemFileError("not a whole zip archive: it does not end in a zip directory (truncated, or no .npz)")
    if tail.startswith(b"PK\x06\x07") or directory > _DIRECTORY_LIMIT or count > 64:
        raise ProblemFileError("the zip directory is larger than that of any problem file")


def _check_members(archive: zipfile.ZipFile, size: int, max_bytes: int) -> dict[str, zipfile.ZipInfo]:
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        if not info.filename.endswith(".npy") or name in members:
            what = "appears twice" if name in members else "is not an array (.npy)"
            raise ProblemFileError(f"entry {info.filename[:40]!r} {what}")
        if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ProblemFileError(f"entry {name[:40]!r} is encrypted or compressed in an unusual way")
        members[name] = info
    total = sum(info.file_size for info in members.values())
    if total > max_bytes:
        raise ProblemFileError(f"the arrays take {total:,} bytes, more than the limit of {max_bytes:,}")
    if total > max(_FREE_EXPANSION, _MOST_EXPANSION * size):
        raise ProblemFileError(f"{size:,} bytes claim to expand to {total:,}: refused as a zip bomb")
    return members


def _read_member(content: Content, name: str, stream: IO[bytes], size: int, left: int) -> int:
    """Read one array into the content; returns the bytes that it takes in memory."""
    descr, fortran, shape, header = _read_header(name, stream)
    dtype = _read_dtype(name, descr)
    if name not in TEXTS:
        check_claim(name, dtype, shape)
    elif dtype.kind != "U" or shape != () or not 0 < dtype.itemsize <= 4 * _TEXT_LIMIT:
        raise ProblemFileError(f"{name} must be a short text, got dtype {dtype} and shape {shape}")
    needed, count = dtype.itemsize, 1
    for axis in shape:
        count *= axis
    if header + needed * count != size:
        raise ProblemFileError(
            f"{name} claims shape {shape} of {dtype}, {needed * count:,} bytes, but the file holds {size - header:,}"
        )
    cost = decoded_bytes(dtype, shape)
    if cost > left:
        raise ProblemFileError(f"{name} of shape {shape} takes {cost:,} bytes in memory, more than the limit leaves")
    data = stream.read(needed * count)
    if len(data) != needed * count or stream.read(1):
        raise ProblemFileError(f"{name} ends too early: the file is truncated")
    array: npt.NDArray[Any] = np.frombuffer(data, dtype=dtype).reshape(shape, order="F" if fortran else "C")
    if name in TEXTS:
        points = np.frombuffer(data, dtype=dtype.byteorder.replace("|", "=") + "u4")
        if ((points > 0x10FFFF) | ((points >= 0xD800) & (points < 0xE000))).any():
            raise ProblemFileError(f"{name} must be a short text, but holds what is no character: corrupt")
        content.texts[name] = str(array[()])
    else:
        content.arrays[name] = array.astype(dtype.newbyteorder("="), copy=False)
    return cost


def _read_header(name: str, stream: IO[bytes]) -> tuple[str, bool, tuple[int, ...], int]:
    """Description of the dtype, order, shape and length of an array's header, without evaluating it."""
    start = stream.read(8)
    if start[:6] != b"\x93NUMPY" or start[6:7] not in (b"\x01", b"\x02", b"\x03"):
        raise ProblemFileError(f"{name[:40]} is not an array in NumPy's format")
    width = 2 if start[6] == 1 else 4
    length = int.from_bytes(stream.read(width), "little")
    if length > _HEADER_LIMIT:
        raise ProblemFileError(f"{name[:40]} has a header of {length:,} bytes, more than {_HEADER_LIMIT:,}")
    text = stream.read(length).decode("latin-1").strip()
    fields: dict[str, Any] = {}
    inside, position = text[1:-1], 0
    while match := _ITEM.match(inside, position):
        key, string, boolean, numbers, fancy = match.groups()
        fields[key] = string if string is not None else fancy
        if boolean:
            fields[key] = boolean == "True"
        elif numbers is not None:
            fields[key] = tuple(int(n[:20]) for n in numbers.replace(",", " ").split())
        position = match.end()
    descr, fortran, shape = (fields.get(key) for key in ("descr", "fortran_order", "shape"))
    whole = text[:1] == "{" and text[-1:] == "}" and not inside[position:].strip()
    if not (whole and isinstance(descr, str) and isinstance(fortran, bool) and isinstance(shape, tuple)):
        raise ProblemFileError(f"{name[:40]} has a header that does not describe a plain array")
    return descr, fortran, shape, 8 + width + length


def _read_dtype(name: str, descr: str) -> np.dtype[Any]:
    if re.fullmatch(r"[<>=|]?O\d*", descr):
        raise ProblemFileError(f"{name[:40]} holds pickled Python objects, which are never loaded")
    if _DTYPE.fullmatch(descr) or re.fullmatch(r"[<>=]U\d{1,4}", descr):
        return np.dtype(descr)
    raise ProblemFileError(f"{name[:40]} has dtype {descr[:40]!r}; real numbers, integers and booleans are read")


def write_npz(path: Path, content: Content) -> None:
    """Write the entries atomically, uncompressed."""
    texts = {name: np.array(text) for name, text in content.texts.items()}
    with atomic_write(path) as file:
        pack(file, texts | content.arrays)


def pack(file: IO[bytes], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays as a `.npz` archive that refuses objects and has the same bytes every time."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)
