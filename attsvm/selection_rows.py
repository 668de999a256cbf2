"""The one builder of rows: tokens against an anchor per query, written out or with tokens that are shared.

From a selection to the rows of its margin problem (the only place where attention meets rows).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from attsvm.problem import AttentionProblem
from attsvm.selection import SelectedSetsLike, Selection, SelectionLike, read_selected_sets, read_selection
from attsvm.solvers import MarginProblem, PairRows
from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.rows.pairs import Remainder
from attsvm.solvers.rows.shared import SharedRows, lost_in_difference
from attsvm.user_input import real_array

_Entry = TypeVar("_Entry", bound=np.generic)

# Entries of one vector per row above which the tokens are shared instead (16 MiB of float64).
_SHARED_ELEMENTS = 1 << 21

# Tokens up to which the others of every token are kept as a table.
_TABLE = 64

# Differences formed at once (32 MiB of float64), so that building rows needs no second copy of them.
_CHUNK_ELEMENTS = 1 << 22


@dataclass(frozen=True, eq=False)
class AttentionRows:
    """A margin problem and where its rows come from; one problem, or a batch with a leading axis.

    Attributes
    ----------
    margin_problem : MarginProblem
        Row k reads ``(x_{i,anchor} - x_{i,token[k]})^T W z`` with the query ``owner[k]``.
    token : ndarray of int, shape (m,) or (batch, m)
        The token that row k is about.
    query_shape : tuple of int
        (n,) or (n, K) of one problem; ``owner`` counts queries in C order of this shape.
    T : int
    anchors : ndarray of int, shape (n*K,) or (batch, n*K)
        The selected token of each query, or the first one of its set.
    """

    margin_problem: MarginProblem
    token: IntArray
    query_shape: tuple[int, ...]
    T: int
    anchors: IntArray

    def __repr__(self) -> str:
        return f"AttentionRows({self.margin_problem!r}, query_shape={self.query_shape}, T={self.T})"

    def scatter(self, values: npt.ArrayLike, fill: float = np.nan) -> FloatArray:
        """One number per row, laid out per query and token: shape ``(*batch, *query_shape, T)``."""
        rows, numbers = self.margin_problem, np.asarray(values)
        out = np.full((*rows.batch, rows.q * self.T), fill)
        place = rows.owner * self.T + self.token
        if not rows.batch:
            out[place] = numbers
        elif rows.valid is None or rows.valid.all():
            np.put_along_axis(out, np.broadcast_to(place, numbers.shape), numbers, axis=-1)
        else:
            b, k = np.nonzero(rows.valid)
            out[b, np.broadcast_to(place, numbers.shape)[b, k]] = numbers[b, k]
        return out.reshape(*rows.batch, *self.query_shape, self.T)

    def pick(self, grid: npt.NDArray[_Entry]) -> npt.NDArray[_Entry]:
        """The inverse of `scatter`: of an array ``(*batch, *query_shape, T)`` the entry of every row, (*batch, m)."""
        rows = self.margin_problem
        place = np.broadcast_to(rows.owner * self.T + self.token, (*rows.batch, rows.m))
        return np.take_along_axis(grid.reshape(*rows.batch, rows.q * self.T), place, axis=-1)

    def soft(self, C: float | None, slack: str = "query", loss: str = "hinge") -> AttentionRows:
        """The same rows with a penalty (`attsvm.solvers.MarginProblem.soft`); None leaves them as they are."""
        soft = self.margin_problem.soft(C, slack, loss)
        return self if soft is self.margin_problem else replace(self, margin_problem=soft)

    def slacks(self, margins: FloatArray) -> FloatArray:
        """What these margins fall short of a soft margin, per query or per row, as its penalty counts them."""
        problem = self.margin_problem
        assert problem.penalty is not None
        return problem.penalty.slacks(problem.missed(margins - problem.rhs), problem.owner, problem.q)

    def row_slacks(self, margins: FloatArray) -> FloatArray | float:
        """Slack of each row of a soft margin, over a batch too; 0 for a hard one."""
        problem = self.margin_problem
        if problem.penalty is None:
            return 0.0
        if problem.batch:
            return np.stack([self[i].row_slacks(margins[i]) for i in range(problem.batch[0])])
        slacks = self.slacks(margins)
        return slacks if problem.penalty.slack == "row" else slacks[problem.owner]

    def query_index(self, owner: int) -> tuple[int, ...]:
        """The (i,) or (i, k) of a query."""
        return tuple(int(i) for i in np.unravel_index(owner, self.query_shape))

    def __getitem__(self, index: int) -> AttentionRows:
        """Rows of one problem of a batch."""
        rows = self.margin_problem
        token = self.token[index] if rows.valid is None else self.token[index][rows.valid[index]]
        return AttentionRows(rows[index], token, self.query_shape, self.T, self.anchors[index])


def _differences(
    X: npt.NDArray[np.floating], places: _Places, anchors: IntArray, token: IntArray, kept: IntArray | None
) -> FloatArray:
    """Rows ``x_{i,anchor} - x_{i,token}`` in float64, whatever the tokens are, shape (m, dx).

    A float64 difference of two tokens is correctly rounded, which certificates account for; one formed in float32
    would describe other rows.
    """
    d = X.shape[-1]
    tokens, first, owner = X.reshape(-1, d), places.first, places.owner
    if kept is not None:
        first, owner = first[kept], owner[kept]
    if len(token) * d <= _CHUNK_ELEMENTS:
        chosen = tokens.take(first + anchors.take(owner), axis=0)
        whole: FloatArray = np.subtract(chosen, tokens.take(first + token, axis=0), dtype=np.float64)
        return whole
    out, step = np.empty((len(token), d)), max(1, _CHUNK_ELEMENTS // d)
    for start in range(0, len(token), step):
        rows = slice(start, start + step)
        chosen = tokens.take(first[rows] + anchors.take(owner[rows]), axis=0)
        np.subtract(chosen, tokens.take(first[rows] + token[rows], axis=0), out=out[rows], dtype=np.float64)
    return out


def build_rows(
    problem: AttentionProblem,
    anchors: IntArray,
    keep: BoolArray | None,
    rhs: FloatArray | None,
    equality: BoolArray | None,
    offset: npt.ArrayLike | None = None,
    shared: bool | None = None,
) -> AttentionRows:
    """Rows of ``anchor - token`` for every token but the anchor, wherever keep.

    ``anchors`` has shape (*batch, n*K), where one problem may meet a batch of anchors; ``keep``, ``rhs`` and
    ``equality`` have shape (*batch, n*K, T), by default all tokens, 1 and ``>=``. ``offset`` is added to the logits;
    ``shared`` says whether tokens are stored once.
    """
    if offset is not None:
        rhs = _with_offset(problem, anchors, rhs, offset)
    X, Z, lead, q = problem.X, problem.Z, anchors.shape[:-1], anchors.shape[-1]
    query_shape = Z.shape[-3 if problem.multi_query else -2 : -1]
    T, K = X.shape[-2], q // X.shape[-3]
    places = _places(q, K, T)
    if places.table is None:
        others = places.others + (places.others >= anchors[..., None])  # (*batch, q, T - 1): the tokens but the anchor
    else:
        others = places.table.take(anchors, axis=0)
    token, owner = others.reshape(*lead, -1), places.owner
    kept, sides, equal = _per_row(keep, others), _per_row(rhs, others), _per_row(equality, others)
    whole = kept is None or bool(kept.all())
    used: IntArray | None = None
    if kept is not None and not whole:
        if not kept.any(axis=-1).all():
            raise ValueError("mask leaves no query with two tokens to choose from: there is nothing to separate")
        # A row that is in none of the problems is left out.
        used = np.flatnonzero(kept.reshape(-1, kept.shape[-1]).any(axis=0))
        token, owner, kept = token[..., used], owner[used], kept[..., used]
        sides, equal = (None if values is None else values[..., used] for values in (sides, equal))
    block = T - 1 if whole else None
    if lead:
        valid, sides, equal = _voided(kept, sides, equal)
        pairs = _batch_pairs(problem, anchors, token, owner, valid, block)
        return AttentionRows(MarginProblem.from_rows(pairs, sides, equal, valid), token, query_shape, T, anchors)
    Z = Z.reshape(-1, Z.shape[-1])
    rows: PairRows | SharedRows
    if _shares_tokens(problem, len(token), shared):
        rows = SharedRows(X, Z, np.arange(anchors.shape[-1]) // K, anchors, owner, token)
    else:
        a = _differences(X, places, anchors, token, used)
        rows = PairRows.trusted(a, Z, owner, lambda _: _remainder(X, anchors, token, owner // K, owner), block)
    return AttentionRows(MarginProblem.from_rows(rows, sides, equal), token, query_shape, T, anchors)


def _per_row(values: npt.NDArray[Any] | None, others: IntArray) -> npt.NDArray[Any] | None:
    """Of one entry per query and token those of the tokens but the anchor, shape (*batch, m)."""
    return None if values is None else np.take_along_axis(values, others, axis=-1).reshape(*others.shape[:-2], -1)


def _voided(kept: Any, sides: Any, equal: Any) -> tuple[Any, Any, Any]:
    """Padded rows of a batch have no effect: what is valid, right-hand sides and equalities."""
    if kept is None or kept.all():
        return None, sides, equal
    return kept, np.where(kept, 1.0 if sides is None else sides, 0.0), None if equal is None else equal & kept


def _shares_tokens(problem: AttentionProblem, m: int, asked: bool | None) -> bool:
    """Whether rows of one problem are implied by its tokens: where one vector per row would be large, and larger."""
    if asked is not None:
        return asked
    elements = m * problem.X.shape[-1]
    return elements > _SHARED_ELEMENTS and problem.K > 1 and elements > 2 * problem.X.size


def _with_offset(
    problem: AttentionProblem, anchors: IntArray, rhs: FloatArray | None, offset: npt.ArrayLike
) -> FloatArray:
    """Right-hand sides for logits ``x^T W z + offset``: what the offsets give is not asked of W."""
    given = real_array("offset", offset).astype(np.float64)
    full = (*problem.query_shape, problem.T)
    try:
        added = np.broadcast_to(given, full)
    except ValueError:
        raise ValueError(f"offset must be one number per query and token, shape {full}, got {given.shape}") from None
    allowed = problem.allowed
    if not np.isfinite(added[allowed]).all():
        raise ValueError("offset must be finite where attention is allowed; what is forbidden belongs in the mask")
    added = np.where(allowed, added, 0.0).reshape(*lead_of(problem), -1, problem.T)
    added = np.broadcast_to(added, (*anchors.shape, problem.T))
    lead = np.take_along_axis(added, anchors[..., None], axis=-1)
    return np.asarray((1.0 if rhs is None else rhs) + added - lead)


def _batch_pairs(
    problem: AttentionProblem,
    anchors: IntArray,
    token: IntArray,
    owner: IntArray,
    kept: BoolArray | None,
    block: int | None,
) -> PairRows:
    """Rows of a batch of problems, or of one problem with a batch of anchors; zero where not kept."""
    X, K, q = problem.X, problem.K, anchors.shape[-1]
    sequence = owner // K
    # Tokens by their place in all of them: one index takes half the time of three.
    tokens, (n, T, d) = X.reshape(-1, X.shape[-1]), X.shape[-3:]
    first = np.arange(len(anchors))[:, None] * (0 if problem.batch is None else n * T)
    chosen = tokens.take(first + T * (np.arange(q) // K) + anchors, axis=0).astype(np.float64, copy=False)
    others = tokens.take(first + T * sequence + token, axis=0).astype(np.float64, copy=False)
    if block is None:
        a = np.subtract(chosen.take(owner, axis=1), others, out=others)
    else:
        blocks = others.reshape(len(anchors), q, block, d)
        a = np.subtract(chosen[:, :, None], blocks, out=blocks).reshape(others.shape)
    if kept is not None:
        a = np.where(kept[..., None], a, 0.0)
    Z = problem.Z.reshape(*lead_of(problem), q, problem.dz)

    def remainder_of(k: int) -> Remainder:
        rest = _remainder(X if problem.batch is None else X[k], anchors[k], token[k], sequence, owner)
        return rest if kept is None else lambda index: np.where(kept[k, index, None], rest(index), 0.0)

    return PairRows.trusted(a, np.broadcast_to(Z, (*anchors.shape, problem.dz)), owner, remainder_of, block)


def _remainder(
    X: npt.NDArray[np.floating], anchors: IntArray, token: IntArray, sequence: IntArray, owner: IntArray
) -> Remainder:
    """What rounding took from the differences of some rows of one problem."""

    def remainder(index: IntArray) -> FloatArray:
        i = sequence[index]
        return lost_in_difference(X[i, anchors[owner[index]]], X[i, token[index]])

    return remainder


class _Places(NamedTuple):
    """Where the rows of queries with T tokens each stand when all tokens are allowed."""

    owner: IntArray  # (m,): query of each row
    first: IntArray  # (m,): position of the first token of its sequence among all tokens
    others: IntArray  # (T - 1,): the tokens if the last one is the anchor
    table: IntArray | None  # (T, T - 1): the tokens for every anchor, if that is small


@lru_cache(maxsize=16)
def _places(q: int, K: int, T: int) -> _Places:
    """Shared by all problems of this size, hence not to be written to."""
    owner = np.repeat(np.arange(q), T - 1)
    others = np.arange(T - 1)
    table = others + (others >= np.arange(T)[:, None]) if T <= _TABLE else None
    for array in (shared := _Places(owner, owner // K * T, others, table)):
        if array is not None:
            array.flags.writeable = False
    return shared


def lead_of(problem: AttentionProblem) -> tuple[int, ...]:
    """The batch axis of a problem, if it has one."""
    return () if problem.batch is None else (problem.batch,)


def selection_rows(
    problem: AttentionProblem,
    selection: SelectionLike = None,
    *,
    offset: npt.ArrayLike | None = None,
    shared: bool | None = None,
) -> AttentionRows:
    """Rows of Att-SVM (one query) and SAtt-SVM (K queries, any mask), for one problem or a batch.

    For every query and every allowed token other than the selected one:
    ``(x_{i,alpha} - x_it)^T W z >= 1``, equations (Att-SVM), (12) and (SAtt-SVM).

    Parameters
    ----------
    problem : AttentionProblem
    selection : Selection or array_like of int, optional
    offset : array_like, shape ``query_shape + (T,)``, optional
        Added to the logits (ALiBi, relative biases): it moves to the right-hand sides.
    shared : bool, optional
        Store tokens once and imply the rows (`attsvm.solvers.SharedRows`), or write every row out
        (`attsvm.solvers.PairRows`); by default whatever is smaller. Batches are written out.

    Examples
    --------
    >>> import attsvm
    >>> rows = selection_rows(attsvm.random_problem(n=6, T=8, d=10, seed=0))
    >>> rows.margin_problem.m
    42
    """
    return rows_of_selection(problem, read_selection(problem, selection), offset, shared)


def rows_of_selection(
    problem: AttentionProblem,
    chosen: Selection,
    offset: npt.ArrayLike | None = None,
    shared: bool | None = None,
) -> AttentionRows:
    """`selection_rows` of a selection that was read against the problem."""
    anchors = chosen.indices
    if problem.multi_query:
        anchors = anchors.reshape(*lead_of(problem), -1)
    keep = None if problem.mask is None else problem.allowed.reshape(*anchors.shape, problem.T)
    return build_rows(problem, anchors, keep, None, None, offset, shared)


def rows_of_selections(problem: AttentionProblem, selections: IntArray, keep: BoolArray | None = None) -> AttentionRows:
    """Rows of many selections of one problem, as a batch of margin problems: those of `selection_rows` for each.

    Parameters
    ----------
    problem : AttentionProblem
        A single one.
    selections : ndarray of int, shape (S, n*K)
        Tokens of the queries in C order; nothing is checked.
    keep : ndarray of bool, shape (S, n*K, T), optional
        Rows that count; those of all allowed tokens by default. Every selection must keep at least one.

    Examples
    --------
    >>> import numpy as np
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=2, T=3, d=4, seed=0)
    >>> rows_of_selections(problem, np.array([[0, 1], [2, 2], [1, 1]])).margin_problem
    MarginProblem(3 problems, 4 rows, 2 queries, W 4 x 4)
    """
    if keep is None and problem.mask is not None:
        keep = np.broadcast_to(problem.allowed.reshape(-1, problem.T), (*selections.shape, problem.T))
    return build_rows(problem, selections, keep, None, None)


def gen_svm_rows(
    problem: AttentionProblem, selected_sets: SelectedSetsLike, *, offset: npt.ArrayLike | None = None
) -> AttentionRows:
    """Rows of Gen-SVM: equal similarity inside a selected set, margin 1 against every other token.

    The tokens of a set are tied to its first member by ``= 0`` rows, so one ``>= 1`` row per masked token
    (against the first member) says the same as one per pair; |O| |not O| + |O|^2 rows become T - 1.

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=2, T=4, d=6, seed=0)
    >>> gen_svm_rows(problem, [[0, 2], [1]]).margin_problem.equality.sum()
    np.int64(1)
    """
    members = read_selected_sets(problem, selected_sets).members.reshape(*lead_of(problem), -1, problem.T)
    keep = None if problem.mask is None else problem.allowed.reshape(members.shape)
    return build_rows(problem, members.argmax(axis=-1), keep, np.where(members, 0.0, 1.0), members, offset)


def finite_part_rows(
    problem: AttentionProblem,
    probabilities: npt.ArrayLike,
    selected_sets: SelectedSetsLike,
    *,
    offset: npt.ArrayLike | None = None,
) -> AttentionRows:
    """Rows of the finite part: ``(x_it - x_itau)^T W z = log(s_t / s_tau)`` inside each set, equation (8).

    Parameters
    ----------
    problem : AttentionProblem
    probabilities : array_like, shape (n, T) or (n, K, T)
        Attention probabilities; only ratios inside a set matter.
    selected_sets : SelectedSets, boolean array or lists of indices

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=1, T=3, d=4, seed=0)
    >>> finite_part_rows(problem, [[0.8, 0.2, 0.0]], [[0, 1]]).margin_problem.rhs.round(4)
    array([1.3863])
    """
    members = read_selected_sets(problem, selected_sets).members.reshape(*lead_of(problem), -1, problem.T)
    s = real_array("probabilities", probabilities).astype(np.float64)
    expected = (*problem.query_shape, problem.T)
    if s.shape != expected:
        raise ValueError(f"probabilities must have shape {expected}, got {s.shape}")
    s = s.reshape(members.shape)
    bad = np.argwhere(members & ~((s > 0) & np.isfinite(s)))
    if len(bad):
        query, token = int(bad[0][-2]), int(bad[0][-1])
        raise ValueError(
            f"probabilities must be positive on the selected sets, but query {query} gives token {token} "
            f"{s[tuple(bad[0])]:g}"
        )
    if not (members.sum(axis=-1) > 1).any(axis=-1).all():
        raise ValueError("selected_sets holds one token per query: there is no ratio of probabilities to match")
    anchors = members.argmax(axis=-1)
    logs = np.log(np.where(members, s, 1.0))
    rhs = np.take_along_axis(logs, anchors[..., None], axis=-1) - logs
    return build_rows(problem, anchors, members, rhs, members, offset)
