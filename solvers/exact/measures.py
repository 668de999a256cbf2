"""Certificates in rationals: what W and multipliers prove without a rounding, from the same numbers.

A float64 number is a rational, so rows, margins and the dual matrix are computed exactly. Norms that are no rationals
(roots, singular values) are enclosed by balls of 192 bits; of a bound the safe end is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import isqrt
from typing import TYPE_CHECKING

import numpy as np

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.margin_problem import MarginProblem, is_batch
from attsvm.solvers.norms import Entrywise, Norm, Schatten
from attsvm.solvers.status import Status

if TYPE_CHECKING:
    from flint import arb, fmpq, fmpq_mat

    from attsvm.solvers.certify.certificate import Source
    from attsvm.solvers.certify.farkas import FarkasCertificate
    from attsvm.solvers.exact import ExactFarkas, ExactRows

__all__ = [
    "EXACT_ENTRIES",
    "ExactCertificate",
    "exact_certificate",
    "exact_from_source",
    "exact_rows_of",
    "norm_enclosure",
    "root_bounds",
    "rounded_up",
]

# Rows times entries of W up to which a proof that is asked for is made.
EXACT_ENTRIES = 40_000
_BITS = 192


@dataclass(frozen=True, eq=False)
class ExactCertificate:
    """What exact rational arithmetic says about a solution or a proof of infeasibility.

    Attributes
    ----------
    status : Status
        "optimal" (to the tolerance), "infeasible" or "inaccurate".
    violation : Fraction
        Largest amount by which W misses a row: exact.
    gap : float
        Upper bound, rounded up, on ``1 - optimal norm / N(W)`` (for a W that misses rows, on the same with the bound).
    norm : tuple of float
        Lower and upper bound on the optimal norm (the latter of W made exactly feasible); infinite when infeasible.
    rank, resolution : int and float, or None
        Nuclear norm: every optimal W has at most ``rank`` singular values above ``resolution``.
    farkas : ExactFarkas or None
        Rational multipliers of the proof of infeasibility.
    """

    status: Status
    violation: Fraction
    gap: float
    norm: tuple[float, float]
    rank: int | None = None
    resolution: float | None = None
    farkas: ExactFarkas | None = None

    def __repr__(self) -> str:
        return f"ExactCertificate({self})"

    def __str__(self) -> str:
        if self.farkas is not None:
            return f"infeasible, by exact multipliers on rows {self.farkas.rows.tolist()}"
        rank = "" if self.rank is None else f", rank {self.rank} at resolution {self.resolution:.1e}"
        return (
            f"{self.status}: exact violation {float(self.violation):.1e}, gap at most {self.gap:.1e}, "
            f"optimal norm in [{self.norm[0]:.17g}, {self.norm[1]:.17g}]{rank}"
        )


def exact_rows_of(problem: MarginProblem) -> ExactRows:
    """The rows of one problem as rationals; differences of tokens without the rounding of the difference.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.exact.measures import exact_rows_of
    >>> print(*exact_rows_of(MarginProblem([[0.5]], [[1.0]], [0])).margins([[3.0]]))
    3/2
    """
    from attsvm.solvers.exact import exact_rows

    pair = problem.pairs()
    rows = exact_rows(pair.exact_left(), pair.queries, pair.owner, problem.asked, problem.equality)
    if problem.prior is None:
        return rows
    values = rows.margins(problem.prior.W)  # a change is asked for what the prior leaves, without its rounding
    return replace(rows, rhs=[asked - value for asked, value in zip(rows.rhs, values, strict=True)])


def rounded_up(value: Fraction) -> float:
    """A float64 above a rational, 0 for one that is not positive.

    Examples
    --------
    >>> from fractions import Fraction
    >>> from attsvm.solvers.exact.measures import rounded_up
    >>> Fraction(rounded_up(Fraction(1, 3))) > Fraction(1, 3)
    True
    """
    return float(np.nextafter(float(value), np.inf)) if value > 0 else 0.0


def root_bounds(value: Fraction) -> tuple[float, float]:
    """Floats below and above the square root of a rational of any size.

    Examples
    --------
    >>> from fractions import Fraction
    >>> from attsvm.solvers.exact.measures import root_bounds
    >>> lower, upper = root_bounds(Fraction(2))
    >>> lower < 2**0.5 < upper < lower + 1e-15
    True
    """
    if value == 0:
        return 0.0, 0.0
    shift = 60 + max(0, value.denominator.bit_length() - value.numerator.bit_length()) // 2
    floor = isqrt((value.numerator << 2 * shift) // value.denominator)
    lower, upper = Fraction(floor, 1 << shift), Fraction(floor + 1, 1 << shift)
    return float(np.nextafter(float(lower), 0.0)), float(np.nextafter(float(upper), np.inf))


def _fraction(value: fmpq) -> Fraction:
    return Fraction(int(value.p), int(value.q))


def _violation(rows: ExactRows, matrix: fmpq_mat) -> Fraction:
    """The largest amount by which a row is missed, relative to ``max(1, |rhs|)``."""
    worst = Fraction(0)
    for slack, side, equal in zip(rows.slacks(matrix), rows.rhs, rows.equality.tolist(), strict=True):
        if slack < 0 or (equal and slack != 0):
            worst = max(worst, abs(_fraction(slack)) / max(Fraction(1), abs(_fraction(side))))
    return worst


def norm_enclosure(matrix: fmpq_mat, norm: Norm) -> arb:
    """A ball that contains the norm of a rational matrix.

    Examples
    --------
    >>> from attsvm.solvers import get_norm
    >>> from attsvm.solvers.exact.rows import rational_matrix
    >>> from attsvm.solvers.exact.measures import norm_enclosure
    >>> W = rational_matrix("W", [[3.0, 0.0], [0.0, 4.0]])
    >>> [round(float(norm_enclosure(W, get_norm(name))), 9) for name in ("frobenius", "nuclear", "linf", "l3")]
    [5.0, 7.0, 4.0, 4.497941445]
    """
    from flint import arb, fmpq

    from attsvm.solvers.exact.nuclear import singular_values
    from attsvm.solvers.exact.rows import rational

    sizes = [abs(x) for x in matrix.entries()]
    if isinstance(norm, Schatten) and norm.p == 2.0:
        return arb(sum((x * x for x in sizes), start=fmpq(0))).sqrt()
    if isinstance(norm, Schatten):
        values = singular_values(matrix)
        return values[0] if np.isinf(norm.p) else sum(values, start=arb(0))
    if not isinstance(norm, Entrywise):
        raise ValueError(f"norm must be of matrices' entries or singular values for an exact certificate, got {norm!r}")
    if np.isinf(norm.p):
        return arb(max(sizes))
    if norm.p == 1.0:
        return arb(sum(sizes, start=fmpq(0)))
    power = arb(rational(norm.p))
    return sum((arb(x) ** power for x in sizes if x != 0), start=arb(0)) ** (1 / power)


def _frobenius(rows: ExactRows, matrix: fmpq_mat, weights: list[fmpq]) -> tuple[float, tuple[float, float]]:
    """Bound on the gap and bounds on the optimal norm, all rational up to the last rounding."""
    from attsvm.solvers.exact import repair
    from attsvm.solvers.exact.rows import rational

    def square_of(candidate: fmpq_mat) -> Fraction:
        return _fraction(sum((x * x for x in candidate.entries()), start=rational(0)))

    objective = _fraction(sum((r * y for r, y in zip(rows.rhs, weights, strict=True)), start=rational(0)))
    square, dual_square = square_of(matrix), square_of(rows.combination(weights))
    missed = rows.violation(matrix) != 0
    if square == 0:
        return 0.0, (0.0, float("inf") if missed else 0.0)
    lower_square = objective * objective / dual_square if objective > 0 and dual_square > 0 else Fraction(0)
    # 1 - sqrt(t) <= 1 - t for t in [0, 1]: at most twice the gap, without a root.
    gap = max(Fraction(0), 1 - lower_square / square)
    # A W that misses rows bounds nothing from above until it is made feasible.
    met = repair(rows, matrix) if missed else matrix
    upper = float("inf") if met is None else root_bounds(square_of(met))[1]
    return rounded_up(gap), (root_bounds(lower_square)[0], upper)


def _general(rows: ExactRows, matrix: fmpq_mat, weights: list[fmpq], norm: Norm) -> tuple[float, tuple[float, float]]:
    """The same for any norm, by balls."""
    from flint import arb, ctx

    from attsvm.solvers.exact import repair
    from attsvm.solvers.exact.nuclear import float_bounds
    from attsvm.solvers.exact.rows import rational

    before, ctx.prec = ctx.prec, _BITS
    try:
        objective = sum((r * y for r, y in zip(rows.rhs, weights, strict=True)), start=rational(0))
        dual = rows.combination(weights)
        bound = arb(0)
        if objective > 0 and any(x != 0 for x in dual.entries()):
            bound = (arb(objective) / norm_enclosure(dual, norm.dual)).lower()
        value = norm_enclosure(matrix, norm)
        gap = float_bounds(((value - bound) / value).upper())[1] if value > 0 else 0.0
        met = matrix if rows.violation(matrix) == 0 else repair(rows, matrix)
        upper = float("inf") if met is None else float_bounds(norm_enclosure(met, norm))[1]
        return max(gap, 0.0), (max(float_bounds(bound)[0], 0.0), upper)
    finally:
        ctx.prec = before


def exact_certificate(
    problem: MarginProblem, W: FloatArray, multipliers: FloatArray, norm: Norm, tolerance: float = 1e-8
) -> ExactCertificate:
    """What (W, multipliers) prove in exact arithmetic; small problems.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, get_norm
    >>> from attsvm.solvers.exact.measures import exact_certificate
    >>> rows = MarginProblem([[2.0]], [[1.0]], [0])
    >>> print(exact_certificate(rows, np.array([[0.5]]), np.array([0.5]), get_norm("frobenius")).status)
    optimal
    """
    from attsvm.solvers.exact import nuclear_enclosure
    from attsvm.solvers.exact.rows import rational, rational_matrix

    rows = exact_rows_of(problem)
    matrix = rational_matrix("W", W, rows.shape)
    violation, rank, resolution = _violation(rows, matrix), None, None
    if norm.name == "nuclear":
        found = nuclear_enclosure(rows, W, multipliers)
        if found is None:  # W could not be made feasible
            return ExactCertificate(Status.INACCURATE, violation, float("inf"), (0.0, float("inf")))
        gap, between = found.relative_gap, (found.lower_bound, found.norm[1])
        rank = found.rank(max(1e-8, float(np.sqrt(gap))) * found.norm[1])
        resolution = float(found.resolutions[rank])
    else:
        lam = np.asarray(multipliers, dtype=np.float64).tolist()
        weights = [rational(x) if e or x > 0 else rational(0) for x, e in zip(lam, rows.equality, strict=True)]
        gap, between = (
            _frobenius(rows, matrix, weights) if norm.name == "frobenius" else _general(rows, matrix, weights, norm)
        )
    closes = violation <= Fraction(tolerance) and gap <= tolerance
    return ExactCertificate(Status.OPTIMAL if closes else Status.INACCURATE, violation, gap, between, rank, resolution)


def exact_from_source(
    source: Source | None, farkas: FarkasCertificate | None, tolerance: float | None = None
) -> ExactCertificate:
    """What `Certificate.exact` returns, or one error that says why there is nothing to prove."""
    if source is None:
        raise ValueError("exact() needs the problem that the certificate is about: take it from a solution or certify")
    problem, W, multipliers, norm = source[:4]
    if problem.penalty is not None:
        raise ValueError("exact() proves hard margins; a soft one has the bounds of its certificate")
    if is_batch(problem):
        raise ValueError("exact arithmetic goes one problem at a time; index the batch first, e.g. solution[0]")
    size = problem.m * problem.shape[0] * problem.shape[1]
    if size > EXACT_ENTRIES:
        raise ValueError(
            f"exact() is for problems of up to {EXACT_ENTRIES} rows times entries of W; this one has {problem.m} rows "
            f"of {problem.shape[0]} x {problem.shape[1]}, that is {size}"
        )
    if farkas is not None:
        return _exact_proof_of(problem, farkas)
    if W is None or norm is None or not np.isfinite(W).all():
        raise ValueError("exact() has nothing to prove: the solve ended without W and without a proof")
    default = 1e-8 if norm.name == "frobenius" else 1e-7
    return exact_certificate(problem, W, multipliers, norm, tolerance or default)


def _exact_proof_of(problem: MarginProblem, farkas: FarkasCertificate) -> ExactCertificate:
    from attsvm.solvers.exact import exact_farkas

    proof = exact_farkas(exact_rows_of(problem), farkas.multipliers)
    if proof is None:
        raise ArithmeticError("the rows can be satisfied exactly: the proof of infeasibility is wrong, which is a bug")
    inf = float("inf")
    return ExactCertificate(Status.INFEASIBLE, Fraction(0), inf, (inf, inf), farkas=proof)
