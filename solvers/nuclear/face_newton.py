"""Newton's method of `attsvm.solvers.nuclear.newton` on a face of the multipliers: hard and soft margins alike.

With the rank and the face known (rows that are free, rows fixed at their bound, queries whose sum is at its cap), the
dual matrix is ``D = D0 + sum of free multipliers times rows``: rows at a bound are constant, and in a query at its
cap the other rows are seen from the largest one, which shares their right factor, so that they stay of rank one.
Squared hinges add their curvature to the rows' equations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.solvers.certify.certificate import Certificate
from attsvm.solvers.certify.entry import certify
from attsvm.solvers.frobenius.multiplier_sets import Face, MultiplierSet
from attsvm.solvers.margin_problem import MarginProblem
from attsvm.solvers.norms import get_norm
from attsvm.solvers.nuclear.newton import Equations, guessed_rank, newton_steps, rank_correction
from attsvm.solvers.nuclear.spectra import singular_values

__all__ = ["FacePair", "polish_face"]

_CORRECTIONS = 12
# Unknowns of the largest system that is formed.
_LARGEST = 9000


@dataclass(frozen=True, eq=False)
class FacePair:
    """A pair with its certificate.

    Attributes
    ----------
    W : ndarray, shape (dx, dz)
    lam : ndarray, shape (m,)
    certificate : Certificate
    rank : int
    """

    W: FloatArray
    lam: FloatArray
    certificate: Certificate
    rank: int


@dataclass(frozen=True, eq=False)
class _Reduced:
    """The equations of a face: rows with free multipliers, and what is constant."""

    rows: Equations
    kept: IntArray
    leaders: IntArray
    followers: IntArray
    leader_of: IntArray
    sign: FloatArray
    fixed: FloatArray

    def expand(self, lam: FloatArray) -> FloatArray:
        """Multipliers of all rows from those of the kept ones."""
        full = self.fixed.copy()
        full[self.kept] = lam
        np.subtract.at(full, self.leader_of, self.sign * lam[self.followers])
        return full


def _reduce(problem: MarginProblem, a: FloatArray, b: FloatArray, face: Face) -> _Reduced:
    owner, penalty = problem.owner, problem.penalty
    free = np.flatnonzero(face.free)
    fixed = np.where(face.free, 0.0, face.x)
    signs = np.where(face.x < 0, -1.0, 1.0)
    leaders = np.zeros(0, dtype=np.int64)
    leader_at = np.full(problem.q, -1)
    if len(face.tight):
        tied = free[face.tight[owner[free]]]
        order = tied[np.lexsort((-np.abs(face.x[tied]), owner[tied]))]
        leaders = order[np.r_[True, owner[order][1:] != owner[order][:-1]]] if len(order) else leaders
        leader_at[owner[leaders]] = leaders
        assert penalty is not None
        fixed[leaders] = signs[leaders] * penalty.C
    kept = np.setdiff1d(free, leaders)
    followers = np.flatnonzero(leader_at[owner[kept]] >= 0)
    leader_of = leader_at[owner[kept[followers]]]
    sign = signs[kept[followers]] * signs[leader_of]
    left, rhs = a[kept], problem.rhs[kept]
    if len(followers):
        left = left.copy()
        left[followers] -= sign[:, None] * a[leader_of]
        rhs = rhs.copy()
        rhs[followers] -= sign * problem.rhs[leader_of]
    shift = None
    if penalty is not None and penalty.loss == "squared_hinge":
        joint = owner[kept][:, None] == owner[kept][None, :] if penalty.slack == "query" else np.eye(len(kept))
        shift = joint * (0.5 / penalty.C)
    constant = (a * fixed[:, None]).T @ b
    rows = Equations(left, b[kept], rhs, constant, shift)
    return _Reduced(rows, kept, leaders, followers, leader_of, sign, fixed)


def _softness(problem: MarginProblem, lam: FloatArray) -> FloatArray | float:
    """What squared hinges give to the rows, shape (m,); nothing for other problems."""
    penalty = problem.penalty
    if penalty is None or penalty.loss != "squared_hinge":
        return 0.0
    loads = np.bincount(problem.owner, weights=lam)[problem.owner] if penalty.slack == "query" else lam
    return np.asarray(0.5 / penalty.C * loads)


def polish_face(
    problem: MarginProblem,
    W: FloatArray,
    lam: FloatArray,
    *,
    goal: float = 1e-11,
    corrections: int = _CORRECTIONS,
    late: Callable[[], bool] | None = None,
) -> FacePair | None:
    """Newton from a nearly optimal pair; rank and face are guessed from it and corrected from signs.

    Parameters
    ----------
    problem : MarginProblem
        With few enough rows to be written out.
    W : ndarray, shape (dx, dz)
    lam : ndarray, shape (m,)
        In the scale of the nuclear norm: ``||W(lam)|| = 1``.
    goal : float
        What the certificate should prove.
    corrections : int
        Guesses that may be tried.
    late : callable, optional
        Asked before every step; True ends it with the best pair so far.
    """
    pair = problem.rows.gather(np.arange(problem.m))
    a, b = pair.a.astype(np.float64, copy=False), pair.queries.astype(np.float64)[pair.owner]
    admissible = MultiplierSet(problem.owner, problem.q, problem.equality, problem.single_penalty)
    norm, best = get_norm("nuclear"), None
    primal, dual = singular_values(W), singular_values(problem.adjoint(lam))
    if not 0 < primal[0] < np.inf:
        return None
    rank = guessed_rank(primal, dual)
    cluster, before = rank, None
    # One unit of shortfall against one of multiplier, whatever their scales.
    rho = float(np.abs(problem.rhs).max()) / max(float(np.abs(lam).max()), 1e-300)
    for _ in range(corrections):
        values = np.einsum("kd,kd->k", a @ W, b) + _softness(problem, lam)
        face = admissible.project(lam + (problem.rhs - values) / rho)
        if before is not None and face.same(before[0]) and rank == before[1]:
            break
        before = face, rank
        part = _reduce(problem, a, b, face)
        unknowns = len(part.kept) + rank * (rank + 1) // 2
        if not 1 <= rank <= min(problem.shape) or unknowns > _LARGEST or not len(part.kept):
            return best
        found = newton_steps(part.rows, lam[part.kept], W, rank, cluster, 1e-14, late)
        if found is None:
            return best
        reduced, W, S, sigma, _ = found
        lam = part.expand(reduced)
        certificate = certify(problem, W, lam, norm)
        if best is None or certificate.proved < best.certificate.proved:
            best = FacePair(W, lam, certificate, rank)
        if certificate.proved <= goal:
            break
        accuracy = 1e-12 * max(1.0, float(np.abs(W).max()))
        add, drop = rank_correction(S, sigma, rank, accuracy)
        cluster = rank if not add else 0
        rank += add - drop
    return best
