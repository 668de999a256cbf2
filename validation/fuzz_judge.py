"""Plain fractions: the rows of a selection written out entry by entry, and answers checked against them.

Nothing of the exact solvers is used here. Whatever they say (a feasible matrix, a proof that there is none, a matrix of
least norm) is checked on rows that are made of the tokens by Python's fractions alone.

What exact arithmetic says against the claims of a solution; an empty list says nothing against them.

The judge shares no arithmetic with the certificates in float64: feasibility is a linear program over the rationals, the
least Frobenius norm an active-set method over the rationals, nuclear norms and singular values are enclosed by balls of
192 bits. The library asks the same exact solvers where float64 leaves something open, so the judge does not take
their word: a feasible matrix, a proof that there is none, a matrix of least norm are checked by plain fractions on
rows made of the tokens alone (`attsvm.validation.fuzz_judge`).

Listings of locally optimal selections against exact arithmetic: nothing wrong in them, nothing missing, both norms.

Frobenius norm: every selection is solved over the rationals and its optimality conditions and scores are checked by
plain fractions. Nuclear norm: where W is a vector the two norms are one, and so is the truth; elsewhere solutions need
not be unique, and what is said of all of them is checked on two of them (`_against_solutions`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

import attsvm
from attsvm.enumeration.selection_space import LocalOptima
from attsvm.problem import AttentionProblem
from attsvm.selection import Selection
from attsvm.solution import Solution
from attsvm.solvers.exact import (
    ExactLeastNorm,
    ExactRows,
    NuclearEnclosure,
    exact_feasibility,
    exact_least_norm,
    exact_rows,
    repair,
)
from attsvm.solvers.exact import nuclear_enclosure as enclose
from attsvm.solvers.exact.rows import rational, rational_matrix
from attsvm.user_input import AnyFloatArray
from attsvm.validation.fuzz_families import FuzzCase

if TYPE_CHECKING:
    from flint import fmpq


def _fractions(values: Any) -> list[Fraction]:
    return [Fraction(float(x)) for x in np.asarray(values).ravel()]


@dataclass(frozen=True, eq=False)
class PlainRows:
    """Rows ``a_k b_k^T`` with right-hand sides, as lists of fractions.

    Attributes
    ----------
    left, right : list of list of Fraction
        ``a_k`` and ``b_k``, one of each per row.
    rhs : list of Fraction
    equality : list of bool
    owner, token : list of int
        The query and the token that a row is about.
    """

    left: list[list[Fraction]]
    right: list[list[Fraction]]
    rhs: list[Fraction]
    equality: list[bool]
    owner: list[int]
    token: list[int]

    @property
    def m(self) -> int:
        """Number of rows."""
        return len(self.rhs)

    @cached_property
    def queries(self) -> dict[int, list[Fraction]]:
        """The right factor of every query."""
        return dict(zip(self.owner, self.right, strict=True))

    def slacks(self, W: Sequence[Sequence[Fraction]]) -> list[Fraction]:
        """Margins minus right-hand sides of a matrix given by rows."""
        keys = {j: [_dot(row, b) for row in W] for j, b in self.queries.items()}
        return [_dot(a, keys[j]) - r for a, j, r in zip(self.left, self.owner, self.rhs, strict=True)]

    def violation(self, W: Sequence[Sequence[Fraction]]) -> Fraction:
        """Largest amount by which a row is missed."""
        slacks = self.slacks(W)
        missed = [abs(s) if e else -s for s, e in zip(slacks, self.equality, strict=True)]
        return max([Fraction(0), *missed])

    def combination(self, values: Iterable[Fraction]) -> list[list[Fraction]]:
        """``sum_k y_k a_k b_k^T``."""
        dx, dz = len(self.left[0]), len(self.right[0])
        sums: dict[int, list[Fraction]] = {}
        for y, a, j in zip(values, self.left, self.owner, strict=True):
            if y:
                total = sums.setdefault(j, [Fraction(0)] * dx)
                sums[j] = [t + y * x for t, x in zip(total, a, strict=True)]
        out = [[Fraction(0)] * dz for _ in range(dx)]
        for j, total in sums.items():
            b = self.queries[j]
            out = [[w + t * x for w, x in zip(row, b, strict=True)] for row, t in zip(out, total, strict=True)]
        return out

    def refuted_by(self, values: Sequence[Fraction]) -> bool:
        """Whether multipliers prove that no W satisfies the rows (Farkas)."""
        signs = all(y >= 0 or e for y, e in zip(values, self.equality, strict=True))
        gained = sum((y * r for y, r in zip(values, self.rhs, strict=True)), start=Fraction(0))
        return signs and gained > 0 and not any(x for row in self.combination(values) for x in row)

    def is_least_norm(self, W: Sequence[Sequence[Fraction]], values: Sequence[Fraction]) -> bool:
        """Whether W and multipliers satisfy the optimality conditions, which make W the one solution."""
        signs = all(y >= 0 or e for y, e in zip(values, self.equality, strict=True))
        slacks = self.slacks(W)
        met = all(s == 0 if e else s >= 0 for s, e in zip(slacks, self.equality, strict=True))
        tight = all(s == 0 for s, y in zip(slacks, values, strict=True) if y)
        return signs and met and tight and [list(row) for row in W] == self.combination(values)


def _dot(x: Sequence[Fraction], y: Sequence[Fraction]) -> Fraction:
    return sum((p * q for p, q in zip(x, y, strict=True) if p and q), start=Fraction(0))


def plain_rows(case: FuzzCase) -> PlainRows:
    """The rows of a case: of its selection, or of its sets (Gen-SVM, against the first member of every set).

    Examples
    --------
    >>> from attsvm.validation.fuzz_families import draw_group
    >>> rows = plain_rows(draw_group("integer", 0, 1)[0])
    >>> rows.m == len(rows.left), all(x.denominator == 1 for a in rows.left for x in a)
    (True, True)
    """
    problem = case.problem
    members = None if case.sets is None else case.sets.members.reshape(-1, problem.T)
    chosen = case.selection.indices.reshape(-1) if members is None else members.argmax(axis=-1)
    allowed = problem.allowed.reshape(-1, problem.T)
    queries = np.asarray(problem.Z, dtype=np.float64).reshape(-1, problem.dz)
    out = PlainRows([], [], [], [], [], [])
    for j in range(len(queries)):
        tokens = [_fractions(x) for x in problem.X[j // problem.K]]
        b = _fractions(queries[j])
        for t in np.flatnonzero(allowed[j]).tolist():
            if t == chosen[j]:
                continue
            inside = members is not None and bool(members[j, t])
            out.left.append([x - y for x, y in zip(tokens[chosen[j]], tokens[t], strict=True)])
            out.right.append(b)
            out.rhs.append(Fraction(0 if inside else 1))
            out.equality.append(inside)
            out.owner.append(j)
            out.token.append(t)
    return out


def plain_scores(problem: AttentionProblem) -> list[list[Fraction]]:
    """Scores ``Y_i v . x_it`` of a linear head, one list per query.

    Examples
    --------
    >>> from attsvm.validation.fuzz_families import draw_group
    >>> case = draw_group("ties", 0, 1)[0]
    >>> len(plain_scores(case.problem)) == case.problem.n
    True
    """
    v = _fractions(getattr(problem.head, "v"))  # noqa: B009  # linear heads only
    labels = np.asarray(problem.Y, dtype=np.float64)
    out = []
    for i in range(problem.n):
        own = [_dot(_fractions(x), v) for x in problem.X[i]]
        for k in range(problem.K):
            sign = Fraction(float(labels[i] if labels.ndim == 1 else labels[i, k]))
            out.append([sign * value for value in own])
    return out


# What may be contradicted, and how it is said.
KINDS = {
    "infeasible": "called infeasible, an exact W exists",
    "proof": "the rows of the proof of infeasibility can be satisfied together",
    "optimal": "called optimal, the rows are exactly infeasible",
    "violation": "called optimal, the exact violation exceeds the tolerance",
    "norm": "called optimal, the norm is not the exact least one to the tolerance",
    "lower bound": "the proved lower bound exceeds the exact optimum",
    "rank": "a feasible W as good as the certified one has more outside the certified rank than the resolution",
    "unique": "called unique within a radius, another solution lies farther away",
    "not unique": "called not unique, the second solution misses rows or has a larger norm",
    "batch": "another status or support in a batch than alone",
    "local": "local optimality (Definition 2) is another one in exact arithmetic",
    "complete": "a complete listing misses a locally optimal selection",
    "judge": "the exact solver itself is wrong, by plain fractions",
    "crash": "an exception or a warning",
}

# A radius or a margin this far inside the tolerance of the support decides every support token.
_CLEAR = 0.1


class JudgeError(ArithmeticError):
    """An exact solver gave an answer that plain fractions refute."""


def _fraction(value: fmpq) -> Fraction:
    return Fraction(int(value.p), int(value.q))


@dataclass(frozen=True, eq=False)
class Judge:
    """The exact answers about one problem, worked out when asked for.

    Attributes
    ----------
    case : FuzzCase

    Examples
    --------
    >>> from attsvm.validation.fuzz_families import draw_group
    >>> case = draw_group("gaussian", 0, 1)[0]
    >>> list(Judge(case).against(attsvm.att_svm(case.problem, case.selection)))
    []
    """

    case: FuzzCase

    @cached_property
    def plain(self) -> PlainRows:
        """The rows as plain fractions."""
        return plain_rows(self.case)

    @cached_property
    def rows(self) -> ExactRows:
        """The same rows as the exact solvers take them."""
        plain = self.plain
        queries = np.asarray(self.case.problem.Z, dtype=np.float64).reshape(-1, self.case.problem.dz)
        left = np.array(plain.left, dtype=object)
        return exact_rows(left, queries, plain.owner, np.array(plain.rhs, dtype=object), plain.equality)

    @cached_property
    def feasible(self) -> bool:
        """Whether some W satisfies the rows: checked by plain fractions either way."""
        answer = exact_feasibility(self.rows)
        if answer.proof is not None:
            sure = self.plain.refuted_by(answer.proof.multipliers.tolist())
        else:
            sure = self.plain.violation(answer.W.tolist()) == 0
        if not sure:
            raise JudgeError("feasibility")
        return answer.feasible

    @cached_property
    def best(self) -> ExactLeastNorm:
        """The least Frobenius norm of feasible rows, its optimality conditions checked by plain fractions."""
        answer = exact_least_norm(self.rows)
        if not isinstance(answer, ExactLeastNorm) or not self.plain.is_least_norm(
            answer.W.tolist(), answer.multipliers.tolist()
        ):
            raise JudgeError("least norm")
        return answer

    @cached_property
    def locally_optimal(self) -> bool:
        """Definition 2 in the Frobenius norm, by fractions: every token on the margin scores strictly less."""
        if not self.feasible:
            return False
        scores, chosen = plain_scores(self.case.problem), self.case.selection.indices.reshape(-1)
        slacks = self.plain.slacks(self.best.W.tolist())
        return all(
            scores[j][t] < scores[j][chosen[j]]
            for j, t, slack in zip(self.plain.owner, self.plain.token, slacks, strict=True)
            if slack == 0
        )

    def against(self, solution: Solution) -> Iterator[tuple[str, str]]:
        """Contradictions of one solution as (kind, detail)."""
        if solution.status == "infeasible":
            yield from self._against_infeasible(solution)
            return
        if not self.feasible:
            if solution.status == "optimal":
                yield "optimal", f"violation {float(_fraction(self.rows.violation(solution.W))):.1e}"
            return
        if solution.norm_name == "frobenius":
            yield from self._against_frobenius(solution)
        elif solution.status.has_solution:
            yield from self._against_nuclear(solution)

    def _against_infeasible(self, solution: Solution) -> Iterator[tuple[str, str]]:
        if self.feasible:
            yield "infeasible", ""
        farkas = solution.certificate.farkas
        if farkas is None or exact_feasibility(self.rows.take(farkas.rows)).feasible:
            yield "proof", "no proof" if farkas is None else f"rows {farkas.rows.tolist()}"

    def _violation(self, solution: Solution) -> Iterator[tuple[str, str]]:
        violation = self.plain.violation([[Fraction(x) for x in row] for row in solution.W.tolist()])
        if violation > Fraction(solution.result.tolerance):
            yield "violation", f"{float(violation):.2e} above {solution.result.tolerance:.0e}"

    def _against_frobenius(self, solution: Solution) -> Iterator[tuple[str, str]]:
        best = self.best
        if Fraction(solution.certificate.lower_bound) ** 2 > best.norm_squared:
            yield "lower bound", f"{solution.certificate.lower_bound!r}"
        if solution.status != "optimal":
            return
        yield from self._violation(solution)
        # A gap and a violation of at most the tolerance each: the square of the norm is right to four of them.
        share = Fraction(solution.norm) ** 2 / best.norm_squared
        if abs(share - 1) > 4 * Fraction(solution.result.tolerance) * (1 + Fraction(1, 10**6)):
            yield "norm", f"squared norm is {float(share):.3e} of the least one"

    def _against_nuclear(self, solution: Solution) -> Iterator[tuple[str, str]]:
        lam = solution.result.multipliers
        proved = enclosure_of(self.rows, solution.W, lam)
        certificate = solution.certificate
        if proved is not None and certificate.lower_bound > proved.norm[1]:
            yield "lower bound", f"{certificate.lower_bound!r}"
        if solution.status != "optimal":
            return
        yield from self._violation(solution)
        if proved is None:
            if not self.plain.equality or not any(self.plain.equality):  # positive margins can always be enlarged
                yield "violation", "a margin is not positive"
            return
        if not proved.gap <= 3.0 * solution.result.tolerance * proved.norm[1]:
            yield "norm", f"exact gap {proved.relative_gap:.1e}"
        yield from _against_rank(solution, proved)
        yield from self._against_uniqueness(solution, proved)

    def _against_uniqueness(self, solution: Solution, proved: NuclearEnclosure) -> Iterator[tuple[str, str]]:
        said = solution.result.uniqueness
        if said.verdict != "not unique":
            return
        assert said.witness is not None
        other = enclosure_of(self.rows, said.witness, solution.result.multipliers)
        violation = _fraction(self.rows.violation(said.witness))
        tolerance = solution.result.tolerance
        if other is None or violation > 2 * Fraction(tolerance):
            yield "not unique", f"the witness misses rows by {float(violation):.1e}"
        elif other.gap > 6.0 * tolerance * proved.norm[1]:
            yield "not unique", f"the witness has a relative gap of {other.relative_gap:.1e}"
        else:
            yield from _against_rank(solution, other)

    def against_pair(self, alone: Solution, together: Solution) -> Iterator[tuple[str, str]]:
        """Contradictions between a problem solved alone and in a batch."""
        if alone.status != together.status:
            yield "batch", f"{alone.status} alone, {together.status} in a batch"
            return
        if alone.status != "optimal":
            return
        if alone.norm_name == "frobenius":
            same = bool((alone.support == together.support).all())
        else:
            said = alone.result.uniqueness
            yield from self.against_radius(alone, together)
            # Solutions of the nuclear norm need not be unique, and a margin is known to the radius only.
            with np.errstate(over="ignore"):
                blur = said.radius * float(alone.rows.margin_problem.row_norms.max())
            clear = said.verdict == "unique" and blur <= _CLEAR * alone.support_tolerance
            same = not clear or bool((alone.support == together.support).all())
        if not same:
            differ = (alone.support != together.support).nonzero()
            margins = [solution.token_margins()[differ] - 1.0 for solution in (alone, together)]
            yield "batch", f"support differs, margins - 1: {margins[0]} alone, {margins[1]} in a batch"

    def against_radius(self, alone: Solution, together: Solution) -> Iterator[tuple[str, str]]:
        """A solution of the same problem by another method (that of batches, or factors), against the radius."""
        said = alone.result.uniqueness
        if said.verdict != "unique" or not together.status.has_solution:
            return
        second = enclosure_of(self.rows, together.W, alone.result.multipliers)
        if second is None:
            return
        # The radius is about matrices up to the excess that was allowed for. A worse one is, in a share of the way from
        # the best that is in proportion, at most twice that (convexity).
        allowed = said.radius * max(1.0, 2.0 * second.gap / _excess(alone))
        size = float(np.abs(alone.W).max())  # squares may leave the range
        distance = size * float(np.linalg.norm(alone.W / size - together.W / size))
        if distance > allowed * (1.0 + 1e-9):
            yield "unique", f"radius {said.radius:.1e}, distance {distance:.1e}"


def enclosure_of(rows: ExactRows, W: AnyFloatArray, multipliers: AnyFloatArray) -> NuclearEnclosure | None:
    """What W, enlarged until it satisfies every row exactly, and the multipliers prove; None if it misses a sign.

    Examples
    --------
    >>> enclosure_of(exact_rows([[2.0]], [[1.0]], [0]), np.array([[0.25]]), np.array([0.5])).norm[1].__round__(9)
    0.5
    """
    matrix = rational_matrix("W", W)
    if rows.equality.any():  # equalities need more than scaling
        met = repair(rows, matrix)
        return None if met is None or rows.violation(met) != 0 else enclose(rows, met, multipliers)
    least = min(rows.margins(matrix))
    if not least > 0:
        return None
    return enclose(rows, matrix if least >= 1 else matrix * (rational(1) / least), multipliers)


def _excess(solution: Solution) -> float:
    """What the certificate itself allows between the norm of W made feasible and the optimal one; at most that."""
    found = solution.certificate
    share = found.gap + found.gap_error + found.primal_violation + found.primal_error
    return max(found.norm * share, 1e-300)


def _against_rank(solution: Solution, other: NuclearEnclosure) -> Iterator[tuple[str, str]]:
    """The part of a feasible matrix outside the certified rank, against the resolution."""
    claim = solution.certificate.rank_certificate
    if claim is None:
        yield "rank", "no rank certificate"
        return
    outside = float(other.singular_values[0][claim.rank :].sum())
    # The resolution is about matrices up to the excess that was allowed for; it is in proportion to it.
    allowed = claim.resolution * max(1.0, other.gap / _excess(solution))
    if outside > allowed * (1.0 + 1e-9):
        yield "rank", f"rank {claim.rank} at {claim.resolution:.1e}, outside it {outside:.1e}"


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
    >>> from attsvm.validation.fuzz_families import draw_group
    >>> case = draw_group("sphere", 3, 1)[0]
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
    >>> from attsvm.validation.fuzz_families import draw_group
    >>> list(against_listings(draw_group("ties", 1, 1)[0]))
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
