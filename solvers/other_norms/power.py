"""Least l_p norms, 1 < p < inf, of one small problem by Newton's method, rows found by pivoting.

``||W||_p^p / p`` is minimized, so that ``D = F' lam`` and W are powers of each other, entry by entry. A Newton step is
a quadratic program over the rows, which is linearized where the power is smooth at 0:

    p < 2, in lam:  minimize  ||D||_q^q / q - c . lam       K = (q - 1) |D|^(q-2),     W = sign(D) |D|^(q-1)
    p > 2, in W:    minimize  ||W||_p^p / p                 K = 1 / ((p - 1) |W|^(p-2))

Both ask for ``x >= 0`` with ``F K F' x >= r`` and equality where x > 0. Its rows are those of the last step but for a
few, which change sides all at once (block principal pivoting); where that does not end, DAQP takes one row at a time. A
step that does not descend is halved. What does not certify, and larger problems, are left to `solve_primal_dual`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attsvm.solvers.arrays import BoolArray, FloatArray
from attsvm.solvers.frobenius.pivoting import by_daqp, solve_small
from attsvm.solvers.norms import Norm
from attsvm.solvers.other_norms.solve import certified, solve_primal_dual
from attsvm.solvers.request import Request
from attsvm.solvers.solution import Found
from attsvm.solvers.unit import UnitProblem

__all__ = ["solve_power"]

MAX_STEPS = 30
# Rows up to which pivoting and DAQP are quicker than an interior point method.
_MOST_ROWS = 150
# Share of the tolerance at which the method ends: Newton's last step is nearly free.
_GOAL = 1e-3
# Slopes of the power that are told from 0, relative to the largest.
_FLAT = 1e-8
_ROUNDS, _SHORTEST = 6, 1e-3
# By how much a row may be on the wrong side of a quadratic program.
_WRONG = 1e-13


class _Rows(NamedTuple):
    """Unit rows ``F W >= c`` written out; ``equality`` is None when there is none."""

    F: FloatArray
    c: FloatArray
    equality: BoolArray | None


class _Point(NamedTuple):
    """W flat, multipliers, steps, and the larger of gap and miss."""

    W: FloatArray
    lam: FloatArray
    steps: int
    worst: float


def _program(rows: _Rows, K: FloatArray, right: FloatArray, active: BoolArray) -> tuple[FloatArray, FloatArray] | None:
    """Multipliers of the quadratic program of a step and ``F' x``, from a guess of its active rows; None without."""
    from scipy.linalg.lapack import dposv

    F, _, equality = rows
    half = F * np.sqrt(K)
    M = half @ half.T
    fewest = len(right) + 1
    for _ in range(_ROUNDS):
        index = active.nonzero()[0]
        columns = M[index]
        _, x, failed = dposv(columns[:, index], right[index])
        if failed:
            break
        wrong = x @ columns < right - _WRONG
        wrong[index] = x < 0.0
        if equality is not None:
            wrong &= ~equality
        count = int(np.count_nonzero(wrong))
        if not count:
            whole = np.zeros(len(right))
            whole[index] = x
            return whole, whole @ F
        if count >= fewest:
            break
        fewest, active = count, active ^ wrong
    x, ended, _ = by_daqp(M, right, equality)
    return (x, x @ F) if ended else None


def _by_multipliers(rows: _Rows, lam: FloatArray, p: float, most: int, goal: float) -> _Point | None:
    """For p < 2: Newton's method on the dual, scaled along its ray after every step, where the gap is 0."""
    F, c, equality = rows
    q = p / (p - 1.0)
    D, steps = lam @ F, 0
    while True:
        size = np.abs(D)
        power = size ** (q - 2.0)
        W = D * power
        products, value = float(W @ D), float(c @ lam)
        if not (products > 0.0 and value > 0.0):
            return None
        scale = (value / products) ** (1.0 / (q - 1.0))
        lam, D, W, power = lam * scale, D * scale, W * scale ** (q - 1.0), power * scale ** (q - 2.0)
        margins = F @ W
        short = c - margins
        worst = float(np.max(short if equality is None else np.where(equality, np.abs(short), short)))
        if worst <= goal or steps == most:
            return _Point(W, lam, steps, worst)
        K = (q - 1.0) * np.maximum(power, _FLAT * power.max())
        found = _program(rows, K, F @ (K * D) + short, lam > 0.0 if equality is None else (lam > 0.0) | equality)
        if found is None:
            return None
        way, way_D = found[0] - lam, found[1] - D
        value, slope, length = float(c @ lam), -float(short @ way), 1.0
        start = value / q - value  # on the ray ||D||_q^q is c . lam
        while length > _SHORTEST:
            trial = D + length * way_D
            if (
                float(np.add.reduce(np.abs(trial) ** q)) / q - value - length * float(c @ way)
                <= start + 1e-4 * length * slope
            ):
                break
            length *= 0.5
        lam, D, steps = lam + length * way, D + length * way_D, steps + 1


