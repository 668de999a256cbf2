"""Newton's method on the optimality conditions, once the rank and the active rows are known.

With the rank r and the active rows I fixed, the optimality conditions are smooth equations: r singular values of
``D = W(lam)`` equal 1, ``W = U1 S V1^T`` lives on their singular vectors (S symmetric), and W meets the rows of I
exactly. One step solves a linear system in the change of lam and the new S,

    [ M    B ] [  d_lam  ]   [       rhs        ]
    [ B^T  0 ] [ svec(S) ] = [ svec(I - Sigma1) ],

where ``B_k = svec sym(U1^T a_k b_k^T V1)`` and M is the first-order effect of d_lam on W through the turning of
U1 and V1: the Schur matrix of the interior point method with the pseudo-inverse of Z in place of the inverse.
Convergence is quadratic when the solution is nondegenerate; wrong guesses of r or I are corrected from signs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.certify.certificate import Certificate
from attsvm.solvers.certify.certify_pair import certify
from attsvm.solvers.frobenius.proximal_newton import Face, MultiplierSet
from attsvm.solvers.margin_problem import MarginProblem
from attsvm.solvers.margin_solution import Extras, MarginSolution, MethodResult, Request, is_one
from attsvm.solvers.norms import get_norm
from attsvm.solvers.nuclear.spectra import (
    active_map,
    pair_gap,
    schur_matrix,
    singular_triples,
    singular_values,
    symmetric,
    triangle,
)
from attsvm.solvers.unit import UnitRows

__all__ = [
    "Equations",
    "FacePair",
    "Polished",
    "guessed_rank",
    "newton_steps",
    "polish",
    "polish_face",
    "polish_guess",
    "rank_correction",
    "report",
    "warm_polish",
]

_NEWTON_STEPS = 8
_CORRECTIONS = 6


@dataclass(frozen=True, eq=False)
class Polished:
    """A solution on its manifold: ``W = U1 S V1^T`` of exact rank, multipliers of all rows.

    Attributes
    ----------
    W : ndarray, shape (p, q)
    lam : ndarray, shape (m,)
    rank : int
    gap : float
        `pair_gap` of the pair.
    steps : int
        Linear systems solved.
    """

    W: FloatArray
    lam: FloatArray
    rank: int
    gap: float
    steps: int


def _packed_goal(sigma: FloatArray, r: int) -> FloatArray:
    """``svec(I - Sigma)`` of the first r singular values: what their change has to be."""
    row, column, _, _ = triangle(r)
    return np.asarray(np.where(row == column, 1.0 - sigma[row], 0.0))


def _turning(left: FloatArray, sigma: FloatArray, right: FloatArray, r: int, floor: float) -> FloatArray:
    """``4 Z^+`` with the r active directions of Z = I - [[0, D], [D^T, 0]] removed, shape (p+q, p+q)."""
    p, k = len(left), len(sigma)
    # Eigenpairs of Z: 1 -+ sigma on (u, +-v)/sqrt(2); 1 on what is orthogonal to all u and v.
    vectors = np.empty((p + len(right), 2 * k))
    vectors[:p, :k] = vectors[:p, k:] = left
    vectors[p:, :k] = right
    np.negative(right, out=vectors[p:, k:])
    change = np.full(2 * k, -2.0)  # 4 (pseudo-inverse eigenvalue - 1) / 2
    change[r:k] += 2.0 / np.maximum(1.0 - sigma[r:], floor)
    change[k:] += 2.0 / (1.0 + sigma)
    out = (vectors * change) @ vectors.T
    out.ravel()[:: len(out) + 1] += 4.0
    return np.asarray(out)


def _solve_saddle(M: FloatArray, B: FloatArray, top: FloatArray, bottom: FloatArray) -> FloatArray | None:
    """Solve ``[[M, B], [B^T, 0]] x = (top, bottom)``; consistent singular systems get a small solution."""
    from scipy.linalg import lapack

    m, k = B.shape
    system = np.zeros((m + k, m + k))
    system[:m, :m], system[:m, m:], system[m:, :m] = M, B, B.T
    target = np.concatenate([top, bottom])
    shift = 1e-11 * max(float(np.abs(system).max()), 1e-300)
    shifted = system.copy()
    diagonal = shifted.ravel()[:: m + k + 1]
    diagonal[:m] += shift
    diagonal[m:] -= shift
    factor, pivots, failed = lapack.dgetrf(shifted.T, overwrite_a=1)  # the system is its own transpose
    if failed:
        return None
    x = lapack.dgetrs(factor, pivots, target)[0]
    size = float(np.abs(x).max())
    for _ in range(3):  # refinement removes the shift, except along null directions
        change = lapack.dgetrs(factor, pivots, target - system @ x)[0]
        x += change
        if float(np.abs(change).max()) <= 1e-12 * size:  # the next change would be far below rounding
            break
    return x if np.isfinite(x).all() else None


@dataclass(frozen=True, eq=False)
class Equations:
    """Rows ``<a_k b_k^T, W> = rhs_k`` of an identified face.

    Attributes
    ----------
    a, b : ndarray, shape (k, p) and (k, q)
    rhs : ndarray, shape (k,)
    constant : ndarray, shape (p, q), or None
        What other multipliers, held fixed, add to the dual matrix.
    shift : ndarray, shape (k, k), or None
        Curvature of squared hinges: the rows ask for ``rhs - shift lam``.
    """

    a: FloatArray
    b: FloatArray
    rhs: FloatArray
    constant: FloatArray | None = None
    shift: FloatArray | None = None

    def dual(self, lam: FloatArray) -> FloatArray:
        """The dual matrix of multipliers, shape (p, q)."""
        D = (self.a * lam[:, None]).T @ self.b
        return D if self.constant is None else self.constant + D

    def asked(self, lam: FloatArray) -> FloatArray:
        """What the rows ask for beside multipliers, shape (k,)."""
        return self.rhs if self.shift is None else self.rhs - self.shift @ lam


def _turn_towards(W: FloatArray, left: FloatArray, right: FloatArray) -> None:
    """Turn the singular vectors of one cluster, in place, so that those which W uses most come first."""
    core = left.T @ W @ right.T
    turn = np.linalg.eigh(core + core.T)[1][:, ::-1]
    left[:], right[:] = left @ turn, turn.T @ right


def newton_steps(
    rows: Equations,
    lam: FloatArray,
    W: FloatArray,
    r: int,
    cluster: int,
    tolerance: float,
    late: Callable[[], bool] | None = None,
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, int] | None:
    """Newton steps for a fixed rank r and face: (lam, W, S, sigma, steps), or None when they diverge or it is late.

    When ``cluster > r`` that many singular values of the first D are equal; W then tells which vectors to keep.
    """
    a, b, p = rows.a, rows.b, rows.a.shape[1]
    previous, size = np.inf, max(1.0, float(np.abs(rows.rhs).max(initial=0.0)))
    for step in range(_NEWTON_STEPS + 1):
        if late is not None and late():
            return None
        triples = singular_triples(rows.dual(lam))
        if triples is None:
            return None
        U, sigma, Vt = triples
        if step == 0 and cluster > r:
            _turn_towards(W, U[:, :cluster], Vt[:cluster])
        left, right = U[:, :r], Vt[:r].T
        S = left.T @ W @ right
        S = 0.5 * (S + S.T)
        both = np.concatenate([left, right])
        X = both @ S @ both.T
        W = X[:p, p:]
        asked = rows.asked(lam)
        missed = np.einsum("kd,kd->k", a @ W, b) - asked
        error = max(float(np.abs(missed).max(initial=0.0)) / size, float(np.abs(sigma[:r] - 1.0).max()))
        if not np.isfinite(error) or error > 4.0 * max(previous, 1e-9):
            return None
        if error <= tolerance or step == _NEWTON_STEPS or (error > 0.5 * previous and error < 1e-9):
            return lam, W, S, sigma, step
        previous = error
        # Just after the rank was lowered, sigma_{r+1} is still 1; the floor lets it leave and vanishes with the error.
        M = schur_matrix(a, b, X, _turning(U, sigma, Vt.T, r, max(min(error, 1e-2), 1e-12)))
        if rows.shift is not None:
            M += rows.shift
        x = _solve_saddle(M, active_map(a, b, left, right), asked, _packed_goal(sigma, r))
        if x is None:
            return None
        lam = lam + x[: len(lam)]
        W = left @ symmetric(x[len(lam) :], r) @ right.T
    return None


def rank_correction(S: FloatArray, sigma: FloatArray, rank: int, accuracy: float) -> tuple[int, int]:
    """Directions to add (singular values of D above 1) and to drop (negative ones of S), by their signs."""
    curvature = np.linalg.eigvalsh(S)
    drop = int(np.count_nonzero(curvature < -accuracy * max(1.0, float(curvature[-1]))))
    return int(np.count_nonzero(sigma[rank:] > 1.0 + accuracy)), drop


def guessed_rank(primal: FloatArray, dual: FloatArray) -> int:
    """The rank of a nearly optimal pair from the singular values of W and D.

    A singular pair counts as active when its primal value, relative to the largest, exceeds the distance of its
    dual value from 1: the product of the two tends to 0, so one of them dominates.
    """
    return max(1, int(np.count_nonzero(primal / primal[0] > 1.0 - dual)))


def polish(
    rows: UnitRows, W: FloatArray, lam: FloatArray, active: BoolArray, rank: int, *, tolerance: float = 1e-14
) -> Polished | None:
    """Newton from a nearly optimal pair whose rank and active rows are guessed.

    Parameters
    ----------
    rows : UnitRows
    W : ndarray, shape (p, q)
    lam : ndarray, shape (m,)
    active : ndarray of bool, shape (m,)
        Guess; equality rows are always active.
    rank : int
        Guess.
    tolerance : float
        Residual of the equations at which the steps end.

    Returns
    -------
    Polished or None
        None when the guess did not lead to an optimal pair; the caller then goes on with its own method.
    """
    active = active | rows.equality
    best: Polished | None = None
    steps, cluster = 0, rank
    for _ in range(_CORRECTIONS):
        index = np.flatnonzero(active)
        if not 1 <= rank <= min(rows.shape) or not len(index):
            return best
        face = Equations(rows.a[index], rows.b[index], rows.rhs[index])
        found = newton_steps(face, lam[index], W, rank, cluster, tolerance)
        if found is None:
            return best
        lam_active, W_new, S, sigma, used = found
        steps += used
        lam_new = np.zeros(rows.m)
        lam_new[index] = lam_active
        gap = pair_gap(rows, W_new, lam_new)
        if best is None or gap < best.gap:
            best = Polished(W_new, rows.clipped(lam_new), rank, gap, steps)
        accuracy = 1e-12 * max(1.0, float(np.abs(W_new).max()))
        negative = ~rows.equality & (lam_new < -accuracy)
        missing = ~active & (rows.missed(W_new) > accuracy)
        add, drop = rank_correction(S, sigma, rank, accuracy)
        if not (negative.any() or missing.any() or drop or add):
            return best
        active = (active & ~negative) | missing
        cluster = rank if not add else 0
        rank += add - drop
        W, lam = W_new, rows.clipped(lam_new)
    return best


def polish_guess(rows: UnitRows, W: FloatArray, lam: FloatArray, active: BoolArray) -> Polished | None:
    """`polish` with the rank guessed from the pair."""
    primal, dual = singular_values(W), singular_values(rows.adjoint(lam))
    return polish(rows, W, lam, active, guessed_rank(primal, dual)) if 0 < primal[0] < np.inf else None


def warm_polish(rows: UnitRows, request: Request, *, goal: float = 1e-11) -> Polished | None:
    """Newton from the solution of a similar problem; None unless there is one and it leads to ``goal``."""
    known = request.warm_start
    if known is None:
        return None
    if not isinstance(known, MarginSolution) or not is_one(known):
        raise ValueError(
            "warm_start must be a solution for the nuclear norm: Newton needs its W, not multipliers alone"
        )
    if not known.status.has_solution:
        return None
    polished = polish_pair(rows, known.W, known.multipliers)
    return polished if polished is not None and polished.gap <= goal else None


def polish_pair(rows: UnitRows, W: FloatArray, multipliers: FloatArray) -> Polished | None:
    """Newton from W and multipliers in the coordinates of the problem."""
    W, lam = rows.reduce(W), multipliers[rows.index] / rows.unit.inverse[rows.index]
    return polish_guess(rows, W, lam, lam > np.maximum(rows.values(W) - rows.rhs, 1e-9))


def report(rows: UnitRows, best: Polished, iterations: int, extras: Extras) -> MethodResult:
    """A pair of unit rows in the coordinates and the scale of the problem."""
    W, lam = rows.lift(best.W), rows.restore_multipliers(best.lam)
    return MethodResult(W, lam, iterations, certificate=certify(rows.unit.problem, W, lam, "nuclear"), extras=extras)


_FACE_CORRECTIONS = 12
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
    corrections: int = _FACE_CORRECTIONS,
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
