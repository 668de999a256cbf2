"""An attention problem, or a batch of them: tokens, queries, labels, head and mask, checked once and frozen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeGuard, TypeVar

import numpy as np
import numpy.typing as npt

from attsvm.heads import Head, as_head
from attsvm.losses import Loss, LossConstants, get_loss
from attsvm.records import html_table
from attsvm.selection import Selection
from attsvm.solvers.arrays import BoolArray, lazy, require_count, require_number
from attsvm.user_input import AnyFloatArray, bool_array, freeze, own, real_array, require_finite


def check_shapes(X: AnyFloatArray, Z: AnyFloatArray) -> int:
    """Number of batch axes, 0 or 1, of tokens and queries that go together."""
    if X.ndim not in (3, 4):
        raise ValueError(f"X must have shape (n, T, dx) or (batch, n, T, dx), got {X.shape}")
    lead = X.ndim - 3
    if 0 in X.shape:
        raise ValueError(f"X must hold at least one sequence and one dimension, got shape {X.shape}")
    if X.shape[-2] < 2:
        raise ValueError("X must hold at least T = 2 tokens per sequence, got T = 1: there is nothing to select from")
    sequences = X.shape[: lead + 1]
    shape = f"{(*sequences, 'dz')} or {(*sequences, 'K', 'dz')}".replace("'", "")
    if Z.ndim not in (lead + 2, lead + 3) or Z.shape[: lead + 1] != sequences or 0 in Z.shape:
        raise ValueError(f"Z must have shape {shape} to go with X of shape {X.shape}, got {Z.shape}")
    return lead


def read_labels(labels: Any, sequences: tuple[int, ...], queries: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Labels +1 or -1 per query, given per query or per sequence; all +1 when omitted."""
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
    return own(Y)


def read_mask(value: Any, sequences: tuple[int, ...], queries: tuple[int, ...], T: int) -> BoolArray:
    """Where attention is allowed, per query or per sequence; every query keeps a token."""
    mask = bool_array("mask", value)
    shapes = dict.fromkeys(((*sequences, T), (*queries, T)))
    if mask.shape not in shapes:
        raise ValueError(f"mask must have shape {' or '.join(map(str, shapes))}, got {mask.shape}")
    empty = np.argwhere(~mask.any(axis=-1))
    if len(empty):
        raise ValueError(f"mask must leave at least one token to every query, but {empty[0].tolist()} has none")
    return mask


def pad(tokens: Sequence[npt.ArrayLike]) -> tuple[AnyFloatArray, BoolArray]:
    """Sequences of different lengths in one array (n, T, dx), and where it holds tokens (n, T)."""
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
    return X, np.arange(X.shape[1]) < lengths[:, None]


@dataclass(frozen=True, eq=False, init=False, repr=False)
class ProblemData:
    """Tokens, labels, queries, head and mask of one problem or of a batch; see `attsvm.AttentionProblem`."""

    X: AnyFloatArray
    Y: npt.NDArray[np.float64]
    Z: AnyFloatArray
    head: Head | None
    mask: BoolArray | None
    _lead: int = field(init=False, repr=False)

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

    def check_head(self) -> None:
        """Raise unless the head goes with the tokens."""
        if self.head is None:
            return
        if self.head.dim is not None and self.head.dim != self.dx:
            raise ValueError(f"head expects tokens of dimension {self.head.dim}, but X has dx = {self.dx}")
        if self.head.batch is not None and self.head.batch != self.batch:
            raise ValueError(f"head holds a batch of {self.head.batch}, but X has batch {self.batch}")

    def _sizes(self) -> dict[str, int]:
        sizes = {"n": self.n, "T": self.T, "dx": self.dx, "dz": self.dz}
        sizes |= {"K": self.K} if self.multi_query else {}
        return sizes if self.batch is None else {"batch": self.batch, **sizes}

    def __repr__(self) -> str:
        parts = [f"{name}={size}" for name, size in self._sizes().items()]
        parts.append("no head" if self.head is None else self.head.name)
        parts += ["masked"] if self.mask is not None else []
        parts += ["float32"] if self.X.dtype == np.float32 else []
        return f"AttentionProblem({', '.join(parts)})"

    def _repr_html_(self) -> str:
        labels = f"{int((self.Y > 0).sum())} positive, {int((self.Y < 0).sum())} negative"
        hidden = "none" if self.mask is None else f"{1 - float(self.allowed.mean()):.1%} of the pairs"
        title = "Attention problem" if self.batch is None else "Batch of attention problems"
        head = "none" if self.head is None else self.head.name
        return html_table(title, {**self._sizes(), "head": head, "labels": labels, "masked": hidden})


if TYPE_CHECKING:
    from attsvm.solution import Solution, SolutionBatch

    Solved_co = TypeVar("Solved_co", covariant=True)


