"""Listings of locally optimal selections against exact arithmetic: nothing wrong in them, nothing missing, both norms.

Frobenius norm: every selection is solved over the rationals and its optimality conditions and scores are checked by
plain fractions. Nuclear norm: where W is a vector the two norms are one, and so is the truth; elsewhere solutions need
not be unique, and what is said of all of them is checked on two of them (`_against_solutions`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np

import attsvm
from attsvm.enumeration.result import LocalOptima
from attsvm.selection import Selection
from attsvm.validation.fuzz_families import FuzzCase
from attsvm.validation.fuzz_judge import Judge

__all__ = ["LISTED_UP_TO", "against_listings", "selections_of"]

# Selections of a problem up to which all of them are judged.
LISTED_UP_TO = 27
# A margin this near to 1 in both solutions of a problem cannot be proved to lie beyond it, one this far not on it.
_ON, _OFF = 1e-9, 1e-2
# One of so many seeds is listed by the best-first search, too.
_SEARCHED = 4
# Norms below have few digits in float64.
_NORMAL = 1e-300


def selections_of(case: FuzzCase) -> list[FuzzCase]:
    """The case with every selection in turn; none when there are too many or the case is about sets.

    Examples
    --------
    >>> from attsvm.validation.fuzz_families import draw_case
    >>> from attsvm.validation.fuzz_listing import selections_of
    >>> case = draw_case("sphere", 3)
    >>> len(selections_of(case)) == case.problem.T ** case.problem.n
    True
    """
    problem = case.problem
    choices = [np.flatnonzero(row).tolist() for row in problem.allowed.reshape(-1, problem.T)]
    if case.sets is not None or math.prod(len(choice) for choice in choices) > LISTED_UP_TO:
        return []
    shape = problem.query_shape
    return [replace(case, selection=Selection(np.reshape(t, shape))) for t in itertools.product(*choices)]


def _tokens(selection: Selection) -> tuple[int, ...]:
    return tuple(int(t) for t in selection.indices.ravel())


def against_listings(case: FuzzCase) -> Iterator[tuple[str, str]]:
    """Contradictions of the listings of a case, as (kind, detail); nothing when it has too many selections.

    Examples
    --------
    >>> from attsvm.validation.fuzz_families import draw_case
    >>> from attsvm.validation.fuzz_listing import against_listings
    >>> list(against_listings(draw_case("ties", 1)))
    []
    """
    cases = selections_of(case)
    if not cases:
        return
    local = {_tokens(one.selection) for one in cases if Judge(one).locally_optimal}
    problem = case.problem
    listings = {
        "frobenius": attsvm.locally_optimal_selections(problem),
        "nuclear": attsvm.locally_optimal_selections(problem, norm="nuclear"),
    }
    if case.seed % _SEARCHED == 0:  # its first guesses are short descents, which cost more than all else
        listings["frobenius search"] = attsvm.locally_optimal_selections(problem, top=len(cases), mode="search")
    for name, found in listings.items():
        if found.complete != (not found.undecided):
            yield "complete", f"{name}, complete is {found.complete} with {len(found.undecided)} undecided"
        if found.norm_name == "frobenius" or min(problem.dx, problem.dz) == 1:
            yield from _against_truth(name, found, local)
    yield from _against_solutions(cases, listings["nuclear"])
    mine = case.selection
    said = attsvm.optimality.prove(attsvm.att_svm(problem, mine))
    if not said.undecided[0] and bool(said.local[0]) != (_tokens(mine) in local):
        yield "local", f"single call says {bool(said.local[0])}"
    for item in listings["frobenius"]:
        truth = Judge(replace(case, selection=item.selection)).best.norm_squared
        if item.norm > _NORMAL and abs(Fraction(item.norm) ** 2 / truth - 1) > Fraction(1, 10**7):
            yield "local", f"norm of {item.tokens} is {item.norm!r}"


def _against_truth(name: str, found: LocalOptima, local: set[tuple[int, ...]]) -> Iterator[tuple[str, str]]:
    listed = {item.tokens for item in found}
    unsure = {_tokens(item.selection) for item in found.undecided}
    for tokens in sorted(listed - local):
        yield "local", f"{name}, {tokens} is listed"
    for tokens in sorted(local - listed - unsure):
        yield "complete", f"{name}, {tokens} is missing"


def _against_solutions(cases: list[FuzzCase], found: LocalOptima) -> Iterator[tuple[str, str]]:
    """What a nuclear listing says of all solutions, on two of each: alone and in a batch of another method.

    Listed: every token of no lower score lies beyond the margin in both. Not listed: none of them has all such tokens
    far beyond it (it could then be moved towards the smaller norm without them, and would be no solution).
    """
    unsure = {_tokens(item.selection) for item in found.undecided}
    batch = attsvm.att_svm(
        cases[0].problem.repeat(len(cases)), np.stack([c.selection.indices for c in cases]), norm="nuclear"
    )
    for i, one in enumerate(cases):
        tokens = _tokens(one.selection)
        high = attsvm.high_score_tokens(one.problem, one.selection)
        listed = one.selection in found
        if tokens in unsure or not high.any():
            if not high.any() and not listed and tokens not in unsure and batch[i].status == "optimal":
                yield "complete", f"nuclear, {tokens} has the highest scores and is missing"
            continue
        for solution in (batch[i], attsvm.att_svm(one.problem, one.selection, norm="nuclear")):
            if solution.status != "optimal":
                continue
            least = float(solution.token_margins()[high].min())
            if listed and least <= 1.0 + _ON:
                yield "local", f"nuclear, {tokens} is listed, a higher score has margin 1 + {least - 1.0:.1e}"
            unique = solution.result.uniqueness
            if not listed and least >= 1.0 + _OFF and unique.verdict == "unique":
                yield "complete", f"nuclear, {tokens} is missing, higher scores have margins of at least {least:.3f}"
