"""The margin problem: rank-one linear constraints on a matrix, one problem or a batch of them.

minimize ||W||  subject to  <a_k b_k^T, W> >= rhs_k  (inequality rows),
                            <a_k b_k^T, W>  = rhs_k  (equality rows).

A batch is a leading axis of the rows, the right-hand sides and the senses; problems of a batch that have fewer rows
are filled with *void* rows (zero, right-hand side 0), which constrain nothing and are dropped when a problem is taken.

Least distance to a given matrix: ``min ||W - W0||`` on the same rows is, in the change ``D = W - W0``, the margin
problem with the right-hand sides ``rhs_k - <a_k b_k^T, W0>``. These are computed, so each carries a bound on its
rounding, which certificates take from every claim. Exact arithmetic uses what was asked and ``W0`` instead and knows no
such error, and a proof of infeasibility never looks at W0: where the rows cancel, so do their values at W0.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import Axis, Batch, BoolArray, FloatArray, IntArray, One, per_row, to_numpy, voided
from attsvm.solvers.certify.rounding import UNIT_ROUNDOFF, gamma, norm_bounds, settle
from attsvm.solvers.penalty import EitherPenalty, Penalty, PenaltyBatch, read_margin
from attsvm.solvers.rows.pairs import PairRows
from attsvm.solvers.rows.protocol import Rows

if TYPE_CHECKING:
    from typing_extensions import TypeIs

__all__ = [
    "EitherProblem",
    "MarginProblem",
    "MarginProblemBatch",
    "Prior",
    "is_batch",
]


class Prior(NamedTuple):
    """Where the right-hand sides of a problem come from; leading axes for a batch.

    Attributes
    ----------
    W : ndarray, shape (*batch, dx, dz)
        The matrix that W is to stay close to.
    asked : ndarray, shape (*batch, m)
        Right-hand sides for the whole W.
    error : ndarray, shape (*batch, m)
        Bound on the rounding of the right-hand sides for the change.
    """

    W: FloatArray
    asked: FloatArray
    error: FloatArray

    def of_rows(self, index: npt.NDArray[np.integer | np.bool_]) -> Prior:
        """Of some rows."""
        return Prior(self.W, self.asked[..., index], self.error[..., index])

    def of_problems(self, index: int | npt.NDArray[np.integer | np.bool_]) -> Prior:
        """Of one problem of a batch, or of some."""
        return Prior(self.W[index], self.asked[index], self.error[index])

    def survives(self, power: int) -> bool:
        """Whether W divided by ``2^power`` is exact."""
        return bool(np.array_equal(np.ldexp(np.ldexp(self.W, -power), power), self.W))


class MarginProblem(Generic[Axis]):
    """Rank-one rows ``<a_k b_k^T, W>`` with a sense and a right-hand side.

    Parameters
    ----------
    a : array_like, shape (m, dx) or (B, m, dx)
        Left factors. ``float32`` is kept as given (no copy); everything else becomes ``float64``.
    queries : array_like, shape (q, dz) or (B, q, dz)
        Distinct right factors.
    owner : array_like of int, shape (m,) or (B, m)
        Row ``k`` has right factor ``queries[owner[k]]``.
    rhs : array_like, shape (m,) or (B, m), optional
        Right-hand sides; 1 for every row by default.
    equality : array_like of bool, shape (m,) or (B, m), optional
        True where the row is an equality; every row is ``>=`` by default.
    valid : array_like of bool, shape (m,) or (B, m), optional
        False marks rows that do not exist (ragged batches): they become void whatever they hold.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem
    >>> one = MarginProblem(a=np.eye(2), queries=[[2.0, 0.0]], owner=[0, 0])
    >>> one.margins(np.ones((2, 2)))
    array([2., 2.])
    >>> batch = MarginProblem(np.ones((3, 2, 4)), np.ones((3, 1, 5)), owner=[0, 0])
    >>> len(batch), batch.shape, batch[1].m
    (3, (4, 5), 2)
    """

    rows: Rows
    batch: tuple[int, ...]
    """``()`` for one problem, ``(B,)`` for a batch."""
    m: int
    """Number of rows, void ones included."""
    q: int
    """Number of queries."""
    shape: tuple[int, int]
    """Shape ``(dx, dz)`` of W."""
    rhs: FloatArray
    equality: BoolArray
    valid: BoolArray | None
    prior: Prior | None = None
    """Set by `around`: the problem is about the change of a given matrix."""
    is_plain: bool
    """Every row asks for at least 1 and exists: the usual case, for which much is simpler."""
    penalty: EitherPenalty | None = None
    """What it costs to miss rows; None for a hard margin, where none may be missed."""

    def __init__(
        self,
        a: npt.ArrayLike,
        queries: npt.ArrayLike,
        owner: npt.ArrayLike,
        rhs: npt.ArrayLike | None = None,
        equality: npt.ArrayLike | None = None,
        valid: npt.ArrayLike | None = None,
    ) -> None:
        if valid is not None:
            array = to_numpy(a)
            a, owner, rhs, equality, valid = voided(array, to_numpy(owner), rhs, equality, valid)
        self._set(PairRows(a, queries, owner), rhs, equality, valid)

    @classmethod
    def from_rows(
        cls,
        rows: Rows,
        rhs: npt.ArrayLike | None = None,
        equality: npt.ArrayLike | None = None,
        valid: npt.ArrayLike | None = None,
    ) -> MarginProblem[Axis]:
        """A problem on any rows that follow the `Rows` protocol; rows that are not ``valid`` must be void already.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm.solvers import MarginProblem, PairRows
        >>> MarginProblem.from_rows(PairRows(np.eye(2), np.eye(2), [0, 1]), rhs=[1.0, 2.0]).m
        2
        """
        problem = cls.__new__(cls)
        problem._set(rows, rhs, equality, valid)
        return problem

    def around(self, W0: npt.ArrayLike) -> MarginProblem[Axis]:
        """The same rows for the change ``D = W - W0``: its least norm is the least distance of a feasible W from W0.

        Parameters
        ----------
        W0 : array_like, shape (*batch, dx, dz), or (dx, dz) for all problems of a batch

        Examples
        --------
        >>> from attsvm.solvers import MarginProblem, solve
        >>> rows = MarginProblem([[1.0], [2.0]], [[1.0]], [0, 0])
        >>> solve(rows.around([[0.75]])).W, solve(rows.around([[1.5]])).W
        (array([[0.25]]), array([[0.]]))
        """
        sides, prior = shifted_sides(self, W0)
        same: MarginProblem[Axis] = MarginProblem.from_rows(self.rows, sides, self.equality, self.valid)
        return same._with(prior)._with_penalty(self.penalty)

    def _with(self, prior: Prior | None) -> MarginProblem[Axis]:
        self.prior = prior
        return self

    def on_rows(self, scaled: Rows, power: int = 0) -> MarginProblem[Axis]:
        """The problem with every row replaced by one that is ``2^power`` times as large, for W ``2^power`` smaller."""
        prior = None if self.prior is None else self.prior._replace(W=np.ldexp(self.prior.W, -power))
        same: MarginProblem[Axis] = MarginProblem.from_rows(scaled, self.rhs, self.equality, self.valid)
        return same._with(prior)._with_penalty(self.penalty)

    @property
    def asked(self) -> FloatArray:
        """Right-hand sides for the whole W, shape (*batch, m): `rhs` unless the problem is about a change."""
        return self.rhs if self.prior is None else self.prior.asked

    @property
    def allowance(self) -> FloatArray:
        """What a violation is relative to: ``max(1, |asked|)``, shape (*batch, m)."""
        return np.maximum(1.0, np.abs(self.asked))

    def _set(
        self,
        rows: Rows,
        rhs: npt.ArrayLike | None,
        equality: npt.ArrayLike | None,
        valid: npt.ArrayLike | None,
    ) -> None:
        self.batch, self.m, self.q, self.shape = rows.batch, rows.m, rows.q, rows.shape
        shape = (*self.batch, self.m)
        if rhs is None:
            sides = np.empty(shape)
            sides.fill(1.0)  # half the time of np.ones
        else:
            given = per_row("rhs", rhs, shape, "finite numbers")
            try:
                sides = given.astype(np.float64)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"rhs must be {shape[-1]} finite numbers, one per row of a, got dtype {given.dtype}"
                ) from error
            if not np.logical_and.reduce(np.isfinite(sides), axis=None):
                raise ValueError(f"rhs must be {shape[-1]} finite numbers, one per row of a, got NaN or infinity")
        if equality is None:
            equal = np.zeros(shape, dtype=bool)
        else:
            equal = per_row("equality", equality, shape, "booleans")
            if equal.dtype != bool:
                raise ValueError(f"equality must be {shape[-1]} booleans, one per row of a, got dtype {equal.dtype}")
        self.rows, self.rhs, self.equality = rows, sides, equal
        self.is_plain = rhs is None and equality is None and valid is None
        self.valid = None if valid is None else np.asarray(valid, dtype=bool)

    def soft(self, C: float | None, slack: str = "query", loss: str = "hinge") -> MarginProblem[Axis]:
        """The same rows, which may be violated at the penalty C (see `attsvm.solvers.penalty`); None: no row may be.

        Parameters
        ----------
        C : float or None
        slack : {"query", "row"}
            One slack per query, or one per row; only with C.
        loss : {"hinge", "squared_hinge"}
            Only with C.

        Examples
        --------
        >>> from attsvm.solvers import MarginProblem, solve
        >>> rows = MarginProblem([[1.0], [-1.0]], [[1.0]], [0, 0], rhs=[3.0, 1.0])
        >>> print(solve(rows).status, solve(rows.soft(0.5, slack="row")).status)
        infeasible optimal
        """
        return self._with_penalty(read_margin(C, slack, loss))

    def _with_penalty(self, penalty: EitherPenalty | None) -> MarginProblem[Axis]:
        if penalty is self.penalty:
            return self
        problem = copy(self)
        problem.penalty = penalty
        return problem

    @property
    def single_penalty(self: MarginProblem[One]) -> Penalty | None:
        """`penalty` of one problem, where C is a number."""
        if isinstance(self.penalty, PenaltyBatch):
            raise TypeError("the problems of a batch have penalties of their own; index the batch first")
        return self.penalty

    @staticmethod
    def stack(problems: Sequence[MarginProblem]) -> MarginProblem[Batch]:
        """Problems of equal ``shape`` as one batch; fewer rows or queries are filled with void ones.

        Examples
        --------
        >>> from attsvm.solvers import MarginProblem
        >>> one, two = MarginProblem([[1.0]], [[1.0]], [0]), MarginProblem([[1.0], [2.0]], [[1.0]], [0, 0])
        >>> batch = MarginProblem.stack([one, two])
        >>> batch.valid.tolist(), batch[0].m
        ([[True, False], [True, True]], 1)
        """
        ones: list[MarginProblem[One]] = list(problems)
        if not ones:
            raise ValueError("problems must hold at least one MarginProblem, got an empty sequence")
        shape = ones[0].shape
        for i, one in enumerate(ones):
            if one.shape != shape or one.batch:
                raise ValueError(
                    f"problems must be single problems with one shape of W: problem 0 has {shape}, "
                    f"problem {i} {one.batch + one.shape}"
                )
        parts = [one.pairs() for one in ones]
        size, m, q = len(ones), max(p.m for p in parts), max(p.q for p in parts)
        a = np.zeros((size, m, shape[0]), dtype=np.result_type(*(p.a.dtype for p in parts)))
        queries = np.zeros((size, q, shape[1]), dtype=np.result_type(*(p.queries.dtype for p in parts)))
        owner, rhs = np.zeros((size, m), dtype=np.int64), np.zeros((size, m))
        valid, equality = np.zeros((size, m), dtype=bool), np.zeros((size, m), dtype=bool)
        for i, (part, one) in enumerate(zip(parts, ones, strict=True)):
            a[i, : part.m], queries[i, : part.q], owner[i, : part.m] = part.a, part.queries, part.owner
            rhs[i, : part.m], equality[i, : part.m], valid[i, : part.m] = one.rhs, one.equality, True
        whole: MarginProblem[Batch] = MarginProblem(a, queries, owner, rhs, equality, valid)
        return whole._with(stacked_priors([one.prior for one in ones], rhs, shape))

    @property
    def owner(self) -> IntArray:
        """Query of each row."""
        return self.rows.owner

    @property
    def row_norms(self) -> FloatArray:
        """Frobenius norms of the rows, shape (*batch, m)."""
        return self.rows.row_norms

    def margins(self, W: npt.ArrayLike) -> FloatArray:
        """Values of all rows at W, shape (*batch, m)."""
        return self.rows.margins(W)

    def adjoint(self, multipliers: npt.ArrayLike) -> FloatArray:
        """``sum_k lam_k a_k b_k^T``, shape (*batch, dx, dz)."""
        return self.rows.adjoint(multipliers)

    def missed(self, slack: FloatArray, error: FloatArray | float = 0.0) -> FloatArray:
        """Amount by which each row is missed, given ``margins - rhs``: both signs count on equality rows.

        With a bound on the errors of these numbers: the amount by which it may be missed.
        """
        return np.asarray(np.where(self.equality, np.abs(slack) + error, np.maximum(error - slack, 0.0)))

    def clipped(self, multipliers: FloatArray) -> FloatArray:
        """Multipliers without the negative parts of inequality rows, shape (*batch, m)."""
        return np.asarray(np.where(self.equality, multipliers, np.maximum(multipliers, 0.0)))

    def gather(self, index: npt.ArrayLike) -> MarginProblem[Axis]:
        """The problem made of the given rows (indices or boolean mask over m), with the same queries."""
        rows = np.asarray(index)
        valid = None if self.valid is None else self.valid[..., rows]
        pairs, sides, equality = self.rows.gather(rows), self.rhs[..., rows], self.equality[..., rows]
        part: MarginProblem[Axis] = MarginProblem.from_rows(pairs, sides, equality, valid)
        return part._with(None if self.prior is None else self.prior.of_rows(rows))._with_penalty(self.penalty)

    def pairs(self) -> PairRows:
        """The rows as explicit pairs. For small problems and references."""
        return self.rows if isinstance(self.rows, PairRows) else self.rows.gather(np.arange(self.m))

    def features(self) -> FloatArray:
        """Dense rows, shape (*batch, m, dx*dz). For small problems and references."""
        return self.pairs().features()

    def gram(self) -> FloatArray:
        """Gram matrix of the rows, shape (*batch, m, m). For small problems and references."""
        return self.pairs().gram

    def __len__(self) -> int:
        if not self.batch:
            raise TypeError("one margin problem has no length; a batch has")
        return self.batch[0]

    def __getitem__(self, index: int) -> MarginProblem[One]:
        if not self.batch:
            raise TypeError("one margin problem cannot be indexed; a batch can")
        if not -len(self) <= index < len(self):
            raise IndexError(f"problem {index} is out of range for a batch of {len(self)}")
        rows, rhs, equality = self.rows[index], self.rhs[index], self.equality[index]
        penalty = None if self.penalty is None else self.penalty.of_problem(index)
        part: MarginProblem[One]
        if self.is_plain:
            part = MarginProblem.from_rows(rows)
            return part._with_penalty(penalty)
        prior = None if self.prior is None else self.prior.of_problems(index)
        if self.valid is None or self.valid[index].all():
            part = MarginProblem.from_rows(rows, rhs, equality)
            return part._with(prior)._with_penalty(penalty)
        keep = np.flatnonzero(self.valid[index])
        part = MarginProblem.from_rows(rows.gather(keep), rhs[keep], equality[keep])
        return part._with(None if prior is None else prior.of_rows(keep))._with_penalty(penalty)

    def take(self, problems: npt.ArrayLike) -> MarginProblem[Batch]:
        """Some problems of a batch, as a batch."""
        index = np.asarray(problems)
        valid = None if self.valid is None else self.valid[index]
        rows, sides, equality = self.rows.take(index), self.rhs[index], self.equality[index]
        part: MarginProblem[Batch] = MarginProblem.from_rows(rows, sides, equality, valid)
        penalty = None if self.penalty is None else self.penalty.of_problems(index)
        return part._with(None if self.prior is None else self.prior.of_problems(index))._with_penalty(penalty)

    def __repr__(self) -> str:
        many = f"{len(self)} problems, " if self.batch else ""
        return f"MarginProblem({many}{self.m} rows, {self.q} queries, W {self.shape[0]} x {self.shape[1]})"


MarginProblemBatch: TypeAlias = MarginProblem[Batch]


EitherProblem: TypeAlias = MarginProblem[One] | MarginProblem[Batch]


def is_batch(problem: EitherProblem) -> TypeIs[MarginProblemBatch]:
    """Whether a problem has a batch axis; type checkers then know as well.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.margin_problem import is_batch
    >>> one = MarginProblem([[1.0]], [[1.0]], [0])
    >>> is_batch(one), is_batch(MarginProblem.stack([one, one]))
    (False, True)
    """
    return bool(problem.batch)


def stacked_priors(priors: list[Prior | None], rhs: FloatArray, shape: tuple[int, int]) -> Prior | None:
    """Of problems that become a batch with right-hand sides ``rhs`` (B, m): 0 for those without; None without any."""
    if all(prior is None for prior in priors):
        return None
    W, asked, error = np.zeros((len(rhs), *shape)), rhs.copy(), np.zeros(rhs.shape)
    for i, prior in enumerate(priors):
        if prior is not None:
            m = prior.asked.shape[-1]
            W[i], asked[i, :m], error[i, :m] = prior
    return Prior(W, asked, error)


def shifted_sides(problem: EitherProblem, W0: npt.ArrayLike) -> tuple[FloatArray, Prior]:
    """Right-hand sides for the change ``W - W0``, shape (*batch, m), and where they come from.

    A right-hand side that rounding cannot tell from 0 is 0: what W0 satisfies to the last digit asks for no change.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.margin_problem import shifted_sides
    >>> sides, prior = shifted_sides(MarginProblem([[1.0], [2.0]], [[1.0]], [0, 0]), [[0.75]])
    >>> sides.tolist(), bool((prior.error < 1e-14).all())
    ([0.25, -0.5], True)
    """
    shape = (*problem.batch, *problem.shape)
    matrix = np.asarray(W0, dtype=np.float64)
    if matrix.shape not in (shape, problem.shape):
        raise ValueError(f"prior must have shape {shape}, got {matrix.shape}")
    if not np.isfinite(matrix).all():
        raise ValueError("prior must be finite")
    if problem.prior is not None:
        raise ValueError("the problem has a prior already")
    matrix = np.array(np.broadcast_to(matrix, shape))
    matrix.flags.writeable = False
    with np.errstate(over="ignore", invalid="ignore"):  # refused below
        sides = problem.rhs - problem.margins(matrix)
    size = norm_bounds(matrix, 2)[1][..., None]
    # `rounding.margin_error` in the norms of whole rows, which are computed themselves, and the subtraction.
    share = gamma(2 * sum(problem.shape) + 8)
    error = settle(share * (problem.rows.error_norms * size) + 2.0 * UNIT_ROUNDOFF * np.abs(sides))
    if problem.valid is not None:
        error = np.where(problem.valid, error, 0.0)
    if not (np.isfinite(sides).all() and np.isfinite(error).all()):
        raise ValueError(
            "prior gives rows values beyond the range of float64: divide the tokens or the queries by a power of two"
        )
    near = np.abs(sides) <= error
    error = np.where(near, error + np.abs(sides), error)
    return np.where(near, 0.0, sides), Prior(matrix, problem.rhs, error)
