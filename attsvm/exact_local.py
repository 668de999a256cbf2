"""Definition 2 over the rationals: local optimality of one selection, and of all, decided without a rounding."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from attsvm._arrays import BoolArray
from attsvm.exact import every_support_scores_less, exact_scores, exact_selection_rows
from attsvm.problem import AttentionProblem
from attsvm.selection import Selection, SelectionLike, read_selection
from attsvm.solvers.exact import ExactFarkas, exact_least_norm
from attsvm.solvers.exact.measures import EXACT_ENTRIES

__all__ = ["EXACT_SELECTIONS", "ExactListing", "ExactLocal", "exact_listing", "exact_local_optimality"]

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
    >>> from attsvm.exact_local import exact_local_optimality
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
    >>> from attsvm.exact_local import exact_listing
    >>> print(exact_listing(attsvm.random_problem(n=2, T=3, d=3, seed=0), []))
    2 of 9 selections locally optimal in exact arithmetic; the list: 2 missing, 0 wrong
    """
    if problem.batch is not None:
        raise ValueError("exact arithmetic goes one problem at a time; index the batch first, e.g. problem[0]")
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
