"""Which of two tokens scores more: exactly, also where floating point cannot tell.

Tokens as exact rationals: rows without the rounding of differences, scores, and Definition 2 decided exactly.

Definition 2 over the rationals: local optimality of one selection, and of all, decided without a rounding.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.heads import LinearHead
from attsvm.problem import AttentionProblem, require_single
from attsvm.selection import Selection, SelectionLike, read_selection
from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.certify.rounding import TINY, gamma
from attsvm.solvers.exact import ExactFarkas, ExactRows, exact_least_norm, exact_rows
from attsvm.solvers.exact.measures import EXACT_ENTRIES


def score_order(problem: AttentionProblem) -> IntArray:
    """Ranks of the scores within each query: a token scores less than another exactly if its rank is less.

    Scores of a linear head that floating point cannot tell apart are compared as rationals; any other head means the
    numbers that it returns.

    Returns
    -------
    ndarray of int, shape ``query_shape + (T,)``
        Equal for ties. What masked tokens get means nothing.

    Examples
    --------
    ``0.1 + 0.2`` is not the double 0.3, but it is less than a rounding away:

    >>> import attsvm
    >>> X = [[[0.1, 0.2], [0.3, 0.0], [0.2, 0.1]]]
    >>> score_order(attsvm.AttentionProblem(X, [1], [[1.0, 0.0]], attsvm.LinearHead([1.0, 1.0])))
    array([[1, 0, 1]])
    """
    scores = problem.scores()  # checks that there is a head and that what it returns is finite
    if not isinstance(problem.head, LinearHead):
        return np.asarray(_dense_ranks(scores)[0])
    X, v = problem.X.astype(np.float64, copy=False), np.asarray(problem.head.v, dtype=np.float64)
    seen = np.asarray(problem.allowed.any(axis=-2) if problem.multi_query else problem.allowed)
    # A computed dot product is within this of the exact one (`attsvm.solvers.certify.rounding`).
    blur = 1.01 * gamma(problem.dx + 2) * LinearHead(np.abs(v))(np.abs(X)) + 8.0 * problem.dx * TINY
    ranks, gap = _dense_ranks(np.where(seen, LinearHead(v)(X), np.inf), np.where(seen, blur, 0.0))
    for place in np.argwhere(gap):
        i = tuple(place)
        ranks[i][seen[i]] = _exact_ranks(X[i][seen[i]], v if v.ndim == 1 else v[place[0]])
    if problem.multi_query:
        ranks = ranks[..., None, :]
    return np.asarray(problem.Y[..., None].astype(np.int64) * ranks)


def _dense_ranks(values: FloatArray, blur: FloatArray | None = None) -> tuple[IntArray, BoolArray]:
    """Ranks along the last axis, equal for equal numbers, and where neighbours are closer than their blurs."""
    order = np.argsort(values, axis=-1, kind="stable")
    sorted_values = np.take_along_axis(values, order, axis=-1)
    with np.errstate(invalid="ignore"):  # masked tokens stand at infinity, where differences mean nothing
        step = np.diff(sorted_values, axis=-1)
    rank = np.zeros(values.shape, dtype=np.int64)
    rank[..., 1:] = np.cumsum(step > 0, axis=-1)
    out = np.empty_like(rank)
    np.put_along_axis(out, order, rank, axis=-1)
    if blur is None:
        return out, np.zeros(values.shape[:-1], dtype=bool)
    around = np.take_along_axis(blur, order, axis=-1)
    return out, np.asarray((step <= around[..., 1:] + around[..., :-1]).any(axis=-1))


def _exact_ranks(tokens: FloatArray, v: FloatArray) -> IntArray:
    """Ranks of ``v . x`` over the rationals, shape (number of tokens,)."""
    distinct, member = np.unique(tokens, axis=0, return_inverse=True)
    weights = [Fraction(x) for x in v.tolist()]
    worth = [
        sum((Fraction(x) * w for x, w in zip(row, weights, strict=True)), Fraction(0)) for row in distinct.tolist()
    ]
    place = {value: rank for rank, value in enumerate(sorted(set(worth)))}
    return np.array([place[value] for value in worth], dtype=np.int64)[member.reshape(-1)]


ObjectArray = npt.NDArray[np.object_]


def _fractions(values: npt.NDArray[Any]) -> ObjectArray:
    """Floats of any precision as the Fractions that they are."""
    flat = values.astype(np.float64).ravel().tolist()
    out = np.empty(len(flat), dtype=object)
    out[:] = [Fraction(x) for x in flat]
    return out.reshape(values.shape)


_ONE = "exact arithmetic goes one problem at a time"


def exact_selection_rows(
    problem: AttentionProblem, selection: SelectionLike = None
) -> tuple[ExactRows, npt.NDArray[np.int64]]:
    """Rows ``(x_{i,alpha} - x_it) z^T`` of Att-SVM with differences that no rounding touched.

    Rows come in the order of `attsvm.selection_rows.selection_rows`. Two equal tokens give a zero row:
    ``0 >= 1``.

    Parameters
    ----------
    problem : AttentionProblem
        A single one, in float32 or float64.
    selection : Selection or array_like of int, optional

    Returns
    -------
    rows : ExactRows
    token : ndarray of int, shape (m,)
        The token that row k is about.

    Examples
    --------
    >>> import attsvm
    >>> rows, token = exact_selection_rows(attsvm.random_problem(n=2, T=3, d=4, seed=0))
    >>> rows.m, rows.shape
    (4, (4, 4))
    """
    require_single(problem, _ONE)
    anchors = read_selection(problem, selection).indices.reshape(-1)
    keep = problem.allowed.reshape(-1, problem.T) & (np.arange(problem.T) != anchors[:, None])
    owner, token = np.nonzero(keep)
    if len(owner) == 0:
        raise ValueError("mask leaves no query with two tokens to choose from: there is nothing to separate")
    X = _fractions(problem.X)
    sequence = owner // problem.K
    a = X[sequence, anchors[owner]] - X[sequence, token]
    queries = np.asarray(problem.Z, dtype=np.float64).reshape(-1, problem.dz)
    return exact_rows(a, queries, owner), token


def exact_scores(problem: AttentionProblem) -> ObjectArray:
    """Scores ``Y_i v . x_it`` of a linear head as Fractions; of another head, the floats that it returns.

    Returns
    -------
    ndarray of Fraction, shape ``query_shape + (T,)``
        Also where a token is masked.

    Examples
    --------
    >>> import attsvm
    >>> head = attsvm.LinearHead([1.0, 3.0])
    >>> problem = attsvm.AttentionProblem([[[0.5, 0.0], [0.0, 1.0]]], [-1.0], [[1.0, 0.0]], head)
    >>> exact_scores(problem)
    array([[Fraction(-1, 2), Fraction(-3, 1)]], dtype=object)
    """
    require_single(problem, _ONE)
    if problem.head is None:
        raise ValueError("scores need a prediction head: pass head=attsvm.LinearHead(v) or any callable")
    if isinstance(problem.head, LinearHead):
        values = (_fractions(problem.X) * _fractions(np.asarray(problem.head.v))).sum(axis=-1)
    else:
        values = _fractions(np.asarray(problem.head(problem.X)))
    if problem.multi_query:
        values = values[..., None, :]
    return np.asarray(_fractions(np.asarray(problem.Y))[..., None] * values, dtype=object)


def every_support_scores_less(support: npt.ArrayLike, scores: ObjectArray, selected: npt.ArrayLike) -> bool:
    """Definition 2 / 4: every support token scores strictly less than the selected one.

    Parameters
    ----------
    support : array_like of bool, shape ``query_shape + (T,)``
        Tokens whose margin is exactly 1.
    scores : ndarray of Fraction, shape ``query_shape + (T,)``
    selected : array_like of int, shape ``query_shape``

    Examples
    --------
    >>> import numpy as np
    >>> from fractions import Fraction
    >>> scores = np.array([[Fraction(1, 3), Fraction(1, 3), Fraction(2)]], dtype=object)
    >>> every_support_scores_less([[False, False, False]], scores, [0])
    True
    >>> every_support_scores_less([[False, True, False]], scores, [0])  # a tie is not less
    False
    """
    marked: BoolArray = np.asarray(support, dtype=bool)
    if marked.shape != scores.shape:
        raise ValueError(f"support must have the shape {scores.shape} of scores, got {marked.shape}")
    best = np.take_along_axis(scores, np.asarray(selected, dtype=np.int64)[..., None], axis=-1)
    return not bool((marked & (scores >= best)).any())


# Selections that are decided one by one: some ten milliseconds each.
EXACT_SELECTIONS = 5_000


@dataclass(frozen=True, eq=False)
class ExactLocal:
    """A selection in the Frobenius norm, decided exactly.

    Attributes
    ----------
    selection : Selection
    locally_optimal : bool
        Every token on the margin scores strictly less; False for an infeasible selection.
    norm_squared : Fraction or None
        ``|W|^2`` of the one solution; None when infeasible.
    support : ndarray of bool, shape ``query_shape + (T,)``
        Tokens whose margin is exactly 1.
    farkas : ExactFarkas or None
        Rational multipliers of the proof of infeasibility.
    """

    selection: Selection
    locally_optimal: bool
    norm_squared: Fraction | None
    support: BoolArray
    farkas: ExactFarkas | None = None

    @property
    def feasible(self) -> bool:
        """Whether some W selects these tokens."""
        return self.farkas is None

    @property
    def tokens(self) -> tuple[int, ...]:
        """Selected tokens in C order of the queries."""
        return tuple(int(t) for t in self.selection.indices.ravel())


def exact_local_optimality(problem: AttentionProblem, selection: SelectionLike = None) -> ExactLocal:
    """Decide Definition 2 / 4 (Frobenius norm) over the rationals; small problems.

    Parameters
    ----------
    problem : AttentionProblem
        With a head; not a batch.
    selection : Selection or array_like of int, optional
        The optimal tokens by default.

    Examples
    --------
    A token of higher score at margin ``1 + 5e-6`` is not on the margin:

    >>> import attsvm
    >>> X = [[[0.0, 0.0], [-1.0, 0.0], [-1.000005, -1.0]]]
    >>> problem = attsvm.AttentionProblem(X, [1.0], [[1.0]], attsvm.LinearHead([1.0, -5.0]))
    >>> exact_local_optimality(problem, [0]).locally_optimal
    True
    """
    chosen = read_selection(problem, selection)
    rows, token = exact_selection_rows(problem, chosen)
    size = rows.m * rows.shape[0] * rows.shape[1]
    if size > EXACT_ENTRIES:
        raise ValueError(
            f"exact arithmetic is for problems of up to {EXACT_ENTRIES} rows times entries of W; this one has "
            f"{rows.m} rows of {rows.shape[0]} x {rows.shape[1]}, that is {size}"
        )
    scores = exact_scores(problem)
    answer = exact_least_norm(rows)
    flat = np.zeros((int(np.prod(problem.query_shape)), problem.T), dtype=bool)
    if isinstance(answer, ExactFarkas):
        return ExactLocal(chosen, False, None, flat.reshape(scores.shape), answer)
    flat[rows.owner, token] = answer.support
    support = flat.reshape(scores.shape)
    local = every_support_scores_less(support, scores, chosen.indices)
    return ExactLocal(chosen, local, answer.norm_squared, support)


@dataclass(frozen=True, eq=False)
class ExactListing:
    """Every selection of a problem decided exactly, against a list of them.

    Attributes
    ----------
    items : tuple of ExactLocal
        The locally optimal ones, least norm first.
    selections : int
        How many were decided.
    missing : tuple of tuple of int
        Locally optimal, but not in the list.
    wrong : tuple of tuple of int
        In the list, but not locally optimal.
    """

    items: tuple[ExactLocal, ...]
    selections: int
    missing: tuple[tuple[int, ...], ...]
    wrong: tuple[tuple[int, ...], ...]

    @property
    def complete(self) -> bool:
        """The list holds the locally optimal selections, all of them and no others."""
        return not self.missing and not self.wrong

    def __str__(self) -> str:
        verdict = "complete" if self.complete else f"{len(self.missing)} missing, {len(self.wrong)} wrong"
        found = f"{len(self.items)} of {self.selections} selections"
        return f"{found} locally optimal in exact arithmetic; the list: {verdict}"


def _all_local(problem: AttentionProblem) -> tuple[list[ExactLocal], int]:
    """Every locally optimal selection, decided one by one, least norm first, and how many were tried."""
    choices = [np.flatnonzero(row).tolist() for row in problem.allowed.reshape(-1, problem.T)]
    count = math.prod(len(choice) for choice in choices)
    if count > EXACT_SELECTIONS:
        raise ValueError(f"exact listings are for up to {EXACT_SELECTIONS} selections; this problem has {count:,}")
    found = []
    for tokens in itertools.product(*choices):
        decided = exact_local_optimality(problem, np.reshape(tokens, problem.query_shape))
        if decided.locally_optimal:
            found.append(decided)
    found.sort(key=lambda item: (item.norm_squared or Fraction(0), item.tokens))
    return found, count


def exact_listing(problem: AttentionProblem, listed: Iterable[tuple[int, ...]], top: int | None = None) -> ExactListing:
    """Decide every selection over the rationals and compare with a list; small problems.

    Parameters
    ----------
    problem : AttentionProblem
    listed : iterable of tuple of int
        Tokens of the selections in the list, in C order of the queries.
    top : int, optional
        The list claims only the k of least norm.

    Examples
    --------
    >>> import attsvm
    >>> print(exact_listing(attsvm.random_problem(n=2, T=3, d=3, seed=0), []))
    2 of 9 selections locally optimal in exact arithmetic; the list: 2 missing, 0 wrong
    """
    require_single(problem, _ONE)
    found, count = _all_local(problem)
    said, all_of_them = set(listed), {item.tokens for item in found}
    wanted = found[:top]
    last = wanted[-1].norm_squared if wanted else None
    missing = {item.tokens for item in wanted if item.norm_squared != last} - said
    # Equal norms at the end of a shortened list may be listed in either order.
    ties = [item.tokens for item in found if item.norm_squared == last]
    room = sum(item.norm_squared == last for item in wanted)
    if len(said.intersection(ties)) < room:
        missing |= {item.tokens for item in wanted} - said
    return ExactListing(tuple(found), count, tuple(sorted(missing)), tuple(sorted(said - all_of_them)))
