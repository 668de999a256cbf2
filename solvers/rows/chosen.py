"""Products with some of the rows in float32 or float64: what conjugate gradients on free rows multiply with."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import CHUNK_ELEMENTS, FloatArray, IntArray
from attsvm.solvers.rows.protocol import Rows
from attsvm.solvers.rows.shared import SharedRows

__all__ = ["ChosenRows", "RowProducts", "chosen"]

# With fewer rows per query than this, whole-array operations beat one small product per query.
_LOOP_ROWS = 4


class RowProducts(Protocol):
    """Margins of some rows and their combinations."""

    def margins(self, W: npt.ArrayLike) -> FloatArray:
        """Values of the rows at W of shape (dx, dz), shape (p,)."""
        ...

    def adjoint(self, multipliers: npt.ArrayLike) -> FloatArray:
        """Combination of the rows, shape (dx, dz)."""
        ...


class ChosenRows:
    """Some rows written out once, sorted by query, with one small product per query.

    Parameters
    ----------
    rows : Rows
        One problem.
    index : ndarray of int, shape (p,)
    kind : type
        float32 halves memory and traffic; products are then right to about 1e-6.
    weights : ndarray, shape (p,), optional
        What each row is multiplied by.

    Attributes
    ----------
    a : ndarray, shape (p, dx)
        Left factors, sorted by query.
    queries : ndarray, shape (used, dz)
        The queries that own one of the rows.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import PairRows
    >>> from attsvm.solvers.rows.chosen import ChosenRows
    >>> rows = ChosenRows(PairRows(2 * np.eye(3), [[1.0], [4.0]], [1, 0, 0]), np.array([0, 2]))
    >>> rows.margins(np.ones((3, 1))), rows.adjoint([1.0, 3.0]).ravel()
    (array([8., 2.]), array([8., 0., 6.]))
    """

    def __init__(
        self,
        rows: Rows,
        index: IntArray,
        kind: type[np.floating[Any]] = np.float64,
        weights: FloatArray | None = None,
    ) -> None:
        owner = rows.owner[index]
        self.order: IntArray | None = None
        if (owner[1:] < owner[:-1]).any():
            self.order = np.argsort(owner, kind="stable")
            index, owner = index[self.order], owner[self.order]
            weights = None if weights is None else weights[self.order]
        self.shape, self.kind = rows.shape, kind
        self.a: npt.NDArray[np.floating[Any]] = np.empty((len(index), rows.shape[0]), dtype=kind)
        used, starts, counts = np.unique(owner, return_index=True, return_counts=True)
        step = max(1, CHUNK_ELEMENTS // rows.shape[0])
        for low in range(0, max(len(index), 1), step):  # only a part is ever held twice
            pair = rows.gather(index[low : low + step])
            self.a[low : low + step] = pair.a
            if weights is not None:
                self.a[low : low + step] *= weights[low : low + step, None].astype(kind)
        self.queries = pair.queries[used].astype(kind, copy=False)
        self._starts, self._segment = starts, np.repeat(np.arange(len(used)), counts)
        self._pieces = [
            (i, slice(s, s + n)) for i, (s, n) in enumerate(zip(starts.tolist(), counts.tolist(), strict=True))
        ]
        self._loops = len(index) >= _LOOP_ROWS * len(used)

    def margins(self, W: npt.ArrayLike) -> FloatArray:
        """Values of the rows at W of shape (dx, dz), shape (p,)."""
        keys = self.queries @ np.asarray(W, dtype=self.kind).T
        if self._loops:
            out = np.empty(len(self.a), dtype=self.kind)
            for i, rows in self._pieces:
                np.dot(self.a[rows], keys[i], out=out[rows])
        else:
            out = np.einsum("kd,kd->k", self.a, keys[self._segment])
        values = out.astype(np.float64, copy=False)
        if self.order is None:
            return values
        restored = np.empty_like(values)
        restored[self.order] = values
        return restored

    def adjoint(self, multipliers: npt.ArrayLike) -> FloatArray:
        """``sum_k lam_k a_k b_k^T``, shape (dx, dz)."""
        lam = np.asarray(multipliers, dtype=self.kind)
        lam = lam if self.order is None else lam[self.order]
        combined = np.zeros((len(self.queries), self.shape[0]), dtype=self.kind)
        if self._loops:
            for i, rows in self._pieces:
                np.dot(lam[rows], self.a[rows], out=combined[i])
        elif len(lam):
            np.add.reduceat(lam[:, None] * self.a, self._starts, axis=0, out=combined)
        return np.asarray(combined.T @ self.queries, dtype=np.float64)


def chosen(rows: Rows, index: IntArray, kind: type[np.floating[Any]]) -> RowProducts:
    """Products with some rows: shared vectors stay shared, other rows are written out once.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import PairRows
    >>> from attsvm.solvers.rows.chosen import chosen
    >>> chosen(PairRows(np.eye(2), [[1.0]], [0, 0]), np.array([1]), np.float32).margins([[2.0], [3.0]])
    array([3.])
    """
    return rows.select(index, kind) if isinstance(rows, SharedRows) else ChosenRows(rows, index, kind)
