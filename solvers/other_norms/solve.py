"""Least spectral, l_1, l_inf and l_p norms by the interior point method of `attsvm.solvers.other_norms.steps`.

The solution of least Frobenius norm comes first: it finds the proofs of infeasibility, and starts the method strictly
inside. Problems of a batch advance together; each keeps its best point and leaves when it has converged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.certify import certify
from attsvm.solvers.correction import least_change
from attsvm.solvers.driver import BatchDriver
from attsvm.solvers.frobenius.active_set import solve_active_set
from attsvm.solvers.norms import Norm, get_norm
from attsvm.solvers.other_norms.entrywise import PolyhedralCone, PowerCone
from attsvm.solvers.other_norms.spectral import SpectralCone
from attsvm.solvers.other_norms.steps import Cone, PrimalDual
from attsvm.solvers.problem import MarginProblem
from attsvm.solvers.request import Request
from attsvm.solvers.solution import Found
from attsvm.solvers.unit import UnitProblem

__all__ = ["certified", "solve_primal_dual"]

MAX_ITERATIONS = 80
# Share of the tolerance at which the method ends (less where steps cost little), and the gap below which a pause means
# that the digits are spent.
_GOAL, _CHEAP_GOAL, _NEAR = 1e-2, 1e-3, 1e-6
_PATIENCE, _PAUSE = 15, 3
# Numbers of working memory per chunk of a batch.
_CHUNK_NUMBERS = 1 << 23


class _Start(NamedTuple):
    """Problems in the coordinates of the method, W of norm about 1; leading batch axes or none."""

    F: FloatArray
    c: FloatArray
    W: FloatArray
    lam: FloatArray
    shape: tuple[int, int]
    equality: BoolArray | None
    exists: BoolArray | None
    left: FloatArray | None
    right: FloatArray | None
    size: FloatArray


def _span(vectors: FloatArray) -> FloatArray | None:
    """Orthonormal columns that span the rows of ``vectors (*batch, k, d)``; None when k >= d."""
    return None if vectors.shape[-2] >= vectors.shape[-1] else np.asarray(np.linalg.qr(vectors.mT)[0])


def _begin(unit: UnitProblem, norm: Norm, W: FloatArray, multipliers: FloatArray) -> _Start:
    """Unit rows written out, and a point inside from the solution of least Frobenius norm."""
    problem = unit.problem
    pair = problem.pairs()
    a, b = pair.a.astype(np.float64, copy=False), pair.right.astype(np.float64, copy=False)
    left = _span(a) if norm.unitarily_invariant else None
    right = _span(pair.queries.astype(np.float64, copy=False)) if norm.unitarily_invariant else None
    if left is not None:
        a, W = a @ left, left.mT @ W
    if right is not None:
        b, W = b @ right, W @ right
    F = (a[..., :, None] * b[..., None, :]).reshape(*a.shape[:-1], -1)
    F *= unit.inverse[..., None]
    size = norm.values(W)[..., None]  # of unit rows W is smaller by the scale, right-hand sides are too
    c = unit.c * (unit.scale / size)
    mixed = unit.has_equalities or unit.has_zero_rows
    exists = unit.inverse > 0 if mixed else None
    equality = problem.equality if mixed else None
    lam = problem.clipped(multipliers) / np.where(unit.inverse > 0, unit.inverse, 1.0)
    even = np.ones_like(lam) if equality is None else np.where(~equality & (unit.inverse > 0), 1.0, 0.0)
    for part, share in ((lam, 0.5), (even, 0.25)):
        D = (part[..., None, :] @ F)[..., 0, :].reshape(W.shape)
        part *= share / np.maximum(norm.dual.values(D), 1e-300)[..., None]
    flat = W.reshape(*size.shape[:-1], -1) / size
    return _Start(F, c, flat, lam + even, (W.shape[-2], W.shape[-1]), equality, exists, left, right, size)


def _cone(norm: Norm, start: _Start) -> tuple[Cone, FloatArray]:
    """The norm's cone with its start, and multipliers to start from."""
    # A little larger, so that rows which ask for something have slack.
    W = 1.1 * start.W
    D = (start.lam[..., None, :] @ start.F)[..., 0, :]
    if norm.name == "spectral":
        return SpectralCone(W, D, start.shape), start.lam
    if norm.name in ("l1", "linf"):
        return PolyhedralCone(W, D, shared=norm.name == "linf"), start.lam
    p = float(norm.name.removeprefix("l"))
    W = 1.3 * start.W
    curve = start.W * np.abs(start.W) ** (p - 2.0) if p >= 2 else np.sign(start.W) * np.abs(start.W) ** (p - 1.0)
    # The multiple of D nearest to the curve.
    along = np.maximum(np.vecdot(D, curve), 1e-3 * np.vecdot(D, D)) / np.vecdot(D, D)
    return PowerCone(W, p), start.lam * along[..., None]


def _iterate(state: PrimalDual, most: int, goal: float) -> BatchDriver:
    """Steps until each problem has converged, is finished exactly or stops improving."""
    driver = BatchDriver(most, state.cone.W, state.lam)
    while driver.advance():
        state.step()
        driver.offer(np.maximum(state.gap, state.missed), state.cone.W, state.lam)
        ended, W, lam = state.cone.finish(state)
        driver.offer(np.zeros(len(ended)), W, lam, of=ended)
        measure = driver.measure[driver.index]
        paused = driver.waited(_PATIENCE) | (driver.waited(_PAUSE) & (measure < _NEAR))
        done = state.broken | (measure <= goal) | paused
        if driver.leave(done):
            state.keep(~done)
    return driver


