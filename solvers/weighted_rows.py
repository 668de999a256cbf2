"""Rows seen through a change of coordinates on the left: ``<a_k b_k^T, L V>`` as rows ``(L^T a_k) b_k^T`` of V."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.solvers.pairs import PairRows
from attsvm.solvers.rows import Rows

__all__ = ["WeightedRows"]


class WeightedRows:
    """Rows of one problem with ``W = L V``, for any rows and a symmetric L; nothing is stored but L.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import PairRows
    >>> from attsvm.solvers.weighted_rows import WeightedRows
    >>> WeightedRows(PairRows(np.eye(2), [[1.0]], [0, 0]), np.diag([2.0, 3.0])).margins([[1.0], [1.0]])
    array([2., 3.])
    """

    def __init__(self, rows: Rows, left: FloatArray) -> None:
        if rows.batch:
            raise ValueError("a change of coordinates is made for one problem; index the batch first")
        self.rows, self.left = rows, left
        # Sizes only: solvers weigh rows by them.
        self.row_norms = rows.row_norms * float(np.linalg.norm(left) / np.sqrt(len(left)))

    @property
    def batch(self) -> tuple[int, ...]:
        """One problem."""
        return ()

    @property
    def m(self) -> int:
        """Number of rows."""
        return self.rows.m

    @property
    def q(self) -> int:
        """Number of queries."""
        return self.rows.q

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of V, that of W."""
        return self.rows.shape

    @property
    def elements(self) -> int:
        """Entries of the rows behind."""
        return self.rows.elements

    @property
    def owner(self) -> IntArray:
        """Query of each row."""
        return self.rows.owner

    def margins(self, W: npt.ArrayLike) -> FloatArray:
        """Values of all rows at V, shape (m,)."""
        return self.rows.margins(self.left @ np.asarray(W, dtype=np.float64))

    def adjoint(self, multipliers: npt.ArrayLike) -> FloatArray:
        """``L^T W(lam)``, shape (dx, dz)."""
        return np.asarray(self.left.T @ self.rows.adjoint(multipliers))

    def gather(self, index: npt.ArrayLike) -> PairRows:
        """The given rows as explicit pairs."""
        pair = self.rows.gather(index)
        return PairRows.trusted(pair.a.astype(np.float64, copy=False) @ self.left, pair.queries, pair.owner)

    def __getitem__(self, problem: int) -> WeightedRows:
        raise IndexError("these rows belong to one problem; only a batch of rows can be indexed")

    def take(self, problems: IntArray) -> WeightedRows:
        """There is one problem only."""
        raise IndexError("these rows belong to one problem; only a batch of rows can be taken from")
