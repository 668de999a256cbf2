"""Rows as explicit pairs: one left factor per row, right factors shared by the rows of a query.

``a (m, dx)``, ``queries (q, dz)`` and ``owner (m,)`` with ``b_k = queries[owner[k]]``: many rows share one query.
Neither the ``m x m`` Gram matrix nor the ``m x (dx dz)`` feature matrix is needed to evaluate rows or adjoint.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import CHUNK_ELEMENTS, FloatArray, IntArray, lazy, real_array, to_numpy

__all__ = ["PairRows", "Remainder"]

_Entry = TypeVar("_Entry", bound=np.generic)

Remainder: TypeAlias = Callable[[IntArray], FloatArray]
"""What rounding took from the left factors of the rows of an index, shape (len(index), dx)."""

# One problem with fewer rows is a matter of whole matrices: products by query would cost more than they save.
FEW_ROWS = 100
# Below this many entries a dense matrix of the weights of each query's rows is cheaper than a sparse one.
_DENSE_PICKS = 1 << 14


class PairRows:
    """One left factor per row, right factors shared by the rows of a query.

    Parameters
    ----------
    a : array_like, shape (m, dx) or (B, m, dx)
        Left factors. ``float32`` is kept as given (no copy); everything else becomes ``float64``.
    queries : array_like, shape (q, dz) or (B, q, dz)
        Distinct right factors.
    owner : array_like of int, shape (m,) or (B, m)
        Row ``k`` has right factor ``queries[owner[k]]``.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import PairRows
    >>> rows = PairRows(np.eye(2), [[2.0, 0.0]], [0, 0])
    >>> rows.margins(np.ones((2, 2))), rows.row_norms
    (array([2., 2.]), array([2., 2.]))
    """

    a: npt.NDArray[np.floating[Any]]
    queries: npt.NDArray[np.floating[Any]]
    owner: IntArray
    batch: tuple[int, ...]
    """``()`` for one problem, ``(B,)`` for a batch."""
    m: int
    """Number of rows."""
    q: int
    """Number of distinct queries."""
    shape: tuple[int, int]
    """Shape ``(dx, dz)`` of W."""
    is_small: bool
    """One problem of few rows in float64."""

    def __init__(self, a: npt.ArrayLike, queries: npt.ArrayLike, owner: npt.ArrayLike) -> None:
        self.a = real_array("a", a, "(m, dx)")
        self.queries = real_array("queries", queries, "(q, dz)")
        if self.a.shape[:-2] != self.queries.shape[:-2]:
            raise ValueError(
                f"a and queries must agree in their batch axis, got shapes {self.a.shape} and {self.queries.shape}"
            )
        whose = to_numpy(owner)
        m, q = self.a.shape[-2], self.queries.shape[-2]
        if whose.shape not in ((m,), self.a.shape[:-1]) or not np.issubdtype(whose.dtype, np.integer):
            raise ValueError(
                f"owner must be {m} integers, one per row of a, got shape {whose.shape} and dtype {whose.dtype}"
            )
        if whose.size and (whose.min() < 0 or whose.max() >= q):
            raise ValueError(f"owner must lie in [0, {q}), got {whose.min()} to {whose.max()}")
        self.owner = whose.astype(np.int64, copy=False)
        self._remainder_of: Callable[[int], Remainder] | None = None
        self._measure()

    def __repr__(self) -> str:
        many = f"{self.a.shape[0]} problems, " if self.a.ndim == 3 else ""
        (m, dx), (q, dz) = self.a.shape[-2:], self.queries.shape[-2:]
        return f"PairRows({many}{m} rows, {q} queries, W {dx} x {dz})"

    @classmethod
    def trusted(
        cls,
        a: npt.NDArray[np.floating[Any]],
        queries: npt.NDArray[np.floating[Any]],
        owner: IntArray,
        remainder_of: Callable[[int], Remainder] | None = None,
        block: int | None = None,
    ) -> PairRows:
        """From arrays that are known to be right: no look at the data.

        ``block`` is the property of that name, where it is known. ``remainder_of(problem)(index)`` gives what rounding
        took from the left factors of some rows, for exact proofs about rows that are differences; None where ``a`` is
        what was given. One problem has number 0.
        """
        rows = cls.__new__(cls)
        rows.a, rows.queries, rows.owner, rows._remainder_of = a, queries, owner, remainder_of
        rows._measure()
        if block is not None:
            rows.block = block
        return rows

    def _measure(self) -> None:
        """Sizes, as plain attributes: a solve of some microseconds asks for them dozens of times."""
        sizes, (self.q, dz) = self.a.shape, self.queries.shape[-2:]
        self.batch, self.m, self.shape = sizes[:-2], sizes[-2], (sizes[-1], dz)
        self.is_small = self.m < FEW_ROWS and not self.batch and self.a.dtype == self.queries.dtype == np.float64

    def exact_left(self) -> npt.NDArray[Any]:
        """Left factors as they are, or as fractions where rounding took something from them, shape (m, dx)."""
        rest = None if self._remainder_of is None else self._remainder_of(0)(np.arange(self.m))
        if rest is None or not rest.any():
            return self.a.astype(np.float64, copy=False)
        exact = np.array([[Fraction(x) for x in row] for row in self.a.tolist()], dtype=object)
        return np.asarray(exact + np.array([[Fraction(x) for x in row] for row in rest.tolist()], dtype=object))

    @property
    def elements(self) -> int:
        """Entries of the left factors."""
        return int(self.a.size)

    @lazy
    def block(self) -> int:
        """Rows per query if every query owns one contiguous block of this many rows, in order; else 0."""
        size, rest = divmod(self.m, self.q)
        if rest or self.owner.ndim > 1 or not np.array_equal(self.owner, np.repeat(np.arange(self.q), size)):
            return 0
        return size

    @lazy
    def _is_sorted(self) -> bool:
        """Whether the rows of one problem stand in the order of their queries."""
        return bool(self.owner.ndim == 1 and (self.owner[1:] >= self.owner[:-1]).all())

    @lazy
    def _blocks(self) -> FloatArray | None:
        """Left factors by query, shape (*batch, q, block, dx), if that is a view of float64 numbers."""
        if not self.block or self.a.dtype != np.float64:
            return None
        return np.asarray(self.a.reshape(*self.batch, self.q, self.block, -1), dtype=np.float64)

    def _of_rows(self, per_query: npt.NDArray[_Entry]) -> npt.NDArray[_Entry]:
        """From one vector per query to one per row."""
        if self.owner.ndim == 1:
            return per_query.take(self.owner, axis=-2)
        return np.take_along_axis(per_query, self.owner[..., None], axis=-2)

    @lazy
    def right(self) -> npt.NDArray[np.floating[Any]]:
        """Right factor of every row, shape (*batch, m, dz)."""
        return self._of_rows(self.queries)

    @lazy
    @np.errstate(over="ignore", under="ignore", invalid="ignore")  # as a decorator it takes a third of the time
    def row_norms(self) -> FloatArray:
        """Frobenius norms ``|a_k| |b_k|`` of the rows, shape (*batch, m)."""
        # Rows that leave the range (also as zero times infinity) are scaled before they are solved.
        if self.is_small:  # whose right factors are written out: margins need them
            return np.asarray(np.sqrt(np.vecdot(self.a, self.a)) * np.sqrt(np.vecdot(self.right, self.right)))
        queries = self.queries.astype(np.float64, copy=False)
        right = np.sqrt(np.vecdot(queries, queries))
        if self.a.dtype == np.float64:
            squares = np.vecdot(self.a, self.a)
        else:
            squares = np.empty(self.a.shape[:-1])
            for rows in self._chunks():
                part = self.a[..., rows, :].astype(np.float64)
                squares[..., rows] = np.vecdot(part, part)
        return self._times_queries(np.sqrt(squares), right)

    @property
    def error_norms(self) -> FloatArray:
        """What rounding errors scale with: the norms of the rows, as left factors are at hand."""
        return self.row_norms

    def _times_queries(self, lengths: FloatArray, right: FloatArray) -> FloatArray:
        """One number per row times one per query."""
        if self.block:
            blocks = lengths.reshape(*self.batch, self.q, self.block)
            blocks *= right[..., None]
            return lengths
        lengths *= right.take(self.owner, -1) if self.owner.ndim == 1 else np.take_along_axis(right, self.owner, -1)
        return lengths

    def _chunks(self) -> list[slice]:
        """Slices of rows (whole blocks of them if there are blocks); one slice when nothing has to be copied."""
        if self.batch or self._blocks is not None:
            return [slice(0, self.m)]
        unit = self.block or 1
        step = max(1, CHUNK_ELEMENTS // (self.shape[0] * unit)) * unit
        return [slice(start, min(start + step, self.m)) for start in range(0, self.m, step)]

    def margins(self, W: npt.ArrayLike) -> FloatArray:
        """Values ``<a_k b_k^T, W>`` of all rows.

        Parameters
        ----------
        W : array_like, shape (*batch, dx, dz)

        Returns
        -------
        ndarray, shape (*batch, m)
        """
        W = np.asarray(W, dtype=np.float64)
        if W.shape != self.batch + self.shape:
            raise ValueError(f"W must have shape {(*self.batch, *self.shape)}, got {W.shape}")
        if self.is_small:
            return np.asarray(np.vecdot(self.a.dot(W), self.right))
        keys = self.queries @ W.mT  # (*batch, q, dx): the direction along which each query measures
        if self._blocks is not None:
            return np.asarray(np.matmul(self._blocks, keys[..., None]).reshape(*self.batch, self.m))
        if self.batch:
            return np.asarray(np.vecdot(self.a.astype(np.float64, copy=False), self._of_rows(keys)))
        out = np.empty(self.m)
        for rows in self._chunks():
            part = self.a[rows].astype(np.float64, copy=False)
            if self.block:
                whose = slice(rows.start // self.block, rows.stop // self.block)
                blocks = part.reshape(-1, self.block, part.shape[1])
                np.matmul(blocks, keys[whose, :, None], out=out[rows].reshape(-1, self.block, 1))
            else:
                np.einsum("kd,kd->k", part, keys[self.owner[rows]], out=out[rows])
        return out

    def adjoint(self, multipliers: npt.ArrayLike) -> FloatArray:
        """The matrix ``W(lam) = sum_k lam_k a_k b_k^T``.

        Parameters
        ----------
        multipliers : array_like, shape (*batch, m)

        Returns
        -------
        ndarray, shape (*batch, dx, dz)
        """
        lam = np.asarray(multipliers, dtype=np.float64)
        if lam.shape != (*self.batch, self.m):
            raise ValueError(f"multipliers must have shape {(*self.batch, self.m)}, got {lam.shape}")
        if self.is_small:
            return np.asarray((self.a.T * lam).dot(self.right))
        if self._blocks is not None:
            combined = np.matmul(lam.reshape(*self.batch, self.q, 1, self.block), self._blocks)[..., 0, :]
            return np.asarray(np.matmul(combined.mT, self.queries))
        if self.batch:
            return np.asarray((self.a * lam[..., None]).mT @ self.right.astype(np.float64, copy=False))
        combined = np.zeros((self.q, self.shape[0]))
        for rows in self._chunks():
            part = self.a[rows].astype(np.float64, copy=False)
            if self.block:
                whose = slice(rows.start // self.block, rows.stop // self.block)
                blocks = part.reshape(-1, self.block, part.shape[1])
                np.matmul(lam[rows].reshape(-1, 1, self.block), blocks, out=combined[whose, None])
            elif self.q * len(part) <= _DENSE_PICKS:
                combined += ((np.arange(self.q)[:, None] == self.owner[rows]) * lam[rows]) @ part
            else:
                from scipy import sparse

                place: Any = (self.owner[rows], np.arange(len(part)))
                picks: Any = (lam[rows], place)
                if self._is_sorted:  # rows of each query side by side: nothing has to be put in order
                    picks = (lam[rows], place[1], np.searchsorted(place[0], np.arange(self.q + 1)))
                combined += sparse.csr_array(picks, shape=(self.q, len(part))) @ part
        return np.asarray(combined.T @ self.queries)

    def gather(self, index: npt.ArrayLike) -> PairRows:
        """The given rows (indices or boolean mask over m), with the same queries.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm.solvers import PairRows
        >>> PairRows(np.eye(3), np.eye(2), [0, 1, 1]).gather([2]).a
        array([[0., 0., 1.]])
        """
        rows = np.asarray(index)
        if rows.dtype == bool:
            rows = np.flatnonzero(rows)
        rest = self._remainder_of
        inner = None if rest is None else lambda k: lambda part: rest(k)(rows[part])
        return PairRows.trusted(self.a[..., rows, :], self.queries, self.owner[..., rows], inner)

    def scaled(self, left: int, right: int) -> PairRows:
        """Left factors times ``2^left``, queries times ``2^right``: exact unless they leave the range."""
        a, queries = self.a.astype(np.float64), self.queries.astype(np.float64)
        rest = self._remainder_of
        inner = None if rest is None else lambda k: lambda part: np.ldexp(rest(k)(part), left)
        return PairRows.trusted(np.ldexp(a, left), np.ldexp(queries, right), self.owner, inner, self.block)

    def __getitem__(self, problem: int) -> PairRows:
        if not self.batch:
            raise IndexError("these rows belong to one problem; only a batch of rows can be indexed")
        owner = self.owner if self.owner.ndim == 1 else self.owner[problem]
        rest = self._remainder_of
        inner = None if rest is None else lambda _: rest(problem)
        block = self.block if self.owner.ndim == 1 else None
        return PairRows.trusted(self.a[problem], self.queries[problem], owner, inner, block)

    def take(self, problems: IntArray) -> PairRows:
        """Rows of some problems of a batch."""
        owner = self.owner if self.owner.ndim == 1 else self.owner[problems]
        rest = self._remainder_of
        inner = None if rest is None else lambda k: rest(int(problems[k]))
        block = self.block if self.owner.ndim == 1 else None
        return PairRows.trusted(self.a[problems], self.queries[problems], owner, inner, block)

    def repeated(self, size: int) -> PairRows:
        """Rows of one problem as those of so many problems, without a copy.

        Examples
        --------
        >>> from attsvm.solvers import PairRows
        >>> PairRows([[2.0]], [[1.0]], [0]).repeated(3).row_norms.ravel()
        array([2., 2., 2.])
        """
        rest = self._remainder_of
        inner = None if rest is None else lambda _: rest(0)
        a, queries = (np.broadcast_to(part, (size, *part.shape)) for part in (self.a, self.queries))
        rows = PairRows.trusted(a, queries, self.owner, inner, self.block)
        rows.row_norms = np.broadcast_to(self.row_norms, (size, self.m))
        return rows

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_remainder_of": None}  # a function: rows that were stored know their rounded factors

    def features(self) -> FloatArray:
        """Dense rows ``vec(a_k b_k^T)`` in C order, shape (*batch, m, dx*dz). For small problems and references."""
        dense = self.a[..., :, None].astype(np.float64) * self.right[..., None, :]
        return np.asarray(dense.reshape(*dense.shape[:-2], -1), dtype=np.float64)

    @lazy
    def gram(self) -> FloatArray:
        """Gram matrix ``G_jk = (a_j . a_k)(b_j . b_k)``, shape (*batch, m, m). For small problems and references."""
        return self.weighted_gram(None)

    def weighted_gram(self, weights: FloatArray | None) -> FloatArray:
        """Gram matrix of the rows times their weights, of shape (*batch, m); shape (*batch, m, m)."""
        a, queries = self.a.astype(np.float64, copy=False), self.queries.astype(np.float64, copy=False)
        if weights is not None:
            a = a * weights[..., None]
        gram: FloatArray = a.dot(a.T) if self.is_small else a @ a.mT  # of a few rows `dot` is the quicker one
        if self.is_small:
            gram *= self.right.dot(self.right.T)
            return gram
        between = queries @ queries.mT
        if self.block:
            blocks = gram.reshape(*self.batch, self.q, self.block, self.q, self.block)
            blocks *= between[..., :, None, :, None]
        elif self.owner.ndim == 1:
            gram *= np.take(np.take(between, self.owner, axis=-2), self.owner, axis=-1)
        else:
            right = self.right.astype(np.float64, copy=False)
            gram *= right @ right.mT
        return gram
