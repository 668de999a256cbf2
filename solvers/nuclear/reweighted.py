"""Least nuclear norm of very many rows, hard or soft: weighted Frobenius problems on a working set, then Newton.

``||W||_* = min over A > 0 of (<W, A^-1 W> + tr A) / 2``, reached at ``A = (W W^T)^(1/2)``. For a given A this is a least
Frobenius norm of ``V = A^-1/2 W`` with rows ``(A^1/2 a_k) b_k^T``, whose multipliers have ``W(lam) = A^-1 W``: nearly of
norm 1, hence a bound. Alternating the two approaches the solution (Mohan and Fazel, "Iterative reweighted algorithms for
matrix rank minimization", JMLR 13, 2012) until the rank and the face of the multipliers show, and Newton's method
(`face_newton`) finishes.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from attsvm.solvers.arrays import BoolArray, FloatArray
from attsvm.solvers.certify import certify
from attsvm.solvers.frobenius.working_set import WorkingSetSolve
from attsvm.solvers.norms import Norm, get_norm
from attsvm.solvers.nuclear.face_newton import polish_face
from attsvm.solvers.problem import MarginProblem
from attsvm.solvers.request import Request
from attsvm.solvers.solution import Extras, Found
from attsvm.solvers.split_rows import needs_split, solve_split
from attsvm.solvers.unit import UnitProblem
from attsvm.solvers.weighted_rows import WeightedRows

__all__ = ["solve_reweighted"]

_ROUNDS = 60
# Rows up to which Newton is tried whenever there is progress.
_FEW = 3000
# Factor by which the floor under the weights falls from round to round, and where it ends.
_FALL, _FLOOR, _SHARE = 0.5, 1e-7, 0.05


class _Best:
    """The pair whose certificate proves most."""

    def __init__(self, problem: MarginProblem, norm: Norm) -> None:
        self.problem, self.norm = problem, norm
        self.found: Found = Found()
        self.proved = np.inf

    def offer(self, W: FloatArray, lam: FloatArray) -> float:
        """Certify a pair on all rows; what it proves."""
        size = float(np.linalg.norm(self.problem.adjoint(lam), 2))
        if size > (0.0 if self.problem.penalty is None else 1.0):  # the norm form, or what is admissible
            lam = lam / (size * (1.0 + 1e-15))
        certificate = certify(self.problem, W, lam, self.norm)
        if certificate.proved < self.proved:
            self.proved = certificate.proved
            self.found = Found(W, lam, certificate=certificate)
        return certificate.proved


def _weights(W: FloatArray, floor: float) -> tuple[FloatArray, float]:
    """``A^1/2`` for ``A = (W W^T + floor^2)^1/2``, floor relative to the largest singular value, and that value."""
    values, vectors = np.linalg.eigh(W @ W.T)
    top = float(np.sqrt(max(values[-1], 0.0)))
    root = np.sqrt(np.maximum(values, 0.0) + (floor * top) ** 2)
    return np.asarray((vectors * np.sqrt(root)) @ vectors.T), top


def _scaled_feasible(problem: MarginProblem, W: FloatArray) -> FloatArray:
    """W raised to meet plain rows that it misses by little."""
    if problem.penalty is not None or problem.equality.any() or not (problem.rhs > 0).all():
        return W
    least = float((problem.margins(W) / problem.rhs).min())
    return W / least if 0.5 < least < 1.0 else W


def solve_reweighted(unit: UnitProblem, norm: Norm, request: Request) -> Found:
    """Least nuclear norm, hard or soft, of any number of rows.

    ``max_iterations`` limits the weighted problems (60 by default). Options are ``time_limit`` in seconds, after which
    the best certified pair is returned, and ``progress``, called with a `Progress` after every round of each of them.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, solve
    >>> rows = MarginProblem([[3.0, 4.0]], [[1.0]], [0])
    >>> solve(rows, "nuclear", "reweighted").W.ravel().round(6)
    array([0.12, 0.16])
    >>> solve(rows.soft(C=0.1), "nuclear").W.ravel().round(6)  # missing the row costs less than meeting it
    array([0., 0.])
    """
    if needs_split(unit.problem):
        return solve_split(unit.problem, norm, request, lambda part, asked: _reweighted(part, norm, asked))
    return _reweighted(unit.problem, norm, request)


def _reweighted(problem: MarginProblem, norm: Norm, request: Request) -> Found:
    """Weighted problems with attempts to finish by Newton."""
    begin = time.perf_counter()
    limit: float = request.options.get("time_limit") or np.inf
    best, frobenius = _Best(problem, norm), get_norm("frobenius")
    best.offer(np.zeros(problem.shape), np.zeros(problem.m))
    left = np.eye(problem.shape[0])
    known = request.multipliers(problem)
    floor, rounds, attempt_below, systems, rows = 1.0, 0, 3e-2, 0, 0
    for rounds in range(1, (request.max_iterations or _ROUNDS) + 1):
        weighted = MarginProblem.from_rows(WeightedRows(problem.rows, left), problem.rhs, problem.equality)
        weighted.penalty = problem.penalty
        inner = Request(max(1e-10, 1e-2 * floor), warm_start=known, options=request.options)
        solve = WorkingSetSolve(weighted, frobenius, inner)
        found = solve.run()
        systems, rows = systems + solve.method.factorizations, len(solve.method.index)
        if found.farkas is not None:
            return _with_proof(problem, found, rounds)
        if found.W is None or found.multipliers is None:
            break
        W = left @ found.W
        size = 1.0 if problem.penalty is not None else float(np.linalg.norm(found.W))
        known, lam = found.multipliers, found.multipliers * size
        reached = best.offer(_scaled_feasible(problem, W), lam)
        if problem.penalty is not None:  # W = 0 and multipliers that pay for everything
            best.offer(np.zeros(problem.shape), lam)
        if reached < attempt_below:
            # A failed attempt costs little on few rows; on many, come closer first.
            attempt_below = min(attempt_below, (0.9 if problem.m <= _FEW else 0.4) * reached)
            near = np.flatnonzero((lam != 0) | problem.equality | _close(problem, W))
            polished = polish_face(problem.gather(near), W, lam[near])
            if polished is not None:
                full = np.zeros(problem.m)
                full[near] = polished.lam
                best.offer(polished.W, full)
        if best.proved <= 1e-2 * request.tolerance or time.perf_counter() - begin > limit:
            break
        if best.proved <= request.tolerance and floor <= 1e-4:
            break
        # Weights far below the error would freeze directions that still have to turn.
        floor = max(_FLOOR, floor * _FALL, _SHARE * min(reached, 1.0))
        left, top = _weights(W, floor)
        if top == 0:
            break
    extras = Extras(interior_iterations=rounds, working_rows=rows, factorizations=systems)
    return replace(best.found, iterations=rounds, extras=extras)


def _close(problem: MarginProblem, W: FloatArray) -> BoolArray:
    """Rows that are missed or nearly so, which may turn out to be active."""
    slack = problem.margins(W) - problem.rhs
    return np.asarray(slack < 1e-3 * np.maximum(1.0, np.abs(problem.rhs)))


def _with_proof(problem: MarginProblem, found: Found, rounds: int) -> Found:
    """A proof of infeasibility of weighted rows, for the rows as they are."""
    from attsvm.solvers.farkas import certify_infeasible

    assert found.farkas is not None and found.farkas.farkas is not None
    return Found(farkas=certify_infeasible(problem, found.farkas.farkas.multipliers), iterations=rounds)
