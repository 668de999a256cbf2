"""An attention problem: tokens, queries, labels, head and mask, checked once and frozen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attsvm._arrays import BoolArray, FloatArray, bool_array, freeze, real_array, require_finite
from attsvm.heads import Head
from attsvm.losses import Loss, LossConstants, get_loss
from attsvm.selection import Selection

__all__ = ["AttentionProblem", "ProblemBatch"]


@dataclass(frozen=True, eq=False)
class AttentionProblem:
    """n sequences of T tokens, one or K queries per sequence, a label per query and a head.

    Parameters
    ----------
    X : array_like, shape (n, T, dx)
        Tokens. float32 stays float32; every other real dtype becomes float64.
    Y : array_like, shape (n,) or (n, K), optional
        Labels, +1 or -1; all +1 when omitted.
    Z : array_like, shape (n, dz) or (n, K, dz)
        Queries.
    head : callable, optional
        Maps vectors ``(..., dx)`` to numbers ``(...)``: `LinearHead`, `ReluHead`, `ConcaveHead` or any
        callable. Needed for scores.
    mask : array_like of bool, shape (n, T) or (n, K, T), optional
        True where attention is allowed. Tokens that no query may see are padding: their entries are
        ignored and stored as 0.

    A batch of problems has one more leading axis on X, Y, Z and mask (and on the head's parameters if
    they differ).

    Examples
    --------
    >>> import numpy as np
    >>> import attsvm
    >>> X = np.array([[[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]])
    >>> problem = attsvm.AttentionProblem(X, Y=[1], Z=[[1.0, 0.0]], head=attsvm.LinearHead([0.0, 1.0]))
    >>> problem.scores()
    array([[0., 1., 0.]])
    >>> problem.optimal_tokens().indices
    array([1])
    """

    X: FloatArray
    Y: npt.NDArray[np.float64]
    Z: FloatArray
    head: Head | None = None
    mask: BoolArray | None = None
    _lead: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        X, Z = real_array("X", self.X), real_array("Z", self.Z)
        if X.ndim not in (3, 4):
            raise ValueError(f"X must have shape (n, T, dx) or (batch, n, T, dx), got {X.shape}")
        lead = X.ndim - 3
        if 0 in X.shape:
            raise ValueError(f"X must hold at least one sequence and one dimension, got shape {X.shape}")
        if X.shape[-2] < 2:
            raise ValueError(
                "X must hold at least T = 2 tokens per sequence, got T = 1: there is nothing to select from"
            )
        sequences = X.shape[: lead + 1]
        shape = f"{(*sequences, 'dz')} or {(*sequences, 'K', 'dz')}".replace("'", "")
        if Z.ndim not in (lead + 2, lead + 3) or Z.shape[: lead + 1] != sequences or 0 in Z.shape:
            raise ValueError(f"Z must have shape {shape} to go with X of shape {X.shape}, got {Z.shape}")
        object.__setattr__(self, "_lead", lead)
        queries = Z.shape[:-1]
        object.__setattr__(self, "Y", _read_labels(self.Y, sequences, queries))
        if self.mask is not None:
            mask = _read_mask(self.mask, sequences, queries, X.shape[-2])
            object.__setattr__(self, "mask", freeze(mask))
            seen = np.asarray(mask if mask.ndim == lead + 2 else mask.any(axis=-2))
            require_finite("X", X, where=np.broadcast_to(seen[..., None], X.shape))
            if not seen.all():
                X = np.where(seen[..., None], X, X.dtype.type(0))
        else:
            require_finite("X", X)
        require_finite("Z", Z)
        object.__setattr__(self, "X", freeze(X))
        object.__setattr__(self, "Z", freeze(Z))
        self._check_head()

    def _check_head(self) -> None:
        if self.head is None:
            return
        if not callable(self.head):
            raise ValueError(f"head must be callable on arrays of tokens (..., dx), got {type(self.head).__name__}")
        expected = getattr(self.head, "dim", None)
        if isinstance(expected, int) and expected != self.dx:
            raise ValueError(f"head expects tokens of dimension {expected}, but X has dx = {self.dx}")
        heads = getattr(self.head, "batch", None)
        if isinstance(heads, int) and heads != self.batch:
            raise ValueError(f"head holds a batch of {heads}, but X has batch {self.batch}")

    # -- sizes ------------------------------------------------------------------------------------

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

    # -- derived arrays ---------------------------------------------------------------------------

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

    def scores(self) -> npt.NDArray[np.float64]:
        """Scores ``gamma_it = Y_i h(x_it)`` (Definition 1), shape ``query_shape + (T,)``; -inf where masked."""
        return self._scores

    @cached_property
    def _scores(self) -> npt.NDArray[np.float64]:
        if self.head is None:
            raise ValueError("scores need a prediction head: pass head=attsvm.LinearHead(v) or any callable")
        values = np.asarray(self.head(self.X), dtype=np.float64)
        if values.shape != self.X.shape[:-1]:
            raise ValueError(
                f"head must map tokens of shape {self.X.shape} to numbers of shape {self.X.shape[:-1]}, "
                f"got {values.shape}"
            )
        if self.multi_query:
            values = values[..., None, :]
        scores = np.where(self.allowed, self.Y[..., None] * values, -np.inf)
        bad = self.allowed & ~np.isfinite(scores)
        if bad.any():
            raise ValueError(
                f"head returned a value that is not finite at {tuple(int(i) for i in np.argwhere(bad)[0])}"
            )
        return freeze(scores)

    def optimal_tokens(self, tolerance: float = 0.0) -> Selection:
        """Tokens of highest score (Definition 1); ties are reported in the selection.

        Parameters
        ----------
        tolerance : float
            Scores within this distance of the highest count as tied.

        Returns
        -------
        Selection
            The first of the tied tokens is taken; ``is_unique`` and ``ties`` tell.
        """
        if not tolerance >= 0:
            raise ValueError(f"tolerance must be >= 0, got {tolerance}")
        scores = self.scores()
        best = scores.max(axis=-1, keepdims=True)
        return Selection(scores.argmax(axis=-1), tied=scores >= best - tolerance)

    def loss_constants(self, loss: str | Loss = "logistic") -> LossConstants:
        """M0 and M1 of Assumption A over the range of this problem's scores (linear heads)."""
        scores = self.scores()[self.allowed]
        return get_loss(loss).constants(float(scores.min()), float(scores.max()))

    # -- batches ----------------------------------------------------------------------------------

    def __getitem__(self, index: int) -> AttentionProblem:
        if self.batch is None:
            raise TypeError("only a batch of problems can be indexed; this is a single problem")
        if not -self.batch <= index < self.batch:
            raise IndexError(f"problem {index} is out of range for a batch of {self.batch}")
        head = self.head
        if isinstance(getattr(head, "batch", None), int):
            head = head[index]  # type: ignore[index]
        return AttentionProblem(
            self.X[index], self.Y[index], self.Z[index], head, None if self.mask is None else self.mask[index]
        )

    def __iter__(self) -> Iterator[AttentionProblem]:
        if self.batch is None:
            raise TypeError("only a batch of problems can be iterated over; this is a single problem")
        return (self[b] for b in range(self.batch))

    def repeat(self, times: int) -> AttentionProblem:
        """A batch that holds this problem ``times`` times (arrays are shared, not copied).

        Examples
        --------
        >>> import attsvm
        >>> attsvm.random_problem(n=2, T=3, d=4).repeat(7).X.shape
        (7, 2, 3, 4)
        """
        if self.batch is not None:
            raise ValueError("only a single problem can be repeated; this is a batch")
        if times < 1:
            raise ValueError(f"times must be at least 1, got {times}")
        arrays = (self.X, self.Y, self.Z, self.mask)
        X, Y, Z, mask = (None if a is None else np.broadcast_to(a, (times, *a.shape)) for a in arrays)
        return AttentionProblem(X, Y, Z, self.head, mask)  # type: ignore[arg-type]

    # -- constructors -----------------------------------------------------------------------------

    @classmethod
    def cross_attention(
        cls, X: Any, Z: Any, Y: Any = None, head: Head | None = None, mask: Any = None
    ) -> AttentionProblem:
        """Queries given on their own, independent of the tokens."""
        return cls(X, Y, Z, head, mask)

    @classmethod
    def self_attention(
        cls, X: Any, Y: Any = None, head: Head | None = None, query: int = 0, mask: Any = None
    ) -> AttentionProblem:
        """One query per sequence, a chosen row of X (the first by default).

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import AttentionProblem
        >>> AttentionProblem.self_attention(np.eye(3)[None], query=2).Z
        array([[0., 0., 1.]])
        """
        tokens = real_array("X", X)
        if tokens.ndim not in (3, 4):
            raise ValueError(f"X must have shape (n, T, dx) or (batch, n, T, dx), got {tokens.shape}")
        if not 0 <= query < tokens.shape[-2]:
            raise ValueError(f"query must be a token index in [0, {tokens.shape[-2]}), got {query}")
        return cls(tokens, Y, tokens[..., query, :], head, mask)

    @classmethod
    def sequences(
        cls, X: Any, Y: Any = None, head: Head | None = None, causal: bool = False, mask: Any = None
    ) -> AttentionProblem:
        """Every token is a query (``Z = X``); with ``causal`` query k sees tokens 0..k only.

        Parameters
        ----------
        X : array_like, shape (n, T, d)
        Y : array_like, shape (n, T) or (n,), optional
        head : callable, optional
        causal : bool
        mask : array_like of bool, shape (n, T) or (n, T, T), optional
            Joined to the causal mask. Padding must not be a query that counts; give each padded query
            one allowed token (its own row) or drop it.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import AttentionProblem
        >>> AttentionProblem.sequences(np.eye(3)[None], causal=True).allowed[0].astype(int)
        array([[1, 0, 0],
               [1, 1, 0],
               [1, 1, 1]])
        """
        tokens = real_array("X", X)
        problem = cls(tokens, Y, tokens, head, mask)
        return problem.with_causal_mask() if causal else problem

    @classmethod
    def from_ragged(cls, tokens: Sequence[Any], Z: Any, Y: Any = None, head: Head | None = None) -> AttentionProblem:
        """Pad sequences of different lengths and mask the padding.

        Parameters
        ----------
        tokens : sequence of array_like, each of shape (T_i, dx)
        Z, Y, head
            As for the class.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import AttentionProblem
        >>> AttentionProblem.from_ragged([np.eye(3), np.eye(2, 3)], Z=np.eye(2)).mask.sum(axis=1)
        array([3, 2])
        """
        rows = [real_array(f"tokens[{i}]", x) for i, x in enumerate(tokens)]
        if not rows:
            raise ValueError("tokens must hold at least one sequence")
        for i, x in enumerate(rows):
            if x.ndim != 2 or x.shape[0] == 0 or x.shape[1] != rows[0].shape[-1]:
                raise ValueError(f"tokens[{i}] must have shape (T_i, {rows[0].shape[-1]}), got {x.shape}")
        lengths = np.array([len(x) for x in rows])
        X = np.zeros((len(rows), int(lengths.max()), rows[0].shape[1]), dtype=np.result_type(*rows))
        for i, x in enumerate(rows):
            X[i, : len(x)] = x
        return cls(X, Y, Z, head, np.arange(X.shape[1]) < lengths[:, None])

    def with_causal_mask(self) -> AttentionProblem:
        """The same problem where query k sees tokens 0..k only (needs K = T)."""
        if not self.multi_query or self.K != self.T:
            raise ValueError(
                f"a causal mask needs one query per token: Z must have shape (n, {self.T}, dz), got {self.Z.shape}"
            )
        past = np.tril(np.ones((self.T, self.T), dtype=bool))
        return replace(self, mask=self.allowed & past)


if TYPE_CHECKING:

    class ProblemBatch(AttentionProblem):
        """A batch of problems, for type checkers: one more leading axis than `AttentionProblem`."""

else:
    ProblemBatch = AttentionProblem


def _read_labels(labels: Any, sequences: tuple[int, ...], queries: tuple[int, ...]) -> npt.NDArray[np.float64]:
    if labels is None:
        return np.asarray(freeze(np.ones(queries)))
    Y = real_array("Y", labels).astype(np.float64, copy=False)
    if Y.shape not in (sequences, queries):
        shapes = " or ".join(str(s) for s in dict.fromkeys((sequences, queries)))
        raise ValueError(f"Y must have shape {shapes}, got {Y.shape}")
    wrong = np.argwhere((Y != 1) & (Y != -1))
    if len(wrong):
        index = tuple(int(i) for i in wrong[0])
        raise ValueError(f"Y must hold labels +1 or -1, but Y[{', '.join(map(str, index))}] is {Y[index]:g}")
    if Y.shape != queries:
        Y = np.broadcast_to(Y[..., None], queries)
    return np.asarray(freeze(Y))


def _read_mask(value: Any, sequences: tuple[int, ...], queries: tuple[int, ...], T: int) -> BoolArray:
    mask = bool_array("mask", value)
    shapes = dict.fromkeys(((*sequences, T), (*queries, T)))
    if mask.shape not in shapes:
        raise ValueError(f"mask must have shape {' or '.join(map(str, shapes))}, got {mask.shape}")
    empty = np.argwhere(~mask.any(axis=-1))
    if len(empty):
        raise ValueError(f"mask must leave at least one token to every query, but {empty[0].tolist()} has none")
    return mask
