"""All selections of a problem as one indexed set, and the rows of any part of a selection."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from attsvm._arrays import BoolArray, IntArray
from attsvm.problem import AttentionProblem, require_problem
from attsvm.rows import AttentionRows, rows_of_selections
from attsvm.score_order import score_order

__all__ = ["SelectionSpace", "duplicated_tokens"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SelectionSpace:
    """The selections of a single problem: one allowed token per query, queries flattened to one axis.

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
        if require_problem(self.problem).batch is not None:
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
    def order(self) -> IntArray:
        """Exact ranks of the scores within each query, shape (q, T)."""
        return np.asarray(score_order(self.problem).reshape(-1, self.T))

    @cached_property
    def best(self) -> IntArray:
        """The first token of highest score of each query, shape (q,)."""
        return np.asarray(np.where(self.allowed, self.order, self.order.min() - 1).argmax(axis=1))

    @cached_property
    def hopeless(self) -> BoolArray:
        """Tokens that no W can select: equal to another allowed one, or of a zero query; shape (q, T).

        Two equal tokens, or any two under a zero query, have the same logit under every W: the row is zero.
        """
        zero = ~self.problem.Z.reshape(self.q, -1).any(axis=1) & (self.allowed.sum(axis=1) > 1)
        doubled = duplicated_tokens(self.problem).reshape(self.q, self.T)
        return np.asarray(doubled | (zero[:, None] & self.allowed))

    @property
    def steps(self) -> int:
        """Rows of a selection: one for every token beside the selected ones."""
        return int((self.allowed.sum(axis=1) - 1).sum())

    @property
    def at_once(self) -> int:
        """Selections to solve as one batch: 64 MiB of rows and Gram matrices, at least 4 and at most 4096."""
        rows = self.steps
        return int(np.clip((1 << 23) // (rows * (rows + self.problem.dx)), 4, 4096))

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
        parts: tuple[npt.NDArray[np.generic], ...] = (self.problem.X, self.problem.Z, self.order, self.allowed)
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
        own = np.take_along_axis(self.order[None], selections[..., None], axis=2)
        better = self.order >= own if ties else self.order > own
        return np.asarray(better & self.allowed & (np.arange(self.T) != selections[..., None]))

    def lower(self, selections: IntArray) -> BoolArray:
        """Allowed tokens that score strictly less than the selected one, shape (B, q, T)."""
        own = np.take_along_axis(self.order[None], selections[..., None], axis=2)
        return np.asarray(self.allowed & (self.order < own))

    def mean_scores(self, selections: IntArray) -> FloatArray:
        """Mean score of the selected tokens, shape (B,)."""
        return np.asarray(np.take_along_axis(self.scores[None], selections[..., None], axis=2)[..., 0].mean(axis=1))

    def rows(self, selections: IntArray, keep: BoolArray | None = None) -> AttentionRows:
        """Rows of each selection wherever ``keep``, shape (B, q, T), which must leave at least one; all by default."""
        return rows_of_selections(self.problem, selections, keep)

    def partial_rows(self, partial: IntArray, queries: IntArray) -> AttentionRows:
        """All rows of the queries given, whose tokens ``partial`` (B, k) are; those of the others are left out."""
        selections = np.zeros((len(partial), self.q), dtype=np.int64)
        selections[:, queries] = partial
        keep = np.zeros((len(partial), self.q, self.T), dtype=bool)
        keep[:, queries] = self.allowed[queries]
        return self.rows(selections, keep)


def duplicated_tokens(problem: AttentionProblem) -> BoolArray:
    """True where another allowed token of the query is the same vector: selecting it is infeasible.

    Returns
    -------
    ndarray of bool, shape ``query_shape + (T,)``

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.enumeration.space import duplicated_tokens
    >>> duplicated_tokens(attsvm.AttentionProblem([[[1.0], [0.0], [1.0]]], [1], [[1.0]]))
    array([[ True, False,  True]])
    """
    X = problem.X
    same = np.stack([(x[:, None] == x[None]).all(axis=-1) & ~np.eye(problem.T, dtype=bool) for x in X])
    allowed = problem.allowed.reshape(problem.n, problem.K, problem.T)
    found = (same[:, None] & allowed[:, :, None, :]).any(axis=-1) & allowed
    return np.asarray(found.reshape(*problem.query_shape, problem.T))
