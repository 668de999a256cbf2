"""What a pair (W, multipliers) proves about every nuclear-norm solution, with enclosures instead of tolerances.

Let lam be nonnegative on inequality rows, ``D = sum_k lam_k a_k b_k^T``, ``kappa = ||D||_op > 0`` and
``d_i = sigma_i(D) / kappa <= 1``, in falling order. For every W* that satisfies the rows, with singular values
``w_1 >= w_2 >= ...``,

    rhs . lam / kappa  <=  <D, W*> / kappa  <=  sum_i d_i w_i        (the rows; von Neumann's trace inequality).

If W* is optimal and W is any feasible matrix, ``sum_i w_i = ||W*||_* <= ||W||_*``. Subtracting,

    sum_i (1 - d_i) w_i  <=  gap := ||W||_* - rhs . lam / kappa.

Every term is nonnegative and ``1 - d_i`` grows with i. Hence, for every r and every optimal W*:

    (tail)        sum_{i > r} w_i  <=  gap / (1 - d_{r+1}),
    (resolution)  w_{r+1}          <=  gap / sum_{i <= r+1} (1 - d_i),    as w_i >= w_{r+1} for i <= r + 1.

So "every optimal W has at most r singular values above delta" is proved for each delta at least the resolution of r.
Margins, D and ``rhs . lam`` are exact rationals; W is first made exactly feasible (scaled, or projected on the
feasible set); norms and singular values are enclosed by `attsvm.solvers.exact.spectrum`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray, require_number
from attsvm.solvers.exact.rows import ExactRows, rational, rational_matrix, to_float
from attsvm.solvers.exact.spectrum import float_bounds, singular_values

if TYPE_CHECKING:
    from flint import arb, fmpq, fmpq_mat

__all__ = ["NuclearEnclosure", "nuclear_enclosure", "repair"]


@dataclass(frozen=True, eq=False)
class NuclearEnclosure:
    """Rigorous float64 bounds; each pair is (lower, upper).

    Attributes
    ----------
    violation : Fraction
        Exact violation of the W that was given, before it was repaired.
    norm : tuple of float
        ``||W||_*`` of the repaired, exactly feasible W: upper end bounds the optimal norm from above.
    lower_bound : float
        ``rhs . lam / ||D||_op`` rounded down: no feasible W has a smaller norm.
    gap : float
        Upper bound of ``||W||_* - rhs . lam / ||D||_op``.
    singular_values : tuple of ndarray
        Of the repaired W.
    dual_singular_values : tuple of ndarray
        Of ``D / ||D||_op``; the first is 1.
    tails : ndarray, shape (min(dx, dz) + 1,)
        Entry r: upper bound of ``sum_{i > r} sigma_i(W*)`` for every optimal W*; infinite where nothing is proved.
    resolutions : ndarray, shape (min(dx, dz) + 1,)
        Entry r: upper bound of ``sigma_{r+1}(W*)`` for every optimal W*.
    """

    violation: Fraction
    norm: tuple[float, float]
    lower_bound: float
    gap: float
    singular_values: tuple[FloatArray, FloatArray]
    dual_singular_values: tuple[FloatArray, FloatArray]
    tails: FloatArray
    resolutions: FloatArray

    @property
    def relative_gap(self) -> float:
        """Upper bound of the gap divided by the optimal norm; infinite if no positive lower bound is proved."""
        return float(np.nextafter(self.gap / self.lower_bound, np.inf)) if self.lower_bound > 0 else float("inf")

    def rank(self, delta: float) -> int:
        """Least r for which it is proved that every optimal W has at most r singular values above delta.

        Parameters
        ----------
        delta : float
            Absolute; not negative.
        """
        require_number("delta", delta, "a number >= 0", 0.0, ends="[]")
        return int(np.flatnonzero(self.resolutions <= delta)[0])


def _scaled(rows: ExactRows, W: fmpq_mat) -> fmpq_mat | None:
    """W enlarged until every row holds, when all right-hand sides are positive and all margins too."""
    if rows.equality.any() or any(r <= 0 for r in rows.rhs):
        return None
    margins = rows.margins(W)
    if any(v <= 0 for v in margins):
        return None
    return W * max(r / v for r, v in zip(rows.rhs, margins, strict=True))


def _projected(rows: ExactRows, W: fmpq_mat) -> fmpq_mat | None:
    """The feasible matrix nearest to W in the Frobenius norm: W plus the least C that satisfies the rows shifted by it.

    Holding close rows at their right-hand sides instead would be cheaper and wrong: two rows that agree to 1e-11 move W
    by 60 before both of their slacks of 1e-9 are gone.
    """
    from attsvm.solvers.exact.least_norm import ExactLeastNorm, exact_least_norm

    slacks = rows.slacks(W)
    shifted = replace(rows, rhs=[-s for s in slacks])
    missed = np.array([float(s < 0) for s in slacks])
    try:
        change = exact_least_norm(shifted, missed)
    except RuntimeError:  # too many exchanges of rows
        return None
    return W + change.matrix if isinstance(change, ExactLeastNorm) else None


def repair(rows: ExactRows, W: npt.ArrayLike | fmpq_mat) -> fmpq_mat | None:
    """An exactly feasible rational matrix near W: scaled or projected; None if rows conflict or steps run out.

    Examples
    --------
    >>> from attsvm.solvers.exact import exact_rows, repair
    >>> rows = exact_rows([[3.0], [1.0]], [[1.0], [1.0]], [0, 1], [1.0, 0.0], [True, False])
    >>> print(repair(rows, [[0.3333]]))
    [1/3]
    """
    matrix = rational_matrix("W", W, rows.shape)
    if rows.violation(matrix) == 0:
        return matrix
    scaled, projected = _scaled(rows, matrix), _projected(rows, matrix)
    if scaled is None or projected is None:
        return projected if scaled is None else scaled
    moved = [sum(to_float(abs(x)) for x in (candidate - matrix).entries()) for candidate in (scaled, projected)]
    return scaled if moved[0] <= moved[1] else projected


def _bounds(values: list[arb]) -> tuple[FloatArray, FloatArray]:
    ends = [float_bounds(v) for v in values]
    return np.array([max(low, 0.0) for low, _ in ends]), np.array([high for _, high in ends])


def _shares(gap: arb, dual: list[arb]) -> tuple[FloatArray, FloatArray]:
    """Tails and resolutions for r = 0, ..., len(dual); dual holds the balls ``sigma_i(D) / ||D||_op``."""
    from flint import arb

    tails, resolutions, total = [], [], arb(0)
    for value in dual:
        room = (1 - value).lower()
        room = room if room > 0 else arb(0)
        total = (total + room).lower()
        tails.append(float_bounds(gap.upper() / room)[1] if room > 0 else np.inf)
        resolutions.append(float_bounds(gap.upper() / total)[1] if total > 0 else np.inf)
    return np.array([*tails, 0.0]), np.array([*resolutions, 0.0])


def nuclear_enclosure(
    rows: ExactRows, W: npt.ArrayLike | fmpq_mat, multipliers: npt.ArrayLike, bits: int = 192
) -> NuclearEnclosure | None:
    """Everything that (W, multipliers) proves about the nuclear-norm problem, rigorously.

    Parameters
    ----------
    rows : ExactRows
    W : array_like, shape (dx, dz)
        Floats or rationals.
    multipliers : array_like, shape (m,)
        Floats or rationals, in any scale; negative ones of inequality rows count as 0.
    bits : int
        Precision of the enclosures.

    Returns
    -------
    NuclearEnclosure or None
        None when W cannot be repaired to satisfy the rows exactly.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.exact import exact_rows, nuclear_enclosure
    >>> rows = exact_rows(np.diag([1.0, 1e7]), np.eye(2), [0, 1])
    >>> proved = nuclear_enclosure(rows, np.diag([1.0, 1e-7]), [1.0, 1e-7])
    >>> proved.rank(1e-3), proved.rank(1e-8)  # W = diag(1, 1e-7) is optimal: rank 1 holds only above 1e-7
    (1, 2)
    """
    from flint import ctx

    lam: list[fmpq] = [rational(y) for y in np.asarray(multipliers).tolist()]
    if len(lam) != rows.m:
        raise ValueError(f"multipliers must have shape ({rows.m},), got {np.shape(multipliers)}")
    lam = [y if e or y > 0 else rational(0) for y, e in zip(lam, rows.equality.tolist(), strict=True)]
    given = rational_matrix("W", W, rows.shape)
    feasible = repair(rows, given)
    if feasible is None:
        return None
    objective = sum((r * y for r, y in zip(rows.rhs, lam, strict=True)), start=rational(0))
    primal, dual = singular_values(feasible, bits), singular_values(rows.combination(lam), bits)
    violation = rows.violation(given)
    with ctx.workprec(bits):
        norm = sum(primal, start=0 * primal[0])
        if not dual[0] > 0:  # nothing but 0 is proved by D = 0 (or rhs . lam > 0 and there is no feasible W)
            lower, ratios, gap = 0 * norm, [0 * norm] * len(dual), norm
        else:
            lower = objective / dual[0]
            ratios = [1 + 0 * norm, *(d / dual[0] for d in dual[1:])]
            gap = norm - lower
        tails, resolutions = _shares(gap, ratios)
    ceiling = max(float_bounds(gap)[1], 0.0)
    return NuclearEnclosure(
        Fraction(int(violation.p), int(violation.q)),
        float_bounds(norm),
        max(float_bounds(lower)[0], 0.0),
        ceiling,
        _bounds(primal),
        _bounds(ratios),
        np.maximum(tails, 0.0),
        np.maximum(resolutions, 0.0),
    )
