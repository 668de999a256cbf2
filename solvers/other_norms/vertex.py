"""Least l_1 and l_inf norms of small problems: linear programs, whose vertices DAQP finds.

    l_1:    maximize c . lam   subject to  lam >= 0,  -1 <= F' lam <= 1           (W: the multipliers of the last rows)
    l_inf:  maximize t         subject to  -1 <= V <= 1,  F V - t c >= 0          (W = V / t; lam: the multipliers)

with unit rows F; equality rows have a free lam, and ``=`` in place of ``>=``. The first is the dual program, of the
order of the rows; the second is the problem itself for the direction of W. DAQP's proximal steps make linear programs
definite quadratic ones and end at a vertex exactly (see `attsvm.solvers.frobenius.least_distance`). What does not
certify, and larger programs, are left to `solve_primal_dual`; so are batches in the l_inf norm, where steps that all
problems take together and a crossover (`attsvm.solvers.other_norms.crossover`) are quicker than a program for each.
"""

from __future__ import annotations

import numpy as np

from attsvm.solvers.arrays import BoolArray, FloatArray
from attsvm.solvers.norms import Norm
from attsvm.solvers.other_norms.solve import certified, solve_primal_dual
from attsvm.solvers.request import Request
from attsvm.solvers.solution import Found
from attsvm.solvers.unit import UnitProblem

__all__ = ["solve_vertex"]

# Weight of the proximal term: the fewest iterations at (6, 8, 10).
_PROXIMAL = {"l1": 0.1, "linf": 0.01}
# Entries of W up to which the linear program is worth an active-set method.
_MOST_ENTRIES = 400
_FREE, _EQUAL = 1e30, 5


def _l1(F: FloatArray, c: FloatArray, equality: BoolArray) -> tuple[FloatArray, FloatArray, int]:
    """W, multipliers and iterations of one problem; NaN without a vertex."""
    import daqp

    m, n = F.shape
    upper, lower = np.ones(m + n), np.full(m + n, -1.0)
    upper[:m] = _FREE
    lower[:m] = np.where(equality, -_FREE, 0.0)
    sense = np.zeros(m + n, dtype=np.int32)
    lam, _, flag, info = daqp.solve(
        np.zeros((m, m)), -c, np.ascontiguousarray(F.T), upper, lower, sense, eps_prox=_PROXIMAL["l1"]
    )
    if flag != 1:
        return np.full(n, np.nan), np.full(m, np.nan), int(info["iterations"])
    return np.asarray(info["lam"][m:]), np.asarray(lam), int(info["iterations"])


def _linf(F: FloatArray, c: FloatArray, equality: BoolArray) -> tuple[FloatArray, FloatArray, int]:
    """W, multipliers and iterations of one problem; NaN without a vertex."""
    import daqp

    m, n = F.shape
    upper, lower = np.ones(n + 1 + m), np.full(n + 1 + m, -1.0)
    upper[n:], lower[n], lower[n + 1 :] = _FREE, -_FREE, 0.0
    upper[n + 1 :][equality] = 0.0
    sense = np.zeros(n + 1 + m, dtype=np.int32)
    sense[n + 1 :][equality] = _EQUAL
    cost = np.zeros(n + 1)
    cost[n] = -1.0
    rows = np.empty((m, n + 1))
    rows[:, :n], rows[:, n] = F, -c
    x, _, flag, info = daqp.solve(np.zeros((n + 1, n + 1)), cost, rows, upper, lower, sense, eps_prox=_PROXIMAL["linf"])
    if flag != 1 or not x[n] > 0:  # t = 0: no direction separates
        return np.full(n, np.nan), np.full(m, np.nan), int(info["iterations"])
    return np.asarray(x[:n] / x[n]), -np.asarray(info["lam"][n + 1 :]), int(info["iterations"])


def _rows(unit: UnitProblem) -> FloatArray:
    """Unit rows written out, shape (*batch, m, N)."""
    pair = unit.problem.pairs()
    a = pair.a * unit.inverse[..., None]
    return (a[..., :, None] * pair.right[..., None, :]).reshape(*a.shape[:-1], -1).astype(np.float64, copy=False)


def solve_vertex(unit: UnitProblem, norm: Norm, request: Request) -> Found:
    """Least l_1 or l_inf norm as a vertex of a linear program; without options.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, solve
    >>> found = solve(MarginProblem([[3.0, 1.0]], [[1.0]], [0]), "l1", "vertex")
    >>> other = solve(MarginProblem([[3.0, 1.0]], [[1.0]], [0]), "linf", "vertex")
    >>> found.W.ravel().round(12).tolist(), round(other.norm, 12)
    ([0.333333333333, 0.0], 0.25)
    """
    problem = unit.problem
    if problem.shape[0] * problem.shape[1] > _MOST_ENTRIES or (problem.batch and norm.name == "linf"):
        return solve_primal_dual(unit, norm, request).answered("primal_dual")
    method = _l1 if norm.name == "l1" else _linf
    F, c = _rows(unit), unit.c
    equality = problem.equality & (unit.inverse > 0)
    if not problem.batch:
        W, lam, steps = method(F, c, equality)
        size = float(norm.dual.values((lam @ F).reshape(problem.shape)))
        if np.isfinite(size) and size > 0.0:
            W = (W * unit.scale).reshape(problem.shape)
            found = certified(problem, norm, W, unit.restore_multipliers(lam / size), steps, request.tolerance)
            if found.certificate is not None and found.certificate.proved <= request.tolerance:
                return found
        return solve_primal_dual(unit, norm, request).answered("primal_dual")
    parts = [method(*one) for one in zip(F, c, equality, strict=True)]
    W, lam = np.stack([part[0] for part in parts]), np.stack([part[1] for part in parts])
    D = (lam[:, None, :] @ F)[:, 0].reshape(len(F), *problem.shape)
    lam = problem.clipped(lam) / np.where(norm.dual.values(D) > 0, norm.dual.values(D), 1.0)[:, None]
    W = (W * unit.scale).reshape(D.shape)
    W = np.where(unit.trivial[:, None, None], 0.0, W)
    lam = np.where(unit.trivial[:, None], 0.0, lam)
    return Found(W, unit.restore_multipliers(lam), np.array([part[2] for part in parts]))
