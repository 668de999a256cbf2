"""Patches in ``.npz`` files, so that a sequence of them can go on another day; parsed defensively, never unpickled."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.files import MAX_BYTES, Content, ProblemFileError, checksum, read_npz, write_npz
from attsvm.patching.patch_result import Demand, Outcome, Patch, PatchCertificate, PatchRound
from attsvm.records import plain
from attsvm.solvers import Status
from attsvm.solvers.arrays import FloatArray

_SCHEMA = "attsvm.patch/1"
# Kinds of numbers and axes of each array; ``about`` is JSON in bytes.
_ARRAYS = {"W": ("f", 2), "prior": ("f", 2), "base": ("f", 2), "maps": ("f", 3), "about": ("u", 1)}


def save_patch(patch: Patch, path: str | Path) -> Path:
    """Write a patch (see `Patch.save`)."""
    target = Path(path)
    if target.suffix != ".npz":
        raise ValueError(f"path must end in .npz, got {target.name!r}")
    about = {
        "status": str(patch.status), "side": patch.side, "norm": patch.norm_kind, "margin": patch.margin, "C": patch.C,
        "rounds": [{"name": one.name, "promises": list(one.promises)} for one in patch.rounds],
        "outcomes": [list(one) for one in patch.outcomes], "left_out": [list(one) for one in patch.left_out],
        "driving": [list(one) for one in patch.driving], "conflict": [list(one) for one in patch.conflict],
        "certificate": dict(patch.certificate.__dict__),
    }  # fmt: skip
    raw = json.dumps(plain(about, finite=False)).encode()  # with Infinity: gaps of what has no solution
    arrays: dict[str, Any] = {
        "prior": patch.prior, "base": patch.base, "maps": np.stack([one.map for one in patch.rounds]),
        "about": np.frombuffer(raw, dtype=np.uint8),
    }  # fmt: skip
    if patch.map is not None:
        arrays["W"] = patch.map
    content = Content({"schema": _SCHEMA}, arrays)
    content.texts["sha256"] = checksum(content)
    write_npz(target, content)
    return target


def _check(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Refuse an array by its header."""
    if name not in _ARRAYS:
        raise ProblemFileError(f"unknown entry {name[:40]!r}; a patch has {', '.join(_ARRAYS)}")
    kind, axes = _ARRAYS[name]
    if dtype.kind != kind or len(shape) != axes or dtype.itemsize != (1 if name == "about" else 8):
        raise ProblemFileError(f"{name} has dtype {dtype} and {len(shape)} axes, which no patch has")


def load_patch(path: str | Path) -> Patch:
    """Read a patch that `Patch.save` wrote.

    The embeddings are not in the file: ``attsvm.patch(queries, documents, ..., after=patch)`` goes on with them.

    Parameters
    ----------
    path : str or Path

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> import attsvm
    >>> made = attsvm.patch([[0.9, 1.0]], np.eye(2), [(0, 0)])
    >>> file = made.save(Path(tempfile.mkdtemp()) / "patch.npz")
    >>> again = attsvm.load_patch(file)
    >>> bool((again.W == made.W).all()), again.repaired == made.repaired
    (True, True)
    """
    source = Path(path)
    try:
        content = read_npz(source, MAX_BYTES, _check)
        return _patch(content)
    except ProblemFileError as error:
        raise ProblemFileError(f"{source}: {error}") from error
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ProblemFileError(f"{source}: not a whole patch ({type(error).__name__}: {str(error)[:100]})") from error


def _matrix(content: Content, name: str, shape: tuple[int, ...] | None = None) -> FloatArray:
    array = content.arrays[name]
    if (shape is not None and array.shape != shape) or not array.size or not np.isfinite(array).all():
        raise ProblemFileError(f"{name} must hold finite numbers of shape {shape}, got shape {array.shape}")
    return np.array(array, dtype=np.float64)


def _patch(content: Content) -> Patch:
    if content.texts.get("schema") != _SCHEMA:
        raise ProblemFileError(f"schema is {content.texts.get('schema', 'missing')[:40]!r}, expected {_SCHEMA!r}")
    if content.texts.get("sha256") != checksum(content):
        raise ProblemFileError("its numbers do not match its checksum 'sha256': the file was changed or is damaged")
    about = json.loads(content.arrays["about"].tobytes())
    prior = _matrix(content, "prior")
    rounds = about["rounds"]
    maps = _matrix(content, "maps", (len(rounds), *prior.shape))
    return Patch(
        status={str(one): one for one in Status}[about["status"]],
        side=_one_of(about["side"], "query", "document", "both"),
        norm_kind=str(about["norm"]), margin=float(about["margin"]),
        C=None if about["C"] is None else float(about["C"]), prior=prior, base=_matrix(content, "base", prior.shape),
        map=_matrix(content, "W", prior.shape) if "W" in content.arrays else None,
        rounds=tuple(
            PatchRound(str(one["name"]), maps[k], tuple(map(_promise, one["promises"]))) for k, one in enumerate(rounds)
        ),
        outcomes=tuple(_outcome(one) for one in about["outcomes"]),
        left_out=tuple(_outcome(one) for one in about["left_out"]),
        driving=tuple(_demand(one) for one in about["driving"]),
        conflict=tuple(_demand(one) for one in about["conflict"]), certificate=_certificate(about["certificate"]),
    )  # fmt: skip


def _one_of(value: Any, *known: Any) -> Any:
    if value not in known:
        raise ProblemFileError(f"{str(value)[:40]!r} is not one of {', '.join(known)}")
    return value


def _name(value: Any) -> str | int:
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise ProblemFileError(f"an id must be a text or an integer, got {str(value)[:40]!r}")
    return value


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _promise(record: Mapping[str, Any]) -> dict[str, Any]:
    rivals = record["rivals"]
    return {
        "kind": _one_of(record["kind"], "repair", "keep"), "query": _name(record["query"]),
        "document": _name(record["document"]), "rivals": None if rivals is None else [_name(one) for one in rivals],
        "besides": [_name(one) for one in record["besides"]], "margin": float(record["margin"]),
    }  # fmt: skip


def _outcome(values: Any) -> Outcome:
    one = Outcome(*values)
    return one._replace(
        kind=_one_of(one.kind, "repair", "keep"), query=_name(one.query), document=_name(one.document),
        rival=None if one.rival is None else _name(one.rival), lead=_number(one.lead),
        lead_before=_number(one.lead_before), weight=_number(one.weight), served=bool(one.served), round=int(one.round),
        reason=str(one.reason),
    )  # fmt: skip


def _demand(values: Any) -> Demand:
    one = Demand(*values)
    return one._replace(
        kind=_one_of(one.kind, "repair", "keep"), query=_name(one.query), document=_name(one.document),
        rival=_name(one.rival), multiplier=_number(one.multiplier), lead=_number(one.lead), round=int(one.round),
        same=bool(one.same),
    )  # fmt: skip


def _certificate(record: Mapping[str, Any]) -> PatchCertificate:
    kinds = {name: str(kind) for name, kind in PatchCertificate.__annotations__.items()}
    read: dict[str, Callable[[Any], Any]] = {"int": int, "float": _number, "str": str}
    return PatchCertificate(**{name: read[kind](record[name]) for name, kind in kinds.items()})
