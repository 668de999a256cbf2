"""Exact arithmetic after the solve: a small solution proved again in rationals, one that rounding left open settled.

Float64 certificates carry error bounds. Where these are too large for a claim (rows of very different sizes, nearly
equal tokens), the same quantities are computed from the same numbers as exact rationals: a float64 number is one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import isqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.certificate import Certificate
from attsvm.solvers.norms import Norm
from attsvm.solvers.problem import MarginProblem
from attsvm.solvers.solution import Found
from attsvm.solvers.status import Status

if TYPE_CHECKING:
    from attsvm.solvers.certificate import Source
    from attsvm.solvers.exact import ExactFarkas, ExactRows
    from attsvm.solvers.farkas import FarkasCertificate

__all__ = [
    "EXACT_ENTRIES",
    "ExactCertificate",
    "exact_certificate",
    "exact_from_source",
    "exact_proof",
    "exact_rows_of",
    "settle_exactly",
]

# Rows times entries of W up to which a solve that ended open is taken up in exact arithmetic (below about a second).
_ENTRIES = 8_000
# The same for a proof that is asked for.
EXACT_ENTRIES = 40_000


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
    >>> from attsvm.solvers.reproof import exact_rows_of
    >>> print(*exact_rows_of(MarginProblem([[0.5]], [[1.0]], [0])).margins([[3.0]]))
    3/2
    """
    from attsvm.solvers.exact import exact_rows

    pair = problem.rows.gather(np.arange(problem.m))
    rows = exact_rows(pair.exact_left(), pair.queries, pair.owner, problem.asked, problem.equality)
    if problem.prior is None:
        return rows
    values = rows.margins(problem.prior.W)
    return replace(rows, rhs=[asked - value for asked, value in zip(rows.rhs, values, strict=True)])


def _up(value: Fraction) -> float:
    return float(np.nextafter(float(value), np.inf)) if value > 0 else 0.0


