"""What an edit asks of a head: tokens to select, and selections to keep, as rows with names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from attsvm._arrays import BoolArray, IntArray, integer_array
from attsvm.attention import likeliest
from attsvm.problem import AttentionProblem, require_problem
from attsvm.rows import AttentionRows, selection_rows
from attsvm.selection import Selection, SelectionLike
from attsvm.solvers import MarginProblem, PairRows, Rows

if TYPE_CHECKING:
    from attsvm.trained_head import TrainedHead

__all__ = ["Demand", "Demands", "KeepLike", "read_demands", "rows_for"]

FloatArray = npt.NDArray[np.float64]
KeepLike: TypeAlias = bool | npt.ArrayLike | AttentionProblem | tuple[AttentionProblem, SelectionLike] | None
"""True or a mask (queries of the problem), another problem, or a problem with its selection."""


@dataclass(frozen=True)
class Demand:
    """One row of an edit in words: this query selects one token over another.

    Attributes
    ----------
    kind : {"select", "keep"}
        What the head should select, or selects already and must go on selecting.
    query : tuple of int
        (i,) or (i, k) in the problem of its kind.
    selected, other : int
        Tokens of that sequence.
    multiplier : float
        How much the row drives the edit: the price of asking for one unit of margin more.
    margin : float
        ``(x_selected - x_other)^T W z`` after the edit.
    """

    kind: str
    query: tuple[int, ...]
    selected: int
    other: int
    multiplier: float
    margin: float

    def __str__(self) -> str:
        place = ", ".join(map(str, self.query))
        return f"{self.kind} token {self.selected} over {self.other} for query ({place})"


@dataclass(frozen=True, eq=False)
class _Part:
    """Rows of one kind, of one problem."""

    kind: str
    rows: AttentionRows
    index: IntArray  # of the rows that count
    sides: FloatArray


@dataclass(frozen=True, eq=False)
class Demands:
    """Rows of an edit of W and what each of them means.

    Attributes
    ----------
    rows : Rows
        Of the whole W; tokens that are stored once stay so where one problem asks for everything.
    sides : ndarray, shape (m,)
        Margins that are asked for.
    parts : sequence
        Where rows come from, in their order.
    """

    rows: Rows
    sides: FloatArray
    parts: Sequence[_Part]

    def name(self, row: int, multiplier: float = 0.0, margin: float = float("nan")) -> Demand:
        """What a row says."""
        for part in self.parts:
            if row < len(part.index):
                k = int(part.index[row])
                owner = int(part.rows.margin_problem.owner[k])
                anchor, token = int(part.rows.anchors[owner]), int(part.rows.token[k])
                return Demand(part.kind, part.rows.query_index(owner), anchor, token, multiplier, margin)
            row -= len(part.index)
        raise IndexError(f"row {row} is out of range")


def read_demands(
    W0: FloatArray, problem: AttentionProblem, selection: npt.ArrayLike | Selection, margin: float, keep: KeepLike
) -> Demands:
    """Rows of what should be selected (-1: nothing is asked of a query), then of what must be kept."""
    given = require_problem(problem)
    if given.batch is not None:
        raise ValueError("edit takes one problem; index the batch first, e.g. problem[0]")
    if isinstance(margin, bool) or not isinstance(margin, (int, float, np.number)) or not 0 < margin < np.inf:
        raise ValueError(f"margin must be a positive number, got {margin!r}")
    wanted = _wanted(given, selection)
    asked = wanted >= 0
    now = likeliest(given, W0)
    filled = np.where(asked, wanted, now)
    rows = selection_rows(given, filled)
    parts = [_part("select", rows, asked, np.full(rows.margin_problem.m, float(margin)))] if asked.any() else []
    parts += _kept(W0, given, rows, asked, float(margin), keep)
    if not parts:
        raise ValueError("selection asks for nothing: every entry is -1, and keep names no query")
    return _joined(parts)


def _wanted(problem: AttentionProblem, selection: npt.ArrayLike | Selection) -> IntArray:
    """Tokens to select, -1 where nothing is asked, shape of the queries."""
    wanted = np.asarray(
        selection.indices if isinstance(selection, Selection) else integer_array("selection", selection)
    )
    if wanted.shape != problem.query_shape:
        raise ValueError(f"selection must have shape {problem.query_shape}, one token per query, got {wanted.shape}")
    if (wanted < -1).any():
        place = tuple(int(i) for i in np.argwhere(wanted < -1)[0])
        raise ValueError(f"selection must hold tokens, or -1 where nothing is asked, got {wanted[place]} at {place}")
    return wanted


def _joined(parts: list[_Part]) -> Demands:
    """Rows of all parts as those of one problem."""
    sides = np.concatenate([part.sides for part in parts])
    if len(parts) == 1 and len(parts[0].index) == parts[0].rows.margin_problem.m:
        return Demands(parts[0].rows.margin_problem.rows, sides, parts)
    pairs = [part.rows.margin_problem.rows.gather(part.index) for part in parts]
    starts = np.cumsum([0, *(p.q for p in pairs)])
    owner = np.concatenate([p.owner + start for p, start in zip(pairs, starts, strict=False)])
    a = np.concatenate([p.a.astype(np.float64, copy=False) for p in pairs])
    queries = np.concatenate([p.queries.astype(np.float64, copy=False) for p in pairs])
    used, owner = np.unique(owner, return_inverse=True)  # queries without a row are left out
    return Demands(PairRows(a, queries[used], owner), sides, parts)


def _part(kind: str, rows: AttentionRows, queries: BoolArray, sides: FloatArray) -> _Part:
    index = np.flatnonzero(queries.ravel()[rows.margin_problem.owner])
    return _Part(kind, rows, index, sides[index])


def _kept(
    W0: FloatArray, problem: AttentionProblem, rows: AttentionRows, asked: BoolArray, margin: float, keep: KeepLike
) -> list[_Part]:
    """Rows of selections to keep: at least the margin that W0 has, or the asked one where W0 has more."""
    if keep is None or keep is False:
        return []
    if isinstance(keep, AttentionProblem):
        keep = (keep, None)
    if isinstance(keep, tuple):
        other = require_problem(keep[0], "keep")
        if (other.dx, other.dz) != (problem.dx, problem.dz):
            raise ValueError(
                f"keep must hold tokens and queries of dimension {(problem.dx, problem.dz)}, got {(other.dx, other.dz)}"
            )
        now = likeliest(other, W0)
        chosen = now if keep[1] is None else np.asarray(keep[1])
        wrong = np.argwhere(chosen != now) if chosen.shape == now.shape else np.empty((0, 0))
        if len(wrong):
            place = tuple(int(i) for i in wrong[0])
            raise ValueError(
                f"keep must hold what the head selects already, but query {place} selects token {now[place]}, not "
                f"{chosen[place]}; ask for a new token with selection"
            )
        rows, queries = selection_rows(other, chosen), np.ones(other.query_shape, dtype=bool)
    else:
        queries = ~asked if keep is True else np.asarray(keep)
        if queries.shape != problem.query_shape or queries.dtype != bool:
            raise ValueError(
                f"keep must be True, a problem, or booleans of shape {problem.query_shape}, got shape {queries.shape} "
                f"and dtype {queries.dtype}"
            )
        if (queries & asked).any():
            place = tuple(int(i) for i in np.argwhere(queries & asked)[0])
            raise ValueError(f"keep names query {place}, of which selection asks for a token")
        if not queries.any():
            return []
    values = rows.margin_problem.margins(W0)
    return [_part("keep", rows, queries, np.minimum(values, margin))]


def rows_for(of: str, demands: Demands, head: TrainedHead | None, W0: FloatArray) -> tuple[MarginProblem, FloatArray]:
    """The margin problem of the matrix that is edited, and that matrix as it is: W, K^T or Q."""
    if of == "W":
        return MarginProblem.from_rows(demands.rows, demands.sides), W0
    assert head is not None
    pairs = demands.rows.gather(np.arange(demands.rows.m))
    if of == "K":  # x^T K^T (scale Q z): rows of K^T with queries that went through Q
        queries = head.scale * (pairs.queries @ head.query_map.T)
        return MarginProblem(pairs.a, queries, pairs.owner, demands.sides), np.ascontiguousarray(head.key_map.T)
    a = head.scale * (pairs.a @ head.key_map.T)  # (scale K x)^T Q z
    return MarginProblem(a, pairs.queries, pairs.owner, demands.sides), np.asarray(head.query_map)
