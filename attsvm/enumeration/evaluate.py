"""Solve selections in batches and decide Definition 2, by the full SVM or by the SVM over lower-score rows alone.

Definition 2 reads the support of the full SVM. The second test solves only the rows against tokens of lower score
and asks whether every other token stays strictly outside the margin; docs/local_optima.md proves that they agree.
Both are proved: error bounds first, rationals where they do not reach (`attsvm.local_proof`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from attsvm._arrays import BoolArray, IntArray
from attsvm.enumeration.space import SelectionSpace
from attsvm.local_proof import LocalProof, prove_local
from attsvm.rows import AttentionRows
from attsvm.solution import SUPPORT_TOLERANCE
from attsvm.solvers import MarginSolutionBatch, solve, solve_batch
from attsvm.solvers.deadline import late
from attsvm.solvers.exact import ExactFarkas, ExactLeastNorm
from attsvm.solvers.exact.measures import root_bounds
from attsvm.support_proof import margin_bounds, on_margin, solve_exactly

__all__ = ["Support", "Verdicts", "full_verdicts", "lower_verdicts"]

FloatArray = npt.NDArray[np.float64]

# Rows from which on other norms are solved one by one, and a proof of infeasibility in the Frobenius norm saves time.
_MANY_ROWS = 120


@dataclass(frozen=True, eq=False)
class Support:
    """Support tokens of each of B selections; none where there is no solution.

    Attributes
    ----------
    tokens : ndarray of bool, shape (B, q, T)
        Frobenius norm: proved to lie exactly on the margin. Other norms: margin within `SUPPORT_TOLERANCE` of 1 at the
        solution returned.
    doubtful : ndarray of bool, shape (B, q, T)
        Neither proved to lie on the margin nor beyond it.
    """

    tokens: BoolArray
    doubtful: BoolArray


@dataclass(frozen=True, eq=False)
class Verdicts:
    """What is known about each of B selections.

    Attributes
    ----------
    norm : ndarray, shape (B,)
        Of the SVM solved; infinite where infeasible, NaN where there is no certified solution.
    gap : ndarray, shape (B,)
        Largest of gap and violations of the certificate, rounding included; 0 where solved over the rationals,
        infinite without a solution.
    feasible : ndarray of bool, shape (B,)
        Proved to have a solution. The lower-row test speaks of its own rows only.
    locally_optimal : ndarray of bool, shape (B,)
        Proved.
    undecided : ndarray of bool, shape (B,)
        Neither that nor the contrary is proved.
    reasons : dict from int to str
        Why, for the undecided ones.
    near : ndarray of bool, shape (B, q, T)
        Margin within `SUPPORT_TOLERANCE` of 1, computed: good enough to look around, no proof.
    conflict : ndarray of bool, shape (B, q)
        Queries in the proof of infeasibility.
    support : Support or None
        If it was asked for.
    """

    norm: FloatArray
    gap: FloatArray
    feasible: BoolArray
    locally_optimal: BoolArray
    undecided: BoolArray
    reasons: dict[int, str]
    near: BoolArray
    conflict: BoolArray
    support: Support | None = None

    @property
    def infeasible(self) -> BoolArray:
        """Proved to have no solution, shape (B,)."""
        return np.isinf(self.norm)


@dataclass(eq=False)
class _Draft:
    """Verdicts that are filled in part by part."""

    norm: FloatArray
    gap: FloatArray
    local: BoolArray
    undecided: BoolArray
    near: BoolArray
    conflict: BoolArray
    tokens: BoolArray
    doubtful: BoolArray
    reasons: dict[int, str] = field(default_factory=dict)

    @staticmethod
    def of(space: SelectionSpace, size: int) -> _Draft:
        grid = (size, space.q, space.T)
        return _Draft(
            np.full(size, np.inf), np.full(size, np.inf), np.zeros(size, bool), np.zeros(size, bool),
            np.zeros(grid, bool), np.zeros((size, space.q), bool), np.zeros(grid, bool), np.zeros(grid, bool),
        )  # fmt: skip

    def finish(self, support: bool) -> Verdicts:
        feasible = np.isfinite(self.norm)
        proved = Support(self.tokens, self.doubtful) if support else None
        return Verdicts(
            self.norm, self.gap, feasible, self.local, self.undecided, self.reasons, self.near, self.conflict, proved
        )

    def leave(self, index: npt.NDArray[np.intp]) -> None:
        """No time for some selections."""
        self.norm[index], self.undecided[index] = np.nan, True
        self.reasons |= dict.fromkeys(index.tolist(), "the time limit was reached")

    def read(self, index: npt.NDArray[np.intp], found: MarginSolutionBatch, proof: LocalProof) -> None:
        """Norms, gaps, conflicts and verdicts of some selections; exact answers count more than computed ones."""
        optimal, infeasible = np.asarray(found.status == "optimal"), np.asarray(found.status == "infeasible")
        self.norm[index] = np.where(optimal, found.norm, np.where(infeasible, np.inf, np.nan))
        self.gap[index] = np.where(optimal, found.certificate.proved, np.inf)
        self.local[index], self.undecided[index] = proof.local, proof.undecided
        for i in np.flatnonzero(infeasible).tolist():
            farkas = found[i].certificate.farkas
            if farkas is not None:
                self.conflict[index[i], farkas.owners] = True
        for k, answer in proof.exact.items():
            row = int(index[k])
            if isinstance(answer, ExactFarkas):
                self.norm[row], self.gap[row] = np.inf, np.inf
                self.conflict[row, np.unique(found.problem[k].owner[answer.rows])] = True
            elif not optimal[k]:
                self.norm[row], self.gap[row] = root_bounds(answer.norm_squared)[1], 0.0  # its square may underflow
        for k, reason in proof.reasons.items():
            self.reasons[int(index[k])] = reason


def _grid(rows: AttentionRows, values: BoolArray) -> BoolArray:
    """From one number per row to (B, q, T)."""
    out = rows.scatter(values, fill=0.0) > 0
    return np.asarray(out.reshape(len(out), -1, rows.T))


def full_verdicts(space: SelectionSpace, selections: IntArray, norm: str, *, support: bool = False) -> Verdicts:
    """Solve the full SVM of each selection and decide Definition 2.

    Parameters
    ----------
    space : SelectionSpace
    selections : ndarray of int, shape (B, q)
    norm : str
    support : bool
        Say of every token whether it is in the support, too.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.enumeration.evaluate import full_verdicts
    >>> from attsvm.enumeration.space import SelectionSpace
    >>> space = SelectionSpace(attsvm.random_problem(n=3, T=4, d=4, seed=5))
    >>> int(full_verdicts(space, space.selections(0, 64), "frobenius").locally_optimal.sum())
    4
    """
    draft = _Draft.of(space, len(selections))
    hopeless = np.take_along_axis(space.hopeless[None], selections[..., None], axis=2)[..., 0]
    draft.conflict[:] = hopeless  # infeasible by the zero row of two tokens: nothing to solve
    for part in _parts(space, np.asarray(~hopeless.any(axis=1))):
        if late():
            draft.leave(part)
            continue
        if norm != "frobenius" and len(part) and space.steps > _MANY_ROWS:
            part = _feasible(space, selections, part, draft)
            if not len(part):
                continue
        rows = space.rows(selections[part])
        found = solve_batch(rows.margin_problem, norm)
        higher = space.higher(selections[part])
        proof = prove_local(rows, found, higher)
        if norm != "frobenius" and proof.undecided.any():
            proof = _proved_alone(rows, found, higher, proof, norm)
        draft.read(part, found, proof)
        with np.errstate(invalid="ignore"):
            margins = rows.margin_problem.margins(found.W)
            close = np.abs(margins - 1.0) <= SUPPORT_TOLERANCE
        draft.near[part] = _grid(rows, close)
        if support and norm == "frobenius":
            draft.tokens[part], draft.doubtful[part] = _support(rows, found, proof)
        elif support:
            draft.tokens[part] = draft.near[part]
    return draft.finish(support)


def _feasible(
    space: SelectionSpace, selections: IntArray, part: npt.NDArray[np.intp], draft: _Draft
) -> npt.NDArray[np.intp]:
    """The selections of a part that are not infeasible, which the least Frobenius norm tells sooner than others."""
    found = solve_batch(space.rows(selections[part]).margin_problem, "frobenius")
    nothing = np.zeros(len(part), dtype=bool)
    draft.read(part, found, LocalProof(nothing, nothing))  # what is feasible is read again
    return np.asarray(part[found.status != "infeasible"])


def _proved_alone(
    rows: AttentionRows, found: MarginSolutionBatch, higher: BoolArray, proof: LocalProof, norm: str
) -> LocalProof:
    """The proof with what a batch left undecided solved one by one, which is more accurate."""
    local, undecided, reasons = proof.local.copy(), proof.undecided.copy(), dict(proof.reasons)
    for i in np.flatnonzero(proof.undecided):
        if late():
            break
        again = prove_local(rows[int(i)], solve(found.problem[int(i)], norm), higher[i])
        local[i], undecided[i] = again.local[0], again.undecided[0]
        if not undecided[i]:
            reasons.pop(int(i), None)
    return LocalProof(local, undecided, reasons, proof.exact)


def _parts(space: SelectionSpace, wanted: BoolArray) -> list[npt.NDArray[np.intp]]:
    index = np.flatnonzero(wanted)
    return [index[start : start + space.at_once] for start in range(0, len(index), space.at_once)]


def _support(rows: AttentionRows, found: MarginSolutionBatch, proof: LocalProof) -> tuple[BoolArray, BoolArray]:
    """Rows proved to lie on the margin of the Frobenius solution, and rows of which that stays open; (B, q, T) each."""
    problem = rows.margin_problem
    bounds = margin_bounds(problem, found.W, found.certificate)
    exists = problem.rhs != 0
    on = on_margin(problem, bounds) & exists
    doubtful = exists & ~on & ~bounds.beyond & (np.asarray(found.status) != "infeasible")[:, None]
    for i in np.flatnonzero(doubtful.any(axis=1)):
        one = found[int(i)]
        answer = proof.exact.get(int(i)) or solve_exactly(one.problem, one.multipliers)
        if answer is None:
            continue
        own = slice(None) if problem.valid is None else problem.valid[i]
        on[i], doubtful[i] = False, False
        if isinstance(answer, ExactLeastNorm):
            on[i, own] = answer.support
    return _grid(rows, on), _grid(rows, doubtful)


def lower_verdicts(space: SelectionSpace, selections: IntArray) -> Verdicts:
    """Solve the Frobenius SVM over lower-score rows only and test the other tokens.

    ``norm`` is the norm of the lower-row SVM: of the full SVM where locally optimal, a lower bound on it elsewhere.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.enumeration.evaluate import lower_verdicts
    >>> from attsvm.enumeration.space import SelectionSpace
    >>> space = SelectionSpace(attsvm.random_problem(n=3, T=4, d=4, seed=5))
    >>> int(lower_verdicts(space, space.selections(0, 64)).locally_optimal.sum())
    4
    """
    draft = _Draft.of(space, len(selections))
    hopeless = np.take_along_axis(space.hopeless[None], selections[..., None], axis=2)[..., 0]
    draft.conflict[:] = hopeless
    keep = space.lower(selections)
    some = keep.reshape(len(selections), -1).any(axis=1)
    # Without a lower-score row W = 0, and the higher-score tokens have margin 0: not locally optimal.
    draft.norm[~some & ~hopeless.any(axis=1)] = 0.0
    for part in _parts(space, np.asarray(some & ~hopeless.any(axis=1))):
        if late():
            draft.leave(part)
        else:
            _lower_part(space, selections[part], keep[part], part, draft)
    return draft.finish(False)


def _lower_part(
    space: SelectionSpace, selections: IntArray, keep: BoolArray, index: npt.NDArray[np.intp], draft: _Draft
) -> None:
    lower, full = space.rows(selections, keep), space.rows(selections)
    found = solve_batch(lower.margin_problem, "frobenius")
    problem = full.margin_problem
    bounds = margin_bounds(problem, found.W, found.certificate)
    above = full.pick(space.higher(selections)) & (problem.rhs != 0)
    optimal, infeasible = np.asarray(found.status == "optimal"), np.asarray(found.status == "infeasible")
    local = optimal & ~(above & ~bounds.beyond).any(axis=1)
    refuted = infeasible | (optimal & (above & bounds.inside).any(axis=1))
    undecided = ~local & ~refuted
    rest = np.flatnonzero(undecided)
    again = full_verdicts(space, selections[rest], "frobenius")  # Definition 2 itself, over the rationals if need be
    local[rest], undecided[rest] = again.locally_optimal, again.undecided
    reasons = {int(rest[i]): why for i, why in again.reasons.items()}
    draft.read(index, found, LocalProof(local, undecided, reasons))
    late = again.locally_optimal
    draft.norm[index[rest[late]]], draft.gap[index[rest[late]]] = again.norm[late], again.gap[late]
    with np.errstate(invalid="ignore"):
        draft.near[index] = _grid(full, np.abs(bounds.margins - 1.0) <= SUPPORT_TOLERANCE)
