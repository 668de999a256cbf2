"""The arrays of an attention problem, their sizes, and what they look like in a shell or notebook."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from attsvm._arrays import BoolArray, FloatArray
from attsvm.heads import Head
from attsvm.records import html_table

__all__ = ["ProblemData"]


@dataclass(frozen=True, eq=False, init=False, repr=False)
class ProblemData:
    """Tokens, labels, queries, head and mask of one problem or of a batch; see `attsvm.AttentionProblem`."""

    X: FloatArray
    Y: npt.NDArray[np.float64]
    Z: FloatArray
    head: Head | None
    mask: BoolArray | None
    _lead: int = field(init=False, repr=False)

    @property
    def batch(self) -> int | None:
        """Number of problems in a batch; None for a single problem."""
        return int(self.X.shape[0]) if self._lead else None

    @property
    def n(self) -> int:
        """Number of sequences."""
        return int(self.X.shape[self._lead])

    @property
    def T(self) -> int:
        """Tokens per sequence, padding included."""
        return int(self.X.shape[-2])

    @property
    def dx(self) -> int:
        """Dimension of the tokens."""
        return int(self.X.shape[-1])

    @property
    def dz(self) -> int:
        """Dimension of the queries."""
        return int(self.Z.shape[-1])

    @property
    def K(self) -> int:
        """Queries per sequence."""
        return int(self.Z.shape[self._lead + 1]) if self.multi_query else 1

    @property
    def multi_query(self) -> bool:
        """True when Z has an axis of K queries."""
        return self.Z.ndim == self._lead + 3

    @property
    def query_shape(self) -> tuple[int, ...]:
        """Shape of one number per query: (n,) or (n, K), with the batch axis in front if there is one."""
        return tuple(int(s) for s in self.Z.shape[:-1])

    @cached_property
    def allowed(self) -> BoolArray:
        """True where a query may attend to a token, shape ``query_shape + (T,)``."""
        full = (*self.query_shape, self.T)
        if self.mask is None:
            return np.broadcast_to(np.True_, full)
        mask = self.mask
        if self.multi_query and mask.ndim == self._lead + 2:
            mask = mask[..., None, :]
        return np.broadcast_to(mask, full)

    def check_head(self) -> None:
        """Raise unless the head goes with the tokens."""
        if self.head is None:
            return
        if self.head.dim is not None and self.head.dim != self.dx:
            raise ValueError(f"head expects tokens of dimension {self.head.dim}, but X has dx = {self.dx}")
        if self.head.batch is not None and self.head.batch != self.batch:
            raise ValueError(f"head holds a batch of {self.head.batch}, but X has batch {self.batch}")

    def _sizes(self) -> dict[str, int]:
        sizes = {"n": self.n, "T": self.T, "dx": self.dx, "dz": self.dz}
        sizes |= {"K": self.K} if self.multi_query else {}
        return sizes if self.batch is None else {"batch": self.batch, **sizes}

    def __repr__(self) -> str:
        parts = [f"{name}={size}" for name, size in self._sizes().items()]
        parts.append("no head" if self.head is None else self.head.name)
        parts += ["masked"] if self.mask is not None else []
        parts += ["float32"] if self.X.dtype == np.float32 else []
        return f"AttentionProblem({', '.join(parts)})"

    def _repr_html_(self) -> str:
        labels = f"{int((self.Y > 0).sum())} positive, {int((self.Y < 0).sum())} negative"
        hidden = "none" if self.mask is None else f"{1 - float(self.allowed.mean()):.1%} of the pairs"
        title = "Attention problem" if self.batch is None else "Batch of attention problems"
        head = "none" if self.head is None else self.head.name
        return html_table(title, {**self._sizes(), "head": head, "labels": labels, "masked": hidden})
