"""What solvers may ask of the rows of a margin problem: linear functions ``W -> <a_k b_k^T, W>`` of rank one.

`Rows` is the protocol, and solvers see nothing else; `attsvm.solvers.rows.pairs.PairRows` is its first implementation.
A batch is a leading axis of every array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray, IntArray

if TYPE_CHECKING:
    from attsvm.solvers.rows.pairs import PairRows

__all__ = ["Rows"]


class Rows(Protocol):
    """What solvers and certificates may ask of rows; every array may carry one leading batch axis."""

    @property
    def batch(self) -> tuple[int, ...]:
        """``()`` for one problem, ``(B,)`` for a batch."""
        ...

    @property
    def m(self) -> int:
        """Number of rows of each problem."""
        ...

    @property
    def q(self) -> int:
        """Number of queries, which `owner` counts."""
        ...

    @property
    def shape(self) -> tuple[int, int]:
        """Shape ``(dx, dz)`` of W."""
        ...

    @property
    def elements(self) -> int:
        """Entries of the stored left factors: the size that decides on threads and memory."""
        ...

    @property
    def owner(self) -> IntArray:
        """Query of each row, shape (m,) or (B, m); proofs are told in these numbers."""
        ...

    @property
    def row_norms(self) -> FloatArray:
        """Frobenius norms ``|a_k| |b_k|``, shape (*batch, m)."""
        ...

    @property
    def error_norms(self) -> FloatArray:
        """What rounding errors of `margins` and `adjoint` scale with, shape (*batch, m): at least `row_norms`."""
        ...

    def margins(self, W: npt.ArrayLike) -> FloatArray:
        """Values ``<a_k b_k^T, W>`` for W of shape (*batch, dx, dz), shape (*batch, m)."""
        ...

    def adjoint(self, multipliers: npt.ArrayLike) -> FloatArray:
        """``sum_k lam_k a_k b_k^T`` for multipliers of shape (*batch, m), shape (*batch, dx, dz)."""
        ...

    def gather(self, index: npt.ArrayLike) -> PairRows:
        """The rows of an index or boolean mask of shape (m',) as explicit pairs, float64 or as stored."""
        ...

    def __getitem__(self, problem: int) -> Rows:
        """Rows of one problem of a batch."""
        ...

    def take(self, problems: IntArray) -> Rows:
        """Rows of some problems of a batch."""
        ...
