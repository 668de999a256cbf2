"""A small vision transformer whose attention can be read out, its teachers (sparse or dense), training and images.

The images are the digits that scikit-learn ships, or MNIST from its own files.
"""

from __future__ import annotations

import gzip
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from attsvm.training.optimizers import gradient_step

#: Environment variable that names a folder with MNIST's idx files; without it the 8 x 8 digits are used.
MNIST_VARIABLE = "ATTSVM_MNIST"

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: str | Path) -> npt.NDArray[np.generic]:
    """Array of an idx file, also gzipped.

    Examples
    --------
    >>> import tempfile
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


class _Block(nn.Module):
    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))
        self.sharpness = 1.0

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        B, n, dim = x.shape
        q, k, v = self.qkv(self.before(x)).reshape(B, n, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        logits = self.sharpness * (q @ k.transpose(-1, -2)) / (dim // self.heads) ** 0.5
        mixed = (torch.softmax(logits, -1) @ v).transpose(1, 2).reshape(B, n, dim)
        x = x + self.out(mixed)
        return x + self.mlp(self.between(x)), torch.log_softmax(logits, -1), k, v


class SmallViT(nn.Module):
    """Patches, a class token, learned positions, pre-norm blocks.

    Parameters
    ----------
    side, patch : int
        Of the square images and patches.
    dim, layers, heads, hidden : int
    classes : int
    seed : int
        Of the initial weights.

    Examples
    --------
    >>> model = SmallViT(side=8, patch=4, dim=8, layers=1, heads=2, hidden=16)
    >>> logits, inside = model(torch.zeros(3, 8, 8), inside=True)
    >>> tuple(logits.shape), tuple(inside[0]["log_attention"].shape)
    ((3, 10), (3, 2, 5, 5))
    """

    def __init__(
        self,
        side: int = 8,
        patch: int = 2,
        dim: int = 32,
        layers: int = 2,
        heads: int = 4,
        hidden: int = 64,
        classes: int = 10,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if side % patch or dim % heads:
            raise ValueError(f"patch must divide side and heads must divide dim, got {side}, {patch}, {dim}, {heads}")
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.patch = patch
            count = (side // patch) ** 2
            self.embed = nn.Linear(patch * patch, dim)
            self.token = nn.Parameter(0.1 * torch.randn(1, 1, dim))
            self.positions = nn.Parameter(0.1 * torch.randn(1, count + 1, dim))
            self.blocks = nn.ModuleList(_Block(dim, heads, hidden) for _ in range(layers))
            self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, classes))

    def forward(self, images: Tensor, inside: bool = False) -> Any:
        """Class logits; with ``inside`` also log-attention, keys and values of every layer."""
        B, side, _ = images.shape
        s = side // self.patch
        patches = images.reshape(B, s, self.patch, s, self.patch).transpose(2, 3).reshape(B, s * s, -1)
        x = torch.cat([self.token.expand(B, -1, -1), self.embed(patches)], 1) + self.positions
        seen = []
        for block in self.blocks:
            x, log_attention, keys, values = block(x)
            seen.append({"log_attention": log_attention, "keys": keys, "values": values})
        logits = self.head(x[:, 0])
        return (logits, seen) if inside else logits


def cls_log_ratio(model: SmallViT, images: Tensor) -> float:
    """Median over examples, heads and layers of log(max a / min a) of the class token's attention.

    Examples
    --------
    >>> cls_log_ratio(SmallViT(patch=4, dim=8, layers=1, heads=2, hidden=16), torch.zeros(2, 8, 8)) >= 0
    True
    """
    with torch.no_grad():
        logs = torch.stack([layer["log_attention"][:, :, 0] for layer in model(images, inside=True)[1]])
    return float((logs.amax(-1) - logs.amin(-1)).median())


def scaled_teacher(model: SmallViT, images: Tensor, log_ratio: float) -> SmallViT:
    """Multiply the attention logits of every layer by one factor until `cls_log_ratio` is as asked.

    Examples
    --------
    >>> images = torch.rand(16, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> teacher = scaled_teacher(SmallViT(patch=4, dim=8, layers=1, heads=2, hidden=16), images, 3.0)
    >>> abs(cls_log_ratio(teacher, images) - 3.0) < 0.05
    True
    """
    from scipy.optimize import brentq

    def missing(factor: float) -> float:
        for block in model.blocks:
            block.sharpness = factor  # type: ignore[assignment]
        return cls_log_ratio(model, images) - log_ratio

    high = 1.0
    while missing(high) < 0 and high < 1e6:
        high *= 2
    missing(brentq(missing, 0.0, high, xtol=1e-8 * high))
    return model


def _batches(count: int, batch: int, epochs: int, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        order = torch.randperm(count, generator=generator)
        yield from (order[k : k + batch] for k in range(0, count, batch))


def train_on_teacher(
    student: SmallViT, images: Tensor, teacher_logits: Tensor, *, lr: float, epochs: int, batch: int = 64, seed: int = 0
) -> tuple[np.ndarray[Any, Any], float]:
    """SGD on the divergence from the teacher's class probabilities; loss after each epoch, first at the start.

    Examples
    --------
    >>> images = torch.rand(32, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> make = lambda seed: SmallViT(patch=4, dim=8, layers=1, heads=2, hidden=16, seed=seed)
    >>> losses, ratio = train_on_teacher(make(1), images, make(0)(images).detach(), lr=0.1, epochs=2)
    >>> losses.shape, bool(losses[-1] < losses[0])
    ((3,), True)
    """
    target = torch.softmax(teacher_logits, -1)

    def divergence(rows: Any = slice(None)) -> Tensor:
        logs = torch.log_softmax(student(images[rows]), -1)
        return nn.functional.kl_div(logs, target[rows], reduction="batchmean")

    def full() -> float:
        with torch.no_grad():
            return float(divergence())

    optimizer = torch.optim.SGD(student.parameters(), lr=lr)
    losses = [full()]
    per_epoch = -(-len(images) // batch)
    for step, rows in enumerate(_batches(len(images), batch, epochs, seed), 1):
        gradient_step(optimizer, divergence(rows))
        if step % per_epoch == 0:
            losses.append(full())
    return np.array(losses), cls_log_ratio(student, images)


def train_on_labels(
    model: SmallViT,
    images: Tensor,
    labels: Tensor,
    *,
    lr: float = 3e-3,
    epochs: int = 10,
    batch: int = 64,
    seed: int = 0,
) -> SmallViT:
    """Adam on the cross-entropy of the labels.

    Examples
    --------
    >>> images = torch.linspace(0, 1, 32)[:, None, None].expand(32, 8, 8)
    >>> labels = (torch.arange(32) >= 16).long()
    >>> model = SmallViT(patch=4, dim=8, layers=1, heads=2, hidden=16)
    >>> model = train_on_labels(model, images, labels, lr=0.02, epochs=30)
    >>> accuracy(model, images, labels) > 0.7
    True
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for rows in _batches(len(images), batch, epochs, seed):
        gradient_step(optimizer, nn.functional.cross_entropy(model(images[rows]), labels[rows]))
    return model


def accuracy(model: SmallViT, images: Tensor, labels: Tensor) -> float:
    """Share of images whose label the model gives.

    Examples
    --------
    >>> 0 <= accuracy(SmallViT(patch=4, dim=8, layers=1, heads=2, hidden=16), torch.zeros(2, 8, 8), torch.zeros(2)) <= 1
    True
    """
    with torch.no_grad():
        return float((model(images).argmax(-1) == labels).double().mean())
