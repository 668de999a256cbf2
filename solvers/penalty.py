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
from typing import Any, Literal, get_args

import numpy as np

from attsvm.solvers.arrays import FloatArray, IntArray

__all__ = ["LossKind", "Penalty", "PenaltyBatch", "SlackKind", "read_penalty"]

SlackKind = Literal["query", "row"]
LossKind = Literal["hinge", "squared_hinge"]


@dataclass(frozen=True)
class Penalty:
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

    C: float
    slack: SlackKind = "query"
    loss: LossKind = "hinge"

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

    def cost(self, slacks: FloatArray) -> Any:
        """``C sum xi`` or ``C sum xi^2`` over the last axis; a Python number for one problem."""
        total = self.C * (slacks.sum(axis=-1) if self.loss == "hinge" else np.vecdot(slacks, slacks))
        return float(total) if slacks.ndim == 1 else total

    def conjugate(self, loads: FloatArray) -> Any:
        """``h*`` of multipliers with these loads, which are taken to be admissible; over the last axis."""
        value = np.vecdot(loads, loads) * (0.0 if self.loss == "hinge" else 0.25 / self.C)
        return float(value) if loads.ndim == 1 else value

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

    @property
    def _of_slacks(self) -> Any:
        """C beside numbers per slack."""
        return self.C

    def of_problems(self, index: Any) -> Penalty:
        """That of one problem of a batch, or of some of them."""
        return self


@dataclass(frozen=True, eq=False)
class PenaltyBatch(Penalty):
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
    >>> both.cost(np.array([[0.5, 2.0], [0.5, 2.0]])), both.of_problems(1)
    (array([2.5, 7.5]), Penalty(C=3.0, slack='row', loss='hinge'))
    """

    C: Any

    @property
    def _of_slacks(self) -> Any:
        return self.C[:, None]

    def of_problems(self, index: Any) -> Penalty:
        """That of one problem, or of some."""
        chosen = self.C[index]
        if chosen.ndim:
            return PenaltyBatch(chosen, self.slack, self.loss)
        return Penalty(float(chosen), self.slack, self.loss)


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
    if isinstance(C, bool) or not isinstance(C, (int, float, np.number)) or not 0 < float(C) < np.inf:
        raise ValueError(f"C must be None (hard margin) or a positive finite number, got {C!r}")
    if slack not in get_args(SlackKind):
        raise ValueError(f"slack must be one of {get_args(SlackKind)}, got {slack!r}")
    if loss not in get_args(LossKind):
        raise ValueError(f"loss must be one of {get_args(LossKind)}, got {loss!r}")
    return Penalty(float(C), slack, loss)  # type: ignore[arg-type]  # both were just looked up
