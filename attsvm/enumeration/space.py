"""All selections of a problem as one indexed set, and the rows of any part of a selection."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt

from attsvm._arrays import BoolArray, IntArray
from attsvm.problem import AttentionProblem
from attsvm.solvers import MarginProblem, MarginSolutionBatch

__all__ = ["SelectionSpace"]

FloatArray = npt.NDArray[np.float64]


def _span(vectors: FloatArray) -> FloatArray:
    """Orthonormal columns that span the rows given, shape (d, at most the number of rows)."""
    if len(vectors) >= vectors.shape[1]:
        return np.eye(vectors.shape[1])
    return np.asarray(np.linalg.qr(vectors.T)[0])


@dataclass(frozen=True, eq=False)
class SelectionSpace:
    """The selections of a single problem: one allowed token per query, queries flattened to one axis.

    Tokens and queries are kept in coordinates of their own spans: norms and margins do not change, and the
    matrices never exceed the number of rows that a problem can have.

    Parameters
    ----------
    problem : AttentionProblem
        Not a batch, and with a head: local optimality needs scores.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.enumeration.space import SelectionSpace
    >>> space = SelectionSpace(attsvm.random_problem(n=3, T=4, d=4, seed=5))
    >>> space.size, space.selections(0, 3).tolist()
    (64, [[0, 0, 0], [0, 0, 1], [0, 0, 2]])
    """

    problem: AttentionProblem

    def __post_init__(self) -> None:
        if find_spec("torch") is None:
            raise ImportError(
                "listing selections solves them in batches, which needs torch: pip install 'attsvm[torch]'"
            )
        if self.problem.batch is not None:
            raise ValueError("selections are listed for one problem at a time; index the batch first, e.g. problem[0]")
        if not (self.allowed.sum(axis=1) > 1).any():
            raise ValueError("mask leaves no query with two tokens to choose from: there is nothing to select")

    # -- data per query ---------------------------------------------------------------------------

    @property
    def q(self) -> int:
        """Number of queries, n K."""
        return self.problem.n * self.problem.K

    @property
    def T(self) -> int:
        """Tokens per sequence."""
        return self.problem.T

    @cached_property
    def allowed(self) -> BoolArray:
        """True where a query may select a token, shape (q, T)."""
        return np.asarray(self.problem.allowed.reshape(-1, self.T))

    @cached_property
    def scores(self) -> FloatArray:
        """Scores, -inf where masked, shape (q, T)."""
        return np.asarray(self.problem.scores().reshape(-1, self.T))

    @cached_property
    def tokens(self) -> FloatArray:
        """Tokens of each query's sequence, shape (q, T, dx')."""
        X = self.problem.X.astype(np.float64)
        basis = _span((X - X[:, :1]).reshape(-1, X.shape[-1]))
        return np.asarray(np.repeat(X @ basis, self.problem.K, axis=0))

    @cached_property
    def queries(self) -> FloatArray:
        """Queries, shape (q, dz')."""
        Z = self.problem.Z.reshape(-1, self.problem.dz).astype(np.float64)
        return np.asarray(Z @ _span(Z))

    @cached_property
    def choices(self) -> tuple[IntArray, ...]:
        """Allowed tokens of each query, in increasing order."""
        return tuple(np.flatnonzero(row) for row in self.allowed)

    @property
    def size(self) -> int:
        """Number of selections (a Python integer: it may exceed 64 bits)."""
        return math.prod(len(tokens) for tokens in self.choices)

    @cached_property
    def fingerprint(self) -> str:
        """Digest of everything that decides which selections are locally optimal."""
        digest = hashlib.sha256()
        parts: tuple[npt.NDArray[np.generic], ...] = (self.problem.X, self.problem.Z, self.scores, self.allowed)
        for array in parts:
            digest.update(f"{array.shape}{array.dtype}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    # -- selections -------------------------------------------------------------------------------

    def selections(self, start: int, stop: int, queries: IntArray | None = None) -> IntArray:
        """Selections number ``start`` to ``stop`` of the given queries (all by default), the last varying fastest.

        Returns
        -------
        ndarray of int, shape (stop - start, number of queries)
        """
        columns = range(self.q) if queries is None else [int(j) for j in queries]
        counter = np.arange(start, stop, dtype=np.int64)
        out = np.empty((len(counter), len(columns)), dtype=np.int64)
        for place in range(len(columns) - 1, -1, -1):
            tokens = self.choices[columns[place]]
            counter, digit = np.divmod(counter, len(tokens))
            out[:, place] = tokens[digit]
        return out

    def random(self, rng: np.random.Generator, count: int) -> IntArray:
        """Uniform random selections, shape (count, q)."""
        return np.stack([rng.choice(tokens, size=count) for tokens in self.choices], axis=1)

    def higher(self, selections: IntArray, *, ties: bool = True) -> BoolArray:
        """Allowed other tokens that score at least as much (or, without ties, more), shape (B, q, T)."""
        own = np.take_along_axis(self.scores[None], selections[..., None], axis=2)
        better = self.scores >= own if ties else self.scores > own
        return np.asarray(better & self.allowed & (np.arange(self.T) != selections[..., None]))

    def lower(self, selections: IntArray) -> BoolArray:
        """Allowed tokens that score strictly less than the selected one, shape (B, q, T)."""
        own = np.take_along_axis(self.scores[None], selections[..., None], axis=2)
        return np.asarray(self.allowed & (self.scores < own))

    def mean_scores(self, selections: IntArray) -> FloatArray:
        """Mean score of the selected tokens, shape (B,)."""
        return np.asarray(np.take_along_axis(self.scores[None], selections[..., None], axis=2)[..., 0].mean(axis=1))

    # -- rows -------------------------------------------------------------------------------------

    def rows(self, selections: IntArray, keep: BoolArray, queries: IntArray | None = None) -> MarginProblem:
        """Rows ``x_alpha - x_t`` wherever ``keep``; every selection must keep at least one.

        Duplicate tokens make a zero row, which no W satisfies: the solver proves it.

        Parameters
        ----------
        selections : ndarray of int, shape (B, k)
        keep : ndarray of bool, shape (B, k, T)
        queries : ndarray of int, shape (k,), optional
            The queries that the columns stand for; all by default.
        """
        which = np.arange(self.q) if queries is None else queries
        tokens, size, columns = self.tokens[which], len(selections), np.arange(len(which))
        others = np.arange(self.T - 1)
        others = others + (others >= selections[..., None])  # (B, k, T - 1): every token but the selected one
        a = tokens[columns, selections][:, :, None] - tokens[columns[:, None], others]
        valid = np.take_along_axis(keep, others, axis=2).reshape(size, -1)
        used = valid.any(axis=0)  # no row of the batch is padding in all its problems
        Z = np.broadcast_to(self.queries[which], (size, len(which), self.queries.shape[1]))
        owner = np.repeat(columns, self.T - 1)
        return MarginProblem(a.reshape(size, -1, tokens.shape[-1])[:, used], Z, owner[used], valid=valid[:, used])

    def margins(self, selections: IntArray, found: MarginSolutionBatch) -> FloatArray:
        """``(x_alpha - x_t)^T W z`` for all queries and tokens, NaN where there is no W; shape (B, q, T)."""
        keys = self.queries @ found.W.swapaxes(1, 2)  # (B, q, dx')
        logits = np.matmul(self.tokens, keys[..., None])[..., 0]
        return np.asarray(np.take_along_axis(logits, selections[..., None], axis=2) - logits)
