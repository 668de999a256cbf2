"""Soft margins: rows may be missed at a price.

minimize  r(W) + C sum_j xi_j        (hinge)      or      r(W) + C sum_j xi_j^2        (squared hinge)

with ``r(W) = ||W||_F^2 / 2`` for the Frobenius norm and ``r(W) = N(W)`` for every other norm N. A slack ``xi_j`` covers
one row, or all rows of one query: then it is the largest amount by which a row of the query is missed. On equality rows
both signs count. The dual maximizes ``rhs . lam - h*(lam) - r*(W(lam))`` over multipliers that are nonnegative on
inequality rows, where with the loads ``s_j = |lam_j|`` (row) or ``s_j = sum of |lam_k| over the query`` (query)

    hinge           ``s_j <= C`` and ``h* = 0``,
    squared hinge   ``h* = sum_j s_j^2 / (4 C)``,

and ``r*`` is ``||W(lam)||_F^2 / 2``, or the condition ``N*(W(lam)) <= 1``. As C grows the hard margin is approached;
with the hinge it is reached at a finite C, if it exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from attsvm.solvers.arrays import FloatArray, IntArray

__all__ = ["LossKind", "Penalty", "SlackKind", "read_penalty"]

SlackKind = Literal["query", "row"]
LossKind = Literal["hinge", "squared_hinge"]


@dataclass(frozen=True)
class Penalty:
    """What it costs to miss rows.

    Attributes
    ----------
    C : float
        Price, positive and finite.
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

    def slacks(self, missed: FloatArray, owner: IntArray, q: int) -> FloatArray:
        """Slack of each query (q,) or row (m,) from the amounts by which rows are missed, shape (m,)."""
        if self.slack == "row":
            return missed
        out = np.zeros(q)
        np.maximum.at(out, owner, missed)
        return out

    def loads(self, lam: FloatArray, owner: IntArray, q: int) -> FloatArray:
        """``s_j``: what the multipliers of each slack add up to, shape (q,) or (m,)."""
        size = np.abs(lam)
        return (
            size if self.slack == "row" else np.asarray(np.bincount(owner, weights=size, minlength=q), dtype=np.float64)
        )

    def cost(self, slacks: FloatArray) -> float:
        """``C sum xi`` or ``C sum xi^2``."""
        return self.C * float(slacks.sum() if self.loss == "hinge" else slacks @ slacks)

    def conjugate(self, loads: FloatArray) -> float:
        """``h*`` of multipliers with these loads, which are taken to be admissible."""
        return 0.0 if self.loss == "hinge" else float(loads @ loads) / (4.0 * self.C)

    def admissible(self, lam: FloatArray, owner: IntArray, q: int) -> FloatArray:
        """Multipliers scaled down, slack by slack, to loads of at most C (hinge); as they are otherwise."""
        if self.loss != "hinge":
            return lam
        if self.slack == "row":
            return np.clip(lam, -self.C, self.C)
        loads = self.loads(lam, owner, q)
        share = np.where(loads > self.C, self.C / np.where(loads > 0, loads, 1.0), 1.0)
        return np.asarray(lam * share[owner])


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
