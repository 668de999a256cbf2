"""Least Frobenius norm for many small problems in lockstep: proximal point and block principal pivoting.

With unit rows, Gram matrix G and right-hand sides c, the multipliers solve ``min 1/2 x'Gx - c'x`` over
x >= 0 (free on equality rows). G may be singular and the minimum may not exist (infeasible rows), so the
method solves a sequence of strictly convex problems, each centred at the last solution x_0:

    minimize  1/2 x'Gx - c'x + eps/2 |x - x_0|^2.

Each is solved by guessing which multipliers are free, solving one masked linear system, and exchanging all
the rows whose sign is wrong. Well conditioned problems settle after two or three such exchanges with an eps
near rounding (`exchange`); the others go through a safeguarded iteration (`step`): when its exchanges stop
reducing the number of wrong signs, eps is raised; the better conditioned problem is easy, and its solution
centres the next, with a smaller eps. On infeasible rows the centres run away along a ray that cancels the rows;
that ray, projected on the null space and verified, is the proof.

References: Portugal, Judice, Vicente (1994), Kim and Park (2011) for block principal pivoting; Rockafellar
(1976) for the proximal point method.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from attsvm.solvers.batch_certificate import BatchRows, double, farkas_residual, lengths

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FrobeniusResult", "FrobeniusState", "exchange", "solve_frobenius_rows", "start", "step"]

MAX_ITERATIONS = 300

_PATIENCE = 3  # exchanges that may fail to reduce the number of wrong signs before eps is raised
_FIRST_SINGULAR, _FIRST_RAISE, _RAISE, _LOWER, _EPS_MAX = 1e-2, 1e-3, 30.0, 0.1, 1.0
_RAY_EPS = 0.1  # least eps for a ray, in units of sqrt(rounding)
_EXCHANGES = 6  # plain exchanges before the safeguarded iteration takes over
_RUNNING, _CONVERGED, _RAY = 0, 1, 2


class FrobeniusState(NamedTuple):
    """Everything the iteration needs about B running problems, in unit rows (see `start`).

    Attributes
    ----------
    gram : Tensor, shape (B, m, m)
    target : Tensor, shape (B, m)
    equality, live, free : Tensor of bool, shape (B, m)
        Equality rows; rows that take part; rows whose multiplier is solved for.
    center : Tensor, shape (B, m)
        Centre of the proximal term.
    eps : Tensor, shape (B, 1)
    wrong, patience : Tensor of int, shape (B,)
        Fewest wrong signs so far, and exchanges left before giving up on this eps.
    x : Tensor, shape (B, m)
        The multipliers of the last system; for a ray, the direction of escape.
    outcome : Tensor of int, shape (B,)
        0 running, 1 converged, 2 candidate ray.
    """

    gram: Tensor
    target: Tensor
    equality: Tensor
    live: Tensor
    free: Tensor
    center: Tensor
    eps: Tensor
    wrong: Tensor
    patience: Tensor
    x: Tensor
    outcome: Tensor

    def take(self, index: Tensor) -> FrobeniusState:
        """The problems picked by an index."""
        return FrobeniusState(*(part.index_select(0, index) for part in self))


class FrobeniusResult(NamedTuple):
    """What `solve_frobenius_rows` found, for all B problems, in float64.

    Attributes
    ----------
    W : Tensor, shape (B, dx, dz)
    multipliers : Tensor, shape (B, m)
        In norm form; zero where W is.
    solved : Tensor of bool, shape (B,)
        The iteration converged (the certificate still decides).
    farkas : Tensor, shape (B, m)
        Scaled to ``rhs . y = 1``; meaningful where ``farkas_residual`` is finite.
    farkas_residual : Tensor, shape (B,)
    iterations : Tensor of int, shape (B,)
    """

    W: Tensor
    multipliers: Tensor
    solved: Tensor
    farkas: Tensor
    farkas_residual: Tensor
    iterations: Tensor


def _unit_rows(rows: BatchRows) -> tuple[BatchRows, Tensor, Tensor]:
    """Rows of norm 1 whose largest demand is 1; multipliers are to be multiplied by ``scale / norms``."""
    import torch

    left, right = lengths(rows.a), lengths(rows.b)
    norms = left * right
    live = norms > 0
    a = rows.a / torch.where(live, left, 1.0)[..., None]
    b = rows.b / torch.where(live, right, 1.0)[..., None]
    norms = torch.where(live, norms, torch.inf)  # dead rows: target 0, multiplier 0
    target = rows.rhs / norms
    scale = torch.where(rows.equality, target.abs(), target).amax(-1, keepdim=True)
    scale = torch.where(scale > 0, scale, 1.0)  # nothing is demanded: W = 0 solves, whatever the scale
    return BatchRows(a, b, target / scale, rows.equality), norms, scale


def start(unit: BatchRows, live: Tensor, free: Tensor | None = None) -> FrobeniusState:
    """State before the first step.

    Parameters
    ----------
    unit : BatchRows
        Rows of norm 1 (or 0).
    live : Tensor of bool, shape (B, m)
        Rows that take part.
    free : Tensor of bool, shape (B, m), optional
        First guess of the rows with nonzero multiplier; all live rows by default.
    """
    import torch

    gram = (unit.a @ unit.a.mT).mul_(unit.b @ unit.b.mT)
    size, m = live.shape
    device, dtype = gram.device, gram.dtype
    guess = live if free is None else (free & live) | (unit.equality & live)
    zeros = torch.zeros((size, m), dtype=dtype, device=device)
    count = torch.zeros((size,), dtype=torch.int64, device=device)
    # More rows than dimensions make G singular: start where systems are well conditioned. Otherwise start with
    # the smallest eps that a Cholesky factor of unit rows still sees, which saves a round when G is definite.
    singular = m > unit.a.shape[-1] * unit.b.shape[-1]
    eps = _FIRST_SINGULAR if singular else max(1e-12, 32 * torch.finfo(dtype).eps)
    return FrobeniusState(
        gram, unit.rhs, unit.equality, live, guess, zeros,
        torch.full((size, 1), eps, dtype=dtype, device=device), count + m + 1, count + _PATIENCE, zeros, count,
    )  # fmt: skip


def step(state: FrobeniusState) -> FrobeniusState:
    """One masked system and one exchange for every problem; free of data-dependent control flow.

    Examples
    --------
    >>> import torch
    >>> from attsvm.solvers.batch_certificate import BatchRows
    >>> from attsvm.solvers.batch_frobenius import start, step
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> state = step(start(BatchRows(one[..., None], one[..., None], one, one < 0), one > 0))
    >>> state.outcome.tolist(), round(state.x.item(), 6)
    ([1], 1.0)
    """
    import torch

    gram, target, equality, live, free, center, eps, wrong, patience, _, _ = state
    rounding = torch.finfo(gram.dtype).eps
    mask = free.to(gram.dtype)
    system = (gram * mask[:, :, None]).mul_(mask[:, None, :])
    system.diagonal(dim1=-2, dim2=-1).add_(torch.where(free, eps, 1.0))
    factor, info = torch.linalg.cholesky_ex(system)
    # Two triangular solves, because cholesky_solve would copy the factor.
    half = torch.linalg.solve_triangular(factor, ((target + eps * center) * mask)[..., None], upper=False)
    x = torch.linalg.solve_triangular(factor.mT, half, upper=True)[..., 0]
    solvable = (info == 0) & x.isfinite().all(-1)
    x = torch.where(solvable[:, None], x, center)
    moved = x - center
    residual = (gram @ x[..., None])[..., 0] - target

    # Signs are wrong only beyond what rounding explains: |G_jk| <= 1, so errors grow with sum |x|.
    size = x.abs().sum(-1, keepdim=True)
    negative = free & equality.logical_not() & (x < -512 * rounding * size)
    violated = live & free.logical_not() & (residual + eps * moved < -64 * rounding * (size + 1.0))
    swap = negative | violated
    count = swap.sum(-1)
    settled = (count == 0) & solvable

    # Converged: the proximal term no longer matters. Ray: the move cancels the rows and raises the objective.
    drift = torch.where(equality, moved, moved.clamp(min=0))
    weight = drift.abs().sum(-1)
    energy = ((gram @ drift[..., None])[..., 0] * drift).sum(-1)
    close = max(1e-11, 64 * rounding)
    converged = settled & ((eps * moved.abs()).amax(-1) <= close + 64 * rounding * size[:, 0])
    gain = (target * drift).sum(-1)
    ray = settled & converged.logical_not() & (energy <= 64 * rounding * weight**2) & (gain > 0)
    # Running away at a tiny eps, x is so large that its signs are noise: look again from a larger one.
    blurred = ray & (eps[:, 0] < _RAY_EPS * rounding**0.5)
    ray = ray & blurred.logical_not()

    improves = count < wrong
    stuck = (improves.logical_not() & (patience < 1)) | solvable.logical_not()
    raised = stuck & (eps[:, 0] < _EPS_MAX)
    crawl = stuck & raised.logical_not()  # the largest eps and still stuck: exchange one row, which cannot cycle
    index = torch.arange(swap.shape[1], device=swap.device)
    last = torch.where(swap, index, -1).amax(-1, keepdim=True)
    swap = swap & torch.where(crawl[:, None], index == last, solvable[:, None])

    larger = (eps * _RAISE).clamp(min=_FIRST_RAISE, max=_EPS_MAX)
    floor = max(1e-12, 32 * rounding)
    smaller = (eps * _LOWER).clamp(min=floor)
    smaller = torch.where(blurred[:, None], 10 * _RAY_EPS * rounding**0.5, smaller)
    restart = settled | raised
    outcome = torch.where(converged, _CONVERGED, torch.where(ray, _RAY, _RUNNING))
    return state._replace(
        free=free ^ swap,
        center=torch.where(blurred[:, None], 0.0, torch.where(settled[:, None], x, center)),
        eps=torch.where(settled[:, None], smaller, torch.where(raised[:, None], larger, eps)),
        wrong=torch.where(restart, swap.shape[1] + 1, torch.minimum(wrong, count)),
        patience=torch.where(restart | improves, _PATIENCE, patience - 1),
        x=torch.where(ray[:, None], drift, x),
        outcome=outcome,
    )


def exchange(state: FrobeniusState) -> FrobeniusState:
    """`step` without its safeguards: one masked system, all wrong signs exchanged, no proximal centre.

    Most problems settle so, in a fraction of the time; the others, dependent rows among them, keep ``outcome`` 0.

    Examples
    --------
    >>> import torch
    >>> from attsvm.solvers.batch_certificate import BatchRows
    >>> from attsvm.solvers.batch_frobenius import exchange, start
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> state = exchange(start(BatchRows(one[..., None], one[..., None], one, one < 0), one > 0))
    >>> state.outcome.tolist(), round(state.x.item(), 6)
    ([1], 1.0)
    """
    import torch

    gram, target, free = state.gram, state.target, state.free
    rounding = torch.finfo(gram.dtype).eps
    mask = free.to(gram.dtype)
    system = (gram * mask[:, :, None]).mul_(mask[:, None, :])
    system.diagonal(dim1=-2, dim2=-1).add_((1.0 + 32 * rounding) - mask)
    factor, info = torch.linalg.cholesky_ex(system)
    half = torch.linalg.solve_triangular(factor, (target * mask)[..., None], upper=False)
    x = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    residual = torch.baddbmm(target[..., None], gram, x, beta=-1)[..., 0]
    x = x[..., 0]

    # As in `step`; dead rows have residual 0. Large multipliers, whose signs blur, also point at infeasible rows.
    size = x.abs().sum(-1, keepdim=True)
    swap = (torch.where(free, x, residual) < -256 * rounding * (size + 1.0)) & state.equality.logical_not()
    error = (residual * mask).abs().amax(-1)  # not a number where x is not
    settled = swap.any(-1).logical_not() & (error <= max(1e-11, 64 * rounding)) & (size[:, 0] <= rounding**-0.25)
    outcome = (settled & (info == 0)).to(state.outcome.dtype)  # _CONVERGED is 1
    return state._replace(free=free ^ swap, x=x, outcome=outcome)


def _run(
    state: FrobeniusState, advance: Callable[[FrobeniusState], FrobeniusState], limit: int
) -> tuple[FrobeniusState, Tensor]:
    """Advance until every problem has an outcome; finished problems leave the working batch."""
    import torch

    size, device = len(state.target), state.target.device
    x, free, outcome = torch.zeros_like(state.target), state.free.clone(), torch.zeros_like(state.outcome)
    iterations = torch.full((size,), limit, dtype=torch.int64, device=device)
    index = torch.arange(size, device=device)
    final = state
    waiting = torch.ones((size,), dtype=torch.bool, device=device)  # no outcome recorded yet
    for count in range(1, limit + 1):
        state = advance(state)
        done = state.outcome != _RUNNING if count < limit else torch.ones_like(waiting)
        finished = torch.nonzero(done & waiting)[:, 0]
        if len(finished) == 0:
            continue
        where = index[finished]
        x[where], free[where] = state.x[finished], state.free[finished]
        outcome[where], iterations[where] = state.outcome[finished], count
        waiting = waiting & ~done
        running = torch.nonzero(waiting)[:, 0]
        if len(running) == 0:
            break
        if len(running) < 0.9 * len(index):  # copying the batch pays only when many have left
            state, index, waiting = state.take(running), index[running], waiting[running]
    return final._replace(x=x, free=free, outcome=outcome), iterations


def _iterate(state: FrobeniusState, max_iterations: int, singular: bool) -> tuple[FrobeniusState, Tensor]:
    """Plain exchanges for all problems, then the safeguarded iteration for those that did not settle."""
    import torch

    if singular:  # all rows free: nothing to gain from the plain exchanges
        return _run(state, step, max_iterations)
    final, iterations = _run(state, exchange, min(_EXCHANGES, max_iterations))
    left = torch.nonzero(final.outcome == _RUNNING)[:, 0]
    if len(left) == 0 or max_iterations <= _EXCHANGES:
        return final, iterations
    slow, more = _run(state.take(left), step, max_iterations - _EXCHANGES)
    final.x[left], final.free[left], final.outcome[left] = slow.x, slow.free, slow.outcome
    iterations[left] += more
    return final, iterations


def _regularized_factor(unit: BatchRows, free: Tensor, eps: float) -> Tensor:
    import torch

    mask = free.double()
    system = (unit.a @ unit.a.mT) * (unit.b @ unit.b.mT) * mask[:, :, None] * mask[:, None, :]
    system.diagonal(dim1=-2, dim2=-1).copy_(1.0 + eps * mask)
    factor: Tensor = torch.linalg.cholesky_ex(system)[0]
    return factor


def _polish(unit: BatchRows, x: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    """Newton steps on W itself, whose rows are then met to rounding even where multipliers are huge."""
    import torch

    factor = _regularized_factor(unit, free, 1e-14)
    W = unit.adjoint(x)
    missing = torch.where(free, unit.rhs - unit.margins(W), 0.0)
    for _ in range(5):
        change = torch.cholesky_solve(missing[..., None], factor)[..., 0]
        next_x, next_W = x + change, W + unit.adjoint(change)
        next_missing = torch.where(free, unit.rhs - unit.margins(next_W), 0.0)
        # False also where dependent rows spoiled the factor and nothing is finite.
        helps = (next_missing.abs().amax(-1) < missing.abs().amax(-1))[:, None]
        x, missing = torch.where(helps, next_x, x), torch.where(helps, next_missing, missing)
        W = torch.where(helps[..., None], next_W, W)
    return x, W


def _sharpen_ray(unit: BatchRows, ray: Tensor) -> Tensor:
    """Project a ray on the null space of the rows it uses, by inverse iteration."""
    import torch

    eps = 1e-9
    for _ in range(3):
        y = ray / ray.abs().amax(-1, keepdim=True).clamp(min=1e-300)
        used = y.abs() > 1e-10
        factor = _regularized_factor(unit, used, eps)
        y = eps * torch.cholesky_solve(torch.where(used, y, 0.0)[..., None], factor)[..., 0]
        ray = torch.where(unit.equality, y, y.clamp(min=0))
    return ray


def solve_frobenius_rows(
    rows: BatchRows, max_iterations: int | None = None, free: Tensor | None = None
) -> FrobeniusResult:
    """Least Frobenius norm, or proofs of infeasibility, for B problems.

    Parameters
    ----------
    rows : BatchRows
        The iteration runs in their dtype and on their device.
    max_iterations : int, optional
        Linear systems per problem; 300 by default (typical problems need 2 to 10).
    free : Tensor of bool, shape (B, m), optional
        First guess of the rows with nonzero multiplier.

    Examples
    --------
    >>> import torch
    >>> from attsvm.solvers.batch_certificate import BatchRows
    >>> from attsvm.solvers.batch_frobenius import solve_frobenius_rows
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> result = solve_frobenius_rows(BatchRows(2 * one[..., None], one[..., None], one, one < 0))
    >>> round(result.W.item(), 9), round(result.multipliers.item(), 9)
    (0.5, 0.5)
    """
    import torch

    unit, norms, scale = _unit_rows(rows)
    live = norms.isfinite()
    singular = unit.a.shape[1] > unit.a.shape[2] * unit.b.shape[2]
    state, iterations = _iterate(start(unit, live, free), max_iterations or MAX_ITERATIONS, singular)

    is_double = rows.a.dtype == torch.float64
    exact = rows if is_double else rows.double()
    unit, norms, scale = (unit, norms, scale) if is_double else _unit_rows(exact)
    x, home = double(state.x), exact.a.device
    live, free, outcome, iterations = (t.to(home) for t in (live, state.free, state.outcome, iterations))
    x = torch.where(unit.equality, x, x.clamp(min=0))
    W = unit.adjoint(x)
    # W = sum x_k a_k b_k^T loses what the multipliers exceed 1 by: repair where that shows.
    index = torch.nonzero((outcome == _CONVERGED) & (x.abs().sum(-1) > 1e3))[:, 0]
    if is_double and len(index):
        better, W[index] = _polish(unit.take(index), x[index], free[index])
        x[index] = torch.where(unit.equality[index], better, better.clamp(min=0))
    size = lengths(W.flatten(1))[:, None]
    multipliers = x / (norms * torch.where(size > 0, size, 1.0))
    W = W * scale[..., None]

    farkas = torch.zeros_like(x)
    residual = torch.full_like(x[:, 0], torch.inf)
    index = torch.nonzero(outcome == _RAY)[:, 0]
    if len(index):
        ray = _sharpen_ray(unit.take(index), x[index]) / norms[index]
        farkas[index], residual[index] = farkas_residual(exact.take(index), ray)
    # A zero row that asks for something proves infeasibility alone.
    dead = ~live & torch.where(exact.equality, exact.rhs != 0, exact.rhs > 0)
    index = torch.nonzero(dead.any(-1))[:, 0]
    if len(index):
        first = dead[index].to(torch.int8).argmax(-1)
        value = exact.rhs[index, first]
        farkas[index] = 0.0
        farkas[index, first] = 1.0 / value
        residual[index] = 0.0
    return FrobeniusResult(W, multipliers, outcome == _CONVERGED, farkas, residual, iterations)
