"""Least nuclear norm of very many rows, hard or soft: weighted Frobenius problems on a working set, then Newton.

Near W the nuclear norm behaves like the quadratic form ``<W, M^-1 W> / 2`` of the metric ``M(D) = (A D + D B) / 2``
with ``A = (W W^T)^1/2`` and ``B = (W^T W)^1/2``: it lets singular vectors turn freely and holds back only what is
small on both sides. The least norm in this metric is a problem for the working-set method, and its multipliers have
``W = M(W(lam))``: ``W(lam)`` is nearly of norm 1, hence a bound. Alternating the two approaches the solution (C.
Kuemmerle and J. Sigl, "Harmonic mean iteratively reweighted least squares for low-rank matrix recovery", JMLR 19,
2018) until the rank and the face of the multipliers show, and Newton's method (`face_newton`) finishes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from attsvm.solvers.arrays import BoolArray, FloatArray
from attsvm.solvers.certify.certify_pair import certify
from attsvm.solvers.deadline import read_time_limit
from attsvm.solvers.frobenius.proximal_newton import Metric
from attsvm.solvers.frobenius.working_set import WorkingSetSolve, raised
from attsvm.solvers.margin_problem import MarginProblem
from attsvm.solvers.margin_solution import Extras, MethodResult, Request
from attsvm.solvers.norms import Norm, get_norm
from attsvm.solvers.nuclear.newton import polish_face
from attsvm.solvers.rows.pairs import PairRows
from attsvm.solvers.unit import UnitProblem

__all__ = ["solve_reweighted"]

_ROUNDS, _MANY_ROUNDS = 60, 200
# Rows up to which Newton is tried whenever there is progress.
_FEW = 3000
# Factor by which the floor under the weights falls from round to round, and where it ends.
_FALL, _FLOOR, _SHARE = 0.5, 1e-7, 0.05
# By how much rows of a weighted problem may be missed, as a share of what the last one left open.
_ROUGH = 0.02
# Times that rows may join those which Newton looks at, and what it must prove of these for that.
_JOINS, _SETTLED = 6, 1e-6


class _Best:
    """The pair whose certificate proves most."""

    def __init__(self, problem: MarginProblem, norm: Norm) -> None:
        self.problem, self.norm = problem, norm
        self.found: MethodResult = MethodResult()
        self.proved = np.inf

    def offer(self, W: FloatArray, lam: FloatArray) -> float:
        """Certify a pair on all rows; what it proves."""
        size = float(np.linalg.norm(self.problem.adjoint(lam), 2))
        if size > (0.0 if self.problem.penalty is None else 1.0):  # the norm form, or what is admissible
            lam = lam / (size * (1.0 + 1e-15))
        certificate = certify(self.problem, W, lam, self.norm)
        if certificate.proved < self.proved:
            self.proved = certificate.proved
            self.found = MethodResult(W, lam, certificate=certificate)
        return certificate.proved

    def offer_raised(self, W: FloatArray, lam: FloatArray) -> float:
        """W raised until it meets the rows; returns what that proves. Of a soft margin W = 0 as well."""
        reached = self.offer(raised(self.problem, W), lam)
        if self.problem.penalty is not None:  # slacks alone may be the solution
            self.offer(np.zeros(self.problem.shape), lam)
        return reached


def _metric(W: FloatArray, floor: float) -> Metric | None:
    """The metric of W, singular values raised to ``floor`` times the largest; None at 0."""
    U, sigma, Vt = np.linalg.svd(W, full_matrices=True)
    top = float(sigma[0])
    if not 0 < top < np.inf:
        return None
    left, right = np.full(len(U), 0.0), np.full(len(Vt), 0.0)
    left[: len(sigma)] = right[: len(sigma)] = sigma
    left, right = (np.sqrt(side**2 + (floor * top) ** 2) for side in (left, right))
    return Metric((U * left) @ U.T, (Vt.T * right) @ Vt)


def solve_reweighted(unit: UnitProblem, norm: Norm, request: Request) -> MethodResult:
    """Least nuclear norm, hard or soft, of any number of rows.

    ``max_iterations`` limits the weighted problems (60 by default, 200 for many rows). Options are ``time_limit`` in
    seconds, after which the best certified pair is returned, and ``progress``, called with a `Progress` after every
    round of each of them.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, solve
    >>> rows = MarginProblem([[3.0, 4.0]], [[1.0]], [0])
    >>> solve(rows, "nuclear", "reweighted").W.ravel().round(6)
    array([0.12, 0.16])
    >>> solve(rows.soft(C=0.1), "nuclear").W.ravel().round(6)  # missing the row costs less than meeting it
    array([0., 0.])
    """
    if _needs_split(unit.problem):
        return _solve_split(unit.problem, norm, request)
    return _reweighted(unit.problem, norm, request)


def _needs_split(problem: MarginProblem) -> bool:
    """Whether equality rows share a squared slack."""
    penalty = problem.penalty
    shared = penalty is not None and penalty.slack == "query" and penalty.loss == "squared_hinge"
    return shared and bool(problem.equality.any())


def _solve_split(problem: MarginProblem, norm: Norm, request: Request) -> MethodResult:
    """Solve with every equality row as two inequalities, and put the multipliers together again.

    The load of a query is the sum of the sizes of its multipliers, and its square is not smooth where that of an
    equality row is 0; for the two halves of it, both nonnegative, it is.
    """
    equal = np.flatnonzero(problem.equality)
    pair = problem.rows.gather(np.r_[np.arange(problem.m), equal])
    a = pair.a.astype(np.float64)
    a[problem.m :] *= -1.0
    rows = PairRows.trusted(a, pair.queries, pair.owner)
    split = MarginProblem.from_rows(rows, np.r_[problem.rhs, -problem.rhs[equal]])
    split.penalty = problem.penalty
    known = request.multipliers(problem)
    if known is not None:
        known = np.maximum(np.r_[known, -known[equal]], 0.0)
    found = _reweighted(split, norm, replace(request, warm_start=known))
    if found.W is None or found.multipliers is None:
        return found
    lam = found.multipliers[: problem.m].copy()
    lam[equal] -= found.multipliers[problem.m :]
    return replace(found, multipliers=lam, certificate=certify(problem, found.W, lam, norm))


def _reweighted(problem: MarginProblem, norm: Norm, request: Request) -> MethodResult:
    """Weighted problems with attempts to finish by Newton."""
    begin = time.perf_counter()
    limit = read_time_limit(request.options.get("time_limit"))
    best, frobenius = _Best(problem, norm), get_norm("frobenius")

    def left() -> float:
        return limit - (time.perf_counter() - begin)

    best.offer(np.zeros(problem.shape), np.zeros(problem.m))
    metric: Metric | None = None
    known = request.multipliers(problem)
    floor, rounds, attempt_below, systems, products, rows, reached = 1.0, 0, 3e-2, 0, 0, 0, 1.0
    for rounds in range(1, _rounds(problem, request) + 1):
        asked = Request(request.tolerance, warm_start=known, options=_within(request.options, left(), limit))
        solve = WorkingSetSolve(problem, frobenius, asked, metric)
        if metric is None:  # also where infeasibility shows
            found = solve.run()
            if found.farkas is not None:
                return replace(found, iterations=rounds)
            if found.W is None or found.multipliers is None:
                break
            W, lam = found.W, found.multipliers
            lam = lam * float(np.linalg.norm(W)) if problem.penalty is None else lam
        else:
            W, lam = solve.approach(1e-7, 1e-9, min(max(_ROUGH * reached, 1e-9), 1e-3))
        known = lam
        made = solve.extras()
        systems, products, rows = systems + made.factorizations, products + made.products, made.working_rows
        reached = best.offer_raised(W, lam)
        if reached < attempt_below and left() > 0:
            # A failed attempt costs little on few rows; on many, come closer first.
            attempt_below = min(attempt_below, (0.9 if problem.m <= _FEW else 0.4) * reached)
            for polished, full in _polished(problem, W, lam, lambda: left() < 0):
                best.offer(polished, full)
        goal = request.tolerance * (1.0 if floor <= 1e-4 else 1e-2)
        if best.proved <= goal or left() < 0:
            break
        # Weights far below the error would freeze directions that still have to turn.
        floor = max(_FLOOR, floor * _FALL, _SHARE * min(reached, 1.0))
        metric = _metric(W, floor)
        if metric is None:
            break
    extras = Extras(interior_iterations=rounds, working_rows=rows, factorizations=systems, products=products)
    return replace(best.found, iterations=rounds, extras=extras)


def _polished(
    problem: MarginProblem, W: FloatArray, lam: FloatArray, late: Callable[[], bool]
) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Pairs by Newton on the rows that are nearly active, which rows join that the pair before misses."""
    near = (lam != 0) | problem.equality | _close(problem, W)
    for _ in range(_JOINS):
        index = np.flatnonzero(near)
        polished = polish_face(problem.gather(index), W, lam[index], late=late)
        if polished is None:
            return
        W, lam = polished.W, np.zeros(problem.m)
        lam[index] = polished.lam
        yield W, lam
        joining = _close(problem, W) & ~near
        if not joining.any() or polished.certificate.proved > _SETTLED:
            return
        near |= joining


def _rounds(problem: MarginProblem, request: Request) -> int:
    return request.max_iterations or (_ROUNDS if problem.m <= _FEW else _MANY_ROUNDS)


def _within(options: dict[str, object], left: float, limit: float) -> dict[str, object]:
    """Options with what is left of the time, and a little more: a W of some kind is always found."""
    return options if limit == np.inf else {**options, "time_limit": max(left, 0.05 * limit)}


def _close(problem: MarginProblem, W: FloatArray) -> BoolArray:
    """Rows that are missed or nearly so, which may turn out to be active."""
    slack = problem.margins(W) - problem.rhs
    return np.asarray(slack < 1e-3 * np.maximum(1.0, np.abs(problem.rhs)))
