"""Images for the small vision transformer: the digits that scikit-learn ships, or MNIST from its own files."""

from __future__ import annotations

import gzip
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["MNIST_VARIABLE", "load_images", "read_idx"]

#: Environment variable that names a folder with MNIST's idx files; without it the 8 x 8 digits are used.
MNIST_VARIABLE = "ATTSVM_MNIST"

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: str | Path) -> npt.NDArray[np.generic]:
    """Array of an idx file, also gzipped.

    Examples
    --------
    >>> import tempfile
    >>> from attsvm.validation.figures.conditioning.images import read_idx
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     written = file.write(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]))
    ...     file.flush()
    ...     read_idx(file.name)
    array([7, 8, 9], dtype=uint8)
    """
    raw = Path(path).read_bytes()
    if raw[:2] == b"\x1f\x8b":
        raw = gzip.decompress(raw)
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _TYPES:
        raise ValueError(f"{Path(path).name} is not an idx file")
    rank = raw[3]
    shape = struct.unpack(f">{rank}I", raw[4 : 4 + 4 * rank])
    values = np.frombuffer(raw, dtype=_TYPES[raw[2]], offset=4 + 4 * rank)
    if values.size != int(np.prod(shape)):
        raise ValueError(f"{Path(path).name} announces {shape} entries but holds {values.size}")
    return np.asarray(values.reshape(shape).astype(values.dtype.newbyteorder("=")))


def load_images(
    folder: str | Path | None = None, limit: int | None = None
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64], str]:
    """Images in [0, 1], shape (N, side, side), their labels, and the name of the data.

    Parameters
    ----------
    folder : path, optional
        Holds ``train-images-idx3-ubyte`` and ``train-labels-idx1-ubyte`` (or with ``.gz``); by default what the
        environment variable `MNIST_VARIABLE` names, and without it scikit-learn's digits.
    limit : int, optional
        Use the first so many images.

    Examples
    --------
    >>> from attsvm.validation.figures.conditioning.images import load_images
    >>> images, labels, name = load_images(limit=5)
    >>> images.shape[1:] in ((8, 8), (28, 28)), len(labels)
    (True, 5)
    """
    where = folder if folder is not None else os.environ.get(MNIST_VARIABLE)
    if where is None:
        from sklearn.datasets import load_digits

        digits = load_digits()
        images, labels, name = digits.images / 16.0, digits.target, "digits"
    else:
        arrays: list[Any] = []
        for stem in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
            found = [path for path in (Path(where) / stem, Path(where) / f"{stem}.gz") if path.exists()]
            if not found:
                raise FileNotFoundError(f"{stem} (or {stem}.gz) is not in {Path(where).name}")
            arrays.append(read_idx(found[0]))
        images, labels, name = arrays[0] / 255.0, arrays[1], "MNIST"
        if len(images) != len(labels):
            raise ValueError(f"{len(images)} images but {len(labels)} labels")
    chosen = slice(None, limit)
    return np.asarray(images[chosen], dtype=np.float32), np.asarray(labels[chosen], dtype=np.int64), name