def _by_entries(rows: _Rows, W: FloatArray, lam: FloatArray, p: float, most: int, goal: float) -> _Point | None:
    """For p > 2: Newton's method on W, which stays feasible."""
    F, c, equality = rows
    q = p / (p - 1.0)
    active, steps, worst = lam > 0.0, 0, np.inf
    size = np.abs(W)
    while worst > goal and steps < most:
        steps += 1
        power = size ** (p - 2.0)
        gradient = W * power
        K = (1.0 / (p - 1.0)) / np.maximum(power, _FLAT * power.max())
        right = c - F @ (W - K * gradient)
        found = _program(rows, K, right, active if equality is None else active | equality)
        if found is None:
            return None
        lam, D = found
        active = lam > 0.0
        way = K * (D - gradient)
        start, slope, length = float(gradient @ W), p * float(gradient @ way), 1.0
        while True:
            trial = W + length * way
            size = np.abs(trial)
            value = float(np.add.reduce(size**p))
            if value <= start + 1e-4 * length * slope or length <= _SHORTEST:
                break
            length *= 0.5
        W = trial
        bound = float(np.add.reduce(np.abs(D) ** q)) ** (1.0 / q) * value ** (1.0 / p)
        worst = 1.0 - float(c @ lam) / bound
    return _Point(W, lam, steps, worst)


def _newton(unit: UnitProblem, norm: Norm, request: Request) -> Found | None:
    """One problem from its solution of least Frobenius norm; None where the method breaks down."""
    problem = unit.problem
    equality = problem.equality if unit.has_equalities else None
    first = solve_small(unit.gram, unit.c, equality, None, None)
    if not first.settled:
        return None
    pair, p = problem.pairs(), float(norm.name.removeprefix("l"))
    a = pair.a * unit.inverse[:, None]
    F = (a[:, :, None] * pair.right[:, None, :]).reshape(unit.m, -1)
    lam = problem.clipped(first.x)
    W = lam @ F
    size = float(np.add.reduce(np.abs(W) ** p)) ** (1.0 / p)
    if not size > 0.0:
        return None
    rows, W = _Rows(F, unit.c / size, equality), W / size
    most, goal = request.max_iterations or MAX_STEPS, _GOAL * request.tolerance
    dual = p < 2.0
    point = _by_multipliers(rows, lam / size, p, most, goal) if dual else _by_entries(rows, W, lam, p, most, goal)
    if point is None or not np.isfinite(point.worst):
        return None
    W, lam = point.W, problem.clipped(point.lam)
    margins = F @ W
    if equality is None and unit.c.min() > 0.0:  # feasible by a factor next to 1
        least = float(np.min(margins / rows.c))
        W = W / least if least > 0.0 else W
    D = (lam @ F).reshape(problem.shape)
    lam = lam / float(norm.dual.values(D))
    W = (W * (size * unit.scale)).reshape(problem.shape)
    return certified(problem, norm, W, unit.restore_multipliers(lam), point.steps, request.tolerance)


def solve_power(unit: UnitProblem, norm: Norm, request: Request) -> Found:
    """Least l_p norm, 1 < p < inf, by Newton's method; ``max_iterations`` are steps, 30 by default.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, solve
    >>> problem = MarginProblem(np.eye(2), np.eye(2), [0, 1])
    >>> [round(solve(problem, norm, "power").norm, 6) for norm in ("l1.5", "l3")]
    [1.587401, 1.259921]
    """
    if not unit.problem.batch and unit.m <= _MOST_ROWS and not unit.has_zero_rows:
        with np.errstate(all="ignore"):  # what is not finite is refused
            found = _newton(unit, norm, request)
        stopped = request.max_iterations is not None
        proved = found is not None and found.certificate is not None and found.certificate.proved <= request.tolerance
        if found is not None and (proved or stopped):
            return found
    return solve_primal_dual(unit, norm, request).answered("primal_dual")
