"""What exact arithmetic says against the claims of a solution; an empty list says nothing against them.

The judge shares no arithmetic with the certificates in float64: feasibility is a linear program over the rationals, the
least Frobenius norm an active-set method over the rationals, nuclear norms and singular values are enclosed by balls of
192 bits. The library asks the same exact solvers where float64 leaves something open, so the judge does not take
their word: a feasible matrix, a proof that there is none, a matrix of least norm are checked by plain fractions on
rows made of the tokens alone (`attsvm.validation.fuzz_fractions`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from attsvm._arrays import FloatArray
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
from attsvm.validation.fuzz_families import FuzzCase
from attsvm.validation.fuzz_fractions import PlainRows, plain_rows, plain_scores

if TYPE_CHECKING:
    from flint import fmpq

__all__ = ["KINDS", "Judge", "JudgeError", "enclosure_of"]

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
    >>> import attsvm
    >>> from attsvm.validation.fuzz_families import draw_case
    >>> from attsvm.validation.fuzz_judge import Judge
    >>> case = draw_case("gaussian", 0)
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


def enclosure_of(rows: ExactRows, W: FloatArray, multipliers: FloatArray) -> NuclearEnclosure | None:
    """What W, enlarged until it satisfies every row exactly, and the multipliers prove; None if it misses a sign.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.exact import exact_rows
    >>> from attsvm.validation.fuzz_judge import enclosure_of
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
