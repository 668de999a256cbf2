"""Embeddings with ids: arrays, memory-mapped files, or texts with the model that embeds them.

An index may be larger than the memory: vectors are read in blocks, and rows are copied only where they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray, did_you_mean
from attsvm.user_input import AnyFloatArray, is_tensor, real_array

__all__ = ["EmbeddingsLike", "Encoder", "VectorIndex", "read_index"]

Encoder: TypeAlias = Callable[[Sequence[str]], npt.ArrayLike] | Any
"""A function from texts to vectors, or a model with ``encode`` (sentence-transformers)."""
EmbeddingsLike: TypeAlias = npt.ArrayLike | str | Path | Sequence[str]
"""An array of shape (n, d), the path of a ``.npy`` file, or texts."""

# Numbers of a block of vectors that is looked at on its own.
_BLOCK_NUMBERS = 4_000_000
# Ids among which a similar one is looked for.
_SIMILAR_AMONG = 20_000


@dataclass(frozen=True, eq=False)
class VectorIndex:
    """Vectors of one kind with their ids.

    Attributes
    ----------
    name : {"query", "document"}
        What one vector stands for.
    vectors : ndarray, shape (n, d)
        float16, float32 or float64; may be memory-mapped.
    ids : tuple or None
        One per vector; None where they are called by their row.
    longest : float
        Largest Euclidean norm of a vector.
    """

    name: str
    vectors: AnyFloatArray
    ids: tuple[Hashable, ...] | None
    longest: float

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def d(self) -> int:
        """Dimension of the vectors."""
        return int(self.vectors.shape[1])

    def rows(self, index: npt.ArrayLike) -> FloatArray:
        """Some of the vectors in float64, shape (k, d)."""
        return np.asarray(self.vectors[np.asarray(index)], dtype=np.float64)

    def label(self, row: int) -> Hashable:
        """The id of a vector, its row without ids."""
        return row if self.ids is None else self.ids[row]

    @cached_property
    def _places(self) -> dict[Hashable, int]:
        return {} if self.ids is None else {name: row for row, name in enumerate(self.ids)}

    def place(self, given: object, where: str) -> int:
        """The row of an id, or a row that is checked; ``where`` begins the error."""
        name = given.item() if isinstance(given, np.generic) else given
        if self.ids is not None:
            if isinstance(name, Hashable) and name in self._places:
                return self._places[name]
            near = did_you_mean(str(name), [str(known) for known in self.ids[:_SIMILAR_AMONG]])
            raise ValueError(f"{where}: no {self.name} has the id {name!r}{near}")
        if isinstance(name, bool) or not isinstance(name, int):
            raise ValueError(
                f"{where}: a {self.name} is called by its row, 0 to {len(self) - 1}, unless {self.name}_ids are given; "
                f"got {name!r}"
            )
        if not 0 <= name < len(self):
            raise ValueError(f"{where}: {self.name} {name} does not exist; there are {len(self)}, 0 to {len(self) - 1}")
        return name

    def blocks(self, size: int) -> Iterator[tuple[int, AnyFloatArray]]:
        """The vectors in blocks of so many rows, each with its first row."""
        for low in range(0, len(self), size):
            yield low, self.vectors[low : low + size]


def read_index(
    name: str, given: EmbeddingsLike, ids: Iterable[Hashable] | None = None, encoder: Encoder | None = None
) -> VectorIndex:
    """Read embeddings; what is missing, not finite or zero is refused with the id of its vector.

    Parameters
    ----------
    name : {"query", "document"}
    given : array_like, shape (n, d), path of a ``.npy`` file, or sequence of str
    ids : iterable, optional
        One id per vector, all different.
    encoder : callable or model with ``encode``, optional
        Embeds texts.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.patching.embedding_index import read_index
    >>> index = read_index("document", np.eye(3, dtype=np.float32), ["a", "b", "c"])
    >>> index.place("b", "golden[0]"), index.longest
    (1, 1.0)
    >>> read_index("query", [[1.0], [0.0]])
    Traceback (most recent call last):
    ...
    ValueError: queries: query 1 is a zero vector; leave out what was not embedded
    """
    argument = {"query": "queries", "document": "documents"}[name]
    vectors = _vectors(argument, name, given, encoder)
    if vectors.ndim != 2 or not vectors.size:
        raise ValueError(f"{argument} must have shape (n, d) with n and d at least 1, got {vectors.shape}")
    names = _names(name, ids, len(vectors))
    longest = _checked_norm(argument, name, vectors, names)
    return VectorIndex(name, vectors, names, longest)


def _vectors(argument: str, name: str, given: Any, encoder: Any) -> AnyFloatArray:
    if isinstance(given, str | Path):
        path = Path(given)
        if path.suffix != ".npy":
            raise ValueError(f"{argument} must be an array, a .npy file or a sequence of texts, got {str(given)!r}")
        given = np.load(path, mmap_mode="r", allow_pickle=False)
    if isinstance(given, np.ndarray) and given.dtype in (np.float16, np.float32, np.float64):
        return given  # as it is: it may be mapped, and nothing is written to it
    if not isinstance(given, np.ndarray) and not is_tensor(given) and _are_texts(given):
        return _encoded(argument, name, list(given), encoder)
    return real_array(argument, given)


def _are_texts(given: Any) -> bool:
    return isinstance(given, Sequence) and len(given) > 0 and all(isinstance(text, str) for text in given)


def _encoded(argument: str, name: str, texts: list[str], encoder: Any) -> AnyFloatArray:
    """Vectors of texts: by ``encode_query`` or ``encode_document`` where the model tells them apart."""
    if encoder is None:
        raise ValueError(f"{argument} holds texts: pass encoder=, a function or a model with encode, that embeds them")
    embed = getattr(encoder, f"encode_{name}", None) or getattr(encoder, "encode", None) or encoder
    if not callable(embed):
        raise TypeError(f"encoder must be a function or have a method encode, got {type(encoder).__name__}")
    found = real_array(argument, embed(texts))
    if found.ndim != 2 or len(found) != len(texts):
        raise ValueError(f"encoder must give one vector per text, {len(texts)} for {argument}, got shape {found.shape}")
    return found


def _names(name: str, ids: Iterable[Hashable] | None, count: int) -> tuple[Hashable, ...] | None:
    if ids is None:
        return None
    names = tuple(one.item() if isinstance(one, np.generic) else one for one in ids)
    if len(names) != count:
        raise ValueError(f"{name}_ids must name each of the {count} vectors, got {len(names)} ids")
    seen: dict[Hashable, int] = {}
    for row, one in enumerate(names):
        if not isinstance(one, str | int):
            raise ValueError(f"{name}_ids must be texts or integers, got {one!r} at {row}")
        if one in seen:
            raise ValueError(f"{name}_ids must be different: {one!r} names the vectors {seen[one]} and {row}")
        seen[one] = row
    return names


def _checked_norm(argument: str, name: str, vectors: AnyFloatArray, names: tuple[Hashable, ...] | None) -> float:
    """The largest norm; refuses vectors that are not finite or zero."""
    longest, step = 0.0, max(1, _BLOCK_NUMBERS // vectors.shape[1])
    for low in range(0, len(vectors), step):
        block = np.asarray(vectors[low : low + step], dtype=np.float64)
        largest = np.abs(block).max(axis=1)  # NaN where an entry is
        for wrong, what in (
            (~np.isfinite(largest), "holds NaN or infinity; embed it again or leave it out"),
            (largest == 0.0, "is a zero vector; leave out what was not embedded"),
        ):
            if wrong.any():
                row = low + int(wrong.argmax())
                told = row if names is None else repr(names[row])
                raise ValueError(f"{argument}: {name} {told} {what}")
        scale = float(largest.max())
        sizes: FloatArray = np.sqrt(np.vecdot(block / scale, block / scale)) * scale
        longest = max(longest, float(sizes.max()))
    return longest
