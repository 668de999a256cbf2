"""Soft margins: rows may be violated, at a penalty.

minimize  r(W) + C sum_j xi_j        (hinge)      or      r(W) + C sum_j xi_j^2        (squared hinge)

with ``r(W) = ||W||_F^2 / 2`` for the Frobenius norm and ``r(W) = N(W)`` for every other norm N. A slack ``xi_j`` covers
one row, or all rows of one query: then it is the largest violation of a row of the query. On equality rows
both signs count. The dual maximizes ``rhs . lam - h*(lam) - r*(W(lam))`` over multipliers that are nonnegative on
inequality rows, where with the loads ``s_j = |lam_j|`` (row) or ``s_j = sum of |lam_k| over the query`` (query)

    hinge           ``s_j <= C`` and ``h* = 0``,
    squared hinge   ``h* = sum_j s_j^2 / (4 C)``,

and ``r*`` is ``||W(lam)||_F^2 / 2``, or the condition ``N*(W(lam)) <= 1``. As C grows the hard margin is approached;
with the hinge it is reached at a finite C, if it exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray, IntArray, Number, is_number

__all__ = ["EitherPenalty", "LossKind", "Penalty", "PenaltyBatch", "SlackKind", "read_margin", "read_penalty"]

SlackKind = Literal["query", "row"]
LossKind = Literal["hinge", "squared_hinge"]
_SLACKS: tuple[SlackKind, ...] = ("query", "row")
_LOSSES: tuple[LossKind, ...] = ("hinge", "squared_hinge")
_Kind = TypeVar("_Kind", bound=str)


@dataclass(frozen=True)
class _Slacks(Generic[Number]):
    """What slacks and multipliers of a penalty are, whether or not the problems of a batch share C."""

    C: Number
    slack: SlackKind = "query"
    loss: LossKind = "hinge"

    @property
    def _of_slacks(self) -> float | FloatArray:
        """C beside numbers per slack."""
        return self.C[:, None] if isinstance(self.C, np.ndarray) else self.C

    def slacks(self, violation: FloatArray, owner: IntArray, q: int) -> FloatArray:
        """Slack of each query (*batch, q) or row (*batch, m) from the violations of the rows, shape (*batch, m)."""
        if self.slack == "row":
            return violation
        out = np.zeros((*violation.shape[:-1], q))
        np.maximum.at(out.reshape(-1), _slots(violation, owner, q), violation.reshape(-1))
        return out

    def loads(self, lam: FloatArray, owner: IntArray, q: int) -> FloatArray:
        """``s_j``: the sums of the multipliers of each slack, shape (*batch, q) or (*batch, m)."""
        size = np.abs(lam)
        if self.slack == "row":
            return size
        slots = lam.size // lam.shape[-1] * q
        sums = np.bincount(_slots(lam, owner, q), weights=size.reshape(-1), minlength=slots)
        return np.asarray(sums.reshape((*lam.shape[:-1], q)), dtype=np.float64)

    def of_rows(self, numbers: FloatArray, owner: IntArray) -> FloatArray:
        """From a number per slack to one per row, shape (*batch, m)."""
        if self.slack == "row":
            return numbers
        if owner.ndim == 1:
            return np.asarray(numbers[..., owner])
        return np.take_along_axis(numbers, owner, axis=-1)

    def costs(self, slacks: FloatArray) -> FloatArray:
        """``C sum xi`` or ``C sum xi^2`` over the last axis, shape (*batch,)."""
        return np.asarray(self.C * (slacks.sum(axis=-1) if self.loss == "hinge" else np.vecdot(slacks, slacks)))

    def conjugates(self, loads: FloatArray) -> FloatArray:
        """``h*`` of multipliers with these loads, taken to be admissible; over the last axis, shape (*batch,)."""
        return np.asarray(np.vecdot(loads, loads) * (0.0 if self.loss == "hinge" else 0.25 / self.C))

    def admissible(self, lam: FloatArray, owner: IntArray, q: int) -> FloatArray:
        """Multipliers scaled down, slack by slack, to loads of at most C (hinge); as they are otherwise."""
        if self.loss != "hinge":
            return lam
        bound = self._of_slacks
        if self.slack == "row":
            return np.clip(lam, -bound, bound)
        loads = self.loads(lam, owner, q)
        share = np.where(loads > bound, bound / np.where(loads > 0, loads, 1.0), 1.0)
        return np.asarray(lam * self.of_rows(share, owner))


@dataclass(frozen=True)
class Penalty(_Slacks[float]):
    """What violated rows cost.

    Attributes
    ----------
    C : float
        Weight of the slacks, positive and finite.
    slack : {"query", "row"}
        One slack for all rows of a query, or one per row.
    loss : {"hinge", "squared_hinge"}

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import Penalty
    >>> owner, missed = np.array([0, 0, 1]), np.array([0.5, 2.0, 0.0])
    >>> Penalty(3.0).cost(Penalty(3.0).slacks(missed, owner, 2))
    6.0
    >>> Penalty(3.0, "row", "squared_hinge").cost(missed)
    12.75
    """

    def cost(self, slacks: FloatArray) -> float:
        """``C sum xi`` or ``C sum xi^2`` of the slacks of one problem."""
        return float(self.costs(slacks))

    def conjugate(self, loads: FloatArray) -> float:
        """``h*`` of multipliers of one problem with these loads, which are taken to be admissible."""
        return float(self.conjugates(loads))

    def of_problem(self, index: int) -> Penalty:
        """That of one problem of a batch."""
        return self

    def of_problems(self, index: npt.NDArray[np.integer | np.bool_]) -> Penalty:
        """That of some problems of a batch."""
        return self


@dataclass(frozen=True, eq=False)
class PenaltyBatch(_Slacks[FloatArray]):
    """A penalty of a batch whose problems differ in C.

    Attributes
    ----------
    C : ndarray, shape (B,)
    slack, loss : str
        As of `Penalty`.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.penalty import PenaltyBatch
    >>> both = PenaltyBatch(np.array([1.0, 3.0]), "row")
    >>> both.costs(np.array([[0.5, 2.0], [0.5, 2.0]])), both.of_problem(1)
    (array([2.5, 7.5]), Penalty(C=3.0, slack='row', loss='hinge'))
    """

    def of_problem(self, index: int) -> Penalty:
        """That of one problem."""
        return Penalty(self.C.item(index), self.slack, self.loss)

    def of_problems(self, index: npt.NDArray[np.integer | np.bool_]) -> PenaltyBatch:
        """That of some problems."""
        return PenaltyBatch(self.C[index], self.slack, self.loss)


EitherPenalty: TypeAlias = Penalty | PenaltyBatch


def _slots(per_row: FloatArray, owner: IntArray, q: int) -> IntArray:
    """The query of every row, counted over all problems of a batch, shape (B m,)."""
    if per_row.ndim == 1:
        return owner
    return np.asarray((owner + q * np.arange(len(per_row))[:, None]).reshape(-1))


def read_penalty(C: object, slack: str = "query", loss: str = "hinge") -> Penalty:
    """A penalty from arguments that were given by name.

    Examples
    --------
    >>> from attsvm.solvers.penalty import read_penalty
    >>> read_penalty(2)
    Penalty(C=2.0, slack='query', loss='hinge')
    """
    if not is_number(C, 0.0):
        raise ValueError(f"C must be None (hard margin) or a positive finite number, got {C!r}")
    return Penalty(float(C), _one_of("slack", slack, _SLACKS), _one_of("loss", loss, _LOSSES))


def read_margin(C: object, slack: str = "query", loss: str = "hinge") -> Penalty | None:
    """The penalty of a soft margin, None for a hard one, to which nothing but the default slack and loss goes.

    Examples
    --------
    >>> from attsvm.solvers.penalty import read_margin
    >>> read_margin(None), read_margin(2)
    (None, Penalty(C=2.0, slack='query', loss='hinge'))
    >>> read_margin(None, slack="row")
    Traceback (most recent call last):
    ...
    ValueError: slack='row' and loss='hinge' say how rows may be violated: they need a positive C, got C=None
    """
    if C is not None:
        return read_penalty(C, slack, loss)
    if (slack, loss) != (_SLACKS[0], _LOSSES[0]):
        raise ValueError(
            f"slack={slack!r} and loss={loss!r} say how rows may be violated: they need a positive C, got C=None"
        )
    return None


def _one_of(name: str, given: str, known: tuple[_Kind, ...]) -> _Kind:
    for kind in known:
        if kind == given:
            return kind
    raise ValueError(f"{name} must be one of {known}, got {given!r}")
