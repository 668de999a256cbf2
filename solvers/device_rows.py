"""Shared rows whose products run in torch on a device; only W, multipliers and one number per row cross over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.solvers.rows.shared import SharedRows

if TYPE_CHECKING:
    import torch

__all__ = ["DeviceProducts", "DeviceRows"]


class DeviceProducts:
    """Margins and adjoint of shared rows as tensors: nothing in here touches NumPy.

    Parameters
    ----------
    vectors : Tensor, shape (n, T, dx)
    queries : Tensor, shape (q, dz)
    anchor : Tensor of int, shape (q,)
    owner, place : Tensor of int, shape (m,)
    parts : list of (int, slice, slice)
        Block, queries and rows that are worked on at once.

    Examples
    --------
    >>> import torch
    >>> from attsvm.solvers.device_rows import DeviceProducts
    >>> X, z, zero = torch.eye(2)[None].double(), torch.ones(1, 1).double(), torch.zeros(1, dtype=torch.int64)
    >>> products = DeviceProducts(X, z, zero, zero, zero + 1, [(0, slice(0, 1), slice(0, 1))])
    >>> products.margins(torch.tensor([[3.0], [1.0]]).double())
    tensor([2.], dtype=torch.float64)
    """

    def __init__(
        self,
        vectors: torch.Tensor,
        queries: torch.Tensor,
        anchor: torch.Tensor,
        owner: torch.Tensor,
        place: torch.Tensor,
        parts: list[tuple[int, slice, slice]],
    ) -> None:
        self.vectors, self.queries = vectors, queries
        self.anchor, self.owner, self.place, self.parts = anchor, owner, place, parts

    def _pieces(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, slice]]:
        """Of every part its vectors, its queries, where anchors and rows stand among its products, and its rows."""
        T = self.vectors.shape[1]
        for i, queries, rows in self.parts:
            count = rows.stop - rows.start
            owner, place = (x.narrow(0, rows.start, count) for x in (self.owner, self.place))
            first = (owner - queries.start) * T
            asked = self.queries.narrow(0, queries.start, queries.stop - queries.start)
            yield self.vectors.select(0, i), asked, first + self.anchor.index_select(0, owner), first + place, rows

    def margins(self, W: torch.Tensor) -> torch.Tensor:
        """Values of all rows at W, shape (m,)."""
        import torch

        out = []
        for block, asked, chosen, others, _ in self._pieces():
            logits = ((asked.to(W.dtype) @ W.mT) @ block.to(W.dtype).mT).reshape(-1)
            out.append(logits.index_select(0, chosen) - logits.index_select(0, others))
        return torch.cat(out)

    def adjoint(self, lam: torch.Tensor) -> torch.Tensor:
        """``sum_k lam_k (x_anchor - x_t) z^T``, shape (dx, dz)."""
        total = lam.new_zeros(self.vectors.shape[-1], self.queries.shape[-1])
        for block, asked, chosen, others, rows in self._pieces():
            weight = lam.narrow(0, rows.start, rows.stop - rows.start)
            moved = lam.new_zeros(len(asked) * len(block))
            moved = moved.index_add(0, others, -weight).index_add(0, chosen, weight).reshape(len(asked), len(block))
            total = total + block.to(lam.dtype).mT @ (moved.mT @ asked.to(lam.dtype))
        return total


class DeviceRows(SharedRows):
    """Shared rows with products on a torch device.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import SharedRows
    >>> from attsvm.solvers.device_rows import DeviceRows
    >>> zero = np.array([0])
    >>> rows = SharedRows(np.eye(2)[None], np.ones((1, 1)), zero, zero, zero, zero + 1)
    >>> DeviceRows.of(rows, "cpu").margins([[3.0], [1.0]])
    array([2.])
    """

    products: DeviceProducts

    @classmethod
    def of(cls, rows: SharedRows, device: str | torch.device) -> DeviceRows:
        """The same rows on a device."""
        import torch

        moved = cls(rows.vectors, rows.queries, rows.group, rows.anchor, rows.owner, rows.place, rows.chunk)
        arrays = (rows.vectors, rows.queries, rows.anchor, rows.owner, rows.place)
        X, Z, anchor, owner, place = (torch.from_numpy(np.require(x, requirements="W")).to(device) for x in arrays)
        moved.products = DeviceProducts(X, Z, anchor, owner, place, list(rows.parts()))
        return moved

    def select(self, index: IntArray, kind: type[np.floating[Any]] = np.float64) -> DeviceRows:
        """Some of the rows, in their order, on the same device; vectors and queries are shared."""
        import torch

        rows = super().select(index, kind)
        assert isinstance(rows, DeviceRows)
        here = self.products
        owner, place = (torch.from_numpy(x).to(here.vectors.device) for x in (rows.owner, rows.place))
        rows.products = DeviceProducts(here.vectors, here.queries, here.anchor, owner, place, list(rows.parts()))
        return rows

    def _to_device(self, array: npt.ArrayLike) -> torch.Tensor:
        import torch

        return torch.as_tensor(np.asarray(array, dtype=np.float64), device=self.products.vectors.device)

    def margins(self, W: npt.ArrayLike) -> FloatArray:
        """Values of all rows at W, shape (m,)."""
        return np.asarray(self.products.margins(self._to_device(W)).cpu().numpy())

    def adjoint(self, multipliers: npt.ArrayLike) -> FloatArray:
        """``sum_k lam_k (x_anchor - x_t) z^T``, shape (dx, dz)."""
        return np.asarray(self.products.adjoint(self._to_device(multipliers)).cpu().numpy())