@dataclass(frozen=True, eq=False, init=False, repr=False)
class AttentionProblem(ProblemData):
    """n sequences of T tokens, one or K queries per sequence, a label per query and a head.

    A batch of problems has one more leading axis on X, Y, Z and mask (and on the head's parameters if they differ).
    Arrays are copied, unless they are read-only already: changing what was passed in does not change the problem.

    Parameters
    ----------
    X : array_like, shape (n, T, dx)
        Tokens. float32 stays float32; every other real dtype becomes float64.
    Y : array_like, shape (n,) or (n, K), optional
        Labels, +1 or -1; all +1 when omitted.
    Z : array_like, shape (n, dz) or (n, K, dz)
        Queries.
    head : Head or callable, optional
        Maps vectors ``(..., dx)`` to numbers ``(...)``: `LinearHead`, `ReluHead`, `ConcaveHead`, a `Head` of your own
        or any callable. Needed for scores.
    mask : array_like of bool, shape (n, T) or (n, K, T), optional
        True where attention is allowed. Tokens that no query may see are padding: their entries are
        ignored and stored as 0.

    Examples
    --------
    >>> import numpy as np
    >>> import attsvm
    >>> X = np.array([[[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]])
    >>> problem = attsvm.AttentionProblem(X, Z=[[1.0, 0.0]], head=attsvm.LinearHead([0.0, 1.0]))
    >>> problem
    AttentionProblem(n=1, T=3, dx=2, dz=2, LinearHead)
    >>> problem.scores()
    array([[0., 1., 0.]])
    >>> problem.optimal_tokens().indices
    array([1])
    """

    def __init__(
        self,
        X: npt.ArrayLike,
        Y: npt.ArrayLike | None = None,
        Z: npt.ArrayLike | None = None,
        head: Head | Callable[[Any], Any] | None = None,
        mask: npt.ArrayLike | None = None,
    ) -> None:
        if Z is None:
            raise TypeError(
                "Z is missing: give the queries, shape (n, dz) or (n, K, dz), or use AttentionProblem.self_attention"
            )
        tokens, queries = real_array("X", X), real_array("Z", Z)
        lead = check_shapes(tokens, queries)
        sequences, per_query = tokens.shape[: lead + 1], queries.shape[:-1]
        seen: BoolArray | None = None
        allowed: BoolArray | None = None
        if mask is not None:
            allowed = read_mask(mask, sequences, per_query, tokens.shape[-2])
            seen = np.asarray(allowed if allowed.ndim == lead + 2 else allowed.any(axis=-2))[..., None]
        require_finite("X", tokens, where=None if seen is None else np.broadcast_to(seen, tokens.shape))
        require_finite("Z", queries)
        if seen is not None and not seen.all():
            tokens = np.where(seen, tokens, tokens.dtype.type(0))
            tokens.flags.writeable = False  # nobody else has it
        values = {
            "X": own(tokens),
            "Y": read_labels(Y, sequences, per_query),
            "Z": own(queries),
            "head": as_head(head),
            "mask": None if allowed is None else own(allowed),
            "_lead": lead,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self.check_head()

    def scores(self) -> npt.NDArray[np.float64]:
        """Scores ``gamma_it = Y_i h(x_it)`` (Definition 1), shape ``query_shape + (T,)``; -inf where masked."""
        return self._scores

    @lazy
    def _scores(self) -> npt.NDArray[np.float64]:
        if self.head is None:
            raise ValueError("scores need a prediction head: pass head=attsvm.LinearHead(v) or any callable")
        values = self.head(self.X).astype(np.float64, copy=False)
        if values.shape != self.X.shape[:-1]:
            raise ValueError(
                f"head must map tokens of shape {self.X.shape} to numbers of shape {self.X.shape[:-1]}, "
                f"got {values.shape}"
            )
        if self.multi_query:
            values = values[..., None, :]
        scores = self.Y[..., None] * values
        finite = np.isfinite(scores)
        if not np.logical_and.reduce(finite, axis=None):
            bad = ~finite if self.mask is None else ~finite & self.allowed
            if bad.any():
                place = tuple(int(i) for i in np.argwhere(bad)[0])
                raise ValueError(f"head returned a value that is not finite at {place}")
        if self.mask is not None:
            scores = np.where(self.allowed, scores, -np.inf)
        scores.setflags(write=False)
        return scores

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
        require_number("tolerance", tolerance, "a number >= 0", 0.0, ends="[]")
        return Selection.of_scores(self.scores(), tolerance) if tolerance else self._optimal

    @lazy
    def _optimal(self) -> Selection:
        return Selection.of_scores(self.scores(), 0.0)

    def loss_constants(self, loss: str | Loss = "logistic") -> LossConstants:
        """M0 and M1 of Assumption A over the range of this problem's scores (linear heads)."""
        scores = self.scores()[self.allowed]
        return get_loss(loss).constants(float(scores.min()), float(scores.max()))

    if TYPE_CHECKING:

        def _solved_as(self) -> Solution: ...

    # -- batches ----------------------------------------------------------------------------------

    def __getitem__(self, index: int) -> AttentionProblem:
        if self.batch is None:
            raise TypeError("only a batch of problems can be indexed; this is a single problem")
        if not -self.batch <= index < self.batch:
            raise IndexError(f"problem {index} is out of range for a batch of {self.batch}")
        return AttentionProblem(
            self.X[index],
            self.Y[index],
            self.Z[index],
            None if self.head is None else self.head[index],
            None if self.mask is None else self.mask[index],
        )

    def __iter__(self) -> Iterator[AttentionProblem]:
        if self.batch is None:
            raise TypeError("only a batch of problems can be iterated over; this is a single problem")
        return (self[b] for b in range(self.batch))

    def repeat(self, times: int) -> ProblemBatch:
        """A batch that holds this problem ``times`` times (arrays are shared, not copied).

        Examples
        --------
        >>> import attsvm
        >>> attsvm.random_problem(n=2, T=3, d=4).repeat(7).X.shape
        (7, 2, 3, 4)
        """
        if self.batch is not None:
            raise ValueError("only a single problem can be repeated; this is a batch")
        require_count("times", times)

        def repeated(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return np.broadcast_to(array, (times, *array.shape))

        mask = None if self.mask is None else repeated(self.mask)
        return ProblemBatch(repeated(self.X), repeated(self.Y), repeated(self.Z), self.head, mask)

    # -- constructors -----------------------------------------------------------------------------

    @classmethod
    def cross_attention(
        cls,
        X: npt.ArrayLike,
        Z: npt.ArrayLike,
        Y: npt.ArrayLike | None = None,
        head: Head | Callable[[Any], Any] | None = None,
        mask: npt.ArrayLike | None = None,
    ) -> AttentionProblem:
        """Queries given on their own, independent of the tokens."""
        return cls(X, Y, Z, head, mask)

    @classmethod
    def self_attention(
        cls,
        X: npt.ArrayLike,
        Y: npt.ArrayLike | None = None,
        head: Head | Callable[[Any], Any] | None = None,
        query: int = 0,
        mask: npt.ArrayLike | None = None,
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
        cls,
        X: npt.ArrayLike,
        Y: npt.ArrayLike | None = None,
        head: Head | Callable[[Any], Any] | None = None,
        causal: bool = False,
        mask: npt.ArrayLike | None = None,
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
    def from_ragged(
        cls,
        tokens: Sequence[npt.ArrayLike],
        Z: npt.ArrayLike,
        Y: npt.ArrayLike | None = None,
        head: Head | Callable[[Any], Any] | None = None,
    ) -> AttentionProblem:
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
        X, mask = pad(tokens)
        return cls(X, Y, Z, head, mask)

    def with_causal_mask(self) -> Self:
        """The same problem where query k sees tokens 0..k only (needs K = T)."""
        if not self.multi_query or self.K != self.T:
            raise ValueError(
                f"a causal mask needs one query per token: Z must have shape (n, {self.T}, dz), got {self.Z.shape}"
            )
        past = np.tril(np.ones((self.T, self.T), dtype=bool))
        return replace(self, mask=self.allowed & past)


if TYPE_CHECKING:

    class Solvable(Protocol[Solved_co]):
        """What the SVM functions take, for type checkers: one problem is solved as one, a batch as a batch."""

        def _solved_as(self) -> Solved_co: ...

        def with_causal_mask(self) -> Self:
            """The same with causal attention."""
            ...

    class ProblemBatch(AttentionProblem):
        """A batch of problems, for type checkers: one more leading axis than `AttentionProblem`."""

        def _solved_as(self) -> SolutionBatch: ...  # type: ignore[override]  # what is done to a batch gives a batch

else:
    ProblemBatch = AttentionProblem


def is_batch_of_problems(problem: AttentionProblem) -> TypeGuard[ProblemBatch]:
    """Whether a problem is a batch of them, for type checkers too.

    Examples
    --------
    >>> import attsvm
    >>> is_batch_of_problems(attsvm.random_problem(n=2, T=3, d=4, batch=5))
    True
    """
    return problem.batch is not None


def require_problem(value: object, name: str = "problem") -> AttentionProblem:
    """The value itself if it is a problem; else a TypeError that says what was given.

    Examples
    --------
    >>> require_problem([1.0])
    Traceback (most recent call last):
        ...
    TypeError: problem must be an AttentionProblem, got list
    """
    if not isinstance(value, AttentionProblem):
        raise TypeError(f"{name} must be an AttentionProblem, got {type(value).__name__}")
    return value


def require_single(value: object, what: str) -> AttentionProblem:
    """The value itself if it is one problem, not a batch; ``what`` begins the message: "edit takes one problem".

    Examples
    --------
    >>> import attsvm
    >>> require_single(attsvm.random_problem(2, 3, 4, batch=5), "edit takes one problem")
    Traceback (most recent call last):
        ...
    ValueError: edit takes one problem; index the batch first, e.g. problem[0]
    """
    given = require_problem(value)
    if given.batch is not None:
        raise ValueError(f"{what}; index the batch first, e.g. problem[0]")
    return given
