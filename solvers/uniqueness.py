"""Whether a nuclear-norm solution is the only one.

Let D be the dual matrix, U1, V1 its singular vectors with singular value 1 and r their number. The optimal W are
exactly the matrices ``U1 S V1^T`` with S symmetric and positive semidefinite that satisfy all rows, and with
equality those that have a nonzero multiplier. If the values of these rows determine S, there is only one; if
some change of S leaves them alone and respects the other conditions, there are many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from attsvm.solvers.certificate import Certificate, certify
from attsvm.solvers.margin import FloatArray, MarginProblem
from attsvm.solvers.nuclear_newton import active_map, symmetric
from attsvm.solvers.nuclear_rows import UnitRows, singular_values, unit_rows

__all__ = ["UniquenessCertificate", "certify_uniqueness", "uniqueness_of_rows"]

# Below this the smallest singular value of the map (unit rows, orthonormal U1 and V1) is not told from 0.
_INJECTIVE = 1e-7
# A second solution must differ by this much, relative to the norm, to count as proof.
_DISTINCT = 1e-4


@dataclass(frozen=True, eq=False)
class UniquenessCertificate:
    """What the pair (W, multipliers) proves about the set of all solutions.

    Attributes
    ----------
    verdict : str
        "unique", "not unique" (then ``witness`` is a second solution) or "undecided".
    smallest_singular_value : float
        Of the map from symmetric S to the values of the rows with a multiplier; positive means injective.
        0 when there are fewer such rows than entries of S.
    face_dimension : int
        Dimension of the null space of that map: bounds the dimension of the set of solutions.
    rank : int
        Number r of dual singular values equal to 1.
    strictly_complementary : bool
        All four margins below exceed the tolerance.
    primal_margin : float
        ``sigma_r(W) / sigma_1(W)``.
    dual_margin : float
        ``1 - sigma_{r+1}(D)``; 1 when nothing follows.
    multiplier_margin : float
        Smallest multiplier among the inequality rows that W meets with equality (times the row norm).
    slack_margin : float
        Smallest slack among the inequality rows without multiplier (relative to row norm and largest rhs).
    tolerance : float
        What counts as 0 in the margins.
    witness : ndarray, shape (dx, dz), or None
        A solution different from W.
    """

    verdict: Literal["unique", "not unique", "undecided"]
    smallest_singular_value: float
    face_dimension: int
    rank: int
    strictly_complementary: bool
    primal_margin: float
    dual_margin: float
    multiplier_margin: float
    slack_margin: float
    tolerance: float
    witness: FloatArray | None = None


def _reach(rows: UnitRows, W: FloatArray, left: FloatArray, right: FloatArray, S: FloatArray, N: FloatArray) -> float:
    """Largest t for which ``S + t N`` stays positive semidefinite and the inequality rows stay satisfied."""
    change = left @ N @ right.T
    slack, slope = rows.values(W) - rows.rhs, rows.values(change)
    falling = ~rows.equality & (slope < -1e-9)
    limit = float((np.maximum(slack[falling], 0.0) / -slope[falling]).min(initial=np.inf))
    # S + t N >= 0: bisection on the smallest eigenvalue, which is concave in t.
    floor = min(0.0, float(np.linalg.eigvalsh(S)[0])) - 1e-12 * float(np.abs(S).max())
    low, high = 0.0, min(limit, 4.0 * float(np.linalg.norm(S)))
    for _ in range(40):
        middle = 0.5 * (low + high)
        if float(np.linalg.eigvalsh(S + middle * N)[0]) >= floor:
            low = middle
        else:
            high = middle
    return low


def certify_uniqueness(
    problem: MarginProblem, W: npt.ArrayLike, multipliers: npt.ArrayLike, *, tolerance: float | None = None
) -> UniquenessCertificate:
    """Decide from a nuclear-norm solution and its multipliers whether there are others.

    Parameters
    ----------
    problem : MarginProblem
    W : array_like, shape (dx, dz)
        Optimal to high accuracy (see `certify`).
    multipliers : array_like, shape (m,)
        In norm form.
    tolerance : float, optional
        What counts as 0 in singular values, multipliers and slacks; ``max(1e-8, sqrt(gap))`` by default.

    Examples
    --------
    ``W11 >= 1`` and ``W22 >= 1`` leave the off-diagonal free: ``[[1, t], [t, 1]]`` is optimal for ``|t| <= 1``.

    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.uniqueness import certify_uniqueness
    >>> rows = MarginProblem(np.eye(2), np.eye(2), [0, 1])
    >>> certify_uniqueness(rows, np.eye(2), [1.0, 1.0]).verdict
    'not unique'
    """
    matrix = np.asarray(W, dtype=np.float64)
    lam_given = np.asarray(multipliers, dtype=np.float64)
    rows = unit_rows(problem)
    if isinstance(rows, Certificate):
        raise ValueError("the problem has no solution: a zero row has a positive right-hand side")
    reduced = rows.reduction.left.T @ matrix @ rows.reduction.right / rows.rhs_scale
    return uniqueness_of_rows(rows, reduced, lam_given[rows.index] * rows.row_scale, tolerance)


def uniqueness_of_rows(
    rows: UnitRows, reduced: FloatArray, lam: FloatArray, tolerance: float | None = None
) -> UniquenessCertificate:
    """`certify_uniqueness` for W (p, q) and multipliers (m,) of unit rows."""
    if rows.trivial:  # norm 0 is attained by W = 0 alone
        return UniquenessCertificate("unique", np.inf, 0, 0, True, 1.0, 1.0, np.inf, np.inf, 0.0)
    gap = rows.gap(reduced, lam)
    tol = max(1e-8, float(np.sqrt(gap))) if tolerance is None else tolerance

    U, sigma, Vt = np.linalg.svd(rows.adjoint(lam), full_matrices=False)
    r = int(np.count_nonzero(sigma >= 1.0 - tol))
    size = singular_values(reduced)
    slack = rows.values(reduced) - rows.rhs
    supporting = rows.equality | (lam > tol)
    tight = ~rows.equality & (slack <= tol)
    loose = ~rows.equality & ~supporting
    primal_margin = float(size[r - 1] / size[0]) if r and size[0] > 0 else 0.0
    dual_margin = 1.0 - float(sigma[r]) if r < len(sigma) else 1.0
    multiplier_margin = float(lam[tight].min(initial=np.inf))
    slack_margin = float(slack[loose].min(initial=np.inf))
    strict = min(primal_margin, dual_margin, multiplier_margin, slack_margin) > tol

    left, right = U[:, :r], Vt[:r].T
    mapped = active_map(rows.a[supporting], rows.b[supporting], left, right)
    entries = mapped.shape[1]
    singular = singular_values(mapped) if mapped.size else np.zeros(0)
    smallest = float(singular[entries - 1]) if 0 < entries <= len(singular) else 0.0
    nullity = entries - int(np.count_nonzero(singular > _INJECTIVE))
    witness = None
    verdict: Literal["unique", "not unique", "undecided"] = "undecided"
    if not gap <= 1e-4 or r == 0:
        pass  # not a solution: nothing to conclude from it
    elif nullity == 0 and dual_margin > tol:
        verdict = "unique"
    elif nullity > 0:
        basis = np.linalg.svd(mapped, full_matrices=True)[2][entries - nullity :]
        witness = _second_solution(rows, reduced, left, right, basis, lam, gap)
        if witness is not None:
            verdict = "not unique"
    return UniquenessCertificate(
        verdict, smallest, nullity, r, strict, primal_margin, dual_margin, multiplier_margin, slack_margin, tol, witness
    )


def _second_solution(
    rows: UnitRows, W: FloatArray, left: FloatArray, right: FloatArray, basis: FloatArray, lam: FloatArray, gap: float
) -> FloatArray | None:
    """A solution other than W along the null directions given in svec form, verified; or None."""
    r = left.shape[1]
    S = left.T @ W @ right
    S = 0.5 * (S + S.T)
    for packed in basis:
        N = symmetric(packed, r)
        for direction in (N, -N):
            t = _reach(rows, W, left, right, S, direction)
            if t <= _DISTINCT * float(np.linalg.norm(S)):
                continue
            other, multipliers = rows.restore(left @ (S + t * direction) @ right.T, lam)
            proof = certify(rows.original, other, multipliers, "nuclear")
            if proof.worst <= max(10.0 * gap, 1e-9):
                return other
    return None
