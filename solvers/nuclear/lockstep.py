"""Least nuclear norm for many small problems at once: compiled, or on any torch device in lockstep.

Without a device the problems are shared between the cores (`attsvm.solvers.compiled`); on one they advance together,
one call for all (`lockstep_steps`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.compiled.kernels import minimize
from attsvm.solvers.devices import torch_device
from attsvm.solvers.frobenius.active_set import solve_active_set
from attsvm.solvers.norms import Norm, get_norm
from attsvm.solvers.nuclear.lockstep_steps import NuclearState, row_sums, start, step
from attsvm.solvers.request import Request
from attsvm.solvers.solution import Found
from attsvm.solvers.threads import torch_threads
from attsvm.solvers.unit import UnitProblem

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["solve_lockstep"]

# Numbers of working memory per chunk: enough problems that the time goes into arithmetic, not into calls.
_CHUNK_NUMBERS = {"cpu": 1 << 24, "other": 1 << 27}
MAX_ITERATIONS = 60
# Near here the Newton matrix runs out of digits; a problem also stops when it no longer improves.
_GOAL, _GOAL_FLOAT32 = 8e-11, 1e-5


def _iterate(state: NuclearState, max_iterations: int) -> tuple[Tensor, Tensor, Tensor]:
    """Step until every problem has closed its gap or stops improving; returns the best X, lam and counts."""
    import torch

    size, device = len(state.X), state.X.device
    goal = _GOAL if state.X.dtype == torch.float64 else _GOAL_FLOAT32
    best_X, best_lam = state.X.clone(), state.lam.clone()
    best = torch.full_like(state.gap, torch.inf)
    iterations = torch.zeros((size,), dtype=torch.int64, device=device)
    index = torch.arange(size, device=device)
    waited = torch.zeros_like(iterations)
    for count in range(1, max_iterations + 1):
        if len(index) == 0:
            break
        state = step(state)
        worst = state.gap.maximum(state.violation)
        improves = worst < best[index]
        better = torch.nonzero(improves)[:, 0]
        best_X[index[better]], best_lam[index[better]] = state.X[better], state.lam[better]
        best[index[better]] = worst[better]
        iterations[index] = count
        waited = torch.where(improves, 0, waited + 1)
        # Only near the end does a pause mean that the digits are spent.
        done = state.broken | (worst <= goal) | ((waited >= 2) & (best[index] < 1e-6)) | (waited >= 15)
        running = torch.nonzero(~done)[:, 0]
        if len(running) < len(index):
            state, index, waited = state.take(running), index[running], waited[running]
    return best_X, best_lam, iterations


def _basis(vectors: Tensor) -> Tensor | None:
    """Orthonormal columns that span the rows of ``vectors (B, k, d)``; None when k >= d."""
    import torch

    if vectors.shape[1] >= vectors.shape[2]:
        return None
    basis: Tensor = torch.linalg.qr(vectors.mT)[0]
    return basis


def _lengths(tensor: Tensor) -> Tensor:
    return row_sums(tensor * tensor).sqrt_()


def _advance(
    unit: UnitProblem,
    part: slice,
    W: FloatArray,
    x: FloatArray,
    request: Request,
    place: torch.device,
    kind: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """W, multipliers of unit rows and steps for some problems, from their Frobenius solutions of norm 1."""
    import torch

    pair = unit.problem.pairs()

    def tensor(array: object) -> Tensor:
        return torch.tensor(np.ascontiguousarray(array), device=place).to(kind)

    a, queries, b = tensor(pair.a[part]), tensor(pair.queries[part]), tensor(pair.right[part])
    left, right = _basis(a), _basis(queries)
    a, first = (a, tensor(W)) if left is None else (a @ left, left.mT @ tensor(W))
    b, first = (b, first) if right is None else (b @ right, first @ right)
    wide = b.shape[-1] > a.shape[-1]
    if wide:  # the work with Z grows with the columns of D: transpose
        a, b, first = b, a, first.mT
    size = tensor(np.sqrt(np.einsum("bij,bij->b", W, W)))[:, None]
    norms_a, norms_b = _lengths(a), _lengths(b)
    live = tensor(unit.inverse[part]) > 0
    u, v = a / torch.where(live, norms_a, 1.0)[..., None], b / torch.where(live, norms_b, 1.0)[..., None]
    equality = torch.tensor(unit.equality[part], device=place) & live
    # A zero row asks for nothing (or the problem were infeasible): give it room.
    target = torch.where(live, tensor(unit.c[part]) / size, -1.0)
    asked = unit.problem.allowance[part] * unit.inverse[part] / unit.scale[part]
    allowance = torch.where(live, tensor(asked) / size, 1.0)
    state = start(u, v, target, equality, first / size[..., None], tensor(x) / size, allowance)
    X, lam, steps = _iterate(state, request.max_iterations or MAX_ITERATIONS)
    rx = u.shape[-1]
    found = 2.0 * X[:, :rx, rx:] * size[..., None]
    found = found.mT if wide else found
    found = found if left is None else left @ found
    return found if right is None else found @ right.mT, torch.where(live, lam, 0.0), steps


def _compiled(unit: UnitProblem, x: FloatArray, most: int) -> tuple[FloatArray, FloatArray, IntArray]:
    """W and multipliers of unit rows, and steps, from those of the least Frobenius norm."""
    a, b, left, right = unit.factors(reduced=True)
    live = unit.inverse > 0
    # A zero row asks for nothing (or the problem were infeasible): give it room.
    c = np.where(live, unit.c, -1.0)
    room = np.where(live, unit.problem.allowance * unit.inverse / unit.scale, 1.0)
    sense = np.where(unit.equality & live, 0, 1).astype(np.int8)
    W, lam, steps = minimize(get_norm("nuclear"), a, b, c, sense, x, most, _GOAL, room)
    W = W if left is None else left @ W
    return W if right is None else W @ right.mT, np.where(live, lam, 0.0), steps


def solve_lockstep(unit: UnitProblem, norm: Norm, request: Request) -> Found:
    """Least nuclear norm for a batch of small problems, on any device.

    ``max_iterations`` are interior-point steps, 60 by default (typical problems need 10 to 15). Without ``device=`` the
    steps are compiled. On a device, options are ``dtype`` ("float64" or "float32": the precision of the iterations) and
    ``chunk`` (problems worked on at a time; by default as many as keep the working memory near 128 MiB on a CPU and
    1 GiB on other devices); either makes the CPU a device. There torch is held to one thread: the matrices are too
    small to be shared.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, solve
    >>> batch = MarginProblem(np.array([[[2.0]], [[4.0]]]), np.ones((2, 1, 1)), [0])
    >>> solve(batch, "nuclear", "lockstep").W.ravel().round(6).tolist()
    [0.5, 0.25]
    """
    in_torch = request.device is not None or "dtype" in request.options or "chunk" in request.options
    advance = _torch_engine(request) if in_torch else None
    first = solve_active_set(unit, norm, Request(request.tolerance))
    W, lam, iterations = first.W, first.multipliers, np.array(first.iterations)
    assert W is not None and lam is not None
    ready = np.isfinite(lam).all(axis=-1) & (np.abs(W).max(axis=(-2, -1)) > 0)  # W = 0 cannot be improved
    # Rows that even the least Frobenius norm misses may contradict each other: left to one-by-one solves.
    doubtful = ready & _misses_rows(unit, W)
    lam[doubtful], ready = np.nan, ready & ~doubtful
    if ready.any():
        picked = np.flatnonzero(ready)
        some = unit if len(picked) == len(ready) else UnitProblem(unit.problem.take(picked))
        start_W = W[picked] / some.scale[..., None]
        # Multipliers of the unit rows: W(x) = start_W.
        x = lam[picked] * some.problem.row_norms * np.sqrt(np.einsum("bij,bij->b", start_W, start_W))[:, None]
        if advance is None:
            found, multipliers, steps = _compiled(some, x, request.max_iterations or MAX_ITERATIONS)
        else:
            found, multipliers, steps = advance(some, start_W, x)
        W[picked], lam[picked] = found * some.scale[..., None], multipliers * some.inverse
        iterations[picked] += steps
    return Found(W, lam, iterations, candidates=first.candidates)


def _torch_engine(
    request: Request,
) -> Callable[[UnitProblem, FloatArray, FloatArray], tuple[FloatArray, FloatArray, IntArray]]:
    """Steps in torch by chunks: from the Frobenius solution and its multipliers to W, multipliers and steps."""
    place = torch_device(request.device)  # says what is missing where torch is
    import torch

    dtype, chunk = request.options.get("dtype", "float64"), request.options.get("chunk")
    kind = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if kind not in (torch.float64, torch.float32):
        raise ValueError(f"dtype must be 'float64' or 'float32', got {dtype!r}")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")

    def advance(unit: UnitProblem, W: FloatArray, x: FloatArray) -> tuple[FloatArray, FloatArray, IntArray]:
        size = chunk or _chunk_size(unit, place)
        parts = [slice(begin, begin + size) for begin in range(0, len(x), size)]
        with torch_threads(place):
            done = [_advance(unit, part, W[part], x[part], request, place, kind) for part in parts]
        found, multipliers, steps = (torch.cat(piece).cpu().numpy() for piece in zip(*done, strict=True))
        return found.astype(np.float64), multipliers.astype(np.float64), steps

    return advance


def _misses_rows(unit: UnitProblem, W: FloatArray) -> BoolArray:
    """Where a least-norm solution misses a row by more than rounding, shape (B,)."""
    problem = unit.problem
    missed = problem.missed(problem.margins(W) - problem.rhs) * unit.inverse
    size = np.sqrt(np.einsum("bij,bij->b", W, W))
    return np.asarray(missed.max(axis=-1) > 1e-12 * np.maximum(size, unit.scale[:, 0]))


def _chunk_size(unit: UnitProblem, place: torch.device) -> int:
    """Problems per chunk so that about ten arrays of each kind fit the budget."""
    (dx, dz), m = unit.problem.shape, unit.m
    side = min(dx, m) + min(dz, unit.problem.q)
    per_problem = 16 * m**2 + 6 * m * (dx + dz) + 6 * dx * dz + 12 * side**2
    return max(1, _CHUNK_NUMBERS["cpu" if place.type == "cpu" else "other"] // per_problem)
