"""The driver of the batched solvers: chunks, certificates, statuses."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attsvm.solvers.batch import BatchSolution, MarginBatch
from attsvm.solvers.certificate import FARKAS_TOLERANCE
from attsvm.solvers.norms import Norm, get_norm
from attsvm.solvers.status import Status
from attsvm.solvers.threads import torch_threads

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from attsvm.solvers.batch_frobenius import FrobeniusResult

__all__ = ["solve_batch"]

# Largest gap or violation called optimal: what the batched methods reach on problems of ordinary
# conditioning, with a margin of 100 or more.
_TOLERANCE = {"float64": 1e-8, "float32": 1e-3}

# Numbers of working memory per chunk: enough problems that the time goes into arithmetic, not into calls.
_CHUNK_NUMBERS = {"cpu": 1 << 24, "other": 1 << 27}

_CODES = np.array([Status.OPTIMAL, Status.INACCURATE, Status.INFEASIBLE, Status.FAILED], dtype=object)
_FIELDS = ("primal_violation", "dual_violation", "gap", "complementarity", "norm", "lower_bound")
_RANKS = ("rank", "numerical_rank", "rank_tolerance")


def _chunk_size(batch: MarginBatch, norm: Norm, device: torch.device) -> int:
    """Problems per chunk so that about ten arrays of each kind fit the budget."""
    dx, dz = batch.shape
    per_problem = 8 * batch.m**2 + 6 * batch.m * (dx + dz) + 6 * dx * dz
    if norm.name == "nuclear":
        side = min(dx, batch.m) + min(dz, int(batch.queries.shape[1]))
        per_problem += 12 * side**2 + 8 * batch.m**2
    budget = _CHUNK_NUMBERS["cpu" if device.type == "cpu" else "other"]
    return max(1, budget // per_problem)


def _first_guess(warm_start: Any, batch: MarginBatch) -> npt.NDArray[np.bool_] | None:
    if warm_start is None:
        return None
    given = warm_start.multipliers if isinstance(warm_start, BatchSolution) else np.asarray(warm_start)
    if given.shape != (len(batch), batch.m):
        raise ValueError(f"warm_start must hold multipliers of shape {(len(batch), batch.m)}, got {given.shape}")
    unknown = np.isnan(given).any(axis=1, keepdims=True)  # no solution to start from: all rows, as without a guess
    return np.asarray((given > 0) | unknown)


def solve_batch(
    batch: MarginBatch,
    norm: str | Norm = "frobenius",
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    tolerance: float | None = None,
    max_iterations: int | None = None,
    warm_start: BatchSolution | npt.ArrayLike | None = None,
    chunk: int | None = None,
    rescue: bool = True,
) -> BatchSolution:
    """Solve all problems of a batch, Frobenius or nuclear norm.

    Parameters
    ----------
    batch : MarginBatch
    norm : str or Norm
        "frobenius" or "nuclear".
    device : str or torch.device, optional
        Where to compute; the device of the batch's tensors by default, the CPU for arrays.
    dtype : "float64", "float32" or torch.dtype, optional
        Precision of the iterations, float64 by default. Certificates are always computed in float64 (on
        the CPU if the device has none), so float32 shows as a larger gap.
    tolerance : float, optional
        Largest gap and violation that count as optimal: 1e-8 by default, 1e-3 in float32.
    max_iterations : int, optional
        Per problem: linear systems (Frobenius) or interior-point steps (nuclear).
    warm_start : BatchSolution or array_like, shape (B, m), optional
        Multipliers whose positive entries are the first guess of the active rows.
    chunk : int, optional
        Problems worked on at a time. By default as many as keep the working memory near 128 MiB on a CPU and
        1 GiB on other devices. Results do not depend on it beyond rounding; only arrays of the size of the
        results are kept for the whole batch.
    rescue : bool
        Hand float64 problems that end without certificate to the single-problem solver, one by one (they are
        marked in ``rescued``).

    Notes
    -----
    On a CPU torch is held to one thread during the call (and set back after it): the matrices are too small
    to be shared between threads.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.batch import MarginBatch
    >>> from attsvm.solvers.batch_solve import solve_batch
    >>> batch = MarginBatch(np.array([[[2.0]], [[4.0]]]), np.ones((2, 1, 1)), [0])
    >>> result = solve_batch(batch)
    >>> result.W.ravel().round(9).tolist(), (result.status == "optimal").tolist()
    ([0.5, 0.25], [True, True])
    """
    import torch

    norm = get_norm(norm)
    if norm.name not in ("frobenius", "nuclear"):
        raise ValueError(f"norm must be 'frobenius' or 'nuclear' for a batch, got {norm.name!r}")
    for name, number in (("max_iterations", max_iterations), ("chunk", chunk)):
        if number is not None and number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}")
    kind = getattr(torch, dtype, None) if isinstance(dtype, str) else (dtype or torch.float64)
    if kind not in (torch.float64, torch.float32):
        raise ValueError(f"dtype must be 'float64' or 'float32', got {dtype!r}")
    if tolerance is None:
        tolerance = _TOLERANCE["float64" if kind == torch.float64 else "float32"]
    elif not tolerance > 0:
        raise ValueError(f"tolerance must be positive, got {tolerance}")
    place = torch.device(device if device is not None else getattr(batch.a, "device", "cpu"))
    guess = _first_guess(warm_start, batch)

    begin = time.perf_counter()
    size = chunk or _chunk_size(batch, norm, place)
    out = _allocate(batch, norm)
    with torch_threads(place):
        for first in range(0, len(batch), size):
            _solve_chunk(batch, norm, slice(first, first + size), place, kind, max_iterations, guess, tolerance, out)
    if rescue and kind == torch.float64:
        for i in np.flatnonzero((out["code"] == 1) | (out["code"] == 3)):
            _rescue(batch, norm, int(i), tolerance, out)
    codes = out.pop("code")
    out["multipliers"][~batch.valid & (codes < 2)[:, None]] = 0.0
    seconds = time.perf_counter() - begin
    return BatchSolution(
        batch=batch, norm_kind=norm, status=_CODES[codes], tolerance=tolerance, seconds=seconds, **out
    )  # fmt: skip


def _allocate(batch: MarginBatch, norm: Norm) -> dict[str, Any]:
    size = len(batch)
    out: dict[str, Any] = {name: np.full(size, np.inf) for name in (*_FIELDS, "farkas_residual")}
    out["W"] = np.full((size, *batch.shape), np.nan)
    out["multipliers"] = np.full((size, batch.m), np.nan)
    out["farkas"] = np.full((size, batch.m), np.nan)
    out["iterations"] = np.zeros(size, dtype=np.int64)
    out["code"] = np.full(size, 3)
    out["rescued"] = np.zeros(size, dtype=bool)
    if norm.name == "nuclear":
        out["rank"], out["numerical_rank"] = np.full(size, -1), np.full(size, -1)
        out["rank_tolerance"] = np.full(size, np.inf)
    return out


def _finite(W: Tensor, multipliers: Tensor) -> Tensor:
    """Which problems hold only finite numbers, shape (B,): a sum over one that is not finite is not."""
    return (W.flatten(1).sum(-1) + multipliers.sum(-1)).isfinite()


def _store(out: npt.NDArray[Any], value: Tensor, chosen: npt.NDArray[np.bool_]) -> None:
    if chosen.all():  # the usual case, and much faster than a mask
        out[:] = value.cpu().numpy()
    elif chosen.any():
        out[chosen] = value.cpu().numpy()[chosen]


def _solve_chunk(
    batch: MarginBatch,
    norm: Norm,
    part: slice,
    device: torch.device,
    dtype: torch.dtype,
    max_iterations: int | None,
    guess: npt.NDArray[np.bool_] | None,
    tolerance: float,
    out: dict[str, Any],
) -> None:
    import torch

    from attsvm.solvers.batch_certificate import certify_rows
    from attsvm.solvers.batch_frobenius import solve_frobenius_rows

    rows = batch.rows(part, device, dtype)
    free = None if guess is None else torch.tensor(guess[part], device=device)
    cap = max_iterations if norm.name == "frobenius" else None
    found: FrobeniusResult = solve_frobenius_rows(rows, cap, free)
    infeasible = found.farkas_residual <= FARKAS_TOLERANCE
    W, multipliers, iterations = found.W, found.multipliers, found.iterations
    usable = ~infeasible & _finite(W, multipliers)
    if norm.name == "nuclear":
        from attsvm.solvers.batch_nuclear import solve_nuclear_rows

        index = torch.nonzero(usable & found.solved)[:, 0]
        here = index.to(device)
        queries = batch.queries_of(part, device, dtype)[here]
        better = solve_nuclear_rows(rows.take(here), queries, W[index], multipliers[index], max_iterations)
        W, multipliers, iterations = W.clone(), multipliers.clone(), iterations.clone()
        W[index], multipliers[index] = better.W, better.multipliers
        iterations[index] += better.iterations
        usable = usable & _finite(W, multipliers)

    exact = rows if dtype == torch.float64 else batch.rows(part, W.device, torch.float64)
    certificate = certify_rows(exact, W, multipliers, norm)
    # A run that did not settle may still hold a feasible point far from optimal: the certificate says so.
    optimal = usable & (certificate.worst <= tolerance)
    code = torch.where(optimal, 0, torch.where(infeasible, 2, torch.where(usable, 1, 3)))

    chosen = usable.cpu().numpy()
    proved = infeasible.cpu().numpy()
    out["code"][part] = code.cpu().numpy()
    out["iterations"][part] = iterations.cpu().numpy()
    for name, value in (("W", W), ("multipliers", multipliers), *certificate._asdict().items()):
        if name in out and value is not None:
            _store(out[name][part], value, chosen)
    _store(out["farkas"][part], found.farkas, proved)
    _store(out["farkas_residual"][part], found.farkas_residual, proved)


def _rescue(batch: MarginBatch, norm: Norm, i: int, tolerance: float, out: dict[str, Any]) -> None:
    """Solve problem i alone and keep what is certified better."""
    from attsvm.solvers.dispatch import solve

    alone = solve(batch.problem(i), norm, tolerance=tolerance)
    keep = batch.valid[i]
    certificate, farkas = alone.certificate, alone.certificate.farkas
    if alone.status is Status.INFEASIBLE and farkas is not None:
        out["code"][i], out["farkas_residual"][i] = 2, farkas.residual
        out["farkas"][i] = 0.0
        out["farkas"][i, keep] = farkas.multipliers
        out["W"][i] = out["multipliers"][i] = np.nan
        for name in _FIELDS:
            out[name][i] = np.inf
        if certificate is not None and norm.name == "nuclear":
            out["rank"][i] = out["numerical_rank"][i] = -1
            out["rank_tolerance"][i] = np.inf
    elif alone.status.has_solution:
        before = max(out["gap"][i], out["primal_violation"][i], out["dual_violation"][i])
        if not certificate.worst < before:
            return
        out["code"][i] = 0 if certificate.worst <= tolerance else 1
        out["W"][i] = alone.W
        out["multipliers"][i] = 0.0
        out["multipliers"][i, keep] = alone.multipliers
        for name in _FIELDS:
            out[name][i] = getattr(certificate, name)
        if certificate.rank_certificate is not None:
            out["rank"][i] = certificate.rank_certificate.rank
            out["numerical_rank"][i] = certificate.rank_certificate.numerical_rank
            out["rank_tolerance"][i] = certificate.rank_certificate.tolerance
    else:
        return
    out["rescued"][i] = True
