"""What a refused file raises, and the limit that keeps memory bounded.

The schema of problem files: which entries there are, what they may hold, and what they mean together.

Both formats carry the same entries under the same names. Entries are *texts* (a string array in `.npz`, a metadata
string in `.safetensors`) or arrays.

Reading `.npz` defensively.

NumPy's own reader would evaluate headers and allocate what they claim. Here the zip directory and each array's
header are checked first: names, kinds of numbers, and that the claimed shape takes exactly the bytes that are there.
Nothing is ever unpickled.

Reading and writing `.safetensors`: a length, a JSON header, then the numbers.

The format is small enough to be read here with every offset checked before a byte is allocated, so that the file needs
no further package.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from attsvm.heads import Head, stored_heads
from attsvm.problem import AttentionProblem, require_problem
from attsvm.records import atomic_write
from attsvm.selection import Selection, SelectionLike, read_selection
from attsvm.user_input import require_count

# Decoded size of all arrays of a file together, unless the caller says otherwise.
MAX_BYTES = 2**30


class ProblemFileError(ValueError):
    """A problem file that cannot be read or written; the message is one line and starts with the path."""


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


CheckClaim = Callable[[str, np.dtype[Any], tuple[int, ...]], None]


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


# What the zip layer raises on damaged files; OSError comes from seeking to an impossible offset.
_CORRUPT = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, OSError, OverflowError,
)  # fmt: skip

_END = struct.Struct("<4s4H2LH")  # end of central directory

_DIRECTORY_LIMIT = 64 * 2**10

_NPY_HEADER_LIMIT = 4096

_TEXT_LIMIT = 256

# A compressed file may decode to this much, or to this many times its size, whichever is more.
_FREE_EXPANSION, _MOST_EXPANSION = 64 * 2**20, 20

_ITEM = re.compile(r"\s*'(\w+)'\s*:\s*(?:'([^'\\]*)'|(True|False)|\(([\d\s,]*)\)|(\[.*\]))\s*,?", re.DOTALL)

_DTYPE = re.compile(r"[<>=|]?(?:b1|\?|[fiu][1248])")


def read_npz(path: Path, max_bytes: int, check: CheckClaim = check_claim) -> Content:
    """Read the entries of a `.npz` file; raises `ProblemFileError` or an error of the zip layer.

    ``check`` refuses an array by its header: those of a problem by default.
    """
    content = Content()
    with path.open("rb") as file:
        _check_directory(file)
        try:
            with zipfile.ZipFile(file) as archive:
                members = _check_members(archive, path.stat().st_size, max_bytes)
                left = max_bytes
                for name, info in members.items():
                    with archive.open(info) as stream:
                        left -= _read_member(content, name, stream, info.file_size, left, check)
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


def _read_member(content: Content, name: str, stream: IO[bytes], size: int, left: int, check: CheckClaim) -> int:
    """Read one array into the content; returns the bytes that it takes in memory."""
    descr, fortran, shape, header = _read_npy_header(name, stream)
    dtype = _read_dtype(name, descr)
    if name not in TEXTS:
        check(name, dtype, shape)
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


def _read_npy_header(name: str, stream: IO[bytes]) -> tuple[str, bool, tuple[int, ...], int]:
    """Description of the dtype, order, shape and length of an array's header, without evaluating it."""
    start = stream.read(8)
    if start[:6] != b"\x93NUMPY" or start[6:7] not in (b"\x01", b"\x02", b"\x03"):
        raise ProblemFileError(f"{name[:40]} is not an array in NumPy's format")
    width = 2 if start[6] == 1 else 4
    length = int.from_bytes(stream.read(width), "little")
    if length > _NPY_HEADER_LIMIT:
        raise ProblemFileError(f"{name[:40]} has a header of {length:,} bytes, more than {_NPY_HEADER_LIMIT:,}")
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


_TENSOR_HEADER_LIMIT = 2**20

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
        if length > _TENSOR_HEADER_LIMIT:
            raise ProblemFileError(f"the header takes {length:,} bytes, more than {_TENSOR_HEADER_LIMIT:,}")
        header = _read_tensor_header(file.read(length))
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


def _read_tensor_header(raw: bytes) -> dict[str, Any]:
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
    require_problem(problem)
    path = Path(path)
    writer = _WRITERS[_suffix(path)]
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
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_arrays(Path(folder) / "run.npz", {"steps": [0, 10]})
    ...     np.load(Path(folder) / "run.npz")["steps"]
    array([ 0, 10])
    """
    with atomic_write(path) as file:
        pack(file, {name: np.asarray(value) for name, value in arrays.items()})