def _run(
    unit: UnitProblem, norm: Norm, W: FloatArray, multipliers: FloatArray, request: Request
) -> tuple[FloatArray, FloatArray, IntArray]:
    """W, multipliers in norm form and steps, in the coordinates of the problem."""
    start = _begin(unit, norm, W, multipliers)
    alone = not unit.problem.batch
    if alone:  # a batch of one
        parts = ("F", "c", "W", "lam", "equality", "exists")
        start = start._replace(**{n: getattr(start, n)[None] for n in parts if getattr(start, n) is not None})
    with np.errstate(all="ignore"):  # what is not finite is refused by the steps
        cone, lam = _cone(norm, start)
        state = PrimalDual(cone, start.F, start.c, lam, start.equality, start.exists)
        goal = (_GOAL if cone.cautious else _CHEAP_GOAL) * request.tolerance
        driver = _iterate(state, request.max_iterations or MAX_ITERATIONS, goal)
        flat, lam = driver.best
        D = (lam[:, None, :] @ start.F)[:, 0, :]
        lam = lam / norm.dual.values(D.reshape(-1, *start.shape))[:, None]
    steps = driver.steps
    if alone:
        flat, lam, steps = flat[0], lam[0], steps[0]
    found = (flat * start.size).reshape(*flat.shape[:-1], *start.shape)
    found = found if start.left is None else start.left @ found
    found = found if start.right is None else found @ start.right.mT
    return np.asarray(found), unit.restore_multipliers(lam), steps


def solve_primal_dual(unit: UnitProblem, norm: Norm, request: Request) -> Found:
    """Least spectral, l_1, l_inf or l_p norm; ``max_iterations`` are steps, 80 by default.

    Where the method ends without a certificate, one problem is given to the reference (`solve_cvxpy`) as well.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, solve
    >>> problem = MarginProblem(np.eye(2), np.eye(2), [0, 1])
    >>> [round(solve(problem, norm, "primal_dual").norm, 6) for norm in ("spectral", "l1", "linf", "l3")]
    [1.0, 2.0, 1.0, 1.259921]
    """
    if unit.problem.batch:
        return _solve_batch(unit, norm, request)
    first = solve_active_set(unit, get_norm("frobenius"), Request(request.tolerance))
    if first.farkas is not None or (norm.unitarily_invariant and min(unit.problem.shape) == 1):
        return replace(first, certificate=None)  # on vectors the norms of singular values are one
    found = Found(iterations=first.iterations)
    if first.W is not None and first.multipliers is not None and first.W.any():
        W, lam, steps = _run(unit, norm, first.W, first.multipliers, request)
        if np.isfinite(W).all() and np.isfinite(lam).all():
            found = certified(unit.problem, norm, W, lam, int(steps), request.tolerance)
    certificate = found.certificate
    if request.max_iterations is None and (certificate is None or certificate.proved > request.tolerance):
        return _or_reference(unit, norm, request, found)
    return found


def certified(
    problem: MarginProblem, norm: Norm, W: FloatArray, lam: FloatArray, steps: int, tolerance: float
) -> Found:
    """One result with its certificate, and with the rows met that it misses by more than rounding."""
    lam = problem.clipped(lam)
    certificate = certify(problem, W, lam, norm)
    found = Found(W, lam, steps, certificate=certificate)
    if certificate.primal_violation <= certificate.primal_error:
        return found
    met = least_change(problem, W)
    other = certify(problem, met, lam, norm)
    return replace(found, W=met, certificate=other) if other.proved <= max(tolerance, certificate.proved) else found


def _or_reference(unit: UnitProblem, norm: Norm, request: Request, found: Found) -> Found:
    """What the reference finds, where it proves more."""
    from attsvm.solvers.reference import solve_cvxpy

    other = solve_cvxpy(unit, norm, replace(request, options={})).answered("cvxpy")
    if other.farkas is not None or found.certificate is None:
        return replace(other, iterations=other.iterations + found.iterations)
    if other.certificate is None or other.certificate.proved >= found.certificate.proved:
        return found
    return replace(other, iterations=other.iterations + found.iterations)


def _solve_batch(unit: UnitProblem, norm: Norm, request: Request) -> Found:
    """Chunks of a batch; problems without a solution of least Frobenius norm are left to one-by-one solves."""
    first = solve_active_set(unit, get_norm("frobenius"), Request(request.tolerance))
    W, lam = first.W, first.multipliers
    steps: IntArray = np.array(first.iterations)
    assert W is not None and lam is not None
    usable: BoolArray = np.asarray(np.isfinite(lam).all(axis=-1) & np.isfinite(W).all(axis=(-2, -1)))
    ready = np.flatnonzero(usable & (np.abs(np.where(usable[:, None, None], W, 0.0)).max(axis=(-2, -1)) > 0))
    m, (dx, dz) = unit.m, unit.problem.shape
    per_problem = 4 * m * dx * dz + 4 * m * m + (4 * (min(dx, m) * min(dz, unit.problem.q)) ** 2)
    size = max(1, _CHUNK_NUMBERS // per_problem)
    for begin in range(0, len(ready), size):
        part = ready[begin : begin + size]
        some = UnitProblem(unit.problem.take(part))
        W[part], lam[part], steps[part] = _run(some, norm, W[part], lam[part], request)
    lam = np.where(usable[:, None], unit.problem.clipped(np.where(usable[:, None], lam, 0.0)), lam)
    return Found(W, lam, steps, candidates=first.candidates)
