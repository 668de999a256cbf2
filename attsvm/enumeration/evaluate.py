"""Is a selection locally optimal? Two tests that agree: the full SVM, and the SVM over lower-score rows.

Definition 2 reads the support of the full SVM. The second test solves only the rows against tokens of
lower score and asks whether every other token stays strictly outside the margin; see docs/local_optima.md for
the proof that they agree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attsvm._arrays import BoolArray, IntArray
from attsvm.enumeration.space import SelectionSpace
from attsvm.solvers import MarginSolutionBatch, solve_batch

__all__ = ["Verdicts", "full_verdicts", "lower_verdicts"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Verdicts:
    """What is known about each of B selections.

    Attributes
    ----------
    norm : ndarray, shape (B,)
        Of the SVM solved; infinite where infeasible, NaN where undecided.
    gap : ndarray, shape (B,)
        Largest of gap and violations of the certificate; infinite without a solution.
    feasible : ndarray of bool, shape (B,)
        False where proved infeasible or undecided. The lower-row test speaks of its own rows only.
    locally_optimal : ndarray of bool, shape (B,)
    undecided : ndarray of bool, shape (B,)
        Neither certified nor proved infeasible, by the batched solver and then by the single-problem one.
    support : ndarray of bool, shape (B, q, T)
        Margin within the tolerance of 1; False where there is no solution.
    conflict : ndarray of bool, shape (B, q)
        Queries in the proof of infeasibility.
    """

    norm: FloatArray
    gap: FloatArray
    feasible: BoolArray
    locally_optimal: BoolArray
    undecided: BoolArray
    support: BoolArray
    conflict: BoolArray


def _read(space: SelectionSpace, selections: IntArray, found: MarginSolutionBatch, tolerance: float) -> Verdicts:
    optimal = np.asarray(found.status == "optimal")
    infeasible = np.asarray(found.status == "infeasible")
    worst = found.certificate.worst
    norm = np.where(optimal, found.norm, np.where(infeasible, np.inf, np.nan))
    margins = space.margins(selections, found)
    support = (np.abs(margins - 1.0) <= tolerance) & space.allowed & optimal[:, None, None]
    # Any higher-score token at or inside the margin: in the support of the full SVM, or cut off by the lower one.
    reached = (margins <= 1.0 + tolerance) & space.higher(selections)
    beaten = reached.reshape(len(selections), -1).any(axis=1)
    conflict = np.zeros(selections.shape, dtype=bool)
    for i in np.flatnonzero(infeasible):
        farkas = found[int(i)].certificate.farkas
        if farkas is not None:
            conflict[i, farkas.owners] = True
    return Verdicts(norm, worst, optimal, optimal & ~beaten, ~optimal & ~infeasible, support, conflict)


def full_verdicts(space: SelectionSpace, selections: IntArray, norm: str, tolerance: float) -> Verdicts:
    """Solve the full SVM of each selection and read Definition 2.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.enumeration.evaluate import full_verdicts
    >>> from attsvm.enumeration.space import SelectionSpace
    >>> space = SelectionSpace(attsvm.random_problem(n=3, T=4, d=4, seed=5))
    >>> int(full_verdicts(space, space.selections(0, 64), "frobenius", 1e-5).locally_optimal.sum())
    4
    """
    keep = space.allowed & (np.arange(space.T) != selections[..., None])
    return _read(space, selections, solve_batch(space.rows(selections, keep), norm), tolerance)


def lower_verdicts(space: SelectionSpace, selections: IntArray, tolerance: float) -> Verdicts:
    """Solve the Frobenius SVM over lower-score rows only and test the other tokens.

    ``norm`` is the norm of the lower-row SVM: of the full SVM where locally optimal, a lower bound on it elsewhere.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.enumeration.evaluate import lower_verdicts
    >>> from attsvm.enumeration.space import SelectionSpace
    >>> space = SelectionSpace(attsvm.random_problem(n=3, T=4, d=4, seed=5))
    >>> int(lower_verdicts(space, space.selections(0, 64), 1e-5).locally_optimal.sum())
    4
    """
    size = len(selections)
    keep = space.lower(selections)
    some = keep.reshape(size, -1).any(axis=1)
    # Without a lower-score row W = 0, and the higher-score tokens have margin 0.
    norm, gap = np.zeros(size), np.zeros(size)
    feasible, optimal, undecided = np.ones(size, bool), np.zeros(size, bool), np.zeros(size, bool)
    support, conflict = np.zeros((size, space.q, space.T), bool), np.zeros((size, space.q), bool)
    if some.any():
        found = solve_batch(space.rows(selections[some], keep[some]), "frobenius")
        part = _read(space, selections[some], found, tolerance)
        norm[some], gap[some], feasible[some] = part.norm, part.gap, part.feasible
        optimal[some], undecided[some] = part.locally_optimal, part.undecided
        support[some], conflict[some] = part.support, part.conflict
    return Verdicts(norm, gap, feasible, optimal, undecided, support, conflict)