def _root(value: Fraction) -> tuple[float, float]:
    """Floats below and above the square root of a rational of any size."""
    if value == 0:
        return 0.0, 0.0
    shift = 60 + max(0, value.denominator.bit_length() - value.numerator.bit_length()) // 2
    floor = isqrt((value.numerator << 2 * shift) // value.denominator)
    lower, upper = Fraction(floor, 1 << shift), Fraction(floor + 1, 1 << shift)
    return float(np.nextafter(float(lower), 0.0)), float(np.nextafter(float(upper), np.inf))


def _frobenius(rows: ExactRows, W: FloatArray, lam: FloatArray) -> tuple[Fraction, float, tuple[float, float]]:
    """Exact violation, bound on the gap, and bounds on the optimal norm."""
    from attsvm.solvers.exact import repair
    from attsvm.solvers.exact.rows import rational, rational_matrix

    def fraction(value: Any) -> Fraction:
        return Fraction(int(value.p), int(value.q))

    matrix = rational_matrix("W", W, rows.shape)
    weights = [rational(x) if e or x > 0 else rational(0) for x, e in zip(lam.tolist(), rows.equality, strict=True)]
    dual = rows.combination(weights)
    objective = fraction(sum((r * y for r, y in zip(rows.rhs, weights, strict=True)), start=rational(0)))
    square = fraction(sum((x * x for x in matrix.entries()), start=rational(0)))
    dual_square = fraction(sum((x * x for x in dual.entries()), start=rational(0)))
    violation = fraction(rows.violation(matrix))
    if square == 0:
        return violation, 0.0, (0.0, 0.0 if violation == 0 else float("inf"))
    lower_square = objective * objective / dual_square if objective > 0 and dual_square > 0 else Fraction(0)
    # 1 - sqrt(t) <= 1 - t for t in [0, 1]: at most twice the gap, without a root.
    gap = max(Fraction(0), 1 - lower_square / square)
    # A W that misses rows bounds nothing from above until it is made feasible.
    met = matrix if violation == 0 else repair(rows, matrix)
    upper = None if met is None else fraction(sum((x * x for x in met.entries()), start=rational(0)))
    return violation, _up(gap), (_root(lower_square)[0], float("inf") if upper is None else _root(upper)[1])


def exact_certificate(
    problem: MarginProblem, W: FloatArray, multipliers: FloatArray, norm: Norm, tolerance: float = 1e-8
) -> ExactCertificate:
    """What (W, multipliers) prove in exact arithmetic; Frobenius and nuclear norm, small problems.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, get_norm
    >>> from attsvm.solvers.reproof import exact_certificate
    >>> rows = MarginProblem([[2.0]], [[1.0]], [0])
    >>> print(exact_certificate(rows, np.array([[0.5]]), np.array([0.5]), get_norm("frobenius")).status)
    optimal
    """
    rows = exact_rows_of(problem)
    if norm.name == "frobenius":
        violation, gap, between = _frobenius(rows, W, multipliers)
        closes = violation <= Fraction(tolerance) and gap <= tolerance
        return ExactCertificate(Status.OPTIMAL if closes else Status.INACCURATE, violation, gap, between)
    if norm.name != "nuclear":
        raise ValueError(f"norm must be 'frobenius' or 'nuclear' for an exact certificate, got {norm.name!r}")
    from attsvm.solvers.exact import nuclear_enclosure

    found = nuclear_enclosure(rows, W, multipliers)
    if found is None:
        missed = rows.violation(W)
        violation = Fraction(int(missed.p), int(missed.q))
        return ExactCertificate(Status.INACCURATE, violation, float("inf"), (0.0, float("inf")))
    between = (found.lower_bound, found.norm[1])
    closes = found.violation <= Fraction(tolerance) and found.relative_gap <= tolerance
    delta = max(1e-8, float(np.sqrt(found.relative_gap))) * found.norm[1]
    return ExactCertificate(
        Status.OPTIMAL if closes else Status.INACCURATE, found.violation, found.relative_gap, between,
        found.rank(delta), delta,
    )  # fmt: skip


def exact_from_source(
    source: Source | None, farkas: FarkasCertificate | None, tolerance: float | None = None
) -> ExactCertificate:
    """What `Certificate.exact` returns, or one error that says why there is nothing to prove."""
    if source is None:
        raise ValueError("exact() needs the problem that the certificate is about: take it from a solution or certify")
    problem, W, multipliers, norm = source
    if problem.penalty is not None:
        raise ValueError("exact() proves hard margins; a soft one has the bounds of its certificate")
    if problem.batch:
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
    default = 1e-7 if norm.name == "nuclear" else 1e-8
    return exact_certificate(problem, W, multipliers, norm, tolerance or default)


def _exact_proof_of(problem: MarginProblem, farkas: FarkasCertificate) -> ExactCertificate:
    from attsvm.solvers.exact import exact_farkas

    proof = exact_farkas(exact_rows_of(problem), farkas.multipliers)
    if proof is None:
        raise ArithmeticError("the rows can be satisfied exactly: the proof of infeasibility is wrong, which is a bug")
    inf = float("inf")
    return ExactCertificate(Status.INFEASIBLE, Fraction(0), inf, (inf, inf), farkas=proof)


def settle_exactly(problem: MarginProblem, norm: Norm, found: Found, tolerance: float) -> Found:
    """A result that rounding left open, decided in exact arithmetic where the problem is small enough.

    Frobenius: the exact solution in float64, if that satisfies the rows (`attsvm.solvers.exact.representable`); or an
    exact proof of infeasibility. Nuclear: W and multipliers with exact measures, W made feasible where it is not; or a
    proof.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, get_norm
    >>> from attsvm.solvers.reproof import settle_exactly
    >>> from attsvm.solvers.solution import Found
    >>> thin = MarginProblem([[1e12, 0.0], [-1e12, 1.0]], [[1.0]], [0, 0])
    >>> settle_exactly(thin, get_norm("frobenius"), Found(), 1e-8).W.ravel()
    array([1.e-12, 2.e+00])
    """
    dx, dz = problem.shape
    if problem.m * dx * dz > _ENTRIES or norm.name not in ("frobenius", "nuclear"):
        return found
    rows = exact_rows_of(problem)
    known = found.multipliers if found.multipliers is not None and np.isfinite(found.multipliers).all() else None
    if norm.name == "frobenius" or min(problem.shape) == 1:  # on vectors the two norms are one
        return _settle_least_norm(problem, norm, rows, known, found, tolerance)
    return _settle_nuclear(problem, norm, rows, known, found, tolerance)


def _settle_least_norm(
    problem: MarginProblem, norm: Norm, rows: ExactRows, known: FloatArray | None, found: Found, tolerance: float
) -> Found:
    """The exact solution in float64, entry by entry or, where that misses rows, as it can be represented."""
    from attsvm.solvers.exact import ExactLeastNorm, exact_least_norm, representable

    try:
        best = exact_least_norm(rows, known)
    except RuntimeError:  # too many exchanges
        return found
    if not isinstance(best, ExactLeastNorm):
        return _refuted(problem, best, found)
    lam, size = best.multipliers_float, _root(best.norm_squared)[1]
    if not 2.0**-400 < size < 2.0**400:  # the square leaves the range: nothing to measure in float64
        return found
    for plainly in (True, False):  # each entry to the nearest, then so that the margins are kept
        W = best.W_float if plainly else representable(rows, best.matrix)
        if not np.isfinite(W).all():
            return found
        found = _better(found, _measured(problem, norm, replace(found, W=W, multipliers=lam / size), tolerance))
        if _closes(found, tolerance):
            break
    return found


def _settle_nuclear(
    problem: MarginProblem, norm: Norm, rows: ExactRows, known: FloatArray | None, found: Found, tolerance: float
) -> Found:
    """The same W with exact measures, or made feasible and rounded again; or a proof that there is none."""
    from attsvm.solvers.exact import exact_feasibility, repair, representable

    guess = found.W if found.W is not None and known is not None and np.isfinite(found.W).all() else None
    if guess is not None:
        found = _better(found, _measured(problem, norm, found, tolerance))
        if _closes(found, tolerance):
            return found
        met = repair(rows, guess)
        if met is not None:  # hence feasible
            W = representable(rows, met)
            return _better(found, _measured(problem, norm, replace(found, W=W), tolerance))
    proof = exact_feasibility(rows, guess, known).proof
    return found if proof is None else _refuted(problem, proof, found)


def _closes(found: Found, tolerance: float) -> bool:
    return found.certificate is not None and found.certificate.proved <= tolerance


def _better(found: Found, other: Found) -> Found:
    """The one whose certificate proves more."""
    assert other.certificate is not None
    if found.certificate is not None and found.certificate.proved <= other.certificate.proved:
        return found
    return other


def exact_proof(problem: MarginProblem) -> Certificate | None:
    """A proof of infeasibility in rationals, if there is one and the problem is small enough to look for it.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.reproof import exact_proof
    >>> exact_proof(MarginProblem([[1.0], [1.0]], [[1.0]], [0, 0], [1.0, 2.0], [True, True])).farkas.proof
    'rationals'
    """
    from attsvm.solvers.exact import exact_feasibility

    if problem.m * problem.shape[0] * problem.shape[1] > _ENTRIES:
        return None
    proof = exact_feasibility(exact_rows_of(problem)).proof
    return None if proof is None else _refuted(problem, proof, Found()).farkas


def _refuted(problem: MarginProblem, proof: ExactFarkas, found: Found) -> Found:
    from attsvm.solvers.farkas import farkas_certificate

    lam = np.array([float(y) for y in proof.multipliers])
    return Found(
        farkas=farkas_certificate(problem, lam, "rationals", proof.rows),
        iterations=found.iterations,
        extras=found.extras,
    )


def _measured(problem: MarginProblem, norm: Norm, found: Found, tolerance: float) -> Found:
    """The result with a certificate of its W and multipliers whose numbers are exact."""
    from attsvm.solvers.certify import certify

    assert found.W is not None and found.multipliers is not None
    plain = certify(problem, found.W, found.multipliers, norm)
    exact = exact_certificate(problem, found.W, found.multipliers, norm, tolerance)
    certificate: Certificate = replace(
        plain,
        primal_violation=min(_up(exact.violation), float(np.finfo(np.float64).max)),
        gap=exact.gap,
        dual_violation=0.0,  # the bound below is that of the rescaled multipliers, exactly
        lower_bound=exact.norm[0],
        primal_error=0.0,
        gap_error=0.0,
    )
    return replace(found, certificate=certificate)
