"""An attention problem: tokens, queries, labels, head and mask, checked once and frozen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from attsvm._arrays import BoolArray, own, real_array, require_finite
from attsvm._problem_data import ProblemData
from attsvm._problem_input import check_shapes, pad, read_labels, read_mask
from attsvm.heads import Head, as_head
from attsvm.losses import Loss, LossConstants, get_loss
from attsvm.selection import Selection
from attsvm.solvers.arrays import lazy

if TYPE_CHECKING:
    from attsvm.solution import Solution, SolutionBatch

    Solved_co = TypeVar("Solved_co", covariant=True)

__all__ = ["AttentionProblem", "ProblemBatch", "require_problem"]


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
        if not tolerance >= 0:
            raise ValueError(f"tolerance must be >= 0, got {tolerance}")
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
        if times < 1:
            raise ValueError(f"times must be at least 1, got {times}")

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

    def with_causal_mask(self) -> AttentionProblem:
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

    class ProblemBatch(AttentionProblem):
        """A batch of problems, for type checkers: one more leading axis than `AttentionProblem`."""

        def _solved_as(self) -> SolutionBatch: ...  # type: ignore[override]  # what is done to a batch gives a batch

else:
    ProblemBatch = AttentionProblem


def require_problem(value: object, name: str = "problem") -> AttentionProblem:
    """The value itself if it is a problem; else a TypeError that says what was given.

    Examples
    --------
    >>> from attsvm.problem import require_problem
    >>> require_problem([1.0])
    Traceback (most recent call last):
        ...
    TypeError: problem must be an AttentionProblem, got list
    """
    if not isinstance(value, AttentionProblem):
        raise TypeError(f"{name} must be an AttentionProblem, got {type(value).__name__}")
    return value
