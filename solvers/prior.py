"""Least distance to a given matrix: the same rows around ``W0``, with right-hand sides that are rounded.

``min ||W - W0||`` subject to ``<a_k b_k^T, W> >= rhs_k`` is, in the change ``D = W - W0``, the margin problem with the
right-hand sides ``rhs_k - <a_k b_k^T, W0>``. These are computed, so each carries a bound on its rounding, which
certificates take from every claim. Exact arithmetic uses what was asked and ``W0`` instead and knows no such error, and
a proof of infeasibility never looks at W0: where the rows cancel, so do their values at W0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.certify.rounding import UNIT_ROUNDOFF, gamma, norm_bounds, settle

if TYPE_CHECKING:
    from attsvm.solvers.margin_problem import EitherProblem

__all__ = ["Prior", "shifted_sides", "stacked_priors"]


class Prior(NamedTuple):
    """Where the right-hand sides of a problem come from; leading axes for a batch.

    Attributes
    ----------
    W : ndarray, shape (*batch, dx, dz)
        The matrix that W is to stay close to.
    asked : ndarray, shape (*batch, m)
        Right-hand sides for the whole W.
    error : ndarray, shape (*batch, m)
        Bound on the rounding of the right-hand sides for the change.
    """

    W: FloatArray
    asked: FloatArray
    error: FloatArray

    def of_rows(self, index: npt.NDArray[np.integer | np.bool_]) -> Prior:
        """Of some rows."""
        return Prior(self.W, self.asked[..., index], self.error[..., index])

    def of_problems(self, index: int | npt.NDArray[np.integer | np.bool_]) -> Prior:
        """Of one problem of a batch, or of some."""
        return Prior(self.W[index], self.asked[index], self.error[index])

    def survives(self, power: int) -> bool:
        """Whether W divided by ``2^power`` is exact."""
        return bool(np.array_equal(np.ldexp(np.ldexp(self.W, -power), power), self.W))


def stacked_priors(priors: list[Prior | None], rhs: FloatArray, shape: tuple[int, int]) -> Prior | None:
    """Of problems that become a batch with right-hand sides ``rhs`` (B, m): 0 for those without; None without any."""
    if all(prior is None for prior in priors):
        return None
    W, asked, error = np.zeros((len(rhs), *shape)), rhs.copy(), np.zeros(rhs.shape)
    for i, prior in enumerate(priors):
        if prior is not None:
            m = prior.asked.shape[-1]
            W[i], asked[i, :m], error[i, :m] = prior
    return Prior(W, asked, error)


def shifted_sides(problem: EitherProblem, W0: npt.ArrayLike) -> tuple[FloatArray, Prior]:
    """Right-hand sides for the change ``W - W0``, shape (*batch, m), and where they come from.

    A right-hand side that rounding cannot tell from 0 is 0: what W0 satisfies to the last digit asks for no change.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.prior import shifted_sides
    >>> sides, prior = shifted_sides(MarginProblem([[1.0], [2.0]], [[1.0]], [0, 0]), [[0.75]])
    >>> sides.tolist(), bool((prior.error < 1e-14).all())
    ([0.25, -0.5], True)
    """
    shape = (*problem.batch, *problem.shape)
    matrix = np.asarray(W0, dtype=np.float64)
    if matrix.shape not in (shape, problem.shape):
        raise ValueError(f"prior must have shape {shape}, got {matrix.shape}")
    if not np.isfinite(matrix).all():
        raise ValueError("prior must be finite")
    if problem.prior is not None:
        raise ValueError("the problem has a prior already")
    matrix = np.array(np.broadcast_to(matrix, shape))
    matrix.flags.writeable = False
    with np.errstate(over="ignore", invalid="ignore"):  # refused below
        sides = problem.rhs - problem.margins(matrix)
    size = norm_bounds(matrix, 2)[1][..., None]
    # `rounding.margin_error` in the norms of whole rows, which are computed themselves, and the subtraction.
    share = gamma(2 * sum(problem.shape) + 8)
    error = settle(share * (problem.rows.error_norms * size) + 2.0 * UNIT_ROUNDOFF * np.abs(sides))
    if problem.valid is not None:
        error = np.where(problem.valid, error, 0.0)
    if not (np.isfinite(sides).all() and np.isfinite(error).all()):
        raise ValueError(
            "prior gives rows values beyond the range of float64: divide the tokens or the queries by a power of two"
        )
    near = np.abs(sides) <= error
    error = np.where(near, error + np.abs(sides), error)
    return np.where(near, 0.0, sides), Prior(matrix, problem.rhs, error)
