"""What rounding left open, settled in exact arithmetic before the answer is given.

Float64 certificates carry error bounds. Where these are too large for a claim (rows of very different sizes, nearly
equal tokens), the same quantities are computed from the same numbers as exact rationals (`exact_certificate`). Where W
itself is too far off, the exact solution is rounded entry by entry, or a proof of infeasibility is made. Tokens that
agree to twelve digits may need a W that no rounding leaves feasible: that stays open, and the certificate says so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.certify.certificate import Certificate
from attsvm.solvers.deadline import OutOfTime
from attsvm.solvers.exact.measures import exact_certificate, exact_rows_of, root_bounds, rounded_up
from attsvm.solvers.margin_problem import MarginProblem
from attsvm.solvers.margin_solution import MethodResult
from attsvm.solvers.norms import Entrywise, Norm, Schatten, get_norm

if TYPE_CHECKING:
    from flint import fmpq_mat

    from attsvm.solvers.exact import ExactFarkas, ExactRows

__all__ = ["exact_proof", "measured_exactly", "settle_exactly"]

# Rows times entries of W up to which a solve that ended open is taken up in exact arithmetic (below about a second),
# and up to which the linear program of the l1 and linf norms is solved over the rationals.
_ENTRIES = 8_000
_PROGRAM_ENTRIES = 300


def settle_exactly(problem: MarginProblem, norm: Norm, found: MethodResult, tolerance: float) -> MethodResult:
    """A result that rounding left open, decided in exact arithmetic where the problem is small enough.

    Frobenius: the exact solution rounded entry by entry, or an exact proof of infeasibility. Other norms: W and
    multipliers with exact measures, W made feasible where it is not; or a proof. For l1 and linf also the exact
    solution; where nothing is left, the one of least Frobenius norm.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, get_norm
    >>> from attsvm.solvers.exact.settle import settle_exactly
    >>> from attsvm.solvers.margin_solution import MethodResult
    >>> thin = MarginProblem([[1e12, 0.0], [-1e12, 1.0]], [[1.0]], [0, 0])
    >>> settle_exactly(thin, get_norm("frobenius"), MethodResult(), 1e-8).W.ravel()
    array([1.e-12, 2.e+00])
    """
    dx, dz = problem.shape
    if problem.m * dx * dz > _ENTRIES or not isinstance(norm, Schatten | Entrywise):  # of these balls are known
        return found
    rows = exact_rows_of(problem)
    known = found.multipliers if found.multipliers is not None and np.isfinite(found.multipliers).all() else None
    # On vectors the norms of singular values are one.
    if norm.name == "frobenius" or (min(problem.shape) == 1 and norm.unitarily_invariant):
        return _settle_least_norm(problem, norm, rows, known, found, tolerance)
    found = _settle_pair(problem, norm, rows, known, found, tolerance)
    if found.farkas is not None or _closes(found, tolerance):
        return found
    if norm.name in ("l1", "linf") and problem.m * dx * dz <= _PROGRAM_ENTRIES:
        found = _settle_program(problem, norm, rows, found, tolerance)
    return _fallback(problem, norm, rows, found, tolerance) if found.W is None else found


def _settle_least_norm(
    problem: MarginProblem, norm: Norm, rows: ExactRows, known: FloatArray | None, found: MethodResult, tolerance: float
) -> MethodResult:
    """The exact solution, rounded entry by entry."""
    from attsvm.solvers.exact import ExactLeastNorm, exact_least_norm
    from attsvm.solvers.exact.rows import rational, to_float

    try:
        best = exact_least_norm(rows, known)
    except RuntimeError:  # too many exchanges
        return found
    if not isinstance(best, ExactLeastNorm):
        return _refuted(problem, best, found)
    size = root_bounds(best.norm_squared)[1]
    if not 2.0**-400 < size < 2.0**400:  # the square leaves the range: nothing to measure in float64
        return found
    lam = np.array([to_float(y / rational(size)) for y in best.values])
    return _rounded(problem, norm, best.matrix, lam, found, tolerance)


def _rounded(
    problem: MarginProblem, norm: Norm, matrix: fmpq_mat, lam: FloatArray, found: MethodResult, tolerance: float
) -> MethodResult:
    """A feasible matrix rounded entry by entry, with these multipliers, where that proves more than what was found."""
    from attsvm.solvers.exact import nearest

    W = nearest(matrix)
    if not (np.isfinite(W).all() and np.isfinite(lam).all()):
        return found
    return _better(found, measured_exactly(problem, norm, replace(found, W=W, multipliers=lam), tolerance))


def _settle_pair(
    problem: MarginProblem, norm: Norm, rows: ExactRows, known: FloatArray | None, found: MethodResult, tolerance: float
) -> MethodResult:
    """The same W with exact measures, or made feasible and rounded again; or a proof that there is none."""
    from attsvm.solvers.exact import exact_feasibility, repair

    guess = found.W if found.W is not None and np.isfinite(found.W).all() else None
    if guess is not None and known is not None:
        found = _better(found, measured_exactly(problem, norm, found, tolerance))
        if _closes(found, tolerance):
            return found
        met = repair(rows, guess)
        if met is not None:  # hence feasible
            return _rounded(problem, norm, met, known, found, tolerance)
    proof = exact_feasibility(rows, guess, known).proof
    return found if proof is None else _refuted(problem, proof, found)


def _settle_program(
    problem: MarginProblem, norm: Norm, rows: ExactRows, found: MethodResult, tolerance: float
) -> MethodResult:
    """The linear program of the l1 or linf norm over the rationals, its solution rounded entry by entry."""
    from attsvm.solvers.exact import ExactFarkas, exact_polyhedral

    try:
        best = exact_polyhedral(rows, norm.name, max_pivots=200)
    except RuntimeError:  # too many exchanges
        return found
    if isinstance(best, ExactFarkas):
        return _refuted(problem, best, found)
    return _rounded(problem, norm, best.matrix, best.multipliers_float, found, tolerance)


def _fallback(
    problem: MarginProblem, norm: Norm, rows: ExactRows, found: MethodResult, tolerance: float
) -> MethodResult:
    """Where the method of a norm came back with nothing: the least Frobenius norm, which is feasible at least."""
    other = _settle_least_norm(problem, get_norm("frobenius"), rows, None, MethodResult(), tolerance)
    if other.W is None or other.multipliers is None:
        return found
    size = norm.dual(problem.adjoint(other.multipliers))
    if not 0 < size < np.inf:
        return found
    return measured_exactly(problem, norm, replace(found, W=other.W, multipliers=other.multipliers / size), tolerance)


def _closes(found: MethodResult, tolerance: float) -> bool:
    return found.certificate is not None and found.certificate.proved <= tolerance


def _better(found: MethodResult, other: MethodResult) -> MethodResult:
    """The one whose certificate proves more."""
    assert other.certificate is not None
    if found.certificate is not None and found.certificate.proved <= other.certificate.proved:
        return found
    return other


def exact_proof(problem: MarginProblem) -> Certificate | None:
    """A proof of infeasibility in rationals, if there is one, and the problem is small enough and time left to find it.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.exact.settle import exact_proof
    >>> exact_proof(MarginProblem([[1.0], [1.0]], [[1.0]], [0, 0], [1.0, 2.0], [True, True])).farkas.proof
    'rationals'
    """
    from attsvm.solvers.exact import exact_feasibility

    if problem.m * problem.shape[0] * problem.shape[1] > _ENTRIES:
        return None
    try:
        proof = exact_feasibility(exact_rows_of(problem)).proof
    except OutOfTime:
        return None
    return None if proof is None else _refuted(problem, proof, MethodResult()).farkas


def _refuted(problem: MarginProblem, proof: ExactFarkas, found: MethodResult) -> MethodResult:
    """A proof of infeasibility in place of what was found, unless it rests on rounded right-hand sides alone."""
    from attsvm.solvers.certify.farkas import farkas_certificate

    lam = np.array([float(y) for y in proof.multipliers])
    farkas = farkas_certificate(problem, lam, "rationals", proof.rows)
    if farkas is None:
        return found
    return MethodResult(farkas=farkas, iterations=found.iterations, extras=found.extras)


def measured_exactly(problem: MarginProblem, norm: Norm, found: MethodResult, tolerance: float) -> MethodResult:
    """The result with a certificate of its W and multipliers whose numbers are exact.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, get_norm
    >>> from attsvm.solvers.exact.settle import measured_exactly
    >>> from attsvm.solvers.margin_solution import MethodResult
    >>> import numpy as np
    >>> pair = MethodResult(np.array([[0.5]]), np.array([0.5]))
    >>> measured_exactly(MarginProblem([[2.0]], [[1.0]], [0]), get_norm("frobenius"), pair, 1e-8).certificate.proved
    0.0
    """
    from attsvm.solvers.certify.certify_pair import certify

    assert found.W is not None and found.multipliers is not None
    plain = certify(problem, found.W, found.multipliers, norm)
    exact = exact_certificate(problem, found.W, found.multipliers, norm, tolerance)
    certificate: Certificate = replace(
        plain,
        primal_violation=min(rounded_up(exact.violation), float(np.finfo(np.float64).max)),
        gap=exact.gap,
        dual_violation=0.0,  # the bound below is that of the rescaled multipliers, exactly
        lower_bound=exact.norm[0],
        primal_error=0.0,
        gap_error=0.0,
    )
    return replace(found, certificate=certificate)
