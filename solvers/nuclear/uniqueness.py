"""How far from each other two nuclear-norm solutions can be.

Let D be the dual matrix divided by its largest singular value, ``e`` the proved difference between the norm of W and
the lower bound, U1 and V1 the singular vectors of D with singular value (nearly) 1, r their number and ``g`` the
distance of the next singular value from 1. Any optimal W' has a positive semidefinite ``X = [[P, W'], [W'^T, Q]]`` with
``tr X = 2 ||W'||_*`` and ``<X, Z> <= 2 e`` for ``Z = [[I, -D], [-D^T, I]]``. Z is at least g on the complement of the
r vectors ``(u_i, v_i) / sqrt(2)``, so the part of a square root of X outside their span has squared norm at most
``t = 2 e / g``, and W' differs from a matrix ``U1 S V1^T`` with S symmetric by at most

    rho = 2 sqrt(||W'||_* t) + t     in Frobenius norm.

Rows with a multiplier are met nearly: ``sum_k lam_k (margin_k - rhs_k) <= e``. If the values of k such rows, divided by
their norms, determine S, with smallest singular value s of the map, every optimal W' lies within

    radius = 2 rho + (|row differences| + 2 rho sqrt(k)) / s

of W made feasible, and of W with the distance between the two added (`attsvm.solvers.certify.feasible`). The vectors
are computed ones; what that does to e, g and s is measured afterwards (`attsvm.solvers.nuclear.face`), not assumed. The
solution is called unique when that radius is a small part of its norm: *unique to within the radius*. It is called not
unique when a second matrix far from W satisfies the rows and has the same norm, both to the accuracy of the first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.certify.certificate import Certificate
from attsvm.solvers.certify.certify_pair import certify
from attsvm.solvers.certify.feasible import feasibility_cost
from attsvm.solvers.certify.singular_values import nuclear_bounds
from attsvm.solvers.margin_problem import MarginProblem
from attsvm.solvers.nuclear.face import face_of, row_map
from attsvm.solvers.nuclear.spectra import active_map, symmetric
from attsvm.solvers.unit import UnitProblem, UnitRows, scaled_to_range

__all__ = ["UniquenessCertificate", "certify_uniqueness"]

# A radius up to this share of the norm is called unique; a second solution is at least this share away.
_CLOSE = 1e-3
_DISTINCT = 1e-5
# Singular values of the map (unit rows, orthonormal U1 and V1) below this are not told from 0.
_INJECTIVE = 1e-7
# For the roundings in the evaluation of the radius.
_SLACK = 1.0 + 1e-6


@dataclass(frozen=True, eq=False)
class UniquenessCertificate:
    """What the pair (W, multipliers) proves about the set of all solutions.

    Attributes
    ----------
    verdict : str
        "unique" (every solution lies within ``radius`` of W), "not unique" (``witness`` is another one to the accuracy
        of W) or "undecided".
    radius : float
        Proved bound on the Frobenius distance of any solution from W, in the scale of the problem; infinite when
        nothing is proved.
    smallest_singular_value : float
        Of the map from symmetric S to the values of the rows with a multiplier; positive means injective.
        0 when there are fewer such rows than entries of S.
    face_dimension : int
        Dimension of the null space of that map: bounds the dimension of the set of solutions.
    rank : int
        Number r of dual singular values counted as 1.
    distance : float
        Of the witness from W, relative to the norm of W; 0 without a witness.
    witness : ndarray, shape (dx, dz), or None
        A solution different from W.
    """

    verdict: Literal["unique", "not unique", "undecided"]
    radius: float
    smallest_singular_value: float
    face_dimension: int
    rank: int
    distance: float = 0.0
    witness: FloatArray | None = None


def certify_uniqueness(problem: MarginProblem, W: npt.ArrayLike, multipliers: npt.ArrayLike) -> UniquenessCertificate:
    """Decide from a nuclear-norm solution and its multipliers whether there are others.

    Parameters
    ----------
    problem : MarginProblem
    W : array_like, shape (dx, dz)
        Optimal to high accuracy (see `certify`).
    multipliers : array_like, shape (m,)
        In norm form.

    Examples
    --------
    ``W11 >= 1`` and ``W22 >= 1`` leave the off-diagonal free: ``[[1, t], [t, 1]]`` is optimal for ``|t| <= 1``.

    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.nuclear.uniqueness import certify_uniqueness
    >>> rows = MarginProblem(np.eye(2), np.eye(2), [0, 1])
    >>> certify_uniqueness(rows, np.eye(2), [1.0, 1.0]).verdict
    'not unique'
    """
    matrix, lam = np.asarray(W, dtype=np.float64), np.asarray(multipliers, dtype=np.float64)
    if problem.penalty is not None:  # solutions of a soft margin need not satisfy the rows
        return UniquenessCertificate("undecided", np.inf, 0.0, 0, 0)
    if not matrix.any():  # norm 0 is attained by W = 0 alone, where that satisfies the rows
        meets = not problem.missed(-problem.rhs).any()
        return UniquenessCertificate("unique" if meets else "undecided", 0.0 if meets else np.inf, np.inf, 0, 0)
    unit = UnitProblem(problem)
    if unit.is_extreme:
        return _scaled(problem, matrix, lam)
    certificate = certify(problem, matrix, lam, "nuclear")
    value, ranks = certificate.norm, certificate.rank_certificate
    assert ranks is not None  # of the nuclear norm there is one
    lam = problem.clipped(lam)
    x = lam / np.where(unit.inverse > 0, unit.inverse, np.inf)  # multipliers of the unit rows
    supporting = np.flatnonzero((unit.inverse > 0) & (problem.equality | (x > 1e-8)))
    face = face_of(problem, lam, ranks.rank)
    mapped = row_map(problem, supporting, unit.inverse[supporting], face)
    entries = ranks.rank * (ranks.rank + 1) // 2
    smallest = float(mapped.singular[entries - 1]) if 0 < entries <= len(mapped.singular) else 0.0
    nullity = entries - int(np.count_nonzero(mapped.singular > _INJECTIVE))
    radius = np.inf
    if smallest > _INJECTIVE and face.room > 0 and mapped.smallest > 0:
        most = float(nuclear_bounds(matrix)[1])
        slack = problem.margins(matrix) - problem.rhs
        violation, error = certificate.primal_violation, certificate.primal_error
        cost = float(feasibility_cost(problem, matrix, slack, violation, error, most))
        excess = max(most + cost - face.lower_bound, 0.0) * _SLACK
        if excess < np.inf:
            # A row with a multiplier is met up to this by every solution, an equality row exactly.
            loose = face.size * excess / np.where(problem.equality[supporting], np.inf, x[supporting])
            blurred = excess + face.blur * (most + cost)
            radius = _radius(blurred, most + cost, face.room, mapped.smallest, loose) + cost
    if radius <= _CLOSE * value:
        return UniquenessCertificate("unique", radius, smallest, nullity, ranks.rank)
    if nullity:
        rows = unit.rows
        left, right = _active_vectors(rows, x[rows.index], ranks.rank)
        chosen = np.isin(rows.index, supporting)
        basis = np.linalg.svd(active_map(rows.a[chosen], rows.b[chosen], left, right), full_matrices=True)[2]
        witness = _second_solution(rows, rows.reduce(matrix), left, right, basis[entries - nullity :], lam, certificate)
        if witness is not None:
            distance = float(np.linalg.norm(witness - matrix)) / float(np.linalg.norm(matrix))
            return UniquenessCertificate("not unique", np.inf, smallest, nullity, ranks.rank, distance, witness)
    return UniquenessCertificate("undecided", radius, smallest, nullity, ranks.rank)


def _scaled(problem: MarginProblem, W: FloatArray, lam: FloatArray) -> UniquenessCertificate:
    """The answer for a problem whose numbers leave the range, through powers of two."""
    scaled, power = scaled_to_range(problem)
    if UnitProblem(scaled).is_extreme:
        return UniquenessCertificate("undecided", np.inf, 0.0, 0, 0)
    found = certify_uniqueness(scaled, np.ldexp(W, -power), np.ldexp(lam, -power))
    witness = None if found.witness is None else np.ldexp(found.witness, power)
    return replace(found, radius=float(np.ldexp(found.radius, power)), witness=witness)


def _active_vectors(rows: UnitRows, x: FloatArray, r: int) -> tuple[FloatArray, FloatArray]:
    U, _, Vt = np.linalg.svd(rows.adjoint(x), full_matrices=False)
    return U[:, :r], Vt[:r].T


def _radius(excess: float, norm: float, room: float, smallest: float, loose: FloatArray) -> float:
    """The bound of the module's text: ``loose`` is by how much each row with a multiplier may be exceeded."""
    t = 2.0 * excess / room
    rho = 2.0 * np.sqrt(norm * t) + t
    # What lies outside the face moves rows of norm 1 by at most rho each, for both matrices.
    rest = 2.0 * rho * np.sqrt(len(loose))
    return float(2.0 * rho + (2.0 * float(np.linalg.norm(loose)) + rest) / smallest) * _SLACK


