"""The margin problem: rank-one linear constraints on a matrix, kept in shared-query form.

minimize ||W||  subject to  <a_k b_k^T, W> >= rhs_k  (inequality rows),
                            <a_k b_k^T, W>  = rhs_k  (equality rows).

Many rows share one query ``b``, so the rows are stored as ``a (m, dx)``, ``queries (q, dz)`` and
``owner (m,)`` with ``b_k = queries[owner[k]]``. Neither the ``m x m`` Gram matrix nor the
``m x (dx dz)`` feature matrix is needed to evaluate the constraints or their adjoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

__all__ = ["BoolArray", "FloatArray", "IntArray", "MarginProblem"]

# Entries of `a` gathered or widened to float64 at once (32 MiB of float64).
_CHUNK_ELEMENTS = 1 << 22
# Below this many entries a dense matrix of the weights of each query's rows is cheaper than a sparse one.
_DENSE_PICKS = 1 << 14


def _all_finite(array: npt.NDArray[np.floating]) -> bool:
    if array.size > _CHUNK_ELEMENTS:  # a finite sum proves it without a mask as large as the data
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(array.sum()):
                return True
    return bool(np.isfinite(array).all())


def _real_matrix(name: str, value: npt.ArrayLike, columns: str) -> npt.NDArray[np.floating]:
    array = np.asarray(value)
    if array.dtype != np.float32:
        try:
            array = array.astype(np.float64, copy=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} must hold real numbers, got dtype {array.dtype}") from error
    if array.ndim != 2 or array.shape[0] == 0 or array.shape[1] == 0:
        raise ValueError(f"{name} must be a non-empty 2-d array {columns}, got shape {array.shape}")
    if not _all_finite(array):
        row = int(np.flatnonzero(~np.isfinite(array).all(axis=1))[0])
        raise ValueError(f"{name} must be finite, but row {row} holds NaN or infinity")
    return np.ascontiguousarray(array)


@dataclass(frozen=True, eq=False)
class MarginProblem:
    """Rank-one rows ``<a_k b_k^T, W>`` with a sense and a right-hand side.

    Parameters
    ----------
    a : array_like, shape (m, dx)
        Left factors. ``float32`` is kept as given (no copy); everything else becomes ``float64``.
    queries : array_like, shape (q, dz)
        Distinct right factors.
    owner : array_like of int, shape (m,)
        Row ``k`` has right factor ``queries[owner[k]]``.
    rhs : array_like, shape (m,), optional
        Right-hand sides; 1 for every row by default.
    equality : array_like of bool, shape (m,), optional
        True where the row is an equality; every row is ``>=`` by default.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem
    >>> rows = MarginProblem(a=np.eye(2), queries=[[2.0, 0.0]], owner=[0, 0])
    >>> rows.margins(np.ones((2, 2)))
    array([2., 2.])
    >>> rows.adjoint([1.0, 3.0])
    array([[2., 0.],
           [6., 0.]])
    """

    a: npt.NDArray[np.floating]
    queries: npt.NDArray[np.floating]
    owner: IntArray
    rhs: FloatArray = None  # type: ignore[assignment]
    equality: BoolArray = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        a = _real_matrix("a", self.a, "(m, dx)")
        queries = _real_matrix("queries", self.queries, "(q, dz)")
        owner = np.asarray(self.owner)
        m = a.shape[0]
        if owner.shape != (m,) or not np.issubdtype(owner.dtype, np.integer):
            raise ValueError(
                f"owner must be {m} integers, one per row of a, got shape {owner.shape} and dtype {owner.dtype}"
            )
        lowest, highest = owner.min(), owner.max()
        if lowest < 0 or highest >= len(queries):
            raise ValueError(f"owner must lie in [0, {len(queries)}), got {lowest} to {highest}")
        rhs = np.ones(m) if self.rhs is None else np.array(self.rhs, dtype=np.float64)
        equality = np.zeros(m, dtype=bool) if self.equality is None else np.array(self.equality)
        if rhs.shape != (m,) or not np.isfinite(rhs).all():
            raise ValueError(f"rhs must be {m} finite numbers, one per row of a, got shape {rhs.shape}")
        if equality.shape != (m,) or equality.dtype != bool:
            raise ValueError(
                f"equality must be {m} booleans, one per row of a, "
                f"got shape {equality.shape} and dtype {equality.dtype}"
            )
        for name, value in (
            ("a", a),
            ("queries", queries),
            ("owner", owner.astype(np.int64, copy=False)),
            ("rhs", rhs),
            ("equality", equality),
        ):
            object.__setattr__(self, name, value)

    @property
    def m(self) -> int:
        """Number of rows."""
        return int(self.a.shape[0])

    @property
    def q(self) -> int:
        """Number of distinct queries."""
        return int(self.queries.shape[0])

    @property
    def shape(self) -> tuple[int, int]:
        """Shape ``(dx, dz)`` of W."""
        return int(self.a.shape[1]), int(self.queries.shape[1])

    @cached_property
    def block(self) -> int:
        """Rows per query if every query owns one contiguous block of this many rows, in order; else 0."""
        size, rest = divmod(self.m, self.q)
        if rest or not (self.owner.reshape(self.q, size) == np.arange(self.q)[:, None]).all():
            return 0
        return size

    @cached_property
    def row_norms(self) -> FloatArray:
        """Frobenius norms ``|a_k| |b_k|`` of the rows, shape (m,)."""
        queries = self.queries.astype(np.float64, copy=False)
        squares = np.empty(self.m)
        for rows in self._chunks():
            part = self.a[rows].astype(np.float64, copy=False)
            np.einsum("kd,kd->k", part, part, out=squares[rows])
        return np.asarray(np.sqrt(squares) * np.sqrt(np.einsum("qd,qd->q", queries, queries))[self.owner])

    def _chunks(self) -> list[slice]:
        """Slices of rows (whole blocks of them if there are blocks); one slice when nothing has to be copied."""
        if self.block and self.a.dtype == np.float64:
            return [slice(0, self.m)]
        unit = self.block or 1
        step = max(1, _CHUNK_ELEMENTS // (self.shape[0] * unit)) * unit
        return [slice(start, min(start + step, self.m)) for start in range(0, self.m, step)]

    def margins(self, W: npt.ArrayLike) -> FloatArray:
        """Values ``<a_k b_k^T, W>`` of all rows.

        Parameters
        ----------
        W : array_like, shape (dx, dz)

        Returns
        -------
        ndarray, shape (m,)
        """
        W = np.asarray(W, dtype=np.float64)
        if W.shape != self.shape:
            raise ValueError(f"W must have shape {self.shape}, got {W.shape}")
        keys = self.queries @ W.T  # (q, dx): the direction along which each query measures
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
        multipliers : array_like, shape (m,)

        Returns
        -------
        ndarray, shape (dx, dz)
        """
        lam = np.asarray(multipliers, dtype=np.float64)
        if lam.shape != (self.m,):
            raise ValueError(f"multipliers must have shape ({self.m},), got {lam.shape}")
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

                position = (self.owner[rows], np.arange(len(part)))
                combined += sparse.csr_array((lam[rows], position), shape=(self.q, len(part))) @ part
        return np.asarray(combined.T @ self.queries)

    def features(self) -> FloatArray:
        """Dense rows ``vec(a_k b_k^T)`` in C order, shape (m, dx*dz). For small problems and references."""
        dense = self.a[:, :, None].astype(np.float64) * self.queries[self.owner][:, None, :]
        return np.asarray(dense.reshape(self.m, -1), dtype=np.float64)

    def gram(self) -> FloatArray:
        """Gram matrix ``G_jk = (a_j . a_k)(b_j . b_k)``, shape (m, m). For small problems and references."""
        left = self.a.astype(np.float64) @ self.a.T.astype(np.float64)
        right = self.queries.astype(np.float64) @ self.queries.T.astype(np.float64)
        return np.asarray(left * right[np.ix_(self.owner, self.owner)], dtype=np.float64)

    def subset(self, rows: npt.ArrayLike) -> MarginProblem:
        """The problem made of the given rows (indices or boolean mask), with the same queries."""
        index = np.asarray(rows)
        return MarginProblem(self.a[index], self.queries, self.owner[index], self.rhs[index], self.equality[index])
