"""What computed singular vectors prove about the face of a dual matrix, and how rows see it.

Nothing is assumed of the routine that found the vectors. Let D be the exact dual matrix of the multipliers,
``kappa >= ||D||_op``, and U, V the polar factors of the computed vectors: orthonormal, and within the defects
``||U^'U^ - I||_F`` of them. With C the diagonal of the first r computed singular values, none above kappa, and
``P = U U'``, ``Q = V V'`` let

    D~ = U C V' + (I - P) D (I - Q),     D - D~ = (D V - U C) V' + U (D' U - V C)' (I - Q).

So ``||D - D~|| <= beta kappa`` with beta from the two residuals. ``Z~ = [[I, -D~ / kappa], [., I]]`` is positive
semidefinite, at least 1 on the vectors ``(u_i, -v_i)``, and at least ``1 - ||(I - P) D (I - Q)|| / kappa`` on what is
orthogonal to all ``(u_i, +-v_i)``. That norm is ``sigma_{r+1}(D~)`` or less, hence at most
``sigma_{r+1}(D) + beta kappa`` (Weyl).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.solvers.certify.certify_pair import error_bounds
from attsvm.solvers.certify.rounding import SLACK, UNIT_ROUNDOFF, gamma, norm_bounds
from attsvm.solvers.certify.singular_values import decomposition_error, frame_defects, singular_value_bounds
from attsvm.solvers.margin_problem import MarginProblem
from attsvm.solvers.norms import get_norm
from attsvm.solvers.nuclear.spectra import active_map

__all__ = ["Face", "RowMap", "face_of", "row_map"]

# For the roundings in the evaluation of what is small beside the norms; `SLACK` serves where it is not.
_SLACK = 1.0 + 1e-6


class Face(NamedTuple):
    """The face of a dual matrix that r singular vectors span.

    Attributes
    ----------
    left, right : ndarray, shape (dx, r) and (dz, r)
        As computed.
    size : float
        kappa, an upper bound of the norm of the dual matrix.
    blur : float
        beta, how far D is from one that has these singular vectors, relative to kappa.
    room : float
        Lower bound of Z~ outside the face; not positive where nothing is proved.
    lower_bound : float
        Of the nuclear norm of every W that satisfies the rows, by the same kappa.
    defect : float
        Bound on ``||U^ - U||_F + ||V^ - V||_F``.
    """

    left: FloatArray
    right: FloatArray
    size: float
    blur: float
    room: float
    lower_bound: float
    defect: float


class RowMap(NamedTuple):
    """Rows of norm 1 as functions of a symmetric S: their values at ``U S V'``, U and V orthonormal.

    Attributes
    ----------
    singular : ndarray, shape (min(k, r (r + 1) / 2),)
        Computed singular values of the map in the coordinates of `active_map`.
    smallest : float
        Lower bound of the smallest one; 0 where fewer rows than entries of S leave it no chance.
    """

    singular: FloatArray
    smallest: float


def face_of(problem: MarginProblem, multipliers: FloatArray, r: int) -> Face:
    """The face of r singular vectors, from one problem and multipliers of the right signs.

    Parameters
    ----------
    problem : MarginProblem
    multipliers : ndarray, shape (m,)
    r : int

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.nuclear.face import face_of
    >>> face = face_of(MarginProblem(np.eye(2), np.eye(2), [0, 1]), np.array([1.0, 0.5]), 1)
    >>> 0.5 - 1e-13 < face.room <= 0.5, face.blur < 1e-13, 1.5 - 1e-13 < face.lower_bound <= 1.5
    (True, True, True)
    """
    rows, weights = problem.rows, np.abs(multipliers)
    terms = int(np.count_nonzero(weights))
    bounds = error_bounds(rows.shape, get_norm("nuclear"))
    D = problem.adjoint(multipliers)
    # As in a certificate: only rows with a multiplier round anything.
    error = float(bounds.dual * (terms + min(terms, rows.q) + 4) * weights.dot(rows.error_norms)) * _SLACK
    U, s, Vt = np.linalg.svd(D, full_matrices=False)
    grow, residual = (float(x) for x in decomposition_error(D, U, s, Vt))
    size = (grow * float(s[0]) + residual + error) * SLACK
    left, right = U[:, :r], Vt[:r].T
    p, q = (float(x) for x in frame_defects(left, right.T))
    C = np.minimum(s[:r], size)
    # Entries of D V are inner products of up to max(shape) terms; then a product with C and a difference.
    computed = gamma(max(rows.shape) + 4) * (float(norm_bounds(D, 2)[1]) + size) * math.sqrt(r) * (1.0 + p + q)
    moved = computed + error * (1.0 + p + q) + size * (p + q)
    off = [float(norm_bounds(x, 2)[1]) + moved for x in (D @ right - left * C, D.T @ left - right * C)]
    blur = math.hypot(*off) / size * _SLACK if size > 0 else math.inf
    following = (grow * float(s[r]) + residual + error) / size * SLACK if r < len(s) and size > 0 else 0.0
    objective = float(problem.rhs.dot(multipliers))
    lost = bounds.objective * (terms + 2) * float(np.abs(problem.rhs).dot(weights))
    lost += 0.0 if problem.prior is None else float(problem.prior.error.dot(weights)) * _SLACK
    lower = max(objective - lost * _SLACK, 0.0) / size * (1.0 - 8.0 * UNIT_ROUNDOFF) if size > 0 else 0.0
    return Face(left, right, size, blur, 1.0 - following - blur, lower, p + q)


def row_map(problem: MarginProblem, index: IntArray, inverse: FloatArray, face: Face) -> RowMap:
    """Values of some rows on a face, and how far they are from being the same for two matrices of it.

    Parameters
    ----------
    problem : MarginProblem
    index : ndarray of int, shape (k,)
        Rows of the problem.
    inverse : ndarray, shape (k,)
        What they are multiplied by: reciprocals of their norms.
    face : Face

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.nuclear.face import face_of, row_map
    >>> rows = MarginProblem(np.eye(2), np.eye(2), [0, 1])
    >>> face = face_of(rows, np.array([1.0, 0.5]), 1)
    >>> found = row_map(rows, np.array([0]), np.ones(1), face)
    >>> 1.0 - 1e-13 < found.smallest <= 1.0
    True
    """
    pair = problem.rows.gather(index)
    a, b = pair.a * inverse[:, None], pair.queries[pair.owner].astype(np.float64, copy=False)
    mapped = active_map(a, b, face.left, face.right)
    if not mapped.size:
        return RowMap(np.zeros(0), 0.0)
    parts = np.linalg.svd(mapped, full_matrices=False)
    lower, _, _ = singular_value_bounds(mapped, parts)
    singular = np.asarray(parts[1], dtype=np.float64)
    count, entries = mapped.shape
    if entries > count:
        return RowMap(singular, 0.0)
    r = face.left.shape[1]
    # Of each row (norm 1): vectors that are not quite orthonormal, and dx + dz roundings of r pairs of products (the
    # row, its two factors, the weight and the sum included).
    moved = (face.defect + face.defect**2 + gamma(sum(problem.shape) + 12) * r * (1.0 + face.defect) ** 2) * _SLACK
    return RowMap(singular, max(float(lower[-1]) - math.sqrt(count) * moved, 0.0))