def _reach(rows: UnitRows, W: FloatArray, left: FloatArray, right: FloatArray, S: FloatArray, N: FloatArray) -> float:
    """Largest t for which ``S + t N`` stays positive semidefinite and the inequality rows stay satisfied."""
    slack, slope = rows.values(W) - rows.rhs, rows.values(left @ N @ right.T)
    falling = ~rows.equality & (slope < -1e-9)
    limit = float((np.maximum(slack[falling], 0.0) / -slope[falling]).min(initial=np.inf))
    # S + t N >= 0 up to where the smallest eigenvalue of S^-1/2 N S^-1/2 allows.
    values, vectors = np.linalg.eigh(S)
    root = vectors / np.sqrt(np.maximum(values, 1e-14 * max(float(values[-1]), 1e-300)))
    lowest = float(np.linalg.eigvalsh(root.T @ N @ root)[0])
    if lowest < 0:
        limit = min(limit, -1.0 / lowest)
    return 0.999 * min(limit, 4.0 * float(np.linalg.norm(S)))


def _second_solution(
    rows: UnitRows,
    W: FloatArray,
    left: FloatArray,
    right: FloatArray,
    basis: FloatArray,
    lam: FloatArray,
    certificate: Certificate,
) -> FloatArray | None:
    """A solution other than W along the null directions given in svec form, as good as W; or None.

    It counts as another one when it is farther away than solutions of this accuracy scatter, with a norm that may
    grow like the square of the distance.
    """
    far = max(_DISTINCT, 100.0 * float(np.sqrt(certificate.worst)))
    S = left.T @ W @ right
    S = 0.5 * (S + S.T)
    problem = rows.unit.problem
    for packed in basis:
        N = symmetric(packed, left.shape[1])
        for direction in (N, -N):
            t = _reach(rows, W, left, right, S, direction)
            if t <= far * float(np.linalg.norm(S)):
                continue
            other = rows.lift(left @ (S + t * direction) @ right.T)
            if certify(problem, other, lam, "nuclear").proved <= max(2.0 * certificate.proved, 1e-11):
                return other
    return None
