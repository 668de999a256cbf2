"""Products with the Gram matrix of some rows, without the matrix: the rows are gathered once, by query.

``G x`` of the rows k of a set is computed as ``C_i = sum_{k of query i} x_k a_k``, ``U = (B B^T) C`` and
``a_k . U_i``, with the product by ``B B^T`` done in whichever order is cheaper. A block-diagonal
preconditioner, one block per query, removes what rows of one query have in common.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.solvers.conjugate_gradient import conjugate_gradient
from attsvm.solvers.unit import UnitProblem

__all__ = ["FreeRows", "solve_free"]

AnyFloats = npt.NDArray[np.floating]

# With fewer rows per query than this, whole-array operations beat one small product per query.
_LOOP_ROWS = 4
# A dense Gram matrix of up to this many entries (32 MiB) may be formed however small the data.
_DENSE_ELEMENTS = 1 << 22
# Numbers that are gathered at a time where rows change their type.
_CHUNK_ELEMENTS = 1 << 22
# Added to the unit diagonal of the preconditioner's blocks, so that dependent rows leave them invertible.
_RIDGE = 1e-6


def _gathered(unit: UnitProblem, index: IntArray, single: bool) -> tuple[AnyFloats, AnyFloats]:
    """Left factors of unit rows, in float32 if ``single``, and the queries; only a chunk is ever held twice."""
    rows = unit.problem.rows
    if not single:
        pair = rows.gather(index)  # a copy, so that it may be scaled in place
        pair.a *= unit.inverse[index, None].astype(pair.a.dtype)
        return pair.a, pair.queries
    out = np.empty((len(index), unit.problem.shape[0]), dtype=np.float32)
    step = max(1, _CHUNK_ELEMENTS // out.shape[1])
    for start in range(0, len(index), step):
        some = index[start : start + step]
        pair = rows.gather(some)
        np.multiply(pair.a, unit.inverse[some, None], out=out[start : start + step], casting="same_kind")
    return out, pair.queries


class FreeRows:
    """Gram products and a preconditioner for the rows in ``index``, each divided by its norm.

    Parameters
    ----------
    unit : UnitProblem
    index : ndarray of int, shape (p,)
    ridge : float
        Multiple of the identity that is added to the Gram matrix.
    preconditioned : bool
        Whether to prepare `precondition`; without, it changes nothing.
    single : bool
        Keep the rows in float32: half the memory, products to about 1e-6.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.frobenius.free_rows import FreeRows
    >>> from attsvm.solvers.unit import UnitProblem
    >>> unit = UnitProblem(MarginProblem(2 * np.eye(3), [[1.0, 0.0]], [0, 0, 0]))
    >>> FreeRows(unit, np.array([0, 2])).gram_product(np.array([1.0, 3.0]))
    array([1., 3.])
    """

    def __init__(
        self,
        unit: UnitProblem,
        index: IntArray,
        *,
        ridge: float = 0.0,
        preconditioned: bool = True,
        single: bool = False,
    ) -> None:
        self.ridge = ridge
        owner = unit.problem.owner[index]
        self.order: IntArray | None = None
        if (owner[1:] < owner[:-1]).any():
            self.order = np.argsort(owner, kind="stable")
            index, owner = index[self.order], owner[self.order]
        self.a, queries = _gathered(unit, index, single)
        self.used, starts, counts = np.unique(owner, return_index=True, return_counts=True)
        self.queries = queries[self.used].astype(self.a.dtype, copy=False)
        self.starts = starts
        self.segment = np.repeat(np.arange(len(self.used)), counts)
        self.pieces = [
            (i, slice(s, s + n)) for i, (s, n) in enumerate(zip(starts.tolist(), counts.tolist(), strict=True))
        ]
        self.loops = len(index) >= _LOOP_ROWS * len(self.used)
        q, (dx, dz) = len(self.used), unit.problem.shape
        self.kernel = self.queries @ self.queries.T if q * q <= 2 * q * dz and q * q <= max(1, self.a.size) else None
        self.combined = np.empty((q, dx), dtype=self.a.dtype)
        self.blocks = self._block_inverses(counts) if preconditioned else None

    def _block_inverses(self, counts: IntArray) -> FloatArray | None:
        widest = int(counts.max())
        q = len(self.used)
        self.place = self.segment * widest + (np.arange(len(self.segment)) - self.starts[self.segment])
        if widest == 1 or q * widest * widest > max(self.a.size, 1 << 16):
            return None  # the unit diagonal is then the preconditioner
        blocks = np.zeros((q, widest, widest))
        squares = np.einsum("qd,qd->q", self.queries, self.queries).astype(np.float64)
        for i, rows in self.pieces:
            n = rows.stop - rows.start
            blocks[i, :n, :n] = self.a[rows] @ self.a[rows].T
            blocks[i] *= squares[i]
        diagonal = np.arange(widest)
        blocks[:, diagonal, diagonal] = 1.0 + self.ridge + _RIDGE  # unit rows; padding decouples
        return np.asarray(np.linalg.inv(blocks))

    def _sorted(self, x: FloatArray) -> FloatArray:
        return x if self.order is None else x[self.order]

    def _restored(self, y: FloatArray) -> FloatArray:
        if self.order is None:
            return y
        out = np.empty_like(y)
        out[self.order] = y
        return out

    def combine(self, x: FloatArray) -> AnyFloats:
        """``sum_k x_k a_k`` per used query, shape (used, dx); the array is reused by the next call."""
        weights = self._sorted(x).astype(self.a.dtype, copy=False)
        if self.loops:
            for i, rows in self.pieces:
                np.dot(weights[rows], self.a[rows], out=self.combined[i])
        else:
            np.add.reduceat(weights[:, None] * self.a, self.starts, axis=0, out=self.combined)
        return self.combined

    def score(self, keys: FloatArray) -> FloatArray:
        """``a_k . keys[query of k]``, shape (p,)."""
        if self.loops:
            out = np.empty(len(self.a), dtype=self.a.dtype)
            for i, rows in self.pieces:
                np.dot(self.a[rows], keys[i], out=out[rows])
        else:
            out = np.einsum("kd,kd->k", self.a, keys[self.segment])
        return self._restored(out.astype(np.float64, copy=False))

    def gram_product(self, x: FloatArray) -> FloatArray:
        """``(G + ridge I) x``, shape (p,)."""
        combined = self.combine(x)
        if self.kernel is not None:
            product = self.score(self.kernel @ combined)
        else:
            product = self.score(self.queries @ (self.queries.T @ combined))
        return product + self.ridge * x if self.ridge else product

    def dense_solve(self, target: FloatArray) -> FloatArray | None:
        """Solve ``(G + ridge I) x = target`` by Cholesky; None when the matrix is too large or singular."""
        from scipy.linalg.lapack import dposv

        p = len(target)
        if p * p > max(_DENSE_ELEMENTS, self.a.size // 2):
            return None
        left = self.a.astype(np.float64, copy=False)
        queries = self.queries.astype(np.float64, copy=False)
        gram = left @ left.T
        gram *= (queries @ queries.T)[self.segment[:, None], self.segment]
        gram.flat[:: p + 1] += self.ridge
        _, x, fault = dposv(gram.T, self._sorted(target), overwrite_a=1)
        return None if fault else self._restored(x)

    def precondition(self, x: FloatArray) -> FloatArray:
        """Solve with the rows of each query alone, shape (p,)."""
        if self.blocks is None:
            return x
        q, widest, _ = self.blocks.shape
        padded = np.zeros(q * widest)
        padded[self.place] = self._sorted(x)
        solved = np.matmul(self.blocks, padded.reshape(q, widest, 1)).reshape(-1)
        return self._restored(solved[self.place])


def solve_free(rows: FreeRows, target: FloatArray, accuracy: float, max_steps: int) -> tuple[FloatArray, int, str]:
    """Preconditioned conjugate gradients for ``(G + ridge I) x = target`` from 0.

    Returns
    -------
    x : ndarray, shape (p,)
        An ascent direction of ``target . x - x G x / 2`` however early it stops.
    steps : int
    ending : {"solved", "limit", "singular"}
        "singular" when a direction without curvature was met; x is then that direction.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.frobenius.free_rows import FreeRows, solve_free
    >>> from attsvm.solvers.unit import UnitProblem
    >>> rows = FreeRows(UnitProblem(MarginProblem(np.eye(2), [[1.0]], [0, 0])), np.arange(2))
    >>> solve_free(rows, np.array([1.0, 2.0]), 1e-9, 10)[0].round(4)
    array([1., 2.])
    """
    found = conjugate_gradient(rows.gram_product, rows.precondition, target.copy(), accuracy, max_steps)
    return found.direction if found.ending == "singular" else found.x, found.steps, found.ending
